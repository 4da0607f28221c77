/* SPDX-License-Identifier: MIT */
/*
 * The ops table: everything the model computes, and the memory it computes in. With copier.h the
 * only header of kernels/ that other modules include. kernels/cpu is the reference implementation;
 * kernels/cuda is proven against it, op by op.
 *
 * A caller, in order:
 *   1. backend_open;
 *   2. alloc, upload: weights, caches and activations;
 *   3. for each step: ops in the order of the model, in segments where they repeat; fence_wait or
 *      download for what the host must read;
 *   4. segments_drop, free, close.
 *
 * Rules for every op:
 * - Order: ops run one after the other, in the order of the calls. A call may return before its op
 *   has run; `wait` waits for all of them.
 * - Pointers are device pointers unless a comment says "host". On the CPU every kind of memory is
 *   ordinary memory.
 * - Shapes: activations are float32. Rows are contiguous unless a stride is given, in values. Views
 *   (struct weight, cache_view, ...) never own memory. What a call is given by pointer to a struct
 *   or to an array of structs is read before the call returns.
 * - Preconditions: the caller has checked sizes and ids. Ops do not validate, except where they say
 *   so.
 * - Errors: a compute op returns nothing. The first failure is kept in backend.failure. Later ops
 *   do nothing; `wait`, `fence_wait`, `wait_expert_ids` and `download` return the failure. What
 *   failed for want of memory can be tried again after `recover`.
 * - Numbers: every row is computed independently, in an order that does not depend on the number of
 *   rows: a row is bit-identical in a batch of 1 and in a batch of 512. A backend may have one way
 *   for steps of at most ops->decode_rows rows (decode) and one for more (prefill); the rule then
 *   holds within each, and with or without library.h. The prefill way rounds activations, queries,
 *   attention weights and the weights of some types to 11 bits, with backend_options.exact_prompts
 *   to 22. The CPU has one way, with backend_options.fast_prompts two. So where a prompt is cut
 *   into chunks, its numbers are the same for every chunk of at least 2 * decode_rows + 1 rows
 *   (session_chunk_rows cuts so), and for those of at most decode_rows.
 * - Threads: one thread at a time makes calls of the table. It may be another one from call to
 *   call, with a lock between them: a backend sets what it keeps in thread-local variables in each
 *   call.
 * - Several backends of a process on one card: two ops whose blocks wait for each other (mla, ffn,
 *   latents with q, the expert ops) must not run at the same time, since each could hold what the
 *   other waits for. Between such ops of two backends the caller waits, or orders them with
 *   backend_hand_over. Other ops, as those of mtp_append, may overlap.
 */
#ifndef GLM_KERNELS_BACKEND_H
#define GLM_KERNELS_BACKEND_H

#include "src/base/err.h"
#include "src/quant/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* C++17 has no C atomics. The flag of set_cancel is not used there. */
#ifdef __cplusplus
typedef bool atomic_bool;
#else
#include <stdatomic.h>
#endif

struct backend;
struct copier;
struct numa_nodes;
struct draw_request; /* src/draw/draw.h */
struct draw_result;

/* ---- views ---- */

/* A matrix, or a stack of them (heads, experts): n_stack x [n_out rows] x [n_in values of `type`],
 * packed blocks. */
struct weight {
	const void *data; /* NULL: absent */
	enum dtype type;
	int64_t n_in;
	int64_t n_out;
	int64_t n_stack;
	size_t row_bytes;   /* of one row of n_in values */
	size_t stack_bytes; /* of one matrix: n_out * row_bytes */
	/* F8_E4M3, n_stack 1: float32 [ceil(n_out / 128)][ceil(n_in / 128)], any alignment; weight
	 * (r, c) is value (r, c) times scale (r / 128, c / 128). It is rounded once to float32, or a
	 * backend multiplies sums of values by the scale. NULL: no scales. */
	const void *scales;
};

