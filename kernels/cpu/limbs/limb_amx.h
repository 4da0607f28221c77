/* SPDX-License-Identifier: MIT */
/*
 * What limb_rows_amx.c and limb_prompts_amx.c have in common: decoding of packed weights to planes
 * of bytes (limb_rows_amx.c says what a plane is), and what makes floats of the exact sums. Each of
 * the two files compiles its own copy. Before `decode` it defines
 *
 *     ALWAYS_INLINE void products_step(const struct tile_products *p, int step)
 *
 * which `decode` calls for steps 0 .. 3 of a super-block, in order: place for tile products of
 * another super-block, which then overlap with the decoding. A decoder reads no byte past the
 * super-blocks of its LIMB_ROWS rows.
 */
#ifndef GLM_KERNELS_LIMB_AMX_H
#define GLM_KERNELS_LIMB_AMX_H

#include "kernels/cpu/limbs/limb_avx512.h"
#include "src/base/half.h"

#include <pthread.h>
#include <string.h>

#define DWORDS       64 /* of a super-block's places */
#define LIMBS_OF_ROW (EXPERT_LIMBS * 256)

/* A super-block of LIMB_ROWS weight rows. Of a plane: dword p of the places of each row. */
struct decoded_block {
	_Alignas(64) uint32_t high[DWORDS][LIMB_ROWS], low[DWORDS][LIMB_ROWS];
	struct limb_minima minima;
	uint16_t unit[LIMB_STEPS][LIMB_ROWS], minimum[LIMB_ROWS]; /* halves; Q8_0 has a unit per step */
	int steps; /* blocks of 32 values that the row has here */
};

/* Packed super-blocks: row r is at p + offset[r]. Rows that the task does not have repeat its
 * last. */
struct packed_group {
	const uint8_t *p;
	size_t offset[LIMB_ROWS];
	struct limb_group group;
};

ALWAYS_INLINE const uint8_t *row_of(const struct packed_group *p, int r)
{
	return p->p + p->offset[r];
}

/* ---- transposition ---- */

/* out[q]: dword q of rows[0 .. 3] in the lower quarter, ... of rows[12 .. 15] in the upper */
ALWAYS_INLINE void transpose_quarters(const __m512i rows[4], __m512i out[4])
{
	__m512i a = _mm512_unpacklo_epi32(rows[0], rows[1]),
			b = _mm512_unpackhi_epi32(rows[0], rows[1]),
			c = _mm512_unpacklo_epi32(rows[2], rows[3]),
			d = _mm512_unpackhi_epi32(rows[2], rows[3]);
	out[0] = _mm512_unpacklo_epi64(a, c);
	out[1] = _mm512_unpackhi_epi64(a, c);
	out[2] = _mm512_unpacklo_epi64(b, d);
	out[3] = _mm512_unpackhi_epi64(b, d);
}

/* out[d]: dword d of the 64 bytes at offset `at` of every row */
ALWAYS_INLINE void transpose_64(const struct packed_group *p, size_t at, __m512i out[16])
{
	__m512i column[4][4];
	UNROLLED_FOR (i, 4) {
		__m512i rows[4];
		UNROLLED_FOR (k, 4)
			rows[k] = load_512(row_of(p, 4 * i + k) + at);
		transpose_quarters(rows, column[i]);
	}
	UNROLLED_FOR (c, 4) {
		__m512i a = _mm512_shuffle_i32x4(column[0][c], column[1][c], 0x44),
				b = _mm512_shuffle_i32x4(column[2][c], column[3][c], 0x44),
				e = _mm512_shuffle_i32x4(column[0][c], column[1][c], 0xee),
				f = _mm512_shuffle_i32x4(column[2][c], column[3][c], 0xee);
		out[c] = _mm512_shuffle_i32x4(a, b, 0x88);
		out[4 + c] = _mm512_shuffle_i32x4(a, b, 0xdd);
		out[8 + c] = _mm512_shuffle_i32x4(e, f, 0x88);
		out[12 + c] = _mm512_shuffle_i32x4(e, f, 0xdd);
	}
}

