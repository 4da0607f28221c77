/* SPDX-License-Identifier: MIT */
/* Large products of prompts by cublasLt: library_gemm.cu has the steps. */
#ifndef GLM_KERNELS_CUDA_LIBRARY_GEMM_CUH
#define GLM_KERNELS_CUDA_LIBRARY_GEMM_CUH

#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/gemm/gemm.cuh"

/* Whether products with this weight are the library's: always the same answer, for any number of
 * rows. */
bool library_gemm_takes(struct cuda_backend *b, const struct weight *w);

/* Those products; all parts share x. */
void library_matmul(
	struct cuda_backend *b, const struct matmul *parts, int n_parts, const float *x, int rows);

/* unpack_rows.cu: rows of weights as halves, each row scaled as a row of activations (gemm.cuh).
 * n_in is a multiple of 4. */
struct unpack_rows_args {
	const uint8_t *w;
	const struct cuda_tables *tables;
	int64_t row_bytes;
	int n_in, n_out;
	__half *to;     /* [n_out][n_in] */
	float *unscale; /* [n_out] */
};
void gemm_unpack_rows(struct cuda_backend *b, enum dtype type, const struct unpack_rows_args *a);

/* ---- on the device ---- */

/* The largest value of a block of 256 threads; every thread gets it. warp_most: shared. */
static __device__ __forceinline__ float library_block_most(float most, float (&warp_most)[8])
{
#pragma unroll
	for (int step = 16; step; step /= 2)
		most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
	if (threadIdx.x % 32 == 0)
		warp_most[threadIdx.x / 32] = most;
	__syncthreads();
#pragma unroll
	for (int i = 0; i < 8; i++)
		most = fmaxf(most, warp_most[i]);
	return most;
}

static __device__ __forceinline__ void library_store_halves(__half *to, float4 v, float by)
{
	__half2 h[2] = {__floats2half2_rn(__fmul_rn(v.x, by), __fmul_rn(v.y, by)),
		__floats2half2_rn(__fmul_rn(v.z, by), __fmul_rn(v.w, by))};
	*(uint2 *)to = *(uint2 *)h;
}

#endif
