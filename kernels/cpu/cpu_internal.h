/* SPDX-License-Identifier: MIT */
/*
 * Private to kernels/cpu (and its tests): the backend's state, its scratch memory and threads, the
 * ops by file.
 *
 * Every op has finished when it returns, so `wait` has nothing to wait for. An op is cut into tasks
 * that write disjoint memory and run on the threads of cpu_pool.h. Below a measured amount of work
 * it stays on the calling thread. The arguments of an op with tasks are in a struct NAME_job, which
 * every task gets.
 */
#ifndef GLM_KERNELS_CPU_INTERNAL_H
#define GLM_KERNELS_CPU_INTERNAL_H

#include "kernels/backend.h"
#include "kernels/cpu/cpu_dot.h"
#include "kernels/cpu/cpu_pool.h"
#include "kernels/cpu/limbs/limb_rows.h"
#include "src/base/half.h"

struct cpu_backend {
	struct backend base;
	struct backend_ops ops;
	const struct cpu_isa *isa;    /* constant */
	const struct limb_isa *limbs; /* constant */
	int threads;                  /* constant, >= 1 */
	bool fast_prompts;            /* constant; backend_options.fast_prompts, and there is AMX */
	struct cpu_pool *pool;        /* of so many threads */
	char text[192];               /* backend_describe */
	/* Scratch of the running op. It grows to the largest request and never shrinks, so steady-state
	 * decoding allocates nothing. Only cpu_scratch touches these. */
	void *scratch;
	size_t scratch_bytes;
};

/* Rows of activations, lent, with a stride and an optional gather list: row i begins at
 * data + (index ? index[i] / divisor : i) * stride. */
struct row_set {
	float *data;
	int64_t stride; /* floats */
	const int32_t *index;
	int32_t divisor; /* of index, >= 1 */
};

static inline float *row_at(const struct row_set *s, int i)
{
	return s->data + (s->index ? s->index[i] / s->divisor : i) * s->stride;
}

static inline struct cpu_backend *cpu_of(struct backend *b)
{
	return (struct cpu_backend *)b;
}

/* Opens with the instruction set of the given level (cpu_isa_available). Tests compare the levels
 * with it. */
int cpu_backend_open_level(
	const struct backend_options *options, int level, struct backend **out, struct err *e);

/* Turns fast prompts on, on any instruction set; before the first op. cpu_backend_open_level calls
 * it where there is AMX, tests to compare instruction sets. */
void cpu_set_fast_prompts(struct cpu_backend *b);

/* 64-byte aligned memory for the running op, contents undefined, valid until the next call. NULL:
 * out of memory; the failure is stored in the backend and the op must do nothing. */
void *cpu_scratch(struct cpu_backend *b, uint64_t bytes, const char *op);

/* ops.decode_rows with fast prompts: steps of at most so many rows are computed in floats. The
 * value is the card's, so that prompts are cut into the same steps. */
#define CPU_DECODE_ROWS 64

/* Whether limbs multiply, in a step of so many rows, the matrices that limb_matmul_covers. With an
 * observer they do not: it sees the inputs of float products. */
static inline bool cpu_is_fast_prompt(const struct cpu_backend *b, int rows)
{
	return b->fast_prompts && rows > CPU_DECODE_ROWS && !b->base.observer;
}

/* Number of threads for about `macs` multiply-adds (1: stay on the calling thread). */
int cpu_threads_for(const struct cpu_backend *b, double macs);

/* cpu_pool_run; tasks that were left out are the failure ERR_INTERRUPTED of the backend. */
void cpu_run(
	struct cpu_backend *b, int threads, int64_t n, int64_t grain, cpu_task_fn *fn, const void *job);

/* cpu_run with about four portions of rows per thread, so that a disturbed thread delays the
 * op by a quarter of its share at most. */
void cpu_run_rows(
	struct cpu_backend *b, int threads, int64_t rows, cpu_task_fn *fn, const void *job);

/* The jobs of an op sorted by NUMA node: first those of no node (k = 0), then those of node 1, ...
 */
struct job_order {
	int n_jobs;
	const int32_t *by_node;           /* [n_jobs] indices; NULL: as they come, no node is known */
	int64_t ends[NUMA_NODES_MAX + 1]; /* [k]: where the jobs of node k end; if by_node */
};

static inline int64_t job_at(const struct job_order *o, int64_t i)
{
	return o->by_node ? o->by_node[i] : i;
}

/* Sorts. by_node [n_jobs]: memory for the order, lent as long as `out` is used. */
void cpu_order_jobs(struct cpu_backend *b, const struct expert_job *jobs, int n_jobs,
	int32_t *by_node, struct job_order *out);

/* cpu_run for jobs of tasks_of_job tasks each: task t is of job_at(order, t / tasks_of_job).
 * Threads of a NUMA node take the tasks of its jobs. */
