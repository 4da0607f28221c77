/* SPDX-License-Identifier: MIT */
/*
 * Norms of a row by a block, and the cache rows that are made of them: shared by rms_norm, latents
 * and gemv_chain_kernel. Means are computed in double; the order of additions depends only on the
 * length of the row.
 */
#ifndef GLM_KERNELS_CUDA_NORM_CUH
#define GLM_KERNELS_CUDA_NORM_CUH

#include "kernels/cuda/runtime/gpu_backend.cuh"

#define NORM_HELD 2 /* float4 of a row that a thread keeps in registers */

/* Threads that keep a row of n values in registers, at most 1024 */
static __host__ __device__ __forceinline__ unsigned norm_threads(int n)
{
	int warps = (n + 128 * NORM_HELD - 1) / (128 * NORM_HELD);
	return 32 * (unsigned)(warps < 1 ? 1 : warps > 32 ? 32 : warps);
}

/* Whether rows from p on, `stride` floats apart, begin at multiples of 16 bytes. */
static inline bool is_aligned_16(const void *p, int64_t stride)
{
	return !((uintptr_t)p % 16) && !(stride % 4);
}

/* p[i .. i + 4), zeros past n */
static __device__ __forceinline__ float4 load_four(const float *p, int i, int n, bool vectorised)
{
	if (vectorised && i + 4 <= n)
		return *(const float4 *)(p + i);
	return make_float4(i < n ? p[i] : 0, i + 1 < n ? p[i + 1] : 0, i + 2 < n ? p[i + 2] : 0,
		i + 3 < n ? p[i + 3] : 0);
}

/* Loads four weights, not later than where it is called. The compiler may move an ordinary load of
 * constant data behind grid_dependency_wait. */
static __device__ __forceinline__ float4 load_ahead(const float *p)
{
	float4 v;
	asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
				 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
				 : "l"(p)
				 : "memory");
	return v;
}

static __device__ __forceinline__ void store_four(float *p, int i, int n, bool vectorised, float4 v)
{
	if (vectorised && i + 4 <= n) {
		*(float4 *)(p + i) = v;
		return;
	}
	for (int k = 0; k < 4 && i + k < n; k++)
		p[i + k] = k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w;
}

static __device__ __forceinline__ double add_squares(double sum, float4 v)
{
	sum = fma((double)v.x, (double)v.x, sum);
	sum = fma((double)v.y, (double)v.y, sum);
	sum = fma((double)v.z, (double)v.z, sum);
	return fma((double)v.w, (double)v.w, sum);
}

static __device__ __forceinline__ float4 normed(float4 v, float scale, float4 gain)
{
	return make_float4(__fmul_rn(__fmul_rn(v.x, scale), gain.x),
		__fmul_rn(__fmul_rn(v.y, scale), gain.y), __fmul_rn(__fmul_rn(v.z, scale), gain.z),
		__fmul_rn(__fmul_rn(v.w, scale), gain.w));
}

/* By a whole block: y = gain * x / sqrt(mean of squares + eps), which goes to store(i, y[i .. i +
 * 3]) for each i that is a multiple of 4; store leaves out values past n.
 * - Thread t of the first norm_threads(n) adds the squares of values 4 t .. 4 t + 3 of each 4 *
 *   norm_threads(n) values, in order.
 * - vectorised: x and gain are at multiples of 16 bytes.
 * - Loads the gain, then calls grid_dependency_wait. */
template <typename S>
static __device__ __forceinline__ void norm_row(
	const float *x, const float *gain, float eps, int n, bool vectorised, const S &store)
{
	__shared__ double scratch[32];
	float4 g[NORM_HELD], v[NORM_HELD];
	int threads = norm_threads(n), first = threadIdx.x < threads ? 4 * threadIdx.x : n,
		step = 4 * threads;
	double sum = 0;
#pragma unroll
	for (int j = 0; j < NORM_HELD; j++)
		g[j] = load_four(gain, first + j * step, n, vectorised);
	grid_dependency_wait();
#pragma unroll
	for (int j = 0; j < NORM_HELD; j++)
		v[j] = load_four(x, first + j * step, n, vectorised);
#pragma unroll
	for (int j = 0; j < NORM_HELD; j++)
		sum = add_squares(sum, v[j]);
	for (int i = first + NORM_HELD * step; i < n; i += step)
		sum = add_squares(sum, load_four(x, i, n, vectorised));
	float scale = (float)rsqrt(block_sum(sum, scratch) / n + (double)eps);
#pragma unroll
	for (int j = 0; j < NORM_HELD; j++)
		store(first + j * step, normed(v[j], scale, g[j]));
	for (int i = first + NORM_HELD * step; i < n; i += step)
		store(i, normed(load_four(x, i, n, vectorised), scale, load_four(gain, i, n, vectorised)));
}