/* The rows of one step. Row r is the token at position pos[r] of its sequence. The sequence's cache
 * begins at row base[r] of every cache: its position t is cache row base[r] + t. Rows of several
 * sequences may be mixed. */
struct batch {
	int n;
	const int32_t *pos;  /* [n] */
	const int32_t *base; /* [n] */
	int32_t max_pos;     /* at least the largest of pos; it sizes grids and scratch memory */
};

/*
 * One cache of one layer: [capacity][width] values.
 * - F32, F16: all ops. Stores to F16 round to nearest even.
 * - F8_E4M3: fetch_rows and store_rows only. A row has cache_f8_row_bytes:
 *       n_value values in 8 bits | float32 scales, one for CACHE_F8_BLOCK values | the rest in F16
 */
struct cache_view {
	void *data;
	enum dtype type;
	int width;
};

#define CACHE_F8_BLOCK DTYPE_SCALE_BLOCK /* values of a scale; divides n_value */

static inline size_t cache_f8_row_bytes(int width, int n_value)
{
	return (size_t)n_value + (size_t)(n_value / CACHE_F8_BLOCK) * sizeof(float) +
		   (size_t)(width - n_value) * 2;
}

/* Rotary angles of the rows of one step: [n][dim/2] pairs (cos, sin), made by rope_angles. */
struct rope {
	const float *cos_sin;
	int dim;
};

/* ---- arguments of the larger ops ---- */

/* One norm of a group that shares its input: out[r] = gain * x[r] / sqrt(mean(x[r]^2) + eps). */
struct norm {
	const float *gain; /* [n], a weight: never written by an op */
	float *out;        /* [rows][n]; may be x if the group has no other norm */
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
	const float *x; /* [rows][n_stack][x_stride], the first n_in values of each are read */
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
	float *hidden, *scratch; /* [rows][gate.n_out] each; undefined afterwards */
};

/* The cache rows of a step's tokens, with the products that make them and the query. Four parts in
 * this order; each is absent if its first pointer is NULL. */
struct latents {
	/* 1. Products of the shared input x. They may write q, kv and key. */
	const struct matmul *in; /* [n_in] */
	int n_in;
	const float *x;
	/* 2. q [rows][n_q] = rms_norm(q, q_gain, eps), in place. */
	float *q;
	const float *q_gain;
	int n_q;
	/* 3. kv [rows][n_kv + rope.dim] -> row of kv_cache: rms_norm(kv[0 .. n_kv), kv_gain, eps), then
	 * rope(the rest). */
	const float *kv;
	const float *kv_gain;
	int n_kv;
	float eps;
	struct cache_view kv_cache;
	/* key [rows][width] -> row of key_cache: layer norm (mean and variance, gain, bias, key_eps),
	 * then rope on the first rope.dim values. */
	const float *key;
	const float *key_gain, *key_bias;
	float key_eps;
	struct cache_view key_cache;
	/* 4. Products of the normed q. They write none of the above. q is undefined afterwards. */
	const struct matmul *out; /* [n_out] */
	int n_out;
};

/*
 * Copies the cache rows that attention will read from host memory, or decodes them from 8 bits:
 *     to[base[r] + t] = from[base[r] + t]   for every row r of the step and position t in sel[r]
 * Other rows of `to` keep what they held. Types: `to` has that of `from`, or is F16 where `from` is
 * F8_E4M3. A decoded value is value * scale, rounded to float32, then to F16.
 */
struct fetch_rows {
	struct cache_view from, to; /* of one width */
	int n_value;                /* F8_E4M3: values of a row in 8 bits */
	int64_t capacity;           /* rows of both caches */
	const int32_t *sel;         /* [rows][sel_stride], ascending */
	const int32_t *n_sel;       /* [rows] */
	int sel_stride;
};

