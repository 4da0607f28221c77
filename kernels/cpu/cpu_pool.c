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

#include "src/base/host/cores.h"
#include "src/base/host/signals.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* pauses before a worker sleeps or the caller yields: 20 to 100 us, without a progress callback */
#define SPINS         2000
#define SPINS_PATIENT 200000

struct cpu_worker {
	struct cpu_pool *pool;
	pthread_t thread;
	int node; /* constant; 0: none */
	int cpu;  /* to be pinned to; -1: none */
};

/* Tasks [next, end) that nobody has taken, on a cache line of their own. */
struct cpu_queue {
	_Alignas(64) _Atomic int64_t next;
	int64_t end;
};

struct cpu_pool {
	int n_workers; /* constant after cpu_pool_new, but for its growth there */
	struct cpu_worker *workers;
	int spins;                            /* before a worker sleeps */
	bool steals;                          /* workers take tasks of other nodes */
	int n_nodes;                          /* that the threads are divided among; 0: not */
	int node;                             /* of the caller; 0: none */
	int node_threads[NUMA_NODES_MAX + 1]; /* constant */
	/* the job: see above */
	cpu_task_fn *fn;
	const void *context;
	int64_t grain;
	int threads;
	int n_queues;                    /* 1, or 1 + n_nodes */
	const atomic_bool *stop_flag;    /* lent by the caller; NULL: none */
	void (*on_progress)(void *user); /* NULL: none */
	void *progress_user;
	/* each on its own cache line */
	struct cpu_queue queues[NUMA_NODES_MAX + 1]; /* [n_queues] of no node and of each node */
	_Alignas(64) atomic_int inside;              /* workers that may be reading the job */
	_Alignas(64) atomic_int number;              /* last thread number given out for this job */
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

static void pool_progress(struct cpu_pool *p, int thread)
{
	if (!thread && p->on_progress)
		p->on_progress(p->progress_user);
}

static void take_queue(struct cpu_pool *p, struct cpu_queue *q, int thread)
{
	int64_t first;
	while (!pool_stops(p) && (first = atomic_fetch_add(&q->next, p->grain)) < q->end) {
		p->fn(p->context, first, MIN(first + p->grain, q->end), thread);
		pool_progress(p, thread);
	}
}

/* node: of the thread; its tasks come first. The caller, thread 0, does what sleeping workers of
 * another node leave. */
static void pool_take_tasks(struct cpu_pool *p, int thread, int node)
{
	if (p->n_queues > 1)
		take_queue(p, &p->queues[node], thread);
	take_queue(p, &p->queues[0], thread);
	for (int k = 1; k < p->n_queues && (p->steals || !thread); k++)
		take_queue(p, &p->queues[k], thread);
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
	const struct cpu_worker *w = arg;
	struct cpu_pool *p = w->pool;
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
				pool_take_tasks(p, thread, w->node);
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

void cpu_pool_set_progress(struct cpu_pool *p, void (*on_progress)(void *user), void *user)
{
	p->on_progress = on_progress;
	p->progress_user = user;
}

/* Runs the job whose queues are filled. */
static bool run_queues(
	struct cpu_pool *p, int threads, int64_t grain, cpu_task_fn *fn, const void *context)
{
	bool all = true;
	p->fn = fn;
	p->context = context;
	p->grain = grain;
	p->threads = threads;
	atomic_store(&p->number, 0);
	atomic_store(&p->open, true);
	pool_new_generation(p, threads - 1);
	pool_take_tasks(p, 0, p->node);
	atomic_store(&p->open, false);
	for (int spins = 0; atomic_load(&p->inside); spins++) {
		pool_progress(p, 0);
		if (spins < SPINS)
			pool_relax();
		else
			sched_yield(); /* a worker was preempted inside a task */
	}
	for (int i = 0; i < p->n_queues; i++) /* tasks that were taken have been done */
		all = all && atomic_load(&p->queues[i].next) >= p->queues[i].end;
	return all;
}

bool cpu_pool_run(
	struct cpu_pool *p, int threads, int64_t n, int64_t grain, cpu_task_fn *fn, const void *context)
{
	threads = MIN(threads, p->n_workers + 1);
	if (n <= 0)
		return true;
	if (threads <= 1 || n <= grain) {
		int64_t part = p->stop_flag || p->on_progress ? grain : n;
		for (int64_t first = 0; first < n; first += part) {
			if (pool_stops(p))
				return false;
			fn(context, first, MIN(first + part, n), 0);
			pool_progress(p, 0);
		}
		return true;
	}
	p->n_queues = 1;
	p->queues[0].end = n;
	atomic_store(&p->queues[0].next, 0);
	return run_queues(p, threads, grain, fn, context);
}

bool cpu_pool_run_nodes(struct cpu_pool *p, int threads, const int64_t *ends, int64_t grain,
	cpu_task_fn *fn, const void *context)
{
	const int64_t n = ends[p->n_nodes];
	threads = MIN(threads, p->n_workers + 1);
	if (threads <= 1 || n <= grain)
		return cpu_pool_run(p, threads, n, grain, fn, context);
	p->n_queues = 1 + p->n_nodes;
	for (int k = 0; k <= p->n_nodes; k++) {
		p->queues[k].end = ends[k];
		atomic_store(&p->queues[k].next, k ? ends[k - 1] : 0);
	}
	return run_queues(p, threads, grain, fn, context);
}

/* ---- which thread runs where ---- */

/* Processors of the process in the order in which workers are pinned to them: of one node or, when
 * the workers are not divided, of all. */
struct cpu_share {
	int cpus[CPU_SETSIZE];
	int n, next;
};

/* The node from which a worker gets its processor: the one that has given the least part of its
 * own. -1: all have given all. */
static int next_share(const struct cpu_share *shares, int n)
{
	int best = -1;
	for (int i = 0; i < n; i++) {
		const struct cpu_share *s = &shares[i], *b = &shares[MAX(best, 0)];
		if (s->next < s->n && (best < 0 || s->next * b->n < b->next * s->n))
			best = i;
	}
	return best;
}

/* Sets node and processor of `threads` - 1 workers. Each gets a processor of its own: those of the
 * caller's NUMA node first, or of the nodes in turn; siblings of busy cores last. The first two are
 * left to the caller and to the thread that reads, if there are enough. */
static void place_workers(
	struct cpu_pool *p, struct cpu_worker *workers, int threads, const struct numa_nodes *nodes)
{
	int order[CPU_SETSIZE];
	const int here = sched_getcpu(), n = cores_list(order, CPU_SETSIZE),
			  n_shares = MAX(p->n_nodes, 1);
	struct cpu_share *shares = NEW_ARRAY(struct cpu_share, (size_t)n_shares);
	cores_pin_order(CORES_SYSTEM, here, order, n);
	p->node = p->n_nodes ? MAX(numa_node_of_cpu(nodes, here), 1) : 0;
	p->node_threads[p->node] = 1;
	for (int i = 0; i < n; i++) {
		const int node = p->n_nodes ? numa_node_of_cpu(nodes, order[i]) : 1;
		if (node)
			shares[node - 1].cpus[shares[node - 1].n++] = order[i];
	}
	shares[MAX(p->node, 1) - 1].next = MIN(2, MAX(n - (threads - 1), 0));
	for (int i = 0; i < threads - 1; i++) {
		const int share = next_share(shares, n_shares);
		struct cpu_worker *w = &workers[i];
		w->cpu = share < 0 ? -1 : shares[share].cpus[shares[share].next++];
		w->node = !p->n_nodes ? 0 : share < 0 ? 1 + i % p->n_nodes : share + 1;
	}
	free(shares);
}

/* On one node only patient workers are pinned. */
static void pin_worker(const struct cpu_pool *p, const struct cpu_worker *w, bool patient,
	const struct numa_nodes *nodes)
{
	cpu_set_t one;
	CPU_ZERO(&one);
	if (patient && w->cpu >= 0)
		CPU_SET(w->cpu, &one);
	else if (p->n_nodes)
		one = nodes->node[w->node - 1].cpus;
	if (CPU_COUNT(&one))
		pthread_setaffinity_np(w->thread, sizeof one, &one); /* else it is not pinned */
}

struct cpu_pool *cpu_pool_new(int threads, bool patient, const struct numa_nodes *nodes)
{
	struct cpu_pool *p = aligned_alloc(64, sizeof *p);
	if (!p)
		return NULL;
	*p = (struct cpu_pool){.workers = NEW_ARRAY(struct cpu_worker, (size_t)threads),
		.spins = patient ? SPINS_PATIENT : SPINS,
		.steals = !patient,
		.n_nodes = nodes && nodes->n > 1 && threads > 1 ? nodes->n : 0};
	if (patient || p->n_nodes)
		place_workers(p, p->workers, threads, nodes);
	sigset_t before;
	signals_block(&before);
	for (struct cpu_worker *w = p->workers; p->n_workers < threads - 1; w++) {
		w->pool = p;
		if (pthread_create(&w->thread, NULL, pool_worker_main, w))
			break;
		p->n_workers++;
		p->node_threads[w->node]++;
		if (patient || p->n_nodes)
			pin_worker(p, w, patient, nodes);
	}
	signals_restore(&before);
	return p;
}

void cpu_pool_free(struct cpu_pool *p)
{
	if (!p)
		return;
	atomic_store(&p->stop, true);
	pool_new_generation(p, INT_MAX);
	for (int i = 0; i < p->n_workers; i++)
		pthread_join(p->workers[i].thread, NULL);
	free(p->workers);
	free(p);
}

int cpu_pool_threads(const struct cpu_pool *p)
{
	return p->n_workers + 1;
}

int cpu_pool_nodes(const struct cpu_pool *p)
{
	return p->n_nodes;
}

int cpu_pool_node_threads(const struct cpu_pool *p, int node)
{
	return p->node_threads[node];
}
