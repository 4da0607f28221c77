/* SPDX-License-Identifier: MIT */
/*
 * Error feedback as in GPTQ and LDLQ, with the Hessian H taken as block-diagonal, one block for
 * each 256 columns: a block is quantised from left to right, and later columns compensate for the
 * errors of earlier ones.
 *
 * Plain quantising minimises sum w e^2 of the errors e. What a matrix does wrong on its inputs is
 * e' H e, where H holds the second moments of the inputs; w is only the diagonal of H. With
 * H = U D U' (D diagonal, U upper triangular with ones on its diagonal)
 *     e' H e = sum over columns i of D[i] * (e[i] + sum over j < i of U[j][i] e[j])^2,
 * so column i is rounded towards x[i] + sum U[j][i] e[j] in place of x[i].
 *
 * The blocks of H are those of the packed types. The cost is then the same for rows of any length:
 * about 128 multiply-adds a weight and pass. All of H would cost half the row's length, and 151 MB
 * to hold for 6,144 columns.
 *
 * Use: quant_feedback_make for each block of columns of a matrix, then quantize_row_feedback for
 * each of its rows, in any order and by any number of threads.
 */
#ifndef GLM_QUANT_FEEDBACK_H
#define GLM_QUANT_FEEDBACK_H

#include "src/quant/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FEEDBACK_COLUMNS 256 /* of a block */
#define FEEDBACK_GROUPS  32  /* of eight columns */

/* The factors of one block's H, for columns that are quantised in groups of eight. B: the 8 x 8
 * blocks on the diagonal of U. */
struct quant_feedback {
	/* U B^-1 behind the diagonal blocks: an error of column c of group g moves the target of column
	 * k of group h > g by between[g][h][c][k] times it. Zero for h <= g. */
	float between[FEEDBACK_GROUPS][FEEDBACK_GROUPS][8][8];
	/* B behind the diagonal: what column i misses its group's target by moves the target of a later
	 * column k of the same group by within[i][k] times it. Zero for k <= i % 8. */
	float within[FEEDBACK_COLUMNS][8];
	float weight[FEEDBACK_COLUMNS]; /* D: weights of single columns */
	float joint[FEEDBACK_COLUMNS]; /* diagonal of B D B': weights where a group is chosen at once */
	bool correlated;               /* false: H is diagonal, and plain quantising is the optimum */
};

/* Values of the moments of 256 columns: sums of x[i] x[j], j >= i, row i behind row i - 1. */
#define FEEDBACK_MOMENTS (FEEDBACK_COLUMNS * (FEEDBACK_COLUMNS + 1) / 2)

/* Adds x x' of n rows to moments[FEEDBACK_MOMENTS], x being row[k][column .. column + 255]. Each
 * sum is added up in the order of the rows, however many come in one call. */
void quant_feedback_add_rows(float *moments, const float *const *row, size_t n, size_t column);

/* Factors a block's H into *out. H[i][j] = trust C[i][j] sqrt(d[i] d[j]) and H[i][i] = 1.01 d[i]
 * (against rounding and few samples). C: the correlations in `moments`; d: importance divided by
 * its mean, plus 1e-5.
 * - moments: [FEEDBACK_MOMENTS], with any common factor; 0 where nothing is known.
 * - importance: [256], non-negative; all zero counts as all equal.
 * - trust: 0 .. 1; below 1 for correlations from few samples.
 * - work: [256][256], scratch.
 * - False: H is not positive definite; *out is then as without correlations, and the caller says
 *   so. */
bool quant_feedback_make(struct quant_feedback *out, const float *moments, const float *importance,
	float trust, double *work);

/* The K types and IQ2_XXS. */
bool quantize_feedback_supported(enum dtype type);

/* As quantize_row, for such a type. feedback: [n / 256]. A block that is not `correlated` gets the
 * bytes of quantize_row. */
void quantize_row_feedback(enum dtype type, const float *src, void *dst, size_t n,
	const float *importance, const struct quant_feedback *feedback);

#endif
