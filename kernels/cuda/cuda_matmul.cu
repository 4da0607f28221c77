/* SPDX-License-Identifier: MIT */
/*
 * The ops that multiply weights: they fill tasks of product_kernel and mma_kernel (grid, block and bytes moved: cuda_product.cuh,
 * cuda_product_mma.cuh). Tasks travel
 * as kernel arguments, PRODUCT_TASKS at a time, so no table is uploaded.
 *
 * expert_ffn: two passes, gate and up fused with SwiGLU into hidden rows (scratch, one per place), then down from those to the
 * places. A task is one job and up to 8 of its places. Gate and up of different types are taken one after the other.
 */
#include "kernels/cuda/cuda_attention.cuh"
#include "kernels/cuda/cuda_gemm.cuh"
#include "kernels/cuda/cuda_product.cuh"

bool cuda_product(struct cuda_backend *b, enum dtype type, struct product_args *a)
{
	product_launch *launch = cuda_product_a(type);
	launch = launch ? launch : cuda_product_b(type);
	launch = launch ? launch : cuda_product_c(type);
	launch = launch ? launch : cuda_product_d(type);
	int most = 1;
	a->tables = b->tables;
	a->x_aligned = !((uintptr_t)a->x % 16) && !(a->x_row % 4) && !(a->x_stack % 4) && !(a->n_in % 4);
	a->out_most = 0;
	uintptr_t all = 0;
	for (int i = 0; i < a->n_tasks; i++) {
		all |= (uintptr_t)a->task[i].w | (a->glu ? (uintptr_t)a->task[i].up : 0);
		a->out_most = a->task[i].n_out > a->out_most ? a->task[i].n_out : a->out_most;
		most = a->task[i].n_x > most ? a->task[i].n_x : most;
	}
	bool words = type == DTYPE_F32 || type == DTYPE_Q2_K || type == DTYPE_Q4_K || type == DTYPE_Q5_K;
	if (all % (words ? 4 : 2)) {
		err_set(&b->base.failure, ERR_RUN, "cuda: %s: %s weights at an odd address", b->op, dtype_name(type));
		return false;
	}
	if (a->n_tasks && a->out_most)
		launch(b, a, a->rows == ROWS_PLAIN ? a->n_rows : most);
	return !b->base.failure.code;
}

/* Gives *a the digits of x that its type wants, those of *last if they will do; none if the kernel makes them itself. n_x: rows
 * of x; most: of a task. */
static bool with_digits(struct cuda_backend *b, struct product_args *a, enum dtype type, int64_t n_x,
	int most, struct product_args *last, enum product_layout *last_layout)
{
	enum product_layout layout = cuda_product_layout(type);
	if (layout == LAYOUT_FLOATS || cuda_product_own(b, type, most, a->n_in))
		return true;
	if (layout != *last_layout) {
		*last = *a;
		*last_layout = layout;
		if (!cuda_product_digits(b, last, n_x, layout))
			return false;
	}
	a->digits = last->digits;
	a->scales = last->scales;
	return true;
}

void cuda_matmul(struct backend *base, const struct matmul *parts, int n_parts, const float *x, int rows)
{
	struct cuda_backend *b = cuda_of(base);
	if (!cuda_begin(base, "matmul") || !rows)
		return;
	if (rows > CUDA_FEW_ROWS) {
		cuda_gemm_matmul(b, parts, n_parts, x, rows);
		return;
	}
	/* parts of one type go together, if several rows do not make their strides of y differ */
	bool done[64] = {false};
	struct product_args last = {};
	enum product_layout layout = LAYOUT_FLOATS;
	for (int i = 0; i < n_parts; i++) {
		if (done[i])
			continue;
		const struct weight *w = &parts[i].w;
		struct product_args a = {};
		a.x = x;
		a.x_row = w->n_in;
		a.y_row = w->n_out;
		a.row_bytes = (int64_t)w->row_bytes;
		a.n_in = (int)w->n_in;
		a.n_stack = 1;
		a.n_rows = rows;
		a.split = cuda_product_split(w->type, w->n_in, w->n_out);
		for (int j = i; j < n_parts && a.n_tasks < PRODUCT_TASKS; j++) {
			if (done[j] || parts[j].w.type != w->type || (rows > 1 && parts[j].w.n_out != w->n_out) ||
				cuda_product_split(w->type, w->n_in, parts[j].w.n_out) != a.split)
				continue;
			struct product_task *t = &a.task[a.n_tasks++];
			t->w = (const uint8_t *)parts[j].w.data;
			t->y = parts[j].y;
			t->n_out = (int)parts[j].w.n_out;
			t->add = parts[j].add;
			done[j] = true;
		}
		if (!with_digits(b, &a, w->type, rows, rows, &last, &layout) || !cuda_product(b, w->type, &a))
			return;
	}
}

void cuda_stacked_matmul(struct backend *base, const struct stacked_matmul *m, int rows)
{
	if (!cuda_begin(base, "stacked_matmul") || !rows)
		return;
	if (rows > CUDA_FEW_ROWS) {
		cuda_gemm_stacked(cuda_of(base), m, rows);
		return;
	}
	struct product_args a = {};
	a.x = m->x;
	a.x_row = m->x_stride * m->w.n_stack;
	a.x_stack = m->x_stride;
	a.y_row = m->y_stride * m->w.n_stack;
	a.y_stack = m->y_stride;
	a.row_bytes = (int64_t)m->w.row_bytes;
	a.stack_bytes = (int64_t)m->w.stack_bytes;
	a.n_in = (int)m->w.n_in;
	a.n_stack = (int)m->w.n_stack;
	a.n_rows = rows;
	a.split = cuda_product_split(m->w.type, m->w.n_in, m->w.n_out * m->w.n_stack);
	a.n_tasks = 1;
	a.task[0].w = (const uint8_t *)m->w.data;
	a.task[0].y = m->y;
	a.task[0].n_out = (int)m->w.n_out;
	struct product_args last = {};
	enum product_layout layout = LAYOUT_FLOATS;
	if (with_digits(cuda_of(base), &a, m->w.type, rows, rows, &last, &layout))
		cuda_product(cuda_of(base), m->w.type, &a);
}