/* DSA lightning indexer (specification section 2.5):
 *   score(r, t) = sum_j weight[r][j] * n_heads^-1/2 * max(0, q[r][j] . key[t] * head_dim^-1/2)
 * for t <= pos[r]. It selects the min(top_k, pos + 1) best positions: higher score first, then the
 * lower position. While max_pos < top_k all are selected; q, weight and keys are not read then. */
struct index_select {
	int n_heads;
	int head_dim;
	int top_k;
	const float *q;         /* [rows][n_heads][head_dim], rope applied */
	const float *weight;    /* [rows][n_heads], the output of weights_proj */
	struct cache_view keys; /* width head_dim */
	int32_t *sel;           /* out [rows][top_k]: the selected positions, ascending */
	int32_t *n_sel;         /* out [rows] */
};

/* Absorbed MLA over the selected positions: s[h][t] = scale * q[r][h] . cache[t], p = softmax over
 * t in sel, out[r][h] = sum_t p[t] * cache[t][0 .. n_value). */
struct attend {
	int n_heads;
	int n_value; /* the first n_value of a cache row are the value (512), all are the key (576) */
	float scale;
	float *q; /* [rows][n_heads][cache.width]; may be overwritten */
	/* The rest of a query behind n_value, before rope: [rows][n_heads], rotate_stride values apart.
	 * The op rotates it and uses it in place of that part of q. NULL: q is complete. */
	const float *rotate;
	int64_t rotate_stride;
	struct rope rope;
	struct cache_view cache;
	const int32_t *sel;   /* [rows][sel_stride], ascending */
	const int32_t *n_sel; /* [rows], >= 1 */
	int sel_stride;
	float *out; /* [rows][n_heads][n_value] */
};

/* The attention of a layer from the projected queries to the output of the heads: absorb, attend
 * and expand, one after the other. Undefined afterwards: attend.q, in which absorb.y lies, and
 * attend.out, in which expand.x lies. */
struct mla {
	struct stacked_matmul absorb;
	struct attend attend;
	struct stacked_matmul expand;
	/* Last: a product of expand.y, all heads of a row one after the other; expand.y is undefined
	 * afterwards too. NULL: none. */
	const struct matmul *out;
};

/* Router (specification section 2.7). First, unless x is NULL: h = rms_norm(x, gain, eps) and
 * logits = w h. Then s = sigmoid(logits); the ids of the n_used largest of s + bias (ties: lower
 * id), in that order; weights s / (sum of the chosen s + 1e-20) * scale when normalise, else s *
 * scale. With n_group > 1 only experts of the n_group_used groups with the largest sum of their two
 * best s + bias take part. */
struct route {
	int n_experts;
	int n_used;
	int n_group;
	int n_group_used;
	bool normalise;
	float scale;
	const float *x; /* [rows][w.n_in]; the same for all routers of a call; NULL: logits are input */
	const float *gain; /* [w.n_in] */
	float eps;         /* the same for all routers of a call */
	struct weight w;   /* n_experts rows; n_stack 1 */
	float *h;          /* [rows][w.n_in]: an output of the first router; of the others scratch */
	uint64_t *h_words; /* out [rows][w.n_in], MEM_SHARED, of the first router: h for the host, who
						* reads it by wait_expert_ids, the bits of a float in place of an id;
						* NULL: not wanted. With x only; w.n_in is a multiple of 4, the
						* address of 16 bytes */
	float *logits;     /* [rows][n_experts]; with x undefined afterwards */
	const float *bias; /* [n_experts] */
	uint64_t *expert_ids; /* out [rows][n_used], MEM_SHARED, read by wait_expert_ids */
	float *weights;       /* out [rows][n_used]; NULL: not wanted */
};

/* One expert and the (token, rank) slots that it computes: out[slot] = down (silu(gate x) * up x),
 * with x of row slot / n_used. */
struct expert_job {
	struct weight gate, up, down; /* n_stack 1; data stays valid until the job has run */
	const int32_t *token_slots;   /* host [n_token_slots]: row * n_used + rank */
	int n_token_slots;
	uint32_t layer, expert; /* which one it is; read by observers alone */
	/* The NUMA node that the weights lie on, of backend_options.nodes; 0: none is known. Read by
	 * the CPU alone; results do not depend on it. */
	int node;
};

