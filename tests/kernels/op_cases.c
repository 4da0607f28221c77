/* SPDX-License-Identifier: MIT */
/* See op_cases.h. A function for each op that runs it; the list is in op_list.c, the formulas are
 * in op_formulas.c. */
#include "tests/kernels/op_cases.h"

#include "src/base/half.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/quant/dequant.h"
#include "tests/kernels/op_inputs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Kernels copy weights in whole lines of 16 bytes, also the last one of a matrix. Its rest is
 * written here, so that initcheck finds other reads of what nobody wrote. */
#define WEIGHT_LINE 16

/* ---- device memory ---- */

static void *device_new(struct op_pool *p, size_t bytes)
{
	void *d = NULL;
	if (p->n_device == ARRAY_LEN(p->device))
		bug("more than %d buffers in a case", p->n_device);
	if (!p->rc)
		p->rc = p->b->ops->alloc(p->b, MEM_DEVICE, bytes, &d, p->e);
	p->device[p->n_device] = d;
	p->device_bytes[p->n_device++] = bytes;
	return d;
}

static void *put(struct op_pool *p, const void *host, size_t bytes)
{
	void *d = device_new(p, bytes);
	if (d)
		p->b->ops->upload(p->b, d, host, bytes);
	return d;
}

/* For outputs with gaps that the op does not write, but that are read back. */
static void *put_zeros(struct op_pool *p, size_t bytes)
{
	uint8_t *zeros = NEW_ARRAY(uint8_t, bytes);
	void *d = put(p, zeros, bytes);
	free(zeros);
	return d;
}

static void get(struct op_pool *p, void *host, const void *device, size_t bytes)
{
	if (!p->rc)
		p->rc = p->b->ops->download(p->b, host, device, bytes, p->e);
}

static struct weight weight_put(struct op_pool *p, struct weight w)
{
	const size_t scales = op_scales_bytes(&w), bytes = w.stack_bytes * (size_t)w.n_stack,
				 whole = num_align_up(bytes, WEIGHT_LINE);
	uint8_t *lines = NEW_ARRAY(uint8_t, whole);
	memcpy(lines, w.data, bytes);
	w.data = put(p, lines, whole);
	free(lines);
	if (scales)
		w.scales = put(p, w.scales, scales);
	return w;
}

static struct weight weight_new_put(
	struct op_pool *p, int tag, enum dtype type, int64_t n_in, int64_t n_out, int64_t n_stack)
{
	return weight_put(p, op_weight_new(p, tag, type, n_in, n_out, n_stack));
}

static struct batch batch_put(
	struct op_pool *p, const struct op_case *c, bool append, int first, int n)
{
	int32_t *pos = op_host_new(p, (size_t)c->rows * 4), *base = op_host_new(p, (size_t)c->rows * 4),
			most = 0;
	op_make_rows(c, append, pos, base);
	for (int i = 0; i < n; i++)
		most = MAX(most, pos[first + i]);
	return (struct batch){
		n, put(p, pos + first, (size_t)n * 4), put(p, base + first, (size_t)n * 4), most};
}

static struct cache_view cache_put(struct op_pool *p, const struct op_case *c, int width)
{
	float *v = op_cache_new(p, c, width);
	size_t n = op_cache_rows(c) * (size_t)width;
	if (c->type == DTYPE_F32)
		return (struct cache_view){put(p, v, n * 4), c->type, width};
	uint16_t *h = op_host_new(p, n * 2);
	for (size_t i = 0; i < n; i++)
		h[i] = f32_to_f16(v[i]);
	return (struct cache_view){put(p, h, n * 2), c->type, width};
}

static void cache_get(struct op_pool *p, const struct op_case *c, struct cache_view cache,
	int first, int n, float *out)
{
	size_t width = (size_t)cache.width, total = op_cache_rows(c) * width;
	uint8_t *all = op_host_new(p, total * 4);
	int32_t *pos = op_host_new(p, (size_t)c->rows * 4), *base = op_host_new(p, (size_t)c->rows * 4);
	get(p, all, cache.data, total * (c->type == DTYPE_F16 ? 2 : 4));
	op_make_rows(c, true, pos, base);
	for (int i = 0; i < n; i++) {
		size_t at = (size_t)(base[first + i] + pos[first + i]) * width;
		dequant_row(
			c->type, all + at * (c->type == DTYPE_F16 ? 2 : 4), out + (size_t)i * width, width);
	}
}

/* ---- runs: rows [f, f + n) of case c, out [n][width] ---- */

#define RUN(kind)                                                                                  \
	static void run_##kind(struct op_pool *p, const struct op_case *c, int f, int n, float *out)
