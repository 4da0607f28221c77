/* SPDX-License-Identifier: MIT */
/*
 * The loop: fill idle sessions from the queue, drop what was cancelled, compute one step, publish a
 * snapshot. The lock guards the queue, the flags and the published snapshot; it is never held while
 * computing.
 */
#include "src/serve/compute/scheduler.h"

#include "src/base/clock.h"
#include "src/base/cond.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/batch.h"
#include "src/engine/generate.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* All in tokens. The opening of an answer may differ when a conversation goes on. */
#define SAME_CONVERSATION 3
#define FOLLOW_LEAST      128 /* that another session is reading: worth waiting for */
#define COPY_LEAST        16  /* fewer are computed, not copied */

/* Owned by the compute thread. */
struct slot {
	struct session *session;
	struct job *job; /* NULL: idle */
	enum scheduler_state state;
	uint32_t prompt;     /* tokens of the prompt of the last job */
	struct slot *leader; /* reads `common` tokens that this job begins with too; NULL: none */
	uint32_t common;
	uint64_t serial;        /* of the job: counts all jobs */
	uint64_t leader_serial; /* of the leader's job when this one began to wait */
	uint64_t last_used;     /* jobs that had ended when it became idle; 0: never used */
};

struct scheduler {
	struct engine *engine;      /* constant */
	struct prefix_store *store; /* compute; NULL: none */
	struct metrics *metrics;    /* constant */
	uint32_t n_slots;           /* constant */
	uint32_t queue_limit;       /* constant */
	pthread_t thread;
	struct slot *slots; /* [n_slots] compute */
	uint32_t turn;      /* compute: who is first in the next step */
	uint64_t n_jobs;    /* compute: begun */
	uint64_t n_ended;   /* compute */
	int64_t writing_ns; /* compute: decode time that prompts have delayed */
	atomic_bool abort;  /* cuts a step short */
	pthread_mutex_t lock;
	pthread_cond_t wake, ended;
	struct job *first, **last;         /* lock: the queue */
	uint32_t waiting;                  /* lock */
	bool stopping, stop_now, finished; /* lock */
	struct job *alone;  /* lock: the only job of the step in hand; NULL: none or several */
	double job_seconds; /* lock: of an answer, smoothed */
	struct scheduler_snapshot snapshot; /* lock */
};

/* ---- the end of jobs ---- */

static void slot_release(struct scheduler *s, struct slot *slot)
{
	struct job *j = slot->job;
	double seconds = (double)(clock_ns() - j->started_ns) / 1e9;
	slot->job = NULL;
	slot->state = SCHEDULER_IDLE;
	slot->last_used = ++s->n_ended;
	client_end_answer(j->client);
	pthread_mutex_lock(&s->lock);
	s->job_seconds = s->job_seconds > 0 ? 0.9 * s->job_seconds + 0.1 * seconds : seconds;
	pthread_mutex_unlock(&s->lock);
	job_drop(j);
}

/* What was computed stays for later runs. A folder that takes no more stops being used; answers do
 * not depend on it. */
static void slot_keep_prefix(struct scheduler *s, struct slot *slot)
{
	struct err e = {0};
	if (!s->store || session_length(slot->session) < PREFIX_BLOCK ||
		!prefix_store_keep(s->store, slot->session, session_length(slot->session), &e))
		return;
	log_warn("the session folder is not used any more: %s", e.text);
	prefix_store_close(s->store);
	s->store = NULL;
}

static void slot_finish(struct scheduler *s, struct slot *slot, enum job_finish how)
{
	struct job *j = slot->job;
	bool whole = slot->state == SCHEDULER_WRITING && how != JOB_CANCELLED;
	metrics_add(s->metrics, how == JOB_CANCELLED ? METRICS_CANCELLED : METRICS_ANSWERS, 1);
	if (how != JOB_CANCELLED)
		metrics_observe(s->metrics, METRICS_DURATION, clock_ns() - j->submitted_ns);
	job_end(j, how);
	if (whole)
		slot_keep_prefix(s, slot);
	slot_release(s, slot);
}