/* Limits of one call */
#define NORMS_MAX  17
#define ROUTES_MAX NORMS_MAX

#define DEFERRED_ALIGN 16 /* bytes: alignment of the weights of deferred experts */

/* ---- observing ---- */

/* The input of one product: row i of matrix s of w's stack is the w->n_in values at
 * x + s * stack_step + (index ? index[i] / divisor : i) * stride. Host memory. */
struct product_input {
	const struct weight *w;
	const struct expert_job *expert; /* whose gate, up or down w is; NULL: a resident matrix */
	const float *x;
	int64_t stride, stack_step;
	const int32_t *index; /* [n] or NULL */
	int32_t divisor;
	int n; /* rows */
};

/* Sees the input of every product of matmul, stacked_matmul, ffn, latents, mla and expert_ffn,
 * routers included, just before it is computed. It must not change it. Called by the thread that
 * computes; what the struct points to is valid during the call. */
struct product_observer {
	void (*input)(void *user, const struct product_input *in);
	void *user;
};

/* ---- usage ---- */

/* Kinds of intervals in which the device works; idle time counts for the kind that follows it. */
enum usage_kind {
	USAGE_EXPERTS, /* a call of expert_ffn, or what a deferred expert kernel computes */
	USAGE_GRAPH,   /* a replayed graph, or its part before, between or behind deferred kernels */
	USAGE_OTHER,   /* other ops: the end of a step, and the time between two steps */
	USAGE_KINDS
};

/* Counters since the backend was opened; the difference of two readings belongs to the work between
 * them. */
struct backend_usage {
	uint64_t launches;        /* kernels enqueued, and all nodes of replayed graphs */
	uint64_t graph_launches;  /* graphs replayed */
	uint64_t graphs_captured; /* graphs captured ... */
	uint64_t capture_ns;      /* ... and the host time that took */
	/* Only while `measure` is on: intervals, their time, and the idle time before them. A deferred
	 * expert kernel is an interval of its own. It begins with the host's first message; the device
	 * has been idle since the op before it ended. */
	uint64_t n_intervals[USAGE_KINDS], busy_ns[USAGE_KINDS], idle_ns[USAGE_KINDS];
	double event_gap_ns; /* idle_ns between two intervals without a pause: the cost of profiling */
};

/* ---- the table ---- */

enum mem_kind {
	MEM_DEVICE, /* where ops compute */
	MEM_SHARED, /* small; host memory that the device maps (pinned on CUDA) */
	/* Large; host memory that ops read and write over the link (pinned and mapped on CUDA). The
	 * host may access it while no op that uses it is pending. */
	MEM_HOST,
};

/* What the caller of segment_begin does next. */
enum segment_mode {
	SEGMENT_EAGER,    /* make the calls; they run one by one, others may come between them */
	SEGMENT_CAPTURE,  /* make the calls, then segment_end, which enqueues them as one graph */
	SEGMENT_REPLAYED, /* make no calls: all have been enqueued */
};

struct backend_ops {
	const char *name; /* "cpu", "cuda" */
	const char *(*describe)(struct backend *b);
	/* Waits, then releases everything but the memory that `alloc` gave. */
	void (*close)(struct backend *b);
	bool async;      /* ops return before they have run; constant */
	int decode_rows; /* most rows of a step that is computed in the decode way; see Numbers */

