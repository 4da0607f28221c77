/* SPDX-License-Identifier: MIT */
/* Drawing from rows of logits: a row is a task. */
#include "kernels/cpu/cpu_internal.h"
#include "src/draw/draw.h"

#define DRAW_COST 1 /* multiply-adds that take as long as an id of a row */

struct draw_job {
	const float *logits;
	int64_t stride;
	int32_t n;
	const struct draw_request *requests;
	float *maxima; /* [rows][draw_blocks(n)] */
	struct draw_result *out;
};

static void draw_task(const void *context, int64_t first, int64_t last, int thread)
{
	const struct draw_job *a = context;
	(void)thread;
	for (int64_t r = first; r < last; r++)
		draw_row(a->logits + r * a->stride, a->n, &a->requests[r],
			a->maxima + r * (int64_t)draw_blocks(a->n), &a->out[r]);
}

void cpu_draw(struct backend *b, const float *logits, int64_t stride, int32_t n,
	const struct draw_request *requests, int rows, struct draw_result *out)
{
	if (b->failure.code || rows <= 0)
		return;
	const uint64_t bytes = (uint64_t)rows * draw_blocks(n) * sizeof(float);
	struct draw_job job = {.logits = logits,
		.stride = stride,
		.n = n,
		.requests = requests,
		.maxima = cpu_scratch(cpu_of(b), bytes, "draw"),
		.out = out};
	if (job.maxima)
		cpu_run_rows(cpu_of(b), cpu_threads_for(cpu_of(b), (double)rows * n * DRAW_COST), rows,
			draw_task, &job);
}
