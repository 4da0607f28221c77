/* SPDX-License-Identifier: MIT */
/*
 * Ops whose work is proportional to the activations. Each reads its input and writes its output once.
 *
 *   embed                    grid (runs of 256 values, rows), block 64: four values a thread
 *   rms_norm                 grid (rows, norms), block: n / 8 threads, at most 1024; a thread keeps its eight values
 *   latents                  grid (rows, parts), block as for the longest rms_norm of them
 *   swiglu, moe_combine      grid over values, block 256, one value a thread (moe_combine: y = rows)
 *   ... with a norm          grid rows times clusters of 8 blocks, which share the threads of rms_norm (sm_90 and newer)
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
static __host__ __device__ __forceinline__ unsigned norm_threads(int n)
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

static __device__ __forceinline__ void store_four(float *p, int i, int n, bool wide, float4 v)
{
	if (wide && i + 4 <= n) {
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
	return make_float4(__fmul_rn(__fmul_rn(v.x, scale), gain.x), __fmul_rn(__fmul_rn(v.y, scale), gain.y),
		__fmul_rn(__fmul_rn(v.z, scale), gain.z), __fmul_rn(__fmul_rn(v.w, scale), gain.w));
}

/* The first norm_threads of a block: gain * x / sqrt(mean of squares + eps), four values at a time, to store(i, values), which looks at n. Thread t
 * squares the values 4 t .. 4 t + 3 of each 4 * threads, in order; wide: x and gain lie at multiples of 16 bytes. Waits for what
 * stands before the kernel when it has the gain. */