	/* Memory
	 * - alloc: contents undefined. Aligned to 256 bytes; on the CPU, and of MEM_HOST, to pages.
	 *   Fails with ERR_MEMORY, or with ERR_RUN if the device has failed, and says how much was
	 *   requested and is free; the caller adds what for.
	 * - free: waits for all ops first. p may be NULL.
	 * - free_bytes: device memory that can still be allocated; 0: unknown.
	 * - populate: takes what alloc gave from the system now; contents stay. NULL: alloc does. */
	int (*alloc)(struct backend *b, enum mem_kind kind, size_t bytes, void **out, struct err *e);
	void (*free)(struct backend *b, enum mem_kind kind, void *p, size_t bytes);
	size_t (*free_bytes)(struct backend *b);
	/* For the memory plan: the most bytes that ops allocate for themselves in steps of `rows` rows
	 * with fast prompts. A backend allocates those of its largest product, once. 0: without fast
	 * prompts, or if the weights have a type that these do not multiply. Both are NULL, or none; if
	 * NULL, scratch_bytes counts everything.
	 * - matmul_scratch: products with w.
	 * - expert_scratch: expert_ffn with n_used experts of these shapes a row. */
	size_t (*matmul_scratch)(const struct backend *b, const struct weight *w, int rows);
	size_t (*expert_scratch)(
		const struct backend *b, const struct expert_job *shape, int rows, int n_used);
	void (*populate)(struct backend *b, void *p, size_t bytes);

	/* Copies
	 * - upload: enqueued like an op. src (host) may be reused when the call returns.
	 * - copy: between any two places that alloc gave, no overlap.
	 * - download: waits for all ops, then copies to dst (host). Returns 0 or the kept failure.
	 * - wait: waits for all ops. Returns 0 or the kept failure.
	 * - copier_open: copy streams beside the ops (copier.h); closed before the backend. NULL: the
	 *   host reaches all memory of this backend. */
	void (*upload)(struct backend *b, void *dst, const void *src, size_t bytes);
	void (*copy)(struct backend *b, void *dst, const void *src, size_t bytes);
	int (*download)(struct backend *b, void *dst, const void *src, size_t bytes, struct err *e);
	int (*wait)(struct backend *b, struct err *e);
	int (*copier_open)(struct backend *b, struct copier **out, struct err *e);

	/* Fences: how the host follows the device without draining it.
	 * - fence: enqueues a signal behind all ops so far. Returns its value, which is
	 *   backend.fence_value from then on. `route` enqueues one too.
	 * - fence_wait: returns when the fence is signaled. Then all ops before it have run, and what
	 *   they wrote to MEM_SHARED may be read (expert ids: see wait_expert_ids). Fails with the kept
	 *   failure, and when the device is lost or has not answered for minutes.
	 * - fence_signaled: the same without waiting.
	 * Without `async` a fence is signaled when it is made. */
	uint64_t (*fence)(struct backend *b);
	int (*fence_wait)(struct backend *b, uint64_t fence, struct err *e);
	bool (*fence_signaled)(struct backend *b, uint64_t fence);

	/* Graph segments: ops that are called again and again with the same arguments are captured once
	 * and then replayed as one launch.
	 *
	 *      enum segment_mode mode = ops->segment_begin(b, key);
	 *      if (mode != SEGMENT_REPLAYED)
	 *              ... the ops ...
	 *      if (mode == SEGMENT_CAPTURE)
	 *              ops->segment_end(b);
	 *
	 * - The same key stands for the same calls with the same arguments. Contents of buffers may
	 *   differ.
	 * - During SEGMENT_CAPTURE only compute ops, `copy` and `fence` are allowed.
	 * - backend.fence_value advances by the segment's fences in every mode.
	 * - segments_drop forgets all captured segments; if there are any, it first waits for all ops.
	 *   Call it before memory that they use is freed.
	 * - A backend may always answer SEGMENT_EAGER (the CPU does). */
	enum segment_mode (*segment_begin)(struct backend *b, uint64_t key);
	void (*segment_end)(struct backend *b);
	void (*segments_drop)(struct backend *b);

	/* Profiling
	 * - usage: the counters; waits while `measure` is on.
	 * - measure: turns the timing of intervals on or off; waits. The cost: two events an interval.
	 *   Intervals that usage has not read before measure(false) are not counted. */
	void (*usage)(struct backend *b, struct backend_usage *out);
	void (*measure)(struct backend *b, bool on);

