/* SPDX-License-Identifier: MIT */
/*
 * expert_ffn. Many rows: experts_prefill.cu. Of few rows, jobs that experts_kernel takes go there
 * (experts.cuh); the others take two passes with the same bits: gate and up fused with SwiGLU into
 * hidden rows (scratch, one per slot), then down from those to the slots. A pass fills tasks of
 * gemv_kernel and gemv_mma_kernel (gemv.cuh, gemv_mma.cuh): a task is one job and up to 8 of its
 * slots; tasks of many slots are launched apart from those of few. Gate and up of different types
 * are taken one after the other.
 */
#include "kernels/cuda/experts/experts.cuh"
#include "kernels/cuda/gemm/gemm.cuh"
#include "kernels/cuda/gemv/gemv.cuh"
#include "kernels/cuda/runtime/gpu_observe.cuh"

enum pass { PASS_GLU, PASS_GATE, PASS_UP, PASS_DOWN };

static const struct weight *weight_of(const struct expert_job *job, enum pass pass)
{
	return pass == PASS_DOWN ? &job->down : pass == PASS_UP ? &job->up : &job->gate;
}

/* A pass launches its tasks apart by their number of slots: at most so many, which fill one, two
 * and three tiles of limb columns. Only types with codebooks have a kernel of two tiles
 * (gemv_mma_launch); the others take that of three. */
#define LAUNCHES 3
static const int launch_slots[LAUNCHES] = {2, 5, GEMV_ROWS};

/* A pass over the jobs that take part in it. */
struct expert_pass {
	enum pass pass;
	struct gemv_args a, last;
	struct gemv_block_scales scales;
	enum limb_layout layout;
	const struct weight *now; /* the weight of the latest task: type and shape of all gathered */
	int64_t n_x;              /* rows of x */
	int n_used, most;         /* most: slots of a task */
};

/* Adds the task of slots [at, at + n) of a job, the first of which is in row `hidden` of the hidden
 * rows. Launches those before if they do not go together. */
static bool task_add(struct cuda_backend *b, struct expert_pass *p, const struct expert_job *job,
	int hidden, int at, int n, float *y)
{
	struct gemv_args *a = &p->a;
	const struct weight *w = weight_of(job, p->pass);
	if (a->n_tasks && (a->n_tasks == GEMV_TASKS || w->type != p->now->type ||
						  w->n_in != p->now->n_in || w->n_out != p->now->n_out)) {
		if (!gemv_enqueue(b, p->now->type, a))
			return false;
		a->n_tasks = 0;
	}
	p->now = w;
	a->n_in = (int)w->n_in;
	a->x_row = w->n_in;
	a->row_bytes = (int64_t)w->row_bytes;
	a->split = gemv_k_split(w->type, w->n_in, w->n_out * p->n_used);
	if (!gemv_prepare_limbs(b, a, w->type, p->n_x, p->most, &p->last, &p->layout))
		return false;
	struct gemv_task *t = gemv_task_add(a, &p->scales, w, &job->up);
	t->y = y;
	t->add = false;
	t->first = hidden + at;
	t->n_x = n;
	for (int i = 0; i < n; i++) {
		t->slot[i] = job->token_slots[at + i];
		t->row[i] = t->slot[i] / p->n_used;
	}
	return true;
}

/* One pass, as many tasks per launch as fit. n_x: rows of x; rows: of the step. */
static bool pass_enqueue(struct cuda_backend *b, enum pass pass, const float *x, int64_t n_x,
	const struct expert_job *jobs, int n_jobs, int rows, int n_used, float *y, int64_t y_row)
{
	struct expert_pass p = {};
	p.pass = pass;
	p.layout = LAYOUT_FLOATS;
	p.a.x = x;
	p.a.n_stack = 1;
	p.a.rows = pass == PASS_DOWN ? ROWS_TO_SLOTS : ROWS_TO_HIDDEN;
	p.a.glu = pass == PASS_GLU;
	p.a.y_row = y_row;
	p.n_x = n_x;
	p.n_used = n_used;
	p.most = 1;
	for (int j = 0; j < n_jobs; j++)
		p.most = jobs[j].n_token_slots > p.most ? jobs[j].n_token_slots : p.most;
	for (int least = 0, k = 0; k < LAUNCHES; least = launch_slots[k++]) {
		int hidden = 0;
		for (int j = 0; j < n_jobs; hidden += jobs[j++].n_token_slots) {
			bool fused = jobs[j].gate.type == jobs[j].up.type;
			if (cuda_experts_takes(b, &jobs[j], rows)) /* done */
				continue;
			if ((pass == PASS_GLU && !fused) || ((pass == PASS_GATE || pass == PASS_UP) && fused))
				continue;
			for (int at = 0; at < jobs[j].n_token_slots; at += GEMV_ROWS) {
				int n = min(jobs[j].n_token_slots - at, GEMV_ROWS);
				if (n > least && n <= launch_slots[k] &&
					!task_add(b, &p, &jobs[j], hidden, at, n, y))
					return false;
			}
		}
		if (p.a.n_tasks && !gemv_enqueue(b, p.now->type, &p.a))
			return false;
		p.a.n_tasks = 0;
	}
	return true;
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
	if (base->observer)
		cuda_observe_experts(b, x, jobs, n_jobs, rows, n_used);
	if (rows > DECODE_MAX_ROWS || base->observer) {
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
	if (!hidden || !cuda_experts_few(b, x, jobs, n_jobs, rows, n_used, hidden, out) ||
		!pass_enqueue(b, PASS_GLU, x, rows, jobs, n_jobs, rows, n_used, hidden, n_ff))
		return;
	if (separate) { /* SwiGLU job by job: rows of jobs that PASS_GLU has computed stay as they are
					 */
		float *up = hidden + most * (uint64_t)n_ff;
		if (!pass_enqueue(b, PASS_GATE, x, rows, jobs, n_jobs, rows, n_used, hidden, n_ff) ||
			!pass_enqueue(b, PASS_UP, x, rows, jobs, n_jobs, rows, n_used, up, n_ff))
			return;
		int64_t first = 0;
		for (int j = 0; j < n_jobs; first += jobs[j++].n_token_slots)
			if (jobs[j].gate.type != jobs[j].up.type)
				cuda_swiglu(base, hidden + first * n_ff, up + first * n_ff,
					jobs[j].n_token_slots * n_ff, hidden + first * n_ff);
	}
	pass_enqueue(b, PASS_DOWN, hidden, n_slots, jobs, n_jobs, rows, n_used, out, n_embd);
	cuda_profile_end(b);
}
