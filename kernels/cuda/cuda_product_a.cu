/* SPDX-License-Identifier: MIT */
/* product_kernel (cuda_product.cuh: grid, block, bytes moved) for a part of the types, so that they
 * compile side by side. */
#include "kernels/cuda/cuda_product.cuh"

product_launch *cuda_product_a(enum dtype type)
{
	switch (type) {
#define CASE(t)                                                                                    \
	case DTYPE_##t:                                                                                \
		return product_launch_type<DTYPE_##t>;
		FLOAT_TYPES(CASE)
#undef CASE
	default:
		return NULL;
	}
}
