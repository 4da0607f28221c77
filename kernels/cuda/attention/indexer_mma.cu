/* SPDX-License-Identifier: MIT */
/*
 * The DSA lightning indexer on the tensor cores, for half keys of 64 or 128 values and up to 32
 * heads; and, for decode, the selection of the top_k by many blocks.
 *
 * score_mma_kernel: grid (tiles of positions, rows), block 256. Queries are split into two halves
 * each (mma.cuh) and stay in registers; a warp loads 8 keys at a time straight from memory, 16
 * bytes a lane. Which values share a k slot of a product does not matter as long as queries and
 * keys agree:
 *
 *      k slots of products 2 j and 2 j + 1: lane c holds values 32 j + 8 c .. 32 j + 8 c + 7
 *      of the key, the first four for product 2 j (slots 2 c, 2 c + 1, 2 c + 8, 2 c + 9), the
 *      others for 2 j + 1
 *
 * A head's part is computed on its own and the heads are added in a fixed order, so a score is the
 * same in every batch. In decode the blocks also build a histogram of the scores' first BIN_BITS
 * bits.
 *
 * select_mma_kernel: grid (slices of SLICE positions, rows), block 1024. Every block finds in the
 * histogram the bin of the top_k-th score. Positions in higher bins become bits of a map, positions
 * in the same bin become candidates. The block of a row that ends last finds the exact threshold
 * among the candidates by a radix select. If not all positions with a score equal to it are
 * selected, a second radix select finds the last position that is. The block completes the map in
 * shared memory (128 KiB for MAP_MAX positions) and writes the selected positions.
 *
 * Bytes moved: keys once per row; scores once out and once in; the map once out and in, the
 * candidates once out and up to five times in.
 */
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/common/mma.cuh"

#define THREADS           256
#define BIN_BITS          12
#define BINS              (1 << BIN_BITS)
#define REST_BITS         10 /* twice: the bits behind the bin */
#define SELECT_THREADS    1024
#define SLICE             (4 * SELECT_THREADS)
#define ROWS_AT_ONCE      16 /* most rows of decode whose scores are in scratch memory */
#define MAP_MAX           (1 << 2 * REST_BITS) /* positions of a row at most: two digits each */
#define SCRATCH_MAX_BYTES ((size_t)128 << 20)

/* Zero between calls: the last block of a row clears it. */
struct select_state {
	uint32_t count[ROWS_AT_ONCE][BINS];
	uint32_t candidates[ROWS_AT_ONCE], done[ROWS_AT_ONCE];
};

struct mma_select_args {
	struct index_select a;
	const int32_t *pos, *base;
	int first_row, per_warp; /* keys of a warp, a multiple of 8 */
	int64_t stride;          /* floats between the scores of two rows, a multiple of 4 */
	float *score;
	float head_scale, dim_scale;
	struct select_state *state; /* decode */
	uint32_t *map;              /* [rows][stride / 32 + 1] */
	uint2 *candidate;           /* [rows][stride]: rest of the key, position */
	int64_t map_stride;
};

