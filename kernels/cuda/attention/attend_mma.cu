/* SPDX-License-Identifier: MIT */
/*
 * Absorbed MLA on the tensor cores, for half caches of the released shape: keys of 576 halves,
 * values their first 512. Flash attention with one key for all heads.
 *
 * attend_mma_kernel: grid (parts of the list times groups of 16 HT heads, rows), block 256. The
 * chosen cache rows come to shared memory in tiles of 32 (cp.async, two at a time), and are key and
 * value from there. Queries and attention weights are split into two halves each (mma.cuh), so only
 * the last two bits of float32 are lost.
 *
 *      scores   a warp: (quarter of the key width) x (16 heads, or with HT = 1 half of the
 *               positions); the quarters are combined in `quarter_scores`
 *      softmax  8 HT lanes a head
 *      values   a warp: 64 columns for all heads; a tile's sum starts from zero and is then
 *               added to the running sum
 *
 * Decode: the list is cut into segments of SEGMENT entries (flash-decoding); a block does some, and
 * merge_mma_kernel (grid: heads times quarters of the values, rows; block 128) combines them in
 * ascending order. The segments depend on the length of the list alone, so a row's numbers are the
 * same in every batch. Prefill: a block does the whole list.
 *
 * Bytes moved: every chosen cache row once per 16 HT heads (after the first from the L2 cache),
 * queries once per block; in decode the partial results once out and once in.
 */
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/common/mma.cuh"

#define WIDTH        576
#define VALUE        512
#define TILE         32
#define SEGMENT      64
#define THREADS      256
#define ROWS_AT_ONCE 16 /* rows of decode whose segments are in scratch memory together */
#define STEPS        (WIDTH / 16 / 4) /* products of 16 in a quarter of the width */
#define P_STRIDE     40 /* halves of a row of 32 attention weights: no bank conflicts */
/* Steps of the last quarter before the rotated part begins. */
#define NOPE_STEPS ((VALUE - 3 * STEPS * 16) / 16)
#define TILE_BYTES (TILE * WIDTH * 2)
#define P_SCALE    16384.0f

struct mma_attend_args {
	struct attend a;
	const int32_t *base;
	int first_row;
	int n_groups, n_segments, per_block; /* groups of heads; segments of the
											longest list, and in one block */
	float *part;                         /* [rows][n_segments][n_heads][VALUE] */
	float2 *meta;                        /* [rows][n_segments][n_heads]: maximum, sum */
};

/* Byte offset of 16-byte piece `piece` of row t of a tile; swizzled so that 8 rows have no bank
 * conflicts */
static __device__ __forceinline__ uint32_t tile_at(int t, int piece)
{
	return (uint32_t)(t * (WIDTH * 2) + (piece ^ (t & 7)) * 16);
}

/* This warp's quarter of the width of 16 queries, from `head` + 16 mt on, as
 * the A operands of the products: scaled by a power of two per head (its
 * inverse, times a.scale, to unscale) and as two halves. largest: shared, of
 * all warps. */
template <int HEADS>
static __device__ __forceinline__ void load_queries(const struct attend &a, int64_t r, int head,
	int quarter, int mt, int row8, int c, float (*largest)[HEADS], float *unscale,
	uint32_t (&q_hi)[STEPS][4], uint32_t (&q_lo)[STEPS][4])
{
	float2 q[STEPS][4]; /* all loads before the first use */
	bool roped = a.rotate && quarter == 3;
	float most[2] = {0, 0};
#pragma unroll
	for (int s = 0; s < STEPS; s++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int h = head + mt * 16 + row8 + i % 2 * 8;
			int k = (quarter * STEPS + s) * 16 + 2 * c + i / 2 * 8;
			int64_t at = r * a.n_heads + h;
			const float *from = roped && s >= NOPE_STEPS
									? a.rotate + at * a.rotate_stride + (k - VALUE)
									: a.q + at * WIDTH + k;
			q[s][i] = h < a.n_heads ? *(const float2 *)from : make_float2(0, 0);
		}
	if (roped) {
		float2 angle[STEPS - NOPE_STEPS][2];
#pragma unroll
		for (int s = NOPE_STEPS; s < STEPS; s++)
#pragma unroll
			for (int i = 0; i < 2; i++)
				angle[s - NOPE_STEPS][i] = *(const float2 *)(a.rope.cos_sin + r * a.rope.dim +
															 (s - NOPE_STEPS) * 16 + 2 * c + i * 8);
#pragma unroll
		for (int s = NOPE_STEPS; s < STEPS; s++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				q[s][i] = rotated(angle[s - NOPE_STEPS][i / 2], q[s][i]);
	}
#pragma unroll
	for (int s = 0; s < STEPS; s++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			most[i % 2] = fmaxf(most[i % 2], fmaxf(fabsf(q[s][i].x), fabsf(q[s][i].y)));
#pragma unroll
	for (int i = 0; i < 2; i++) {
		most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], 1));
		most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], 2));
		if (!c)
			largest[quarter][mt * 16 + row8 + 8 * i] = most[i];
	}
	__syncthreads();
	float factor[2];