#define OPS p->b->ops

/* The slice of a per-row buffer of `per` floats a row. */
static float *put_rows(struct op_pool *p, int tag, const struct op_case *c, int f, int n, int per)
{
	return put(p, op_floats(p, tag, (size_t)c->rows * (size_t)per) + (size_t)f * (size_t)per,
		(size_t)n * (size_t)per * 4);
}

RUN(embed)
{
	int32_t *ids = op_host_new(p, (size_t)c->rows * 4);
	op_embed_ids(c, ids);
	struct weight w = weight_new_put(p, 1, c->type, c->n_in, c->n_out, 1);
	float *y = device_new(p, (size_t)n * (size_t)c->n_in * 4);
	OPS->embed(p->b, w, put(p, ids + f, (size_t)n * 4), n, y);
	get(p, out, y, (size_t)n * (size_t)c->n_in * 4);
}

/* Rows of x lie 5 values further apart than their length; out of place into rows 3 further apart.
 */
RUN(rms_norm)
{
	int in = c->n_in + 5, step = c->n_in + 3;
	float *x = put_rows(p, 1, c, f, n, in),
		  *gain = put(p, op_floats(p, 2, (size_t)c->n_in), (size_t)c->n_in * 4);
	float *host = op_host_new(p, (size_t)(n * step) * 4), *y = put_zeros(p, (size_t)(n * step) * 4);
	/* the same with a second gain: neither looks at the other */
	float *other = put(p, op_floats(p, 3, (size_t)c->n_in), (size_t)c->n_in * 4),
		  *y2 = device_new(p, (size_t)(n * step) * 4);
	struct norm norms[] = {{gain, y}, {other, y2}};
	OPS->rms_norm(p->b, x, in, norms, 2, 1e-5f, n, c->n_in, step);
	get(p, host, y, (size_t)(n * step) * 4);
	for (int r = 0; r < n; r++)
		memcpy(out + r * c->n_in, host + r * step, (size_t)c->n_in * 4);
}

/* A product, one that adds, and one of an input of its own. */
RUN(matmul)
{
	int second = c->n_out / 2 + 1, width = c->n_out + 2 * second, m[3] = {c->n_out, second, second};
	struct matmul parts[3] = {
		{.w = weight_new_put(p, 1, c->type, c->n_in, m[0], 1),
			.y = device_new(p, (size_t)(n * m[0]) * 4)},
		{.w = weight_new_put(p, 2, c->type, c->n_in, m[1], 1),
			.y = put_rows(p, 3, c, f, n, m[1]),
			.add = true},
		{.w = weight_new_put(p, 5, c->type, c->n_in, m[2], 1),
			.y = device_new(p, (size_t)(n * m[2]) * 4),
			.x = put_rows(p, 6, c, f, n, c->n_in)},
	};
	float *x = put_rows(p, 4, c, f, n, c->n_in), *host = op_host_new(p, (size_t)(n * c->n_out) * 4);
	OPS->matmul(p->b, parts, 3, x, n);
	for (int i = 0; i < 3; out += m[i++]) {
		get(p, host, parts[i].y, (size_t)(n * m[i]) * 4);
		for (int r = 0; r < n; r++)
			memcpy(out + r * width, host + r * m[i], (size_t)m[i] * 4);
	}
}

RUN(stacked_matmul)
{
	int in = c->n_in + 7, step = c->n_out + 2;
	struct stacked_matmul a = {weight_new_put(p, 1, c->type, c->n_in, c->n_out, c->heads),
		put_rows(p, 2, c, f, n, c->heads * in), in, put_zeros(p, (size_t)(n * c->heads * step) * 4),
		step};
	float *host = op_host_new(p, (size_t)(n * c->heads * step) * 4);
	OPS->stacked_matmul(p->b, &a, n);
	get(p, host, a.y, (size_t)(n * c->heads * step) * 4);
	for (int i = 0; i < n * c->heads; i++)
		memcpy(out + i * c->n_out, host + i * step, (size_t)c->n_out * 4);
}

/* Twice, so that what the first call leaves behind is seen. */
RUN(ffn)
{
	size_t bytes = (size_t)(n * c->n_out) * 4, all = (size_t)(n * c->n_in) * 4;
	struct ffn a = {.gate = weight_new_put(p, 1, c->type, c->n_in, c->n_out, 1),
		.up = weight_new_put(p, 2, c->type, c->n_in, c->n_out, 1),
		.down = weight_new_put(p, 5, c->type, c->n_out, c->n_in, 1),
		.x = put_rows(p, 3, c, f, n, c->n_in),
		.y = put_rows(p, 4, c, f, n, c->n_in),
		.add = !c->plain,
		.hidden = device_new(p, bytes),
		.scratch = device_new(p, bytes)};
	float *first = op_host_new(p, all);
	OPS->ffn(p->b, &a, n);
	get(p, first, a.y, all);
	a.y = put_rows(p, 4, c, f, n, c->n_in);
	OPS->ffn(p->b, &a, n);
	get(p, out, a.y, all);
	if (memcmp(first, out, all))
		bug("ffn %s: other bits the second time", c->name);
}

