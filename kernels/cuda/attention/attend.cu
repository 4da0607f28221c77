/* SPDX-License-Identifier: MIT */
/*
 * Absorbed MLA over a list of cache rows, split over positions (flash-decoding): for the shapes and
 * types that attend_mma.cu does not take.
 *
 * attend_kernel: grid (segments of SEGMENT list entries, groups of HEADS heads, rows), block 256. A
 * block processes its segment in tiles of TILE cache rows, which it copies to shared memory as
 * floats: online softmax (running maximum, sum and weighted values) in tile order. Its result
 * (maximum, sum, HEADS x n_value) goes to scratch.
 *
 * merge_kernel: grid (heads, rows), block 128. It combines the segments of a head in ascending
 * order.
 *
 * Bytes moved: every chosen cache row once per group of heads (after the first from the L2 cache),
 * the query once per segment, the partial results once out and once in. Neither the segments nor
 * the order of additions depends on the number of rows; rows are processed in groups only to bound
 * the scratch.
 *
 *      tile [TILE][stride]  one row per position, padded: 16-byte reads of 8 neighbours have
 *                           no bank conflicts
 *      score thread         (quarter of the width, half of the heads, position): 4 heads
 *      value thread         columns 2 c, 2 c + 1 of all HEADS heads
 */
#include "kernels/cuda/attention/attention.cuh"

#define HEADS             8
#define TILE              32
#define SEGMENT           64
#define THREADS           256
#define SCRATCH_MAX_BYTES ((size_t)128 << 20)

struct attend_args {
	struct attend a;
	const int32_t *base;
	int first_row, n_segments, stride; /* stride: floats of a padded row */
	float *part; /* [rows][n_segments][n_heads][2 + n_value]: maximum, sum, values */
};

static __device__ __forceinline__ float4 fma4(float4 a, float4 b, float4 c)
{
	return make_float4(__fmaf_rn(a.x, b.x, c.x), __fmaf_rn(a.y, b.y, c.y), __fmaf_rn(a.z, b.z, c.z),
		__fmaf_rn(a.w, b.w, c.w));
}

/* Rows list[0 .. n) of the cache into the tile, zeros behind them and between width and stride. */
static __device__ void load_tile(const struct cache_view &cache, int64_t base, const int32_t *list,
	int n, int stride, float *tile)
{
	bool is_half = cache.type == DTYPE_F16,
		 aligned = is_half && cache.width % 8 == 0 && !((uintptr_t)cache.data & 15);
	int width = cache.width;
	for (int t = threadIdx.x / 32; t < TILE; t += THREADS / 32) {
		float *to = tile + t * stride;
		int lane = threadIdx.x % 32, from = 0;
		if (t < n) {
			int64_t row = (base + list[t]) * width;
			if (aligned)
				for (int i = lane * 8; i < width; i += 256) {
					uint4 raw = *(const uint4 *)((const __half *)cache.data + row + i);
					const __half2 *h = (const __half2 *)&raw;
					float2 f0 = __half22float2(h[0]), f1 = __half22float2(h[1]),
						   f2 = __half22float2(h[2]), f3 = __half22float2(h[3]);
					*(float4 *)(to + i) = make_float4(f0.x, f0.y, f1.x, f1.y);
					*(float4 *)(to + i + 4) = make_float4(f2.x, f2.y, f3.x, f3.y);
				}
			else
				for (int i = lane; i < width; i += 32)
					to[i] = cache_load(cache.data, is_half, row + i);
			from = width;
		}
		for (int i = from + lane; i < stride; i += 32)
			to[i] = 0;
	}
}

