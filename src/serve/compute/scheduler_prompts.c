/* SPDX-License-Identifier: MIT */
/*
 * Chooses the prompts that a step reads, and pipelines such steps through the stages of the model.
 * As long as no answer is written, as many steps are in flight as there are stages; a prompt may be
 * in several of them, with consecutive chunks. Before an answer is written, the steps in flight
 * end.
 *
 * When a step fails or is cancelled, the steps begun after it are ended before its jobs are,
 * because a slot in flight must keep its job. Rows that those have not computed are computed by
 * later steps.
 */
#include "src/base/host/clock.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/serve/compute/scheduler_internal.h"

#include <stdlib.h>
#include <string.h>

/* A step that reads prompts. */
struct prompt_step {
	struct prompt_step *next; /* in s->reads or s->unused_reads */
	struct batch_run *run;    /* NULL: computed as a whole */
	uint32_t n;
	struct slot *at[SCHEDULER_SESSIONS_MAX];
	struct batch_part parts[SCHEDULER_SESSIONS_MAX];
	struct draw_request draws[SCHEDULER_SESSIONS_MAX];
	struct draw_result drawn[SCHEDULER_SESSIONS_MAX];
	atomic_bool cancel;
	struct reading_step watched;
	struct step_times times;
	uint64_t began; /* by s->clock */
	bool few;       /* of prompts with at most few_rows rows to compute */
};

/* Tokens of the prompt that have been read, or are in steps in flight. */
static uint32_t slot_read(const struct slot *slot)
{
	return session_length(slot->session) + slot->ahead;
}

/* Steps of at most so many rows are computed in another way than larger ones (batch_decode_rows);
 * 0: all are computed in one way. */
static uint32_t few_rows(const struct scheduler *s)
{
	uint32_t few = batch_decode_rows(s->engine);
	return few < batch_max_rows(s->engine) ? few : 0;
}

/* A prompt is computed in the way in which it would be alone: those with at most `few` rows to
 * compute never share a step with longer ones. Of these n slots keeps either the former or the
 * latter, by turns. Returns how many. */
static uint32_t slots_of_one_way(struct scheduler *s, struct slot **at, uint32_t n, uint32_t few)
{
	struct slot *part[2][SCHEDULER_SESSIONS_MAX];
	uint32_t count[2] = {0};
	for (uint32_t i = 0; i < n; i++) {
		const struct job *j = at[i]->job;
		bool is_few = j->prompt.n - j->cached <= few;
		part[is_few][count[is_few]++] = at[i];
	}
	s->read_few = count[1] && (!count[0] || !s->read_few);
	memcpy(at, part[s->read_few], count[s->read_few] * sizeof *at);
	return count[s->read_few];
}

/* The parts of a step of about `room` rows that reads these n prompts; those that are not in it are
 * removed from `at`. Returns how many are. */
static uint32_t prefill_parts(struct scheduler *s, struct slot **at, uint32_t n, uint32_t room,
	struct batch_part *parts, struct draw_request *draws, struct draw_result *drawn)
{
	uint32_t few = few_rows(s), most = batch_max_rows(s->engine);
	uint32_t rest[SCHEDULER_SESSIONS_MAX], rows[SCHEDULER_SESSIONS_MAX], kept = 0, n_end = 0;
	n = slots_of_one_way(s, at, n, few);
	struct slice_step step = {.room = room, .most = most, .few = few};
	if (s->read_few)
		step = (struct slice_step){.room = few, .most = few, .slice = few};
	else
		step.slice = slices_rows(&s->slices, 0, most);
	step.others = s->read_ends;
	for (uint32_t i = 0; i < n; i++)
		rest[i] = (uint32_t)at[i]->job->prompt.n - slot_read(at[i]);
	slices_divide(&step, rest, n, rows);
	if (n)
		s->next_read_slot = (uint32_t)(at[0] - s->slots + 1) % s->n_slots;
	for (uint32_t i = 0; i < n; i++) {
		if (!rows[i])
			continue;
		const struct job *j = at[i]->job;
		parts[kept] = (struct batch_part){.session = at[i]->session,
			.tokens = j->prompt.data + slot_read(at[i]),
			.n = rows[i],
			.prompt = (uint32_t)j->prompt.n - j->cached};
		if (rows[i] == rest[i]) {
			part_draws(&parts[kept], slot_read(at[i]), j, &draws[kept], &drawn[kept]);
			n_end++;
		}
		at[kept++] = at[i];
	}
	s->read_ends = n_end == kept && kept < n;
	return kept;
}

static void give_unused_prompts(struct scheduler *s, struct prompt_step *x)
{
	x->next = s->unused_reads;
	s->unused_reads = x;
}

void prompt_steps_reserve(struct scheduler *s, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		give_unused_prompts(s, NEW(struct prompt_step));
}

void prompt_steps_free(struct scheduler *s)
{
	for (struct prompt_step *x = s->unused_reads, *next; x; x = next) {
		next = x->next;
		free(x);
	}
	s->unused_reads = NULL;
}

