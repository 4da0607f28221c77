/* SPDX-License-Identifier: MIT */
/*
 * The scheduler on a small model: an answer is the same whoever else is served and however it
 * was cancelled before; the queue is bounded; conversations find their beginning; whoever submitted
 * gets exactly one last event.
 */
#include "src/base/host/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/engine/generate.h"
#include "src/serve/compute/scheduler.h"
#include "tests/support/engine_help.h"
#include "tests/support/mutate_model.h"
#include "tests/support/slow_build.h"
#include "tests/support/temp_dir.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define N_SESSIONS 10 /* more than a step writes for */
/* where the address sanitizer or that of threads, which lets one compute, is slow */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define N_JOBS   10
#define N_NEW    8 /* tokens of an answer */
#define CHUNK    32
#define LONGEST  50 /* prompt */
#define PATIENCE 1500
#else
#define N_JOBS   16
#define N_NEW    20
#define CHUNK    64
#define LONGEST  200
#define PATIENCE 120
#endif

static struct engine *g;
static struct metrics *metrics;

static int serve_scheduler_setup(void **state)
{
	assert_int_equal(temp_dir_make(state), 0);
	struct engine_options o = {.model_path = small_model(),
		.backend = "cpu",
		.context = 320,
		.chunk = CHUNK,
		.sessions = N_SESSIONS,
		.no_mtp = true};
	g = engine_of(&o);
	metrics = metrics_new();
	return 0;
}

static int serve_scheduler_teardown(void **state)
{
	metrics_free(metrics);
	return engine_close(g, NULL) || temp_dir_drop(state);
}

static struct scheduler *open_scheduler(uint32_t sessions, uint32_t queue)
{
	struct err e = {0};
	struct scheduler *s;
	struct scheduler_options o = {.n_sessions = sessions, .queue_limit = queue};
	if (scheduler_open(g, &o, metrics, &s, &e))
		fail_msg("%s", e.text);
	return s;
}

/* A job that reads n tokens drawn from `seed` and writes up to max_new, at temperature 1. */
static struct job *make_job(
	struct mailbox *mail, uint32_t index, uint64_t seed, uint32_t n, uint32_t max_new)
{
	struct job *j = job_new(mail, index);
	struct rng r = {seed};
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(token_ids_push(&j->prompt, (int32_t)rng_below(&r, 8000)), 0);
	j->max_new = max_new;
	j->sampling = (struct sampler_options){.temperature = 1, .top_p = 1, .seed = seed};
	return j;
}

struct answer {
	struct buf text;
	bool ended;
	enum job_event_kind last;
	enum job_finish finish;
};

/* Takes events until n jobs have ended. */
static void collect(struct mailbox *mail, struct answer *answers, uint32_t n)
{
	time_t start = time(NULL);
	for (uint32_t left = n; left;) {
		struct job_event *v = mailbox_take(mail, 1000);
		if (time(NULL) - start > PATIENCE)
			fail_msg("%u answers do not end", left);
		if (!v)
			continue;
		struct answer *a = &answers[v->index];
		assert_false(a->ended); /* nothing follows the last event */
		if (v->kind == JOB_TEXT)
			buf_append(&a->text, v->text.data, v->text.len);
		if (v->kind == JOB_END || v->kind == JOB_ERROR) {
			a->ended = true;
			a->last = v->kind;
			a->finish = v->finish;
			left--;
		}
		job_event_free(v);
	}
}

static uint32_t prompt_length(uint32_t i)
{
	return 1 + i * 37 % LONGEST; /* some longer than a chunk */
}

static void run_alone(struct scheduler *s, uint32_t i, struct answer *a)
{
	struct mailbox *mail = mailbox_new();
	struct job *j = make_job(mail, 0, 100 + i, prompt_length(i), N_NEW);
	unsigned retry;
	assert_int_equal(scheduler_submit(s, &j, 1, &retry), SCHEDULER_TAKEN);
	collect(mail, a, 1);
	assert_int_equal(a->last, JOB_END);
	job_drop(j);
	mailbox_drop(mail);
}

