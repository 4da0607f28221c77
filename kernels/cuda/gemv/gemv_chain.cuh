/* SPDX-License-Identifier: MIT */
/*
 * The fused gemv chain: the two gemv steps of a layer's latents in one launch. The second step
 * multiplies the normed outputs of the first. For one row and Q8_0; the first step splits a row
 * over 8 warps, the second, of 8 super-blocks, over 4. Arithmetic, order of additions and shares
 * are gemv_aligned_kernel's (gemv_aligned.cuh), so the bits are the same. One launch is faster than
 * two because copies of weights run ahead from the first step into the second: the second step's
 * weights arrive while the blocks exchange values and split the second x into limbs.
 *
 * Grid: at most one block per SM. Each block computes a contiguous share of the units of each step.
 * If there are cache rows to append (struct chain_args), one more block, the cache block, does that
 * and nothing else. Block: two sides of 8 consumer warps, which take the block's units in turns,
 * and a producer warp. The producer loads the weights of both steps by bulk copies into a ring per
 * side: while values pass between the steps, the next CHAIN_STAGES chunks of each side are there or
 * in flight.
 *
 *      item         16 weight rows, as in gemv_pipeline.cuh
 *      unit         what a side computes at a time. First step: an item; of chunk k warp w has
 *                   super-block 8 k + w. Second step: two items, warps 0 .. 3 the first, 4 .. 7
 *                   the second; of chunk k = 0, 1 warp w has super-block 4 k + w % 4
 *      chunk        what one stage of a ring holds: 16 lines of 2176 bytes. First step: line r is
 *                   2176 bytes of row r. Second step: half of row r, then half of row 16 + r
 *
 * Exchange between the steps, flag-in-data: a value travels with the launch's sequence tag in one
 * 8-byte store, so a reader needs no fence. Readers first poll a counter of finished items, because
 * polling the values at once is slower (044f56b). Outputs of the first step that the cache block
 * reads go to y with a release and are counted by a counter of their own.
 *
 * No deadlock: blocks wait for each other, so all must be resident at the same time. There is at
 * most one per SM; kernels before this one never wait for it; the kernel after it starts only when
 * all blocks of this one have called launch_dependents, that is, are resident. Each block counts
 * itself when it waits for nothing more (chain_exit); the last one resets the counters and advances
 * the tag (chain_reset). The next launch reads them after all kernels before it have ended.
 *
 * Compute capability 9.0. Bytes moved: every packed row once; x of each step once per block from
 * the L2 cache.
 *
 * Tried. In a form without a producer warp, whose warps each copied through a ring of two chunks:
 * bulk copies of row pieces, a third chunk, 96 or 112 registers: slower (044f56b); that form for
 * two rows and for Q4_K: no gain (10.88 against 10.90 ms a token of a Q4_K model). In this form: a
 * ring stage moved to registers before x is there: the layer slower (664708c).
 */
#ifndef GLM_KERNELS_CUDA_GEMV_CHAIN_CUH
#define GLM_KERNELS_CUDA_GEMV_CHAIN_CUH

#include "kernels/cuda/common/flag_words.cuh"
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/norm.cuh"
#include "kernels/cuda/common/poll.cuh"
#include "kernels/cuda/gemv/gemv_aligned.cuh"

#define CHAIN_PARTS  4    /* matrices of a step, at most */
#define CHAIN_VALUES 2048 /* that the first step hands to the second: the n_in of the second */

/* In device memory, kept between launches. gemv_chain_open sets the tag to 1, all else to 0. */
struct chain_state {
	alignas(128) uint32_t items_done; /* finished items of the first step that feed the second */
	alignas(128) uint32_t append_items_done;  /* finished items that the cache block reads */
	alignas(128) uint32_t blocks_done;        /* blocks that wait for nothing more */
	alignas(128) uint32_t tag;                /* sequence tag of this launch; never 0 */
	alignas(128) uint2 handoff[CHAIN_VALUES]; /* value and tag */
};

/* Destination of a part's outputs */
enum chain_target {
	CHAIN_TO_Y,
	CHAIN_TO_CACHE_BLOCK, /* y, and the cache block reads it */
	CHAIN_TO_NEXT_STEP,   /* chain_state.handoff only */
};

/* One matrix of a step */
struct chain_part {
	const uint8_t *w;
	float *y;
	int n_out, item_end; /* items of the step up to this part's last */
	enum chain_target to;
};

