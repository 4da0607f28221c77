/* SPDX-License-Identifier: MIT */
/*
 * Products of many rows of x by limbs: backend_options.fast_prompts. The arithmetic is that of
 * kernels/expert_arithmetic.h with one part a row (split 1), and the low limbs of x are 0: x has 16
 * bits in place of 24 (limb_round). An output depends on one weight row
 * and one row of x alone, and has the same bits on every instruction set. cpu_matmul.c, which
 * multiplies floats in another order, differs from it in the last bits.
 */
#ifndef GLM_KERNELS_LIMB_MATMUL_H
#define GLM_KERNELS_LIMB_MATMUL_H

#include "kernels/cpu/cpu_internal.h"

/* Products of the matrices of a stack: row r of matrix s reads the w.n_in values at
 * x + s * x_step + r * x_stride and writes (or adds to) the w.n_out values at
 * y + s * y_step + r * y_stride. */
struct limb_product {
	struct weight w;
	const float *x;
	int64_t x_stride, x_step;
	float *y;
	int64_t y_stride, y_step;
	bool add;
};

/* Whether limb_matmul computes products with this matrix. */
bool limb_matmul_covers(const struct weight *w);

/* The products of `rows` rows, rows >= 1, one product after the other. Products that read the same
 * x with weights of one type should be neighbours: x is split into limbs once for them.
 * Every matrix must be covered: this is not checked. Failures are kept in the backend:
 * ERR_INTERRUPTED (set_cancel), ERR_MEMORY; y may be written in part. */
void limb_matmul(struct cpu_backend *b, const struct limb_product *products, int n, int rows);

#endif