static void test_same_under_load(void **state)
{
	(void)state;
	struct answer alone[N_JOBS] = {0}, together[N_JOBS] = {0};
	struct scheduler *s = open_scheduler(1, N_JOBS);
	for (uint32_t i = 0; i < N_JOBS; i++)
		run_alone(s, i, &alone[i]);
	scheduler_close(s);
	s = open_scheduler(N_SESSIONS, N_JOBS);
	struct mailbox *mail = mailbox_new();
	struct job *jobs[N_JOBS];
	unsigned retry;
	for (uint32_t i = 0; i < N_JOBS; i++) {
		jobs[i] = make_job(mail, i, 100 + i, prompt_length(i), N_NEW);
		assert_int_equal(scheduler_submit(s, &jobs[i], 1, &retry), SCHEDULER_TAKEN);
	}
	collect(mail, together, N_JOBS);
	for (uint32_t i = 0; i < N_JOBS; i++) {
		assert_int_equal(alone[i].finish, together[i].finish);
		if (alone[i].text.len != together[i].text.len ||
			memcmp(buf_str(&alone[i].text), buf_str(&together[i].text), alone[i].text.len) != 0)
			fail_msg("answer %u: \"%s\" alone, \"%s\" under load", i, buf_str(&alone[i].text),
				buf_str(&together[i].text));
		buf_free(&alone[i].text);
		buf_free(&together[i].text);
		job_drop(jobs[i]);
	}
	mailbox_drop(mail);
	scheduler_close(s);
}

/* Options that the device can decide, those that it cannot, and those for which it does not say:
 * all give the tokens of generate(), which draws on the host. */
static void test_same_as_generate(void **state)
{
	(void)state;
	static const struct sampler_options options[] = {
		{.temperature = 0, .top_p = 1},
		{.temperature = 1, .top_p = 1},
		{.temperature = 1.4f, .top_p = 0.9f},
		{.temperature = 1.4f, .top_p = 0.3f},
		{.temperature = 1, .top_p = 1, .top_k = 3},
		{.temperature = 1.2f, .top_p = 0.8f, .top_k = 20},
		{.temperature = 1.3f, .top_p = 1, .min_p = 0.1f},
		{.temperature = 1, .top_p = 0.95f, .repetition = 1.2f},
	};
	enum { LENGTH = IF_SLOW_BUILD(12, 25) };
	struct token_ids want[2 * ARRAY_LEN(options)] = {0};
	struct answer got[ARRAY_LEN(want)] = {0};
	struct job *jobs[ARRAY_LEN(want)];
	struct mailbox *mail = mailbox_new();
	struct session *session = session_of(g, false);
	unsigned retry;
	for (uint32_t i = 0; i < ARRAY_LEN(want); i++) {
		struct job *j = jobs[i] = make_job(mail, i, 500 + i, 20 + IF_SLOW_BUILD(3, 7) * i, LENGTH);
		struct err e = {0};
		j->sampling = options[i / 2];
		j->sampling.seed = i;
		j->options.logprobs = i % 2 && i % 4 == 1;
		struct generate_options o = {.max_new = LENGTH, .sampler = j->sampling};
		struct generate_result r;
		assert_int_equal(generate(session, j->prompt.data, (uint32_t)j->prompt.n, &o, &r, &e), 0);
		for (uint32_t k = 0; k < r.new_tokens; k++)
			assert_int_equal(token_ids_push(&want[i], session_tokens(session)[j->prompt.n + k]), 0);
	}
	session_free(session);
	struct scheduler *s = open_scheduler(N_SESSIONS, N_JOBS);
	for (uint32_t i = 0; i < ARRAY_LEN(want); i += N_JOBS)
		assert_int_equal(scheduler_submit(s, jobs + i, MIN(N_JOBS, ARRAY_LEN(want) - i), &retry),
			SCHEDULER_TAKEN);
	collect(mail, got, ARRAY_LEN(want));
	for (uint32_t i = 0; i < ARRAY_LEN(want); i++) {
		assert_int_equal(got[i].last, JOB_END);
		assert_int_equal(jobs[i]->generated.n, want[i].n);
		assert_memory_equal(
			jobs[i]->generated.data, want[i].data, want[i].n * sizeof *want[i].data);
		buf_free(&got[i].text);
		token_ids_free(&want[i]);
		job_drop(jobs[i]);
	}
	mailbox_drop(mail);
	scheduler_close(s);
}

/* Some leave at random moments; those who stay get what they get alone, everybody gets one last
 * event. */
