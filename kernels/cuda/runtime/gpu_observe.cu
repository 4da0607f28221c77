/* SPDX-License-Identifier: MIT */
/* See gpu_observe.cuh. The observer gets rows of a buffer that belongs to the backend. */
#include "kernels/cuda/runtime/gpu_observe.cuh"

#include <math.h>
#include <stdlib.h>

/* Host copies of n > 0 floats; NULL: the failure is kept. Valid until the next call. */
static float *host_copy(struct cuda_backend *b, const float *device, int64_t n)
{
	struct backend *base = &b->base;
	const char *op = b->op;
	struct err e = {};
	if (base->failure.code)
		return NULL;
	if (n > b->observed_floats) {
		free(b->observed);
		b->observed = (float *)malloc((size_t)n * sizeof(float));
		b->observed_floats = b->observed ? n : 0;
	}
	if (!b->observed)
		err_set(&base->failure, ERR_MEMORY, "cuda: %s: no memory to observe %lld values", op,
			(long long)n);
	else if (base->ops->download(base, b->observed, device, (size_t)n * sizeof(float), &e))
		base->failure = e;
	b->op = op;
	return base->failure.code ? NULL : b->observed;
}

static void call_observer(struct cuda_backend *b, const struct product_input *in)
{
	b->base.observer->input(b->base.observer->user, in);
}

void cuda_observe_matmul(
	struct cuda_backend *b, const struct matmul *parts, int n_parts, const float *x, int rows)
{
	const float *copied = NULL, *host = NULL;
	for (int i = 0; i < n_parts; i++) {
		const float *from = parts[i].x ? parts[i].x : x;
		if (from != copied && !(host = host_copy(b, from, rows * parts[i].w.n_in)))
			return;
		copied = from;
		struct product_input in = {};
		in.w = &parts[i].w;
		in.x = host;
		in.stride = parts[i].w.n_in;
		in.n = rows;
		call_observer(b, &in);
	}
}

void cuda_observe_stacked(struct cuda_backend *b, const struct stacked_matmul *m, int rows)
{
	struct product_input in = {};
	in.w = &m->w;
	/* to the end of the last row of the last matrix */
	in.x = host_copy(b, m->x, (rows * m->w.n_stack - 1) * m->x_stride + m->w.n_in);
	in.stride = m->w.n_stack * m->x_stride;
	in.stack_step = m->x_stride;
	in.n = rows;
	if (in.x)
		call_observer(b, &in);
}

void cuda_observe_experts(struct cuda_backend *b, const float *x, const struct expert_job *jobs,
	int n_jobs, int rows, int n_used)
{
	const float *host = n_jobs ? host_copy(b, x, rows * jobs->gate.n_in) : NULL;
	for (int j = 0; j < n_jobs && host; j++) {
		struct product_input in = {};
		in.expert = &jobs[j];
		in.x = host;
		in.stride = jobs[j].gate.n_in;
		in.index = jobs[j].token_slots;
		in.divisor = n_used;
		in.n = jobs[j].n_token_slots;
		in.w = &jobs[j].gate;
		call_observer(b, &in);
		in.w = &jobs[j].up;
		call_observer(b, &in);
	}
}

void cuda_observe_down(struct cuda_backend *b, const struct expert_job *job, const float *gate_up,
	int64_t stride, int64_t up_offset, int n)
{
	int64_t n_ff = job->down.n_in;
	float *host = n ? host_copy(b, gate_up, (n - 1) * stride + up_offset + n_ff) : NULL;
	if (!host)
		return;
	for (int64_t r = 0; r < n; r++)
		for (int64_t k = 0; k < n_ff; k++) {
			float *gate = host + r * stride + k;
			*gate = *gate / (1.0f + expf(-*gate)) * gate[up_offset];
		}
	struct product_input in = {};
	in.w = &job->down;
	in.expert = job;
	in.x = host;
	in.stride = stride;
	in.n = n;
	call_observer(b, &in);
}
