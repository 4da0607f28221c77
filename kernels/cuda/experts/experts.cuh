/* SPDX-License-Identifier: MIT */
/*
 * experts_kernel (experts_fused.cu): all of a layer's experts of few slots each in one launch, for
 * the types that decode mostly has, IQ2_XXS and Q2_K. The same bits as the two passes of
 * experts.cu.
 */
#ifndef GLM_KERNELS_CUDA_EXPERTS_CUH
#define GLM_KERNELS_CUDA_EXPERTS_CUH

#include "kernels/cuda/gemv/gemv.cuh"

/* Whether cuda_experts_few takes this job of a step of so many rows: few slots; matrices of one of
 * its types, with rows of 8 or 24 super-blocks of 256 weights (Q2_K also 4 or 12) and large enough;
 * and a card with the shared memory and the bulk copies that it needs (compute capability 9.0 and
 * newer). The answer may differ from call to call; numbers are the same either way. */
bool cuda_experts_takes(const struct cuda_backend *b, const struct expert_job *job, int rows);

/* Enqueues the jobs that it takes; each (token, rank) slot is a task of its own. hidden: scratch, a
 * row of n_ff floats per slot of all jobs, in their order. False: the failure is kept.
 */
bool cuda_experts_few(struct cuda_backend *b, const float *x, const struct expert_job *jobs,
	int n_jobs, int rows, int n_used, float *hidden, float *out);

/* Whether experts of this shape can be deferred: a job of one slot, without data. */
bool cuda_experts_deferrable(const struct cuda_backend *b, const struct expert_job *shape);

/* Enqueues a deferred kernel if a segment is being captured; else only prepares what it needs. */
void cuda_experts_deferred_launch(struct cuda_backend *b, const struct deferred_experts *d);

#endif