/* out[d]: dword d of the 16 bytes at offset `at` of every row */
ALWAYS_INLINE void transpose_16(const struct packed_group *p, size_t at, __m512i out[4])
{
	__m512i rows[4];
	UNROLLED_FOR (k, 4) {
		__m512i r = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(row_of(p, k) + at)));
		UNROLLED_FOR (q, 3)
			r = _mm512_mask_broadcast_i32x4(r, (__mmask16)(0xf0 << 4 * q),
				_mm_loadu_si128((const __m128i *)(row_of(p, 4 * q + 4 + k) + at)));
		rows[k] = r;
	}
	transpose_quarters(rows, out);
}

ALWAYS_INLINE void prefetch_rows(const struct packed_group *p, int bytes)
{
	if (p->group.ahead)
		UNROLLED_FOR (r, LIMB_ROWS)
			prefetch_lines((uintptr_t)p->p + p->group.ahead + p->offset[r], bytes);
	if (p->group.cold)
		UNROLLED_FOR (r, LIMB_ROWS)
			prefetch_lines(
				(uintptr_t)p->p + (uintptr_t)(PREFETCH_BLOCKS * bytes) + p->offset[r], bytes);
}

/* The half at offset `at` of every row */
ALWAYS_INLINE void load_halves(const struct packed_group *p, size_t at, uint16_t out[LIMB_ROWS])
{
	UNROLLED_FOR (r, LIMB_ROWS)
		out[r] = load_u16(row_of(p, r) + at);
}

/* The lower 16 bits of each dword */
ALWAYS_INLINE void store_words(__m512i dwords, uint16_t out[LIMB_ROWS])
{
	_mm256_storeu_si256((__m256i *)out, _mm512_cvtepi32_epi16(dwords));
}

/* ---- bytes of scales ---- */

/* All four bytes of a dword: its byte n */
ALWAYS_INLINE __m512i repeat_byte(__m512i v, int n)
{
	return _mm512_shuffle_epi8(v, _mm512_add_epi8(_mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 0, 0,
													  4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12)),
									  _mm512_set1_epi8((char)n)));
}

/* Both words of a dword: its byte n, 0 .. 255 */
ALWAYS_INLINE __m512i byte_to_words(__m512i v, int n)
{
	return _mm512_and_si512(repeat_byte(v, n), _mm512_set1_epi16(0xff));
}

ALWAYS_INLINE __m512i bits_of(__m512i v, unsigned shift, int mask)
{
	return _mm512_and_si512(_mm512_srli_epi16(v, shift), _mm512_set1_epi8((char)mask));
}

/* a where mask has a 1, else b */
ALWAYS_INLINE __m512i merge(__m512i mask, __m512i a, __m512i b)
{
	return _mm512_ternarylogic_epi64(mask, a, b, 0xca);
}

struct tile_products;
ALWAYS_INLINE void products_step(const struct tile_products *p, int step);

/* As LDTILECFG reads it. */
struct tile_config {
	uint8_t palette, start_row, reserved[14];
	uint16_t row_bytes[16];
	uint8_t rows[16];
};
_Static_assert(sizeof(struct tile_config) == 64, "as LDTILECFG reads it");

/* ---- codebooks ---- */

static struct limb_codebook codebook;
/* Magnitude times scale is 256 * scaled_high + scaled_low. Index: 4 * n + code, the scale being
 * 2 n + 1; codes as in codebook_group. */
static int8_t scaled_high[64], scaled_low[64];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void tables_fill(void)
{
	static const int magnitude[4] = {8, 43, 25, 0};
	limb_codebook_fill(&codebook);
	for (int i = 0; i < 64; i++) {
		int product = magnitude[i % 4] * (2 * (i / 4) + 1);
		scaled_low[i] = (int8_t)product; /* never -128: its negative is a byte, too */
		scaled_high[i] = (int8_t)((product - scaled_low[i]) / 256);
	}
}

/* A group of 32 weights of each row. A byte of `first` and `second` is the two bit planes of an
 * octet (limb_avx512.h), one of `signs` its eight signs; byte i is octet octet[i].
 * scale[i / 2]: 4 n in every byte, for bytes 0, 2 and 1, 3. */
