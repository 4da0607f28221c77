/* SPDX-License-Identifier: MIT */
/*
 * The keys that the open objects of a JSON text have so far, byte by byte.
 *
 * Use: zero-initialise; unique_keys_push for each byte of valid JSON; before a closing quote
 * unique_keys_repeats; unique_keys_free.
 *
 * A copy of the struct looks ahead: set `copy`, push to it, and drop it without unique_keys_free.
 * It writes its keys behind those of the original, for which unique_keys_reserve has made room. It
 * keeps the keys of objects that it closes: the object's number in their hashes tells them apart.
 *
 * Keys are compared by 64-bit hashes of their characters, so that "a" is "\u0061". One thread at a
 * time.
 */
#ifndef GLM_TEXT_UNIQUE_KEYS_H
#define GLM_TEXT_UNIQUE_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UNIQUE_KEYS_DEPTH 128 /* objects and arrays; keys further inside are not compared */

struct unique_keys {
	uint64_t *keys; /* [n_keys] hashes with the object's number: of open objects, the outer first */
	size_t n_keys, cap;
	uint32_t n_objects;
	struct {
		uint32_t object; /* its number; 0: an array */
		size_t first;    /* of its keys */
	} levels[UNIQUE_KEYS_DEPTH];
	uint32_t depth;
	uint8_t state;
	bool key_next; /* the next string is a key */
	bool copy;
	uint64_t hash;               /* of the key so far */
	uint32_t digits, high, code; /* of an escape: digits to come, the pair's first half, value */
};

void unique_keys_free(struct unique_keys *u); /* leaves it zeroed */
/* Makes room for the keys of n more bytes. False in a scope only (mem.h). */
bool unique_keys_reserve(struct unique_keys *u, size_t n);
void unique_keys_push(struct unique_keys *u, uint8_t byte);
/* Whether the byte would end a key that its object has already. */
bool unique_keys_repeats(const struct unique_keys *u, uint8_t byte);

#endif
