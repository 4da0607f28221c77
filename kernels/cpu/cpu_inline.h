/* SPDX-License-Identifier: MIT */
/*
 * How the inner loops of the CPU are written: functions that are always inlined, so that arguments
 * which are constants of the caller are constants in the loop, and loops that are fully unrolled.
 */
#ifndef GLM_KERNELS_CPU_INLINE_H
#define GLM_KERNELS_CPU_INLINE_H

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* A fully unrolled loop: the counter, and with it the shift counts in the body, are constants. Not
 * under a sanitizer, whose checks would then take minutes to compile. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__clang__)
#define UNROLLED_FOR(i, n) for (int i = 0; i < (n); i++)
#else
#define UNROLLED_FOR(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)
#endif

#endif
