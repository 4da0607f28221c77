/* SPDX-License-Identifier: MIT */
/*
 * Who computes the misses of a layer that lie in host memory: the card, after a copy over the link,
 * or the processor where they lie. Both work at the same time, so the misses are split such that
 * the later of the two ends as early as possible. A pure function.
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

/* Splits misses [n]; busy_ns: time until the link is free. Nodes compute at the same time, each its
 * own misses. Sorts them: first the processor's. A node takes first those that it computes fastest
 * compared to a copy; the next miss is the one that a node would have computed first. Times are
 * equal for equal experts of a node: then the result is the best split; else it is the best one in
 * that order. Of two splits that end at the same time, the one with fewer copies. */
void miss_split(struct miss *misses, int n, double busy_ns);

#endif
