/* SPDX-License-Identifier: MIT */
/* Which session a job gets, how many tokens of its prompt are computed there already, and how jobs
 * end. */
#include "src/base/host/clock.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/serve/compute/scheduler_internal.h"

/* All in tokens. */
#define SAME_CONVERSATION 3   /* the end of a prompt, the opening of an answer, may differ later */
#define FOLLOW_LEAST      128 /* common tokens that are worth waiting for another session */
#define COPY_LEAST        16  /* fewer are computed, not copied */

/* ---- the end of jobs ---- */

static void slot_release(struct scheduler *s, struct slot *slot)
{
	struct job *j = slot->job;
	double seconds = (double)(clock_ns() - j->started_ns) / 1e9;
	client_time_leave(
		&s->times, slot->time, slot->state == SCHEDULER_WRITING ? CLIENT_WRITES : CLIENT_READS);
	slot->time = NULL;
	slot->job = NULL;
	slot->state = SCHEDULER_IDLE;
	slot->last_used = ++s->n_ended;
	client_end_answer(j->client);
	pthread_mutex_lock(&s->lock);
	s->running--;
	s->job_seconds = s->job_seconds > 0 ? 0.9 * s->job_seconds + 0.1 * seconds : seconds;
	pthread_mutex_unlock(&s->lock);
	job_drop(j);
}

void slot_keep_prefix(struct scheduler *s, struct slot *slot)
{
	struct err e = {0};
	struct mem_scope scope;
	if (!s->store || session_length(slot->session) < PREFIX_BLOCK)
		return;
	mem_scope_begin(&scope);
	int rc = prefix_store_keep(s->store, slot->session, session_length(slot->session), &e);
	mem_scope_end(&scope);
	if (rc)
		log_warn("a prompt is not stored: %s", e.text);
}

void slot_finish(struct scheduler *s, struct slot *slot, enum job_finish how)
{
	struct job *j = slot->job;
	/* what was read of a cancelled prompt is of use when the same prompt comes again */
	bool reading = slot->state == SCHEDULER_READING,
		 keep = how == JOB_CANCELLED ? reading : slot->state == SCHEDULER_WRITING;
	metrics_add(s->metrics, how == JOB_CANCELLED ? METRICS_CANCELLED : METRICS_ANSWERS, 1);
	if (how != JOB_CANCELLED)
		metrics_observe(s->metrics, METRICS_DURATION, clock_ns() - j->submitted_ns);
	struct mem_scope scope;
	bool incomplete = mem_scope_failed();
	mem_scope_begin(&scope);
	if (incomplete)
		mem_scope_fail();
	job_end(j, how);
	mem_scope_end(&scope);
	if (keep)
		slot_keep_prefix(s, slot);
	if (reading) /* the same prompt goes on in this session */
		slot->prompt = session_length(slot->session);
	slot_release(s, slot);
}

void slot_fail(struct scheduler *s, struct slot *slot, const struct err *e)
{
	metrics_add(s->metrics, METRICS_FAILED, 1);
	job_fail(slot->job, e);
	slot_release(s, slot);
}

void slot_fail_memory(struct scheduler *s, struct slot *slot)
{
	struct err e = {0};
	err_set(&e, ERR_MEMORY, JOB_NO_MEMORY);
	log_warn("out of memory; an answer is ended");
	slot_fail(s, slot, &e);
}

/* ---- the beginning of jobs ---- */

/* The idle slot for a prompt, by the rule in scheduler.h; there must be one. *start: tokens at the
 * beginning of the prompt that its session holds, all but the last token at most. */
