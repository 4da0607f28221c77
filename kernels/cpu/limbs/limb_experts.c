/* SPDX-License-Identifier: MIT */
/*
 * Four parallel loops:
 *   1. x is split into limbs, once per weight type, because each type has its own order
 *      (limb_place);
 *   2. gate and up with SwiGLU, into a hidden row for each slot;
 *   3. hidden rows are split into limbs;
 *   4. down.
 * A task of stages 2 and 4 has weight rows of one job, and all of its slots, limb_isa.most_x at a
 * time, so that weights are read from memory once. The rows of a job are cut into as many tasks as
 * there are threads, no more: a thread prefetches the rows that it multiplies next, and with small
 * tasks these would often be another thread's.
 */
#include "kernels/cpu/limbs/limb_experts.h"

#include "kernels/cpu/limbs/limb_rows.h"
#include "src/base/num.h"

#include <string.h>

#define SPLIT_BLOCKS 4 /* super-blocks of a task that makes limbs */
#define TYPES_MAX    7 /* of expert_arithmetic_covers */

/* x as limbs for one type of weights */
struct limb_x {
	enum dtype type;
	struct limb_block *blocks; /* [rows][blocks of a row] */
};

struct limb_ffn_job {
	const struct cpu_backend *b;
	const struct limb_isa *isa;
	const struct expert_job *jobs;
	const float *x;
	float *out;
	int n_jobs, n_used, n_types;
	bool prompt; /* limb_expert_prompts: limbs are rounded */
	int64_t n_embd, n_ff, n_slots;
	struct limb_x x_limbs[TYPES_MAX]; /* [n_types]: one for each type of gate and up */
	float *hidden;                    /* [slots][n_ff] */
	struct limb_block *hidden_limbs;  /* [slots][blocks of a hidden row] */
	int64_t *first_slot;              /* [n_jobs + 1]: the first hidden row of each job */
	struct job_order order;
	int64_t in_rows, down_rows;       /* of a task, multiples of LIMB_ROWS */
	int64_t in_tasks, down_tasks;     /* of a job */
	uint8_t *memory;                  /* [threads][memory_bytes] */
	size_t memory_bytes, panel_bytes; /* both multiples of 64; panel_bytes: the first of them */
};

static struct limb_x *limb_x_of(const struct limb_ffn_job *a, enum dtype type)
{
	for (int i = 0; i < a->n_types; i++)
		if (a->x_limbs[i].type == type)
			return (struct limb_x *)&a->x_limbs[i];
	return NULL;
}

/* What a thread writes besides its outputs. */
struct limb_memory {
	int8_t *panel; /* limb_isa.gather's */
	float *up;     /* [most_x][rows of a task]: outputs of up, or of down */
};

static struct limb_memory memory_of(const struct limb_ffn_job *a, int thread)
{
	uint8_t *at = a->memory + a->memory_bytes * (size_t)thread;
	return (struct limb_memory){(int8_t *)at, (float *)(void *)(at + a->panel_bytes)};
}

/* ---- tasks ---- */

/* Part `part` of a row of n values as limbs */
static void split_part(const struct limb_ffn_job *a, enum dtype type, const float *x, int64_t n,
	int64_t part, struct limb_block *out)
{
	int64_t first = part * SPLIT_BLOCKS;
	const int64_t n_part = MIN(n - 256 * first, (int64_t)256 * SPLIT_BLOCKS);
	a->isa->split(type, x + 256 * first, n_part, out + first);
	if (a->prompt)
		limb_round(out + first, n_part);
}

static int64_t split_parts(int64_t n)
{
	return (limb_x_blocks(n) + SPLIT_BLOCKS - 1) / SPLIT_BLOCKS;
}

static void split_x_task(const void *context, int64_t task, int64_t last, int thread)
{
	const struct limb_ffn_job *a = context;
	int64_t parts = split_parts(a->n_embd);
	(void)thread;
	for (; task < last; task++)
		for (int i = 0; i < a->n_types; i++) {
			int64_t row = task / parts;
			split_part(a, a->x_limbs[i].type, a->x + row * a->n_embd, a->n_embd, task % parts,
				a->x_limbs[i].blocks + row * limb_x_blocks(a->n_embd));
		}
}