ALWAYS_INLINE void codebook_group(int group, const int octet[4], __m512i first, __m512i second,
	__m512i signs, const __m512i scale[2], struct decoded_block *out)
{
	/* transposes bits: byte b of a group of eight gets bit b of each of eight bytes, of which the
	 * first comes to bit 7 */
	const __m512i identity = _mm512_set1_epi64((long long)0x8040201008040201),
				  three = _mm512_set1_epi8(3), zero = _mm512_setzero_si512();
	/* bits 7 - 2 i and 6 - 2 i of a byte: the planes of octet[i], or twice its sign */
	__m512i code[2] = {_mm512_unpacklo_epi8(first, second), _mm512_unpackhi_epi8(first, second)},
			sign[2] = {_mm512_unpacklo_epi8(signs, signs), _mm512_unpackhi_epi8(signs, signs)};
	UNROLLED_FOR (h, 2) {
		code[h] = _mm512_gf2p8affine_epi64_epi8(identity, code[h], 0);
		sign[h] = _mm512_gf2p8affine_epi64_epi8(identity, sign[h], 0);
	}
	UNROLLED_FOR (h, 2) { /* weights 4 h .. 4 h + 3 of the octets */
		__m512i codes = h ? odd_dwords(code[0], code[1]) : even_dwords(code[0], code[1]),
				negative = h ? odd_dwords(sign[0], sign[1]) : even_dwords(sign[0], sign[1]);
		UNROLLED_FOR (i, 4) {
			const __m512i index = _mm512_ternarylogic_epi64(
				_mm512_srli_epi16(codes, 6 - 2 * (unsigned)i), three, scale[i % 2], 0xea);
			const __mmask64 minus = bytes_with_bit(negative, 7 - 2 * i);
			const __m512i high = _mm512_permutexvar_epi8(index, load_512(scaled_high)),
						  low = _mm512_permutexvar_epi8(index, load_512(scaled_low));
			const int at = 16 * octet[i] + 2 * group + h;
			_mm512_store_si512(out->high[at], _mm512_mask_sub_epi8(high, minus, zero, high));
			_mm512_store_si512(out->low[at], _mm512_mask_sub_epi8(low, minus, zero, low));
		}
	}
}

static __attribute__((noinline)) void iq2_xxs_decode(
	const struct packed_group *p, struct decoded_block *out, const struct tile_products *before)
{
	static const int octet[4] = {0, 1, 2, 3};
	/* where the sign indices begin in a pair of dwords; seven bits stay, the eighth is their parity
	 * (iq_signs) */
	const __m512i sign_bits = _mm512_set1_epi64(0x352e2720150e0700),
				  parity = _mm512_set1_epi64(0x010204081020407f);
	__m512i q[16];
	prefetch_rows(p, 66);
	transpose_64(p, 2, q);
	load_halves(p, 0, out->unit[0]);
	for (int g = 0; g < 8; g++) {
		const __m512i index = q[2 * g], word = q[2 * g + 1];
		const __mmask64 seventh = bytes_with_bit(index, 6), eighth = bytes_with_bit(index, 7);
		const __m512i n = bits_of(repeat_byte(word, 3), 2, 0x3c), scale[2] = {n, n};
		codebook_group(g, octet, look_up_256(codebook.xxs_first, index, seventh, eighth),
			look_up_256(codebook.xxs_second, index, seventh, eighth),
			_mm512_gf2p8affine_epi64_epi8(_mm512_multishift_epi64_epi8(sign_bits, word), parity, 0),
			scale, out);
		if (g % 2)
			products_step(before, g / 2);
	}
}

static __attribute__((noinline)) void iq2_xs_decode(
	const struct packed_group *p, struct decoded_block *out, const struct tile_products *before)
{
	static const int octet[4] = {0, 2, 1, 3};
	/* bits 1 .. 7 stay, one down; the eighth is their parity */
	const __m512i parity = _mm512_set1_epi64(0x02040810204080fe),
				  low_bytes = _mm512_set1_epi16(0xff);
	__m512i q[16], tail[4]; /* tail[2], tail[3]: the scales */
	prefetch_rows(p, 74);
	transpose_64(p, 2, q);
	transpose_16(p, 58, tail);
	load_halves(p, 0, out->unit[0]);
	for (int g = 0; g < 8; g++) {
		const __m512i a = q[2 * g], b = q[2 * g + 1],
					  index = merge(low_bytes, a, _mm512_slli_epi16(b, 8)),
					  upper = merge(low_bytes, _mm512_srli_epi16(a, 8), b);
		const __mmask64 seventh = bytes_with_bit(index, 6), eighth = bytes_with_bit(index, 7),
						ninth = bytes_with_bit(upper, 0);
		const __m512i n = repeat_byte(tail[2 + g / 4], g % 4),
					  scale[2] = {bits_of(_mm512_slli_epi16(n, 2), 0, 0x3c), bits_of(n, 2, 0x3c)};
		__m512i plane[2];
		UNROLLED_FOR (i, 2) {
			const uint8_t *table = i ? codebook.xs_second : codebook.xs_first;
			plane[i] = _mm512_mask_mov_epi8(look_up_256(table, index, seventh, eighth), ninth,
				look_up_256(table + 256, index, seventh, eighth));
		}
		codebook_group(g, octet, plane[0], plane[1],
			_mm512_gf2p8affine_epi64_epi8(upper, parity, 0), scale, out);
		if (g % 2)
			products_step(before, g / 2);
	}
}

