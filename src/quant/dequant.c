/* SPDX-License-Identifier: MIT */
/*
 * Rows of plain, 32-weight and K types; the IQ types are in dequant_iq.c, ternary, FP4, one- and
 * two-bit types in dequant_low.c.
 *
 * Each block is copied to a local struct first, so a row may lie at any address. Products are taken
 * in the order of the format's reference: (d * scale) rounded, times q rounded, minus (dmin * min)
 * rounded.
 */
#include "src/quant/dequant.h"

#include "src/base/half.h"
#include "src/base/num.h"
#include "src/quant/blocks.h"
#include "src/quant/dequant_rows.h"
#include "src/quant/k_scales.h"

#include <string.h>

typedef void row_fn(const uint8_t *src, float *dst, size_t n);

static void dequant_row_f32(const uint8_t *src, float *dst, size_t n)
{
	memcpy(dst, src, n * sizeof *dst);
}

static void dequant_row_f16(const uint8_t *src, float *dst, size_t n)
{
	for (size_t i = 0; i < n; i++)
		dst[i] = f16_to_f32(load_u16(src + 2 * i));
}

static void dequant_row_bf16(const uint8_t *src, float *dst, size_t n)
{
	for (size_t i = 0; i < n; i++)
		dst[i] = bf16_to_f32(load_u16(src + 2 * i));
}

static void dequant_row_f8_e4m3(const uint8_t *src, float *dst, size_t n)
{
	for (size_t i = 0; i < n; i++)
		dst[i] = f8_e4m3_to_f32(src[i]);
}

static void dequant_row_q4_0(const uint8_t *src, float *dst, size_t n)
{
	struct block_q4_0 b;
	for (; n; n -= BLOCK_SMALL, src += sizeof b, dst += BLOCK_SMALL) {
		memcpy(&b, src, sizeof b);
		float d = f16_to_f32(b.d);
		for (int i = 0; i < 16; i++) {
			dst[i] = d * (float)((b.q[i] & 15) - 8);
			dst[i + 16] = d * (float)((b.q[i] >> 4) - 8);
		}
	}
}

static void dequant_row_q4_1(const uint8_t *src, float *dst, size_t n)
{
	struct block_q4_1 b;
	for (; n; n -= BLOCK_SMALL, src += sizeof b, dst += BLOCK_SMALL) {
		memcpy(&b, src, sizeof b);
		float d = f16_to_f32(b.d), m = f16_to_f32(b.m);
		for (int i = 0; i < 16; i++) {
			dst[i] = d * (float)(b.q[i] & 15) + m;
			dst[i + 16] = d * (float)(b.q[i] >> 4) + m;
		}
	}
}

static void dequant_row_q5_0(const uint8_t *src, float *dst, size_t n)
{
	struct block_q5_0 b;
	for (; n; n -= BLOCK_SMALL, src += sizeof b, dst += BLOCK_SMALL) {
		memcpy(&b, src, sizeof b);
		float d = f16_to_f32(b.d);
		uint32_t high = load_u32(b.high);
		for (int i = 0; i < 16; i++) {
			dst[i] = d * (float)((int)((b.q[i] & 15) | (high >> i & 1) << 4) - 16);
			dst[i + 16] = d * (float)((int)(b.q[i] >> 4 | (high >> (i + 16) & 1) << 4) - 16);
		}
	}
}

static void dequant_row_q5_1(const uint8_t *src, float *dst, size_t n)
{
	struct block_q5_1 b;
	for (; n; n -= BLOCK_SMALL, src += sizeof b, dst += BLOCK_SMALL) {
		memcpy(&b, src, sizeof b);
		float d = f16_to_f32(b.d), m = f16_to_f32(b.m);
		uint32_t high = load_u32(b.high);
		for (int i = 0; i < 16; i++) {
			dst[i] = d * (float)((b.q[i] & 15) | (high >> i & 1) << 4) + m;
			dst[i + 16] = d * (float)(b.q[i] >> 4 | (high >> (i + 16) & 1) << 4) + m;
		}
	}
}

static void dequant_row_q8_0(const uint8_t *src, float *dst, size_t n)
{
	struct block_q8_0 b;
	for (; n; n -= BLOCK_SMALL, src += sizeof b, dst += BLOCK_SMALL) {
		memcpy(&b, src, sizeof b);
		float d = f16_to_f32(b.d);
		for (int i = 0; i < 32; i++)
			dst[i] = d * (float)b.q[i];
	}
}

static void dequant_row_q2_k(const uint8_t *src, float *dst, size_t n)
{
	struct block_q2_k b;
	for (; n; n -= BLOCK_BIG, src += sizeof b, dst += BLOCK_BIG) {
		memcpy(&b, src, sizeof b);
		float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
		for (int j = 0; j < 16; j++) {
			float scale = d * (float)(b.sc[j] & 15), min = dmin * (float)(b.sc[j] >> 4);
			const uint8_t *q = b.q + j / 8 * 32 + j % 2 * 16;
			int shift = j % 8 / 2 * 2;
			for (int i = 0; i < 16; i++)
				dst[16 * j + i] = scale * (float)((q[i] >> shift) & 3) - min;
		}
	}
}

