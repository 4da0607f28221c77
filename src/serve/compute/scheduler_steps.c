/* SPDX-License-Identifier: MIT */
/*
 * Steps. A prompt is computed in chunks. An answer has one row for the token drawn last (slot.next)
 * and one row for each draft. After the step a token is drawn from the first row and given out. If
 * the draft of the next row is this token, a token is drawn from that row too, and so on; else that
 * row and those after it are forgotten. The last token drawn is computed by the next step.
 *
 * Where the model has several stages, several steps of different answers are in flight, so that all
 * stages compute (batch.h). While they are in flight, a step that reads prompts is computed as a
 * whole: those in flight wait in front of the last stage. While no answer is written, steps that
 * read prompts are in flight (scheduler_prompts.c).
 *
 * While answers are written, prompts are read in slices (slices.h). Both get the same time: before
 * the next slice answers are written for as long as the last one took. That goes for answers that
 * rest too (slot_rests): meanwhile prompts are read, but in slices.
 *
 * Within both, clients get the same time (client_time.h). A step that writes is charged to its
 * answers in equal parts, drafts included, since these are the scheduler's choice; a step that
 * reads by rows; a draw to its answer.
 */
#include "src/base/host/clock.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/generate.h"
#include "src/serve/compute/scheduler_internal.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(SCHEDULER_ROWS <= DRAW_ROWS_MAX, "one call draws from all rows of a step");

#define PROGRESS_NS 100000000ull /* between two reports of how far a prompt is */
#define SLICE_STEPS 4 /* a slice of prompts takes about as long as so many steps that write */

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

void reading_layer(void *user, uint32_t done, uint32_t n_layers)
{
	struct reading_step *step = user;
	uint64_t now = clock_ns();
	bool wanted = false, tell = now - step->reported_ns >= PROGRESS_NS && done < n_layers;
	for (uint32_t i = 0; i < step->n; i++) {
		struct job *j = step->at[i]->job;
		uint32_t rows = (uint32_t)((uint64_t)step->parts[i].n * done / n_layers);
		wanted |= !atomic_load(&j->cancel);
		if (tell)
			job_progress(j, session_length(step->at[i]->session) + rows, step->at[i]->prompt);
	}
	if (!wanted || atomic_load(&step->s->ends))
		atomic_store(step->cancel, true);
	if (tell)
		step->reported_ns = now;
}

struct step_times times_now(const struct scheduler *s)
{
	return (struct step_times){
		s->clock(), clock_thread_ns(), s->drafter ? drafter_clock(s->drafter) : 0};
}

void times_add(const struct scheduler *s, struct step_times *sum, struct step_times from)
{
	const struct step_times now = times_now(s);
	sum->clock += now.clock - from.clock;
	sum->cpu += now.cpu - from.cpu;
	sum->drafter += now.drafter - from.drafter;
}

/* Divides the time of a step among the clients of its parts. */
static void parts_charge(
	const struct batch_part *parts, struct slot *const *at, uint32_t n, uint64_t ns)
{
	uint64_t weights = 0;
	for (uint32_t i = 0; i < n; i++)
		weights += at[i]->state == SCHEDULER_WRITING ? 1 : parts[i].n;
	for (uint32_t i = 0; i < n; i++)
		if (at[i]->state == SCHEDULER_WRITING)
			client_time_charge(at[i]->time, CLIENT_WRITES, ns / weights);
		else
			client_time_charge(at[i]->time, CLIENT_READS, ns * parts[i].n / weights);
}

