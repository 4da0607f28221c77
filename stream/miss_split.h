/* SPDX-License-Identifier: MIT */
/*
 * Splits the misses of a layer that lie in host memory between the card, which computes them after
 * a copy over the link, and the processor, which computes them where they lie. Both work at the
 * same time; the later of the two is to end as early as possible. A pure function.
 */
#ifndef GLM_STREAM_MISS_SPLIT_H
#define GLM_STREAM_MISS_SPLIT_H

#include <stdbool.h>

struct miss {
	int ref;        /* the caller's */
	double host_ns; /* in: time in which the processor computes it, > 0 */
	double link_ns; /* in: time in which it is copied, > 0 */
	bool on_host;   /* out: the processor computes it */
};

/* Sets on_host of misses [n]; busy_ns: time until the link is free.
 * - Sorts the misses by host_ns / link_ns, ascending; the processor gets the first ones.
 * - The number of these is the best one; of two splits that end at the same time, the one with
 * fewer copies. If all misses take equal times, no other split is better. */
void miss_split(struct miss *misses, int n, double busy_ns);

#endif