static void dequant_row_q3_k(const uint8_t *src, float *dst, size_t n)
{
	struct block_q3_k b;
	for (; n; n -= BLOCK_BIG, src += sizeof b, dst += BLOCK_BIG) {
		memcpy(&b, src, sizeof b);
		float d = f16_to_f32(b.d);
		for (int j = 0; j < 16; j++) {
			float scale = d * (float)k_scale6_signed(b.sc, j);
			const uint8_t *q = b.q + j / 8 * 32 + j % 2 * 16, *high = b.high + j % 2 * 16;
			int shift = j % 8 / 2 * 2, bit = j / 2;
			for (int i = 0; i < 16; i++)
				dst[16 * j + i] =
					scale * (float)(((q[i] >> shift) & 3) - ((high[i] >> bit & 1) ? 0 : 4));
		}
	}
}

static void dequant_row_q4_k(const uint8_t *src, float *dst, size_t n)
{
	struct block_q4_k b;
	for (; n; n -= BLOCK_BIG, src += sizeof b, dst += BLOCK_BIG) {
		memcpy(&b, src, sizeof b);
		float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
		for (int k = 0; k < 8; k++) {
			float scale = d * (float)k_scale6(b.sc, k), min = dmin * (float)k_min6(b.sc, k);
			const uint8_t *q = b.q + k / 2 * 32;
			int shift = k % 2 * 4;
			for (int i = 0; i < 32; i++)
				dst[32 * k + i] = scale * (float)((q[i] >> shift) & 15) - min;
		}
	}
}

static void dequant_row_q5_k(const uint8_t *src, float *dst, size_t n)
{
	struct block_q5_k b;
	for (; n; n -= BLOCK_BIG, src += sizeof b, dst += BLOCK_BIG) {
		memcpy(&b, src, sizeof b);
		float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
		for (int k = 0; k < 8; k++) {
			float scale = d * (float)k_scale6(b.sc, k), min = dmin * (float)k_min6(b.sc, k);
			const uint8_t *q = b.q + k / 2 * 32;
			int shift = k % 2 * 4;
			for (int i = 0; i < 32; i++)
				dst[32 * k + i] =
					scale * (float)(((q[i] >> shift) & 15) | (b.high[i] >> k & 1) << 4) - min;
		}
	}
}

static void dequant_row_q6_k(const uint8_t *src, float *dst, size_t n)
{
	struct block_q6_k b;
	for (; n; n -= BLOCK_BIG, src += sizeof b, dst += BLOCK_BIG) {
		memcpy(&b, src, sizeof b);
		float d = f16_to_f32(b.d);
		for (int j = 0; j < 16; j++) {
			float scale = d * (float)b.sc[j];
			int h = j / 8, g = j % 8 / 2, l = j % 2 * 16;
			const uint8_t *q = b.q + 64 * h + 32 * (g & 1) + l, *high = b.high + 32 * h + l;
			for (int i = 0; i < 16; i++) {
				int v = ((q[i] >> (g & 2) * 2) & 15) | ((high[i] >> 2 * g) & 3) << 4;
				dst[16 * j + i] = scale * (float)(v - 32);
			}
		}
	}
}

static row_fn *const row_fns[DTYPE_LIMIT] = {
	[DTYPE_F32] = dequant_row_f32,
	[DTYPE_F16] = dequant_row_f16,
	[DTYPE_BF16] = dequant_row_bf16,
	[DTYPE_F8_E4M3] = dequant_row_f8_e4m3,
	[DTYPE_Q4_0] = dequant_row_q4_0,
	[DTYPE_Q4_1] = dequant_row_q4_1,
	[DTYPE_Q5_0] = dequant_row_q5_0,
	[DTYPE_Q5_1] = dequant_row_q5_1,
	[DTYPE_Q8_0] = dequant_row_q8_0,
	[DTYPE_Q2_K] = dequant_row_q2_k,
	[DTYPE_Q3_K] = dequant_row_q3_k,
	[DTYPE_Q4_K] = dequant_row_q4_k,
	[DTYPE_Q5_K] = dequant_row_q5_k,
	[DTYPE_Q6_K] = dequant_row_q6_k,
	[DTYPE_IQ2_XXS] = dequant_row_iq2_xxs,
	[DTYPE_IQ2_XS] = dequant_row_iq2_xs,
	[DTYPE_IQ2_S] = dequant_row_iq2_s,
	[DTYPE_IQ3_XXS] = dequant_row_iq3_xxs,
	[DTYPE_IQ3_S] = dequant_row_iq3_s,
	[DTYPE_IQ1_S] = dequant_row_iq1_s,
	[DTYPE_IQ1_M] = dequant_row_iq1_m,
	[DTYPE_IQ4_NL] = dequant_row_iq4_nl,
	[DTYPE_IQ4_XS] = dequant_row_iq4_xs,
	[DTYPE_TQ1_0] = dequant_row_tq1_0,
	[DTYPE_TQ2_0] = dequant_row_tq2_0,
	[DTYPE_MXFP4] = dequant_row_mxfp4,
	[DTYPE_NVFP4] = dequant_row_nvfp4,
	[DTYPE_Q1_0] = dequant_row_q1_0,
	[DTYPE_Q2_0] = dequant_row_q2_0,
};

void dequant_row(enum dtype type, const void *src, float *dst, size_t n)
{
	row_fns[type](src, dst, n);
}
