/* SPDX-License-Identifier: MIT */
/*
 * A free list of load_checks. A load_check is the state of comparing one load whose bytes arrive in
 * chunks (card_transfer.c, host_transfer.c). Each load in flight whose expert is due for a check
 * holds one.
 *
 * The reads of a load are hashed side by side, each by one thread of the check pool, so the last
 * chunk of an expert waits for the hash of one matrix, not of three.
 *
 * Owner: the I/O thread. The `run` of a read belongs to the check pool's thread while a chunk of
 * this read is hashed.
 */
#ifndef GLM_STREAM_LOAD_CHECK_H
#define GLM_STREAM_LOAD_CHECK_H

#include "stream/check/check_pool.h"
#include "stream/check/expert_check.h"

struct load_check {
	struct read_check {
		struct span_check run; /* over the spans that this read brings */
		unsigned thread;       /* of the check pool: hashes all chunks of this read */
		unsigned next_chunk;   /* number of the chunk to post next */
	} reads[EXTENT_PARTS];     /* as in the extent_plan */
	struct checked_span spans[EXTENT_PARTS];
	struct load_check *next_free;
};

/* Zero-initialise. */
struct load_check_pool {
	struct load_check *free;
};

/* For an expert that is due; ready for the first chunk of each read. NULL: no memory. */
struct load_check *load_check_acquire(struct load_check_pool *p, struct check_pool *threads,
	const struct expert_check *c, const struct extent_plan *plan, int layer, int expert);
/* The first span that is wrong, in `spans`, once all chunks were hashed; NULL: none is. */
const struct checked_span *load_check_wrong(const struct load_check *k);
void load_check_release(struct load_check_pool *p, struct load_check *k); /* NULL is fine */
void load_check_pool_fini(struct load_check_pool *p); /* all of them were released */

#endif
