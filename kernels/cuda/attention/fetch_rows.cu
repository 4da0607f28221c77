/* SPDX-License-Identifier: MIT */
/*
 * fetch_rows copies the selected rows of a cache to the card, and decodes rows in 8 bits. A kernel
 * reads the cache in mapped host memory: the host need not know the selection, and a captured graph
 * can contain the copy. store_rows encodes the rows of a step in 8 bits.
 *
 * fetch_kernel: grid (groups of ENTRIES list entries) x rows of the step, block THREADS. The first
 * warp of a block lists the cache rows that the block copies. Then all threads copy them, each with
 * UNROLL loads before the first store. Where several rows of a step have selected the same cache
 * row, the block that first sets its bit in a map copies it. A unit of a row in 8 bits, which one
 * thread decodes, is four values, or two of those in 16 bits.
 *
 * store_kernel: grid (rows, blocks of CACHE_F8_BLOCK values and one more for the values in 16
 * bits), block CACHE_F8_BLOCK: a value a thread.
 *
 * Bytes moved: every selected cache row once over the link, and the lists. Decoding GLM-5.2 that is
 * 2,048 rows a layer, of 1,152 bytes in 16 bits or 656 in 8 bits.
 */
#include "kernels/cuda/attention/attention.cuh"

#include <cuda_fp8.h>

#define ENTRIES 32
#define THREADS 256
#define UNROLL  4

struct fetch_args {
	struct fetch_rows a;
	const int32_t *base;
	int groups;      /* of a row of the step */
	int units;       /* of a cache row, each copied by one thread */
	uint32_t *taken; /* [capacity / 32 + 1], zero before; NULL: every list entry is copied */
};

/* Copies units of type U. */
template <typename U> struct same_type {
	typedef U unit;
	static __device__ __forceinline__ unit load(const struct fetch_args &g, int64_t row, int at)
	{
		return __ldcg((const U *)g.a.from.data + row * g.units + at);
	}
	static __device__ __forceinline__ void store(
		const struct fetch_args &g, int64_t row, int at, unit v)
	{
		((U *)g.a.to.data)[row * g.units + at] = v;
	}
};

/* F8_E4M3 to F16 */
struct from_f8 {
	struct unit {
		uint32_t bits;
		float scale;
	};
	static __device__ __forceinline__ unit load(const struct fetch_args &g, int64_t row, int at)
	{
		int n = g.a.n_value, n_scales = n / CACHE_F8_BLOCK;
		const uint32_t *words = (const uint32_t *)g.a.from.data + row * (g.units + n_scales);
		if (at >= n / 4) /* values in 16 bits, behind the scales */
			return {__ldcg(words + n_scales + at), 0};
		return {
			__ldcg(words + at), __uint_as_float(__ldcg(words + n / 4 + at / (CACHE_F8_BLOCK / 4)))};
	}
	static __device__ __forceinline__ void store(
		const struct fetch_args &g, int64_t row, int at, unit v)
	{
		int n = g.a.n_value;
		__half *to = (__half *)g.a.to.data + row * g.a.to.width;
		if (at >= n / 4) {
			*(uint32_t *)(to + n + 2 * (at - n / 4)) = v.bits;
			return;
		}
#pragma unroll
		for (int i = 0; i < 2; i++) {
			float2 f = __half22float2((__half2)__nv_cvt_fp8x2_to_halfraw2(
				(__nv_fp8x2_storage_t)(v.bits >> 16 * i), __NV_E4M3));
			*(__half2 *)(to + 4 * at + 2 * i) =
				__floats2half2_rn(__fmul_rn(f.x, v.scale), __fmul_rn(f.y, v.scale));
		}
	}
};

/* M: same_type or from_f8 */
template <typename M>
static __global__ void __launch_bounds__(THREADS)
	fetch_kernel(const __grid_constant__ struct fetch_args g)
{
	__shared__ int64_t mine[ENTRIES];
	__shared__ int n_mine;
	launch_dependents();
	grid_dependency_wait();
	int r = blockIdx.x / g.groups, first = blockIdx.x % g.groups * ENTRIES, n_sel = g.a.n_sel[r];
	if (first >= n_sel)
		return;
	if (threadIdx.x < 32) {
		int entry = first + (int)threadIdx.x;
		bool take = entry < n_sel;
		int64_t row = take ? g.base[r] + (int64_t)g.a.sel[(int64_t)r * g.a.sel_stride + entry] : 0;
		if (take && g.taken) {
			uint32_t *word = g.taken + row / 32, bit = 1u << row % 32;
			take = !(__ldcg(word) & bit) && !(atomicOr(word, bit) & bit);
		}
		unsigned all = __ballot_sync(0xffffffffu, take);
		if (take)
			mine[__popc(all & ((1u << threadIdx.x) - 1))] = row;
		if (!threadIdx.x)
			n_mine = __popc(all);
	}
	__syncthreads();
	int total = n_mine * g.units;
	for (int i = threadIdx.x; i < total; i += UNROLL * THREADS) {
		typename M::unit v[UNROLL];
#pragma unroll
		for (int k = 0; k < UNROLL; k++) {
			int j = i + k * THREADS;
			if (j < total)
				v[k] = M::load(g, mine[j / g.units], j % g.units);
		}
#pragma unroll
		for (int k = 0; k < UNROLL; k++) {
			int j = i + k * THREADS;
			if (j < total)
				M::store(g, mine[j / g.units], j % g.units, v[k]);
		}
	}
}

