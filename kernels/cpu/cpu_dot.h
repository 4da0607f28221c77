/* SPDX-License-Identifier: MIT */
/*
 * The arithmetic under the CPU ops, once per instruction set: plain C, AVX2, AVX-512. All give the
 * same bits, because every result is defined down to the order of its roundings.
 *
 * dot(w, x) over n values, w_k being the exact float of src/quant/dequant.h, times its scale where
 * there are scales (cpu_matmul.c):
 *   1. 16 accumulators (SIMD lanes) start at +0.
 *   2. acc[k mod 16] = fmaf(w_k, x_k, acc[k mod 16]) for ascending k. If n is not a multiple of 16,
 *      the last step is padded with zeros on both sides.
 *   3. Tree sum: acc[j] += acc[j + 8] for j < 8, += acc[j + 4] for j < 4, += acc[j + 2] for j < 2.
 *      The result is acc[0] + acc[1].
 *
 *     k      0  1 ... 15 | 16 17 ... 31 | ...          16 lanes: one zmm, two ymm, or float[16]
 *     lane   0  1 ... 15 |  0  1 ... 15 |
 *
 * A result therefore depends on one packed row and one activation row alone, not on the number of
 * rows, tiles, threads or the instruction set. (Only the payload of a NaN is not fixed.)
 */
#ifndef GLM_KERNELS_CPU_DOT_H
#define GLM_KERNELS_CPU_DOT_H

#include "src/quant/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DOT_LANES     16
#define GEMV_ROWS_MAX 4 /* most activation rows of matvec */
#define DOT_TILE_W    4 /* weight rows of a tile */
#define DOT_TILE_X    6 /* activation rows of a tile: 24 sums, which fill the registers of AVX-512 */

/* A register tile: dots of up to 4 weight rows (floats) with up to 6 activation rows over values
 * [0, n) of both. A long dot may be split into several calls: partial sums are then kept in `acc`
 * between them, and only the last call may have n % 16 != 0. */
struct dot_tile {
	const float *w[DOT_TILE_W]; /* n_w rows; the others repeat a valid row */
	const float *x[DOT_TILE_X]; /* n_x rows */
	int n_x;
	size_t n;
	float *acc; /* [n_x * 4][16], 64-byte aligned; not used when first and last are both set */
	bool first; /* start from zero, not from acc */
	bool last;  /* reduce into out */
	float *out; /* [n_x][4] */
};

struct cpu_isa {
	const char *name; /* "AVX-512" */

	/* dst[0..n) = the exact floats of n packed values; any byte alignment of src. n is a multiple
	 * of the block. */
	void (*decode)(enum dtype type, const void *src, float *dst, size_t n);

	/* y[j][i] = dot(packed row i, x[j]), or y[j][i] + dot(...) when add; i < rows, j < n_x <=
	 * GEMV_ROWS_MAX. Rows lie row_bytes apart. Packed types: four weight rows at a time are decoded
	 * once for all x, the last rows % 4 and those of F16 and BF16 once for each x. */
	void (*matvec)(enum dtype type, const void *w, size_t row_bytes, size_t n,
		const float *const *x, int n_x, int rows, float *const *y, bool add);

	void (*tile)(const struct dot_tile *t);

	/* z[h][c] = fmaf(p[h * p_stride + t], row[t][c], z[h][c]) for ascending t; h < n_heads, c < n.
	 */
	void (*weighted_rows)(const float *const *row, int n_rows, const float *p, int64_t p_stride,
		int n_heads, size_t n, float *z, int64_t z_stride);

	/* s[t] = e^(scale * s[t] - max over t of scale * s[t]). Returns their sum: 16 partial sums and
	 * the tree of dot. n >= 1. */
	float (*softmax)(float *s, float scale, int n);

	/* out[i] = gate / (1 + e^-gate) * up */
	void (*swiglu)(const float *gate, const float *up, size_t n, float *out);

	/* out[i] = 1 / (1 + e^-x) */
	void (*sigmoid)(const float *x, size_t n, float *out);

	/* Sum of x[i]^2 in double: 16 partial sums and the tree of dot; squares are exact. */
	double (*sum_squares)(const float *x, size_t n);

	/* score[t] = fmaf(c[j], max(0, dot[j][t] * scale), score[t]) for ascending heads j, from +0;
	 * NaN stays NaN. dot: [n_heads][dot_stride], score: [n_keys]. */
	void (*index_score)(const float *dot, const float *c, int64_t dot_stride, float scale,
		int n_keys, int n_heads, float *score);
};

/* NULL where the program was compiled without it. cpu_isa_available asks whether the machine has
 * it. */
extern const struct cpu_isa *const cpu_isa_c, *const cpu_isa_avx2, *const cpu_isa_avx512;

/* Instruction sets of this machine, best first: `level` counts from 0; NULL past the last, which is
 * plain C. */
const struct cpu_isa *cpu_isa_available(int level);

/* x86-64 only: AVX2, FMA and F16C, which all vector versions use. An emulator may hide F16C alone.
 */
bool cpu_has_avx2(void);

#endif
