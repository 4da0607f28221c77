/* SPDX-License-Identifier: MIT */
#define DRAW_LOOPS draw_loops_c
#include "src/draw/draw_loops_body.h"
