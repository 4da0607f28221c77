/* SPDX-License-Identifier: MIT */
/*
 * The arithmetic with AVX-512 (F, BW, VL, DQ): the 16 partial sums of a dot are one register.
 * Compiles to nothing on other targets.
 *
 * Types with few distinct values per sub-block use look-up tables: the 4, 16 or 32 floats that a
 * scale and a minimum can give are computed once (by the same product and difference) and selected
 * by vpermps, whose index needs no masking.
 */
#include "kernels/cpu/cpu_dot.h"

#ifndef __AVX512F__

const struct cpu_isa *const cpu_isa_avx512 = NULL;

#else

#include "kernels/cpu/cpu_inline.h"
#include "kernels/cpu/cpu_lanes.h"

#include <immintrin.h>

typedef __m512 v16;

#define v16_set(f)       _mm512_set1_ps(f)
#define v16_load(p)      _mm512_loadu_ps(p)
#define v16_store(p, v)  _mm512_storeu_ps(p, v)
#define v16_mul(a, b)    _mm512_mul_ps(a, b)
#define v16_add(a, b)    _mm512_add_ps(a, b)
#define v16_sub(a, b)    _mm512_sub_ps(a, b)
#define v16_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define v16_i8(q)        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q))
#define v16_pair(f, g)   _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(f), _mm512_set1_ps(g))
#define v16_crumbs(u)                                                                              \
	_mm512_cvtepi32_ps(_mm512_and_si512(                                                           \
		_mm512_srlv_epi32(_mm512_set1_epi32((int)(u)),                                             \
			_mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)),         \
		_mm512_set1_epi32(3)))

#include "kernels/cpu/cpu_blocks.h"

/* ---- plain types ---- */

ALWAYS_INLINE __mmask16 first_lanes(size_t n)
{
	return (__mmask16)(n >= 16 ? 0xffff : (1u << n) - 1);
}

/* Up to 16 values of a row from value k on, zeros beyond n */
ALWAYS_INLINE v16 f32_at(const uint8_t *p, size_t k, size_t n)
{
	return _mm512_maskz_loadu_ps(first_lanes(n - k), p + 4 * k);
}

ALWAYS_INLINE v16 f16_at(const uint8_t *p, size_t k, size_t n)
{
	return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n - k), p + 2 * k));
}