template <typename S>
static __device__ __forceinline__ void norm_row(
	const float *x, const float *gain, float eps, int n, bool wide, const S &store)
{
	__shared__ double scratch[32];
	float4 g[NORM_HELD], v[NORM_HELD];
	int threads = norm_threads(n), first = threadIdx.x < threads ? 4 * threadIdx.x : n, step = 4 * threads;
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
	norm_row(x + blockIdx.x * x_stride, norms.of[blockIdx.y].gain, eps, n, wide,
		[&](int i, float4 v) { store_four(out, i, n, wide, v); });
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

#define CLUSTER 8

static __device__ __forceinline__ void cluster_meet()
{
#if __CUDA_ARCH__ >= 900
	asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

/* The value at `p` in the shared memory of another block of the cluster. */
static __device__ __forceinline__ double cluster_value(const double *p, int block)
{
	double v = 0;
#if __CUDA_ARCH__ >= 900
	uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
	asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(at) : "r"(block));
	asm volatile("ld.shared::cluster.f64 %0, [%1];" : "=d"(v) : "r"(at));
#endif
	return v;
}

/* moe_combine_kernel and then rms_norm_kernel: the threads of that kernel's block, shared out to the blocks of a cluster, so that the
 * numbers are the same. Rows are held in registers. */
static __global__ void __launch_bounds__(128) combine_norm_kernel(const float *out, const float *weights,
	int n_used, const float *shared, int n, float *x, struct norm next, float eps)
{
	grid_let_next();
	__shared__ double sums[4];
	int threads = norm_threads(n), block = blockIdx.x % CLUSTER, thread = block * blockDim.x + threadIdx.x,
		lane = threadIdx.x % 32, each = blockDim.x / 32;
	int64_t r = blockIdx.x / CLUSTER;
	int i
		[NORM_HELD]; /* the first of four values; 0 where the thread has none, so that loads need no condition */
	bool mine[NORM_HELD];
	float4 g[NORM_HELD], v[NORM_HELD], s[NORM_HELD], sum[NORM_HELD];
#pragma unroll
	for (int j = 0; j < NORM_HELD; j++) {
		mine[j] = thread < threads && 4 * (thread + j * threads) < n;
		i[j] = mine[j] ? 4 * (thread + j * threads) : 0;
		g[j] = *(const float4 *)(next.gain + i[j]);
		sum[j] = make_float4(0, 0, 0, 0);
	}
	grid_wait_before();
	out += r * n_used * n;
	weights += r * n_used;
#pragma unroll
	for (int j = 0; j < NORM_HELD; j++) {
		v[j] = *(const float4 *)(x + r * n + i[j]);
		s[j] = *(const float4 *)(shared + r * n + i[j]);
	}
	for (int first = 0; first < n_used; first += 8) { /* all loads before the first use */
		float4 o[8][NORM_HELD];
		float w[8];
#pragma unroll
		for (int k = 0; k < 8; k++) {
			int rank = min(first + k, n_used - 1);
			w[k] = weights[rank];
#pragma unroll
			for (int j = 0; j < NORM_HELD; j++)
				o[k][j] = *(const float4 *)(out + (int64_t)rank * n + i[j]);
		}
#pragma unroll
		for (int k = 0; k < 8; k++)
#pragma unroll
			for (int j = 0; j < NORM_HELD; j++) {
				bool used = first + k < n_used;
				sum[j].x = used ? __fadd_rn(sum[j].x, __fmul_rn(w[k], o[k][j].x)) : sum[j].x;
				sum[j].y = used ? __fadd_rn(sum[j].y, __fmul_rn(w[k], o[k][j].y)) : sum[j].y;
				sum[j].z = used ? __fadd_rn(sum[j].z, __fmul_rn(w[k], o[k][j].z)) : sum[j].z;
				sum[j].w = used ? __fadd_rn(sum[j].w, __fmul_rn(w[k], o[k][j].w)) : sum[j].w;
			}
	}
	double squares = 0;
#pragma unroll
	for (int j = 0; j < NORM_HELD; j++) {
		v[j].x = __fadd_rn(v[j].x, __fadd_rn(sum[j].x, s[j].x));
		v[j].y = __fadd_rn(v[j].y, __fadd_rn(sum[j].y, s[j].y));
		v[j].z = __fadd_rn(v[j].z, __fadd_rn(sum[j].z, s[j].z));
		v[j].w = __fadd_rn(v[j].w, __fadd_rn(sum[j].w, s[j].w));
		if (mine[j])
			squares = add_squares(squares, v[j]);
	}
	squares = warp_sum(squares);
	if (!lane)
		sums[threadIdx.x / 32] = squares;
	cluster_meet();
	squares = warp_sum(lane < threads / 32 ? cluster_value(sums + lane % each, lane / each) : 0);
	float scale = (float)rsqrt(squares / n + (double)eps);
#pragma unroll
	for (int j = 0; j < NORM_HELD; j++)
		if (mine[j]) {
			*(float4 *)(x + r * n + i[j]) = v[j];
			*(float4 *)(next.out + r * n + i[j]) = normed(v[j], scale, g[j]);
		}
	cluster_meet(); /* nobody leaves while its sums are read */
}

void cuda_moe_combine(struct backend *base, const float *out, const float *weights, int n_used,
	const float *shared, int rows, int n, float *x, const struct norm *next, float eps)
{
	struct cuda_backend *b = cuda_of(base);
	if (!cuda_begin(base, "moe_combine") || !rows)
		return;
	bool wide = is_wide(out, n) && is_wide(shared, 0) && is_wide(x, 0);
	if (next && b->early_starts && wide && is_wide(next->gain, 0) && is_wide(next->out, 0) &&
		n <= 4096 * NORM_HELD) {
		unsigned warps = (norm_threads(n) / 32 + CLUSTER - 1) / CLUSTER;
		cuda_launch_clusters(b, combine_norm_kernel, (unsigned)rows, CLUSTER, 32 * warps, out, weights,
			n_used, shared, n, x, *next, eps);
		return;
	}
	dim3 grid(blocks_for(n, 256), (unsigned)rows);
	cuda_launch(b, moe_combine_kernel, grid, 256, 0, out, weights, n_used, shared, n, x);
	if (next)
		cuda_rms_norm(base, x, n, next, 1, eps, rows, n, n);
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

static __global__ void rope_kernel(const float *cos_sin, int half, const float *x, int64_t x_stride, float *y,
	int64_t y_stride, int n_heads, int64_t n)
{
	grid_let_next();
	grid_wait_before();
	int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= n)
		return;
	int64_t head = i / half, pair = i % half, r = head / n_heads;
	float2 v = rotated(make_float2(cos_sin[2 * (r * half + pair)], cos_sin[2 * (r * half + pair) + 1]),
		make_float2(x[head * x_stride + 2 * pair], x[head * x_stride + 2 * pair + 1]));
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

/* cosine and sine for values i, i + 1 of row r */
static __device__ __forceinline__ float2 angle(const struct rope &rope, int64_t r, int i)
{
	return make_float2(rope.cos_sin[r * rope.dim + i], rope.cos_sin[r * rope.dim + i + 1]);
}

#define KEY_THREADS 64 /* two values of a key each, at a time */

/* Layer norm and rotation of one key by a whole block, of which the first KEY_THREADS work: pair p of values by thread p, p + 64, ... */
static __device__ __forceinline__ void append_key(
	const struct batch &rows, const struct rope &rope, const struct latents &a)
{
	__shared__ double scratch[2][32];
	int n = a.key_cache.width, mine = threadIdx.x < KEY_THREADS ? 2 * (int)threadIdx.x : n;
	int64_t r = blockIdx.x;
	const float *k = a.key + r * n;
	auto pair = [&](const float *p, int i) {
		return make_float2(i < n ? p[i] : 0, i + 1 < n ? p[i + 1] : 0);
	};
	float2 first_gain = pair(a.key_gain, mine), first_bias = pair(a.key_bias, mine);
	grid_wait_before();
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
		float2 v = i == mine ? first : pair(k, i), gain = i == mine ? first_gain : pair(a.key_gain, i),
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

enum {
	LATENTS_Q = 1,
	LATENTS_KV = 2,
	LATENTS_KEY = 4
}; /* parts; of `wide`: those whose rows lie at multiples of 16 bytes */

static __global__ void __launch_bounds__(1024) latents_kernel(const __grid_constant__ struct batch rows,
	const __grid_constant__ struct rope rope, const __grid_constant__ struct latents a, int parts, int wide)
{
	grid_let_next();
	int64_t r = blockIdx.x;
	for (unsigned before = blockIdx.y; before; before--) /* the block's part becomes the lowest */
		parts &= parts - 1;
	if (parts & LATENTS_Q) {
		norm_row(a.q + r * a.n_q, a.q_gain, a.eps, a.n_q, wide & LATENTS_Q,
			[&](int i, float4 v) { store_four(a.q + r * a.n_q, i, a.n_q, wide & LATENTS_Q, v); });
	} else if (parts & LATENTS_KV) {
		const float *u = a.kv + r * a.kv_cache.width, *rest = u + a.n_kv;
		norm_row(u, a.kv_gain, a.eps, a.n_kv, wide & LATENTS_KV, [&](int i, float4 v) {
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
	} else {
		append_key(rows, rope, a);
	}
}

void cuda_latents(
	struct backend *b, const struct batch *rows, const struct rope *rope, const struct latents *a)
{
	int parts = (a->q ? LATENTS_Q : 0) | (a->kv ? LATENTS_KV : 0) | (a->key ? LATENTS_KEY : 0), wide = 0;
	if (!cuda_begin(b, "latents") || !rows->n || !parts)
		return;
	unsigned threads = a->key ? KEY_THREADS : 32;
	if (a->q) {
		threads = norm_threads(a->n_q) > threads ? norm_threads(a->n_q) : threads;
		wide |= is_wide(a->q, a->n_q) && is_wide(a->q_gain, 0) ? LATENTS_Q : 0;
	}
	if (a->kv) {
		threads = norm_threads(a->n_kv) > threads ? norm_threads(a->n_kv) : threads;
		wide |= is_wide(a->kv, a->kv_cache.width) && is_wide(a->kv_gain, 0) ? LATENTS_KV : 0;
	}
	cuda_launch(cuda_of(b), latents_kernel, dim3((unsigned)rows->n, (unsigned)__builtin_popcount(parts)),
		threads, 0, *rows, *rope, *a, parts, wide);
}