#pragma unroll
	for (int i = 0; i < 2; i++) {
		int h = mt * 16 + row8 + 8 * i;
		int e = half_exponent(
			fmaxf(fmaxf(largest[0][h], largest[1][h]), fmaxf(largest[2][h], largest[3][h])));
		factor[i] = power_of_two(e);
		if (!c && !quarter)
			unscale[h] = __fmul_rn(power_of_two(-e), a.scale);
	}
#pragma unroll
	for (int s = 0; s < STEPS; s++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			split_pair(__fmul_rn(q[s][i].x, factor[i % 2]), __fmul_rn(q[s][i].y, factor[i % 2]),
				q_hi[s][i], q_lo[s][i]);
}

/* Scores of 16 heads over a quarter of the width, for a tile of positions (HT 1: half of one).
 * tile: its shared address. */
template <int HT>
static __device__ __forceinline__ void tile_scores(uint32_t tile, int quarter, int mt, int other,
	int lane, const uint32_t (&q_hi)[STEPS][4], const uint32_t (&q_lo)[STEPS][4],
	float *quarter_scores)
{
	constexpr int HEADS = 16 * HT, NT = 2 * HT;
	int row8 = lane / 4, c = lane % 4;
	float hi[NT][4], lo[NT][4];
#pragma unroll
	for (int n = 0; n < NT; n++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			hi[n][i] = lo[n][i] = 0;
	int t_first = HT == 2 ? 0 : other * 16;
#pragma unroll
	for (int s = 0; s < STEPS; s++)
#pragma unroll
		for (int n = 0; n < NT; n += 2) {
			uint32_t b[4];
			load_matrices(b, tile + tile_at(t_first + n * 8 + lane / 16 * 8 + lane % 8,
										(quarter * STEPS + s) * 2 + lane / 8 % 2));
			mma_half(hi[n], q_hi[s], b[0], b[1]);
			mma_half(hi[n + 1], q_hi[s], b[2], b[3]);
			mma_half(lo[n], q_lo[s], b[0], b[1]);
			mma_half(lo[n + 1], q_lo[s], b[2], b[3]);
		}
#pragma unroll
	for (int n = 0; n < NT; n++)
#pragma unroll
		for (int i = 0; i < 2; i++) {
			int h = mt * 16 + row8 + 8 * i, t = (t_first + n * 8 + 2 * c) ^ (h & 3) * 8;
			*(float2 *)&quarter_scores[(quarter * HEADS + h) * TILE + t] =
				make_float2(__fadd_rn(hi[n][2 * i], lo[n][2 * i]),
					__fadd_rn(hi[n][2 * i + 1], lo[n][2 * i + 1]));
		}
}

template <int HT, bool WHOLE>
static __global__ void __launch_bounds__(THREADS, 1)
	attend_mma_kernel(const __grid_constant__ struct mma_attend_args g)
{
	constexpr int HEADS = 16 * HT, LANES = THREADS / HEADS, EACH = TILE / LANES;
	const struct attend &a = g.a;
	extern __shared__ __align__(128) uint8_t shared[];
	__shared__ float largest[4][HEADS], unscale[HEADS], shrink[HEADS], last_sum[HEADS];
	float *quarter_scores = (float *)(shared + 2 * TILE_BYTES);      /* [4][HEADS][TILE] */
	__half *weights = (__half *)(quarter_scores + 4 * HEADS * TILE); /* [hi, lo][HEADS][P_STRIDE] */
	int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, row8 = lane / 4, c = lane % 4;
	int64_t r = g.first_row + (int)blockIdx.y;
	int group = blockIdx.x % g.n_groups, part = blockIdx.x / g.n_groups, head = group * HEADS;
	grid_dependency_wait();
	int n_sel = a.n_sel[r], first = WHOLE ? 0 : part * g.per_block * SEGMENT,
		last = WHOLE ? n_sel : min(n_sel, first + g.per_block * SEGMENT);
	if (first >= last)
		return;
	const int32_t *sel = a.sel + r * a.sel_stride;
	const __half *cache = (const __half *)a.cache.data + (int64_t)g.base[r] * WIDTH;
	uint32_t tiles = shared_address(shared);

	/* a warp brings 4 rows of a tile: its lanes 0 .. 3 know the positions two
	 * tiles ahead */
	auto position = [&](int t0) {
		return sel[min(
			t0 + warp * 4 + lane % 4, last - 1)]; /* positions behind the last have weight 0 */
	};
	int next = position(first), after = position(first + TILE);
	auto fetch = [&](int t0, int stage) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int t = warp * 4 + i, pos = __shfl_sync(0xffffffffu, next, i);
			const __half *from = cache + (int64_t)pos * WIDTH;
#pragma unroll
			for (int j = 0; j < 3; j++)
				if (lane + 32 * j < WIDTH / 8)
					async_copy(tiles + stage * TILE_BYTES + tile_at(t, lane + 32 * j),
						from + (lane + 32 * j) * 8);
		}
		async_commit();
		next = after;
		after = position(t0 + 2 * TILE);
	};
	fetch(first, 0);
	fetch(first + TILE, 1);

	/* queries: this warp's quarter of the width for 16 heads, scaled, as two
	 * halves */
	int quarter = warp % 4, other = warp / 4, mt = HT == 2 ? other : 0;
	uint32_t q_hi[STEPS][4], q_lo[STEPS][4];
	load_queries<HEADS>(a, r, head, quarter, mt, row8, c, largest, unscale, q_hi, q_lo);

	float acc[HT][8][4];
	float top = -INFINITY, sum = 0; /* of head tid / LANES */
	auto begin = [&]() {
#pragma unroll
		for (int m = 0; m < HT; m++)
#pragma unroll
			for (int n = 0; n < 8; n++)
#pragma unroll
				for (int i = 0; i < 4; i++)
					acc[m][n][i] = 0;
		top = -INFINITY;
		sum = 0;
	};
	begin();

	int stage = 0;
	for (int t0 = first; t0 < last; t0 += TILE, stage ^= 1) {
		async_wait<1>();
		__syncthreads(); /* the tile is there */
		uint32_t tile = tiles + stage * TILE_BYTES;
		tile_scores<HT>(tile, quarter, mt, other, lane, q_hi, q_lo, quarter_scores);
		__syncthreads();
		{
			int h = tid / LANES, t = tid % LANES * EACH;
			const float *from = quarter_scores + h * TILE + (t ^ (h & 3) * 8);
			float s[EACH], most = -INFINITY, total = 0, quarters[4][EACH];
#pragma unroll
			for (int k = 0; k < 4; k++)
				if (EACH == 4)
					*(float4 *)quarters[k] = *(const float4 *)(from + k * HEADS * TILE);
				else
					*(float2 *)quarters[k] = *(const float2 *)(from + k * HEADS * TILE);
#pragma unroll
			for (int i = 0; i < EACH; i++) {
				float v = __fadd_rn(__fadd_rn(quarters[0][i], quarters[1][i]),
					__fadd_rn(quarters[2][i], quarters[3][i]));
				s[i] = t0 + t + i < last ? __fmul_rn(v, unscale[h]) : -INFINITY;
				most = fmaxf(most, s[i]);
			}
#pragma unroll
			for (int step = LANES / 2; step; step /= 2)
				most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
			most = fmaxf(top, most);
#pragma unroll
			for (int i = 0; i < EACH; i += 2) {
				float e0 = s[i] == -INFINITY ? 0 : exp_exact(s[i] - most);
				float e1 = s[i + 1] == -INFINITY ? 0 : exp_exact(s[i + 1] - most);
				uint32_t hi, lo;
				split_pair(__fmul_rn(e0, P_SCALE), __fmul_rn(e1, P_SCALE), hi, lo);
				*(uint32_t *)&weights[h * P_STRIDE + t + i] = hi;
				*(uint32_t *)&weights[(HEADS + h) * P_STRIDE + t + i] = lo;
				total = __fadd_rn(total, __fadd_rn(e0, e1));
			}
			if (HT == 1) /* four positions first, as one lane has them otherwise: the
							same sum */
				total = __fadd_rn(total, __shfl_xor_sync(0xffffffffu, total, 1));
#pragma unroll
			for (int step = LANES / 2; step > (HT == 1); step /= 2)
				total = __fadd_rn(total, __shfl_xor_sync(0xffffffffu, total, step));
			float f = top == -INFINITY ? 0 : exp_exact(top - most);
			if (tid % LANES == 0)
				shrink[h] = f;
			sum = __fmaf_rn(sum, f, total);
			top = most;
		}
		__syncthreads();
		{
			uint32_t p[2][2][HT][4]; /* [half of the tile][hi, lo] */
#pragma unroll
			for (int s = 0; s < 2; s++)
#pragma unroll
				for (int term = 0; term < 2; term++)
#pragma unroll
					for (int m = 0; m < HT; m++)
						load_matrices(p[s][term][m],
							shared_address(&weights[(term * HEADS + m * 16 + lane % 16) * P_STRIDE +
													s * 16 + lane / 16 * 8]));
			float f[HT][2];
#pragma unroll
			for (int m = 0; m < HT; m++)
#pragma unroll
				for (int i = 0; i < 2; i++)
					f[m][i] = shrink[m * 16 + row8 + 8 * i];
#pragma unroll
			for (int n = 0; n < 8; n += 4) {
				float v[4][HT][4];
#pragma unroll
				for (int k = 0; k < 4; k++)
#pragma unroll
					for (int m = 0; m < HT; m++)
						v[k][m][0] = v[k][m][1] = v[k][m][2] = v[k][m][3] = 0;
#pragma unroll
				for (int s = 0; s < 2; s++) {
					uint32_t b[2][4];
#pragma unroll
					for (int k = 0; k < 2; k++)
						load_matrices_transposed(b[k],
							tile + tile_at(s * 16 + lane % 16, warp * 8 + n + 2 * k + lane / 16));
#pragma unroll
					for (int term = 0; term < 2; term++)
#pragma unroll
						for (int k = 0; k < 4; k++)
#pragma unroll
							for (int m = 0; m < HT; m++)
								mma_half(v[k][m], p[s][term][m], b[k / 2][k % 2 * 2],
									b[k / 2][k % 2 * 2 + 1]);
				}
#pragma unroll
				for (int k = 0; k < 4; k++)
#pragma unroll
					for (int m = 0; m < HT; m++)
#pragma unroll
						for (int i = 0; i < 4; i++)
							acc[m][n + k][i] = __fmaf_rn(acc[m][n + k][i], f[m][i / 2], v[k][m][i]);
			}
		}
		if (t0 + 2 * TILE < last) {
			__syncthreads(); /* the tile has been used */
			fetch(t0 + 2 * TILE, stage);
		} else
			async_commit(); /* an empty group: async_wait<1> counts groups */
		if (t0 + 2 * TILE >= last)
			launch_dependents(); /* not before: the next kernel's loads of weights would
									compete with this one's */
		if (!WHOLE && (t0 + TILE >= last || (t0 + TILE) % SEGMENT == 0)) {
			int64_t at = ((int64_t)blockIdx.y * g.n_segments + t0 / SEGMENT) * a.n_heads + head;
			if (tid % LANES == 0 && head + tid / LANES < a.n_heads)
				g.meta[at + tid / LANES] = make_float2(top, sum);
#pragma unroll
			for (int m = 0; m < HT; m++)
#pragma unroll
				for (int i = 0; i < 2; i++) {
					int h = m * 16 + row8 + 8 * i;
					if (head + h < a.n_heads)
#pragma unroll
						for (int n = 0; n < 8; n++)
							*(float2 *)&g.part[(at + h) * VALUE + warp * 64 + n * 8 + 2 * c] =
								make_float2(acc[m][n][2 * i], acc[m][n][2 * i + 1]);
				}
			begin();
		}
	}
	if (!WHOLE)
		return;
	if (tid % LANES == 0)
		last_sum[tid / LANES] = __fmul_rn(sum, P_SCALE);
	__syncthreads();
