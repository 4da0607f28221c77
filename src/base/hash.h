/* SPDX-License-Identifier: MIT */
/*
 * 64-bit check values and fingerprints: XXH64. Not for secrets.
 *
 * A value over several parts is a chain: each part is hashed with the value before it as the seed,
 * the first one with HASH_START. The length of a part counts.
 *
 * Files hold these values (sessions, prefix blocks, traces, profiles, journals of conversions):
 * another function here needs another version of each.
 */
#ifndef GLM_BASE_HASH_H
#define GLM_BASE_HASH_H

#define XXH_INLINE_ALL /* a header only: nothing to link */
#include <xxhash.h>

#include <stddef.h>
#include <stdint.h>

#define HASH_START 0u

static inline uint64_t hash_bytes(uint64_t seed, const void *p, size_t n)
{
	return XXH64(p, n, seed);
}

static inline uint64_t hash_u64(uint64_t seed, uint64_t word)
{
	return XXH64(&word, sizeof word, seed);
}

/* hash_bytes(HASH_START, ...) of bytes that come piece by piece; its value can be asked for between
 * the pieces. */
struct hash_stream {
	XXH64_state_t state;
};

static inline void hash_stream_begin(struct hash_stream *h)
{
	XXH64_reset(&h->state, HASH_START);
}

static inline void hash_stream_add(struct hash_stream *h, const void *p, size_t n)
{
	if (n)
		XXH64_update(&h->state, p, n);
}

static inline uint64_t hash_stream_value(const struct hash_stream *h)
{
	return XXH64_digest(&h->state);
}

#endif
