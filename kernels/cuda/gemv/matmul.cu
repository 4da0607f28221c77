/* SPDX-License-Identifier: MIT */
/*
 * matmul, stacked_matmul and the first half of ffn for decode: they fill tasks of the gemv kernels
 * (gemv.cuh, gemv_mma.cuh, gemv_aligned.cuh, gemv_many.cuh, gemv_decoded.cu: grid, block, bytes
 * moved). With more than DECODE_MAX_ROWS rows they call the gemm (gemm.cuh). Tasks travel as kernel
 * arguments, GEMV_TASKS at a time, so no table is uploaded.
 */
#include "kernels/cuda/gemm/gemm.cuh"
#include "kernels/cuda/gemv/gemv.cuh"
#include "kernels/cuda/runtime/gpu_observe.cuh"

struct gemv_task *gemv_task_add(struct gemv_args *a, struct gemv_block_scales *scales,
	const struct weight *w, const struct weight *up)
{
	struct gemv_task *t = &a->task[a->n_tasks];
	t->w = (const uint8_t *)w->data;
	t->up = up ? (const uint8_t *)up->data : NULL;
	t->n_out = (int)w->n_out;
	scales->w[a->n_tasks] = (const uint8_t *)w->scales;
	scales->up[a->n_tasks] = up ? (const uint8_t *)up->scales : NULL;
	a->block_scales = scales;
	a->n_tasks++;
	return t;
}

bool gemv_enqueue(struct cuda_backend *b, enum dtype type, struct gemv_args *a)
{
	gemv_launcher *launch = gemv_launcher_of_group<1>(type);
	launch = launch ? launch : gemv_launcher_of_group<2>(type);
	launch = launch ? launch : gemv_launcher_of_group<3>(type);
	launch = launch ? launch : gemv_launcher_of_group<4>(type);
	int most = 1;
	a->tables = b->tables;
	uintptr_t x = (uintptr_t)a->x;
	for (int i = 0; i < a->n_tasks; i++)
		x |= (uintptr_t)a->task[i].x;
	a->x_aligned = !(x % 16) && !(a->x_row % 4) && !(a->x_stack % 4) && !(a->n_in % 4);
	a->out_most = 0;
	uintptr_t all = 0;
	for (int i = 0; i < a->n_tasks; i++) {
		all |= (uintptr_t)a->task[i].w | (a->glu ? (uintptr_t)a->task[i].up : 0);
		a->out_most = a->task[i].n_out > a->out_most ? a->task[i].n_out : a->out_most;
		most = a->task[i].n_x > most ? a->task[i].n_x : most;
	}
	bool words =
		type == DTYPE_F32 || type == DTYPE_Q2_K || type == DTYPE_Q4_K || type == DTYPE_Q5_K;
	if (all % (words ? 4 : 2) && type != DTYPE_MXFP4 && type != DTYPE_F8_E4M3) {
		err_set(&b->base.failure, ERR_RUN, "cuda: %s: %s weights at an odd address", b->op,
			dtype_name(type));
		return false;
	}
	int n_x = a->rows == ROWS_PLAIN ? a->n_rows : most;
	if (!a->n_tasks || !a->out_most)
		return !b->base.failure.code;
	if (launch)
		launch(b, a, n_x);
	else if (!gemv_decoded_enqueue(b, type, a, n_x))
		err_set(&b->base.failure, ERR_RUN, "cuda: %s: %s weights are not known", b->op,
			dtype_name(type));
	return !b->base.failure.code;
}

bool gemv_prepare_limbs(struct cuda_backend *b, struct gemv_args *a, enum dtype type, int64_t n_x,
	int most, struct gemv_args *last, enum limb_layout *last_layout)
{
	enum limb_layout layout = gemv_limb_layout(type);
	a->limbs = NULL; /* tasks of another type, launched before, may have left theirs */
	a->scales = NULL;
	if (layout == LAYOUT_FLOATS || gemv_makes_limbs(b, type, most, a->n_in) ||
		gemv_many_splits(b, type, a))
		return true;
	if (layout != *last_layout) {
		*last = *a;
		*last_layout = layout;
		if (!gemv_split_limbs(b, last, n_x, layout))
			return false;
	}
	a->limbs = last->limbs;
	a->scales = last->scales;
	return true;
}

