/* SPDX-License-Identifier: MIT */
/*
 * The aligned gemv: what gemv_mma_kernel (gemv_mma.cuh) computes, for the commonest case: one or
 * two rows of x and matrices (no stacks) whose rows are 16-byte aligned. The sums and their order
 * are the same, so the bits are the same. It is faster for two reasons: less code runs between the
 * end of the previous kernel and the first product, and shares are even. One block per
 * multiprocessor takes any number of 16-row items, where gemv_mma_kernel's two blocks take one or
 * two items each.
 *
 * An item is 16 weight rows (glu: 8 of gate and 8 of up). Grid: at most one block per
 * multiprocessor, each with a contiguous range of items. Block: 16 warps in groups of `split`. The
 * groups take the block's items in turns; each synchronises on a named barrier of its own, once per
 * item, behind the partial sums. A warp copies STAGES chunks ahead (cp.async), across items; the
 * first copies start before it waits for the previous kernel. Then the block splits the x rows into
 * limbs; a block barrier follows.
 *
 * Shared memory: stages [warp][STAGES], partial sums [2 buffers][warp][32], limbs [x row][sb],
 * their scales.
 *
 * Bytes moved: every packed row once; x once per block from the L2 cache.
 *
 * Tried: bulk copies of row pieces in place of cp.async: slower, one warp issues them one by one
 * (a1d192b). 8 warps a block, so that the next kernel fits beside it: the layer slower (a1d192b).
 * Rolled limb loop, 96 registers, three stages: no gain (2b47bdd).
 */
#ifndef GLM_KERNELS_CUDA_GEMV_ALIGNED_CUH
#define GLM_KERNELS_CUDA_GEMV_ALIGNED_CUH

#include "kernels/cuda/gemv/gemv_many.cuh"

#define ALIGNED_WARPS  16
#define ALIGNED_STAGES 2 /* chunks that a warp fetches ahead */

struct gemv_aligned_args {
	const float *x;
	int64_t x_row;
	const struct cuda_tables *tables;
	int row_bytes, n_in, n_rows, n_parts, log_split;
	uint32_t add; /* a bit for each part */
	bool glu, x_aligned;
	struct item_part part[ITEM_PARTS];
};

/* Bytes of the stages of all warps. */
template <int T> static constexpr __host__ __device__ int aligned_ring_bytes()
{
	return ALIGNED_WARPS * ALIGNED_STAGES * MMA_ROWS *
		   gemv_stage<T, gemv_tiling<T, false>::CHUNK>::STRIDE;
}

template <int T> static size_t aligned_shared_bytes(int n_rows, int n_in)
{
	size_t n_sb = (size_t)n_rows * (size_t)((n_in + 255) / 256);
	return aligned_ring_bytes<T>() + 2 * ALIGNED_WARPS * 32 * sizeof(float) +
		   n_sb * (SUPER_BLOCK_LIMBS * sizeof(uint2) + sizeof(float));
}

template <int T>
__global__ void __launch_bounds__(ALIGNED_WARPS * 32, 1)
	gemv_aligned_kernel(const __grid_constant__ struct gemv_aligned_args a)
{
	typedef struct bytes_type<T> type;
	constexpr int WARPS = ALIGNED_WARPS, STAGES = ALIGNED_STAGES;
	constexpr int CHUNK = item_stage<T>::CHUNK, STRIDE = item_stage<T>::STRIDE,
				  STAGE = item_stage<T>::STAGE;
	extern __shared__ __align__(16) uint8_t shared[];
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	int split = 1 << a.log_split, part = warp & (split - 1), group = warp >> a.log_split,
		groups = WARPS >> a.log_split;
	int n_sb = (a.n_in + 255) / 256, chunks = (n_sb + CHUNK - 1) / CHUNK;
	float *partials = (float *)(shared + aligned_ring_bytes<T>());
	uint2 *limbs = (uint2 *)(partials + 2 * WARPS * 32);
	float *limb_scales = (float *)(limbs + a.n_rows * n_sb * SUPER_BLOCK_LIMBS);
	uint32_t stages = warp * (STAGES * STAGE);
	int n_items = a.part[a.n_parts - 1].item_end;
	int first = (int)((int64_t)n_items * blockIdx.x / gridDim.x),
		end = (int)((int64_t)n_items * (blockIdx.x + 1) / gridDim.x);

	launch_dependents();

	auto position_of = [&](int item) {
		struct item_position p = item_position_of(a, item, 1); /* row: in items */
		p.row *= a.glu ? MMA_ROWS / 2 : MMA_ROWS;
		return p;
	};
	/* The copies run STAGES chunks ahead of the products, across items. */
	struct item_stage<T> copies;
	int ahead = first + group, ahead_chunk = part, ahead_stage = 0, ahead_rows = 0;
	const uint8_t *from0 = NULL, *from8 = NULL;
	copies.init(shared_address(shared) + stages, lane);
	copies.set_row_bytes(a.row_bytes, lane);
	auto set_rows = [&]() {
		if (ahead >= end)
			return;
		struct item_position p = position_of(ahead);
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
			ahead_stage = ahead_stage + 1 == STAGES ? 0 : ahead_stage + 1;
			ahead_chunk += split;
			if (ahead_chunk >= chunks) {
				ahead_chunk = part;
				ahead += groups;
				set_rows();
			}
		}
		async_commit();
	};
	set_rows();
