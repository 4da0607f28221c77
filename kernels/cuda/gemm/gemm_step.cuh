/* SPDX-License-Identifier: MIT */
/*
 * One step of the gemm, shared by gemm_kernel and the grouped gemm so that they give the same bits:
 * 128 weight rows times BN x rows over 32 weights, all of it in shared memory.
 *
 *      a      q of the weights, [128][32] halves, two rows a line of 128 bytes
 *      x      [BN][32] halves, the same
 *             in both, the eight 16-byte pieces of line l are permuted by xor with l % 8
 *             (swizzle), so that 8 rows have no bank conflicts
 *      f      (f0, f1) or (f0, f1, o0, o1) of each weight row
 *      sums   (s0, s1) of each x row
 */
#ifndef GLM_KERNELS_CUDA_GEMM_STEP_CUH
#define GLM_KERNELS_CUDA_GEMM_STEP_CUH

#include "kernels/cuda/gemm/gemm.cuh"
#include "kernels/cuda/common/mma.cuh"

#define GEMM_THREADS 256

/* Byte offset of 16-byte piece i of a tile; i: its number before the swizzle. */
static __device__ __forceinline__ int piece_at(int i)
{
	return (i ^ (i / 8 & 7)) * 16;
}

template <bool OFFSET, bool BY_16, int BN> struct gemm_block {
	static constexpr int WARPS_N = BN == 128 ? 4 : 2, WARPS_M = GEMM_THREADS / 32 / WARPS_N;
	static constexpr int MT = GEMM_M / WARPS_M / 16, NT = BN / WARPS_N / 8; /* tiles of a warp */
	float acc[MT][NT][4];
	int lane, wm, wn; /* first weight row and x row of the warp */

	__device__ __forceinline__ void begin()
	{
		int warp = threadIdx.x / 32;
		lane = threadIdx.x % 32;
		wm = warp % WARPS_M * (MT * 16);
		wn = warp / WARPS_M * (NT * 8);
#pragma unroll
		for (int m = 0; m < MT; m++)
#pragma unroll
			for (int n = 0; n < NT; n++)
#pragma unroll
				for (int i = 0; i < 4; i++)
					acc[m][n][i] = 0;
	}

	/* By the whole block; the caller has synchronised it behind the stores of the operands. a_at,
	 * x_at: shared addresses of a and x, multiples of 128; f_at, s_at: f and sums (OFFSET only). */
	__device__ __forceinline__ void step(
		uint32_t a_at, uint32_t x_at, const uint8_t *f_at, const uint8_t *s_at)
	{
		int row8 = lane / 4, c = lane % 4;
		uint32_t x[2][NT][2]; /* [16 of the 32] */
#pragma unroll
		for (int s = 0; s < 2; s++)
#pragma unroll
			for (int n = 0; n < NT; n += 2) {
				uint32_t b[4];
				load_matrices(b, x_at + piece_at((wn + n * 8 + lane / 16 * 8 + lane % 8) * 4 +
												 s * 2 + lane / 8 % 2));
				x[s][n][0] = b[0];
				x[s][n][1] = b[1];
				x[s][n + 1][0] = b[2];
				x[s][n + 1][1] = b[3];
			}
		float4 sums[OFFSET ? NT : 1];
		if (OFFSET)
#pragma unroll
			for (int n = 0; n < NT; n++)
				sums[OFFSET ? n : 0] = *(const float4 *)(s_at + (wn + n * 8 + 2 * c) * 8);
#pragma unroll
		for (int m = 0; m < MT; m++) {
			uint32_t a[2][4];
#pragma unroll
			for (int s = 0; s < 2; s++)
				load_matrices(
					a[s], a_at + piece_at((wm + m * 16 + lane % 16) * 4 + s * 2 + lane / 16));
			float f[2][2], o[2][2]; /* [row][16 of the 32] */
#pragma unroll
			for (int j = 0; j < 2; j++) {
				int row = wm + m * 16 + row8 + 8 * j;
				if (OFFSET) {
					float4 v = *(const float4 *)(f_at + row * 16);
					f[j][0] = v.x, f[j][1] = v.y, o[j][0] = v.z, o[j][1] = v.w;
				} else {
					float2 v = *(const float2 *)(f_at + row * 8);
					f[j][0] = v.x, f[j][1] = v.y;
				}
			}
			/* Both halves of a step go to the same d unless BY_16; in this order consecutive
			 * products do not depend on each other. */
			float d[NT][2][4] = {};
#pragma unroll
			for (int s = 0; s < 2; s++)
#pragma unroll
				for (int n = 0; n < NT; n++)
					mma_half(d[n][BY_16 ? s : 0], a[s], x[s][n][0], x[s][n][1]);
#pragma unroll
			for (int n = 0; n < NT; n++)
#pragma unroll
				for (int i = 0; i < 4; i++) {
					float v = __fmaf_rn(f[i / 2][0], d[n][0][i], acc[m][n][i]);
					if (BY_16)
						v = __fmaf_rn(f[i / 2][1], d[n][1][i], v);
					if (OFFSET) {
						float s0 = i % 2 ? sums[OFFSET ? n : 0].z : sums[OFFSET ? n : 0].x;
						float s1 = i % 2 ? sums[OFFSET ? n : 0].w : sums[OFFSET ? n : 0].y;
						if (BY_16) {
							v = __fmaf_rn(o[i / 2][0], s0, v);
							v = __fmaf_rn(o[i / 2][1], s1, v);
						} else
							v = __fmaf_rn(o[i / 2][0], __fadd_rn(s0, s1), v);
					}
					acc[m][n][i] = v;
				}
		}
	}

	/* Stores, or adds, the outputs y[o] of x rows i < n_x and weight rows o < n_out, both counted
	 * from the first of the block. row(i): pointer to y[0] of x row i. */
	template <typename row_of>
	__device__ __forceinline__ void store(
		int n_x, int n_out, const float *unscale, bool add, const row_of &row) const
	{
		int row8 = lane / 4, c = lane % 4;
#pragma unroll
		for (int n = 0; n < NT; n++)
#pragma unroll
			for (int e = 0; e < 2; e++) {
				int i = wn + n * 8 + 2 * c + e;
				if (i >= n_x)
					continue;
				float by = unscale[i], *y = row(i);
#pragma unroll
				for (int m = 0; m < MT; m++)
#pragma unroll
					for (int j = 0; j < 2; j++) {
						int o = wm + m * 16 + row8 + 8 * j;
						if (o >= n_out)
							continue;
						float v = __fmul_rn(acc[m][n][2 * j + e], by);
						y[o] = add ? __fadd_rn(y[o], v) : v;
					}
			}
	}
};

#endif