static void test_cancel(void **state)
{
	(void)state;
	struct rng r = {4};
	struct answer alone[8] = {0}, got[N_JOBS] = {0};
	struct scheduler *s = open_scheduler(3, N_JOBS);
	for (uint32_t i = 0; i < 8; i++)
		run_alone(s, i, &alone[i]);
	struct mailbox *mail = mailbox_new();
	struct job *jobs[N_JOBS];
	unsigned retry;
	for (uint32_t i = 0; i < N_JOBS; i++)
		jobs[i] = make_job(mail, i, 100 + i % 8, prompt_length(i % 8), N_NEW);
	assert_int_equal(scheduler_submit(s, jobs, N_JOBS, &retry), SCHEDULER_TAKEN);
	for (uint32_t i = 8; i < N_JOBS; i++) {
		nanosleep(&(struct timespec){.tv_nsec = (long)rng_below(&r, 10000000)}, NULL);
		atomic_store(&jobs[8 + rng_below(&r, N_JOBS - 8)]->cancel, true);
	}
	collect(mail, got, N_JOBS);
	uint32_t n_cancelled = 0;
	for (uint32_t i = 0; i < N_JOBS; i++) {
		const struct answer *want = &alone[i % 8];
		n_cancelled += got[i].finish == JOB_CANCELLED;
		if (i < 8)
			assert_int_not_equal(got[i].finish, JOB_CANCELLED);
		/* what was given out is a beginning of the whole answer, or all of it */
		assert_true(got[i].text.len <= want->text.len);
		assert_memory_equal(buf_str(&got[i].text), buf_str(&want->text), got[i].text.len);
		if (got[i].finish != JOB_CANCELLED)
			assert_int_equal(got[i].text.len, want->text.len);
	}
	assert_true(n_cancelled > 0);
	for (uint32_t i = 0; i < N_JOBS; i++) {
		buf_free(&got[i].text);
		job_drop(jobs[i]);
	}
	for (uint32_t i = 0; i < 8; i++)
		buf_free(&alone[i].text);
	mailbox_drop(mail);
	scheduler_close(s);
}

static void test_queue(void **state)
{
	(void)state;
	struct scheduler *s = open_scheduler(1, 2);
	struct mailbox *mail = mailbox_new();
	struct job *jobs[8];
	struct answer got[8] = {0};
	unsigned retry = 0, n = 0;
	for (uint32_t i = 0; i < 8; i++) {
		jobs[i] = make_job(mail, n, 7, 250, 60);
		enum scheduler_answer a = scheduler_submit(s, &jobs[i], 1, &retry);
		n += a == SCHEDULER_TAKEN;
		if (a != SCHEDULER_TAKEN) {
			assert_int_equal(a, SCHEDULER_FULL);
			assert_in_range(retry, 1, 60);
		}
	}
	assert_in_range(
		n, 3, 7); /* one has a session, two wait; more only if some have ended meanwhile */
	struct job *two[2] = {jobs[6], jobs[7]};
	if (n == 3)
		assert_int_equal(scheduler_submit(s, two, 2, &retry), SCHEDULER_FULL);
	scheduler_stop(s, 0); /* nobody is forgotten when it ends at once */
	collect(mail, got, n);
	assert_int_equal(scheduler_submit(s, jobs, 1, &retry), SCHEDULER_ENDING);
	for (uint32_t i = 0; i < 8; i++) {
		buf_free(&got[i].text);
		job_drop(jobs[i]);
	}
	assert_null(mailbox_take(mail, 0));
	mailbox_drop(mail);
	scheduler_close(s);
}

/* As many jobs are taken as have a session or a place, also at the moment when sessions get theirs.
 */
