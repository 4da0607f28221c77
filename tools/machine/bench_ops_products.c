/* SPDX-License-Identifier: MIT */
/* `bench ops`: products, networks, routers, experts, and the small ops between them. */
#include "tools/machine/bench_ops.h"

#include "kernels/cpu/limbs/limb_experts.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/quant/quantize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the calls ---- */

static void call_embed(struct bench_op *o, int copy)
{
	o->backend->ops->embed(o->backend, bench_op_weight(o, 0, copy), o->ids, o->rows, o->y);
}

static void call_rms_norm(struct bench_op *o, int copy)
{
	(void)copy;
	int n = o->shape->n_embd;
	o->backend->ops->rms_norm(
		o->backend, o->x, n, &(struct norm){o->z, o->y}, 1, 1e-5f, o->rows, n, n);
}

static void call_matmul(struct bench_op *o, int copy)
{
	struct matmul part = {.w = bench_op_weight(o, 0, copy), .y = o->y};
	o->backend->ops->matmul(o->backend, &part, 1, o->x, o->rows);
}

static void call_stacked(struct bench_op *o, int copy)
{
	struct stacked_matmul a = {.w = bench_op_weight(o, 0, copy),
		.x = o->x,
		.x_stride = o->w[0].n_in,
		.y = o->y,
		.y_stride = o->w[0].n_out};
	o->backend->ops->stacked_matmul(o->backend, &a, o->rows);
}

static void call_swiglu(struct bench_op *o, int copy)
{
	(void)copy;
	o->backend->ops->swiglu(o->backend, o->x, o->z, (int64_t)o->rows * o->shape->ff_dense, o->y);
}

static void call_ffn(struct bench_op *o, int copy)
{
	size_t n = (size_t)o->rows * (size_t)o->w[0].n_out;
	struct ffn a = {.gate = bench_op_weight(o, 0, copy),
		.up = bench_op_weight(o, 1, copy),
		.down = bench_op_weight(o, 2, copy),
		.x = o->x,
		.y = o->y,
		.hidden = o->z,
		.scratch = o->z + n};
	o->backend->ops->ffn(o->backend, &a, o->rows);
}

static struct route router(const struct bench_shape *s, const float *bias)
{
	return (struct route){.n_experts = s->n_experts,
		.n_used = s->n_used,
		.n_group = 1,
		.n_group_used = 1,
		.normalise = true,
		.scale = 2.5f,
		.bias = bias};
}

/* The choice alone */
static void call_choice(struct bench_op *o, int copy)
{
	(void)copy;
	struct route a = router(o->shape, o->z);
	a.logits = o->x;
	a.expert_ids = o->expert_ids;
	a.weights = o->y;
	o->backend->ops->route(o->backend, &a, 1, o->rows);
}

static void call_routers(struct bench_op *o, int copy)
{
	const struct bench_shape *s = o->shape;
	size_t rows = (size_t)o->rows, embd = (size_t)s->n_embd, experts = (size_t)s->n_experts;
	struct route a[2];
	for (int i = 0; i < 2; i++) {
		float *h = o->y + (size_t)i * rows * (embd + experts);
		a[i] = router(s, o->z + embd);
		a[i].x = o->x;
		a[i].gain = o->z;
		a[i].eps = 1e-5f;
		a[i].w = bench_op_weight(o, i, copy);
		a[i].h = h;
		a[i].logits = h + rows * embd;
		a[i].expert_ids = o->expert_ids + (size_t)i * rows * (size_t)s->n_used;
	}
	a[0].weights = o->y + 2 * rows * (embd + experts);
	o->backend->ops->route(o->backend, a, 2, o->rows);
}

typedef void expert_ffn_fn(struct backend *b, const float *x, const struct expert_job *jobs,
	int n_jobs, int rows, int n_used, float *out);

