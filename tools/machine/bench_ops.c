/* SPDX-License-Identifier: MIT */
/*
 * Every op of the table, alone, at the shapes of the pocket model and of GLM-5.2: one row (decode)
 * and a chunk of rows (prefill). Weights and caches rotate over copies that together exceed the
 * last-level cache several times, because in a real pass a weight has always been pushed out by the
 * layers in between. Each figure is held against the limit that binds the op: bytes that must be
 * read at the measured bandwidth, or multiply-adds at the measured FMA rate.
 */
#include "tools/machine/bench_ops.h"

#include "kernels/library.h"
#include "src/base/host/memory_left.h"
#include "src/base/log.h"
#include "src/base/num.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Least memory that the copies of a weight take together. */
#define POOL_BYTES ((size_t)160 << 20)
#define MAX_COPIES 64
/* Calls enqueued between two waits on a card; their copies are more than its caches hold. A call
 * for a prompt takes milliseconds, so few are enough. */
#define DEVICE_CALLS 64
#define PROMPT_CALLS 4

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

int bench_op_copies_in_memory(double bytes)
{
	const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
	const double most = (double)memory_left() / 4;
	const double want = MIN(2.0 * (double)MAX(cache, 0L), most);
	return MAX(bench_op_copies(bytes), (int)(want / bytes) + 1);
}

void bench_op_add_weight(
	struct bench_op *o, int part, enum dtype type, int n_in, int n_out, int n_stack)
{
	o->w[part] =
		bench_pool_weight(o->pool, type, n_in, n_out, n_stack, o->copies, &o->stride[part]);
}

double bench_op_weights(struct bench_op *o, enum dtype type, const int n_in[3], const int n_out[3])
{
	uint64_t row_bytes;
	double bytes = 0;
	for (int i = 0; i < 3; i++) {
		if (!dtype_row_bytes(type, (uint64_t)n_in[i], &row_bytes))
			bug("bench: %d values are no row of %s", n_in[i], dtype_name(type));
		bytes += (double)row_bytes * n_out[i];
		o->macs += (double)o->rows * n_in[i] * n_out[i];
	}
	o->copies = bench_op_copies(bytes);
	for (int i = 0; i < 3; i++)
		bench_op_add_weight(o, i, type, n_in[i], n_out[i], 1);
	return bytes;
}

/* ---- measuring ---- */

static void call_device_copy(struct bench_op *o, int copy)
{
	(void)copy;
	o->backend->ops->copy(o->backend, o->y, o->x, o->copy_bytes);
}

static int calls_at_once(const struct bench_op *o)
{
	return o->prompt ? PROMPT_CALLS : o->backend->ops->async ? DEVICE_CALLS : 1;
}

/* One call; on a card calls_at_once of them, as one graph, which is how a step of decode enqueues
 * them (not bench_op.alone). */
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
		for (int i = 0; i < calls_at_once(o) && calls != SEGMENT_REPLAYED; i++)
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
	if (o->pool->code) {
		*e = o->pool->err;
		return o->pool->code;
	}
	/* as the model does: only steps of few rows are captured */
	o->graph = o->rows < BENCH_CHUNK_ROWS && !o->alone && !o->prompt ? ++graphs : 0;
	int rc = work(o, e); /* the next call, which warms up, can then capture */
	if (rc || (rc = bench_time(o->bench, work, o, &s, e)))
		return rc;
	o->backend->ops->segments_drop(o->backend);
	bool cpu = !o->backend->ops->async; /* the limits were measured there */
	double calls = calls_at_once(o);
	if (o->prompt) {
		bench_add(o->bench, "ops", "TFLOP/s", bench_rate(s, 2 * o->macs * calls * 1e-12),
			o->bench->device_flop_s * 1e-12, "product of halves", "prompt %s %s, %d rows", o->name,
			detail, o->rows);
		return 0;
	}
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
	o.x = bench_pool_floats(&p, o.copy_bytes / sizeof(float));
	o.y = bench_pool_get(&p, MEM_DEVICE, o.copy_bytes);
	int rc = p.code;
	if (rc)
		*e = p.err;
	else
		rc = bench_time(b, work, &o, &s, e);
	if (!rc) {
		struct bench_spread rate = bench_rate(s, 2.0 * (double)o.copy_bytes * DEVICE_CALLS * 1e-9);
		b->device_bytes_s = rate.median * 1e9;
		bench_add(b, "ops", "GB/s", rate, 0, NULL, "copy on the card, arrays of %zu MiB",
			o.copy_bytes >> 20);
	}
	bench_pool_release(&p);
	return rc;
}

struct op_entry {
	bench_op_fn *run;
	const char *op, *name; /* op: what --only matches besides the shape */
	enum dtype type;
	bool few; /* a card also takes a few rows at once: drafts, several users */
};

#define MATMUL(name, type)                                                                         \
	{                                                                                              \
		bench_op_matmul, "matmul", name, type, true                                                \
	}