static void test_queue_is_exact(void **state)
{
	(void)state;
	enum { SESSIONS = 4, PLACES = 2, TRIES = 16 };
	struct scheduler *s = open_scheduler(SESSIONS, PLACES);
	for (uint32_t round = 0; round < 20; round++) {
		struct mailbox *mail = mailbox_new();
		struct job *jobs[TRIES];
		struct answer got[TRIES] = {0};
		unsigned retry, taken = 0;
		for (uint32_t i = 0; i < TRIES; i++) {
			jobs[i] = make_job(mail, i, 70 + i, 5, 400);
			jobs[i]->options.min_new = 400; /* none ends meanwhile */
		}
		struct scheduler_snapshot now;
		do
			scheduler_snapshot(s, &now);
		while (now.active); /* the jobs of the round before */
		const uint64_t ended = metrics_get(metrics, METRICS_ANSWERS);
		/* again and again until all have their sessions, with pauses, since a lock is not fair */
		while (now.active < SESSIONS && taken < TRIES) {
			taken += scheduler_submit(s, &jobs[taken], 1, &retry) == SCHEDULER_TAKEN;
			for (uint64_t pause = clock_ns() + 3000; clock_ns() < pause;)
				;
			scheduler_snapshot(s, &now);
		}
		while (taken < TRIES && scheduler_submit(s, &jobs[taken], 1, &retry) == SCHEDULER_TAKEN)
			taken++;
		/* more only where some have ended meanwhile, with the context */
		assert_in_range(taken, SESSIONS + PLACES,
			SESSIONS + PLACES + metrics_get(metrics, METRICS_ANSWERS) - ended);
		for (uint32_t i = 0; i < TRIES; i++)
			atomic_store(&jobs[i]->cancel, true);
		collect(mail, got, taken);
		for (uint32_t i = 0; i < TRIES; i++) {
			buf_free(&got[i].text);
			job_drop(jobs[i]);
		}
		mailbox_drop(mail);
	}
	scheduler_close(s);
}

/* A client with many answers computes as much as one with a single answer meanwhile. */
static void test_clients_share_steps(void **state)
{
	(void)state;
	enum { MANY = N_SESSIONS - 1 };
	struct client_shares *shares = client_shares_new(75);
	struct client *a = client_find(shares, "a", 1), *b = client_find(shares, "b", 1);
	struct scheduler *s = open_scheduler(N_SESSIONS, N_SESSIONS);
	struct mailbox *mail = mailbox_new(), *apart = mailbox_new();
	struct answer got[MANY] = {0};
	struct job *jobs[MANY];
	unsigned retry;
	for (uint32_t i = 0; i < MANY; i++) {
		jobs[i] = make_job(mail, i, 60 + i, 5, 300);
		jobs[i]->options.min_new = 300;
		jobs[i]->client = a;
	}
	uint64_t tokens = metrics_get(metrics, METRICS_NEW_TOKENS);
	assert_int_equal(scheduler_submit(s, jobs, MANY, &retry), SCHEDULER_TAKEN);
	while (metrics_get(metrics, METRICS_NEW_TOKENS) < tokens + 5 * MANY)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	/* MANY + 1 times the answer without the rule; twice if rows cost the same. Steps before the
	 * answer begins and until this thread sees its end count too: once more where it was held
	 * up. */
	const uint64_t most = (MANY + 1) / 2 * 2 * N_NEW;
	uint64_t rows = UINT64_MAX;
	for (uint64_t tries = 0; tries < 20 && rows > most; tries++) {
		struct answer own = {0};
		struct job *j = make_job(apart, 0, 50 + tries, 5, 2 * N_NEW);
		j->options.min_new = 2 * N_NEW;
		j->client = b;
		const uint64_t before = metrics_get(metrics, METRICS_ROWS);
		assert_int_equal(scheduler_submit(s, &j, 1, &retry), SCHEDULER_TAKEN);
		collect(apart, &own, 1);
		rows = MIN(rows, metrics_get(metrics, METRICS_ROWS) - before);
		buf_free(&own.text);
		job_drop(j);
	}
	assert_in_range(rows, 2 * N_NEW, most);
	for (uint32_t i = 0; i < MANY; i++)
		atomic_store(&jobs[i]->cancel, true);
	collect(mail, got, MANY);
	scheduler_close(s);
	for (uint32_t i = 0; i < MANY; i++) {
		buf_free(&got[i].text);
		job_drop(jobs[i]);
	}
	mailbox_drop(mail);
	mailbox_drop(apart);
	client_drop(a);
	client_drop(b);
	assert_int_equal(client_shares_stats(shares).clients, 0);
	client_shares_free(shares);
}

/* n jobs one after the other; returns the cached tokens of the last. */
static uint32_t cached_of(struct scheduler *s, uint64_t seed, uint32_t n)
{
	struct mailbox *mail = mailbox_new();
	struct answer a = {0};
	struct job *j = make_job(mail, 0, seed, n, 5);
	unsigned retry;
	assert_int_equal(scheduler_submit(s, &j, 1, &retry), SCHEDULER_TAKEN);
	collect(mail, &a, 1);
	uint32_t cached = j->cached;
	buf_free(&a.text);
	job_drop(j);
	mailbox_drop(mail);
	return cached;
}