RUN(swiglu)
{
	float *gate = put_rows(p, 1, c, f, n, c->n_in), *up = put_rows(p, 2, c, f, n, c->n_in);
	OPS->swiglu(p->b, gate, up, (int64_t)n * c->n_in, gate);
	get(p, out, gate, (size_t)(n * c->n_in) * 4);
}

RUN(rope_angles)
{
	struct batch rows = batch_put(p, c, false, f, n);
	float *y = device_new(p, (size_t)(n * c->dim) * 4);
	OPS->rope_angles(
		p->b, &rows, put(p, op_inverse_frequencies(p, c), (size_t)c->dim * 2), c->dim, y);
	get(p, out, y, (size_t)(n * c->dim) * 4);
}

RUN(rope)
{
	struct rope rope = {put(p, op_rope_new(p, c) + f * c->dim, (size_t)(n * c->dim) * 4), c->dim};
	float *x = put_rows(p, 1, c, f, n, c->heads * c->n_in);
	float *host = op_host_new(p, (size_t)(n * c->heads * c->n_out) * 4);
	float *y = put(p, host, (size_t)(n * c->heads * c->n_out) * 4);
	if (c->n_in == c->n_out) /* in place where the shape allows it */
		y = x;
	OPS->rope(p->b, &rope, x, c->n_in, y, c->n_out, n, c->heads);
	get(p, host, y, (size_t)(n * c->heads * c->n_out) * 4);
	for (int i = 0; i < n * c->heads; i++)
		memcpy(out + i * c->dim, host + i * c->n_out, (size_t)c->dim * 4);
}

/* Out: the query's latent, the key's and value's cache row, the index key's cache row. n 0: that
 * part is absent. */
RUN(latents)
{
	int kv = c->n_value ? c->n_value + c->dim : 0, key = c->n_in, width = c->n_out + kv + key;
	struct batch rows = batch_put(p, c, true, f, n);
	struct rope rope = {put(p, op_rope_new(p, c) + f * c->dim, (size_t)(n * c->dim) * 4), c->dim};
	struct latents a = {.n_q = c->n_out, .n_kv = c->n_value, .eps = 1e-5f, .key_eps = 1e-6f};
	float *host = op_host_new(p, (size_t)(n * (c->n_out + kv + key)) * 4);
	if (c->n_out) {
		a.q = put_rows(p, 4, c, f, n, c->n_out);
		a.q_gain = put(p, op_floats(p, 5, (size_t)c->n_out), (size_t)c->n_out * 4);
	}
	if (kv) {
		a.kv = put_rows(p, 1, c, f, n, kv);
		a.kv_gain = put(p, op_floats(p, 2, (size_t)c->n_value), (size_t)c->n_value * 4);
		a.kv_cache = cache_put(p, c, kv);
	}
	if (key) {
		a.key = put_rows(p, 3, c, f, n, key);
		a.key_gain = put(p, op_floats(p, 6, (size_t)key), (size_t)key * 4);
		a.key_bias = put(p, op_floats(p, 7, (size_t)key), (size_t)key * 4);
		a.key_cache = cache_put(p, c, key);
	}
	OPS->latents(p->b, &rows, &rope, &a);
	float *q = host, *kv_rows = q + n * c->n_out, *keys = kv_rows + n * kv;
	if (c->n_out)
		get(p, q, a.q, (size_t)(n * c->n_out) * 4);
	if (kv)
		cache_get(p, c, a.kv_cache, f, n, kv_rows);
	if (key)
		cache_get(p, c, a.key_cache, f, n, keys);
	for (int r = 0; r < n; r++, out += width) {
		memcpy(out, q + r * c->n_out, (size_t)c->n_out * 4);
		memcpy(out + c->n_out, kv_rows + r * kv, (size_t)kv * 4);
		memcpy(out + c->n_out + kv, keys + r * key, (size_t)key * 4);
	}
}