/* All but the tasks. */
static struct gemv_args plain_args(const struct weight *w, const float *x, int rows)
{
	struct gemv_args a = {};
	a.x = x;
	a.x_row = w->n_in;
	a.row_bytes = (int64_t)w->row_bytes;
	a.n_in = (int)w->n_in;
	a.n_stack = 1;
	a.n_rows = rows;
	a.split = gemv_k_split(w->type, w->n_in, w->n_out);
	return a;
}

void cuda_matmul(
	struct backend *base, const struct matmul *parts, int n_parts, const float *x, int rows)
{
	struct cuda_backend *b = cuda_of(base);
	if (!cuda_begin(base, "matmul") || !rows)
		return;
	if (base->observer)
		cuda_observe_matmul(b, parts, n_parts, x, rows);
	if (rows > DECODE_MAX_ROWS) { /* parts with the same x together */
		for (int i = 0, j; i < n_parts; i = j) {
			for (j = i + 1; j < n_parts && parts[j].x == parts[i].x;)
				j++;
			gemm_matmul(b, parts + i, j - i, parts[i].x ? parts[i].x : x, rows);
		}
		return;
	}
	/* parts of one type and split-k factor go together; packed ones if their x is the same */
	bool done[64] = {false};
	struct gemv_args last = {};
	struct gemv_block_scales scales;
	enum limb_layout layout = LAYOUT_FLOATS;
	for (int i = 0; i < n_parts; i++) {
		if (done[i])
			continue;
		const struct weight *w = &parts[i].w;
		bool own = gemv_limb_layout(w->type) == LAYOUT_FLOATS;
		struct gemv_args a = plain_args(w, own || !parts[i].x ? x : parts[i].x, rows);
		if (last.x != a.x)
			layout = LAYOUT_FLOATS; /* the limbs are of another x */
		for (int j = i; j < n_parts && a.n_tasks < GEMV_TASKS; j++) {
			if (done[j] || parts[j].w.type != w->type || (!own && parts[j].x != parts[i].x) ||
				gemv_k_split(w->type, w->n_in, parts[j].w.n_out) != a.split)
				continue;
			struct gemv_task *t = gemv_task_add(&a, &scales, &parts[j].w, NULL);
			t->y = parts[j].y;
			t->x = own ? parts[j].x : NULL;
			t->add = parts[j].add;
			done[j] = true;
		}
		if (!gemv_prepare_limbs(b, &a, w->type, rows, rows, &last, &layout) ||
			!gemv_enqueue(b, w->type, &a))
			return;
	}
}

void cuda_matmul_glu(struct backend *base, const struct ffn *f, int rows)
{
	struct cuda_backend *b = cuda_of(base);
	const struct weight *gate = &f->gate;
	if (!cuda_begin(base, "matmul_glu") || !rows)
		return;
	if (rows > DECODE_MAX_ROWS || gate->type != f->up.type || base->observer) {
		const struct matmul parts[] = {
			{*gate, f->hidden, false, NULL}, {f->up, f->scratch, false, NULL}};
		cuda_matmul(base, parts, 2, f->x, rows);
		cuda_swiglu(base, f->hidden, f->scratch, rows * gate->n_out, f->hidden);
		return;
	}
	struct gemv_args a = plain_args(gate, f->x, rows), last = {};
	enum limb_layout layout = LAYOUT_FLOATS;
	struct gemv_block_scales scales;
	a.glu = true;
	gemv_task_add(&a, &scales, gate, &f->up)->y = f->hidden;
	if (gemv_prepare_limbs(b, &a, gate->type, rows, rows, &last, &layout))
		gemv_enqueue(b, gate->type, &a);
}

void cuda_stacked_matmul(struct backend *base, const struct stacked_matmul *m, int rows)
{
	if (!cuda_begin(base, "stacked_matmul") || !rows)
		return;
	if (base->observer)
		cuda_observe_stacked(cuda_of(base), m, rows);
	if (rows > DECODE_MAX_ROWS) {
		gemm_stacked_matmul(cuda_of(base), m, rows);
		return;
	}
	struct gemv_args a = {};
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
	a.split = gemv_k_split(m->w.type, m->w.n_in, m->w.n_out * m->w.n_stack);
	struct gemv_block_scales scales;
	gemv_task_add(&a, &scales, &m->w, NULL)->y = m->y;
	struct gemv_args last = {};
	enum limb_layout layout = LAYOUT_FLOATS;
	if (gemv_prepare_limbs(cuda_of(base), &a, m->w.type, rows, rows, &last, &layout))
		gemv_enqueue(cuda_of(base), m->w.type, &a);
}
