/* SPDX-License-Identifier: MIT */
/*
 * Ops whose work is proportional to the activations. Each reads its input and writes its output once.
 *
 *   embed                    grid (runs of 256 values, rows), block 64: four values a thread
 *   rms_norm                 grid rows, block 256; the row is read twice, the second time from cache
 *   latent/index_append      grid rows, block 256
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

/* 1 / sqrt(mean of squares + eps), rounded to float; all threads of the block get it */
static __device__ float norm_scale(const float *x, int n, float eps, double *scratch)
{
	double sum = 0;
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		sum += (double)x[i] * (double)x[i];
	return (float)(1.0 / sqrt(block_sum(sum, scratch) / n + (double)eps));
}

static __global__ void rms_norm_kernel(
	const float *x, int64_t x_stride, const float *gain, float eps, int n, float *out, int64_t out_stride)
{
	grid_let_next();
	grid_wait_before();
	__shared__ double scratch[32];
	x += blockIdx.x * x_stride;
	out += blockIdx.x * out_stride;
	float scale = norm_scale(x, n, eps, scratch);
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		out[i] = __fmul_rn(__fmul_rn(x[i], scale), gain[i]);
}

void cuda_rms_norm(struct backend *b, const float *x, int64_t x_stride, const float *gain, float eps,
	int rows, int n, float *out, int64_t out_stride)
{
	if (!cuda_begin(b, "rms_norm") || !rows)
		return;
	cuda_launch(
		cuda_of(b), rms_norm_kernel, (unsigned)rows, 256, 0, x, x_stride, gain, eps, n, out, out_stride);
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

static __global__ void latent_append_kernel(struct batch rows, struct rope rope, const float *u, int n_latent,
	const float *gain, float eps, struct cache_view cache)
{
	grid_let_next();
	grid_wait_before();
	__shared__ double scratch[32];
	int64_t r = blockIdx.x, row = rows.base[r] + (int64_t)rows.pos[r];
	u += r * cache.width;
	float scale = norm_scale(u, n_latent, eps, scratch);
	for (int i = threadIdx.x; i < n_latent; i += blockDim.x)
		cache_store(cache, row, i, __fmul_rn(__fmul_rn(u[i], scale), gain[i]));
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
	cuda_launch(cuda_of(b), latent_append_kernel, (unsigned)rows->n, 256, 0, *rows, *rope, u, n_latent, gain,
		eps, cache);
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
