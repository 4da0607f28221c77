/* SPDX-License-Identifier: MIT */
/*
 * The DSA lightning indexer (op index_select): scores every position up to pos and selects exactly
 * the top_k. indexer_mma.cu has the scores for half keys and the selection of decode;
 * indexer_rows.cu the scores of prompts on compute capability 9.0; this file has the general scores
 * and the selection of prompts.
 *
 * score_kernel: grid (tiles of KEYS positions, rows), block 256. Keys and queries go to shared
 * memory as floats; a thread computes 8 heads of one position at a time; four partial sums per
 * position are added in order.
 *
 * select_kernel: grid rows, block 1024. Radix select of the top_k-th largest key (11, 11 and 10
 * bits), then one ascending pass that takes every key above it and the first of those equal to it.
 *
 * Bytes moved: keys once per row, scores once out and four times in. A list that holds all
 * positions is written without scores. Rows are processed in groups to bound the scratch.
 */
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/attention/indexer_rows.cuh"

#define KEYS              64
#define THREADS           256
#define GROUPS            4 /* threads per position */
#define BATCH             8 /* heads a thread takes at once */
#define SELECT_THREADS    1024
#define SCRATCH_MAX_BYTES ((size_t)128 << 20) /* as attend.cu */

struct select_args {
	struct index_select a;
	const int32_t *pos, *base;
	int first_row, dim_stride;
	int64_t stride; /* floats between the scores of two rows, a multiple of 4 */
	float *score;
	float head_scale, dim_scale;
};

static __global__ void __launch_bounds__(THREADS)
	score_kernel(const __grid_constant__ struct select_args g)
{
	const struct index_select &a = g.a;
	extern __shared__ __align__(16) float shared[];
	__shared__ float sum[GROUPS][KEYS];
	int r = g.first_row + blockIdx.y, n = g.pos[r] + 1, first = blockIdx.x * KEYS,
		stride = g.dim_stride, dim = a.head_dim;
	if (n <= a.top_k || first >= n)
		return;
	float *key = shared, *q = shared + KEYS * stride, *weight = q + a.n_heads * stride;
	bool is_half = a.keys.type == DTYPE_F16;
	int64_t row = ((int64_t)g.base[r] + first) * dim;
	int count = min(KEYS, n - first);
	for (int t = threadIdx.x / 32; t < KEYS; t += THREADS / 32)
		for (int c = threadIdx.x % 32; c < stride; c += 32)
			key[t * stride + c] = t < count && c < dim
									  ? cache_load(a.keys.data, is_half, row + (int64_t)t * dim + c)
									  : 0;
	for (int h = threadIdx.x / 32; h < a.n_heads; h += THREADS / 32)
		for (int c = threadIdx.x % 32; c < stride; c += 32)
			q[h * stride + c] = c < dim ? a.q[((int64_t)r * a.n_heads + h) * dim + c] : 0;
	for (int h = threadIdx.x; h < a.n_heads; h += THREADS)
		weight[h] = __fmul_rn(a.weight[(int64_t)r * a.n_heads + h], g.head_scale);
	__syncthreads();
	int t = threadIdx.x % KEYS, group = threadIdx.x / KEYS, n4 = stride / 4;
	const float4 *k4 = (const float4 *)(key + t * stride), *q4 = (const float4 *)q;
	float score = 0;
	for (int h0 = group * BATCH; h0 < a.n_heads; h0 += GROUPS * BATCH) {
		float dot[BATCH] = {};
		for (int i = 0; i < n4; i++) {
			float4 k = k4[i];
#pragma unroll
			for (int h = 0; h < BATCH; h++) {
				float4 v = q4[min(h0 + h, a.n_heads - 1) * n4 + i];
				dot[h] = __fmaf_rn(v.w, k.w,
					__fmaf_rn(v.z, k.z, __fmaf_rn(v.y, k.y, __fmaf_rn(v.x, k.x, dot[h]))));
			}
		}
#pragma unroll
		for (int h = 0; h < BATCH; h++)
			if (h0 + h < a.n_heads) {
				float v = __fmul_rn(dot[h], g.dim_scale);
				score = __fmaf_rn(weight[h0 + h], v < 0 ? 0 : v, score);
			}
	}
	sum[group][t] = score;
	__syncthreads();
	if (threadIdx.x < count) {
		for (int i = 1; i < GROUPS; i++)
			score += sum[i][t];
		g.score[blockIdx.y * g.stride + first + t] = score;
	}
}

