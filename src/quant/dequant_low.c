/* SPDX-License-Identifier: MIT */
/*
 * Rows of the ternary, FP4, one- and two-bit types. All products are exact (a half or a float of
 * four bits times a small integer), unless they leave the range of floats.
 */
#include "src/quant/dequant_rows.h"

#include "src/base/half.h"
#include "src/quant/blocks.h"
#include "src/quant/fp4.h"

#include <string.h>

static const int8_t fp4_values[16] = {FP4_VALUES};

/* Unpacks n_digits base-3 digits of each of n bytes: n first digits, then n second ones, and so on;
 * dst[i] = d * (digit - 1). Returns the end of what was written, n * n_digits floats. */
static float *put_digits(float *dst, const uint8_t *q, int n, int n_digits, float d)
{
	for (int power = 1; n_digits--; power *= 3)
		for (int i = 0; i < n; i++)
			*dst++ = d * (float)(((q[i] * power & 255) * 3 >> 8) - 1);
	return dst;
}

void dequant_row_tq1_0(const uint8_t *src, float *dst, size_t n)
{
	struct block_tq1_0 b;
	for (; n; n -= BLOCK_BIG, src += sizeof b) {
		memcpy(&b, src, sizeof b);
		float d = f16_to_f32(b.d);
		dst = put_digits(dst, b.q, 32, 5, d);
		dst = put_digits(dst, b.q + 32, 16, 5, d);
		dst = put_digits(dst, b.high, 4, 4, d);
	}
}

void dequant_row_tq2_0(const uint8_t *src, float *dst, size_t n)
{
	struct block_tq2_0 b;
	for (; n; n -= BLOCK_BIG, src += sizeof b, dst += BLOCK_BIG) {
		memcpy(&b, src, sizeof b);
		float d = f16_to_f32(b.d);
		for (int i = 0; i < BLOCK_BIG; i++)
			dst[i] = d * (float)((b.q[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) - 1);
	}
}

void dequant_row_mxfp4(const uint8_t *src, float *dst, size_t n)
{
	struct block_mxfp4 b;
	for (; n; n -= BLOCK_SMALL, src += sizeof b, dst += BLOCK_SMALL) {
		memcpy(&b, src, sizeof b);
		float d = f32_from_bits(fp4_scale_e8m0_bits(b.e));
		for (int i = 0; i < 16; i++) {
			dst[i] = d * (float)fp4_values[b.q[i] & 15];
			dst[i + 16] = d * (float)fp4_values[b.q[i] >> 4];
		}
	}
}

void dequant_row_nvfp4(const uint8_t *src, float *dst, size_t n)
{
	struct block_nvfp4 b;
	for (; n; n -= 64, src += sizeof b) {
		memcpy(&b, src, sizeof b);
		for (int j = 0; j < 4; j++, dst += 16) {
			float d = f32_from_bits(fp4_scale_ue4m3_bits(b.e[j]));
			for (int i = 0; i < 8; i++) {
				dst[i] = d * (float)fp4_values[b.q[8 * j + i] & 15];
				dst[i + 8] = d * (float)fp4_values[b.q[8 * j + i] >> 4];
			}
		}
	}
}

void dequant_row_q1_0(const uint8_t *src, float *dst, size_t n)
{
	struct block_q1_0 b;
	for (; n; n -= 128, src += sizeof b, dst += 128) {
		memcpy(&b, src, sizeof b);
		float d = f16_to_f32(b.d);
		for (int i = 0; i < 128; i++)
			dst[i] = b.q[i / 8] >> i % 8 & 1 ? d : -d;
	}
}

void dequant_row_q2_0(const uint8_t *src, float *dst, size_t n)
{
	struct block_q2_0 b;
	for (; n; n -= 64, src += sizeof b, dst += 64) {
		memcpy(&b, src, sizeof b);
		float d = f16_to_f32(b.d);
		for (int i = 0; i < 64; i++)
			dst[i] = d * (float)((b.q[i / 4] >> i % 4 * 2 & 3) - 1);
	}
}
