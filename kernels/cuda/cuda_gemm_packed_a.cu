/* SPDX-License-Identifier: MIT */
/* packed_kernel (cuda_gemm_packed.cuh: grid, block, bytes moved) for a part of the types, so that
 * they compile side by side. */
#include "kernels/cuda/cuda_gemm_packed.cuh"

bool cuda_gemm_packed_a(
	struct cuda_backend *b, enum dtype type, const struct packed_args *a, int bn)
{
	switch (type) {
	case DTYPE_Q4_0:
		return packed_launch_type<DTYPE_Q4_0>(b, a, bn);
	case DTYPE_Q8_0:
		return packed_launch_type<DTYPE_Q8_0>(b, a, bn);
	default:
		return false;
	}
}
