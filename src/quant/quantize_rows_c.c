/* SPDX-License-Identifier: MIT */
#define QUANTIZE_ROWS quantize_rows_c
#include "src/quant/quantize_rows_body.h"
