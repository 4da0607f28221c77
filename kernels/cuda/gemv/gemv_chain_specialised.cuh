/* SPDX-License-Identifier: MIT */
/*
 * chain_kernel's task (gemv_chain.cuh) for one row and Q8_0, where rows of the first step are
 * shared by 8 warps and those of the second, of 8 runs, by 4: the same sums in the same order. One
 * warp more fetches, in bulk copies, and runs ahead through both steps: what it has place for is
 * most of what a block has to do, so while values pass from step to step the weights are there or
 * on their way.
 *
 * A block has two sides of 8 warps, which take its units in turns. A unit of the first step is 16
 * weight rows; warp w has run 8 k + w of its piece k. One of the second is 32 rows, a pair of
 * items; warps 0 .. 3 have the first, 4 .. 7 the second, warp w run 4 k + w % 4 of piece k = 0, 1.
 * A piece is a stage of the side's ring: 16 lines of 2176 bytes, of 16 rows or of half of rows r
 * and 16 + r.
 *
 * Compute capability 9.0. Grid, cells, counts and the last block are chain_kernel's. Bytes moved:
 * every packed row once.
 */
#ifndef GLM_KERNELS_CUDA_GEMV_CHAIN_SPECIALISED_CUH
#define GLM_KERNELS_CUDA_GEMV_CHAIN_SPECIALISED_CUH

#include "kernels/cuda/common/flag_words.cuh"
#include "kernels/cuda/gemv/gemv_chain.cuh"

#define FED_SIDE    8 /* warps */
#define FED_WARPS   (2 * FED_SIDE)
#define FED_THREADS (FED_WARPS * 32 + 32)
#define FED_STAGES  3
#define FED_RUN     (256 / 32 * 34)
#define FED_LINE    (8 * FED_RUN)
#define FED_STRIDE  (FED_LINE + 16) /* in shared memory: lines meet in no bank */
#define FED_STAGE   (MMA_ROWS * FED_STRIDE)
#define FED_RUNS    24 /* of the first x, at most; no warp has more than two */

/* Shared memory: the rings, where warps meet, digits of x, their scales */
#define FED_MEETS  (2 * FED_STAGES * FED_STAGE)
#define FED_DIGITS (FED_MEETS + 2 * FED_WARPS * MMA_ROWS * 4)
#define FED_BYTES  (FED_DIGITS + FED_RUNS * (RUN_DIGITS * 8 + 4))

/* Names of barriers: all warps that compute, twice; one side; the feeder behind all; groups from
 * FED_GROUP on */
enum { FED_ALL = 1, FED_READ, FED_TAKE, FED_DONE, FED_GROUP };

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

struct fed_barriers {
	uint64_t full[2][FED_STAGES], empty[2][FED_STAGES], takers;
};

/* A side's units of a step: from `first`, every second one, before `end`; pieces of each */
struct fed_share {
	int first, end, pieces;
};

static __device__ __forceinline__ struct fed_share fed_share_of(
	const struct chain_args &a, int s, int side)
{
	unsigned n = (unsigned)a.step[s].n_items >> s, blocks = (unsigned)a.n_blocks;
	return {(int)(n * blockIdx.x / blocks) + side, (int)(n * (blockIdx.x + 1) / blocks),
		s ? 2 : a.step[s].n_in / 2048};
}

/* By one warp: half of it feeds a side. */
static __device__ __forceinline__ void fed_feed(
	const struct chain_args &a, uint8_t *ring, struct fed_barriers *b, int lane)
{
	int side = lane / 16, row = lane % 16, stage = 0, round = 0;
	uint32_t to = shared_address(ring) + side * (FED_STAGES * FED_STAGE) + row * FED_STRIDE;
#pragma unroll 1
	for (int s = 0; s < 2; s++) {
		const struct chain_step &t = a.step[s];
		struct fed_share share = fed_share_of(a, s, side);
#pragma unroll 1
		for (int u = share.first; u < share.end; u += 2) {
			struct dense_place p = chain_place(t, u << s);
			const uint8_t *from = t.part[p.part].w + (int64_t)(p.row + row) * t.row_bytes;
#pragma unroll 1
			for (int k = 0; k < share.pieces; k++) {
				uint32_t full = shared_address(&b->full[side][stage]), at = to + stage * FED_STAGE;
				if (round)
					barrier_wait(shared_address(&b->empty[side][stage]), (round + 1) & 1);
				if (!row)
					barrier_expect(full, MMA_ROWS * FED_LINE);
				if (s) {
					copy_run(at, from + k * (FED_LINE / 2), FED_LINE / 2, full);
					copy_run(at + FED_LINE / 2, from + MMA_ROWS * t.row_bytes + k * (FED_LINE / 2),
						FED_LINE / 2, full);
				} else {
					copy_run(at, from + k * FED_LINE, FED_LINE, full);
				}
				if (++stage == FED_STAGES) {
					stage = 0;
					round++;
				}
			}
		}
	}
}

