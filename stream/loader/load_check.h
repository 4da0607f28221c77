/* SPDX-License-Identifier: MIT */
/*
 * A load_check is the state of comparing one load whose bytes arrive in chunks (card_transfer.c,
 * host_transfer.c). Each load in flight whose expert is due for a check holds one. A
 * load_check_pool is a free list of them.
 *
 * The reads of a load are hashed in parallel, each by one thread of the check pool. The end of a
 * load then waits for the hash of one matrix at most, not of three.
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
		struct span_check run; /* over the spans that lie in this read */
		unsigned thread;       /* of the check pool: hashes all chunks of this read */
		unsigned next_chunk;   /* number of the chunk to post next */
	} reads[EXTENT_PARTS];     /* [extent_plan.n_reads] are in use */
	struct checked_span spans[EXTENT_PARTS];
	struct load_check *next_free;
};

/* Zero-initialise. */
struct load_check_pool {
	struct load_check *free;
};

/* A load_check for the first chunk of each read of this plan, of an expert that is due for a check.
 * NULL: no memory. */
struct load_check *load_check_acquire(struct load_check_pool *p, struct check_pool *threads,
	const struct expert_check *c, const struct extent_plan *plan, int layer, int expert);
/* The first element of `spans` whose bytes are wrong; NULL: all are right. Precondition: all chunks
 * were hashed. */
const struct checked_span *load_check_wrong(const struct load_check *k);
void load_check_release(struct load_check_pool *p, struct load_check *k); /* NULL is fine */
void load_check_pool_fini(struct load_check_pool *p); /* all of them were released */

#endif
