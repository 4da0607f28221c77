/* SPDX-License-Identifier: MIT */
/*
 * Decoding of packed blocks in 128-bit integer steps to 16 floats at a time, shared by the AVX2 and
 * the AVX-512 file. Before including this header a file includes cpu_lanes.h and defines
 *
 *   v16                              16 floats: one register or two
 *   v16_set(f), v16_pair(f, g)       all f; eight f and eight g
 *   v16_load(p), v16_store(p, v)     any alignment
 *   v16_mul, v16_sub, v16_add        one rounding each
 *   v16_fma(a, b, c)                 a * b + c, one rounding
 *   v16_i8(q)                        the 16 signed bytes of a __m128i
 *   v16_crumbs(u)                    the 16 two-bit numbers of a uint32_t, lowest first
 *
 * Every block function passes its weights to `sink_put`, 16 at a time in ascending order, which
 * either stores them or multiplies them into a sum in registers. Layouts: src/quant/blocks.h.
 * Roundings follow src/quant/dequant.c, so the floats are equal.
 */
#ifndef GLM_KERNELS_CPU_BLOCKS_H
#define GLM_KERNELS_CPU_BLOCKS_H

#include "kernels/cpu/cpu_inline.h"
#include "src/base/half.h"
#include "src/base/num.h"
#include "src/quant/blocks.h"
#include "src/quant/fp4.h"
#include "src/quant/iq_grids.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PREFETCH_MIN_BYTES 1024 /* bytes of a row; see prefetch_rows */

/* Destination of the weights: they are stored, or each is multiplied by the activations of n_x
 * rows. Which (`store`) and n_x are known at compile time after inlining. */
struct sink {
	float *dst;                    /* store: [values of the block] */
	const float *x[GEMV_ROWS_MAX]; /* [n_x] not store: as many activations each */
	v16 sum[GEMV_ROWS_MAX];        /* [n_x] */
	int n_x;
};

/* Not a loop: sums must become registers. */
ALWAYS_INLINE void sink_put(struct sink *s, const bool store, int group, v16 w)
{
	if (store) {
		v16_store(s->dst + 16 * group, w);
		return;
	}
	s->sum[0] = v16_fma(w, v16_load(s->x[0] + 16 * group), s->sum[0]);
	if (s->n_x > 1)
		s->sum[1] = v16_fma(w, v16_load(s->x[1] + 16 * group), s->sum[1]);
	if (s->n_x > 2)
		s->sum[2] = v16_fma(w, v16_load(s->x[2] + 16 * group), s->sum[2]);
	if (s->n_x > 3)
		s->sum[3] = v16_fma(w, v16_load(s->x[3] + 16 * group), s->sum[3]);
}

/* An empty sink for n_x rows. */
ALWAYS_INLINE struct sink sink_of(const int n_x)
{
	v16 zero = v16_set(0);
	return (struct sink){.sum = {zero, zero, zero, zero}, .n_x = n_x};
}

/* The next block is multiplied by values from k on of the rows x. */
ALWAYS_INLINE void sink_at(struct sink *s, const float *const *x, size_t k)
{
	s->x[0] = x[0] + k;
	if (s->n_x > 1)
		s->x[1] = x[1] + k;
	if (s->n_x > 2)
		s->x[2] = x[2] + k;
	if (s->n_x > 3)
		s->x[3] = x[3] + k;
}

/* sum[4 * j + row] = the sums of row j of x */
ALWAYS_INLINE void sink_sums(const struct sink *s, int row, v16 *sum)
{
	sum[row] = s->sum[0];
	if (s->n_x > 1)
		sum[4 + row] = s->sum[1];
	if (s->n_x > 2)
		sum[8 + row] = s->sum[2];
	if (s->n_x > 3)
		sum[12 + row] = s->sum[3];
}

#define SUPER_BLOCK(type)                                                                          \
	ALWAYS_INLINE void type##_block(const uint8_t *p, struct sink *s, const bool store)
#define BLOCK_32(type)                                                                             \
	ALWAYS_INLINE void type##_block(const uint8_t *p, v16 d, struct sink *s, const bool store)
#define AT(type, field) (p + offsetof(struct block_##type, field))

ALWAYS_INLINE float half_at(const void *p)
{
	return _cvtsh_ss(load_u16(p));
}

ALWAYS_INLINE __m128i bytes_at(const void *p)
{
	return _mm_loadu_si128((const __m128i *)p);
}

/* 16 values of F8_E4M3 as halves, which are 1/256 of them: the half's exponent bias is 15, not 7.
 * NaN stays NaN. */
ALWAYS_INLINE __m256i f8_halves(__m128i q)
{
	__m256i b = _mm256_cvtepu8_epi16(q), most = _mm256_set1_epi16(0x7f);
	__m256i magnitude = _mm256_and_si256(b, most);
	__m256i sign = _mm256_slli_epi16(_mm256_andnot_si256(most, b), 8);
	__m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(magnitude, most), _mm256_set1_epi16(0x7e00));
	return _mm256_or_si256(_mm256_or_si256(sign, nan), _mm256_slli_epi16(magnitude, 7));
}

