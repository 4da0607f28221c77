/* SPDX-License-Identifier: MIT */
/*
 * Exact sums with AVX-512 VNNI, VBMI and GFNI. vpdpbusd multiplies unsigned weights by signed
 * limbs, so signed weights carry an offset (Q3_K 4, Q6_K 32, codebooks 64, Q8_0 128) that is taken
 * off through the sums of the limbs.
 *
 * Per weight row and super-block the weights are decoded once, to four registers of 64 bytes, and
 * multiplied with the limbs of every row of x. The products stay vectors, one for each (x, limb,
 * weight row); at the end of a super-block 16 weight rows are added up together
 * (add_dwords_of_rows). Compiles to nothing on other targets.
 */
#include "kernels/cpu/limbs/limb_rows.h"

#if !defined(__AVX512F__) || !defined(__AVX512VNNI__) || !defined(__AVX512VBMI__) ||               \
	!defined(__GFNI__)

const struct limb_isa *const limb_isa_vnni = NULL;

#else

#include "kernels/cpu/limbs/limb_avx512.h"
#include "kernels/cpu/limbs/limb_floats.h"
#include "kernels/cpu/limbs/limb_split.h"
#include "src/base/half.h"

#include <pthread.h>

typedef __m512i products[EXPERT_LIMBS][LIMB_ROWS];

ALWAYS_INLINE __m512i limbs_at(const struct limb_block *x, int k, int z)
{
	return _mm512_load_si512(x->limb[k] + 64 * z);
}

/* ---- sums of dwords ---- */

/* Two steps of a transposition: the four dwords of each 128-bit quarter of the result are the sums
 * of that quarter of a, of b, of c and of d. */
ALWAYS_INLINE __m512i add_four(__m512i a, __m512i b, __m512i c, __m512i d)
{
	__m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)),
			cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
	return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