static void split_hidden_task(const void *context, int64_t task, int64_t last, int thread)
{
	const struct limb_ffn_job *a = context;
	int64_t j = 0, parts = split_parts(a->n_ff);
	(void)thread;
	for (; task < last; task++) {
		int64_t slot = task / parts;
		while (slot >= a->first_slot[j + 1])
			j++;
		split_part(a, a->jobs[j].down.type, a->hidden + slot * a->n_ff, a->n_ff, task % parts,
			a->hidden_limbs + slot * limb_x_blocks(a->n_ff));
	}
}

/* Slots [at, at + most_x) of a job, as many as it has. */
static int slots_at(const struct limb_ffn_job *a, const struct expert_job *job, int at)
{
	return MIN(job->n_token_slots - at, a->isa->most_x);
}

/* Rows [begin, end) of a matrix; its rows of x and its outputs are still to be set. */
static struct limb_task matrix_task(
	const struct limb_ffn_job *a, const struct weight *w, int64_t begin, int64_t end, int n_x)
{
	return (struct limb_task){.type = w->type,
		.w = (const uint8_t *)w->data + (size_t)begin * w->row_bytes,
		.row_bytes = w->row_bytes,
		.n_rows = end - begin,
		.n_in = w->n_in,
		.n_x = n_x,
		.n_parts = expert_split(w->type, w->n_in, w->n_out * a->n_used)};
}

static void task_gather(const struct limb_ffn_job *a, struct limb_task *t, int8_t *panel)
{
	t->panel = panel;
	if (a->isa->gather)
		a->isa->gather(t, panel);
}

/* Rows of gate and up from `begin` on, for the slots of job j from `at` on. */
static void gate_up_rows(
	const struct limb_ffn_job *a, int64_t j, int at, int64_t begin, const struct limb_memory *m)
{
	const struct expert_job *job = &a->jobs[j];
	const int64_t blocks = limb_x_blocks(a->n_embd), end = MIN(begin + a->in_rows, a->n_ff);
	float *hidden = a->hidden + (a->first_slot[j] + at) * a->n_ff + begin;
	struct limb_task g = matrix_task(a, &job->gate, begin, end, slots_at(a, job, at)),
					 u = matrix_task(a, &job->up, begin, end, g.n_x);
	for (int i = 0; i < g.n_x; i++) {
		int64_t row = job->token_slots[at + i] / a->n_used;
		g.x[i] = limb_x_of(a, g.type)->blocks + row * blocks;
		u.x[i] = limb_x_of(a, u.type)->blocks + row * blocks;
	}
	g.out = hidden;
	g.out_stride = a->n_ff;
	u.out = m->up;
	u.out_stride = a->in_rows;
	task_gather(a, &g, m->panel);
	a->isa->multiply(&g);
	if (u.type == g.type)
		u.panel = g.panel;
	else
		task_gather(a, &u, m->panel);
	a->isa->multiply(&u);
	for (int i = 0; i < g.n_x; i++)
		a->b->isa->swiglu(
			hidden + i * a->n_ff, u.out + i * u.out_stride, (size_t)g.n_rows, hidden + i * a->n_ff);
}

static void gate_up_task(const void *context, int64_t task, int64_t last, int thread)
{
	const struct limb_ffn_job *a = context;
	const struct limb_memory m = memory_of(a, thread);
	for (; task < last; task++) {
		int64_t j = job_at(&a->order, task / a->in_tasks), begin = task % a->in_tasks * a->in_rows;
		for (int at = 0; at < a->jobs[j].n_token_slots; at += a->isa->most_x)
			gate_up_rows(a, j, at, begin, &m);
	}
}