/* Bits [shift, shift + width of mask) of every byte; shift 0 .. 7, mask of the low bits */
ALWAYS_INLINE __m128i bits(__m128i v, int shift, int mask)
{
	return _mm_and_si128(_mm_srli_epi16(v, shift), _mm_set1_epi8((char)mask));
}

/* Bit `from` of every byte, moved to bit 4 (0x10), or two bits from `from` to bits 4 and 5 (0x30).
 */
ALWAYS_INLINE __m128i bits_to_4(__m128i v, int from, int mask)
{
	v = from <= 4 ? _mm_slli_epi16(v, 4 - from) : _mm_srli_epi16(v, from - 4);
	return _mm_and_si128(v, _mm_set1_epi8((char)mask));
}

ALWAYS_INLINE v16 scaled(__m128i q, float scale)
{
	return v16_mul(v16_i8(q), v16_set(scale));
}

ALWAYS_INLINE v16 scaled_less(__m128i q, float scale, float min)
{
	return v16_sub(scaled(q, scale), v16_set(min));
}

/* ---- 32 weights ---- */

/* d: the block's scale, already a float */
BLOCK_32(q8_0)
{
	sink_put(s, store, 0, v16_mul(v16_i8(bytes_at(p + 2)), d));
	sink_put(s, store, 1, v16_mul(v16_i8(bytes_at(p + 18)), d));
}

BLOCK_32(q4_0)
{
	__m128i q = bytes_at(p + 2), eight = _mm_set1_epi8(8);
	sink_put(s, store, 0, v16_mul(v16_i8(_mm_sub_epi8(bits(q, 0, 15), eight)), d));
	sink_put(s, store, 1, v16_mul(v16_i8(_mm_sub_epi8(bits(q, 4, 15), eight)), d));
}

BLOCK_32(iq4_nl)
{
	__m128i q = bytes_at(p + 2), values = bytes_at(iq4nl_values);
	sink_put(s, store, 0, v16_mul(v16_i8(_mm_shuffle_epi8(values, bits(q, 0, 15))), d));
	sink_put(s, store, 1, v16_mul(v16_i8(_mm_shuffle_epi8(values, bits(q, 4, 15))), d));
}

/* ---- K types ---- */

/* Scales and minima of the 16 sub-blocks of Q2_K */
ALWAYS_INLINE void q2_k_scales(const uint8_t *p, float scale[16], float min[16])
{
	__m128i sc = bytes_at(p);
	v16_store(scale, v16_mul(v16_i8(bits(sc, 0, 15)), v16_set(half_at(AT(q2_k, d)))));
	v16_store(min, v16_mul(v16_i8(bits(sc, 4, 15)), v16_set(half_at(AT(q2_k, dmin)))));
}

SUPER_BLOCK(q2_k)
{
	float scale[16], min[16];
	q2_k_scales(p, scale, min);
	UNROLLED_FOR (j, 16) {
		__m128i q = bytes_at(AT(q2_k, q) + j / 8 * 32 + j % 2 * 16);
		sink_put(s, store, j, scaled_less(bits(q, j % 8 / 2 * 2, 3), scale[j], min[j]));
	}
}

ALWAYS_INLINE void q3_k_scales(const uint8_t *p, float scale[16])
{
	__m128i low = _mm_loadl_epi64((const __m128i *)AT(q3_k, sc));
	__m128i high = _mm_set1_epi32((int)load_u32(AT(q3_k, sc) + 8));
	low = _mm_unpacklo_epi64(bits(low, 0, 15), bits(low, 4, 15));
	high = _mm_and_si128(_mm_srlv_epi32(high, _mm_setr_epi32(0, 2, 4, 6)), _mm_set1_epi8(3));
	__m128i sc = _mm_sub_epi8(_mm_or_si128(low, _mm_slli_epi16(high, 4)), _mm_set1_epi8(32));
	v16_store(scale, v16_mul(v16_i8(sc), v16_set(half_at(AT(q3_k, d)))));
}

SUPER_BLOCK(q3_k)
{
	float scale[16];
	q3_k_scales(p, scale);
	UNROLLED_FOR (j, 16) {
		__m128i q = bits(bytes_at(AT(q3_k, q) + j / 8 * 32 + j % 2 * 16), j % 8 / 2 * 2, 3);
		__m128i high = bits(bytes_at(AT(q3_k, high) + j % 2 * 16), j / 2, 1);
		q = _mm_sub_epi8(_mm_or_si128(q, _mm_slli_epi16(high, 2)), _mm_set1_epi8(4));
		sink_put(s, store, j, scaled(q, scale[j]));
	}
}

