/* SPDX-License-Identifier: MIT */
/*
 * Exact sums with AVX2. vpmaddubsw multiplies unsigned weights by signed limbs, so signed weights
 * carry an offset (Q3_K 4, Q6_K 32, codebooks 64) that is taken off through the sums of the limbs.
 * Q8_0 is multiplied in 16 bits. Compiles to nothing on other targets.
 *
 * Register c of a super-block's weights has places 32 c .. 32 c + 31 of limb_place.
 */
#include "kernels/cpu/limbs/limb_rows.h"

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)

const struct limb_isa *const limb_isa_avx2 = NULL;

#else

#include "kernels/cpu/limbs/limb_floats.h"
#include "kernels/cpu/limbs/limb_split.h"
#include "src/base/half.h"
#include "src/quant/iq_grids.h"

#define REGISTERS 8

/* A super-block of one weight row. w: unsigned weights; scale: a word for each pair of weights;
 * offset: what times the sums of 16 limbs is taken off, the 16 scales times the weights' offset. */
struct row_weights {
	__m256i w[REGISTERS], scale[REGISTERS], offset;
};

ALWAYS_INLINE __m256i load_256(const void *p)
{
	return _mm256_loadu_si256((const __m256i *)p);
}

ALWAYS_INLINE int32_t add_lanes(__m256i v)
{
	__m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
	s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
	return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

ALWAYS_INLINE __m256i times_sums(__m256i sixteen, const struct limb_block *x, int k)
{
	return _mm256_madd_epi16(sixteen, load_256(x->sum[k]));
}

/* The sum of two products, at most 2 * 107 * 128, fits a signed word. */
ALWAYS_INLINE void multiply_row(const struct limb_group *t, int64_t block, int r,
	const struct row_weights *w, struct limb_sums *s)
{
	for (int i = 0; i < t->n_x; i++) {
		const struct limb_block *x = t->x[i] + block;
		for (int k = 0; k < EXPERT_LIMBS; k++) {
			__m256i sum = _mm256_sub_epi32(_mm256_setzero_si256(), times_sums(w->offset, x, k));
			UNROLLED_FOR (c, REGISTERS)
				sum = _mm256_add_epi32(sum,
					_mm256_madd_epi16(
						_mm256_maddubs_epi16(w->w[c], load_256(x->limb[k] + 32 * c)), w->scale[c]));
			s->whole[0][i][k][r] = add_lanes(sum);
		}
	}
}

ALWAYS_INLINE void multiply_minima(
	const struct limb_group *t, int64_t block, int r, __m256i minima, struct limb_sums *s)
{
	for (int i = 0; i < t->n_x; i++)
		for (int k = 0; k < EXPERT_LIMBS; k++)
			s->least[i][k][r] = add_lanes(times_sums(minima, t->x[i] + block, k));
}

/* ---- K types ---- */

/* Eight words a, then eight words b */
ALWAYS_INLINE __m256i two_scales(int a, int b)
{
	return _mm256_set_m128i(_mm_set1_epi16((short)b), _mm_set1_epi16((short)a));
}

ALWAYS_INLINE __m256i bits_256(__m256i v, int shift, int mask)
{
	return _mm256_and_si256(_mm256_srli_epi16(v, shift), _mm256_set1_epi8((char)mask));
}

/* Register 2 g + h has sub-blocks 8 h + 2 g and 8 h + 2 g + 1. */
ALWAYS_INLINE void k16_scales(__m128i bytes, struct row_weights *w)
{
	int8_t scale[16];
	_mm_storeu_si128((__m128i *)scale, bytes);
	UNROLLED_FOR (c, REGISTERS) {
		int j = c % 2 * 8 + c / 2 * 2;
		w->scale[c] = two_scales(scale[j], scale[j + 1]);
	}
}

static void q2_k_row(
	const struct limb_group *t, const uint8_t *p, int64_t block, int r, struct limb_sums *s)
{
	struct row_weights w = {.offset = _mm256_setzero_si256()};
	__m128i sc = _mm_loadu_si128((const __m128i *)p), fifteen = _mm_set1_epi8(15);
	__m128i scales = _mm_and_si128(sc, fifteen);
	k16_scales(scales, &w);
	UNROLLED_FOR (c, REGISTERS)
		w.w[c] = bits_256(load_256(p + 16 + c % 2 * 32), c / 2 * 2, 3);
	s->unit[0][r] = load_u16(p + 80);
	s->minimum[r] = load_u16(p + 82);
	multiply_row(t, block, r, &w, s);
	multiply_minima(
		t, block, r, _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(sc, 4), fifteen)), s);
}

