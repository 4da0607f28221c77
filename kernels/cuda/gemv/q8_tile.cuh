/* SPDX-License-Identifier: MIT */
/*
 * A register tile of Q8_0 weights: 16 rows by 64 PAIRS weights of one warp, as the A operands of
 * mma.m16n8k32. Kernels that have a fixed share of the weights (ffn_fused.cu, mla.cu) load it
 * while the kernel before still runs, so that only arithmetic is left when x arrives.
 *
 * A pair is two blocks of 34 bytes: scale, 32 weights, scale, 32 weights. All loads are aligned
 * words. Of the first block lane c of a row has words 1 + c and 5 + c: weights 4 c + 2 on and
 * 4 c + 18 on, of which the last two of lane 3 are weights 0 and 1. Of the second block it has
 * words 9 + c and 13 + c: weights 4 c on and 4 c + 16 on. x must be in the same order, which is
 * called fragment order here (q8_tile_pair).
 *
 * The arithmetic and the order of additions are super_block_mma's (gemv_mma.cuh).
 */
#ifndef GLM_KERNELS_CUDA_Q8_TILE_CUH
#define GLM_KERNELS_CUDA_Q8_TILE_CUH

#include "kernels/cuda/gemv/gemv_mma.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/* HALF_SCALES: scales stay halves, which saves 2 PAIRS registers and costs conversions later. */
template <int PAIRS, bool HALF_SCALES> struct q8_tile {
	uint32_t word[2 * PAIRS][2][2];                   /* [block][row][word] */
	uint32_t half_scale[HALF_SCALES ? 2 * PAIRS : 1]; /* of both rows */
	float scale[HALF_SCALES ? 1 : 2 * PAIRS][2];      /* [block][row] */
};

/* rows: the first of 16 rows in shared memory, row_bytes apart. */
template <int PAIRS, bool HALF_SCALES>
static __device__ __forceinline__ void q8_tile_load(
	const uint8_t *rows, int row_bytes, struct q8_tile<PAIRS, HALF_SCALES> &t)
{
	int lane = threadIdx.x % 32, c = lane % 4;
#pragma unroll
	for (int j = 0; j < PAIRS; j++) {
		uint32_t w0[2], w8[2];
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const uint32_t *w = (const uint32_t *)(rows + (lane / 4 + 8 * i) * row_bytes + 68 * j);
			w0[i] = w[0], w8[i] = w[8];
			uint32_t last = w[5 + c];
			t.word[2 * j][i][0] = w[1 + c];
			t.word[2 * j][i][1] = c == 3 ? __byte_perm(w8[i], w0[i], 0x7610) : last;
			t.word[2 * j + 1][i][0] = w[9 + c];
			t.word[2 * j + 1][i][1] = w[13 + c];
			if (!HALF_SCALES) {
				t.scale[HALF_SCALES ? 0 : 2 * j][i] = half_float(w0[i] & 0xffff);
				t.scale[HALF_SCALES ? 0 : 2 * j + 1][i] = half_float(w8[i] >> 16);
			}
		}
		if (HALF_SCALES) {
			t.half_scale[HALF_SCALES ? 2 * j : 0] = __byte_perm(w0[0], w0[1], 0x5410);
			t.half_scale[HALF_SCALES ? 2 * j + 1 : 0] = __byte_perm(w8[0], w8[1], 0x7632);
		}
	}
}

/* Fragment order: the offset of pair i = 0 .. 3 of this lane's eight values of x. Lane 4 s + c has
 * those of block s that lane c of the tile's rows multiplies. */
static __device__ __forceinline__ int q8_tile_pair(int i)
{
	int lane = threadIdx.x % 32, s = lane / 4, c = lane % 4, at = 2 * c + (s % 2 == 0);
	return s * 32 + (at + i % 2 + i / 2 * 8) % 16 * 2;
}

/* sum = the tile times the limbs of one row of x, before the scale of x. Limb i is column 2 i of
 * the product: lane 4 r + i has it for rows r and r + 8. */
template <int PAIRS, bool HALF_SCALES>
static __device__ __forceinline__ void q8_tile_mma(
	const struct q8_tile<PAIRS, HALF_SCALES> &t, const uint2 *limbs, float sum[2])
{
	int lane = threadIdx.x % 32;
	const uint2 *column = limbs + lane / 8 * 4 + lane % 4;
	bool used = lane / 4 % 2 == 0 && lane < 24;
	uint2 b[2 * PAIRS];
#pragma unroll
	for (int s = 0; s < 2 * PAIRS; s++)
		b[s] = used ? column[s * 12] : make_uint2(0, 0);
	sum[0] = sum[1] = 0;
#pragma unroll
	for (int s = 0; s < 2 * PAIRS; s++) {
		uint32_t words[4] = {t.word[s][0][0], t.word[s][1][0], t.word[s][0][1], t.word[s][1][1]};
		int d[4];
		mma_16832(d, words, b[s], 0x4b400000);
#pragma unroll
		for (int i = 0; i < 2; i++) {
			uint32_t both = t.half_scale[HALF_SCALES ? s : 0];
			float scale = HALF_SCALES ? half_float(i ? both >> 16 : both & 0xffff)
									  : t.scale[HALF_SCALES ? 0 : s][i];
			sum[i] = __fmaf_rn(scale, __fadd_rn(__int_as_float(d[2 * i]), -12582912.0f), sum[i]);
		}
	}
}

/* The three limbs' sums of a row, in lanes 4 r, 4 r + 1 and 4 r + 2, as one value in lane 4 r. */
static __device__ __forceinline__ float q8_tile_combine_limbs(float v)
{
	float mid = __shfl_down_sync(0xffffffffu, v, 1), low = __shfl_down_sync(0xffffffffu, v, 2);
	return __fmaf_rn(65536.0f, v, __fmaf_rn(256.0f, mid, low));
}

#endif

#endif
