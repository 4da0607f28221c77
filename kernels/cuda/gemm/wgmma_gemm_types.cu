/* SPDX-License-Identifier: MIT */
/* wgmma_gemm_kernel (wgmma_gemm.cuh: grid, block, bytes moved) for one group of types. The Makefile
 * builds this file once for each TYPE_GROUP, so that the groups compile side by side. */
#include "kernels/cuda/gemm/wgmma_gemm.cuh"

#if TYPE_GROUP == 1
#define TYPES(X) X(Q8_0) X(Q4_0) X(IQ4_NL) X(IQ4_XS)
#elif TYPE_GROUP == 2
#define TYPES(X) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K)
#elif TYPE_GROUP == 3
#define TYPES(X) X(IQ2_XXS) X(IQ2_XS) X(IQ2_S)
#else
#define TYPES(X) X(IQ3_XXS) X(IQ3_S) X(IQ1_S) X(IQ1_M)
#endif

template <>
bool wgmma_gemm_group<TYPE_GROUP>(
	struct cuda_backend *b, enum dtype type, const struct grouped_gemm_args *a, int bn)
{
	switch (type) {
#define CASE(t)                                                                                    \
	case DTYPE_##t:                                                                                \
		return wgmma_gemm_launch<DTYPE_##t>(b, a, bn);
		TYPES(CASE)
#undef CASE
	default:
		return false;
	}
}
