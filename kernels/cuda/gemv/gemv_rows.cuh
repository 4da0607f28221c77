/* SPDX-License-Identifier: MIT */
/*
 * gemv for 3 to 16 rows of x, where gemv_many_kernel (gemv_many.cuh) does not apply: what
 * gemv_mma_kernel (gemv_mma.cuh) computes, for matrices (no stacks) whose rows are 16-byte aligned.
 * The sums and their order are the same, so the bits are the same. It is faster because less code
 * runs for each tile: every column of a tile is multiplied (those past the last row of x repeat
 * it), up to 5 rows of x are 2 tiles of limb columns instead of 3, and one block per SM takes any
 * number of items.
 *
 *      item   16 weight rows (glu: 8 of gate and 8 of up) by all rows of x
 *      part   one of up to ITEM_PARTS matrices that multiply the same x (struct item_part)
 *      split  warps that share an item (gemv_k_split): warp number `share` of them has the
 *             chunks share, share + split, ...; the partial sums are added in warp order
 *      tile   8 limb columns. A row of x is three int8 limbs, so three columns: TILES is 2 for up
 *             to 5 rows of x, 3 for up to 8, 6 for up to 16
 *
 * Grid: at most one block per SM, each with a contiguous range of items. Block: rows_warps warps in
 * groups of `split`. The groups take the block's items in turns; each synchronises on a named
 * barrier of its own, twice per item: behind the partial sums, and behind their reads. A warp
 * copies ROWS_STAGES chunks ahead (cp.async), across items. The first copies start before the wait
 * for the previous kernel.
 *
 * Shared memory: stages [warp][ROWS_STAGES], partial sums [warp][16 weight rows][8 TILES columns].
 * Limbs are read from the L2 cache.
 *
 * Bytes moved: every packed row once; 3 bytes per value of x for each item, from the L2 cache.
 *
 * Tried, one H200, o of Q8_0 at 4 rows: several tiles of weight rows by the same limbs, 8 warps:
 * 2,345 GB/s against 2,663; 16 warps with 6 tiles spill: a step of 16 rows 12.5 against 9.6 ms.
 */
#ifndef GLM_KERNELS_CUDA_GEMV_ROWS_CUH
#define GLM_KERNELS_CUDA_GEMV_ROWS_CUH

#include "kernels/cuda/gemv/gemv_pipeline.cuh"

#define ROWS_STAGES 2
#define ROWS_MAX_X  16

/* Warps of a block: as many as registers allow. */
static constexpr __host__ __device__ int rows_warps(int tiles)
{
	return tiles > 3 ? 8 : 16;
}

struct gemv_rows_args {
	/* [n_rows][super-blocks][SUPER_BLOCK_LIMBS] of x, by limbs_kernel; NULL: gemv_many_kernel makes
	 * them */
	const uint2 *limbs;
	const float *scales; /* [n_rows][super-blocks] of x */
	const struct cuda_tables *tables;
	int row_bytes, n_in, n_rows, n_parts, log_split;
	uint32_t add; /* bit i: part i is added to y */
	bool glu;     /* y = silu(w x) * (up x) */
	struct item_part part[ITEM_PARTS];
};

template <int T, int TILES> static constexpr size_t rows_shared_bytes()
{
	return (size_t)rows_warps(TILES) *
		   (ROWS_STAGES * item_stage<T>::STAGE + MMA_ROWS * 8 * TILES * sizeof(float));
}