static void down_rows(
	const struct limb_ffn_job *a, int64_t j, int at, int64_t begin, const struct limb_memory *m)
{
	const struct expert_job *job = &a->jobs[j];
	struct limb_task d = matrix_task(
		a, &job->down, begin, MIN(begin + a->down_rows, a->n_embd), slots_at(a, job, at));
	for (int i = 0; i < d.n_x; i++)
		d.x[i] = a->hidden_limbs + (a->first_slot[j] + at + i) * limb_x_blocks(a->n_ff);
	d.out = m->up;
	d.out_stride = a->down_rows;
	task_gather(a, &d, m->panel);
	a->isa->multiply(&d);
	for (int i = 0; i < d.n_x; i++)
		memcpy(a->out + job->token_slots[at + i] * a->n_embd + begin, d.out + i * d.out_stride,
			(size_t)d.n_rows * sizeof(float));
}

static void down_task(const void *context, int64_t task, int64_t last, int thread)
{
	const struct limb_ffn_job *a = context;
	const struct limb_memory m = memory_of(a, thread);
	for (; task < last; task++) {
		int64_t j = job_at(&a->order, task / a->down_tasks),
				begin = task % a->down_tasks * a->down_rows;
		for (int at = 0; at < a->jobs[j].n_token_slots; at += a->isa->most_x)
			down_rows(a, j, at, begin, &m);
	}
}

/* ---- the op ---- */

static void add_type(struct limb_ffn_job *a, enum dtype type)
{
	if (!limb_x_of(a, type))
		a->x_limbs[a->n_types++].type = type;
}

/* Rows of a task, so that each thread gets one of n rows. */
static int64_t task_rows(int64_t n, int threads)
{
	const int64_t groups = (n + LIMB_ROWS - 1) / LIMB_ROWS;
	return LIMB_ROWS * ((groups + threads - 1) / threads);
}

/* How the work is divided among `threads`: rows and tasks of a job. */
static void divide_rows(struct limb_ffn_job *a, int threads)
{
	a->in_rows = task_rows(a->n_ff, threads);
	a->down_rows = task_rows(a->n_embd, threads);
	a->in_tasks = (a->n_ff + a->in_rows - 1) / a->in_rows;
	a->down_tasks = (a->n_embd + a->down_rows - 1) / a->down_rows;
}

/* Sizes of the parts of the scratch memory, in their order. */
struct limb_ffn_sizes {
	uint64_t x_bytes; /* limbs of x for a type */
	uint64_t hidden_limb_bytes, hidden_bytes, thread_bytes, job_bytes;
	uint64_t bytes; /* all of it */
};

/* Sets the sizes of a thread's memory in *a, too. */
static struct limb_ffn_sizes scratch_sizes(struct limb_ffn_job *a, int rows, int threads)
{
	const uint64_t slots = (uint64_t)a->n_slots;
	if (a->isa->gather)
		a->panel_bytes = limb_panel_bytes(a->isa->most_x, MAX(a->n_embd, a->n_ff));
	a->memory_bytes = a->panel_bytes + (size_t)a->isa->most_x *
										   (size_t)MAX(a->in_rows, a->down_rows) * sizeof(float);
	struct limb_ffn_sizes s = {
		.x_bytes = (uint64_t)rows * (uint64_t)limb_x_blocks(a->n_embd) * sizeof(struct limb_block),
		.hidden_limb_bytes = slots * (uint64_t)limb_x_blocks(a->n_ff) * sizeof(struct limb_block),
		.hidden_bytes = num_align_up(slots * (uint64_t)a->n_ff * sizeof(float), 64),
		.thread_bytes = a->memory_bytes * (uint64_t)threads,
		.job_bytes = ((uint64_t)a->n_jobs + 1) * (sizeof(int64_t) + sizeof(int32_t))};
	s.bytes = s.x_bytes * (uint64_t)a->n_types + s.hidden_limb_bytes + s.hidden_bytes +
			  s.thread_bytes + s.job_bytes;
	return s;
}

