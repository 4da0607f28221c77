/* SPDX-License-Identifier: MIT */
/*
 * The packed blocks of every GGUF weight type, as bytes lie in the file. C and CUDA read this
 * header alike.
 *
 * `d`, `dmin` are IEEE halves kept as bits (src/base/half.h converts). No struct needs padding, and
 * none asks for more than 2-byte alignment, so that device code gets 16-bit loads; rows of most
 * types are only 2-byte aligned. A block at an odd address must be copied before use, as dequant.c
 * does.
 *
 * Names: y is the weight's value, i its number in the block, h = i / 128, g = i % 128 / 32,
 * l = i % 32, k = i / 32. A shift a >> 2 g is by 2 * g bits.
 */
#ifndef GLM_QUANT_BLOCKS_H
#define GLM_QUANT_BLOCKS_H

#include <stdint.h>

#ifdef __cplusplus
#define BLOCK_HAS_SIZE(type, bytes) static_assert(sizeof(struct type) == (bytes), #type)
#else
#define BLOCK_HAS_SIZE(type, bytes) _Static_assert(sizeof(struct type) == (bytes), #type)
#endif

#define BLOCK_SMALL 32  /* weights in a block of Q4_0 .. Q8_0, IQ4_NL, MXFP4 */
#define BLOCK_BIG   256 /* weights in a block of the K, IQ and TQ types */

/* y = d * (nibble - 8); weight i < 16: low nibble of q[i], else high nibble of q[i - 16] */
struct block_q4_0 {
	uint16_t d;
	uint8_t q[16];
};
BLOCK_HAS_SIZE(block_q4_0, 18);

/* y = d * nibble + m, nibbles as in Q4_0 */
struct block_q4_1 {
	uint16_t d, m;
	uint8_t q[16];
};
BLOCK_HAS_SIZE(block_q4_1, 20);

/* y = d * (v - 16)
 *     v: nibble as in Q4_0, plus 16 when bit i of the 32-bit word high[0 .. 3] is set */
struct block_q5_0 {
	uint16_t d;
	uint8_t high[4];
	uint8_t q[16];
};
BLOCK_HAS_SIZE(block_q5_0, 22);

/* y = d * v + m, v as in Q5_0 */
struct block_q5_1 {
	uint16_t d, m;
	uint8_t high[4];
	uint8_t q[16];
};
BLOCK_HAS_SIZE(block_q5_1, 24);

/* y = d * q */
struct block_q8_0 {
	uint16_t d;
	int8_t q[32];
};
BLOCK_HAS_SIZE(block_q8_0, 34);

/* 16 sub-blocks of 16: y = d * (s & 15) * v - dmin * (s >> 4)
 *     s = sc[i / 16]
 *     v = (q[32 h + l] >> 2 g) & 3 */
struct block_q2_k {
	uint8_t sc[16];
	uint8_t q[64];
	uint16_t d, dmin;
};
BLOCK_HAS_SIZE(block_q2_k, 84);

/* 16 sub-blocks of 16: y = d * s * v
 *     s = k_scale6_signed(sc, i / 16)
 *     v = (q[32 h + l] >> 2 g) & 3, less 4 when bit 4 h + g of high[l] is clear */
struct block_q3_k {
	uint8_t high[32];
	uint8_t q[64];
	uint8_t sc[12];
	uint16_t d;
};
BLOCK_HAS_SIZE(block_q3_k, 110);

/* 8 sub-blocks of 32: y = d * s * v - dmin * m
 *     s = k_scale6(sc, k), m = k_min6(sc, k)
 *     v: of q[32 (k / 2) + l] the low nibble for even k, the high one for odd k */
struct block_q4_k {
	uint16_t d, dmin;
	uint8_t sc[12];
	uint8_t q[128];
};
BLOCK_HAS_SIZE(block_q4_k, 144);