/* The eight scales and then the eight minima of Q4_K and Q5_K, whose block headers are equal. */
ALWAYS_INLINE void q4_k_scales(const uint8_t *p, float scale[16])
{
	uint32_t a = load_u32(p + 4), b = load_u32(p + 8), c = load_u32(p + 12), six = 0x3f3f3f3f,
			 four = 0x0f0f0f0f, two = 0x30303030;
	__m128i sc = _mm_setr_epi32((int)(a & six), (int)((c & four) | (a >> 2 & two)), (int)(b & six),
		(int)((c >> 4 & four) | (b >> 2 & two)));
	v16_store(scale, v16_mul(v16_i8(sc), v16_pair(half_at(p), half_at(p + 2))));
}

SUPER_BLOCK(q4_k)
{
	float scale[16];
	q4_k_scales(p, scale);
	UNROLLED_FOR (j, 16) {
		__m128i q = bytes_at(AT(q4_k, q) + j / 4 * 32 + j % 2 * 16);
		sink_put(
			s, store, j, scaled_less(bits(q, j / 2 % 2 * 4, 15), scale[j / 2], scale[8 + j / 2]));
	}
}

SUPER_BLOCK(q5_k)
{
	float scale[16];
	q4_k_scales(p, scale);
	UNROLLED_FOR (j, 16) {
		__m128i q = bits(bytes_at(AT(q5_k, q) + j / 4 * 32 + j % 2 * 16), j / 2 % 2 * 4, 15);
		__m128i high = bits_to_4(bytes_at(AT(q5_k, high) + j % 2 * 16), j / 2, 0x10);
		sink_put(s, store, j, scaled_less(_mm_or_si128(q, high), scale[j / 2], scale[8 + j / 2]));
	}
}

SUPER_BLOCK(q6_k)
{
	float scale[16];
	v16_store(scale, v16_mul(v16_i8(bytes_at(AT(q6_k, sc))), v16_set(half_at(AT(q6_k, d)))));
	UNROLLED_FOR (j, 16) {
		int h = j / 8, g = j % 8 / 2, l = j % 2 * 16;
		__m128i q = bits(bytes_at(AT(q6_k, q) + 64 * h + 32 * (g & 1) + l), (g & 2) * 2, 15);
		__m128i high = bits_to_4(bytes_at(AT(q6_k, high) + 32 * h + l), 2 * g, 0x30);
		sink_put(
			s, store, j, scaled(_mm_sub_epi8(_mm_or_si128(q, high), _mm_set1_epi8(32)), scale[j]));
	}
}

/* ---- codebooks ---- */

/* Two rows of eight bytes, or four of four */
ALWAYS_INLINE __m128i rows8(uint64_t a, uint64_t b)
{
	return _mm_set_epi64x((long long)b, (long long)a);
}

ALWAYS_INLINE __m128i rows4(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
	return _mm_setr_epi32((int)a, (int)b, (int)c, (int)d);
}

/* 0xff where the weight is negative: from two 7-bit sign indices, or from 16 sign bits */
ALWAYS_INLINE __m128i index_signs(unsigned a, unsigned b)
{
	return rows8(iq_sign_masks[a], iq_sign_masks[b]);
}

ALWAYS_INLINE __m128i bit_signs(unsigned sixteen)
{
	__m128i bit = _mm_set1_epi64x((long long)0x8040201008040201);
	__m128i spread = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
	return _mm_cmpeq_epi8(
		_mm_and_si128(_mm_shuffle_epi8(_mm_set1_epi16((short)sixteen), spread), bit), bit);
}

ALWAYS_INLINE __m128i with_signs(__m128i rows, __m128i signs)
{
	return _mm_sub_epi8(_mm_xor_si128(rows, signs), signs);
}

SUPER_BLOCK(iq2_xxs)
{
	float d = half_at(p);
	UNROLLED_FOR (k, 8) {
		const uint8_t *q = AT(iq2_xxs, q) + 8 * k;
		uint32_t a = load_u32(q + 4);
		float scale = d * (0.5f + (float)(int)(a >> 28)) * 0.25f;
		sink_put(s, store, 2 * k,
			scaled(with_signs(rows8(iq2xxs_grid[q[0]], iq2xxs_grid[q[1]]),
					   index_signs(a & 127, a >> 7 & 127)),
				scale));
		sink_put(s, store, 2 * k + 1,
			scaled(with_signs(rows8(iq2xxs_grid[q[2]], iq2xxs_grid[q[3]]),
					   index_signs(a >> 14 & 127, a >> 21 & 127)),
				scale));
	}
}

/* d * (0.5 + nibble) / 4 for the 16 nibbles of IQ2_XS and IQ2_S, low ones first */
ALWAYS_INLINE void iq2_scales(const uint8_t *sc, float d, float scale[16])
{
	__m128i v = _mm_loadl_epi64((const __m128i *)sc);
	v16 n = v16_add(v16_i8(_mm_unpacklo_epi8(bits(v, 0, 15), bits(v, 4, 15))), v16_set(0.5f));
	v16_store(scale, v16_mul(v16_mul(n, v16_set(d)), v16_set(0.25f)));
}