template <int MT, int KS, bool COUNT>
static __global__ void __launch_bounds__(THREADS, 1)
	score_mma_kernel(const __grid_constant__ struct mma_select_args g)
{
	constexpr int DIM = KS * 16, HEADS = MT * 16;
	const struct index_select &a = g.a;
	__shared__ uint4 frag[MT * KS * 2][32];
	__shared__ float factor[HEADS], unscale[HEADS], weight[HEADS];
	__shared__ uint32_t count[COUNT ? BINS : 1];
	int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, row8 = lane / 4, c = lane % 4;
	launch_dependents();
	grid_dependency_wait();
	int r = g.first_row + (int)blockIdx.y, n = g.pos[r] + 1, block = g.per_warp * (THREADS / 32);
	int block_first = (int)blockIdx.x * block;
	if (n <= a.top_k || block_first >= n)
		return;
	const float *q = a.q + (int64_t)r * a.n_heads * DIM;
	for (int h = warp; h < HEADS; h += THREADS / 32) {
		float most = 0;
		if (h < a.n_heads)
			for (int k = lane; k < DIM; k += 32)
				most = fmaxf(most, fabsf(q[h * DIM + k]));
#pragma unroll
		for (int step = 16; step; step /= 2)
			most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
		if (!lane) {
			int e = half_exponent(most);
			factor[h] = power_of_two(e);
			unscale[h] = __fmul_rn(power_of_two(-e), g.dim_scale);
			weight[h] =
				h < a.n_heads ? __fmul_rn(a.weight[(int64_t)r * a.n_heads + h], g.head_scale) : 0;
		}
	}
	if (COUNT)
		for (int i = tid; i < BINS; i += THREADS)
			count[i] = 0;
	__syncthreads();
	for (int i = tid; i < MT * KS * 32; i += THREADS) {
		int l = i % 32, s = i / 32 % KS, m = i / 32 / KS, k = s / 2 * 32 + l % 4 * 8 + s % 2 * 4;
		uint4 hi, lo;
		uint32_t *to_hi = (uint32_t *)&hi, *to_lo = (uint32_t *)&lo;
#pragma unroll
		for (int j = 0; j < 2; j++) {
			int h = m * 16 + l / 4 + 8 * j;
			float4 v = h < a.n_heads ? *(const float4 *)(q + h * DIM + k) : make_float4(0, 0, 0, 0);
			float f = factor[h];
			split_pair(__fmul_rn(v.x, f), __fmul_rn(v.y, f), to_hi[j], to_lo[j]);
			split_pair(__fmul_rn(v.z, f), __fmul_rn(v.w, f), to_hi[2 + j], to_lo[2 + j]);
		}
		frag[(m * KS + s) * 2][l] = hi;
		frag[(m * KS + s) * 2 + 1][l] = lo;
	}
	__syncthreads();
	int first = block_first + warp * g.per_warp, last = min(n, first + g.per_warp);
	if (first < last) {
		uint4 query[MT][KS][2];
		float u[MT][2], w[MT][2];
#pragma unroll
		for (int m = 0; m < MT; m++) {
#pragma unroll
			for (int s = 0; s < KS; s++)
#pragma unroll
				for (int i = 0; i < 2; i++)
					query[m][s][i] = frag[(m * KS + s) * 2 + i][lane];
#pragma unroll
			for (int j = 0; j < 2; j++) {
				u[m][j] = unscale[m * 16 + row8 + 8 * j];
				w[m][j] = weight[m * 16 + row8 + 8 * j];
			}
		}
		const __half *keys = (const __half *)a.keys.data + (int64_t)g.base[r] * DIM;
		float *score = g.score + blockIdx.y * g.stride;
		uint4 next[KS / 2];
		auto load = [&](int t) {
			const uint4 *from = (const uint4 *)(keys + (int64_t)min(t + row8, n - 1) * DIM);
#pragma unroll
			for (int j = 0; j < KS / 2; j++)
				next[j] = __ldg(from + j * 4 + c);
		};
		load(first);
		for (int t = first; t < last; t += 8) {
			uint4 key[KS / 2];
#pragma unroll
			for (int j = 0; j < KS / 2; j++)
				key[j] = next[j];
			load(min(t + 8, n - 1));
			float d[MT][2][4];
#pragma unroll
			for (int m = 0; m < MT; m++)
#pragma unroll
				for (int i = 0; i < 4; i++)
					d[m][0][i] = d[m][1][i] = 0;
#pragma unroll
			for (int s = 0; s < KS; s++)
#pragma unroll
				for (int m = 0; m < MT; m++)
#pragma unroll
					for (int i = 0; i < 2; i++)
						mma_half(d[m][i], (const uint32_t *)&query[m][s][i],
							s % 2 ? key[s / 2].z : key[s / 2].x,
							s % 2 ? key[s / 2].w : key[s / 2].y);
			float v[2] = {0, 0};
#pragma unroll
			for (int m = 0; m < MT; m++)
#pragma unroll
				for (int j = 0; j < 2; j++)
#pragma unroll
					for (int i = 0; i < 2; i++) {
						float dot =
							__fmul_rn(__fadd_rn(d[m][0][2 * j + i], d[m][1][2 * j + i]), u[m][j]);
						v[i] = __fmaf_rn(w[m][j], dot < 0 ? 0 : dot, v[i]);
					}
#pragma unroll
			for (int step = 4; step < 32; step *= 2) {
				v[0] += __shfl_xor_sync(0xffffffffu, v[0], step);
				v[1] += __shfl_xor_sync(0xffffffffu, v[1], step);
			}
			if (row8 < 2 && t + 2 * c + row8 < last) {
				float mine = row8 ? v[1] : v[0];
				score[t + 2 * c + row8] = mine;
				if (COUNT)
					atomicAdd(&count[order_key(mine) >> (32 - BIN_BITS)], 1);
			}
		}
	}
	if (!COUNT)
		return;
	__syncthreads();
	for (int i = tid; i < BINS; i += THREADS)
		if (count[i])
			atomicAdd(&g.state->count[blockIdx.y][i], count[i]);
}