/* Lays out the scratch memory; false: there is none, the failure is kept. */
static bool scratch_layout(struct cpu_backend *b, struct limb_ffn_job *a, int rows, int threads)
{
	const struct limb_ffn_sizes s = scratch_sizes(a, rows, threads);
	uint8_t *at = cpu_scratch(b, s.bytes, "expert_ffn");
	if (!at)
		return false;
	for (int i = 0; i < a->n_types; i++, at += s.x_bytes)
		a->x_limbs[i].blocks = (struct limb_block *)(void *)at;
	a->hidden_limbs = (struct limb_block *)(void *)at;
	at += s.hidden_limb_bytes;
	a->hidden = (float *)(void *)at;
	a->memory = at + s.hidden_bytes;
	a->first_slot = (int64_t *)(void *)(a->memory + s.thread_bytes);
	return true;
}

uint64_t limb_expert_prompts_bytes(
	const struct cpu_backend *b, const struct expert_job *shape, int rows, int n_used)
{
	struct limb_ffn_job a = {.isa = limb_isa_of_prompts(b->limbs),
		.n_embd = shape->gate.n_in,
		.n_ff = shape->gate.n_out,
		.n_slots = (int64_t)rows * n_used};
	a.n_jobs = (int)MIN(a.n_slots, INT32_MAX);
	add_type(&a, shape->gate.type);
	add_type(&a, shape->up.type);
	uint64_t most = 0;
	/* a small product takes fewer threads, each with more rows */
	for (int threads = 1; threads <= b->threads; threads++) {
		divide_rows(&a, threads);
		most = MAX(most, scratch_sizes(&a, rows, threads).bytes);
	}
	return most;
}

static void experts_run(struct backend *base, const float *x, const struct expert_job *jobs,
	int n_jobs, int rows, int n_used, float *out, bool prompt)
{
	struct cpu_backend *b = cpu_of(base);
	if (base->failure.code || !n_jobs)
		return;
	struct limb_ffn_job a = {.b = b,
		.isa = prompt ? limb_isa_of_prompts(b->limbs) : b->limbs,
		.prompt = prompt,
		.jobs = jobs,
		.x = x,
		.out = out,
		.n_jobs = n_jobs,
		.n_used = n_used,
		.n_embd = jobs[0].gate.n_in,
		.n_ff = jobs[0].gate.n_out};
	for (int j = 0; j < n_jobs; j++) {
		add_type(&a, jobs[j].gate.type);
		add_type(&a, jobs[j].up.type);
		a.n_slots += jobs[j].n_token_slots;
	}
	double macs = (double)a.n_embd * (double)a.n_ff * (double)a.n_slots;
	int threads = cpu_threads_for(b, 3 * macs);
	divide_rows(&a, threads);
	if (!scratch_layout(b, &a, rows, threads))
		return;
	a.first_slot[0] = 0;
	for (int j = 0; j < n_jobs; j++)
		a.first_slot[j + 1] = a.first_slot[j] + jobs[j].n_token_slots;
	cpu_order_jobs(b, jobs, n_jobs, (int32_t *)(a.first_slot + n_jobs + 1), &a.order);
	/* An interrupted loop leaves gaps that the next one must not read. */
	cpu_run(b, threads, rows * split_parts(a.n_embd), 1, split_x_task, &a);
	if (!base->failure.code)
		cpu_run_jobs(b, threads, &a.order, a.in_tasks, gate_up_task, &a);
	if (!base->failure.code)
		cpu_run(b, threads, a.n_slots * split_parts(a.n_ff), 1, split_hidden_task, &a);
	if (!base->failure.code)
		cpu_run_jobs(b, threads, &a.order, a.down_tasks, down_task, &a);
}

void limb_expert_ffn(struct backend *b, const float *x, const struct expert_job *jobs, int n_jobs,
	int rows, int n_used, float *out)
{
	experts_run(b, x, jobs, n_jobs, rows, n_used, out, false);
}

void limb_expert_prompts(struct backend *b, const float *x, const struct expert_job *jobs,
	int n_jobs, int rows, int n_used, float *out)
{
	experts_run(b, x, jobs, n_jobs, rows, n_used, out, true);
}