SUPER_BLOCK(iq2_xs)
{
	float scale[16];
	iq2_scales(AT(iq2_xs, sc), half_at(p), scale);
	UNROLLED_FOR (j, 16) {
		unsigned a = load_u16(AT(iq2_xs, q) + 4 * j), b = load_u16(AT(iq2_xs, q) + 4 * j + 2);
		__m128i rows = rows8(iq2xs_grid[a & 511], iq2xs_grid[b & 511]);
		sink_put(s, store, j, scaled(with_signs(rows, index_signs(a >> 9, b >> 9)), scale[j]));
	}
}

SUPER_BLOCK(iq2_s)
{
	float scale[16];
	iq2_scales(AT(iq2_s, sc), half_at(p), scale);
	UNROLLED_FOR (j, 16) {
		const uint8_t *q = AT(iq2_s, q) + 2 * j;
		unsigned high = AT(iq2_s, high)[j / 2] >> j % 2 * 4;
		__m128i rows =
			rows8(iq2s_grid[q[0] | (high & 3) << 8], iq2s_grid[q[1] | (high >> 2 & 3) << 8]);
		sink_put(s, store, j,
			scaled(with_signs(rows, bit_signs(load_u16(AT(iq2_s, sign) + 2 * j))), scale[j]));
	}
}

SUPER_BLOCK(iq3_xxs)
{
	float d = half_at(p);
	UNROLLED_FOR (j, 16) {
		const uint8_t *q = AT(iq3_xxs, q) + 4 * j;
		uint32_t a = load_u32(AT(iq3_xxs, sas) + j / 2 * 4);
		float scale = d * (0.5f + (float)(int)(a >> 28)) * 0.5f;
		__m128i rows =
			rows4(iq3xxs_grid[q[0]], iq3xxs_grid[q[1]], iq3xxs_grid[q[2]], iq3xxs_grid[q[3]]);
		a >>= j % 2 * 14;
		sink_put(s, store, j, scaled(with_signs(rows, index_signs(a & 127, a >> 7 & 127)), scale));
	}
}

SUPER_BLOCK(iq3_s)
{
	float d = half_at(p);
	UNROLLED_FOR (j, 16) {
		const uint8_t *q = AT(iq3_s, q) + 4 * j;
		unsigned high = (unsigned)AT(iq3_s, high)[j / 2] >> j % 2 * 4,
				 sc = AT(iq3_s, sc)[j / 4] >> j / 2 % 2 * 4 & 15;
		__m128i rows =
			rows4(iq3s_grid[q[0] | (high << 8 & 256)], iq3s_grid[q[1] | (high << 7 & 256)],
				iq3s_grid[q[2] | (high << 6 & 256)], iq3s_grid[q[3] | (high << 5 & 256)]);
		sink_put(s, store, j,
			scaled(with_signs(rows, bit_signs(load_u16(AT(iq3_s, sign) + 2 * j))),
				d * (float)(int)(1 + 2 * sc)));
	}
}

/* -1/8 when bit `at` of h is set, else 1/8; without a branch, which would be mispredicted half of
 * the time */
ALWAYS_INLINE float iq1_delta(unsigned h, int at)
{
	return f32_from_bits(0x3e000000 | (h >> at & 1) << 31);
}

/* scale * (weight + delta) of two rows of the grid of IQ1 */
ALWAYS_INLINE v16 iq1_rows(unsigned a, unsigned b, float delta_a, float delta_b, float scale)
{
	v16 w = v16_sub(v16_crumbs(iq1s_grid[a] | (uint32_t)iq1s_grid[b] << 16), v16_set(1.0f));
	return v16_mul(v16_add(w, v16_pair(delta_a, delta_b)), v16_set(scale));
}

SUPER_BLOCK(iq1_s)
{
	float d = half_at(p);
	UNROLLED_FOR (j, 16) {
		const uint8_t *q = AT(iq1_s, q) + 2 * j;
		unsigned h = load_u16(AT(iq1_s, high) + j / 2 * 2), top = h >> j % 2 * 6;
		float delta = iq1_delta(h, 15);
		sink_put(s, store, j,
			iq1_rows(q[0] | (top & 7) << 8, q[1] | (top >> 3 & 7) << 8, delta, delta,
				d * (float)(int)(2 * (h >> 12 & 7) + 1)));
	}
}

SUPER_BLOCK(iq1_m)
{
	const uint8_t *sc = AT(iq1_m, sc);
	unsigned half = 0;
	for (int i = 0; i < 4; i++)
		half |= (unsigned)(load_u16(sc + 2 * i) >> 12) << 4 * i;
	float d = _cvtsh_ss((unsigned short)half);
	UNROLLED_FOR (j, 16) {
		const uint8_t *q = AT(iq1_m, q) + 2 * j;
		unsigned h = AT(iq1_m, high)[j], n = load_u16(sc + j / 4 * 2) >> 3 * (j % 4) & 7;
		sink_put(s, store, j,
			iq1_rows(q[0] | (h & 7) << 8, q[1] | (h >> 4 & 7) << 8, iq1_delta(h, 3),
				iq1_delta(h, 7), d * (float)(int)(2 * n + 1)));
	}
}