static void test_sessions_are_found(void **state)
{
	(void)state;
	struct scheduler *s = open_scheduler(3, 4);
	/* three conversations take the three sessions, and each goes on in its own */
	for (uint64_t seed = 1; seed <= 3; seed++)
		assert_int_equal(cached_of(s, seed, 60), 0);
	for (int round = 1; round < 4; round++)
		for (uint64_t seed = 1; seed <= 3; seed++)
			assert_int_equal(
				cached_of(s, seed, 60 + 20 * (uint32_t)round), 60 + 20 * (uint32_t)(round - 1));
	/* a shorter prompt with the same beginning: the rows are copied into the session that was idle
	 * longest, and conversation 2 itself is still whole. 3 was used last, 1 is the one that gives
	 * way */
	assert_int_equal(cached_of(s, 2, 50), 49);
	assert_int_equal(cached_of(s, 2, 130), 120);
	assert_int_equal(cached_of(s, 3, 130), 120);
	struct scheduler_snapshot snapshot;
	scheduler_snapshot(s, &snapshot);
	assert_true(snapshot.healthy && snapshot.n_sessions == 3);
	scheduler_close(s);
}

/* Steps in which a prompt of 1,400 tokens is read; busy: while another answer is written, which
 * gets at least a token between two of them. seed: of the prompt, which nobody has read before. */
