/* SPDX-License-Identifier: MIT */
/*
 * Parts of the kernels that compute items of 16 weight rows: gemv_aligned_kernel,
 * gemv_many_kernel, gemv_chain_kernel, mla_output.cuh. In brackets: which of them.
 *
 *   item_part                  the matrices of a launch [aligned, many]
 *   item_position_of           where an item lies [aligned, many, chain]
 *   item_args_set              their arguments from gemv_args [aligned, many]
 *   item_stage                 copies of one stage by a warp: CHUNK super-blocks of 16 rows
 *                              (cp.async) [aligned, many]
 *   stage_multiply             the stage times the limbs of x, added to the warp's accumulators
 *                              [aligned]
 *   store_partials             a warp's partial sums to shared memory [aligned, chain, mla]
 *   add_partials               their sum in the order of the warps [chain]
 *
 * Tried: one struct for set_rows and fetch of [aligned, many], which differ in names only: other
 * machine code (CUDA 13.0, sm_90a), and gemv_many_kernel of Q4_K with four row tiles spills 160
 * bytes a thread in place of 120. Its speed was not measured.
 */
#ifndef GLM_KERNELS_CUDA_GEMV_PIPELINE_CUH
#define GLM_KERNELS_CUDA_GEMV_PIPELINE_CUH

#include "kernels/cuda/gemv/gemv_mma.cuh"

/* Named barrier of a group of warps; groups count from 0. */
static __device__ __forceinline__ void sync_group(int group, int warps)
{
	asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(warps * 32) : "memory");
}

#define ITEM_PARTS 4 /* matrices of a launch, at most */

/* One of the matrices that a launch multiplies by the same x. */
struct item_part {
	const uint8_t *w, *up; /* up: glu only; else w again */
	float *y;              /* [rows of x][n_out]; of a stack: as gemv_many_args says */
	int n_out, item_end;   /* item_end: items of the parts up to and with this one */
};

/* An item's part, and its first weight row in that. */
struct item_position {
	int part, row;
};

/* a: the arguments of a launch, with n_parts and part; item_rows: weight rows of an item. */
template <typename A>
static __device__ __forceinline__ struct item_position item_position_of(
	const A &a, int item, int item_rows)
{
	struct item_position p = {0, 0};
	int before = 0;
#pragma unroll
	for (int i = 0; i < (int)(sizeof a.part / sizeof a.part[0]) - 1; i++)
		if (i + 1 < a.n_parts && item >= a.part[i].item_end) {
			p.part = i + 1;
			before = a.part[i].item_end;
		}
	p.row = (item - before) * item_rows;
	return p;
}

/* Sets the fields that struct gemv_aligned_args and struct gemv_many_args share; *a is zeros but
 * for what the caller has set. False: kernels that copy by item_stage do not apply, because of rows
 * by slots, too many matrices, matrices or rows that are not 16-byte aligned, rows so long that
 * offsets within a tile do not fit in an int, stacks, or another stride of y than n_out. `stack`:
 * the caller takes care of stacks, of the stride of y, and of rows that are not aligned. */
template <typename A> static bool item_args_set(A *a, const struct gemv_args *p, bool stack = false)
{
	int rows = p->glu ? MMA_ROWS / 2 : MMA_ROWS, items = 0;
	if (p->rows != ROWS_PLAIN || (p->n_stack > 1 && !stack) || p->n_tasks > ITEM_PARTS ||
		p->row_bytes > INT_MAX / 16 || p->split > GEMV_WARPS)
		return false;
	uintptr_t all = stack ? 0 : (uintptr_t)p->row_bytes;
	for (int i = 0; i < p->n_tasks; i++) {
		const struct gemv_task *t = &p->task[i];
		if (p->y_row && p->y_row != t->n_out && !stack)
			return false;
		items += (t->n_out + rows - 1) / rows;
		a->part[i] = {t->w, p->glu ? t->up : t->w, t->y, t->n_out, items};
		a->add |= (uint32_t)t->add << i;
		all |= (uintptr_t)a->part[i].w | (uintptr_t)a->part[i].up;
	}
	while (1 << a->log_split < p->split)
		a->log_split++;
	a->tables = p->tables;
	a->row_bytes = (int)p->row_bytes;
	a->n_in = p->n_in, a->n_rows = p->n_rows, a->n_parts = p->n_tasks;
	a->glu = p->glu;
	return all % 16 == 0;
}

/* Which 16-byte lines of a stage this lane copies. A stage is 16 rows of LINES lines, an odd number
 * (few bank conflicts); of the LINES, BYTES / 16 are copied. Eight rows lie in it line after line:
 * line 32 i + lane of them comes from from[i] bytes past the first row. Rows and their bytes are
 * multiples of 16, and so are BYTES of the types that use it (Q8_0, Q4_K): no copy passes a row's
 * end. (Of flat stacks gemv_many_kernel uses `to` alone.) */
template <int T> struct item_stage {
	static constexpr int CHUNK = gemv_tiling<T, false>::CHUNK,
						 SB_BYTES = packed<T>::SUPER_BLOCK_BYTES, BYTES = CHUNK * SB_BYTES;
	static constexpr int STRIDE = gemv_stage<T, CHUNK>::STRIDE, STAGE = MMA_ROWS * STRIDE;
	static constexpr int LINES = STRIDE / 16, ROUNDS = (8 * LINES + 31) / 32;
	static_assert(BYTES % 16 == 0, "chunks of a row begin at lines");
	uint32_t from[ROUNDS], to; /* to: shared address of this lane's first line */
	uint32_t there;            /* bit i: line 32 i + lane is copied */

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

	/* Starts the copies of 16 rows (from0: the first 8, from8: the others) from byte `at` of each
	 * on. n_rows: how many of them the matrix has; `pairs` (glu): both halves have as many. */
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
						async_copy(stage_to + half * (STAGE / 2) + 512 * i, rows + from[i]);
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
				async_copy(stage_to + row * STRIDE + 16 * (i - lane), line + 16 * i);
		}
	}
};

/* acc += stage * limbs. row: row r0 of the stage; column: this lane's limbs of super-block 0 (NULL:
 * the lane has no column); scales: of the two columns of the lane's accumulators. */
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

/* Stores the partial sums of warp `part` of a group: [part][x row][weight row]. */
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

/* Sum over the warps of a group, in their order. partials: this lane's value of the first warp. */
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