/* Out: the query, the latent's and the key's cache row, the indexer's weights and query. */
RUN(query)
{
	int kv = c->n_value + c->dim, key = c->heads, extra = c->n_used, full = key > 0;
	int m[5] = {c->top_k, kv, key, extra, extra}, width = op_case_width(c);
	struct op_case as_cache = *c;
	as_cache.type = DTYPE_F32;
	struct batch rows = batch_put(p, c, true, f, n);
	struct rope rope = {put(p, op_rope_new(p, c) + f * c->dim, (size_t)(n * c->dim) * 4), c->dim};
	float *at[5], *host = op_host_new(p, (size_t)(n * width) * 4);
	for (int i = 0; i < 5; i++)
		at[i] = device_new(p, (size_t)(n * m[i] + 1) * 4);
	struct matmul in[] = {{.w = weight_new_put(p, 1, c->type, c->n_in, c->n_out, 1),
							  .y = device_new(p, (size_t)(n * c->n_out) * 4)},
		{.w = weight_new_put(p, 2, c->type, c->n_in, kv, 1), .y = at[1]},
		{.w = full ? weight_new_put(p, 3, c->type, c->n_in, key, 1) : (struct weight){0},
			.y = at[2]},
		{.w = full ? weight_new_put(p, 4, c->plain ? DTYPE_F32 : c->type, c->n_in, extra, 1)
				   : (struct weight){0},
			.y = at[3]}};
	struct matmul last[] = {{.w = weight_new_put(p, 5, c->type, c->n_out, c->top_k, 1), .y = at[0]},
		{.w = full ? weight_new_put(p, 6, c->type, c->n_out, extra, 1) : (struct weight){0},
			.y = at[4]}};
	struct latents a = {.in = in,
		.n_in = full ? 4 : 2,
		.x = put_rows(p, 7, c, f, n, c->n_in),
		.q = in[0].y,
		.q_gain = put(p, op_floats(p, 8, (size_t)c->n_out), (size_t)c->n_out * 4),
		.n_q = c->n_out,
		.kv = at[1],
		.kv_gain = put(p, op_floats(p, 9, (size_t)c->n_value), (size_t)c->n_value * 4),
		.n_kv = c->n_value,
		.eps = 1e-5f,
		.kv_cache = cache_put(p, &as_cache, kv),
		.out = last,
		.n_out = full ? 2 : 1};
	if (full) {
		a.key = at[2];
		a.key_gain = put(p, op_floats(p, 10, (size_t)key), (size_t)key * 4);
		a.key_bias = put(p, op_floats(p, 11, (size_t)key), (size_t)key * 4);
		a.key_eps = 1e-6f;
		a.key_cache = cache_put(p, &as_cache, key);
	}
	OPS->latents(p->b, &rows, &rope, &a);
	for (int i = 0, to = 0; i < (full ? 5 : 2); to += m[i++]) {
		if (i == 1)
			cache_get(p, &as_cache, a.kv_cache, f, n, host);
		else if (i == 2)
			cache_get(p, &as_cache, a.key_cache, f, n, host);
		else
			get(p, host, at[i], (size_t)(n * m[i]) * 4);
		for (int r = 0; r < n; r++)
			memcpy(out + r * width + to, host + r * m[i], (size_t)m[i] * 4);
	}
}

RUN(index_select)
{
	float *q, *weight;
	op_index_inputs(p, c, &q, &weight);
	struct batch rows = batch_put(p, c, false, f, n);
	struct index_select a = {c->heads, c->dim, c->top_k,
		put(p, q + f * c->heads * c->dim, (size_t)(n * c->heads * c->dim) * 4),
		put(p, weight + f * c->heads, (size_t)(n * c->heads) * 4), cache_put(p, c, c->dim),
		put_zeros(p, (size_t)(n * c->top_k) * 4), device_new(p, (size_t)n * 4)};
	int32_t *sel = op_host_new(p, (size_t)(n * c->top_k) * 4),
			*n_sel = op_host_new(p, (size_t)n * 4);
	OPS->index_select(p->b, &rows, &a);
	get(p, sel, a.sel, (size_t)(n * c->top_k) * 4);
	get(p, n_sel, a.n_sel, (size_t)n * 4);
	for (int r = 0; r < n; r++) {
		for (int i = 0; i < c->top_k; i++)
			out[r * (c->top_k + 1) + i] = i < n_sel[r] ? (float)sel[r * c->top_k + i] : -1;
		out[r * (c->top_k + 1) + c->top_k] = (float)n_sel[r];
	}
}

