/* SPDX-License-Identifier: MIT */
/*
 * cublasLt, the matrix library of a card's vendor. The CUDA backend multiplies the rows of prompts
 * with it where it is installed and backend_options.exact_prompts is not set. Its products differ
 * in the last bits from those of the backend's own kernels, and from version to version.
 *
 * Both calls accept any backend. Threads: that of the backend.
 */
#ifndef GLM_KERNELS_LIBRARY_H
#define GLM_KERNELS_LIBRARY_H

#include "kernels/backend.h"

/* The version in use: 130100 is 13.1.0. 0: this backend uses no library. Constant after
 * backend_open. */
uint32_t backend_library_version(struct backend *b);

/* Measures the limit that prompts are held against: floating point operations a second (two for a
 * multiply-add) of a product of two 8192 x 8192 matrices of F16. Takes 512 MiB of the card and
 * waits for all ops. 0: there is no library, or no memory. */
double backend_library_flops(struct backend *b);

/* Private to kernels/: the same for a CUDA backend (cublas.cu). Only with HAVE_CUDA. */
uint32_t cuda_library_version(struct backend *b);
double cuda_library_flops(struct backend *b);

#endif
