/* SPDX-License-Identifier: MIT */
/*
 * The fused gemv chain: the two gemv steps of a layer's latents in one launch. The second step
 * multiplies the normed outputs of the first. For 1 to CHAIN_ROWS rows of x and Q8_0; the first
 * step splits a weight row over 8 warps, the second, of 8 super-blocks, over 4. Arithmetic, order
 * of additions and shares are gemv_aligned_kernel's (gemv_aligned.cuh), so the bits are the same.
 * One launch is faster than two because copies of weights run ahead from the first step into the
 * second: the second step's weights arrive while the blocks exchange values and split the second x
 * into limbs.
 *
 * Grid: at most one block per SM. Each block computes a contiguous share of the units of each step.
 * If there are cache rows to append (struct chain_args), one more block, the cache block, does that
 * and nothing else. Block: two sides of 8 consumer warps, which take the block's units in turns,
 * and a producer warp. The producer loads the weights of both steps by bulk copies into a ring per
 * side: while values pass between the steps, the next chunks of each side are there or in flight.
 *
 *      item         16 weight rows, as in gemv_pipeline.cuh
 *      unit         what a side computes at a time. First step: an item; warp w multiplies
 *                   super-block 8 k + w of chunk k. Second step: two items, warps 0 .. 3 the first,
 *                   4 .. 7 the second; warp w multiplies super-block 4 k + w % 4 of chunk k = 0, 1
 *      chunk        what one stage of a ring holds: 16 lines of 2176 bytes. First step: line r is
 *                   2176 bytes of row r. Second step: half of row r, then half of row 16 + r
 *      tile         two rows of x: six columns of an mma, three limbs each (gemv_mma.cuh)
 *
 * Several rows of x multiply the same weights from shared memory, so they cost no more bytes. A
 * form of the kernel is compiled for each number of rows (struct chain_form). On an H200 two rows
 * take 21 us in place of 35 for the ops one by one, four 29 in place of 44; one row takes 19.
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
 * Shared memory: rings of side 0 and 1, partial sums [2 buffers][warp][tile][x row][16], limbs of x
 * [super-block][x row], their scales. Both steps use the same bytes for their limbs: CHAIN_READ
 * lies between the last read of the first and the first write of the second.
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
#define CHAIN_ROWS   4    /* rows of x, at most */
#define CHAIN_VALUES 2048 /* that the first step hands to the second: the n_in of the second */

/* In device memory, kept between launches. gemv_chain_open sets the tag to 1, all else to 0. */
struct chain_state {
	alignas(128) uint32_t items_done; /* finished items of the first step that feed the second */
	alignas(128) uint32_t append_items_done; /* finished items that the cache block reads */
	alignas(128) uint32_t blocks_done;       /* blocks that wait for nothing more */
	alignas(128) uint32_t tag;               /* sequence tag of this launch; never 0 */
	alignas(128) uint2 handoff[CHAIN_ROWS][CHAIN_VALUES]; /* value, tag of the launch */
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
	float *y;            /* [rows][n_out] */
	int n_out, item_end; /* items of the step up to this part's last */
	enum chain_target to;
};

