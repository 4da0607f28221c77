/* SPDX-License-Identifier: MIT */
/* `bench ops`: what attention does with a context, from the latents to the output product. */
#include "tools/machine/bench_ops.h"

#include "src/base/half.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CACHE_PATTERN ((size_t)1 << 16) /* values, over and over */

/* ---- the calls ---- */

static void call_rope(struct bench_op *o, int copy)
{
	(void)copy;
	int head = o->shape->nope + o->shape->rope;
	o->backend->ops->rope(
		o->backend, &o->rope, o->x + o->shape->nope, head, o->y, head, o->rows, o->shape->heads);
}

static void call_latents(struct bench_op *o, int copy)
{
	const struct bench_shape *s = o->shape;
	float *q = o->y, *kv = q + o->rows * s->q_rank, *query = kv + o->rows * (s->kv_rank + s->rope);
	struct matmul in[] = {{.w = bench_op_weight(o, 0, copy), .y = q},
		{.w = bench_op_weight(o, 1, copy), .y = kv}},
				  out = {.w = bench_op_weight(o, 2, copy), .y = query};
	struct latents a = {.in = in,
		.n_in = 2,
		.x = o->x,
		.q = q,
		.q_gain = o->z,
		.n_q = s->q_rank,
		.kv = kv,
		.kv_gain = o->z,
		.n_kv = s->kv_rank,
		.eps = 1e-6f,
		.kv_cache = bench_op_cache(o, copy),
		.out = &out,
		.n_out = 1};
	o->backend->ops->latents(o->backend, &o->batch, &o->rope, &a);
}

static void call_index_select(struct bench_op *o, int copy)
{
	const struct bench_shape *s = o->shape;
	struct cache_view c = bench_op_cache(o, copy);
	struct index_select a = {.n_heads = s->index_heads,
		.head_dim = s->index_dim,
		.top_k = s->top_k,
		.q = o->x,
		.weight = o->z,
		.keys = c,
		.sel = o->sel,
		.n_sel = o->n_sel};
	o->backend->ops->index_select(o->backend, &o->batch, &a);
}

static void call_fetch_rows(struct bench_op *o, int copy)
{
	const struct bench_shape *s = o->shape;
	struct fetch_rows a = {.from = o->host_cache,
		.to = bench_op_cache(o, copy),
		.n_value = s->kv_rank,
		.capacity = o->context,
		.sel = o->sel,
		.n_sel = o->n_sel,
		.sel_stride = s->top_k};
	o->backend->ops->fetch_rows(o->backend, &o->batch, &a);
}

static void call_attend(struct bench_op *o, int copy)
{
	const struct bench_shape *s = o->shape;
	struct cache_view c = bench_op_cache(o, copy);
	struct attend a = {.n_heads = s->heads,
		.n_value = s->kv_rank,
		.scale = 1 / 16.0f,
		.q = o->x,
		.cache = c,
		.sel = o->sel,
		.n_sel = o->n_sel,
		.sel_stride = s->top_k,
		.out = o->y};
	o->backend->ops->attend(o->backend, &o->batch, &a);
}

static void call_mla(struct bench_op *o, int copy)
{
	const struct bench_shape *s = o->shape;
	int head = s->nope + s->rope, width = s->kv_rank + s->rope;
	struct cache_view c = bench_op_cache(o, copy);
	float *heads = o->z + (int64_t)o->rows * s->heads * (width + s->kv_rank);
	struct matmul product = {.w = bench_op_weight(o, 2, copy), .y = o->y, .add = true};
	struct mla a = {
		.absorb = {bench_op_weight(o, 0, copy), o->x, head, o->z, width},
		.attend = {.n_heads = s->heads,
			.n_value = s->kv_rank,
			.scale = 1 / 16.0f,
			.q = o->z,
			.rotate = o->x + s->nope,
			.rotate_stride = head,
			.rope = o->rope,
			.cache = c,
			.sel = o->sel,
			.n_sel = o->n_sel,
			.sel_stride = s->top_k,
			.out = o->z + (int64_t)o->rows * s->heads * width},
		.expand = {bench_op_weight(o, 1, copy), o->z + (int64_t)o->rows * s->heads * width,
			s->kv_rank, heads, s->value},
		.out = &product,
	};
	o->backend->ops->mla(o->backend, &o->batch, &a);
}

/* ---- their operands ---- */

