/* SPDX-License-Identifier: MIT */
/*
 * Ops whose work is proportional to the activations. Each reads its input and writes its output once.
 *
 *   embed                    grid (runs of 256 values, rows), block 64: four values a thread
 *   rms_norm                 grid (rows, norms), block: n / 8 threads, at most 1024; a thread keeps its eight values
 *   latent_append            grid rows, block as for rms_norm
 *   index_append             grid rows, block 256
 *   swiglu, moe_combine      grid over values, block 256, one value a thread (moe_combine: y = rows)
 *   rope, rope_angles        grid over pairs, block 256, one pair a thread
 *
 * Products and sums are rounded one by one where the CPU backend does so; means are taken in double.
 */
#include "kernels/cuda/block_dot.cuh"

static unsigned blocks_for(int64_t n, int per)
{
	return (unsigned)((n + per - 1) / per);
}

/* ---- embed ------------------------------------------------------------------------------------------------- */

template <int T>
static __global__ void embed_kernel(const uint8_t *data, int64_t row_bytes, const int32_t *ids, int n,
	const struct cuda_tables *t, float *out)
{
	grid_let_next();
	grid_wait_before();
	const uint8_t *p = data + ids[blockIdx.y] * row_bytes + (int64_t)blockIdx.x * packed<T>::RUN_BYTES;
	int v = 4 * threadIdx.x, k = blockIdx.x * 256 + v;
	float q[4], factor = 1, offset = 0, *y = out + (int64_t)blockIdx.y * n;
	if (!packed<T>::FACTOR && k + 4 > n) { /* one by one, so that nothing past the table is read */
		for (int i = 0; k + i < n; i++)
			y[k + i] = T == DTYPE_F32   ? ((const float *)p)[v + i]
					   : T == DTYPE_F16 ? half_float(get16(p + 2 * (v + i)))
										: __uint_as_float(get16(p + 2 * (v + i)) << 16);
		return;
	}
	if (k >= n)
		return;
	packed<T>::get(p, v, t, q, factor, offset);
	for (int i = 0; i < 4; i++) {
		float f = packed<T>::FACTOR ? __fmul_rn(factor, q[i]) : q[i];
		y[k + i] = packed<T>::OFFSET ? __fadd_rn(f, offset) : f;
	}
}

void cuda_embed(struct backend *base, struct weight table, const int32_t *ids, int rows, float *out)
{
	struct cuda_backend *b = cuda_of(base);
	if (!cuda_begin(base, "embed") || !rows)
		return;
	dim3 grid(blocks_for(table.n_in, 256), (unsigned)rows);
	const uint8_t *data = (const uint8_t *)table.data;
	switch (table.type) {
#define CASE(t)                                                                                              \
	case DTYPE_##t:                                                                                          \
		cuda_launch(b, embed_kernel<DTYPE_##t>, grid, 64, 0, data, (int64_t)table.row_bytes, ids,            \
			(int)table.n_in, b->tables, out);                                                                \
		break;
		PACKED_TYPES(CASE)
#undef CASE
	default:
		break;
	}
}

/* ---- norms ------------------------------------------------------------------------------------------------- */

#define NORM_HELD 2 /* times four values of a row that a thread holds */

/* Threads that hold a row of n, if 1024 can */
static unsigned norm_threads(int n)
{
	int warps = (n + 128 * NORM_HELD - 1) / (128 * NORM_HELD);
	return 32 * (unsigned)(warps < 1 ? 1 : warps > 32 ? 32 : warps);
}

static bool is_wide(const void *p, int64_t stride)
{
	return !((uintptr_t)p % 16) && !(stride % 4);
}

/* p[i .. i + 4), zeros past n */
static __device__ __forceinline__ float4 load_four(const float *p, int i, int n, bool wide)
{
	if (wide && i + 4 <= n)
		return *(const float4 *)(p + i);
	return make_float4(
		i < n ? p[i] : 0, i + 1 < n ? p[i + 1] : 0, i + 2 < n ? p[i + 2] : 0, i + 3 < n ? p[i + 3] : 0);
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
	return make_float4(__fmul_rn(__fmul_rn(v.x, scale), gain.x), __fmul_rn(__fmul_rn(v.y, scale), gain.y),
		__fmul_rn(__fmul_rn(v.z, scale), gain.z), __fmul_rn(__fmul_rn(v.w, scale), gain.w));
}

/* A block of norm_threads: gain * x / sqrt(mean of squares + eps), four values at a time, to store(i, values), which looks at n. Thread t
 * squares the values 4 t .. 4 t + 3 of each 4 * threads, in order; wide: x and gain lie at multiples of 16 bytes. Waits for what
 * stands before the kernel when it has the gain. */
