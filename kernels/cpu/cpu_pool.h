/* SPDX-License-Identifier: MIT */
/*
 * The CPU backend's thread pool: cpu_pool_run executes numbered tasks on the caller and the
 * workers.
 *
 * Why not OpenMP: its regions end at a barrier that every thread must reach, also a preempted one
 * that has nothing left to do. Where other programs, or our own reader threads, want the same
 * cores, that cost a factor of 20 (pocket model, 2 busy cores). Here the caller takes tasks as the
 * workers do and waits only for workers that are inside a task; a worker that wakes too late finds
 * the job closed.
 */
#ifndef GLM_KERNELS_CPU_POOL_H
#define GLM_KERNELS_CPU_POOL_H

#include "src/base/host/numa.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct cpu_pool;

/* Executes tasks [first, last) as thread number `thread`: 0 is the caller; no two threads have the
 * same number at a time. */
typedef void cpu_task_fn(const void *context, int64_t first, int64_t last, int thread);

/* A pool of `threads` threads, the caller included; fewer when the system gives no more. Signals
 * are blocked in them. Patient: see backend_options.for_card. nodes: lent for the call; with two or
 * more the threads are divided among them in proportion to their processors, and each is pinned to
 * a core (patient) or to the processors of its node. NULL: not divided. Released with
 * cpu_pool_free, NULL is fine. */
struct cpu_pool *cpu_pool_new(int threads, bool patient, const struct numa_nodes *nodes);
void cpu_pool_free(struct cpu_pool *p);

int cpu_pool_threads(const struct cpu_pool *p);
/* Nodes that the threads are divided among; 0: they are not. */
int cpu_pool_nodes(const struct cpu_pool *p);
/* Threads of a node, from 1 on; the caller counts for the node where it called cpu_pool_new. */
int cpu_pool_node_threads(const struct cpu_pool *p, int node);

/* Lends a flag; NULL: none any more. Once it is true, tasks that have not begun are left out.
 * Called between jobs. */
void cpu_pool_set_stop(struct cpu_pool *p, const atomic_bool *flag);

/* Sets a progress callback; NULL: none any more. Called between jobs. The callback
 * - runs on the thread that is in cpu_pool_run, after each portion of tasks of its own and at each
 *   spin of its wait for the workers' last ones;
 * - must return within microseconds, and must not call cpu_pool_run. */
void cpu_pool_set_progress(struct cpu_pool *p, void (*on_progress)(void *user), void *user);

/* Calls fn for all tasks [0, n), `grain` consecutive ones at a time, on at most `threads` threads
 * with numbers below `threads`, and returns when all have been done. What fn wrote is then visible
 * to the caller. False: tasks were left out because of cpu_pool_set_stop. One caller at a time; fn
 * must not call this. */
bool cpu_pool_run(struct cpu_pool *p, int threads, int64_t n, int64_t grain, cpu_task_fn *fn,
	const void *context);

/* The same for tasks that are sorted by the node of the memory that they read. Tasks [0, ends[0])
 * have no node, tasks [ends[k - 1], ends[k]) are of node k, and ends[cpu_pool_nodes] is the number
 * of all. A thread takes tasks of its node first, then those of no node, then those of other nodes.
 * In a patient pool only the caller takes tasks of other nodes, so that each node works at the rate
 * that was measured for it. Precondition: cpu_pool_nodes is not 0. */
bool cpu_pool_run_nodes(struct cpu_pool *p, int threads, const int64_t *ends, int64_t grain,
	cpu_task_fn *fn, const void *context);

#endif
