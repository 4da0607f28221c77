/* SPDX-License-Identifier: MIT */
/* The checks of loads whose bytes come in chunks: one for each load in flight that is due for one.
 * What is released is used again. One thread. */
#ifndef GLM_STREAM_LOAD_CHECK_H
#define GLM_STREAM_LOAD_CHECK_H

#include "stream/check/expert_check.h"

struct load_check {
	struct span_check run; /* over the bytes of the slot */
	struct checked_span spans[EXTENT_PARTS];
	unsigned thread;     /* of the check pool, that hashes all of it */
	unsigned next_chunk; /* which is to be hashed next */
	struct load_check *next_free;
};

/* Zero-initialise. */
struct load_check_pool {
	struct load_check *free;
};

/* NULL: no memory. */
struct load_check *load_check_acquire(struct load_check_pool *p, const struct expert_check *c,
	const struct extent_plan *plan, int layer, int expert);
void load_check_release(struct load_check_pool *p, struct load_check *k); /* NULL is fine */
void load_check_pool_fini(struct load_check_pool *p); /* all of them were released */

#endif
