/* SPDX-License-Identifier: MIT */
/*
 * mla for 1 to MLA_ROWS rows of the released shape (64 heads of 192 > 512 > 256, Q8_0; half caches
 * of 576) in one launch. It takes the place of four (stacked_matmul, attend in two, stacked_matmul:
 * gemv_mma.cuh, gemv_many.cuh, attend_mma.cu), or, for 1 to OUT_ROWS rows, of five with the output
 * projection. The sums and their order are those of the separate launches. All rows share the reads
 * of the weights: on an H200, with the output projection, two rows with 500 positions each take 45
 * us in place of 64, with 2048 53 in place of 70; four 59 in place of 81, and 78 in place of 89.
 * One row takes 39 and 41. A block takes the rows one after the other, which pays less the more
 * positions they have: eight rows (with q's limbs in the place of z's; else they do not fit in
 * shared memory) took 77 us in place of 102 with 500 positions, 116 in place of 107 with 2048. The
 * separate launches of three and more rows have become faster since (gemv_many.cuh). MLA_ROWS lies
 * between four and eight, and each row takes 4 MB of flag words (CUDA_SCRATCH_MOST).
 *
 * mla_kernel, mla_product_kernel: grid 128 blocks of 544 in clusters of two, one per SM. A group is
 * 32 blocks and 16 heads. Block i of group g: rows of half i % 2 of head 16 g + i / 2 in both
 * products, and segment i of the positions for all heads of the group (split over positions, as
 * flash-decoding); of later rows another segment, so that short lists of several rows keep
 * different blocks busy.
 *
 *      0  before the dependency wait: 256 rows of k_b to register tiles (q8_tile.cuh)
 *      1  a warp: 16 rows of k_b; queries to the group. The block's cache rows start to load
 *      2  for each row: a warp: a head's query, as two halves, to shared memory; then the next
 *         copy starts, whose bytes would have delayed the queries: the cache rows of the next
 *         row, or 128 rows of v_b.
 *         Scores: 8 warps: a quarter of the width x 32 positions.
 *         Softmax: 8 lanes a head and tile of 32. Values: a warp: 32 columns.
 *         Maxima, sums and values of the segment to the group
 *      3  the values of all segments for the block's half of its head, combined in ascending
 *         order and split into limbs, which the pair exchanges; of several rows two at a time,
 *         by half of the warps each. A warp: 16 rows and half the width of v_b
 *      4  with an output projection, whose weights are loaded over v_b and the cache rows from
 *         here on: the heads' values are split into limbs, half of them by each block of the
 *         pair for both, and multiplied (mla_output.cuh). Then the grid has a block per
 *         SM (an even number); those from 128 on have no head
 *
 * Exchange between the blocks by flag-in-data words (flag_words.cuh), without a barrier. A reader
 * polls a word until it is not FLAG_EMPTY and then clears it: its only reader, or for queries,
 * which 32 blocks read, the block that wrote them, when it has the values of all segments, which
 * depend on them. The end of the launch orders this before the next launch. Each word carries its
 * own flag, so no order between words is needed. The output projection's words, which all blocks
 * read, exist twice: launches alternate, and each clears the other set.
 *
 * No deadlock: the dependencies have no cycle (queries need nothing, values need queries, the
 * output projection needs values), so it suffices that every block becomes resident. One
 * SM holds one block, and the driver was asked whether all pairs can be resident. A kernel before
 * this one never waits for this launch; the kernel after it starts when all blocks of this one are
 * near their end. A backend has one stream, and callers keep such kernels of two backends on one
 * card apart (backend.h: Threads).
 *
 * Bytes moved: 15.6 MB of weights; for each row of the step every chosen cache row once for each of
 * 4 groups (after the first from the L2 cache), and 4 MB of values out and in. With the output
 * projection its weights, and 32 KB a row to each block.
 *
 * The output projection is limited to two rows: the limbs of all values take 48 KB of shared memory
 * a row, and the ring needs the rest.
 *
 * Tried: one of four flag words polled first, scores by 16 warps, values combined in registers:
 * slower (d8ac5bf). Flags cleared behind the first products: slower (4e09aeb). A third ring stage
 * on one side, v_b padded against bank conflicts, all rings filled at once: no gain or slower
 * (664708c).
 */
#include "kernels/cuda/attention/mla_phases.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/* A block's segment of the positions that a row has selected */
struct mla_segment {
	int here, all;     /* positions of it, of the row; here <= 0: none */
	int64_t cache_row; /* that this lane copies, if one */
};

