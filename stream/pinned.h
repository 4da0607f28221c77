/* SPDX-License-Identifier: MIT */
/*
 * Host memory that a card copies from and to: mapped with huge pages, touched by several threads,
 * pinned through the copier.
 *
 *     base |--- step ---|--- step ---|--- step ---|- rest -|
 *          .       pinned so far      ^ ready
 *
 * Touching and pinning tens of gigabytes takes seconds, and slows down whatever reads or computes
 * meanwhile. So a thread does it step by step from the front: without a pause as far as was
 * requested (pinned_request), the rest in the background, with pauses (pinned_continue). A copy
 * must not cross the border of a step: each step is registered with the card's driver on its own.
 *
 * In order of use: pinned_start; pinned_request, pinned_continue, pinned_wait as needed;
 * pinned_stop; pinned_free. One thread calls these, except pinned_request, which any thread may.
 */
#ifndef GLM_STREAM_PINNED_H
#define GLM_STREAM_PINNED_H

#include "kernels/copier.h"
#include "src/base/host/numa.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pinned_state { PINNED_IN_PROGRESS, PINNED_READY, PINNED_REFUSED, PINNED_STOPPED };

/* Zero-initialise. Fields are constant between start and free unless marked. */
struct pinned {
	uint8_t *base; /* page-aligned. The caller may use the memory at once; the card may copy from
					* and to [base, base + ready) */
	size_t bytes, step;
	struct copier *copier;
	void (*notify)(void *arg);
	void *arg;
	pthread_t thread;
	bool thread_started; /* the caller's */
	bool placed;         /* on NUMA nodes */
	/* written by the thread, read by any */
	atomic_int state;    /* enum pinned_state of all of it */
	atomic_size_t ready; /* bytes from base that are pinned */
	struct err why;      /* of REFUSED; valid once the state says so */
	double seconds;      /* of work; valid once the state is not IN_PROGRESS */
	atomic_bool stop;    /* written under the lock, read by any thread */
	/* guarded by lock */
	pthread_mutex_t lock;
	pthread_cond_t changed; /* stop, requested or in_background */
	size_t requested;       /* bytes from base that pinned_request asks to be pinned */
	bool in_background;     /* the rest is pinned without being requested */
};

/* Maps the memory, places it on NUMA nodes and starts the thread, which pins the first step, and
 * the rest when pinned_request or pinned_continue is called.
 * - c: lent; its pin and unpin are used until pinned_free.
 * - step: a multiple of the page size; 0: all of it.
 * - division: numa_place's; NULL: the memory is placed where it is touched first.
 * - notify: called by the thread when a step is ready and when it ends; NULL: not called.
 * - Errors: ERR_MEMORY (it cannot be mapped); the thread does not start. pinned_free is due then.
 */
int pinned_start(struct pinned *p, struct copier *c, size_t bytes, size_t step,
	struct numa_division *division, void (*notify)(void *arg), void *arg, struct err *e);
/* From now on the rest is pinned too, with pauses. */
void pinned_continue(struct pinned *p);
/* Requests that the first `bytes` are pinned without pauses; returns at once. Any thread. */
void pinned_request(struct pinned *p, size_t bytes);
/* Requests all of it and waits. 0; the error of pin (copier.h) when a step was refused;
 * ERR_INTERRUPTED when it was stopped. */
int pinned_wait(struct pinned *p, struct err *e);
/* Ends the thread and waits for that: no notify afterwards. Steps that are pinned stay so, the
 * others never will be. Accepts a zeroed struct. */
void pinned_stop(struct pinned *p);
/* How many of the `bytes` from `at` on one copy may take: those up to the next border of a step.
 * All of them if `at` is not in this memory. */
size_t pinned_contiguous_bytes(const struct pinned *p, const void *at, size_t bytes);
/* Stops, unpins and unmaps. Precondition: no copy uses the memory. Accepts a zeroed struct. */
void pinned_free(struct pinned *p);

#endif
