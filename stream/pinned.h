/* SPDX-License-Identifier: MIT */
/*
 * Host memory that a card copies from and to: mapped with huge pages, touched by several threads, pinned through the
 * copier. Touching and pinning tens of gigabytes takes seconds, so it goes on beside the caller.
 */
#ifndef GLM_STREAM_PINNED_H
#define GLM_STREAM_PINNED_H

#include "kernels/copier.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pinned_state { PINNED_UNDER_WAY, PINNED_READY, PINNED_REFUSED };

/* Zero-initialise. Fields are constant between start and free unless marked. */
struct pinned {
	uint8_t *base; /* page-aligned; may be written by the caller at once, copied from and to when READY */
	size_t bytes;
	struct copier *copier;
	pthread_t thread;
	bool thread_started; /* changes: the caller's */
	atomic_int state;    /* changes: enum pinned_state */
	atomic_bool stop;    /* changes: free is waiting */
	struct err why;      /* of REFUSED; valid once the state says so */
	void (*tell)(void *arg);
	void *arg;
	double seconds; /* that it took; valid once the state is not UNDER_WAY */
};

/* Maps the memory and starts the work; ERR_MEMORY when it cannot be mapped. `tell`, if given, is called from another thread
 * when the work is over. */
int pinned_start(
	struct pinned *p, struct copier *c, size_t bytes, void (*tell)(void *arg), void *arg, struct err *e);
/* Waits for the end of the work. 0, or ERR_MEMORY with the sentence. */
int pinned_wait(struct pinned *p, struct err *e);
/* Breaks off what is under way. Nothing copies any more. Accepts a zeroed struct. */
void pinned_free(struct pinned *p);

#endif
