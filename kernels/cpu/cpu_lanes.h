/* SPDX-License-Identifier: MIT */
/*
 * Loops that the compiler vectorises by itself. cpu_dot_c.c, cpu_dot_avx2.c and cpu_dot_avx512.c
 * include this header, so each compiles its own copy for its instruction set. All copies give the
 * same bits: every operation is written out (fmaf where one is meant; the program is compiled with
 * -ffp-contract=off), SIMD lanes are independent, and every sum has 16 partial sums. Contracts:
 * struct cpu_isa in cpu_dot.h.
 */
#ifndef GLM_KERNELS_CPU_LANES_H
#define GLM_KERNELS_CPU_LANES_H

#include "kernels/cpu/cpu_dot.h"
#include "src/base/half.h"

#include <math.h>
#include <stdint.h>

/* e^x with an error of at most 1 ulp, also for subnormal results; 0 below -104, infinity above
 * 88.73, NaN for NaN. Range reduction x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its power series
 * to r^7 (error 5e-9); 2^n in two factors, so that results below 2^-126 are rounded once. */
static inline float lanes_exp(float x)
{
	x = x < -104.0f ? -104.0f : x;
	x = x > 89.0f ? 89.0f : x;
	float shifted = fmaf(x, 0x1.715476p+0f, 0x1.8p+23f); /* n in the low mantissa bits */
	float n = shifted - 0x1.8p+23f;
	float r = fmaf(n, -0x1.62e4p-1f,
		x); /* exact: 15 bits of ln 2 times at most 8 bits of n, and x is near it */
	r = fmaf(n, -0x1.7f7d1cp-20f, r);
	float q = 0x1.a01a02p-13f; /* 1/7!, then 1/6! .. 1/2! */
	q = fmaf(q, r, 0x1.6c16c2p-10f);
	q = fmaf(q, r, 0x1.111112p-7f);
	q = fmaf(q, r, 0x1.555556p-5f);
	q = fmaf(q, r, 0x1.555556p-3f);
	q = fmaf(q, r, 0.5f);
	float y = fmaf(q * r, r, r) + 1.0f;
	int32_t whole = (int32_t)(f32_bits(shifted) - 0x4b400000), half = whole >> 1;
	return y * f32_from_bits((uint32_t)(half + 127) << 23) *
		   f32_from_bits((uint32_t)(whole - half + 127) << 23);
}

static inline float lanes_reduce(float *acc)
{
	for (int step = 8; step; step /= 2)
		for (int j = 0; j < step; j++)
			acc[j] += acc[j + step];
	return acc[0];
}

static inline float lanes_softmax(float *s, float scale, int n)
{
	float acc[DOT_LANES] = {0}, top[DOT_LANES], largest = -INFINITY;
	for (int j = 0; j < DOT_LANES; j++)
		top[j] = -INFINITY;
	int t = 0;
	for (; t + DOT_LANES <= n; t += DOT_LANES)
		for (int j = 0; j < DOT_LANES; j++) {
			s[t + j] *= scale;
			top[j] = s[t + j] > top[j] ? s[t + j] : top[j];
		}
	for (int j = 0; t + j < n; j++) {
		s[t + j] *= scale;
		top[j] = s[t + j] > top[j] ? s[t + j] : top[j];
	}
	for (int j = 0; j < DOT_LANES; j++)
		largest = top[j] > largest ? top[j] : largest;
#pragma omp simd
	for (t = 0; t < n; t++)
		s[t] = lanes_exp(s[t] - largest);
	for (t = 0; t + DOT_LANES <= n; t += DOT_LANES)
		for (int j = 0; j < DOT_LANES; j++)
			acc[j] += s[t + j];
	for (int j = 0; t + j < n; j++)
		acc[j] += s[t + j];
	return lanes_reduce(acc);
}

static inline void lanes_swiglu(const float *gate, const float *up, size_t n, float *out)
{
#pragma omp simd
	for (size_t i = 0; i < n; i++)
		out[i] = gate[i] / (1.0f + lanes_exp(-gate[i])) * up[i];
}

static inline void lanes_sigmoid(const float *x, size_t n, float *out)
{
#pragma omp simd
	for (size_t i = 0; i < n; i++)
		out[i] = 1.0f / (1.0f + lanes_exp(-x[i]));
}

static inline double lanes_sum_squares(const float *x, size_t n)
{
	double acc[DOT_LANES] = {0};
	size_t k = 0;
	for (; k + DOT_LANES <= n; k += DOT_LANES)
		for (int j = 0; j < DOT_LANES; j++)
			acc[j] += (double)x[k + j] * (double)x[k + j];
	for (size_t j = 0; k + j < n; j++)
		acc[j] += (double)x[k + j] * (double)x[k + j];
	for (int step = 8; step; step /= 2)
		for (int j = 0; j < step; j++)
			acc[j] += acc[j + step];
	return acc[0];
}

static inline void lanes_index_score(const float *dot, const float *c, int64_t dot_stride,
	float scale, int n_keys, int n_heads, float *score)
{
	for (int t = 0; t < n_keys; t++)
		score[t] = 0;
	for (int j = 0; j < n_heads; j++, dot += dot_stride) {
		float weight = c[j];
#pragma omp simd
		for (int t = 0; t < n_keys; t++) {
			float v = dot[t] * scale;
			score[t] = fmaf(weight, v < 0 ? 0 : v, score[t]);
		}
	}
}

#endif
