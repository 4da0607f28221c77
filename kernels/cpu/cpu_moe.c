/* SPDX-License-Identifier: MIT */
/*
 * Mixture of experts: the router, the experts' feed forward, the weighted sum.
 *
 * expert_ffn runs its jobs in two parallel loops over (job, tile of weight rows, tile of
 * (token, rank) slots). The first computes gate and up, fused with SwiGLU, into one hidden row per
 * slot. The second computes down, straight into the output rows of the slots.
 */
#include "kernels/cpu/cpu_internal.h"

#include "kernels/cpu/limbs/limb_experts.h"
#include "kernels/cpu/limbs/limb_matmul.h"
#include "src/base/num.h"

#include <string.h>

/* ---- router ---- */

/* best = ids of the n_best largest keys, descending; ties: the lower id first. skip (may be NULL)
 * excludes ids. */
static void top_ids(const uint32_t *key, const bool *skip, int n, int32_t *best, int n_best)
{
	int have = 0;
	for (int id = 0; id < n; id++) {
		if ((skip && skip[id]) || (have == n_best && key[id] <= key[best[have - 1]]))
			continue;
		int at = have < n_best ? have++ : have - 1;
		for (; at && key[best[at - 1]] < key[id]; at--)
			best[at] = best[at - 1];
		best[at] = id;
	}
}

/* Group-limited routing: sets skip for the experts of all groups but the n_group_used with the
 * largest sum of their two best choices. */
static void mask_groups(const struct route *a, const float *choice, const uint32_t *key, bool *skip)
{
	int size = a->n_experts / a->n_group;
	uint32_t group_key[a->n_group];
	int32_t kept[a->n_group_used], top[2];
	for (int g = 0; g < a->n_group; g++) {
		int first = g * size, n_top = MIN(size, 2);
		top_ids(key + first, NULL, size, top, n_top);
		float sum = choice[first + top[0]];
		if (n_top > 1)
			sum += choice[first + top[1]];
		group_key[g] = cpu_order_key(sum);
	}
	top_ids(group_key, NULL, a->n_group, kept, a->n_group_used);
	memset(skip, 1, (size_t)a->n_experts * sizeof *skip);
	for (int i = 0; i < a->n_group_used; i++)
		memset(skip + kept[i] * size, 0, (size_t)size * sizeof *skip);
}

struct route_job {
	const struct cpu_isa *isa;
	const struct route *a;
	/* floats of scratch of a thread: a row's scores, choices, keys, ids and fences */
	size_t values;
	float *scratch;
	uint64_t fence; /* the value of the fence behind */
};

static void route_row(
	const struct cpu_isa *isa, const struct route *a, int64_t r, float *score, uint64_t fence)
{
	int n = a->n_experts;
	float *choice = score + n, *weights = a->weights ? a->weights + r * a->n_used : NULL, sum = 0;
	uint32_t *key = (uint32_t *)(void *)(choice + n);
	int32_t *ids = (int32_t *)(key + n);
	bool *skip = (bool *)(ids + n);
	uint64_t *expert_ids = a->expert_ids + r * a->n_used;
	isa->sigmoid(a->logits + r * n, (size_t)n, score);
	for (int i = 0; i < n; i++) {
		choice[i] = score[i] + a->bias[i];
		key[i] = cpu_order_key(choice[i]);
	}
	if (a->n_group > 1)
		mask_groups(a, choice, key, skip);
	top_ids(key, a->n_group > 1 ? skip : NULL, n, ids, a->n_used);
	for (int k = 0; k < a->n_used; k++) {
		expert_ids[k] = fence << 32 | (uint32_t)ids[k];
		sum += score[ids[k]];
	}
	for (int k = 0; k < a->n_used && a->weights; k++)
		weights[k] =
			a->normalise ? score[ids[k]] / (sum + 1e-20f) * a->scale : score[ids[k]] * a->scale;
}

static void route_task(const void *context, int64_t first, int64_t last, int thread)
{
	const struct route_job *j = context;
	for (; first < last; first++)
		route_row(j->isa, j->a, first, j->scratch + (size_t)thread * j->values, j->fence);
}

/* The routers' logits: norm and product of every router. */
static void route_logits(struct backend *b, const struct route *a, int n, int rows)
{
	struct norm norms[ROUTES_MAX];
	struct matmul products[ROUTES_MAX];
	for (int i = 0; i < n; i++) {
		norms[i] = (struct norm){.gain = a[i].gain, .out = a[i].h};
		products[i] = (struct matmul){.w = a[i].w, .y = a[i].logits, .x = a[i].h};
	}
	b->ops->rms_norm(b, a->x, a->w.n_in, norms, n, a->eps, rows, (int)a->w.n_in, a->w.n_in);
	b->ops->matmul(b, products, n, NULL, rows);
}