ALWAYS_INLINE v16 bf16_at(const uint8_t *p, size_t k, size_t n)
{
	__m256i h = _mm256_maskz_loadu_epi16(first_lanes(n - k), p + 2 * k);
	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

ALWAYS_INLINE v16 f8_at(const uint8_t *p, size_t k, size_t n)
{
	__m256i h = f8_halves(_mm_maskz_loadu_epi8(first_lanes(n - k), p + k));
	return v16_mul(_mm512_cvtph_ps(h), v16_set(256));
}

ALWAYS_INLINE v16 x_at(const float *x, size_t k, size_t n)
{
	return _mm512_maskz_loadu_ps(first_lanes(n - k), x + k);
}

/* Full steps pass n = k + 16, which makes their masks constants. */
#define PLAIN_ROWS(type)                                                                           \
	static void type##_decode(const uint8_t *p, float *dst, size_t n)                              \
	{                                                                                              \
		size_t k = 0;                                                                              \
		for (; k + 16 <= n; k += 16)                                                               \
			_mm512_storeu_ps(dst + k, type##_at(p, k, k + 16));                                    \
		if (k < n)                                                                                 \
			_mm512_mask_storeu_ps(dst + k, first_lanes(n - k), type##_at(p, k, n));                \
	}                                                                                              \
	static void type##_sum4(                                                                       \
		const uint8_t *p, size_t row_bytes, size_t n, const float *const *xs, v16 *sum)            \
	{                                                                                              \
		const float *x = *xs;                                                                      \
		const uint8_t *q = p + row_bytes, *r = q + row_bytes, *s = r + row_bytes;                  \
		v16 a = v16_set(0), b = a, c = a, d = a;                                                   \
		size_t k = 0;                                                                              \
		for (; k + 16 <= n; k += 16) {                                                             \
			v16 v = v16_load(x + k);                                                               \
			a = v16_fma(type##_at(p, k, k + 16), v, a);                                            \
			b = v16_fma(type##_at(q, k, k + 16), v, b);                                            \
			c = v16_fma(type##_at(r, k, k + 16), v, c);                                            \
			d = v16_fma(type##_at(s, k, k + 16), v, d);                                            \
		}                                                                                          \
		if (k < n) {                                                                               \
			v16 v = x_at(x, k, n);                                                                 \
			a = v16_fma(type##_at(p, k, n), v, a);                                                 \
			b = v16_fma(type##_at(q, k, n), v, b);                                                 \
			c = v16_fma(type##_at(r, k, n), v, c);                                                 \
			d = v16_fma(type##_at(s, k, n), v, d);                                                 \
		}                                                                                          \
		sum[0] = a;                                                                                \
		sum[1] = b;                                                                                \
		sum[2] = c;                                                                                \
		sum[3] = d;                                                                                \
	}                                                                                              \
	static void type##_sum1(const uint8_t *p, size_t n, const float *x, v16 *sum)                  \
	{                                                                                              \
		v16 a = v16_set(0);                                                                        \
		size_t k = 0;                                                                              \
		for (; k + 16 <= n; k += 16)                                                               \
			a = v16_fma(type##_at(p, k, k + 16), v16_load(x + k), a);                              \
		*sum = k < n ? v16_fma(type##_at(p, k, n), x_at(x, k, n), a) : a;                          \
	}

PLAIN_ROWS(f32)
PLAIN_ROWS(f16)
PLAIN_ROWS(bf16)
PLAIN_ROWS(f8)

/* ---- packed types by look-up ---- */

/* The bytes of p as indices */
ALWAYS_INLINE __m512i index_at(const uint8_t *p)
{
	return _mm512_cvtepu8_epi32(bytes_at(p));
}

/* f, f + 1 .. f + 15 */
ALWAYS_INLINE v16 ascending(float f)
{
	return _mm512_setr_ps(f, f + 1, f + 2, f + 3, f + 4, f + 5, f + 6, f + 7, f + 8, f + 9, f + 10,
		f + 11, f + 12, f + 13, f + 14, f + 15);
}

ALWAYS_INLINE v16 times_less(v16 q, float scale, float min)
{
	return v16_sub(v16_mul(q, v16_set(scale)), v16_set(min));
}

/* Two groups of weights from 16 bytes: low nibbles, high nibbles */
BLOCK_32(q4_0_table)
{
	__m512i q = index_at(p + 2);
	v16 table = v16_mul(ascending(-8), d);
	sink_put(s, store, 0, _mm512_permutexvar_ps(q, table));
	sink_put(s, store, 1, _mm512_permutexvar_ps(_mm512_srli_epi32(q, 4), table));
}

BLOCK_32(iq4_nl_table)
{
	__m512i q = index_at(p + 2);
	v16 table = v16_mul(v16_i8(bytes_at(iq4nl_values)), d);
	sink_put(s, store, 0, _mm512_permutexvar_ps(q, table));
	sink_put(s, store, 1, _mm512_permutexvar_ps(_mm512_srli_epi32(q, 4), table));
}

SUPER_BLOCK(iq4_xs_table)
{
	float d = half_at(p);
	unsigned high = load_u16(p + 2);
	v16 values = v16_i8(bytes_at(iq4nl_values));
	UNROLLED_FOR (k, 8) {
		int n = (p[4 + k / 2] >> k % 2 * 4 & 15) | (int)(high >> 2 * k & 3) << 4;
		__m512i q = index_at(p + 8 + 16 * k);
		v16 table = v16_mul(values, v16_set(d * (float)(n - 32)));
		sink_put(s, store, 2 * k, _mm512_permutexvar_ps(q, table));
		sink_put(s, store, 2 * k + 1, _mm512_permutexvar_ps(_mm512_srli_epi32(q, 4), table));
	}
}

/* A table of four weights, repeated in every 128-bit lane: permutevar uses two bits of the index.
 */
SUPER_BLOCK(q2_k_table)
{
	float scale[16], min[16];
	q2_k_scales(p, scale, min);
	v16 values = _mm512_broadcast_f32x4(_mm_setr_ps(0, 1, 2, 3));
	UNROLLED_FOR (h, 2) {
		__m512i q[2] = {index_at(p + 16 + 32 * h), index_at(p + 32 + 32 * h)};
		UNROLLED_FOR (i, 8) {
			int j = 8 * h + i;
			v16 table = times_less(values, scale[j], min[j]);
			sink_put(
				s, store, j, _mm512_permutevar_ps(table, _mm512_srli_epi32(q[i % 2], i / 2 * 2)));
		}
	}
}

/* Index bits 0 and 1 come from q, bit 2 from high; bit 3 is undefined, so the table holds its eight
 * weights twice. */
SUPER_BLOCK(q3_k_table)
{
	float scale[16];
	q3_k_scales(p, scale);
	v16 values = _mm512_setr_ps(-4, -3, -2, -1, 0, 1, 2, 3, -4, -3, -2, -1, 0, 1, 2, 3);
	UNROLLED_FOR (j, 16) {
		int bit = j / 2;
		__m128i q = _mm_srli_epi16(bytes_at(p + 32 + j / 8 * 32 + j % 2 * 16), j % 8 / 2 * 2),
				high = bytes_at(p + j % 2 * 16);
		high = bit <= 2 ? _mm_slli_epi16(high, 2 - bit) : _mm_srli_epi16(high, bit - 2);
		q = _mm_ternarylogic_epi32(
			_mm_set1_epi8(3), q, high, 0xca); /* q where the mask is set, else high */
		sink_put(s, store, j,
			_mm512_permutexvar_ps(_mm512_cvtepu8_epi32(q), v16_mul(values, v16_set(scale[j]))));
	}
}

SUPER_BLOCK(q4_k_table)
{
	float scale[16];
	q4_k_scales(p, scale);
	UNROLLED_FOR (c, 4) {
		__m512i a = index_at(p + 16 + 32 * c), b = index_at(p + 32 + 32 * c);
		v16 even = times_less(ascending(0), scale[2 * c], scale[8 + 2 * c]);
		v16 odd = times_less(ascending(0), scale[2 * c + 1], scale[9 + 2 * c]);
		sink_put(s, store, 4 * c, _mm512_permutexvar_ps(a, even));
		sink_put(s, store, 4 * c + 1, _mm512_permutexvar_ps(b, even));
		sink_put(s, store, 4 * c + 2, _mm512_permutexvar_ps(_mm512_srli_epi32(a, 4), odd));
		sink_put(s, store, 4 * c + 3, _mm512_permutexvar_ps(_mm512_srli_epi32(b, 4), odd));
	}
}

SUPER_BLOCK(q5_k_table)
{
	float scale[16];
	q4_k_scales(p, scale);
	__m128i high[2] = {bytes_at(p + 16), bytes_at(p + 32)};
	UNROLLED_FOR (c, 4) {
		__m512i q[2] = {index_at(p + 48 + 32 * c), index_at(p + 64 + 32 * c)};
		UNROLLED_FOR (i, 4) {
			int k = 2 * c + i / 2;
			v16 table = times_less(ascending(0), scale[k], scale[8 + k]),
				above = times_less(ascending(16), scale[k], scale[8 + k]);
			__m512i index = _mm512_srli_epi32(q[i % 2], i / 2 * 4);
			__mmask16 is_high = _mm_test_epi8_mask(high[i % 2], _mm_set1_epi8((char)(1 << k)));
			v16 w = _mm512_permutexvar_ps(index, table);
			sink_put(s, store, 4 * c + i, _mm512_mask_permutexvar_ps(w, is_high, index, above));
		}
	}
}

/* ---- packed types ---- */

#define FASTEST(type) type##_table_block
PACKED_ROWS(FASTEST)
ROW_FNS

static void avx512_decode(enum dtype type, const void *src, float *dst, size_t n)
{
	row_fns[type].decode(src, dst, n);
}

/* The tree of cpu_dot.h on four dots at once: result i in lane i */
ALWAYS_INLINE __m128 reduce4(__m512 a, __m512 b, __m512 c, __m512 d)
{
	__m512 ab = _mm512_add_ps(
		_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee)); /* j + (j + 8) */
	__m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
	__m512 v = _mm512_add_ps(
		_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd)); /* j + (j + 4) */
	v = _mm512_add_ps(v, _mm512_permute_ps(v, 0x4e));                            /* j + (j + 2) */
	v = _mm512_add_ps(v, _mm512_permute_ps(v, 0xb1));
	return _mm512_castps512_ps128(_mm512_permutexvar_ps(
		_mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12), v));
}

static void avx512_matvec(enum dtype type, const void *w, size_t row_bytes, size_t n,
	const float *const *x, int n_x, int rows, float *const *y, bool add)
{
	const uint8_t *p = w;
	v16 sum[4 * GEMV_ROWS_MAX];
	int i = 0;
	for (; i + 4 <= rows; i += 4, p += 4 * row_bytes) {
		rows_sum(&row_fns[type], p, row_bytes, n, x, n_x, 4, sum);
		for (int j = 0; j < n_x; j++) {
			const v16 *s = sum + 4 * j;
			__m128 dot = reduce4(s[0], s[1], s[2], s[3]);
			_mm_storeu_ps(y[j] + i, add ? _mm_add_ps(_mm_loadu_ps(y[j] + i), dot) : dot);
		}
	}
	for (; i < rows; i++, p += row_bytes) {
		rows_sum(&row_fns[type], p, row_bytes, n, x, n_x, 1, sum);
		for (int j = 0; j < n_x; j++) {
			v16 s = sum[4 * j];
			float dot = _mm_cvtss_f32(reduce4(s, s, s, s));
			y[j][i] = add ? y[j][i] + dot : dot;
		}
	}
}

/* ---- register tiles ---- */

#define REPEAT_1(m) m(0)
#define REPEAT_2(m) REPEAT_1(m) m(1)
#define REPEAT_3(m) REPEAT_2(m) m(2)
#define REPEAT_4(m) REPEAT_3(m) m(3)
#define REPEAT_5(m) REPEAT_4(m) m(4)
#define REPEAT_6(m) REPEAT_5(m) m(5)

#define TILE_BEGIN(j)                                                                              \
	const float *x##j = t->x[j];                                                                   \
	v16 s##j##0 = v16_set(0), s##j##1 = s##j##0, s##j##2 = s##j##0, s##j##3 = s##j##0;             \
	if (!t->first) {                                                                               \
		s##j##0 = v16_load(t->acc + 64 * j);                                                       \
		s##j##1 = v16_load(t->acc + 64 * j + 16);                                                  \
		s##j##2 = v16_load(t->acc + 64 * j + 32);                                                  \
		s##j##3 = v16_load(t->acc + 64 * j + 48);                                                  \
	}
#define TILE_ADD(j, v)                                                                             \
	{                                                                                              \
		v16 b = v;                                                                                 \
		s##j##0 = v16_fma(a0, b, s##j##0);                                                         \
		s##j##1 = v16_fma(a1, b, s##j##1);                                                         \
		s##j##2 = v16_fma(a2, b, s##j##2);                                                         \
		s##j##3 = v16_fma(a3, b, s##j##3);                                                         \
	}
#define TILE_STEP(j)   TILE_ADD(j, v16_load(x##j + k))
#define TILE_TAIL(j)   TILE_ADD(j, _mm512_maskz_loadu_ps(tail, x##j + k))
#define TILE_REDUCE(j) _mm_storeu_ps(t->out + 4 * j, reduce4(s##j##0, s##j##1, s##j##2, s##j##3));
#define TILE_STORE(j)                                                                              \
	v16_store(t->acc + 64 * j, s##j##0);                                                           \
	v16_store(t->acc + 64 * j + 16, s##j##1);                                                      \
	v16_store(t->acc + 64 * j + 32, s##j##2);                                                      \
	v16_store(t->acc + 64 * j + 48, s##j##3);

#define TILE(n_x)                                                                                  \
	static void tile_##n_x(const struct dot_tile *t)                                               \
	{                                                                                              \
		const float *w0 = t->w[0], *w1 = t->w[1], *w2 = t->w[2], *w3 = t->w[3];                    \
		size_t k = 0, n = t->n;                                                                    \
		REPEAT_##n_x(TILE_BEGIN) for (; k + 16 <= n; k += 16)                                      \
		{                                                                                          \
			v16 a0 = v16_load(w0 + k), a1 = v16_load(w1 + k), a2 = v16_load(w2 + k),               \
				a3 = v16_load(w3 + k);                                                             \
			REPEAT_##n_x(TILE_STEP)                                                                \
		}                                                                                          \
		if (k < n) {                                                                               \
			__mmask16 tail = first_lanes(n - k);                                                   \
			v16 a0 = _mm512_maskz_loadu_ps(tail, w0 + k),                                          \
				a1 = _mm512_maskz_loadu_ps(tail, w1 + k);                                          \
			v16 a2 = _mm512_maskz_loadu_ps(tail, w2 + k),                                          \
				a3 = _mm512_maskz_loadu_ps(tail, w3 + k);                                          \
			REPEAT_##n_x(TILE_TAIL)                                                                \
		}                                                                                          \
		if (t->last) {                                                                             \
			REPEAT_##n_x(TILE_REDUCE)                                                              \
		} else {                                                                                   \
			REPEAT_##n_x(TILE_STORE)                                                               \
		}                                                                                          \
	}
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)

static void avx512_tile(const struct dot_tile *t)
{
	static void (*const tiles[])(const struct dot_tile *) = {
		tile_1, tile_2, tile_3, tile_4, tile_5, tile_6};
	tiles[t->n_x - 1](t);
}

/* ---- weighted sum of rows ---- */

/* h heads by 64 columns in registers, over all rows */
#define HEAD_BEGIN(h)                                                                              \
	float *z##h = z + h * z_stride;                                                                \
	const float *p##h = p + h * p_stride;                                                          \
	v16 s##h##0 = v16_load(z##h), s##h##1 = v16_load(z##h + 16), s##h##2 = v16_load(z##h + 32),    \
		s##h##3 = v16_load(z##h + 48);
#define HEAD_STEP(h) TILE_ADD(h, v16_set(p##h[t]))
#define HEAD_END(h)                                                                                \
	v16_store(z##h, s##h##0);                                                                      \
	v16_store(z##h + 16, s##h##1);                                                                 \
	v16_store(z##h + 32, s##h##2);                                                                 \
	v16_store(z##h + 48, s##h##3);

#define HEADS(n)                                                                                   \
	static void heads_##n(const float *const *row, int n_rows, size_t c, const float *p,           \
		int64_t p_stride, float *z, int64_t z_stride)                                              \
	{                                                                                              \
		z += c;                                                                                    \
		REPEAT_##n(HEAD_BEGIN) for (int t = 0; t < n_rows; t++)                                    \
		{                                                                                          \
			const float *r = row[t] + c;                                                           \
			v16 a0 = v16_load(r), a1 = v16_load(r + 16), a2 = v16_load(r + 32),                    \
				a3 = v16_load(r + 48);                                                             \
			REPEAT_##n(HEAD_STEP)                                                                  \
		}                                                                                          \
		REPEAT_##n(HEAD_END)                                                                       \
	}
HEADS(1)
HEADS(2)
HEADS(3)
HEADS(4)
HEADS(5)
HEADS(6)

static void avx512_weighted_rows(const float *const *row, int n_rows, const float *p,
	int64_t p_stride, int n_heads, size_t n, float *z, int64_t z_stride)
{
	static void (*const heads[])(const float *const *, int, size_t, const float *, int64_t, float *,
		int64_t) = {heads_1, heads_2, heads_3, heads_4, heads_5, heads_6};
	size_t c = 0;
	for (; c + 64 <= n; c += 64)
		for (int h = 0; h < n_heads; h += 6)
			heads[MIN(n_heads - h, 6) - 1](
				row, n_rows, c, p + h * p_stride, p_stride, z + h * z_stride, z_stride);
	for (; c < n; c += 16) {
		__mmask16 mask = first_lanes(n - c);
		for (int h = 0; h < n_heads; h++) {
			v16 sum = _mm512_maskz_loadu_ps(mask, z + h * z_stride + c);
			for (int t = 0; t < n_rows; t++)
				sum = v16_fma(
					v16_set(p[h * p_stride + t]), _mm512_maskz_loadu_ps(mask, row[t] + c), sum);
			_mm512_mask_storeu_ps(z + h * z_stride + c, mask, sum);
		}
	}
}

static const struct cpu_isa isa_avx512 = {
	.name = "AVX-512",
	.decode = avx512_decode,
	.matvec = avx512_matvec,
	.tile = avx512_tile,
	.weighted_rows = avx512_weighted_rows,
	.softmax = lanes_softmax,
	.swiglu = lanes_swiglu,
	.sigmoid = lanes_sigmoid,
	.sum_squares = lanes_sum_squares,
	.index_score = lanes_index_score,
};
const struct cpu_isa *const cpu_isa_avx512 = &isa_avx512;

#endif
