/* SPDX-License-Identifier: MIT */
/* The table of quantize_rows.h for one instruction set. quantize_rows_c.c, quantize_rows_avx2.c and
 * quantize_rows_avx512.c define QUANTIZE_ROWS and include this. */
#include "src/quant/search/quantize_iq2.h"
#include "src/quant/search/quantize_k.h"
#include "src/quant/search/quantize_rows.h"
#include "src/quant/search/quantize_sym.h"

static const struct quantize_rows rows = {{
	[DTYPE_Q4_0] = quantize_row_q4_0,
	[DTYPE_Q8_0] = quantize_row_q8_0,
	[DTYPE_Q2_K] = quantize_row_q2_k,
	[DTYPE_Q3_K] = quantize_row_q3_k,
	[DTYPE_Q4_K] = quantize_row_q4_k,
	[DTYPE_Q5_K] = quantize_row_q5_k,
	[DTYPE_Q6_K] = quantize_row_q6_k,
	[DTYPE_IQ2_XXS] = quantize_row_iq2_xxs,
}};

const struct quantize_rows *const QUANTIZE_ROWS = &rows;
