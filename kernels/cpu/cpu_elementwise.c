/* SPDX-License-Identifier: MIT */
/*
 * Ops whose work is proportional to the activations: embedding rows, norms, RoPE, cache rows,
 * SwiGLU. Every product and sum is rounded on its own here (no fmaf); means are computed in double.
 */
#include "kernels/cpu/cpu_internal.h"

#include "src/base/half.h"
#include "src/base/num.h"

#include <math.h>

#define EXP_COST 8 /* multiply-adds that take as long as an exponential and a division */

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

struct norm_job {
	const struct cpu_isa *isa;
	const float *x, *gain;
	int64_t x_stride, out_stride;
	float eps;
	int n;
	float *out;
};

static void norm_task(const void *context, int64_t first, int64_t last, int thread)
{
	const struct norm_job *a = context;
	(void)thread;
	for (int64_t r = first; r < last; r++)
		norm_row(a->isa, a->x + r * a->x_stride, a->gain, a->eps, a->n, a->out + r * a->out_stride);
}

void cpu_rms_norm(struct backend *b, const float *x, int64_t x_stride, const struct norm *norms,
	int n_norms, float eps, int rows, int n, int64_t out_stride)
{
	for (int i = 0; i < n_norms && !b->failure.code; i++) {
		struct norm_job job = {.isa = cpu_of(b)->isa,
			.x = x,
			.gain = norms[i].gain,
			.x_stride = x_stride,
			.out_stride = out_stride,
			.eps = eps,
			.n = n,
			.out = norms[i].out};
		cpu_run_rows(cpu_of(b), cpu_threads_for(cpu_of(b), 2.0 * rows * n), rows, norm_task, &job);
	}
}

struct swiglu_job {
	const struct cpu_isa *isa;
	const float *gate, *up;
	float *out;
};

static void swiglu_task(const void *context, int64_t first, int64_t last, int thread)
{
	const struct swiglu_job *a = context;
	(void)thread;
	a->isa->swiglu(a->gate + first, a->up + first, (size_t)(last - first), a->out + first);
}

void cpu_swiglu(struct backend *b, const float *gate, const float *up, int64_t n, float *out)
{
	if (b->failure.code)
		return;
	struct swiglu_job job = {cpu_of(b)->isa, gate, up, out};
	cpu_run_rows(cpu_of(b), cpu_threads_for(cpu_of(b), (double)n * EXP_COST), n, swiglu_task, &job);
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
static void rope_rotate_pairs(const float *cos_sin, const float *x, float *y, int n)
{
	for (int i = 0; i < n; i++) {
		float a = x[2 * i], c = cos_sin[2 * i], v = x[2 * i + 1], s = cos_sin[2 * i + 1];
		y[2 * i] = a * c - v * s;
		y[2 * i + 1] = a * s + v * c;
	}
}

struct rope_job {
	const struct rope *rope;
	const float *x;
	int64_t x_stride, y_stride;
	float *y;
	int n_heads;
};

static void rope_task(const void *context, int64_t first, int64_t last, int thread)
{
	const struct rope_job *a = context;
	int dim = a->rope->dim;
	(void)thread;
	for (int64_t r = first; r < last; r++)
		for (int64_t at = r * a->n_heads; at < (r + 1) * a->n_heads; at++)
			rope_rotate_pairs(a->rope->cos_sin + r * dim, a->x + at * a->x_stride,
				a->y + at * a->y_stride, dim / 2);
}

void cpu_rope(struct backend *b, const struct rope *rope, const float *x, int64_t x_stride,
	float *y, int64_t y_stride, int rows, int n_heads)
{
	if (b->failure.code)
		return;
	struct rope_job job = {.rope = rope,
		.x = x,
		.x_stride = x_stride,
		.y_stride = y_stride,
		.y = y,
		.n_heads = n_heads};
	int threads = cpu_threads_for(cpu_of(b), 2.0 * rows * n_heads * rope->dim);
	cpu_run_rows(cpu_of(b), threads, rows, rope_task, &job);
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

/* out = gain * (x - mean) / sqrt(variance + eps) + bias */
static void layer_norm_row(
	const float *x, const float *gain, const float *bias, float eps, int n, float *out)
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

/* Appends to either cache. in: kv or key, [rows][width]; scratch: the finished rows, [rows][width].
 */
struct append_job {
	const struct cpu_isa *isa;
	const struct batch *rows;
	const struct rope *rope;
	struct cache_view cache;
	const float *in, *gain, *bias;
	float eps;
	int n_latent;
	float *scratch;
};

static void latent_task(const void *context, int64_t first, int64_t last, int thread)
{
	const struct append_job *a = context;
	int n = a->cache.width, dim = a->rope->dim;
	(void)thread;
	for (int64_t r = first; r < last; r++) {
		const float *in = a->in + r * n;
		float *row = a->scratch + r * n;
		norm_row(a->isa, in, a->gain, a->eps, a->n_latent, row);
		rope_rotate_pairs(a->rope->cos_sin + r * dim, in + a->n_latent, row + a->n_latent, dim / 2);
		cache_store(&a->cache, row, a->rows->base[r] + (int64_t)a->rows->pos[r]);
	}
}

static void index_key_task(const void *context, int64_t first, int64_t last, int thread)
{
	const struct append_job *a = context;
	int n = a->cache.width, dim = a->rope->dim;
	(void)thread;
	for (int64_t r = first; r < last; r++) {
		float *row = a->scratch + r * n;
		layer_norm_row(a->in + r * n, a->gain, a->bias, a->eps, n, row);
		rope_rotate_pairs(a->rope->cos_sin + r * dim, row, row, dim / 2);
		cache_store(&a->cache, row, a->rows->base[r] + (int64_t)a->rows->pos[r]);
	}
}

static void latents_append(struct backend *b, struct append_job *job, cpu_task_fn *fn)
{
	uint64_t values = (uint64_t)job->rows->n * (uint64_t)job->cache.width;
	job->isa = cpu_of(b)->isa;
	job->scratch = cpu_scratch(cpu_of(b), values * sizeof(float), "latents");
	if (job->scratch)
		cpu_run_rows(
			cpu_of(b), cpu_threads_for(cpu_of(b), 6.0 * (double)values), job->rows->n, fn, job);
}

void cpu_latents(
	struct backend *b, const struct batch *rows, const struct rope *rope, const struct latents *a)
{
	cpu_matmul(b, a->in, a->n_in, a->x, rows->n);
	if (a->q)
		cpu_rms_norm(
			b, a->q, a->n_q, &(struct norm){a->q_gain, a->q}, 1, a->eps, rows->n, a->n_q, a->n_q);
	struct append_job kv = {.rows = rows,
		.rope = rope,
		.cache = a->kv_cache,
		.in = a->kv,
		.gain = a->kv_gain,
		.eps = a->eps,
		.n_latent = a->n_kv};
	if (a->kv && !b->failure.code)
		latents_append(b, &kv, latent_task);
	struct append_job key = {.rows = rows,
		.rope = rope,
		.cache = a->key_cache,
		.in = a->key,
		.gain = a->key_gain,
		.bias = a->key_bias,
		.eps = a->key_eps};
	if (a->key && !b->failure.code)
		latents_append(b, &key, index_key_task);
	cpu_matmul(b, a->out, a->n_out, a->q, rows->n);
}
