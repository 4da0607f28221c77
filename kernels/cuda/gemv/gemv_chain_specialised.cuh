/* SPDX-License-Identifier: MIT */
/*
 * The warp-specialised form of the fused gemv chain (gemv_chain.cuh), for one row, Q8_0, a first
 * step split over 8 warps and a second of 8 super-blocks split over 4: the same sums in the same
 * order. A producer warp loads the weights of both steps by bulk copies into rings. While
 * values pass between the steps, the next WS_STAGES chunks of each side are there or in flight.
 *
 * Grid, exchange, counters and cache block: as gemv_chain_kernel. Block: two sides of 8 warps,
 * which take the block's units in turns, and the producer.
 *
 *      first step   a unit is 16 weight rows; of chunk k warp w has super-block 8 k + w
 *      second step  a unit is 32 rows, two items: warps 0 .. 3 have the first, 4 .. 7 the
 *                   second; of chunk k = 0, 1 warp w has super-block 4 k + w % 4
 *      chunk        a stage of the side's ring: 16 lines of 2176 bytes, of 16 rows or of half
 *                   of rows r and 16 + r
 *
 * Compute capability 9.0. Bytes moved: every packed row once; x of each step once per block from
 * the L2 cache.
 *
 * Tried: a ring stage moved to registers before x is there: the layer slower (664708c).
 */
#ifndef GLM_KERNELS_CUDA_GEMV_CHAIN_SPECIALISED_CUH
#define GLM_KERNELS_CUDA_GEMV_CHAIN_SPECIALISED_CUH

#include "kernels/cuda/common/flag_words.cuh"
#include "kernels/cuda/gemv/gemv_chain.cuh"

#define WS_SIDE         8 /* warps */
#define WS_WARPS        (2 * WS_SIDE)
#define WS_THREADS      (WS_WARPS * 32 + 32)
#define WS_STAGES       3
#define WS_SB_BYTES     (256 / 32 * 34)
#define WS_LINE         (8 * WS_SB_BYTES)
#define WS_STRIDE       (WS_LINE + 16) /* in shared memory: no bank conflicts */
#define WS_STAGE        (MMA_ROWS * WS_STRIDE)
#define WS_SUPER_BLOCKS 24 /* of the first x, at most: two per warp */

/* Shared memory: rings, partial sums, limbs of x, their scales */
#define WS_PARTIALS (2 * WS_STAGES * WS_STAGE)
#define WS_LIMBS    (WS_PARTIALS + 2 * WS_WARPS * MMA_ROWS * 4)
#define WS_BYTES    (WS_LIMBS + WS_SUPER_BLOCKS * (SUPER_BLOCK_LIMBS * 8 + 4))