static __global__ void __launch_bounds__(THREADS)
	attend_kernel(const __grid_constant__ struct attend_args g)
{
	const struct attend &a = g.a;
	extern __shared__ __align__(16) float shared[];
	__shared__ float quarter[4][HEADS][TILE], p[TILE][HEADS];
	__shared__ float top[HEADS], sum[HEADS], shrink[HEADS];
	int stride = g.stride, width = a.cache.width, tid = threadIdx.x;
	int64_t r = g.first_row + (int)blockIdx.z;
	int head = blockIdx.y * HEADS, heads = min(HEADS, a.n_heads - head), n_sel = a.n_sel[r],
		first = blockIdx.x * SEGMENT;
	if (first >= n_sel)
		return;
	const int32_t *sel = a.sel + r * a.sel_stride;
	float *q = shared, *tile = shared + HEADS * stride;
	for (int i = tid; i < HEADS * stride; i += THREADS) {
		int h = i / stride, c = i % stride;
		q[i] = h < heads && c < width ? a.q[(r * a.n_heads + head + h) * width + c] : 0;
	}
	if (tid < HEADS) {
		top[tid] = -INFINITY;
		sum[tid] = 0;
	}
	/* columns of this thread: 2 tid, 2 tid + 1, then THREADS * 2 further on for aligned values: at
	 * most 2 sets */
	float2 acc[2][HEADS];
#pragma unroll
	for (int s = 0; s < 2; s++)
#pragma unroll
		for (int h = 0; h < HEADS; h++)
			acc[s][h] = make_float2(0, 0);

	for (int t0 = first; t0 < min(first + SEGMENT, n_sel); t0 += TILE) {
		int n = min(min(TILE, n_sel - t0), first + SEGMENT - t0);
		__syncthreads(); /* the tile before this one has been used */
		load_tile(a.cache, g.base[r], sel + t0, n, stride, tile);
		__syncthreads();
		{ /* scores: a quarter of the width for 4 heads of one position */
			int t = tid % 32, half = tid / 32 % 2, part = tid / 64, n4 = stride / 4;
			int begin = n4 * part / 4, end = n4 * (part + 1) / 4;
			float4 s[4] = {};
			const float4 *key = (const float4 *)(tile + t * stride),
						 *query = (const float4 *)(q + 4 * half * stride);
			for (int i = begin; i < end; i++) {
				float4 k = key[i];
#pragma unroll
				for (int h = 0; h < 4; h++)
					s[h] = fma4(query[h * n4 + i], k, s[h]);
			}
#pragma unroll
			for (int h = 0; h < 4; h++)
				quarter[part][4 * half + h][t] = (s[h].x + s[h].y) + (s[h].z + s[h].w);
		}
		__syncthreads();
		{ /* softmax of the tile: one warp a head */
			int h = tid / 32, t = tid % 32;
			float s =
				((quarter[0][h][t] + quarter[1][h][t]) + (quarter[2][h][t] + quarter[3][h][t])) *
				a.scale;
			float most = t < n ? s : -INFINITY;
			for (int step = 16; step; step /= 2)
				most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
			float before = top[h], now = fmaxf(before, most);
			float e = t < n ? exp_exact(s - now) : 0, total = warp_sum(e);
			p[t][h] = e;
			__syncwarp(); /* all lanes have read the maximum so far */
			if (!t) {
				float f = before == -INFINITY ? 0 : exp_exact(before - now);
				shrink[h] = f;
				sum[h] = __fmaf_rn(sum[h], f, total);
				top[h] = now;
			}
		}
		__syncthreads();
#pragma unroll
		for (int s = 0; s < 2; s++) {
			int c = 2 * (tid + s * THREADS);
			if (c >= a.n_value)
				continue;
#pragma unroll
			for (int h = 0; h < HEADS; h++) {
				acc[s][h].x *= shrink[h];
				acc[s][h].y *= shrink[h];
			}
			for (int t = 0; t < n; t++) {
				float2 v = *(const float2 *)(tile + t * stride + c);
				float4 w[2] = {*(const float4 *)&p[t][0], *(const float4 *)&p[t][4]};
#pragma unroll
				for (int h = 0; h < HEADS; h++) {
					float weight = ((const float *)w)[h];
					acc[s][h].x = __fmaf_rn(weight, v.x, acc[s][h].x);
					acc[s][h].y = __fmaf_rn(weight, v.y, acc[s][h].y);
				}
			}
		}
	}
	int64_t per_head = a.n_value + 2;
	float *out =
		g.part + (((int64_t)blockIdx.z * g.n_segments + blockIdx.x) * a.n_heads + head) * per_head;
	if (tid < heads) {
		out[tid * per_head] = top[tid];
		out[tid * per_head + 1] = sum[tid];
	}
#pragma unroll
	for (int s = 0; s < 2; s++) {
		int c = 2 * (tid + s * THREADS);
#pragma unroll
		for (int h = 0; h < HEADS; h++) {
			if (h < heads && c < a.n_value)
				out[h * per_head + 2 + c] = acc[s][h].x;
			if (h < heads && c + 1 < a.n_value)
				out[h * per_head + 3 + c] = acc[s][h].y;
		}
	}
}