int cpu_wait_expert_ids(struct backend *base, uint64_t fence, const uint64_t *expert_ids, int n,
	int32_t *ids, struct err *e)
{
	int rc = base->ops->fence_wait(base, fence, e);
	for (int i = 0; i < n && !rc; i++)
		ids[i] = (int32_t)(uint32_t)expert_ids[i];
	return rc;
}

void cpu_route(struct backend *base, const struct route *a, int n, int rows)
{
	struct cpu_backend *b = cpu_of(base);
	if (n && a->x)
		route_logits(base, a, n, rows);
	if (b->base.failure.code) {
		base->ops->fence(base); /* the fences are counted all the same */
		return;
	}
	for (int64_t i = 0; n && a->h_words && i < rows * a->w.n_in; i++)
		a->h_words[i] = (base->fence_value + 1) << 32 | f32_bits(a->h[i]);
	int threads = cpu_threads_for(b, 20.0 * rows * a->n_experts);
	struct route_job job = {.isa = b->isa,
		.a = a,
		.values = num_align_up((uint64_t)a->n_experts * 5, 16),
		.fence = base->fence_value + 1};
	job.scratch = cpu_scratch(b, (uint64_t)threads * job.values * sizeof(float), "route");
	for (; job.scratch && job.a < a + n; job.a++)
		cpu_run_rows(b, threads, rows, route_task, &job);
	base->ops->fence(base);
}

/* ---- experts ---- */

/* The tasks of one of the two loops. Jobs have different numbers of slots: every job gets as many
 * tasks as the largest, and the superfluous ones return at once. */
struct expert_tasks {
	struct cpu_tiling tiling;
	int64_t w_parts;
	int x_parts;
};

static struct expert_tasks expert_tiling(const struct cpu_backend *b, int64_t n_in, int64_t n_out,
	int n_jobs, int64_t n_slots, int most_slots)
{
	struct expert_tasks t;
	t.tiling = cpu_matmul_tiling(
		b, (double)n_in * (double)n_out * (double)n_slots, n_out * n_jobs, most_slots);
	t.tiling.w_rows = MIN(t.tiling.w_rows, n_out);
	t.w_parts = (n_out + t.tiling.w_rows - 1) / t.tiling.w_rows;
	t.x_parts = (most_slots + t.tiling.x_rows - 1) / t.tiling.x_rows;
	return t;
}

struct expert_ffn_job {
	const struct cpu_backend *b;
	const struct expert_job *jobs;
	const float *x;
	float *out;
	int n_used;
	int64_t n_ff; /* floats between hidden rows */
	struct expert_tasks up, down;
	struct job_order order;
	float *hidden;             /* [slots][n_ff] */
	const int64_t *first_slot; /* [n_jobs]: the first hidden row of each job */
	float *scratch;            /* [threads][each] */
	size_t each;               /* floats: `product` of cpu_matmul_block, then a tile of `up` */
	size_t product;
};

/* Weight rows [first, first + n_w) and slots [slot, slot + n_x) of one job; hidden: its first
 * hidden row. */
struct expert_tile {
	const struct expert_job *job;
	int64_t first, n_w, hidden;
	int slot, n_x;
};

/* The tile of task number `task`; false: none, the job has fewer tasks than the largest. */
static bool expert_tile_of(const struct expert_ffn_job *a, const struct expert_tasks *t, bool down,
	int64_t task, struct expert_tile *tile)
{
	int64_t j = job_at(&a->order, task / (t->w_parts * t->x_parts));
	tile->job = &a->jobs[j];
	int64_t n_out = down ? tile->job->down.n_out : tile->job->gate.n_out;
	tile->first = task / t->x_parts % t->w_parts * t->tiling.w_rows;
	tile->n_w = MIN(t->tiling.w_rows, n_out - tile->first);
	tile->slot = (int)(task % t->x_parts) * t->tiling.x_rows;
	tile->n_x = MIN(t->tiling.x_rows, tile->job->n_token_slots - tile->slot);
	tile->hidden = a->first_slot[j] + tile->slot;
	return tile->n_x > 0 && tile->n_w > 0;
}

