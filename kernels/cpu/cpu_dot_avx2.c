/* SPDX-License-Identifier: MIT */
/*
 * The arithmetic with AVX2, FMA and F16C: the 16 partial sums of a dot are two registers, lanes
 * 0..7 and 8..15. Compiles to nothing on other targets.
 */
#include "kernels/cpu/cpu_dot.h"

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)

const struct cpu_isa *const cpu_isa_avx2 = NULL;

#else

#include "kernels/cpu/cpu_inline.h"
#include "kernels/cpu/cpu_lanes.h"

#include <immintrin.h>
#include <string.h>

typedef struct {
	__m256 lo, hi;
} v16;

ALWAYS_INLINE v16 v16_set(float f)
{
	return (v16){_mm256_set1_ps(f), _mm256_set1_ps(f)};
}

ALWAYS_INLINE v16 v16_pair(float f, float g)
{
	return (v16){_mm256_set1_ps(f), _mm256_set1_ps(g)};
}

ALWAYS_INLINE v16 v16_load(const float *p)
{
	return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

ALWAYS_INLINE void v16_store(float *p, v16 v)
{
	_mm256_storeu_ps(p, v.lo);
	_mm256_storeu_ps(p + 8, v.hi);
}

ALWAYS_INLINE v16 v16_mul(v16 a, v16 b)
{
	return (v16){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

ALWAYS_INLINE v16 v16_add(v16 a, v16 b)
{
	return (v16){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}

ALWAYS_INLINE v16 v16_sub(v16 a, v16 b)
{
	return (v16){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}

ALWAYS_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
	return (v16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

ALWAYS_INLINE v16 v16_i8(__m128i q)
{
	return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)),
		_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(q, q)))};
}

ALWAYS_INLINE v16 v16_crumbs(uint32_t u)
{
	__m256i v = _mm256_set1_epi32((int)u), three = _mm256_set1_epi32(3);
	__m256i lo = _mm256_srlv_epi32(v, _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
	__m256i hi = _mm256_srlv_epi32(v, _mm256_setr_epi32(16, 18, 20, 22, 24, 26, 28, 30));
	return (v16){_mm256_cvtepi32_ps(_mm256_and_si256(lo, three)),
		_mm256_cvtepi32_ps(_mm256_and_si256(hi, three))};
}

#include "kernels/cpu/cpu_blocks.h"

/* ---- plain types ---- */

/* 16 values of a row */
ALWAYS_INLINE v16 f32_16(const uint8_t *p)
{
	return (v16){_mm256_loadu_ps((const float *)(const void *)p),
		_mm256_loadu_ps((const float *)(const void *)(p + 32))};
}

ALWAYS_INLINE v16 f16_16(const uint8_t *p)
{
	return (v16){_mm256_cvtph_ps(bytes_at(p)), _mm256_cvtph_ps(bytes_at(p + 16))};
}

ALWAYS_INLINE v16 bf16_16(const uint8_t *p)
{
	__m256i lo = _mm256_cvtepu16_epi32(bytes_at(p)), hi = _mm256_cvtepu16_epi32(bytes_at(p + 16));
	return (v16){_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
		_mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}

ALWAYS_INLINE v16 f8_16(const uint8_t *p)
{
	__m256i h = f8_halves(bytes_at(p));
	v16 v = {_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
		_mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
	return v16_mul(v, v16_set(256));
}

/* The last n < 16 values and zeros */
#define TAIL(type, bytes)                                                                          \
	ALWAYS_INLINE v16 type##_tail(const uint8_t *p, size_t n)                                      \
	{                                                                                              \
		uint8_t last[16 * bytes] = {0};                                                            \
		memcpy(last, p, bytes *n);                                                                 \
		return type##_16(last);                                                                    \
	}
TAIL(f32, 4)
TAIL(f16, 2)
TAIL(bf16, 2)
TAIL(f8, 1)

#define PLAIN_ROWS(type, bytes)                                                                    \
	static void type##_decode(const uint8_t *p, float *dst, size_t n)                              \
	{                                                                                              \
		float last[16];                                                                            \
		for (; n >= 16; n -= 16, p += 16 * bytes, dst += 16)                                       \
			v16_store(dst, type##_16(p));                                                          \
		v16_store(last, type##_tail(p, n));                                                        \
		memcpy(dst, last, n * sizeof *dst);                                                        \
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
			a = v16_fma(type##_16(p + k * bytes), v, a);                                           \
			b = v16_fma(type##_16(q + k * bytes), v, b);                                           \
			c = v16_fma(type##_16(r + k * bytes), v, c);                                           \
			d = v16_fma(type##_16(s + k * bytes), v, d);                                           \
		}                                                                                          \
		if (k < n) {                                                                               \
			v16 v = f32_tail((const uint8_t *)(x + k), n - k);                                     \
			a = v16_fma(type##_tail(p + k * bytes, n - k), v, a);                                  \
			b = v16_fma(type##_tail(q + k * bytes, n - k), v, b);                                  \
			c = v16_fma(type##_tail(r + k * bytes, n - k), v, c);                                  \
			d = v16_fma(type##_tail(s + k * bytes, n - k), v, d);                                  \
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
			a = v16_fma(type##_16(p + k * bytes), v16_load(x + k), a);                             \
		if (k < n)                                                                                 \
			a = v16_fma(                                                                           \
				type##_tail(p + k * bytes, n - k), f32_tail((const uint8_t *)(x + k), n - k), a);  \
		*sum = a;                                                                                  \
	}

PLAIN_ROWS(f32, 4)
PLAIN_ROWS(f16, 2)
PLAIN_ROWS(bf16, 2)
PLAIN_ROWS(f8, 1)

/* ---- packed types ---- */

#define FASTEST(type) type##_block
PACKED_ROWS(FASTEST)
ROW_FNS

static void avx2_decode(enum dtype type, const void *src, float *dst, size_t n)
{
	row_fns[type].decode(src, dst, n);
}

/* The tree of cpu_dot.h */
ALWAYS_INLINE float reduce(__m256 lo, __m256 hi)
{
	__m256 v = _mm256_add_ps(lo, hi);                                              /* j + (j + 8) */
	__m128 u = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)); /* j + (j + 4) */
	u = _mm_add_ps(u, _mm_movehl_ps(u, u));                                        /* j + (j + 2) */
	return _mm_cvtss_f32(_mm_add_ss(u, _mm_movehdup_ps(u)));
}

static void avx2_matvec(enum dtype type, const void *w, size_t row_bytes, size_t n,
	const float *const *x, int n_x, int rows, float *const *y, bool add)
{
	const uint8_t *p = w;
	v16 sum[4 * GEMV_ROWS_MAX];
	for (int i = 0, m; i < rows; i += m, p += (size_t)m * row_bytes) {
		m = rows - i >= 4 ? 4 : 1;
		rows_sum(&row_fns[type], p, row_bytes, n, x, n_x, m, sum);
		for (int j = 0; j < n_x; j++)
			for (int k = 0; k < m; k++) {
				float dot = reduce(sum[4 * j + k].lo, sum[4 * j + k].hi);
				y[j][i + k] = add ? y[j][i + k] + dot : dot;
			}
	}
}

/* ---- register tiles ---- */

/* The 16 registers are enough for half of the lanes of 4 weight rows by 3 activation rows, so the
 * two halves are computed one after the other (`half` is 0 or 8). Partial sums are kept in acc
 * [n_x * 4][16]. */

#define REPEAT_1(m) m(0)
#define REPEAT_2(m) REPEAT_1(m) m(1)
#define REPEAT_3(m) REPEAT_2(m) m(2)

#define TILE_BEGIN(j)                                                                              \
	const float *x##j = x[j] + half;                                                               \
	__m256 s##j##0 = _mm256_setzero_ps(), s##j##1 = s##j##0, s##j##2 = s##j##0, s##j##3 = s##j##0; \
	if (!first) {                                                                                  \
		s##j##0 = _mm256_loadu_ps(acc + 64 * j);                                                   \
		s##j##1 = _mm256_loadu_ps(acc + 64 * j + 16);                                              \
		s##j##2 = _mm256_loadu_ps(acc + 64 * j + 32);                                              \
		s##j##3 = _mm256_loadu_ps(acc + 64 * j + 48);                                              \
	}
#define TILE_ADD(j, v)                                                                             \
	{                                                                                              \
		__m256 b = v;                                                                              \
		s##j##0 = _mm256_fmadd_ps(a0, b, s##j##0);                                                 \
		s##j##1 = _mm256_fmadd_ps(a1, b, s##j##1);                                                 \
		s##j##2 = _mm256_fmadd_ps(a2, b, s##j##2);                                                 \
		s##j##3 = _mm256_fmadd_ps(a3, b, s##j##3);                                                 \
	}
#define TILE_STEP(j) TILE_ADD(j, _mm256_loadu_ps(x##j + k))
#define TILE_TAIL(j) TILE_ADD(j, _mm256_maskload_ps(x##j + k, mask))
#define TILE_STORE(j)                                                                              \
	_mm256_storeu_ps(acc + 64 * j, s##j##0);                                                       \
	_mm256_storeu_ps(acc + 64 * j + 16, s##j##1);                                                  \
	_mm256_storeu_ps(acc + 64 * j + 32, s##j##2);                                                  \
	_mm256_storeu_ps(acc + 64 * j + 48, s##j##3);

#define TILE(n_x)                                                                                  \
	static void tile_##n_x(                                                                        \
		const float *const *w, const float *const *x, size_t n, int half, bool first, float *acc)  \
	{                                                                                              \
		const float *w0 = w[0] + half, *w1 = w[1] + half, *w2 = w[2] + half, *w3 = w[3] + half;    \
		size_t k = 0;                                                                              \
		acc += half;                                                                               \
		REPEAT_##n_x(TILE_BEGIN) for (; k + 16 <= n; k += 16)                                      \
		{                                                                                          \
			__m256 a0 = _mm256_loadu_ps(w0 + k), a1 = _mm256_loadu_ps(w1 + k),                     \
				   a2 = _mm256_loadu_ps(w2 + k), a3 = _mm256_loadu_ps(w3 + k);                     \
			REPEAT_##n_x(TILE_STEP)                                                                \
		}                                                                                          \
		if (k < n) {                                                                               \
			__m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);                              \
			__m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(n - k) - half), lane);       \
			__m256 a0 = _mm256_maskload_ps(w0 + k, mask), a1 = _mm256_maskload_ps(w1 + k, mask),   \
				   a2 = _mm256_maskload_ps(w2 + k, mask), a3 = _mm256_maskload_ps(w3 + k, mask);   \
			REPEAT_##n_x(TILE_TAIL)                                                                \
		}                                                                                          \
		REPEAT_##n_x(TILE_STORE)                                                                   \
	}
TILE(1)
TILE(2)
TILE(3)

static void avx2_tile(const struct dot_tile *t)
{
	static void (*const tiles[])(const float *const *, const float *const *, size_t, int, bool,
		float *) = {tile_1, tile_2, tile_3};
	float local[DOT_TILE_X * DOT_TILE_W * DOT_LANES], *acc = t->first && t->last ? local : t->acc;
	for (int j = 0; j < t->n_x; j += 3)
		for (int half = 0; half <= 8; half += 8)
			tiles[MIN(t->n_x - j, 3) - 1](t->w, t->x + j, t->n, half, t->first, acc + 64 * j);
	for (int i = 0; t->last && i < t->n_x * DOT_TILE_W; i++)
		t->out[i] = reduce(_mm256_loadu_ps(acc + 16 * i), _mm256_loadu_ps(acc + 16 * i + 8));
}

/* ---- weighted sum of rows ---- */

/* h heads by 32 columns in registers, over all rows */
#define HEAD_BEGIN(h)                                                                              \
	float *z##h = z + h * z_stride;                                                                \
	const float *p##h = p + h * p_stride;                                                          \
	__m256 s##h##0 = _mm256_loadu_ps(z##h), s##h##1 = _mm256_loadu_ps(z##h + 8),                   \
		   s##h##2 = _mm256_loadu_ps(z##h + 16), s##h##3 = _mm256_loadu_ps(z##h + 24);
#define HEAD_STEP(h) TILE_ADD(h, _mm256_set1_ps(p##h[t]))
#define HEAD_END(h)                                                                                \
	_mm256_storeu_ps(z##h, s##h##0);                                                               \
	_mm256_storeu_ps(z##h + 8, s##h##1);                                                           \
	_mm256_storeu_ps(z##h + 16, s##h##2);                                                          \
	_mm256_storeu_ps(z##h + 24, s##h##3);

#define HEADS(n)                                                                                   \
	static void heads_##n(const float *const *row, int n_rows, size_t c, const float *p,           \
		int64_t p_stride, float *z, int64_t z_stride)                                              \
	{                                                                                              \
		z += c;                                                                                    \
		REPEAT_##n(HEAD_BEGIN) for (int t = 0; t < n_rows; t++)                                    \
		{                                                                                          \
			const float *r = row[t] + c;                                                           \
			__m256 a0 = _mm256_loadu_ps(r), a1 = _mm256_loadu_ps(r + 8),                           \
				   a2 = _mm256_loadu_ps(r + 16), a3 = _mm256_loadu_ps(r + 24);                     \
			REPEAT_##n(HEAD_STEP)                                                                  \
		}                                                                                          \
		REPEAT_##n(HEAD_END)                                                                       \
	}
HEADS(1)
HEADS(2)
HEADS(3)

static void avx2_weighted_rows(const float *const *row, int n_rows, const float *p,
	int64_t p_stride, int n_heads, size_t n, float *z, int64_t z_stride)
{
	static void (*const heads[])(const float *const *, int, size_t, const float *, int64_t, float *,
		int64_t) = {heads_1, heads_2, heads_3};
	size_t c = 0;
	for (; c + 32 <= n; c += 32)
		for (int h = 0; h < n_heads; h += 3)
			heads[MIN(n_heads - h, 3) - 1](
				row, n_rows, c, p + h * p_stride, p_stride, z + h * z_stride, z_stride);
	for (; c < n; c++)
		for (int h = 0; h < n_heads; h++) {
			float sum = z[h * z_stride + (int64_t)c];
			for (int t = 0; t < n_rows; t++)
				sum = fmaf(p[h * p_stride + t], row[t][c], sum);
			z[h * z_stride + (int64_t)c] = sum;
		}
}

static const struct cpu_isa isa_avx2 = {
	.name = "AVX2",
	.decode = avx2_decode,
	.matvec = avx2_matvec,
	.tile = avx2_tile,
	.weighted_rows = avx2_weighted_rows,
	.softmax = lanes_softmax,
	.swiglu = lanes_swiglu,
	.sigmoid = lanes_sigmoid,
	.sum_squares = lanes_sum_squares,
	.index_score = lanes_index_score,
};
const struct cpu_isa *const cpu_isa_avx2 = &isa_avx2;

#endif