/* Sum of v over the threads before this one; *total: over all. scratch: shared, 33 values. */
static __device__ __forceinline__ uint32_t block_exclusive_scan(
	uint32_t v, uint32_t *scratch, uint32_t *total)
{
	uint32_t upto = v;
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
	for (int step = 1; step < 32; step *= 2) {
		uint32_t w = __shfl_up_sync(0xffffffffu, upto, step);
		upto += lane >= step ? w : 0;
	}
	__syncthreads();
	if (lane == 31)
		scratch[warp] = upto;
	__syncthreads();
	if (!warp) {
		uint32_t w = scratch[lane], sum = w;
#pragma unroll
		for (int step = 1; step < 32; step *= 2) {
			uint32_t x = __shfl_up_sync(0xffffffffu, sum, step);
			sum += lane >= step ? x : 0;
		}
		scratch[lane] = sum - w;
		if (lane == 31)
			scratch[32] = sum;
	}
	__syncthreads();
	*total = scratch[32];
	return upto - v + scratch[warp];
}

/* The bin of the key of rank `rank` (from the largest, counted from 1) and its rank among the
 * keys of that bin, for counts of PER bins a thread: found[0], found[1] (shared). Thread i
 * looks at the bins that lie i * PER from the top. */
template <int PER>
static __device__ __forceinline__ void find_bin(
	const uint32_t *count, uint32_t rank, uint32_t *scratch, uint32_t *found)
{
	int high = SELECT_THREADS * PER - 1 - (int)threadIdx.x * PER;
	uint32_t mine[PER], sum = 0, total;
#pragma unroll
	for (int i = 0; i < PER; i++)
		sum += mine[i] = count[high - i];
	uint32_t before = block_exclusive_scan(sum, scratch, &total);
	if (rank > before && rank <= before + sum) {
		uint32_t left = rank - before;
		int i = 0;
#pragma unroll
		for (int j = 0; j < PER - 1; j++)
			if (i == j && left > mine[j]) {
				left -= mine[j];
				i = j + 1;
			}
		found[0] = (uint32_t)(high - i);
		found[1] = left;
	}
	__syncthreads();
}

/* Among those of the n candidates for which digit_of is not negative: the digit (of REST_BITS) of
 * the one of rank *rank, counted from the largest. *rank becomes its rank among those that share
 * the digit, *same how many these are. bins, scratch, found: shared, as for find_bin. */
template <typename F>
static __device__ __forceinline__ uint32_t find_digit(const uint2 *candidate, uint32_t n,
	uint32_t *bins, uint32_t *scratch, uint32_t *found, uint32_t *rank, uint32_t *same, F digit_of)
{
	__syncthreads(); /* the bins and `found` of the digit before have been read */
	bins[threadIdx.x] = 0;
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < n; i += SELECT_THREADS) {
		int digit = digit_of(__ldcg(candidate + i));
		if (digit >= 0)
			atomicAdd(&bins[digit], 1);
	}
	__syncthreads();
	find_bin<1>(bins, *rank, scratch, found);
	*rank = found[1];
	*same = bins[found[0]];
	return found[0];
}