struct chain_step {
	const float *x;    /* [n_in], first step only */
	const float *gain; /* [n_in], second step: x is normed with it, as rms_norm does */
	int row_bytes, n_in, n_parts, n_items;
	int log_split; /* log2 of the warps that share an item */
	struct chain_part part[CHAIN_PARTS];
};

struct chain_args {
	struct chain_step step[2];
	struct chain_state *state;
	struct poll_report report;
	int n_blocks; /* that compute; the cache block comes on top */
	/* items of the first step whose outputs the second step reads; that the cache block reads */
	uint32_t n_handoff_items, n_append_items;
	float eps;
	/* For the cache block, which is there if latents.kv or latents.key is not NULL. */
	struct batch rows;
	struct rope rope;
	struct latents latents;
};

#define CHAIN_SIDE         8 /* warps */
#define CHAIN_WARPS        (2 * CHAIN_SIDE)
#define CHAIN_THREADS      (CHAIN_WARPS * 32 + 32)
#define CHAIN_STAGES       3
#define CHAIN_SB_BYTES     (256 / 32 * 34)
#define CHAIN_LINE         (8 * CHAIN_SB_BYTES)
#define CHAIN_STRIDE       (CHAIN_LINE + 16) /* in shared memory: no bank conflicts */
#define CHAIN_STAGE        (MMA_ROWS * CHAIN_STRIDE)
#define CHAIN_SUPER_BLOCKS 24 /* of the first x, at most: two per warp */

/* Shared memory: rings, partial sums, limbs of x, their scales */
#define CHAIN_PARTIALS (2 * CHAIN_STAGES * CHAIN_STAGE)
#define CHAIN_LIMBS    (CHAIN_PARTIALS + 2 * CHAIN_WARPS * MMA_ROWS * 4)
#define CHAIN_BYTES    (CHAIN_LIMBS + CHAIN_SUPER_BLOCKS * (SUPER_BLOCK_LIMBS * 8 + 4))

/* Named barriers */
enum {
	CHAIN_ALL = 1, /* all consumer warps: the limbs of x are written */
	CHAIN_READ,    /* all consumer warps: the limbs of the first x are no longer needed */
	CHAIN_NORM,    /* side 1: the items that it reads have been finished by all blocks */
	CHAIN_DONE,    /* all warps: nobody polls any more */
	CHAIN_GROUP    /* the warps that share an item: 2 groups in the first step, then 4 */
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/* release: what this thread has seen stored is visible to whoever reads the new count. */
static __device__ __forceinline__ void count_done(uint32_t *p, bool release)
{
	if (release)
		asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory");
	else
		asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory");
}

static __device__ __forceinline__ void store_tagged(uint2 *to, float v, uint32_t tag)
{
	uint64_t both = (uint64_t)tag << 32 | __float_as_uint(v);
	asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(both) : "memory");
}

/* Polls until the N quadruples of values from handoff[at[i]] on have this launch's tag;
 * v[4 i .. 4 i + 4) = their values. The loads of a poll overlap. */
template <int N>
static __device__ __forceinline__ void load_tagged(const struct poll_report &report,
	const uint2 *handoff, const int at[N], uint32_t tag, float v[4 * N])
{
	poll_until(report, [&]() {
		uint64_t b[4 * N];
#pragma unroll
		for (int i = 0; i < 4 * N; i += 2)
			asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
						 : "=l"(b[i]), "=l"(b[i + 1])
						 : "l"(handoff + at[i / 4] + i % 4)
						 : "memory");
		bool there = true;
#pragma unroll
		for (int i = 0; i < 4 * N; i++) {
			there &= (uint32_t)(b[i] >> 32) == tag;
			v[i] = __uint_as_float((uint32_t)b[i]);
		}
		return there;
	});
}

/* Offset of this lane's first four values of a super-block; the other four are 16 further on. */
static __device__ __forceinline__ int sb_offset(int sb)
{
	int lane = threadIdx.x % 32;
	return sb * 256 + lane / 4 * 32 + 4 * (lane % 4);
}

/* v = this lane's eight values of super-block sb of x. */
static __device__ __forceinline__ void load_full_super_block(const float *x, int sb, float v[8])
{
	int k = sb_offset(sb);
	float4 f = *(const float4 *)(x + k), g = *(const float4 *)(x + k + 16);
	v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
	v[4] = g.x, v[5] = g.y, v[6] = g.z, v[7] = g.w;
}