static void slot_fail(struct scheduler *s, struct slot *slot, const struct err *e)
{
	metrics_add(s->metrics, METRICS_FAILED, 1);
	job_fail(slot->job, e);
	slot_release(s, slot);
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
	if (!s->store || start + PREFIX_BLOCK > n)
		return start;
	if (prefix_store_restore(s->store, slot->session, prompt->data, n, &n_read, &e))
		log_warn("the session folder: %s", e.text);
	return session_length(slot->session);
}

/* When somebody is just reading the same beginning, it is read once: this one waits, then copies.
 * Whoever is followed began earlier, so there are no circles. */
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

/* Whether this slot still waits for its leader. When the leader has read what is common, or its job
 * has ended, its rows are copied and the wait is over. */
static bool slot_follows(struct scheduler *s, struct slot *slot)
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
	client_begin_answer(j->client, slot->serial);
	slot->state = SCHEDULER_READING;
	slot->prompt = (uint32_t)j->prompt.n;
	j->cached = start;
	j->started_ns = clock_ns();
	job_begin(j, engine_tokenizer(s->engine));
	slot_find_leader(s, slot, start);
	job_progress(j, start, slot->prompt);
	metrics_add(s->metrics, METRICS_PROMPT_TOKENS, j->prompt.n);
	metrics_add(s->metrics, METRICS_CACHED_TOKENS, start);
	metrics_observe(s->metrics, METRICS_QUEUED, j->started_ns - j->submitted_ns);
}

/* Takes the job whose client is next; or one that was cancelled while waiting. Lock held. */
static struct job *queue_pop(struct scheduler *s, bool cancelled_only)
{
	struct job **best = NULL;
	uint64_t lowest = UINT64_MAX;
	for (struct job **at = &s->first; *at && lowest; at = &(*at)->next) {
		uint64_t rank = cancelled_only ? 0 : client_rank((*at)->client);
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
	client_give(j->client, CLIENT_PLACES, 1);
	return j;
}

static struct slot *slot_find_idle(struct scheduler *s)
{
	for (uint32_t i = 0; i < s->n_slots; i++)
		if (!s->slots[i].job)
			return &s->slots[i];
	return NULL;
}

static void slots_fill(struct scheduler *s)
{
	for (;;) {
		pthread_mutex_lock(&s->lock);
		struct job *j = queue_pop(s, true);
		bool stopping = s->stopping;
		if (!j && (stopping || slot_find_idle(s)))
			j = queue_pop(s, false);
		pthread_mutex_unlock(&s->lock);
		if (!j)
			return;
		if (atomic_load(&j->cancel)) {
			metrics_add(s->metrics, METRICS_CANCELLED, 1);
			job_end(j, JOB_CANCELLED);
		} else if (stopping) {
			struct err e = {0};
			err_set(&e, ERR_INTERRUPTED, "the server is shutting down");
			metrics_add(s->metrics, METRICS_FAILED, 1);
			job_fail(j, &e);
		} else {
			slot_begin_job(s, j);
			continue;
		}
		job_drop(j);
	}
}

static void slots_drop_cancelled(struct scheduler *s)
{
	pthread_mutex_lock(&s->lock);
	bool now = s->stop_now;
	pthread_mutex_unlock(&s->lock);
	struct err e = {0};
	err_set(&e, ERR_INTERRUPTED, "the server is shutting down");
	for (uint32_t i = 0; i < s->n_slots; i++) {
		struct slot *slot = &s->slots[i];
		if (slot->job && now)
			slot_fail(s, slot, &e);
		else if (slot->job && atomic_load(&slot->job->cancel))
			slot_finish(s, slot, JOB_CANCELLED);
	}
}

/* ---- steps ---- */

static uint32_t slots_count(const struct scheduler *s, enum scheduler_state state)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < s->n_slots; i++)
		n += s->slots[i].job && s->slots[i].state == state;
	return n;
}

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

/* The logits are at hand: draws the next token and gives it out. False when the answer has ended.
 */
