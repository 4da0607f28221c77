/* SPDX-License-Identifier: MIT */
/*
 * Experts that compute one place each, of the types that decode mostly meets: IQ2_XXS and Q2_K. The
 * same bits as the passes of experts.cu, in one launch for all of a layer's experts.
 */
#ifndef GLM_KERNELS_CUDA_EXPERTS_CUH
#define GLM_KERNELS_CUDA_EXPERTS_CUH

#include "kernels/cuda/gemv/gemv.cuh"

/* Whether cuda_experts_single takes this job: one place, matrices of one of its types whose rows
 * are of a fitting length (8 or 24 runs of 256 weights, Q2_K also 4 or 12) and which are large
 * enough, and a card with the shared memory and the copies that it needs (compute capability 9 and
 * more). The caller may ask per job and call; numbers are the same either way. */
bool cuda_experts_takes(const struct cuda_backend *b, const struct expert_job *job);

/* Enqueues the jobs that it takes. hidden: scratch, a row of n_ff floats per place of all jobs, in
 * their order. False: the failure is kept. */
bool cuda_experts_single(struct cuda_backend *b, const float *x, const struct expert_job *jobs,
	int n_jobs, int n_used, float *hidden, float *out);

/* Whether experts like this can be awaited: one place, no data. */
bool cuda_experts_deferrable(const struct cuda_backend *b, const struct expert_job *like);

/* Enqueues a deferred kernel of such experts if cuda_segment_add_deferred does; else only what it
 * will need is made ready. */
void cuda_experts_deferred_launch(struct cuda_backend *b, const struct deferred_experts *w);

#endif
