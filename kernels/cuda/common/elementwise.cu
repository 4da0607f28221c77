/* SPDX-License-Identifier: MIT */
/*
 * Ops whose work is proportional to the activations. Each reads its input and writes its output
 * once.
 *
 *   embed                grid (groups of 256 values, rows), block 64: four values a thread
 *   rms_norm             grid (rows, norms), block: n / 8 threads, at most 1024; a thread
 *                        keeps its eight values in registers
 *   latents              grid (rows, parts), block as for the longest rms_norm of them
 *   swiglu, moe_combine  grid over values, block 256, one value a thread (moe_combine: y = rows)
 *   ... with a norm      grid rows times clusters of 8 blocks, which share the threads of
 *                        rms_norm (sm_90 and newer)
 *   rope, rope_angles    grid over pairs, block 256, one pair a thread
 *
 * Products and sums are rounded one by one where the CPU backend does so; means are computed in
 * double.
 */
#include "kernels/cuda/common/block_decode.cuh"
#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/norm.cuh"
#include "kernels/cuda/runtime/signals.cuh"

static unsigned blocks_for(int64_t n, int per)
{
	return (unsigned)((n + per - 1) / per);
}

/* ---- embed ---- */

template <int T>
static __global__ void embed_kernel(const uint8_t *data, int64_t row_bytes, const int32_t *ids,
	int n, const struct cuda_tables *t, float *out)
{
	launch_dependents();
	grid_dependency_wait();
	const uint8_t *p =
		data + ids[blockIdx.y] * row_bytes + (int64_t)blockIdx.x * packed<T>::SUPER_BLOCK_BYTES;
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
#define CASE(t)                                                                                    \
	case DTYPE_##t:                                                                                \
		cuda_launch(b, embed_kernel<DTYPE_##t>, grid, 64, 0, data, (int64_t)table.row_bytes, ids,  \
			(int)table.n_in, b->tables, out);                                                      \
		break;
		ALL_TYPES(CASE)
#undef CASE
	default:
		break;
	}
}

/* ---- norms ---- */

struct norms {
	struct norm of[NORMS_MAX];
};

static __global__ void __launch_bounds__(1024)
	rms_norm_kernel(const float *x, int64_t x_stride, const __grid_constant__ struct norms norms,
		float eps, int n, int64_t out_stride, bool vectorised)
{
	launch_dependents();
	float *out = norms.of[blockIdx.y].out + blockIdx.x * out_stride;
	norm_row(x + blockIdx.x * x_stride, norms.of[blockIdx.y].gain, eps, n, vectorised,
		[&](int i, float4 v) { store_four(out, i, n, vectorised, v); });
}

void cuda_rms_norm(struct backend *b, const float *x, int64_t x_stride, const struct norm *norms,
	int n_norms, float eps, int rows, int n, int64_t out_stride)
{
	if (!cuda_begin(b, "rms_norm") || !rows || !n_norms)
		return;
	struct norms all = {};
	bool vectorised = is_aligned_16(x, x_stride);
	for (int i = 0; i < n_norms; i++) {
		all.of[i] = norms[i];
		vectorised &= is_aligned_16(norms[i].gain, 0) && is_aligned_16(norms[i].out, out_stride);
	}
	cuda_launch(cuda_of(b), rms_norm_kernel, dim3((unsigned)rows, (unsigned)n_norms),
		norm_threads(n), 0, x, x_stride, all, eps, n, out_stride, vectorised);
}

/* ---- swiglu, moe_combine ---- */

static __global__ void swiglu_kernel(const float *gate, const float *up, int64_t n, float *out)
{
	launch_dependents();
	grid_dependency_wait();
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

static __global__ void moe_combine_kernel(const float *out, const float *weights, int n_used,
	const float *shared, int n, float *x, struct cuda_profile *profile)
{
	launch_dependents();
	grid_dependency_wait();
	if (profile && profile->ring && !(blockIdx.x | blockIdx.y | threadIdx.x))
		profile_next_interval(profile, profile->ring);
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

#if __CUDA_ARCH__ >= 900
/* Asynchronous store of v to the same address in block `to` of the cluster; completes its eight
 * bytes on the mbarrier there. */
static __device__ __forceinline__ void send_double(
	double *place, uint64_t *barrier, int to, double v)
{
	uint32_t at = shared_address(place), remote_barrier = shared_address(barrier);
	asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(at) : "r"(to));
	asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(remote_barrier) : "r"(to));
	asm volatile(
		"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(at),
		"l"(__double_as_longlong(v)), "r"(remote_barrier)
		: "memory");
}
#endif

