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
 * Names: i is the weight in the block, h = i / 128, g = i % 128 / 32, l = i % 32, k = i / 32.
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

/* y = d * (v - 16), v = nibble as in Q4_0, plus 16 when bit i of the 32-bit word high[0 .. 3] is
 * set */
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

/* 16 sub-blocks of 16: y = d * (sc & 15) * q - dmin * (sc >> 4), sc = sc[i / 16], q = (q[32 h + l]
 * >> 2 g) & 3 */
struct block_q2_k {
	uint8_t sc[16];
	uint8_t q[64];
	uint16_t d, dmin;
};
BLOCK_HAS_SIZE(block_q2_k, 84);

/* 16 sub-blocks of 16: y = d * scale * q, scale 6 bits less 32 (block_q3_k_scale), q = (q[32 h + l]
 * >> 2 g) & 3, less 4 when bit 4 h + g of high[l] is clear */
struct block_q3_k {
	uint8_t high[32];
	uint8_t q[64];
	uint8_t sc[12];
	uint16_t d;
};
BLOCK_HAS_SIZE(block_q3_k, 110);

/* 8 sub-blocks of 32: y = d * s * q - dmin * m, six-bit s and m from block_q4_k_scale; q: the low
 * nibble of q[32 (k / 2) + l] for even k, the high one for odd k */
struct block_q4_k {
	uint16_t d, dmin;
	uint8_t sc[12];
	uint8_t q[128];
};
BLOCK_HAS_SIZE(block_q4_k, 144);

/* as Q4_K, q plus 16 when bit k of high[l] is set */
struct block_q5_k {
	uint16_t d, dmin;
	uint8_t sc[12];
	uint8_t high[32];
	uint8_t q[128];
};
BLOCK_HAS_SIZE(block_q5_k, 176);

/* 16 sub-blocks of 16: y = d * sc[i / 16] * (q - 32); q: a nibble of q[64 h + 32 (g & 1) + l], low
 * for g < 2, with the two bits (high[32 h + l] >> 2 g) & 3 above it */
struct block_q6_k {
	uint8_t q[128];
	uint8_t high[64];
	int8_t sc[16];
	uint16_t d;
};
BLOCK_HAS_SIZE(block_q6_k, 210);

/* The IQ types take their values from the tables of iq_grids.h, 8 (or 4) weights a row. "Sign
 * index": 7 bits, see iq_signs. */

/* Group k is the two 32-bit words q[4 k .. 4 k + 3], a0 below a1: row of weights 8 j .. 8 j + 7 of
 * the group = iq2xxs_grid[byte j of a0], sign index = (a1 >> 7 j) & 127, y = d * (0.5 + (a1 >> 28))
 * / 4 * value */
struct block_iq2_xxs {
	uint16_t d;
	uint16_t q[32];
};
BLOCK_HAS_SIZE(block_iq2_xxs, 66);

/* Weights 8 j .. 8 j + 7: row iq2xs_grid[q[j] & 511], sign index q[j] >> 9; y = d * (0.5 + n) / 4 *
 * value, n the low nibble of sc[k] for the first 16 weights of group k, the high one for the last
 * 16 */
struct block_iq2_xs {
	uint16_t d;
	uint16_t q[32];
	uint8_t sc[8];
};
BLOCK_HAS_SIZE(block_iq2_xs, 74);

/* Row iq2s_grid[q[j] | ((high[k] >> 2 (j % 4)) & 3) << 8], sign byte sign[j] in full, scales as in
 * IQ2_XS */
struct block_iq2_s {
	uint16_t d;
	uint8_t q[32];
	uint8_t sign[32];
	uint8_t high[8];
	uint8_t sc[8];
};
BLOCK_HAS_SIZE(block_iq2_s, 82);

/* Rows of four iq3xxs_grid[q[8 k + j]], j = 0 .. 7; a = the 32-bit word sas[4 k .. 4 k + 3]: sign
 * index of the j-th pair of rows (a >> 7 j) & 127; y = d * (0.5 + (a >> 28)) / 2 * value */
struct block_iq3_xxs {
	uint16_t d;
	uint8_t q[64];
	uint8_t sas[32];
};
BLOCK_HAS_SIZE(block_iq3_xxs, 98);

/* Rows of four iq3s_grid[q[8 k + j] | bit j of high[k] << 8], sign byte sign[i / 8]; y = d * (1 + 2
 * n) * value, n the low nibble of sc[k / 2] for even k, the high one for odd k */
struct block_iq3_s {
	uint16_t d;
	uint8_t q[64];
	uint8_t high[8];
	uint8_t sign[32];
	uint8_t sc[4];
};
BLOCK_HAS_SIZE(block_iq3_s, 110);

/* Row j = 0 .. 3 of group k: iq1s_grid[q[4 k + j] | ((high[k] >> 3 j) & 7) << 8]; y = d * (2 s + 1)
 * * (value + delta), s = (high[k] >> 12) & 7, delta = -1/8 when bit 15 of high[k] is set, else 1/8
 */
struct block_iq1_s {
	uint16_t d;
	uint8_t q[32];
	uint16_t high[8];
};
BLOCK_HAS_SIZE(block_iq1_s, 50);

/* As IQ1_S, but a nibble n of high[] for each row j of group k (of high[2 k + j / 2], low for even
 * j): row index high bits n & 7, delta from bit 3; one 3-bit scale per 16 weights, s-th at bit 3 (s
 * % 4) of the word sc[s / 4], s = 2 k + j / 2; d is the half whose nibbles are the top nibbles of
 * the four words */
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

/* Group k is laid out like IQ4_NL in q[16 k ..]; scale less 32: four low bits from scales_low[k /
 * 2] (low nibble for even k), two high bits at 2 k of scales_high */
struct block_iq4_xs {
	uint16_t d;
	uint16_t scales_high;
	uint8_t scales_low[4];
	uint8_t q[128];
};
BLOCK_HAS_SIZE(block_iq4_xs, 136);

/* Ternary: y = d * (t - 1), t = 0 .. 2. TQ1_0 packs five t into a byte b, as the digits of b / 256
 * in base 3: t_n = (b * 3^n mod 256) * 3 / 256. Weight 32 n + l: digit n of q[l]; weight 160 + 16 n
 * + l, l < 16: digit n of q[32 + l]; weight 240 + 4 n + l, l < 4: digit n < 4 of high[l] */
struct block_tq1_0 {
	uint8_t q[48];
	uint8_t high[4];
	uint16_t d;
};
BLOCK_HAS_SIZE(block_tq1_0, 54);

/* t = (q[32 h + l] >> 2 g) & 3 */
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

/* 64 weights, sub-blocks j = 0 .. 3 of 16: y = fp4_scale_ue4m3(e[j]) * fp4_values[nibble]; weight n
 * < 8 of a sub-block: low nibble of q[8 j + n], else high nibble of q[8 j + n - 8] */
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