static void q3_k_row(
	const struct limb_group *t, const uint8_t *p, int64_t block, int r, struct limb_sums *s)
{
	struct row_weights w;
	__m128i low = _mm_loadl_epi64((const __m128i *)(p + 96)), fifteen = _mm_set1_epi8(15),
			high = _mm_set1_epi32((int)load_u32(p + 104));
	low = _mm_unpacklo_epi64(
		_mm_and_si128(low, fifteen), _mm_and_si128(_mm_srli_epi16(low, 4), fifteen));
	high = _mm_and_si128(_mm_srlv_epi32(high, _mm_setr_epi32(0, 2, 4, 6)), _mm_set1_epi8(3));
	__m128i scales = _mm_sub_epi8(_mm_or_si128(low, _mm_slli_epi16(high, 4)), _mm_set1_epi8(32));
	__m256i words = _mm256_cvtepi8_epi16(scales), third = load_256(p);
	k16_scales(scales, &w);
	w.offset = _mm256_slli_epi16(words, 2);
	UNROLLED_FOR (c, REGISTERS) {
		int g = c / 2, h = c % 2;
		__m256i bit = bits_256(third, 4 * h + g, 1);
		w.w[c] = _mm256_or_si256(
			bits_256(load_256(p + 32 + 32 * h), 2 * g, 3), _mm256_slli_epi16(bit, 2));
	}
	s->unit[0][r] = load_u16(p + 108);
	multiply_row(t, block, r, &w, s);
}

static void q4_k_row(
	const struct limb_group *t, const uint8_t *p, int64_t block, int r, struct limb_sums *s)
{
	struct row_weights w = {.offset = _mm256_setzero_si256()};
	const uint32_t six = 0x3f3f3f3f, four = 0x0f0f0f0f, two = 0x30303030;
	uint32_t a = load_u32(p + 4), b = load_u32(p + 8), c4 = load_u32(p + 12);
	uint32_t scale[2] = {a & six, (c4 & four) | (a >> 2 & two)},
			 least[2] = {b & six, (c4 >> 4 & four) | (b >> 2 & two)};
	UNROLLED_FOR (c, REGISTERS) { /* register 4 p + 2 n + a: group 4 p + 2 a + n */
		int k = c / 4 * 4 + c % 2 * 2 + c / 2 % 2;
		w.w[c] = bits_256(load_256(p + 16 + k / 2 * 32), k % 2 * 4, 15);
		w.scale[c] = _mm256_set1_epi16((short)(scale[k / 4] >> k % 4 * 8 & 63));
	}
	__m128i minima = _mm_setr_epi32((int)least[0], (int)least[1], 0, 0);
	s->unit[0][r] = load_u16(p);
	s->minimum[r] = load_u16(p + 2);
	multiply_row(t, block, r, &w, s);
	multiply_minima(t, block, r, _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(minima, minima)), s);
}

static void q6_k_row(
	const struct limb_group *t, const uint8_t *p, int64_t block, int r, struct limb_sums *s)
{
	struct row_weights w;
	const int8_t *scale = (const int8_t *)(p + 192);
	UNROLLED_FOR (c, REGISTERS) {
		int h = c / 4, g = c % 4;
		__m256i high = bits_256(load_256(p + 128 + 32 * h), 2 * g, 3);
		w.w[c] = _mm256_or_si256(
			bits_256(load_256(p + 64 * h + g % 2 * 32), g / 2 * 4, 15), _mm256_slli_epi16(high, 4));
		w.scale[c] = two_scales(scale[2 * c], scale[2 * c + 1]);
	}
	w.offset = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)scale)), 5);
	s->unit[0][r] = load_u16(p + 208);
	multiply_row(t, block, r, &w, s);
}

/* ---- codebooks: register 2 j + i has octet j of groups 4 i .. 4 i + 3 ---- */

/* scales: 16 words, one for each half of a group */
ALWAYS_INLINE void codebook_scales(__m256i scales, struct row_weights *w)
{
	const __m256i half_0 = _mm256_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 4, 5, 4, 5, 4, 5, 4, 5, 8, 9, 8,
					  9, 8, 9, 8, 9, 12, 13, 12, 13, 12, 13, 12, 13),
				  half_1 = _mm256_add_epi8(half_0, _mm256_set1_epi8(2));
	__m256i groups[2] = {_mm256_permute4x64_epi64(scales, 0x44),
		_mm256_permute4x64_epi64(scales, 0xee)}; /* eight words, twice */
	UNROLLED_FOR (c, REGISTERS)
		w->scale[c] = _mm256_shuffle_epi8(groups[c % 2], c < 4 ? half_0 : half_1);
	w->offset = _mm256_slli_epi16(scales, 6);
}

ALWAYS_INLINE __m256i weights_plus_64(__m256i rows, __m256i signs)
{
	return _mm256_add_epi8(
		_mm256_sub_epi8(_mm256_xor_si256(rows, signs), signs), _mm256_set1_epi8(64));
}

