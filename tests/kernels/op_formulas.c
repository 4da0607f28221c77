/* SPDX-License-Identifier: MIT */
/*
 * The formula of every op in double precision, from the same inputs as the runs, and for each value
 * the magnitude that float rounding errors scale with: sums of absolute terms, carried through
 * products.
 */
#include "src/base/num.h"
#include "src/quant/dequant.h"
#include "tests/kernels/op_inputs.h"

#include <math.h>
#include <string.h>

#define HALF_STEP (0x1p-11 / 0x1p-24) /* rounding to half, in float roundings */

#define FORMULA(kind)                                                                              \
	static void formula_##kind(                                                                    \
		struct op_pool *p, const struct op_case *c, double *value, double *scale)

/* Row of a weight as floats. */
static float *row_floats(
	struct op_pool *p, const struct weight *w, int64_t stack, int64_t row, float *buffer)
{
	(void)p;
	const int64_t block = DTYPE_SCALE_BLOCK, across = (w->n_in + block - 1) / block;
	dequant_row(w->type, op_weight_row(w, stack, row), buffer, (size_t)w->n_in);
	for (int64_t k = 0; w->scales && k < w->n_in; k++)
		buffer[k] *= ((const float *)w->scales)[row / block * across + k / block];
	return buffer;
}

/* sum w x and sum |w x|; x_error: an error bound of x in the same units as scale, or NULL */
static double dot(const float *w, const double *x, const double *x_scale, int64_t n, double *scale)
{
	double sum = 0, magnitude = 0;
	for (int64_t k = 0; k < n; k++) {
		sum += w[k] * x[k];
		magnitude += fabs(w[k]) * (x_scale ? fabs(x[k]) + x_scale[k] : fabs(x[k]));
	}
	*scale = magnitude;
	return sum;
}

static double *doubles(struct op_pool *p, const float *v, int64_t n)
{
	double *d = op_host_new(p, (size_t)n * sizeof *d);
	for (int64_t i = 0; i < n; i++)
		d[i] = v ? (double)v[i] : 0;
	return d;
}

FORMULA(embed)
{
	int32_t ids[c->rows];
	float row[c->n_in];
	op_embed_ids(c, ids);
	struct weight w = op_weight_new(p, 1, c->type, c->n_in, c->n_out, 1);
	for (int r = 0; r < c->rows; r++, value += c->n_in, scale += c->n_in) {
		row_floats(p, &w, 0, ids[r], row);
		for (int i = 0; i < c->n_in; i++) {
			value[i] = row[i];
			scale[i] = 0; /* exact */
		}
	}
}

static void rms(const float *x, const float *gain, double eps, int n, double *value, double *scale)
{
	double sum = 0;
	for (int i = 0; i < n; i++)
		sum += (double)x[i] * x[i];
	for (int i = 0; i < n; i++) {
		value[i] = gain[i] * (double)x[i] / sqrt(sum / n + eps);
		scale[i] = fabs(value[i]);
	}
}

FORMULA(rms_norm)
{
	int in = c->n_in + 5;
	float *x = op_floats(p, 1, (size_t)(c->rows * in)), *gain = op_floats(p, 2, (size_t)c->n_in);
	for (int r = 0; r < c->rows; r++)
		rms(x + r * in, gain, (double)1e-5f, c->n_in, value + r * c->n_in, scale + r * c->n_in);
}

