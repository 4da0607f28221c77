/* SPDX-License-Identifier: MIT */
/* Private to src/quant: the row functions behind quantize_row() and, where feedback is not NULL,
 * quantize_row_feedback(); one file per family. Same contracts. */
#ifndef GLM_QUANT_QUANTIZE_ROWS_H
#define GLM_QUANT_QUANTIZE_ROWS_H

#include <stddef.h>

struct quant_feedback;

typedef void quantize_row_fn(const float *src, void *dst, size_t n, const float *importance,
	const struct quant_feedback *feedback);

/* quantize_sym.c */
quantize_row_fn quantize_row_q4_0;
quantize_row_fn quantize_row_q8_0;
quantize_row_fn quantize_row_q3_k;
quantize_row_fn quantize_row_q6_k;

/* quantize_k.c */
quantize_row_fn quantize_row_q2_k;
quantize_row_fn quantize_row_q4_k;
quantize_row_fn quantize_row_q5_k;

/* quantize_iq2.c */
quantize_row_fn quantize_row_iq2_xxs;

#endif
