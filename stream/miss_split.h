/* SPDX-License-Identifier: MIT */
/*
 * Splits the misses of a layer that lie in host memory between the card, which computes them after
 * a copy over the link, and the processor, which computes them where they lie. Both work at the
 * same time; the later of the two is to end as early as possible. A copied expert is in the card
 * for later tokens, one that the processor computes only if it is promoted later: that costs more
 * than its time. A pure function.
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

/* What an expert that stays in host memory costs later, in units of its copy time: it is missing
 * the next time. One H200, 256 experts, a trace replayed: with the processor computing 17.8 misses
 * a token of 18.2 there were 4.0 more misses than without it (2026-11-29, 6aa5d32d). */
#define MISS_STAY_COPIES 0.25

/* Sets on_host of misses [n]; busy_ns: time until the link is free.
 * - Nodes compute at the same time, each the misses that lie on it.
 * - Sorts the misses. Those of one node are in ascending order of host_ns / link_ns. The nodes are
 *   merged by the time at which a node that computes all its misses would end each.
 * - The cost of a split is its end, and MISS_STAY_COPIES copies of each miss with on_host.
 * - The first misses in this order get on_host, as many as cost least; of two numbers with the same
 *   cost, the larger. If all link_ns are equal, and the host_ns of each node, no other
 *   split costs less. */
void miss_split(struct miss *misses, int n, double busy_ns);

#endif
