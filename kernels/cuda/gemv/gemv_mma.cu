/* SPDX-License-Identifier: MIT */
/* Which types mma_kernel (gemv_mma.cuh) takes, and digits_kernel, which prepares x for it.
 */
#include "kernels/cuda/gemv/gemv_mma.cuh"

template <bool QUADS>
static __global__ void __launch_bounds__(32) digits_kernel(const float *x, int64_t x_row,
	int64_t x_stack, int n_stack, int n_in, uint2 *digits, float *scales)
{
	int64_t row = blockIdx.y, at = row * gridDim.x + blockIdx.x;
	grid_let_next();
	grid_wait_before();
	float v[8];
	load_run<QUADS>(
		x + row / n_stack * x_row + row % n_stack * x_stack, (int)blockIdx.x, n_in, false, v);
	write_digits(v, digits + at * RUN_DIGITS, scales + at);
}

enum product_layout cuda_product_layout(enum dtype type)
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

int cuda_product_split(enum dtype type, int64_t n_in, int64_t rows)
{
	int64_t runs = (n_in + 255) / 256;
	switch (type) {
#define CASE(t)                                                                                    \
	case DTYPE_##t:                                                                                \
		return mma_split<DTYPE_##t>(n_in, rows);
		PACKED_TYPES_A(CASE)
		PACKED_TYPES_B(CASE)
		PACKED_TYPES_C(CASE)
#undef CASE
	default: /* floats: all warps of a block, if each has two runs */
		return runs >= 16 ? 8 : runs >= 8 ? 4 : runs >= 4 ? 2 : 1;
	}
}

bool cuda_product_digits(
	struct cuda_backend *b, struct product_args *a, int64_t n_x, enum product_layout layout)
{
	int64_t rows = n_x * a->n_stack;
	int runs = (a->n_in + 255) / 256;
	uint64_t groups = (uint64_t)rows * (uint64_t)runs;
	uint8_t *to = (uint8_t *)cuda_scratch_of(
		b, &b->columns, groups * (RUN_DIGITS * sizeof(uint2) + sizeof(float)));
	if (!to)
		return false;
	uint2 *digits = (uint2 *)to;
	float *scales = (float *)(to + groups * RUN_DIGITS * sizeof(uint2));
	a->digits = digits;
	a->scales = scales;
	int64_t step = 32768 / a->n_stack * a->n_stack; /* whole x rows */
	for (int64_t first = 0; first < rows; first += step) {
		int64_t n = rows - first < step ? rows - first : step;
		cuda_launch(b, layout == LAYOUT_QUADS ? digits_kernel<true> : digits_kernel<false>,
			dim3((unsigned)runs, (unsigned)n), 32, 0, a->x + first / a->n_stack * a->x_row,
			a->x_row, a->x_stack, a->n_stack, a->n_in, digits + first * runs * RUN_DIGITS,
			scales + first * runs);
	}
	return !b->base.failure.code;
}
