/* SPDX-License-Identifier: MIT */
#define QUANTIZE_ROWS quantize_rows_c
#include "src/quant/search/quantize_rows_body.h"
