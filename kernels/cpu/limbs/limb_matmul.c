/* SPDX-License-Identifier: MIT */
/*
 * Each product is two parallel loops. The first splits x into limbs and gathers them into panels; a
 * task is `unit` rows of x. The second multiplies; a task is TASK_ROWS weight rows of one matrix
 * and all rows of x, limb_isa.most_x at a time, so that its weight rows stay in the L2 cache.
 */
#include "kernels/cpu/limbs/limb_matmul.h"

#include "src/base/num.h"

#include <string.h>

#define TASK_ROWS    64 /* weight rows of a task, a multiple of LIMB_ROWS */
#define PROMPTS_UNIT 16 /* rows of x of a panel of limb_isa.prompts; divides LIMB_X_PROMPTS */

struct limb_matmul_job {
	const struct limb_isa *isa;
	const struct limb_product *p;
	int rows;          /* of x */
	int unit, n_units; /* rows of x of a task of split_task, and how many tasks a matrix has */
	struct limb_block *blocks; /* [stack][rows][blocks of a row] */
	int8_t *panels;            /* [stack][units], panel_bytes each */
	size_t panel_bytes;
	float *added; /* [threads][LIMB_X_PROMPTS][TASK_ROWS]: products that are added to y */
};

bool limb_matmul_covers(const struct weight *w)
{
	return !w->scales && expert_arithmetic_covers(w->type);
}

/* Limbs of row `row` of x */
static struct limb_block *blocks_of(const struct limb_matmul_job *a, int64_t stack, int64_t row)
{
	return a->blocks + (stack * a->rows + row) * limb_x_blocks(a->p->w.n_in);
}

static int8_t *panel_of(const struct limb_matmul_job *a, int64_t stack, int64_t row)
{
	return a->panels + (size_t)(stack * a->n_units + row / a->unit) * a->panel_bytes;
}

/* A task of n rows of x from `first` on, a multiple of a->unit. The caller sets w, n_rows, out and
 * out_stride. */
static struct limb_task rows_task(
	const struct limb_matmul_job *a, int64_t stack, int64_t first, int n)
{
	const struct weight *w = &a->p->w;
	struct limb_task t = {.type = w->type,
		.row_bytes = w->row_bytes,
		.n_in = w->n_in,
		.n_x = n,
		.n_parts = 1,
		.panel = panel_of(a, stack, first)};
	for (int i = 0; i < n; i++)
		t.x[i] = blocks_of(a, stack, first + i);
	return t;
}

static void split_task(const void *context, int64_t task, int64_t last, int thread)
{
	const struct limb_matmul_job *a = context;
	const struct limb_product *p = a->p;
	(void)thread;
	for (; task < last; task++) {
		const int64_t stack = task / a->n_units, first = task % a->n_units * a->unit;
		const int n = (int)MIN(a->rows - first, a->unit);
		for (int i = 0; i < n; i++) {
			struct limb_block *out = blocks_of(a, stack, first + i);
			a->isa->split(
				p->w.type, p->x + stack * p->x_step + (first + i) * p->x_stride, p->w.n_in, out);
			limb_round(out, p->w.n_in);
		}
		const struct limb_task t = rows_task(a, stack, first, n);
		if (a->isa->gather)
			a->isa->gather(&t, panel_of(a, stack, first));
	}
}

static void multiply_task(const void *context, int64_t task, int64_t last, int thread)
{
	const struct limb_matmul_job *a = context;
	const struct limb_product *p = a->p;
	const int64_t n_out = p->w.n_out, parts = (n_out + TASK_ROWS - 1) / TASK_ROWS;
	float *added = a->added + (size_t)thread * LIMB_X_PROMPTS * TASK_ROWS;
	for (; task < last; task++) {
		const int64_t stack = task / parts, row = task % parts * TASK_ROWS,
					  n_rows = MIN(n_out - row, TASK_ROWS);
		const uint8_t *w = (const uint8_t *)p->w.data + (size_t)stack * p->w.stack_bytes +
						   (size_t)row * p->w.row_bytes;
		for (int64_t first = 0; first < a->rows; first += a->isa->most_x) {
			const int n = (int)MIN(a->rows - first, a->isa->most_x);
			float *y = p->y + stack * p->y_step + first * p->y_stride + row;
			struct limb_task t = rows_task(a, stack, first, n);
			t.w = w;
			t.n_rows = n_rows;
			t.out = p->add ? added : y;
			t.out_stride = p->add ? TASK_ROWS : p->y_stride;
			a->isa->multiply(&t);
			for (int i = 0; p->add && i < n; i++)
				for (int64_t r = 0; r < n_rows; r++)
					y[i * p->y_stride + r] += added[i * TASK_ROWS + r];
		}
	}
}

