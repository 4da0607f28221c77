/* SPDX-License-Identifier: MIT */
/* A matrix in memory as a checkpoint stores it: F32, F16, BF16, or F8_E4M3 with block scales. */
#ifndef GLM_QUANT_RAW_MATRIX_H
#define GLM_QUANT_RAW_MATRIX_H

#include "src/quant/dtype.h"

#include <stdbool.h>
#include <stdint.h>

/* Owns nothing. */
struct raw_matrix {
	enum dtype type;
	uint64_t rows, cols;
	const void *values; /* [rows][cols], any byte alignment */
	/* Of F8_E4M3, else NULL: [bands][ceil(cols / 128)]. A band is 128 rows of the source; row 0 is
	 * row first_row = 0 .. 127 of the first band. */
	const float *scales;
	uint32_t first_row;
};

/* True for the types above. */
bool raw_matrix_supported(enum dtype type);

/* Rows [row0, row1) as float: out[(row1 - row0) * cols]. A scaled value is rounded once. */
void raw_matrix_rows(const struct raw_matrix *m, uint64_t row0, uint64_t row1, float *out);

#endif