bool parts_finish(struct scheduler *s, const struct batch_part *parts, struct slot *const *at,
	uint32_t n, const struct step_times *times, int rc, struct err *e)
{
	s->step_ns += times->cpu;
	parts_charge(parts, at, n, times->clock);
	if (n && at[0]->state == SCHEDULER_WRITING)
		s->model_ns = s->model_ns ? (7 * s->model_ns + times->clock) / 8 : times->clock;
	pthread_mutex_lock(&s->lock);
	s->alone = NULL;
	s->snapshot.healthy = !rc || rc == ERR_INTERRUPTED;
	pthread_mutex_unlock(&s->lock);
	uint64_t rows = 0;
	for (uint32_t i = 0; i < n; i++) {
		rows += parts[i].n;
		at[i]->safe_steps -= MIN(at[i]->safe_steps, 1);
	}
	metrics_add(s->metrics, METRICS_STEPS, 1);
	metrics_add(s->metrics, METRICS_ROWS, rows);
	for (uint32_t i = 0; i < n && !rc; i++)
		if (!session_length(at[i]->session)) /* the step has forgotten it */
			slot_fail_not_finite(s, at[i]);
	if (!rc)
		return true;
	if (rc == ERR_INTERRUPTED) /* slots_drop_cancelled ends those that were cancelled */
		return false;
	log_warn("a step failed: %s", e->text);
	/* the sentence may name files of the server: not for clients */
	err_set(e, rc, "%s",
		rc == ERR_MEMORY ? JOB_NO_MEMORY
						 : "the model could not be computed; the server's log says why");
	for (uint32_t i = 0; i < n; i++)
		slot_fail(s, at[i], e);
	return false;
}

