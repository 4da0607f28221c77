/* SPDX-License-Identifier: MIT */
/* A free list of load_checks. A load_check is the state of comparing one load whose bytes arrive in
 * chunks (card_transfer.c). Each load in flight whose expert is due for a check holds one. Owner:
 * the I/O thread; `run` belongs to the check pool's thread while a chunk is hashed. */
#ifndef GLM_STREAM_LOAD_CHECK_H
#define GLM_STREAM_LOAD_CHECK_H

#include "stream/check/expert_check.h"

struct load_check {
	struct span_check run; /* over the bytes of the slot */
	struct checked_span spans[EXTENT_PARTS];
	unsigned thread;     /* of the check pool: hashes all chunks of this load */
	unsigned next_chunk; /* number of the chunk to post next */
	struct load_check *next_free;
};

/* Zero-initialise. */
struct load_check_pool {
	struct load_check *free;
};

/* For an expert that is due; ready for its first chunk. NULL: no memory. */
struct load_check *load_check_acquire(struct load_check_pool *p, const struct expert_check *c,
	const struct extent_plan *plan, int layer, int expert);
void load_check_release(struct load_check_pool *p, struct load_check *k); /* NULL is fine */
void load_check_pool_fini(struct load_check_pool *p); /* all of them were released */

#endif
