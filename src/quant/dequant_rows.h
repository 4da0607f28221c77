/* SPDX-License-Identifier: MIT */
/* Private to src/quant: the row functions of dequant_iq.c and dequant_low.c, called through
 * dequant_row(). Same contract. */
#ifndef GLM_QUANT_DEQUANT_ROWS_H
#define GLM_QUANT_DEQUANT_ROWS_H

#include <stddef.h>
#include <stdint.h>

void dequant_row_iq2_xxs(const uint8_t *src, float *dst, size_t n);
void dequant_row_iq2_xs(const uint8_t *src, float *dst, size_t n);
void dequant_row_iq2_s(const uint8_t *src, float *dst, size_t n);
void dequant_row_iq3_xxs(const uint8_t *src, float *dst, size_t n);
void dequant_row_iq3_s(const uint8_t *src, float *dst, size_t n);
void dequant_row_iq1_s(const uint8_t *src, float *dst, size_t n);
void dequant_row_iq1_m(const uint8_t *src, float *dst, size_t n);
void dequant_row_iq4_nl(const uint8_t *src, float *dst, size_t n);
void dequant_row_iq4_xs(const uint8_t *src, float *dst, size_t n);

void dequant_row_tq1_0(const uint8_t *src, float *dst, size_t n);
void dequant_row_tq2_0(const uint8_t *src, float *dst, size_t n);
void dequant_row_mxfp4(const uint8_t *src, float *dst, size_t n);
void dequant_row_nvfp4(const uint8_t *src, float *dst, size_t n);
void dequant_row_q1_0(const uint8_t *src, float *dst, size_t n);
void dequant_row_q2_0(const uint8_t *src, float *dst, size_t n);

#endif