FORMULA(matmul)
{
	int second = c->n_out / 2 + 1, width = c->n_out + 2 * second;
	struct weight w[3] = {op_weight_new(p, 1, c->type, c->n_in, c->n_out, 1),
		op_weight_new(p, 2, c->type, c->n_in, second, 1),
		op_weight_new(p, 5, c->type, c->n_in, second, 1)};
	float *add = op_floats(p, 3, (size_t)(c->rows * second)),
		  *buffer = op_host_new(p, (size_t)c->n_in * 4);
	double *x = doubles(p, op_floats(p, 4, (size_t)(c->rows * c->n_in)), c->rows * c->n_in);
	double *own = doubles(p, op_floats(p, 6, (size_t)(c->rows * c->n_in)), c->rows * c->n_in);
	for (int o = 0; o < width; o++) {
		int part = o < c->n_out ? 0 : o < c->n_out + second ? 1 : 2;
		int i = part ? o - c->n_out - (part - 1) * second : o;
		row_floats(p, &w[part], 0, i, buffer);
		for (int r = 0; r < c->rows; r++) {
			double *v = value + r * width + o, *s = scale + r * width + o;
			*v = dot(buffer, (part < 2 ? x : own) + r * c->n_in, NULL, c->n_in, s);
			if (part == 1) {
				*v += add[r * second + i];
				*s += fabs(add[r * second + i]);
			}
		}
	}
}

FORMULA(stacked_matmul)
{
	int in = c->n_in + 7;
	struct weight w = op_weight_new(p, 1, c->type, c->n_in, c->n_out, c->heads);
	double *x =
		doubles(p, op_floats(p, 2, (size_t)(c->rows * c->heads * in)), c->rows * c->heads * in);
	float *buffer = op_host_new(p, (size_t)c->n_in * 4);
	for (int s = 0; s < c->heads; s++)
		for (int o = 0; o < c->n_out; o++) {
			row_floats(p, &w, s, o, buffer);
			for (int r = 0; r < c->rows; r++) {
				int at = (r * c->heads + s) * c->n_out + o;
				value[at] = dot(buffer, x + (r * c->heads + s) * in, NULL, c->n_in, scale + at);
			}
		}
}

FORMULA(ffn)
{
	struct weight w[3] = {op_weight_new(p, 1, c->type, c->n_in, c->n_out, 1),
		op_weight_new(p, 2, c->type, c->n_in, c->n_out, 1),
		op_weight_new(p, 5, c->type, c->n_out, c->n_in, 1)};
	float *old = op_floats(p, 4, (size_t)(c->rows * c->n_in));
	double *x = doubles(p, op_floats(p, 3, (size_t)(c->rows * c->n_in)), c->rows * c->n_in);
	double *h = doubles(p, NULL, c->rows * c->n_out), *error = doubles(p, NULL, c->rows * c->n_out);
	float *gate_row = op_host_new(p, (size_t)c->n_in * 4),
		  *up_row = op_host_new(p, (size_t)c->n_in * 4),
		  *down_row = op_host_new(p, (size_t)c->n_out * 4);
	for (int o = 0; o < c->n_out; o++) {
		row_floats(p, &w[0], 0, o, gate_row);
		row_floats(p, &w[1], 0, o, up_row);
		for (int r = 0; r < c->rows; r++) {
			double s[2];
			double gate = dot(gate_row, x + r * c->n_in, NULL, c->n_in, &s[0]);
			double up = dot(up_row, x + r * c->n_in, NULL, c->n_in, &s[1]);
			double silu = gate / (1 + exp(-gate));
			h[r * c->n_out + o] = silu * up;
			error[r * c->n_out + o] =
				1.1 * s[0] * fabs(up) + fabs(silu) * s[1]; /* silu' is below 1.1 */
		}
	}
	for (int o = 0; o < c->n_in; o++) {
		row_floats(p, &w[2], 0, o, down_row);
		for (int r = 0; r < c->rows; r++) {
			double *v = value + r * c->n_in + o, *s = scale + r * c->n_in + o;
			*v = dot(down_row, h + r * c->n_out, error + r * c->n_out, c->n_out, s);
			if (!c->plain) {
				*v += (double)old[r * c->n_in + o];
				*s += fabs((double)old[r * c->n_in + o]);
			}
		}
	}
}