RUN(attend)
{
	int width = c->n_value + c->dim;
	int32_t *sel = op_host_new(p, (size_t)(c->rows * c->top_k) * 4),
			*n_sel = op_host_new(p, (size_t)c->rows * 4);
	op_attend_lists(c, sel, n_sel);
	struct batch rows = batch_put(p, c, false, f, n);
	struct attend a = {.n_heads = c->heads,
		.n_value = c->n_value,
		.scale = OP_ATTEND_SCALE,
		.q = put_rows(p, 1, c, f, n, c->heads * width),
		.cache = cache_put(p, c, width),
		.sel = put(p, sel + f * c->top_k, (size_t)(n * c->top_k) * 4),
		.n_sel = put(p, n_sel + f, (size_t)n * 4),
		.sel_stride = c->top_k,
		.out = device_new(p, (size_t)(n * c->heads * c->n_value) * 4)};
	if (c->rotate) {
		a.rotate = put_rows(p, 3, c, f, n, c->heads * (c->dim + 2));
		a.rotate_stride = c->dim + 2;
		a.rope =
			(struct rope){put(p, op_rope_new(p, c) + f * c->dim, (size_t)(n * c->dim) * 4), c->dim};
	}
	OPS->attend(p->b, &rows, &a);
	get(p, out, a.out, (size_t)(n * c->heads * c->n_value) * 4);
}

/* The three ops one after the other must give the same bits, and again when mla has run before with
 * fewer positions; then with a product of n_used rows, which the ops one after the other must give
 * too. */
RUN(mla)
{
	int width = c->n_value + c->dim, head = c->n_in + c->dim;
	size_t bytes = (size_t)(n * c->heads * c->n_out) * 4;
	int32_t *sel = op_host_new(p, (size_t)(c->rows * c->top_k) * 4),
			*n_sel = op_host_new(p, (size_t)c->rows * 4);
	op_attend_lists(c, sel, n_sel);
	struct batch rows = batch_put(p, c, false, f, n);
	float *q = put_rows(p, 1, c, f, n, c->heads * head),
		  *absorbed = device_new(p, (size_t)(n * c->heads * width) * 4),
		  *z = device_new(p, (size_t)(n * c->heads * c->n_value) * 4), *y = device_new(p, bytes);
	struct mla a = {
		.absorb = {weight_new_put(p, 2, DTYPE_Q8_0, c->n_in, c->n_value, c->heads), q, head,
			absorbed, width},
		.attend = {.n_heads = c->heads,
			.n_value = c->n_value,
			.scale = OP_ATTEND_SCALE,
			.q = absorbed,
			.rotate = q + c->n_in,
			.rotate_stride = head,
			.rope = {put(p, op_rope_new(p, c) + f * c->dim, (size_t)(n * c->dim) * 4), c->dim},
			.cache = cache_put(p, c, width),
			.sel = put(p, sel + f * c->top_k, (size_t)(n * c->top_k) * 4),
			.n_sel = put(p, n_sel + f, (size_t)n * 4),
			.sel_stride = c->top_k,
			.out = z},
		.expand = {weight_new_put(p, 3, DTYPE_Q8_0, c->n_value, c->n_out, c->heads), z, c->n_value,
			y, c->n_out},
	};
	OPS->mla(p->b, &rows, &a);
	get(p, out, y, bytes);
	OPS->stacked_matmul(p->b, &a.absorb, n);
	OPS->attend(p->b, &rows, &a.attend);
	OPS->stacked_matmul(p->b, &a.expand, n);
	float *apart = op_host_new(p, bytes);
	get(p, apart, y, bytes);
	if (memcmp(apart, out, bytes))
		bug("mla %s: not the bits of its parts", c->name);
	int32_t one[n];
	for (int i = 0; i < n; i++)
		one[i] = 1;
	OPS->upload(p->b, (void *)a.attend.n_sel, one, (size_t)n * 4);
	OPS->mla(p->b, &rows, &a);
	OPS->upload(p->b, (void *)a.attend.n_sel, n_sel + f, (size_t)n * 4);
	OPS->mla(p->b, &rows, &a);
	get(p, apart, y, bytes);
	if (memcmp(apart, out, bytes))
		bug("mla %s: other bits the second time", c->name);
	if (!c->n_used)
		return;
	size_t sums = (size_t)(n * c->n_used) * 4;
	float *given = put_rows(p, 4, c, f, n, c->n_used), *x = device_new(p, sums),
		  *sum = op_host_new(p, 4 * sums), *before = sum + 3 * sums / 4;
	struct matmul product = {
		.w = weight_new_put(p, 5, DTYPE_Q8_0, c->heads * c->n_out, c->n_used, 1), .y = x};
	for (int i = 0; i < 3; i++) { /* not added, added, by matmul */
		product.add = i > 0;
		OPS->copy(p->b, x, given, sums);
		a.out = i < 2 ? &product : NULL;
		OPS->mla(p->b, &rows, &a);
		if (i == 2)
			OPS->matmul(p->b, &product, 1, y, n);
		get(p, sum + (size_t)i * sums / 4, x, sums);
	}
	if (memcmp(sum + sums / 4, sum + 2 * sums / 4, sums))
		bug("mla %s: not the bits of its product", c->name);
	get(p, before, given, sums);
	for (size_t i = 0; i < sums / 4; i++)
		if (before[i] + sum[i] != sum[sums / 4 + i])
			bug("mla %s: the product is not what is added", c->name);
}