/* ---- cache rows ---- */

static __device__ __forceinline__ void cache_store(
	const struct cache_view &c, int64_t row, int i, float v)
{
	if (c.type == DTYPE_F16)
		((__half *)c.data)[row * c.width + i] = __float2half_rn(v);
	else
		((float *)c.data)[row * c.width + i] = v;
}

/* cosine and sine for values i, i + 1 of row r */
static __device__ __forceinline__ float2 angle(const struct rope &rope, int64_t r, int i)
{
	return make_float2(rope.cos_sin[r * rope.dim + i], rope.cos_sin[r * rope.dim + i + 1]);
}

#define KEY_THREADS 64 /* two values of a key each, at a time */

/* By a whole block: layer norm and rotation of the key of row r, to its place in key_cache. The
 * first KEY_THREADS threads work; thread t has the pairs of values t, t + KEY_THREADS, ... */
static __device__ __forceinline__ void append_key(
	const struct batch &rows, const struct rope &rope, const struct latents &a, int64_t r)
{
	__shared__ double scratch[2][32];
	int n = a.key_cache.width, mine = threadIdx.x < KEY_THREADS ? 2 * (int)threadIdx.x : n;
	const float *k = a.key + r * n;
	auto pair = [&](const float *p, int i) {
		return make_float2(i < n ? p[i] : 0, i + 1 < n ? p[i + 1] : 0);
	};
	float2 first_gain = pair(a.key_gain, mine), first_bias = pair(a.key_bias, mine);
	grid_dependency_wait();
	int64_t row = rows.base[r] + (int64_t)rows.pos[r];
	float2 first = pair(k, mine);
	double sum = 0, squares = 0;
	for (int i = mine; i < n; i += 2 * KEY_THREADS) {
		float2 v = i == mine ? first : pair(k, i);
		sum += (double)v.x + (double)v.y;
	}
	double mean = block_sum(sum, scratch[0]) / n;
	for (int i = mine; i < n; i += 2 * KEY_THREADS) {
		float2 v = i == mine ? first : pair(k, i);
		double x = (double)v.x - mean, y = i + 1 < n ? (double)v.y - mean : 0;
		squares += x * x + y * y;
	}
	double scale = rsqrt(block_sum(squares, scratch[1]) / n + (double)a.key_eps);
	for (int i = mine; i < n; i += 2 * KEY_THREADS) {
		float2 v = i == mine ? first : pair(k, i),
			   gain = i == mine ? first_gain : pair(a.key_gain, i),
			   bias = i == mine ? first_bias : pair(a.key_bias, i);
		v.x = __fadd_rn(__fmul_rn((float)(((double)v.x - mean) * scale), gain.x), bias.x);
		v.y = __fadd_rn(__fmul_rn((float)(((double)v.y - mean) * scale), gain.y), bias.y);
		if (i < rope.dim)
			v = rotated(angle(rope, r, i), v);
		cache_store(a.key_cache, row, i, v.x);
		if (i + 1 < n)
			cache_store(a.key_cache, row, i + 1, v.y);
	}
}

/* By a whole block: norm of row r's latent and rotation of the values behind it, to the row's place
 * in kv_cache. vectorised: the row and the gain are at multiples of 16 bytes. */
static __device__ __forceinline__ void append_latent(const struct batch &rows,
	const struct rope &rope, const struct latents &a, int64_t r, bool vectorised)
{
	const float *u = a.kv + r * a.kv_cache.width, *rest = u + a.n_kv;
	norm_row(u, a.kv_gain, a.eps, a.n_kv, vectorised, [&](int i, float4 v) {
		int64_t row = rows.base[r] + (int64_t)rows.pos[r];
		for (int k = 0; k < 4 && i + k < a.n_kv; k++)
			cache_store(a.kv_cache, row, i + k, k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w);
	});
	int64_t row = rows.base[r] + (int64_t)rows.pos[r];
	for (int i = 2 * threadIdx.x; i < rope.dim; i += 2 * blockDim.x) {
		float2 v = rotated(angle(rope, r, i), make_float2(rest[i], rest[i + 1]));
		cache_store(a.kv_cache, row, a.n_kv + i, v.x);
		cache_store(a.kv_cache, row, a.n_kv + i + 1, v.y);
	}
}

#endif
