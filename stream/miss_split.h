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
 * - Sorts the misses. Those of one node are in ascending order of host_ns / link_ns. The nodes are
 *   merged by the time at which a node that computes all its misses would end each.
 * - The first misses in this order get on_host, as many as make the end earliest; of two numbers
 *   with the same end, the larger. If the misses of each node take equal times, no other split ends
 *   earlier. */
void miss_split(struct miss *misses, int n, double busy_ns);

#endif