SUPER_BLOCK(iq4_xs)
{
	float d = half_at(p);
	unsigned high = load_u16(p + 2);
	__m128i values = bytes_at(iq4nl_values);
	UNROLLED_FOR (j, 16) {
		int k = j / 2,
			n = (AT(iq4_xs, scales_low)[k / 2] >> k % 2 * 4 & 15) | (int)(high >> 2 * k & 3) << 4;
		__m128i q = bits(bytes_at(AT(iq4_xs, q) + 16 * k), j % 2 * 4, 15);
		sink_put(s, store, j, scaled(_mm_shuffle_epi8(values, q), d * (float)(n - 32)));
	}
}

/* ---- types without functions of their own in the AVX-512 file: ternary, FP4, and those that
 * llama-quantize falls back to where a row is no multiple of 256 ---- */

/* 0xff for each of 16 weights whose fifth bit is set */
ALWAYS_INLINE __m128i q5_high(const uint8_t *high, int half)
{
	return bit_signs(load_u16(high + 2 * half));
}

SUPER_BLOCK(q4_1)
{
	__m128i q = bytes_at(AT(q4_1, q));
	float d = half_at(p);
	v16 m = v16_set(half_at(AT(q4_1, m)));
	sink_put(s, store, 0, v16_add(scaled(bits(q, 0, 15), d), m));
	sink_put(s, store, 1, v16_add(scaled(bits(q, 4, 15), d), m));
}

SUPER_BLOCK(q5_0)
{
	__m128i q = bytes_at(AT(q5_0, q)), less16 = _mm_set1_epi8((char)0xf0);
	float d = half_at(p);
	UNROLLED_FOR (half, 2) { /* the nibble less 16 has the bits 1111 above it */
		__m128i less = _mm_andnot_si128(q5_high(AT(q5_0, high), half), less16);
		sink_put(s, store, half, scaled(_mm_or_si128(bits(q, 4 * half, 15), less), d));
	}
}

SUPER_BLOCK(q5_1)
{
	__m128i q = bytes_at(AT(q5_1, q)), sixteen = _mm_set1_epi8(16);
	float d = half_at(p);
	v16 m = v16_set(half_at(AT(q5_1, m)));
	UNROLLED_FOR (half, 2) {
		__m128i more = _mm_and_si128(q5_high(AT(q5_1, high), half), sixteen);
		sink_put(s, store, half, v16_add(scaled(_mm_or_si128(bits(q, 4 * half, 15), more), d), m));
	}
}

ALWAYS_INLINE __m128i fp4_bytes(__m128i nibbles)
{
	return _mm_shuffle_epi8(_mm_setr_epi8(FP4_VALUES), nibbles);
}

SUPER_BLOCK(mxfp4)
{
	__m128i q = bytes_at(AT(mxfp4, q));
	float d = f32_from_bits(fp4_scale_e8m0_bits(p[0]));
	sink_put(s, store, 0, scaled(fp4_bytes(bits(q, 0, 15)), d));
	sink_put(s, store, 1, scaled(fp4_bytes(bits(q, 4, 15)), d));
}

SUPER_BLOCK(nvfp4)
{
	UNROLLED_FOR (j, 4) {
		__m128i q = _mm_loadl_epi64((const __m128i *)(AT(nvfp4, q) + 8 * j));
		q = _mm_unpacklo_epi64(bits(q, 0, 15), bits(q, 4, 15));
		sink_put(s, store, j, scaled(fp4_bytes(q), f32_from_bits(fp4_scale_ue4m3_bits(p[j]))));
	}
}

SUPER_BLOCK(q1_0)
{
	float d = half_at(p);
	UNROLLED_FOR (j, 8) { /* 1 or -1 */
		__m128i plus = bit_signs(load_u16(AT(q1_0, q) + 2 * j));
		sink_put(s, store, j,
			scaled(_mm_sub_epi8(_mm_and_si128(plus, _mm_set1_epi8(2)), _mm_set1_epi8(1)), d));
	}
}

SUPER_BLOCK(q2_0)
{
	v16 d = v16_set(half_at(p));
	UNROLLED_FOR (j, 4) {
		v16 q = v16_sub(v16_crumbs(load_u32(AT(q2_0, q) + 4 * j)), v16_set(1.0f));
		sink_put(s, store, j, v16_mul(q, d));
	}
}

SUPER_BLOCK(tq2_0)
{
	float d = half_at(AT(tq2_0, d));
	UNROLLED_FOR (j, 16) {
		__m128i q = bits(bytes_at(AT(tq2_0, q) + j / 8 * 32 + j % 2 * 16), j % 8 / 2 * 2, 3);
		sink_put(s, store, j, scaled(_mm_sub_epi8(q, _mm_set1_epi8(1)), d));
	}
}

