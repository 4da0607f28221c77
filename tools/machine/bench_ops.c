/* SPDX-License-Identifier: MIT */
/*
 * Every op of the table, alone, at the shapes of the pocket model and of GLM-5.2: one row (decode)
 * and a chunk of rows (prefill). Weights and caches rotate over copies that together exceed the
 * last-level cache several times, because in a real pass a weight has always been pushed out by the
 * layers in between. Each figure is held against the limit that binds the op: bytes that must be
 * read at the measured bandwidth, or multiply-adds at the measured FMA rate.
 */
#include "tools/machine/bench_ops.h"

#include "src/base/log.h"
#include "src/base/num.h"

#include <stdio.h>
#include <string.h>

#define POOL_BYTES                                                                                 \
	((size_t)160 << 20) /* least memory that the copies of a weight take together                  \
						 */
#define MAX_COPIES 64
#define DEVICE_CALLS                                                                               \
	64 /* ops enqueued between two waits on a backend that defers; their copies are more than its  \
		  caches hold */

static const struct bench_shape shapes[] = {
	{"pocket", 256, 256, 512, 4, 192, 64, 256, 4, 128, 128, 768, 32, 4, 256, 8192, 4096},
	{"glm-5.2", 6144, 2048, 512, 64, 192, 64, 256, 32, 128, 2048, 12288, 256, 8, 2048, 154880,
		32768},
};

struct weight bench_op_weight(const struct bench_op *o, int part, int copy)
{
	struct weight w = o->w[part];
	w.data = (const uint8_t *)w.data + o->stride[part] * (size_t)copy;
	return w;
}

struct cache_view bench_op_cache(const struct bench_op *o, int copy)
{
	struct cache_view c = o->cache;
	c.data = (uint8_t *)c.data + o->cache_stride * (size_t)copy;
	return c;
}

int bench_op_copies(double bytes)
{
	double n = (double)POOL_BYTES / bytes + 1;
	return n > MAX_COPIES ? MAX_COPIES : (int)n;
}

int bench_op_weights(struct bench_op *o, enum dtype type, const int n_in[3], const int n_out[3],
	double *bytes, struct err *e)
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
	o->copies = bench_op_copies(*bytes);
	for (int i = 0; i < 3; i++)
		if ((rc = bench_pool_weight(
				 o->pool, type, n_in[i], n_out[i], 1, o->copies, &o->w[i], &o->stride[i], e)))
			return rc;
	return 0;
}

/* ---- measuring ---- */

static void call_device_copy(struct bench_op *o, int copy)
{
	(void)copy;
	o->backend->ops->copy(o->backend, o->y, o->x, o->copy_bytes);
}

/* One call; on a backend that defers many of them as one graph, which is how a step of decode
 * enqueues them, experts excepted. */
static int work(void *user, struct err *e)
{
	struct bench_op *o = user;
	const struct backend_ops *ops = o->backend->ops;
	if (!ops->async) {
		o->call(o, o->next);
		o->next = (o->next + 1) % MAX(o->copies, 1);
	} else {
		enum segment_mode calls =
			o->graph ? ops->segment_begin(o->backend, o->graph) : SEGMENT_EAGER;
		for (int i = 0; i < DEVICE_CALLS && calls != SEGMENT_REPLAYED; i++)
			o->call(o, i % MAX(o->copies, 1));
		if (calls == SEGMENT_CAPTURE)
			ops->segment_end(o->backend);
	}
	return ops->wait(o->backend, e);
}

int bench_op_measure(struct bench_op *o, struct err *e, const char *detail)
{
	static uint64_t graphs;
	struct bench_spread s;
	/* as the model does: only steps of few rows are recorded */
	o->graph = o->rows < BENCH_CHUNK_ROWS && !o->alone ? ++graphs : 0;
	int rc = work(o, e); /* so that the next call, which warms up, can record */
	if (rc || (rc = bench_time(o->bench, work, o, &s, e)))
		return rc;
	o->backend->ops->segments_drop(o->backend);
	bool cpu = !o->backend->ops->async; /* the limits were measured there */
	double calls = cpu ? 1 : DEVICE_CALLS;
	double byte_limit = cpu ? o->bench->read_bytes_s : o->bench->device_bytes_s,
		   mac_limit = cpu ? o->bench->mac_s : 0;
	bool by_bytes = !o->macs || !mac_limit || o->bytes * mac_limit > o->macs * byte_limit;
	if (!cpu)
		by_bytes = o->rows < BENCH_CHUNK_ROWS || !o->macs;
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
	struct bench_op o = {
		.bench = b, .backend = backend, .call = call_device_copy, .copy_bytes = (size_t)1 << 30};
	struct bench_spread s;
	int rc;
	if (!(rc = bench_pool_floats(&p, o.copy_bytes / sizeof(float), &o.x, e)) &&
		!(rc = bench_pool_get(&p, MEM_DEVICE, o.copy_bytes, &o.y, e)) &&
		!(rc = bench_time(b, work, &o, &s, e))) {
		struct bench_spread rate = bench_rate(s, 2.0 * (double)o.copy_bytes * DEVICE_CALLS * 1e-9);
		b->device_bytes_s = rate.median * 1e9;
		bench_add(b, "ops", "GB/s", rate, 0, NULL, "copy on the card, arrays of %zu MiB",
			o.copy_bytes >> 20);
	}
	bench_pool_release(&p);
	return rc;
}