FORMULA(swiglu)
{
	int n = c->rows * c->n_in;
	float *gate = op_floats(p, 1, (size_t)n), *up = op_floats(p, 2, (size_t)n);
	for (int i = 0; i < n; i++) {
		value[i] = (double)gate[i] / (1 + exp(-(double)gate[i])) * (double)up[i];
		scale[i] = fabs(value[i]) +
				   fabs((double)up[i]) * 0x1p-96; /* e^-gate above 2^128 counts as infinite */
	}
}

FORMULA(rope_angles)
{
	int32_t pos[c->rows], base[c->rows];
	float *f = op_inverse_frequencies(p, c);
	op_make_rows(c, false, pos, base);
	for (int i = 0; i < c->rows * c->dim; i++) {
		float angle =
			(float)pos[i / c->dim] * f[i % c->dim / 2]; /* rounded to float by definition */
		value[i] = i % 2 ? sin((double)angle) : cos((double)angle);
		scale[i] = fabs(value[i]);
	}
}

/* n values by angles, in place; scale likewise */
static void rotate(const float *cos_sin, double *value, double *scale, int n)
{
	for (int i = 0; i < n; i += 2) {
		double a = value[i], b = value[i + 1], co = cos_sin[i], si = cos_sin[i + 1], sa = scale[i],
			   sb = scale[i + 1];
		value[i] = a * co - b * si;
		value[i + 1] = a * si + b * co;
		scale[i] = sa * fabs(co) + sb * fabs(si);
		scale[i + 1] = sa * fabs(si) + sb * fabs(co);
	}
}

FORMULA(rope)
{
	float *x = op_floats(p, 1, (size_t)(c->rows * c->heads * c->n_in)), *angles = op_rope_new(p, c);
	for (int i = 0; i < c->rows * c->heads; i++, value += c->dim, scale += c->dim) {
		for (int k = 0; k < c->dim; k++) {
			value[k] = x[i * c->n_in + k];
			scale[k] = fabs(value[k]);
		}
		rotate(angles + i / c->heads * c->dim, value, scale, c->dim);
	}
}

/* What storing as `type` adds to the error. */
static void stored(enum dtype type, const double *value, double *scale, int n)
{
	for (int i = 0; type == DTYPE_F16 && i < n; i++)
		scale[i] += fabs(value[i]) * HALF_STEP +
					1; /* 1: halves below 2^-14 have an absolute step of 2^-24 */
}

FORMULA(latents)
{
	int kv = c->n_value ? c->n_value + c->dim : 0, n_q = c->n_out, key = c->n_in, dim = c->dim;
	float *q = op_floats(p, 4, (size_t)(c->rows * n_q)), *q_gain = op_floats(p, 5, (size_t)n_q),
		  *u = op_floats(p, 1, (size_t)(c->rows * kv)), *gain = op_floats(p, 2, (size_t)c->n_value),
		  *k = op_floats(p, 3, (size_t)(c->rows * key)), *key_gain = op_floats(p, 6, (size_t)key),
		  *bias = op_floats(p, 7, (size_t)key), *angles = op_rope_new(p, c);
	for (int r = 0; r < c->rows; r++, q += n_q, u += kv, k += key) {
		rms(q, q_gain, (double)1e-5f, n_q, value, scale);
		value += n_q, scale += n_q;
		rms(u, gain, (double)1e-5f, c->n_value, value, scale);
		for (int i = c->n_value; i < kv; i++) {
			value[i] = u[i];
			scale[i] = fabs(value[i]);
		}
		if (kv)
			rotate(angles + r * dim, value + c->n_value, scale + c->n_value, dim);
		stored(c->type, value, scale, kv);
		value += kv, scale += kv;
		double mean = 0, variance = 0;
		for (int i = 0; i < key; i++)
			mean += (double)k[i] / key;
		for (int i = 0; i < key; i++)
			variance += ((double)k[i] - mean) * ((double)k[i] - mean) / key;
		for (int i = 0; i < key; i++) {
			value[i] = ((double)k[i] - mean) / sqrt(variance + (double)1e-6f) * (double)key_gain[i];
			scale[i] = fabs(value[i]) + fabs((double)bias[i]);
			value[i] += (double)bias[i];
		}
		if (key)
			rotate(angles + r * dim, value, scale, dim);
		stored(c->type, value, scale, key);
		value += key, scale += key;
	}
}

