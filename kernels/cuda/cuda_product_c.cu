/* SPDX-License-Identifier: MIT */
/* product_kernel (cuda_product.cuh: grid, block, bytes moved) for a part of the types, so that they compile side by side. */
#include "kernels/cuda/cuda_product.cuh"

product_launch *cuda_product_c(enum dtype type)
{
	switch (type) {
#define CASE(t)                                                                                              \
	case DTYPE_##t:                                                                                          \
		return product_launch_type<DTYPE_##t>;
		PACKED_TYPES_C(CASE)
#undef CASE
	default:
		return NULL;
	}
}
