/* SPDX-License-Identifier: MIT */
/* packed_kernel (cuda_gemm_packed.cuh: grid, block, bytes moved) for a part of the types, so that
 * they compile side by side. */
#include "kernels/cuda/cuda_gemm_packed.cuh"

bool cuda_gemm_packed_b(
	struct cuda_backend *b, enum dtype type, const struct packed_args *a, int bn)
{
	switch (type) {
	case DTYPE_Q2_K:
		return packed_launch_type<DTYPE_Q2_K>(b, a, bn);
	case DTYPE_Q3_K:
		return packed_launch_type<DTYPE_Q3_K>(b, a, bn);
	case DTYPE_Q4_K:
		return packed_launch_type<DTYPE_Q4_K>(b, a, bn);
	case DTYPE_Q5_K:
		return packed_launch_type<DTYPE_Q5_K>(b, a, bn);
	case DTYPE_Q6_K:
		return packed_launch_type<DTYPE_Q6_K>(b, a, bn);
	default:
		return false;
	}
}
