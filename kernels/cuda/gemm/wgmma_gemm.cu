/* SPDX-License-Identifier: MIT */
/* Which weights the wgmma gemm (wgmma_gemm.cuh) multiplies, and the order of x that it needs. */
#include "kernels/cuda/gemm/gemm.cuh"

bool wgmma_gemm_enqueue(
	struct cuda_backend *b, enum dtype type, const struct grouped_gemm_args *a, int bn)
{
	return wgmma_gemm_group<1>(b, type, a, bn) || wgmma_gemm_group<2>(b, type, a, bn) ||
		   wgmma_gemm_group<3>(b, type, a, bn) || wgmma_gemm_group<4>(b, type, a, bn);
}

enum x_order wgmma_gemm_x_order(struct cuda_backend *b, const struct weight *w)
{
	if (!b->has_wgmma || w->row_bytes % 4 || (uintptr_t)w->data % 4 ||
		!wgmma_gemm_enqueue(b, w->type, NULL, 0))
		return X_PLAIN;
	return w->type == DTYPE_Q8_0 || w->type == DTYPE_Q4_0 || w->type == DTYPE_IQ4_NL ||
				   w->type == DTYPE_IQ4_XS
			   ? X_QUADS
			   : X_EIGHTS;
}
