/* SPDX-License-Identifier: MIT */
/*
 * One row of any type -> float. This is the ground truth for every kernel: each product and
 * difference is rounded to binary32 once, nothing is contracted to an FMA, so the results equal
 * ggml's reference bit for bit.
 */
#ifndef GLM_QUANT_DEQUANT_H
#define GLM_QUANT_DEQUANT_H

#include "src/quant/dtype.h"

#include <stddef.h>

/* Of F8_E4M3 these are the values without their scales.
 * src: a row of n values of `type` (n a multiple of its block, any byte alignment); dst: [n]. Never
 * fails: every bit pattern of every type has a meaning (some are NaN or infinite). */
void dequant_row(enum dtype type, const void *src, float *dst, size_t n);

#endif