	/* Lends a flag; NULL: none any more. Once it is true, an op that runs may be left undone: it
	 * then fails with ERR_INTERRUPTED, the ops behind it as after any failure. The next call, made
	 * when no op is pending that was enqueued before the failure, takes this failure back. The
	 * pointer is NULL if ops always run to their end. */
	void (*set_cancel)(struct backend *b, const atomic_bool *cancel);

	/* If ERR_MEMORY is kept: waits for all ops and takes it back; what the ops since then should
	 * have written is undefined. Else does nothing: another failure stays. */
	void (*recover)(struct backend *b);

	/* out [rows][n_in] = rows ids[r] of table, as float. ids: [rows]. */
	void (*embed)(struct backend *b, struct weight table, const int32_t *ids, int rows, float *out);
	/* 1 to NORMS_MAX norms of the same x [rows][n]; strides between rows in values. */
	void (*rms_norm)(struct backend *b, const float *x, int64_t x_stride, const struct norm *norms,
		int n_norms, float eps, int rows, int n, int64_t out_stride);
	/* n_parts products of one n_in, of x [rows][n_in] where a part has no input of its own. No part
	 * reads what another one writes. */
	void (*matmul)(
		struct backend *b, const struct matmul *parts, int n_parts, const float *x, int rows);
	void (*stacked_matmul)(struct backend *b, const struct stacked_matmul *a, int rows);
	void (*ffn)(struct backend *b, const struct ffn *a, int rows);
	/* out = silu(gate) * up, elementwise over n values; out may be gate or up. */
	void (*swiglu)(struct backend *b, const float *gate, const float *up, int64_t n, float *out);

	/* cos_sin[r][i] = (cos, sin)(pos[r] * inv_freq[i]), i < dim / 2. The angle is rounded to
	 * float32; cosine and sine are accurate to float32 (specification section 2.2). */
	void (*rope_angles)(struct backend *b, const struct batch *rows, const float *inv_freq, int dim,
		float *cos_sin);
	/* Rotates interleaved pairs of rope.dim values of every head. Reads at x + head * x_stride,
	 * writes at y + head * y_stride; a row is n_heads strides long. y may be x. */
	void (*rope)(struct backend *b, const struct rope *rope, const float *x, int64_t x_stride,
		float *y, int64_t y_stride, int rows, int n_heads);
	void (*latents)(struct backend *b, const struct batch *rows, const struct rope *rope,
		const struct latents *a);
	void (*index_select)(struct backend *b, const struct batch *rows, const struct index_select *a);
	/* to[base[r] + pos[r]] (F8_E4M3) = from[base[r] + pos[r]] (F16) for every row r of the step,
	 * the first n_value values in 8 bits: scale = largest magnitude of the block / 448, values
	 * (value / scale) to nearest even; a block of zeros has the scale 0. */
	void (*store_rows)(struct backend *b, const struct batch *rows, const struct cache_view *from,
		const struct cache_view *to, int n_value);
	/* A cache row that several rows of the step have selected crosses the link once. */
	void (*fetch_rows)(struct backend *b, const struct batch *rows, const struct fetch_rows *a);
	void (*attend)(struct backend *b, const struct batch *rows, const struct attend *a);
	/* The same bits as its ops one after the other. */
	void (*mla)(struct backend *b, const struct batch *rows, const struct mla *a);

	/* 1 to ROUTES_MAX routers of the same shape (n_experts to scale, w), then a fence. With x: the
	 * same bits as rms_norm, matmul and a route without x. */
	void (*route)(struct backend *b, const struct route *a, int n, int rows);
	/* Waits for the ids of one route, without its fence. ids[i] (host) becomes the id in
	 * expert_ids[i] (host address of the MEM_SHARED array), i < n.
	 * - fence: the value of that route's fence.
	 * - An element is its own flag: the id is in its lower half, the lower half of the fence value
	 *   in its upper half. So the device needs no memory fence before it signals, and elements may
	 *   come later than the fence.
	 * - Precondition: the array was zero before its first use.
	 * - Afterwards every op before that route has run. Fails like fence_wait. */
	int (*wait_expert_ids)(struct backend *b, uint64_t fence, const uint64_t *expert_ids, int n,
		int32_t *ids, struct err *e);

