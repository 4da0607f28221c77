/* SPDX-License-Identifier: MIT */
/*
 * The arithmetic in plain C: the reference for the vector versions, and the fallback on machines
 * without AVX2. Where the target has no FMA instruction the C library computes fmaf, slowly but
 * exactly.
 */
#include "kernels/cpu/cpu_dot.h"

#include "kernels/cpu/cpu_lanes.h"
#include "src/base/num.h"
#include "src/quant/dequant.h"

#include <string.h>

/* acc += w * x over n values; an incomplete last step is padded with zeros. */
static void dot_add(const float *w, const float *x, size_t n, float *acc)
{
	size_t k = 0;
	for (; k + DOT_LANES <= n; k += DOT_LANES)
		for (int j = 0; j < DOT_LANES; j++)
			acc[j] = fmaf(w[k + j], x[k + j], acc[j]);
	if (k < n)
		for (size_t j = 0; j < DOT_LANES; j++)
			acc[j] = k + j < n ? fmaf(w[k + j], x[k + j], acc[j]) : acc[j] + 0.0f;
}

static void c_decode(enum dtype type, const void *src, float *dst, size_t n)
{
	dequant_row(type, src, dst, n);
}

/* A row is decoded 256 values at a time (a super-block), which are whole blocks of every type. */
static void c_matvec(enum dtype type, const void *w, size_t row_bytes, size_t n,
	const float *const *x, int n_x, int rows, float *const *y, bool add)
{
	const struct dtype_info *info = dtype_info(type);
	size_t super_block_bytes = 256 / info->block_values * info->block_bytes;
	float values[256];
	for (int i = 0; i < rows; i++) {
		const uint8_t *src = (const uint8_t *)w + (size_t)i * row_bytes;
		float acc[GEMV_ROWS_MAX][DOT_LANES] = {{0}};
		for (size_t k = 0; k < n; k += 256, src += super_block_bytes) {
			size_t len = MIN(n - k, (size_t)256);
			dequant_row(type, src, values, len);
			for (int j = 0; j < n_x; j++)
				dot_add(values, x[j] + k, len, acc[j]);
		}
		for (int j = 0; j < n_x; j++) {
			float dot = lanes_reduce(acc[j]);
			y[j][i] = add ? y[j][i] + dot : dot;
		}
	}
}

static void c_tile(const struct dot_tile *t)
{
	for (int j = 0; j < t->n_x; j++)
		for (int i = 0; i < DOT_TILE_W; i++) {
			int at = j * DOT_TILE_W + i;
			float acc[DOT_LANES] = {0};
			if (!t->first)
				memcpy(acc, t->acc + at * DOT_LANES, sizeof acc);
			dot_add(t->w[i], t->x[j], t->n, acc);
			if (t->last)
				t->out[at] = lanes_reduce(acc);
			else
				memcpy(t->acc + at * DOT_LANES, acc, sizeof acc);
		}
}

static void c_weighted_rows(const float *const *row, int n_rows, const float *p, int64_t p_stride,
	int n_heads, size_t n, float *z, int64_t z_stride)
{
	for (int h = 0; h < n_heads; h++)
		for (int t = 0; t < n_rows; t++)
			for (size_t c = 0; c < n; c++)
				z[h * z_stride + (int64_t)c] =
					fmaf(p[h * p_stride + t], row[t][c], z[h * z_stride + (int64_t)c]);
}

static const struct cpu_isa isa_c = {
	.name = "plain C",
	.decode = c_decode,
	.matvec = c_matvec,
	.tile = c_tile,
	.weighted_rows = c_weighted_rows,
	.softmax = lanes_softmax,
	.swiglu = lanes_swiglu,
	.sigmoid = lanes_sigmoid,
	.sum_squares = lanes_sum_squares,
	.index_score = lanes_index_score,
};
const struct cpu_isa *const cpu_isa_c = &isa_c;