/* Quarters 0 + 1 and 2 + 3 of a, then of b */
ALWAYS_INLINE __m512i add_pairs_of_quarters(__m512i a, __m512i b)
{
	return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

/* out[r] = the sum of the 16 dwords of v[r] */
ALWAYS_INLINE void add_dwords_of_rows(const __m512i *v, int32_t out[LIMB_ROWS])
{
	__m512i q[4];
	UNROLLED_FOR (i, 4)
		q[i] = add_four(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
	_mm512_store_si512(out, add_pairs_of_quarters(add_pairs_of_quarters(q[0], q[1]),
								add_pairs_of_quarters(q[2], q[3])));
}

/* a[r] = the sum of dwords 0 .. 7 of v[r * stride] less offset_a, b[r] = that of dwords 8 .. 15
 * less offset_b. (Each half of the register is a step of Q8_0.) */
ALWAYS_INLINE void add_halves_of_rows(const __m512i *v, int stride, int offset_a, int offset_b,
	int32_t a[LIMB_ROWS], int32_t b[LIMB_ROWS])
{
	__m512i q[4];
	UNROLLED_FOR (i, 4)
		q[i] = add_four(v[4 * i * stride], v[(4 * i + 1) * stride], v[(4 * i + 2) * stride],
			v[(4 * i + 3) * stride]);
	__m512i low = add_pairs_of_quarters(q[0], q[1]), high = add_pairs_of_quarters(q[2], q[3]);
	_mm512_store_si512(
		a, _mm512_sub_epi32(_mm512_shuffle_i32x4(low, high, 0x88), _mm512_set1_epi32(offset_a)));
	_mm512_store_si512(
		b, _mm512_sub_epi32(_mm512_shuffle_i32x4(low, high, 0xdd), _mm512_set1_epi32(offset_b)));
}

/* ---- types with a scale per dword: Q2_K, Q3_K, Q4_K, Q6_K ---- */

/* Indices of vpermb that bring scales to a register of weights: byte 4 i is the number of the scale
 * of dword i; the other bytes are not used. */
#define FOUR(a)    a, 0, 0, 0
#define LANES_4(a) FOUR(a), FOUR(a), FOUR(a), FOUR(a)
#define SCALE_LANES(a, b, c, d)                                                                    \
	{                                                                                              \
		LANES_4(a), LANES_4(b), LANES_4(c), LANES_4(d)                                             \
	}
#define LOW_BYTES  0x1111111111111111ull

/* The same for register 0 of Q2_K, where every byte is used. Register z adds 2 z. */
#define SAME(a)    a, a, a, a
#define SAME_16(a) SAME(a), SAME(a), SAME(a), SAME(a)
static const uint8_t q2_k_scale_bytes[64] = {SAME_16(0), SAME_16(1), SAME_16(8), SAME_16(9)};

static const uint8_t k16_scale_lanes[4][64] = {SCALE_LANES(0, 1, 8, 9), SCALE_LANES(2, 3, 10, 11),
	SCALE_LANES(4, 5, 12, 13), SCALE_LANES(6, 7, 14, 15)};
static const uint8_t q4_k_scale_lanes[4][64] = {SCALE_LANES(0, 0, 2, 2), SCALE_LANES(1, 1, 3, 3),
	SCALE_LANES(4, 4, 6, 6), SCALE_LANES(5, 5, 7, 7)};

static const uint8_t q6_k_scale_lanes[4][64] = {SCALE_LANES(0, 1, 2, 3), SCALE_LANES(4, 5, 6, 7),
	SCALE_LANES(8, 9, 10, 11), SCALE_LANES(12, 13, 14, 15)};

/* The scales of register z, each in the low byte of its dwords */
ALWAYS_INLINE __m512i scale_lanes(const uint8_t lanes[4][64], int z, __m128i scales)
{
	return _mm512_maskz_permutexvar_epi8(
		LOW_BYTES, load_512(lanes[z]), _mm512_castsi128_si512(scales));
}

/* The same for signed bytes: each is moved to the top of its low word and back. */
ALWAYS_INLINE __m512i signed_scale_lanes(const uint8_t lanes[4][64], int z, __m128i scales)
{
	return _mm512_srai_epi16(_mm512_slli_epi16(scale_lanes(lanes, z, scales), 8), 8);
}

/* Sums of four products are below 2^15, so a scale multiplies the low word of each dword. */
ALWAYS_INLINE __m512i scaled_products(
	const __m512i w[4], const __m512i scale[4], const struct limb_block *x, int k)
{
	__m512i sum = _mm512_setzero_si512();
	UNROLLED_FOR (z, 4)
		sum = _mm512_dpwssd_epi32(
			sum, _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[z], limbs_at(x, k, z)), scale[z]);
	return sum;
}

/* 16 numbers times the sums of 16 limbs */
ALWAYS_INLINE __m256i times_sums(__m256i sixteen, const struct limb_block *x, int k)
{
	return _mm256_madd_epi16(sixteen, _mm256_loadu_si256((const __m256i *)x->sum[k]));
}

ALWAYS_INLINE __m512i crumbs(__m512i q, int z)
{
	return _mm512_and_si512(_mm512_srli_epi16(q, 2 * (unsigned)z), _mm512_set1_epi8(3));
}

/* Products of minima, whose factors are 16 bytes of each weight row */
ALWAYS_INLINE void least_sums(const struct limb_group *t, int64_t block,
	const uint8_t minima[LIMB_ROWS][16], struct limb_sums *s)
{
	/* dwords 0 and 1, 2 and 3 of the eight weight rows of two registers */
	const __m512i low = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29),
				  high = _mm512_add_epi32(low, _mm512_set1_epi32(2));
	__m512i rows[4], half[2][2];
	struct limb_minima m;
	UNROLLED_FOR (i, 4)
		rows[i] = load_512(minima[4 * i]);
	UNROLLED_FOR (i, 2) {
		half[i][0] = _mm512_permutex2var_epi32(rows[2 * i], low, rows[2 * i + 1]);
		half[i][1] = _mm512_permutex2var_epi32(rows[2 * i], high, rows[2 * i + 1]);
	}
	UNROLLED_FOR (i, 4) {
		__m512i a = half[0][i / 2], b = half[1][i / 2];
		minima_set(
			&m, i, i % 2 ? _mm512_shuffle_i64x2(a, b, 0xee) : _mm512_shuffle_i64x2(a, b, 0x44));
	}
	for (int i = 0; i < t->n_x; i++)
		for (int k = 0; k < EXPERT_LIMBS; k++)
			_mm512_store_si512(s->least[i][k], minima_product(&m, t->x[i] + block, k));
}

