/* SPDX-License-Identifier: MIT */
/* wide_kernel (cuda_wide.cuh: grid, block, bytes moved) for a part of the types, so that they
 * compile side by side. */
#include "kernels/cuda/cuda_wide.cuh"

bool cuda_wide_d(struct cuda_backend *b, enum dtype type, const struct packed_args *a, int bn)
{
	switch (type) {
	case DTYPE_IQ3_XXS:
		return wide_launch<DTYPE_IQ3_XXS>(b, a, bn);
	case DTYPE_IQ3_S:
		return wide_launch<DTYPE_IQ3_S>(b, a, bn);
	case DTYPE_IQ1_S:
		return wide_launch<DTYPE_IQ1_S>(b, a, bn);
	case DTYPE_IQ1_M:
		return wide_launch<DTYPE_IQ1_M>(b, a, bn);
	default:
		return false;
	}
}
