/* SPDX-License-Identifier: MIT */
/*
 * float -> packed blocks: F32, F16, BF16, Q8_0, Q4_0, Q2_K .. Q6_K and IQ2_XXS. Deterministic: the
 * same input gives the same bytes on every machine and with any number of threads (rows are
 * independent).
 */
#ifndef GLM_QUANT_QUANTIZE_H
#define GLM_QUANT_QUANTIZE_H

#include "src/quant/dtype.h"

#include <stddef.h>

/* False for the types that can only be read. */
bool quantize_supported(enum dtype type);

/* src: [n], finite; dst: dtype_row_bytes(type, n) bytes. importance: [n] non-negative weights of
 * the squared error of each column (from an imatrix or the column energy), or NULL for the type's
 * own default. n is a multiple of the block. Thread-safe. */
void quantize_row(enum dtype type, const float *src, void *dst, size_t n, const float *importance);

#endif