/* Products of x [rows][n_in] with a weight, [rows][n_out] values and magnitudes */
static double *products(struct op_pool *p, struct weight w, const double *x, const double *x_scale,
	int rows, double **scale)
{
	float *buffer = op_host_new(p, (size_t)w.n_in * 4);
	double *value = doubles(p, NULL, rows * w.n_out);
	*scale = doubles(p, NULL, rows * w.n_out);
	for (int64_t o = 0; o < w.n_out; o++) {
		row_floats(p, &w, 0, o, buffer);
		for (int r = 0; r < rows; r++)
			value[r * w.n_out + o] = dot(buffer, x + r * w.n_in,
				x_scale ? x_scale + r * w.n_in : NULL, w.n_in, *scale + r * w.n_out + o);
	}
	return value;
}

/* In place: x / sqrt(mean of squares + eps) * gain + bias, x less its mean where there is a bias;
 * scale likewise, errors of all values of x counted in what divides. */
static void norm_carried(
	double *x, double *scale, const float *gain, const float *bias, double eps, int n)
{
	double mean = 0, mean_scale = 0, squares = 0, moved = 0;
	for (int i = 0; bias && i < n; i++) {
		mean += x[i] / n;
		mean_scale += scale[i] / n;
	}
	for (int i = 0; i < n; i++) {
		x[i] -= mean;
		scale[i] += mean_scale;
		squares += x[i] * x[i] / n;
		moved += fabs(x[i]) * scale[i] / n;
	}
	double by = 1 / sqrt(squares + eps);
	for (int i = 0; i < n; i++) {
		scale[i] = fabs((double)gain[i]) * by * (scale[i] + fabs(x[i]) * (1 + moved * by * by));
		x[i] = (double)gain[i] * by * x[i] + (bias ? (double)bias[i] : 0);
		scale[i] += bias ? fabs((double)bias[i]) : 0;
	}
}

FORMULA(query)
{
	int n_q = c->n_out, kv = c->n_value + c->dim, key = c->heads, rows = c->rows, n = c->n_in;
	float *angles = op_rope_new(p, c);
	double *x = doubles(p, op_floats(p, 7, (size_t)(rows * n)), rows * n), *v[5] = {NULL},
		   *s[5] = {NULL}, *sq;
	double *q = products(p, op_weight_new(p, 1, c->type, n, n_q, 1), x, NULL, rows, &sq);
	int m[5] = {c->top_k, kv, key, c->n_used, c->n_used}, width = op_case_width(c);
	v[1] = products(p, op_weight_new(p, 2, c->type, n, kv, 1), x, NULL, rows, &s[1]);
	if (key) {
		v[2] = products(p, op_weight_new(p, 3, c->type, n, key, 1), x, NULL, rows, &s[2]);
		v[3] = products(p, op_weight_new(p, 4, c->plain ? DTYPE_F32 : c->type, n, c->n_used, 1), x,
			NULL, rows, &s[3]);
	}
	const float *q_gain = op_floats(p, 8, (size_t)n_q),
				*kv_gain = op_floats(p, 9, (size_t)c->n_value),
				*key_gain = op_floats(p, 10, (size_t)key),
				*key_bias = op_floats(p, 11, (size_t)key);
	for (int r = 0; r < rows; r++) {
		norm_carried(q + r * n_q, sq + r * n_q, q_gain, NULL, (double)1e-5f, n_q);
		norm_carried(v[1] + r * kv, s[1] + r * kv, kv_gain, NULL, (double)1e-5f, c->n_value);
		rotate(angles + r * c->dim, v[1] + r * kv + c->n_value, s[1] + r * kv + c->n_value, c->dim);
		if (!key)
			continue;
		norm_carried(v[2] + r * key, s[2] + r * key, key_gain, key_bias, (double)1e-6f, key);
		rotate(angles + r * c->dim, v[2] + r * key, s[2] + r * key, c->dim);
	}
	v[0] = products(p, op_weight_new(p, 5, c->type, n_q, c->top_k, 1), q, sq, rows, &s[0]);
	if (key)
		v[4] = products(p, op_weight_new(p, 6, c->type, n_q, c->n_used, 1), q, sq, rows, &s[4]);
	for (int i = 0, to = 0; i < (key ? 5 : 2); to += m[i++])
		for (int r = 0; r < rows; r++) {
			memcpy(value + r * width + to, v[i] + r * m[i], (size_t)m[i] * sizeof *value);
			memcpy(scale + r * width + to, s[i] + r * m[i], (size_t)m[i] * sizeof *scale);
		}
}