static void gate_up_task(const void *context, int64_t task, int64_t last, int thread)
{
	const struct expert_ffn_job *a = context;
	float *mine = a->scratch + (size_t)thread * a->each;
	struct expert_tile t;
	for (; task < last; task++) {
		if (!expert_tile_of(a, &a->up, false, task, &t))
			continue;
		struct row_set x = {
			(float *)a->x, t.job->gate.n_in, t.job->token_slots + t.slot, a->n_used};
		struct row_set gate = {a->hidden + t.hidden * a->n_ff + t.first, a->n_ff, NULL, 1};
		struct row_set up = {mine + a->product, t.n_w, NULL, 1};
		cpu_matmul_block(a->b, &t.job->gate, 0, t.first, t.n_w, &x, &gate, t.n_x, false, mine);
		cpu_matmul_block(a->b, &t.job->up, 0, t.first, t.n_w, &x, &up, t.n_x, false, mine);
		for (int p = 0; p < t.n_x; p++)
			a->b->isa->swiglu(row_at(&gate, p), row_at(&up, p), (size_t)t.n_w, row_at(&gate, p));
	}
}

static void down_task(const void *context, int64_t task, int64_t last, int thread)
{
	const struct expert_ffn_job *a = context;
	struct expert_tile t;
	for (; task < last; task++) {
		if (!expert_tile_of(a, &a->down, true, task, &t))
			continue;
		struct row_set x = {a->hidden + t.hidden * a->n_ff, a->n_ff, NULL, 1};
		struct row_set y = {a->out + t.first, t.job->down.n_out, t.job->token_slots + t.slot, 1};
		cpu_matmul_block(a->b, &t.job->down, 0, t.first, t.n_w, &x, &y, t.n_x, false,
			a->scratch + (size_t)thread * a->each);
	}
}

/* The input of gate and up, or of down, of every job. */
static void observe_experts(const struct expert_ffn_job *a, int n_jobs, bool down)
{
	const struct backend *b = &a->b->base;
	for (int j = 0; j < n_jobs && b->observer && !b->failure.code; j++) {
		const struct expert_job *job = &a->jobs[j];
		struct product_input in = {.expert = job,
			.x = a->x,
			.stride = job->gate.n_in,
			.index = job->token_slots,
			.divisor = a->n_used,
			.n = job->n_token_slots};
		if (down) {
			in.x = a->hidden + a->first_slot[j] * a->n_ff;
			in.stride = a->n_ff;
			in.index = NULL;
		}
		in.w = down ? &job->down : &job->gate;
		cpu_observe(b, &in);
		in.w = &job->up;
		if (!down)
			cpu_observe(b, &in);
	}
}

/* The experts of a layer have the same types, so the jobs of a step go the same way in every call.
 */
static bool experts_take_limbs(
	const struct cpu_backend *b, const struct expert_job *jobs, int n_jobs, int rows)
{
	bool covered = cpu_is_fast_prompt(b, rows);
	for (int j = 0; j < n_jobs && covered; j++)
		covered = limb_matmul_covers(&jobs[j].gate) && limb_matmul_covers(&jobs[j].up) &&
				  limb_matmul_covers(&jobs[j].down);
	return covered;
}

size_t cpu_expert_scratch(
	const struct backend *base, const struct expert_job *shape, int rows, int n_used)
{
	const struct cpu_backend *b = (const struct cpu_backend *)base;
	return experts_take_limbs(b, shape, 1, rows) ? limb_expert_prompts_bytes(b, shape, rows, n_used)
												 : 0;
}

/* Divides the work into tasks and lays out the scratch memory: a->hidden, a->scratch,
 * a->first_slot and the memory of a->order. False: the failure is kept, or there is nothing to do.
 */