template <int T, int TILES>
__global__ void __launch_bounds__(rows_warps(TILES) * 32, 1)
	gemv_rows_kernel(const __grid_constant__ struct gemv_rows_args a)
{
	typedef struct bytes_type<T> type;
	typedef struct item_stage<T> stage_shape;
	constexpr int CHUNK = stage_shape::CHUNK, STRIDE = stage_shape::STRIDE,
				  STAGE = stage_shape::STAGE, COLUMNS = 8 * TILES, WARPS = rows_warps(TILES);
	static_assert(!type::TABLES, "types with codebooks need their tables in shared memory");
	extern __shared__ __align__(16) uint8_t shared[];
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	int split = 1 << a.log_split, share = warp & (split - 1), group = warp >> a.log_split,
		groups = WARPS >> a.log_split;
	int n_sb = (a.n_in + 255) / 256, chunks = (n_sb + CHUNK - 1) / CHUNK;
	int tile_rows = a.glu ? MMA_ROWS / 2 : MMA_ROWS;
	uint32_t stages = warp * (ROWS_STAGES * STAGE);
	float *partials = (float *)(shared + WARPS * (ROWS_STAGES * STAGE));
	int n_items = a.part[a.n_parts - 1].item_end;
	int first = (int)((int64_t)n_items * blockIdx.x / gridDim.x),
		end = (int)((int64_t)n_items * (blockIdx.x + 1) / gridDim.x);

	launch_dependents();

	/* The copies run ROWS_STAGES chunks ahead of the products, across items. */
	struct item_stage<T> copies;
	int ahead = first + group, ahead_chunk = share, ahead_stage = 0, ahead_rows = 0;
	const uint8_t *from0 = NULL, *from8 = NULL;
	copies.init(shared_address(shared) + stages, lane);
	copies.set_row_bytes(a.row_bytes, lane);
	auto set_rows = [&]() {
		if (ahead >= end)
			return;
		struct item_position p = item_position_of(a, ahead, tile_rows);
		const struct item_part &t = a.part[p.part];
		int64_t at = (int64_t)p.row * a.row_bytes;
		ahead_rows = t.n_out - p.row;
		from0 = t.w + at;
		from8 = a.glu ? t.up + at : from0 + 8 * a.row_bytes;
	};
	auto fetch = [&]() {
		if (ahead < end && ahead_chunk < chunks) {
			copies.copy(ahead_stage, from0, from8, a.row_bytes, ahead_chunk * copies.BYTES,
				ahead_rows, a.glu, lane);
			ahead_stage = ahead_stage + 1 == ROWS_STAGES ? 0 : ahead_stage + 1;
			ahead_chunk += split;
			if (ahead_chunk >= chunks) {
				ahead_chunk = share;
				ahead += groups;
				set_rows();
			}
		}
		async_commit();
	};
	set_rows();
#pragma unroll 1
	for (int s = 0; s < ROWS_STAGES; s++)
		fetch();

	/* This lane's limbs of each tile of columns, and the scales of its accumulators' columns.
	 * Columns past the last row of x repeat it; their sums are not stored. */
	int r0 = lane / 4, c = lane % 4;
	const uint2 *column[TILES];
	const float *scales[TILES][2];
#pragma unroll
	for (int n = 0; n < TILES; n++) {
		int col = 8 * n + r0;
		column[n] =
			a.limbs + min(col / 3, a.n_rows - 1) * n_sb * SUPER_BLOCK_LIMBS + col % 3 * 4 + c;
#pragma unroll
		for (int e = 0; e < 2; e++)
			scales[n][e] = a.scales + min((8 * n + 2 * c + e) / 3, a.n_rows - 1) * n_sb;
	}
	grid_dependency_wait();

	int stage = 0;
	for (int item = first + group; item < end; item += groups) {
		struct item_position p = item_position_of(a, item, tile_rows);
		const struct item_part &t = a.part[p.part];
		float acc[TILES][4];
#pragma unroll
		for (int n = 0; n < TILES; n++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				acc[n][i] = 0;
#pragma unroll 1
		for (int chunk = share; chunk < chunks; chunk += split) {
			async_wait<ROWS_STAGES - 1>();
			__syncwarp();
			const uint8_t *row = shared + stages + stage * STAGE + r0 * STRIDE;
#pragma unroll
			for (int u = 0; u < CHUNK; u++) {
				int sb = chunk * CHUNK + u;
				if (sb >= n_sb)
					break;
				const uint2 *at[TILES];
				float x_scale[TILES][2];
#pragma unroll
				for (int n = 0; n < TILES; n++) {
					at[n] = column[n] + sb * SUPER_BLOCK_LIMBS;
					__builtin_assume(at[n] != NULL); /* else each load is tested */
					x_scale[n][0] = scales[n][0][sb], x_scale[n][1] = scales[n][1][sb];
				}
				const uint8_t *p0 = row + u * stage_shape::SB_BYTES;
				super_block_mma<T, TILES>(p0, p0 + 8 * STRIDE, u, a.n_in - sb * 256, c, a.tables,
					lane_tables{shared, 0}, at, x_scale, acc);
			}
			__syncwarp(); /* the stage may be overwritten */
			fetch();
			stage = stage + 1 == ROWS_STAGES ? 0 : stage + 1;
		}

		/* The warps of the group add their partial sums. */
		store_warp_partials<TILES>(acc, partials, warp, lane, r0, c);
		if (split > 1)
			sync_group(group, split);
		else
			__syncwarp();
		const float *of_group = partials + (warp - share) * (MMA_ROWS * COLUMNS);
		for (int i = share * 32 + lane; i < tile_rows * a.n_rows; i += split * 32) {
			int r = i / tile_rows, j = i % tile_rows, out = p.row + j;
			float v[2];
			if (out >= t.n_out)
				continue;
			add_warp_partials<TILES>(of_group, j, r, 4, MMA_ROWS, split, a.glu, v);
			float *to = t.y + (int64_t)r * t.n_out + out;
			*to = a.glu                 ? swiglu_one(v[0], v[1])
				  : a.add >> p.part & 1 ? __fadd_rn(*to, v[0])
										: v[0];
		}
		if (split > 1)
			sync_group(group, split);
		else
			__syncwarp();
	}
	async_wait<0>();
}

template <int T, int TILES>
static bool gemv_rows_launch_as(struct cuda_backend *b, struct gemv_rows_args *a)
{
	constexpr size_t bytes = rows_shared_bytes<T, TILES>();
	int items = a->part[a->n_parts - 1].item_end, blocks = items < b->n_sm ? items : b->n_sm;
	auto kernel = gemv_rows_kernel<T, TILES>;
	if (bytes > b->max_shared)
		return false;
	if (cuda_allow_shared(b, (const void *)kernel, bytes))
		cuda_launch(b, kernel, dim3((unsigned)blocks), rows_warps(TILES) * 32, bytes, *a);
	return true;
}

/* The arguments of gemv_rows_kernel and gemv_many_kernel. False: these do not apply. */
static inline bool gemv_rows_args_of(const struct gemv_args *p, struct gemv_rows_args *out)
{
	*out = {};
	out->limbs = p->limbs;
	out->scales = p->scales;
	return item_args_set(out, p);
}

/* False: the kernel does not apply; nothing was enqueued. */
template <int T> static bool gemv_rows_launch(struct cuda_backend *b, const struct gemv_args *p)
{
	struct gemv_rows_args a;
	if (p->n_rows < 3 || p->n_rows > ROWS_MAX_X || !gemv_rows_args_of(p, &a))
		return false;
	return p->n_rows > 8   ? gemv_rows_launch_as<T, 6>(b, &a)
		   : p->n_rows > 5 ? gemv_rows_launch_as<T, 3>(b, &a)
						   : gemv_rows_launch_as<T, 2>(b, &a);
}

#endif
