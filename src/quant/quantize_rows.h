/* SPDX-License-Identifier: MIT */
/* Private to src/quant: the row functions behind quantize_row(), one file per family. Same
 * contract. */
#ifndef GLM_QUANT_QUANTIZE_ROWS_H
#define GLM_QUANT_QUANTIZE_ROWS_H

#include <stddef.h>

/* quantize_sym.c */
void quantize_row_q4_0(const float *src, void *dst, size_t n, const float *importance);
void quantize_row_q8_0(const float *src, void *dst, size_t n, const float *importance);
void quantize_row_q3_k(const float *src, void *dst, size_t n, const float *importance);
void quantize_row_q6_k(const float *src, void *dst, size_t n, const float *importance);

/* quantize_k.c */
void quantize_row_q2_k(const float *src, void *dst, size_t n, const float *importance);
void quantize_row_q4_k(const float *src, void *dst, size_t n, const float *importance);
void quantize_row_q5_k(const float *src, void *dst, size_t n, const float *importance);

/* quantize_iq2.c */
void quantize_row_iq2_xxs(const float *src, void *dst, size_t n, const float *importance);

#endif