template <typename S>
static __device__ __forceinline__ void norm_row(
	const float *x, const float *gain, float eps, int n, bool wide, const S &store)
{
	__shared__ double scratch[32];
	float4 g[NORM_HELD], v[NORM_HELD];
	int first = 4 * threadIdx.x, step = 4 * blockDim.x;
	double sum = 0;
#pragma unroll
	for (int j = 0; j < NORM_HELD; j++)
		g[j] = load_four(gain, first + j * step, n, wide);
	grid_wait_before();
#pragma unroll
	for (int j = 0; j < NORM_HELD; j++)
		v[j] = load_four(x, first + j * step, n, wide);
#pragma unroll
	for (int j = 0; j < NORM_HELD; j++)
		sum = add_squares(sum, v[j]);
	for (int i = first + NORM_HELD * step; i < n; i += step)
		sum = add_squares(sum, load_four(x, i, n, wide));
	float scale = (float)rsqrt(block_sum(sum, scratch) / n + (double)eps);
#pragma unroll
	for (int j = 0; j < NORM_HELD; j++)
		store(first + j * step, normed(v[j], scale, g[j]));
	for (int i = first + NORM_HELD * step; i < n; i += step)
		store(i, normed(load_four(x, i, n, wide), scale, load_four(gain, i, n, wide)));
}

struct norms {
	struct norm of[NORMS_MAX];
};

static __global__ void __launch_bounds__(1024) rms_norm_kernel(const float *x, int64_t x_stride,
	const __grid_constant__ struct norms norms, float eps, int n, int64_t out_stride, bool wide)
{
	grid_let_next();
	float *out = norms.of[blockIdx.y].out + blockIdx.x * out_stride;
	norm_row(x + blockIdx.x * x_stride, norms.of[blockIdx.y].gain, eps, n, wide, [&](int i, float4 v) {
		if (wide && i + 4 <= n) {
			*(float4 *)(out + i) = v;
			return;
		}
		for (int k = 0; k < 4 && i + k < n; k++)
			out[i + k] = k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w;
	});
}

void cuda_rms_norm(struct backend *b, const float *x, int64_t x_stride, const struct norm *norms, int n_norms,
	float eps, int rows, int n, int64_t out_stride)
{
	if (!cuda_begin(b, "rms_norm") || !rows || !n_norms)
		return;
	struct norms all = {};
	bool wide = is_wide(x, x_stride);
	for (int i = 0; i < n_norms; i++) {
		all.of[i] = norms[i];
		wide &= is_wide(norms[i].gain, 0) && is_wide(norms[i].out, out_stride);
	}
	cuda_launch(cuda_of(b), rms_norm_kernel, dim3((unsigned)rows, (unsigned)n_norms), norm_threads(n), 0, x,
		x_stride, all, eps, n, out_stride, wide);
}

/* ---- swiglu, moe_combine ------------------------------------------------------------------------------------ */

static __global__ void swiglu_kernel(const float *gate, const float *up, int64_t n, float *out)
{
	grid_let_next();
	grid_wait_before();
	int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		out[i] = swiglu_one(gate[i], up[i]);
}

void cuda_swiglu(struct backend *b, const float *gate, const float *up, int64_t n, float *out)
{
	if (!cuda_begin(b, "swiglu") || !n)
		return;
	cuda_launch(cuda_of(b), swiglu_kernel, blocks_for(n, 256), 256, 0, gate, up, n, out);
}

static __global__ void moe_combine_kernel(
	const float *out, const float *weights, int n_used, const float *shared, int n, float *x)
{
	grid_let_next();
	grid_wait_before();
	int64_t r = blockIdx.y;
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= n)
		return;
	float sum = 0;
	for (int k = 0; k < n_used; k++)
		sum = __fadd_rn(sum, __fmul_rn(weights[r * n_used + k], out[(r * n_used + k) * n + i]));
	x[r * n + i] = __fadd_rn(x[r * n + i], __fadd_rn(sum, shared[r * n + i]));
}

void cuda_moe_combine(struct backend *b, const float *out, const float *weights, int n_used,
	const float *shared, int rows, int n, float *x)
{
	if (!cuda_begin(b, "moe_combine") || !rows)
		return;
	dim3 grid(blocks_for(n, 256), (unsigned)rows);
	cuda_launch(cuda_of(b), moe_combine_kernel, grid, 256, 0, out, weights, n_used, shared, n, x);
}

/* ---- rotation ----------------------------------------------------------------------------------------------- */

static __global__ void rope_angles_kernel(
	const int32_t *pos, const float *inv_freq, int rows, int half, float *cos_sin)
{
	grid_let_next();
	grid_wait_before();
	int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
	if (at >= (int64_t)rows * half)
		return;
	float s, c, angle = __fmul_rn((float)pos[at / half], inv_freq[at % half]);
	sincosf(angle, &s, &c);
	cos_sin[2 * at] = c;
	cos_sin[2 * at + 1] = s;
}

void cuda_rope_angles(
	struct backend *b, const struct batch *rows, const float *inv_freq, int dim, float *cos_sin)
{
	if (!cuda_begin(b, "rope_angles") || !rows->n)
		return;
	cuda_launch(cuda_of(b), rope_angles_kernel, blocks_for((int64_t)rows->n * (dim / 2), 256), 256, 0,
		rows->pos, inv_freq, rows->n, dim / 2, cos_sin);
}

