/* SPDX-License-Identifier: MIT */
/* packed_kernel (cuda_gemm_packed.cuh: grid, block, bytes moved) for a part of the types, so that
 * they compile side by side. */
#include "kernels/cuda/cuda_gemm_packed.cuh"

bool cuda_gemm_packed_c(
	struct cuda_backend *b, enum dtype type, const struct packed_args *a, int bn)
{
	switch (type) {
	case DTYPE_IQ2_XXS:
		return packed_launch_type<DTYPE_IQ2_XXS>(b, a, bn);
	case DTYPE_IQ2_XS:
		return packed_launch_type<DTYPE_IQ2_XS>(b, a, bn);
	case DTYPE_IQ2_S:
		return packed_launch_type<DTYPE_IQ2_S>(b, a, bn);
	case DTYPE_IQ3_XXS:
		return packed_launch_type<DTYPE_IQ3_XXS>(b, a, bn);
	case DTYPE_IQ3_S:
		return packed_launch_type<DTYPE_IQ3_S>(b, a, bn);
	default:
		return false;
	}
}