/* The expert ids of the route whose fence has that value */
static void get_ids(struct op_pool *p, const struct route *a, int n, uint64_t fence, int32_t *ids)
{
	size_t bytes = (size_t)(n * a->n_used) * sizeof *a->expert_ids;
	uint64_t *expert_ids = op_host_new(p, bytes);
	get(p, expert_ids, a->expert_ids, bytes);
	for (int i = 0; i < n * a->n_used && !p->rc; i++)
		if (expert_ids[i] >> 32 != (uint32_t)fence)
			bug("route: pick %d has the fence value %u, not %u", i, (unsigned)(expert_ids[i] >> 32),
				(unsigned)fence);
	if (!p->rc)
		p->rc = OPS->wait_expert_ids(p->b, fence, expert_ids, n * a->n_used, ids, p->e);
}

static struct route route_of(const struct op_case *c)
{
	return (struct route){.n_experts = c->heads,
		.n_used = c->n_used,
		.n_group = MAX(c->n_group, 1),
		.n_group_used = MAX(c->n_group_used, 1),
		.normalise = !c->plain,
		.scale = 2.5f};
}

RUN(route)
{
	float *logits, *bias;
	op_route_inputs(p, c, &logits, &bias);
	struct route a = route_of(c);
	a.logits = put(p, logits + f * c->heads, (size_t)(n * c->heads) * 4);
	a.bias = put(p, bias, (size_t)c->heads * 4);
	a.expert_ids = device_new(p, (size_t)(n * c->n_used) * 8);
	a.weights = device_new(p, (size_t)(n * c->n_used) * 4);
	int32_t *ids = op_host_new(p, (size_t)(n * c->n_used) * 4);
	float *weights = op_host_new(p, (size_t)(n * c->n_used) * 4);
	struct route both[2] = {a, a}; /* the ids are taken from the second */
	both[1].expert_ids = device_new(p, (size_t)(n * c->n_used) * 8);
	both[1].weights = NULL;
	uint64_t n_fences = p->b->fence_value;
	OPS->route(p->b, both, 2, n);
	if (p->b->fence_value != n_fences + 1)
		bug("route made %llu fences", (unsigned long long)(p->b->fence_value - n_fences));
	get_ids(p, &both[1], n, p->b->fence_value, ids);
	get(p, weights, a.weights, (size_t)(n * c->n_used) * 4);
	for (int i = 0; i < n * c->n_used; i++) {
		out[i / c->n_used * 2 * c->n_used + i % c->n_used] = (float)ids[i];
		out[i / c->n_used * 2 * c->n_used + c->n_used + i % c->n_used] = weights[i];
	}
}

/* What two routers give: rows of op_case_width values. fence: the value of the first; that of the
 * second is the latest. */
static void routers_get(struct op_pool *p, const struct op_case *c, const struct route a[2], int n,
	uint64_t fence, float *out)
{
	size_t ids_bytes = (size_t)(n * c->n_used) * 4;
	float *h = op_host_new(p, (size_t)(n * c->n_in) * 4), *weights = op_host_new(p, ids_bytes);
	int32_t *ids[2] = {op_host_new(p, ids_bytes), op_host_new(p, ids_bytes)};
	get(p, h, a[0].h, (size_t)(n * c->n_in) * 4);
	get(p, weights, a[0].weights, ids_bytes);
	for (int i = 0; i < 2; i++)
		get_ids(p, &a[i], n, fence + (uint64_t)i * (p->b->fence_value - fence), ids[i]);
	for (int r = 0; r < n; r++, out += c->n_in + 3 * c->n_used) {
		memcpy(out, h + r * c->n_in, (size_t)c->n_in * 4);
		for (int k = 0; k < c->n_used; k++) {
			int at = r * c->n_used + k;
			out[c->n_in + k] = (float)ids[0][at];
			out[c->n_in + c->n_used + k] = weights[at];
			out[c->n_in + 2 * c->n_used + k] = (float)ids[1][at];
		}
	}
}

/* The ops one after the other must give the same bits, and again when there is only the second
 * router. */
