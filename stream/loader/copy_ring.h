/* SPDX-License-Identifier: MIT */
/* A FIFO of the copies in flight of one copy stream, oldest first, for card_transfer.c. One thread
 * at a time uses it. */
#ifndef GLM_STREAM_COPY_RING_H
#define GLM_STREAM_COPY_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a copy releases when it is done. */
enum copy_release {
	RELEASE_NOTHING,
	RELEASE_BUFFER,       /* a staging buffer */
	RELEASE_TIER1_CHUNK,  /* one of the TIER1_CHUNKS_MAX of COPY_AHEAD; nothing in COPY_IN */
	RELEASE_STAGING_SLOT, /* a device staging slot */
};

/* A copy in flight. */
struct copy {
	uint64_t fence;         /* complete: the bytes are there */
	uint64_t staging_fence; /* demotion: fence of the copy to the device staging slot */
	int32_t slot;           /* slot of the cache whose load or demotion this copy is a part of */
	enum copy_release release;
	int32_t released; /* number of the buffer or the staging slot */
};

struct copy_ring {
	struct copy *ring; /* [cap] */
	unsigned cap, first, n;
};

/* An empty ring of `cap` copies at most; the caller ends it with free(q->ring). False: no memory.
 */
bool copy_ring_init(struct copy_ring *q, size_t cap);
void copy_ring_push(struct copy_ring *q, struct copy c); /* a full ring is a bug() */
struct copy copy_ring_pop(struct copy_ring *q);          /* the oldest; the ring is not empty */

#endif
