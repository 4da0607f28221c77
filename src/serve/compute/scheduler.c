/* SPDX-License-Identifier: MIT */
/* The loop: fill idle sessions from the queue, drop what was cancelled, compute one step, publish a
 * snapshot. */
#include "src/serve/compute/scheduler.h"

#include "src/base/host/clock.h"
#include "src/base/host/cond.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/serve/compute/scheduler_internal.h"

#include <stdlib.h>

/* The lowest rank is next. A preempted job comes before jobs of other clients that have as many
 * sessions. */
static uint64_t queue_rank(const struct job *j)
{
	uint64_t rank = client_rank(j->client);
	return j->swapped ? rank >> CLIENT_SERIAL_BITS << CLIENT_SERIAL_BITS : rank;
}

struct job *queue_pop(struct scheduler *s, bool cancelled_only)
{
	struct job **best = NULL;
	uint64_t lowest = UINT64_MAX;
	for (struct job **at = &s->first; *at && lowest; at = &(*at)->next) {
		uint64_t rank = cancelled_only ? 0 : queue_rank(*at);
		if (rank >= lowest || (cancelled_only && !atomic_load(&(*at)->cancel)))
			continue;
		best = at;
		lowest = rank;
	}
	if (!best)
		return NULL;
	struct job *j = *best;
	*best = j->next;
	if (!*best)
		s->last = best;
	j->next = NULL;
	s->waiting--;
	if (j->swapped) /* it took no place */
		s->n_swapped--;
	else
		client_give(j->client, CLIENT_PLACES, 1);
	return j;
}

/* ---- the thread ---- */

static void snapshot_publish(struct scheduler *s)
{
	struct scheduler_snapshot snapshot = {0};
	for (uint32_t i = 0; i < s->n_slots; i++) {
		const struct slot *x = &s->slots[i];
		snapshot.sessions[i] = (struct scheduler_session){.state = x->state,
			.tokens = session_length(x->session),
			.prompt = x->job ? x->prompt : 0,
			.done = x->job ? MIN(session_length(x->session), x->prompt) : 0,
			.new_tokens = x->job ? (uint32_t)x->job->generated.n : 0};
	}
	if (s->drafter)
		snapshot.drafts = drafter_stats(s->drafter);
	snapshot.preempted_bytes = s->images_bytes;
	pthread_mutex_lock(&s->lock);
	snapshot.healthy = s->snapshot.healthy;
	if (s->store)
		snapshot.store = prefix_store_stats(s->store);
	s->snapshot = snapshot;
	pthread_mutex_unlock(&s->lock);
}

static void count_processor_time(struct scheduler *s)
{
	uint64_t now = clock_thread_ns(), all = now - s->cpu_ns;
	metrics_add(s->metrics, METRICS_STEP_CPU_NS, s->step_ns);
	metrics_add(s->metrics, METRICS_HOST_CPU_NS, all - MIN(all, s->step_ns));
	s->cpu_ns = now;
	s->step_ns = 0;
}

static void *scheduler_main(void *arg)
{
	struct scheduler *s = arg;
	for (;;) {
		count_processor_time(s);
		slots_drop_cancelled(s);
		slots_fill(s);
		snapshot_publish(s);
		bool active = slots_count(s, SCHEDULER_READING) + slots_count(s, SCHEDULER_WRITING) > 0;
		pthread_mutex_lock(&s->lock);
		while (!active && !s->first && !s->stopping)
			pthread_cond_wait(&s->wake, &s->lock);
		bool end = !active && !s->first && s->stopping;
		if (end) {
			s->finished = true;
			pthread_cond_broadcast(&s->ended);
		}
		pthread_mutex_unlock(&s->lock);
		if (end)
			return NULL;
		scheduler_step(s);
	}
}

int scheduler_open(struct engine *g, const struct scheduler_options *o, struct metrics *metrics,
	struct scheduler **out, struct err *e)
{
	uint32_t n_sessions = o->n_sessions;
	*out = NULL;
	if (!n_sessions || n_sessions > SCHEDULER_SESSIONS_MAX)
		return err_set(e, ERR_USAGE, "%u sessions asked for, expected 1 to %d", n_sessions,
			SCHEDULER_SESSIONS_MAX);
	struct scheduler *s = NEW(struct scheduler);
	s->engine = g;
	s->metrics = metrics;
	s->clock = engine_only_computes(g) ? clock_thread_ns : clock_ns;
	s->queue_limit = o->queue_limit;
	scheduler_init_preemption(s);
	s->slots = NEW_ARRAY(struct slot, n_sessions);
	s->last = &s->first;
	s->snapshot.healthy = true;
	s->finished = true; /* until the thread runs */
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->wake, NULL);
	cond_init(&s->ended);
	int rc = 0;
	if (o->draft != DRAFT_OFF)
		s->drafter = drafter_open(g, o->draft);
	for (; s->n_slots < n_sessions && !rc; s->n_slots += !rc) {
		struct slot *slot = &s->slots[s->n_slots];
		if (!(rc = session_new(g, &slot->session, e)))
			slot->drafts = draft_timeline_open(s->drafter, slot->session);
	}
	if (!rc && o->folder)
		rc = prefix_store_open(o->folder, o->folder_bytes, g, &s->store, e);
	if (!rc) {
		scheduler_reserve_steps(s);
		s->finished = false;
		int failed = pthread_create(&s->thread, NULL, scheduler_main, s);
		if (failed) {
			s->finished = true;
			rc = err_errno(e, failed, "the compute thread");
		}
	}
	if (rc) {
		s->stopping = true; /* there is no thread to join */
		s->stop_now = true;
		s->thread = 0;
		scheduler_close(s);
		return rc;
	}
	*out = s;
	return 0;
}