#pragma unroll
	for (int m = 0; m < HT; m++)
#pragma unroll
		for (int i = 0; i < 2; i++) {
			int h = m * 16 + row8 + 8 * i;
			if (head + h >= a.n_heads)
				continue;
			float *out = a.out + (r * a.n_heads + head + h) * VALUE + warp * 64 + 2 * c,
				  by = last_sum[h];
#pragma unroll
			for (int n = 0; n < 8; n++)
				*(float2 *)(out + n * 8) = make_float2(
					__fdiv_rn(acc[m][n][2 * i], by), __fdiv_rn(acc[m][n][2 * i + 1], by));
		}
}

static __global__ void __launch_bounds__(128)
	merge_mma_kernel(const __grid_constant__ struct mma_attend_args g)
{
	launch_dependents();
	grid_dependency_wait();
	const struct attend &a = g.a;
	extern __shared__ float weight[]; /* [n] */
	__shared__ float by;
	int64_t r = g.first_row + (int)blockIdx.y;
	int n = (a.n_sel[r] + SEGMENT - 1) / SEGMENT, head = blockIdx.x / (VALUE / 128),
		column = blockIdx.x % (VALUE / 128) * 128 + threadIdx.x;
	int64_t at = (int64_t)blockIdx.y * g.n_segments * a.n_heads + head;
	if (threadIdx.x < 32) {
		float top = -INFINITY, sum = 0;
		for (int s = threadIdx.x; s < n; s += 32)
			top = fmaxf(top, g.meta[at + (int64_t)s * a.n_heads].x);
#pragma unroll
		for (int step = 16; step; step /= 2)
			top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
		for (int s = threadIdx.x; s < n; s += 32) {
			float2 m = g.meta[at + (int64_t)s * a.n_heads];
			float w = exp_exact(m.x - top);
			weight[s] = w;
			sum = __fmaf_rn(m.y, w, sum);
		}
		sum = warp_sum(sum);
		if (!threadIdx.x)
			by = __fmul_rn(sum, P_SCALE);
	}
	__syncthreads();
	const float *part = g.part + at * VALUE + column;
	float v = 0;
	for (int s = 0; s < n; s += 16) { /* all loads at once; nothing is added behind the last */
		float p[16];
#pragma unroll
		for (int i = 0; i < 16; i++)
			p[i] = s + i < n ? part[(int64_t)(s + i) * a.n_heads * VALUE] : 0;
#pragma unroll
		for (int i = 0; i < 16; i++)
			v = s + i < n ? __fmaf_rn(p[i], weight[s + i], v) : v;
	}
	a.out[(r * a.n_heads + head) * VALUE + column] = __fdiv_rn(v, by);
}

