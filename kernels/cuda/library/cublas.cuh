/* SPDX-License-Identifier: MIT */
/*
 * Products of halves by NVIDIA's cublasLt. The library has 540 MB: it is neither linked nor packed,
 * but loaded when a backend opens, where it is installed.
 *
 * Order of use: cublas_open; cublas_takes for each shape; cublas_multiply; cublas_close.
 *
 * Bits of a row: each shape (n_in, n_out) has one algorithm. The library is asked for it once, for
 * CUBLAS_CANONICAL_ROWS rows, and without workspace, split of the inner dimension and reduction. So
 * the same tiles compute a row, and in the same order, however many rows there are
 * (test_prompt_rows.c).
 *
 * Threads: that of the backend. All of it belongs to one device.
 */
#ifndef GLM_KERNELS_CUDA_CUBLAS_CUH
#define GLM_KERNELS_CUDA_CUBLAS_CUH

#include "kernels/cuda/runtime/gpu_backend.cuh"

#define CUBLAS_CANONICAL_ROWS 2048
#define CUBLAS_ROWS_UNIT      128

/* The backend is allocated as this; constant after it was opened. */
struct cuda_with_library {
	struct cuda_backend cuda;
	struct cublas *cublas; /* NULL: no library, or two passes */
};

static inline struct cublas *cublas_of(struct cuda_backend *b)
{
	return ((struct cuda_with_library *)b)->cublas;
}

/* Loads the library and opens it on the current device. NULL: why says what is missing. */
struct cublas *cublas_open(struct err *why);
/* NULL is allowed. */
void cublas_close(struct cublas *c);
/* 130100: 13.1.0 */
uint32_t cublas_version(const struct cublas *c);

/* Whether there is an algorithm for this shape; always the same answer. n_in and n_out are
 * multiples of 8. */
bool cublas_takes(struct cublas *c, int64_t n_in, int64_t n_out);

/* d [rows][n_out] = x [rows][x_row] times w [n_out][w_row], sums in float32. Preconditions:
 * cublas_takes; addresses are multiples of 256, x_row and w_row of 8, rows of CUBLAS_ROWS_UNIT. */
struct cublas_product {
	const __half *w, *x;
	int64_t w_row, x_row; /* halves from a row to the next */
	float *d;
	int64_t n_in, n_out;
	int rows;
};
void cublas_multiply(struct cuda_backend *b, const struct cublas_product *p);

#endif