static __global__ void __launch_bounds__(SELECT_THREADS)
	select_mma_kernel(const __grid_constant__ struct mma_select_args g)
{
	extern __shared__ uint32_t words[]; /* the map */
	__shared__ uint32_t scratch[33], found[2], bins[1 << REST_BITS], arrival;
	const struct index_select &a = g.a;
	launch_dependents();
	grid_dependency_wait();
	int row = blockIdx.y, r = g.first_row + row, n = g.pos[r] + 1, tid = threadIdx.x,
		lane = tid % 32;
	int slices = (n + SLICE - 1) / SLICE;
	if ((int)blockIdx.x >= slices)
		return;
	int32_t *sel = a.sel + (int64_t)r * a.top_k;
	if (n <= a.top_k) {
		if (!blockIdx.x && !tid)
			a.n_sel[r] = n;
		for (int t = blockIdx.x * SLICE + tid; t < min(n, (int)(blockIdx.x + 1) * SLICE);
			 t += SELECT_THREADS)
			sel[t] = t;
		return;
	}
	struct select_state *state = g.state;
	uint32_t *map = g.map + row * g.map_stride;
	uint2 *candidate = g.candidate + row * g.stride;
	find_bin<BINS / SELECT_THREADS>(state->count[row], (uint32_t)a.top_k, scratch, found);
	uint32_t bin = found[0], rank = found[1];
	{
		int t = (int)blockIdx.x * SLICE + 4 * tid;
		uint32_t key[4], bits = 0, same = 0;
		float4 v =
			t < n ? *(const float4 *)(g.score + row * g.stride + t) : make_float4(0, 0, 0, 0);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			key[i] = order_key(i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w);
			uint32_t d = key[i] >> (32 - BIN_BITS);
			if (t + i < n) {
				bits |= d > bin ? 1u << i : 0;
				same |= d == bin ? 1u << i : 0;
			}
		}
		uint32_t word = bits << lane % 8 * 4;
#pragma unroll
		for (int step = 1; step < 8; step *= 2)
			word |= __shfl_xor_sync(0xffffffffu, word, step);
		if (lane % 8 == 0 && t < n)
			map[t / 32] = word;
		uint32_t total, mine = (uint32_t)__popc(same),
						at = block_exclusive_scan(mine, scratch, &total);
		if (!tid)
			arrival = atomicAdd(&state->candidates[row], total);
		__syncthreads();
		at += arrival;
#pragma unroll
		for (int i = 0; i < 4; i++)
			if (same >> i & 1)
				candidate[at++] =
					make_uint2(key[i] & ((1u << (32 - BIN_BITS)) - 1), (uint32_t)(t + i));
	}
	__threadfence();
	__syncthreads();
	if (!tid)
		arrival = atomicAdd(&state->done[row], 1);
	__syncthreads();
	if (arrival != (uint32_t)slices - 1)
		return;
	__threadfence();

	/* the last block of the row */
	const uint32_t digit_mask = (1u << REST_BITS) - 1;
	int n_words = (n + 31) / 32;
	uint32_t n_candidates = __ldcg(&state->candidates[row]), same;
	for (int i = tid; i < n_words; i += SELECT_THREADS)
		words[i] = __ldcg(map + i);
	uint32_t bound = find_digit(candidate, n_candidates, bins, scratch, found, &rank, &same,
						 [](uint2 v) { return (int)(v.x >> REST_BITS); })
					 << REST_BITS;
	bound |= find_digit(candidate, n_candidates, bins, scratch, found, &rank, &same, [=](uint2 v) {
		return v.x >> REST_BITS == bound >> REST_BITS ? (int)(v.x & digit_mask) : -1;
	});
	uint32_t until = MAP_MAX - 1; /* last position selected of the candidates equal to the bound */
	if (same > rank) {            /* not all of them: the first `rank`; the digits are inverted */
		uint32_t high = find_digit(candidate, n_candidates, bins, scratch, found, &rank, &same,
			[=](uint2 v) { return v.x == bound ? (int)(digit_mask - (v.y >> REST_BITS)) : -1; });
		uint32_t low =
			find_digit(candidate, n_candidates, bins, scratch, found, &rank, &same, [=](uint2 v) {
				bool here = v.x == bound && v.y >> REST_BITS == digit_mask - high;
				return here ? (int)(digit_mask - (v.y & digit_mask)) : -1;
			});
		until = (digit_mask - high) << REST_BITS | (digit_mask - low);
	}
	for (uint32_t i = tid; i < n_candidates; i += SELECT_THREADS) {
		uint2 v = __ldcg(candidate + i);
		if (v.x > bound || (v.x == bound && v.y <= until))
			atomicOr(&words[v.y / 32], 1u << v.y % 32);
	}
	__syncthreads();
	int per = (n_words + SELECT_THREADS - 1) / SELECT_THREADS, begin = min(tid * per, n_words),
		end = min(begin + per, n_words);
	uint32_t total, mine = 0;
	for (int i = begin; i < end; i++)
		mine += (uint32_t)__popc(words[i]);
	uint32_t at = block_exclusive_scan(mine, scratch, &total);
	for (int i = begin; i < end; i++)
		for (uint32_t w = words[i]; w; w &= w - 1)
			sel[at++] = i * 32 + __ffs((int)w) - 1;
	for (int i = tid; i < BINS; i += SELECT_THREADS)
		state->count[row][i] = 0;
	if (!tid) {
		a.n_sel[r] = a.top_k;
		state->candidates[row] = 0;
		state->done[row] = 0;
	}
}