/* As Q4_K, v plus 16 when bit k of high[l] is set */
struct block_q5_k {
	uint16_t d, dmin;
	uint8_t sc[12];
	uint8_t high[32];
	uint8_t q[128];
};
BLOCK_HAS_SIZE(block_q5_k, 176);

/* 16 sub-blocks of 16: y = d * sc[i / 16] * (v - 32)
 *     v: of q[64 h + 32 (g & 1) + l] the low nibble for g < 2, else the high one; above it the two
 *     bits (high[32 h + l] >> 2 g) & 3 */
struct block_q6_k {
	uint8_t q[128];
	uint8_t high[64];
	int8_t sc[16];
	uint16_t d;
};
BLOCK_HAS_SIZE(block_q6_k, 210);

/* The IQ types take their values from the tables of iq_grids.h: a row has the magnitudes of 8 (or
 * 4) neighbouring weights. Sign index: 7 bits, which iq_signs turns into the sign byte of 8
 * weights. */

/* Group k of 32 weights is two 32-bit words: a0 = q[4 k, 4 k + 1], a1 = q[4 k + 2, 4 k + 3].
 * Weights 8 j .. 8 j + 7 of it, j = 0 .. 3: y = d * (0.5 + (a1 >> 28)) / 4 * value
 *     row iq2xxs_grid[byte j of a0], sign index (a1 >> 7 j) & 127 */
struct block_iq2_xxs {
	uint16_t d;
	uint16_t q[32];
};
BLOCK_HAS_SIZE(block_iq2_xxs, 66);

/* Weights 8 j .. 8 j + 7, j = 0 .. 31: y = d * (0.5 + n) / 4 * value
 *     row iq2xs_grid[q[j] & 511], sign index q[j] >> 9
 *     n: of sc[k] the low nibble for l < 16, else the high one */
struct block_iq2_xs {
	uint16_t d;
	uint16_t q[32];
	uint8_t sc[8];
};
BLOCK_HAS_SIZE(block_iq2_xs, 74);

/* As IQ2_XS, but row iq2s_grid[q[j] | ((high[k] >> 2 (j % 4)) & 3) << 8], and sign[j] is the whole
 * sign byte */
struct block_iq2_s {
	uint16_t d;
	uint8_t q[32];
	uint8_t sign[32];
	uint8_t high[8];
	uint8_t sc[8];
};
BLOCK_HAS_SIZE(block_iq2_s, 82);

/* Group k of 32 weights: y = d * (0.5 + (a >> 28)) / 2 * value
 *     a: the 32-bit word sas[4 k .. 4 k + 3]
 *     weights 4 j .. 4 j + 3 of the group, j = 0 .. 7: row iq3xxs_grid[q[8 k + j]]
 *     weights 8 j .. 8 j + 7 of the group, j = 0 .. 3: sign index (a >> 7 j) & 127 */
struct block_iq3_xxs {
	uint16_t d;
	uint8_t q[64];
	uint8_t sas[32];
};
BLOCK_HAS_SIZE(block_iq3_xxs, 98);

/* Group k of 32 weights: y = d * (1 + 2 n) * value
 *     n: of sc[k / 2] the low nibble for even k, the high one for odd k
 *     weights 4 j .. 4 j + 3 of the group, j = 0 .. 7: row iq3s_grid[q[8 k + j] | bit << 8], bit
 *     being bit j of high[k]; sign byte sign[i / 8] */
struct block_iq3_s {
	uint16_t d;
	uint8_t q[64];
	uint8_t high[8];
	uint8_t sign[32];
	uint8_t sc[4];
};
BLOCK_HAS_SIZE(block_iq3_s, 110);

/* Group k of 32 weights: y = d * (2 s + 1) * (value + delta)
 *     s = (high[k] >> 12) & 7
 *     delta: -1/8 when bit 15 of high[k] is set, else 1/8
 *     weights 8 j .. 8 j + 7 of the group, j = 0 .. 3:
 *     row iq1s_grid[q[4 k + j] | ((high[k] >> 3 j) & 7) << 8] */