/* Whether n more jobs of the client may be queued. take: counts their places as the client's. Lock
 * held. */
static enum scheduler_answer queue_answer(
	struct scheduler *s, struct client *client, uint32_t n, bool take, unsigned *retry_s)
{
	if (s->stopping)
		return SCHEDULER_ENDING;
	/* what is preempted was accepted before, takes no place, and may get an idle session */
	const uint32_t idle = s->n_slots - s->running, own = idle - MIN(idle, s->n_swapped),
				   limit = s->queue_limit + own, taken = s->waiting - s->n_swapped;
	enum scheduler_answer answer = SCHEDULER_FULL;
	if (taken + n <= own) { /* a session is free for each: the share does not matter */
		if (take)
			client_count(client, CLIENT_PLACES, n);
		return SCHEDULER_TAKEN;
	}
	if (taken + n <= limit) {
		if ((take ? client_take : client_may_take)(client, CLIENT_PLACES, n, taken, limit))
			return SCHEDULER_TAKEN;
		answer = SCHEDULER_SHARE;
	}
	double estimate = s->job_seconds * (double)(s->waiting + 1) / (double)s->n_slots;
	*retry_s = estimate < 1 ? 1 : estimate > 60 ? 60 : (unsigned)estimate;
	metrics_add(s->metrics, METRICS_REFUSED, n);
	return answer;
}

enum scheduler_answer scheduler_check_room(
	struct scheduler *s, struct client *client, unsigned *retry_s)
{
	pthread_mutex_lock(&s->lock);
	enum scheduler_answer answer = queue_answer(s, client, 1, false, retry_s);
	pthread_mutex_unlock(&s->lock);
	return answer;
}

enum scheduler_answer scheduler_submit(
	struct scheduler *s, struct job *const *jobs, uint32_t n, unsigned *retry_s)
{
	pthread_mutex_lock(&s->lock);
	enum scheduler_answer answer = queue_answer(s, jobs[0]->client, n, true, retry_s);
	if (answer == SCHEDULER_TAKEN) {
		for (uint32_t i = 0; i < n; i++) {
			job_hold(jobs[i]);
			jobs[i]->submitted_ns = clock_ns();
			jobs[i]->next = NULL;
			*s->last = jobs[i];
			s->last = &jobs[i]->next;
		}
		s->waiting += n;
		pthread_cond_signal(&s->wake);
	}
	pthread_mutex_unlock(&s->lock);
	return answer;
}

void scheduler_stop(struct scheduler *s, unsigned grace_ms)
{
	struct timespec until = cond_deadline((uint64_t)grace_ms * 1000000);
	pthread_mutex_lock(&s->lock);
	s->stopping = true;
	pthread_cond_signal(&s->wake);
	int rc = 0;
	while (!s->finished && !rc)
		rc = pthread_cond_timedwait(&s->ended, &s->lock, &until);
	s->stop_now = true;
	atomic_store(&s->abandon, true);
	atomic_store(&s->ends, true);
	if (s->alone)
		atomic_store(&s->alone->cancel, true);
	while (!s->finished)
		pthread_cond_wait(&s->ended, &s->lock);
	pthread_mutex_unlock(&s->lock);
}

void scheduler_close(struct scheduler *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	bool stopped = s->stop_now;
	pthread_mutex_unlock(&s->lock);
	if (!stopped)
		scheduler_stop(s, 0);
	if (s->thread)
		pthread_join(s->thread, NULL);
	for (uint32_t i = 0; i < s->n_slots; i++) {
		draft_timeline_free(s->slots[i].drafts);
		session_free(s->slots[i].session);
	}
	scheduler_free_steps(s);
	client_times_fini(&s->times);
	drafter_free(s->drafter);
	prefix_store_close(s->store);
	pthread_cond_destroy(&s->wake);
	pthread_cond_destroy(&s->ended);
	pthread_mutex_destroy(&s->lock);
	free(s->slots);
	free(s);
}

void scheduler_snapshot(struct scheduler *s, struct scheduler_snapshot *snapshot)
{
	pthread_mutex_lock(&s->lock);
	*snapshot = s->snapshot;
	snapshot->n_sessions = s->n_slots;
	snapshot->active = s->running;
	snapshot->waiting = s->waiting;
	snapshot->queue_limit = s->queue_limit;
	snapshot->preempted = s->n_swapped;
	snapshot->preempted_bytes_limit = s->image_limit ? s->images_limit : 0;
	pthread_mutex_unlock(&s->lock);
}