static struct slot *slot_choose(
	struct scheduler *s, const struct token_ids *prompt, uint32_t *start)
{
	struct slot *going_on = NULL, *oldest = NULL, *longest = NULL;
	uint32_t going_on_n = 0, oldest_n = 0, longest_n = 0;
	for (uint32_t i = 0; i < s->n_slots; i++) {
		struct slot *x = &s->slots[i];
		uint32_t n = session_common_prefix(x->session, prompt->data, (uint32_t)prompt->n);
		if (n > longest_n) {
			longest = x;
			longest_n = n;
		}
		if (x->job)
			continue;
		if (n > going_on_n && x->prompt && n + SAME_CONVERSATION >= x->prompt) {
			going_on = x;
			going_on_n = n;
		}
		if (!oldest || x->last_used < oldest->last_used) {
			oldest = x;
			oldest_n = n;
		}
	}
	uint32_t most = (uint32_t)prompt->n - 1; /* the logits of the last token are wanted */
	if (going_on && going_on_n >= longest_n) {
		*start = MIN(going_on_n, most);
		return going_on;
	}
	*start = MIN(oldest_n, most);
	longest_n = MIN(longest_n, most);
	struct err e = {0};
	if (longest && longest != oldest && longest_n >= *start + COPY_LEAST) {
		if (!batch_copy_prefix(oldest->session, longest->session, longest_n, &e))
			*start = longest_n;
		else
			*start = 0;
	}
	return oldest;
}

/* Reads more of the prompt's rows from disk than the `start` tokens that the session holds, if
 * there are any. Returns how many it holds then. */
static uint32_t slot_restore_prefix(
	struct scheduler *s, struct slot *slot, const struct token_ids *prompt, uint32_t start)
{
	struct err e = {0};
	uint32_t n_read = 0, n = (uint32_t)prompt->n - 1;
	struct mem_scope scope; /* what cannot be read is computed */
	if (!s->store || start + PREFIX_BLOCK > n)
		return start;
	mem_scope_begin(&scope);
	if (prefix_store_restore(s->store, slot->session, prompt->data, n, &n_read, &e))
		log_warn("the session folder: %s", e.text);
	mem_scope_end(&scope);
	return session_length(slot->session);
}

/* Sets the leader if another session is reading the same beginning: that is computed once, and this
 * slot waits, then copies. A leader's job began earlier, so no slots wait for each other in a
 * circle. */
static void slot_find_leader(struct scheduler *s, struct slot *slot, uint32_t start)
{
	const struct token_ids *mine = &slot->job->prompt;
	slot->leader = NULL;
	slot->common = start + FOLLOW_LEAST - 1;
	for (uint32_t i = 0; i < s->n_slots; i++) {
		struct slot *x = &s->slots[i];
		if (x == slot || !x->job || x->state != SCHEDULER_READING)
			continue;
		const struct token_ids *theirs = &x->job->prompt;
		size_t n = 0, most = MIN(mine->n - 1, theirs->n);
		while (n < most && mine->data[n] == theirs->data[n])
			n++;
		if (n > slot->common) {
			slot->leader = x;
			slot->leader_serial = x->serial;
			slot->common = (uint32_t)n;
		}
	}
}

bool slot_follows(struct scheduler *s, struct slot *slot)
{
	struct slot *x = slot->leader;
	struct job *j = slot->job;
	if (!x)
		return false;
	if (x->job && x->serial == slot->leader_serial && session_length(x->session) < slot->common)
		return true;
	slot->leader = NULL;
	struct err e = {0};
	uint32_t old = session_length(slot->session),
			 n = session_common_prefix(x->session, j->prompt.data, slot->common);
	if (n < old + COPY_LEAST)
		return false;
	if (batch_copy_prefix(slot->session, x->session, n, &e)) {
		log_warn("copying a prefix: %s", e.text);
		return false;
	}
	j->cached += n - old;
	j->reading_ns = clock_ns();
	metrics_add(s->metrics, METRICS_CACHED_TOKENS, n - old);
	job_progress(j, n, slot->prompt);
	return false;
}

