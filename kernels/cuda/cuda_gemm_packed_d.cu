/* SPDX-License-Identifier: MIT */
/* packed_kernel (cuda_gemm_packed.cuh: grid, block, bytes moved) for a part of the types, so that
 * they compile side by side. */
#include "kernels/cuda/cuda_gemm_packed.cuh"

bool cuda_gemm_packed_d(
	struct cuda_backend *b, enum dtype type, const struct packed_args *a, int bn)
{
	switch (type) {
	case DTYPE_IQ1_S:
		return packed_launch_type<DTYPE_IQ1_S>(b, a, bn);
	case DTYPE_IQ1_M:
		return packed_launch_type<DTYPE_IQ1_M>(b, a, bn);
	case DTYPE_IQ4_NL:
		return packed_launch_type<DTYPE_IQ4_NL>(b, a, bn);
	case DTYPE_IQ4_XS:
		return packed_launch_type<DTYPE_IQ4_XS>(b, a, bn);
	default:
		return false;
	}
}
