/* SPDX-License-Identifier: MIT */
/*
 * Preemption. A client may use all sessions while nobody else waits. When another one needs a
 * session, an answer is preempted: its cache rows are swapped out to ordinary memory, and its job
 * goes to the head of the queue. Nothing is computed anew, so the answer has the same tokens.
 *
 * The rules:
 * - Who is let in: a client without a session that has waited for PATIENCE_NS, unless fair queuing
 *   has it ahead of others by more than a step (client_time.h).
 * - What is preempted: of the client with the most sessions, two at least, the answer with the
 *   fewest rows; not one whose step is in flight. One that has resumed is computed in SAFE_STEPS
 *   steps before that.
 * - Copying halts all other answers. So an image has IMAGE_BYTES at most; an answer with more rows
 *   is not preempted, and the other client waits for the end of one.
 * - All images together have IMAGES_BYTES at most, and a new one 1 / MEMORY_PART of the memory that
 *   is free.
 * - The client that gets the session is charged for copying there and back, both as reading and as
 *   writing, since both are halted.
 * - A preempted job takes no place in the queue: it has been accepted, and keeps nobody out. It is
 *   first among those whose clients have as few sessions as its own.
 * - If an image cannot be taken, preemption pauses for PAUSE_STEPS steps; for twice as many with
 *   each failure in a row, up to PAUSE_MOST.
 * - With several ranks nothing is preempted: rows of other ranks come in many small messages.
 *
 * An image lives from slots_preempt until its job leaves the queue; the compute thread frees it.
 */
#include "src/base/host/clock.h"
#include "src/base/host/memory_left.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/session/session_image.h"
#include "src/serve/compute/scheduler_internal.h"

#define PATIENCE_NS  500000000ull
#define SAFE_STEPS   64
#define IMAGE_BYTES  (256ull << 20)
#define IMAGES_BYTES (1ull << 30)
#define MEMORY_PART  4
#define PAUSE_STEPS  64
#define PAUSE_MOST   65536

void scheduler_init_preemption(struct scheduler *s)
{
	s->image_limit = engine_n_ranks(s->engine) > 1 ? 0 : IMAGE_BYTES;
	s->images_limit = IMAGES_BYTES;
}

static uint32_t count_sessions(const struct scheduler *s, const struct client *client)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < s->n_slots; i++)
		n += s->slots[i].job && s->slots[i].job->client == client;
	return n;
}

static enum client_work slot_work(const struct slot *slot)
{
	return slot->state == SCHEDULER_WRITING ? CLIENT_WRITES : CLIENT_READS;
}

/* Whether a client is let in, in place of an answer that does such work. */
static bool client_waits(struct scheduler *s, enum client_work work)
{
	const uint64_t now = clock_ns(), step_ns = work == CLIENT_WRITES ? s->decode_ns : s->prefill_ns;
	bool waits = false;
	pthread_mutex_lock(&s->lock);
	for (const struct job *j = s->first; j && !waits; j = j->next)
		waits = j->client && !j->swapped && now - j->submitted_ns >= PATIENCE_NS &&
				!atomic_load(&j->cancel) && !count_sessions(s, j->client) &&
				client_time_may(&s->times, client_time_find(&s->times, j->client), work, step_ns);
	pthread_mutex_unlock(&s->lock);
	return waits;
}

/* The answer to preempt; NULL: no client has two sessions. */
static struct slot *slot_find_preempted(struct scheduler *s)
{
	struct slot *best = NULL;
	uint32_t most = 1;
	for (uint32_t i = 0; i < s->n_slots; i++) {
		struct slot *x = &s->slots[i];
		if (!x->job || !x->job->client || x->safe_steps || x->in_flight)
			continue;
		const uint32_t n = count_sessions(s, x->job->client);
		if (n > most ||
			(best && n == most && session_length(x->session) < session_length(best->session))) {
			best = x;
			most = n;
		}
	}
	return best;
}

