/* SPDX-License-Identifier: MIT */
/*
 * Scores of the DSA lightning indexer for prompts, by wgmma: F16 keys of 128 values, up to 32
 * heads.
 *
 * score_rows_kernel: grid (spans of SPAN positions, groups of ROWS rows), block 256: two warpgroups
 * with half of the rows each. Queries are split into two halves each (mma.cuh), hi + lo:
 *
 *      a   [64][128] of a row, in shared memory: line 16 w + g is hi of head 8 w + g, line
 *          16 w + 8 + g its lo, so that a lane has both (wgmma.cuh)
 *      b   [128][KEYS] keys, loaded by cp.async one tile ahead; all rows of the block use them
 *
 * Both are two panels of 64 values, in lines of 128 bytes with swizzled pieces. While the tensor
 * cores multiply a row, the scores of the row before are added up: over the eight heads of a warp
 * by a butterfly, then over the four warps in shared memory. The order is always the same, so a
 * score is bit-identical in every batch.
 *
 * Bytes moved: keys once per ROWS rows, mostly from the L2 cache; scores once out.
 */
#include "kernels/cuda/attention/indexer_rows.cuh"

#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/wgmma_tiles.cuh"

#define THREADS 256
#define ROWS    8
#define HEADS   32
#define DIM     128
#define KEYS    128
#define SPAN    2048

#define QUERY_BYTES (2 * HEADS * DIM * 2) /* of a row */
#define KEY_BYTES   (KEYS * DIM * 2)      /* of a tile */
#define AT_KEYS     (ROWS * QUERY_BYTES)
#define AT_SUMS     (AT_KEYS + 2 * KEY_BYTES)
#define AT_SCALES   (AT_SUMS + 2 * 2 * 4 * KEYS * 4) /* [group][turn][warp][KEYS] */
#define BYTES       (1024 + AT_SCALES + 2 * ROWS * HEADS * 4)