/* The first base-3 digit of b / 256, less 1: how many of 256/3 and 512/3 are below b */
ALWAYS_INLINE __m128i tq1_digit(__m128i b)
{
	__m128i one = _mm_set1_epi8(86), two = _mm_set1_epi8((char)171);
	__m128i below = _mm_add_epi8(_mm_cmpeq_epi8(_mm_max_epu8(b, one), b),
		_mm_cmpeq_epi8(_mm_max_epu8(b, two), b)); /* 0, -1 or -2 */
	return _mm_sub_epi8(_mm_set1_epi8(-1), below);
}

/* 3 b mod 256: the next digit comes first */
ALWAYS_INLINE __m128i tq1_next(__m128i b)
{
	return _mm_add_epi8(b, _mm_add_epi8(b, b));
}

SUPER_BLOCK(tq1_0)
{
	float d = half_at(AT(tq1_0, d));
	__m128i a = bytes_at(p), b = bytes_at(p + 16), c = bytes_at(p + 32);
	UNROLLED_FOR (n, 5) {
		sink_put(s, store, 2 * n, scaled(tq1_digit(a), d));
		sink_put(s, store, 2 * n + 1, scaled(tq1_digit(b), d));
		a = tq1_next(a);
		b = tq1_next(b);
	}
	UNROLLED_FOR (n, 5) {
		sink_put(s, store, 10 + n, scaled(tq1_digit(c), d));
		c = tq1_next(c);
	}
	__m128i h = _mm_cvtsi32_si128((int)load_u32(AT(tq1_0, high))), h3 = tq1_next(h),
			h9 = tq1_next(h3), h27 = tq1_next(h9);
	h = _mm_unpacklo_epi64(_mm_unpacklo_epi32(h, h3), _mm_unpacklo_epi32(h9, h27));
	sink_put(s, store, 15, scaled(tq1_digit(h), d));
}

#undef AT

/* ---- rows ---- */

/* sum4: four rows at once, block by block, so that four dependency chains of additions overlap;
 * sum [n_x][4]. sum4x2 to sum4x4: with so many activation rows x. */
typedef void decode_fn(const uint8_t *p, float *dst, size_t n);
typedef void sum4_fn(const uint8_t *p, size_t row_bytes, size_t n, const float *const *x, v16 *sum);
typedef void sum1_fn(const uint8_t *p, size_t n, const float *x, v16 *sum);

/* sum4[n_x - 1]; NULL: row by row of x. */
struct row_fns {
	decode_fn *decode;
	sum4_fn *sum4[GEMV_ROWS_MAX];
	sum1_fn *sum1;
};

/* sum[4 * j + i]: row j of x, weight row i (n_w is 4, or 1: i is 0). Where sum4[n_x - 1] is
 * missing, and for a single weight row, weights are read once for each row of x. */
ALWAYS_INLINE void rows_sum(const struct row_fns *f, const uint8_t *p, size_t row_bytes, size_t n,
	const float *const *x, int n_x, int n_w, v16 *sum)
{
	if (n_w == 4 && f->sum4[n_x - 1]) {
		f->sum4[n_x - 1](p, row_bytes, n, x, sum);
		return;
	}
	for (int j = 0; j < n_x; j++) {
		if (n_w == 4)
			f->sum4[0](p, row_bytes, n, x + j, sum + 4 * j);
		else
			f->sum1(p, n, x[j], sum + 4 * j);
	}
}

/* Software prefetch: four rows at a time are four short streams, which the hardware prefetcher
 * follows badly. While the blocks at offset `at` of four rows are decoded, 4 x bytes of the next
 * four rows are prefetched. p: the first of the four rows. */
ALWAYS_INLINE void prefetch_rows(const uint8_t *p, size_t row_bytes, size_t at, const int bytes)
{
	/* an address as a number: past the end of the matrix, no pointer may be formed */
	uintptr_t next =
		(uintptr_t)p + 4 * (at + (row_bytes > PREFETCH_MIN_BYTES ? row_bytes : PREFETCH_MIN_BYTES));
	UNROLLED_FOR (i, (4 * bytes + 63) / 64)
		_mm_prefetch((const char *)(next + 64 * (uintptr_t)i), _MM_HINT_T0);
}

/* As BLOCK_ROWS, for blocks of 32 weights that begin with a half. Converting scales would be half
 * of the work, so four are converted together and reloaded from memory, which keeps the vector
 * units free. */