/* Segments of several rows go to different blocks where there are few of them. */
template <int ROWS> static __device__ __forceinline__ int mla_segment_of(int part, int row)
{
	return (part + row * (PARTS / ROWS)) % PARTS;
}

/* mine: the position of the segment that this lane copies, if it is there */
static __device__ __forceinline__ struct mla_segment mla_segment_load(
	const struct mla_args &a, int row, int segment, int mine)
{
	int first = segment * SEGMENT, all = a.n_sel[row];
	return {min(SEGMENT, all - first), all,
		a.base[row] + (int64_t)a.sel[row * a.sel_stride + min(first + mine, a.sel_stride - 1)]};
}

/* What the phases share besides the layout of mla_phases.cuh */
template <int ROWS> struct mla_shared {
	alignas(16) float weight_of[2][PARTS]; /* of the segments of the rows at hand */
	float by[2];                           /* divisors of the values of these rows */
	uint64_t barriers[N_BARRIERS];
	float limb_scale[3 * ROWS]; /* of the halves of z, [ROWS][2], of q, [ROWS] */
	int segments[ROWS];         /* how many segments a row's positions have */
};

/* Where bulk copy j goes in shared memory */
static __device__ __forceinline__ int mla_buffer_at(int j)
{
	return AT_BUFFERS + j % 2 * BUFFER;
}