/* offset: the 16 scales times the offset of the weights */
ALWAYS_INLINE void multiply_with_offset(const struct limb_group *t, int64_t block, int r,
	const __m512i w[4], const __m512i scale[4], __m256i offset, products whole[LIMB_X])
{
	for (int i = 0; i < t->n_x; i++) {
		const struct limb_block *x = t->x[i] + block;
		UNROLLED_FOR (k, EXPERT_LIMBS)
			whole[i][k][r] = _mm512_sub_epi32(
				scaled_products(w, scale, x, k), _mm512_zextsi256_si512(times_sums(offset, x, k)));
	}
}

ALWAYS_INLINE void add_products(
	const struct limb_group *t, const products whole[LIMB_X], struct limb_sums *s)
{
	for (int i = 0; i < t->n_x; i++)
		for (int k = 0; k < EXPERT_LIMBS; k++)
			add_dwords_of_rows(whole[i][k], s->whole[0][i][k]);
}

/* Zero products for the rows that a task of less than LIMB_ROWS does not have: add_products reads
 * all. */
ALWAYS_INLINE void clear_missing_rows(const struct limb_group *t, products whole[LIMB_X])
{
	for (int i = 0; i < t->n_x; i++)
		for (int k = 0; k < EXPERT_LIMBS; k++)
			for (int r = t->n_rows; r < LIMB_ROWS; r++)
				whole[i][k][r] = _mm512_setzero_si512();
}

/* Byte 4 * scale + weight: their product */
static const uint8_t q2_k_products[64] = {
#define SCALED(n)  0, n, 2 * n, 3 * n
	SCALED(0), SCALED(1), SCALED(2), SCALED(3), SCALED(4), SCALED(5), SCALED(6), SCALED(7),
	SCALED(8), SCALED(9), SCALED(10), SCALED(11), SCALED(12), SCALED(13), SCALED(14), SCALED(15)};

/* The scales, of four bits, go into the bytes of the weights. */
static __attribute__((noinline)) void q2_k_sums(
	const struct limb_group *t, const uint8_t *p, int64_t block, struct limb_sums *s)
{
	products whole[LIMB_X];
	_Alignas(64) uint8_t minima[LIMB_ROWS][16];
	const __m128i fifteen = _mm_set1_epi8(15);
	const __m512i table = load_512(q2_k_products), three = _mm512_set1_epi8(3),
				  to_lanes = load_512(q2_k_scale_bytes);
	for (int r = 0; r < t->n_rows; r++, p += t->row_bytes) {
		prefetch_super_block(t, p, 84);
		__m128i sc = _mm_loadu_si128((const __m128i *)p);
		__m512i q = load_512(p + 16), w[4];
		/* 4 * scale */
		__m512i scales = _mm512_castsi128_si512(_mm_slli_epi16(_mm_and_si128(sc, fifteen), 2));
		UNROLLED_FOR (z, 4) {
			__m512i lanes = _mm512_permutexvar_epi8(
				_mm512_add_epi8(to_lanes, _mm512_set1_epi8((char)(2 * z))), scales);
			/* (q >> 2 z & 3) | lanes */
			w[z] = _mm512_permutexvar_epi8(
				_mm512_ternarylogic_epi64(
					_mm512_srli_epi16(q, 2 * (unsigned)z), three, lanes, 0xea),
				table);
		}
		_mm_store_si128((__m128i *)minima[r], _mm_and_si128(_mm_srli_epi16(sc, 4), fifteen));
		s->unit[0][r] = load_u16(p + 80);
		s->minimum[r] = load_u16(p + 82);
		for (int i = 0; i < t->n_x; i++) {
			const struct limb_block *x = t->x[i] + block;
			UNROLLED_FOR (k, EXPERT_LIMBS) {
				__m512i sum = _mm512_setzero_si512();
				UNROLLED_FOR (z, 4)
					sum = _mm512_dpbusd_epi32(sum, w[z], limbs_at(x, k, z));
				whole[i][k][r] = sum;
			}
		}
	}
	clear_missing_rows(t, whole);
	add_products(t, whole, s);
	memset(minima + t->n_rows, 0, (size_t)(LIMB_ROWS - t->n_rows) * sizeof minima[0]);
	least_sums(t, block, minima, s);
}

