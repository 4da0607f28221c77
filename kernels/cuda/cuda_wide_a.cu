/* SPDX-License-Identifier: MIT */
/* wide_kernel (cuda_wide.cuh: grid, block, bytes moved) for a part of the types, so that they
 * compile side by side. */
#include "kernels/cuda/cuda_wide.cuh"

bool cuda_wide_a(struct cuda_backend *b, enum dtype type, const struct packed_args *a, int bn)
{
	switch (type) {
	case DTYPE_Q8_0:
		return wide_launch<DTYPE_Q8_0>(b, a, bn);
	case DTYPE_Q4_0:
		return wide_launch<DTYPE_Q4_0>(b, a, bn);
	case DTYPE_IQ4_NL:
		return wide_launch<DTYPE_IQ4_NL>(b, a, bn);
	case DTYPE_IQ4_XS:
		return wide_launch<DTYPE_IQ4_XS>(b, a, bn);
	default:
		return false;
	}
}

bool cuda_wide(struct cuda_backend *b, enum dtype type, const struct packed_args *a, int bn)
{
	return cuda_wide_a(b, type, a, bn) || cuda_wide_b(b, type, a, bn) ||
		   cuda_wide_c(b, type, a, bn) || cuda_wide_d(b, type, a, bn);
}

enum x_order cuda_wide_order(struct cuda_backend *b, const struct weight *w)
{
	if (!b->wide || w->row_bytes % 4 || (uintptr_t)w->data % 4 || !cuda_wide(b, w->type, NULL, 0))
		return X_PLAIN;
	return w->type == DTYPE_Q8_0 || w->type == DTYPE_Q4_0 || w->type == DTYPE_IQ4_NL ||
				   w->type == DTYPE_IQ4_XS
			   ? X_QUADS
			   : X_EIGHTS;
}
