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
	double host_ns; /* in: time in which the processor computes it, > 0 */
	double link_ns; /* in: time in which it is copied, > 0 */
	bool on_host;   /* out: the processor computes it */
};

/* Splits misses [n]; busy_ns: time until the link is free. Sorts them: first the processor's, those
 * that it computes fastest compared to a copy. Times are equal for equal experts: then the result
 * is the best split; else it is the best one in that order. Of two splits that end at the same
 * time, the one with fewer copies. */
void miss_split(struct miss *misses, int n, double busy_ns);

#endif