/* Rows a, b, c, d of a table of eight-byte rows */
ALWAYS_INLINE __m256i four_rows(
	const uint64_t *table, unsigned a, unsigned b, unsigned c, unsigned d)
{
	return _mm256_set_epi64x(
		(long long)table[d], (long long)table[c], (long long)table[b], (long long)table[a]);
}

static void iq2_xxs_row(
	const struct limb_group *t, const uint8_t *p, int64_t block, int r, struct limb_sums *s)
{
	struct row_weights w;
	int16_t scale[16];
	uint32_t word[8];
	UNROLLED_FOR (g, 8) {
		word[g] = load_u32(p + 6 + 8 * g);
		scale[2 * g] = scale[2 * g + 1] = (int16_t)(2 * (word[g] >> 28) + 1);
	}
	UNROLLED_FOR (c, REGISTERS) {
		const uint8_t *q = p + 2 + c % 2 * 32 + c / 2;
		const uint32_t *of = word + c % 2 * 4;
		int shift = 7 * (c / 2);
		w.w[c] = weights_plus_64(four_rows(iq2xxs_grid, q[0], q[8], q[16], q[24]),
			four_rows(iq_sign_masks, of[0] >> shift & 127, of[1] >> shift & 127,
				of[2] >> shift & 127, of[3] >> shift & 127));
	}
	codebook_scales(load_256(scale), &w);
	s->unit[0][r] = load_u16(p);
	multiply_row(t, block, r, &w, s);
}

static void iq2_xs_row(
	const struct limb_group *t, const uint8_t *p, int64_t block, int r, struct limb_sums *s)
{
	struct row_weights w;
	UNROLLED_FOR (c, REGISTERS) {
		const uint8_t *q = p + 2 + c % 2 * 32 + c / 2 * 2;
		unsigned a0 = load_u16(q), a1 = load_u16(q + 8), a2 = load_u16(q + 16),
				 a3 = load_u16(q + 24);
		w.w[c] = weights_plus_64(four_rows(iq2xs_grid, a0 & 511, a1 & 511, a2 & 511, a3 & 511),
			four_rows(iq_sign_masks, a0 >> 9, a1 >> 9, a2 >> 9, a3 >> 9));
	}
	__m128i sc = _mm_loadl_epi64((const __m128i *)(p + 66)), fifteen = _mm_set1_epi8(15);
	__m256i nibbles = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(
		_mm_and_si128(sc, fifteen), _mm_and_si128(_mm_srli_epi16(sc, 4), fifteen)));
	codebook_scales(_mm256_or_si256(_mm256_slli_epi16(nibbles, 1), _mm256_set1_epi16(1)), &w);
	s->unit[0][r] = load_u16(p);
	multiply_row(t, block, r, &w, s);
}

/* ---- Q8_0 ---- */

ALWAYS_INLINE __m256i words_of(const void *sixteen)
{
	return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)sixteen));
}

static void q8_0_row(const struct limb_group *t, const uint8_t *p, int64_t block, int steps, int r,
	struct limb_sums *s)
{
	for (int step = 0; step < steps; step++, p += 34) {
		__m256i low = words_of(p + 2), high = words_of(p + 18);
		s->unit[step][r] = load_u16(p);
		for (int i = 0; i < t->n_x; i++)
			for (int k = 0; k < EXPERT_LIMBS; k++) {
				const int8_t *limb = t->x[i][block].limb[k] + 32 * step;
				s->whole[step][i][k][r] =
					add_lanes(_mm256_add_epi32(_mm256_madd_epi16(low, words_of(limb)),
						_mm256_madd_epi16(high, words_of(limb + 16))));
			}
	}
}

static void super_block_sums(
	const struct limb_group *t, const uint8_t *w, int64_t block, int steps, struct limb_sums *s)
{
	const struct dtype_info *info = dtype_info(t->type);
	const int bytes = (int)(256 / info->block_values * info->block_bytes);
	for (int r = 0; r < t->n_rows; r++, w += t->row_bytes) {
		prefetch_super_block(t, w, bytes);
		switch (t->type) {
		case DTYPE_IQ2_XXS:
			iq2_xxs_row(t, w, block, r, s);
			break;
		case DTYPE_IQ2_XS:
			iq2_xs_row(t, w, block, r, s);
			break;
		case DTYPE_Q2_K:
			q2_k_row(t, w, block, r, s);
			break;
		case DTYPE_Q3_K:
			q3_k_row(t, w, block, r, s);
			break;
		case DTYPE_Q4_K:
			q4_k_row(t, w, block, r, s);
			break;
		case DTYPE_Q6_K:
			q6_k_row(t, w, block, r, s);
			break;
		default:
			q8_0_row(t, w, block, steps, r, s);
		}
	}
}

static const struct limb_isa isa_avx2 = {"AVX2", limbs_split, vector_multiply, NULL, LIMB_X, NULL};
const struct limb_isa *const limb_isa_avx2 = &isa_avx2;

#endif
