/* SPDX-License-Identifier: MIT */
/*
 * Rows of the IQ types: a scale times rows of a codebook (iq_grids.h) with signs.
 *
 * The sign is applied after the product, which is exact, so the result does not depend on the
 * order. All scale factors (0.5 + n, 0.25, 2 n + 1) are exact in binary32 too; the only roundings
 * are d * scale and its product with the value.
 */
#include "src/quant/dequant_rows.h"

#include "src/base/half.h"
#include "src/base/num.h"
#include "src/quant/blocks.h"
#include "src/quant/iq_grids.h"

#include <string.h>

/* dst[0..n) = +- scale * byte of `row`; n = 4 or 8 */
static void put_row(float *dst, int n, uint64_t row, unsigned sign, float scale)
{
	for (int j = 0; j < n; j++) {
		float v = scale * (float)(row >> 8 * j & 255);
		dst[j] = sign >> j & 1 ? -v : v;
	}
}

/* dst[0..8) = scale * (weight +- 1/8) */
static void put_row_iq1(float *dst, unsigned index, float delta, float scale)
{
	for (int j = 0; j < 8; j++)
		dst[j] = scale * ((float)((iq1s_grid[index] >> 2 * j & 3) - 1) + delta);
}

void dequant_row_iq2_xxs(const uint8_t *src, float *dst, size_t n)
{
	struct block_iq2_xxs b;
	for (; n; n -= BLOCK_BIG, src += sizeof b) {
		memcpy(&b, src, sizeof b);
		float d = f16_to_f32(b.d);
		for (int k = 0; k < 8; k++) {
			uint32_t a0 = load_u32(b.q + 4 * k), a1 = load_u32(b.q + 4 * k + 2);
			float scale = d * (0.5f + (float)(a1 >> 28)) * 0.25f;
			for (int j = 0; j < 4; j++, dst += 8)
				put_row(dst, 8, iq2xxs_grid[a0 >> 8 * j & 255], iq_signs[a1 >> 7 * j & 127], scale);
		}
	}
}

void dequant_row_iq2_xs(const uint8_t *src, float *dst, size_t n)
{
	struct block_iq2_xs b;
	for (; n; n -= BLOCK_BIG, src += sizeof b) {
		memcpy(&b, src, sizeof b);
		float d = f16_to_f32(b.d);
		for (int j = 0; j < 32; j++, dst += 8) {
			int s = b.sc[j / 4] >> (j & 2) * 2 & 15;
			float scale = d * (0.5f + (float)s) * 0.25f;
			put_row(dst, 8, iq2xs_grid[b.q[j] & 511], iq_signs[b.q[j] >> 9], scale);
		}
	}
}

void dequant_row_iq2_s(const uint8_t *src, float *dst, size_t n)
{
	struct block_iq2_s b;
	for (; n; n -= BLOCK_BIG, src += sizeof b) {
		memcpy(&b, src, sizeof b);
		float d = f16_to_f32(b.d);
		for (int j = 0; j < 32; j++, dst += 8) {
			int s = b.sc[j / 4] >> (j & 2) * 2 & 15;
			int index = b.q[j] | (b.high[j / 4] >> 2 * (j % 4) & 3) << 8;
			float scale = d * (0.5f + (float)s) * 0.25f;
			put_row(dst, 8, iq2s_grid[index], b.sign[j], scale);
		}
	}
}

void dequant_row_iq3_xxs(const uint8_t *src, float *dst, size_t n)
{
	struct block_iq3_xxs b;
	for (; n; n -= BLOCK_BIG, src += sizeof b) {
		memcpy(&b, src, sizeof b);
		float d = f16_to_f32(b.d);
		for (int j = 0; j < 32; j++, dst += 8) {
			uint32_t a = load_u32(b.sas + 4 * (j / 4));
			unsigned sign = iq_signs[a >> 7 * (j % 4) & 127];
			float scale = d * (0.5f + (float)(a >> 28)) * 0.5f;
			put_row(dst, 4, iq3xxs_grid[b.q[2 * j]], sign, scale);
			put_row(dst + 4, 4, iq3xxs_grid[b.q[2 * j + 1]], sign >> 4, scale);
		}
	}
}