/* ---- K types ---- */

static __attribute__((noinline)) void q2_k_decode(
	const struct packed_group *p, struct decoded_block *out, const struct tile_products *before)
{
	__m512i q[16], sc[4];
	prefetch_rows(p, 84);
	transpose_64(p, 16, q);
	transpose_16(p, 0, sc);
	load_halves(p, 80, out->unit[0]);
	load_halves(p, 82, out->minimum);
	UNROLLED_FOR (c, 4) {
		minima_set(&out->minima, c, bits_of(sc[c], 4, 15));
		sc[c] = bits_of(sc[c], 0, 15);
	}
	for (int z = 0; z < 4; z++) {
		UNROLLED_FOR (j, 4) {
			const int sub = j / 2 * 8 + 2 * z + j % 2;
			const __m512i scale = byte_to_words(sc[sub / 4], sub % 4);
			UNROLLED_FOR (d, 4) /* two bytes in a word: no product exceeds its byte */
				_mm512_store_si512(out->low[16 * z + 4 * j + d],
					_mm512_mullo_epi16(bits_of(q[4 * j + d], 2 * (unsigned)z, 3), scale));
		}
		products_step(before, z);
	}
}

/* The 16 scales of Q3_K plus 32, four in a dword; tail: the last 16 bytes of the super-block, whose
 * bytes 2 .. 13 have them */
ALWAYS_INLINE void q3_k_scales(const __m512i tail[4], __m512i out[4])
{
	__m512i word[3];
	UNROLLED_FOR (i, 3)
		word[i] =
			_mm512_or_si512(_mm512_srli_epi32(tail[i], 16), _mm512_slli_epi32(tail[i + 1], 16));
	UNROLLED_FOR (i, 4)
		out[i] = _mm512_or_si512(bits_of(word[i % 2], i / 2 * 4u, 15),
			_mm512_slli_epi16(bits_of(word[2], 2 * (unsigned)i, 3), 4));
}

/* A weight is q - 4 (1 - t), q two bits and t one; its scale is s - 32, s six bits. The plane is
 * their product's negative, -128 .. 124: 32 q - q s + 4 (1 - t) (s - 32). */
static __attribute__((noinline)) void q3_k_decode(
	const struct packed_group *p, struct decoded_block *out, const struct tile_products *before)
{
	__m512i q[16], third[8], tail[4], sc[4];
	prefetch_rows(p, 110);
	transpose_64(p, 32, q);
	transpose_16(p, 0, third);
	transpose_16(p, 16, third + 4);
	transpose_16(p, 94, tail);
	store_words(_mm512_srli_epi32(tail[3], 16), out->unit[0]);
	q3_k_scales(tail, sc);
	for (int z = 0; z < 4; z++) {
		UNROLLED_FOR (j, 4) {
			const int sub = j / 2 * 8 + 2 * z + j % 2;
			const __m512i bytes = repeat_byte(sc[sub / 4], sub % 4),
						  words = _mm512_and_si512(bytes, _mm512_set1_epi16(0xff)),
						  four = _mm512_xor_si512(
							  _mm512_slli_epi16(bytes, 2), _mm512_set1_epi8((char)0x80));
			UNROLLED_FOR (d, 4) {
				const __m512i crumb = bits_of(q[4 * j + d], 2 * (unsigned)z, 3),
							  v = _mm512_sub_epi8(
								  _mm512_slli_epi16(crumb, 5), _mm512_mullo_epi16(crumb, words));
				const __mmask64 missing = _mm512_testn_epi8_mask(
					third[j % 2 * 4 + d], _mm512_set1_epi8((char)(1 << (j / 2 * 4 + z))));
				_mm512_store_si512(
					out->low[16 * z + 4 * j + d], _mm512_mask_add_epi8(v, missing, v, four));
			}
		}
		products_step(before, z);
	}
}

