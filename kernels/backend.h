/* SPDX-License-Identifier: MIT */
/*
 * The ops table: everything the model computes, and the memory it computes in. With copier.h the
 * only header of kernels/ that other modules include. kernels/cpu is the specification;
 * kernels/cuda is proven against it, op by op.
 *
 * Rules that hold for every op:
 * - Ops are enqueued in order and may return before they have run; `wait` waits for all of them.
 * Pointers are device pointers unless said otherwise (on the CPU backend every kind of memory is
 * ordinary memory).
 * - A compute op returns nothing. The first failure is kept in the backend, later ops do nothing,
 * and `wait` and `download` report it. So the forward pass reads as a list of stages.
 * - Every row is computed independently, in an order that does not depend on how many rows there
 * are: a row's numbers are bit-identical in a batch of 1 and in a batch of 512. A backend may have
 * one way for few rows (decode) and another for many (prefill), whose numbers differ in the last
 * bits; the rule then holds within each. CUDA's few are at most 16 rows; the CPU has one way.
 * Nothing else matters: the same steps give the same bits.
 * - Activations are float32, rows are contiguous unless a stride is given. Views never own memory.
 * - Sizes and ids have been checked by the caller; ops do not validate, except where they say so.
 */
#ifndef GLM_KERNELS_BACKEND_H
#define GLM_KERNELS_BACKEND_H

#include "src/base/err.h"
#include "src/quant/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct backend;
struct copier;

/* ---- views
 * ---------------------------------------------------------------------------------------------- */

/* A matrix, or a stack of them (heads, experts): n_stack x [n_out rows] x [n_in values of `type`],
 * packed blocks. */
struct weight {
	const void *data; /* device memory; NULL: absent */
	enum dtype type;
	int64_t n_in;
	int64_t n_out;
	int64_t n_stack;
	size_t row_bytes;   /* of one row of n_in values */
	size_t stack_bytes; /* of one matrix: n_out * row_bytes */
};

/* The rows of one step. Row r is the token at position pos[r] of its sequence, whose cache begins
 * at row base[r] of every cache: position t of that sequence is cache row base[r] + t. Rows of
 * several sequences may be mixed. */
struct batch {
	int n;
	const int32_t *pos;  /* [n] */
	const int32_t *base; /* [n] */
	int32_t max_pos;     /* the largest of pos, known to the host (sizes grids and scratch) */
};

/* One cache of one layer: [capacity][width] values of F32 or F16 (conversion rounds to nearest
 * even). */
struct cache_view {
	void *data;
	enum dtype type;
	int width;
};

/* Rotary angles of the rows of one step: [n][dim/2] pairs (cos, sin), made by rope_angles. */
struct rope {
	const float *cos_sin;
	int dim;
};

/* ---- arguments of the larger ops
 * ------------------------------------------------------------------------ */

/* One norm of a group that shares its input: out[r] = gain * x[r] / sqrt(mean(x[r]^2) + eps). */
struct norm {
	const float *gain; /* a weight: never written by an op */
	float *out;        /* a row may be the row of x that it is made from if it is the only norm */
};

/* One product of a group: y[r] = w x[r], or y[r] += w x[r]. */
struct matmul {
	struct weight w; /* n_stack 1 */
	float *y;        /* [rows][w.n_out] */
	bool add;
	const float *x; /* [rows][w.n_in]; NULL: the input that the group shares */
};

/* Per-head products: y[r][s] = w_s x[r][s] for every matrix s of the stack. */
struct stacked_matmul {
	struct weight w;
	const float *x; /* [rows][n_stack][x_stride], the first n_in values of each are used */
	int64_t x_stride;
	float *y; /* [rows][n_stack][y_stride], the first n_out values of each are written */
	int64_t y_stride;
};

/* A gated network: y[r] = down (silu(gate x[r]) * (up x[r])), or y[r] += that. */
struct ffn {
	struct weight gate, up, down; /* gate and up are of one shape */
	const float *x;               /* [rows][gate.n_in] */
	float *y;                     /* [rows][down.n_out] */
	bool add;
	float *hidden, *spare; /* [rows][gate.n_out], for the op's own use */
};

