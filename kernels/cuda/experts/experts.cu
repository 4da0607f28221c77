/* SPDX-License-Identifier: MIT */
/*
 * expert_ffn. Many rows: experts_prefill.cu. Of few rows, jobs that experts_kernel takes go there
 * (experts.cuh); the others take two passes with the same bits: gate and up fused with SwiGLU into
 * hidden rows (scratch, one per slot), then down from those to the slots. A pass fills tasks of
 * gemv_kernel and gemv_mma_kernel (gemv.cuh, gemv_mma.cuh): a task is one job and up to 8 of its
 * slots. Gate and up of different types are taken one after the other.
 */
#include "kernels/cuda/experts/experts.cuh"
#include "kernels/cuda/gemm/gemm.cuh"
#include "kernels/cuda/gemv/gemv.cuh"

enum pass { PASS_GLU, PASS_GATE, PASS_UP, PASS_DOWN };

static const struct weight *weight_of(const struct expert_job *job, enum pass pass)
{
	return pass == PASS_DOWN ? &job->down : pass == PASS_UP ? &job->up : &job->gate;
}

/* One pass over the jobs that take part in it, as many tasks per launch as fit. n_x: rows of x. */
static bool pass_enqueue(struct cuda_backend *b, enum pass pass, const float *x, int64_t n_x,
	const struct expert_job *jobs, int n_jobs, int n_used, float *y, int64_t y_row)
{
	struct gemv_args a = {}, last = {};
	enum limb_layout layout = LAYOUT_FLOATS;
	const struct weight *now = NULL; /* what the tasks gathered so far have in common */
	a.x = x;
	a.n_stack = 1;
	a.rows = pass == PASS_DOWN ? ROWS_TO_SLOTS : ROWS_TO_HIDDEN;
	a.glu = pass == PASS_GLU;
	a.y_row = y_row;
	int hidden = 0, most = 1;
	for (int j = 0; j < n_jobs; j++)
		most = jobs[j].n_token_slots > most ? jobs[j].n_token_slots : most;
	for (int j = 0; j < n_jobs; hidden += jobs[j++].n_token_slots) {
		const struct weight *w = weight_of(&jobs[j], pass);
		bool fused = jobs[j].gate.type == jobs[j].up.type;
		if (cuda_experts_takes(b, &jobs[j])) /* done */
			continue;
		if ((pass == PASS_GLU && !fused) || ((pass == PASS_GATE || pass == PASS_UP) && fused))
			continue;
		for (int at = 0; at < jobs[j].n_token_slots; at += GEMV_ROWS) {
			if (a.n_tasks && (a.n_tasks == GEMV_TASKS || w->type != now->type ||
								 w->n_in != now->n_in || w->n_out != now->n_out)) {
				if (!gemv_enqueue(b, now->type, &a))
					return false;
				a.n_tasks = 0;
			}
			now = w;
			a.n_in = (int)w->n_in;
			a.x_row = w->n_in;
			a.row_bytes = (int64_t)w->row_bytes;
			a.split = gemv_k_split(w->type, w->n_in, w->n_out * n_used);
			if (!gemv_prepare_limbs(b, &a, w->type, n_x, most, &last, &layout))
				return false;
			struct gemv_task *t = &a.task[a.n_tasks++];
			t->w = (const uint8_t *)w->data;
			t->up = (const uint8_t *)jobs[j].up.data;
			t->y = y;
			t->n_out = (int)w->n_out;
			t->add = false;
			t->first = hidden + at;
			t->n_x =
				jobs[j].n_token_slots - at < GEMV_ROWS ? jobs[j].n_token_slots - at : GEMV_ROWS;
			for (int i = 0; i < t->n_x; i++) {
				t->slot[i] = jobs[j].token_slots[at + i];
				t->row[i] = t->slot[i] / n_used;
			}
		}
	}
	return !a.n_tasks || gemv_enqueue(b, now->type, &a);
}

void cuda_expert_ffn(struct backend *base, const float *x, const struct expert_job *jobs,
	int n_jobs, int rows, int n_used, float *out)
{
	struct cuda_backend *b = cuda_of(base);
	if (cuda_deferred_post(b, x, jobs, n_jobs, rows, n_used, out) || !n_jobs)
		return;
	if (b->deferred_lost && !base->failure.code)
		err_set(&base->failure, ERR_RUN,
			"cuda: expert_ffn: the ops that rely on these experts have run without them");
	cuda_profile_end(b); /* an interval of its own */
	cuda_profile_begin(b, USAGE_EXPERTS);
	if (!cuda_begin(base, "expert_ffn"))
		return;
	if (rows > DECODE_MAX_ROWS) {
		gemm_expert_ffn(b, x, jobs, n_jobs, n_used, out);
		cuda_profile_end(b);
		return;
	}
	int64_t n_slots = 0, n_ff = 0, n_embd = 0;
	bool separate = false;
	for (int j = 0; j < n_jobs; j++) {
		n_slots += jobs[j].n_token_slots;
		n_ff = jobs[j].gate.n_out;
		n_embd = jobs[j].down.n_out;
		separate |= jobs[j].gate.type != jobs[j].up.type;
	}
	if (!n_slots)
		return;
	/* for all slots of the step, however they are split over calls */
	uint64_t most = (uint64_t)rows * (uint64_t)n_used > (uint64_t)n_slots
						? (uint64_t)rows * (uint64_t)n_used
						: (uint64_t)n_slots;
	float *hidden =
		(float *)cuda_scratch(b, (separate ? 2 : 1) * most * (uint64_t)n_ff * sizeof(float));
	if (!hidden || !cuda_experts_few(b, x, jobs, n_jobs, n_used, hidden, out) ||
		!pass_enqueue(b, PASS_GLU, x, rows, jobs, n_jobs, n_used, hidden, n_ff))
		return;
	if (separate) { /* rows of fused jobs must not pass through silu again: each job's rows on their
					own */
		float *up = hidden + most * (uint64_t)n_ff;
		if (!pass_enqueue(b, PASS_GATE, x, rows, jobs, n_jobs, n_used, hidden, n_ff) ||
			!pass_enqueue(b, PASS_UP, x, rows, jobs, n_jobs, n_used, up, n_ff))
			return;
		int64_t first = 0;
		for (int j = 0; j < n_jobs; first += jobs[j++].n_token_slots)
			if (jobs[j].gate.type != jobs[j].up.type)
				cuda_swiglu(base, hidden + first * n_ff, up + first * n_ff,
					jobs[j].n_token_slots * n_ff, hidden + first * n_ff);
	}
	pass_enqueue(b, PASS_DOWN, hidden, n_slots, jobs, n_jobs, n_used, out, n_embd);
	cuda_profile_end(b);
}
