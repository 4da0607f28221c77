/* SPDX-License-Identifier: MIT */
/*
 * Matrix products of prompts (backend_options.fast_prompts): many rows of x, weights decoded once
 * for LIMB_X_PROMPTS of them. The arithmetic is that of kernels/expert_arithmetic.h with one part a
 * row (split 1) and with the low limbs of x 0 (limb_round): x has 16 bits in place of 24.
 * cpu_matmul.c, which multiplies floats, gives other bits.
 *
 *     if (cpu_is_fast_prompt(b, rows) && limb_matmul_covers(&w))
 *         limb_matmul(b, products, n, rows);
 *
 * - An output depends on one weight row and one row of x alone. With finite block scales it has the
 *   same bits on every instruction set.
 * - Threads: called by the backend's thread, as ops are; computes on those of its pool.
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

/* Bytes of cpu_scratch that a product of `rows` rows with w takes: for each row of x (of each
 * matrix of a stack) 5 bytes a value, with AMX 7, and a little for each thread. w is covered. */
uint64_t limb_matmul_bytes(const struct cpu_backend *b, const struct weight *w, int rows);

/* Computes n products of `rows` rows, one after the other. Products that read the same x with
 * weights of one type should be neighbours: x is split into limbs once for them.
 * - Preconditions, not checked: rows >= 1; every matrix is covered; no y overlaps an x.
 * - Memory: cpu_scratch, limb_matmul_bytes of the largest product.
 * - Errors are kept in the backend: ERR_INTERRUPTED (set_cancel), ERR_MEMORY. Then y may be written
 *   in part. */
void limb_matmul(struct cpu_backend *b, const struct limb_product *products, int n, int rows);

#endif
