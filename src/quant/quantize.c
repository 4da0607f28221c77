/* SPDX-License-Identifier: MIT */
/* Dispatch of the quantisers by type and instruction set, and the types that need no search. */
#include "src/quant/quantize.h"

#include "src/base/half.h"
#include "src/base/num.h"
#include "src/quant/feedback.h"
#include "src/quant/search/quantize_rows.h"

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

const struct quantize_rows *quantize_rows_available(int level)
{
	const struct quantize_rows *found[3];
	int n = 0;
#if defined(__x86_64__)
	__builtin_cpu_init();
	const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
	if (quantize_rows_avx512 && avx2 && __builtin_cpu_supports("avx512f") &&
		__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
		__builtin_cpu_supports("avx512dq"))
		found[n++] = quantize_rows_avx512;
	if (quantize_rows_avx2 && avx2)
		found[n++] = quantize_rows_avx2;
#endif
	found[n++] = quantize_rows_c;
	return level >= 0 && level < n ? found[level] : NULL;
}

static quantize_row_fn *row_fn(enum dtype type)
{
	return type == DTYPE_F32    ? quantize_row_f32
		   : type == DTYPE_F16  ? quantize_row_f16
		   : type == DTYPE_BF16 ? quantize_row_bf16
								: quantize_rows_available(0)->fn[type];
}

bool quantize_supported(enum dtype type)
{
	return (uint32_t)type < DTYPE_LIMIT && row_fn(type);
}

void quantize_row(enum dtype type, const float *src, void *dst, size_t n, const float *importance)
{
	row_fn(type)(src, dst, n, importance, NULL);
}

bool quantize_feedback_supported(enum dtype type)
{
	return quantize_supported(type) && dtype_info(type)->block_values == FEEDBACK_COLUMNS;
}

void quantize_row_feedback(enum dtype type, const float *src, void *dst, size_t n,
	const float *importance, const struct quant_feedback *feedback)
{
	row_fn(type)(src, dst, n, importance, feedback);
}