static __device__ __forceinline__ float2 rotated(const float *cos_sin, float a, float v)
{
	float c = cos_sin[0], s = cos_sin[1];
	return make_float2(
		__fsub_rn(__fmul_rn(a, c), __fmul_rn(v, s)), __fadd_rn(__fmul_rn(a, s), __fmul_rn(v, c)));
}

static __global__ void rope_kernel(const float *cos_sin, int half, const float *x, int64_t x_stride, float *y,
	int64_t y_stride, int n_heads, int64_t n)
{
	grid_let_next();
	grid_wait_before();
	int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= n)
		return;
	int64_t head = i / half, pair = i % half, r = head / n_heads;
	float2 v = rotated(
		cos_sin + 2 * (r * half + pair), x[head * x_stride + 2 * pair], x[head * x_stride + 2 * pair + 1]);
	y[head * y_stride + 2 * pair] = v.x;
	y[head * y_stride + 2 * pair + 1] = v.y;
}

void cuda_rope(struct backend *b, const struct rope *rope, const float *x, int64_t x_stride, float *y,
	int64_t y_stride, int rows, int n_heads)
{
	int64_t n = (int64_t)rows * n_heads * (rope->dim / 2);
	if (!cuda_begin(b, "rope") || !n)
		return;
	cuda_launch(cuda_of(b), rope_kernel, blocks_for(n, 256), 256, 0, rope->cos_sin, rope->dim / 2, x,
		x_stride, y, y_stride, n_heads, n);
}

/* ---- cache rows --------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ void cache_store(const struct cache_view &c, int64_t row, int i, float v)
{
	if (c.type == DTYPE_F16)
		((__half *)c.data)[row * c.width + i] = __float2half_rn(v);
	else
		((float *)c.data)[row * c.width + i] = v;
}

static __global__ void __launch_bounds__(1024) latent_append_kernel(struct batch rows, struct rope rope,
	const float *u, int n_latent, const float *gain, float eps, struct cache_view cache, bool wide)
{
	grid_let_next();
	int64_t r = blockIdx.x;
	u += r * cache.width;
	norm_row(u, gain, eps, n_latent, wide, [&](int i, float4 v) {
		int64_t row = rows.base[r] + (int64_t)rows.pos[r];
		for (int k = 0; k < 4 && i + k < n_latent; k++)
			cache_store(cache, row, i + k, k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w);
	});
	int64_t row = rows.base[r] + (int64_t)rows.pos[r];
	for (int i = threadIdx.x; i < rope.dim / 2; i += blockDim.x) {
		float2 v = rotated(rope.cos_sin + r * rope.dim + 2 * i, u[n_latent + 2 * i], u[n_latent + 2 * i + 1]);
		cache_store(cache, row, n_latent + 2 * i, v.x);
		cache_store(cache, row, n_latent + 2 * i + 1, v.y);
	}
}

void cuda_latent_append(struct backend *b, const struct batch *rows, const struct rope *rope, const float *u,
	int n_latent, const float *gain, float eps, struct cache_view cache)
{
	if (!cuda_begin(b, "latent_append") || !rows->n)
		return;
	cuda_launch(cuda_of(b), latent_append_kernel, (unsigned)rows->n, norm_threads(n_latent), 0, *rows, *rope,
		u, n_latent, gain, eps, cache, is_wide(u, cache.width) && is_wide(gain, 0));
}

static __global__ void index_append_kernel(struct batch rows, struct rope rope, const float *k,
	const float *gain, const float *bias, float eps, struct cache_view cache)
{
	grid_let_next();
	grid_wait_before();
	__shared__ double scratch[32];
	int n = cache.width;
	int64_t r = blockIdx.x, row = rows.base[r] + (int64_t)rows.pos[r];
	k += r * n;
	double sum = 0, squares = 0;
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		sum += (double)k[i];
	double mean = block_sum(sum, scratch) / n;
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		squares += ((double)k[i] - mean) * ((double)k[i] - mean);
	double scale = 1.0 / sqrt(block_sum(squares, scratch) / n + (double)eps);
	auto value = [&](int i) {
		return __fadd_rn(__fmul_rn((float)(((double)k[i] - mean) * scale), gain[i]), bias[i]);
	};
	for (int i = threadIdx.x; i < rope.dim / 2; i += blockDim.x) {
		float2 v = rotated(rope.cos_sin + r * rope.dim + 2 * i, value(2 * i), value(2 * i + 1));
		cache_store(cache, row, 2 * i, v.x);
		cache_store(cache, row, 2 * i + 1, v.y);
	}
	for (int i = rope.dim / 2 * 2 + threadIdx.x; i < n; i += blockDim.x)
		cache_store(cache, row, i, value(i));
}

void cuda_index_append(struct backend *b, const struct batch *rows, const struct rope *rope, const float *k,
	const float *gain, const float *bias, float eps, struct cache_view cache)
{
	if (!cuda_begin(b, "index_append") || !rows->n)
		return;
	cuda_launch(
		cuda_of(b), index_append_kernel, (unsigned)rows->n, 256, 0, *rows, *rope, k, gain, bias, eps, cache);
}
