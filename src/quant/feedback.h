/* SPDX-License-Identifier: MIT */
/*
 * Error feedback: while a block of 256 weights is quantised from left to right, the error that the
 * columns before have made is taken up by the columns behind, as far as the inputs of the two go
 * together.
 *
 * Plain quantising minimises sum w e^2 of the errors e. What a matrix does wrong on its inputs is
 * e' H e, where H holds the second moments of the inputs; w is only the diagonal of H. With
 * H = U D U' (D diagonal, U upper triangular with ones on its diagonal)
 *     e' H e = sum over columns i of D[i] * (e[i] + sum over j < i of U[j][i] e[j])^2,
 * so column i is rounded towards x[i] + sum U[j][i] e[j] in place of x[i].
 *
 * H is taken as block-diagonal, one block for each 256 columns, the blocks of the packed types.
 * The cost is then the same for rows of any length: about 128 multiply-adds a weight and pass. All
 * of H would cost half the row's length, and 151 MB to hold for 6,144 columns.
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

/* The factors of one block's H. Between groups of eight columns the errors themselves are passed
 * on; within a group, what the targets of the group were missed by. */
struct quant_feedback {
	/* [earlier group][later group][column of the earlier][column of the later]; zero elsewhere */
	float between[FEEDBACK_GROUPS][FEEDBACK_GROUPS][8][8];
	float within[FEEDBACK_COLUMNS][8]; /* to the columns behind it in its own group, else zero */
	float weight[FEEDBACK_COLUMNS];    /* D: weights of single columns */
	float joint[FEEDBACK_COLUMNS];     /* weights where a group is chosen at once */
	bool correlated;                   /* false: H is diagonal, plain quantising is the optimum */
};

/* Sums of x x', of 256 columns: row i is [256 - i], the columns i .. 255; one row behind the other.
 */
#define FEEDBACK_MOMENTS (FEEDBACK_COLUMNS * (FEEDBACK_COLUMNS + 1) / 2)

/* Adds x x' of n rows to moments[FEEDBACK_MOMENTS], x being row[k][column .. column + 255]. Each
 * sum is added up in the order of the rows, however many come in one call. */
void quant_feedback_add_rows(float *moments, const float *const *row, size_t n, size_t column);

/* Factors the block with H[i][j] = sqrt(importance[i] importance[j]) C[i][j] trust, C being the
 * correlations in `moments`, and H[i][i] = importance[i], times 1.01 on the diagonal against
 * rounding and few samples.
 *
 * moments: [FEEDBACK_MOMENTS], of any common factor; 0 where nothing is known.
 * importance: [256], non-negative. trust: 0 .. 1; below 1 for correlations from few samples.
 * work: [256][256], scratch. False: H is not positive definite with these numbers; *out is then
 * as without correlation, and the caller says so. */
bool quant_feedback_make(struct quant_feedback *out, const float *moments, const float *importance,
	float trust, double *work);

/* The K types and IQ2_XXS. */
bool quantize_feedback_supported(enum dtype type);

/* As quantize_row, for such a type. feedback: [n / 256]. A block that is not `correlated` gets the
 * bytes of quantize_row. */
void quantize_row_feedback(enum dtype type, const float *src, void *dst, size_t n,
	const float *importance, const struct quant_feedback *feedback);

#endif
