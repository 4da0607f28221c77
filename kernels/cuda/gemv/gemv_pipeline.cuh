/* SPDX-License-Identifier: MIT */
/*
 * An item of 16 weight rows from packed bytes to sums, in the aligned gemv. The fused gemv chain
 * shares the last two.
 *
 *   item_stage           copies of one stage by a warp: CHUNK super-blocks of 16 rows (cp.async)
 *   stage_multiply       the stage times the limbs of x, added to the warp's accumulators
 *   store_partials       a warp's partial sums to shared memory, for the warps of its group
 *   add_partials         their sum in the order of the warps
 */
#ifndef GLM_KERNELS_CUDA_GEMV_PIPELINE_CUH
#define GLM_KERNELS_CUDA_GEMV_PIPELINE_CUH

#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/gemv/gemv_mma.cuh"

static __device__ __forceinline__ void copy_line(uint32_t shared, const void *global)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global));
}

static __device__ __forceinline__ void sync_group(int group, int warps)
{
	asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(warps * 32) : "memory");
}

/* Which 16-byte lines of a stage this lane copies. Eight rows lie in a stage line after line: line
 * 32 i + lane of them comes from from[i] bytes past the first row. */
template <int T> struct item_stage {
	static constexpr int CHUNK = gemv_tiling<T, false>::CHUNK,
						 SB_BYTES = packed<T>::SUPER_BLOCK_BYTES, BYTES = CHUNK * SB_BYTES;
	static constexpr int STRIDE = gemv_stage<T, CHUNK>::STRIDE, STAGE = MMA_ROWS * STRIDE;
	static constexpr int LINES = STRIDE / 16, ROUNDS = (8 * LINES + 31) / 32;
	uint32_t from[ROUNDS], to, there;

	/* base: where the warp's stages begin */
	__device__ __forceinline__ void init(uint32_t base, int lane)
	{
		to = base + 16 * lane;
		there = 0;
#pragma unroll
		for (int i = 0; i < ROUNDS; i++) {
			int line = i * 32 + lane;
			there |= (uint32_t)(line < 8 * LINES && line % LINES < BYTES / 16) << i;
		}
	}

	__device__ __forceinline__ void set_row_bytes(int row_bytes, int lane)
	{
#pragma unroll
		for (int i = 0; i < ROUNDS; i++) {
			int line = i * 32 + lane;
			from[i] = line / LINES * row_bytes + line % LINES * 16;
		}
	}

	/* Starts the copies of 16 rows (from0: 8, from8: 8) from byte `at` of each on. n_rows: how many
	 * of them there are, of each half if `pairs`. */
	__device__ __forceinline__ void copy(int stage, const uint8_t *from0, const uint8_t *from8,
		int row_bytes, int at, int n_rows, bool pairs, int lane) const
	{
		uint32_t stage_to = to + stage * STAGE;
		if (at + BYTES <= row_bytes && n_rows >= (pairs ? 8 : 16)) {
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const uint8_t *rows = (half ? from8 : from0) + at;
#pragma unroll
				for (int i = 0; i < ROUNDS; i++)
					if ((i * 32 + 31 < 8 * LINES && BYTES == STRIDE) || (there >> i & 1))
						copy_line(stage_to + half * (STAGE / 2) + 512 * i, rows + from[i]);
			}
			return;
		}
		/* rows past the end repeat the last one; their results are not stored. Not unrolled: it is
		 * rare. */
#pragma unroll 1
		for (int row = 0; row < MMA_ROWS; row++) {
			int r = min(pairs ? row % 8 : row, n_rows - 1);
			const uint8_t *line = (pairs && row >= 8 ? from8 : from0) + (int64_t)r * row_bytes + at;
#pragma unroll 1
			for (int i = lane; i < min(BYTES, row_bytes - at) / 16; i += 32)
				copy_line(stage_to + row * STRIDE + 16 * (i - lane), line + 16 * i);
		}
	}
};

/* acc += stage * limbs. row: row r0 of the stage; column: this lane's limbs of super-block 0 (NULL:
 * the lane has no column); scales: of its two columns. */
template <int T>
static __device__ __forceinline__ void stage_multiply(const uint8_t *row, int chunk, int n_sb,
	int n_in, int c, const struct cuda_tables *tables, const uint8_t *shared, const uint2 *column,
	const float *const scales[2], float acc[1][4])
{
	typedef struct item_stage<T> stage;
#pragma unroll
	for (int u = 0; u < stage::CHUNK; u++) {
		int sb = chunk * stage::CHUNK + u;
		if (sb >= n_sb)
			break;
		const uint2 *const at_sb[1] = {column ? column + sb * SUPER_BLOCK_LIMBS : NULL};
		const float x_scale[1][2] = {{scales[0][sb], scales[1][sb]}};
		const uint8_t *p = row + u * stage::SB_BYTES;
		super_block_mma<T, 1, 8>(p, p + 8 * stage::STRIDE, u, n_in - sb * 256, c, tables,
			lane_tables{shared, 0}, at_sb, x_scale, acc);
	}
}

/* Partial sums of warp `part` of a group: [part][x row][weight row] */
template <int X_ROWS>
static __device__ __forceinline__ void store_partials(
	const float acc[4], float *partials, int part, int lane)
{
	int r0 = lane / 4, c = lane % 4;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		float v = combine_limbs(acc + 2 * half, lane);
		if (X_ROWS == 2 ? !(c & 1) : !c)
			partials[part * (X_ROWS * MMA_ROWS) + c / 2 * MMA_ROWS + r0 + 8 * half] = v;
	}
}

/* Sum over the warps of a group, in their order; partials: of the first warp, this lane's. */
template <int X_ROWS>
static __device__ __forceinline__ float add_partials(const float *partials, int split)
{
	float sum = 0, of_warp[GEMV_WARPS];
#pragma unroll
	for (int w = 0; w < GEMV_WARPS; w++)
		of_warp[w] = w < split ? partials[w * (X_ROWS * MMA_ROWS)] : 0;
#pragma unroll
	for (int w = 0; w < GEMV_WARPS; w++)
		sum = w < split ? __fadd_rn(sum, of_warp[w]) : sum;
	return sum;
}

#endif
