/* SPDX-License-Identifier: MIT */
/*
 * A test double of an asynchronous card: the CPU's ops, run late. An op is only enqueued when it is
 * called; the host's waits run the queue, no further than they must or by chance a little further.
 * A test that gets the same numbers on it has waited wherever it had to.
 *
 * - A graph segment runs eagerly the first time, is captured the second and replayed from then on.
 *   A key that does not stand for all arguments therefore gives other numbers.
 * - So does a host that reads, frees or overwrites memory which pending ops still use.
 * - Deferred expert kernels stand inside segments. A breach of the contract of experts_deferred
 *   (kernels/backend.h) fails the running test.
 */
#ifndef GLM_TESTS_LAZY_DEVICE_H
#define GLM_TESTS_LAZY_DEVICE_H

#include "kernels/backend.h"

extern struct lazy_counts {
	uint64_t replays;                   /* segments that were replayed */
	uint64_t posted_first, posted_late; /* calls that posted jobs: a kernel's first, later ones */
	uint64_t given_up;                  /* deferred kernels that were ended by a wait */
} lazy_counts;

/* Turns b into such a device until it is closed; one at a time. can_defer: experts of a single row
 * may be deferred. */
void lazy_device_start(struct backend *b, bool can_defer, uint64_t seed);

/* The device stops: what is enqueued does not run any more, and whoever waits for it gets ERR_RUN,
 * as from a card that does not answer (without its patience of minutes). Any thread. */
void lazy_device_stop(void);

#endif