/* The bin of `bits` bits at `shift` of the key of rank *rank (from the largest, counted from 1)
 * among keys that begin with `prefix`; *rank becomes its rank among those that share the bin.
 * count: shared, 2048. */
static __device__ uint32_t radix_select_pass(const float *score, int n, uint32_t prefix, int shift,
	int bits, uint32_t *rank, uint32_t *count, uint32_t *found)
{
	uint32_t bins = 1u << bits, above = shift + bits < 32 ? ~0u << (shift + bits) : 0;
	for (int i = threadIdx.x; i < 2048; i += SELECT_THREADS)
		count[i] = 0;
	__syncthreads();
	auto add = [&](float v) {
		uint32_t key = order_key(v);
		if (!((key ^ prefix) & above))
			atomicAdd(&count[key >> shift & (bins - 1)], 1);
	};
	for (int t = 4 * threadIdx.x; t < n; t += 4 * SELECT_THREADS) {
		float4 v = *(const float4 *)(score + t); /* the rows are padded to whole fours */
		add(v.x);
		if (t + 1 < n)
			add(v.y);
		if (t + 2 < n)
			add(v.z);
		if (t + 3 < n)
			add(v.w);
	}
	__syncthreads();
	/* one warp: lane l sums a 32nd of the bins from the top, then the lane whose share holds the
	 * rank looks closer */
	if (threadIdx.x < 32) {
		uint32_t share = bins / 32, high = bins - threadIdx.x * share, mine = 0;
		for (uint32_t i = 1; i <= share; i++)
			mine += count[high - i];
		uint32_t before = mine;
		for (int step = 1; step < 32; step *= 2) {
			uint32_t v = __shfl_up_sync(0xffffffffu, before, step);
			before += (int)threadIdx.x >= step ? v : 0;
		}
		before -= mine;
		uint32_t left = *rank;
		if (left > before && left <= before + mine) {
			left -= before;
			uint32_t bin = high - 1;
			while (left > count[bin])
				left -= count[bin--];
			found[0] = bin << shift;
			found[1] = left;
		}
	}
	__syncthreads();
	*rank = found[1];
	uint32_t bin = found[0];
	__syncthreads();
	return bin;
}

