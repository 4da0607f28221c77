/* SPDX-License-Identifier: MIT */
/*
 * The fused gemv chain: two gemv steps of one or two rows in one launch, the second of the normed
 * outputs of the first. Arithmetic, order of additions and shares are gemv_aligned_kernel's
 * (gemv_aligned.cuh), so the bits are the same. What one launch saves: the copies of weights run
 * ahead from the first step into the second, so the second step's weights arrive while the blocks
 * exchange values and split the second x into limbs.
 *
 * Grid: one block per SM, ALIGNED_WARPS warps. With cache rows to append (struct
 * chain_args) the last block does that and nothing else.
 *
 * Exchange between the steps, flag-in-data: a value travels with the launch's sequence tag in one
 * 8-byte store, so a reader needs no fence. Readers first poll a counter of finished items; polling
 * the values at once is slower (044f56b). Outputs of the first step that the cache block reads go
 * to y with a release and a counter of their own.
 *
 * No deadlock: blocks wait for each other, so all must be resident at the same time. There is at
 * most one per SM; kernels before this one never wait for it; the kernel after it starts
 * only when all blocks of this one have called launch_dependents, that is, are resident. The last
 * block to finish waiting resets the counters and advances the tag. The next launch reads them
 * after all kernels before it have ended.
 *
 * Bytes moved: every packed row once; x of each step once per block from the L2 cache.
 *
 * Tried: bulk copies of row pieces, a third chunk in the ring, 96 or 112 registers: slower
 * (044f56b).
 */
#ifndef GLM_KERNELS_CUDA_GEMV_CHAIN_CUH
#define GLM_KERNELS_CUDA_GEMV_CHAIN_CUH

#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/norm.cuh"
#include "kernels/cuda/common/poll.cuh"
#include "kernels/cuda/gemv/gemv_aligned.cuh"

#define CHAIN_PARTS   4
#define CHAIN_THREADS (ALIGNED_WARPS * 32)

/* In device memory, kept between launches; zero at first but for the tag, which is 1 */
struct chain_state {
	alignas(128) uint32_t items_done; /* finished items of the first step that feed the second */
	alignas(128) uint32_t append_items_done; /* finished items that the cache block reads */
	alignas(128) uint32_t blocks_done;       /* blocks that wait for nothing more */
	alignas(128) uint32_t tag;               /* sequence tag of this launch; never 0 */
	alignas(128)
		uint2 handoff[CUDA_CHAIN_VALUES]; /* value and tag: [x rows][n_in of the second step] */
};

/* Destination of a part's outputs */
enum chain_target {
	CHAIN_TO_Y,
	CHAIN_TO_CACHE_BLOCK, /* y, and the cache block reads it */
	CHAIN_TO_NEXT_STEP,   /* the second step only */
};

struct chain_part {
	const uint8_t *w;
	float *y;
	int n_out, item_end;
	enum chain_target to;
};

struct chain_step {
	const float *x;    /* first step only */
	const float *gain; /* second step: x is normed with it, as rms_norm does */
	int row_bytes, n_in, n_parts, n_items, log_split;
	struct chain_part part[CHAIN_PARTS];
};

struct chain_args {
	struct chain_step step[2];
	const struct cuda_tables *tables;
	struct chain_state *state;
	struct poll_report report;
	int n_rows, n_blocks; /* n_blocks: blocks that share the products */
	/* items of the first step that feed the second step, the cache block */
	uint32_t n_handoff_items, n_append_items;
	float eps;
	/* latents.kv and latents.key (each may be NULL) go to the caches; with either of them the grid
	 * has one block more, the cache block */
	struct batch rows;
	struct rope rope;
	struct latents latents;
};

static __device__ __forceinline__ uint32_t load_relaxed(const uint32_t *p)
{
	uint32_t v;
	asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

static __device__ __forceinline__ void count_done(uint32_t *p, bool with_fence)
{
	if (with_fence)
		asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory");
	else
		asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory");
}

static __device__ __forceinline__ void store_tagged(uint2 *to, float v, uint32_t tag)
{
	uint64_t both = (uint64_t)tag << 32 | __float_as_uint(v);
	asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(both) : "memory");
}