struct score_rows_args {
	struct index_select a;
	const int32_t *pos, *base;
	int first_row, n;
	int64_t stride;
	float *score;
	float head_scale, dim_scale;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* A row's queries become lines of a, its heads' factors scales[0][head] and [1][head]. */
static __device__ __forceinline__ void load_queries(
	const struct score_rows_args &g, uint8_t *shared, int first, int rows)
{
	float *unscale = (float *)(shared + AT_SCALES), *weight = unscale + ROWS * HEADS;
	int lane = threadIdx.x % 32;
	for (int i = threadIdx.x / 32; i < ROWS * HEADS; i += THREADS / 32) {
		int r = i / HEADS, h = i % HEADS;
		int64_t row = first + r;
		bool there = r < rows && h < g.a.n_heads;
		float4 v = there ? ((const float4 *)(g.a.q + (row * g.a.n_heads + h) * DIM))[lane]
						 : make_float4(0, 0, 0, 0);
		float most = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
#pragma unroll
		for (int step = 16; step; step /= 2)
			most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
		int e = half_exponent(most);
		float f = power_of_two(e);
		uint2 hi, lo;
		split_pair(__fmul_rn(v.x, f), __fmul_rn(v.y, f), hi.x, lo.x);
		split_pair(__fmul_rn(v.z, f), __fmul_rn(v.w, f), hi.y, lo.y);
		/* values 4 lane .. 4 lane + 3: half of piece lane / 2 % 8 of panel lane / 16 */
		int line = h / 8 * 16 + h % 8;
		uint8_t *to = shared + r * QUERY_BYTES + lane / 16 * (QUERY_BYTES / 2) + line * 128 +
					  ((lane / 2 % 8 ^ h % 8) << 4) + lane % 2 * 8;
		*(uint2 *)to = hi;
		*(uint2 *)(to + 8 * 128) = lo;
		if (!lane) {
			unscale[i] = __fmul_rn(power_of_two(-e), g.dim_scale);
			weight[i] = there ? __fmul_rn(g.a.weight[row * g.a.n_heads + h], g.head_scale) : 0;
		}
	}
}

/* Keys t .. t + KEYS - 1 of a sequence; those past the last repeat it. */
static __device__ __forceinline__ void load_keys(const __half *keys, int t, int last, uint32_t to)
{
#pragma unroll
	for (int j = 0; j < KEYS * DIM / 8 / THREADS; j++) {
		int i = threadIdx.x + j * THREADS, key = i / 16, piece = i % 16;
		async_copy(to + piece / 8 * (KEY_BYTES / 2) + key * 128 + ((piece % 8 ^ key % 8) << 4),
			keys + (int64_t)min(t + key, last) * DIM + piece * 8);
	}
	async_commit();
}

static __device__ __forceinline__ void multiply_row(
	float (&d)[KEYS / 2], uint32_t query, uint32_t keys)
{
	wgmma_fence();
#pragma unroll
	for (int i = 0; i < DIM / 16; i++) {
		uint64_t a = wgmma_desc_128(query + i / 4 * (QUERY_BYTES / 2)) + 2 * (i % 4),
				 b = wgmma_desc_128(keys + i / 4 * (KEY_BYTES / 2)) + 2 * (i % 4);
		wgmma_tiles(d, a, b, i);
	}
	wgmma_commit();
}

/* Butterfly step of a sum over lanes: each of two lanes, lane_bit apart, keeps half of v, summed
 * with the other lane's. */
template <int N>
static __device__ __forceinline__ void halve_and_sum(float *v, int lane_bit, bool upper)
{
#pragma unroll
	for (int i = 0; i < N; i++) {
		float away = upper ? v[i] : v[i + N], mine = upper ? v[i + N] : v[i];
		v[i] = __fadd_rn(mine, __shfl_xor_sync(0xffffffffu, away, lane_bit));
	}
}

/* The part of a warp's eight heads of the scores of KEYS positions, to sums [KEYS]. */
static __device__ __forceinline__ void add_heads(
	const float (&d)[KEYS / 2], float unscale, float weight, float *sums)
{
	int lane = threadIdx.x % 32, c = lane % 4;
	float v[KEYS / 4]; /* [8 positions][the lane's two] */
#pragma unroll
	for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
		for (int e = 0; e < 2; e++) {
			float dot = __fmul_rn(__fadd_rn(d[4 * n + e], d[4 * n + 2 + e]), unscale);
			v[2 * n + e] = __fmul_rn(weight, dot < 0 ? 0 : dot);
		}
	halve_and_sum<16>(v, 16, lane & 16);
	halve_and_sum<8>(v, 8, lane & 8);
	halve_and_sum<4>(v, 4, lane & 4);
	int at = (lane & 16) + (lane & 8) + (lane & 4); /* of v, before */
#pragma unroll
	for (int i = 0; i < 2; i++)
		*(float2 *)(sums + 8 * (at / 2 + i) + 2 * c) = make_float2(v[2 * i], v[2 * i + 1]);
}

/* The rows [from, from + rows) of the block, which share a sequence: positions of the block's span.
 */
static __device__ __forceinline__ void score_run(
	const struct score_rows_args &g, uint8_t *shared, uint32_t base, int first, int from, int rows)
{
	int tid = threadIdx.x, group = tid / 128, in_group = tid % 128, warp = in_group / 32,
		lane = tid % 32, head = 8 * warp + lane / 4, begin = (int)blockIdx.x * SPAN, last = -1;
	const float *unscale = (const float *)(shared + AT_SCALES), *weight = unscale + ROWS * HEADS;
	for (int r = from; r < from + rows; r++)
		last = max(last, g.pos[first + r]);
	int end = min(begin + SPAN, last + 1);
	if (begin >= end || last < g.a.top_k)
		return;
	const __half *keys = (const __half *)g.a.keys.data + (int64_t)g.base[first + from] * DIM;
	__syncthreads(); /* the run before has read its keys */
	load_keys(keys, begin, last, base + AT_KEYS);
	for (int t = begin, turn = 0; t < end; t += KEYS, turn ^= 1) {
		async_wait<0>();
		wgmma_fence_shared();
		__syncthreads(); /* this tile is there, the one before has been read */
		if (t + KEYS < end)
			load_keys(keys, t + KEYS, last, base + AT_KEYS + (turn ^ 1) * KEY_BYTES);
		uint32_t tile = base + AT_KEYS + turn * KEY_BYTES;
		float d[2][KEYS / 2];
		multiply_row(d[0], base + group * (ROWS / 2) * QUERY_BYTES, tile);
#pragma unroll
		for (int j = 0; j < ROWS / 2; j++) {
			int r = group * (ROWS / 2) + j;
			if (j + 1 < ROWS / 2) {
				multiply_row(d[(j + 1) % 2], base + (r + 1) * QUERY_BYTES, tile);
				wgmma_wait<1>();
			} else
				wgmma_wait<0>();
			wgmma_keep_registers(d[j % 2]);
			float *sums = (float *)(shared + AT_SUMS) + (group * 2 + j % 2) * 4 * KEYS;
			add_heads(
				d[j % 2], unscale[r * HEADS + head], weight[r * HEADS + head], sums + warp * KEYS);
			named_barrier_sync(1 + group, 128);
			bool kept = r >= from && r < from + rows;
			if (kept && t + in_group <= g.pos[first + r]) {
				float v = __fadd_rn(sums[in_group], sums[KEYS + in_group]);
				v = __fadd_rn(v, sums[2 * KEYS + in_group]);
				v = __fadd_rn(v, sums[3 * KEYS + in_group]);
				g.score[(first + r - g.first_row) * g.stride + t + in_group] = v;
			}
		}
	}
}

#endif

static __global__ void __launch_bounds__(THREADS, 1)
	score_rows_kernel(const __grid_constant__ struct score_rows_args g)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
	extern __shared__ uint8_t shared_begin[];
	uint32_t begin = shared_address(shared_begin), base = (begin + 1023) & ~1023u;
	uint8_t *shared = shared_begin + (base - begin);
	int first = g.first_row + (int)blockIdx.y * ROWS, rows = min(ROWS, g.first_row + g.n - first),
		last = -1;
	for (int r = 0; r < rows; r++)
		last = max(last, g.pos[first + r]);
	if ((int)blockIdx.x * SPAN > last)
		return;
	load_queries(g, shared, first, rows);
	wgmma_fence_shared();
	for (int r = 0, run; r < rows; r += run) {
		for (run = 1; r + run < rows && g.base[first + r + run] == g.base[first + r];)
			run++;
		score_run(g, shared, base, first, r, run);
	}
#endif
}

bool index_scores_rows(struct cuda_backend *b, const struct batch *rows,
	const struct index_select *a, int first_row, int n, int64_t stride, float *score)
{
	if (!b->has_wgmma || rows->n <= DECODE_MAX_ROWS || a->keys.type != DTYPE_F16 ||
		a->head_dim != DIM || a->n_heads > HEADS ||
		(((uintptr_t)a->keys.data | (uintptr_t)a->q) & 15))
		return false;
	static_assert(BYTES <= 232448, "shared memory of a block on compute capability 9.0");
	struct score_rows_args g = {*a, rows->pos, rows->base, first_row, n, stride, score,
		(float)(1.0 / sqrt((double)a->n_heads)), (float)(1.0 / sqrt((double)DIM))};
	if (!cuda_allow_shared(b, (const void *)score_rows_kernel, BYTES))
		return true;
	dim3 grid((unsigned)((rows->max_pos + SPAN) / SPAN), (unsigned)((n + ROWS - 1) / ROWS));
	score_rows_kernel<<<grid, THREADS, BYTES, b->stream>>>(g);
	cuda_launched(b);
	return true;
}
