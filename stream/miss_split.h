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
	int node;       /* in: the NUMA node whose threads compute it, by number; 0 without nodes */
	double host_ns; /* in: time in which the processor computes it, > 0 */
	double link_ns; /* in: time in which it is copied, > 0 */
	bool on_host;   /* out: the processor computes it */
};

/* Sets on_host of misses [n]; busy_ns: time until the link is free.
 * - Nodes compute at the same time, each the misses that lie on it.
 * - Sorts the misses: first those that get on_host. Within a node the order is that of host_ns /
 *   link_ns, ascending; the next miss is the one that some node would have computed first.
 * - The number of these is the best one; of two splits that end at the same time, the one with
 *   fewer copies. If the misses of a node take equal times, no other split is better. */
void miss_split(struct miss *misses, int n, double busy_ns);

#endif
