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

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct cpu_pool;

/* Executes tasks [first, last) as thread number `thread`: 0 is the caller; no two threads have the
 * same number at a time. */
typedef void cpu_task_fn(const void *context, int64_t first, int64_t last, int thread);

/* A pool of `threads` threads, the caller included; fewer when the system gives no more. Signals
 * are blocked in them. Patient: see backend_options.for_card. Released with cpu_pool_free, NULL is
 * fine. */
struct cpu_pool *cpu_pool_new(int threads, bool patient);
void cpu_pool_free(struct cpu_pool *p);

int cpu_pool_threads(const struct cpu_pool *p);

/* Lends a flag; NULL: none any more. Once it is true, tasks that have not begun are left out.
 * Called between jobs. */
void cpu_pool_set_stop(struct cpu_pool *p, const atomic_bool *flag);

/* Calls fn for all tasks [0, n), `grain` consecutive ones at a time, on at most `threads` threads
 * with numbers below `threads`, and returns when all have been done. What fn wrote is then visible
 * to the caller. False: tasks were left out because of cpu_pool_set_stop. One caller at a time; fn
 * must not call this. */
bool cpu_pool_run(struct cpu_pool *p, int threads, int64_t n, int64_t grain, cpu_task_fn *fn,
	const void *context);

#endif