/* What a step leaves behind of its tokens, with the products that make it and those of the query;
 * each part may be absent (its first pointer NULL). */
struct latents {
	/* First: products of one input x, of which some make q, kv and key. */
	const struct matmul *in;
	int n_in;
	const float *x;
	/* [rows][n_q] -> rms_norm(q, q_gain, eps), in place */
	float *q;
	const float *q_gain;
	int n_q;
	/* [rows][n_kv + rope.dim] -> row of kv_cache: (rms_norm(kv[0 .. n_kv), kv_gain, eps),
	 * rope(rest)) */
	const float *kv;
	const float *kv_gain;
	int n_kv;
	float eps;
	struct cache_view kv_cache;
	/* [rows][width] -> row of key_cache: layer norm (mean and variance, gain, bias, key_eps), then
	 * rope on the first rope.dim values */
	const float *key;
	const float *key_gain, *key_bias;
	float key_eps;
	struct cache_view key_cache;
	/* Last: products of the normed q, and then q itself is not defined. They write none of the
	 * above. */
	const struct matmul *out;
	int n_out;
};

/* DSA lightning indexer: score(r, t) = sum_j weight[r][j] * n_heads^-1/2 * max(0, q[r][j] . key[t]
 * * head_dim^-1/2) for t <= pos[r]; the min(top_k, pos + 1) best positions, higher score first,
 * then the lower position (specification section 2.5). While max_pos < top_k all are chosen, and q,
 * weight and keys are not read. */
struct index_select {
	int n_heads;
	int head_dim;
	int top_k;
	const float *q;         /* [rows][n_heads][head_dim], rope applied */
	const float *weight;    /* [rows][n_heads], as weights_proj gives it */
	struct cache_view keys; /* width head_dim */
	int32_t *sel;           /* out [rows][top_k]: the chosen positions, ascending */
	int32_t *n_sel;         /* out [rows] */
};

/* Absorbed MLA over the chosen positions: s[h][t] = scale * q[r][h] . cache[t], p = softmax over t
 * in sel, out[r][h] = sum_t p[t] * cache[t][0 .. n_value). */
struct attend {
	int n_heads;
	int n_value; /* the leading part of a cache row that is the value (512); the row is the key
					(576) */
	float scale;
	float *q; /* [rows][n_heads][cache.width] */
	/* Where the rest of a query behind n_value comes from, to be rotated: [rows][n_heads],
	 * rotate_stride floats apart, in place of what stands in q, which may be overwritten. NULL: it
	 * stands in q as it is wanted. */
	const float *rotate;
	int64_t rotate_stride;
	struct rope rope;
	struct cache_view cache;
	const int32_t *sel;   /* [rows][sel_stride], ascending */
	const int32_t *n_sel; /* [rows], >= 1 */
	int sel_stride;
	float *out; /* [rows][n_heads][n_value] */
};

/* What becomes of the queries of a layer, from their projection to what the heads put out: absorb,
 * attend and expand, one after the other. attend.q, where absorb.y lies, and attend.out, where
 * expand.x lies, are the op's own: what it leaves there is undefined. */
struct mla {
	struct stacked_matmul absorb;
	struct attend attend;
	struct stacked_matmul expand;
	/* Last: a product of what expand has written, all heads of a row one after the other, and then
	 * expand.y is the op's own too. NULL: none. */
	const struct matmul *out;
};

/* Router. First, unless x is NULL, what it chooses by: h = rms_norm(x, gain, eps), logits = w h.
 * Then s = sigmoid(logits); the n_used largest of s + bias (ties: lower id), in that order; weights
 * s / (sum of chosen s + 1e-20) * scale when normalise, else s * scale (specification section 2.7).
 * Groups: when n_group > 1, only experts of the n_group_used groups with the largest sum of their
 * two best s + bias. Of a call all routers have the same x and eps; h is an output of the first
 * one, of the others it is the op's own. */
