/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/cpu_dot.h"
const struct cpu_isa *const cpu_isa_avx512 = NULL;
