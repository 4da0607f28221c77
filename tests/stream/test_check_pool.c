/* SPDX-License-Identifier: MIT */
/* Threads that hash: the order of a queue, all tasks done once, threads that work side by side, and
 * the end at any time. */
#include "stream/check/check_pool.h"

#include "src/base/num.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>
#include <cmocka.h>

enum { N_TASKS = 2000, THREADS = 3 };

struct numbered {
	struct check_task task; /* first */
	unsigned thread, number;
};

static struct numbered tasks[N_TASKS];
static unsigned next_number[THREADS]; /* of a thread: touched by its tasks only */
static atomic_uint n_woken, n_done, n_disordered, n_signalled;

static void wake(void *arg)
{
	assert_ptr_equal(arg, tasks);
	atomic_fetch_add(&n_woken, 1);
}

static void count(struct check_task *t)
{
	const struct numbered *x = (struct numbered *)t;
	if (next_number[x->thread]++ != x->number)
		atomic_fetch_add(&n_disordered, 1);
	atomic_fetch_add(&n_done, 1);
}

static struct check_pool *open_pool(unsigned n)
{
	struct check_pool *p;
	struct err e = {0};
	for (int i = 0; i < THREADS; i++)
		next_number[i] = 0;
	atomic_store(&n_woken, 0);
	atomic_store(&n_done, 0);
	atomic_store(&n_disordered, 0);
	assert_int_equal(check_pool_open(&p, n, wake, tasks, &e), 0);
	return p;
}

static void post_all(struct check_pool *p, unsigned n_threads)
{
	unsigned posted[THREADS] = {0};
	for (unsigned i = 0; i < N_TASKS; i++) {
		const unsigned thread = check_pool_next_thread(p);
		assert_in_range(thread, 0, n_threads ? n_threads - 1 : 0);
		tasks[i] =
			(struct numbered){.task.hash = count, .thread = thread, .number = posted[thread]++};
		check_pool_post(p, thread, &tasks[i].task);
	}
}

/* Each is done once, in the order of its queue, and comes back once. */
static void test_order(void **state)
{
	(void)state;
	for (unsigned n = 0; n <= THREADS; n++) {
		struct check_pool *p = open_pool(n);
		post_all(p, n);
		if (!n)
			assert_int_equal(atomic_load(&n_done), N_TASKS);
		for (unsigned taken = 0; taken < N_TASKS;) {
			struct check_task *t = check_pool_take(p);
			if (!t) {
				sched_yield();
				continue;
			}
			assert_ptr_equal(t->hash, count);
			t->hash = NULL; /* a second time would be seen */
			taken++;
		}
		assert_null(check_pool_take(p));
		check_pool_close(p);
		assert_int_equal(atomic_load(&n_done), N_TASKS);
		assert_int_equal(atomic_load(&n_woken), N_TASKS);
		assert_int_equal(atomic_load(&n_disordered), 0);
	}
}

static pthread_barrier_t barrier;

static void meet(struct check_task *t)
{
	(void)t;
	sigset_t blocked;
	pthread_sigmask(SIG_SETMASK, NULL, &blocked);
	if (!sigismember(&blocked, SIGINT) || !sigismember(&blocked, SIGTERM) ||
		sigismember(&blocked, SIGBUS)) /* of a lost file */
		atomic_fetch_add(&n_signalled, 1);
	pthread_barrier_wait(&barrier);
}

/* Tasks that wait for each other end, and none is interrupted by signals but its own. */
static void test_side_by_side(void **state)
{
	(void)state;
	struct check_pool *p = open_pool(THREADS);
	pthread_barrier_init(&barrier, NULL, THREADS);
	for (unsigned i = 0; i < THREADS; i++) {
		tasks[i].task.hash = meet;
		check_pool_post(p, i, &tasks[i].task);
	}
	for (unsigned taken = 0; taken < THREADS; taken += check_pool_take(p) != NULL)
		usleep(100);
	check_pool_close(p);
	pthread_barrier_destroy(&barrier);
	assert_int_equal(atomic_load(&n_signalled), 0);
}

/* What has not begun is dropped, and nobody is woken afterwards. */
static void test_close(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 100; i++) {
		struct check_pool *p = open_pool(1 + i % THREADS);
		post_all(p, 1 + i % THREADS);
		check_pool_close(p);
		const unsigned done = atomic_load(&n_done);
		assert_int_equal(atomic_load(&n_woken), done);
		assert_in_range(done, 0, N_TASKS);
		assert_int_equal(atomic_load(&n_disordered), 0);
	}
	check_pool_close(NULL);
}

/* A quarter of the cores, at least one from four on. */
static void test_threads(void **state)
{
	(void)state;
	cpu_set_t before, few;
	assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
	assert_in_range(check_pool_threads(), 0, 4);
	assert_int_equal(check_pool_threads(), MIN(CPU_COUNT(&before) / 4, 4));
	CPU_ZERO(&few);
	for (int i = 0; !CPU_COUNT(&few); i++)
		if (CPU_ISSET(i, &before))
			CPU_SET(i, &few);
	assert_int_equal(sched_setaffinity(0, sizeof few, &few), 0);
	assert_int_equal(check_pool_threads(), 0);
	assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_side_by_side),
		cmocka_unit_test(test_close),
		cmocka_unit_test(test_threads),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
