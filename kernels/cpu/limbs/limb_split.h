/* SPDX-License-Identifier: MIT */
/*
 * Point 1 of kernels/expert_arithmetic.h: x as limbs. The loops are C with `omp simd`, which the
 * compiler vectorises; limb_rows_c.c, limb_rows_avx2.c and limb_rows_vnni.c include this header, so
 * each compiles its own copy. Every operation is rounded alone, so all copies give the same bits.
 */
#ifndef GLM_KERNELS_LIMB_SPLIT_H
#define GLM_KERNELS_LIMB_SPLIT_H

#include "kernels/cpu/limbs/limb_rows.h"
#include "src/base/half.h"

#include <math.h>
#include <string.h>

static void super_block_split(enum dtype type, const float *x, struct limb_block *b)
{
	uint32_t most = 0;
#pragma omp simd reduction(max : most)
	for (int i = 0; i < 256; i++) {
		uint32_t magnitude = f32_bits(x[i]) & 0x7fffffff;
		most = magnitude > most ? magnitude : most;
	}
	float largest = f32_from_bits(most);
	bool tiny = largest < EXPERT_X_TINY, finite = most < 0x7f800000;
	float inv = tiny || !finite ? 0 : EXPERT_LIMB_MOST / largest;
	b->scale = tiny ? 0 : largest / EXPERT_LIMB_MOST;
	int32_t n[256];
#pragma omp simd
	for (int i = 0; i < 256; i++) {
		/* adding 2^23 leaves the nearest integer in the low mantissa bits */
		float v = x[i] * inv;
		int32_t magnitude = (int32_t)(f32_bits(fabsf(v) + 0x1p23f) & 0x7fffff);
		n[i] = v < 0 ? -magnitude : magnitude;
	}
	if (!finite)
		memset(n, 0, sizeof n);
	int8_t limb[EXPERT_LIMBS][256]; /* in the order of x */
#pragma omp simd
	for (int i = 0; i < 256; i++) {
		uint32_t bytes = (uint32_t)n[i] + 0x808080;
		limb[0][i] = (int8_t)(bytes >> 16 ^ 0x80);
		limb[1][i] = (int8_t)(bytes >> 8 ^ 0x80);
		limb[2][i] = (int8_t)(bytes ^ 0x80);
	}
	for (int k = 0; k < EXPERT_LIMBS; k++) {
		for (int i = 0; i < 256; i += 8) /* every layout keeps eight neighbours together */
			memcpy(b->limb[k] + limb_place(type, i), limb[k] + i, 8);
		for (int g = 0; g < 16; g++) {
			int sum = 0;
#pragma omp simd reduction(+ : sum)
			for (int i = 0; i < 16; i++)
				sum += limb[k][16 * g + i];
			b->sum[k][g] = (int16_t)sum;
		}
	}
	if (type != DTYPE_IQ2_XXS && type != DTYPE_IQ2_XS)
		return;
	for (int k = 0; k < EXPERT_LIMBS; k++)
		for (int i = 0; i < 16; i++) {
			int sum[2] = {0};
			for (int z = 0; z < 4; z++)
				for (int at = 64 * z + 4 * i; at < 64 * z + 4 * i + 4; at++)
					sum[z / 2] += b->limb[k][at];
			b->start[0][k][i] = -64 * (type == DTYPE_IQ2_XS ? sum[0] : sum[0] + sum[1]);
			b->start[1][k][i] = type == DTYPE_IQ2_XS ? -64 * sum[1] : 0;
		}
}

static void limbs_split(enum dtype type, const float *x, int64_t n, struct limb_block *out)
{
	for (; n >= 256; n -= 256, x += 256)
		super_block_split(type, x, out++);
	if (n > 0) {
		float rest[256] = {0};
		memcpy(rest, x, (size_t)n * sizeof *x);
		super_block_split(type, rest, out);
	}
}

#endif