/* Scales of six bits are 8 * high + low, so that no product exceeds its byte. */
static __attribute__((noinline)) void q4_k_decode(
	const struct packed_group *p, struct decoded_block *out, const struct tile_products *before)
{
	const __m512i six = _mm512_set1_epi8(0x3f), four = _mm512_set1_epi8(0x0f),
				  two = _mm512_set1_epi8(0x30);
	__m512i head[4], scale[2], least[2];
	prefetch_rows(p, 144);
	transpose_16(p, 0, head);
	store_words(head[0], out->unit[0]);
	store_words(_mm512_srli_epi32(head[0], 16), out->minimum);
	scale[0] = _mm512_and_si512(head[1], six);
	least[0] = _mm512_and_si512(head[2], six);
	scale[1] = _mm512_or_si512(
		_mm512_and_si512(head[3], four), _mm512_and_si512(_mm512_srli_epi16(head[1], 2), two));
	least[1] = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(head[3], 4), four),
		_mm512_and_si512(_mm512_srli_epi16(head[2], 2), two));
	const __m512i twice =
		_mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13));
	UNROLLED_FOR (c, 4) /* a minimum is that of two sub-blocks */
		minima_set(&out->minima, c,
			_mm512_shuffle_epi8(
				least[c / 2], _mm512_add_epi8(twice, _mm512_set1_epi8((char)(c % 2 * 2)))));
	for (int half = 0; half < 2; half++) {
		__m512i q[16];
		transpose_64(p, 16 + 64 * (size_t)half, q);
		UNROLLED_FOR (k, 4) { /* group 2 a + n */
			const int a = k / 2, n = k % 2;
			const __m512i words = byte_to_words(scale[half], k),
						  low = _mm512_and_si512(words, _mm512_set1_epi16(7)),
						  high = _mm512_srli_epi16(words, 3);
			UNROLLED_FOR (d, 8) {
				const __m512i w = bits_of(q[8 * a + d], 4 * (unsigned)n, 15);
				const int at = 32 * half + 16 * n + 8 * a + d;
				_mm512_store_si512(out->low[at], _mm512_mullo_epi16(w, low));
				_mm512_store_si512(out->high[at], _mm512_mullo_epi16(w, high));
			}
			if (n)
				products_step(before, 2 * half + a);
		}
	}
}

/* A weight, -32 .. 31, times its scale, a signed byte, is 256 * high + low. */
static __attribute__((noinline)) void q6_k_decode(
	const struct packed_group *p, struct decoded_block *out, const struct tile_products *before)
{
	const __m512i low_bytes = _mm512_set1_epi16(0xff), half = _mm512_set1_epi16(128);
	__m512i upper[16], sc[4];
	prefetch_rows(p, 210);
	transpose_64(p, 128, upper);
	transpose_16(p, 192, sc);
	load_halves(p, 208, out->unit[0]);
	for (int h = 0; h < 2; h++) {
		__m512i q[16];
		transpose_64(p, 64 * (size_t)h, q);
		UNROLLED_FOR (g, 4) {
			UNROLLED_FOR (d, 8) {
				const int sub = 8 * h + 2 * g + d / 4, at = 32 * h + 8 * g + d;
				const __m512i scale = _mm512_srai_epi16(repeat_byte(sc[sub / 4], sub % 4), 8),
							  w = _mm512_sub_epi8(
								  _mm512_or_si512(bits_of(q[8 * (g % 2) + d], g / 2 * 4u, 15),
									  _mm512_slli_epi16(
										  bits_of(upper[8 * h + d], 2 * (unsigned)g, 3), 4)),
								  _mm512_set1_epi8(32)),
							  even = _mm512_mullo_epi16(
								  _mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8), scale),
							  odd = _mm512_mullo_epi16(_mm512_srai_epi16(w, 8), scale);
				_mm512_store_si512(out->low[at], merge(low_bytes, even, _mm512_slli_epi16(odd, 8)));
				_mm512_store_si512(out->high[at],
					merge(low_bytes, _mm512_srli_epi16(_mm512_add_epi16(even, half), 8),
						_mm512_add_epi16(odd, half)));
			}
			if (g % 2)
				products_step(before, 2 * h + g / 2);
		}
	}
}

/* ---- Q8_0 ---- */