/* Phase 3 of a block, by all warps but the last */
template <int ROWS, bool PRODUCT>
static __device__ __forceinline__ void mla_expand(const struct mla_args &a, uint8_t *shared,
	struct mla_shared<ROWS> &m, int warp, const uint32_t *parity)
{
	uint2 *limbs = (uint2 *)(shared + AT_LIMBS);
	int tid = threadIdx.x, lane = tid % 32, r0 = lane / 4, c = lane % 4;
	int half = blockIdx.x % 2, head = blockIdx.x / PARTS * GROUP + blockIdx.x % PARTS / 2;
	struct mla_flags *flags = a.flags;
	auto barrier_of = [&](int i) { return shared_address(m.barriers + i); };
	struct q8_tile<VALUE / 2 / 64, false> v_rows; /* 16 rows, half of their width */
	mbarrier_wait(barrier_of(HAS_V), 0);
	q8_tile_load(
		shared + mla_buffer_at(ROWS) + warp % V_WARPS * V_TILE + warp / V_WARPS * (V_ROW / 2),
		V_ROW, v_rows);
	/* All threads have the one row, or each half of them a row at a time. They load the values of
	 * LOADED segments at a time to join [LOADED][HALF], and 256 of them add these up. */
	constexpr int SHARES = ROWS == 1 ? 1 : 2, OF_ROW = WARPS * 32 / SHARES, STEP = OF_ROW / 64,
				  LOADED = 4 * STEP;
	int share = SHARES == 1 ? 0 : warp / (WARPS / SHARES), t = tid - share * OF_ROW;
	bool weighs = t / 32 == OF_ROW / 32 - 1;
	uint32_t *meta = flags->meta[share][head][half][lane],
			 *from = flags->value[share][head][half][t / 64] + t % 64 * 4;
	int n_segments = m.segments[share];
	asm volatile("" : "+l"(meta), "+l"(from), "+r"(n_segments)); /* ready before the barrier */
	/* All values of this block are posted before any thread polls. From here on copies may
	 * overwrite v_b and the cache rows. */
	if (PRODUCT) {
		asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
		ring_sync();
	} else
		heads_sync();
	float *join = (float *)(shared + AT_JOIN) + share * (LOADED * HALF),
		  *z = (float *)(shared + AT_Z) + share * HALF;
	auto row_sync = [&]() {
		if (SHARES == 1)
			heads_sync();
		else
			named_barrier_sync(ROW_NAMES + share, OF_ROW);
	};
#pragma unroll 1
	for (int row = share; row < ROWS; row += SHARES) {
		uint2 most_sum = make_uint2(0, 0);
		if (weighs && lane < n_segments)
			most_sum = flag_load2(meta);
		float v = 0;
#pragma unroll 1
		for (int first = 0; first < PARTS; first += LOADED) {
			if (first && first >= n_segments)
				break;
			uint4 values[4];
			flag_wait<4>(a.report, from + first * HALF, STEP * HALF,
				(n_segments - first - t / 64 + STEP - 1) / STEP, values);
			if (first)
				row_sync(); /* those before have been added up */
#pragma unroll
			for (int i = 0; i < 4; i++) /* zeros past the last segment */
				*(uint4 *)(join + (t / 64 + STEP * i) * HALF + t % 64 * 4) = values[i];
			if (!first && weighs)
				mla_segment_weights(
					a.report, meta, most_sum, n_segments, lane, m.weight_of[share], &m.by[share]);
			row_sync();
			if (t < 256)
#pragma unroll 1
				for (int s = 0; s < LOADED && first + s < n_segments; s += 16)
#pragma unroll
					for (int i = 0; i < 16; i++) /* past the last segment both are zero */
						v = __fmaf_rn(
							join[(s + i) * HALF + t], m.weight_of[share][first + s + i], v);
		}
		if (t < 256) {
			z[column_of(t)] = __fdiv_rn(v, m.by[share]);
			named_barrier_sync(ROW_NAMES + share, 256);
			if (t < 32) {
				float d[8];
				uint2 *own = limbs + (row * 2 + half) * SUPER_BLOCK_LIMBS;
				float *own_scale = m.limb_scale + row * 2 + half;
				load_fragment_order<4>(z, d);
				write_limbs(d, own, own_scale);
				__syncwarp();
				if (!lane)
					mbarrier_arrive(barrier_of(HAS_OWN));
				uint32_t other = remote_address(shared_address(own), half),
						 remote_barrier = remote_address(barrier_of(HAS_OTHER), half);
#pragma unroll
				for (int i = 0; i < SUPER_BLOCK_LIMBS / 32; i++)
					store_remote(other + (lane + 32 * i) * sizeof(uint2), own[lane + 32 * i],
						remote_barrier);
				if (!lane)
					store_remote(remote_address(shared_address(own_scale), half), *own_scale,
						remote_barrier);
			}
		}
		if (SHARES > 1 || t >= 256) { /* 256 threads clear the flags: all is read, and the values
										 of all segments depend on the queries */
			const uint4 empty = make_uint4(FLAG_EMPTY, FLAG_EMPTY, FLAG_EMPTY, FLAG_EMPTY);
			int i = t % 256;
			if (i < HALF / 4)
				flag_store4(&flags->query[row][head][half * HALF + 4 * i], empty);
			if (i < n_segments)
				flag_store2(flags->meta[row][head][half][i], make_uint2(FLAG_EMPTY, FLAG_EMPTY));
#pragma unroll 1
			for (int s = i / 64; s < n_segments; s += 4)
				flag_store4(flags->value[row][head][half][s] + i % 64 * 4, empty);
			/* of all rows, because the launch before may have had more */
			if (PRODUCT && !row && i < OUT / 2)
#pragma unroll
				for (int r = 0; r < OUT_ROWS; r++)
					flag_store(
						&flags->out[*parity ^ 1][r][head * OUT + half * (OUT / 2) + i], FLAG_EMPTY);
		}
		if (row + SHARES < ROWS) {
			meta += SHARES * sizeof flags->meta[0] / sizeof *meta;
			from += SHARES * sizeof flags->value[0] / sizeof *from;
			n_segments = m.segments[row + SHARES];
		}
	}
	mbarrier_wait(barrier_of(warp / V_WARPS == half ? HAS_OWN : HAS_OTHER), 0);
	launch_dependents(); /* not before: its blocks would not fit beside these */
	float sum[ROWS][2];
#pragma unroll
	for (int r = 0; r < ROWS; r++)
		q8_tile_mma(v_rows, limbs + (r * 2 + warp / V_WARPS) * SUPER_BLOCK_LIMBS, sum[r]);
	/* [ROWS][V_WARPS][32]: sums of the second half of the width */
	float2 *halves = (float2 *)(shared + AT_HALVES);
	if (warp >= V_WARPS) {
#pragma unroll
		for (int r = 0; r < ROWS; r++)
			halves[(r * V_WARPS - V_WARPS) * 32 + tid] = make_float2(sum[r][0], sum[r][1]);
		named_barrier_sync(
			OUT_NAMES + warp - V_WARPS, 64); /* sync, not arrive: the projection reuses the name */
		if (PRODUCT) /* what the projection's limbs overwrite has been read */
			mbarrier_wait(barrier_of(HAS_OWN), 0);
		return;
	}
	named_barrier_sync(OUT_NAMES + warp, 64);
	mbarrier_wait(barrier_of(half ? HAS_OWN : HAS_OTHER), 0);
#pragma unroll
	for (int r = 0; r < ROWS; r++) {
		float2 rest = halves[r * V_WARPS * 32 + tid];
#pragma unroll
		for (int i = 0; i < 2; i++) {
			float both = combine(__fmaf_rn(m.limb_scale[2 * r + 1], i ? rest.y : rest.x,
				__fmaf_rn(m.limb_scale[2 * r], sum[r][i], 0.0f)));
			if (!c) {
				int at = half * (OUT / 2) + warp * 16 + r0 + 8 * i;
				if (PRODUCT)
					flag_store(&flags->out[*parity][r][head * OUT + at], flag_word(both));
				else
					a.y[(r * N_HEADS + head) * a.y_stride + at] = both;
			}
		}
	}
}

