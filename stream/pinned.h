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
 * was asked for (pinned_request), and what nobody has asked for at leisure, with pauses. A copy
 * must not cross the border of a step: the card's driver knows each as memory of its own.
 */
#ifndef GLM_STREAM_PINNED_H
#define GLM_STREAM_PINNED_H

#include "kernels/copier.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pinned_state { PINNED_IN_PROGRESS, PINNED_READY, PINNED_REFUSED };

/* Zero-initialise. Fields are constant between start and free unless marked. */
struct pinned {
	uint8_t *base; /* page-aligned; may be written by the caller at once, copied from and to below
					  `ready` */
	size_t bytes, step;
	struct copier *copier;
	pthread_t thread;
	bool thread_started; /* changes: the caller's */
	atomic_int state;    /* changes: enum pinned_state of all of it */
	atomic_size_t ready; /* changes: bytes from base that are pinned */
	atomic_bool stop;    /* changes: free is waiting */
	pthread_mutex_t lock;
	pthread_cond_t news;
	size_t wanted;   /* guarded by lock: bytes from base that somebody waits for */
	bool at_leisure; /* guarded by lock: goes on without being asked */
	struct err why;  /* of REFUSED; valid once the state says so */
	void (*tell)(void *arg);
	void *arg;
	double seconds; /* of work that it took; valid once the state is not UNDER_WAY */
};

/* Maps the memory and pins the first step of it, beside the caller; the rest when pinned_request or
 * pinned_continue says so. step: a multiple of the page size, 0: all at once. ERR_MEMORY when it
 * cannot be mapped. `tell`, if given, is called from another thread whenever a step is ready, and
 * when one is refused. */
int pinned_start(struct pinned *p, struct copier *c, size_t bytes, size_t step,
	void (*tell)(void *arg), void *arg, struct err *e);
/* From now on all of it is pinned, with pauses. */
void pinned_continue(struct pinned *p);
/* The first `bytes` are wanted at once; returns without waiting. Any thread. */
void pinned_request(struct pinned *p, size_t bytes);
/* Waits until all of it is pinned. 0, or ERR_MEMORY with the sentence. */
int pinned_wait(struct pinned *p, struct err *e);
/* How many of `bytes` from `at` on a single copy may take: up to the next border. All, when `at`
 * lies elsewhere. */
size_t pinned_contiguous_bytes(const struct pinned *p, const void *at, size_t bytes);
/* Breaks off what is under way. Nothing copies any more. Accepts a zeroed struct. */
void pinned_free(struct pinned *p);

#endif