static __global__ void merge_kernel(const __grid_constant__ struct attend_args g)
{
	const struct attend &a = g.a;
	int64_t r = g.first_row + (int)blockIdx.y, per_head = a.n_value + 2,
			step = a.n_heads * per_head;
	int n = (a.n_sel[r] + SEGMENT - 1) / SEGMENT;
	const float *part =
		g.part + ((int64_t)blockIdx.y * g.n_segments * a.n_heads + blockIdx.x) * per_head;
	extern __shared__ __align__(16) float weight[]; /* [n]: of each segment, then [n]: its sum */
	__shared__ float tops[4];
	float top = -INFINITY, sum = 0;
	for (int s = threadIdx.x; s < n; s += blockDim.x) {
		weight[s] = part[s * step];
		weight[n + s] = part[s * step + 1];
		top = fmaxf(top, weight[s]);
	}
	for (int i = 16; i; i /= 2)
		top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, i));
	if (threadIdx.x % 32 == 0)
		tops[threadIdx.x / 32] = top;
	__syncthreads();
	top = fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
	for (int s = threadIdx.x; s < n; s += blockDim.x)
		weight[s] = exp_exact(weight[s] - top);
	__syncthreads();
	for (int s = 0; s < n; s++)
		sum = __fmaf_rn(weight[n + s], weight[s], sum);
	float *out = a.out + (r * a.n_heads + blockIdx.x) * a.n_value;
	for (int c = threadIdx.x; c < a.n_value; c += blockDim.x) {
		float v = 0;
#pragma unroll 8
		for (int s = 0; s < n; s++)
			v = __fmaf_rn(part[s * step + 2 + c], weight[s], v);
		out[c] = __fdiv_rn(v, sum);
	}
}

void cuda_attend(struct backend *base, const struct batch *rows, const struct attend *a)
{
	struct cuda_backend *b = cuda_of(base);
	if (!cuda_begin(base, "attend") || !rows->n || attend_mma(b, rows, a))
		return;
	if (a->rotate)
		cuda_rope(base, &a->rope, a->rotate, a->rotate_stride, a->q + a->n_value, a->cache.width,
			rows->n, a->n_heads);
	struct attend_args g = {*a, rows->base, 0, 0, 0, NULL};
	/* padded to whole 16 bytes, an odd number of them */
	g.stride = (a->cache.width + 3) / 4 * 4;
	g.stride += g.stride / 4 % 2 ? 0 : 4;
	int longest = rows->max_pos + 1 < a->sel_stride ? rows->max_pos + 1 : a->sel_stride;
	g.n_segments = (longest + SEGMENT - 1) / SEGMENT;
	size_t shared = (size_t)(HEADS + TILE) * (size_t)g.stride * sizeof(float);
	if (a->n_value > 4 * THREADS) {
		err_set(&base->failure, ERR_RUN,
			"cuda: attend: values of %d floats; at most %d are supported", a->n_value, 4 * THREADS);
		return;
	}
	size_t merge_shared =
		(2 * (size_t)g.n_segments + 16) * sizeof(float); /* whole 16 bytes may be read */
	if (!cuda_allow_shared(b, (const void *)attend_kernel, shared) ||
		!cuda_allow_shared(b, (const void *)merge_kernel, merge_shared))
		return;
	/* scratch for the longest possible list (sel_stride), so that it does not grow with the context
	 */
	size_t row_bytes = (size_t)a->n_heads * (size_t)(a->n_value + 2) * sizeof(float);
	size_t full = row_bytes * (size_t)((a->sel_stride + SEGMENT - 1) / SEGMENT),
		   now = row_bytes * (size_t)g.n_segments;
	int group = (int)(SCRATCH_MAX_BYTES / full);
	group = group < 1 ? 1 : group > 65535 ? 65535 : group < rows->n ? group : rows->n;
	g.part = (float *)cuda_scratch(b, (size_t)group * full);
	if (!g.part)
		return;
	group = (int)((size_t)group * full / now < 65535 ? (size_t)group * full / now : 65535);
	for (; g.first_row < rows->n; g.first_row += group) {
		int n = rows->n - g.first_row < group ? rows->n - g.first_row : group;
		dim3 grid(
			(unsigned)g.n_segments, (unsigned)((a->n_heads + HEADS - 1) / HEADS), (unsigned)n);
		attend_kernel<<<grid, THREADS, shared, b->stream>>>(g);
		merge_kernel<<<dim3((unsigned)a->n_heads, (unsigned)n), 128, merge_shared, b->stream>>>(g);
		cuda_launched(b);
	}
}