static __global__ void __launch_bounds__(CACHE_F8_BLOCK) store_kernel(
	const __grid_constant__ struct cache_view from, const __grid_constant__ struct cache_view to,
	int n_value, int64_t row_bytes, const int32_t *pos, const int32_t *base)
{
	__shared__ float warp_most[CACHE_F8_BLOCK / 32];
	launch_dependents();
	grid_dependency_wait();
	int64_t row = base[blockIdx.x] + (int64_t)pos[blockIdx.x];
	int first = (int)blockIdx.y * CACHE_F8_BLOCK, i = threadIdx.x;
	const __half *in = (const __half *)from.data + row * from.width + first;
	uint8_t *out = (uint8_t *)to.data + row * row_bytes;
	float *scales = (float *)(out + n_value);
	if (first == n_value) { /* values in 16 bits */
		__half *rest = (__half *)(scales + n_value / CACHE_F8_BLOCK);
		for (; i < from.width - n_value; i += CACHE_F8_BLOCK)
			rest[i] = in[i];
		return;
	}
	float v = __half2float(in[i]), most = fabsf(v);
	for (int step = 16; step; step /= 2)
		most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
	if (i % 32 == 0)
		warp_most[i / 32] = most;
	__syncthreads();
	most = fmaxf(fmaxf(warp_most[0], warp_most[1]), fmaxf(warp_most[2], warp_most[3]));
	float scale = __fdiv_rn(most, 448.0f);
	out[first + i] =
		scale > 0 ? __nv_cvt_float_to_fp8(__fdiv_rn(v, scale), __NV_SATFINITE, __NV_E4M3) : 0;
	if (!i)
		scales[blockIdx.y] = scale;
}

void cuda_store_rows(struct backend *base, const struct batch *rows, const struct cache_view *from,
	const struct cache_view *to, int n_value)
{
	if (!cuda_begin(base, "store_rows") || !rows->n)
		return;
	static_assert(CACHE_F8_BLOCK == 128, "four warps");
	dim3 grid((unsigned)rows->n, (unsigned)(n_value / CACHE_F8_BLOCK + 1));
	cuda_launch(cuda_of(base), store_kernel, grid, CACHE_F8_BLOCK, 0, *from, *to, n_value,
		(int64_t)cache_f8_row_bytes(to->width, n_value), rows->pos, rows->base);
}

void cuda_fetch_rows(struct backend *base, const struct batch *rows, const struct fetch_rows *a)
{
	struct cuda_backend *b = cuda_of(base);
	if (!cuda_begin(base, "fetch_rows") || !rows->n)
		return;
	int longest = rows->max_pos < a->sel_stride ? rows->max_pos + 1 : a->sel_stride,
		row_bytes = a->from.width * (a->from.type == DTYPE_F16 ? 2 : 4);
	struct fetch_args g = {*a, rows->base, (longest + ENTRIES - 1) / ENTRIES, 0, NULL};
	if (rows->n > 1) {
		size_t bytes = ((size_t)a->capacity / 32 + 1) * sizeof *g.taken;
		g.taken = (uint32_t *)cuda_scratch(b, bytes);
		if (!g.taken || !cuda_check(b, cudaMemsetAsync(g.taken, 0, bytes, b->stream)))
			return;
		b->next_serialized = true;
	}
	dim3 grid((unsigned)g.groups * (unsigned)rows->n);
	if (a->from.type == DTYPE_F8_E4M3) {
		g.units = a->n_value / 4 + (a->from.width - a->n_value) / 2;
		cuda_launch(b, fetch_kernel<from_f8>, grid, THREADS, 0, g);
		return;
	}
	bool wide = !(((uintptr_t)a->from.data | (uintptr_t)a->to.data | (unsigned)row_bytes) & 15);
	g.units = row_bytes / (wide ? 16 : 2);
	if (wide)
		cuda_launch(b, fetch_kernel<same_type<uint4>>, grid, THREADS, 0, g);
	else
		cuda_launch(b, fetch_kernel<same_type<unsigned short>>, grid, THREADS, 0, g);
}
