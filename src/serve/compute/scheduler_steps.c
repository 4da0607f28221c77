/* SPDX-License-Identifier: MIT */
/* Steps: prompts in chunks, answers a token at a time. */
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/generate.h"
#include "src/serve/compute/scheduler_internal.h"

static void slot_fail_not_finite(struct scheduler *s, struct slot *slot)
{
	struct err e = {0};
	err_set(&e, ERR_RUN,
		"the model's logits are not finite numbers: its weights or caches are damaged");
	log_warn("%s; the answer is ended", e.text);
	metrics_add(s->metrics, METRICS_NOT_FINITE, 1);
	pthread_mutex_lock(&s->lock);
	s->snapshot.healthy = false; /* until a step is right */
	pthread_mutex_unlock(&s->lock);
	slot_fail(s, slot, &e);
}

/* Computes the parts of `at`; when that fails their jobs do. A job that failed is gone from its
 * slot. */
static bool parts_compute(
	struct scheduler *s, const struct batch_part *parts, struct slot *const *at, uint32_t n)
{
	struct err e = {0};
	struct job *alone =
		n == 1 ? at[0]->job : NULL; /* a long step of one ends when its client leaves */
	pthread_mutex_lock(&s->lock);
	s->alone = alone;
	if (alone && s->stop_now)
		atomic_store(&alone->cancel, true);
	pthread_mutex_unlock(&s->lock);
	int rc = batch_step(parts, n, alone ? &alone->cancel : &s->abort, &e);
	pthread_mutex_lock(&s->lock);
	s->alone = NULL;
	s->snapshot.healthy = !rc || rc == ERR_INTERRUPTED;
	pthread_mutex_unlock(&s->lock);
	uint64_t rows = 0;
	for (uint32_t i = 0; i < n; i++)
		rows += parts[i].n;
	metrics_add(s->metrics, METRICS_STEPS, 1);
	metrics_add(s->metrics, METRICS_ROWS, rows);
	for (uint32_t i = 0; i < n && !rc; i++)
		if (parts[i].logits && !session_logits(at[i]->session))
			slot_fail_not_finite(s, at[i]);
	if (!rc)
		return true;
	if (rc == ERR_INTERRUPTED) /* drop_cancelled says what becomes of them */
		return false;
	log_warn("a step failed: %s", e.text);
	/* the sentence may name files of the server: not for clients */
	err_set(&e, rc, "the model could not be computed; the server's log says why");
	for (uint32_t i = 0; i < n; i++)
		slot_fail(s, at[i], &e);
	return false;
}

/* One chunk, shared evenly by all sessions that still read their prompts. */
static void prefill_step(struct scheduler *s)
{
	struct batch_part parts[SCHEDULER_SESSIONS_MAX];
	struct slot *at[SCHEDULER_SESSIONS_MAX] = {NULL};
	uint32_t n = 0, left = 0, room = batch_max_rows(s->engine);
	for (uint32_t i = 0; i < s->n_slots; i++)
		left += s->slots[i].job && s->slots[i].state == SCHEDULER_READING &&
				!slot_follows(s, &s->slots[i]);
	for (uint32_t k = 0; k < s->n_slots && left && room; k++) {
		struct slot *slot = &s->slots[(s->turn + k) % s->n_slots];
		if (!slot->job || slot->state != SCHEDULER_READING || slot->leader)
			continue;
		const struct token_ids *prompt = &slot->job->prompt;
		uint32_t done = session_length(slot->session), rest = (uint32_t)prompt->n - done;
		uint32_t rows = MIN(rest, MAX(room / left, 1));
		left--;
		room -= rows;
		at[n] = slot;
		parts[n] = (struct batch_part){.session = slot->session,
			.tokens = prompt->data + done,
			.n = rows,
			.logits = rows == rest};
		n++;
	}
	s->turn = (s->turn + 1) % s->n_slots;
	if (!parts_compute(s, parts, at, n))
		return;
	for (uint32_t i = 0; i < n; i++) {
		metrics_add(s->metrics, METRICS_PREFILL_TOKENS, parts[i].n);
		if (!at[i]->job)
			continue;
		job_progress(at[i]->job, session_length(at[i]->session), at[i]->prompt);
		if (parts[i].logits) {
			at[i]->state = SCHEDULER_WRITING;
			slot_keep_prefix(s, at[i]);
		}
	}
}

#define JOB_ENDS_MAX 128 /* stop tokens of the model and 64 of a request */

static bool token_allowed(void *user, int32_t id)
{
	return output_allows(user, id);
}

static void tokens_mask(void *user, float *logits, int32_t n_valid)
{
	output_mask(user, logits, n_valid);
}

static bool is_stop_id(const struct job *j, int32_t id)
{
	for (size_t i = 0; i < j->options.n_stop_ids; i++)
		if (j->options.stop_ids[i] == id)
			return true;
	return false;
}