static bool experts_layout(struct cpu_backend *b, struct expert_ffn_job *a, int n_jobs)
{
	const struct expert_job *jobs = a->jobs;
	int64_t n_slots = 0, n_embd = 0;
	int most = 0;
	for (int j = 0; j < n_jobs; j++) {
		n_slots += jobs[j].n_token_slots;
		most = MAX(most, jobs[j].n_token_slots);
		a->n_ff = MAX(a->n_ff, jobs[j].gate.n_out);
		n_embd = MAX(n_embd, jobs[j].down.n_out);
	}
	if (b->base.failure.code || !n_slots)
		return false;
	a->up = expert_tiling(b, n_embd, a->n_ff, n_jobs, n_slots, most);
	a->down = expert_tiling(b, a->n_ff, n_embd, n_jobs, n_slots, most);
	const size_t threads = (size_t)MAX(a->up.tiling.threads, a->down.tiling.threads),
				 tile = (size_t)a->up.tiling.w_rows * (size_t)a->up.tiling.x_rows,
				 hidden_values = num_align_up((uint64_t)n_slots * (uint64_t)a->n_ff, 16);
	a->product = cpu_matmul_scratch_bytes() / sizeof(float);
	a->each = num_align_up(a->product + tile, 16);
	const uint64_t bytes = ((uint64_t)hidden_values + threads * a->each) * sizeof(float);
	a->hidden = cpu_scratch(
		b, bytes + (uint64_t)n_jobs * (sizeof(int64_t) + sizeof(int32_t)), "expert_ffn");
	if (!a->hidden)
		return false;
	a->scratch = a->hidden + hidden_values;
	int64_t *first_slot = (int64_t *)(void *)(a->scratch + threads * a->each);
	for (int64_t j = 0, first = 0; j < n_jobs; first += jobs[j++].n_token_slots)
		first_slot[j] = first;
	a->first_slot = first_slot;
	cpu_order_jobs(b, jobs, n_jobs, (int32_t *)(first_slot + n_jobs), &a->order);
	return true;
}

void cpu_expert_ffn(struct backend *base, const float *x, const struct expert_job *jobs, int n_jobs,
	int rows, int n_used, float *out)
{
	struct cpu_backend *b = cpu_of(base);
	if (experts_take_limbs(b, jobs, n_jobs, rows)) {
		limb_expert_prompts(base, x, jobs, n_jobs, rows, n_used, out);
		return;
	}
	struct expert_ffn_job a = {.b = b, .jobs = jobs, .x = x, .out = out, .n_used = n_used};
	if (!experts_layout(b, &a, n_jobs))
		return;
	observe_experts(&a, n_jobs, false);
	cpu_run_jobs(b, a.up.tiling.threads, &a.order, a.up.w_parts * a.up.x_parts, gate_up_task, &a);
	observe_experts(&a, n_jobs, true);
	cpu_run_jobs(
		b, a.down.tiling.threads, &a.order, a.down.w_parts * a.down.x_parts, down_task, &a);
}

void cpu_expert_results(struct backend *b, const float *x, const float *results,
	const struct expert_job *jobs, int n_jobs, int rows, int n_used, int n_embd, float *out)
{
	(void)x;
	(void)rows;
	(void)n_used;
	for (int j = 0; j < n_jobs && !b->failure.code; j++)
		for (int i = 0; i < jobs[j].n_token_slots; i++) {
			int64_t at = (int64_t)jobs[j].token_slots[i] * n_embd;
			memcpy(out + at, results + at, (size_t)n_embd * sizeof *out);
		}
}

/* ---- weighted sum ---- */

struct combine_job {
	const float *out, *weights, *shared;
	float *x;
	int n, n_used, chunks; /* tasks of a row */
};

#define COMBINE_CHUNK 1024 /* values of a task */

static void combine_task(const void *context, int64_t task, int64_t last, int thread)
{
	const struct combine_job *a = context;
	int64_t n = a->n;
	(void)thread;
	for (; task < last; task++) {
		int64_t r = task / a->chunks, first = task % a->chunks * COMBINE_CHUNK;
		int count = (int)MIN(COMBINE_CHUNK, n - first);
		float sum[COMBINE_CHUNK] = {0}, *dst = a->x + r * n + first;
		for (int k = 0; k < a->n_used; k++) {
			const float *row = a->out + (r * a->n_used + k) * n + first,
						w = a->weights[r * a->n_used + k];
#pragma omp simd
			for (int c = 0; c < count; c++)
				sum[c] += w * row[c];
		}
		const float *add = a->shared + r * n + first;
#pragma omp simd
		for (int c = 0; c < count; c++)
			dst[c] += sum[c] + add[c];
	}
}

void cpu_moe_combine(struct backend *b, const float *out, const float *weights, int n_used,
	const float *shared, int rows, int n, float *x, const struct norm *next, float eps)
{
	if (b->failure.code)
		return;
	struct combine_job job = {.out = out,
		.weights = weights,
		.shared = shared,
		.x = x,
		.n = n,
		.n_used = n_used,
		.chunks = (n + COMBINE_CHUNK - 1) / COMBINE_CHUNK};
	int threads = cpu_threads_for(cpu_of(b), 2.0 * rows * n * n_used);
	cpu_run_rows(cpu_of(b), threads, (int64_t)rows * job.chunks, combine_task, &job);
	if (next)
		cpu_rms_norm(b, x, n, next, 1, eps, rows, n, n);
}
