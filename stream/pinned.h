/* SPDX-License-Identifier: MIT */
/*
 * Host memory that a card copies from and to: mapped with huge pages, touched by several threads,
 * pinned through the copier.
 *
 *     base |--- step ---|--- step ---|--- step ---|- rest -|
 *          .       pinned so far      ^ ready
 *
 * Touching and pinning tens of gigabytes takes seconds, and whatever reads or computes meanwhile is
 * slower for it. So it goes on beside the caller, step by step from the front: at once as far as
 * was requested (pinned_request), the rest in the background, with pauses. A copy must not cross
 * the border of a step: the card's driver knows each step as memory of its own.
 */
#ifndef GLM_STREAM_PINNED_H
#define GLM_STREAM_PINNED_H

#include "kernels/copier.h"
#include "src/base/numa.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pinned_state { PINNED_IN_PROGRESS, PINNED_READY, PINNED_REFUSED, PINNED_STOPPED };

/* Zero-initialise. Fields are constant between start and free unless marked. */
struct pinned {
	uint8_t *base; /* page-aligned; may be written by the caller at once, copied from and to below
					* `ready` */
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
	size_t requested;       /* bytes from base that somebody waits for */
	bool in_background;     /* the rest is pinned without being requested */
};

/* Maps the memory, places it on NUMA nodes (division: NULL or numa_place's) and pins the first step
 * of it in a thread of its own; the rest when pinned_request or pinned_continue says so. step: a
 * multiple of the page size, 0: all at once. ERR_MEMORY when it cannot be mapped. `notify`, if
 * given, is called by that thread whenever a step is ready, and when it ends. */
int pinned_start(struct pinned *p, struct copier *c, size_t bytes, size_t step,
	struct numa_division *division, void (*notify)(void *arg), void *arg, struct err *e);
/* From now on the rest is pinned too, with pauses. */
void pinned_continue(struct pinned *p);
/* The first `bytes` are needed at once; returns without waiting. Any thread. */
void pinned_request(struct pinned *p, size_t bytes);
/* Requests all of it and waits. 0; ERR_MEMORY with the sentence when the system refused;
 * ERR_INTERRUPTED when it was stopped. */
int pinned_wait(struct pinned *p, struct err *e);
/* Gives up what is not pinned yet, and waits until the thread has ended: no notify afterwards. What
 * is pinned stays so. Accepts a zeroed struct. */
void pinned_stop(struct pinned *p);
/* How many of `bytes` from `at` on a single copy may take: up to the next border of a step. All,
 * when `at` lies elsewhere. */
size_t pinned_contiguous_bytes(const struct pinned *p, const void *at, size_t bytes);
/* Stops, unpins and unmaps. Nothing copies any more. Accepts a zeroed struct. */
void pinned_free(struct pinned *p);

#endif