static __attribute__((noinline)) void q4_k_sums(
	const struct limb_group *t, const uint8_t *p, int64_t block, struct limb_sums *s)
{
	products whole[LIMB_X];
	_Alignas(64) uint8_t minima[LIMB_ROWS][16];
	const __m512i fifteen = _mm512_set1_epi8(15);
	const uint32_t six = 0x3f3f3f3f, four = 0x0f0f0f0f, two = 0x30303030;
	for (int r = 0; r < t->n_rows; r++, p += t->row_bytes) {
		prefetch_super_block(t, p, 144);
		uint32_t a = load_u32(p + 4), b = load_u32(p + 8), c = load_u32(p + 12);
		__m128i scales = _mm_setr_epi32((int)(a & six), (int)((c & four) | (a >> 2 & two)), 0, 0);
		__m128i least =
			_mm_setr_epi32((int)(b & six), (int)((c >> 4 & four) | (b >> 2 & two)), 0, 0);
		__m512i w[4], scale[4];
		UNROLLED_FOR (z, 4) {
			__m512i q = load_512(p + 16 + z / 2 * 64);
			w[z] = _mm512_and_si512(_mm512_srli_epi16(q, 4 * (z % 2)), fifteen);
			scale[z] = scale_lanes(q4_k_scale_lanes, z, scales);
		}
		_mm_store_si128((__m128i *)minima[r], _mm_unpacklo_epi8(least, least));
		s->unit[0][r] = load_u16(p);
		s->minimum[r] = load_u16(p + 2);
		for (int i = 0; i < t->n_x; i++)
			UNROLLED_FOR (k, EXPERT_LIMBS)
				whole[i][k][r] = scaled_products(w, scale, t->x[i] + block, k);
	}
	clear_missing_rows(t, whole);
	add_products(t, whole, s);
	memset(minima + t->n_rows, 0, (size_t)(LIMB_ROWS - t->n_rows) * sizeof minima[0]);
	least_sums(t, block, minima, s);
}

/* The 16 signed scales of Q3_K, as bytes */
ALWAYS_INLINE __m128i q3_k_scales(const uint8_t *sc)
{
	__m128i low = _mm_loadl_epi64((const __m128i *)sc), fifteen = _mm_set1_epi8(15),
			high = _mm_set1_epi32((int)load_u32(sc + 8));
	low = _mm_unpacklo_epi64(
		_mm_and_si128(low, fifteen), _mm_and_si128(_mm_srli_epi16(low, 4), fifteen));
	high = _mm_and_si128(_mm_srlv_epi32(high, _mm_setr_epi32(0, 2, 4, 6)), _mm_set1_epi8(3));
	return _mm_sub_epi8(_mm_or_si128(low, _mm_slli_epi16(high, 4)), _mm_set1_epi8(32));
}

static __attribute__((noinline)) void q3_k_sums(
	const struct limb_group *t, const uint8_t *p, int64_t block, struct limb_sums *s)
{
	products whole[LIMB_X];
	const __m512i four = _mm512_set1_epi8(4);
	for (int r = 0; r < t->n_rows; r++, p += t->row_bytes) {
		prefetch_super_block(t, p, 110);
		__m256i high = _mm256_loadu_si256((const __m256i *)p);
		/* bit z of every byte: the third bit of register z's weight */
		__m512i third =
			_mm512_inserti64x4(_mm512_castsi256_si512(high), _mm256_srli_epi16(high, 4), 1);
		__m512i q = load_512(p + 32), w[4], scale[4];
		__m128i scales = q3_k_scales(p + 96);
		__m256i words = _mm256_cvtepi8_epi16(scales);
		UNROLLED_FOR (z, 4) {
			__m512i moved = z < 2 ? _mm512_slli_epi16(third, 2 - (unsigned)z)
								  : _mm512_srli_epi16(third, (unsigned)z - 2);
			/* crumbs | (moved & 4) */
			w[z] = _mm512_ternarylogic_epi64(crumbs(q, z), moved, four, 0xf8);
			scale[z] = signed_scale_lanes(k16_scale_lanes, z, scales);
		}
		s->unit[0][r] = load_u16(p + 108);
		multiply_with_offset(t, block, r, w, scale, _mm256_slli_epi16(words, 2), whole);
	}
	clear_missing_rows(t, whole);
	add_products(t, whole, s);
}