/* The job leaves its session and is first in the queue. */
static void slot_requeue(struct scheduler *s, struct slot *slot)
{
	struct job *j = slot->job;
	client_time_leave(&s->times, slot->time, slot_work(slot));
	slot->time = NULL;
	slot->job = NULL;
	slot->state = SCHEDULER_IDLE;
	slot->last_used = ++s->n_ended;
	client_end_answer(j->client);
	metrics_add(s->metrics, METRICS_PREEMPTED, 1);
	pthread_mutex_lock(&s->lock);
	j->next = s->first;
	if (!s->first)
		s->last = &j->next;
	s->first = j;
	s->running--;
	s->waiting++;
	s->n_swapped++;
	pthread_mutex_unlock(&s->lock);
}

bool slots_preempt(struct scheduler *s)
{
	struct err e = {0};
	const uint64_t steps = metrics_get(s->metrics, METRICS_STEPS);
	if (!s->image_limit || steps < s->preempt_from)
		return false;
	struct slot *slot = slot_find_preempted(s);
	if (!slot || !client_waits(s, slot_work(slot)))
		return false;
	struct job *j = slot->job;
	const size_t bytes = session_image_bytes(slot->session);
	if (bytes > s->image_limit || s->images_bytes + bytes > s->images_limit)
		return false;
	const uint64_t start = s->clock();
	int rc = bytes > memory_left() / MEMORY_PART
				 ? ERR_MEMORY
				 : session_image_take(slot->session, &j->swapped, &e);
	if (rc) {
		s->preempt_pause = MIN(MAX(2 * s->preempt_pause, PAUSE_STEPS), PAUSE_MOST);
		s->preempt_from = steps + s->preempt_pause;
		if (rc != ERR_MEMORY) /* else the other client waits as if answers were not preempted */
			log_warn("an answer cannot be swapped out: %s; tried again after %u steps", e.text,
				s->preempt_pause);
		return false;
	}
	s->preempt_pause = 0;
	s->images_bytes += j->swapped_bytes = bytes;
	slot->swap_ns = 2 * (s->clock() - start);
	log_verbose("an answer of %u tokens is paused for another client: %zu bytes are copied",
		session_length(slot->session), bytes);
	slot_requeue(s, slot);
	return true;
}

void slot_charge_swap(struct scheduler *s, struct slot *slot)
{
	if (!slot->swap_ns)
		return;
	/* joined for both: a client that joins goes on at the time of the least-served one */
	struct client_time *time = client_time_join(&s->times, slot->job->client, CLIENT_WRITES);
	client_time_charge(time, CLIENT_READS, slot->swap_ns);
	client_time_charge(time, CLIENT_WRITES, slot->swap_ns);
	client_time_leave(&s->times, time, CLIENT_WRITES);
	slot->swap_ns = 0;
}

void scheduler_free_image(struct scheduler *s, struct job *j)
{
	session_image_free(j->swapped);
	s->images_bytes -= j->swapped_bytes;
	j->swapped = NULL;
	j->swapped_bytes = 0;
}

void slot_resume_job(struct scheduler *s, struct slot *slot, struct job *j)
{
	struct err e = {0};
	struct mem_scope scope;
	const bool writes = j->generated.n > 0;
	slot->job = j;
	slot->serial = ++s->n_jobs;
	slot->rest_ns = 0;
	slot->leader = NULL;
	slot->safe_steps = SAFE_STEPS;
	slot->swap_ns = 0; /* whom it was freed for has left */
	client_begin_answer(j->client, slot->serial);
	slot->time = client_time_join(&s->times, j->client, writes ? CLIENT_WRITES : CLIENT_READS);
	slot->state = writes ? SCHEDULER_WRITING : SCHEDULER_READING;
	slot->prompt = (uint32_t)j->prompt.n;
	int rc = session_image_restore(slot->session, j->swapped, &e);
	scheduler_free_image(s, j);
	if (rc) {
		log_warn("a preempted answer: %s", e.text);
		err_set(&e, rc, "the model could not be computed; the server's log says why");
		slot_fail(s, slot, &e);
		return;
	}
	if (!writes)
		return;
	/* the last token drawn is not computed yet */
	slot->next = j->generated.data[j->generated.n - 1];
	if (!slot->drafts)
		return;
	mem_scope_begin(&scope);
	drafts_begin(
		slot->drafts, session_tokens(slot->session), session_length(slot->session), &j->sampler);
	drafts_push(slot->drafts, slot->next);
	if (mem_scope_end(&scope))
		slot_fail_memory(s, slot);
}