template <int HT> static constexpr size_t shared_bytes()
{
	return 2 * TILE_BYTES + 4 * 16 * HT * TILE * sizeof(float) +
		   2 * 16 * HT * P_STRIDE * sizeof(__half);
}

template <int HT, bool WHOLE>
static bool attend_mma_launch(
	struct cuda_backend *b, const struct mma_attend_args *g, int blocks, int rows)
{
	if (!cuda_allow_shared(b, (const void *)attend_mma_kernel<HT, WHOLE>, shared_bytes<HT>()))
		return false;
	cuda_launch(b, attend_mma_kernel<HT, WHOLE>, dim3((unsigned)blocks, (unsigned)rows), THREADS,
		shared_bytes<HT>(), *g);
	return true;
}

/* Rows g->first_row .. first_row + n by segments, then merged. False: the failure is kept. */
static bool attend_segments(struct cuda_backend *b, struct mma_attend_args *g, int n)
{
	const struct attend *a = &g->a;
	/* Small blocks (16 heads): for one row, up to 16 heads, or if there are no more of them than
	 * multiprocessors. Else blocks of 32 heads, about as many as are resident at a time. */
	int small = (a->n_heads + 15) / 16;
	bool narrow = n == 1 || a->n_heads <= 16 || g->n_segments * small * n <= b->n_sm;
	g->n_groups = narrow ? small : (a->n_heads + 31) / 32;
	g->per_block = (g->n_segments * g->n_groups * n + b->n_sm - 1) / b->n_sm;
	int blocks = (g->n_segments + g->per_block - 1) / g->per_block * g->n_groups;
	if (!(narrow ? attend_mma_launch<1, false>(b, g, blocks, n)
				 : attend_mma_launch<2, false>(b, g, blocks, n)))
		return false;
	size_t bytes = (size_t)g->n_segments * sizeof(float);
	/* the same shared-memory carveout for both kernels: a multiprocessor takes time to change it */
	if (!b->merge_carveout_set &&
		!cuda_check(
			b, cudaFuncSetAttribute((const void *)merge_mma_kernel,
				   cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared)))
		return false;
	b->merge_carveout_set = true;
	if (!cuda_allow_shared(b, (const void *)merge_mma_kernel, bytes))
		return false;
	cuda_launch(b, merge_mma_kernel, dim3((unsigned)(a->n_heads * (VALUE / 128)), (unsigned)n), 128,
		bytes, *g);
	return true;
}

