/* SPDX-License-Identifier: MIT */
/* src/forward/moe/host_experts.h without a model: kinds, times and errors. */
#include "src/base/mem.h"
#include "src/forward/moe/host_experts.h"
#include "tests/support/numa_pair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cmocka.h>

#define N_EMBD   256
#define MAX_JOBS 64
#define MAX_ROWS 16

/* All experts: three square matrices. */
#define SQUARE                                                                                     \
	{                                                                                              \
		.type = DTYPE_Q8_0, .n_in = N_EMBD, .n_out = N_EMBD, .n_stack = 1, .row_bytes = 272,       \
		.stack_bytes = (size_t)272 * N_EMBD                                                        \
	}

static const struct expert_job square_expert = {.gate = SQUARE, .up = SQUARE, .down = SQUARE};

static struct err e;
static struct backend *card; /* the CPU stands for it */
static struct host_experts *host;
static float *x, *out;
static uint8_t *weights;
static int32_t slots[MAX_JOBS * MAX_ROWS];
static struct expert_job jobs[MAX_JOBS];

static void open_host(int n_used, int threads, const struct numa_nodes *nodes)
{
	const struct model_config c = {.n_embd = N_EMBD, .n_used = (uint32_t)n_used};
	const struct backend_options options = {.name = "cpu", .threads = 1};
	e = (struct err){0};
	assert_int_equal(backend_open(&options, &card, &e), 0);
	assert_int_equal(host_experts_open(&c, card, threads, nodes, MAX_ROWS, &host, &e), 0);
	x = mem_new(MAX_ROWS * N_EMBD, sizeof *x);
	out = mem_new((size_t)MAX_ROWS * (size_t)n_used * N_EMBD, sizeof *out);
	weights = mem_new(1, square_expert.gate.stack_bytes);
}

static void close_host(void)
{
	host_experts_close(host);
	card->ops->close(card);
	free(weights);
	free(x);
	free(out);
}

static void count_call(void *calls)
{
	++*(int *)calls;
}

/* Computes n experts, each for a slot of each row; the first `second` of them lie on node 2, the
 * others on node 1. */
static int compute(int n, int rows, int n_used, int second)
{
	for (int i = 0; i < n; i++) {
		jobs[i] = square_expert;
		jobs[i].gate.data = jobs[i].up.data = jobs[i].down.data = weights;
		jobs[i].token_slots = slots + i * rows;
		jobs[i].n_token_slots = rows;
		jobs[i].node = i < second ? 2 : 1;
		for (int r = 0; r < rows; r++)
			slots[i * rows + r] = r * n_used + i;
	}
	int calls = 0;
	const struct host_progress progress = {count_call, &calls};
	int rc = host_experts_compute(host, 0, x, jobs, n, rows, out, &progress, &e);
	assert_true(rc || calls > 0);
	return rc;
}

/* ---- kinds ---- */

static void test_kinds(void **state)
{
	(void)state;
	struct expert_job shape = square_expert;
	open_host(4, 1, NULL);
	assert_false(host_experts_any(host));
	assert_int_equal(host_experts_ns(host, &shape, 1), 0); /* not prepared */
	assert_int_equal(host_experts_prepare(host, &shape, 0, &e), 0);
	assert_true(host_experts_any(host));
	assert_true(host_experts_ns(host, &shape, 1) > 0);
	/* what the processor does not compute with the card's bits */
	shape.down.type = DTYPE_Q5_K;
	assert_int_equal(host_experts_ns(host, &shape, 1), 0);
	shape = square_expert;
	shape.gate.type = DTYPE_IQ2_XXS;
	assert_int_equal(host_experts_prepare(host, &shape, 0, &e), 0);
	assert_true(host_experts_ns(host, &shape, 1) > 0);
	shape.gate.n_in = 8192;
	assert_int_equal(host_experts_ns(host, &shape, 1), 0);
	assert_non_null(host_experts_words(host, MAX_ROWS));
	assert_null(host_experts_words(host, MAX_ROWS + 1));
	assert_null(host_experts_words(NULL, 1));
	close_host();
}