/* Phases 0 to 3 of a block. PRODUCT: with the output projection: the last warp is its producer, and
 * the values go to flag words in place of y. */
template <int ROWS, bool PRODUCT>
static __device__ __forceinline__ void mla_heads(
	const struct mla_args &a, uint8_t *shared, int warp, uint32_t *parity)
{
	__shared__ struct mla_shared<ROWS> m;
	__shared__ float unscale[GROUP], shrink[GROUP], tops[2][GROUP], sums[2][GROUP];
	float *quarter_scores = (float *)(shared + AT_SCORES); /* [tile][quarter][GROUP][TILE] */
	__half *weights = (__half *)(shared + AT_WEIGHTS);     /* [tile][hi, lo][GROUP][P_STRIDE] */
	uint2 *q_limbs = (uint2 *)(shared + AT_LIMBS) + 2 * ROWS * SUPER_BLOCK_LIMBS;
	int tid = threadIdx.x, lane = tid % 32, r0 = lane / 4, c = lane % 4;
	int group = blockIdx.x / PARTS, part = blockIdx.x % PARTS, half = part % 2,
		head = group * GROUP + part / 2;
	struct mla_flags *flags = a.flags;
	uint32_t base = shared_address(shared);
	auto barrier_of = [&](int i) { return shared_address(m.barriers + i); };

	auto fetch_v = [&]() { /* by one thread */
		mbarrier_expect(barrier_of(HAS_V), V_WARPS * V_TILE);
		bulk_copy(base + mla_buffer_at(ROWS), a.v + (int64_t)(head * 2 + half) * (V_WARPS * V_TILE),
			V_WARPS * V_TILE, barrier_of(HAS_V));
	};
	if (!tid) {
		for (int i = 0; i < N_BARRIERS; i++)
			mbarrier_init(barrier_of(i), i == HAS_OWN ? ROWS : 1);
		mbarrier_init_fence();
		mbarrier_expect(barrier_of(HAS_K), WARPS * K_TILE);
		bulk_copy(base + AT_K, a.k + (int64_t)(head * 2 + half) * (WARPS * K_TILE), WARPS * K_TILE,
			barrier_of(HAS_K));
		mbarrier_expect(
			barrier_of(HAS_OTHER), ROWS * (SUPER_BLOCK_LIMBS * sizeof(uint2) + sizeof(float)));
	}
	__syncthreads(); /* mbarriers are initialised */
	cluster_arrive();
	struct q8_tile<NOPE / 64, false> k_rows;
	if (warp < WARPS) {
		mbarrier_wait(barrier_of(HAS_K), 0);
		q8_tile_load(shared + AT_K + warp * K_TILE, K_ROW, k_rows);
	}
	grid_dependency_wait();
	uint32_t begun = 0;
	if (PRODUCT && tid == 32 * WARPS - 1)
		begun = atomicInc(&flags->blocks, 2 * gridDim.x - 1);

	/* ---- 1 ---- */
	if (warp == WARPS) {
		float x[ROWS][8];
#pragma unroll
		for (int row = 0; row < ROWS; row++)
			load_fragment_order<NOPE / 64>(a.q + (row * N_HEADS + head) * a.q_stride, x[row]);
#pragma unroll
		for (int row = 0; row < ROWS; row++)
			write_limbs(x[row], q_limbs + row * SUPER_BLOCK_LIMBS, m.limb_scale + 2 * ROWS + row);
		cluster_wait();
		__syncthreads();
		return;
	}
	int mine = warp * 4 + lane % 4;
	if (tid < ROWS)
		m.segments[tid] = (a.n_sel[tid] + SEGMENT - 1) / SEGMENT;
	struct mla_segment now = mla_segment_load(a, 0, mla_segment_of<ROWS>(part, 0), mine);
	/* of head `warp` of the group: the pair of values that is rotated */
	auto load_rope_pair = [&](int row) {
		return *(const float2 *)(a.rotate +
								 (row * N_HEADS + group * GROUP + warp) * a.rotate_stride +
								 2 * lane);
	};
	auto load_angle = [&](int row) {
		return *(const float2 *)(a.cos_sin + row * (WIDTH - VALUE) + 2 * lane);
	};
	float2 rope_pair = load_rope_pair(0), angle = load_angle(0);
	__syncthreads(); /* the limbs of the query have been written */
#pragma unroll
	for (int row = 0; row < ROWS; row++) {
		float sum[2], scale = m.limb_scale[2 * ROWS + row];
		q8_tile_mma(k_rows, q_limbs + row * SUPER_BLOCK_LIMBS, sum);
#pragma unroll
		for (int i = 0; i < 2; i++) {
			float v = combine(__fmaf_rn(scale, sum[i], 0.0f));
			if (!c)
				flag_store(
					&flags->query[row][head][half * HALF + warp * 16 + r0 + 8 * i], flag_word(v));
		}
	}
	auto fetch_cache = [&](int row, const struct mla_segment &s) { /* by all warps */
		if (warp * 4 < (s.here > TILE ? 2 * TILE : s.here > 0 ? TILE : 0)) {
			/* rows past the end have weight 0 but must be finite: repeat the last */
			int64_t cache_row = s.cache_row;
			if (mine >= s.here)
				cache_row = a.base[row] + a.sel[row * a.sel_stride + s.all - 1];
			if (lane < 4)
				bulk_copy(base + mla_buffer_at(row) + row_at(mine, 0), a.cache + cache_row * WIDTH,
					WIDTH * 2, barrier_of(HAS_CACHE + row));
		}
		if (!tid)
			mbarrier_expect(
				barrier_of(HAS_CACHE + row), (s.here > TILE ? 2 : s.here > 0) * TILE * WIDTH * 2);
	};
	fetch_cache(0, now); /* after the queries, which waiting for the row numbers would delay */
	cluster_wait();      /* the other block's mbarriers are initialised */
	heads_sync();        /* k_b has been used */

	/* ---- 2 ---- */
#pragma unroll 1
	for (int row = 0; row < ROWS; row++) {
		int segment = mla_segment_of<ROWS>(part, row), here = now.here;
		bool two = here > TILE;
		uint32_t cache = base + mla_buffer_at(row);
		auto fetch_next = [&]() {
			if (row + 1 < ROWS)
				fetch_cache(row + 1, now);
			else if (tid == 32 * WARPS - 1)
				fetch_v();
		};
		if (row + 1 < ROWS)
			now = mla_segment_load(a, row + 1, mla_segment_of<ROWS>(part, row + 1), mine);
		if (row) /* what the next copy overwrites has been read by this thread */
			asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
		if (here <= 0) {
			if (row)
				heads_sync();
			fetch_next();
			if (row + 1 < ROWS)
				rope_pair = load_rope_pair(row + 1), angle = load_angle(row + 1);
			continue;
		}
		mla_split_query(a.report, shared, flags->query[row][group * GROUP + warp], angle, rope_pair,
			a.scale, warp, lane, unscale);
		mbarrier_wait(barrier_of(HAS_CACHE + row), 0);
		heads_sync();
		fetch_next(); /* not before: its bytes would have delayed the queries */
		if (row + 1 < ROWS)
			rope_pair = load_rope_pair(row + 1), angle = load_angle(row + 1);
		if (warp < (two ? 8 : 4))
			mla_scores(base, cache, quarter_scores, warp, lane);
		heads_sync();
		if (tid < (two ? 256 : 128))
			mla_softmax(quarter_scores, here, tid, weights, unscale, tops, sums, shrink);
		heads_sync();
		mla_values(
			flags->value[row] + group * GROUP, segment, two, cache, weights, shrink, warp, lane);
		if (tid < 2 * GROUP) { /* for both halves */
			int h = tid / 2;
			float sum = two ? __fmaf_rn(sums[0][h], shrink[h], sums[1][h]) : sums[0][h];
			flag_store2(flags->meta[row][group * GROUP + h][tid % 2][segment],
				make_uint2(flag_word(tops[two][h]), flag_word(sum)));
		}
	}
	if (PRODUCT && tid == 32 * WARPS - 1)
		*parity = begun >= gridDim.x;
	mla_expand<ROWS, PRODUCT>(a, shared, m, warp, parity);
}