/* moe_combine_kernel and then rms_norm_kernel, with the same numbers: the threads of one block of
 * rms_norm_kernel are distributed over the blocks of a cluster. A row stays in registers. Each warp
 * stores its sum of squares in the shared memory of all blocks. */
static __global__ void __launch_bounds__(128)
	combine_norm_kernel(const float *out, const float *weights, int n_used, const float *shared,
		int n, float *x, struct norm next, float eps, struct cuda_profile *profile)
{
#if __CUDA_ARCH__ >= 900
	__shared__ double sums[32];
	__shared__ __align__(8) uint64_t barrier;
	int threads = norm_threads(n), block = blockIdx.x % CLUSTER,
		thread = block * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
	int64_t r = blockIdx.x / CLUSTER;
	launch_dependents();
	if (!threadIdx.x) {
		mbarrier_init(shared_address(&barrier), 1);
		mbarrier_init_fence();
		mbarrier_expect(shared_address(&barrier), threads / 32 * sizeof(double));
	}
	__syncthreads();
	cluster_arrive();
	int i[NORM_HELD]; /* the first of four values; 0 where the thread has none, so that loads need
						 no condition */
	bool mine[NORM_HELD];
	float4 g[NORM_HELD], v[NORM_HELD], s[NORM_HELD], sum[NORM_HELD];
#pragma unroll
	for (int j = 0; j < NORM_HELD; j++) {
		mine[j] = thread < threads && 4 * (thread + j * threads) < n;
		i[j] = mine[j] ? 4 * (thread + j * threads) : 0;
		g[j] = load_ahead(next.gain + i[j]);
		sum[j] = make_float4(0, 0, 0, 0);
	}
	unsigned long long *ring = profile && !(blockIdx.x | threadIdx.x) ? profile->ring : NULL;
	grid_dependency_wait();
	if (ring)
		profile_next_interval(profile, ring);
	out += r * n_used * n;
	weights += r * n_used;
#pragma unroll
	for (int j = 0; j < NORM_HELD; j++) {
		v[j] = *(const float4 *)(x + r * n + i[j]);
		s[j] = *(const float4 *)(shared + r * n + i[j]);
	}
	for (int first = 0; first < n_used; first += 8) {
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
		if (!first) /* all blocks have set up their barriers; and no load moves behind */
			cluster_wait();
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
	if (thread < threads && lane < CLUSTER)
		send_double(sums + thread / 32, &barrier, lane, squares);
#pragma unroll
	for (int j = 0; j < NORM_HELD; j++)
		if (mine[j])
			*(float4 *)(x + r * n + i[j]) = v[j];
	mbarrier_wait(shared_address(&barrier), 0);
	squares = warp_sum(lane < threads / 32 ? sums[lane] : 0);
	float scale = (float)rsqrt(squares / n + (double)eps);
#pragma unroll
	for (int j = 0; j < NORM_HELD; j++)
		if (mine[j])
			*(float4 *)(next.out + r * n + i[j]) = normed(v[j], scale, g[j]);
#endif
}

void cuda_moe_combine(struct backend *base, const float *out, const float *weights, int n_used,
	const float *shared, int rows, int n, float *x, const struct norm *next, float eps)
{
	struct cuda_backend *b = cuda_of(base);
	if (!cuda_begin(base, "moe_combine") || !rows)
		return;
	struct cuda_profile *profile = cuda_deferred_successor(b);
	bool vectorised = is_aligned_16(out, n) && is_aligned_16(shared, 0) && is_aligned_16(x, 0);
	if (next && b->has_pdl && vectorised && is_aligned_16(next->gain, 0) &&
		is_aligned_16(next->out, 0) && n <= 4096 * NORM_HELD) {
		unsigned warps = (norm_threads(n) / 32 + CLUSTER - 1) / CLUSTER;
		cuda_launch_clusters(b, combine_norm_kernel, (unsigned)rows, CLUSTER, 32 * warps, out,
			weights, n_used, shared, n, x, *next, eps, profile);
		return;
	}
	dim3 grid(blocks_for(n, 256), (unsigned)rows);
	cuda_launch(b, moe_combine_kernel, grid, 256, 0, out, weights, n_used, shared, n, x, profile);
	if (next)
		cuda_rms_norm(base, x, n, next, 1, eps, rows, n, n);
}

/* ---- rotation ---- */

static __global__ void rope_angles_kernel(
	const int32_t *pos, const float *inv_freq, int rows, int half, float *cos_sin)
{
	launch_dependents();
	grid_dependency_wait();
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
	cuda_launch(cuda_of(b), rope_angles_kernel, blocks_for((int64_t)rows->n * (dim / 2), 256), 256,
		0, rows->pos, inv_freq, rows->n, dim / 2, cos_sin);
}

static __global__ void rope_kernel(const float *cos_sin, int half, const float *x, int64_t x_stride,
	float *y, int64_t y_stride, int n_heads, int64_t n)
{
	launch_dependents();
	grid_dependency_wait();
	int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= n)
		return;
	int64_t head = i / half, pair = i % half, r = head / n_heads;
	float2 v =
		rotated(make_float2(cos_sin[2 * (r * half + pair)], cos_sin[2 * (r * half + pair) + 1]),
			make_float2(x[head * x_stride + 2 * pair], x[head * x_stride + 2 * pair + 1]));
	y[head * y_stride + 2 * pair] = v.x;
	y[head * y_stride + 2 * pair + 1] = v.y;
}

