/* SPDX-License-Identifier: MIT */
/* mma_kernel (cuda_product_mma.cuh: grid, block, bytes moved) for its types, and split_kernel, which prepares x for it. */
#include "kernels/cuda/cuda_product_mma.cuh"

static __device__ __forceinline__ uint32_t bf16_bits(float f)
{
	uint32_t u = __float_as_uint(f);
	return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

static __global__ void split_kernel(
	const float *x, int64_t x_row, int64_t x_stack, int n_stack, int n_in, uint2 *columns, float *sums)
{
	int64_t row = blockIdx.y;
	int k = blockIdx.x * 256 + 4 * threadIdx.x, groups = gridDim.x * 16, g = k / 16, c = threadIdx.x % 4;
	const float *from = x + row / n_stack * x_row + row % n_stack * x_stack;
	float v[4], sum = 0;
	uint32_t bits[3][4];
#pragma unroll
	for (int i = 0; i < 4; i++) {
		v[i] = k + i < n_in ? from[k + i] : 0;
		sum = __fadd_rn(sum, v[i]);
#pragma unroll
		for (int p = 0; p < 3; p++) {
			bits[p][i] = bf16_bits(v[i]);
			v[i] = __fsub_rn(v[i], __uint_as_float(bits[p][i] << 16));
		}
	}
	sum += __shfl_xor_sync(0xffffffffu, sum, 1);
	sum += __shfl_xor_sync(0xffffffffu, sum, 2);
	if (!c)
		sums[row * groups + g] = sum;
#pragma unroll
	for (int p = 0; p < 3; p++)
		columns[(row * groups + g) * 12 + 4 * p + c] =
			make_uint2(bits[p][0] | bits[p][2] << 16, bits[p][1] | bits[p][3] << 16);
}

bool cuda_product_split(struct cuda_backend *b, struct product_args *a, int64_t n_x)
{
	int64_t rows = n_x * a->n_stack;
	int runs = (a->n_in + 255) / 256;
	uint64_t values = (uint64_t)rows * (uint64_t)runs * 16;
	uint8_t *to = (uint8_t *)cuda_scratch_of(b, &b->columns, values * (12 * sizeof(uint2) + sizeof(float)));
	if (!to)
		return false;
	a->columns = (const uint2 *)to;
	a->sums = (const float *)(to + values * 12 * sizeof(uint2));
	int64_t step = 32768 / a->n_stack * a->n_stack; /* whole x rows */
	for (int64_t first = 0; first < rows; first += step) {
		int64_t n = rows - first < step ? rows - first : step;
		split_kernel<<<dim3((unsigned)runs, (unsigned)n), 64, 0, b->stream>>>(
			a->x + first / a->n_stack * a->x_row, a->x_row, a->x_stack, a->n_stack, a->n_in,
			(uint2 *)a->columns + first * runs * 16 * 12, (float *)a->sums + first * runs * 16);
		cuda_launched(b);
	}
	return !b->base.failure.code;
}

product_launch *cuda_product_mma(enum dtype type)
{
	switch (type) {
	case DTYPE_Q8_0:
		return mma_launch_type<DTYPE_Q8_0>;
	case DTYPE_Q4_K:
		return mma_launch_type<DTYPE_Q4_K>;
	case DTYPE_Q2_K:
		return mma_launch_type<DTYPE_Q2_K>;
	case DTYPE_IQ2_XXS:
		return mma_launch_type<DTYPE_IQ2_XXS>;
	default:
		return NULL;
	}
}
