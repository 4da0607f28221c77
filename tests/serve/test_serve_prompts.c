/* SPDX-License-Identifier: MIT */
/*
 * Long prompts in the scheduler: how far they are is reported inside a step, a client that leaves
 * stops its prompt, and what was computed of it is found by the next one with the same beginning.
 */
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/serve/compute/scheduler.h"
#include "tests/support/engine_help.h"
#include "tests/support/slow_build.h"
#include "tests/support/temp_dir.h"

#include <stdarg.h>
#include <setjmp.h>
#include <time.h>
#include <cmocka.h>

#ifdef __SANITIZE_THREAD__ /* slow */
enum { CHUNK = 52 };
#else
enum { CHUNK = 520 }; /* more than a block of the store */
#endif
enum { LENGTH = CHUNK * 2 + 20, WAIT_MS = 120000 };

static struct engine *g;
static struct metrics *metrics;
static uint32_t n_stages; /* of the engine */

static int serve_prompts_setup(void **state)
{
	static const uint32_t cards[3];
	struct engine_options o = {.model_path = "tools/pocket/pocket.gguf",
		.backend = "cpu",
		.cards = cards,
		.n_cards = n_stages,
		.threads = 1, /* a step takes longer than the pause between two reports */
		.context = LENGTH + 10,
		.chunk = CHUNK,
		.sessions = 2,
		.no_mtp = true};
	g = engine_of(&o);
	metrics = metrics_new();
	return temp_dir_make(state);
}

static int serve_prompts_teardown(void **state)
{
	metrics_free(metrics);
	return engine_close(g, NULL) || temp_dir_drop(state);
}

static struct scheduler *open_scheduler(const char *folder)
{
	struct err e = {0};
	struct scheduler *s;
	struct scheduler_options o = {.n_sessions = 2, .queue_limit = 4, .folder = folder};
	if (scheduler_open(g, &o, metrics, &s, &e))
		fail_msg("%s", e.text);
	return s;
}

/* A request of LENGTH random tokens and one token of answer. */
struct request {
	struct mailbox *mail;
	struct job *job;
	uint64_t computed_before;
};

static struct request make_request(uint64_t seed)
{
	struct request r = {.mail = mailbox_new()};
	struct rng rng = {seed};
	r.job = job_new(r.mail, 0);
	for (int i = 0; i < LENGTH; i++)
		assert_int_equal(token_ids_push(&r.job->prompt, (int32_t)rng_below(&rng, 8000)), 0);
	r.job->max_new = 1;
	r.job->sampling = (struct sampler_options){.top_p = 1};
	r.computed_before = metrics_get(metrics, METRICS_PREFILL_TOKENS);
	return r;
}

static struct request submit(struct scheduler *s, uint64_t seed)
{
	struct request r = make_request(seed);
	unsigned retry;
	assert_int_equal(scheduler_submit(s, &r.job, 1, &retry), SCHEDULER_TAKEN);
	return r;
}

static void request_drop(struct request *r)
{
	job_drop(r->job);
	mailbox_drop(r->mail);
}

/* Takes events until `stop_at` tokens of the prompt are done, then the client leaves (0: it stays),
 * and until the end. Checks that progress only grows. Returns how the job ended; *inside: out, how
 * many reports were made inside of a step. */
static enum job_finish follow(struct request *r, uint32_t stop_at, uint32_t *inside)
{
	uint32_t done = 0;
	uint64_t ns = 0;
	for (;;) {
		struct job_event *v = mailbox_take(r->mail, WAIT_MS);
		assert_non_null(v);
		enum job_event_kind kind = v->kind;
		enum job_finish finish = v->finish;
		assert_int_not_equal(kind, JOB_ERROR);
		if (kind == JOB_PROGRESS) {
			assert_int_equal(v->total, LENGTH);
			assert_true(v->done >= done && v->done <= LENGTH && v->cached <= v->done);
			assert_true(v->reading_ns >= ns);
			*inside += (v->done - v->cached) % CHUNK && v->done < LENGTH;
			done = v->done;
			ns = v->reading_ns;
			if (stop_at && done >= stop_at)
				atomic_store(&r->job->cancel, true);
		}
		job_event_free(v);
		if (kind == JOB_END)
			return finish;
	}
}

static uint64_t computed(const struct request *r)
{
	return metrics_get(metrics, METRICS_PREFILL_TOKENS) - r->computed_before;
}

/* A prompt whose client leaves at `stop_at` tokens. Where this thread was held up until all were
 * read, another one. *seed: in and out, of its tokens. */
static struct request leave_at(
	struct scheduler *s, uint64_t *seed, uint32_t stop_at, uint32_t *inside)
{
	for (int tries = 0;; tries++, *seed += 1000) {
		struct request r = submit(s, *seed);
		const enum job_finish how = follow(&r, stop_at, inside);
		if (how == JOB_CANCELLED)
			return r;
		assert_true(how == JOB_LENGTH && tries < 20);
		request_drop(&r);
	}
}