/* Experts of a kind that the processor computes far slower than the link copies are the card's. */
static void test_slow_kinds(void **state)
{
	(void)state;
	struct expert_job shape = square_expert;
	assert_false(host_experts_too_slow(0.1, 0)); /* the link is unknown */
	assert_false(host_experts_too_slow(0.1, 39e9));
	assert_true(host_experts_too_slow(0.1, 41e9));
	open_host(4, 1, NULL);
	assert_int_equal(host_experts_prepare(host, &shape, 1e15, &e), 0);
	assert_false(host_experts_any(host));
	assert_int_equal(host_experts_ns(host, &shape, 1), 0);
	shape.down.type = DTYPE_Q5_K; /* not one of the processor's */
	assert_int_equal(host_experts_prepare(host, &shape, 1, &e), 0);
	assert_false(host_experts_any(host));
	shape = square_expert;
	shape.gate.type = DTYPE_IQ2_XXS; /* more bytes than it needs */
	assert_int_equal(host_experts_prepare(host, &shape, 1, &e), 0);
	assert_true(host_experts_any(host) && host_experts_ns(host, &shape, 1) > 0);
	close_host();
}

/* ---- times ---- */

/* A time that was requested millions of times without a measurement is right again soon. */
static void test_times_never_vanish(void **state)
{
	(void)state;
	open_host(4, 1, NULL);
	assert_int_equal(host_experts_prepare(host, &square_expert, 0, &e), 0);
	const uint32_t before = host_experts_ns(host, &square_expert, 1);
	for (int i = 0; i < 60 * 65536; i++)
		host_experts_ns(host, &square_expert, 1);
	assert_int_equal(host_experts_ns(host, &square_expert, 1), 1);
	for (int i = 0; i < 200; i++)
		assert_int_equal(compute(1, 1, 4, 0), 0);
	assert_true(host_experts_ns(host, &square_expert, 1) > before / 4);
	close_host();
}

/* A time that is far too long is tried again some day: it shrinks while it is not measured. */
static void test_long_times_shrink(void **state)
{
	(void)state;
	open_host(4, 1, NULL);
	assert_int_equal(host_experts_prepare(host, &square_expert, 0, &e), 0);
	const uint32_t before = host_experts_ns(host, &square_expert, 1),
				   two = host_experts_ns(host, &square_expert, 2);
	for (int i = 0; i < 65536; i++)
		host_experts_ns(host, &square_expert, 1);
	assert_in_range(host_experts_ns(host, &square_expert, 1), before / 4, before / 2);
	/* of its own */
	assert_in_range(host_experts_ns(host, &square_expert, 2), two - two / 1000 - 2, two);
	close_host();
}

static const struct backend_ops *card_ops;

static void slow_results(struct backend *b, const float *h, const float *results,
	const struct expert_job *of, int n_jobs, int rows, int n_used, int n_embd, float *to)
{
	usleep(20000);
	card_ops->expert_results(b, h, results, of, n_jobs, rows, n_used, n_embd, to);
}

/* A call is one measurement however many experts it computes: an outlier moves the mean by an
 * eighth. */
static void test_one_call_is_one_measurement(void **state)
{
	(void)state;
	open_host(4, 1, NULL);
	assert_int_equal(host_experts_prepare(host, &square_expert, 0, &e), 0);
	card_ops = card->ops;
	struct backend_ops slow = *card_ops;
	slow.expert_results = slow_results;
	card->ops = &slow;
	const uint32_t before = host_experts_ns(host, &square_expert, 1);
	assert_int_equal(compute(4, 1, 4, 0), 0);
	card->ops = card_ops;
	assert_in_range(
		host_experts_ns(host, &square_expert, 1), before + before / 9, before + before / 8 + 2);
	close_host();
}