struct route {
	int n_experts;
	int n_used;
	int n_group;
	int n_group_used;
	bool normalise;
	float scale;
	const float *x;    /* [rows][w.n_in]; NULL: the logits are there */
	const float *gain; /* [w.n_in] */
	float eps;
	struct weight w;      /* n_experts rows; n_stack 1 */
	float *h;             /* [rows][w.n_in] */
	float *logits;        /* [rows][n_experts]; with x they are the op's own: undefined behind it */
	const float *bias;    /* [n_experts] */
	uint64_t *expert_ids; /* out [rows][n_used], MEM_SHARED: ids, see wait_expert_ids */
	float *weights;       /* out [rows][n_used]; NULL: not wanted */
};

/* One expert and the places it computes: out[place] = down (silu(gate x) * up x) with x of row
 * place / n_used. */
struct expert_job {
	struct weight gate, up, down; /* n_stack 1, device memory that stays valid until it has run */
	const int32_t
		*token_slots; /* host memory, copied by the call: [n_token_slots] of row * n_used + rank */
	int n_token_slots;
};

/* What a stretch of ops is, and so what an idle device was waiting for. */
enum usage_kind {
	USAGE_EXPERTS, /* a call of expert_ffn, or what a deferred kernel computes */
	USAGE_GRAPH,   /* a replayed graph, or what it has before, between or behind deferred kernels */
	USAGE_OTHER,   /* other ops: the end of a step, and the time between two steps */
	USAGE_KINDS
};

/* What a backend has done since it was opened; differences of two readings are what a stretch of
 * work took. */
struct backend_usage {
	uint64_t launches;        /* kernels and copies enqueued, those of replayed graphs included */
	uint64_t graph_launches;  /* graphs replayed */
	uint64_t graphs_captured; /* graphs recorded ... */
	uint64_t capture_ns;      /* ... and the host time that took */
	/* Only while measuring (see `measure`): how many stretches there were, the time they took and
	 * that before them in which the device had nothing to do. Experts of a graph (experts_deferred)
	 * are a stretch of their own: it begins when the host has said what to compute, and the device
	 * has waited for that since the op before made room. */
	uint64_t n_intervals[USAGE_KINDS], busy_ns[USAGE_KINDS], idle_ns[USAGE_KINDS];
	double
		event_gap_ns; /* what idle_ns counts between two stretches that follow each other at once */
};

#define NORMS_MAX  17
#define ROUTES_MAX NORMS_MAX

#define DEFERRED_ALIGN 16 /* see experts_deferred */

/* ---- the table
 * ------------------------------------------------------------------------------------------ */

enum mem_kind {
	MEM_DEVICE, /* where ops compute */
	MEM_SHARED, /* small, read by the host and the device (mapped pinned memory on CUDA) */
};

/* What becomes of the calls of a list that has a key */
enum segment_mode {
	SEGMENT_EAGER,    /* they run as they are made, if need be with others between them: the first
					  time,    or always */
	SEGMENT_CAPTURE,  /* the caller makes them, and then segment_end, which enqueues them */
	SEGMENT_REPLAYED, /* they have been enqueued, and the caller makes none */
};

struct backend_ops {
	const char *name;                           /* "cpu", "cuda" */
	const char *(*describe)(struct backend *b); /* see backend_describe */
	void (*close)(
		struct backend *b); /* waits, then releases everything but the memory that `alloc` gave */

	/* Memory. Page-aligned; contents undefined. alloc fails with ERR_MEMORY and says how much was
	 * asked for and is free; the caller adds what for. */
	int (*alloc)(struct backend *b, enum mem_kind kind, size_t bytes, void **out, struct err *e);
	void (*free)(struct backend *b, enum mem_kind kind, void *p,
		size_t bytes);                       /* NULL is fine; waits first */
	size_t (*free_bytes)(struct backend *b); /* device memory still to be had; 0: unknown */
	/* A new set of lanes for copies beside the ops (copier.h), closed before the backend. NULL: the
	 * host reaches all of this backend's memory. */
	int (*copier_open)(struct backend *b, struct copier **out, struct err *e);
	/* Enqueued like an op; src (host) may be reused when the call returns. */
	void (*upload)(struct backend *b, void *dst, const void *src, size_t bytes);
	void (*copy)(struct backend *b, void *dst, const void *src,
		size_t bytes); /* device to device, no overlap */
	/* Waits for all earlier ops, then copies to the host. Returns 0 or the kept failure. */
	int (*download)(struct backend *b, void *dst, const void *src, size_t bytes, struct err *e);
	int (*wait)(struct backend *b, struct err *e);