void cpu_run_jobs(struct cpu_backend *b, int threads, const struct job_order *order,
	int64_t tasks_of_job, cpu_task_fn *fn, const void *job);

/* Precondition: there is an observer. */
static inline void cpu_observe(const struct backend *b, const struct product_input *in)
{
	b->observer->input(b->observer->user, in);
}

/* An unsigned key that sorts like the float; -0 equals +0, NaN sorts below everything. */
static inline uint32_t cpu_order_key(float v)
{
	uint32_t u = f32_bits(v + 0.0f);
	return v != v ? 0 : u & 0x80000000 ? ~u : u | 0x80000000;
}

/* ---- cache rows ---- */

static inline const uint8_t *cache_row_at(const struct cache_view *cache, int64_t row)
{
	return (const uint8_t *)cache->data + row * cache->width * (cache->type == DTYPE_F16 ? 2 : 4);
}

/* ---- matrix products (cpu_matmul.c) ---- */

/* Bytes of scratch that one thread needs for cpu_matmul_block, a multiple of 64. */
size_t cpu_matmul_scratch_bytes(void);

/* y[r][i] = (add ? y[r][i] : 0) + dot(weight row first + i, x[r]) for i < n_w and r < n_x, on the
 * calling thread.
 * - stack: index of the matrix in w. n_w, n_x: any number, not cut into tiles by the caller.
 * - scratch: cpu_matmul_scratch_bytes, 64-byte aligned, of this thread alone. */
void cpu_matmul_block(const struct cpu_backend *b, const struct weight *w, int64_t stack,
	int64_t first, int64_t n_w, const struct row_set *x, const struct row_set *y, int n_x, bool add,
	float *scratch);

/* How a product of n_out weight rows (all matrices together) with up to n_x activation rows, `macs`
 * multiply-adds in all, is cut into tasks. */
struct cpu_tiling {
	int64_t w_rows; /* weight rows of a task */
	int x_rows;     /* activation rows of a task */
	int threads;
};
struct cpu_tiling cpu_matmul_tiling(
	const struct cpu_backend *b, double macs, int64_t n_out, int n_x);

/* ---- ops ---- */

void cpu_embed(struct backend *b, struct weight table, const int32_t *ids, int rows, float *out);
void cpu_rms_norm(struct backend *b, const float *x, int64_t x_stride, const struct norm *norms,
	int n_norms, float eps, int rows, int n, int64_t out_stride);
size_t cpu_matmul_scratch(const struct backend *b, const struct weight *w, int rows);
size_t cpu_expert_scratch(
	const struct backend *b, const struct expert_job *shape, int rows, int n_used);
void cpu_ffn(struct backend *b, const struct ffn *a, int rows);
void cpu_swiglu(struct backend *b, const float *gate, const float *up, int64_t n, float *out);
void cpu_rope_angles(
	struct backend *b, const struct batch *rows, const float *inv_freq, int dim, float *cos_sin);
void cpu_rope(struct backend *b, const struct rope *rope, const float *x, int64_t x_stride,
	float *y, int64_t y_stride, int rows, int n_heads);
void cpu_latents(
	struct backend *b, const struct batch *rows, const struct rope *rope, const struct latents *a);
void cpu_matmul(
	struct backend *b, const struct matmul *parts, int n_parts, const float *x, int rows);
void cpu_stacked_matmul(struct backend *b, const struct stacked_matmul *a, int rows);
void cpu_index_select(struct backend *b, const struct batch *rows, const struct index_select *a);
void cpu_store_rows(struct backend *b, const struct batch *rows, const struct cache_view *from,
	const struct cache_view *to, int n_value);
void cpu_fetch_rows(struct backend *b, const struct batch *rows, const struct fetch_rows *a);
void cpu_attend(struct backend *b, const struct batch *rows, const struct attend *a);
void cpu_mla(struct backend *b, const struct batch *rows, const struct mla *a);
void cpu_route(struct backend *b, const struct route *a, int n, int rows);
int cpu_wait_expert_ids(struct backend *b, uint64_t fence, const uint64_t *expert_ids, int n,
	int32_t *ids, struct err *e);
void cpu_expert_ffn(struct backend *b, const float *x, const struct expert_job *jobs, int n_jobs,
	int rows, int n_used, float *out);
void cpu_expert_results(struct backend *b, const float *x, const float *results,
	const struct expert_job *jobs, int n_jobs, int rows, int n_used, int n_embd, float *out);
void cpu_moe_combine(struct backend *b, const float *out, const float *weights, int n_used,
	const float *shared, int rows, int n, float *x, const struct norm *next, float eps);
void cpu_draw(struct backend *b, const float *logits, int64_t stride, int32_t n,
	const struct draw_request *requests, int rows, struct draw_result *out);

#endif