static __attribute__((noinline)) void q6_k_sums(
	const struct limb_group *t, const uint8_t *p, int64_t block, struct limb_sums *s)
{
	products whole[LIMB_X];
	const __m512i fifteen = _mm512_set1_epi8(15), upper = _mm512_set1_epi8(0x30);
	for (int r = 0; r < t->n_rows; r++, p += t->row_bytes) {
		prefetch_super_block(t, p, 210);
		__m128i scales = _mm_loadu_si128((const __m128i *)(p + 192));
		__m512i w[4], scale[4];
		UNROLLED_FOR (z, 4) {
			/* of each 64 values the first 32 have their upper bits at 4 (z % 2), the others two
			 * further on; they are moved to bits 4 and 5 */
			__m256i high = _mm256_loadu_si256((const __m256i *)(p + 128 + z / 2 * 32));
			__m256i first = z % 2 ? high : _mm256_slli_epi16(high, 4),
					second = z % 2 ? _mm256_srli_epi16(high, 2) : _mm256_slli_epi16(high, 2);
			__m512i low = _mm512_srli_epi16(load_512(p + z / 2 * 64), 4 * ((unsigned)z % 2));
			/* (low & 15) | (high & 0x30) */
			w[z] = _mm512_ternarylogic_epi64(_mm512_and_si512(low, fifteen),
				_mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1), upper, 0xf8);
			scale[z] = signed_scale_lanes(q6_k_scale_lanes, z, scales);
		}
		s->unit[0][r] = load_u16(p + 208);
		__m256i words = _mm256_cvtepi8_epi16(scales);
		multiply_with_offset(t, block, r, w, scale, _mm256_slli_epi16(words, 5), whole);
	}
	clear_missing_rows(t, whole);
	add_products(t, whole, s);
}

/* ---- codebooks ----
 *
 * An octet is two bit planes (limb_avx512.h) and a plane of signs. One affine instruction turns
 * planes into a byte per weight; that byte indexes a table of weight + 64. A word of planes has the
 * first plane in its low byte, the second in its high one. IQ2_XS finds 64 words in two registers,
 * one look-up of vpermi2w; IQ2_XXS, with half as many grid rows, a byte of each plane by vpermb.
 * Register z has octet z of each of the eight groups of 32 weights.
 *
 * vgf2p8affineqb with the planes as its matrix and the bytes 1, 2, 4 .. 128 as its vectors
 * transposes bits: byte b of a group gets bit b of each of eight bytes. Those are, for a group's
 * octets 0 and 1, their planes and sign bytes; for octets 2 and 3, sign bytes and planes:
 *
 *      result bit      7   6   5   4   3   2  1   0
 *      octets 0, 1     a0  b0  a1  b1  s0  -  s1  -      a, b: first and second plane; s: sign
 *      octets 2, 3     s2  -   s3  -   a2  b2 a3  b3     -: anything
 *
 * vpermb looks at bits 0 to 5, so these bits find octets 1 and 3 in a table, and shifted by two
 * octets 0 and 2. */

static struct limb_codebook codebook;
static uint16_t xs_planes[512];              /* both planes of IQ2_XS */
static uint8_t octets_01[64], octets_23[64]; /* result bits -> weight + 64 */
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static uint8_t weight_plus_64(int first_plane, int second_plane, int sign)
{
	int magnitude = second_plane ? 43 : first_plane ? 25 : 8;
	return (uint8_t)(64 + (sign ? -magnitude : magnitude));
}

static void tables_fill(void)
{
	limb_codebook_fill(&codebook);
	for (int i = 0; i < 512; i++)
		xs_planes[i] = (uint16_t)(codebook.xs_first[i] | codebook.xs_second[i] << 8);
	for (int i = 0; i < 64; i++) {
		octets_01[i] = weight_plus_64(i >> 5 & 1, i >> 4 & 1, i >> 1 & 1);
		octets_23[i] = weight_plus_64(i >> 1 & 1, i & 1, i >> 5 & 1);
	}
}

/* planes: of the groups' four octets, a word each. signs: 7-bit sign indices of octets 2, 3, 0, 1
 * in bytes 0, 2, 4, 6 of a group; their top bits and the other bytes do not matter. */
