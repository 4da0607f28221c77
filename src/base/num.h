/* SPDX-License-Identifier: MIT */
/* The smaller and larger of two numbers, checked arithmetic for sizes that come from files or
 * users, alignment, search among intervals, and little-endian loads and stores. */
#ifndef GLM_BASE_NUM_H
#define GLM_BASE_NUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* The smaller and the larger of two numbers in their common type. Each argument is evaluated once.
 * Not constant expressions. */
#define MIN(a, b) NUM_CHOOSE(<, a, b, __COUNTER__)
#define MAX(a, b) NUM_CHOOSE(>, a, b, __COUNTER__)

/* `n` makes the names of nested calls differ. */
#define NUM_CHOOSE(op, a, b, n)  NUM_CHOOSE_(op, a, b, n)
#define NUM_CHOOSE_(op, a, b, n) NUM_CHOOSE__(op, a, b, num_a_##n, num_b_##n)
#define NUM_CHOOSE__(op, a, b, x, y)                                                               \
	({                                                                                             \
		__typeof__(1 ? (a) : (b)) x = (a), y = (b);                                                \
		x op y ? x : y;                                                                            \
	})

/* *out = a op b; false when it does not fit, *out then unspecified. */
static inline bool num_add(uint64_t a, uint64_t b, uint64_t *out)
{
	return !__builtin_add_overflow(a, b, out);
}

static inline bool num_mul(uint64_t a, uint64_t b, uint64_t *out)
{
	return !__builtin_mul_overflow(a, b, out);
}

/* `align` is a power of two; the caller has checked that v + align does not overflow. */
static inline uint64_t num_align_up(uint64_t v, uint64_t align)
{
	return (v + align - 1) & ~(align - 1);
}

static inline uint64_t num_align_down(uint64_t v, uint64_t align)
{
	return v & ~(align - 1);
}

static inline bool num_is_pow2(uint64_t v)
{
	return v && !(v & (v - 1));
}

/* The number i of the interval that holds v: first[i] <= v < first[i + 1]. `first` has
 * n + 1 elements in ascending order, and first[0] <= v < first[n]. */
static inline size_t num_interval_of(const uint64_t *first, size_t n, uint64_t v)
{
	size_t lo = 0, hi = n;
	while (hi - lo > 1) {
		size_t mid = lo + (hi - lo) / 2;
		if (first[mid] <= v)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

/* Unaligned loads and stores. The files are little-endian and so is every machine this program
 * targets. */
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "glmstream runs on little-endian machines only"
#endif

#define NUM_LE(bits)                                                                               \
	static inline uint##bits##_t load_u##bits(const void *p)                                       \
	{                                                                                              \
		uint##bits##_t v;                                                                          \
		memcpy(&v, p, sizeof v);                                                                   \
		return v;                                                                                  \
	}                                                                                              \
	static inline void store_u##bits(void *p, uint##bits##_t v)                                    \
	{                                                                                              \
		memcpy(p, &v, sizeof v);                                                                   \
	}
NUM_LE(16)
NUM_LE(32)
NUM_LE(64)
#undef NUM_LE

static inline float load_f32(const void *p)
{
	float v;
	memcpy(&v, p, sizeof v);
	return v;
}

#endif