#endif

static __global__ void __launch_bounds__(FED_THREADS, 1)
	chain_fed_kernel(const __grid_constant__ struct chain_args a)
{
#if __CUDA_ARCH__ >= 900
	extern __shared__ __align__(16) uint8_t shared[];
	__shared__ __align__(8) struct fed_barriers bars;
	__shared__ double norm_sums[FED_SIDE];
	__shared__ uint32_t shared_tag;
	int tid = threadIdx.x, lane = tid % 32, warp = __shfl_sync(0xffffffffu, tid / 32, 0);

	grid_let_next();
	if ((int)blockIdx.x >= a.n_blocks) {
		append_rows(a);
		return;
	}
	if (!tid) {
		for (int side = 0; side < 2; side++)
			for (int i = 0; i < FED_STAGES; i++) {
				barrier_init(shared_address(&bars.full[side][i]), 1);
				barrier_init(shared_address(&bars.empty[side][i]), FED_SIDE);
			}
		barrier_init(shared_address(&bars.takers), FED_SIDE);
		asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
	}
	__syncthreads();
	if (warp == FED_WARPS) {
		fed_feed(a, shared, &bars, lane);
		__syncwarp();
		sync_some(FED_DONE, FED_THREADS);
		if (!lane)
			chain_left(a.state, chain_leave(a.state), shared_tag);
		return;
	}

	float *meets = (float *)(shared + FED_MEETS);
	uint2 *digits = (uint2 *)(shared + FED_DIGITS);
	int side = warp / FED_SIDE, w = warp % FED_SIDE, r0 = lane / 4, c = lane % 4, stage = 0;
	const uint8_t *ring = shared + side * (FED_STAGES * FED_STAGE) + r0 * FED_STRIDE;
	uint32_t parity = 0;
	auto used = [&]() { /* the stage may be overwritten */
		__syncwarp();
		if (!lane)
			barrier_arrive(shared_address(&bars.empty[side][stage]));
		if (++stage == FED_STAGES) {
			stage = 0;
			parity ^= 1;
		}
	};
#pragma unroll 1
	for (int s = 0; s < 2; s++) {
		const struct chain_step &t = a.step[s];
		struct fed_share share = fed_share_of(a, s, side);
		int runs = t.n_in / 256, log_split = 3 - s, split = 1 << log_split, part = w & (split - 1),
			turn = 0;
		const uint8_t *mine =
			ring + w * FED_RUN; /* the second item of a pair lies half a line further on */
		float *scales = (float *)(digits + runs * RUN_DIGITS);
		const uint2 *column = r0 < 3 ? digits + part * RUN_DIGITS + r0 * 4 + c : NULL;
		if (!s) {
			grid_wait_before();
			if (!tid)
				shared_tag = chain_look(&a.state->tag);
			float v[2][8];
#pragma unroll
			for (int i = 0; i < 2; i++)
				if (warp + i * FED_WARPS < runs)
					load_whole_run<true>(t.x, warp + i * FED_WARPS, v[i]);
#pragma unroll
			for (int i = 0; i < 2; i++)
				if (warp + i * FED_WARPS < runs)
					write_digits(v[i], digits + (warp + i * FED_WARPS) * RUN_DIGITS,
						scales + warp + i * FED_WARPS);
			sync_some(FED_ALL, FED_WARPS * 32);
		} else if (side) { /* this side's warps have a run each */
			uint32_t tag = shared_tag;
			float v[16], g[8];
			load_whole_run<true>(t.gain, w, g);
			if (tid == FED_SIDE * 32)
				while (chain_look(&a.state->items) != a.passing)
					;
			sync_some(FED_TAKE, FED_SIDE * 32);
			/* what makes digits, and what is squared in rms_norm's order */
			int k_at = run_place<true>(w), sums_at = 4 * (w * 32 + lane),
				at[4] = {k_at, k_at + 16, sums_at, sums_at + 1024};
			take_values<4>(a.state->passed, at, tag, v);
			double sum = warp_sum(add_squares(add_squares(0, make_float4(v[8], v[9], v[10], v[11])),
				make_float4(v[12], v[13], v[14], v[15])));
			if (!lane) {
				norm_sums[w] = sum;
				barrier_arrive(shared_address(&bars.takers));
			}
			barrier_wait(shared_address(&bars.takers), 0);
			float scale = (float)rsqrt(
				warp_sum(lane < runs ? norm_sums[lane] : 0.0) / t.n_in + (double)a.eps);
#pragma unroll
			for (int i = 0; i < 8; i++)
				v[i] = __fmul_rn(__fmul_rn(v[i], scale), g[i]);
			sync_some(
				FED_READ, FED_WARPS * 32); /* nobody reads the digits of the first x any more */
			write_digits(v, digits + w * RUN_DIGITS, scales + w);
			sync_some(FED_ALL, FED_WARPS * 32);
			arrive_some(FED_DONE, FED_THREADS);
		} else {
			arrive_some(FED_READ, FED_WARPS * 32);
			sync_some(FED_ALL, FED_WARPS * 32);
			arrive_some(FED_DONE, FED_THREADS);
		}

#pragma unroll 1
		for (int u = share.first; u < share.end; u += 2, turn++) {
			struct dense_place p = chain_place(t, (u << s) + (s ? w / 4 : 0));
			const struct chain_part &q = t.part[p.part];
			bool adds = part == (turn & (split - 1)) && lane < MMA_ROWS;
			float *y = q.y + p.row + lane;
			enum chain_to to = q.to;
			float acc[1][4] = {{0, 0, 0, 0}};
#pragma unroll 1
			for (int k = 0; k < share.pieces; k++) {
				barrier_wait(shared_address(&bars.full[side][stage]), parity);
				const uint8_t *row = mine + stage * FED_STAGE;
				float x_scale = scales[k * split + part];
				const float x_scales[1][2] = {{x_scale, x_scale}};
				const uint2 *const at_run[1] = {column ? column + k * split * RUN_DIGITS : NULL};
				run_product<DTYPE_Q8_0, 1, 1>(row, row + 8 * FED_STRIDE, 0, 256, c, NULL,
					lane_tables{shared, 0}, at_run, x_scales, acc);
				used();
			}
			/* of two buffers, who writes one again has met everybody since it was read */
			float *here = meets + ((turn & 1) * FED_WARPS + (warp & ~(split - 1))) * MMA_ROWS;
#pragma unroll
			for (int half = 0; half < 2; half++) {
				float v = digits_meet(acc[0] + 2 * half, lane);
				if (!c)
					here[part * MMA_ROWS + r0 + 8 * half] = v;
			}
			sync_some(FED_GROUP + (s ? 2 + warp / 4 : side), split * 32);
			if (part != (turn & (split - 1)))
				continue;
			float sum = 0, of_warp[FED_SIDE];
#pragma unroll
			for (int i = 0; i < FED_SIDE; i++)
				of_warp[i] = i < split ? here[i * MMA_ROWS + lane % MMA_ROWS] : 0;
#pragma unroll
			for (int i = 0; i < FED_SIDE; i++)
				sum = i < split ? __fadd_rn(sum, of_warp[i]) : sum;
			if (to == CHAIN_TO_STEP) {
				if (adds)
					pass_value(a.state->passed + p.row + lane, sum, shared_tag);
				if (!lane)
					chain_count(&a.state->items, false);
			} else {
				if (adds)
					*y = sum;
				if (to == CHAIN_TO_LAST_BLOCK) {
					__syncwarp();
					if (!lane)
						chain_count(&a.state->appended, true);
				}
			}
		}
	}
#endif
}

#endif