ALWAYS_INLINE void codebook_weights(__m512i planes, __m512i signs, __m512i w[4])
{
	const __m512i identity = _mm512_set1_epi64((long long)0x8040201008040201),
				  low_half = _mm512_set1_epi64(0xffffffff);
	/* seven bits stay, the eighth is their parity (iq_signs) */
	signs = _mm512_gf2p8affine_epi64_epi8(signs, _mm512_set1_epi64(0x010204081020407f), 0);
	__m512i first = _mm512_gf2p8affine_epi64_epi8(
				identity, _mm512_ternarylogic_epi64(low_half, planes, signs, 0xca), 0),
			second = _mm512_gf2p8affine_epi64_epi8(
				identity, _mm512_ternarylogic_epi64(low_half, signs, planes, 0xca), 0);
	__m512i table_01 = load_512(octets_01), table_23 = load_512(octets_23);
	w[0] = _mm512_permutexvar_epi8(_mm512_srli_epi16(first, 2), table_01);
	w[1] = _mm512_permutexvar_epi8(first, table_01);
	w[2] = _mm512_permutexvar_epi8(_mm512_srli_epi16(second, 2), table_23);
	w[3] = _mm512_permutexvar_epi8(second, table_23);
}

/* 64 entries of a table, by the low six bits of each word */
ALWAYS_INLINE __m512i look_up_64(const uint16_t *table, __m512i index)
{
	return _mm512_permutex2var_epi16(load_512(table), index, load_512(table + 32));
}

/* Entry (index & 255); sixth, seventh: the words whose index has that bit */
ALWAYS_INLINE __m512i look_up_words(
	const uint16_t *table, __m512i index, __mmask32 sixth, __mmask32 seventh)
{
	__m512i low = _mm512_mask_mov_epi16(
				look_up_64(table, index), sixth, look_up_64(table + 64, index)),
			high = _mm512_mask_mov_epi16(
				look_up_64(table + 128, index), sixth, look_up_64(table + 192, index));
	return _mm512_mask_mov_epi16(low, seventh, high);
}

ALWAYS_INLINE __mmask32 words_with_bit(__m512i words, int bit)
{
	return _mm512_test_epi16_mask(words, _mm512_set1_epi16((short)(1 << bit)));
}

/* The planes of two weight rows, whose grid numbers are the low dwords of their groups: together
 * they fill a register, so that one look-up serves both. */
ALWAYS_INLINE void xxs_planes_of(__m512i a, __m512i b, __m512i planes[2])
{
	/* the low dwords of b go beside those of a */
	const __m512i index = _mm512_mask_shuffle_epi32(a, (__mmask16)0xaaaa, b, (_MM_PERM_ENUM)0x80);
	const __mmask64 seventh = bytes_with_bit(index, 6), eighth = bytes_with_bit(index, 7);
	const __m512i first = look_up_256(codebook.xxs_first, index, seventh, eighth),
				  second = look_up_256(codebook.xxs_second, index, seventh, eighth);
	/* even and odd groups of both rows; then rows */
	const __m512i even = _mm512_unpacklo_epi8(first, second),
				  odd = _mm512_unpackhi_epi8(first, second);
	planes[0] = _mm512_unpacklo_epi64(even, odd);
	planes[1] = _mm512_unpackhi_epi64(even, odd);
}

/* Row r of a task: q has its signs. The sums are not scaled yet. */
ALWAYS_INLINE void iq2_xxs_row(const struct limb_group *t, int64_t block, int r, __m512i q,
	__m512i planes, products whole[LIMB_X])
{
	/* where the sign indices of octets 2, 3, 0, 1 begin in a group's 64 bits */
	const __m512i sign_bits = _mm512_set1_epi64(0x002700200035002e);
	__m512i w[4];
	codebook_weights(planes, _mm512_multishift_epi64_epi8(sign_bits, q), w);
	for (int i = 0; i < t->n_x; i++) {
		const struct limb_block *x = t->x[i] + block;
		UNROLLED_FOR (k, EXPERT_LIMBS) {
			__m512i sum = _mm512_load_si512(x->start[0][k]);
			UNROLLED_FOR (z, 4)
				sum = _mm512_dpbusd_epi32(sum, w[z], limbs_at(x, k, z));
			whole[i][k][r] = sum;
		}
	}
}

/* As add_dwords_of_rows, of groups that are scaled: scale[r] has those of the groups of rows 2 r
 * and 2 r + 1 in the order in which even_dwords puts them. A group is two dwords: they are added
 * first, so that one product scales the groups of two rows. */
