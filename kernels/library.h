/* SPDX-License-Identifier: MIT */
/*
 * The library of a card's vendor that computes large products of prompts (cublasLt). It is used
 * where it is installed. The bits of its products differ from those of the backend's own kernels,
 * and between versions.
 */
#ifndef GLM_KERNELS_LIBRARY_H
#define GLM_KERNELS_LIBRARY_H

#include "kernels/backend.h"

/* 130100: 13.1.0. 0: this backend uses none. Constant after backend_open. */
uint32_t backend_library_version(struct backend *b);

/* The limit of prompts: floating point operations a second of one product of halves, 8192^3, by the
 * library, measured by this call. It waits for all ops. 0: there is no library, or no memory. */
double backend_library_flops(struct backend *b);

/* Of the CUDA backend alone: cublas.cu. */
uint32_t cuda_library_version(struct backend *b);
double cuda_library_flops(struct backend *b);

#endif
