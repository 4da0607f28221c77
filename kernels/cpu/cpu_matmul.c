/* SPDX-License-Identifier: MIT */
/*
 * Packed weights times float rows: gemv for a few activation rows (gemv_rows_max, by type),
 * cache-blocked gemm for more.
 *
 * gemv: isa->matvec decodes in registers, packed types once for all activation rows (but for the
 * last n_out % 4 weight rows). gemm: a tile of weight rows is decoded to floats that stay in the L2
 * cache, and register tiles of 4 weight rows by 6 activation rows run over it. Rows longer than a
 * panel are processed panel by panel; the 16 partial sums of every output are kept in `acc`. This
 * does not change the order of additions, so both ways give the same bits. Weights with block
 * scales always take gemm, which multiplies the decoded tile by its scales. Fast prompts take
 * limbs/limb_matmul.h.
 *
 *                 panel (<= 768 values)
 *     x rows  6 |=========|          |        the 6 x 768 floats of x stay in the L1 cache
 *     w rows 32 |=========|          |        while 8 tiles of 4 decoded weight rows pass
 */
#include "kernels/cpu/cpu_internal.h"

#include "kernels/cpu/limbs/limb_matmul.h"
#include "src/base/num.h"

#include <string.h>

#define PANEL      768 /* values, a multiple of every block */
#define W_ROWS     32  /* weight rows decoded together, a multiple of DOT_TILE_W */
#define X_ROWS     96  /* activation rows per decoded tile, a multiple of DOT_TILE_X */
#define W_VALUES   (W_ROWS * PANEL)
#define ACC_VALUES (W_ROWS * X_ROWS * DOT_LANES)

size_t cpu_matmul_scratch_bytes(void)
{
	return (W_VALUES + ACC_VALUES) * sizeof(float);
}

/* Values of a panel: as few panels as possible, about equal, each a multiple of 256 values. */
static int64_t panel_values(int64_t n)
{
	int64_t panels = (n + PANEL - 1) / PANEL;
	return (n + panels * 256 - 1) / (panels * 256) * 256;
}

/* values[0 .. n), of weight row `row` from value k on (a multiple of the block), times their
 * scales.
 */
static void scale_values(const struct weight *w, int64_t row, int64_t k, int64_t n, float *values)
{
	const int64_t block = DTYPE_SCALE_BLOCK;
	const uint8_t *scales =
		(const uint8_t *)w->scales +
		(size_t)(row / block * ((w->n_in + block - 1) / block) + k / block) * sizeof(float);
	for (; n > 0; n -= block, values += block, scales += sizeof(float)) {
		float scale;
		memcpy(&scale, scales, sizeof scale);
		const int64_t m = MIN(n, block);
#pragma omp simd
		for (int64_t i = 0; i < m; i++)
			values[i] *= scale;
	}
}

/* Pointers to the floats of n_w rows from row `first` on, values [k, k + n): decoded into `buffer`,
 * or the rows themselves. data: the first row. */
static void decode_rows(const struct cpu_isa *isa, const struct weight *w, const uint8_t *data,
	int64_t first, int64_t n_w, int64_t k, int64_t n, float *buffer, const float **row)
{
	const struct dtype_info *info = dtype_info(w->type);
	for (int64_t i = 0; i < n_w; i++) {
		const uint8_t *src =
			data + (size_t)i * w->row_bytes + (size_t)(k / info->block_values) * info->block_bytes;
		if (w->type == DTYPE_F32 && (uintptr_t)src % sizeof(float) == 0) {
			row[i] = (const float *)src;
		} else {
			isa->decode(w->type, src, buffer + i * PANEL, (size_t)n);
			if (w->scales)
				scale_values(w, first + i, k, n, buffer + i * PANEL);
			row[i] = buffer + i * PANEL;
		}
	}
}

