/* SPDX-License-Identifier: MIT */
/*
 * Threads that hash what was read. One core hashes 13 GB/s, the page cache and several drives give
 * more: the thread that looks after reads and copies hands the bytes on.
 *
 * Each thread has a queue and takes from it in order: bytes of one hash go to one thread. The owner
 * takes tasks back when they are done, of all threads together, in no special order.
 *
 * One thread, the owner, makes all calls. The threads sleep while there is nothing to do.
 */
#ifndef GLM_STREAM_CHECK_POOL_H
#define GLM_STREAM_CHECK_POOL_H

#include "src/base/err.h"

#include <stdint.h>

/* Belongs to the pool from check_pool_post to check_pool_take; part of the caller's own struct. */
struct check_task {
	void (*hash)(struct check_task *t);
	uint64_t ns; /* that it took */
	struct check_task *next;
};

struct check_pool;

/* A quarter of the cores that the process may use, 1 to 4; 0 if it has fewer than four. */
unsigned check_pool_threads(void);

/* With 0 threads a task is done by check_pool_post itself. `wake` is called when a task is done, by
 * the thread that did it: the owner has something to take. Or an error: a thread does not start. */
int check_pool_open(
	struct check_pool **out, unsigned n_threads, void (*wake)(void *arg), void *arg, struct err *e);
/* Waits for tasks that have begun. Others are never done, and `wake` is not called any more. NULL
 * is fine. */
void check_pool_close(struct check_pool *p);

/* The threads in turn: a number for check_pool_post. */
unsigned check_pool_next_thread(struct check_pool *p);
void check_pool_post(struct check_pool *p, unsigned thread, struct check_task *t);
/* One that is done; NULL: there is none. Never waits. */
struct check_task *check_pool_take(struct check_pool *p);

#endif
