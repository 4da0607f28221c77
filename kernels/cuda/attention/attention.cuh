/* SPDX-License-Identifier: MIT */
/* Private to kernels/cuda: the fast implementations of attend and index_select. Each returns false,
 * having done nothing, if it does not support the shape, the type, the step or the card; the caller
 * then runs the general kernels. A failure is kept in the backend, with true. In this folder rows
 * are activation rows (one per token); keys and cache rows are positions. */
#ifndef GLM_KERNELS_CUDA_ATTENTION_CUH
#define GLM_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/runtime/gpu_backend.cuh"

bool attend_mma(struct cuda_backend *b, const struct batch *rows, const struct attend *a);

/* Steps above DECODE_MAX_ROWS rows without exact_prompts. Precondition: attend_mma supports the
 * arguments. */
bool attend_wgmma(struct cuda_backend *b, const struct batch *rows, const struct attend *a);

/* score [n][stride] of rows first_row .. first_row + n that have more than top_k positions. */
bool index_scores_mma(struct cuda_backend *b, const struct batch *rows,
	const struct index_select *a, int first_row, int n, int64_t stride, float *score);

/* The whole op, for steps of decode. */
bool index_select_decode(
	struct cuda_backend *b, const struct batch *rows, const struct index_select *a);

#endif
