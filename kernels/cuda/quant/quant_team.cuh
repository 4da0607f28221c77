/* SPDX-License-Identifier: MIT */
/*
 * Common parts of the card's quantisers: a team of threads of one warp quantises a block of 256
 * weights. It does the float operations of src/quant in the same order, so the bytes are the same.
 *
 * The CPU's quantisers add in eight SIMD lanes: lane l adds values l, l + 8, l + 16 ..., then the
 * lanes are added as a tree. team_sum and lanes_sum add in this order.
 *
 * All threads of a team call a function that takes a struct quant_team, with the same arguments,
 * and get the same result. A function without one works for the calling thread alone.
 *
 * Everything here is C that gcc compiles too: tests/quant/test_quant_search.c runs it on the CPU,
 * with a team of one thread. Neither compiler may contract products and sums to FMAs (--fmad=false,
 * -ffp-contract=off).
 */
#ifndef GLM_KERNELS_CUDA_QUANT_TEAM_CUH
#define GLM_KERNELS_CUDA_QUANT_TEAM_CUH

#ifdef __cplusplus
extern "C" {
#endif
#include "src/quant/raw_matrix.h"
#ifdef __cplusplus
}
#endif
#include "src/base/half.h"
#include "src/quant/blocks.h"

#include <math.h>

#ifdef __CUDACC__
#define QUANT_FN          static __device__ __forceinline__
#define QUANT_UNROLL      _Pragma("unroll")
#define team_sync(t)      __syncwarp((t).mask)
#define team_xor(t, v, o) __shfl_xor_sync((t).mask, v, o)
#else
#define QUANT_FN static inline __attribute__((always_inline))
#define QUANT_UNROLL
#define team_sync(t)      ((void)(t).lane)
#define team_xor(t, v, o) (v)
#endif

/* The calling thread in its team. size is a compile-time constant, so that loops unroll. */
struct quant_team {
	int lane;      /* 0 .. size - 1 */
	int size;      /* threads of the team: 1, 8, 16 or 32 */
	unsigned mask; /* bit i: lane i of the warp belongs to the team */
};

/* In shared memory, one for each team. */
struct quant_state {
	float x[BLOCK_BIG]; /* in units in which the largest magnitude is in [0.5, 1) */
	float w[BLOCK_BIG]; /* weights of the squared errors, mean 1 */
	float u[BLOCK_BIG]; /* scratch */
	float sums[5][8];
	float a[16], b[16], error[16]; /* of sub-blocks: real scale, real minimum, error */
	int8_t s[16], m[16];           /* integer scale and minimum of the current round */
	int8_t best_s[16], best_m[16]; /* and of the best one */
	uint8_t q[BLOCK_BIG];          /* codes */
};

/* Result of quantising a block without error feedback, before its scale grows: error feedback
 * (feedback_quant.cuh) starts from it. */
struct plain_fit {
	float d, dmin;
	int exponent;
	int8_t any; /* 0: the block is zeros, and the other fields are undefined */
	int8_t s[16], m[16];
};

/* As enum quant_weighting of src/quant/search/quant_block.h. */
enum team_weighting { TEAM_EVEN, TEAM_DAMPED, TEAM_MAGNITUDE };

/* ---- single values ---- */

/* A value of the source, scaled and rounded once. m->values is aligned to its type, as the card's
 * copy of a source is. */
QUANT_FN float source_value(const struct raw_matrix *m, uint64_t row, uint64_t col)
{
	const uint64_t i = row * m->cols + col;
	switch (m->type) {
	case DTYPE_F32:
		return ((const float *)m->values)[i];
	case DTYPE_F16:
		return f16_to_f32(((const uint16_t *)m->values)[i]);
	case DTYPE_BF16:
		return bf16_to_f32(((const uint16_t *)m->values)[i]);
	default: {
		const uint64_t n = (m->cols + DTYPE_SCALE_BLOCK - 1) / DTYPE_SCALE_BLOCK,
					   band = (m->first_row + row) / DTYPE_SCALE_BLOCK;
		return f8_e4m3_to_f32(((const uint8_t *)m->values)[i]) *
			   m->scales[band * n + col / DTYPE_SCALE_BLOCK];
	}
	}
}

/* Nearest integer within low..high, ties to even, as v8_code. */
QUANT_FN float quant_code(float v, float low, float high)
{
	float c = v > low ? v : low;
	c = c < high ? c : high;
	return (c + 0x1.8p23f) - 0x1.8p23f;
}