template <bool COUNT>
static void launch_scores(
	struct cuda_backend *b, const struct mma_select_args *g, int longest, int rows)
{
	int block = g->per_warp * (THREADS / 32);
	dim3 grid((unsigned)((longest + block - 1) / block), (unsigned)rows);
	bool two_tiles = g->a.n_heads > 16;
	if (g->a.head_dim == 128 && two_tiles)
		cuda_launch(b, score_mma_kernel<2, 8, COUNT>, grid, THREADS, 0, *g);
	else if (g->a.head_dim == 128)
		cuda_launch(b, score_mma_kernel<1, 8, COUNT>, grid, THREADS, 0, *g);
	else if (two_tiles)
		cuda_launch(b, score_mma_kernel<2, 4, COUNT>, grid, THREADS, 0, *g);
	else
		cuda_launch(b, score_mma_kernel<1, 4, COUNT>, grid, THREADS, 0, *g);
}

static bool index_mma_applies(const struct index_select *a)
{
	return a->keys.type == DTYPE_F16 && (a->head_dim == 128 || a->head_dim == 64) &&
		   a->n_heads <= 32 && !(((uintptr_t)a->keys.data | (uintptr_t)a->q) & 15);
}

bool index_scores_mma(struct cuda_backend *b, const struct batch *rows,
	const struct index_select *a, int first_row, int n, int64_t stride, float *score)
{
	if (!index_mma_applies(a))
		return false;
	struct mma_select_args g = {*a, rows->pos, rows->base, first_row, 128, stride, score,
		(float)(1.0 / sqrt((double)a->n_heads)), (float)(1.0 / sqrt((double)a->head_dim)), NULL,
		NULL, NULL, 0};
	launch_scores<false>(b, &g, rows->max_pos + 1, n);
	return true;
}

bool index_select_decode(
	struct cuda_backend *b, const struct batch *rows, const struct index_select *a)
{
	int longest = rows->max_pos + 1;
	/* compute capability 8.6 and 8.9 have 99 KiB for a block: the map of 760,000 positions */
	size_t shared = (size_t)(longest + 31) / 32 * 4;
	if (rows->n > DECODE_MAX_ROWS || longest > MAP_MAX || shared > b->max_shared ||
		!index_mma_applies(a))
		return false;
	int64_t stride = (longest + SLICE - 1) / SLICE * SLICE;
	struct mma_select_args g = {*a, rows->pos, rows->base, 0, 0, stride, NULL,
		(float)(1.0 / sqrt((double)a->n_heads)), (float)(1.0 / sqrt((double)a->head_dim)), NULL,
		NULL, NULL, stride / 32};
	int group = min(rows->n, ROWS_AT_ONCE);
	if (longest > a->top_k) {
		g.state = (struct select_state *)cuda_scratch_reserve(b, &b->index_counts, sizeof *g.state);
		if (!g.state)
			return true;
		size_t row_bytes = (size_t)stride * 4 + (size_t)g.map_stride * 4 + (size_t)stride * 8;
		group = min(group, (int)(SCRATCH_MAX_BYTES / row_bytes));
		uint8_t *scratch = (uint8_t *)cuda_scratch(b, row_bytes * (size_t)group);
		if (!scratch)
			return true;
		g.score = (float *)scratch;
		g.candidate = (uint2 *)(g.score + stride * group);
		g.map = (uint32_t *)(g.candidate + stride * group);
		if (!cuda_allow_shared(b, (const void *)select_mma_kernel, shared))
			return true;
	}
	for (; g.first_row < rows->n; g.first_row += group) {
		int n = min(rows->n - g.first_row, group);
		if (longest > a->top_k) {
			/* the most keys a warp with which every multiprocessor still has work */
			int64_t want = (int64_t)longest * n / ((int64_t)b->n_sm * (THREADS / 32));
			g.per_warp = want > 120 ? 128 : want > 56 ? 64 : want > 24 ? 32 : 16;
			launch_scores<true>(b, &g, longest, n);
			if (b->base.failure.code) /* without counts select_mma_kernel would select too many */
				return true;
		}
		cuda_launch(b, select_mma_kernel,
			dim3((unsigned)((longest + SLICE - 1) / SLICE), (unsigned)n), SELECT_THREADS, shared,
			g);
	}
	return true;
}