	/* Computes the slots of `jobs` in out [rows * n_used][n_embd] from x [rows][n_embd]; other
	 * slots stay as they are. Jobs may be split over calls in any way: a slot's bits do not depend
	 * on it. Each job: n_token_slots >= 1, slots of different jobs differ. */
	void (*expert_ffn)(struct backend *b, const float *x, const struct expert_job *jobs, int n_jobs,
		int rows, int n_used, float *out);

	/* Stands for an expert_ffn of these jobs whose slots the caller has computed itself: out[slot]
	 * = results[slot], rows of n_embd values (a multiple of 4). results: MEM_SHARED, laid out as
	 * out; the rows stay as they are until the op has run. results and out: at multiples of 16
	 * bytes. Of the jobs only the slots are read.
	 * Calls of it and of expert_ffn may follow each other in any order, also for a deferred expert
	 * kernel.
	 */
	void (*expert_results)(struct backend *b, const float *x, const float *results,
		const struct expert_job *jobs, int n_jobs, int rows, int n_used, int n_embd, float *out);

	/* A deferred expert kernel. It is part of a captured segment and starts before the host knows
	 * which experts are resident. The host then posts a message per expert to the kernel's mailbox,
	 * by calls of expert_ffn; the kernel ends when every slot has been posted.
	 *
	 *      segment_begin(b, key)           SEGMENT_CAPTURE (or SEGMENT_REPLAYED: no calls below)
	 *        route(...)                    its fence F precedes the kernel
	 *        experts_deferred(b, x, ...)
	 *        moe_combine(...)              the first op behind it
	 *        ...                           more layers
	 *      segment_end(b)
	 *      wait_expert_ids(b, F, ...)      for each layer, in order:
	 *      expert_ffn(b, x, ready, ...)      the experts that are resident
	 *      expert_ffn(b, x, late, ...)       the others, one call or several
	 *
	 * can_defer_experts: whether experts of this shape can be deferred; always the same answer. The
	 * pointer is NULL if the backend never can.
	 *
	 * Preconditions of experts_deferred
	 * - can_defer_experts(shape, n_used). One row.
	 * - In a segment (SEGMENT_CAPTURE), behind at least one fence of its own: a fence since the
	 *   deferred kernel before. x was written, and out last read, before that fence.
	 * - shape: an expert that has the types and shapes of all experts of the layer; its data and
	 *   slots are not read.
	 * - The first op behind it, if there is one, is moe_combine.
	 * In SEGMENT_EAGER mode it only prepares what the kernel needs; expert_ffn then launches.
	 *
	 * Preconditions of the calls of expert_ffn and expert_results that follow
	 * - The same x, n_used and out; rows 1; one slot a job; data at multiples of DEFERRED_ALIGN.
	 * - All slots of one deferred kernel before those of the next, in the order of the segment.
	 * - Between them no calls but wait_expert_ids, and fence_wait up to the kernel's fence F.
	 *
	 * Giving up: a call that waits beyond F, frees, allocates or begins another segment ends all
	 * deferred kernels that are left. The ops behind them then compute with whatever is in out.
	 * Results of these ops are wrong without a failure: the caller must discard them.
	 * Later calls of expert_ffn launch kernels if no op stood behind the deferred kernel. Else they
	 * fail, until the caller has waited (wait, download) or begun another segment. */
	bool (*can_defer_experts)(struct backend *b, const struct expert_job *shape, int n_used);
	void (*experts_deferred)(
		struct backend *b, const float *x, const struct expert_job *shape, int n_used, float *out);