/* v[4 i .. 4 i + 4) = the values at at[i] and on, when all have this launch's tag. The loads of a
 * poll overlap. */
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

/* Offset of this lane's first four values of a super-block; the other four follow as in
 * load_super_block */
template <bool QUADS> static __device__ __forceinline__ int sb_offset(int sb)
{
	int lane = threadIdx.x % 32;
	return sb * 256 + lane / 4 * 32 + (QUADS ? 4 : 8) * (lane % 4);
}

template <bool QUADS>
static __device__ __forceinline__ void load_full_super_block(const float *x, int sb, float v[8])
{
	int k = sb_offset<QUADS>(sb);
	float4 f = *(const float4 *)(x + k), g = *(const float4 *)(x + k + (QUADS ? 16 : 4));
	v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
	v[4] = g.x, v[5] = g.y, v[6] = g.z, v[7] = g.w;
}

static __device__ __forceinline__ int chain_item_begin(
	const struct chain_args &a, const struct chain_step &t, unsigned block)
{
	return (int)((unsigned)t.n_items * block / (unsigned)a.n_blocks);
}

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

/* By one thread of each block, when the block waits for nothing more and has read the tag. Returns
 * the number of blocks that did so before, for chain_reset, which may come much later. */
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

/* The cache block: appends cache rows when their values are there. */
static __device__ __noinline__ void append_cache_rows(const struct chain_args &a)
{
	grid_dependency_wait();
	if (!threadIdx.x) {
		uint32_t tag = load_relaxed(&a.state->tag);
		poll_until(a.report,
			[&]() { return load_relaxed(&a.state->append_items_done) == a.n_append_items; });
		/* chain_exit's fence also makes the items' outputs visible to this block */
		chain_reset(a.state, chain_exit(a.state), tag);
	}
	__syncthreads();
	for (int r = 0; r < a.n_rows; r++) {
		if (a.latents.kv)
			append_latent(a.rows, a.rope, a.latents, r, false);
		if (a.latents.key)
			append_key(a.rows, a.rope, a.latents, r);
	}
}

/* v[0 .. 8) = this lane's values of a super-block of the second x, normed; the other half of v is
 * scratch. at: of the first four of them in the hand-off; sums_at, sums_at + sums_step: of the
 * eight values whose squares this lane adds, in rms_norm's order. sb: number of this warp in its x
 * row of n_sb super-blocks; sums: shared, of that row; barrier: mbarrier at which every warp
 * with a super-block arrives once. */