static bool slot_sample(struct scheduler *s, struct slot *slot, int32_t *id)
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
	if (!j->first_token_ns) {
		j->first_token_ns = clock_ns();
		metrics_observe(s->metrics, METRICS_FIRST_TOKEN, j->first_token_ns - j->submitted_ns);
	}
	enum generate_stop stop;
	bool ends =
		generate_ends(slot->session, *id, (uint32_t)j->generated.n, j->max_new, false, &stop);
	if ((ends && stop == GENERATE_STOP_TOKEN) || is_stop_id(j, *id)) {
		slot_finish(s, slot, JOB_STOP_TOKEN);
		return false;
	}
	metrics_add(s->metrics, METRICS_NEW_TOKENS, 1);
	if (token_ids_push(&j->generated, *id))
		bug("no memory for a token id");
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

static void scheduler_step(struct scheduler *s)
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

/* ---- the thread ---- */

static void snapshot_publish(struct scheduler *s)
{
	struct scheduler_snapshot snapshot = {0};
	for (uint32_t i = 0; i < s->n_slots; i++) {
		const struct slot *x = &s->slots[i];
		snapshot.active += x->job != NULL;
		snapshot.sessions[i] = (struct scheduler_session){.state = x->state,
			.tokens = session_length(x->session),
			.prompt = x->job ? x->prompt : 0,
			.done = x->job ? MIN(session_length(x->session), x->prompt) : 0,
			.new_tokens = x->job ? (uint32_t)x->job->generated.n : 0};
	}
	pthread_mutex_lock(&s->lock);
	snapshot.healthy = s->snapshot.healthy;
	if (s->store)
		snapshot.store = prefix_store_stats(s->store);
	s->snapshot = snapshot;
	pthread_mutex_unlock(&s->lock);
}

static void *scheduler_main(void *arg)
{
	struct scheduler *s = arg;
	for (;;) {
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
	s->queue_limit = o->queue_limit;
	s->slots = NEW_ARRAY(struct slot, n_sessions);
	s->last = &s->first;
	s->snapshot.healthy = true;
	s->finished = true; /* until the thread runs */
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->wake, NULL);
	cond_init(&s->ended);
	int rc = 0;
	for (; s->n_slots < n_sessions && !rc; s->n_slots += !rc)
		rc = session_new(g, &s->slots[s->n_slots].session, e);
	if (!rc && o->folder)
		rc = prefix_store_open(o->folder, o->folder_bytes, g, &s->store, e);
	if (!rc) {
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

/* take: the places are the client's from now on. Lock held. */
static enum scheduler_answer queue_answer(
	struct scheduler *s, struct client *client, uint32_t n, bool take, unsigned *retry_s)
{
	if (s->stopping)
		return SCHEDULER_ENDING;
	uint32_t idle = s->n_slots - MIN(s->snapshot.active, s->n_slots), limit = s->queue_limit + idle;
	enum scheduler_answer answer = SCHEDULER_FULL;
	if (s->waiting + n <= idle) { /* it does not really wait */
		if (take)
			client_count(client, CLIENT_PLACES, n);
		return SCHEDULER_TAKEN;
	}
	if (s->waiting + n <= limit) {
		if ((take ? client_take : client_may_take)(client, CLIENT_PLACES, n, s->waiting, limit))
			return SCHEDULER_TAKEN;
		answer = SCHEDULER_SHARE;
	}
	double estimate = s->job_seconds * (double)(s->waiting + 1) / (double)s->n_slots;
	*retry_s = estimate < 1 ? 1 : estimate > 60 ? 60 : (unsigned)estimate;
	metrics_add(s->metrics, METRICS_REFUSED, n);
	return answer;
}

enum scheduler_answer scheduler_ask(struct scheduler *s, struct client *client, unsigned *retry_s)
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
	atomic_store(&s->abort, true);
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
	for (uint32_t i = 0; i < s->n_slots; i++)
		session_free(s->slots[i].session);
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
	snapshot->waiting = s->waiting;
	snapshot->queue_limit = s->queue_limit;
	pthread_mutex_unlock(&s->lock);
}