bool parts_compute(
	struct scheduler *s, const struct batch_part *parts, struct slot *const *at, uint32_t n)
{
	struct err e = {0};
	/* a step of one job is cancelled when its client leaves, even within a layer */
	struct job *alone = n == 1 ? at[0]->job : NULL;
	pthread_mutex_lock(&s->lock);
	s->alone = alone;
	if (alone && s->stop_now)
		atomic_store(&alone->cancel, true);
	atomic_store(&s->abandon, s->stop_now);
	pthread_mutex_unlock(&s->lock);
	struct reading_step step = {s, parts, at, n, clock_ns(), &s->abandon};
	const struct batch_watch watch = {.cancel = alone ? &alone->cancel : &s->abandon,
		.on_layer = n && at[0]->state == SCHEDULER_READING ? reading_layer : NULL,
		.user = &step};
	struct step_times times = {0};
	const struct step_times from = times_now(s);
	int rc = batch_step(parts, n, &watch, &e);
	times_add(s, &times, from);
	return parts_finish(s, parts, at, n, &times, rc, &e);
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

/* Whether the device may draw this job's tokens: nothing on the host needs their logits, unless the
 * token drawn turns out not to be allowed (slot_draw). */
static bool job_draws_on_device(const struct job *j)
{
	return !j->options.logprobs && !job_bans_ends(j) && !sampler_adjusts(&j->sampler);
}

void part_draws(struct batch_part *part, uint32_t before, const struct job *j,
	struct draw_request *requests, struct draw_result *drawn)
{
	uint32_t n = part->verify ? part->n : 1;
	uint32_t position = before + part->n - n + 1;
	part->logits = true;
	if (!job_draws_on_device(j))
		return;
	for (uint32_t i = 0; i < n; i++)
		requests[i] = sampler_request(&j->sampler, position + i);
	part->draws = requests;
	part->drawn = drawn;
}

/* *id = the token of `position`, drawn from row number `row` of those that the part draws from.
 * Takes the device's draw if it is the final one, else draws on the host. 0, or an error of the
 * device.
 */
static int slot_draw(struct scheduler *s, struct slot *slot, const struct batch_part *part,
	uint32_t row, uint32_t position, int32_t *id, struct err *e)
{
	struct job *j = slot->job;
	int32_t n_valid = engine_n_valid(s->engine), ends_with[JOB_ENDS_MAX];
	if (part->draws && sampler_accepts(&j->sampler, n_valid, position, &part->drawn[row]) &&
		output_allows(j->output, part->drawn[row].id)) {
		*id = part->drawn[row].id;
		return 0;
	}
	int rc = session_fetch_logits(slot->session, e);
	if (rc)
		return rc;
	const struct sampler_filter filter = {.user = j->output,
		.allows = token_allowed,
		.mask = tokens_mask,
		.banned = ends_with,
		.n_banned = job_bans_ends(j) ? job_end_tokens(s, j, ends_with) : 0};
	*id = sampler_draw(
		&j->sampler, session_row_logits(slot->session, row), n_valid, &filter, position);
	return 0;
}

/* Gives out the token drawn for `position` from these logits, which may be NULL without logprobs.
 * Returns whether the answer ends with it; *how says why. It fails with *e where the token breaks
 * the answer's schema. */
static bool slot_give(struct scheduler *s, struct slot *slot, int32_t id, uint32_t position,
	const float *logits, enum job_finish *how, struct err *e)
{
	struct job *j = slot->job;
	enum generate_stop stop;
	*how = JOB_LENGTH;
	if (!j->max_new)
		return true;
	bool ends =
		generate_ends(s->engine, id, position, (uint32_t)j->generated.n, j->max_new, false, &stop);
	*how = JOB_STOP_TOKEN;
	if ((ends && stop == GENERATE_STOP_TOKEN) || is_stop_id(j, id))
		return true;
	metrics_add(s->metrics, METRICS_NEW_TOKENS, 1);
	if (token_ids_push(&j->generated, id)) {
		mem_scope_fail();
		return false;
	}
	if (sampler_adjusts(&j->sampler))
		sampler_note(&j->sampler, id, false);
	enum output_next next = output_push(j->output, id, logits, engine_n_valid(s->engine));
	if (next == OUTPUT_INVALID)
		err_set(e, ERR_RUN, CONSTRAINT_BROKEN);
	*how = next == OUTPUT_GO_ON      ? JOB_LENGTH
		   : next == OUTPUT_ONE_CALL ? JOB_ONE_CALL
		   : next == OUTPUT_COMPLETE ? JOB_STOP_TOKEN
									 : JOB_STOP_STRING;
	return ends || next != OUTPUT_GO_ON;
}

/* Forgets the rows of drafts behind the first n that tokens were drawn from. */
static void slot_keep_rows(struct slot *slot, const struct batch_part *part, uint32_t n)
{
	if (part->verify)
		session_keep_rows(slot->session, n);
}

/* Draws a token from row number `row` and gives it out, unless an allocation of the scope has
 * failed. Returns whether the draft of row + 1 is this token; if not, the rows from row + 1 on are
 * forgotten. */
static bool slot_give_token(struct scheduler *s, struct slot *slot, const struct batch_part *part,
	uint32_t row, uint32_t position)
{
	struct job *j = slot->job;
	struct err e = {0};
	int32_t id;
	if (slot_draw(s, slot, part, row, position, &id, &e)) {
		log_warn("the logits of a step: %s", e.text);
		err_set(&e, e.code, "the model could not be computed; the server's log says why");
		slot_keep_rows(slot, part, row + 1);
		slot_fail(s, slot, &e);
		return false;
	}
	if (mem_scope_failed())
		return false;
	if (!j->first_token_ns) {
		j->first_token_ns = clock_ns();
		metrics_observe(s->metrics, METRICS_FIRST_TOKEN, j->first_token_ns - j->submitted_ns);
		if (slot->drafts)
			drafts_begin(slot->drafts, j->prompt.data, (uint32_t)j->prompt.n, &j->sampler);
	}
	if (slot->state == SCHEDULER_READING) {
		client_time_leave(&s->times, slot->time, CLIENT_READS);
		slot->time = client_time_join(&s->times, j->client, CLIENT_WRITES);
	}
	slot->state = SCHEDULER_WRITING;
	slot->next = id;
	if (slot->drafts)
		drafts_push(slot->drafts, id);
	enum job_finish how;
	bool ends = slot_give(s, slot, id, position, session_row_logits(slot->session, row), &how, &e);
	bool right = !ends && part->verify && row + 1 < part->n && part->tokens[row + 1] == id;
	if (!right)
		slot_keep_rows(slot, part, row + 1);
	if (mem_scope_failed())
		return false;
	if (e.code)
		slot_fail(s, slot, &e);
	else if (ends)
		slot_finish(s, slot, how);
	return right;
}

/* Drawing a token is quick, but the mask of a schema can take a hundred times as long as a step. A
 * job whose draw took more than 1 / LONG_PART of a step's time in the model rests: it gets no step
 * until steps have taken OTHERS times as long as the draw. The step with the draw is one of these.
 */
#define LONG_PART 4
#define OTHERS    5

static bool slot_rests(const struct scheduler *s, const struct slot *slot)
{
	for (uint32_t i = 0; i < s->n_slots && slot->rest_ns > 0; i++)
		if (s->slots[i].job && s->slots[i].rest_ns <= 0)
			return true;
	return false;
}

void slot_continue(struct scheduler *s, struct slot *slot, const struct batch_part *part)
{
	uint32_t rows = part->verify ? part->n : 1, row = 0;
	uint32_t position = session_length(slot->session) - rows + 1;
	bool goes_on = true;
	struct client_time *time = client_time_join(&s->times, slot->job->client, CLIENT_WRITES);
	uint64_t start = clock_thread_ns();
	for (; goes_on; row++) {
		struct mem_scope scope;
		mem_scope_begin(&scope);
		goes_on = slot_give_token(s, slot, part, row, position + row);
		if (mem_scope_end(&scope) && slot->job) {
			slot_keep_rows(slot, part, row + 1);
			slot_fail_memory(s, slot);
			goes_on = false;
		}
	}
	uint64_t took = clock_thread_ns() - start;
	client_time_charge(time, CLIENT_WRITES, took);
	client_time_leave(&s->times, time, CLIENT_WRITES);
	if (took > s->model_ns / LONG_PART)
		slot->rest_ns = (int64_t)(OTHERS * took);
}

uint32_t slots_take_turns(struct scheduler *s, struct slot **at, uint32_t n, enum client_work work)
{
	struct client_time *of[SCHEDULER_SESSIONS_MAX] = {NULL};
	uint32_t kept = 0;
	for (uint32_t i = 0; i < n; i++)
		of[i] = at[i]->time;
	client_time_least(&s->times, of, n, work);
	for (uint32_t i = 0; i < n; i++)
		if (client_time_may(
				&s->times, of[i], work, work == CLIENT_WRITES ? s->decode_ns : s->prefill_ns))
			at[kept++] = at[i];
	return kept;
}

/* Chooses the drafts of a step for these slots, at most `most` rows in all. A failure means no
 * drafts, not a failed answer. */
static void slots_draft(struct scheduler *s, struct slot *const *at, uint32_t n, uint32_t most)
{
	struct draft_timeline *drafts[SCHEDULER_ROWS];
	struct mem_scope scope;
	struct err e = {0};
	for (uint32_t i = 0; i < n; i++) {
		const struct job *j = at[i]->job;
		uint32_t room = engine_context(s->engine) - session_length(at[i]->session) - 1;
		drafts[i] = at[i]->drafts;
		/* the answer's last token needs no row, so not more drafts than tokens before it */
		drafts_limit(drafts[i], MIN(room, j->max_new - (uint32_t)j->generated.n - 1));
	}
	mem_scope_begin(&scope);
	int rc = drafts_propose(s->drafter, drafts, n, most, &e);
	bool failed = mem_scope_end(&scope);
	if (rc)
		log_warn("drafts: %s", e.text);
	for (uint32_t i = 0; i < n && failed; i++)
		drafts_drop(drafts[i]);
}

/* Reports to the drafter that the step for these slots took ns, also for those whose answer has
 * ended in this step. */
static void slots_drafted(struct scheduler *s, struct slot *const *at, uint32_t n, uint64_t ns)
{
	struct draft_timeline *drafts[SCHEDULER_ROWS];
	for (uint32_t i = 0; i < n; i++)
		drafts[i] = at[i]->drafts;
	drafts_computed(s->drafter, drafts, n, ns);
}

/* A step of answers: the latest token of each, and drafts. At most as many rows in all as the
 * device computes with the bits of single rows (batch_decode_rows). */
struct answer_step {
	struct answer_step *next;
	struct batch_run *run; /* NULL: computed as a whole when it ends */
	uint32_t n;
	struct slot *at[SCHEDULER_ROWS];
	struct batch_part parts[SCHEDULER_ROWS];
	int32_t tokens[SCHEDULER_ROWS];
	struct draw_request draws[SCHEDULER_ROWS];
	struct draw_result drawn[SCHEDULER_ROWS];
	struct step_times times;
};

static uint32_t count_in_flight(const struct scheduler *s, uint32_t *answers)
{
	uint32_t n = 0;
	*answers = 0;
	for (const struct answer_step *x = s->steps; x; x = x->next, n++)
		*answers += x->n;
	return n;
}

/* The answers of the next step, if one more may be in flight; returns how many. *count: steps that
 * are in flight at best. */
static uint32_t choose_answers(struct scheduler *s, struct slot **at, uint32_t *count)
{
	uint32_t n = 0, flying, ones[SCHEDULER_SESSIONS_MAX];
	const uint32_t n_steps = count_in_flight(s, &flying);
	for (uint32_t k = 0; k < s->n_slots; k++) {
		struct slot *slot = &s->slots[(s->next_write_slot + k) % s->n_slots];
		if (slot->job && slot->state == SCHEDULER_WRITING && !slot->in_flight &&
			!slot_rests(s, slot))
			at[n++] = slot;
		ones[k] = 1;
	}
	if (!n || n_steps >= batch_micro_batches(s->engine, flying + n, flying + n))
		return 0;
	n = slots_take_turns(s, at, n, CLIENT_WRITES);
	if (!n)
		return 0;
	*count = batch_micro_batches(s->engine, flying + n, flying + n);
	if (n_steps >= *count)
		return 0;
	const uint32_t taken = batch_micro_batch_size(s->engine, ones, n, flying + n, *count);
	if (n > taken)
		s->next_write_slot = (uint32_t)(at[taken] - s->slots);
	return taken;
}

static struct answer_step *take_unused_step(struct scheduler *s)
{
	struct answer_step *step = s->unused_steps;
	if (!step)
		bug("more steps of answers than may be in flight");
	s->unused_steps = step->next;
	*step = (struct answer_step){0};
	return step;
}

static void give_unused_step(struct scheduler *s, struct answer_step *step)
{
	step->next = s->unused_steps;
	s->unused_steps = step;
}

void scheduler_reserve_steps(struct scheduler *s)
{
	const uint32_t n = batch_micro_batches(s->engine, s->n_slots, s->n_slots);
	for (uint32_t i = 0; i < n; i++)
		give_unused_step(s, NEW(struct answer_step));
	prompt_steps_reserve(s, batch_depth(s->engine));
}

void scheduler_free_steps(struct scheduler *s)
{
	prompt_steps_free(s);
	for (struct answer_step *x = s->unused_steps, *next; x; x = next) {
		next = x->next;
		free(x);
	}
	s->unused_steps = NULL;
}

/* The rows of a step, drafts included. */
static void fill_step(struct scheduler *s, struct answer_step *step)
{
	uint32_t rows = 0;
	if (s->drafter)
		slots_draft(s, step->at, step->n, MIN(SCHEDULER_ROWS, batch_decode_rows(s->engine)));
	for (uint32_t i = 0; i < step->n; i++) {
		struct slot *slot = step->at[i];
		const struct draft_timeline *drafts = slot->drafts;
		uint32_t n_drafts = drafts ? drafts->n : 0;
		step->tokens[rows] = slot->next;
		if (n_drafts)
			memcpy(step->tokens + rows + 1, drafts->ids, n_drafts * sizeof *step->tokens);
		step->parts[i] = (struct batch_part){.session = slot->session,
			.tokens = step->tokens + rows,
			.n = 1 + n_drafts,
			.verify = n_drafts > 0};
		part_draws(&step->parts[i], session_length(slot->session), slot->job, &step->draws[rows],
			&step->drawn[rows]);
		rows += 1 + n_drafts;
	}
}

/* Begins a step of answers, if one more may be in flight. Returns whether it did. */
static bool begin_answers(struct scheduler *s)
{
	struct slot *at[SCHEDULER_SESSIONS_MAX] = {NULL};
	struct err e = {0};
	uint32_t count;
	const uint32_t n = choose_answers(s, at, &count);
	if (!n)
		return false;
	struct answer_step *step = take_unused_step(s), **last = &s->steps;
	step->n = n;
	memcpy(step->at, at, n * sizeof *at);
	fill_step(s, step);
	int rc = 0;
	if (count > 1) {
		const struct step_times from = times_now(s);
		rc = batch_begin(step->parts, n, &(struct batch_watch){.cancel = &s->ends}, &step->run, &e);
		times_add(s, &step->times, from);
	}
	if (rc) {
		parts_finish(s, step->parts, step->at, n, &step->times, rc, &e);
		give_unused_step(s, step);
		return false;
	}
	for (uint32_t i = 0; i < n; i++)
		at[i]->in_flight++;
	while (*last)
		last = &(*last)->next;
	*last = step;
	return true;
}

/* Ends the step that was begun first: its answers go on. */
static void end_answers(struct scheduler *s)
{
	struct answer_step *step = s->steps;
	struct err e = {0};
	bool computed;
	if (!step)
		return;
	s->steps = step->next;
	for (uint32_t i = 0; i < step->n; i++)
		step->at[i]->in_flight--;
	const struct step_times from = times_now(s);
	if (step->run) {
		int rc = batch_end(step->run, &e);
		times_add(s, &step->times, from);
		computed = parts_finish(s, step->parts, step->at, step->n, &step->times, rc, &e);
	} else {
		computed = parts_compute(s, step->parts, step->at, step->n);
		times_add(s, &step->times, from);
	}
	for (uint32_t i = 0; i < step->n && computed; i++)
		if (step->at[i]->job)
			slot_continue(s, step->at[i], &step->parts[i]);
	if (s->drafter && computed)
		slots_drafted(s, step->at, step->n, step->times.drafter);
	give_unused_step(s, step);
}

/* Steps of answers: as many in flight as there are stages to compute them, and the end of one. */
static void decode_step(struct scheduler *s)
{
	while (begin_answers(s))
		;
	end_answers(s);
}

void scheduler_step(struct scheduler *s)
{
	bool reading = slots_count(s, SCHEDULER_READING), writing = slots_count(s, SCHEDULER_WRITING);
	bool ready = false; /* an answer could be written now */
	for (uint32_t i = 0; i < s->n_slots; i++)
		ready = ready || (s->slots[i].job && s->slots[i].state == SCHEDULER_WRITING &&
							 !slot_rests(s, &s->slots[i]));
	ready = ready || s->steps;
	ready = ready && !s->reads; /* they end first */
	if (!reading && !ready)
		return;
	uint64_t start = s->clock(), wall = clock_ns();
	bool write = ready && (!reading || s->writing_ns > 0);
	uint32_t room = batch_max_rows(s->engine);
	if (writing && s->decode_ns > 0)
		room = slices_rows(&s->slices, SLICE_STEPS * s->decode_ns, room);
	if (write)
		decode_step(s);
	else
		prefill_step(s, room);
	uint64_t took = s->clock() - start;
	if (write) {
		s->decode_ns = s->decode_ns ? (7 * s->decode_ns + took) / 8 : took;
	}
	metrics_add(s->metrics, write ? METRICS_DECODE_NS : METRICS_PREFILL_NS, clock_ns() - wall);
	for (uint32_t i = 0; i < s->n_slots; i++)
		s->slots[i].rest_ns -= MIN(s->slots[i].rest_ns, (int64_t)took);
	if (!reading || !writing)
		s->writing_ns = 0;
	else if (write)
		s->writing_ns -= (int64_t)took;
	else /* several slices while all answers rest count as one */
		s->writing_ns = MIN(s->writing_ns, 0) + (int64_t)took;
}