/* Whether a and b have the same limbs of x, at the same place in the scratch memory. */
static bool same_limbs(const struct limb_product *a, const struct limb_product *b)
{
	return a->x == b->x && a->x_stride == b->x_stride && a->x_step == b->x_step &&
		   a->w.type == b->w.type && a->w.n_in == b->w.n_in && a->w.n_stack == b->w.n_stack;
}

/* The division of a product, and the bytes of the parts of its scratch memory in their order. */
struct limb_matmul_layout {
	const struct limb_isa *isa;
	int unit, n_units;
	size_t panel_bytes;
	uint64_t block_bytes, panels_bytes, bytes; /* of all blocks, of all panels, of everything */
};

static struct limb_matmul_layout layout_of(
	const struct cpu_backend *b, const struct weight *w, int rows)
{
	const uint64_t stack = (uint64_t)w->n_stack;
	struct limb_matmul_layout l = {.isa = limb_isa_of_prompts(b->limbs)};
	l.unit = l.isa->most_x > LIMB_X ? PROMPTS_UNIT : LIMB_X;
	l.n_units = (rows + l.unit - 1) / l.unit;
	if (l.isa->gather)
		l.panel_bytes = limb_panel_bytes(l.unit, w->n_in);
	l.block_bytes =
		stack * (uint64_t)rows * (uint64_t)limb_x_blocks(w->n_in) * sizeof(struct limb_block);
	l.panels_bytes = stack * (uint64_t)l.n_units * l.panel_bytes;
	l.bytes = l.block_bytes + l.panels_bytes +
			  (uint64_t)b->threads * LIMB_X_PROMPTS * TASK_ROWS * sizeof(float);
	return l;
}

uint64_t limb_matmul_bytes(const struct cpu_backend *b, const struct weight *w, int rows)
{
	return layout_of(b, w, rows).bytes;
}

/* Lays out the scratch memory for product p. Limbs that the product before has left there stay
 * valid if same_limbs: the sizes are then equal, so that cpu_scratch moves nothing. False: no
 * memory, the failure is kept. */
static bool matmul_layout(
	struct cpu_backend *b, struct limb_matmul_job *a, const struct limb_product *p, int rows)
{
	const struct limb_matmul_layout l = layout_of(b, &p->w, rows);
	uint8_t *at = cpu_scratch(b, l.bytes, "matmul");
	if (!at)
		return false;
	*a = (struct limb_matmul_job){.isa = l.isa,
		.p = p,
		.rows = rows,
		.unit = l.unit,
		.n_units = l.n_units,
		.blocks = (struct limb_block *)(void *)at,
		.panels = (int8_t *)at + l.block_bytes,
		.panel_bytes = l.panel_bytes};
	a->added = (float *)(void *)(a->panels + l.panels_bytes);
	return true;
}

void limb_matmul(struct cpu_backend *b, const struct limb_product *products, int n, int rows)
{
	for (int i = 0; i < n && !b->base.failure.code; i++) {
		const struct limb_product *p = &products[i];
		const double macs =
			(double)p->w.n_in * (double)p->w.n_out * (double)p->w.n_stack * (double)rows;
		const int threads = cpu_threads_for(b, macs);
		struct limb_matmul_job a;
		if (!matmul_layout(b, &a, p, rows))
			return;
		if (i == 0 || !same_limbs(p, p - 1))
			cpu_run(b, threads, p->w.n_stack * a.n_units, 1, split_task, &a);
		if (!b->base.failure.code)
			cpu_run(b, threads, p->w.n_stack * ((p->w.n_out + TASK_ROWS - 1) / TASK_ROWS), 1,
				multiply_task, &a);
	}
}