template <bool QUADS>
static __device__ __forceinline__ void load_and_norm(const struct poll_report &report,
	const uint2 *handoff, int at, int sums_at, int sums_step, uint32_t tag, int sb, int n_sb,
	double *sums, uint32_t barrier, int n_in, float eps, const float gain[8], float v[16])
{
	int lane = threadIdx.x % 32;
	int from[4] = {at, at + (QUADS ? 16 : 4), sums_at, sums_at + sums_step};
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

/* An output of either step, at `at` of its x rows; stores: this lane has one. */
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

template <int T>
__global__ void __launch_bounds__(CHAIN_THREADS, 1)
	gemv_chain_kernel(const __grid_constant__ struct chain_args a)
{
	typedef struct bytes_type<T> type;
	constexpr int WARPS = ALIGNED_WARPS, STAGES = ALIGNED_STAGES;
	constexpr int CHUNK = item_stage<T>::CHUNK, STRIDE = item_stage<T>::STRIDE,
				  STAGE = item_stage<T>::STAGE;
	extern __shared__ __align__(16) uint8_t shared[];
	__shared__ double norm_sums[2][WARPS];
	__shared__ uint32_t shared_tag;
	__shared__ uint64_t norm_barrier; /* of the warps with a super-block of the second x */
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

	launch_dependents();
	if ((int)blockIdx.x >= a.n_blocks) {
		append_cache_rows(a);
		return;
	}
	float *partials = (float *)(shared + aligned_ring_bytes<T>());
	uint2 *limbs = (uint2 *)(partials + 2 * WARPS * 32);
	uint32_t stages = warp * (STAGES * STAGE);

	/* The copies run STAGES chunks ahead of the products, across items and steps. */
	struct item_stage<T> copies;
	int ahead_step = 0, ahead = 0, ahead_end = 0, ahead_chunk = 0, ahead_chunks = 0,
		ahead_stage = 0, ahead_rows = 0;
	const uint8_t *from0 = NULL;
	copies.init(shared_address(shared) + stages, lane);
	auto begin_step = [&]() { /* the next in which this warp has a share */
		for (; ahead_step < 2; ahead_step++) {
			const struct chain_step &t = a.step[ahead_step];
			ahead = chain_item_begin(a, t, blockIdx.x) + (warp >> t.log_split);
			ahead_end = chain_item_begin(a, t, blockIdx.x + 1);
			if (ahead >= ahead_end)
				continue;
			ahead_chunk = warp & ((1 << t.log_split) - 1);
			ahead_chunks = (t.n_in / 256 + CHUNK - 1) / CHUNK;
			copies.set_row_bytes(t.row_bytes, lane);
			return;
		}
	};
	auto set_rows = [&]() {
		if (ahead_step >= 2)
			return;
		const struct chain_step &t = a.step[ahead_step];
		struct item_position p = chain_item_position(t, ahead);
		const struct chain_part &q = t.part[p.part];
		ahead_rows = q.n_out - p.row;
		from0 = q.w + (int64_t)p.row * t.row_bytes;
	};
	auto fetch = [&]() {
		if (ahead_step < 2) {
			const struct chain_step &t = a.step[ahead_step];
			copies.copy(ahead_stage, from0, from0 + 8 * t.row_bytes, t.row_bytes,
				ahead_chunk * copies.BYTES, ahead_rows, false, lane);
			ahead_stage = ahead_stage + 1 == STAGES ? 0 : ahead_stage + 1;
			ahead_chunk += 1 << t.log_split;
			if (ahead_chunk >= ahead_chunks) {
				ahead_chunk = warp & ((1 << t.log_split) - 1);
				ahead += WARPS >> t.log_split;
				if (ahead >= ahead_end) {
					ahead_step++;
					begin_step();
				}
				set_rows();
			}
		}
		copy_commit();
	};
	begin_step();
	set_rows();
#pragma unroll 1
	for (int s = 0; s < STAGES; s++)
		fetch();

	int stage = 0, r0 = lane / 4, c = lane % 4;
	uint32_t tag = 0, exited_before = 0;
#pragma unroll 1
	for (int s = 0; s < 2; s++) {
		const struct chain_step &t = a.step[s];
		int n_in = t.n_in, n_sb = n_in / 256, chunks = (n_sb + CHUNK - 1) / CHUNK,
			own_sb = a.n_rows * n_sb;
		int split = 1 << t.log_split, groups = WARPS >> t.log_split, part = warp & (split - 1),
			group = warp >> t.log_split, item = chain_item_begin(a, t, blockIdx.x) + group,
			end = chain_item_begin(a, t, blockIdx.x + 1), turn = 0;
		struct item_position p = chain_item_position(t, item);
		float *limb_scales = (float *)(limbs + own_sb * SUPER_BLOCK_LIMBS);
		const float *gain = t.gain, *x = t.x;
		float g[8];
		if (s && warp < own_sb)
			load_full_super_block<type::QUADS>(gain, warp < n_sb ? warp : warp - n_sb, g);
		asm volatile(
			""
			: "+r"(item), "+r"(end), "+r"(p.part), "+r"(p.row), "+r"(own_sb), "+r"(chunks));
		if (!s) {
			grid_dependency_wait();
			if (!threadIdx.x) {
				mbarrier_init(shared_address(&norm_barrier), a.n_rows * (a.step[1].n_in / 256));
				shared_tag = load_relaxed(&a.state->tag);
			}
			for (int u = warp; u < own_sb; u += 2 * WARPS) {
				float v[2][8]; /* of two super-blocks: their loads overlap */
#pragma unroll
				for (int i = 0; i < 2; i++)
					if (u + i * WARPS < own_sb)
						load_full_super_block<type::QUADS>(
							x, u + i * WARPS, v[i]); /* rows follow each other */
#pragma unroll
				for (int i = 0; i < 2; i++)
					if (u + i * WARPS < own_sb)
						write_limbs(v[i], limbs + (u + i * WARPS) * SUPER_BLOCK_LIMBS,
							limb_scales + u + i * WARPS);
			}
		} else {
			tag = shared_tag;
			if (!threadIdx.x)
				poll_until(a.report,
					[&]() { return load_relaxed(&a.state->items_done) == a.n_handoff_items; });
			__syncthreads();
			/* one super-block per warp: number w of row `row` */
			int row = warp >= n_sb, w = warp - row * n_sb, k = sb_offset<type::QUADS>(warp),
				sums_at = row * n_in + 4 * (w * 32 + lane);
			float v[16];
			if (warp < own_sb) {
				load_and_norm<type::QUADS>(a.report, a.state->handoff, k, sums_at, n_in / 2, tag, w,
					n_sb, norm_sums[row], shared_address(&norm_barrier), n_in, a.eps, g, v);
				write_limbs(v, limbs + warp * SUPER_BLOCK_LIMBS, limb_scales + warp);
			}
		}
		__syncthreads();
		if (s && threadIdx.x == CHAIN_THREADS - 1) /* after the limbs, because it takes 1 us */
			exited_before = chain_exit(a.state);

		const uint2 *column =
			r0 < 3 * a.n_rows ? limbs + r0 / 3 * n_sb * SUPER_BLOCK_LIMBS + r0 % 3 * 4 + c : NULL;
		const float *scales[2];
#pragma unroll
		for (int e = 0; e < 2; e++)
			scales[e] = limb_scales + min((2 * c + e) / 3, a.n_rows - 1) * n_sb;
#pragma unroll 1
		for (; item < end; turn++) {
			/* the warps of a group take turns to add the partial sums: lane = x row and weight
			 * row */
			const struct chain_part &q = t.part[p.part];
			bool adds = part == (turn & (split - 1));
			int x_row = lane / 16, j = lane % 16, at = x_row * q.n_out + p.row + j;
			bool stores = adds && x_row < a.n_rows && p.row + j < q.n_out;
			float *y = q.y;
			enum chain_target to = q.to;
			float acc[1][4] = {{0, 0, 0, 0}};
#pragma unroll 1
			for (int chunk = part; chunk < chunks; chunk += split) {
				copy_wait<STAGES - 1>();
				__syncwarp();
				const uint8_t *row = shared + stages + stage * STAGE + r0 * STRIDE;
				stage_multiply<T, 1, true>(
					row, chunk, n_sb, n_in, c, a.tables, shared, column, scales, acc);
				__syncwarp(); /* the stage may be overwritten */
				fetch();
				stage = stage + 1 == STAGES ? 0 : stage + 1;
			}
			/* two buffers: before one is written again the group has passed the barrier behind
			 * its reads */
			float *here = partials + ((turn & 1) * WARPS + (warp & ~(split - 1))) * 32;
			store_partials<2>(acc[0], here, part, lane);
			if (split > 1)
				sync_group(group, split);
			else
				__syncwarp();
			item += groups;
			if (item < end)
				p = chain_item_position(t, item);
			if (!adds)
				continue;
			chain_store(
				a, to, y, at, add_partials<2>(here + lane, split), stores, shared_tag, lane);
		}
	}
	copy_wait<0>();
	if (threadIdx.x == CHAIN_THREADS - 1)
		chain_reset(a.state, exited_before, tag);
}

#endif