/* The rows of a step at the end of a full context, rotary angles, and a cache. */
static void prepare_rows(struct bench_op *o, int width, int copies)
{
	const struct bench_shape *s = o->shape;
	const size_t rows = (size_t)o->rows;
	int32_t *pos = NEW_ARRAY(int32_t, rows), *base = NEW_ARRAY(int32_t, rows);
	for (int i = 0; i < o->rows; i++)
		pos[i] = o->context - o->rows + i;
	o->copies = copies;
	o->cache_stride = (size_t)o->context * (size_t)width * sizeof(uint16_t);
	o->pos = bench_pool_ints(o->pool, pos, rows);
	o->base = bench_pool_ints(o->pool, base, rows);
	const float *inv_freq = bench_pool_floats(o->pool, (size_t)s->rope / 2);
	float *angles = bench_pool_floats(o->pool, rows * (size_t)s->rope);
	uint16_t *host = NEW_ARRAY(uint16_t, CACHE_PATTERN);
	struct rng r = {3};
	for (size_t i = 0; i < CACHE_PATTERN; i++)
		host[i] = f32_to_f16((float)(rng_unit(&r) * 2 - 1));
	o->cache = (struct cache_view){.type = DTYPE_F16,
		.width = width,
		.data = bench_pool_pattern(
			o->pool, o->cache_stride * (size_t)copies, host, CACHE_PATTERN * sizeof *host)};
	o->batch =
		(struct batch){.n = o->rows, .pos = o->pos, .base = o->base, .max_pos = o->context - 1};
	if (!o->pool->code)
		o->backend->ops->rope_angles(o->backend, &o->batch, inv_freq, s->rope, angles);
	o->rope = (struct rope){.cos_sin = angles, .dim = s->rope};
	free(host);
	free(pos);
	free(base);
}

int bench_op_rope(struct bench_op *o, const char *name, enum dtype type, struct err *e)
{
	(void)type;
	const struct bench_shape *s = o->shape;
	size_t n = (size_t)o->rows * (size_t)s->heads * (size_t)(s->nope + s->rope);
	prepare_rows(o, s->index_dim, 1);
	o->x = bench_pool_floats(o->pool, n);
	o->y = bench_pool_floats(o->pool, n);
	o->bytes = 8.0 * o->rows * s->heads * s->rope;
	o->call = call_rope;
	o->name = name;
	return bench_op_measure(o, e, "");
}

/* As in a layer without an indexer. */
int bench_op_latents(struct bench_op *o, const char *name, enum dtype type, struct err *e)
{
	const struct bench_shape *s = o->shape;
	const int width = s->kv_rank + s->rope, query = s->heads * (s->nope + s->rope);
	const int n_in[] = {s->n_embd, s->n_embd, s->q_rank}, n_out[] = {s->q_rank, width, query};
	const size_t rows = (size_t)o->rows;
	const double weights = bench_op_weights(o, type, n_in, n_out);
	prepare_rows(o, width, o->copies);
	o->x = bench_pool_floats(o->pool, rows * (size_t)s->n_embd);
	o->y = bench_pool_floats(o->pool, rows * (size_t)(s->q_rank + width + query));
	o->z = bench_pool_floats(o->pool, (size_t)MAX(s->q_rank, s->kv_rank));
	o->bytes = weights + 4.0 * o->rows * (s->n_embd + 2 * s->q_rank + 2 * width + query);
	o->call = call_latents;
	o->name = name;
	char detail[64];
	snprintf(detail, sizeof detail, "%s %d>%d+%d, %d>%d", dtype_name(type), s->n_embd, s->q_rank,
		width, s->q_rank, query);
	return bench_op_measure(o, e, detail);
}

int bench_op_index_select(struct bench_op *o, const char *name, enum dtype type, struct err *e)
{
	(void)type;
	const struct bench_shape *s = o->shape;
	const size_t rows = (size_t)o->rows, heads = (size_t)s->index_heads;
	if (!strcmp(name, "long"))
		o->context *= 4;
	prepare_rows(o, s->index_dim, bench_op_copies(2.0 * o->context * s->index_dim));
	o->x = bench_pool_floats(o->pool, rows * heads * (size_t)s->index_dim);
	o->z = bench_pool_floats(o->pool, rows * heads);
	o->sel = bench_pool_get(o->pool, MEM_DEVICE, rows * (size_t)s->top_k * sizeof(int32_t));
	o->n_sel = bench_pool_get(o->pool, MEM_DEVICE, rows * sizeof(int32_t));
	o->bytes = 2.0 * o->context * s->index_dim;
	o->macs = (double)o->rows * o->context * s->index_heads * (s->index_dim + 1);
	o->call = call_index_select;
	o->name = "index_select";
	char detail[64];
	snprintf(detail, sizeof detail, "%d of %d", s->top_k, o->context);
	return bench_op_measure(o, e, detail);
}

/* What attend and mla have in common: a context of which every row has selected positions that are
 * spread evenly: the same ones, but in steps of more than a chunk of rows. */
