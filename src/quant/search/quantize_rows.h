/* SPDX-License-Identifier: MIT */
/*
 * Private to src/quant: the row functions with a search, behind quantize_row() and, where feedback
 * is not NULL, quantize_row_feedback(). Same contracts. They are compiled once per instruction set
 * (quantize_rows_body.h); all give the same bytes.
 */
#ifndef GLM_QUANT_QUANTIZE_ROWS_H
#define GLM_QUANT_QUANTIZE_ROWS_H

#include "src/quant/dtype.h"

#include <stddef.h>

struct quant_feedback;

typedef void quantize_row_fn(const float *src, void *dst, size_t n, const float *importance,
	const struct quant_feedback *feedback);

struct quantize_rows {
	quantize_row_fn *fn[DTYPE_LIMIT]; /* NULL for the types without a search */
};

/* NULL where the compiler has no such instruction set. */
extern const struct quantize_rows *const quantize_rows_c, *const quantize_rows_avx2,
															  *const quantize_rows_avx512;

/* The fastest that this machine has, or the level-th after it; NULL: no such. Tests compare them.
 */
const struct quantize_rows *quantize_rows_available(int level);

#endif
