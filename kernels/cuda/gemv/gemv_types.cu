/* SPDX-License-Identifier: MIT */
/* The gemv kernels (gemv.cuh, gemv_mma.cuh, gemv_aligned.cuh: grid, block, bytes moved) for one
 * group of types. The Makefile builds this file once for each TYPE_GROUP, so that the groups
 * compile side by side. */
#include "kernels/cuda/gemv/gemv_aligned.cuh"

#if TYPE_GROUP == 1
#define TYPES     FLOAT_TYPES
#define LAUNCH(t) gemv_float_launch<t>
#elif TYPE_GROUP == 2
#define TYPES     PACKED_TYPES_A
#define LAUNCH(t) gemv_packed_launch<t>
#elif TYPE_GROUP == 3
#define TYPES     PACKED_TYPES_B
#define LAUNCH(t) gemv_packed_launch<t>
#else
#define TYPES     PACKED_TYPES_C
#define LAUNCH(t) gemv_packed_launch<t>
#endif

template <> gemv_launcher *gemv_launcher_of_group<TYPE_GROUP>(enum dtype type)
{
	switch (type) {
#define CASE(t)                                                                                    \
	case DTYPE_##t:                                                                                \
		return LAUNCH(DTYPE_##t);
		TYPES(CASE)
#undef CASE
	default:
		return NULL;
	}
}
