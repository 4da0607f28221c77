/* SPDX-License-Identifier: MIT */
/*
 * A pool of threads that hash bytes that were read. One core hashes 13 GB/s, less than the page
 * cache or several drives deliver, so the I/O thread does not hash itself.
 *
 * In order of use, all by one thread, the owner:
 *   1. check_pool_open
 *   2. check_pool_post for each task; after each `wake`: check_pool_take until it returns NULL
 *   3. check_pool_close
 *
 * Each thread has a queue of its own and works through it in order: post the parts of one streaming
 * hash to the same thread. Tasks of different threads complete in any order. Idle threads sleep.
 */
#ifndef GLM_STREAM_CHECK_POOL_H
#define GLM_STREAM_CHECK_POOL_H

#include "src/base/err.h"

#include <stdint.h>

/* Member of a struct of the caller. The pool owns it from check_pool_post until check_pool_take
 * returns it. */
struct check_task {
	void (*hash)(struct check_task *t); /* called once, by a thread of the pool */
	uint64_t ns;                        /* set by the pool: how long `hash` took */
	struct check_task *next;            /* the pool's */
};

struct check_pool;

/* A quarter of the cores that the process may use, 1 to 4; 0 if it has fewer than four. */
unsigned check_pool_threads(void);
/* n_threads of check_pool_open for an option of the program: > 0: that many; 0:
 * check_pool_threads(); < 0: none. */
unsigned check_pool_threads_for(int option);

/* n_threads: at most 4 are started; with 0 check_pool_post runs `hash` itself. wake(arg) is called
 * after each task by the thread that ran it, and must be thread-safe: the owner has a task to take.
 * NULL: the owner polls. Errors: a thread does not start. */
int check_pool_open(
	struct check_pool **out, unsigned n_threads, void (*wake)(void *arg), void *arg, struct err *e);
/* Waits for tasks that have begun. Tasks still queued are never run, and `wake` is not called after
 * the return. NULL is fine. */
void check_pool_close(struct check_pool *p);

/* The number of a thread for check_pool_post, round robin. */
unsigned check_pool_next_thread(struct check_pool *p);
void check_pool_post(struct check_pool *p, unsigned thread, struct check_task *t);
/* A completed task; NULL: there is none now. Never waits. */
struct check_task *check_pool_take(struct check_pool *p);

#endif
