/* SPDX-License-Identifier: MIT */
/*
 * XXH3 with 64 bits and seed 0: the check values of weights. Other files hold XXH64 (hash.h).
 *
 * Compiled twice, once with AVX2, which is two to three times as fast; the values are the same.
 */
#ifndef GLM_BASE_XXH3_H
#define GLM_BASE_XXH3_H

#include <stddef.h>
#include <stdint.h>

uint64_t xxh3_of(const void *p, size_t n);

/* The same of bytes that come one part after the other: new, then begin, add ... and value in
 * turns, free. */
struct xxh3;
struct xxh3 *xxh3_new(void);    /* NULL: no memory */
void xxh3_free(struct xxh3 *h); /* NULL is fine */
void xxh3_begin(struct xxh3 *h);
void xxh3_add(struct xxh3 *h, const void *p, size_t n);
uint64_t xxh3_value(const struct xxh3 *h);

#endif