/* Super-blocks `first` and first + 2 * OUT_SPLIT of the values of all rows: polls their flag words,
 * splits them into limbs and stores limbs and scales in both blocks of the pair. flags: of all
 * values; barrier: counts the bytes in both blocks. */
template <int ROWS>
static __device__ __forceinline__ void receive_values(const struct poll_report &report,
	const uint32_t (*flags)[N_HEADS * OUT], int first, int half, uint2 *limbs, float *scales,
	uint32_t barrier)
{
	constexpr int SUPER_BLOCKS = 2 * ROWS, LANES = 32 / SUPER_BLOCKS, STEP = 2 * OUT_SPLIT;
	int lane = threadIdx.x % 32, pending = (1 << SUPER_BLOCKS) - 1;
	auto of = [&](int i) { return flags[i / 2] + (first + i % 2 * STEP) * OUT; };
	const uint32_t *look = of(lane / LANES) + lane % LANES * (OUT / LANES);
	uint32_t remote_barrier = remote_address(barrier, half);
	/* LANES words of each super-block are polled; when they are there all are loaded. Polling all
	 * of them would delay the stores that are missing. */
	for (unsigned polls = 0; pending; polls++) {
		uint32_t full = __ballot_sync(0xffffffffu, flag_load(look) != FLAG_EMPTY);
		uint4 v[SUPER_BLOCKS][2];
		int fresh = 0;
		auto load = [&](int i) {
			const uint32_t *from = of(i) + lane / 4 * 32 + lane % 4 * 4;
			v[i][0] = flag_load4(from);
			v[i][1] = flag_load4(from + 16);
		};
		poll_again(report, polls);
#pragma unroll
		for (int i = 0; i < SUPER_BLOCKS; i++)
			fresh |= ((full >> LANES * i & ((1u << LANES) - 1)) == (1u << LANES) - 1) << i;
		fresh &= pending;
		pending &= ~fresh;
#pragma unroll
		for (int i = 0; i < SUPER_BLOCKS; i++)
			if (fresh >> i & 1)
				load(i);
#pragma unroll
		for (int i = 0; i < SUPER_BLOCKS; i++)
			if (fresh >> i & 1) {
				for (unsigned again = 0;
					 !__all_sync(0xffffffffu, flag_ready(v[i][0]) && flag_ready(v[i][1]));
					 again++) {
					poll_again(report, again);
					load(i);
				}
				float f[8];
#pragma unroll
				for (int k = 0; k < 2; k++) {
					f[4 * k] = __uint_as_float(v[i][k].x),
						  f[4 * k + 1] = __uint_as_float(v[i][k].y);
					f[4 * k + 2] = __uint_as_float(v[i][k].z),
							  f[4 * k + 3] = __uint_as_float(v[i][k].w);
				}
				int sb = i / 2 * OUT_SUPER_BLOCKS + first + i % 2 * STEP;
				uint2 *own = limbs + sb * SUPER_BLOCK_LIMBS;
				write_limbs(f, own, scales + sb);
				__syncwarp();
				uint32_t other = remote_address(shared_address(own), half);
#pragma unroll
				for (int k = 0; k < SUPER_BLOCK_LIMBS / 32; k++)
					store_remote(other + (lane + 32 * k) * sizeof(uint2), own[lane + 32 * k],
						remote_barrier);
				if (!lane)
					store_remote(remote_address(shared_address(scales + sb), half), scales[sb],
						remote_barrier);
			}
	}
	if (!lane)
		mbarrier_arrive(barrier);
}
#endif

