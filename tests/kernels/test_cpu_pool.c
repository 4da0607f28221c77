/* SPDX-License-Identifier: MIT */
/* The thread pool of the CPU backend: every task is done once, by a thread whose number nobody else
 * has, and is finished when the call returns. Run under the thread sanitizer too. */
#include "kernels/cpu/cpu_pool.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { TASKS = 1000, THREADS = 5 };

struct counts {
	int done[TASKS];
	atomic_int busy[THREADS]; /* calls running with this thread number */
	atomic_int clashes;
	int threads; /* allowed */
	bool slow;
};

static void count_task(const void *context, int64_t first, int64_t last, int thread)
{
	struct counts *c = *(struct counts *const *)context;
	if (thread < 0 || thread >= c->threads || atomic_fetch_add(&c->busy[thread], 1))
		atomic_fetch_add(&c->clashes, 1);
	for (; first < last; first++)
		c->done[first]++;
	if (c->slow)
		sched_yield();
	if (thread >= 0 && thread < THREADS)
		atomic_fetch_sub(&c->busy[thread], 1);
}

static void run_jobs(int pool_threads, int jobs, bool slow)
{
	static struct counts c;
	struct counts *context = &c;
	int want[TASKS] = {0};
	memset(&c, 0, sizeof c);
	c.slow = slow;
	struct cpu_pool *p = cpu_pool_new(pool_threads, false);
	assert_non_null(p);
	assert_in_range(cpu_pool_threads(p), 1, pool_threads);
	for (int i = 0; i < jobs; i++) {
		int n = i * 37 % (TASKS + 1);
		c.threads = 1 + i % THREADS;
		cpu_pool_run(p, c.threads, n, 1 + i % 7, count_task, &context);
		for (int k = 0; k < n; k++)
			want[k]++;
		assert_memory_equal(c.done, want, sizeof want); /* already now, after every job */
	}
	assert_int_equal(c.clashes, 0);
	cpu_pool_free(p);
}

static void test_tasks_are_done_once(void **state)
{
	(void)state;
	run_jobs(1, 100, false);
	run_jobs(2, 1000, false);
	run_jobs(THREADS, 1000, false);
	run_jobs(THREADS, 50, true);
}

struct stopping {
	atomic_bool flag;
	atomic_int done;
	int at; /* the flag is set in this task */
};

static void stopping_task(const void *context, int64_t first, int64_t last, int thread)
{
	struct stopping *s = *(struct stopping *const *)context;
	(void)thread;
	for (; first < last; first++)
		if (atomic_fetch_add(&s->done, 1) + 1 == s->at)
			atomic_store(&s->flag, true);
}

/* Once the flag is set nothing begins any more, on one thread and on several; without the flag all
 * is done again. */
static void test_stop(void **state)
{
	(void)state;
	enum { GRAIN = 3 };
	struct cpu_pool *p = cpu_pool_new(THREADS, true);
	for (int at = 1; at < 200; at += 11) {
		int threads = 1 + at % THREADS;
		struct stopping s = {.at = at}, *context = &s;
		cpu_pool_set_stop(p, &s.flag);
		assert_false(cpu_pool_run(p, threads, TASKS, GRAIN, stopping_task, &context));
		assert_in_range(s.done, at, at + THREADS * GRAIN);
		int done = s.done;
		assert_false(cpu_pool_run(p, threads, TASKS, TASKS, stopping_task, &context));
		assert_int_equal(s.done, done); /* not even begun */
		cpu_pool_set_stop(p, NULL);
		assert_true(cpu_pool_run(p, threads, TASKS, GRAIN, stopping_task, &context));
		assert_int_equal(s.done, done + TASKS);
	}
	cpu_pool_free(p);
}

static void test_early_release(void **state)
{
	(void)state;
	cpu_pool_free(NULL);
	for (int i = 0; i < 50;
		 i++) /* with workers that have not yet begun to wait, and ones that sleep */
		cpu_pool_free(cpu_pool_new(1 + i % THREADS, i % 2));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_tasks_are_done_once),
		cmocka_unit_test(test_stop), cmocka_unit_test(test_early_release)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
