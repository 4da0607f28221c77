/* SPDX-License-Identifier: MIT */
/*
 * Packed weights to rows of halves (library_gemm.cuh).
 *
 * unpack_rows_kernel: grid (rows), block 256. A row is decoded twice, for its largest value and to
 * be written. Bytes moved: the packed weights once in (and once from the L1 or L2 cache), 2 bytes a
 * weight out.
 */
#include "kernels/cuda/common/block_decode.cuh"
#include "kernels/cuda/library/library_gemm.cuh"

#define THREADS 256

template <int T>
static __device__ __forceinline__ float4 weights_at(
	const uint8_t *row, int k, const struct cuda_tables *tables)
{
	float q[4] = {0, 0, 0, 0}, factor = 0, offset = 0;
	packed<T>::get(row + (int64_t)(k / 256) * packed<T>::SUPER_BLOCK_BYTES, k % 256, tables, q,
		factor, offset);
	if (T != DTYPE_F32 && T != DTYPE_F16 && T != DTYPE_BF16)
#pragma unroll
		for (int i = 0; i < 4; i++)
			q[i] = __fmaf_rn(factor, q[i], offset);
	return make_float4(q[0], q[1], q[2], q[3]);
}

template <int T>
static __global__ void __launch_bounds__(THREADS)
	unpack_rows_kernel(const __grid_constant__ struct unpack_rows_args a)
{
	__shared__ float warp_most[THREADS / 32];
	const uint8_t *row = a.w + blockIdx.x * a.row_bytes;
	float most = 0;
	for (int k = 4 * threadIdx.x; k < a.n_in; k += 4 * THREADS) {
		float4 v = weights_at<T>(row, k, a.tables);
		most = fmaxf(most, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
	}
	most = library_block_most(most, warp_most);
	int e = half_exponent(most);
	if (!threadIdx.x)
		a.unscale[blockIdx.x] = power_of_two(-e);
	for (int k = 4 * threadIdx.x; k < a.n_in; k += 4 * THREADS)
		library_store_halves(a.to + (int64_t)blockIdx.x * a.n_in + k,
			weights_at<T>(row, k, a.tables), power_of_two(e));
}

void gemm_unpack_rows(struct cuda_backend *b, enum dtype type, const struct unpack_rows_args *a)
{
	switch (type) {
#define CASE(t)                                                                                    \
	case DTYPE_##t:                                                                                \
		unpack_rows_kernel<DTYPE_##t><<<(unsigned)a->n_out, THREADS, 0, b->stream>>>(*a);          \
		break;
		ALL_TYPES(CASE)
#undef CASE
	default:
		err_set(&b->base.failure, ERR_RUN, "cuda: %s: %s weights are not known", b->op,
			dtype_name(type));
		return;
	}
	cuda_launched(b);
}
