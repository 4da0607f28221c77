/* SPDX-License-Identifier: MIT */
/*
 * Every op of the table, alone, at the shapes of the pocket model and of GLM-5.2: one row (decode) and a chunk of rows
 * (prefill). Weights and caches rotate over copies that together exceed the last-level cache several times, because in a
 * real pass a weight has always been pushed out by the layers in between. Each figure is held against the limit that binds
 * the op: bytes that must be read at the measured bandwidth, or multiply-adds at the measured FMA rate.
 */
#include "tools/bench.h"
#include "tools/bench_pool.h"

#include "kernels/backend.h"
#include "src/base/half.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/quant/quantize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_ROWS 64
#define POOL_BYTES ((size_t)160 << 20) /* least memory that the copies of a weight take together */
#define MAX_COPIES 64
#define DEVICE_CALLS                                                                                         \
	64 /* ops enqueued between two waits on a backend that defers; their copies are more than its caches hold */

/* The widths that decide the cost of an op; names as in model_config. */
struct shape {
	const char *name;
	int n_embd, q_rank, kv_rank, heads, nope, rope, value, index_heads, index_dim, top_k, ff_dense, n_experts,
		n_used, ff_expert, n_vocab, context;
};

static const struct shape shapes[] = {
	{"pocket", 256, 256, 512, 4, 192, 64, 256, 4, 128, 128, 768, 32, 4, 256, 8192, 4096},
	{"glm-5.2", 6144, 2048, 512, 64, 192, 64, 256, 32, 128, 2048, 12288, 256, 8, 2048, 154880, 32768},
};

/* One op under test. */
struct op {
	struct bench *bench;
	struct backend *backend;
	const struct shape *shape;
	int rows;
	double bytes, macs; /* of one call, at least */
	void (*call)(struct op *o, int copy);
	const char *name; /* "matmul" */
	int copies, next;
	/* operands, whichever the op uses */
	struct weight w[3]; /* of copy 0; copy i lies i * stride further */
	size_t stride[3];
	float *x, *y, *z; /* device */
	int32_t *ids, *pos, *base, *sel, *n_sel;
	uint64_t *picks;
	struct cache_view cache;
	size_t cache_stride;
	struct rope rope;
	struct batch batch;
	int32_t *places;   /* host */
	size_t copy_bytes; /* of call_device_copy */
	uint64_t graph;    /* key of the calls that are measured; 0: they are enqueued one by one */
};

static struct weight copy_of(const struct op *o, int part, int copy)
{
	struct weight w = o->w[part];
	w.data = (const uint8_t *)w.data + o->stride[part] * (size_t)copy;
	return w;
}

static int copies_for(double bytes)
{
	double n = (double)POOL_BYTES / bytes + 1;
	return n > MAX_COPIES ? MAX_COPIES : (int)n;
}

/* ---- the calls ------------------------------------------------------------------------------------------ */

static void call_embed(struct op *o, int copy)
{
	o->backend->ops->embed(o->backend, copy_of(o, 0, copy), o->ids, o->rows, o->y);
}

static void call_rms_norm(struct op *o, int copy)
{
	(void)copy;
	int n = o->shape->n_embd;
	o->backend->ops->rms_norm(o->backend, o->x, n, &(struct norm){o->z, o->y}, 1, 1e-5f, o->rows, n, n);
}

static void call_matmul(struct op *o, int copy)
{
	struct matmul part = {.w = copy_of(o, 0, copy), .y = o->y};
	o->backend->ops->matmul(o->backend, &part, 1, o->x, o->rows);
}

static void call_stacked(struct op *o, int copy)
{
	struct stacked_matmul a = {
		.w = copy_of(o, 0, copy), .x = o->x, .x_stride = o->w[0].n_in, .y = o->y, .y_stride = o->w[0].n_out};
	o->backend->ops->stacked_matmul(o->backend, &a, o->rows);
}

static void call_swiglu(struct op *o, int copy)
{
	(void)copy;
	o->backend->ops->swiglu(o->backend, o->x, o->z, (int64_t)o->rows * o->shape->ff_dense, o->y);
}

static void call_rope(struct op *o, int copy)
{
	(void)copy;
	int head = o->shape->nope + o->shape->rope;
	o->backend->ops->rope(
		o->backend, &o->rope, o->x + o->shape->nope, head, o->y, head, o->rows, o->shape->heads);
}

static void call_latents(struct op *o, int copy)
{
	const struct shape *s = o->shape;
	float *q = o->y, *kv = q + o->rows * s->q_rank, *query = kv + o->rows * (s->kv_rank + s->rope);
	struct matmul in[] = {{.w = copy_of(o, 0, copy), .y = q}, {.w = copy_of(o, 1, copy), .y = kv}},
				  out = {.w = copy_of(o, 2, copy), .y = query};
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
		.kv_cache = o->cache,
		.out = &out,
		.n_out = 1};
	a.kv_cache.data = (uint8_t *)o->cache.data + o->cache_stride * (size_t)copy;
	o->backend->ops->latents(o->backend, &o->batch, &o->rope, &a);
}

