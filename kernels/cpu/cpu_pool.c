/* SPDX-License-Identifier: MIT */
/*
 * One job at a time. The caller writes its description (fn .. threads) while the job is closed and
 * no worker is inside; workers read it between entering and leaving:
 *
 *     caller                                   worker
 *     write the job, open = true               wait for a new generation
 *     generation++, wake sleepers              inside++; if open: take tasks; inside--
 *     take tasks until none is left
 *     open = false; wait for inside == 0
 *
 * `inside` and `open` are sequentially consistent: either the worker sees that the job is closed or
 * the caller sees the worker inside. After a job workers spin for some tens of microseconds, since
 * the next job usually follows at once, then sleep on `generation` (a futex word). Patient ones
 * spin for milliseconds: a card's next layer may need them after some hundred microseconds, and
 * waking up would take a good part of what they save.
 */
#include "kernels/cpu/cpu_pool.h"

#include "src/base/cores.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPINS         2000 /* pauses before a worker sleeps or the caller yields: 20 to 100 us */
#define SPINS_PATIENT 200000

struct cpu_pool {
	int n_workers; /* constant after cpu_pool_new, but for its growth there */
	pthread_t *workers;
	int spins; /* before a worker sleeps */
	/* the job: see above */
	cpu_task_fn *fn;
	const void *context;
	int64_t n, grain;
	int threads;
	const atomic_bool *stop_flag; /* lent by the caller; NULL: none */
	/* each on its own cache line */
	_Alignas(64) _Atomic int64_t next; /* first task nobody has taken */
	_Alignas(64) atomic_int inside;    /* workers that may be reading the job */
	_Alignas(64) atomic_int number;    /* last thread number given out for this job */
	_Alignas(64) atomic_uint generation;
	atomic_bool open, stop;
	atomic_int sleepers;
};

static void pool_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static bool pool_stops(const struct cpu_pool *p)
{
	return p->stop_flag && atomic_load_explicit(p->stop_flag, memory_order_relaxed);
}

static void pool_take_tasks(struct cpu_pool *p, int thread)
{
	int64_t first;
	while (!pool_stops(p) && (first = atomic_fetch_add(&p->next, p->grain)) < p->n)
		p->fn(p->context, first, MIN(first + p->grain, p->n), thread);
}

/* Returns when the generation is no longer `seen`. */
static void pool_wait_job(struct cpu_pool *p, unsigned seen)
{
	for (int i = 0; i < p->spins; i++) {
		if (atomic_load_explicit(&p->generation, memory_order_acquire) != seen)
			return;
		pool_relax();
	}
	atomic_fetch_add(&p->sleepers, 1);
	while (atomic_load(&p->generation) == seen)
		syscall(SYS_futex, &p->generation, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
	atomic_fetch_sub(&p->sleepers, 1);
}

static void *pool_worker_main(void *arg)
{
	struct cpu_pool *p = arg;
	unsigned seen = 0;
	for (;;) {
		pool_wait_job(p, seen);
		if (atomic_load(&p->stop))
			return NULL;
		seen = atomic_load(&p->generation);
		atomic_fetch_add(&p->inside, 1);
		if (atomic_load(&p->open)) {
			int thread = atomic_fetch_add(&p->number, 1) + 1;
			if (thread < p->threads)
				pool_take_tasks(p, thread);
		}
		atomic_fetch_sub(&p->inside, 1);
	}
}

static void pool_new_generation(struct cpu_pool *p, int wake)
{
	atomic_fetch_add(&p->generation, 1);
	if (atomic_load(&p->sleepers))
		syscall(SYS_futex, &p->generation, FUTEX_WAKE_PRIVATE, wake, NULL, NULL, 0);
}

void cpu_pool_set_stop(struct cpu_pool *p, const atomic_bool *flag)
{
	p->stop_flag = flag;
}

bool cpu_pool_run(
	struct cpu_pool *p, int threads, int64_t n, int64_t grain, cpu_task_fn *fn, const void *context)
{
	threads = MIN(threads, p->n_workers + 1);
	if (n <= 0)
		return true;
	if (threads <= 1 || n <= grain) {
		int64_t part = p->stop_flag ? grain : n;
		for (int64_t first = 0; first < n; first += part) {
			if (pool_stops(p))
				return false;
			fn(context, first, MIN(first + part, n), 0);
		}
		return true;
	}
	p->fn = fn;
	p->context = context;
	p->n = n;
	p->grain = grain;
	p->threads = threads;
	atomic_store(&p->next, 0);
	atomic_store(&p->number, 0);
	atomic_store(&p->open, true);
	pool_new_generation(p, threads - 1);
	pool_take_tasks(p, 0);
	atomic_store(&p->open, false);
	for (int spins = 0; atomic_load(&p->inside); spins++) {
		if (spins < SPINS)
			pool_relax();
		else
			sched_yield(); /* a worker was preempted inside a task */
	}
	return atomic_load(&p->next) >= n; /* tasks that were taken have been done */
}

/* Gives each worker a core of the process: cores of the caller's NUMA node first, siblings of busy
 * cores last. The first two are left to the caller and to the thread that reads, if there are
 * enough. */
static void pin_workers(const struct cpu_pool *p)
{
	int order[CPU_SETSIZE];
	const int n = cores_list(order, CPU_SETSIZE), skip = MIN(2, MAX(n - p->n_workers, 0));
	cores_pin_order(CORES_SYSTEM, sched_getcpu(), order, n);
	for (int i = 0; i < p->n_workers && skip + i < n; i++) {
		cpu_set_t one;
		CPU_ZERO(&one);
		CPU_SET(order[skip + i], &one);
		pthread_setaffinity_np(p->workers[i], sizeof one, &one); /* else it is not pinned */
	}
}

struct cpu_pool *cpu_pool_new(int threads, bool patient)
{
	struct cpu_pool *p = aligned_alloc(64, sizeof *p);
	if (!p)
		return NULL;
	*p = (struct cpu_pool){
		.workers = NEW_ARRAY(pthread_t, (size_t)threads), .spins = patient ? SPINS_PATIENT : SPINS};
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (p->n_workers < threads - 1 &&
		   !pthread_create(&p->workers[p->n_workers], NULL, pool_worker_main, p))
		p->n_workers++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (patient)
		pin_workers(p);
	return p;
}

void cpu_pool_free(struct cpu_pool *p)
{
	if (!p)
		return;
	atomic_store(&p->stop, true);
	pool_new_generation(p, INT_MAX);
	for (int i = 0; i < p->n_workers; i++)
		pthread_join(p->workers[i], NULL);
	free(p->workers);
	free(p);
}

int cpu_pool_threads(const struct cpu_pool *p)
{
	return p->n_workers + 1;
}