static __global__ void __launch_bounds__(SELECT_THREADS)
	select_kernel(const __grid_constant__ struct select_args g)
{
	__shared__ uint32_t count[2048], found[2], warp_sums[32];
	const struct index_select &a = g.a;
	int r = g.first_row + blockIdx.x, n = g.pos[r] + 1, tid = threadIdx.x, lane = tid % 32,
		warp = tid / 32;
	int32_t *sel = a.sel + (int64_t)r * a.top_k;
	const float *score = g.score + blockIdx.x * g.stride;
	if (!tid)
		a.n_sel[r] = min(n, a.top_k);
	if (n <= a.top_k) {
		for (int t = tid; t < n; t += SELECT_THREADS)
			sel[t] = t;
		return;
	}
	uint32_t rank = (uint32_t)a.top_k,
			 threshold = radix_select_pass(score, n, 0, 21, 11, &rank, count, found);
	threshold |= radix_select_pass(score, n, threshold, 10, 11, &rank, count, found);
	threshold |= radix_select_pass(score, n, threshold, 0, 10, &rank, count, found);
	/* four positions a thread and step; counts of larger (high half) and equal ones (low half)
	 * before each, by block scan */
	uint32_t larger = 0, equal = 0;
	for (int t0 = 0; t0 < n; t0 += 4 * SELECT_THREADS) {
		int t = t0 + 4 * tid;
		uint32_t key[4], mine = 0;
		float4 v = t < n ? *(const float4 *)(score + t) : make_float4(0, 0, 0, 0);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			key[i] = order_key(i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w);
			mine += t + i >= n ? 0 : key[i] > threshold ? 0x10000u : key[i] == threshold ? 1u : 0u;
		}
		uint32_t upto = mine;
		for (int step = 1; step < 32; step *= 2) {
			uint32_t v = __shfl_up_sync(0xffffffffu, upto, step);
			upto += lane >= step ? v : 0;
		}
		if (lane == 31)
			warp_sums[warp] = upto;
		__syncthreads();
		uint32_t before = upto - mine, total = 0;
		for (int i = 0; i < SELECT_THREADS / 32; i++) {
			before += i < warp ? warp_sums[i] : 0;
			total += warp_sums[i];
		}
		uint32_t l = larger + (before >> 16), e = equal + (before & 0xffff);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			if (t + i >= n)
				break;
			bool is_equal = key[i] == threshold;
			if (key[i] > threshold || (is_equal && e < rank))
				sel[l + min(e, rank)] = t + i;
			l += key[i] > threshold;
			e += is_equal;
		}
		larger += total >> 16;
		equal += total & 0xffff;
		__syncthreads();
	}
}

void cuda_index_select(struct backend *base, const struct batch *rows, const struct index_select *a)
{
	struct cuda_backend *b = cuda_of(base);
	if (!cuda_begin(base, "index_select") || !rows->n || index_select_decode(b, rows, a))
		return;
	struct select_args g = {*a, rows->pos, rows->base, 0, 0, 0, NULL, 0, 0};
	int longest = rows->max_pos + 1, group = rows->n < 65535 ? rows->n : 65535;
	g.dim_stride = (a->head_dim + 3) / 4 * 4;
	g.dim_stride += g.dim_stride / 4 % 2 ? 0 : 4;
	g.head_scale = (float)(1.0 / sqrt((double)a->n_heads));
	g.dim_scale = (float)(1.0 / sqrt((double)a->head_dim));
	g.stride = (longest + 3) / 4 * 4;
	size_t shared =
		((size_t)(KEYS + a->n_heads) * (size_t)g.dim_stride + (size_t)a->n_heads) * sizeof(float);
	if (longest > a->top_k) {
		size_t row_bytes = (size_t)g.stride * sizeof(float);
		if (!cuda_allow_shared(b, (const void *)score_kernel, shared))
			return;
		size_t fit = SCRATCH_MAX_BYTES / row_bytes;
		group = fit < 1 ? 1 : fit < (size_t)group ? (int)fit : group;
		/* in large steps, so that it does not grow with every token of context */
		size_t want = row_bytes * (size_t)group, step = (size_t)4 << 20;
		g.score = (float *)cuda_scratch(b, (want + step - 1) / step * step);
		if (!g.score)
			return;
	}
	for (; g.first_row < rows->n; g.first_row += group) {
		unsigned n = (unsigned)(rows->n - g.first_row < group ? rows->n - g.first_row : group);
		if (longest > a->top_k &&
			!index_scores_rows(b, rows, a, g.first_row, (int)n, g.stride, g.score) &&
			!index_scores_mma(b, rows, a, g.first_row, (int)n, g.stride, g.score))
			score_kernel<<<dim3((unsigned)((longest + KEYS - 1) / KEYS), n), THREADS, shared,
				b->stream>>>(g);
		select_kernel<<<n, SELECT_THREADS, 0, b->stream>>>(g);
		cuda_launched(b);
	}
}
