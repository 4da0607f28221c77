/* SPDX-License-Identifier: MIT */
/*
 * The limits of this machine's CPU side. Bandwidth: every thread walks its own part of arrays that
 * are several times the last-level cache; reads are summed in enough independent accumulators that
 * memory, not the adder, is the limit. copy and triad count the bytes the program moves, without
 * the read-for-ownership of the written lines. FMA: float32 multiply-adds on registers, in the
 * widest vectors of the machine.
 */
#include "tools/bench/bench.h"

#include "src/base/host/memory_left.h"
#include "src/base/host/pages.h"
#include "src/base/num.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

#define MIN_ARRAY_BYTES ((size_t)256 << 20)
#define MAX_ARRAY_BYTES ((size_t)640 << 20)
#define FMA_STEPS       4000000
#define LINE            16        /* uint32_t of a cache line */
#define READ_BLOCK      (1 << 16) /* uint32_t that a thread reads in a row */

typedef uint32_t line_t
	__attribute__((vector_size(LINE * sizeof(uint32_t)), aligned(4), may_alias));

struct arrays {
	uint32_t *a, *b, *c; /* [n] */
	size_t n;            /* a multiple of LINE */
	uint64_t sum;
	double macs; /* of one call of fma_work */
	float sink;
};

/* The sum of n lines, in the widest vectors of the caller: with narrow ones the core, not memory,
 * is the limit. */
static inline __attribute__((always_inline)) uint64_t sum_lines(const line_t *line, size_t n)
{
	line_t sum[4] = {0};
	uint64_t total = 0;
	for (size_t i = 0; i + 4 <= n; i += 4) {
		sum[0] += line[i];
		sum[1] += line[i + 1];
		sum[2] += line[i + 2];
		sum[3] += line[i + 3];
	}
	sum[0] += sum[1] + sum[2] + sum[3];
	for (int k = 0; k < LINE; k++)
		total += sum[0][k];
	return total;
}

