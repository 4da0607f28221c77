/* SPDX-License-Identifier: MIT */
/* Matrices on which quantisers are compared. */
#ifndef GLM_TESTS_QUANT_INPUTS_H
#define GLM_TESTS_QUANT_INPUTS_H

#include "src/quant/raw_matrix.h"

#include <stddef.h>

/* The types that a card can write. */
#define QUANT_CARD_TYPES 8
extern const enum dtype quant_card_types[QUANT_CARD_TYPES];

enum quant_input {
	QUANT_GAUSS,
	QUANT_HEAVY,    /* Student's t with four degrees of freedom */
	QUANT_SPARSE,   /* zeros, among them whole blocks and sub-blocks */
	QUANT_CONSTANT, /* each block one value */
	QUANT_EXTREMES, /* magnitudes from subnormal to the largest float */
	QUANT_INPUTS
};
const char *quant_input_name(enum quant_input input);

struct quant_matrix {
	struct raw_matrix m; /* its values and scales are this struct's */
	float *importance;   /* [cols], some of them 0 */
	void *values;
	float *scales;
};

/* cols: a multiple of 256. Ends the program without memory. Magnitudes beyond the range of `type`
 * become its largest. */
void quant_matrix_init(struct quant_matrix *q, enum dtype type, uint64_t rows, uint64_t cols,
	enum quant_input input, uint64_t seed);
void quant_matrix_fini(struct quant_matrix *q);

/* Factors of error feedback for rows of cols values, freed by the caller: of columns that go
 * together, the last block of columns without correlations. importance: NULL, or [cols]; what the
 * factors were made with becomes used[cols]. */
struct quant_feedback *quant_inputs_feedback(uint64_t cols, const float *importance, float *used);

#endif
