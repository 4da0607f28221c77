/* SPDX-License-Identifier: MIT */
/* The functions that are compiled once for each instruction set; XXH3_ISA(name) names them. Private
 * to xxh3.c and xxh3_avx2.c. */
#include "src/base/xxh3/xxh3.h"

#define XXH_INLINE_ALL /* a header only: nothing to link */
#include <xxhash.h>

uint64_t XXH3_ISA(xxh3_of)(const void *p, size_t n);
void XXH3_ISA(xxh3_add)(struct xxh3 *h, const void *p, size_t n);

uint64_t XXH3_ISA(xxh3_of)(const void *p, size_t n)
{
	return XXH3_64bits(p, n);
}

void XXH3_ISA(xxh3_add)(struct xxh3 *h, const void *p, size_t n)
{
	if (n)
		XXH3_64bits_update((XXH3_state_t *)(void *)h, p, n);
}