/* Decode: n_used experts with one (token, rank) slot each. Prefill: every expert with its share.
 * limb_expert_ffn: n_used experts with one slot of every row. */
static void call_experts(struct bench_op *o, int copy, expert_ffn_fn *expert_ffn)
{
	const struct bench_shape *s = o->shape;
	int n_slots = o->rows * s->n_used, n_jobs = o->n_jobs, done = 0;
	struct expert_job *jobs = NEW_ARRAY(struct expert_job, n_jobs);
	for (int i = 0; i < n_jobs; i++) {
		int slot = (copy * n_jobs + i) % o->copies; /* expert slots rotate */
		int n = (n_slots - done) / (n_jobs - i);
		jobs[i] = (struct expert_job){.gate = bench_op_weight(o, 0, slot),
			.up = bench_op_weight(o, 1, slot),
			.down = bench_op_weight(o, 2, slot),
			.token_slots = o->token_slots + done,
			.n_token_slots = n};
		done += n;
	}
	expert_ffn(o->backend, o->x, jobs, n_jobs, o->rows, s->n_used, o->y);
	free(jobs);
}

static void call_expert_ffn(struct bench_op *o, int copy)
{
	call_experts(o, copy, o->backend->ops->expert_ffn);
}

static void call_limb_expert_ffn(struct bench_op *o, int copy)
{
	call_experts(o, copy, limb_expert_ffn);
}

static void call_moe_combine(struct bench_op *o, int copy)
{
	(void)copy;
	const struct bench_shape *s = o->shape;
	o->backend->ops->moe_combine(o->backend, o->x, o->z, s->n_used, o->y, o->rows, s->n_embd, o->y,
		&(struct norm){o->x, o->x}, 1e-5f);
}

/* ---- their operands ---- */

int bench_op_matmul(struct bench_op *o, const char *name, enum dtype type, struct err *e)
{
	const struct bench_shape *s = o->shape;
	const size_t rows = (size_t)o->rows;
	int n_in = s->n_embd, n_out = s->n_vocab; /* head */
	uint64_t row_bytes;
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
	if (!quantize_supported(type) || !dtype_row_bytes(type, (uint64_t)n_in, &row_bytes))
		return 0;
	const double weight = (double)row_bytes * n_out;
	o->copies = bench_op_copies(weight);
	bench_op_add_weight(o, 0, type, n_in, n_out, 1);
	o->x = bench_pool_floats(o->pool, rows * (size_t)n_in);
	o->y = bench_pool_floats(o->pool, rows * (size_t)n_out);
	o->bytes = weight + 4.0 * o->rows * ((double)n_in + (double)n_out);
	o->macs = (double)o->rows * n_in * n_out;
	o->call = call_matmul;
	o->name = "matmul";
	char detail[64];
	snprintf(detail, sizeof detail, "%s %s %d>%d", name, dtype_name(type), n_in, n_out);
	return bench_op_measure(o, e, detail);
}

/* k_b makes latents of keys, v_b values of latents. */
int bench_op_stacked(struct bench_op *o, const char *name, enum dtype type, struct err *e)
{
	const struct bench_shape *s = o->shape;
	const bool keys = !strcmp(name, "k_b");
	const int n_in = keys ? s->nope : s->kv_rank, n_out = keys ? s->kv_rank : s->value;
	const size_t vectors = (size_t)o->rows * (size_t)s->heads;
	uint64_t row_bytes;
	if (!dtype_row_bytes(type, (uint64_t)n_in, &row_bytes))
		return 0;
	const double weight = (double)row_bytes * n_out * s->heads;
	o->copies = bench_op_copies(weight);
	bench_op_add_weight(o, 0, type, n_in, n_out, s->heads);
	o->x = bench_pool_floats(o->pool, vectors * (size_t)n_in);
	o->y = bench_pool_floats(o->pool, vectors * (size_t)n_out);
	o->bytes = weight + 4.0 * (double)vectors * (n_in + n_out);
	o->macs = (double)vectors * n_in * n_out;
	o->call = call_stacked;
	o->name = "stacked_matmul";
	char detail[64];
	snprintf(
		detail, sizeof detail, "%s %s %dx %d>%d", name, dtype_name(type), s->heads, n_in, n_out);
	return bench_op_measure(o, e, detail);
}