#pragma unroll 1
	for (int s = 0; s < STAGES; s++)
		fetch();

	/* this warp's super-blocks of x; four at a time, so that their loads overlap */
	struct item_position p = position_of(first + group);
	int own_sb = a.n_rows * n_sb, own_sb_index[4];
	const float *own_x[4];
	auto locate_x = [&](int u) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			bool second = u + i * WARPS >= n_sb;
			own_sb_index[i] = u + i * WARPS - (second ? n_sb : 0);
			own_x[i] = a.x + (second ? a.x_row : 0);
		}
	};
	locate_x(warp);
	grid_dependency_wait();

	for (int u = warp; u < own_sb;) {
		float v[4][8];
#pragma unroll
		for (int i = 0; i < 4; i++)
			if (u + i * WARPS < own_sb)
				load_super_block<type::QUADS>(own_x[i], own_sb_index[i], a.n_in, a.x_aligned, v[i]);
#pragma unroll
		for (int i = 0; i < 4; i++)
			if (u + i * WARPS < own_sb)
				write_limbs(
					v[i], limbs + (u + i * WARPS) * SUPER_BLOCK_LIMBS, limb_scales + u + i * WARPS);
		u += 4 * WARPS;
		if (u < own_sb)
			locate_x(u);
	}
	__syncthreads();

	int stage = 0, turn = 0, r0 = lane / 4, c = lane % 4;
	for (int item = first + group; item < end; turn++) {
		/* the warps of a group take turns to add the partial sums: lane = x row and weight row */
		bool adds = part == (turn & (split - 1));
		int out_rows = a.glu ? 8 : 16, x_row = lane / out_rows, j = lane % out_rows;
		bool add = a.add >> p.part & 1,
			 stores = adds && x_row < a.n_rows && p.row + j < a.part[p.part].n_out;
		float *y = a.part[p.part].y + (int64_t)x_row * a.part[p.part].n_out + p.row + j, old = 0;
		if (stores && add)
			old = *y;

		const uint2 *column =
			r0 < 3 * a.n_rows ? limbs + r0 / 3 * n_sb * SUPER_BLOCK_LIMBS + r0 % 3 * 4 + c : NULL;
		const float *scales[2];
#pragma unroll
		for (int e = 0; e < 2; e++)
			scales[e] = limb_scales + min((2 * c + e) / 3, a.n_rows - 1) * n_sb;
		float acc[1][4] = {{0, 0, 0, 0}};
#pragma unroll 1
		for (int chunk = part; chunk < chunks; chunk += split) {
			async_wait<STAGES - 1>();
			__syncwarp();
			const uint8_t *row = shared + stages + stage * STAGE + r0 * STRIDE;
			stage_multiply<T>(row, chunk, n_sb, a.n_in, c, a.tables, shared, column, scales, acc);
			__syncwarp(); /* the stage may be overwritten */
			fetch();
			stage = stage + 1 == STAGES ? 0 : stage + 1;
		}
		/* two buffers: before one is written again the group has passed the barrier behind its
		 * reads */
		float *here = partials + ((turn & 1) * WARPS + (warp & ~(split - 1))) * 32;
		store_partials<2>(acc[0], here, part, lane);
		if (split > 1)
			sync_group(group, split);
		else
			__syncwarp();
		item += groups;
		if (item < end)
			p = position_of(item);
		if (!adds)
			continue;
		float v[2] = {0, 0};
		for (int q = 0; q < split; q++) {
			const float *m = here + q * 32 + (x_row & 1) * 16 + j;
			v[0] = __fadd_rn(v[0], m[0]);
			if (a.glu)
				v[1] = __fadd_rn(v[1], m[8]);
		}
		if (stores)
			*y = a.glu ? swiglu_one(v[0], v[1]) : add ? __fadd_rn(old, v[0]) : v[0];
	}
	async_wait<0>();
}

/* False: the kernel does not apply; nothing was enqueued. */
template <int T> static bool gemv_aligned_launch(struct cuda_backend *b, const struct gemv_args *p)
{
	struct gemv_aligned_args a = {};
	size_t bytes = aligned_shared_bytes<T>(p->n_rows, p->n_in);
	if (p->n_rows > 2 || bytes > b->max_shared || !item_args_set(&a, p))
		return false;
	int items = a.part[a.n_parts - 1].item_end;
	/* gemv_mma_kernel has smaller items: it is faster where this kernel would leave more than a
	 * quarter of the multiprocessors without work */
	int rounds = (items + b->n_sm - 1) / b->n_sm, blocks = items < b->n_sm ? items : b->n_sm;
	if (4 * (int64_t)items < 3 * (int64_t)rounds * b->n_sm)
		return false;
	a.x = p->x;
	a.x_row = p->x_row;
	a.x_aligned = p->x_aligned;
	if (cuda_allow_shared(b, (const void *)gemv_aligned_kernel<T>, bytes))
		cuda_launch(
			b, gemv_aligned_kernel<T>, dim3((unsigned)blocks), ALIGNED_WARPS * 32, bytes, a);
	return true;
}

/* A gemv_launcher: falls back to gemv_mma_kernel where the type or the case does not fit. */
template <int T>
static void gemv_packed_launch(struct cuda_backend *b, const struct gemv_args *a, int n_x)
{
	if constexpr (T == DTYPE_Q8_0 || T == DTYPE_Q4_K) {
		if (gemv_many_launch<T>(b, a))
			return;
		if (!a->limbs && gemv_aligned_launch<T>(b, a))
			return;
	}
	if (!a->limbs && n_x > 2) {
		err_set(&b->base.failure, ERR_RUN, "cuda: %s: %d rows of x without limbs", b->op, n_x);
		return;
	}
	gemv_mma_launch<T>(b, a, n_x);
}

#endif
