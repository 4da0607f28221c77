/* SPDX-License-Identifier: MIT */
/*
 * Products of many experts in one pass on compute capability 9.0: each packed weight is decoded
 * once for up to 256 rows of x (tile_gemm.cu has the kernel).
 *
 * A row of weights is scaled by the power of two that brings a bound of its largest value to
 * [2^14, 2^15), and rounded to halves: each is off by at most 2^-11 of itself, or 2^-29 of the
 * bound. Sums are float32.
 *
 * A row's result depends on the weights and the row alone.
 */
#ifndef GLM_KERNELS_CUDA_TILE_GEMM_CUH
#define GLM_KERNELS_CUDA_TILE_GEMM_CUH

#include "kernels/cuda/gemm/gemm.cuh"

#define TILE_ROWS 256 /* x rows of a tile, at most */

/* Whether weights like this one are its: always the same answer. */
bool tile_gemm_takes(const struct cuda_backend *b, const struct weight *w);

/* The rows of an x panel for it, in place of gemm_split_rows: [n_in / 64][x_pad][128 bytes], the
 * eight 16-byte pieces of row r at i ^ (r % 8). s->order is not read. */
void tile_split_rows(struct cuda_backend *b, enum split_from from, const struct split_args *s);

/* Tiles of at most TILE_ROWS x rows; x_first is a multiple of 8. */
void tile_gemm_enqueue(struct cuda_backend *b, enum dtype type, const struct grouped_gemm_args *a);

/* The same for single matrices and all rows: gemm_matmul of parts that tile_matmul_takes. */
bool tile_matmul_takes(const struct cuda_backend *b, const struct weight *w);
void tile_matmul(
	struct cuda_backend *b, const struct matmul *parts, int n_parts, const float *x, int rows);

#endif