void cuda_rope(struct backend *b, const struct rope *rope, const float *x, int64_t x_stride,
	float *y, int64_t y_stride, int rows, int n_heads)
{
	int64_t n = (int64_t)rows * n_heads * (rope->dim / 2);
	if (!cuda_begin(b, "rope") || !n)
		return;
	cuda_launch(cuda_of(b), rope_kernel, blocks_for(n, 256), 256, 0, rope->cos_sin, rope->dim / 2,
		x, x_stride, y, y_stride, n_heads, n);
}

/* ---- latents ---- */

/* Bits of `parts`: parts to compute; of `vectorised`: parts whose rows are at multiples of 16
 * bytes. */
enum { LATENTS_Q = 1, LATENTS_KV = 2, LATENTS_KEY = 4 };

static __global__ void __launch_bounds__(1024) latents_kernel(
	const __grid_constant__ struct batch rows, const __grid_constant__ struct rope rope,
	const __grid_constant__ struct latents a, int parts, int vectorised)
{
	launch_dependents();
	int64_t r = blockIdx.x;
	for (unsigned before = blockIdx.y; before; before--) /* the block's part becomes the lowest */
		parts &= parts - 1;
	if (parts & LATENTS_Q) {
		norm_row(
			a.q + r * a.n_q, a.q_gain, a.eps, a.n_q, vectorised & LATENTS_Q, [&](int i, float4 v) {
				store_four(a.q + r * a.n_q, i, a.n_q, vectorised & LATENTS_Q, v);
			});
	} else if (parts & LATENTS_KV) {
		append_latent(rows, rope, a, r, vectorised & LATENTS_KV);
	} else {
		append_key(rows, rope, a, r);
	}
}

void cuda_latents_unfused(
	struct backend *b, const struct batch *rows, const struct rope *rope, const struct latents *a)
{
	int parts = (a->q ? LATENTS_Q : 0) | (a->kv ? LATENTS_KV : 0) | (a->key ? LATENTS_KEY : 0),
		vectorised = 0;
	if (!cuda_begin(b, "latents") || !rows->n || !parts)
		return;
	unsigned threads = a->key ? KEY_THREADS : 32;
	if (a->q) {
		threads = norm_threads(a->n_q) > threads ? norm_threads(a->n_q) : threads;
		vectorised |= is_aligned_16(a->q, a->n_q) && is_aligned_16(a->q_gain, 0) ? LATENTS_Q : 0;
	}
	if (a->kv) {
		threads = norm_threads(a->n_kv) > threads ? norm_threads(a->n_kv) : threads;
		vectorised |= is_aligned_16(a->kv, a->kv_cache.width) && is_aligned_16(a->kv_gain, 0)
						  ? LATENTS_KV
						  : 0;
	}
	cuda_launch(cuda_of(b), latents_kernel,
		dim3((unsigned)rows->n, (unsigned)__builtin_popcount(parts)), threads, 0, *rows, *rope, *a,
		parts, vectorised);
}
