/* SPDX-License-Identifier: MIT */
#include "src/quant/raw_matrix.h"

#include "src/base/num.h"
#include "src/quant/dequant.h"

bool raw_matrix_supported(enum dtype type)
{
	return type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16 || type == DTYPE_F8_E4M3;
}

static void scale_row(const struct raw_matrix *m, uint64_t row, float *out)
{
	const uint64_t n = dtype_scales(m->cols);
	const float *scales = m->scales + (m->first_row + row) / DTYPE_SCALE_BLOCK * n;
	for (uint64_t b = 0; b < n; b++) {
		const uint64_t end = MIN((b + 1) * DTYPE_SCALE_BLOCK, m->cols);
		for (uint64_t c = b * DTYPE_SCALE_BLOCK; c < end; c++)
			out[c] *= scales[b];
	}
}

void raw_matrix_rows(const struct raw_matrix *m, uint64_t row0, uint64_t row1, float *out)
{
	const uint8_t *values = m->values;
	const uint64_t row_bytes = m->cols * dtype_info(m->type)->block_bytes;
	for (uint64_t r = row0; r < row1; r++, out += m->cols) {
		dequant_row(m->type, values + r * row_bytes, out, m->cols);
		if (m->scales)
			scale_row(m, r, out);
	}
}