RUN(routers)
{
	size_t row_bytes = (size_t)(n * c->n_in) * 4, ids_bytes = (size_t)(n * c->n_used) * 4,
		   bytes = (size_t)(n * op_case_width(c)) * 4;
	float *x = put_rows(p, 1, c, f, n, c->n_in), *again = op_host_new(p, bytes), *bias;
	struct route a[2], apart[2];
	struct norm norms[2];
	struct matmul products[2];
	for (int i = 0; i < 2; i++) {
		a[i] = route_of(c);
		a[i].x = x;
		a[i].gain = put(p, op_floats(p, 2 + i, (size_t)c->n_in), (size_t)c->n_in * 4);
		a[i].eps = 1e-5f;
		a[i].w = weight_put(p, op_router_new(p, c, i, &bias));
		a[i].h = device_new(p, row_bytes);
		a[i].logits = device_new(p, (size_t)(n * c->heads) * 4);
		a[i].bias = put(p, bias, (size_t)c->heads * 4);
		a[i].expert_ids = device_new(p, 2 * ids_bytes);
		a[i].weights = i ? NULL : device_new(p, ids_bytes);
		apart[i] = a[i];
		apart[i].x = NULL;
		apart[i].h = device_new(p, row_bytes);
		apart[i].expert_ids = device_new(p, 2 * ids_bytes);
		apart[i].weights = i ? NULL : device_new(p, ids_bytes);
		norms[i] = (struct norm){a[i].gain, apart[i].h};
		products[i] = (struct matmul){.w = a[i].w, .y = a[i].logits, .x = apart[i].h};
	}
	uint64_t n_fences = p->b->fence_value;
	OPS->route(p->b, a, 2, n);
	if (p->b->fence_value != n_fences + 1)
		bug("routers made %llu fences", (unsigned long long)(p->b->fence_value - n_fences));
	routers_get(p, c, a, n, p->b->fence_value, out);
	OPS->rms_norm(p->b, x, c->n_in, norms, 2, 1e-5f, n, c->n_in, c->n_in);
	OPS->matmul(p->b, products, 2, NULL, n);
	OPS->route(p->b, apart, 2, n);
	routers_get(p, c, apart, n, p->b->fence_value, again);
	if (!p->rc && memcmp(again, out, bytes))
		bug("routers %s: not the bits of its parts", c->name);
	struct route one[2] = {apart[0], a[1]};
	one[1].expert_ids = device_new(p, 2 * ids_bytes);
	OPS->route(p->b, one + 1, 1, n);
	routers_get(p, c, one, n, p->b->fence_value - 1, again);
	if (!p->rc && memcmp(again, out, bytes))
		bug("routers %s: another choice alone", c->name);
}

RUN(expert_ffn)
{
	size_t bytes = (size_t)(n * c->n_used * c->n_in) * 4;
	float *x = put_rows(p, 1, c, f, n, c->n_in), *y = put(p, op_host_new(p, bytes), bytes);
	struct expert_job jobs[c->heads];
	int n_jobs = 0, split = 0;
	for (int i = 0; i < c->heads; i++) {
		struct expert_job job = {.n_token_slots = 0};
		int32_t *token_slots = op_host_new(p, (size_t)(n * c->n_used) * 4);
		for (int j = 0; j < n * c->n_used; j++)
			if (op_expert_of(c, f * c->n_used + j) == i)
				token_slots[job.n_token_slots++] = j;
		if (!job.n_token_slots)
			continue;
		struct weight w[3];
		op_expert_weights(p, c, i, w);
		job.gate = weight_put(p, w[0]);
		job.up = weight_put(p, w[1]);
		job.down = weight_put(p, w[2]);
		job.token_slots = token_slots;
		jobs[n_jobs++] = job;
	}
	/* in two calls when the whole step runs */
	if (n == c->rows)
		split = n_jobs / 2;
	if (split)
		OPS->expert_ffn(p->b, x, jobs, split, n, c->n_used, y);
	OPS->expert_ffn(p->b, x, jobs + split, n_jobs - split, n, c->n_used, y);
	get(p, out, y, bytes);
}

