/* SPDX-License-Identifier: MIT */
/* Dispatch of the quantisers, and the types that need no search. */
#include "src/quant/quantize.h"

#include "src/base/half.h"
#include "src/base/num.h"
#include "src/quant/feedback.h"
#include "src/quant/quantize_rows.h"

#include <string.h>

static void quantize_row_f32(const float *src, void *dst, size_t n, const float *importance,
	const struct quant_feedback *feedback)
{
	(void)importance, (void)feedback;
	memcpy(dst, src, n * sizeof *src);
}

/* A finite weight beyond the range of halves becomes the largest half, not an infinity. */
static void quantize_row_f16(const float *src, void *dst, size_t n, const float *importance,
	const struct quant_feedback *feedback)
{
	(void)importance, (void)feedback;
	for (size_t i = 0; i < n; i++) {
		float v = src[i] > 65504 ? 65504 : src[i] < -65504 ? -65504 : src[i];
		store_u16((uint8_t *)dst + 2 * i, f32_to_f16(v));
	}
}

/* The same for the few floats that round up to 2^128. */
static void quantize_row_bf16(const float *src, void *dst, size_t n, const float *importance,
	const struct quant_feedback *feedback)
{
	(void)importance, (void)feedback;
	for (size_t i = 0; i < n; i++) {
		uint16_t h = f32_to_bf16(src[i]);
		store_u16((uint8_t *)dst + 2 * i, (h & 0x7fff) == 0x7f80 ? h - 1 : h);
	}
}

static quantize_row_fn *const row_fns[DTYPE_LIMIT] = {
	[DTYPE_F32] = quantize_row_f32,
	[DTYPE_F16] = quantize_row_f16,
	[DTYPE_BF16] = quantize_row_bf16,
	[DTYPE_Q4_0] = quantize_row_q4_0,
	[DTYPE_Q8_0] = quantize_row_q8_0,
	[DTYPE_Q2_K] = quantize_row_q2_k,
	[DTYPE_Q3_K] = quantize_row_q3_k,
	[DTYPE_Q4_K] = quantize_row_q4_k,
	[DTYPE_Q5_K] = quantize_row_q5_k,
	[DTYPE_Q6_K] = quantize_row_q6_k,
	[DTYPE_IQ2_XXS] = quantize_row_iq2_xxs,
};

bool quantize_supported(enum dtype type)
{
	return (uint32_t)type < DTYPE_LIMIT && row_fns[type];
}

void quantize_row(enum dtype type, const float *src, void *dst, size_t n, const float *importance)
{
	row_fns[type](src, dst, n, importance, NULL);
}

bool quantize_feedback_supported(enum dtype type)
{
	return quantize_supported(type) && dtype_info(type)->block_values == FEEDBACK_COLUMNS;
}

void quantize_row_feedback(enum dtype type, const float *src, void *dst, size_t n,
	const float *importance, const struct quant_feedback *feedback)
{
	row_fns[type](src, dst, n, importance, feedback);
}