struct block_iq1_s {
	uint16_t d;
	uint8_t q[32];
	uint16_t high[8];
};
BLOCK_HAS_SIZE(block_iq1_s, 50);

/* As IQ1_S, but:
 *     each row has a nibble n, of high[2 k + j / 2] the low one for even j, the high one for odd j:
 *     the upper bits of its number are n & 7, delta is -1/8 when bit 3 of n is set
 *     16 weights share s: of 16 weights number t = i / 16 it is (sc[t / 4] >> 3 (t % 4)) & 7
 *     d: the half whose nibble m, m = 0 .. 3 from the lowest, is sc[m] >> 12 */
struct block_iq1_m {
	uint8_t q[32];
	uint8_t high[16];
	uint16_t sc[4];
};
BLOCK_HAS_SIZE(block_iq1_m, 56);

/* y = d * iq4nl_values[nibble], nibbles as in Q4_0 */
struct block_iq4_nl {
	uint16_t d;
	uint8_t q[16];
};
BLOCK_HAS_SIZE(block_iq4_nl, 18);

/* Group k of 32 weights: y = d * (s - 32) * iq4nl_values[nibble]
 *     nibbles as in Q4_0, of q[16 k .. 16 k + 15]
 *     s: the lower four bits are of scales_low[k / 2] the low nibble for even k, the high one for
 *     odd k; the upper two are (scales_high >> 2 k) & 3 */
struct block_iq4_xs {
	uint16_t d;
	uint16_t scales_high;
	uint8_t scales_low[4];
	uint8_t q[128];
};
BLOCK_HAS_SIZE(block_iq4_xs, 136);

/* Ternary: y = d * (t - 1), t = 0 .. 2. TQ1_0 packs five t into a byte b, as the first digits of
 * b / 256 in base 3: digit n is (b * 3^n mod 256) * 3 / 256, rounded down.
 *     weight 32 n + a,       a < 32, n < 5: digit n of q[a]
 *     weight 160 + 16 n + a, a < 16, n < 5: digit n of q[32 + a]
 *     weight 240 + 4 n + a,  a < 4,  n < 4: digit n of high[a] */
struct block_tq1_0 {
	uint8_t q[48];
	uint8_t high[4];
	uint16_t d;
};
BLOCK_HAS_SIZE(block_tq1_0, 54);

/* y = d * (t - 1), t = (q[32 h + l] >> 2 g) & 3 */
struct block_tq2_0 {
	uint8_t q[64];
	uint16_t d;
};
BLOCK_HAS_SIZE(block_tq2_0, 66);

/* FP4 with a scale that is a power of two: y = fp4_scale_e8m0(e) * fp4_values[nibble] (fp4.h),
 * nibbles as in Q4_0. 17 bytes: blocks lie at odd addresses, too. */
struct block_mxfp4 {
	uint8_t e;
	uint8_t q[16];
};
BLOCK_HAS_SIZE(block_mxfp4, 17);

/* 64 weights, sub-blocks j = 0 .. 3 of 16: y = fp4_scale_ue4m3(e[j]) * fp4_values[nibble]
 *     weight n of a sub-block: the low nibble of q[8 j + n] for n < 8, else the high one of
 *     q[8 j + n - 8] */
struct block_nvfp4 {
	uint8_t e[4];
	uint8_t q[32];
};
BLOCK_HAS_SIZE(block_nvfp4, 36);

/* 128 weights: y = d when bit i % 8 of q[i / 8] is set, else -d */
struct block_q1_0 {
	uint16_t d;
	uint8_t q[16];
};
BLOCK_HAS_SIZE(block_q1_0, 18);

/* 64 weights: y = d * (((q[i / 4] >> 2 (i % 4)) & 3) - 1) */
struct block_q2_0 {
	uint16_t d;
	uint8_t q[16];
};
BLOCK_HAS_SIZE(block_q2_0, 18);

#endif