static uint64_t steps_to_read(struct scheduler *s, uint64_t seed, bool busy)
{
	struct mailbox *mail = mailbox_new(), *apart = mailbox_new();
	struct job *writer = make_job(apart, 0, 900, 20, 1500),
			   *reader = make_job(mail, 0, seed, 1400, 1);
	struct answer got[2] = {0};
	unsigned retry;
	writer->options.min_new = 1500;
	if (busy) {
		assert_int_equal(scheduler_submit(s, &writer, 1, &retry), SCHEDULER_TAKEN);
		for (uint64_t before = metrics_get(metrics, METRICS_NEW_TOKENS);
			 metrics_get(metrics, METRICS_NEW_TOKENS) < before + 5;)
			nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	uint64_t steps = metrics_get(metrics, METRICS_STEPS),
			 tokens = metrics_get(metrics, METRICS_NEW_TOKENS);
	assert_int_equal(scheduler_submit(s, &reader, 1, &retry), SCHEDULER_TAKEN);
	collect(mail, &got[0], 1);
	if (busy) {
		atomic_store(&writer->cancel, true);
		collect(apart, &got[1], 1);
	}
	/* some more than there were when the reader ended */
	tokens = metrics_get(metrics, METRICS_NEW_TOKENS) - tokens;
	steps = metrics_get(metrics, METRICS_STEPS) - steps - (tokens - 1);
	if (busy)
		assert_true(tokens > steps);
	buf_free(&got[0].text);
	buf_free(&got[1].text);
	job_drop(writer);
	job_drop(reader);
	mailbox_drop(mail);
	mailbox_drop(apart);
	return steps;
}

/* A long prompt is read in slices while an answer is written, with tokens of the answer between
 * them; in three steps when nobody writes. */
static void test_prompts_in_slices(void **state)
{
	(void)state;
	struct engine_options o = {
		.model_path = "tools/pocket/pocket.gguf", /* rows that take their time */
		.backend = "cpu",
		.context = 1600,
		.chunk = 512,
		.sessions = 2,
		.threads = 1, /* none waits for another within a step, which would count as its time */
		.no_mtp = true};
	struct engine *global = g;
	g = engine_of(&o);
	struct scheduler *s = open_scheduler(2, 4);
	assert_int_equal(steps_to_read(s, 901, false), 3);
	/* How long slices are follows from measured times, and other programs may have disturbed some.
	 */
	uint64_t steps = 0;
	for (uint64_t i = 0; i < 10 && steps <= 8; i++)
		steps = steps_to_read(s, 902 + i, true);
	assert_in_range(steps, 9, 1400);
	scheduler_close(s);
	assert_int_equal(engine_close(g, NULL), 0);
	g = global;
}

/* What several prompts have in common is read once, also when they come at the same moment, and
 * when the first one leaves. */
static void test_common_prompts(void **state)
{
	(void)state;
	struct scheduler *s = open_scheduler(6, 8);
	for (int round = 0; round < 2; round++) {
		struct mailbox *mail = mailbox_new();
		struct answer got[6] = {0};
		struct job *jobs[6];
		unsigned retry;
		for (uint32_t i = 0; i < 6; i++) {
			jobs[i] = make_job(mail, i, 50 + (uint64_t)round, 290, 4);
			jobs[i]->prompt.data[280 + i] = 7; /* 280 in common */
			jobs[i]->sampling.seed = 1;
		}
		uint64_t before = metrics_get(metrics, METRICS_PREFILL_TOKENS);
		assert_int_equal(scheduler_submit(s, jobs, 6, &retry), SCHEDULER_TAKEN);
		if (round) {
			struct job_event *v = mailbox_take(mail, 5000); /* the first has begun */
			job_event_free(v);
			atomic_store(&jobs[0]->cancel, true);
		}
		collect(mail, got, 6);
		uint64_t computed = metrics_get(metrics, METRICS_PREFILL_TOKENS) - before;
		if (!round)
			assert_in_range(computed, 290, 290 + 5 * 10);
		else
			assert_in_range(computed, 290, 6 * 290);
		for (uint32_t i = 0; i < 6; i++) {
			if (!round)
				assert_in_range(jobs[i]->cached, i ? 280 : 0, i ? 289 : 0);
			struct answer alone = {0};
			struct mailbox *one = mailbox_new();
			struct job *j = make_job(one, 0, 50 + (uint64_t)round, 290, 4);
			j->prompt.data[280 + i] = 7;
			j->sampling.seed = 1;
			assert_int_equal(scheduler_submit(s, &j, 1, &retry), SCHEDULER_TAKEN);
			collect(one, &alone, 1);
			if (got[i].finish != JOB_CANCELLED)
				assert_string_equal(buf_str(&got[i].text), buf_str(&alone.text));
			buf_free(&alone.text);
			buf_free(&got[i].text);
			job_drop(j);
			job_drop(jobs[i]);
			mailbox_drop(one);
		}
		mailbox_drop(mail);
	}
	scheduler_close(s);
}

/* The rule of src/engine/generate.h at the end of the context: see test_generate_end.c. */
static void test_end_of_context(void **state)
{
	(void)state;
	static const char text[] = "[gMASK]<sop><|user|>Define river.<|assistant|><think></think>";
	struct err e = {0};
	struct engine *global = g;
	uint32_t context = 320, n_answer = 0;
	for (int way = 0; way < 4; way++) { /* room; none for the stop token; for the last; for two */
		const enum job_finish expected = way < 2 ? JOB_STOP_TOKEN : JOB_LENGTH;
		struct engine_options o = {.model_path = "tools/pocket/pocket.gguf",
			.backend = "cpu",
			.context = context,
			.no_mtp = true};
		g = engine_of(&o);
		struct scheduler *s = open_scheduler(1, 1);
		struct mailbox *mail = mailbox_new();
		struct job *j = make_job(mail, 0, 1, 0, 60);
		struct answer a = {0};
		unsigned retry;
		j->sampling.temperature = 0;
		assert_int_equal(tokenizer_encode(engine_tokenizer(g), text, strlen(text),
							 TOKENIZER_PARSE_ADDED, &j->prompt, &e),
			0);
		assert_int_equal(scheduler_submit(s, &j, 1, &retry), SCHEDULER_TAKEN);
		collect(mail, &a, 1);
		assert_int_equal(a.last, JOB_END);
		assert_int_equal(a.finish, expected);
		if (!way)
			n_answer = (uint32_t)j->generated.n;
		assert_int_equal(j->generated.n, way < 3 ? n_answer : n_answer - 1);
		context = (uint32_t)j->prompt.n + n_answer - (uint32_t)way;
		buf_free(&a.text);
		job_drop(j);
		mailbox_drop(mail);
		scheduler_close(s);
		assert_int_equal(engine_close(g, NULL), 0);
	}
	g = global;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_under_load),
		cmocka_unit_test(test_same_as_generate),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_queue),
		cmocka_unit_test(test_queue_is_exact),
		cmocka_unit_test(test_clients_share_steps),
		cmocka_unit_test(test_sessions_are_found),
		cmocka_unit_test(test_common_prompts),
		cmocka_unit_test(test_prompts_in_slices),
		cmocka_unit_test(test_end_of_context),
	};
	return cmocka_run_group_tests(tests, serve_scheduler_setup, serve_scheduler_teardown);
}
