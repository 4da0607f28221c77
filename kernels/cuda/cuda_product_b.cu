/* SPDX-License-Identifier: MIT */
/* mma_kernel and dense_kernel (cuda_product_mma.cuh, cuda_product_dense.cuh: grid, block, bytes
 * moved) for a part of the types, so that they compile side by side. */
#include "kernels/cuda/cuda_product_dense.cuh"

product_launch *cuda_product_b(enum dtype type)
{
	switch (type) {
#define CASE(t)                                                                                    \
	case DTYPE_##t:                                                                                \
		return packed_launch_type<DTYPE_##t>;
		PACKED_TYPES_A(CASE)
#undef CASE
	default:
		return NULL;
	}
}