/* cpu_matmul_block for at most W_ROWS weight rows and X_ROWS activation rows. */
static void matmul_panels(const struct cpu_backend *b, const struct weight *w, const uint8_t *data,
	int64_t first_w, int64_t n_w, const struct row_set *x, const struct row_set *y, int first_x,
	int n_x, bool add, float *scratch)
{
	float *acc = scratch, *decoded = scratch + ACC_VALUES, out[DOT_TILE_X * DOT_TILE_W];
	const float *row[W_ROWS];
	int64_t panel = panel_values(w->n_in);
	for (int64_t k = 0; k < w->n_in; k += panel) {
		int64_t n = MIN(panel, w->n_in - k);
		decode_rows(b->isa, w, data, first_w, n_w, k, n, decoded, row);
		struct dot_tile t = {.n = (size_t)n, .first = k == 0, .last = k + n == w->n_in, .out = out};
		for (int j = 0; j < n_x; j += DOT_TILE_X) {
			t.n_x = MIN(n_x - j, DOT_TILE_X);
			for (int c = 0; c < t.n_x; c++)
				t.x[c] = row_at(x, first_x + j + c) + k;
			for (int64_t i = 0; i < n_w; i += DOT_TILE_W) {
				int tile_w = (int)MIN(n_w - i, DOT_TILE_W);
				for (int c = 0; c < DOT_TILE_W; c++)
					t.w[c] = row[i + MIN(c, tile_w - 1)];
				t.acc = acc + (j * W_ROWS + i * DOT_TILE_X) * DOT_LANES;
				b->isa->tile(&t);
				if (!t.last)
					continue;
				for (int c = 0; c < t.n_x; c++) {
					float *dst = row_at(y, first_x + j + c) + i;
					for (int d = 0; d < tile_w; d++)
						dst[d] = add ? dst[d] + out[c * DOT_TILE_W + d] : out[c * DOT_TILE_W + d];
				}
			}
		}
	}
}

/* Most activation rows for which gemv is faster than gemm. */
static int gemv_rows_max(const struct weight *w)
{
	const enum dtype type = w->type;
	if (w->scales)
		return 0;
	if (type == DTYPE_F32) /* gemm has nothing to decode */
		return 1;
	return type == DTYPE_F16 || type == DTYPE_BF16 ? 3 : GEMV_ROWS_MAX;
}

void cpu_matmul_block(const struct cpu_backend *b, const struct weight *w, int64_t stack,
	int64_t first, int64_t n_w, const struct row_set *x, const struct row_set *y, int n_x, bool add,
	float *scratch)
{
	const uint8_t *data =
		(const uint8_t *)w->data + (size_t)stack * w->stack_bytes + (size_t)first * w->row_bytes;
	if (n_x <= gemv_rows_max(w)) {
		const float *in[GEMV_ROWS_MAX];
		float *out[GEMV_ROWS_MAX];
		for (int j = 0; j < n_x; j++) {
			in[j] = row_at(x, j);
			out[j] = row_at(y, j);
		}
		b->isa->matvec(w->type, data, w->row_bytes, (size_t)w->n_in, in, n_x, (int)n_w, out, add);
		return;
	}
	for (int64_t i = 0; i < n_w; i += W_ROWS) {
		struct row_set part = *y;
		part.data += i;
		for (int j = 0; j < n_x; j += X_ROWS)
			matmul_panels(b, w, data + (size_t)i * w->row_bytes, first + i, MIN(n_w - i, W_ROWS), x,
				&part, j, MIN(n_x - j, X_ROWS), add, scratch);
	}
}

struct cpu_tiling cpu_matmul_tiling(
	const struct cpu_backend *b, double macs, int64_t n_out, int n_x)
{
	struct cpu_tiling tiling = {.x_rows = MIN(n_x, X_ROWS), .threads = cpu_threads_for(b, macs)};
	int64_t share = n_out;
	if (tiling.threads > 1)
		share /= tiling.threads * 4; /* four tasks per thread balance the load */
	if (n_x > 1)                     /* on one thread too: a stop takes effect between tasks only */
		share = MIN(share, W_ROWS);
	tiling.w_rows = MAX((share + DOT_TILE_W - 1) / DOT_TILE_W * DOT_TILE_W, DOT_TILE_W);
	return tiling;
}