/* The part and the first row of an item. */
static __device__ __forceinline__ struct item_position chain_item_position(
	const struct chain_step &t, int item)
{
	struct item_position p = {0, 0};
	int before = 0;
#pragma unroll
	for (int i = 0; i < CHAIN_PARTS - 1; i++)
		if (i + 1 < t.n_parts && item >= t.part[i].item_end) {
			p.part = i + 1;
			before = t.part[i].item_end;
		}
	p.row = (item - before) * MMA_ROWS;
	return p;
}

/* Called by one thread of each block, when the block waits for nothing more and has read the tag.
 * Returns how many blocks have called it before, for chain_reset, which may come much later. */
static __device__ __forceinline__ uint32_t chain_exit(struct chain_state *state)
{
	__threadfence();
	return atomicInc(&state->blocks_done, gridDim.x - 1);
}

/* The last block resets the state for the next launch. before: from chain_exit. */
static __device__ __forceinline__ void chain_reset(
	struct chain_state *state, uint32_t before, uint32_t tag)
{
	if (before != gridDim.x - 1)
		return;
	state->items_done = 0;
	state->append_items_done = 0;
	state->tag = tag + 1 ? tag + 1 : 1;
}

/* All of the cache block: appends cache rows when the items that they are made of are finished. */
static __device__ __noinline__ void append_cache_rows(const struct chain_args &a)
{
	grid_dependency_wait();
	if (!threadIdx.x) {
		uint32_t tag = flag_load(&a.state->tag);
		poll_until(
			a.report, [&]() { return flag_load(&a.state->append_items_done) == a.n_append_items; });
		/* chain_exit's fence also makes the items' outputs visible to this block */
		chain_reset(a.state, chain_exit(a.state), tag);
	}
	__syncthreads();
	if (a.latents.kv)
		append_latent(a.rows, a.rope, a.latents, 0, false);
	if (a.latents.key)
		append_key(a.rows, a.rope, a.latents, 0);
}

/* v[0 .. 8) = this lane's values of super-block sb of n_sb of the second x, normed with `gain`
 * (this lane's eight); the other half of v is scratch. Offsets in the hand-off: at: of the first
 * four of those values; sums_at, sums_at + sums_step: of the four and four values whose squares
 * this lane adds, in rms_norm's order. sums: shared, [n_sb]; barrier: mbarrier at which every warp
 * with a super-block arrives once. */
static __device__ __forceinline__ void load_and_norm(const struct poll_report &report,
	const uint2 *handoff, int at, int sums_at, int sums_step, uint32_t tag, int sb, int n_sb,
	double *sums, uint32_t barrier, int n_in, float eps, const float gain[8], float v[16])
{
	int lane = threadIdx.x % 32;
	int from[4] = {at, at + 16, sums_at, sums_at + sums_step};
	load_tagged<4>(report, handoff, from, tag, v);
	double sum = warp_sum(add_squares(add_squares(0, make_float4(v[8], v[9], v[10], v[11])),
		make_float4(v[12], v[13], v[14], v[15])));
	if (!lane) {
		sums[sb] = sum;
		mbarrier_arrive(barrier);
	}
	mbarrier_wait(barrier, 0);
	float scale = (float)rsqrt(warp_sum(lane < n_sb ? sums[lane] : 0.0) / n_in + (double)eps);
#pragma unroll
	for (int i = 0; i < 8; i++)
		v[i] = __fmul_rn(__fmul_rn(v[i], scale), gain[i]);
}

/* Passes output `at` of a part on to its destination; stores: this lane has one. Lane 0 counts the
 * item. */
static __device__ __forceinline__ void chain_store(const struct chain_args &a, enum chain_target to,
	float *y, int at, float v, bool stores, uint32_t tag, int lane)
{
	if (to == CHAIN_TO_NEXT_STEP) {
		if (stores)
			store_tagged(a.state->handoff + at, v, tag);
		if (!lane)
			count_done(&a.state->items_done, false);
		return;
	}
	if (stores)
		y[at] = v;
	if (to == CHAIN_TO_CACHE_BLOCK) {
		__syncwarp();
		if (!lane)
			count_done(&a.state->append_items_done, true);
	}
}

struct chain_barriers {
	uint64_t full[2][CHAIN_STAGES], empty[2][CHAIN_STAGES], norm_barrier;
};

/* A side's units of a step: first, first + 2, ... below end; each has `chunks` chunks. */
struct chain_share {
	int first, end, chunks;
};

static __device__ __forceinline__ struct chain_share chain_share_of(
	const struct chain_args &a, int s, int side)
{
	unsigned n = (unsigned)a.step[s].n_items >> s, blocks = (unsigned)a.n_blocks;
	return {(int)(n * blockIdx.x / blocks) + side, (int)(n * (blockIdx.x + 1) / blocks),
		s ? 2 : a.step[s].n_in / 2048};
}

