/* SPDX-License-Identifier: MIT */
/*
 * A 64-bit check value for files of our own: fast and simple, not for secrets. Every step is
 * one-to-one in the state and in the word taken in, so a change within one 8-byte word always
 * changes the result.
 */
#ifndef GLM_BASE_HASH_H
#define GLM_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HASH_START 0xcbf29ce484222325u

static inline uint64_t hash_u64(uint64_t h, uint64_t word)
{
	h = (h ^ word) * 0x9fb21c651e98df25u; /* odd */
	return h ^ (h >> 32);
}

/* Goes on from h over n bytes; the length counts too. Whole stripes of 32 bytes are taken in by
 * four states side by side, since a single one waits for its multiplications. */
static inline uint64_t hash_bytes(uint64_t h, const void *p, size_t n)
{
	const uint8_t *b = p;
	uint64_t word, lane[4];
	h = hash_u64(h, n);
	for (int i = 0; i < 4; i++)
		lane[i] = h + (uint64_t)i;
	for (; n >= 32; n -= 32, b += 32) {
		uint64_t four[4];
		memcpy(four, b, sizeof four);
		for (int i = 0; i < 4; i++)
			lane[i] = hash_u64(lane[i], four[i]);
	}
	for (int i = 0; i < 4; i++)
		h = hash_u64(h, lane[i]);
	for (; n >= 8; n -= 8, b += 8) {
		memcpy(&word, b, 8);
		h = hash_u64(h, word);
	}
	word = 0;
	if (n)
		memcpy(&word, b, n);
	return hash_u64(h, word);
}

#endif