static void prepare_selection(struct bench_op *o, int positions, double weights, int query)
{
	const struct bench_shape *s = o->shape;
	const int width = s->kv_rank + s->rope;
	const size_t rows = (size_t)o->rows, top_k = (size_t)s->top_k;
	const int span = o->context - MAX(o->rows, BENCH_CHUNK_ROWS),
			  step = o->rows > BENCH_CHUNK_ROWS ? span / positions : 1;
	int32_t *sel = NEW_ARRAY(int32_t, rows * top_k), *n_sel = NEW_ARRAY(int32_t, rows);
	for (size_t r = 0; r < rows; r++) {
		n_sel[r] = positions;
		for (int i = 0; i < positions; i++)
			sel[r * top_k + (size_t)i] =
				(int32_t)((int64_t)i * span / positions) + (int32_t)r % step;
	}
	prepare_rows(o, width, bench_op_copies(2.0 * positions * width + weights));
	o->x = bench_pool_floats(o->pool, rows * (size_t)s->heads * (size_t)query);
	o->sel = bench_pool_ints(o->pool, sel, rows * top_k);
	o->n_sel = bench_pool_ints(o->pool, n_sel, rows);
	o->bytes = weights + 2.0 * positions * width;
	o->macs = (double)o->rows * s->heads * positions * (width + s->kv_rank);
	free(sel);
	free(n_sel);
}

/* From a cache in host memory; bytes: what crosses the link to the card. */
int bench_op_fetch_rows(struct bench_op *o, const char *name, enum dtype type, struct err *e)
{
	const struct bench_shape *s = o->shape;
	const int width = s->kv_rank + s->rope;
	const size_t row = type == DTYPE_F8_E4M3 ? cache_f8_row_bytes(width, s->kv_rank)
											 : (size_t)width * sizeof(uint16_t),
				 bytes = (size_t)o->context * row;
	char detail[64];
	prepare_selection(o, s->top_k, 0, 1);
	o->host_cache = (struct cache_view){
		.data = bench_pool_get(o->pool, MEM_HOST, bytes), .type = type, .width = width};
	if (o->host_cache.data)
		memset(o->host_cache.data, 0, bytes);
	o->bytes = (double)s->top_k * (double)row;
	o->macs = 0;
	o->call = call_fetch_rows;
	o->name = name;
	snprintf(detail, sizeof detail, "%s, %d positions", dtype_name(type), s->top_k);
	return bench_op_measure(o, e, detail);
}

static int measure_heads(struct bench_op *o, int positions, const char *what, struct err *e)
{
	char detail[64], of[24] = "";
	if (o->prompt)
		snprintf(of, sizeof of, " of %d", o->context);
	snprintf(
		detail, sizeof detail, "%d heads, %d%s positions%s", o->shape->heads, positions, of, what);
	return bench_op_measure(o, e, detail);
}

int bench_op_attend(struct bench_op *o, const char *name, enum dtype type, struct err *e)
{
	(void)type;
	(void)name; /* tells numbers of rows apart */
	const struct bench_shape *s = o->shape;
	prepare_selection(o, s->top_k, 0, s->kv_rank + s->rope);
	o->y = bench_pool_floats(o->pool, (size_t)o->rows * (size_t)s->heads * (size_t)s->kv_rank);
	o->call = call_attend;
	o->name = "attend";
	return measure_heads(o, s->top_k, "", e);
}

int bench_op_mla(struct bench_op *o, const char *name, enum dtype type, struct err *e)
{
	(void)type;
	const struct bench_shape *s = o->shape;
	const int positions = strcmp(name, "short") ? s->top_k : MIN(s->top_k, 500);
	const int width = s->kv_rank + s->rope, values = s->heads * s->value;
	const size_t rows = (size_t)o->rows,
				 own = rows * (size_t)s->heads * (size_t)(width + s->kv_rank + s->value);
	double n = (double)s->heads * s->kv_rank * (s->nope + s->value) + (double)values * s->n_embd;
	prepare_selection(o, positions, 34.0 / 32 * n, s->nope + s->rope);
	bench_op_add_weight(o, 0, DTYPE_Q8_0, s->nope, s->kv_rank, s->heads);
	bench_op_add_weight(o, 1, DTYPE_Q8_0, s->kv_rank, s->value, s->heads);
	bench_op_add_weight(o, 2, DTYPE_Q8_0, values, s->n_embd, 1);
	o->y = bench_pool_floats(o->pool, rows * (size_t)s->n_embd);
	o->z = bench_pool_floats(o->pool, own);
	o->macs += (double)o->rows * n;
	o->call = call_mla;
	o->name = "mla";
	return measure_heads(o, positions, ", output", e);
}