#define EXPERTS(type)                                                                              \
	{                                                                                              \
		bench_op_experts, "expert_ffn", "expert_ffn", type, true                                   \
	}
#define LIMB_EXPERTS(type)                                                                         \
	{                                                                                              \
		bench_op_limb_experts, "limb_expert_ffn", "limb_expert_ffn", type, true                    \
	}
static const struct op_entry entries[] = {
	{bench_op_small, "embed", "embed", DTYPE_F32, false},
	{bench_op_small, "rms_norm", "rms_norm", DTYPE_F32, false},
	MATMUL("q_a", DTYPE_F32),
	MATMUL("q_a", DTYPE_F16),
	MATMUL("q_a", DTYPE_BF16),
	MATMUL("q_a", DTYPE_Q8_0),
	MATMUL("q_a", DTYPE_Q4_0),
	MATMUL("q_a", DTYPE_Q2_K),
	MATMUL("q_a", DTYPE_Q3_K),
	MATMUL("q_a", DTYPE_Q4_K),
	MATMUL("q_a", DTYPE_Q5_K),
	MATMUL("q_a", DTYPE_Q6_K),
	MATMUL("q_a", DTYPE_IQ2_XXS),
	MATMUL("q_b", DTYPE_Q8_0),
	MATMUL("o", DTYPE_Q8_0),
	MATMUL("kv_a", DTYPE_Q8_0),
	MATMUL("q_b", DTYPE_Q4_K),
	MATMUL("o", DTYPE_Q4_K),
	MATMUL("head", DTYPE_Q4_K),
	MATMUL("router", DTYPE_F32),
	MATMUL("head", DTYPE_Q8_0),
	{bench_op_stacked, "stacked_matmul", "k_b", DTYPE_Q8_0, true},
	{bench_op_stacked, "stacked_matmul", "v_b", DTYPE_Q8_0, true},
	{bench_op_small, "swiglu", "swiglu", DTYPE_F32, false},
	{bench_op_rope, "rope", "rope", DTYPE_F32, false},
	{bench_op_latents, "latents", "latents", DTYPE_Q8_0, true},
	{bench_op_latents, "latents", "latents", DTYPE_Q4_K, true},
	{bench_op_ffn, "ffn", "shared", DTYPE_Q8_0, true},
	{bench_op_ffn, "ffn", "shared", DTYPE_Q4_K, true},
	{bench_op_ffn, "ffn", "dense", DTYPE_Q8_0, true},
	{bench_op_index_select, "index_select", "index_select", DTYPE_F16, false},
	{bench_op_index_select, "index_select", "long", DTYPE_F16, false},
	{bench_op_fetch_rows, "fetch_rows", "fetch_rows", DTYPE_F16, false},
	{bench_op_fetch_rows, "fetch_rows", "fetch_rows", DTYPE_F8_E4M3, false},
	{bench_op_attend, "attend", "attend", DTYPE_F16, true},
	{bench_op_mla, "mla", "mla", DTYPE_F16, true},
	{bench_op_mla, "mla", "short", DTYPE_F16, true},
	{bench_op_small, "choice", "choice", DTYPE_F32, false},
	{bench_op_routers, "route", "routers", DTYPE_F32, true},
	EXPERTS(DTYPE_IQ2_XXS),
	EXPERTS(DTYPE_Q2_K),
	EXPERTS(DTYPE_Q4_K),
	EXPERTS(DTYPE_Q8_0),
	LIMB_EXPERTS(DTYPE_IQ2_XXS),
	LIMB_EXPERTS(DTYPE_IQ2_XS),
	LIMB_EXPERTS(DTYPE_Q2_K),
	LIMB_EXPERTS(DTYPE_Q3_K),
	LIMB_EXPERTS(DTYPE_Q4_K),
	LIMB_EXPERTS(DTYPE_Q6_K),
	LIMB_EXPERTS(DTYPE_Q8_0),
	{bench_op_small, "moe_combine", "moe_combine", DTYPE_F32, false},
};

/* What a prompt computes on a card, at the shapes of GLM-5.2. */
struct prompt_entry {
	bench_op_fn *run;
	const char *op, *name;
	enum dtype type;
	int context; /* positions; 0: the op has none */
};