/* Named barriers */
enum {
	WS_ALL = 1, /* all consumer warps: limbs are written */
	WS_READ,    /* the same: limbs of the first x have been used */
	WS_NORM,    /* side 1 */
	WS_DONE,    /* all warps: nobody polls any more */
	WS_GROUP    /* the first of the groups' */
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

struct ws_barriers {
	uint64_t full[2][WS_STAGES], empty[2][WS_STAGES], norm_barrier;
};

/* A side's units of a step: first, first + 2, ... below end; chunks of each */
struct ws_share {
	int first, end, chunks;
};

static __device__ __forceinline__ struct ws_share ws_share_of(
	const struct chain_args &a, int s, int side)
{
	unsigned n = (unsigned)a.step[s].n_items >> s, blocks = (unsigned)a.n_blocks;
	return {(int)(n * blockIdx.x / blocks) + side, (int)(n * (blockIdx.x + 1) / blocks),
		s ? 2 : a.step[s].n_in / 2048};
}

/* The producer warp: each half of it loads the weights of a side. */
static __device__ __forceinline__ void ws_produce(
	const struct chain_args &a, uint8_t *ring, struct ws_barriers *b, int lane)
{
	int side = lane / 16, row = lane % 16, stage = 0, round = 0;
	uint32_t to = shared_address(ring) + side * (WS_STAGES * WS_STAGE) + row * WS_STRIDE;
#pragma unroll 1
	for (int s = 0; s < 2; s++) {
		const struct chain_step &t = a.step[s];
		struct ws_share share = ws_share_of(a, s, side);
#pragma unroll 1
		for (int u = share.first; u < share.end; u += 2) {
			struct item_position p = chain_item_position(t, u << s);
			const uint8_t *from = t.part[p.part].w + (int64_t)(p.row + row) * t.row_bytes;
#pragma unroll 1
			for (int k = 0; k < share.chunks; k++) {
				uint32_t full = shared_address(&b->full[side][stage]), at = to + stage * WS_STAGE;
				if (round)
					mbarrier_wait(shared_address(&b->empty[side][stage]), (round + 1) & 1);
				if (!row)
					mbarrier_expect(full, MMA_ROWS * WS_LINE);
				if (s) {
					bulk_copy(at, from + k * (WS_LINE / 2), WS_LINE / 2, full);
					bulk_copy(at + WS_LINE / 2, from + MMA_ROWS * t.row_bytes + k * (WS_LINE / 2),
						WS_LINE / 2, full);
				} else {
					bulk_copy(at, from + k * WS_LINE, WS_LINE, full);
				}
				if (++stage == WS_STAGES) {
					stage = 0;
					round++;
				}
			}
		}
	}
}

#endif

static __global__ void __launch_bounds__(WS_THREADS, 1)
	gemv_chain_specialised_kernel(const __grid_constant__ struct chain_args a)
{
#if __CUDA_ARCH__ >= 900
	extern __shared__ __align__(16) uint8_t shared[];
	__shared__ __align__(8) struct ws_barriers bars;
	__shared__ double norm_sums[WS_SIDE];
	__shared__ uint32_t shared_tag;
	int tid = threadIdx.x, lane = tid % 32, warp = __shfl_sync(0xffffffffu, tid / 32, 0);

	launch_dependents();
	if ((int)blockIdx.x >= a.n_blocks) {
		append_cache_rows(a);
		return;
	}
	if (!tid) {
		for (int side = 0; side < 2; side++)
			for (int i = 0; i < WS_STAGES; i++) {
				mbarrier_init(shared_address(&bars.full[side][i]), 1);
				mbarrier_init(shared_address(&bars.empty[side][i]), WS_SIDE);
			}
		mbarrier_init(shared_address(&bars.norm_barrier), WS_SIDE);
		asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
	}
	__syncthreads();
	if (warp == WS_WARPS) {
		ws_produce(a, shared, &bars, lane);
		__syncwarp();
		named_barrier_sync(WS_DONE, WS_THREADS);
		if (!lane)
			chain_reset(a.state, chain_exit(a.state), shared_tag);
		return;
	}

	float *partials = (float *)(shared + WS_PARTIALS);
	uint2 *limbs = (uint2 *)(shared + WS_LIMBS);
	int side = warp / WS_SIDE, w = warp % WS_SIDE, r0 = lane / 4, c = lane % 4, stage = 0;
	const uint8_t *ring = shared + side * (WS_STAGES * WS_STAGE) + r0 * WS_STRIDE;
	uint32_t parity = 0;
	auto used = [&]() { /* releases the stage to the producer */
		__syncwarp();
		if (!lane)
			mbarrier_arrive(shared_address(&bars.empty[side][stage]));
		if (++stage == WS_STAGES) {
			stage = 0;
			parity ^= 1;
		}
	};
#pragma unroll 1
	for (int s = 0; s < 2; s++) {
		const struct chain_step &t = a.step[s];
		struct ws_share share = ws_share_of(a, s, side);
		int n_sb = t.n_in / 256, log_split = 3 - s, split = 1 << log_split, part = w & (split - 1),
			turn = 0;
		const uint8_t *mine =
			ring + w * WS_SB_BYTES; /* the second item of a unit is half a line further on */
		float *scales = (float *)(limbs + n_sb * SUPER_BLOCK_LIMBS);
		const uint2 *column = r0 < 3 ? limbs + part * SUPER_BLOCK_LIMBS + r0 * 4 + c : NULL;
		if (!s) {
			grid_dependency_wait();
			if (!tid)
				shared_tag = load_relaxed(&a.state->tag);
			float v[2][8];
#pragma unroll
			for (int i = 0; i < 2; i++)
				if (warp + i * WS_WARPS < n_sb)
					load_full_super_block<true>(t.x, warp + i * WS_WARPS, v[i]);
#pragma unroll
			for (int i = 0; i < 2; i++)
				if (warp + i * WS_WARPS < n_sb)
					write_limbs(v[i], limbs + (warp + i * WS_WARPS) * SUPER_BLOCK_LIMBS,
						scales + warp + i * WS_WARPS);
			named_barrier_sync(WS_ALL, WS_WARPS * 32);
		} else if (side) { /* the warps of this side have a super-block each */
			uint32_t tag = shared_tag;
			float v[16], g[8];
			load_full_super_block<true>(t.gain, w, g);
			if (tid == WS_SIDE * 32)
				poll_until(a.report,
					[&]() { return load_relaxed(&a.state->items_done) == a.n_handoff_items; });
			named_barrier_sync(WS_NORM, WS_SIDE * 32);
			load_and_norm<true>(a.report, a.state->handoff, sb_offset<true>(w), 4 * (w * 32 + lane),
				1024, tag, w, n_sb, norm_sums, shared_address(&bars.norm_barrier), t.n_in, a.eps, g,
				v);
			named_barrier_sync(
				WS_READ, WS_WARPS * 32); /* the limbs of the first x have been used */
			write_limbs(v, limbs + w * SUPER_BLOCK_LIMBS, scales + w);
			named_barrier_sync(WS_ALL, WS_WARPS * 32);
			named_barrier_arrive(WS_DONE, WS_THREADS);
		} else {
			named_barrier_arrive(WS_READ, WS_WARPS * 32);
			named_barrier_sync(WS_ALL, WS_WARPS * 32);
			named_barrier_arrive(WS_DONE, WS_THREADS);
		}

#pragma unroll 1
		for (int u = share.first; u < share.end; u += 2, turn++) {
			struct item_position p = chain_item_position(t, (u << s) + (s ? w / 4 : 0));
			const struct chain_part &q = t.part[p.part];
			bool adds = part == (turn & (split - 1)) && lane < MMA_ROWS;
			float *y = q.y;
			enum chain_target to = q.to;
			float acc[1][4] = {{0, 0, 0, 0}};
#pragma unroll 1
			for (int k = 0; k < share.chunks; k++) {
				mbarrier_wait(shared_address(&bars.full[side][stage]), parity);
				const uint8_t *row = mine + stage * WS_STAGE;
				float x_scale = scales[k * split + part];
				const float x_scales[1][2] = {{x_scale, x_scale}};
				const uint2 *const at_sb[1] = {
					column ? column + k * split * SUPER_BLOCK_LIMBS : NULL};
				super_block_mma<DTYPE_Q8_0, 1, 1>(row, row + 8 * WS_STRIDE, 0, 256, c, NULL,
					lane_tables{shared, 0}, at_sb, x_scales, acc);
				used();
			}
			/* two buffers: before one is written again the group has passed the barrier behind
			 * its reads */
			float *here = partials + ((turn & 1) * WS_WARPS + (warp & ~(split - 1))) * MMA_ROWS;
			store_partials<1>(acc[0], here, part, lane);
			named_barrier_sync(WS_GROUP + (s ? 2 + warp / 4 : side), split * 32);
			if (part != (turn & (split - 1)))
				continue;
			chain_store(a, to, y, p.row + lane, add_partials<1>(here + lane % MMA_ROWS, split),
				adds, shared_tag, lane);
		}
	}
#endif
}

#endif
