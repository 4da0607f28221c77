/* SPDX-License-Identifier: MIT */
#if defined(__AVX2__)
#define DRAW_LOOPS draw_loops_avx2
#include "src/draw/draw_loops_body.h"
#else
#include "src/draw/draw_loops.h"
const struct draw_loops *const draw_loops_avx2 = NULL;
#endif
