/* SPDX-License-Identifier: MIT */
/* An op under `bench ops`: its shapes, its operands, how it is timed. */
#ifndef GLM_TOOLS_BENCH_OPS_H
#define GLM_TOOLS_BENCH_OPS_H

#include "tools/bench/bench.h"
#include "tools/machine/bench_pool.h"

#include "kernels/backend.h"

/* On the CPU: rows of a chunk of a prompt; a step of decode has fewer. On a card: most rows of a
 * step of decode; prompts have entries of their own (bench_op.prompt). */
#define BENCH_CHUNK_ROWS 64

/* The widths that decide the cost of an op; names as in model_config. */
struct bench_shape {
	const char *name;
	int n_embd, q_rank, kv_rank, heads, nope, rope, value, index_heads, index_dim, top_k, ff_dense,
		n_experts, n_used, ff_expert, n_vocab, context;
};

/* One op under test. */
struct bench_op {
	struct bench *bench;
	struct backend *backend;
	struct bench_pool *pool; /* of its operands */
	const struct bench_shape *shape;
	int rows;
	int context;        /* positions of a sequence; the shape's, or more */
	double bytes, macs; /* what one call has to move and to multiply, at least */
	void (*call)(struct bench_op *o, int copy);
	bool alone;       /* its calls are not captured in a graph: experts, prompts */
	bool prompt;      /* rows of a prompt on a card; its limit is bench.device_flop_s */
	const char *name; /* "matmul" */
	int copies, next;
	/* operands, whichever the op uses */
	struct weight w[3]; /* of copy 0; copy i lies i * stride further */
	size_t stride[3];
	float *x, *y, *z; /* device */
	int32_t *ids, *pos, *base, *sel, *n_sel;
	uint64_t *expert_ids;
	struct cache_view cache, host_cache;
	size_t cache_stride;
	struct rope rope;
	struct batch batch;
	int32_t *token_slots; /* host */
	int n_jobs;           /* experts of a call */
	size_t copy_bytes;    /* of a copy on the card */
	uint64_t graph;       /* key of the calls that are measured; 0: they are enqueued one by one */
};

/* Weights part of one copy. */
struct weight bench_op_weight(const struct bench_op *o, int part, int copy);

/* The cache of one copy. */
struct cache_view bench_op_cache(const struct bench_op *o, int copy);

/* How many copies of so many bytes are more than the caches hold. */
int bench_op_copies(double bytes);

/* The same, but at least twice the last-level cache, as far as a quarter of the free memory goes:
 * for ops that are held to the bandwidth of the memory. */
int bench_op_copies_in_memory(double bytes);

/* Puts a weight of so many copies into o->w[part]. */
void bench_op_add_weight(
	struct bench_op *o, int part, enum dtype type, int n_in, int n_out, int n_stack);

/* Three weights of one op, so many copies that they have left the caches. Returns the bytes of one
 * copy of all and adds their multiply-adds. */
double bench_op_weights(struct bench_op *o, enum dtype type, const int n_in[3], const int n_out[3]);

/* Times o->call and adds its line; detail names what else matters (type, widths). 0, or the failure
 * of the pool or of the backend. */
int bench_op_measure(struct bench_op *o, struct err *e, const char *detail);

/* ---- the ops: make operands, then measure. `name` tells variants apart. ---- */
typedef int bench_op_fn(struct bench_op *o, const char *name, enum dtype type, struct err *e);

/* bench_ops_products.c */
bench_op_fn bench_op_small; /* embed, rms_norm, swiglu, choice, moe_combine */
bench_op_fn bench_op_matmul, bench_op_stacked, bench_op_ffn, bench_op_experts;
bench_op_fn bench_op_limb_experts; /* on the processor with the card's bits; CPU backend only */
bench_op_fn bench_op_routers;      /* norm, gemv, choice: a layer's own and the predicted one */

/* bench_ops_attention.c */
bench_op_fn bench_op_rope, bench_op_latents, bench_op_index_select, bench_op_attend;
bench_op_fn bench_op_fetch_rows;
bench_op_fn bench_op_mla; /* with the output matrix */

#endif
