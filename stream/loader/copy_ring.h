/* SPDX-License-Identifier: MIT */
/* The copies in flight of one stream of a card transfer (card_transfer.c), oldest first. */
#ifndef GLM_STREAM_COPY_RING_H
#define GLM_STREAM_COPY_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a copy releases when it is done. */
enum copy_release {
	RELEASE_NOTHING,
	RELEASE_BUFFER,       /* a staging buffer */
	RELEASE_TIER1_CHUNK,  /* a place among TIER1_CHUNKS_MAX, if it was taken */
	RELEASE_STAGING_SLOT, /* a device staging slot */
};

/* A copy in flight. */
struct copy {
	uint64_t fence;
	uint64_t staging_fence; /* demotion: of the copy to the device staging slot */
	int32_t slot;           /* that waits for it */
	enum copy_release release;
	int32_t released; /* number of the buffer or the staging slot */
};

struct copy_ring {
	struct copy *ring; /* [cap] */
	unsigned cap, first, n;
};

/* Zero-initialise. False: no memory for so many copies. The ring is freed by free(q->ring). */
bool copy_ring_init(struct copy_ring *q, size_t cap);
void copy_ring_push(struct copy_ring *q, struct copy c); /* there is room, or it is a bug */
struct copy copy_ring_pop(struct copy_ring *q);          /* the oldest; there is one */

#endif
