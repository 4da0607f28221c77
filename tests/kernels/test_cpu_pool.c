/* SPDX-License-Identifier: MIT */
/* The thread pool of the CPU backend: every task is done once, by a thread whose number nobody else
 * has, and is finished when the call returns. Run under the thread sanitizer too. */
#include "kernels/cpu/cpu_pool.h"

#include "src/base/host/cores.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { TASKS = 1000, THREADS = 5 };

struct counts {
	int done[TASKS];
	atomic_int busy[THREADS]; /* calls running with this thread number */
	atomic_int clashes;
	atomic_int masks; /* wrong ones, of workers */
	int threads;      /* allowed */
	bool slow;
};

/* A worker takes no signals but its own, such as SIGBUS when it reads a lost file. */
static bool mask_is_right(void)
{
	sigset_t blocked;
	pthread_sigmask(SIG_SETMASK, NULL, &blocked);
	return sigismember(&blocked, SIGINT) && !sigismember(&blocked, SIGBUS);
}

static void count_task(const void *context, int64_t first, int64_t last, int thread)
{
	struct counts *c = *(struct counts *const *)context;
	if (thread < 0 || thread >= c->threads || atomic_fetch_add(&c->busy[thread], 1))
		atomic_fetch_add(&c->clashes, 1);
	for (; first < last; first++)
		c->done[first]++;
	if (c->slow)
		sched_yield();
	if (c->slow && thread && !mask_is_right())
		atomic_fetch_add(&c->masks, 1);
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
	struct cpu_pool *p = cpu_pool_new(pool_threads, false, NULL);
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
	assert_int_equal(c.masks, 0);
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
	atomic_int done, late; /* late: portions that began when the flag was set */
	int at;                /* the flag is set in this task */
};

static void stopping_task(const void *context, int64_t first, int64_t last, int thread)
{
	struct stopping *s = *(struct stopping *const *)context;
	(void)thread;
	if (atomic_load(&s->flag))
		atomic_fetch_add(&s->late, 1);
	for (; first < last; first++)
		if (atomic_fetch_add(&s->done, 1) + 1 == s->at)
			atomic_store(&s->flag, true);
}

/* Once the flag is set a thread begins at most the portion that it has taken before; without the
 * flag all is done again. How many tasks are done until then depends on when the thread that sets
 * the flag runs. */
static void test_stop(void **state)
{
	(void)state;
	enum { GRAIN = 3 };
	struct cpu_pool *p = cpu_pool_new(THREADS, true, NULL);
	for (int at = 1; at < 200; at += 11) {
		int threads = 1 + at % THREADS;
		struct stopping s = {.at = at}, *context = &s;
		cpu_pool_set_stop(p, &s.flag);
		const bool whole = cpu_pool_run(p, threads, TASKS, GRAIN, stopping_task, &context);
		assert_true(!whole || s.done == TASKS);
		assert_true(s.done >= at && s.late <= threads);
		int done = s.done, late = s.late;
		assert_false(cpu_pool_run(p, threads, TASKS, TASKS, stopping_task, &context));
		assert_int_equal(s.done, done);
		assert_int_equal(s.late, late); /* not even begun */
		cpu_pool_set_stop(p, NULL);
		assert_true(cpu_pool_run(p, threads, TASKS, GRAIN, stopping_task, &context));
		assert_int_equal(s.done, done + TASKS);
	}
	cpu_pool_free(p);
}

/* ---- progress ---- */

struct progress {
	pthread_t caller;
	int calls, elsewhere; /* elsewhere: on other threads than the caller */
	atomic_int portions;  /* of the caller */
	/* a worker stays inside its task until a call that no portion of the caller's comes before */
	atomic_bool held;
	bool hold;
};

static void count_progress(void *user)
{
	struct progress *b = user;
	b->calls++;
	b->elsewhere += !pthread_equal(pthread_self(), b->caller);
	if (b->calls > atomic_load(&b->portions))
		atomic_store(&b->held, false);
}

static void progress_task(const void *context, int64_t first, int64_t last, int thread)
{
	struct progress *b = *(struct progress *const *)context;
	(void)first, (void)last;
	if (!thread) {
		atomic_fetch_add(&b->portions, 1);
		if (b->hold)
			usleep(100); /* so that workers come to take some */
	} else if (b->hold) {
		for (atomic_store(&b->held, true); atomic_load(&b->held);)
			usleep(10);
	}
}