static uint64_t sum_plain(const line_t *line, size_t n)
{
	return sum_lines(line, n);
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static uint64_t sum_512(const line_t *line, size_t n)
{
	return sum_lines(line, n);
}

__attribute__((target("avx2"))) static uint64_t sum_256(const line_t *line, size_t n)
{
	return sum_lines(line, n);
}
#endif

static int read_work(void *user, struct err *e)
{
	(void)e;
	struct arrays *x = user;
	const uint32_t *a = x->a;
	uint64_t (*sum)(const line_t *, size_t) = sum_plain, total = 0;
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512f"))
		sum = sum_512;
	else if (__builtin_cpu_supports("avx2"))
		sum = sum_256;
#endif
#pragma omp parallel for schedule(static) reduction(+ : total)
	for (size_t block = 0; block < x->n; block += READ_BLOCK)
		total += sum((const line_t *)(const void *)(a + block),
			MIN((size_t)READ_BLOCK, x->n - block) / LINE);
	x->sum = total;
	return 0;
}

static int copy_work(void *user, struct err *e)
{
	(void)e;
	struct arrays *x = user;
#pragma omp parallel for schedule(static)
	for (size_t block = 0; block < x->n; block += 1 << 16)
		memcpy(x->b + block, x->a + block, MIN((size_t)1 << 16, x->n - block) * sizeof *x->a);
	return 0;
}

static int triad_work(void *user, struct err *e)
{
	(void)e;
	struct arrays *x = user;
	float *restrict c = (float *)(void *)x->c;
	const float *a = (const float *)(const void *)x->a, *b = (const float *)(const void *)x->b;
#pragma omp parallel for simd schedule(static)
	for (size_t i = 0; i < x->n; i++)
		c[i] = a[i] + 0.5f * b[i];
	return 0;
}

/* Multiply-adds on registers; returns something that depends on all of them. *macs: how many one
 * call does. */
#if defined(__x86_64__)
__attribute__((target("avx512f"))) static float fma_512(double *macs)
{
	__m512 acc[12], x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
	for (int i = 0; i < 12; i++)
		acc[i] = _mm512_set1_ps((float)i);
	for (int s = 0; s < FMA_STEPS; s++)
#pragma GCC unroll 12 /* else the sums live in memory */
		for (int i = 0; i < 12; i++)
			acc[i] = _mm512_fmadd_ps(acc[i], x, y);
	for (int i = 1; i < 12; i++)
		acc[0] = _mm512_add_ps(acc[0], acc[i]);
	*macs = 12.0 * 16 * FMA_STEPS;
	return _mm512_reduce_add_ps(acc[0]);
}

__attribute__((target("avx2,fma"))) static float fma_256(double *macs)
{
	__m256 acc[12], x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
	for (int i = 0; i < 12; i++)
		acc[i] = _mm256_set1_ps((float)i);
	for (int s = 0; s < FMA_STEPS; s++)
#pragma GCC unroll 12 /* else the sums live in memory */
		for (int i = 0; i < 12; i++)
			acc[i] = _mm256_fmadd_ps(acc[i], x, y);
	for (int i = 1; i < 12; i++)
		acc[0] = _mm256_add_ps(acc[0], acc[i]);
	float out[8];
	_mm256_storeu_ps(out, acc[0]);
	*macs = 12.0 * 8 * FMA_STEPS;
	return out[0] + out[7];
}
#endif

/* Any machine: products and sums in 16 lanes, vectorised as far as the compiler may. */
static float fma_plain(double *macs)
{
	float acc[48];
	for (int i = 0; i < 48; i++)
		acc[i] = (float)i;
	for (int s = 0; s < FMA_STEPS; s++)
		for (int i = 0; i < 48; i++)
			acc[i] = acc[i] * 0.999f + 0.001f;
	float sum = 0;
	for (int i = 0; i < 48; i++)
		sum += acc[i];
	*macs = 48.0 * FMA_STEPS;
	return sum;
}

static int fma_work(void *user, struct err *e)
{
	(void)e;
	struct arrays *x = user;
	double macs = 0;
	float sink = 0;
#pragma omp parallel reduction(+ : macs, sink)
	{
		double mine = 0;
#if defined(__x86_64__)
		if (__builtin_cpu_supports("avx512f"))
			sink += fma_512(&mine);
		else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
			sink += fma_256(&mine);
		else
#endif
			sink += fma_plain(&mine);
		macs += mine;
	}
	x->macs = macs;
	x->sink = sink;
	return 0;
}

/* Four last-level caches, within what the machine has. */
static size_t array_bytes(void)
{
	long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
	size_t want = cache > 0 ? MAX((size_t)cache * 4, MIN_ARRAY_BYTES) : MIN_ARRAY_BYTES;
	size_t have = memory_left();
	want = MIN(want, MAX_ARRAY_BYTES);
	while (have && want > (size_t)16 << 20 && want * 3 > have / 2)
		want /= 2;
	return num_align_down(want, 4096);
}

int bench_copy(struct bench *b, bool quiet, struct err *e)
{
	size_t bytes = num_align_up(b->array_bytes ? b->array_bytes : array_bytes(), 4096);
	struct arrays x = {.n = bytes / sizeof(uint32_t)};
	int rc = 0;
	x.a = pages_try_map(bytes);
	x.b = quiet ? x.a : pages_try_map(bytes); /* the limits need reading only */
	x.c = quiet ? x.a : pages_try_map(bytes);
	if (!x.a || !x.b || !x.c) {
		rc = err_set(e, ERR_MEMORY, "no memory for three arrays of %zu bytes", bytes);
		goto out;
	}
	/* touched by the threads that will read it, so that pages lie near them */
#pragma omp parallel for schedule(static)
	for (size_t i = 0; i < x.n; i++) {
		x.c[i] = 0;
		x.b[i] = 0x3f800000u + (uint32_t)(i & 0xffff);
		x.a[i] = 0x3f800000u + (uint32_t)(i & 0xffff);
	}
	const struct {
		const char *name;
		int (*work)(void *user, struct err *e);
		double bytes;
	} kinds[] = {
		{"read", read_work, (double)bytes},
		{"copy", copy_work, 2.0 * (double)bytes},
		{"triad", triad_work, 3.0 * (double)bytes},
	};
	struct bench_spread s;
	for (size_t i = 0; i < (quiet ? 1 : ARRAY_LEN(kinds)); i++) {
		if ((rc = bench_time(b, kinds[i].work, &x, &s, e)))
			goto out;
		struct bench_spread rate = bench_rate(s, kinds[i].bytes);
		if (!i)
			b->read_bytes_s = rate.high; /* a limit is the best that was seen */
		rate = bench_rate(s, kinds[i].bytes * 1e-9);
		if (!quiet)
			bench_add(b, "copy", "GB/s", rate, i ? b->read_bytes_s * 1e-9 : 0, "read",
				"%s, arrays of %zu MiB", kinds[i].name, bytes >> 20);
	}
	if ((rc = bench_time(b, fma_work, &x, &s, e)))
		goto out;
	b->mac_s = x.macs / s.low;
	if (!quiet)
		bench_add(b, "copy", "GMAC/s", bench_rate(s, x.macs * 1e-9), 0, NULL,
			"FMA, float32 on registers");
out:
	pages_unmap(x.a, bytes);
	if (!quiet) {
		pages_unmap(x.b, bytes);
		pages_unmap(x.c, bytes);
	}
	return rc;
}