bool attend_mma(struct cuda_backend *b, const struct batch *rows, const struct attend *a)
{
	if (a->cache.type != DTYPE_F16 || a->cache.width != WIDTH || a->n_value != VALUE ||
		(((uintptr_t)a->cache.data | (uintptr_t)a->q | (uintptr_t)a->out) & 15) ||
		(a->rotate &&
			(a->rope.dim != WIDTH - VALUE || (uintptr_t)a->rotate % 8 || a->rotate_stride % 2)))
		return false;
	if (attend_wgmma(b, rows, a))
		return true;
	struct mma_attend_args g = {*a, rows->base, 0, 0, 0, 0, NULL, NULL};
	if (rows->n > DECODE_MAX_ROWS) {
		g.n_groups = (a->n_heads + 31) / 32;
		for (; g.first_row < rows->n; g.first_row += 65535)
			if (!attend_mma_launch<2, true>(b, &g, g.n_groups,
					rows->n - g.first_row < 65535 ? rows->n - g.first_row : 65535))
				break;
		return true;
	}
	int longest = rows->max_pos + 1 < a->sel_stride ? rows->max_pos + 1 : a->sel_stride,
		most = (a->sel_stride + SEGMENT - 1) / SEGMENT, group = min(rows->n, ROWS_AT_ONCE);
	g.n_segments = (longest + SEGMENT - 1) / SEGMENT;
	/* scratch for the longest possible list (sel_stride), so that it does not grow with the context
	 */
	size_t entries = (size_t)group * (size_t)most * (size_t)a->n_heads;
	g.part = (float *)cuda_scratch(b, entries * (VALUE * sizeof(float) + sizeof(float2)));
	if (!g.part)
		return true;
	g.meta = (float2 *)(g.part + entries * VALUE);
	for (; g.first_row < rows->n; g.first_row += group)
		if (!attend_segments(b, &g, min(rows->n - g.first_row, group)))
			break;
	return true;
}
