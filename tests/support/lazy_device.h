/* SPDX-License-Identifier: MIT */
/*
 * A card's way with ops, without a card: a table around the CPU's that runs nothing until the host
 * waits for it, and then no more than it must, or by chance a little further. A list's calls run as
 * they come the first time, are recorded the second and made by nobody from then on, so a key that
 * does not stand for all arguments gives other numbers; so does whoever reads, gives back or
 * overwrites what the device has not come to. Experts that wait to be told stand in the middle of
 * lists, and what the contract of experts_deferred forbids fails the running test
 * (kernels/backend.h).
 */
#ifndef GLM_TESTS_LAZY_DEVICE_H
#define GLM_TESTS_LAZY_DEVICE_H

#include "kernels/backend.h"

extern struct lazy_counts {
	uint64_t replays;        /* lists that nobody called again */
	uint64_t by_words, late; /* calls that told an await: the first ones, and those behind */
	uint64_t given_up;       /* awaits that were ended by a wait */
} lazy_counts;

/* From now on b is one, until it is closed; words: experts of a single row can be awaited. One at a
 * time. */
void lazy_device_start(struct backend *b, bool words, uint64_t seed);

#endif