/* ---- ops ---- */

/* Number of tasks of one product: (matrix of the stack, tile of weight rows, tile of activation
 * rows). */
static int64_t tiling_tasks(const struct cpu_tiling *tiling, const struct weight *w, int rows)
{
	return w->n_stack * ((w->n_out + tiling->w_rows - 1) / tiling->w_rows) *
		   ((rows + tiling->x_rows - 1) / tiling->x_rows);
}

/* matmul: parts of x or of their own; stacked_matmul: one part, whose matrices read and write
 * x_step and y_step apart. */
struct matmul_job {
	const struct cpu_backend *b;
	struct cpu_tiling tiling;
	int rows;
	float *scratch; /* [threads] of cpu_matmul_scratch_bytes */
	const struct matmul *parts;
	struct row_set x;
	int64_t y_stride; /* 0: n_out of the part */
	int64_t x_step, y_step;
};

static void matmul_task_run(
	const struct matmul_job *a, const struct matmul *m, int64_t task, int thread)
{
	const struct weight *w = &m->w;
	const struct cpu_tiling *tiling = &a->tiling;
	int64_t w_parts = (w->n_out + tiling->w_rows - 1) / tiling->w_rows;
	int64_t x_parts = (a->rows + tiling->x_rows - 1) / tiling->x_rows;
	int64_t first = task / x_parts % w_parts * tiling->w_rows, stack = task / x_parts / w_parts;
	int first_x = (int)(task % x_parts) * tiling->x_rows;
	struct row_set x = a->x, y = {m->y, a->y_stride ? a->y_stride : w->n_out, NULL, 1};
	x.data = (m->x ? (float *)m->x : x.data) + stack * a->x_step + first_x * x.stride;
	y.data += stack * a->y_step + first_x * y.stride + first;
	cpu_matmul_block(a->b, w, stack, first, MIN(tiling->w_rows, w->n_out - first), &x, &y,
		MIN(tiling->x_rows, a->rows - first_x), m->add,
		a->scratch + (size_t)thread * (cpu_matmul_scratch_bytes() / sizeof *a->scratch));
}

static void matmul_task(const void *context, int64_t first, int64_t last, int thread)
{
	const struct matmul_job *a = context;
	for (; first < last; first++) {
		const struct matmul *m = a->parts;
		int64_t task = first, n;
		while (task >= (n = tiling_tasks(&a->tiling, &m->w, a->rows))) {
			task -= n;
			m++;
		}
		matmul_task_run(a, m, task, thread);
	}
}

static void matmul_run(
	struct cpu_backend *b, struct matmul_job *job, int n_parts, int rows, const char *op)
{
	int64_t n_out = 0, n_tasks = 0;
	for (int p = 0; p < n_parts; p++)
		n_out += job->parts[p].w.n_out * job->parts[p].w.n_stack;
	job->b = b;
	job->rows = rows;
	job->tiling =
		cpu_matmul_tiling(b, (double)job->parts[0].w.n_in * (double)n_out * rows, n_out, rows);
	job->scratch = cpu_scratch(b, (uint64_t)job->tiling.threads * cpu_matmul_scratch_bytes(), op);
	if (!job->scratch)
		return;
	for (int p = 0; p < n_parts; p++)
		n_tasks += tiling_tasks(&job->tiling, &job->parts[p].w, rows);
	cpu_run(b, job->tiling.threads, n_tasks, 1, matmul_task, job);
}