template <int ROWS>
static __global__ void __launch_bounds__(THREADS, 1)
	mla_kernel(const __grid_constant__ struct mla_args a)
{
#if __CUDA_ARCH__ >= 900
	extern __shared__ __align__(128) uint8_t shared[];
	/* shuffled, so that the compiler knows it to be uniform */
	mla_heads<ROWS, false>(a, shared, __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), NULL);
#endif
}

template <int ROWS>
static __global__ void __launch_bounds__(THREADS, 1)
	mla_product_kernel(const __grid_constant__ struct mla_args a)
{
#if __CUDA_ARCH__ >= 900
	typedef struct mla_product_form<ROWS> form;
	extern __shared__ __align__(128) uint8_t shared[];
	__shared__ uint32_t parity; /* which set of flags.out this launch uses */
	int tid = threadIdx.x, lane = tid % 32,
		warp =
			__shfl_sync(0xffffffffu, tid / 32, 0); /* so that the compiler knows it to be uniform */
	__shared__ __align__(8) struct out_barriers<ROWS> ring_barriers;
	uint8_t *ring = shared + form::AT_RING;
	__shared__ __align__(8)
		uint64_t has_values[OUT_SPLIT]; /* limbs of the warps `part` have arrived */
	if (!tid) {
		for (int i = 0; i < OUT_SPLIT;
			 i++) { /* two warps of this block, and the bytes of the other block's half */
			mbarrier_init(shared_address(has_values + i), 3);
			mbarrier_expect(shared_address(has_values + i),
				ROWS * (OUT_STEPS / 2) * (SUPER_BLOCK_LIMBS * sizeof(uint2) + sizeof(float)));
		}
		out_init(&ring_barriers);
	}
	if (blockIdx.x < BLOCKS) {
		mla_heads<ROWS, true>(a, shared, warp, &parity);
		if (warp == WARPS)
			ring_sync();
	} else { /* a block without a head */
		mbarrier_init_fence();
		__syncthreads();
		if (warp < WARPS) {
			grid_dependency_wait();
			if (!tid)
				parity = atomicInc(&a.flags->blocks, 2 * gridDim.x - 1) >= gridDim.x;
			launch_dependents();
			heads_sync();
		}
	}
	if (warp == WARPS) {
		cluster_arrive();
		out_produce(a.out, ring, &ring_barriers, lane, blockIdx.x < BLOCKS);
		__syncwarp();
		cluster_wait();
		return;
	}

	uint2 *limbs = (uint2 *)(shared + AT_VALUES);
	float *scales = (float *)(shared + form::AT_SCALES);
	int side = warp / OUT_SPLIT, part = warp % OUT_SPLIT;
	int half = blockIdx.x % 2;
	uint32_t values = shared_address(has_values + part);
	heads_sync(); /* all values of this block are posted */
	cluster_arrive();
	cluster_wait(); /* and those of the other block */
	receive_values<ROWS>(a.report, a.flags->out[parity],
		(side * (OUT_STEPS / 2) + half) * OUT_SPLIT + part, half, limbs, scales, values);
	mbarrier_wait(values, 0);
	out_products(a.out, side, part, lane, ring, &ring_barriers, limbs, scales,
		(float *)(shared + form::AT_PARTIALS), (float4 *)(shared + form::AT_HANDED));
#endif
}

