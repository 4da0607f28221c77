/* SPDX-License-Identifier: MIT */
/* Scores of the indexer for prompts on compute capability 9.0: indexer_rows.cu. */
#ifndef GLM_KERNELS_CUDA_INDEXER_ROWS_CUH
#define GLM_KERNELS_CUDA_INDEXER_ROWS_CUH

#include "kernels/cuda/attention/attention.cuh"

/* Scores of rows first_row + i, 0 <= i < n: score[i * stride + position], device. They are
 * undefined for rows that select all positions. Returns false, having done nothing, for other
 * cards, keys of other shapes and steps of decode. */
bool index_scores_rows(struct cuda_backend *b, const struct batch *rows,
	const struct index_select *a, int first_row, int n, int64_t stride, float *score);

#endif
