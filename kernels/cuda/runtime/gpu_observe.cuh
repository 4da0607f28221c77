/* SPDX-License-Identifier: MIT */
/*
 * backend.observer: the inputs of products, copied to the host just before they are computed.
 *
 * - Called by ops while base.observer is set. Each call waits for the device and copies its rows.
 * - The ops then run as separate products and not as captured graphs (src/forward/segment.c), and
 *   experts by the kernels of prompts, so that every input is in memory at some time.
 * - x and gate_up: device memory. A failed copy becomes the backend's failure.
 */
#ifndef GLM_KERNELS_CUDA_GPU_OBSERVE_CUH
#define GLM_KERNELS_CUDA_GPU_OBSERVE_CUH

#include "kernels/cuda/runtime/gpu_backend.cuh"

/* Parameters as of the ops. */
void cuda_observe_matmul(
	struct cuda_backend *b, const struct matmul *parts, int n_parts, const float *x, int rows);
void cuda_observe_stacked(struct cuda_backend *b, const struct stacked_matmul *m, int rows);

/* The input of gate and up of every job. */
void cuda_observe_experts(struct cuda_backend *b, const float *x, const struct expert_job *jobs,
	int n_jobs, int rows, int n_used);

/* The input of down of n slots of a job: SwiGLU of gate_up[0 .. n_ff) and gate_up[up .. up + n_ff)
 * of each row. Rows are `stride` floats apart. */
void cuda_observe_down(struct cuda_backend *b, const struct expert_job *job, const float *gate_up,
	int64_t stride, int64_t up, int n);

#endif