ALWAYS_INLINE void add_groups_of_rows(
	const __m512i *v, const __m512i scale[LIMB_ROWS / 2], int32_t out[LIMB_ROWS])
{
	__m512i q[4];
	UNROLLED_FOR (i, 4) {
		__m512i pair[2];
		UNROLLED_FOR (h, 2) {
			const __m512i *p = v + 4 * i + 2 * h;
			pair[h] = _mm512_mullo_epi32(
				_mm512_add_epi32(even_dwords(p[0], p[1]), odd_dwords(p[0], p[1])),
				scale[2 * i + h]);
		}
		q[i] = _mm512_add_epi32(even_dwords(pair[0], pair[1]), odd_dwords(pair[0], pair[1]));
	}
	_mm512_store_si512(out, add_pairs_of_quarters(add_pairs_of_quarters(q[0], q[1]),
								add_pairs_of_quarters(q[2], q[3])));
}

static __attribute__((noinline)) void iq2_xxs_sums(
	const struct limb_group *t, const uint8_t *p, int64_t block, struct limb_sums *s)
{
	products whole[LIMB_X];
	__m512i scale[LIMB_ROWS / 2];
	for (int r = 0; r < t->n_rows; r += 2, p += 2 * t->row_bytes) {
		const uint8_t *pair = r + 1 < t->n_rows ? p + t->row_bytes : p;
		prefetch_super_block(t, p, 66);
		prefetch_super_block(t, pair, 66);
		__m512i q[2] = {load_512(p + 2), load_512(pair + 2)}, planes[2];
		/* one load each: GCC would repeat it, and it straddles a cache line */
		__asm__("" : "+v"(q[0]), "+v"(q[1]));
		xxs_planes_of(q[0], q[1], planes);
		s->unit[0][r] = load_u16(p);
		s->unit[0][r + 1] = load_u16(pair);
		/* 2 n + 1 of each group */
		scale[r / 2] =
			_mm512_or_si512(even_dwords(_mm512_srli_epi64(q[0], 59), _mm512_srli_epi64(q[1], 59)),
				_mm512_set1_epi32(1));
		iq2_xxs_row(t, block, r, q[0], planes[0], whole);
		iq2_xxs_row(t, block, r + 1, q[1], planes[1], whole);
	}
	clear_missing_rows(t, whole);
	for (int r = (t->n_rows + 1) / 2; r < LIMB_ROWS / 2; r++)
		scale[r] = _mm512_setzero_si512();
	for (int i = 0; i < t->n_x; i++)
		for (int k = 0; k < EXPERT_LIMBS; k++)
			add_groups_of_rows(whole[i][k], scale, s->whole[0][i][k]);
}

/* Byte g of a block's scales for both dwords of group g */
static const uint8_t group_lanes[64] = {FOUR(0), FOUR(0), FOUR(1), FOUR(1), FOUR(2), FOUR(2),
	FOUR(3), FOUR(3), FOUR(4), FOUR(4), FOUR(5), FOUR(5), FOUR(6), FOUR(6), FOUR(7), FOUR(7)};

static __attribute__((noinline)) void iq2_xs_sums(
	const struct limb_group *t, const uint8_t *p, int64_t block, struct limb_sums *s)
{
	products whole[LIMB_X];
	const __m512i sign_bits = _mm512_set1_epi64(0x0019000900390029);
	const __m512i thirty = _mm512_set1_epi32(30), one = _mm512_set1_epi32(1);
	for (int r = 0; r < t->n_rows; r++, p += t->row_bytes) {
		prefetch_super_block(t, p, 74);
		__m512i q = load_512(p + 2), w[4];
		__asm__("" : "+v"(q));
		__mmask32 sixth = words_with_bit(q, 6), seventh = words_with_bit(q, 7);
		codebook_weights(
			_mm512_mask_mov_epi16(look_up_words(xs_planes, q, sixth, seventh), words_with_bit(q, 8),
				look_up_words(xs_planes + 256, q, sixth, seventh)),
			_mm512_multishift_epi64_epi8(sign_bits, q), w);
		__m512i sc = _mm512_maskz_permutexvar_epi8(LOW_BYTES, load_512(group_lanes),
			_mm512_castsi128_si512(_mm_loadl_epi64((const __m128i *)(p + 66))));
		/* (x & 30) | 1 of 2 x and of x / 8: 2 n + 1 of the low and of the high nibble */
		__m512i scale_low = _mm512_ternarylogic_epi32(_mm512_slli_epi32(sc, 1), thirty, one, 0xea),
				scale_high = _mm512_ternarylogic_epi32(_mm512_srli_epi32(sc, 3), thirty, one, 0xea);
		s->unit[0][r] = load_u16(p);
		for (int i = 0; i < t->n_x; i++) {
			const struct limb_block *x = t->x[i] + block;
			UNROLLED_FOR (k, EXPERT_LIMBS) {
				__m512i low = _mm512_load_si512(x->start[0][k]),
						high = _mm512_load_si512(x->start[1][k]);
				UNROLLED_FOR (z, 2) {
					low = _mm512_dpbusd_epi32(low, w[z], limbs_at(x, k, z));
					high = _mm512_dpbusd_epi32(high, w[2 + z], limbs_at(x, k, 2 + z));
				}
				whole[i][k][r] = _mm512_add_epi32(
					_mm512_mullo_epi32(low, scale_low), _mm512_mullo_epi32(high, scale_high));
			}
		}
	}
	clear_missing_rows(t, whole);
	add_products(t, whole, s);
}