FORMULA(attend)
{
	int width = c->n_value + c->dim, n_value = c->n_value;
	int32_t pos[c->rows], base[c->rows], n_sel[c->rows],
		*sel = op_host_new(p, (size_t)(c->rows * c->top_k) * 4);
	op_make_rows(c, false, pos, base);
	op_attend_lists(c, sel, n_sel);
	double *q = doubles(
		p, op_floats(p, 1, (size_t)(c->rows * c->heads * width)), c->rows * c->heads * width);
	float *cache = op_cache_new(p, c, width),
		  *turned = op_floats(p, 3, c->rotate ? (size_t)(c->rows * c->heads * (c->dim + 2)) : 0),
		  *angles = op_rope_new(p, c);
	double score[c->top_k], error, unused[c->dim];
	for (int i = 0; i < c->rows * c->heads; i++) {
		int r = i / c->heads;
		for (int k = 0; c->rotate && k < c->dim; k++)
			q[(int64_t)i * width + n_value + k] = turned[i * (c->dim + 2) + k];
		if (c->rotate)
			rotate(angles + r * c->dim, q + (int64_t)i * width + n_value, unused, c->dim);
		double most = -INFINITY, sum = 0, worst = 0, q_most = 0, *v = value + i * n_value,
			   *s = scale + i * n_value;
		for (int k = 0; k < width; k++)
			q_most = fmax(q_most, fabs(q[(int64_t)i * width + k]));
		for (int t = 0; t < n_sel[r]; t++) {
			const float *row = cache + (int64_t)(base[r] + sel[r * c->top_k + t]) * width;
			double magnitudes = 0;
			for (int k = 0; k < width; k++)
				magnitudes += fabs((double)row[k]);
			score[t] =
				(double)OP_ATTEND_SCALE * dot(row, q + (int64_t)i * width, NULL, width, &error);
			/* Tensor cores take q as two halves, exact to 2^-22 of its largest value: 4 units for
			 * each value of the row, of the 16 that are allowed. */
			error += q_most * magnitudes * 4 / 16;
			worst = fmax(worst, (double)OP_ATTEND_SCALE * error);
			most = fmax(most, score[t]);
		}
		for (int t = 0; t < n_sel[r]; t++)
			sum += score[t] = exp(score[t] - most);
		memset(v, 0, (size_t)n_value * sizeof *v);
		memset(s, 0, (size_t)n_value * sizeof *s);
		for (int t = 0; t < n_sel[r]; t++) {
			const float *row = cache + (int64_t)(base[r] + sel[r * c->top_k + t]) * width;
			for (int k = 0; k < n_value; k++) {
				v[k] += score[t] / sum * (double)row[k];
				s[k] += score[t] / sum * fabs((double)row[k]) *
						(1 + 2 * worst); /* errors of a score move p in proportion */
			}
		}
	}
}

