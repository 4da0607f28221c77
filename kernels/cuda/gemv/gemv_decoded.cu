/* SPDX-License-Identifier: MIT */
/*
 * gemv for the types of block_decode.cuh: weights become floats in registers, those of F8_E4M3
 * times their block scale. One kernel serves all of them and branches by type once for every
 * sixteen weights of a lane. A kernel for each type would be faster, but types that rare are not
 * worth the compile time and the size of ten kernels.
 *
 * gemv_decoded_kernel: grid, block, split-k and order of additions as gemv_kernel (gemv.cuh).
 * Bytes moved: every weight row once per group of NX activation rows, in loads of one, two or
 * (F8_E4M3) four bytes. Unlike in gemv_kernel, no weights are loaded before the dependency wait.
 * Lanes past the end of a row decode its first weights, and take zeros in their place.
 *
 * Its arguments have 4,364 bytes: more than 4,096 need a driver of CUDA 12.1 or newer.
 */
#include "kernels/cuda/common/block_decode.cuh"
#include "kernels/cuda/gemv/gemv.cuh"

#define FOURS 4 /* groups of four weights that a lane decodes at a time */

/* w[j] = the weights k[j] .. k[j] + 3 of row[j]; zeros past n_in. F8_E4M3 only: scales[j] are the
 * block scales of the matrix of which row[j] is row `weight_row`. */
template <int T>
static __device__ __forceinline__ void decode_fours(const uint8_t *const row[FOURS],
	const int k[FOURS], int n_in, const struct cuda_tables *t, const uint8_t *const scales[FOURS],
	int weight_row, float w[FOURS][4])
{
#pragma unroll
	for (int j = 0; j < FOURS; j++) {
		bool within = k[j] < n_in;
		int at = within ? k[j] : 0; /* no branch: the loads of all overlap */
		float q[4], factor = 0, offset = 0;
		const uint8_t *p = row[j] + (int64_t)(at / 256) * packed<T>::SUPER_BLOCK_BYTES;
		if (T == DTYPE_F8_E4M3 && n_in - at < 4)
			f8_row_end(p, at % 256, n_in - at, q);
		else
			packed<T>::get(p, at % 256, t, q, factor, offset);
		if (T == DTYPE_F8_E4M3)
			factor = block_scale(scales[j], n_in, weight_row, at);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			float v = __fmul_rn(factor, q[i]);
			w[j][i] = !within ? 0.0f : packed<T>::OFFSET ? __fadd_rn(v, offset) : v;
		}
	}
}

template <int NX, bool GLU>
static __global__ void __launch_bounds__(GEMV_WARPS * 32)
	gemv_decoded_kernel(const __grid_constant__ struct gemv_args a,
		const __grid_constant__ struct gemv_block_scales block_scales, int type)
{
	constexpr int W = GLU ? 2 : 1, SUPER_BLOCKS = FOURS / (2 * W);
	__shared__ float part_sum[GEMV_WARPS][W * NX];

	launch_dependents();
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, split = a.split, part = warp % split;
	int task = blockIdx.y / a.n_stack;
	const struct gemv_task &t = a.task[task];
	int stack = blockIdx.y % a.n_stack, row_group = blockIdx.x % a.row_groups,
		out_first = blockIdx.x / a.row_groups * (GEMV_WARPS / split);
	if (out_first >= t.n_out)
		return;
	int n_x = min(NX, a.rows == ROWS_PLAIN ? a.n_rows - row_group * NX : t.n_x);
	int out = min(out_first + warp / split, t.n_out - 1);
	int64_t at = stack * a.stack_bytes + out * a.row_bytes;
	int n_sb = (a.n_in + 255) / 256;
	const float *x[NX];
	gemv_x_rows<NX>(a, t, stack, row_group, n_x, x);
	float acc[W][NX];
#pragma unroll
	for (int j = 0; j < W; j++)
#pragma unroll
		for (int r = 0; r < NX; r++)
			acc[j][r] = 0;
	grid_dependency_wait();
	for (int sb = part; sb < n_sb; sb += SUPER_BLOCKS * split) {
		/* j counts [super-block][half][matrix] */
		const uint8_t *row[FOURS], *scales[FOURS];
		int k[FOURS];
		float w[FOURS][4];
#pragma unroll
		for (int j = 0; j < FOURS; j++) {
			row[j] = (j % W ? t.up : t.w) + at;
			scales[j] = j % W ? block_scales.up[task] : block_scales.w[task];
			k[j] = (sb + j / (2 * W) * split) * 256 + 4 * lane + 128 * (j / W % 2);
		}
		switch (type) {
#define CASE(t)                                                                                    \
	case DTYPE_##t:                                                                                \
		decode_fours<DTYPE_##t>(row, k, a.n_in, a.tables, scales, out, w);                         \
		break;
			DECODED_TYPES(CASE)
			CASE(F8_E4M3)
#undef CASE
		}
#pragma unroll
		for (int j = 0; j < FOURS; j += W)
#pragma unroll
			for (int r = 0; r < NX; r++) {
				float xv[4];
				load_x(x[r], k[j], a.n_in, a.x_aligned, xv);
#pragma unroll
				for (int m = 0; m < W; m++)
#pragma unroll
					for (int e = 0; e < 4; e++)
						acc[m][r] = __fmaf_rn(w[j + m][e], xv[e], acc[m][r]);
			}
	}
	gemv_store<NX, GLU>(a, t, lane, warp, split, stack, row_group, out_first, n_x, acc, part_sum);
}

template <int NX, bool GLU>
static void launch_as(struct cuda_backend *b, enum dtype type, const struct gemv_args *given)
{
	struct gemv_args a = *given;
	dim3 grid = gemv_float_grid<NX>(&a);
	cuda_launch(
		b, gemv_decoded_kernel<NX, GLU>, grid, GEMV_WARPS * 32, 0, a, *a.block_scales, (int)type);
}

bool gemv_decoded_enqueue(
	struct cuda_backend *b, enum dtype type, const struct gemv_args *a, int n_x)
{
	switch (type) {
#define CASE(t) case DTYPE_##t:
		DECODED_TYPES(CASE)
		CASE(F8_E4M3)
#undef CASE
		break;
	default:
		return false;
	}
	if (n_x == 1)
		a->glu ? launch_as<1, true>(b, type, a) : launch_as<1, false>(b, type, a);
	else
		a->glu ? launch_as<GEMV_ROWS, true>(b, type, a) : launch_as<GEMV_ROWS, false>(b, type, a);
	return true;
}
