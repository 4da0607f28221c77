/* SPDX-License-Identifier: MIT */
/*
 * Private to the quantisers: eight-lane vectors, and a block of weights made ready for a search.
 *
 * The lanes are GNU vector extensions: the same operations in the same order whatever the machine's
 * registers are, so SSE2, AVX2 and others give the same bytes (the project compiles with
 * -ffp-contract=off). Everything here is inlined into one function per type, which QUANT_ROW
 * defines; quantize_rows_body.h compiles all of them once per instruction set.
 */
#ifndef GLM_QUANT_QUANT_BLOCK_H
#define GLM_QUANT_QUANT_BLOCK_H

#include "src/base/half.h"
#include "src/quant/blocks.h"
#include "src/quant/feedback.h"

#ifdef __AVX__
#include <immintrin.h>
#endif
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* v8 is never passed to a real call: all is inlined. */
#pragma GCC diagnostic ignored "-Wpsabi"

typedef float v8 __attribute__((vector_size(32)));
typedef float v4 __attribute__((vector_size(16)));
typedef int32_t v8i __attribute__((vector_size(32)));

#define QUANT_INLINE static inline __attribute__((always_inline))

/* Defines void NAME(src, dst, n, importance, feedback) that runs BODY(src, dst, importance,
 * feedback) over blocks of `step` weights. */
#define QUANT_ROW(name, body, struct_block, step)                                                  \
	static void name(const float *src, void *dst, size_t n, const float *importance,               \
		const struct quant_feedback *feedback)                                                     \
	{                                                                                              \
		for (uint8_t *out = dst; n; n -= (step), src += (step), out += sizeof(struct_block)) {     \
			struct_block b;                                                                        \
			body(src, &b, importance, feedback);                                                   \
			memcpy(out, &b, sizeof b);                                                             \
			if (importance)                                                                        \
				importance += (step);                                                              \
			if (feedback)                                                                          \
				feedback++;                                                                        \
		}                                                                                          \
	}

QUANT_INLINE v8 v8_set(float f)
{
	return (v8){f, f, f, f, f, f, f, f};
}

/* mask lanes are 0 or -1 */
QUANT_INLINE v8 v8_select(v8i mask, v8 yes, v8 no)
{
	return (v8)((mask & (v8i)yes) | (~mask & (v8i)no));
}

/* a < b ? a : b in each lane, which is what the instruction does. GCC finds it for few operands:
 * the compare and blend that it takes for the others cost a quarter of the whole search. */
QUANT_INLINE v8 v8_min(v8 a, v8 b)
{
#ifdef __AVX__
	return (v8)_mm256_min_ps((__m256)a, (__m256)b);
#else
	return v8_select(a < b, a, b);
#endif
}

/* a > b ? a : b */
QUANT_INLINE v8 v8_max(v8 a, v8 b)
{
#ifdef __AVX__
	return (v8)_mm256_max_ps((__m256)a, (__m256)b);
#else
	return v8_select(a > b, a, b);
#endif
}

QUANT_INLINE v8 v8_abs(v8 a)
{
	return (v8)((v8i)a & 0x7fffffff);
}

/* Nearest integer, ties to even, for |a| < 2^22: the float adder does the rounding. */
QUANT_INLINE v8 v8_round(v8 a)
{
	return (a + 0x1.8p23f) - 0x1.8p23f;
}

/* Nearest integer within low..high. */
QUANT_INLINE v8 v8_code(v8 a, float low, float high)
{
	return v8_round(v8_min(v8_max(a, v8_set(low)), v8_set(high)));
}

/* ((a0 + a4) + (a2 + a6)) + ((a1 + a5) + (a3 + a7)) */
QUANT_INLINE float v8_sum(v8 a)
{
	const v4 four =
		__builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
	const v4 two = four + __builtin_shufflevector(four, four, 2, 3, 0, 1);
	return two[0] + two[1];
}

/* A block in units in which its largest magnitude lies in [0.5, 1): the search meets no overflow
 * and no subnormals. */
struct quant_block {
	v8 x[BLOCK_BIG / 8];
	v8 w[BLOCK_BIG / 8]; /* weights of the squared errors, mean 1, all positive */
	int exponent;        /* true value = x * 2^exponent */
};

/* How the squared errors count when nobody says which columns matter. A large weight carries more
 * of a dot product, so an error in it is likelier to be amplified by an activation; how far to
 * follow that was chosen by the KL of the pocket model (mean over 429 rows): Q8_0 0.0043 even,
 * 0.0023 by magnitude; Q2_K 0.095 even, 0.084 damped. The other types stay even. */
