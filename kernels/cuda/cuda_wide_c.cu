/* SPDX-License-Identifier: MIT */
/* wide_kernel (cuda_wide.cuh: grid, block, bytes moved) for a part of the types, so that they
 * compile side by side. */
#include "kernels/cuda/cuda_wide.cuh"

bool cuda_wide_c(struct cuda_backend *b, enum dtype type, const struct packed_args *a, int bn)
{
	switch (type) {
	case DTYPE_IQ2_XXS:
		return wide_launch<DTYPE_IQ2_XXS>(b, a, bn);
	case DTYPE_IQ2_XS:
		return wide_launch<DTYPE_IQ2_XS>(b, a, bn);
	case DTYPE_IQ2_S:
		return wide_launch<DTYPE_IQ2_S>(b, a, bn);
	default:
		return false;
	}
}