	/* Fences: how the host follows the device without draining it. `fence` enqueues a note that
	 * every op before it has run and returns its fence value, which is backend.fence_value from
	 * then on. `fence_wait` returns when the note has come: MEM_SHARED memory that those ops wrote
	 * may be read then (but for expert ids, see wait_expert_ids). It fails like `wait`, and when
	 * the device is lost or has not answered for minutes. `fence_signaled` asks without waiting.
	 * `async`: ops return before they have run (false: a fence is reached when it is made). */
	uint64_t (*fence)(struct backend *b);
	int (*fence_wait)(struct backend *b, uint64_t fence, struct err *e);
	bool (*fence_signaled)(struct backend *b, uint64_t fence);
	bool async;

	/* Graphs: a list of ops that is called again and again with the same arguments is recorded once
	 * and then enqueued as one. segment_begin says what is to become of the calls. The same key
	 * means the same calls with the same arguments, the contents of buffers excepted. While they
	 * are recorded only compute ops, `copy` and `fence` may be called. segments_drop waits and
	 * forgets all recordings: before memory that they use is freed. A backend may never record (the
	 * CPU does not). */
	enum segment_mode (*segment_begin)(struct backend *b, uint64_t key);
	void (*segment_end)(struct backend *b);
	void (*segments_drop)(struct backend *b);

	void (*usage)(struct backend *b, struct backend_usage *out);
	/* Starts or ends the timing of busy_ns and idle_ns; waits. It costs a little: two notes for
	 * each stretch of ops. */
	void (*measure)(struct backend *b, bool on);

	/* out[r] = row ids[r] of table, as float. ids: device [rows]. */
	void (*embed)(struct backend *b, struct weight table, const int32_t *ids, int rows, float *out);
	/* At most NORMS_MAX norms of the same x; strides in values between rows. */
	void (*rms_norm)(struct backend *b, const float *x, int64_t x_stride, const struct norm *norms,
		int n_norms, float eps, int rows, int n, int64_t out_stride);
	/* n_parts products, of x [rows][n_in] where a part has no input of its own; all parts have the
	 * same n_in. */
	void (*matmul)(
		struct backend *b, const struct matmul *parts, int n_parts, const float *x, int rows);
	void (*stacked_matmul)(struct backend *b, const struct stacked_matmul *a, int rows);
	void (*ffn)(struct backend *b, const struct ffn *a, int rows);
	/* out = silu(gate) * up, elementwise over n values; out may be gate or up. */
	void (*swiglu)(struct backend *b, const float *gate, const float *up, int64_t n, float *out);

	/* cos_sin[r][i] = (cos, sin)(pos[r] * inv_freq[i]): the angle is rounded to float32, its cosine
	 * and sine are accurate to float32 (specification section 2.2). */
	void (*rope_angles)(struct backend *b, const struct batch *rows, const float *inv_freq, int dim,
		float *cos_sin);
	/* Rotates interleaved pairs of rope.dim values of every head; reads at x + head * x_stride,
	 * writes at y + head * y_stride; a row is n_heads strides long. y may be x. */
	void (*rope)(struct backend *b, const struct rope *rope, const float *x, int64_t x_stride,
		float *y, int64_t y_stride, int rows, int n_heads);
	void (*latents)(struct backend *b, const struct batch *rows, const struct rope *rope,
		const struct latents *a);
	void (*index_select)(struct backend *b, const struct batch *rows, const struct index_select *a);
	void (*attend)(struct backend *b, const struct batch *rows, const struct attend *a);
	/* The same bits as the three ops. */
	void (*mla)(struct backend *b, const struct batch *rows, const struct mla *a);