/* The caller is called after each of its own portions, and while it waits for workers. */
static void test_progress(void **state)
{
	(void)state;
	struct cpu_pool *p = cpu_pool_new(THREADS, true, NULL);
	struct progress b = {.caller = pthread_self()}, *context = &b;
	cpu_pool_set_progress(p, count_progress, &b);
	assert_true(cpu_pool_run(p, 1, 10, 3, progress_task, &context));
	assert_int_equal(b.calls, 4);
	b.hold = true;
	for (int i = 0; i < 20; i++) {
		b.calls = b.portions = 0;
		assert_true(cpu_pool_run(p, THREADS, 20, 1, progress_task, &context));
		assert_true(b.calls >= b.portions);
		assert_false(b.held);
	}
	assert_int_equal(b.elsewhere, 0);
	cpu_pool_set_progress(p, NULL, NULL);
	b.hold = false;
	b.calls = 0;
	assert_true(cpu_pool_run(p, THREADS, 20, 1, progress_task, &context));
	assert_int_equal(b.calls, 0);
	cpu_pool_free(p);
}

/* ---- NUMA nodes ---- */

enum { NODES = 2 };

struct node_counts {
	int done[TASKS];
	int64_t ends[NODES + 1];
	const struct numa_nodes *nodes;
	atomic_int foreign;       /* tasks that a worker of another node did, */
	atomic_int on[NODES + 1]; /* ... and workers of this one */
};

static void node_task(const void *context, int64_t first, int64_t last, int thread)
{
	struct node_counts *c = *(struct node_counts *const *)context;
	const int node = first < c->ends[0] ? 0 : first < c->ends[1] ? 1 : 2;
	if (thread && node) { /* a portion is of one node */
		const bool own =
			last <= c->ends[node] && numa_node_of_cpu(c->nodes, sched_getcpu()) == node;
		atomic_fetch_add(own ? &c->on[node] : &c->foreign, 1);
	}
	for (; first < last; first++)
		c->done[first]++;
	if (!thread && !(c->on[1] + c->on[2]))
		usleep(20); /* so that workers come to do some */
}

/* Tasks are done once, by threads of their node where the pool is patient. */
static void check_nodes(bool patient, int threads, const struct numa_nodes *nodes)
{
	struct cpu_pool *p = cpu_pool_new(threads, patient, nodes);
	static struct node_counts c;
	struct node_counts *context = &c;
	int want[TASKS] = {0}, sum = 0;
	memset(&c, 0, sizeof c);
	c.nodes = nodes;
	assert_int_equal(cpu_pool_nodes(p), NODES);
	for (int k = 1; k <= NODES; k++)
		sum += cpu_pool_node_threads(p, k);
	assert_int_equal(sum, cpu_pool_threads(p));
	/* until the others have run too */
	for (int round = 0; round < 100 || !(c.on[1] + c.on[2]); round++) {
		const int i = round % 100;
		c.ends[0] = i * 37 % 100;
		c.ends[1] = c.ends[0] + i * 53 % 200;
		c.ends[2] = c.ends[1] + i * 71 % 200;
		assert_true(cpu_pool_run_nodes(p, 1 + i % threads, c.ends, 1 + i % 7, node_task, &context));
		for (int64_t t = 0; t < c.ends[2]; t++)
			want[t]++;
		assert_memory_equal(c.done, want, sizeof want);
		c.ends[0] = c.ends[1] = c.ends[2] = TASKS;
		assert_true(cpu_pool_run(p, threads, i, 1, node_task, &context)); /* a plain job between */
		for (int t = 0; t < i; t++)
			want[t]++;
	}
	if (patient)
		assert_int_equal(c.foreign, 0);
	atomic_bool stop = true;
	cpu_pool_set_stop(p, &stop);
	assert_false(cpu_pool_run_nodes(p, threads, c.ends, 1, node_task, &context));
	assert_memory_equal(c.done, want, sizeof want);
	cpu_pool_free(p);
}

static void test_nodes(void **state)
{
	(void)state;
	int cpus[2];
	struct numa_nodes nodes = {.n = NODES};
	if (cores_list(cpus, 2) < 2)
		skip();
	for (int k = 0; k < NODES; k++) {
		nodes.node[k] = (struct numa_node){.free_bytes = 1};
		CPU_SET(cpus[k], &nodes.node[k].cpus);
	}
	for (int threads = 2; threads <= THREADS; threads++) {
		check_nodes(true, threads, &nodes);
		check_nodes(false, threads, &nodes);
	}
	/* one thread, or one node: nothing is divided */
	struct cpu_pool *p = cpu_pool_new(1, true, &nodes);
	assert_int_equal(cpu_pool_nodes(p), 0);
	cpu_pool_free(p);
	nodes.n = 1;
	p = cpu_pool_new(2, true, &nodes);
	assert_int_equal(cpu_pool_nodes(p), 0);
	cpu_pool_free(p);
}

static void test_early_release(void **state)
{
	(void)state;
	cpu_pool_free(NULL);
	for (int i = 0; i < 50;
		 i++) /* with workers that have not yet begun to wait, and ones that sleep */
		cpu_pool_free(cpu_pool_new(1 + i % THREADS, i % 2, NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_tasks_are_done_once),
		cmocka_unit_test(test_stop), cmocka_unit_test(test_progress), cmocka_unit_test(test_nodes),
		cmocka_unit_test(test_early_release)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
