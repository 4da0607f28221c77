/* SPDX-License-Identifier: MIT */
/*
 * What limb_rows_vnni.c and limb_rows_amx.c have in common: the codebooks of IQ2_XXS and IQ2_XS as
 * bit planes, and the products of minima. Each file compiles its own copy.
 *
 * A magnitude of a codebook is 8, 25 or 43: the bits (second, first) = 00, 01, 10 of two planes. An
 * octet, eight weights, is a byte of each plane and a byte of signs.
 */
#ifndef GLM_KERNELS_LIMB_AVX512_H
#define GLM_KERNELS_LIMB_AVX512_H

#include "kernels/cpu/limbs/limb_group.h"
#include "src/base/half.h"
#include "src/quant/iq_grids.h"

ALWAYS_INLINE __m512i load_512(const void *p)
{
	return _mm512_loadu_si512(p);
}

/* Dwords 0 and 2 of each quarter of a, then of b; dwords 1 and 3 */
ALWAYS_INLINE __m512i even_dwords(__m512i a, __m512i b)
{
	return _mm512_castps_si512(
		_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0x88));
}

ALWAYS_INLINE __m512i odd_dwords(__m512i a, __m512i b)
{
	return _mm512_castps_si512(
		_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0xdd));
}

/* ---- codebooks ---- */

/* The planes of an octet, by the number of its grid row. */
struct limb_codebook {
	uint8_t xxs_first[256], xxs_second[256], xs_first[512], xs_second[512];
};

static void octet_planes(uint64_t row, uint8_t *first, uint8_t *second)
{
	*first = *second = 0;
	for (int i = 0; i < 8; i++) {
		unsigned magnitude = row >> 8 * i & 255;
		*first |= (uint8_t)((magnitude == 25) << i);
		*second |= (uint8_t)((magnitude == 43) << i);
	}
}

static void limb_codebook_fill(struct limb_codebook *c)
{
	for (int i = 0; i < 256; i++)
		octet_planes(iq2xxs_grid[i], &c->xxs_first[i], &c->xxs_second[i]);
	for (int i = 0; i < 512; i++)
		octet_planes(iq2xs_grid[i], &c->xs_first[i], &c->xs_second[i]);
}

/* Entry `index` of a table. seventh: the bytes of index that have bit 6; eighth: bit 7 */
ALWAYS_INLINE __m512i look_up_256(
	const uint8_t table[256], __m512i index, __mmask64 seventh, __mmask64 eighth)
{
	__m512i low = _mm512_mask_permutexvar_epi8(_mm512_permutexvar_epi8(index, load_512(table)),
				seventh, index, load_512(table + 64)),
			high =
				_mm512_mask_permutexvar_epi8(_mm512_permutexvar_epi8(index, load_512(table + 128)),
					seventh, index, load_512(table + 192));
	return _mm512_mask_mov_epi8(low, eighth, high);
}

ALWAYS_INLINE __mmask64 bytes_with_bit(__m512i v, int bit)
{
	return _mm512_test_epi8_mask(v, _mm512_set1_epi8((char)(1 << bit)));
}

/* ---- minima ---- */

/* Factors of the minima of 16 weight rows. A dword is a weight row: words 2 c and 2 c + 1 have
 * those of sub-blocks 4 c and 4 c + 1, 4 c + 2 and 4 c + 3. */
struct limb_minima {
	__m512i words[8];
};

/* bytes: of each weight row the factors of sub-blocks 4 c .. 4 c + 3 */
ALWAYS_INLINE void minima_set(struct limb_minima *m, int c, __m512i bytes)
{
	const __m512i first = _mm512_broadcast_i32x4(
					  _mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1)),
				  second = _mm512_broadcast_i32x4(
					  _mm_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1));
	m->words[2 * c] = _mm512_shuffle_epi8(bytes, first);
	m->words[2 * c + 1] = _mm512_shuffle_epi8(bytes, second);
}

/* Minima times the sums of 16 limbs k. Nothing has to be added up across dwords. */
ALWAYS_INLINE __m512i minima_product(const struct limb_minima *m, const struct limb_block *x, int k)
{
	__m512i sum = _mm512_setzero_si512();
	UNROLLED_FOR (c, 8)
		sum = _mm512_dpwssd_epi32(
			sum, m->words[c], _mm512_set1_epi32((int)load_u32(&x->sum[k][2 * c])));
	return sum;
}

#endif
