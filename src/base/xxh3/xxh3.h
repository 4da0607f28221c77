/* SPDX-License-Identifier: MIT */
/*
 * XXH3 with 64 bits and seed 0, the hash of the check values of weights. All other checksums of
 * this program are XXH64 (hash.h).
 *
 * The functions are compiled with and without AVX2 and chosen at run time. AVX2 is two to three
 * times as fast and gives the same values.
 */
#ifndef GLM_BASE_XXH3_H
#define GLM_BASE_XXH3_H

#include <stddef.h>
#include <stdint.h>

uint64_t xxh3_of(const void *p, size_t n); /* of n bytes */

/* The streaming form, for bytes that arrive in parts. In order of use: xxh3_new; for each hash
 * xxh3_begin, xxh3_add for each part in order, xxh3_value; xxh3_free. One thread at a time. */
struct xxh3;
struct xxh3 *xxh3_new(void);    /* NULL: no memory */
void xxh3_free(struct xxh3 *h); /* NULL is fine */
void xxh3_begin(struct xxh3 *h);
void xxh3_add(struct xxh3 *h, const void *p, size_t n);
uint64_t xxh3_value(const struct xxh3 *h);

#endif