/* ---- experts --------------------------------------------------------------------------------------------- */

enum pass { PASS_GLU, PASS_GATE, PASS_UP, PASS_DOWN };

static const struct weight *weight_of(const struct expert_job *job, enum pass pass)
{
	return pass == PASS_DOWN ? &job->down : pass == PASS_UP ? &job->up : &job->gate;
}

/* One pass over the jobs that take part in it, as many tasks per launch as fit. n_x: rows of x. */
static bool run_pass(struct cuda_backend *b, enum pass pass, const float *x, int64_t n_x,
	const struct expert_job *jobs, int n_jobs, int n_used, float *y, int64_t y_row)
{
	struct product_args a = {}, last = {};
	enum product_layout layout = LAYOUT_FLOATS;
	const struct weight *now = NULL; /* what the tasks gathered so far have in common */
	a.x = x;
	a.n_stack = 1;
	a.rows = pass == PASS_DOWN ? ROWS_TO_PLACES : ROWS_TO_HIDDEN;
	a.glu = pass == PASS_GLU;
	a.y_row = y_row;
	int hidden = 0, most = 1;
	for (int j = 0; j < n_jobs; j++)
		most = jobs[j].n_places > most ? jobs[j].n_places : most;
	for (int j = 0; j < n_jobs; hidden += jobs[j++].n_places) {
		const struct weight *w = weight_of(&jobs[j], pass);
		bool fused = jobs[j].gate.type == jobs[j].up.type;
		if ((pass == PASS_GLU && !fused) || ((pass == PASS_GATE || pass == PASS_UP) && fused))
			continue;
		for (int at = 0; at < jobs[j].n_places; at += PRODUCT_ROWS) {
			if (a.n_tasks && (a.n_tasks == PRODUCT_TASKS || w->type != now->type || w->n_in != now->n_in ||
								 w->n_out != now->n_out)) {
				if (!cuda_product(b, now->type, &a))
					return false;
				a.n_tasks = 0;
			}
			now = w;
			a.n_in = (int)w->n_in;
			a.x_row = w->n_in;
			a.row_bytes = (int64_t)w->row_bytes;
			a.split = cuda_product_split(w->type, w->n_in, w->n_out * n_used);
			if (!with_digits(b, &a, w->type, n_x, most, &last, &layout))
				return false;
			struct product_task *t = &a.task[a.n_tasks++];
			t->w = (const uint8_t *)w->data;
			t->up = (const uint8_t *)jobs[j].up.data;
			t->y = y;
			t->n_out = (int)w->n_out;
			t->add = false;
			t->first = hidden + at;
			t->n_x = jobs[j].n_places - at < PRODUCT_ROWS ? jobs[j].n_places - at : PRODUCT_ROWS;
			for (int i = 0; i < t->n_x; i++) {
				t->place[i] = jobs[j].places[at + i];
				t->row[i] = t->place[i] / n_used;
			}
		}
	}
	return !a.n_tasks || cuda_product(b, now->type, &a);
}

void cuda_expert_ffn(struct backend *base, const float *x, const struct expert_job *jobs, int n_jobs,
	int rows, int n_used, float *out)
{
	struct cuda_backend *b = cuda_of(base);
	cuda_note_end(b); /* a stretch of its own */
	cuda_note_begin(b, USAGE_EXPERTS);
	if (!cuda_begin(base, "expert_ffn"))
		return;
	if (rows > CUDA_FEW_ROWS) {
		cuda_gemm_experts(b, x, jobs, n_jobs, n_used, out);
		cuda_note_end(b);
		return;
	}
	int64_t places = 0, n_ff = 0, n_embd = 0;
	bool apart = false;
	for (int j = 0; j < n_jobs; j++) {
		places += jobs[j].n_places;
		n_ff = jobs[j].gate.n_out;
		n_embd = jobs[j].down.n_out;
		apart |= jobs[j].gate.type != jobs[j].up.type;
	}
	if (!places)
		return;
	/* room for all places of the step, however they are split over calls */
	uint64_t most = (uint64_t)rows * (uint64_t)n_used > (uint64_t)places ? (uint64_t)rows * (uint64_t)n_used
																		 : (uint64_t)places;
	float *hidden = (float *)cuda_scratch(b, (apart ? 2 : 1) * most * (uint64_t)n_ff * sizeof(float));
	if (!hidden || !run_pass(b, PASS_GLU, x, rows, jobs, n_jobs, n_used, hidden, n_ff))
		return;
	if (apart) { /* rows of fused jobs must not pass through silu again: each job's rows on their own */
		float *up = hidden + most * (uint64_t)n_ff;
		if (!run_pass(b, PASS_GATE, x, rows, jobs, n_jobs, n_used, hidden, n_ff) ||
			!run_pass(b, PASS_UP, x, rows, jobs, n_jobs, n_used, up, n_ff))
			return;
		int64_t first = 0;
		for (int j = 0; j < n_jobs; first += jobs[j++].n_places)
			if (jobs[j].gate.type != jobs[j].up.type)
				cuda_swiglu(base, hidden + first * n_ff, up + first * n_ff, jobs[j].n_places * n_ff,
					hidden + first * n_ff);
	}
	run_pass(b, PASS_DOWN, hidden, places, jobs, n_jobs, n_used, out, n_embd);
	cuda_note_end(b);
}
