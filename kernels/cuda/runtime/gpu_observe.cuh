/* SPDX-License-Identifier: MIT */
/*
 * backend.observer: copies the input of each product to the host before the product runs.
 *
 * - Ops call these while base.observer is set. Each call waits for the device and copies its rows
 *   to a buffer of the backend, which the observer sees during the call.
 * - Meanwhile ops run as separate products, not fused and not as captured graphs
 *   (src/forward/segment.c). Experts use the prefill kernels, which store gate and up.
 * - x and gate_up: device memory. jobs and their lists of slots: host memory.
 * - A failed copy becomes the backend's failure.
 */
#ifndef GLM_KERNELS_CUDA_GPU_OBSERVE_CUH
#define GLM_KERNELS_CUDA_GPU_OBSERVE_CUH

#include "kernels/cuda/runtime/gpu_backend.cuh"

/* x: [rows][n_in], as the ops have it. */
void cuda_observe_matmul(
	struct cuda_backend *b, const struct matmul *parts, int n_parts, const float *x, int rows);
void cuda_observe_stacked(struct cuda_backend *b, const struct stacked_matmul *m, int rows);

/* The input of gate and up of every job. */
void cuda_observe_experts(struct cuda_backend *b, const float *x, const struct expert_job *jobs,
	int n_jobs, int rows, int n_used);

/* The input of down of n slots of a job: SwiGLU of gate_up[0 .. n_ff) and
 * gate_up[up_offset .. up_offset + n_ff) of each row. Rows are `stride` floats apart. */
void cuda_observe_down(struct cuda_backend *b, const struct expert_job *job, const float *gate_up,
	int64_t stride, int64_t up_offset, int n);

#endif