static __attribute__((noinline)) void q8_0_decode(
	const struct packed_group *p, struct decoded_block *out, const struct tile_products *before)
{
	prefetch_rows(p, 272);
	for (int step = 0; step < LIMB_STEPS; step++) {
		const size_t at = 34 * (size_t)step;
		for (int half = 0; half < 2 && step < out->steps; half++) {
			__m512i q[4];
			transpose_16(p, at + 2 + 16 * (size_t)half, q);
			UNROLLED_FOR (d, 4)
				_mm512_store_si512(out->low[8 * step + 4 * half + d], q[d]);
		}
		if (step < out->steps)
			load_halves(p, at, out->unit[step]);
		if (step % 2)
			products_step(before, step / 2);
	}
}

/* ---- floats ---- */

/* Weight times scale is 2^shift times the high plane plus the low one, where there are both;
 * negative: its negative is the low plane. */
struct plane_format {
	int shift;
	bool negative, minima, steps; /* steps: Q8_0 */
	float unit;
};

static struct plane_format plane_format_of(enum dtype type)
{
	switch (type) {
	case DTYPE_Q2_K:
		return (struct plane_format){.minima = true, .unit = 1};
	case DTYPE_Q3_K:
		return (struct plane_format){.negative = true, .unit = 1};
	case DTYPE_Q4_K:
		return (struct plane_format){.shift = 3, .minima = true, .unit = 1};
	case DTYPE_Q8_0:
		return (struct plane_format){.steps = true, .unit = 1};
	case DTYPE_Q6_K:
		return (struct plane_format){.shift = 8, .unit = 1};
	default:
		return (struct plane_format){.shift = 8, .unit = 0.125f};
	}
}

ALWAYS_INLINE __m512 halves_16(const uint16_t half[LIMB_ROWS])
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)half));
}

/* The floats of a super-block's halves */
struct block_scales {
	__m512 unit[LIMB_STEPS], minimum;
};

ALWAYS_INLINE void block_scales_of(
	const struct plane_format *format, const struct decoded_block *w, struct block_scales *out)
{
	for (int step = 0; step < (format->steps ? w->steps : 1); step++)
		out->unit[step] = _mm512_mul_ps(halves_16(w->unit[step]), _mm512_set1_ps(format->unit));
	if (format->minima)
		out->minimum = halves_16(w->minimum);
}

/* Point 3 of kernels/expert_arithmetic.h: v of limb k of x from the sums of the planes. Not for
 * Q8_0. */
ALWAYS_INLINE __m512 planes_value(const struct plane_format *format, const struct decoded_block *w,
	const struct block_scales *scales, __m512i low, __m512i high, const struct limb_block *x, int k)
{
	__m512i whole = low;
	if (format->shift)
		whole = _mm512_add_epi32(whole, _mm512_slli_epi32(high, (unsigned)format->shift));
	if (format->negative)
		whole = _mm512_sub_epi32(_mm512_setzero_si512(), whole);
	const __m512 v = _mm512_mul_ps(scales->unit[0], _mm512_cvtepi32_ps(whole));
	if (!format->minima)
		return v;
	return _mm512_fnmadd_ps(
		scales->minimum, _mm512_cvtepi32_ps(minima_product(&w->minima, x, k)), v);
}

static void decode(enum dtype type, const struct packed_group *p, struct decoded_block *out,
	const struct tile_products *before)
{
	switch (type) {
	case DTYPE_IQ2_XXS:
		iq2_xxs_decode(p, out, before);
		break;
	case DTYPE_IQ2_XS:
		iq2_xs_decode(p, out, before);
		break;
	case DTYPE_Q2_K:
		q2_k_decode(p, out, before);
		break;
	case DTYPE_Q3_K:
		q3_k_decode(p, out, before);
		break;
	case DTYPE_Q4_K:
		q4_k_decode(p, out, before);
		break;
	case DTYPE_Q6_K:
		q6_k_decode(p, out, before);
		break;
	default:
		q8_0_decode(p, out, before);
	}
}

static struct packed_group packed_rows(const struct limb_task *t, int64_t first)
{
	struct packed_group p = {.group = limb_group_of(t, first)};
	p.p = p.group.w;
	for (int r = 0; r < LIMB_ROWS; r++)
		p.offset[r] = (size_t)MIN(r, p.group.n_rows - 1) * t->row_bytes;
	return p;
}

#endif
