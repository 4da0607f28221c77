/* SPDX-License-Identifier: MIT */
/*
 * Loops that the compiler vectorises by itself, for draw_loops_c.c, draw_loops_avx2.c and
 * draw_loops_avx512.c, which define DRAW_LOOPS and include this. Contracts: draw_loops.h.
 */
#include "src/draw/draw_loops.h"

#include <math.h>

#define DRAW_LANES 16

/* NaN loses. *zero becomes NaN when one of x is not finite. */
static inline float block_max(const float *x, size_t n, float *zero)
{
	float top[DRAW_LANES], bad[DRAW_LANES] = {0}, best = -INFINITY;
	for (int j = 0; j < DRAW_LANES; j++)
		top[j] = -INFINITY;
	size_t i = 0;
	for (; i + DRAW_LANES <= n; i += DRAW_LANES)
#pragma omp simd
		for (int j = 0; j < DRAW_LANES; j++) {
			top[j] = x[i + j] > top[j] ? x[i + j] : top[j];
			bad[j] += x[i + j] * 0.0f; /* 0 of every finite number, else NaN */
		}
	for (int j = 0; i + j < n; j++) {
		top[j] = x[i + j] > top[j] ? x[i + j] : top[j];
		bad[j] += x[i + j] * 0.0f;
	}
	for (int j = 0; j < DRAW_LANES; j++) {
		best = top[j] > best ? top[j] : best;
		*zero += bad[j];
	}
	return best;
}

static bool loops_maxima(const float *x, size_t n, float *maxima)
{
	float zero = 0;
	size_t i = 0;
	for (; i + DRAW_BLOCK <= n; i += DRAW_BLOCK)
		*maxima++ = block_max(x + i, DRAW_BLOCK, &zero);
	if (i < n)
		*maxima = block_max(x + i, n - i, &zero);
	return zero == 0;
}

static void loops_sum(const float *x, size_t n, float least, float top, float scale,
	struct draw_sum *before, struct draw_sum *all)
{
	uint64_t count = 0, mass = 0, total = 0;
#pragma omp simd reduction(+ : count, mass, total)
	for (size_t i = 0; i < n; i++) {
		uint64_t u = draw_units(x[i], top, scale), is = x[i] >= least;
		count += is;
		mass += u & -is;
		total += u;
	}
	before->count += count;
	before->mass += mass;
	all->count += n;
	all->mass += total;
}

static void loops_units(const float *x, size_t n, float top, float scale, uint64_t *out)
{
#pragma omp simd
	for (size_t i = 0; i < n; i++)
		out[i] = draw_units(x[i], top, scale);
}

static void loops_buckets(const float *x, size_t n, float top, float scale, int32_t *out)
{
#pragma omp simd
	for (size_t i = 0; i < n; i++)
		out[i] = (int32_t)(draw_halvings(x[i], top, scale) * DRAW_BUCKETS_LN2);
}

static const struct draw_loops loops = {loops_maxima, loops_sum, loops_units, loops_buckets};
const struct draw_loops *const DRAW_LOOPS = &loops;