/* Each node has times of its own; the node that ends last changes its own alone. */
static void test_node_times(void **state)
{
	(void)state;
	struct numa_nodes nodes;
	if (!numa_pair_of(&nodes, 0))
		skip();
	open_host(4, 2, &nodes);
	assert_null(host_experts_node_ns(host, &square_expert, 1)); /* not prepared */
	struct backend *pair;
	const struct backend_options both = host_experts_backend(2, &nodes);
	assert_int_equal(backend_open(&both, &pair, &e), 0);
	assert_non_null(strstr(backend_describe(pair), "2 threads (by NUMA node: 1 + 1)"));
	pair->ops->close(pair);
	assert_int_equal(host_experts_prepare(host, &square_expert, 0, &e), 0);
	const uint32_t *times = host_experts_node_ns(host, &square_expert, 1);
	assert_non_null(times);
	assert_true(times[1] > 0 && times[2] > 0);
	const uint32_t before = times[2], others = host_experts_ns(host, &square_expert, 1);
	for (int i = 0; i < 65536; i++) /* times that are asked for shrink */
		times = host_experts_node_ns(host, &square_expert, 1);
	assert_in_range(times[2], before / 4, before / 2);
	assert_in_range(host_experts_ns(host, &square_expert, 1), others - others / 1000 - 2, others);
	/* Only the node that ends last is measured: node 2 with three experts of four, or node 1 where
	 * other programs take its processor. */
	bool changed = false;
	for (int i = 0; i < 100 && !changed; i++) {
		times = host_experts_node_ns(host, &square_expert, 1);
		const uint32_t first = times[1], second = times[2];
		assert_int_equal(compute(4, 1, 4, 3), 0);
		times = host_experts_node_ns(host, &square_expert, 1);
		const bool first_changed = times[1] > first || times[1] < first - first / 100 - 2;
		const bool second_changed = times[2] > second || times[2] < second - second / 100 - 2;
		assert_false(first_changed && second_changed);
		changed = first_changed || second_changed;
	}
	assert_true(changed);
	close_host();
}

/* One thread is not divided: memory on nodes does not matter to its times, which are measured. */
static void test_one_thread_on_nodes(void **state)
{
	(void)state;
	struct numa_nodes nodes;
	if (!numa_pair_of(&nodes, 0))
		skip();
	open_host(4, 1, &nodes);
	assert_int_equal(host_experts_prepare(host, &square_expert, 0, &e), 0);
	assert_null(host_experts_node_ns(host, &square_expert, 1));
	for (int i = 0; i < 4 * 65536; i++) /* far too short by now */
		host_experts_ns(host, &square_expert, 1);
	const uint32_t before = host_experts_ns(host, &square_expert, 1);
	for (int i = 0; i < 4; i++)
		assert_int_equal(compute(1, 1, 4, 1), 0);
	assert_true(host_experts_ns(host, &square_expert, 1) > before);
	close_host();
}

/* ---- errors ---- */

/* A call without working memory fails; a later one, when there is some, does not. */
static void test_memory_comes_back(void **state)
{
	(void)state;
#if defined(__SANITIZE_ADDRESS__) ||                                                               \
	defined(__SANITIZE_THREAD__) /* which map more than any limit */
	skip();
#endif
	struct rlimit old;
	open_host(MAX_JOBS, 1, NULL);
	assert_int_equal(host_experts_prepare(host, &square_expert, 0, &e), 0); /* takes less */
	assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
	const struct rlimit tight = {1 << 20, old.rlim_max}; /* nothing more */
	assert_int_equal(setrlimit(RLIMIT_AS, &tight), 0);
	const int rc = compute(MAX_JOBS, MAX_ROWS, MAX_JOBS, 0);
	assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
	assert_int_equal(rc, ERR_MEMORY);
	assert_int_equal(compute(MAX_JOBS, MAX_ROWS, MAX_JOBS, 0), 0);
	close_host();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kinds),
		cmocka_unit_test(test_slow_kinds),
		cmocka_unit_test(test_times_never_vanish),
		cmocka_unit_test(test_long_times_shrink),
		cmocka_unit_test(test_one_call_is_one_measurement),
		cmocka_unit_test(test_node_times),
		cmocka_unit_test(test_one_thread_on_nodes),
		cmocka_unit_test(test_memory_comes_back),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
