/* SPDX-License-Identifier: MIT */
/*
 * The numbers of MXFP4 and NVFP4: FP4 E2M1 values times two, so that they are integers, and the
 * one-byte scales halved to make up for it. Scales are returned as the bits of a float; the float
 * is fp4_scale_e8m0(e), fp4_scale_ue4m3(e) in the formulas of blocks.h. Plain C that CUDA code may
 * include too.
 */
#ifndef GLM_QUANT_FP4_H
#define GLM_QUANT_FP4_H

#include <stdint.h>

#ifdef __CUDACC__
#define FP4_FN static inline __host__ __device__
#else
#define FP4_FN static inline
#endif

/* Twice the values of the FP4 numbers 0 .. 15; -0 is 0. */
#define FP4_VALUES 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12

/* Bits of the float 2^(e - 128), that is half of the E8M0 number e. NaN (e = 255) is 2^127, as in
 * ggml. */
FP4_FN uint32_t fp4_scale_e8m0_bits(uint32_t e)
{
	return e < 2 ? 0x00200000u << e : (e - 1) << 23;
}

/* Bits of half of the UE4M3 number: 3 mantissa bits, 4 exponent bits of bias 7, bit 7 has no
 * meaning. 0x7f (NaN) is 0, as in ggml. */
FP4_FN uint32_t fp4_scale_ue4m3_bits(uint32_t e)
{
	uint32_t exponent = e >> 3 & 15, mantissa = e & 7;
	if (e == 0x7f)
		return 0;
	if (exponent)
		return (exponent + 119) << 23 | mantissa << 20;
	/* subnormal: mantissa * 2^-10 */
	return mantissa == 0  ? 0
		   : mantissa < 2 ? 117u << 23
		   : mantissa < 4 ? 118u << 23 | (mantissa & 1) << 22
						  : 119u << 23 | (mantissa & 3) << 21;
}

#endif
