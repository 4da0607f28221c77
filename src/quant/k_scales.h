/* SPDX-License-Identifier: MIT */
/*
 * The 6-bit numbers packed in the 12 bytes `sc` of Q3_K (16 signed scales) and of Q4_K and Q5_K (8
 * scales and 8 minima). Plain C that CUDA code may include too.
 */
#ifndef GLM_QUANT_K_SCALES_H
#define GLM_QUANT_K_SCALES_H

#include <stdint.h>

#ifdef __CUDACC__
#define K_SCALES_FN static inline __host__ __device__
#else
#define K_SCALES_FN static inline
#endif

/* Q4_K, Q5_K: scale and minimum of sub-block k = 0 .. 7, each 0 .. 63. The first four lie whole in
 * six low bits of bytes 0..3 and 4..7; the last four have their low nibbles in bytes 8..11 and
 * their two high bits above the first four. */
K_SCALES_FN int k_scale6(const uint8_t *sc, int k)
{
	return k < 4 ? sc[k] & 63 : (sc[k + 4] & 15) | sc[k - 4] >> 6 << 4;
}

K_SCALES_FN int k_min6(const uint8_t *sc, int k)
{
	return k < 4 ? sc[k + 4] & 63 : sc[k + 4] >> 4 | sc[k] >> 6 << 4;
}

/* The inverse: scale and min of all eight sub-blocks -> 12 bytes. */
K_SCALES_FN void k_pack6(uint8_t *sc, const uint8_t *scale, const uint8_t *min)
{
	for (int k = 0; k < 4; k++) {
		sc[k] = (uint8_t)((scale[k] & 63) | scale[k + 4] >> 4 << 6);
		sc[k + 4] = (uint8_t)((min[k] & 63) | min[k + 4] >> 4 << 6);
		sc[k + 8] = (uint8_t)((scale[k + 4] & 15) | (min[k + 4] & 15) << 4);
	}
}

/* Q3_K: scale of sub-block j = 0 .. 15, -32 .. 31. Low nibbles in bytes 0..7, pairs of high bits in
 * bytes 8..11. */
K_SCALES_FN int k_scale6_signed(const uint8_t *sc, int j)
{
	int low = j < 8 ? sc[j] & 15 : sc[j - 8] >> 4, high = sc[8 + j % 4] >> 2 * (j / 4) & 3;
	return (low | high << 4) - 32;
}

K_SCALES_FN void k_pack6_signed(uint8_t *sc, const int8_t *scale)
{
	for (int b = 0; b < 8; b++)
		sc[b] = (uint8_t)(((scale[b] + 32) & 15) | ((scale[b + 8] + 32) & 15) << 4);
	for (int b = 0; b < 4; b++) {
		sc[8 + b] = 0;
		for (int j = 0; j < 4; j++)
			sc[8 + b] |= (uint8_t)((scale[b + 4 * j] + 32) >> 4 << 2 * j);
	}
}

#endif