#define ROWS_32(type, block)                                                                       \
	static void type##_decode(const uint8_t *p, float *dst, size_t n)                              \
	{                                                                                              \
		for (; n; n -= 32, p += sizeof(struct block_##type), dst += 32) {                          \
			struct sink s = {.dst = dst};                                                          \
			block(p, v16_set(half_at(p)), &s, true);                                               \
		}                                                                                          \
	}                                                                                              \
	static void type##_sum1(const uint8_t *p, size_t n, const float *x, v16 *sum)                  \
	{                                                                                              \
		struct sink s = sink_of(1);                                                                \
		for (; n; n -= 32, p += sizeof(struct block_##type), x += 32) {                            \
			s.x[0] = x;                                                                            \
			block(p, v16_set(half_at(p)), &s, false);                                              \
		}                                                                                          \
		*sum = s.sum[0];                                                                           \
	}                                                                                              \
	SUM4_32(type, block, sum4, 1)                                                                  \
	SUM4_32(type, block, sum4x2, 2)                                                                \
	SUM4_32(type, block, sum4x3, 3)                                                                \
	SUM4_32(type, block, sum4x4, 4)

#define SUM4_32(type, block, name, n_x)                                                            \
	static void type##_##name(                                                                     \
		const uint8_t *p, size_t row_bytes, size_t n, const float *const *x, v16 *sum)             \
	{                                                                                              \
		const uint8_t *q = p + row_bytes, *r = q + row_bytes, *t = r + row_bytes;                  \
		struct sink a = sink_of(n_x), b = a, c = a, d = a;                                         \
		for (size_t at = 0, k = 0; k < n; k += 32, at += sizeof(struct block_##type)) {            \
			float scale[4];                                                                        \
			sink_at(&a, x, k);                                                                     \
			sink_at(&b, x, k);                                                                     \
			sink_at(&c, x, k);                                                                     \
			sink_at(&d, x, k);                                                                     \
			prefetch_rows(p, row_bytes, at, sizeof(struct block_##type));                          \
			halves4(p + at, q + at, r + at, t + at, scale);                                        \
			block(p + at, v16_set(scale[0]), &a, false);                                           \
			block(q + at, v16_set(scale[1]), &b, false);                                           \
			block(r + at, v16_set(scale[2]), &c, false);                                           \
			block(t + at, v16_set(scale[3]), &d, false);                                           \
		}                                                                                          \
		sink_sums(&a, 0, sum);                                                                     \
		sink_sums(&b, 1, sum);                                                                     \
		sink_sums(&c, 2, sum);                                                                     \
		sink_sums(&d, 3, sum);                                                                     \
	}

/* out = the halves at a, b, c and d as floats */
ALWAYS_INLINE void halves4(
	const uint8_t *a, const uint8_t *b, const uint8_t *c, const uint8_t *d, float out[4])
{
	__m128i h = _mm_cvtsi32_si128(load_u16(a));
	h = _mm_insert_epi16(h, load_u16(b), 1);
	h = _mm_insert_epi16(h, load_u16(c), 2);
	h = _mm_insert_epi16(h, load_u16(d), 3);
	_mm_storeu_ps(out, _mm_cvtph_ps(h));
	__asm__("" : "+m"(*(float(*)[4])out)); /* prevents shuffles out of the register */
}

/* Blocks of so many values. */
#define BLOCK_ROWS(type, block, values)                                                            \
	static void type##_decode(const uint8_t *p, float *dst, size_t n)                              \
	{                                                                                              \
		for (; n; n -= (values), p += sizeof(struct block_##type), dst += (values)) {              \
			struct sink s = {.dst = dst};                                                          \
			block(p, &s, true);                                                                    \
		}                                                                                          \
	}                                                                                              \
	static void type##_sum1(const uint8_t *p, size_t n, const float *x, v16 *sum)                  \
	{                                                                                              \
		struct sink s = sink_of(1);                                                                \
		for (; n; n -= (values), p += sizeof(struct block_##type), x += (values)) {                \
			s.x[0] = x;                                                                            \
			block(p, &s, false);                                                                   \
		}                                                                                          \
		*sum = s.sum[0];                                                                           \
	}                                                                                              \
	SUM4_BLOCKS(type, block, values, sum4, 1)                                                      \
	SUM4_BLOCKS(type, block, values, sum4x2, 2)                                                    \
	SUM4_BLOCKS(type, block, values, sum4x3, 3)                                                    \
	SUM4_BLOCKS(type, block, values, sum4x4, 4)

#define SUM4_BLOCKS(type, block, values, name, n_x)                                                \
	static void type##_##name(                                                                     \
		const uint8_t *p, size_t row_bytes, size_t n, const float *const *x, v16 *sum)             \
	{                                                                                              \
		const uint8_t *q = p + row_bytes, *r = q + row_bytes, *t = r + row_bytes;                  \
		struct sink a = sink_of(n_x), b = a, c = a, d = a;                                         \
		for (size_t at = 0, k = 0; k < n; k += (values), at += sizeof(struct block_##type)) {      \
			sink_at(&a, x, k);                                                                     \
			sink_at(&b, x, k);                                                                     \
			sink_at(&c, x, k);                                                                     \
			sink_at(&d, x, k);                                                                     \
			prefetch_rows(p, row_bytes, at, sizeof(struct block_##type));                          \
			block(p + at, &a, false);                                                              \
			block(q + at, &b, false);                                                              \
			block(r + at, &c, false);                                                              \
			block(t + at, &d, false);                                                              \
		}                                                                                          \
		sink_sums(&a, 0, sum);                                                                     \
		sink_sums(&b, 1, sum);                                                                     \
		sink_sums(&c, 2, sum);                                                                     \
		sink_sums(&d, 3, sum);                                                                     \
	}
#define SUPER_BLOCK_ROWS(type, block) BLOCK_ROWS(type, block, 256)

/* The rows of all packed types. FASTEST(type): its block function; the AVX-512 file has other ones
 * for some types. */
#define PACKED_ROWS(FASTEST)                                                                       \
	ROWS_32(q8_0, q8_0_block)                                                                      \
	ROWS_32(q4_0, FASTEST(q4_0))                                                                   \
	ROWS_32(iq4_nl, FASTEST(iq4_nl))                                                               \
	SUPER_BLOCK_ROWS(q2_k, FASTEST(q2_k))                                                          \
	SUPER_BLOCK_ROWS(q3_k, FASTEST(q3_k))                                                          \
	SUPER_BLOCK_ROWS(q4_k, FASTEST(q4_k))                                                          \
	SUPER_BLOCK_ROWS(q5_k, FASTEST(q5_k))                                                          \
	SUPER_BLOCK_ROWS(q6_k, q6_k_block)                                                             \
	SUPER_BLOCK_ROWS(iq2_xxs, iq2_xxs_block)                                                       \
	SUPER_BLOCK_ROWS(iq2_xs, iq2_xs_block)                                                         \
	SUPER_BLOCK_ROWS(iq2_s, iq2_s_block)                                                           \
	SUPER_BLOCK_ROWS(iq3_xxs, iq3_xxs_block)                                                       \
	SUPER_BLOCK_ROWS(iq3_s, iq3_s_block)                                                           \
	SUPER_BLOCK_ROWS(iq1_s, iq1_s_block)                                                           \
	SUPER_BLOCK_ROWS(iq1_m, iq1_m_block)                                                           \
	SUPER_BLOCK_ROWS(iq4_xs, FASTEST(iq4_xs))                                                      \
	BLOCK_ROWS(q4_1, q4_1_block, 32)                                                               \
	BLOCK_ROWS(q5_0, q5_0_block, 32)                                                               \
	BLOCK_ROWS(q5_1, q5_1_block, 32)                                                               \
	BLOCK_ROWS(mxfp4, mxfp4_block, 32)                                                             \
	BLOCK_ROWS(nvfp4, nvfp4_block, 64)                                                             \
	BLOCK_ROWS(q1_0, q1_0_block, 128)                                                              \
	BLOCK_ROWS(q2_0, q2_0_block, 64)                                                               \
	SUPER_BLOCK_ROWS(tq1_0, tq1_0_block)                                                           \
	SUPER_BLOCK_ROWS(tq2_0, tq2_0_block)

/* Behind the rows of all types: the functions by type. */
#define PLAIN_FN(id, name) [DTYPE_##id] = {name##_decode, {name##_sum4}, name##_sum1},
#define ROW_FN(id, name)                                                                           \
	[DTYPE_##id] = {                                                                               \
		name##_decode, {name##_sum4, name##_sum4x2, name##_sum4x3, name##_sum4x4}, name##_sum1},
#define ROW_FNS                                                                                    \
	static const struct row_fns row_fns[DTYPE_LIMIT] = {                                           \
		PLAIN_FN(F32, f32) PLAIN_FN(F16, f16) PLAIN_FN(BF16, bf16) PLAIN_FN(F8_E4M3, f8)           \
			ROW_FN(Q4_0, q4_0) ROW_FN(Q8_0, q8_0) ROW_FN(Q2_K, q2_k) ROW_FN(Q3_K, q3_k)            \
				ROW_FN(Q4_K, q4_k) ROW_FN(Q5_K, q5_k) ROW_FN(Q6_K, q6_k) ROW_FN(IQ2_XXS, iq2_xxs)  \
					ROW_FN(IQ2_XS, iq2_xs) ROW_FN(IQ2_S, iq2_s) ROW_FN(IQ3_XXS, iq3_xxs)           \
						ROW_FN(IQ3_S, iq3_s) ROW_FN(IQ1_S, iq1_s) ROW_FN(IQ1_M, iq1_m)             \
							ROW_FN(IQ4_NL, iq4_nl) ROW_FN(IQ4_XS, iq4_xs) ROW_FN(Q4_1, q4_1)       \
								ROW_FN(Q5_0, q5_0) ROW_FN(Q5_1, q5_1) ROW_FN(MXFP4, mxfp4)         \
									ROW_FN(NVFP4, nvfp4) ROW_FN(Q1_0, q1_0) ROW_FN(Q2_0, q2_0)     \
										ROW_FN(TQ1_0, tq1_0) ROW_FN(TQ2_0, tq2_0)};

#endif