/* All of the producer warp: each half of it loads the weights of a side, a lane one line of a
 * stage. `round` counts how often the ring has been filled: from the second time on a stage is
 * overwritten only when its consumers have released it. */
static __device__ __forceinline__ void chain_produce(
	const struct chain_args &a, uint8_t *ring, struct chain_barriers *b, int lane)
{
	int side = lane / 16, row = lane % 16, stage = 0, round = 0;
	uint32_t to = shared_address(ring) + side * (CHAIN_STAGES * CHAIN_STAGE) + row * CHAIN_STRIDE;
#pragma unroll 1
	for (int s = 0; s < 2; s++) {
		const struct chain_step &t = a.step[s];
		struct chain_share share = chain_share_of(a, s, side);
#pragma unroll 1
		for (int u = share.first; u < share.end; u += 2) {
			struct item_position p = chain_item_position(t, u << s);
			const uint8_t *from = t.part[p.part].w + (int64_t)(p.row + row) * t.row_bytes;
#pragma unroll 1
			for (int k = 0; k < share.chunks; k++) {
				uint32_t full = shared_address(&b->full[side][stage]),
						 at = to + stage * CHAIN_STAGE;
				if (round)
					mbarrier_wait(shared_address(&b->empty[side][stage]), (round + 1) & 1);
				if (!row)
					mbarrier_expect(full, MMA_ROWS * CHAIN_LINE);
				if (s) {
					bulk_copy(at, from + k * (CHAIN_LINE / 2), CHAIN_LINE / 2, full);
					bulk_copy(at + CHAIN_LINE / 2,
						from + MMA_ROWS * t.row_bytes + k * (CHAIN_LINE / 2), CHAIN_LINE / 2, full);
				} else {
					bulk_copy(at, from + k * CHAIN_LINE, CHAIN_LINE, full);
				}
				if (++stage == CHAIN_STAGES) {
					stage = 0;
					round++;
				}
			}
		}
	}
}

#endif

