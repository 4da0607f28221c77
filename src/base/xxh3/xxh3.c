/* SPDX-License-Identifier: MIT */
/* A struct xxh3 is the library's XXH3_state_t, whose layout is the same for all instruction sets.
 */
#define XXH3_ISA(name) name##_any
#include "src/base/xxh3/xxh3_body.h"

#if defined(__x86_64__)
uint64_t xxh3_of_avx2(const void *p, size_t n);
void xxh3_add_avx2(struct xxh3 *h, const void *p, size_t n);
#define CHOOSE(name) (__builtin_cpu_supports("avx2") ? name##_avx2 : name##_any)
#else
#define CHOOSE(name) name##_any
#endif

static XXH3_state_t *state_of(const struct xxh3 *h)
{
	return (XXH3_state_t *)(uintptr_t)h;
}

uint64_t xxh3_of(const void *p, size_t n)
{
	return CHOOSE(xxh3_of)(p, n);
}

struct xxh3 *xxh3_new(void)
{
	return (struct xxh3 *)(void *)XXH3_createState();
}

void xxh3_free(struct xxh3 *h)
{
	XXH3_freeState(state_of(h));
}

void xxh3_begin(struct xxh3 *h)
{
	XXH3_64bits_reset(state_of(h));
}

void xxh3_add(struct xxh3 *h, const void *p, size_t n)
{
	CHOOSE(xxh3_add)(h, p, n);
}

uint64_t xxh3_value(const struct xxh3 *h)
{
	return XXH3_64bits_digest(state_of(h));
}
