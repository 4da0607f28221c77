/* SPDX-License-Identifier: MIT */
/*
 * Ops whose work is proportional to the activations: embedding rows, norms, rotation, cache rows, SwiGLU.
 * Products and sums are rounded one by one here (no fmaf), means are taken in double.
 */
#include "kernels/cpu/cpu_internal.h"

#include "src/base/half.h"
#include "src/base/num.h"

#include <math.h>

#define EXP_COST 8 /* multiply-adds that an exponential and a division are worth */

void cpu_embed(struct backend *b, struct weight table, const int32_t *ids, int rows, float *out)
{
	if (b->failure.code)
		return;
	for (int r = 0; r < rows; r++) {
		const uint8_t *src = (const uint8_t *)table.data + (size_t)ids[r] * table.row_bytes;
		cpu_of(b)->isa->decode(table.type, src, out + r * table.n_in, (size_t)table.n_in);
	}
}

/* out = gain * x / sqrt(mean(x^2) + eps): x times the rounded reciprocal root, then times gain */
static void norm_row(
	const struct cpu_isa *isa, const float *x, const float *gain, float eps, int n, float *out)
{
	float scale = (float)(1.0 / sqrt(isa->sum_squares(x, (size_t)n) / n + (double)eps));
#pragma omp simd
	for (int i = 0; i < n; i++)
		out[i] = x[i] * scale * gain[i];
}

void cpu_rms_norm(struct backend *b, const float *x, int64_t x_stride, const float *gain, float eps, int rows,
	int n, float *out, int64_t out_stride)
{
	if (b->failure.code)
		return;
	int threads = cpu_threads_for(cpu_of(b), 2.0 * rows * n);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
	for (int r = 0; r < rows; r++)
		norm_row(cpu_of(b)->isa, x + r * x_stride, gain, eps, n, out + r * out_stride);
}

void cpu_swiglu(struct backend *b, const float *gate, const float *up, int64_t n, float *out)
{
	if (b->failure.code)
		return;
	int64_t piece = 4096, pieces = (n + piece - 1) / piece;
	int threads = cpu_threads_for(cpu_of(b), (double)n * EXP_COST);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
	for (int64_t p = 0; p < pieces; p++)
		cpu_of(b)->isa->swiglu(
			gate + p * piece, up + p * piece, (size_t)MIN(piece, n - p * piece), out + p * piece);
}

void cpu_rope_angles(
	struct backend *b, const struct batch *rows, const float *inv_freq, int dim, float *cos_sin)
{
	if (b->failure.code)
		return;
	int half = dim / 2;
	for (int r = 0; r < rows->n; r++)
		for (int i = 0; i < half; i++) {
			float angle = (float)rows->pos[r] * inv_freq[i];
			cos_sin[2 * (r * half + i)] = cosf(angle);
			cos_sin[2 * (r * half + i) + 1] = sinf(angle);
		}
}

/* n pairs; y may be x */
static void rotate(const float *cos_sin, const float *x, float *y, int n)
{
	for (int i = 0; i < n; i++) {
		float a = x[2 * i], c = cos_sin[2 * i], v = x[2 * i + 1], s = cos_sin[2 * i + 1];
		y[2 * i] = a * c - v * s;
		y[2 * i + 1] = a * s + v * c;
	}
}

void cpu_rope(struct backend *b, const struct rope *rope, const float *x, int64_t x_stride, float *y,
	int64_t y_stride, int rows, int n_heads)
{
	if (b->failure.code)
		return;
	int threads = cpu_threads_for(cpu_of(b), 2.0 * rows * n_heads * rope->dim);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
	for (int r = 0; r < rows; r++)
		for (int h = 0; h < n_heads; h++) {
			int64_t at = (int64_t)r * n_heads + h;
			rotate(
				rope->cos_sin + (int64_t)r * rope->dim, x + at * x_stride, y + at * y_stride, rope->dim / 2);
		}
}

static void cache_store(const struct cache_view *cache, const float *values, int64_t row)
{
	int n = cache->width;
	if (cache->type == DTYPE_F16) {
		uint16_t *dst = (uint16_t *)cache->data + row * n;
		for (int i = 0; i < n; i++)
			dst[i] = f32_to_f16(values[i]);
	} else {
		memcpy((float *)cache->data + row * n, values, (size_t)n * sizeof *values);
	}
}

void cpu_latent_append(struct backend *b, const struct batch *rows, const struct rope *rope, const float *u,
	int n_latent, const float *gain, float eps, struct cache_view cache)
{
	if (b->failure.code)
		return;
	int n = cache.width, threads = cpu_threads_for(cpu_of(b), 4.0 * rows->n * n);
	float *scratch = cpu_scratch(cpu_of(b), (uint64_t)rows->n * (uint64_t)n * sizeof(float), "latent_append");
	if (!scratch)
		return;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
	for (int r = 0; r < rows->n; r++) {
		const float *in = u + (int64_t)r * n;
		float *row = scratch + (int64_t)r * n;
		norm_row(cpu_of(b)->isa, in, gain, eps, n_latent, row);
		rotate(rope->cos_sin + (int64_t)r * rope->dim, in + n_latent, row + n_latent, rope->dim / 2);
		cache_store(&cache, row, rows->base[r] + (int64_t)rows->pos[r]);
	}
}

/* out = gain * (x - mean) / sqrt(variance + eps) + bias */
static void layer_norm_row(const float *x, const float *gain, const float *bias, float eps, int n, float *out)
{
	double sum = 0, squares = 0;
	for (int i = 0; i < n; i++)
		sum += (double)x[i];
	double mean = sum / n;
	for (int i = 0; i < n; i++)
		squares += ((double)x[i] - mean) * ((double)x[i] - mean);
	double scale = 1.0 / sqrt(squares / n + (double)eps);
	for (int i = 0; i < n; i++)
		out[i] = (float)(((double)x[i] - mean) * scale) * gain[i] + bias[i];
}

void cpu_index_append(struct backend *b, const struct batch *rows, const struct rope *rope, const float *k,
	const float *gain, const float *bias, float eps, struct cache_view cache)
{
	if (b->failure.code)
		return;
	int n = cache.width, threads = cpu_threads_for(cpu_of(b), 8.0 * rows->n * n);
	float *scratch = cpu_scratch(cpu_of(b), (uint64_t)rows->n * (uint64_t)n * sizeof(float), "index_append");
	if (!scratch)
		return;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
	for (int r = 0; r < rows->n; r++) {
		float *row = scratch + (int64_t)r * n;
		layer_norm_row(k + (int64_t)r * n, gain, bias, eps, n, row);
		rotate(rope->cos_sin + (int64_t)r * rope->dim, row, row, rope->dim / 2);
		cache_store(&cache, row, rows->base[r] + (int64_t)rows->pos[r]);
	}
}