RUN(moe_combine)
{
	float *y = put_rows(p, 1, c, f, n, c->n_used * c->n_in),
		  *weights = put_rows(p, 2, c, f, n, c->n_used);
	float *shared = put_rows(p, 3, c, f, n, c->n_in), *x = put_rows(p, 4, c, f, n, c->n_in);
	size_t bytes = (size_t)(n * c->n_in) * 4;
	float *gain = put(p, op_floats(p, 5, (size_t)c->n_in), (size_t)c->n_in * 4),
		  *h = device_new(p, bytes), *apart = device_new(p, bytes), *host[3];
	OPS->moe_combine(
		p->b, y, weights, c->n_used, shared, n, c->n_in, x, &(struct norm){gain, h}, 1e-5f);
	OPS->rms_norm(p->b, x, c->n_in, &(struct norm){gain, apart}, 1, 1e-5f, n, c->n_in, c->n_in);
	for (int i = 0; i < 3; i++)
		get(p, host[i] = op_host_new(p, bytes), i == 0 ? x : i == 1 ? h : apart, bytes);
	if (memcmp(host[1], host[2], bytes))
		bug("moe_combine %s: its norm is not the bits of rms_norm", c->name);
	for (int r = 0; r < n; r++)
		for (int i = 0; i < 2; i++)
			memcpy(out + (2 * r + i) * c->n_in, host[i] + r * c->n_in, (size_t)c->n_in * 4);
}

typedef void run_fn(struct op_pool *p, const struct op_case *c, int f, int n, float *out);
static run_fn *const runs[OP_LIMIT] = {run_embed, run_rms_norm, run_matmul, run_stacked_matmul,
	run_ffn, run_swiglu, run_rope_angles, run_rope, run_latents, run_query, run_index_select,
	run_attend, run_mla, run_route, run_routers, run_expert_ffn, run_moe_combine};

float *op_case_run(struct backend *b, const struct op_case *c, int first, int n)
{
	struct err e = {0};
	struct op_pool p = {.b = b, .e = &e, .seed = op_seed_of(c)};
	size_t values = (size_t)n * (size_t)op_case_width(c);
	float *out = NEW_ARRAY(float, values);
	memset(out, 0xff, values * sizeof *out);
	runs[c->op](&p, c, first, n, out);
	op_pool_free(&p);
	if (p.rc)
		fail_msg("%s, %s on %s: %s", op_names[c->op], c->name, b->ops->name, e.text);
	return out;
}

void op_case_same_bits(
	const struct op_case *c, const char *what, const float *a, const float *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (f32_bits(a[i]) != f32_bits(b[i]) && !(isnan(a[i]) && isnan(b[i])))
			fail_msg("%s, %s: value %zu is %.9g, %s %.9g", op_names[c->op], c->name, i,
				(double)a[i], what, (double)b[i]);
}

/* ---- selections ---- */

static int cmp_int(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

/* Whether all scores are exact: the factors 1 / sqrt(heads) and 1 / sqrt(dim) are powers of two. */
static bool exact_scores(const struct op_case *c)
{
	double heads = sqrt((double)c->heads), dim = sqrt((double)c->dim);
	int exponent;
	return c->whole && frexp(heads, &exponent) == 0.5 && frexp(dim, &exponent) == 0.5;
}

void op_case_check_selection(
	const struct op_case *c, const float *want, const float *got, double tolerance)
{
	for (int r = 0; r < c->rows; r++, want += c->top_k + 1, got += c->top_k + 1) {
		int n = (int)want[c->top_k], other[2][8192], n_other[2] = {0};
		assert_int_equal(n, (int)got[c->top_k]);
		int pos = -1;
		for (int i = 0; i < n; i++) {
			if (!(got[i] > (float)pos))
				fail_msg("%s: row %d, entry %d is %d after %d", c->name, r, i, (int)got[i], pos);
			pos = (int)got[i];
		}
		for (int i = 0, j = 0; i < n || j < n;) {
			if (j == n || (i < n && want[i] < got[j]))
				other[0][n_other[0]++] = (int)want[i++];
			else if (i == n || got[j] < want[i])
				other[1][n_other[1]++] = (int)got[j++];
			else
				i++, j++;
		}
		if (exact_scores(c)) /* the choice is unique */
			assert_int_equal(n_other[0], 0);
		if (!n_other[0])
			continue;
		double *score = NEW_ARRAY(double, (size_t)c->far + 1),
			   *scale = NEW_ARRAY(double, (size_t)c->far + 1);
		op_case_scores(c, r, score, scale);
		qsort(other[0], (size_t)n_other[0], sizeof(int), cmp_int);
		for (int i = 0; i < n_other[0]; i++)
			for (int j = 0; j < n_other[1]; j++) {
				int a = other[0][i], b = other[1][j];
				if (fabs(score[a] - score[b]) > 2 * tolerance * 0x1p-24 * (scale[a] + scale[b]))
					fail_msg("%s: row %d takes %d (%.9g), the CPU %d (%.9g)", c->name, r, b,
						score[b], a, score[a]);
			}
		print_message("index_select     %-22s row %d: %d of %d differ, all within rounding\n",
			c->name, r, n_other[0], n);
		free(score);
		free(scale);
	}
}