/* Three times a formula; errors of one are inputs of the next. */
FORMULA(mla)
{
	int width = c->n_value + c->dim, n_value = c->n_value, head = c->n_in + c->dim;
	int32_t pos[c->rows], base[c->rows], n_sel[c->rows],
		*sel = op_host_new(p, (size_t)(c->rows * c->top_k) * 4);
	op_make_rows(c, false, pos, base);
	op_attend_lists(c, sel, n_sel);
	struct weight k_b = op_weight_new(p, 2, DTYPE_Q8_0, c->n_in, n_value, c->heads),
				  v_b = op_weight_new(p, 3, DTYPE_Q8_0, n_value, c->n_out, c->heads);
	double *x =
		doubles(p, op_floats(p, 1, (size_t)(c->rows * c->heads * head)), c->rows * c->heads * head);
	float *cache = op_cache_new(p, c, width), *angles = op_rope_new(p, c),
		  *buffer = op_host_new(p, (size_t)(width + c->n_in) * 4);
	double q[width], q_error[width], z[n_value], z_error[n_value], score[c->top_k], unused;
	for (int i = 0; i < c->rows * c->heads; i++) {
		int r = i / c->heads, h = i % c->heads;
		for (int k = 0; k < n_value; k++) {
			row_floats(p, &k_b, h, k, buffer);
			q[k] = dot(buffer, x + i * head, NULL, c->n_in, &q_error[k]);
		}
		for (int k = 0; k < c->dim; k++) {
			q[n_value + k] = x[i * head + c->n_in + k];
			q_error[n_value + k] = fabs(q[n_value + k]);
		}
		rotate(angles + r * c->dim, q + n_value, q_error + n_value, c->dim);
		double most = -INFINITY, sum = 0, worst = 0;
		for (int t = 0; t < n_sel[r]; t++) {
			const float *row = cache + (int64_t)(base[r] + sel[r * c->top_k + t]) * width;
			double error = 0;
			score[t] = (double)OP_ATTEND_SCALE * dot(row, q, NULL, width, &unused);
			for (int k = 0; k < width; k++)
				error += fabs((double)row[k]) * q_error[k];
			worst = fmax(worst, (double)OP_ATTEND_SCALE * error);
			most = fmax(most, score[t]);
		}
		for (int t = 0; t < n_sel[r]; t++)
			sum += score[t] = exp(score[t] - most);
		memset(z, 0, sizeof z);
		memset(z_error, 0, sizeof z_error);
		for (int t = 0; t < n_sel[r]; t++) {
			const float *row = cache + (int64_t)(base[r] + sel[r * c->top_k + t]) * width;
			for (int k = 0; k < n_value; k++) {
				z[k] += score[t] / sum * (double)row[k];
				z_error[k] += score[t] / sum * fabs((double)row[k]) * (1 + 2 * worst);
			}
		}
		for (int o = 0; o < c->n_out; o++) {
			row_floats(p, &v_b, h, o, buffer);
			value[i * c->n_out + o] = dot(buffer, z, NULL, n_value, &unused);
			scale[i * c->n_out + o] = 0;
			for (int k = 0; k < n_value; k++)
				scale[i * c->n_out + o] += fabs((double)buffer[k]) * z_error[k];
		}
	}
}

