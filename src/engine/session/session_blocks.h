/* SPDX-License-Identifier: MIT */
/*
 * The body of a session file: blocks of lengths that the reader knows beforehand, each with a check
 * value, each stored raw or, if that is clearly smaller, as one lz4 frame.
 *
 *   u32 stored   bytes that follow the block head
 *   u32 coding   0: raw, 1: an lz4 frame with content size and content checksum
 *   u64 check    over seed, number of the block, stored, coding and the stored bytes
 *
 * The seed is the check value of the file's head, so a block of another file or in another place is
 * refused like a damaged one. Stored bytes are not parsed before their check value is right.
 * Without liblz4 everything is stored raw, and a compressed block is refused with a sentence.
 */
#ifndef GLM_ENGINE_SESSION_BLOCKS_H
#define GLM_ENGINE_SESSION_BLOCKS_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define BLOCK_MAX_BYTES (1u << 20)
#define BLOCK_HEAD      16u

struct block_stream {
	FILE *f;           /* borrowed */
	int fd;            /* when writing: its descriptor, to begin with the drive early */
	const char *name;  /* borrowed; for errors */
	uint64_t seed;     /* set by the caller before the first block */
	uint32_t n_blocks; /* done so far */
	uint8_t *packed;   /* [packed_bytes] scratch */
	size_t packed_bytes;
	uint64_t flushed_bytes;           /* of stored_bytes, handed to the drive */
	uint64_t raw_bytes, stored_bytes; /* sums over all blocks; stored without block heads */
};

/* Blocks of up to `max_bytes` (at least BLOCK_MAX_BYTES are taken). ERR_MEMORY. */
int block_stream_init(
	struct block_stream *b, FILE *f, const char *name, size_t max_bytes, struct err *e);
void block_stream_fini(struct block_stream *b); /* accepts a zeroed struct; leaves f alone */

/* Writes one block; n > 0. ERR_RUN when the file takes no more. */
int block_write(struct block_stream *b, const void *data, size_t n, struct err *e);

/* Reads the next block, which must hold exactly n bytes. ERR_INPUT when it does not, ends early or
 * is damaged; ERR_RUN when the file cannot be read; ERR_MEMORY. `out` is undefined after an error.
 */
int block_read(struct block_stream *b, void *out, size_t n, struct err *e);

#endif