static __global__ void __launch_bounds__(CHAIN_THREADS, 1)
	gemv_chain_kernel(const __grid_constant__ struct chain_args a)
{
#if __CUDA_ARCH__ >= 900
	extern __shared__ __align__(16) uint8_t shared[];
	__shared__ __align__(8) struct chain_barriers bars;
	__shared__ double norm_sums[CHAIN_SIDE];
	__shared__ uint32_t shared_tag;
	int tid = threadIdx.x, lane = tid % 32, warp = __shfl_sync(0xffffffffu, tid / 32, 0);

	launch_dependents();
	if ((int)blockIdx.x >= a.n_blocks) {
		append_cache_rows(a);
		return;
	}
	if (!tid) {
		for (int side = 0; side < 2; side++)
			for (int i = 0; i < CHAIN_STAGES; i++) {
				mbarrier_init(shared_address(&bars.full[side][i]), 1);
				mbarrier_init(shared_address(&bars.empty[side][i]), CHAIN_SIDE);
			}
		mbarrier_init(shared_address(&bars.norm_barrier), CHAIN_SIDE);
		mbarrier_init_fence();
	}
	__syncthreads();
	if (warp == CHAIN_WARPS) {
		chain_produce(a, shared, &bars, lane);
		__syncwarp();
		named_barrier_sync(CHAIN_DONE, CHAIN_THREADS);
		if (!lane)
			chain_reset(a.state, chain_exit(a.state), shared_tag);
		return;
	}

	float *partials = (float *)(shared + CHAIN_PARTIALS);
	uint2 *limbs = (uint2 *)(shared + CHAIN_LIMBS);
	int side = warp / CHAIN_SIDE, w = warp % CHAIN_SIDE, r0 = lane / 4, c = lane % 4, stage = 0;
	const uint8_t *ring = shared + side * (CHAIN_STAGES * CHAIN_STAGE) + r0 * CHAIN_STRIDE;
	uint32_t parity = 0;
	auto release_stage = [&]() { /* to the producer */
		__syncwarp();
		if (!lane)
			mbarrier_arrive(shared_address(&bars.empty[side][stage]));
		if (++stage == CHAIN_STAGES) {
			stage = 0;
			parity ^= 1;
		}
	};
#pragma unroll 1
	for (int s = 0; s < 2; s++) {
		const struct chain_step &t = a.step[s];
		struct chain_share share = chain_share_of(a, s, side);
		int n_sb = t.n_in / 256, log_split = 3 - s, split = 1 << log_split, part = w & (split - 1),
			turn = 0;
		/* this warp's super-block in a line; the second item of a unit is half a line further on */
		const uint8_t *mine = ring + w * CHAIN_SB_BYTES;
		float *scales = (float *)(limbs + n_sb * SUPER_BLOCK_LIMBS);
		const uint2 *column = r0 < 3 ? limbs + part * SUPER_BLOCK_LIMBS + r0 * 4 + c : NULL;
		if (!s) {
			grid_dependency_wait();
			if (!tid)
				shared_tag = flag_load(&a.state->tag);
			float v[2][8];
#pragma unroll
			for (int i = 0; i < 2; i++)
				if (warp + i * CHAIN_WARPS < n_sb)
					load_full_super_block(t.x, warp + i * CHAIN_WARPS, v[i]);
#pragma unroll
			for (int i = 0; i < 2; i++)
				if (warp + i * CHAIN_WARPS < n_sb)
					write_limbs(v[i], limbs + (warp + i * CHAIN_WARPS) * SUPER_BLOCK_LIMBS,
						scales + warp + i * CHAIN_WARPS);
			named_barrier_sync(CHAIN_ALL, CHAIN_WARPS * 32);
		} else if (side) { /* side 1 splits the second x into limbs, a super-block a warp */
			uint32_t tag = shared_tag;
			float v[16], g[8];
			load_full_super_block(t.gain, w, g);
			if (tid == CHAIN_SIDE * 32)
				poll_until(a.report,
					[&]() { return flag_load(&a.state->items_done) == a.n_handoff_items; });
			named_barrier_sync(CHAIN_NORM, CHAIN_SIDE * 32);
			load_and_norm(a.report, a.state->handoff, sb_offset(w), 4 * (w * 32 + lane), 1024, tag,
				w, n_sb, norm_sums, shared_address(&bars.norm_barrier), t.n_in, a.eps, g, v);
			named_barrier_sync(CHAIN_READ, CHAIN_WARPS * 32);
			write_limbs(v, limbs + w * SUPER_BLOCK_LIMBS, scales + w);
			named_barrier_sync(CHAIN_ALL, CHAIN_WARPS * 32);
			named_barrier_arrive(CHAIN_DONE, CHAIN_THREADS);
		} else {
			named_barrier_arrive(CHAIN_READ, CHAIN_WARPS * 32);
			named_barrier_sync(CHAIN_ALL, CHAIN_WARPS * 32);
			named_barrier_arrive(CHAIN_DONE, CHAIN_THREADS);
		}

#pragma unroll 1
		for (int u = share.first; u < share.end; u += 2, turn++) {
			struct item_position p = chain_item_position(t, (u << s) + (s ? w / 4 : 0));
			const struct chain_part &q = t.part[p.part];
			/* the warps of a group take turns at adding the partial sums */
			bool stores = part == (turn & (split - 1)) && lane < MMA_ROWS;
			float *y = q.y;
			enum chain_target to = q.to;
			float acc[1][4] = {{0, 0, 0, 0}};
#pragma unroll 1
			for (int k = 0; k < share.chunks; k++) {
				mbarrier_wait(shared_address(&bars.full[side][stage]), parity);
				const uint8_t *row = mine + stage * CHAIN_STAGE;
				float x_scale = scales[k * split + part];
				const float x_scales[1][2] = {{x_scale, x_scale}};
				const uint2 *const at_sb[1] = {
					column ? column + k * split * SUPER_BLOCK_LIMBS : NULL};
				super_block_mma<DTYPE_Q8_0, 1, 1>(row, row + 8 * CHAIN_STRIDE, 0, 256, c, NULL,
					lane_tables{shared, 0}, at_sb, x_scales, acc);
				release_stage();
			}
			/* Two buffers in turns: a group writes one again only behind the barrier of the next
			 * unit, which its reader passes after its reads. */
			float *here = partials + ((turn & 1) * CHAIN_WARPS + (warp & ~(split - 1))) * MMA_ROWS;
			store_partials<1>(acc[0], here, part, lane);
			named_barrier_sync(CHAIN_GROUP + (s ? 2 + warp / 4 : side), split * 32);
			if (part != (turn & (split - 1)))
				continue;
			chain_store(a, to, y, p.row + lane, add_partials<1>(here + lane % MMA_ROWS, split),
				stores, shared_tag, lane);
		}
	}
#endif
}

#endif