/* The choice by scores s: ids and weights, [n_used] each */
static void choose(
	const struct op_case *c, const double *s, const float *bias, double *id, double *weight)
{
	double choice[c->heads], sum = 0;
	for (int i = 0; i < c->heads; i++)
		choice[i] = s[i] + (double)bias[i];
	/* the groups: each time the best one left, by the sum of its two best */
	int size = c->n_group ? c->heads / c->n_group : c->heads, groups = c->n_group ? c->n_group : 1;
	bool kept[groups], taken[c->heads];
	memset(kept, c->n_group ? 0 : 1, sizeof kept);
	memset(taken, 0, sizeof taken);
	for (int g = 0; g < c->n_group_used; g++) {
		int best = -1;
		double best_sum = -INFINITY;
		for (int h = 0; h < groups; h++) {
			double first = -INFINITY, second = -INFINITY;
			for (int i = h * size; i < (h + 1) * size; i++) {
				second = fmax(second, fmin(first, choice[i]));
				first = fmax(first, choice[i]);
			}
			if (!kept[h] && first + second > best_sum) {
				best_sum = first + second;
				best = h;
			}
		}
		kept[best] = true;
	}
	for (int k = 0; k < c->n_used; k++) {
		int best = -1;
		for (int i = 0; i < c->heads; i++)
			if (kept[i / size] && !taken[i] && (best < 0 || choice[i] > choice[best]))
				best = i;
		taken[best] = true;
		id[k] = best;
		weight[k] = s[best];
		sum += s[best];
	}
	for (int k = 0; k < c->n_used; k++)
		weight[k] *= 2.5 / (c->plain ? 1 : sum + 1e-20);
}

FORMULA(route)
{
	float *logits, *bias;
	op_route_inputs(p, c, &logits, &bias);
	for (int r = 0; r < c->rows; r++, value += 2 * c->n_used, scale += 2 * c->n_used) {
		double s[c->heads];
		for (int i = 0; i < c->heads; i++)
			s[i] = 1 / (1 + exp(-(double)logits[r * c->heads + i]));
		choose(c, s, bias, value, value + c->n_used);
		for (int k = 0; k < c->n_used; k++) {
			scale[k] = 0;
			scale[c->n_used + k] = value[c->n_used + k];
		}
	}
}

FORMULA(routers)
{
	int n = c->n_in, used = c->n_used;
	float *x = op_floats(p, 1, (size_t)(c->rows * n)), *bias[2];
	float *gain[2] = {op_floats(p, 2, (size_t)n), op_floats(p, 3, (size_t)n)};
	struct weight w[2] = {op_router_new(p, c, 0, &bias[0]), op_router_new(p, c, 1, &bias[1])};
	double *h = doubles(p, NULL, n), *error = doubles(p, NULL, n), *unused = doubles(p, NULL, used);
	for (int r = 0; r < c->rows; r++, value += n + 3 * used, scale += n + 3 * used) {
		double s[c->heads], worst = 0;
		for (int i = 1; i >= 0; i--) { /* the first one's h, error, s and worst stay */
			worst = 0;
			rms(x + r * n, gain[i], (double)1e-5f, n, h, error);
			for (int e = 0; e < c->heads; e++) {
				double magnitude;
				double logit =
					dot((const float *)w[i].data + (size_t)e * (size_t)n, h, error, n, &magnitude);
				s[e] = 1 / (1 + exp(-logit));
				worst = fmax(worst, magnitude);
			}
			choose(c, s, bias[i], value + n + (i ? 2 * used : 0), i ? unused : value + n + used);
		}
		memcpy(value, h, (size_t)n * sizeof *h);
		memcpy(scale, error, (size_t)n * sizeof *error);
		for (int k = 0; k < used;
			 k++) { /* an error of a logit moves a score by no more than its share of it */
			scale[n + k] = scale[n + 2 * used + k] = 0;
			scale[n + used + k] = fabs(value[n + used + k]) * (1 + 2 * worst);
		}
	}
}

