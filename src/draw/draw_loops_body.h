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
	uint64_t mass = 0, total = 0;
#pragma omp simd reduction(+ : mass, total)
	for (size_t i = 0; i < n; i++) {
		uint64_t u = draw_units(x[i], top, scale);
		mass += x[i] >= least ? u : 0;
		total += u;
	}
	before->mass += mass;
	all->mass += total;
}

static size_t loops_count(const float *x, size_t n, float least)
{
	int32_t count = 0;
#pragma omp simd reduction(+ : count)
	for (size_t i = 0; i < n; i++)
		count += x[i] >= least;
	return (size_t)count;
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

/* Philox of DRAW_BLOCK / 4 counters side by side. */
static void loops_id_words(const struct draw_noise *noise, uint32_t first, uint32_t *out)
{
	enum { N = DRAW_BLOCK / 4 };
	uint32_t c0[N], c1[N], c2[N], c3[N], k0 = (uint32_t)noise->seed,
										 k1 = (uint32_t)(noise->seed >> 32);
	for (uint32_t j = 0; j < N; j++) {
		c0[j] = first / 4 + j;
		c1[j] = noise->position;
		c2[j] = 1;
		c3[j] = 0;
	}
	for (int round = 0; round < 10; round++) {
#pragma omp simd
		for (int j = 0; j < N; j++) {
			uint64_t a = (uint64_t)c0[j] * 0xd2511f53u, b = (uint64_t)c2[j] * 0xcd9e8d57u;
			c0[j] = (uint32_t)(b >> 32) ^ c1[j] ^ k0;
			c1[j] = (uint32_t)b;
			c2[j] = (uint32_t)(a >> 32) ^ c3[j] ^ k1;
			c3[j] = (uint32_t)a;
		}
		k0 += 0x9e3779b9u;
		k1 += 0xbb67ae85u;
	}
	for (int j = 0; j < N; j++) {
		out[4 * j] = c0[j];
		out[4 * j + 1] = c1[j];
		out[4 * j + 2] = c2[j];
		out[4 * j + 3] = c3[j];
	}
}

static const struct draw_loops loops = {
	loops_maxima, loops_sum, loops_count, loops_units, loops_buckets, loops_id_words};
const struct draw_loops *const DRAW_LOOPS = &loops;