static_assert(sizeof(((struct cuda_backend *)0)->mla_supported[0]) == MLA_ROWS * sizeof(int),
	"mla_supported has an entry for each number of rows");

/* A form of the kernel */
struct mla_kernel_form {
	void (*kernel)(struct mla_args);
	int bytes; /* of shared memory */
};

/* [with the output projection][rows - 1] */
static const struct mla_kernel_form mla_kernels[2][MLA_ROWS] = {
	{{mla_kernel<1>, mla_form<1>::END}, {mla_kernel<2>, mla_form<2>::END},
		{mla_kernel<3>, mla_form<3>::END}, {mla_kernel<4>, mla_form<4>::END},
		{mla_kernel<5>, mla_form<5>::END}},
	{{mla_product_kernel<1>, mla_product_form<1>::END},
		{mla_product_kernel<2>, mla_product_form<2>::END}}};

static cudaLaunchConfig_t mla_launch_config(
	struct cuda_backend *b, int bytes, int blocks, cudaLaunchAttribute attrs[2])
{
	cudaLaunchConfig_t c = cuda_launch_config(b, blocks, THREADS, (size_t)bytes, attrs);
	attrs[c.numAttrs].id = cudaLaunchAttributeClusterDimension;
	attrs[c.numAttrs].val.clusterDim.x = 2;
	attrs[c.numAttrs].val.clusterDim.y = attrs[c.numAttrs].val.clusterDim.z = 1;
	c.numAttrs++;
	return c;
}

/* Whether the device gives the kernel its shared memory and all blocks, an even number, can be
 * resident at a time. */
static bool mla_fused_supported(struct cuda_backend *b, int rows, bool product, int blocks)
{
	const struct mla_kernel_form *form = &mla_kernels[product][rows - 1];
	int *known = &b->mla_supported[product][rows - 1];
	if (*known)
		return *known == 1;
	bool next_serialized = b->next_serialized;
	int pairs = 0;
	*known = 2;
	if (!b->has_pdl || blocks < BLOCKS || (size_t)form->bytes > b->max_shared ||
		!cuda_allow_shared(b, (const void *)form->kernel, (size_t)form->bytes))
		return false;
	cudaLaunchAttribute attrs[2] = {};
	cudaLaunchConfig_t c = mla_launch_config(b, form->bytes, blocks, attrs);
	b->next_serialized = next_serialized;
	if (cudaOccupancyMaxActiveClusters(&pairs, form->kernel, &c) != cudaSuccess)
		cudaGetLastError();
	*known = pairs >= blocks / 2 ? 1 : 2;
	return *known == 1;
}

