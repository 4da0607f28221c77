/* SPDX-License-Identifier: MIT */
/*
 * Which vendor library (cublasLt) a backend uses for the large products of prompts. The CUDA
 * backend loads it when it opens, if it is installed. The bits of its products differ from those of
 * the backend's own kernels, and between versions. So a session file carries the version
 * (src/engine/session/session_file.c).
 *
 * Threads: that of the backend.
 */
#ifndef GLM_KERNELS_LIBRARY_H
#define GLM_KERNELS_LIBRARY_H

#include "kernels/backend.h"

/* The library's version, 130100 for 13.1.0; 0: this backend uses none. Constant after backend_open.
 */
uint32_t backend_library_version(struct backend *b);

/* Measures what the library reaches, as the limit that prompts are compared with: floating point
 * operations a second (two for each multiply-add) of a product of half matrices, 8192 x 8192 x
 * 8192. Waits for all ops before it. 0: there is no library, or no memory. */
double backend_library_flops(struct backend *b);

/* The same of an open CUDA backend, private to library.c: cublas.cu. */
uint32_t cuda_library_version(struct backend *b);
double cuda_library_flops(struct backend *b);

#endif