	/* At most ROUTES_MAX routers of the same shape (n_experts to scale, w), and then a fence. With
	 * x: the same bits as rms_norm, matmul and a route without it. */
	void (*route)(struct backend *b, const struct route *a, int n, int rows);
	/* What the call of route whose fence has this fence value puts into its expert ids[0 .. n):
	 * waits until all have come, and then every op before that call has run. A pick says of itself
	 * that it has come: its lower half is the id, its upper half the lower half of the fence value.
	 * So a card need not wait until they are at the host before it says so. They may come behind
	 * the fence. Memory for expert ids is zero at first. Fails like fence_wait; host memory both.
	 */
	int (*wait_expert_ids)(struct backend *b, uint64_t fence, const uint64_t *expert_ids, int n,
		int32_t *ids, struct err *e);
	/* a deferred kernel: an op of a recorded list that computes what the host asks for later, by
	 * calls of expert_ffn with this x, n_used and out, of one row. The device has begun with it
	 * when the host makes the first, and goes on when all places have been named. Each has a fence
	 * of its own, the last one before it in the list; x was written, and out was read, before that.
	 * like: an expert as all of the layer are, data and places not looked at; data of those that
	 * are named are at multiples of DEFERRED_ALIGN bytes. can_defer_experts: whether there can be a
	 * deferred kernel for such experts, always the same answer. NULL: never. Where no list is
	 * recorded experts_deferred makes ready what it will need, and no more. The first op behind a
	 * deferred kernel, if there is one, is moe_combine. Ops behind it rely on it: the host makes
	 * all the calls for each deferred kernel, in the order of the list, and in between nothing but
	 * wait_expert_ids, and fence_wait up to the deferred kernel's fence; or it gives the list up.
	 * Whatever waits for the device beyond that fence, frees, allocates or begins another list does
	 * that: it ends all deferred kernels that are left, and what stands behind them computes with
	 * whatever is in out. Calls that come then launch kernels if nothing stood behind the deferred
	 * kernel, else they fail. */
	bool (*can_defer_experts)(struct backend *b, const struct expert_job *like, int n_used);
	void (*experts_deferred)(
		struct backend *b, const float *x, const struct expert_job *like, int n_used, float *out);
	/* Computes the named places of out [rows * n_used][n_embd]; others stay as they are. x:
	 * [rows][n_embd]. Jobs may be given in any split over calls: a place's result does not depend
	 * on it. */
	void (*expert_ffn)(struct backend *b, const float *x, const struct expert_job *jobs, int n_jobs,
		int rows, int n_used, float *out);
	/* x[r] += (sum over ranks, in rank order, of weights[r][k] * out[r][k]) + shared[r]. n values a
	 * row. Then `next`, a norm of the new x, rows of n values too; NULL: none. */
	void (*moe_combine)(struct backend *b, const float *out, const float *weights, int n_used,
		const float *shared, int rows, int n, float *x, const struct norm *next, float eps);
};

/* Implementations put this first in their own struct. */
struct backend {
	const struct backend_ops *ops;
	struct err failure;   /* the first failed op; code 0 while all is well. Owned by the thread that
							 computes */
	uint64_t fence_value; /* enqueued so far, those of replayed graphs included: the fence value of
					   the latest. Same owner */
	size_t scratch_bytes; /* device memory that ops may take for themselves beside what `alloc`
							 gave; constant */
};

struct backend_options {
	const char *name; /* "auto", "cpu", "cuda" */
	int threads;      /* CPU threads; 0: all of this process's affinity mask */
	bool no_graphs;   /* enqueue every op by itself; numbers are the same */
};

/* Opens a backend; "auto" takes CUDA when a device answers, else the CPU, and says which and why
 * (log_info). The result is released with ops->close. Not thread-safe: one thread computes.
 * ERR_USAGE for an unknown name, ERR_RUN when the named one is not to be had. */
int backend_open(const struct backend_options *options, struct backend **out, struct err *e);

/* "AVX-512, 2 threads" or the name of the card; for people. Valid until close. */
const char *backend_describe(struct backend *b);

#endif
