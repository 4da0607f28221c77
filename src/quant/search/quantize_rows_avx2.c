/* SPDX-License-Identifier: MIT */
#if defined(__AVX2__)
#define QUANTIZE_ROWS quantize_rows_avx2
#include "src/quant/search/quantize_rows_body.h"
#else
#include "src/quant/search/quantize_rows.h"
const struct quantize_rows *const quantize_rows_avx2 = NULL;
#endif