int bench_op_ffn(struct bench_op *o, const char *name, enum dtype type, struct err *e)
{
	const struct bench_shape *s = o->shape;
	const int n = s->n_embd, n_ff = strcmp(name, "dense") ? s->ff_expert : s->ff_dense;
	const size_t rows = (size_t)o->rows;
	const double weights =
		bench_op_weights(o, type, (const int[]){n, n, n_ff}, (const int[]){n_ff, n_ff, n});
	o->x = bench_pool_floats(o->pool, rows * (size_t)n);
	o->y = bench_pool_floats(o->pool, rows * (size_t)n);
	o->z = bench_pool_floats(o->pool, 2 * rows * (size_t)n_ff);
	o->bytes = weights + 8.0 * o->rows * (n + n_ff);
	o->call = call_ffn;
	o->name = "ffn";
	char detail[64];
	snprintf(detail, sizeof detail, "%s %s %d>%d>%d", name, dtype_name(type), n, n_ff, n);
	return bench_op_measure(o, e, detail);
}

int bench_op_routers(struct bench_op *o, const char *name, enum dtype type, struct err *e)
{
	(void)name;
	const struct bench_shape *s = o->shape;
	const size_t rows = (size_t)o->rows, embd = (size_t)s->n_embd, experts = (size_t)s->n_experts,
				 used = (size_t)s->n_used;
	const double weights = 2 * 4.0 * (double)(embd * experts);
	o->copies = bench_op_copies(weights);
	for (int i = 0; i < 2; i++)
		bench_op_add_weight(o, i, type, s->n_embd, s->n_experts, 1);
	o->x = bench_pool_floats(o->pool, rows * embd);
	o->z = bench_pool_floats(o->pool, embd + experts);
	o->y = bench_pool_floats(o->pool, 2 * rows * (embd + experts) + rows * used);
	o->expert_ids = bench_pool_get(o->pool, MEM_SHARED, 2 * rows * used * sizeof(uint64_t));
	o->bytes = weights + 8.0 * (double)(rows * embd);
	o->macs = 2.0 * (double)(rows * embd * experts);
	o->call = call_routers;
	o->name = "route";
	return bench_op_measure(o, e, "two routers with their norm");
}

static int measure_experts(struct bench_op *o, const char *name, enum dtype type, struct err *e)
{
	const struct bench_shape *s = o->shape;
	const int n_slots = o->rows * s->n_used;
	uint64_t in_bytes, out_bytes;
	if (!dtype_row_bytes(type, (uint64_t)s->n_embd, &in_bytes) ||
		!dtype_row_bytes(type, (uint64_t)s->ff_expert, &out_bytes))
		return 0;
	const double expert = 2.0 * (double)in_bytes * s->ff_expert + (double)out_bytes * s->n_embd;
	o->copies =
		o->backend->ops->async ? bench_op_copies(expert) : bench_op_copies_in_memory(expert);
	o->copies = MIN(MAX(o->copies, s->n_used), s->n_experts);
	bench_op_add_weight(o, 0, type, s->n_embd, s->ff_expert, 1);
	bench_op_add_weight(o, 1, type, s->n_embd, s->ff_expert, 1);
	bench_op_add_weight(o, 2, type, s->ff_expert, s->n_embd, 1);
	o->x = bench_pool_floats(o->pool, (size_t)o->rows * (size_t)s->n_embd);
	o->y = bench_pool_floats(o->pool, (size_t)n_slots * (size_t)s->n_embd);
	/* slot row * n_used + rank, so that the slots of one job belong to different rows */
	o->token_slots = NEW_ARRAY(int32_t, n_slots);
	for (int i = 0; i < n_slots; i++)
		o->token_slots[i] = i % o->rows * s->n_used + i / o->rows;
	o->bytes = expert * o->n_jobs + 4.0 * (o->rows + n_slots) * s->n_embd;
	if (o->call == call_expert_ffn) /* limbs are held to the memory for any number of rows */
		o->macs = 3.0 * n_slots * s->n_embd * (double)s->ff_expert;
	o->alone = true;
	o->name = name;
	char detail[64];
	snprintf(detail, sizeof detail, "%s, %d experts", dtype_name(type), o->n_jobs);
	int rc = bench_op_measure(o, e, detail);
	free(o->token_slots);
	o->token_slots = NULL;
	return rc;
}