	/* x[r] += (sum over ranks k, in order, of weights[r][k] * out[r * n_used + k]) + shared[r];
	 * rows of n values. Then `next`, a norm of the new x; NULL: none. */
	void (*moe_combine)(struct backend *b, const float *out, const float *weights, int n_used,
		const float *shared, int rows, int n, float *x, const struct norm *next, float eps);

	/* out[r] = draw_row(logits + r * stride, n, requests[r]): draws a token from the first n ids of
	 * each row. stride: floats from a row to the next. requests: [rows] of the host, which may be
	 * reused when the call returns. rows <= DRAW_ROWS_MAX. out: [rows], MEM_SHARED, valid after
	 * wait. The same bits on all backends. */
	void (*draw)(struct backend *b, const float *logits, int64_t stride, int32_t n,
		const struct draw_request *requests, int rows, struct draw_result *out);
};

#define BACKEND_UUID_BYTES 16

/* Implementations put this first in their own struct. Fields belong to the thread that computes. */
struct backend {
	const struct backend_ops *ops;
	struct err failure;   /* the first failed op; code 0: none */
	uint64_t fence_value; /* of the latest fence enqueued, those of replayed segments included */
	size_t scratch_bytes; /* device memory that ops may take beside what `alloc` gave; constant */
	uint64_t bytes_s; /* bandwidth of the device's memory, from its clock; 0: unknown; constant */
	/* Of the card: the same in every process, another for every card; constant. The CPU has none:
	 * zeros. */
	uint8_t uuid[BACKEND_UUID_BYTES];
	/* Borrowed; NULL: nobody. To be set between steps. */
	const struct product_observer *observer;
};

struct backend_options {
	const char *name; /* "auto", "cpu", "cuda" */
	int threads;      /* CPU threads; 0: all of this process's affinity mask */
	bool no_graphs;   /* SEGMENT_EAGER always; numbers are the same */
	/* On a card, steps above ops->decode_rows rows use activations, queries and weights of 22 bits
	 * instead of 11 (see Numbers), in twice the time, and no library (library.h). No effect on the
	 * CPU. */
	bool exact_prompts;
	/* The CPU with AMX: in steps above ops->decode_rows rows, products with matrices of the types
	 * of expert_arithmetic_covers use activations of 16 bits with a scale for 256 values in place
	 * of float32. Attention and other types stay in float32. No effect elsewhere. */
	bool fast_prompts;
	uint32_t card; /* number of the card; the CPU has 0 only */
	/* The CPU only: computes experts for a card. expert_ffn has the bits of the card's decode way
	 * (expert_arithmetic.h), for types of expert_arithmetic_covers and at most the card's
	 * decode_rows rows. Each thread is pinned to a core and polls for the next op a few
	 * milliseconds before it sleeps. */
	bool for_card;
	/* The CPU only: a progress callback (cpu_pool_set_progress), called on the thread that enqueued
	 * an op while the op runs. It enqueues nothing on this backend. NULL: none. */
	void (*on_progress)(void *user);
	void *progress_user;
	/* The CPU only; lent for the call: the threads are divided among the NUMA nodes, and a thread
	 * computes experts of its node first (expert_job.node). NULL, fewer than two nodes, or a single
	 * thread: not divided. */
	const struct numa_nodes *nodes;
};

/* Opens a backend. "auto" takes CUDA when a device answers, else the CPU, and says which and why
 * (log_info). Release it with ops->close. ERR_USAGE: an unknown name, a card that does not exist;
 * ERR_RUN: the named backend is not available. */
int backend_open(const struct backend_options *options, struct backend **out, struct err *e);

/* How many cards there are for a backend of this name; the CPU counts as one. */
uint32_t backend_count_cards(const char *name);

/* "AVX-512, 2 threads" or the name of the card; for people. Valid until close. */
const char *backend_describe(struct backend *b);

#endif
