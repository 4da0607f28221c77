/* SPDX-License-Identifier: MIT */
/*
 * Scalar conversions between float and the small formats: IEEE half, bfloat16, FP8 E4M3. All
 * to-float conversions are exact; all from-float conversions round to nearest even and keep NaN a
 * NaN. Plain C that CUDA code may include too.
 */
#ifndef GLM_BASE_HALF_H
#define GLM_BASE_HALF_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define HALF_FN static inline __host__ __device__
#else
#define HALF_FN static inline
#endif

HALF_FN float f32_from_bits(uint32_t u)
{
	float f;
	memcpy(&f, &u, sizeof f);
	return f;
}

HALF_FN uint32_t f32_bits(float f)
{
	uint32_t u;
	memcpy(&u, &f, sizeof u);
	return u;
}

HALF_FN float f16_to_f32(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16;
	uint32_t exponent = (h >> 10) & 31, mantissa = h & 1023;
	if (exponent == 31) /* infinity, NaN */
		return f32_from_bits(sign | 0x7f800000 | mantissa << 13);
	if (exponent) /* normal: rebias 15 -> 127 */
		return f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
	/* zero and subnormal: mantissa * 2^-24, exact in float */
	float v = (float)mantissa * 0x1p-24f;
	return f32_from_bits(f32_bits(v) | sign);
}

HALF_FN uint16_t f32_to_f16(float f)
{
	uint32_t u = f32_bits(f), sign = (u >> 16) & 0x8000, a = u & 0x7fffffff;
	if (a > 0x7f800000) /* NaN: keep the top payload bits, make sure one is set */
		return (uint16_t)(sign | 0x7e00 | ((a >> 13) & 0x1ff));
	if (a >= 0x477ff000) /* rounds to 2^16 or more */
		return (uint16_t)(sign | 0x7c00);
	if (a < 0x38800000) { /* below 2^-14: let the float adder round to multiples of 2^-24 */
		float v = f32_from_bits(a) + 0.5f;
		return (uint16_t)(sign | (f32_bits(v) - 0x3f000000));
	}
	uint32_t odd = (a >> 13) & 1;
	return (uint16_t)(sign | ((a - 0x38000000 + 0xfff + odd) >> 13));
}

HALF_FN float bf16_to_f32(uint16_t h)
{
	return f32_from_bits((uint32_t)h << 16);
}

HALF_FN uint16_t f32_to_bf16(float f)
{
	uint32_t u = f32_bits(f);
	if ((u & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(u >> 16 | 64);
	return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

/* FP8 E4M3 without infinities: 0x7f and 0xff are NaN, largest value 448, subnormal step 2^-9. */
HALF_FN float f8_e4m3_to_f32(uint8_t b)
{
	uint32_t sign = (uint32_t)(b & 0x80) << 24, exponent = (b >> 3) & 15, mantissa = b & 7;
	if (exponent == 15 && mantissa == 7)
		return f32_from_bits(sign | 0x7fc00000);
	if (exponent)
		return f32_from_bits(sign | (exponent + 120) << 23 | mantissa << 20);
	float v = (float)mantissa * 0x1p-9f;
	return f32_from_bits(f32_bits(v) | sign);
}

/* Host only. Saturates: magnitudes above 448, infinity too, become 448. */
static inline uint8_t f32_to_f8_e4m3(float f)
{
	uint32_t u = f32_bits(f), sign = (u >> 24) & 0x80, a = u & 0x7fffffff;
	if (a > 0x7f800000)
		return (uint8_t)(sign | 0x7f);
	if (a >= 0x43e00000) /* 448 */
		return (uint8_t)(sign | 0x7e);
	if (a < 0x3c800000) { /* below 2^-6: let the float adder round to multiples of 2^-9 */
		float v = f32_from_bits(a) + 0x1p14f;
		return (uint8_t)(sign | (f32_bits(v) - 0x46800000));
	}
	uint32_t odd = (a >> 20) & 1;
	return (uint8_t)(sign | ((a - 0x3c000000 + 0x7ffff + odd) >> 20));
}

#endif