static void call_ffn(struct op *o, int copy)
{
	size_t n = (size_t)o->rows * (size_t)o->w[0].n_out;
	struct ffn a = {.gate = copy_of(o, 0, copy),
		.up = copy_of(o, 1, copy),
		.down = copy_of(o, 2, copy),
		.x = o->x,
		.y = o->y,
		.hidden = o->z,
		.spare = o->z + n};
	o->backend->ops->ffn(o->backend, &a, o->rows);
}

static void call_index_select(struct op *o, int copy)
{
	const struct shape *s = o->shape;
	struct cache_view c = o->cache;
	c.data = (uint8_t *)c.data + o->cache_stride * (size_t)copy;
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

static void call_attend(struct op *o, int copy)
{
	const struct shape *s = o->shape;
	struct cache_view c = o->cache;
	c.data = (uint8_t *)c.data + o->cache_stride * (size_t)copy;
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

static void call_mla(struct op *o, int copy)
{
	const struct shape *s = o->shape;
	int head = s->nope + s->rope, width = s->kv_rank + s->rope;
	struct cache_view c = o->cache;
	c.data = (uint8_t *)c.data + o->cache_stride * (size_t)copy;
	float *heads = o->z + (int64_t)o->rows * s->heads * (width + s->kv_rank);
	struct matmul product = {.w = copy_of(o, 2, copy), .y = o->y, .add = true};
	struct mla a = {
		.absorb = {copy_of(o, 0, copy), o->x, head, o->z, width},
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
		.expand = {copy_of(o, 1, copy), o->z + (int64_t)o->rows * s->heads * width, s->kv_rank, heads,
			s->value},
		.out = &product,
	};
	o->backend->ops->mla(o->backend, &o->batch, &a);
}

static void call_route(struct op *o, int copy)
{
	(void)copy;
	const struct shape *s = o->shape;
	struct route a = {.n_experts = s->n_experts,
		.n_used = s->n_used,
		.n_group = 1,
		.n_group_used = 1,
		.normalise = true,
		.scale = 2.5f,
		.logits = o->x,
		.bias = o->z,
		.picks = o->picks,
		.weights = o->y};
	o->backend->ops->route(o->backend, &a, 1, o->rows);
}

/* Decode: n_used experts with one place each. Prefill: every expert with its share of the places. */
static void call_expert_ffn(struct op *o, int copy)
{
	const struct shape *s = o->shape;
	int places = o->rows * s->n_used, n_jobs = MIN(places, s->n_experts), done = 0;
	struct expert_job *jobs = NEW_ARRAY(struct expert_job, n_jobs);
	for (int i = 0; i < n_jobs; i++) {
		int slot = (copy * n_jobs + i) % o->copies; /* expert slots rotate */
		int n = (places - done) / (n_jobs - i);
		jobs[i] = (struct expert_job){.gate = copy_of(o, 0, slot),
			.up = copy_of(o, 1, slot),
			.down = copy_of(o, 2, slot),
			.places = o->places + done,
			.n_places = n};
		done += n;
	}
	o->backend->ops->expert_ffn(o->backend, o->x, jobs, n_jobs, o->rows, s->n_used, o->y);
	free(jobs);
}

static void call_moe_combine(struct op *o, int copy)
{
	(void)copy;
	const struct shape *s = o->shape;
	o->backend->ops->moe_combine(
		o->backend, o->x, o->z, s->n_used, o->y, o->rows, s->n_embd, o->y, &(struct norm){o->x, o->x}, 1e-5f);
}

static void call_device_copy(struct op *o, int copy)
{
	(void)copy;
	o->backend->ops->copy(o->backend, o->y, o->x, o->copy_bytes);
}

/* ---- measuring ------------------------------------------------------------------------------------------ */

/* One call; on a backend that defers many of them as one graph, which is how a step of decode enqueues them, experts excepted. */
static int work(void *user, struct err *e)
{
	struct op *o = user;
	const struct backend_ops *ops = o->backend->ops;
	if (!ops->deferred) {
		o->call(o, o->next);
		o->next = (o->next + 1) % MAX(o->copies, 1);
	} else if (!o->graph || ops->graph_begin(o->backend, o->graph)) {
		for (int i = 0; i < DEVICE_CALLS; i++)
			o->call(o, i % MAX(o->copies, 1));
		if (o->graph)
			ops->graph_end(o->backend);
	}
	return ops->wait(o->backend, e);
}

/* Times one op and adds its line; detail names what else matters (type, widths). */
static int measure(struct op *o, struct err *e, const char *detail)
{
	static uint64_t graphs;
	struct bench_spread s;
	/* as the model does: only steps of few rows are recorded */
	o->graph = o->rows < CHUNK_ROWS && o->call != call_expert_ffn ? ++graphs : 0;
	int rc = work(o, e); /* so that the next call, which warms up, can record */
	if (rc || (rc = bench_time(o->bench, work, o, &s, e)))
		return rc;
	o->backend->ops->graph_drop(o->backend);
	bool cpu = !o->backend->ops->deferred; /* the limits were measured there */
	double calls = cpu ? 1 : DEVICE_CALLS;
	double byte_limit = cpu ? o->bench->read_bytes_s : o->bench->device_bytes_s,
		   mac_limit = cpu ? o->bench->mac_s : 0;
	bool by_bytes = !o->macs || !mac_limit || o->bytes * mac_limit > o->macs * byte_limit;
	if (!cpu)
		by_bytes = o->rows < CHUNK_ROWS || !o->macs;
	bench_add(o->bench, "ops", by_bytes ? "GB/s" : "GMAC/s",
		bench_rate(s, (by_bytes ? o->bytes : o->macs) * calls * 1e-9),
		(by_bytes ? byte_limit : mac_limit) * 1e-9,
		!by_bytes ? "FMA"
		: cpu     ? "read"
				  : "copy",
		"%s %s%s%s, %d row%s", o->shape->name, o->name, *detail ? " " : "", detail, o->rows,
		o->rows == 1 ? "" : "s");
	return 0;
}

/* The card's limit: one array of it copied to another, bytes read and bytes written. */
static int measure_device_copy(struct bench *b, struct backend *backend, struct err *e)
{
	struct bench_pool p = {.backend = backend};
	struct op o = {.bench = b, .backend = backend, .call = call_device_copy, .copy_bytes = (size_t)1 << 30};
	struct bench_spread s;
	int rc;
	if (!(rc = bench_pool_floats(&p, o.copy_bytes / sizeof(float), &o.x, e)) &&
		!(rc = bench_pool_get(&p, MEM_DEVICE, o.copy_bytes, &o.y, e)) &&
		!(rc = bench_time(b, work, &o, &s, e))) {
		struct bench_spread rate = bench_rate(s, 2.0 * (double)o.copy_bytes * DEVICE_CALLS * 1e-9);
		b->device_bytes_s = rate.median * 1e9;
		bench_add(b, "ops", "GB/s", rate, 0, NULL, "copy on the card, arrays of %zu MiB", o.copy_bytes >> 20);
	}
	bench_pool_release(&p);
	return rc;
}

static int run_matmul(
	struct op *o, struct bench_pool *p, const char *what, enum dtype type, int n_in, int n_out, struct err *e)
{
	uint64_t row_bytes;
	int rc;
	if (!quantize_supported(type) || !dtype_row_bytes(type, (uint64_t)n_in, &row_bytes))
		return 0;
	double weight = (double)row_bytes * n_out;
	o->copies = copies_for(weight);
	if ((rc = bench_pool_weight(p, type, n_in, n_out, 1, o->copies, &o->w[0], &o->stride[0], e)) ||
		(rc = bench_pool_floats(p, (size_t)o->rows * (size_t)n_in, &o->x, e)) ||
		(rc = bench_pool_floats(p, (size_t)o->rows * (size_t)n_out, &o->y, e)))
		return rc;
	o->bytes = weight + 4.0 * o->rows * ((double)n_in + (double)n_out);
	o->macs = (double)o->rows * n_in * n_out;
	o->call = call_matmul;
	o->name = "matmul";
	char detail[64];
	snprintf(detail, sizeof detail, "%s %s %d>%d", what, dtype_name(type), n_in, n_out);
	return measure(o, e, detail);
}

static int run_stacked(
	struct op *o, struct bench_pool *p, const char *what, int n_in, int n_out, struct err *e)
{
	const struct shape *s = o->shape;
	int rc;
	uint64_t row_bytes;
	if (!dtype_row_bytes(DTYPE_Q8_0, (uint64_t)n_in, &row_bytes))
		return 0;
	double weight = (double)row_bytes * n_out * s->heads;
	o->copies = copies_for(weight);
	if ((rc = bench_pool_weight(
			 p, DTYPE_Q8_0, n_in, n_out, s->heads, o->copies, &o->w[0], &o->stride[0], e)) ||
		(rc = bench_pool_floats(p, (size_t)o->rows * (size_t)s->heads * (size_t)n_in, &o->x, e)) ||
		(rc = bench_pool_floats(p, (size_t)o->rows * (size_t)s->heads * (size_t)n_out, &o->y, e)))
		return rc;
	o->bytes = weight + 4.0 * o->rows * s->heads * (n_in + n_out);
	o->macs = (double)o->rows * n_in * n_out * s->heads;
	o->call = call_stacked;
	o->name = "stacked_matmul";
	char detail[64];
	snprintf(detail, sizeof detail, "%s Q8_0 %dx %d>%d", what, s->heads, n_in, n_out);
	return measure(o, e, detail);
}

static int run_expert(struct op *o, struct bench_pool *p, enum dtype type, struct err *e)
{
	const struct shape *s = o->shape;
	uint64_t in_bytes, out_bytes;
	int rc;
	if (!quantize_supported(type) || !dtype_row_bytes(type, (uint64_t)s->n_embd, &in_bytes) ||
		!dtype_row_bytes(type, (uint64_t)s->ff_expert, &out_bytes))
		return 0;
	double expert = 2.0 * (double)in_bytes * s->ff_expert + (double)out_bytes * s->n_embd;
	int places = o->rows * s->n_used, distinct = MIN(places, s->n_experts);
	o->copies = MIN(MAX(copies_for(expert), s->n_used), s->n_experts);
	if ((rc = bench_pool_weight(
			 p, type, s->n_embd, s->ff_expert, 1, o->copies, &o->w[0], &o->stride[0], e)) ||
		(rc = bench_pool_weight(
			 p, type, s->n_embd, s->ff_expert, 1, o->copies, &o->w[1], &o->stride[1], e)) ||
		(rc = bench_pool_weight(
			 p, type, s->ff_expert, s->n_embd, 1, o->copies, &o->w[2], &o->stride[2], e)) ||
		(rc = bench_pool_floats(p, (size_t)o->rows * (size_t)s->n_embd, &o->x, e)) ||
		(rc = bench_pool_floats(p, (size_t)places * (size_t)s->n_embd, &o->y, e)))
		return rc;
	o->places = NEW_ARRAY(int32_t, places);
	for (int i = 0; i < places;
		 i++) /* place r * n_used + k, so that one job's places belong to different rows */
		o->places[i] = i % o->rows * s->n_used + i / o->rows;
	o->bytes = expert * distinct + 4.0 * (o->rows + places) * s->n_embd;
	o->macs = 3.0 * places * s->n_embd * (double)s->ff_expert;
	o->call = call_expert_ffn;
	o->name = "expert_ffn";
	char detail[64];
	snprintf(detail, sizeof detail, "%s, %d experts", dtype_name(type), distinct);
	rc = measure(o, e, detail);
	free(o->places);
	o->places = NULL;
	return rc;
}

/* The rows of a step at the end of a full context, rotary angles, and a cache. */
static int prepare_rows(struct op *o, struct bench_pool *p, int width, int copies, struct err *e)
{
	const struct shape *s = o->shape;
	int rc;
	int32_t *pos = NEW_ARRAY(int32_t, o->rows), *base = NEW_ARRAY(int32_t, o->rows);
	for (int i = 0; i < o->rows; i++)
		pos[i] = s->context - o->rows + i;
	o->copies = copies;
	o->cache_stride = (size_t)s->context * (size_t)width * sizeof(uint16_t);
	o->cache = (struct cache_view){.type = DTYPE_F16, .width = width};
	float *inv_freq = NULL, *angles = NULL;
	uint8_t *cache = NULL;
	if ((rc = bench_pool_ints(p, pos, (size_t)o->rows, &o->pos, e)) ||
		(rc = bench_pool_ints(p, base, (size_t)o->rows, &o->base, e)) ||
		(rc = bench_pool_floats(p, (size_t)s->rope / 2, &inv_freq, e)) ||
		(rc = bench_pool_floats(p, (size_t)o->rows * (size_t)s->rope, &angles, e)) ||
		(rc = bench_pool_get(p, MEM_DEVICE, o->cache_stride * (size_t)copies, &cache, e)))
		goto out;
	uint16_t *host = NEW_ARRAY(uint16_t, (size_t)1 << 16);
	struct rng r = {3};
	for (size_t i = 0; i < (size_t)1 << 16; i++)
		host[i] = f32_to_f16((float)(rng_unit(&r) * 2 - 1));
	for (size_t at = 0; at < o->cache_stride * (size_t)copies; at += (size_t)1 << 17)
		o->backend->ops->upload(
			o->backend, cache + at, host, MIN((size_t)1 << 17, o->cache_stride * (size_t)copies - at));
	rc = o->backend->ops->wait(o->backend, e);
	free(host);
	o->cache.data = cache;
	o->batch = (struct batch){.n = o->rows, .pos = o->pos, .base = o->base, .max_pos = s->context - 1};
	o->backend->ops->rope_angles(o->backend, &o->batch, inv_freq, s->rope, angles);
	o->rope = (struct rope){.cos_sin = angles, .dim = s->rope};
out:
	free(pos);
	free(base);
	return rc;
}

static int run_rope(struct op *o, struct bench_pool *p, struct err *e)
{
	const struct shape *s = o->shape;
	int rc;
	size_t n = (size_t)o->rows * (size_t)s->heads * (size_t)(s->nope + s->rope);
	if ((rc = prepare_rows(o, p, s->index_dim, 1, e)) || (rc = bench_pool_floats(p, n, &o->x, e)) ||
		(rc = bench_pool_floats(p, n, &o->y, e)))
		return rc;
	o->bytes = 8.0 * o->rows * s->heads * s->rope;
	o->macs = 0;
	o->call = call_rope;
	o->name = "rope";
	return measure(o, e, "");
}

/* Three weights of one op, so many copies that they have left the caches; *bytes: of one copy of all */
static int get_weights(struct op *o, struct bench_pool *p, enum dtype type, const int n_in[3],
	const int n_out[3], double *bytes, struct err *e)
{
	uint64_t row_bytes;
	int rc;
	*bytes = 0;
	for (int i = 0; i < 3; i++) {
		if (!dtype_row_bytes(type, (uint64_t)n_in[i], &row_bytes))
			bug("bench: %d values are no row of %s", n_in[i], dtype_name(type));
		*bytes += (double)row_bytes * n_out[i];
		o->macs += (double)o->rows * n_in[i] * n_out[i];
	}
	o->copies = copies_for(*bytes);
	for (int i = 0; i < 3; i++)
		if ((rc = bench_pool_weight(p, type, n_in[i], n_out[i], 1, o->copies, &o->w[i], &o->stride[i], e)))
			return rc;
	return 0;
}

/* As in a layer without an indexer. */
static int run_latents(struct op *o, struct bench_pool *p, enum dtype type, struct err *e)
{
	const struct shape *s = o->shape;
	int rc, width = s->kv_rank + s->rope, query = s->heads * (s->nope + s->rope);
	int n_in[] = {s->n_embd, s->n_embd, s->q_rank}, n_out[] = {s->q_rank, width, query};
	double weights;
	if ((rc = get_weights(o, p, type, n_in, n_out, &weights, e)) ||
		(rc = prepare_rows(o, p, width, o->copies, e)) ||
		(rc = bench_pool_floats(p, (size_t)o->rows * (size_t)s->n_embd, &o->x, e)) ||
		(rc = bench_pool_floats(p, (size_t)o->rows * (size_t)(s->q_rank + width + query), &o->y, e)) ||
		(rc = bench_pool_floats(p, (size_t)MAX(s->q_rank, s->kv_rank), &o->z, e)))
		return rc;
	o->bytes = weights + 4.0 * o->rows * (s->n_embd + 2 * s->q_rank + 2 * width + query);
	o->call = call_latents;
	o->name = "latents";
	char detail[64];
	snprintf(detail, sizeof detail, "%s %d>%d+%d, %d>%d", dtype_name(type), s->n_embd, s->q_rank, width,
		s->q_rank, query);
	return measure(o, e, detail);
}

static int run_ffn(
	struct op *o, struct bench_pool *p, const char *what, enum dtype type, int n_ff, struct err *e)
{
	int rc, n = o->shape->n_embd;
	size_t rows = (size_t)o->rows;
	double weights;
	if ((rc = get_weights(
			 o, p, type, (const int[]){n, n, n_ff}, (const int[]){n_ff, n_ff, n}, &weights, e)) ||
		(rc = bench_pool_floats(p, rows * (size_t)n, &o->x, e)) ||
		(rc = bench_pool_floats(p, rows * (size_t)n, &o->y, e)) ||
		(rc = bench_pool_floats(p, 2 * rows * (size_t)n_ff, &o->z, e)))
		return rc;
	o->bytes = weights + 8.0 * o->rows * (n + n_ff);
	o->call = call_ffn;
	o->name = "ffn";
	char detail[64];
	snprintf(detail, sizeof detail, "%s %s %d>%d>%d", what, dtype_name(type), n, n_ff, n);
	return measure(o, e, detail);
}

static int run_index_select(struct op *o, struct bench_pool *p, struct err *e)
{
	const struct shape *s = o->shape;
	int rc;
	size_t rows = (size_t)o->rows;
	if ((rc = prepare_rows(o, p, s->index_dim, copies_for(2.0 * s->context * s->index_dim), e)) ||
		(rc = bench_pool_floats(p, rows * (size_t)s->index_heads * (size_t)s->index_dim, &o->x, e)) ||
		(rc = bench_pool_floats(p, rows * (size_t)s->index_heads, &o->z, e)) ||
		(rc = bench_pool_get(p, MEM_DEVICE, rows * (size_t)s->top_k * sizeof(int32_t), &o->sel, e)) ||
		(rc = bench_pool_get(p, MEM_DEVICE, rows * sizeof(int32_t), &o->n_sel, e)))
		return rc;
	o->bytes = 2.0 * s->context * s->index_dim;
	o->macs = (double)o->rows * s->context * s->index_heads * (s->index_dim + 1);
	o->call = call_index_select;
	o->name = "index_select";
	char detail[64];
	snprintf(detail, sizeof detail, "%d of %d", s->top_k, s->context);
	return measure(o, e, detail);
}

/* attend, or with `whole` mla and the output product, over so many positions. */
static int run_attend(struct op *o, struct bench_pool *p, int positions, bool whole, struct err *e)
{
	const struct shape *s = o->shape;
	int rc, width = s->kv_rank + s->rope, query = whole ? s->nope + s->rope : width,
			values = s->heads * s->value;
	size_t rows = (size_t)o->rows, rows_heads = rows * (size_t)s->heads;
	double weights =
		whole
			? 34.0 / 32 * ((double)s->heads * s->kv_rank * (s->nope + s->value) + (double)values * s->n_embd)
			: 0;
	int32_t *sel = NEW_ARRAY(int32_t, rows * (size_t)s->top_k), *n_sel = NEW_ARRAY(int32_t, rows);
	for (size_t r = 0; r < rows; r++) {
		n_sel[r] = positions;
		for (int i = 0; i < positions; i++) /* spread evenly over the context */
			sel[r * (size_t)s->top_k + (size_t)i] =
				(int32_t)((int64_t)i * (s->context - CHUNK_ROWS) / positions);
	}
	if ((rc = prepare_rows(o, p, width, copies_for(2.0 * positions * width + weights), e)) ||
		(rc = bench_pool_floats(p, rows_heads * (size_t)query, &o->x, e)) ||
		(rc = bench_pool_floats(
			 p, whole ? rows * (size_t)s->n_embd : rows_heads * (size_t)s->kv_rank, &o->y, e)) ||
		(rc = bench_pool_ints(p, sel, rows * (size_t)s->top_k, &o->sel, e)) ||
		(rc = bench_pool_ints(p, n_sel, rows, &o->n_sel, e)))
		goto out;
	o->bytes = weights + 2.0 * positions * width; /* every row reads the same positions here */
	o->macs = (double)o->rows * s->heads * positions * (width + s->kv_rank);
	o->call = call_attend;
	o->name = "attend";
	if (whole) {
		if ((rc = bench_pool_weight(
				 p, DTYPE_Q8_0, s->nope, s->kv_rank, s->heads, o->copies, &o->w[0], &o->stride[0], e)) ||
			(rc = bench_pool_weight(
				 p, DTYPE_Q8_0, s->kv_rank, s->value, s->heads, o->copies, &o->w[1], &o->stride[1], e)) ||
			(rc = bench_pool_weight(
				 p, DTYPE_Q8_0, values, s->n_embd, 1, o->copies, &o->w[2], &o->stride[2], e)) ||
			(rc = bench_pool_floats(p, rows_heads * (size_t)(width + s->kv_rank + s->value), &o->z, e)))
			goto out;
		o->macs += (double)o->rows *
				   ((double)s->heads * s->kv_rank * (s->nope + s->value) + (double)values * s->n_embd);
		o->call = call_mla;
		o->name = "mla";
	}
	char detail[64];
	snprintf(detail, sizeof detail, "%d heads, %d positions%s", s->heads, positions, whole ? ", output" : "");
	rc = measure(o, e, detail);
out:
	free(sel);
	free(n_sel);
	return rc;
}

/* embed, rms_norm, swiglu, route, moe_combine: operands of simple shape. */
static int run_small(struct op *o, struct bench_pool *p, const char *name, struct err *e)
{
	const struct shape *s = o->shape;
	size_t rows = (size_t)o->rows, embd = (size_t)s->n_embd, used = (size_t)s->n_used;
	int rc;
	o->name = name;
	o->macs = 0;
	o->copies = 1;
	if (!strcmp(name, "embed")) {
		int32_t *ids = NEW_ARRAY(int32_t, rows);
		for (size_t i = 0; i < rows; i++)
			ids[i] = (int32_t)(i * 97 % 1024);
		rc = bench_pool_ints(p, ids, rows, &o->ids, e);
		free(ids);
		if (rc ||
			(rc = bench_pool_weight(p, DTYPE_Q8_0, s->n_embd, 1024, 1, 1, &o->w[0], &o->stride[0], e)) ||
			(rc = bench_pool_floats(p, rows * embd, &o->y, e)))
			return rc;
		o->bytes = (double)rows * (double)(o->w[0].row_bytes + 4 * embd);
		o->call = call_embed;
	} else if (!strcmp(name, "rms_norm")) {
		if ((rc = bench_pool_floats(p, rows * embd, &o->x, e)) ||
			(rc = bench_pool_floats(p, embd, &o->z, e)) || (rc = bench_pool_floats(p, rows * embd, &o->y, e)))
			return rc;
		o->bytes = 8.0 * (double)(rows * embd);
		o->call = call_rms_norm;
	} else if (!strcmp(name, "swiglu")) {
		size_t n = rows * (size_t)s->ff_dense;
		if ((rc = bench_pool_floats(p, n, &o->x, e)) || (rc = bench_pool_floats(p, n, &o->z, e)) ||
			(rc = bench_pool_floats(p, n, &o->y, e)))
			return rc;
		o->bytes = 12.0 * (double)n;
		o->call = call_swiglu;
	} else if (!strcmp(name, "route")) {
		if ((rc = bench_pool_floats(p, rows * (size_t)s->n_experts, &o->x, e)) ||
			(rc = bench_pool_floats(p, (size_t)s->n_experts, &o->z, e)) ||
			(rc = bench_pool_floats(p, rows * used, &o->y, e)) ||
			(rc = bench_pool_get(p, MEM_SHARED, rows * used * sizeof(uint64_t), &o->picks, e)))
			return rc;
		o->bytes = 4.0 * (double)(rows * (size_t)s->n_experts);
		o->call = call_route;
	} else {
		if ((rc = bench_pool_floats(p, rows * used * embd, &o->x, e)) ||
			(rc = bench_pool_floats(p, rows * used, &o->z, e)) ||
			(rc = bench_pool_floats(p, rows * embd, &o->y, e)))
			return rc;
		o->bytes = 4.0 * (double)(rows * embd) * (double)(used + 3);
		o->call = call_moe_combine;
	}
	return measure(o, e, "");
}

enum what { SMALL, MATMUL, STACKED_K, STACKED_V, ROPE, LATENTS, FFN, SELECT, ATTEND, MLA, EXPERT };

static int run_one(struct bench *b, struct backend *backend, const struct shape *s, int rows, enum what what,
	const char *name, enum dtype type, struct err *e)
{
	struct bench_pool pool = {.backend = backend};
	struct op o = {.bench = b, .backend = backend, .shape = s, .rows = rows};
	struct shape longer = *s;
	int rc = 0;
	switch (what) {
	case SMALL:
		rc = run_small(&o, &pool, name, e);
		break;
	case MATMUL:
		if (!strcmp(name, "q_a"))
			rc = run_matmul(&o, &pool, name, type, s->n_embd, s->q_rank, e);
		else if (!strcmp(name, "q_b"))
			rc = run_matmul(&o, &pool, name, type, s->q_rank, s->heads * (s->nope + s->rope), e);
		else if (!strcmp(name, "o"))
			rc = run_matmul(&o, &pool, name, type, s->heads * s->value, s->n_embd, e);
		else if (!strcmp(name, "kv_a"))
			rc = run_matmul(&o, &pool, name, type, s->n_embd, s->kv_rank + s->rope, e);
		else if (!strcmp(name, "router"))
			rc = run_matmul(&o, &pool, name, type, s->n_embd, s->n_experts, e);
		else
			rc = run_matmul(&o, &pool, name, type, s->n_embd, s->n_vocab, e);
		break;
	case STACKED_K:
		rc = run_stacked(&o, &pool, "k_b", s->nope, s->kv_rank, e);
		break;
	case STACKED_V:
		rc = run_stacked(&o, &pool, "v_b", s->kv_rank, s->value, e);
		break;
	case ROPE:
		rc = run_rope(&o, &pool, e);
		break;
	case LATENTS:
		rc = run_latents(&o, &pool, type, e);
		break;
	case FFN:
		rc = run_ffn(&o, &pool, name, type, strcmp(name, "dense") ? s->ff_expert : s->ff_dense, e);
		break;
	case SELECT:
		if (!strcmp(name, "long")) {
			longer.context *= 4;
			o.shape = &longer;
		}
		rc = run_index_select(&o, &pool, e);
		break;
	case ATTEND:
		rc = run_attend(&o, &pool, s->top_k, false, e);
		break;
	case MLA:
		rc = run_attend(&o, &pool, strcmp(name, "short") ? s->top_k : MIN(s->top_k, 500), true, e);
		break;
	case EXPERT:
		rc = run_expert(&o, &pool, type, e);
		break;
	}
	bench_pool_release(&pool);
	return rc;
}

int bench_ops(struct bench *b, struct backend *backend, const char *only, struct err *e)
{
	static const struct {
		enum what what;
		const char *op, *name; /* op: what --only matches besides the shape */
		enum dtype type;
	} list[] = {
		{SMALL, "embed", "embed", DTYPE_F32},
		{SMALL, "rms_norm", "rms_norm", DTYPE_F32},
		{MATMUL, "matmul", "q_a", DTYPE_F32},
		{MATMUL, "matmul", "q_a", DTYPE_F16},
		{MATMUL, "matmul", "q_a", DTYPE_BF16},
		{MATMUL, "matmul", "q_a", DTYPE_Q8_0},
		{MATMUL, "matmul", "q_a", DTYPE_Q4_0},
		{MATMUL, "matmul", "q_a", DTYPE_Q2_K},
		{MATMUL, "matmul", "q_a", DTYPE_Q3_K},
		{MATMUL, "matmul", "q_a", DTYPE_Q4_K},
		{MATMUL, "matmul", "q_a", DTYPE_Q5_K},
		{MATMUL, "matmul", "q_a", DTYPE_Q6_K},
		{MATMUL, "matmul", "q_a", DTYPE_IQ2_XXS},
		{MATMUL, "matmul", "q_b", DTYPE_Q8_0},
		{MATMUL, "matmul", "o", DTYPE_Q8_0},
		{MATMUL, "matmul", "kv_a", DTYPE_Q8_0},
		{MATMUL, "matmul", "q_b", DTYPE_Q4_K},
		{MATMUL, "matmul", "o", DTYPE_Q4_K},
		{MATMUL, "matmul", "head", DTYPE_Q4_K},
		{MATMUL, "matmul", "router", DTYPE_F32},
		{MATMUL, "matmul", "head", DTYPE_Q8_0},
		{STACKED_K, "stacked_matmul", "k_b", DTYPE_Q8_0},
		{STACKED_V, "stacked_matmul", "v_b", DTYPE_Q8_0},
		{SMALL, "swiglu", "swiglu", DTYPE_F32},
		{ROPE, "rope", "rope", DTYPE_F32},
		{LATENTS, "latents", "latents", DTYPE_Q8_0},
		{LATENTS, "latents", "latents", DTYPE_Q4_K},
		{FFN, "ffn", "shared", DTYPE_Q8_0},
		{FFN, "ffn", "shared", DTYPE_Q4_K},
		{FFN, "ffn", "dense", DTYPE_Q8_0},
		{SELECT, "index_select", "index_select", DTYPE_F16},
		{SELECT, "index_select", "long", DTYPE_F16},
		{ATTEND, "attend", "attend", DTYPE_F16},
		{MLA, "mla", "mla", DTYPE_F16},
		{MLA, "mla", "short", DTYPE_F16},
		{SMALL, "route", "route", DTYPE_F32},
		{EXPERT, "expert_ffn", "expert_ffn", DTYPE_IQ2_XXS},
		{EXPERT, "expert_ffn", "expert_ffn", DTYPE_Q2_K},
		{EXPERT, "expert_ffn", "expert_ffn", DTYPE_Q4_K},
		{EXPERT, "expert_ffn", "expert_ffn", DTYPE_Q8_0},
		{SMALL, "moe_combine", "moe_combine", DTYPE_F32},
	};
	bool any = false;
	if (strcmp(backend->ops->name, "cpu")) {
		int rc = measure_device_copy(b, backend, e);
		if (rc)
			return rc;
	}
	for (size_t s = 0; s < ARRAY_LEN(shapes); s++)
		for (size_t i = 0; i < ARRAY_LEN(list); i++) {
			char label[96];
			snprintf(label, sizeof label, "%s %s %s %s", shapes[s].name, list[i].op, list[i].name,
				dtype_name(list[i].type));
			if (only && !strstr(label, only))
				continue;
			any = true;
			/* a chunk through the head is never computed: only last rows are */
			int most = list[i].what == MATMUL && !strcmp(list[i].name, "head") ? 1 : CHUNK_ROWS;
			/* a card also takes a few rows at once: drafts, several users */
			bool few = backend->ops->deferred && (list[i].what == MATMUL || list[i].what == LATENTS ||
													 list[i].what == FFN || list[i].what == EXPERT);
			for (int rows = 1; rows <= most; rows *= few ? 2 : CHUNK_ROWS) {
				if (rows > 8 && rows < CHUNK_ROWS)
					continue;
				int rc = run_one(b, backend, &shapes[s], rows, list[i].what, list[i].name, list[i].type, e);
				if (rc)
					return err_prefix(e, "%s, %d rows", label, rows) ? e->code : rc;
			}
		}
	if (!any)
		return err_set(e, ERR_USAGE, "--only: no op is called \"%.60s\"", only);
	return 0;
}
