/* SPDX-License-Identifier: MIT */
/* limbs_kernel, which splits x into limbs for gemv_mma_kernel (gemv_mma.cuh: grid, block, bytes
 * moved) and gemv_many_kernel, and what depends on the type: limb layout, split-k factor, and
 * whether gemv_many_kernel splits x itself. */
#include "kernels/cuda/gemv/gemv_many.cuh"

template <bool QUADS>
static __global__ void __launch_bounds__(32) limbs_kernel(const float *x, int64_t x_row,
	int64_t x_stack, int n_stack, int n_in, uint2 *limbs, float *scales)
{
	int64_t row = blockIdx.y, at = row * gridDim.x + blockIdx.x;
	launch_dependents();
	grid_dependency_wait();
	float v[8];
	load_super_block<QUADS>(
		x + row / n_stack * x_row + row % n_stack * x_stack, (int)blockIdx.x, n_in, false, v);
	write_limbs(v, limbs + at * SUPER_BLOCK_LIMBS, scales + at);
}

enum limb_layout gemv_limb_layout(enum dtype type)
{
	switch (type) {
#define CASE(t)                                                                                    \
	case DTYPE_##t:                                                                                \
		return bytes_type<DTYPE_##t>::QUADS ? LAYOUT_QUADS : LAYOUT_EIGHTS;
		PACKED_TYPES_A(CASE)
		PACKED_TYPES_B(CASE)
		PACKED_TYPES_C(CASE)
#undef CASE
	default:
		return LAYOUT_FLOATS;
	}
}

int gemv_k_split(enum dtype type, int64_t n_in, int64_t rows)
{
	int64_t n_sb = (n_in + 255) / 256;
	switch (type) {
#define CASE(t)                                                                                    \
	case DTYPE_##t:                                                                                \
		return gemv_mma_k_split<DTYPE_##t>(n_in, rows);
		PACKED_TYPES_A(CASE)
		PACKED_TYPES_B(CASE)
		PACKED_TYPES_C(CASE)
#undef CASE
	default: /* floats: all warps of a block, if each has two super-blocks */
		return n_sb >= 16 ? 8 : n_sb >= 8 ? 4 : n_sb >= 4 ? 2 : 1;
	}
}

bool gemv_many_splits(struct cuda_backend *b, enum dtype type, const struct gemv_args *a)
{
	return (type == DTYPE_Q8_0 && gemv_many_makes_limbs<DTYPE_Q8_0>(b, a)) ||
		   (type == DTYPE_Q4_K && gemv_many_makes_limbs<DTYPE_Q4_K>(b, a));
}

bool gemv_split_limbs(
	struct cuda_backend *b, struct gemv_args *a, int64_t n_x, enum limb_layout layout)
{
	int64_t rows = n_x * a->n_stack;
	int n_sb = (a->n_in + 255) / 256;
	uint64_t groups = (uint64_t)rows * (uint64_t)n_sb;
	uint8_t *to = (uint8_t *)cuda_scratch_reserve(
		b, &b->limbs, groups * (SUPER_BLOCK_LIMBS * sizeof(uint2) + sizeof(float)));
	if (!to)
		return false;
	uint2 *limbs = (uint2 *)to;
	float *scales = (float *)(to + groups * SUPER_BLOCK_LIMBS * sizeof(uint2));
	a->limbs = limbs;
	a->scales = scales;
	int64_t step = 32768 / a->n_stack * a->n_stack; /* whole x rows */
	for (int64_t first = 0; first < rows; first += step) {
		int64_t n = rows - first < step ? rows - first : step;
		cuda_launch(b, layout == LAYOUT_QUADS ? limbs_kernel<true> : limbs_kernel<false>,
			dim3((unsigned)n_sb, (unsigned)n), 32, 0, a->x + first / a->n_stack * a->x_row,
			a->x_row, a->x_stack, a->n_stack, a->n_in, limbs + first * n_sb * SUPER_BLOCK_LIMBS,
			scales + first * n_sb);
	}
	return !b->base.failure.code;
}