static const struct prompt_entry prompt_entries[] = {
	{bench_op_matmul, "matmul", "q_a", DTYPE_Q8_0, 0},
	{bench_op_matmul, "matmul", "q_b", DTYPE_Q8_0, 0},
	{bench_op_matmul, "matmul", "o", DTYPE_Q8_0, 0},
	{bench_op_matmul, "matmul", "kv_a", DTYPE_Q8_0, 0},
	{bench_op_stacked, "stacked_matmul", "k_b", DTYPE_Q8_0, 0},
	{bench_op_stacked, "stacked_matmul", "v_b", DTYPE_Q8_0, 0},
	{bench_op_ffn, "ffn", "shared", DTYPE_Q8_0, 0},
	{bench_op_ffn, "ffn", "dense", DTYPE_Q8_0, 0},
	{bench_op_matmul, "matmul", "head", DTYPE_Q8_0, 0},
	{bench_op_experts, "expert_ffn", "expert_ffn", DTYPE_IQ2_XXS, 0},
	{bench_op_experts, "expert_ffn", "expert_ffn", DTYPE_Q2_K, 0},
	{bench_op_index_select, "index_select", "index_select", DTYPE_F16, 8192},
	{bench_op_index_select, "index_select", "index_select", DTYPE_F16, 32768},
	{bench_op_index_select, "index_select", "index_select", DTYPE_F16, 131072},
	{bench_op_attend, "attend", "attend", DTYPE_F16, 8192},
	{bench_op_attend, "attend", "attend", DTYPE_F16, 32768},
	{bench_op_attend, "attend", "attend", DTYPE_F16, 131072},
};
static const int prompt_rows[] = {1024, 8192};

/* Measures an op with one row and with BENCH_CHUNK_ROWS, and if x->few, on a card, with the powers
 * of two between them. */
static int run_entry(struct bench *b, struct backend *backend, const struct bench_shape *shape,
	const struct op_entry *x, struct err *e)
{
	/* a chunk through the head is never computed: only last rows are */
	const bool limbs = x->run == bench_op_limb_experts;
	const int most = !strcmp(x->name, "head") ? 1 : limbs ? 8 : BENCH_CHUNK_ROWS;
	const bool few = x->few && (backend->ops->async || limbs);
	for (int rows = 1; rows <= most; rows *= few ? 2 : BENCH_CHUNK_ROWS) {
		struct bench_pool pool = {.backend = backend};
		struct bench_op o = {.bench = b,
			.backend = backend,
			.pool = &pool,
			.shape = shape,
			.rows = rows,
			.context = shape->context};
		int rc = x->run(&o, x->name, x->type, e);
		bench_pool_release(&pool);
		if (rc)
			return err_prefix(e, "%d rows", rows) ? e->code : rc;
	}
	return 0;
}

static int run_prompt_entry(struct bench *b, struct backend *backend,
	const struct bench_shape *shape, const struct prompt_entry *x, struct err *e)
{
	for (size_t i = 0; i < ARRAY_LEN(prompt_rows); i++) {
		struct bench_pool pool = {.backend = backend};
		struct bench_op o = {.bench = b,
			.backend = backend,
			.pool = &pool,
			.shape = shape,
			.rows = prompt_rows[i],
			.prompt = true,
			.context = x->context};
		if (x->context) /* the last rows of a context; each has top_k positions to select */
			o.context = MAX(x->context, o.rows + shape->top_k);
		int rc = x->run(&o, x->name, x->type, e);
		bench_pool_release(&pool);
		if (rc)
			return err_prefix(e, "%d rows", o.rows) ? e->code : rc;
	}
	return 0;
}

/* Measures prompt_entries on a card. Their limit is the rate of one large product of F16. */
static int bench_prompt_ops(
	struct bench *b, struct backend *backend, const char *only, bool *any, struct err *e)
{
	const struct bench_shape *shape = &shapes[ARRAY_LEN(shapes) - 1];
	int rc = 0;
	for (size_t i = 0; i < ARRAY_LEN(prompt_entries) && !rc; i++) {
		const struct prompt_entry *x = &prompt_entries[i];
		char label[96];
		snprintf(label, sizeof label, "%s prompt %s %s %s", shape->name, x->op, x->name,
			dtype_name(x->type));
		if (only && !strstr(label, only))
			continue;
		*any = true;
		if (!b->device_flop_s && (b->device_flop_s = backend_library_flops(backend)) > 0)
			bench_add_value(b, "ops", "TFLOP/s", b->device_flop_s * 1e-12,
				"product of halves by cublasLt, 8192 x 8192 x 8192");
		rc = run_prompt_entry(b, backend, shape, x, e);
		if (rc)
			err_prefix(e, "%s", label);
	}
	return rc;
}

int bench_ops(struct bench *b, struct backend *backend, const char *only, struct err *e)
{
	bool any = false;
	int rc = strcmp(backend->ops->name, "cpu") ? measure_device_copy(b, backend, e) : 0;
	for (size_t s = 0; s < ARRAY_LEN(shapes); s++)
		for (size_t i = 0; i < ARRAY_LEN(entries) && !rc; i++) {
			char label[96];
			snprintf(label, sizeof label, "%s %s %s %s", shapes[s].name, entries[i].op,
				entries[i].name, dtype_name(entries[i].type));
			if (only && !strstr(label, only))
				continue;
			any = true;
			rc = run_entry(b, backend, &shapes[s], &entries[i], e);
			if (rc)
				err_prefix(e, "%s", label);
		}
	if (!rc && backend->ops->async)
		rc = bench_prompt_ops(b, backend, only, &any, e);
	if (!rc && !any)
		rc = err_set(e, ERR_USAGE, "--only: no op is called \"%.60s\"", only);
	return rc;
}