/* ---- Q8_0 ---- */

/* Blocks 2 z and 2 z + 1 plus 128; zeros (any number would do: the limbs are zero) past the row */
ALWAYS_INLINE __m512i q8_0_pair(const uint8_t *p, int z, int steps)
{
	__m256i zero = _mm256_setzero_si256();
	const __m256i *a = (const __m256i *)(p + 68 * z + 2), *b = (const __m256i *)(p + 68 * z + 36);
	__m256i low = 2 * z < steps ? _mm256_loadu_si256(a) : zero,
			high = 2 * z + 1 < steps ? _mm256_loadu_si256(b) : zero;
	return _mm512_xor_si512(
		_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), _mm512_set1_epi8((char)0x80));
}

ALWAYS_INLINE int offset_of_step(const struct limb_block *x, int k, int step)
{
	return 128 * (x->sum[k][2 * step] + x->sum[k][2 * step + 1]);
}

static __attribute__((noinline)) void q8_0_sums(
	const struct limb_group *t, const uint8_t *p, int64_t block, int steps, struct limb_sums *s)
{
	__m512i sum[EXPERT_LIMBS][LIMB_ROWS][4];
	for (int i = 0; i < t->n_x; i++) {
		const struct limb_block *x = t->x[i] + block;
		const uint8_t *row = p;
		for (int r = 0; r < t->n_rows; r++, row += t->row_bytes) {
			if (!i) {
				prefetch_super_block(t, row, 272);
				for (int step = 0; step < steps; step++)
					s->unit[step][r] = load_u16(row + 34 * step);
			}
			UNROLLED_FOR (z, 4) {
				__m512i w = q8_0_pair(row, z, steps);
				UNROLLED_FOR (k, EXPERT_LIMBS)
					sum[k][r][z] =
						_mm512_dpbusd_epi32(_mm512_setzero_si512(), w, limbs_at(x, k, z));
			}
		}
		for (int k = 0; k < EXPERT_LIMBS; k++) {
			for (int r = t->n_rows; r < LIMB_ROWS; r++)
				UNROLLED_FOR (z, 4)
					sum[k][r][z] = _mm512_setzero_si512();
			UNROLLED_FOR (z, 4)
				add_halves_of_rows(sum[k][0] + z, 4, offset_of_step(x, k, 2 * z),
					offset_of_step(x, k, 2 * z + 1), s->whole[2 * z][i][k],
					s->whole[2 * z + 1][i][k]);
		}
	}
}

static void super_block_sums(
	const struct limb_group *t, const uint8_t *w, int64_t block, int steps, struct limb_sums *s)
{
	switch (t->type) {
	case DTYPE_IQ2_XXS:
		iq2_xxs_sums(t, w, block, s);
		break;
	case DTYPE_IQ2_XS:
		iq2_xs_sums(t, w, block, s);
		break;
	case DTYPE_Q2_K:
		q2_k_sums(t, w, block, s);
		break;
	case DTYPE_Q3_K:
		q3_k_sums(t, w, block, s);
		break;
	case DTYPE_Q4_K:
		q4_k_sums(t, w, block, s);
		break;
	case DTYPE_Q6_K:
		q6_k_sums(t, w, block, s);
		break;
	default:
		q8_0_sums(t, w, block, steps, s);
	}
}

static void vnni_multiply(const struct limb_task *t)
{
	pthread_once(&tables_once, tables_fill);
	vector_multiply(t);
}

static const struct limb_isa isa_vnni = {
	"AVX-512 VNNI", limbs_split, vnni_multiply, NULL, LIMB_X, NULL};
const struct limb_isa *const limb_isa_vnni = &isa_vnni;

#endif