static bool mla_fused_applies(const struct batch *rows, const struct mla *m)
{
	const struct weight *k = &m->absorb.w, *v = &m->expand.w;
	const struct attend *t = &m->attend;
	uintptr_t lines = (uintptr_t)k->data | (uintptr_t)v->data | (uintptr_t)t->cache.data |
					  (uintptr_t)m->absorb.x | (uintptr_t)(4 * m->absorb.x_stride);
	uintptr_t pairs =
		(uintptr_t)t->rotate | (uintptr_t)(4 * t->rotate_stride) | (uintptr_t)t->rope.cos_sin;
	return rows->n <= MLA_ROWS && k->type == DTYPE_Q8_0 && k->n_in == NOPE && k->n_out == VALUE &&
		   k->n_stack == N_HEADS && k->row_bytes == K_ROW && k->stack_bytes == VALUE * K_ROW &&
		   v->type == DTYPE_Q8_0 && v->n_in == VALUE && v->n_out == OUT && v->n_stack == N_HEADS &&
		   v->row_bytes == V_ROW && v->stack_bytes == OUT * V_ROW && t->n_heads == N_HEADS &&
		   t->n_value == VALUE && t->cache.type == DTYPE_F16 && t->cache.width == WIDTH &&
		   t->rotate && t->rope.dim == WIDTH - VALUE && t->sel_stride <= PARTS * SEGMENT &&
		   lines % 16 == 0 && pairs % 8 == 0;
}

/* Whether a launch of so many blocks can include this output projection. */
static bool mla_output_applies(
	const struct stacked_matmul *expand, const struct matmul *m, int blocks)
{
	const struct weight *w = &m->w;
	return w->type == DTYPE_Q8_0 && w->n_in == N_HEADS * OUT && w->row_bytes == OUT_ROW &&
		   w->n_out % MMA_ROWS == 0 && w->n_out <= 1 << 20 && w->n_out / MMA_ROWS >= 2 * blocks &&
		   (uintptr_t)w->data % 16 == 0 && !m->x && expand->y_stride == OUT &&
		   gemv_k_split(w->type, w->n_in, w->n_out) == OUT_SPLIT;
}

void cuda_mla(struct backend *base, const struct batch *rows, const struct mla *m)
{
	struct cuda_backend *b = cuda_of(base);
	if (!cuda_begin(base, "mla") || !rows->n)
		return;
	int all = b->n_sm & ~1;
	bool here = mla_fused_applies(rows, m) && mla_fused_supported(b, rows->n, false, BLOCKS) &&
				!base->observer,
		 with = here && m->out && rows->n <= OUT_ROWS &&
				mla_output_applies(&m->expand, m->out, all) &&
				mla_fused_supported(b, rows->n, true, all);
	if (!here) {
		cuda_stacked_matmul(base, &m->absorb, rows->n);
		cuda_attend(base, rows, &m->attend);
		cuda_stacked_matmul(base, &m->expand, rows->n);
	} else {
		if (!b->mla_flags.data) {
			if (!cuda_scratch_reserve(b, &b->mla_flags, sizeof(struct mla_flags)))
				return;
			struct mla_flags *flags = (struct mla_flags *)b->mla_flags.data;
			if (!cuda_check(b, cudaMemsetAsync(flags, 0xff, sizeof *flags, b->stream)) ||
				!cuda_check(
					b, cudaMemsetAsync(&flags->blocks, 0, sizeof flags->blocks, b->stream))) {
				cuda_scratch_free(&b->mla_flags);
				return;
			}
			b->next_serialized = true;
		}
		const struct attend *t = &m->attend;
		struct mla_args a = {(const uint8_t *)m->absorb.w.data, (const uint8_t *)m->expand.w.data,
			m->absorb.x, t->rotate, t->rope.cos_sin, m->absorb.x_stride, t->rotate_stride,
			(const __half *)t->cache.data, rows->base, t->sel, t->n_sel, t->sel_stride, t->scale,
			m->expand.y, m->expand.y_stride, (struct mla_flags *)b->mla_flags.data,
			cuda_poll_report(b, POLL_MLA), {}};
		if (with)
			a.out = {(const uint8_t *)m->out->w.data, m->out->y, (int)(m->out->w.n_out / MMA_ROWS),
				m->out->add};
		const struct mla_kernel_form *form = &mla_kernels[with][rows->n - 1];
		cudaLaunchAttribute attrs[2] = {};
		cudaLaunchConfig_t c = mla_launch_config(b, form->bytes, with ? all : BLOCKS, attrs);
		cuda_check(b, cudaLaunchKernelEx(&c, form->kernel, a));
		b->used.launches += !b->capturing;
	}
	if (m->out && !with)
		cuda_matmul(base, m->out, 1, m->expand.y, rows->n);
}
