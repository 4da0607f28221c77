/* SPDX-License-Identifier: MIT */
/*
 * Preemption. A client may use all sessions while nobody else waits. When one without a session has
 * waited for PATIENCE_NS, an answer of the client with the most sessions, two at least, is
 * preempted: its cache rows are swapped out to ordinary memory, and its job goes to the head of the
 * queue, from where it comes back as any other. Nothing is computed anew, so the answer has the
 * same tokens.
 *
 * The answer with the fewest rows is chosen: it costs the least. If its rows would take more than
 * 1 / MEMORY_PART of the memory that is free, the other client waits for the end of an answer.
 */
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/engine/session_image.h"
#include "src/serve/compute/scheduler_internal.h"

#define PATIENCE_NS 500000000ull
#define MEMORY_PART 4

static uint32_t count_sessions(const struct scheduler *s, const struct client *client)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < s->n_slots; i++)
		n += s->slots[i].job && s->slots[i].job->client == client;
	return n;
}

/* Whether a client without a session has waited for long. */
static bool client_waits(struct scheduler *s)
{
	const uint64_t now = clock_ns();
	bool waits = false;
	pthread_mutex_lock(&s->lock);
	for (const struct job *j = s->first; j && !waits; j = j->next)
		waits = j->client && now - j->submitted_ns >= PATIENCE_NS && !count_sessions(s, j->client);
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
		const uint32_t n = x->job && x->job->client ? count_sessions(s, x->job->client) : 0;
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
	client_time_leave(
		&s->times, slot->time, slot->state == SCHEDULER_WRITING ? CLIENT_WRITES : CLIENT_READS);
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
	s->waiting++;
	client_count(j->client, CLIENT_PLACES, 1);
	pthread_mutex_unlock(&s->lock);
}

bool slots_preempt(struct scheduler *s)
{
	struct err e = {0};
	if (!client_waits(s))
		return false;
	struct slot *slot = slot_find_preempted(s);
	if (!slot || session_image_bytes(slot->session) > mem_available_bytes() / MEMORY_PART)
		return false;
	int rc = session_image_take(slot->session, &slot->job->swapped, &e);
	if (rc && rc != ERR_MEMORY) /* which is as if there were less of it */
		log_warn("an answer cannot be swapped out: %s", e.text);
	if (rc)
		return false;
	slot_requeue(s, slot);
	return true;
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
	client_begin_answer(j->client, slot->serial);
	slot->time = client_time_join(&s->times, j->client, writes ? CLIENT_WRITES : CLIENT_READS);
	slot->state = writes ? SCHEDULER_WRITING : SCHEDULER_READING;
	slot->prompt = (uint32_t)j->prompt.n;
	int rc = session_image_restore(slot->session, j->swapped, &e);
	session_image_free(j->swapped);
	j->swapped = NULL;
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