/* The next step; NULL: there is none to begin. */
static struct prompt_step *choose_prompts(struct scheduler *s, uint32_t room)
{
	struct prompt_step *x = s->unused_reads;
	if (!x)
		bug("more steps of prompts than may be in flight");
	s->unused_reads = x->next;
	*x = (struct prompt_step){0};
	for (uint32_t k = 0; k < s->n_slots; k++) {
		struct slot *slot = &s->slots[(s->next_read_slot + k) % s->n_slots];
		if (slot->job && slot->state == SCHEDULER_READING && !atomic_load(&slot->job->cancel) &&
			slot_read(slot) < slot->job->prompt.n && (slot->in_flight || !slot_follows(s, slot)))
			x->at[x->n++] = slot;
	}
	x->n = slots_take_turns(s, x->at, x->n, CLIENT_READS);
	x->n = prefill_parts(s, x->at, x->n, room, x->parts, x->draws, x->drawn);
	x->few = s->read_few;
	x->began = s->clock();
	if (x->n)
		return x;
	give_unused_prompts(s, x);
	return NULL;
}

/* After a step has been computed: counts its rows, and draws from prompts that have ended. took_ns:
 * of s->clock, since the step was chosen. */
static void prompts_read(struct scheduler *s, const struct prompt_step *x, uint64_t took_ns)
{
	uint32_t total = 0;
	for (uint32_t i = 0; i < x->n; i++) {
		struct slot *slot = x->at[i];
		total += x->parts[i].n;
		metrics_add(s->metrics, METRICS_PREFILL_TOKENS, x->parts[i].n);
		if (!slot->job)
			continue;
		job_progress(slot->job, session_length(slot->session), slot->prompt);
		if (!x->parts[i].logits)
			continue;
		slot_continue(s, slot, &x->parts[i]);
		if (slot->job)
			slot_keep_prefix(s, slot);
	}
	s->prefill_ns = took_ns;
	if (!x->few)
		slices_note(&s->slices, total, took_ns);
}

/* ---- in flight ---- */

/* Begins a step and appends it to s->reads; false: there is none, or it could not begin. */
static bool begin_prompts(struct scheduler *s, uint32_t room)
{
	struct prompt_step **last = &s->reads, *x;
	struct err e = {0};
	if (atomic_load(&s->ends) || !(x = choose_prompts(s, room)))
		return false;
	x->watched = (struct reading_step){s, x->parts, x->at, x->n, clock_ns(), &x->cancel};
	const struct batch_watch watch = {
		.cancel = &x->cancel, .on_layer = reading_layer, .user = &x->watched};
	const struct step_times from = times_now(s);
	int rc = batch_begin(x->parts, x->n, &watch, &x->run, &e);
	times_add(s, &x->times, from);
	if (rc && s->reads) { /* those in flight end first; then it is tried again */
		give_unused_prompts(s, x);
		return false;
	}
	if (rc) {
		parts_finish(s, x->parts, x->at, x->n, &x->times, rc, &e);
		give_unused_prompts(s, x);
		return false;
	}
	for (uint32_t i = 0; i < x->n; i++) {
		x->at[i]->in_flight++;
		x->at[i]->ahead += x->parts[i].n;
	}
	while (*last)
		last = &(*last)->next;
	*last = x;
	return true;
}

/* Ends the oldest step and takes it out of s->reads: *out. Returns its error. *forgets: it has left
 * a session with an empty timeline. */
static int end_first(struct scheduler *s, struct prompt_step **out, bool *forgets, struct err *e)
{
	struct prompt_step *x = s->reads;
	const struct step_times from = times_now(s);
	int rc = batch_end(x->run, e);
	times_add(s, &x->times, from);
	s->reads = x->next;
	*forgets = false;
	for (uint32_t i = 0; i < x->n; i++) {
		x->at[i]->in_flight--;
		x->at[i]->ahead -= x->parts[i].n;
		*forgets |= !rc && !session_length(x->at[i]->session);
	}
	*out = x;
	return rc;
}

/* Ends the oldest step; if it failed, the later ones too. */
static void end_prompts(struct scheduler *s)
{
	struct prompt_step *x, *later[STAGES_MAX];
	bool well[STAGES_MAX], forgets, unused;
	uint32_t n_later = 0;
	struct err e = {0};
	int rc = end_first(s, &x, &forgets, &e);
	const uint64_t took_ns = s->clock() - x->began;
	for (struct prompt_step *y = s->reads; y && rc; y = y->next)
		atomic_store(&y->cancel, true);
	while (s->reads && (rc || forgets)) {
		well[n_later] = !end_first(s, &later[n_later], &unused, NULL);
		n_later++;
	}
	if (parts_finish(s, x->parts, x->at, x->n, &x->times, rc, &e))
		prompts_read(s, x, took_ns);
	give_unused_prompts(s, x);
	for (uint32_t i = 0; i < n_later; i++) {
		struct prompt_step *y = later[i];
		if (well[i] && parts_finish(s, y->parts, y->at, y->n, &y->times, 0, NULL))
			prompts_read(s, y, took_ns);
		give_unused_prompts(s, y);
	}
}

void prefill_step(struct scheduler *s, uint32_t room)
{
	const bool writing = s->steps || slots_count(s, SCHEDULER_WRITING);
	uint32_t depth = writing ? 1 : batch_depth(s->engine), n = 0;
	for (const struct prompt_step *x = s->reads; x; x = x->next)
		n++;
	while (depth > 1 && n < depth && begin_prompts(s, room))
		n++;
	if (s->reads) {
		end_prompts(s);
		return;
	}
	struct prompt_step *x = depth > 1 ? NULL : choose_prompts(s, room);
	if (x && parts_compute(s, x->parts, x->at, x->n))
		prompts_read(s, x, s->clock() - x->began);
	if (x)
		give_unused_prompts(s, x);
}