static void slot_begin_job(struct scheduler *s, struct job *j)
{
	uint32_t start;
	struct slot *slot = slot_choose(s, &j->prompt, &start);
	session_rewind(slot->session, MIN(start, session_length(slot->session)));
	start = slot_restore_prefix(s, slot, &j->prompt, start);
	slot->job = j;
	slot->serial = ++s->n_jobs;
	slot->rest_ns = 0;
	client_begin_answer(j->client, slot->serial);
	slot->safe_steps = 0;
	slot->time = client_time_join(&s->times, j->client, CLIENT_READS);
	slot_charge_swap(s, slot);
	slot->state = SCHEDULER_READING;
	slot->prompt = (uint32_t)j->prompt.n;
	j->cached = start;
	j->started_ns = j->reading_ns = clock_ns();
	struct mem_scope scope;
	mem_scope_begin(&scope);
	job_begin(j, engine_tokenizer(s->engine));
	bool incomplete = mem_scope_end(&scope);
	slot_find_leader(s, slot, start);
	job_progress(j, start, slot->prompt);
	metrics_add(s->metrics, METRICS_PROMPT_TOKENS, j->prompt.n);
	metrics_add(s->metrics, METRICS_CACHED_TOKENS, start);
	metrics_observe(s->metrics, METRICS_QUEUED, j->started_ns - j->submitted_ns);
	if (incomplete)
		slot_fail_memory(s, slot);
}

/* The one that was idle longest. */
static struct slot *slot_find_idle(struct scheduler *s)
{
	struct slot *oldest = NULL;
	for (uint32_t i = 0; i < s->n_slots; i++)
		if (!s->slots[i].job && (!oldest || s->slots[i].last_used < oldest->last_used))
			oldest = &s->slots[i];
	return oldest;
}

void slots_fill(struct scheduler *s)
{
	for (;;) {
		struct slot *idle = slot_find_idle(s);
		pthread_mutex_lock(&s->lock);
		struct job *j = queue_pop(s, true);
		bool stopping = s->stopping;
		if (!j && (stopping || idle))
			j = queue_pop(s, false);
		bool begins = j && idle && !stopping && !atomic_load(&j->cancel);
		s->running += begins;
		pthread_mutex_unlock(&s->lock);
		if (!j && !stopping && !idle && slots_preempt(s))
			continue;
		if (!j)
			return;
		if (begins && j->swapped) {
			slot_resume_job(s, idle, j);
			continue;
		}
		if (begins) {
			slot_begin_job(s, j);
			continue;
		}
		if (atomic_load(&j->cancel)) {
			struct mem_scope scope; /* one that was preempted gives out what was held back */
			metrics_add(s->metrics, METRICS_CANCELLED, 1);
			mem_scope_begin(&scope);
			job_end(j, JOB_CANCELLED);
			mem_scope_end(&scope);
		} else {
			struct err e = {0};
			err_set(&e, ERR_INTERRUPTED, "the server is shutting down");
			metrics_add(s->metrics, METRICS_FAILED, 1);
			job_fail(j, &e);
		}
		scheduler_free_image(s, j);
		job_drop(j);
	}
}

void slots_drop_cancelled(struct scheduler *s)
{
	pthread_mutex_lock(&s->lock);
	bool now = s->stop_now;
	pthread_mutex_unlock(&s->lock);
	struct err e = {0};
	err_set(&e, ERR_INTERRUPTED, "the server is shutting down");
	for (uint32_t i = 0; i < s->n_slots; i++) {
		struct slot *slot = &s->slots[i];
		if (slot->in_flight) /* when its step has ended */
			continue;
		if (slot->job && now)
			slot_fail(s, slot, &e);
		else if (slot->job && atomic_load(&slot->job->cancel))
			slot_finish(s, slot, JOB_CANCELLED);
	}
}

uint32_t slots_count(const struct scheduler *s, enum scheduler_state state)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < s->n_slots; i++)
		n += s->slots[i].job && s->slots[i].state == state;
	return n;
}
