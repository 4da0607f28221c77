/* SPDX-License-Identifier: MIT */
/* XXH3 with AVX2. Compiles to nothing on other targets. */
#if defined(__AVX2__)
#define XXH3_ISA(name) name##_avx2
#include "src/base/xxh3/xxh3_body.h"
#endif