static void test_left_prompt_goes_on(void **state)
{
	(void)state;
	uint32_t inside = 0;
	struct scheduler *s = open_scheduler(NULL);
	/* left in step 1 or 2 of the prompt; several stages try step 2 only */
	for (uint64_t seed = n_stages > 1 || IF_SLOW_BUILD(1, 0); seed < 2; seed++) {
		uint64_t of_tokens = seed;
		struct request left =
			leave_at(s, &of_tokens, (uint32_t)(CHUNK / 2 + CHUNK * seed), &inside);
		uint64_t n = computed(&left);
		assert_int_equal(n % CHUNK, 0);
		assert_in_range(n, CHUNK * seed, LENGTH - 1);
		struct request again = submit(s, of_tokens);
		assert_int_equal(follow(&again, 0, &inside), JOB_LENGTH);
		assert_int_equal(again.job->cached, n);
		assert_int_equal(computed(&again), LENGTH - n);
		request_drop(&left);
		request_drop(&again);
	}
	assert_true(inside > 0);
	scheduler_close(s);
}

/* With a folder also another run finds it. */
static void test_left_prompt_is_stored(void **state)
{
	(void)state;
	if (CHUNK < PREFIX_BLOCK)
		skip();
	uint32_t inside = 0;
	struct scheduler *s = open_scheduler(temp_dir());
	uint64_t of_tokens = 9;
	struct request left = leave_at(s, &of_tokens, CHUNK + CHUNK / 2, &inside);
	uint64_t n = computed(&left) / PREFIX_BLOCK * PREFIX_BLOCK;
	assert_in_range(n, PREFIX_BLOCK, 2 * PREFIX_BLOCK);
	scheduler_close(s);
	s = open_scheduler(temp_dir());
	struct request again = submit(s, of_tokens);
	assert_int_equal(follow(&again, 0, &inside), JOB_LENGTH);
	assert_int_equal(again.job->cached, n);
	assert_int_equal(computed(&again), LENGTH - n);
	request_drop(&left);
	request_drop(&again);
	scheduler_close(s);
}

/* A step of two prompts ends in its middle when both clients leave. */
static void test_step_without_clients(void **state)
{
	(void)state;
	struct scheduler *s = open_scheduler(NULL);
	bool abandoned = false;
	for (uint64_t round = 0; round < 50 && !abandoned; round++) {
		uint32_t inside = 0;
		struct request a = make_request(100 + 2 * round), b = make_request(101 + 2 * round);
		struct job *both[] = {a.job, b.job};
		unsigned retry;
		assert_int_equal(scheduler_submit(s, both, 2, &retry), SCHEDULER_TAKEN);
		uint64_t steps = metrics_get(metrics, METRICS_STEPS);
		nanosleep(&(struct timespec){.tv_nsec = 15000000}, NULL);
		atomic_store(&a.job->cancel, true);
		atomic_store(&b.job->cancel, true);
		const bool left_a = follow(&a, 0, &inside) == JOB_CANCELLED,
				   left_b = follow(&b, 0, &inside) == JOB_CANCELLED;
		abandoned =
			left_a && left_b && metrics_get(metrics, METRICS_STEPS) > steps && !computed(&a);
		request_drop(&a);
		request_drop(&b);
	}
	assert_true(abandoned);
	struct request c = submit(s, 1);
	uint32_t inside = 0;
	assert_int_equal(follow(&c, 0, &inside), JOB_LENGTH); /* the server goes on */
	request_drop(&c);
	scheduler_close(s);
}

/* Several stages compute steps of two prompts at once. A single stage has no such steps. */
static void test_prompts_overlap(void **state)
{
	(void)state;
	struct engine_overlap before, after;
	uint32_t inside = 0;
	if (n_stages == 1) {
		engine_overlap(g, &after);
		assert_int_equal(after.micro_batches, 0);
		return;
	}
	struct scheduler *s = open_scheduler(NULL);
	engine_overlap(g, &before);
	struct request a = submit(s, 500), b = submit(s, 501);
	assert_int_equal(follow(&a, 0, &inside), JOB_LENGTH);
	assert_int_equal(follow(&b, 0, &inside), JOB_LENGTH);
	request_drop(&a);
	request_drop(&b);
	scheduler_close(s);
	engine_overlap(g, &after);
	const uint64_t steps = after.micro_batches - before.micro_batches;
	assert_true(steps >= 2 * LENGTH / CHUNK);
	assert_true(after.at_once_ns[2] > before.at_once_ns[2]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_left_prompt_goes_on),
		cmocka_unit_test(test_left_prompt_is_stored), cmocka_unit_test(test_step_without_clients),
		cmocka_unit_test(test_prompts_overlap)};
	int failed = 0;
	for (n_stages = 1; n_stages <= 3; n_stages += 2) /* in flight with three */
		failed += cmocka_run_group_tests(tests, serve_prompts_setup, serve_prompts_teardown);
	return failed;
}