int bench_op_experts(struct bench_op *o, const char *name, enum dtype type, struct err *e)
{
	o->call = call_expert_ffn;
	o->n_jobs = MIN(o->rows * o->shape->n_used, o->shape->n_experts);
	return measure_experts(o, name, type, e);
}

int bench_op_limb_experts(struct bench_op *o, const char *name, enum dtype type, struct err *e)
{
	o->call = call_limb_expert_ffn;
	o->n_jobs = o->shape->n_used;
	return o->backend->ops->async ? 0 : measure_experts(o, name, type, e);
}

/* Operands of simple shape. */
int bench_op_small(struct bench_op *o, const char *name, enum dtype type, struct err *e)
{
	(void)type;
	const struct bench_shape *s = o->shape;
	struct bench_pool *pool = o->pool;
	const size_t rows = (size_t)o->rows, embd = (size_t)s->n_embd, used = (size_t)s->n_used,
				 experts = (size_t)s->n_experts;
	o->name = name;
	o->copies = 1;
	if (!strcmp(name, "embed")) {
		int32_t *ids = NEW_ARRAY(int32_t, rows);
		for (size_t i = 0; i < rows; i++)
			ids[i] = (int32_t)(i * 97 % 1024);
		o->ids = bench_pool_ints(pool, ids, rows);
		free(ids);
		bench_op_add_weight(o, 0, DTYPE_Q8_0, s->n_embd, 1024, 1);
		o->y = bench_pool_floats(pool, rows * embd);
		o->bytes = (double)rows * (double)(o->w[0].row_bytes + 4 * embd);
		o->call = call_embed;
	} else if (!strcmp(name, "rms_norm")) {
		o->x = bench_pool_floats(pool, rows * embd);
		o->z = bench_pool_floats(pool, embd);
		o->y = bench_pool_floats(pool, rows * embd);
		o->bytes = 8.0 * (double)(rows * embd);
		o->call = call_rms_norm;
	} else if (!strcmp(name, "swiglu")) {
		size_t n = rows * (size_t)s->ff_dense;
		o->x = bench_pool_floats(pool, n);
		o->z = bench_pool_floats(pool, n);
		o->y = bench_pool_floats(pool, n);
		o->bytes = 12.0 * (double)n;
		o->call = call_swiglu;
	} else if (!strcmp(name, "choice")) {
		o->x = bench_pool_floats(pool, rows * experts);
		o->z = bench_pool_floats(pool, experts);
		o->y = bench_pool_floats(pool, rows * used);
		o->expert_ids = bench_pool_get(pool, MEM_SHARED, rows * used * sizeof(uint64_t));
		o->bytes = 4.0 * (double)(rows * experts);
		o->call = call_choice;
	} else {
		o->x = bench_pool_floats(pool, rows * used * embd);
		o->z = bench_pool_floats(pool, rows * used);
		o->y = bench_pool_floats(pool, rows * embd);
		o->bytes = 4.0 * (double)(rows * embd) * (double)(used + 3);
		o->call = call_moe_combine;
	}
	return bench_op_measure(o, e, "");
}