void dequant_row_iq3_s(const uint8_t *src, float *dst, size_t n)
{
	struct block_iq3_s b;
	for (; n; n -= BLOCK_BIG, src += sizeof b) {
		memcpy(&b, src, sizeof b);
		float d = f16_to_f32(b.d);
		for (int j = 0; j < 64; j++, dst += 4) {
			int k = j / 8, s = b.sc[k / 2] >> (k & 1) * 4 & 15;
			int index = b.q[j] | (b.high[k] >> j % 8 & 1) << 8;
			float scale = d * (float)(1 + 2 * s);
			put_row(dst, 4, iq3s_grid[index], b.sign[j / 2] >> (j & 1) * 4, scale);
		}
	}
}

void dequant_row_iq1_s(const uint8_t *src, float *dst, size_t n)
{
	struct block_iq1_s b;
	for (; n; n -= BLOCK_BIG, src += sizeof b) {
		memcpy(&b, src, sizeof b);
		float d = f16_to_f32(b.d);
		for (int j = 0; j < 32; j++, dst += 8) {
			unsigned h = b.high[j / 4], index = b.q[j] | (h >> 3 * (j % 4) & 7) << 8;
			put_row_iq1(
				dst, index, h & 0x8000 ? -0.125f : 0.125f, d * (float)(2 * (h >> 12 & 7) + 1));
		}
	}
}

void dequant_row_iq1_m(const uint8_t *src, float *dst, size_t n)
{
	struct block_iq1_m b;
	for (; n; n -= BLOCK_BIG, src += sizeof b) {
		memcpy(&b, src, sizeof b);
		unsigned bits = 0;
		for (int j = 0; j < 4; j++)
			bits |= (unsigned)(b.sc[j] >> 12) << 4 * j;
		float d = f16_to_f32((uint16_t)bits);
		for (int j = 0; j < 32; j++, dst += 8) {
			unsigned h = b.high[j / 2] >> (j & 1) * 4 & 15, index = b.q[j] | (h & 7) << 8;
			unsigned s = b.sc[j / 8] >> 3 * (j / 2 % 4) & 7;
			put_row_iq1(dst, index, h & 8 ? -0.125f : 0.125f, d * (float)(2 * s + 1));
		}
	}
}

void dequant_row_iq4_nl(const uint8_t *src, float *dst, size_t n)
{
	struct block_iq4_nl b;
	for (; n; n -= BLOCK_SMALL, src += sizeof b, dst += BLOCK_SMALL) {
		memcpy(&b, src, sizeof b);
		float d = f16_to_f32(b.d);
		for (int i = 0; i < 16; i++) {
			dst[i] = d * (float)iq4nl_values[b.q[i] & 15];
			dst[i + 16] = d * (float)iq4nl_values[b.q[i] >> 4];
		}
	}
}

void dequant_row_iq4_xs(const uint8_t *src, float *dst, size_t n)
{
	struct block_iq4_xs b;
	for (; n; n -= BLOCK_BIG, src += sizeof b) {
		memcpy(&b, src, sizeof b);
		float d = f16_to_f32(b.d);
		for (int k = 0; k < 8; k++, dst += 32) {
			int s = (b.scales_low[k / 2] >> (k & 1) * 4 & 15) | (b.scales_high >> 2 * k & 3) << 4;
			float scale = d * (float)(s - 32);
			for (int i = 0; i < 16; i++) {
				dst[i] = scale * (float)iq4nl_values[b.q[16 * k + i] & 15];
				dst[i + 16] = scale * (float)iq4nl_values[b.q[16 * k + i] >> 4];
			}
		}
	}
}
