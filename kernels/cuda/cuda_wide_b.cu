/* SPDX-License-Identifier: MIT */
/* wide_kernel (cuda_wide.cuh: grid, block, bytes moved) for a part of the types, so that they
 * compile side by side. */
#include "kernels/cuda/cuda_wide.cuh"

bool cuda_wide_b(struct cuda_backend *b, enum dtype type, const struct packed_args *a, int bn)
{
	switch (type) {
	case DTYPE_Q2_K:
		return wide_launch<DTYPE_Q2_K>(b, a, bn);
	case DTYPE_Q3_K:
		return wide_launch<DTYPE_Q3_K>(b, a, bn);
	case DTYPE_Q4_K:
		return wide_launch<DTYPE_Q4_K>(b, a, bn);
	case DTYPE_Q5_K:
		return wide_launch<DTYPE_Q5_K>(b, a, bn);
	default:
		return false;
	}
}