enum what {
	SMALL,
	MATMUL,
	STACKED_K,
	STACKED_V,
	ROPE,
	LATENTS,
	FFN,
	ROUTERS,
	SELECT,
	ATTEND,
	MLA,
	EXPERTS
};

static int run_matmul(struct bench_op *o, const char *name, enum dtype type, struct err *e)
{
	const struct bench_shape *s = o->shape;
	int n_in = s->n_embd, n_out = s->n_vocab;
	if (!strcmp(name, "q_a")) {
		n_out = s->q_rank;
	} else if (!strcmp(name, "q_b")) {
		n_in = s->q_rank;
		n_out = s->heads * (s->nope + s->rope);
	} else if (!strcmp(name, "o")) {
		n_in = s->heads * s->value;
		n_out = s->n_embd;
	} else if (!strcmp(name, "kv_a")) {
		n_out = s->kv_rank + s->rope;
	} else if (!strcmp(name, "router")) {
		n_out = s->n_experts;
	}
	return bench_op_matmul(o, name, type, n_in, n_out, e);
}

static int run_one(struct bench *b, struct backend *backend, const struct bench_shape *s, int rows,
	enum what what, const char *name, enum dtype type, struct err *e)
{
	struct bench_pool pool = {.backend = backend};
	struct bench_op o = {.bench = b, .backend = backend, .pool = &pool, .shape = s, .rows = rows};
	struct bench_shape longer = *s;
	int rc = 0;
	switch (what) {
	case SMALL:
		rc = bench_op_small(&o, name, e);
		break;
	case MATMUL:
		rc = run_matmul(&o, name, type, e);
		break;
	case STACKED_K:
		rc = bench_op_stacked(&o, name, s->nope, s->kv_rank, e);
		break;
	case STACKED_V:
		rc = bench_op_stacked(&o, name, s->kv_rank, s->value, e);
		break;
	case ROPE:
		rc = bench_op_rope(&o, e);
		break;
	case LATENTS:
		rc = bench_op_latents(&o, type, e);
		break;
	case FFN:
		rc = bench_op_ffn(&o, name, type, strcmp(name, "dense") ? s->ff_expert : s->ff_dense, e);
		break;
	case ROUTERS:
		rc = bench_op_routers(&o, e);
		break;
	case SELECT:
		longer.context *= 4;
		o.shape = strcmp(name, "long") ? s : &longer;
		rc = bench_op_index_select(&o, e);
		break;
	case ATTEND:
		rc = bench_op_attend(&o, s->top_k, e);
		break;
	case MLA:
		rc = bench_op_mla(&o, strcmp(name, "short") ? s->top_k : MIN(s->top_k, 500), e);
		break;
	case EXPERTS:
		rc = bench_op_experts(&o, type, e);
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
		{SMALL, "choice", "choice", DTYPE_F32},
		{ROUTERS, "route", "routers", DTYPE_F32},
		{EXPERTS, "expert_ffn", "expert_ffn", DTYPE_IQ2_XXS},
		{EXPERTS, "expert_ffn", "expert_ffn", DTYPE_Q2_K},
		{EXPERTS, "expert_ffn", "expert_ffn", DTYPE_Q4_K},
		{EXPERTS, "expert_ffn", "expert_ffn", DTYPE_Q8_0},
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
			int most =
				list[i].what == MATMUL && !strcmp(list[i].name, "head") ? 1 : BENCH_CHUNK_ROWS;
			/* a card also takes a few rows at once: drafts, several users */
			bool few = backend->ops->async &&
					   (list[i].what == MATMUL || list[i].what == LATENTS || list[i].what == FFN ||
						   list[i].what == ROUTERS || list[i].what == EXPERTS);
			for (int rows = 1; rows <= most; rows *= few ? 2 : BENCH_CHUNK_ROWS) {
				if (rows > 8 && rows < BENCH_CHUNK_ROWS)
					continue;
				int rc = run_one(
					b, backend, &shapes[s], rows, list[i].what, list[i].name, list[i].type, e);
				if (rc)
					return err_prefix(e, "%s, %d rows", label, rows) ? e->code : rc;
			}
		}
	if (!any)
		return err_set(e, ERR_USAGE, "--only: no op is called \"%.60s\"", only);
	return 0;
}
