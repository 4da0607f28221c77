/* SPDX-License-Identifier: MIT */
/* mma_kernel (cuda_product_mma.cuh: grid, block, bytes moved) for a part of the types, so that they
 * compile side by side. */
#include "kernels/cuda/cuda_product_mma.cuh"

product_launch *cuda_product_d(enum dtype type)
{
	switch (type) {
#define CASE(t)                                                                                    \
	case DTYPE_##t:                                                                                \
		return mma_launch_type<DTYPE_##t>;
		PACKED_TYPES_C(CASE)
#undef CASE
	default:
		return NULL;
	}
}