struct chain_step {
	const float *x;    /* [rows][n_in], first step only */
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
#define CHAIN_SB_BYTES     (256 / 32 * 34)
#define CHAIN_LINE         (8 * CHAIN_SB_BYTES)
#define CHAIN_STRIDE       (CHAIN_LINE + 16) /* in shared memory: no bank conflicts */
#define CHAIN_STAGE        (MMA_ROWS * CHAIN_STRIDE)
#define CHAIN_SUPER_BLOCKS 24 /* of the first x, at most: two per warp */

/* The form of the kernel for ROWS rows of x. Shared memory: rings, partial sums, limbs of x, their
 * scales; so more rows leave less for the rings. */
template <int ROWS> struct chain_form {
	static constexpr int TILES = (ROWS + 1) / 2;        /* of columns: two rows of x each */
	static constexpr int TILE_ROWS = ROWS == 1 ? 1 : 2; /* rows of x of a tile */
	static constexpr int SIDE_ROWS = (ROWS + 1) / 2;    /* rows that a side norms, at most */
	static constexpr int STAGES = ROWS == 1 ? 6 : ROWS == 2 ? 5 : 4; /* of both rings */
	static constexpr int PARTIALS = STAGES * CHAIN_STAGE;
	static constexpr int LIMBS =
		PARTIALS + 2 * CHAIN_WARPS * TILES * TILE_ROWS * MMA_ROWS * (int)sizeof(float);

	/* of a side's ring */
	static constexpr __host__ __device__ int stages(int side)
	{
		return STAGES / 2 + (STAGES % 2 && !side);
	}
	static constexpr __host__ __device__ int bytes(int super_blocks)
	{
		return LIMBS + super_blocks * ROWS * (SUPER_BLOCK_LIMBS * 8 + 4);
	}
};

/* Named barriers */
enum {
	CHAIN_ALL = 1, /* all consumer warps: the limbs of x are written */
	CHAIN_READ,    /* all consumer warps: the limbs of the first x have been read */
	CHAIN_NORM,    /* a side: the items that it reads have been finished by all blocks */
	CHAIN_DONE = CHAIN_NORM + 2, /* all warps: this block polls nothing more */
	CHAIN_GROUP /* the warps that share an item: 2 groups in the first step, then 4 */
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

/* Called by one thread of each block, when the block waits for nothing more and has read the tag.
 * Returns how many blocks have called it before; chain_reset needs that, and may be called much
 * later. */
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
#pragma unroll 1
	for (int r = 0; r < a.rows.n; r++) {
		if (a.latents.kv)
			append_latent(a.rows, a.rope, a.latents, r, false);
		if (a.latents.key)
			append_key(a.rows, a.rope, a.latents, r);
	}
}

/* The sums of squares of the second x: a super-block by each warp of a side. */
template <int ROWS> struct chain_norm {
	double sums[ROWS][CHAIN_SIDE];
	uint64_t barrier[ROWS]; /* mbarrier: all sums of a row are there */
};

/* v = this lane's eight values of a super-block of a row of the second x: four from `at` on, four
 * from at + 16 on. The warp also adds the squares of four values of each lane from sums_at on and
 * four from sums_at + sums_step on (the values of a warp of rms_norm, in its order), stores the sum
 * in *sum_to and arrives at `barrier`. handoff: of the row. */
static __device__ __forceinline__ void load_and_square(const struct poll_report &report,
	const uint2 *handoff, int at, int sums_at, int sums_step, uint32_t tag, double *sum_to,
	uint32_t barrier, float v[8])
{
	int from[4] = {at, at + 16, sums_at, sums_at + sums_step};
	float all[16];
	load_tagged<4>(report, handoff, from, tag, all);
	double sum = warp_sum(add_squares(add_squares(0, make_float4(all[8], all[9], all[10], all[11])),
		make_float4(all[12], all[13], all[14], all[15])));
	if (threadIdx.x % 32 == 0) {
		*sum_to = sum;
		mbarrier_arrive(barrier);
	}
#pragma unroll
	for (int i = 0; i < 8; i++)
		v[i] = all[i];
}

/* Norms v with this lane's eight values of `gain`, when all n_sb sums of the row are there. */
static __device__ __forceinline__ void norm_values(const double *sums, int n_sb, uint32_t barrier,
	int n_in, float eps, const float gain[8], float v[8])
{
	int lane = threadIdx.x % 32;
	mbarrier_wait(barrier, 0);
	float scale = (float)rsqrt(warp_sum(lane < n_sb ? sums[lane] : 0.0) / n_in + (double)eps);
#pragma unroll
	for (int i = 0; i < 8; i++)
		v[i] = __fmul_rn(__fmul_rn(v[i], scale), gain[i]);
}

/* Counts a finished item, behind the warp's stores of its outputs. */
static __device__ __forceinline__ void chain_count(
	struct chain_state *state, enum chain_target to, int lane)
{
	if (to == CHAIN_TO_CACHE_BLOCK)
		__syncwarp();
	if (!lane && to != CHAIN_TO_Y)
		count_done(to == CHAIN_TO_NEXT_STEP ? &state->items_done : &state->append_items_done,
			to == CHAIN_TO_CACHE_BLOCK);
}

template <int ROWS> struct chain_barriers {
	uint64_t full[2][chain_form<ROWS>::stages(0)], empty[2][chain_form<ROWS>::stages(0)];
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
template <int ROWS>
static __device__ __forceinline__ void chain_produce(
	const struct chain_args &a, uint8_t *ring, struct chain_barriers<ROWS> *b, int lane)
{
	typedef struct chain_form<ROWS> form;
	int side = lane / 16, row = lane % 16, stages = form::stages(side), stage = 0, round = 0;
	uint32_t to =
		shared_address(ring) + side * (form::stages(0) * CHAIN_STAGE) + row * CHAIN_STRIDE;
#pragma unroll 1
	for (int s = 0; s < 2; s++) {
		const struct chain_step &t = a.step[s];
		struct chain_share share = chain_share_of(a, s, side);
#pragma unroll 1
		for (int u = share.first; u < share.end; u += 2) {
			struct item_position p = item_position_of(t, u << s, MMA_ROWS);
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
				if (++stage == stages) {
					stage = 0;
					round++;
				}
			}
		}
	}
}

#endif

template <int ROWS>
static __global__ void __launch_bounds__(CHAIN_THREADS, 1)
	gemv_chain_kernel(const __grid_constant__ struct chain_args a)
{
#if __CUDA_ARCH__ >= 900
	typedef struct chain_form<ROWS> form;
	constexpr int TILES = form::TILES, TILE_ROWS = form::TILE_ROWS;
	extern __shared__ __align__(16) uint8_t shared[];
	__shared__ __align__(8) struct chain_barriers<ROWS> bars;
	__shared__ __align__(8) struct chain_norm<ROWS> norm;
	__shared__ uint32_t shared_tag;
	int tid = threadIdx.x, lane = tid % 32, warp = __shfl_sync(0xffffffffu, tid / 32, 0);

	launch_dependents();
	if ((int)blockIdx.x >= a.n_blocks) {
		append_cache_rows(a);
		return;
	}
	if (!tid) {
		for (int side = 0; side < 2; side++)
			for (int i = 0; i < form::stages(side); i++) {
				mbarrier_init(shared_address(&bars.full[side][i]), 1);
				mbarrier_init(shared_address(&bars.empty[side][i]), CHAIN_SIDE);
			}
		for (int row = 0; row < ROWS; row++)
			mbarrier_init(shared_address(&norm.barrier[row]), CHAIN_SIDE);
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

	float *partials = (float *)(shared + form::PARTIALS);
	uint2 *limbs = (uint2 *)(shared + form::LIMBS); /* [super-block][row] */
	int side = warp / CHAIN_SIDE, w = warp % CHAIN_SIDE, r0 = lane / 4, c = lane % 4,
		stages = form::stages(side), stage = 0;
	/* Offsets and addresses: of this warp's super-block in a line of the side's first stage (the
	 * second item of a unit is half a line further on), of the side's mbarriers. The asm keeps them
	 * in registers, else they are recomputed in every round of the inner loop. */
	uint32_t parity = 0, full = shared_address(bars.full[side]),
			 empty = shared_address(bars.empty[side]),
			 mine = side * (form::stages(0) * CHAIN_STAGE) + r0 * CHAIN_STRIDE + w * CHAIN_SB_BYTES;
	asm("" : "+r"(full), "+r"(empty), "+r"(mine));
	auto release_stage = [&]() { /* to the producer */
		__syncwarp();
		if (!lane)
			mbarrier_arrive(empty + 8 * stage);
		if (++stage == stages) {
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
		float *scales = (float *)(limbs + n_sb * ROWS * SUPER_BLOCK_LIMBS);
		/* this lane's column of a tile is limb r0 % 3 of row r0 / 3; columns 6 and 7 are not used
		 */
		const uint2 *column[TILES];
		int scale_at[TILES][2]; /* of its accumulators' columns */
#pragma unroll
		for (int n = 0; n < TILES; n++) {
			int row = 2 * n + r0 / 3;
			column[n] = r0 < 3 * TILE_ROWS && row < ROWS
							? limbs + (part * ROWS + row) * SUPER_BLOCK_LIMBS + r0 % 3 * 4 + c
							: NULL;
#pragma unroll
			for (int e = 0; e < 2; e++)
				scale_at[n][e] =
					part * ROWS + (2 * n + 1 < ROWS ? 2 * n + (2 * c + e) / 3 % 2 : 2 * n);
		}
		if (!s) {
			/* super-blocks of a warp: loads of three at a time overlap */
			constexpr int MOST = (CHAIN_SUPER_BLOCKS * ROWS + CHAIN_WARPS - 1) / CHAIN_WARPS,
						  AT_ONCE = MOST < 3 ? MOST : 3;
			grid_dependency_wait();
			if (!tid)
				shared_tag = flag_load(&a.state->tag);
#pragma unroll 1
			for (int before = 0; before < MOST; before += AT_ONCE) {
				int first = warp + before * CHAIN_WARPS;
				float v[AT_ONCE][8];
#pragma unroll
				for (int i = 0; i < AT_ONCE; i++) {
					int u = first + i * CHAIN_WARPS;
					if (u < n_sb * ROWS)
						load_full_super_block(t.x + u % ROWS * t.n_in, u / ROWS, v[i]);
				}
#pragma unroll
				for (int i = 0; i < AT_ONCE; i++) {
					int u = first + i * CHAIN_WARPS;
					if (u < n_sb * ROWS)
						write_limbs(v[i], limbs + u * SUPER_BLOCK_LIMBS, scales + u);
				}
			}
			named_barrier_sync(CHAIN_ALL, CHAIN_WARPS * 32);
		} else if (side || ROWS > 1) { /* splits rows of the second x into limbs, a super-block a
										  warp: side 1 rows 0 and 2, side 0 rows 1 and 3 */
			uint32_t tag = shared_tag;
			float v[form::SIDE_ROWS][8], g[8];
			load_full_super_block(t.gain, w, g);
			if (tid == side * CHAIN_SIDE * 32)
				poll_until(a.report,
					[&]() { return flag_load(&a.state->items_done) == a.n_handoff_items; });
			named_barrier_sync(CHAIN_NORM + side, CHAIN_SIDE * 32);
#pragma unroll
			for (int i = 0; i < form::SIDE_ROWS; i++) {
				int row = 2 * i + 1 - side;
				if (row < ROWS)
					load_and_square(a.report, a.state->handoff[row], sb_offset(w),
						4 * (w * 32 + lane), 1024, tag, &norm.sums[row][w],
						shared_address(&norm.barrier[row]), v[i]);
			}
#pragma unroll
			for (int i = 0; i < form::SIDE_ROWS; i++) {
				int row = 2 * i + 1 - side;
				if (row < ROWS)
					norm_values(norm.sums[row], n_sb, shared_address(&norm.barrier[row]), t.n_in,
						a.eps, g, v[i]);
			}
			named_barrier_sync(CHAIN_READ, CHAIN_WARPS * 32);
#pragma unroll
			for (int i = 0; i < form::SIDE_ROWS; i++) {
				int u = w * ROWS + 2 * i + 1 - side;
				if (2 * i + 1 - side < ROWS)
					write_limbs(v[i], limbs + u * SUPER_BLOCK_LIMBS, scales + u);
			}
			named_barrier_sync(CHAIN_ALL, CHAIN_WARPS * 32);
			named_barrier_arrive(CHAIN_DONE, CHAIN_THREADS);
		} else {
			named_barrier_arrive(CHAIN_READ, CHAIN_WARPS * 32);
			named_barrier_sync(CHAIN_ALL, CHAIN_WARPS * 32);
			named_barrier_arrive(CHAIN_DONE, CHAIN_THREADS);
		}

#pragma unroll 1
		for (int u = share.first; u < share.end; u += 2, turn++) {
			struct item_position p = item_position_of(t, (u << s) + (s ? w / 4 : 0), MMA_ROWS);
			const struct chain_part &q = t.part[p.part];
			float *y = q.y;
			enum chain_target to = q.to;
			float acc[TILES][4] = {};
#pragma unroll 1
			for (int k = 0; k < share.chunks; k++) {
				mbarrier_wait(full + 8 * stage, parity);
				const uint8_t *row = shared + mine + stage * CHAIN_STAGE;
				const uint2 *at_sb[TILES];
				float x_scales[TILES][2];
#pragma unroll
				for (int n = 0; n < TILES; n++) {
					at_sb[n] = column[n] ? column[n] + k * split * ROWS * SUPER_BLOCK_LIMBS : NULL;
#pragma unroll
					for (int e = 0; e < 2; e++)
						x_scales[n][e] = scales[k * split * ROWS + scale_at[n][e]];
				}
				super_block_mma<DTYPE_Q8_0, TILES, 1, 4>(row, row + 8 * CHAIN_STRIDE, 0, 256, c,
					NULL, lane_tables{shared, 0}, at_sb, x_scales, acc);
				release_stage();
			}
			/* Two buffers in turns: a group writes one again only behind the barrier of the next
			 * unit, which its reader passes after its reads. */
			constexpr int PARTIALS = TILE_ROWS * MMA_ROWS; /* of a warp and tile */
			float *here =
				partials + ((turn & 1) * CHAIN_WARPS + (warp & ~(split - 1))) * (TILES * PARTIALS);
#pragma unroll
			for (int n = 0; n < TILES; n++)
				store_partials<TILE_ROWS>(acc[n], here + n * split * PARTIALS, part, lane);
			named_barrier_sync(CHAIN_GROUP + (s ? 2 + warp / 4 : side), split * 32);
			/* the warps of a group take turns at adding the partial sums */
			if (part != (turn & (split - 1)))
				continue;
			int at = p.row + lane % MMA_ROWS;
#pragma unroll
			for (int n = 0; n < TILES; n++) {
				int row = 2 * n + lane % PARTIALS / MMA_ROWS;
				float v =
					add_partials<TILE_ROWS>(here + n * split * PARTIALS + lane % PARTIALS, split);
				if (lane >= PARTIALS || row >= ROWS)
					continue;
				if (to == CHAIN_TO_NEXT_STEP)
					store_tagged(&a.state->handoff[row][at], v, shared_tag);
				else
					y[row * q.n_out + at] = v;
			}
			chain_count(a.state, to, lane);
		}
	}
#endif
}

#endif
