/* SPDX-License-Identifier: MIT */
/*
 * Packed weights to panels of halves (gemm.cuh).
 *
 * unpack_kernel: grid (groups of 8 rows times super-blocks, matrices), block 256: a warp decodes a
 * super-block of a row, a lane 4 weights of each half of it (block_decode.cuh). Floats are scaled
 * by a power of two, one for each 32, so that halves hold them. Bytes moved: the packed weights
 * once in, 2.25 to 2.5 bytes a weight out.
 */
#include "kernels/cuda/common/block_decode.cuh"
#include "kernels/cuda/gemm/gemm.cuh"
#include "kernels/cuda/common/mma.cuh"

template <int T>
static __global__ void __launch_bounds__(256)
	unpack_kernel(const __grid_constant__ struct unpack_args a)
{
	constexpr bool FLOATS = T == DTYPE_F32 || T == DTYPE_F16 || T == DTYPE_BF16;
	const struct weight_panel &panel = a.panel;
	int lane = threadIdx.x % 32, n_sb = (panel.n_in + 255) / 256, sb = blockIdx.x % n_sb,
		row = blockIdx.x / n_sb * 8 + threadIdx.x / 32;
	if (row >= a.n_out)
		return;
	const uint8_t *p =
		a.w[blockIdx.y] + row * a.row_bytes + (int64_t)sb * packed<T>::SUPER_BLOCK_BYTES;
	int64_t to = a.first[blockIdx.y] + row;
#pragma unroll
	for (int g = 0; g < 2; g++) {
		int v = 4 * lane + 128 * g, left = panel.n_in - sb * 256 - v, step = sb * 8 + v / 32;
		float q[4] = {0, 0, 0, 0}, factor = 0, offset = 0;
		if (left >= 4)
			packed<T>::get(p, v, a.tables, q, factor, offset);
		else if (T == DTYPE_F8_E4M3)
			f8_row_end(p, v, left, q);
		else if (FLOATS)
			for (int i = 0; i < left; i++) /* the row ends within these four */
				q[i] = T == DTYPE_F32 ? ((const float *)p)[v + i]
					   : T == DTYPE_F16
						   ? half_float(((const uint16_t *)p)[v + i])
						   : __uint_as_float((uint32_t)((const uint16_t *)p)[v + i] << 16);
		if (T == DTYPE_F8_E4M3 && left > 0)
			factor = block_scale(a.scales[blockIdx.y], panel.n_in, row, sb * 256 + v);
		if (FLOATS) {
			float most = fmaxf(fmaxf(fabsf(q[0]), fabsf(q[1])), fmaxf(fabsf(q[2]), fabsf(q[3])));
#pragma unroll
			for (int i = 1; i < 8; i *= 2)
				most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, i));
			int e = half_exponent(most);
			factor = power_of_two(-e);
#pragma unroll
			for (int i = 0; i < 4; i++)
				q[i] = __fmul_rn(q[i], power_of_two(e));
			if (T == DTYPE_F32 &&
				a.rest) { /* the rounding errors are at most 2^-11 of the halves */
				factor = __fmul_rn(factor, 0x1p-11f);
#pragma unroll
				for (int i = 0; i < 4; i++)
					q[i] = __fmul_rn(__fsub_rn(q[i], __half2float(__float2half_rn(q[i]))), 0x1p11f);
			}
		}
		float second = __shfl_down_sync(0xffffffffu, factor, 4);
		float second_offset = __shfl_down_sync(0xffffffffu, offset, 4);
		if (step >= panel.steps)
			continue;
		__half2 h[2] = {__floats2half2_rn(q[0], q[1]), __floats2half2_rn(q[2], q[3])};
		int64_t at = step * panel.m_pad + to;
		*(uint2 *)(panel.q + at * 32 + v % 32) = *(uint2 *)h;
		if (lane % 8 == 0) {
			if (packed<T>::OFFSET)
				((float4 *)panel.factor)[at] = make_float4(factor, second, offset, second_offset);
			else
				((float2 *)panel.factor)[at] = make_float2(factor, second);
		}
	}
}

void gemm_unpack(struct cuda_backend *b, enum dtype type, const struct unpack_args *a)
{
	dim3 grid(
		(unsigned)((a->n_out + 7) / 8 * ((a->panel.n_in + 255) / 256)), (unsigned)a->n_matrices);
	switch (type) {
#define CASE(t)                                                                                    \
	case DTYPE_##t:                                                                                \
		unpack_kernel<DTYPE_##t><<<grid, 256, 0, b->stream>>>(*a);                                 \
		break;
		ALL_TYPES(CASE)
		CASE(F8_E4M3)
#undef CASE
	default:
		err_set(&b->base.failure, ERR_RUN, "cuda: %s: %s weights are not known", b->op,
			dtype_name(type));
		return;
	}
	cuda_launched(b);
}