FORMULA(expert_ffn)
{
	double *x = doubles(p, op_floats(p, 1, (size_t)(c->rows * c->n_in)), c->rows * c->n_in);
	double *h = doubles(p, NULL, c->n_out), *error = doubles(p, NULL, c->n_out);
	float *buffer = op_host_new(p, (size_t)MAX(c->n_in, c->n_out) * 4);
	for (int e = 0; e < c->heads; e++) {
		struct weight w[3];
		op_expert_weights(p, c, e, w);
		for (int place = 0; place < c->rows * c->n_used; place++) {
			if (op_expert_of(c, place) != e)
				continue;
			const double *in = x + place / c->n_used * c->n_in;
			for (int o = 0; o < c->n_out; o++) {
				double gate_scale, up_scale;
				double gate =
					dot(row_floats(p, &w[0], 0, o, buffer), in, NULL, c->n_in, &gate_scale);
				double up = dot(row_floats(p, &w[1], 0, o, buffer), in, NULL, c->n_in, &up_scale);
				double silu = gate / (1 + exp(-gate));
				h[o] = silu * up;
				/* silu' is below 1.1 */
				error[o] = 1.1 * gate_scale * fabs(up) + fabs(silu) * up_scale;
			}
			for (int o = 0; o < c->n_in; o++) {
				int64_t at = (int64_t)place * c->n_in + o;
				value[at] = dot(row_floats(p, &w[2], 0, o, buffer), h, error, c->n_out, scale + at);
			}
		}
	}
}

FORMULA(moe_combine)
{
	int n = c->n_in, k = c->n_used;
	float *y = op_floats(p, 1, (size_t)(c->rows * k * n)),
		  *weights = op_floats(p, 2, (size_t)(c->rows * k));
	float *shared = op_floats(p, 3, (size_t)(c->rows * n)),
		  *x = op_floats(p, 4, (size_t)(c->rows * n));
	float *gain = op_floats(p, 5, (size_t)n);
	for (int r = 0; r < c->rows; r++, value += 2 * n, scale += 2 * n) {
		double squares = 0;
		for (int i = 0; i < n; i++) {
			value[i] = (double)x[r * n + i] + (double)shared[r * n + i];
			scale[i] = fabs((double)x[r * n + i]) + fabs((double)shared[r * n + i]);
			for (int j = 0; j < k; j++) {
				double term = (double)weights[r * k + j] * (double)y[(r * k + j) * n + i];
				value[i] += term;
				scale[i] += fabs(term);
			}
			squares += value[i] * value[i];
		}
		for (int i = 0; i < n; i++) { /* errors of x move its norm in proportion */
			double factor = (double)gain[i] / sqrt(squares / n + (double)1e-5f);
			value[n + i] = factor * value[i];
			scale[n + i] = fabs(factor) * scale[i] + fabs(value[n + i]);
		}
	}
}

typedef void formula_fn(struct op_pool *p, const struct op_case *c, double *value, double *scale);
static formula_fn *const formulas[OP_LIMIT] = {formula_embed, formula_rms_norm, formula_matmul,
	formula_stacked_matmul, formula_ffn, formula_swiglu, formula_rope_angles, formula_rope,
	formula_latents, formula_query, NULL, formula_attend, formula_mla, formula_route,
	formula_routers, formula_expert_ffn, formula_moe_combine};

void op_case_reference(const struct op_case *c, double *value, double *scale)
{
	struct op_pool p = {.seed = op_seed_of(c)};
	formulas[c->op](&p, c, value, scale);
	op_pool_free(&p);
}

int op_case_scores(const struct op_case *c, int r, double *score, double *scale)
{
	struct op_pool p = {.seed = op_seed_of(c)};
	int32_t pos[c->rows], base[c->rows];
	float *q, *weight, *cache = op_cache_new(&p, c, c->dim);
	op_make_rows(c, false, pos, base);
	op_index_inputs(&p, c, &q, &weight);
	double *query = doubles(&p, q + r * c->heads * c->dim, c->heads * c->dim);
	for (int t = 0; t <= pos[r]; t++) {
		score[t] = scale[t] = 0;
		for (int j = 0; j < c->heads; j++) {
			double error, factor = (double)weight[r * c->heads + j] / sqrt(c->heads) / sqrt(c->dim);
			double v = dot(
				cache + (int64_t)(base[r] + t) * c->dim, query + j * c->dim, NULL, c->dim, &error);
			score[t] += factor * fmax(0, v);
			scale[t] += fabs(factor) * error;
		}
	}
	op_pool_free(&p);
	return pos[r] + 1;
}