enum quant_weighting {
	QUANT_EVEN,
	QUANT_DAMPED,    /* sqrt(mean x^2 + x^2) */
	QUANT_MAGNITUDE, /* |x| */
};

QUANT_INLINE float quant_default_weight(enum quant_weighting how, float x, float mean_square)
{
	return how == QUANT_MAGNITUDE ? fabsf(x) + 1e-4f
		   : how == QUANT_DAMPED  ? sqrtf(mean_square + x * x)
								  : 1;
}

/* False for a block of zeros. n is a multiple of 8; importance may be NULL: then `how` weighs the
 * errors. */
QUANT_INLINE int quant_block_load(struct quant_block *b, const float *src, const float *importance,
	enum quant_weighting how, int n)
{
	v8 top = {0}, sum = {0};
	for (int i = 0; i < n / 8; i++) {
		memcpy(&b->x[i], src + 8 * i, sizeof(v8));
		top = v8_max(top, v8_abs(b->x[i]));
	}
	float largest = 0;
	for (int i = 0; i < 8; i++)
		largest = top[i] > largest ? top[i] : largest;
	if (!(largest > 0))
		return 0;
	frexpf(largest, &b->exponent);
	/* in two steps, since 2^149 is no float */
	float scale1 = ldexpf(1, -b->exponent / 2), scale2 = ldexpf(1, -b->exponent - -b->exponent / 2);
	for (int i = 0; i < n / 8; i++)
		b->x[i] = b->x[i] * scale1 * scale2;
	if (importance) {
		for (int i = 0; i < n / 8; i++) {
			memcpy(&b->w[i], importance + 8 * i, sizeof(v8));
			sum += b->w[i];
		}
	}
	float mean = v8_sum(sum) / (float)n;
	if (mean > 0x1p-100f && mean < 0x1p100f) {
		for (int i = 0; i < n / 8; i++)
			b->w[i] = b->w[i] * (1 / mean) + 1e-5f;
	} else { /* none, or all zero */
		float square = 0, total = 0;
		for (int i = 0; i < n / 8; i++)
			square += v8_sum(b->x[i] * b->x[i]);
		for (int i = 0; i < n / 8; i++) {
			for (int l = 0; l < 8; l++)
				b->w[i][l] = quant_default_weight(how, b->x[i][l], square / (float)n);
			total += v8_sum(b->w[i]);
		}
		for (int i = 0; i < n / 8; i++)
			b->w[i] = b->w[i] * ((float)n / total);
	}
	return 1;
}

/* ldexpf(v, e), without a call where 2^e is a normal float: a product with it rounds once, as
 * ldexpf does. */
QUANT_INLINE float quant_ldexp(float v, int e)
{
	return e >= -126 && e <= 127 ? v * f32_from_bits((uint32_t)(e + 127) << 23) : ldexpf(v, e);
}

/* The value in block units that a scale gets once it is stored as a half; *bits: that half. */
QUANT_INLINE float quant_block_scale(const struct quant_block *b, float d, uint16_t *bits)
{
	float v = quant_ldexp(d, b->exponent);
	v = v > 65504 ? 65504 : v < -65504 ? -65504 : v;
	*bits = f32_to_f16(v);
	return quant_ldexp(f16_to_f32(*bits), -b->exponent);
}

/*
 * What a block's scale is multiplied by against the shrinkage of least squares. With the scale of
 * least squares <x, y> = <y, y> < <x, x>: the decoded weights y are smaller than the weights x, in
 * every block of every row by about as much. The rest of the error averages out over columns, rows
 * and experts; this part adds up, because trained rows are aligned with their inputs. A larger
 * scale costs little of the block's error: with the factor 1 + g it grows by g^2 <y, y>.
 *
 * xy: <x, y>, weighted as the errors are; most: the largest g, chosen for each type by KL. A block
 * gets at most what makes <x, y> = <x, x>, so one without error stays as it is.
 */
QUANT_INLINE float quant_block_growth(const struct quant_block *b, float xy, float most)
{
	v8 sum = {0};
	for (int i = 0; i < BLOCK_BIG / 8; i++)
		sum += b->x[i] * b->x[i] * b->w[i];
	float xx = v8_sum(sum);
	if (!(xx > xy && xy > 0))
		return 1;
	return xx < (1 + most) * xy ? xx / xy : 1 + most;
}

#endif