/* Whether a product is computed in the way of fast prompts. */
static bool takes_limbs(const struct cpu_backend *b, const struct weight *w, int rows)
{
	return cpu_is_fast_prompt(b, rows) && limb_matmul_covers(w);
}

size_t cpu_matmul_scratch(const struct backend *base, const struct weight *w, int rows)
{
	const struct cpu_backend *b = (const struct cpu_backend *)base;
	return takes_limbs(b, w, rows) ? limb_matmul_bytes(b, w, rows) : 0;
}

static void matmul_limbs(
	struct cpu_backend *b, const struct matmul *parts, int n, const float *x, int rows)
{
	for (int i = 0, end; i < n; i = end) {
		struct limb_product products[8];
		for (end = i; end < n && end - i < (int)ARRAY_LEN(products); end++)
			products[end - i] = (struct limb_product){.w = parts[end].w,
				.x = parts[end].x ? parts[end].x : x,
				.x_stride = parts[end].w.n_in,
				.y = parts[end].y,
				.y_stride = parts[end].w.n_out,
				.add = parts[end].add};
		limb_matmul(b, products, end - i, rows);
	}
}

void cpu_matmul(
	struct backend *base, const struct matmul *parts, int n_parts, const float *x, int rows)
{
	if (base->failure.code || !n_parts || !rows)
		return;
	for (int p = 0; base->observer && p < n_parts; p++)
		cpu_observe(base, &(struct product_input){.w = &parts[p].w,
							  .x = parts[p].x ? parts[p].x : x,
							  .stride = parts[p].w.n_in,
							  .n = rows});
	struct cpu_backend *b = cpu_of(base);
	for (int p = 0, end; p < n_parts && !base->failure.code; p = end) {
		const bool limbs = takes_limbs(b, &parts[p].w, rows);
		for (end = p + 1; end < n_parts && takes_limbs(b, &parts[end].w, rows) == limbs;)
			end++;
		if (limbs) {
			matmul_limbs(b, parts + p, end - p, x, rows);
			continue;
		}
		struct matmul_job job = {.parts = parts + p, .x = {(float *)x, parts[0].w.n_in, NULL, 1}};
		matmul_run(b, &job, end - p, rows, "matmul");
	}
}

void cpu_ffn(struct backend *b, const struct ffn *a, int rows)
{
	const struct matmul parts[] = {{.w = a->gate, .y = a->hidden}, {.w = a->up, .y = a->scratch}};
	cpu_matmul(b, parts, 2, a->x, rows);
	cpu_swiglu(b, a->hidden, a->scratch, rows * a->gate.n_out, a->hidden);
	cpu_matmul(b, &(struct matmul){.w = a->down, .y = a->y, .add = a->add}, 1, a->hidden, rows);
}

void cpu_stacked_matmul(struct backend *base, const struct stacked_matmul *a, int rows)
{
	if (base->failure.code || !rows)
		return;
	if (base->observer)
		cpu_observe(base, &(struct product_input){.w = &a->w,
							  .x = a->x,
							  .stride = a->w.n_stack * a->x_stride,
							  .stack_step = a->x_stride,
							  .n = rows});
	if (takes_limbs(cpu_of(base), &a->w, rows)) {
		limb_matmul(cpu_of(base),
			&(struct limb_product){.w = a->w,
				.x = a->x,
				.x_stride = a->w.n_stack * a->x_stride,
				.x_step = a->x_stride,
				.y = a->y,
				.y_stride = a->w.n_stack * a->y_stride,
				.y_step = a->y_stride},
			1, rows);
		return;
	}
	struct matmul all = {.w = a->w, .y = a->y};
	struct matmul_job job = {.parts = &all,
		.x = {(float *)a->x, a->w.n_stack * a->x_stride, NULL, 1},
		.y_stride = a->w.n_stack * a->y_stride,
		.x_step = a->x_stride,
		.y_step = a->y_stride};
	matmul_run(cpu_of(base), &job, 1, rows, "stacked_matmul");
}