/* As v8_sum. */
QUANT_FN float lanes_sum(const float *v)
{
	return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

/* As quant_block_scale. */
QUANT_FN float quant_scale(int exponent, float d, uint16_t *bits)
{
	float v = ldexpf(d, exponent);
	v = v > 65504 ? 65504 : v < -65504 ? -65504 : v;
	*bits = f32_to_f16(v);
	return ldexpf(f16_to_f32(*bits), -exponent);
}

QUANT_FN float default_weight(enum team_weighting how, float x, float mean_square)
{
	return how == TEAM_MAGNITUDE ? fabsf(x) + 1e-4f
		   : how == TEAM_DAMPED  ? sqrtf(mean_square + x * x)
								 : 1;
}

/* ---- a team ---- */

QUANT_FN float team_max(struct quant_team t, float v)
{
	for (int o = t.size / 2; o; o /= 2) {
		float other = team_xor(t, v, o);
		v = other > v ? other : v;
	}
	return v;
}

/* Sum of u[n], which the team has just filled; every thread gets it. */
QUANT_FN float team_sum(struct quant_state *s, struct quant_team t, int n)
{
	team_sync(t);
	for (int l = t.lane; l < 8; l += t.size) {
		float sum = 0;
		for (int i = l; i < n; i += 8)
			sum += s->u[i];
		s->sums[0][l] = sum;
	}
	team_sync(t);
	const float sum = lanes_sum(s->sums[0]);
	team_sync(t);
	return sum;
}

/* The sum over vectors of eight of each vector's sum; v8_sum(v[0]) + v8_sum(v[1]) + ... */
QUANT_FN float team_vector_sum(
	struct quant_state *s, struct quant_team t, const float *v, bool square)
{
	float sum = 0;
	for (int i = t.lane; i < BLOCK_BIG / 8; i += t.size) {
		float e[8];
		QUANT_UNROLL
		for (int l = 0; l < 8; l++)
			e[l] = square ? v[8 * i + l] * v[8 * i + l] : v[8 * i + l];
		s->u[i] = lanes_sum(e);
	}
	team_sync(t);
	for (int i = 0; i < BLOCK_BIG / 8; i++)
		sum += s->u[i];
	team_sync(t);
	return sum;
}

/* Weights without importance. */
QUANT_FN void default_weights(struct quant_state *s, struct quant_team t, enum team_weighting how)
{
	const float mean_square = team_vector_sum(s, t, s->x, true) / (float)BLOCK_BIG;
	for (int i = t.lane; i < BLOCK_BIG; i += t.size)
		s->w[i] = default_weight(how, s->x[i], mean_square);
	team_sync(t);
	const float factor = (float)BLOCK_BIG / team_vector_sum(s, t, s->w, false);
	for (int i = t.lane; i < BLOCK_BIG; i += t.size)
		s->w[i] = s->w[i] * factor;
	team_sync(t);
}

/* As quant_block_load, of the 256 values from (row, col) on. importance: of column `col` on, or
 * NULL. False for a block of zeros. */
QUANT_FN bool quant_load(struct quant_state *s, struct quant_team t, const struct raw_matrix *m,
	uint64_t row, uint64_t col, const float *importance, enum team_weighting how, int *exponent)
{
	float top = 0, mean = 0;
	for (int i = t.lane; i < BLOCK_BIG; i += t.size) {
		const float x = source_value(m, row, col + (uint64_t)i), magnitude = fabsf(x);
		s->x[i] = x;
		top = magnitude > top ? magnitude : top;
		if (importance)
			s->u[i] = importance[i];
	}
	top = team_max(t, top);
	if (!(top > 0))
		return false;
	frexpf(top, exponent);
	const float scale1 = ldexpf(1, -*exponent / 2), scale2 = ldexpf(1, -*exponent - -*exponent / 2);
	for (int i = t.lane; i < BLOCK_BIG; i += t.size)
		s->x[i] = s->x[i] * scale1 * scale2;
	if (importance)
		mean = team_sum(s, t, BLOCK_BIG) / (float)BLOCK_BIG;
	team_sync(t);
	if (!(mean > 0x1p-100f && mean < 0x1p100f)) {
		default_weights(s, t, how);
		return true;
	}
	const float factor = 1 / mean;
	for (int i = t.lane; i < BLOCK_BIG; i += t.size)
		s->w[i] = importance[i] * factor + 1e-5f;
	team_sync(t);
	return true;
}

/* Sets *fit, with the integers of best_s and best_m; fit NULL: does nothing. */
QUANT_FN void store_fit(const struct quant_state *s, struct quant_team t, struct plain_fit *fit,
	float d, float dmin, int exponent)
{
	if (!fit)
		return;
	for (int j = t.lane; j < 16; j += t.size) {
		fit->s[j] = s->best_s[j];
		fit->m[j] = s->best_m[j];
	}
	if (!t.lane) {
		fit->d = d;
		fit->dmin = dmin;
		fit->exponent = exponent;
		fit->any = 1;
	}
}

QUANT_FN void store_no_fit(struct quant_team t, struct plain_fit *fit)
{
	if (fit && !t.lane)
		fit->any = 0;
}

/* As quant_block_growth. */
QUANT_FN float team_growth(struct quant_state *s, struct quant_team t, float xy, float most)
{
	for (int i = t.lane; i < BLOCK_BIG; i += t.size)
		s->u[i] = s->x[i] * s->x[i] * s->w[i];
	const float xx = team_sum(s, t, BLOCK_BIG);
	if (!(xx > xy && xy > 0))
		return 1;
	return xx < (1 + most) * xy ? xx / xy : 1 + most;
}

#endif