/* The answer has fewer tokens than the client wants at least. */
static bool job_bans_ends(const struct job *j)
{
	return j->generated.n < j->options.min_new;
}

/* The tokens that would end the answer; returns how many. */
static size_t job_end_tokens(const struct scheduler *s, const struct job *j, int32_t *ids)
{
	size_t n, count = 0;
	const int32_t *stops = tokenizer_stops(engine_tokenizer(s->engine), &n);
	for (size_t i = 0; i < n && count < JOB_ENDS_MAX; i++)
		ids[count++] = stops[i];
	for (size_t i = 0; i < j->options.n_stop_ids && count < JOB_ENDS_MAX; i++)
		ids[count++] = j->options.stop_ids[i];
	return count;
}

/* The logits are at hand: draws the next token and gives it out. False when the answer has ended,
 * or an allocation of the scope has failed. */
static bool slot_draw(struct scheduler *s, struct slot *slot, int32_t *id)
{
	struct job *j = slot->job;
	const float *logits = session_logits(slot->session);
	int32_t n_valid = engine_n_valid(s->engine), ends_with[JOB_ENDS_MAX];
	const struct sampler_filter filter = {.user = j->output,
		.allows = token_allowed,
		.mask = tokens_mask,
		.banned = ends_with,
		.n_banned = job_bans_ends(j) ? job_end_tokens(s, j, ends_with) : 0};
	*id = sampler_draw(&j->sampler, logits, n_valid, &filter, session_length(slot->session));
	if (mem_scope_failed())
		return false;
	if (!j->first_token_ns) {
		j->first_token_ns = clock_ns();
		metrics_observe(s->metrics, METRICS_FIRST_TOKEN, j->first_token_ns - j->submitted_ns);
	}
	enum generate_stop stop;
	bool ends = generate_ends(s->engine, *id, session_length(slot->session),
		(uint32_t)j->generated.n, j->max_new, false, &stop);
	if ((ends && stop == GENERATE_STOP_TOKEN) || is_stop_id(j, *id)) {
		slot_finish(s, slot, JOB_STOP_TOKEN);
		return false;
	}
	metrics_add(s->metrics, METRICS_NEW_TOKENS, 1);
	if (token_ids_push(&j->generated, *id)) {
		mem_scope_fail();
		return false;
	}
	if (sampler_adjusts(&j->sampler))
		sampler_note(&j->sampler, *id, false);
	enum output_next next = output_push(j->output, *id, logits, n_valid);
	if (next != OUTPUT_GO_ON)
		slot_finish(s, slot,
			next == OUTPUT_ONE_CALL   ? JOB_ONE_CALL
			: next == OUTPUT_COMPLETE ? JOB_STOP_TOKEN
									  : JOB_STOP_STRING);
	else if (ends)
		slot_finish(s, slot, JOB_LENGTH);
	return slot->job != NULL;
}

static bool slot_sample(struct scheduler *s, struct slot *slot, int32_t *id)
{
	struct mem_scope scope;
	mem_scope_begin(&scope);
	bool goes_on = slot_draw(s, slot, id);
	if (mem_scope_end(&scope) && slot->job) {
		slot_fail_memory(s, slot);
		goes_on = false;
	}
	return goes_on;
}

/* One token of up to SCHEDULER_ROWS sessions. */
static void decode_step(struct scheduler *s)
{
	struct batch_part parts[SCHEDULER_ROWS];
	struct slot *at[SCHEDULER_ROWS] = {NULL};
	int32_t ids[SCHEDULER_ROWS];
	uint32_t n = 0, k, most = MIN(SCHEDULER_ROWS, batch_max_rows(s->engine));
	for (k = 0; k < s->n_slots && n < most; k++) {
		struct slot *slot = &s->slots[(s->turn + k) % s->n_slots];
		if (!slot->job || slot->state != SCHEDULER_WRITING || !slot_sample(s, slot, &ids[n]))
			continue;
		at[n] = slot;
		parts[n] = (struct batch_part){
			.session = slot->session, .tokens = &ids[n], .n = 1, .logits = true};
		n++;
	}
	s->turn = (s->turn + k) % s->n_slots;
	if (n)
		parts_compute(s, parts, at, n);
}

void scheduler_step(struct scheduler *s)
{
	bool reading = slots_count(s, SCHEDULER_READING), writing = slots_count(s, SCHEDULER_WRITING);
	if (!reading && !writing)
		return;
	uint64_t start = clock_ns();
	bool write = writing && (!reading || s->writing_ns > 0);
	if (write)
		decode_step(s);
	else
		prefill_step(s);
	int64_t took = (int64_t)(clock_ns() - start);
	metrics_add(s->metrics, write ? METRICS_DECODE_NS : METRICS_PREFILL_NS, (uint64_t)took);
	s->writing_ns = !reading || !writing ? 0 : write ? s->writing_ns - took : took;
}
