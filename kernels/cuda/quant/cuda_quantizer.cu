/* SPDX-License-Identifier: MIT */
/*
 * The card's quantizer. Each has a CUDA stream, on which a task is enqueued; the host waits for its
 * end. Tasks of several quantizers overlap: one copies while another computes.
 *
 *   1. copy the source to the card
 *   2. finite_kernel     finds the first value that is not finite. Grid 1024, block 256
 *   3. energy_kernel     if t->energy: weights of the columns. A thread for each column
 *   4. k_kernel          a team of 16 or 8 threads (one for each sub-block) for each block of 256
 *                        weights, TEAMS of them in a thread block
 *      iq2_kernel        IQ2_XXS: a thread block of 256 for each block of 256 weights
 *      small_kernel      Q8_0, Q4_0: a thread for each block of 32 weights
 *   5. feedback_kernel   if t->feedback: a warp for each block of 256 weights quantises it again,
 *                        beginning with the fit that step 4 has left
 *   6. copy the result to the host
 *
 * Bytes moved on the card: the source once for each of 2 to 5, the result once for 4 and for 5.
 *
 * Compiled with --fmad=false: the bytes are the CPU's.
 */
#include "kernels/cuda/quant/feedback_quant.cuh"
#include "kernels/cuda/runtime/gpu_backend.cuh"

extern "C" {
#include "kernels/quantizer_kinds.h"
#include "src/base/mem.h"
}
#include "src/quant/iq_grids.h"

#include <stdlib.h>

#define TEAMS          8 /* of a thread block of k_kernel */
#define FEEDBACK_WARPS 4 /* of a thread block of feedback_kernel */

struct cuda_quantizer {
	struct quantizer base; /* first: the pointers are exchanged */
	int device;
	cudaStream_t stream;
	struct scratch_buffer source, scales, packed, weights, feedback, fits;
	unsigned long long *not_finite; /* device */
	size_t bytes, most_bytes;       /* of the buffers above, on the card: now, and at most so far */
};

static __device__ uint64_t iq2_codebook[256];

static __global__ void finite_kernel(struct raw_matrix m, unsigned long long *not_finite)
{
	const uint64_t n = m.rows * m.cols, step = (uint64_t)gridDim.x * blockDim.x;
	for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
		if (!isfinite(source_value(&m, i / m.cols, i % m.cols)))
			atomicMin(not_finite, (unsigned long long)i);
}

/* A thread adds a column's squares in the order of the rows, as the CPU does. */
static __global__ void energy_kernel(struct raw_matrix m, float *weights)
{
	const uint64_t c = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
	double sum = 0;
	if (c >= m.cols)
		return;
#pragma unroll 8
	for (uint64_t r = 0; r < m.rows; r++) {
		const double v = source_value(&m, r, c);
		sum += v * v;
	}
	weights[c] = (float)(sum / (double)m.rows);
}

/* The team of TEAM threads that this thread belongs to. */
template <int TEAM> static __device__ __forceinline__ struct quant_team team_here()
{
	const unsigned first = threadIdx.x % 32 / TEAM * TEAM;
	struct quant_team t = {(int)(threadIdx.x % TEAM), TEAM, (0xffffffffu >> (32 - TEAM)) << first};
	return t;
}

template <int TYPE> struct team_type;
#define TEAM_TYPE(name, block, threads, suffix)                                                    \
	template <> struct team_type<name> {                                                           \
		static const int TEAM = threads;                                                           \
		typedef struct block packed;                                                               \
		static __device__ __forceinline__ void plain(struct quant_state *s, struct quant_team t,   \
			const struct raw_matrix *m, uint64_t row, uint64_t col, const float *w,                \
			struct plain_fit *fit, packed *out)                                                    \
		{                                                                                          \
			team_encode_##suffix(s, t, m, row, col, w, fit, out);                                  \
		}                                                                                          \
		static __device__ __forceinline__ void feed(FEEDBACK_PARAMETERS, packed *out)              \
		{                                                                                          \
			team_feedback_##suffix(st, t, m, row, col, f, fit, out);                               \
		}                                                                                          \
	};
TEAM_TYPE(DTYPE_Q2_K, block_q2_k, 16, q2_k)
TEAM_TYPE(DTYPE_Q3_K, block_q3_k, 16, q3_k)
TEAM_TYPE(DTYPE_Q4_K, block_q4_k, 8, q4_k)
TEAM_TYPE(DTYPE_Q5_K, block_q5_k, 8, q5_k)
TEAM_TYPE(DTYPE_Q6_K, block_q6_k, 16, q6_k)
template <> struct team_type<DTYPE_IQ2_XXS> { /* plain: iq2_kernel */
	typedef struct block_iq2_xxs packed;
	static __device__ __forceinline__ void feed(FEEDBACK_PARAMETERS, packed *out)
	{
		team_feedback_iq2_xxs(st, t, m, row, col, f, fit, iq2_codebook, out);
	}
};

/* Where block i of a matrix lies, blocks of `values` weights counted row by row. */
struct block_place {
	uint64_t row, col;
};
static __device__ __forceinline__ struct block_place place_of(
	const struct raw_matrix *m, uint64_t i, uint64_t values)
{
	const uint64_t each = m->cols / values;
	struct block_place p = {i / each, i % each * values};
	return p;
}

/* The arguments of a quantising kernel; all pointers are to the card's memory. */
struct quant_launch {
	struct raw_matrix m;
	const float *weights; /* of the columns, or NULL */
	void *packed;
	const struct quant_feedback *feedback; /* [cols / 256], or NULL */
	struct plain_fit *fits;                /* of each block, where feedback is not NULL */
	uint64_t n_blocks;
};

static __device__ __forceinline__ struct plain_fit *fit_of(const struct quant_launch *l, uint64_t i)
{
	return l->feedback ? l->fits + i : NULL;
}

template <int TYPE>
static __global__ void __launch_bounds__(TEAMS *team_type<TYPE>::TEAM)
	k_kernel(struct quant_launch l)
{
	typedef typename team_type<TYPE>::packed block;
	__shared__ struct quant_state state[TEAMS];
	const int team = threadIdx.x / team_type<TYPE>::TEAM;
	const uint64_t i = (uint64_t)blockIdx.x * TEAMS + team;
	if (i >= l.n_blocks)
		return;
	const struct block_place p = place_of(&l.m, i, BLOCK_BIG);
	team_type<TYPE>::plain(&state[team], team_here<team_type<TYPE>::TEAM>(), &l.m, p.row, p.col,
		l.weights ? l.weights + p.col : NULL, fit_of(&l, i), (block *)l.packed + i);
}

static __global__ void __launch_bounds__(256, 2) iq2_kernel(struct quant_launch l)
{
	__shared__ struct iq2_state state;
	const struct block_place p = place_of(&l.m, blockIdx.x, BLOCK_BIG);
	team_encode_iq2_xxs(&state, team_here<32>(), threadIdx.x < 32, threadIdx.x / 32, iq2_codebook,
		&l.m, p.row, p.col, l.weights ? l.weights + p.col : NULL, fit_of(&l, blockIdx.x),
		(struct block_iq2_xxs *)l.packed + blockIdx.x);
}

/* Behind k_kernel or iq2_kernel; writes over what they have written. */
template <int TYPE>
static __global__ void __launch_bounds__(32 * FEEDBACK_WARPS) feedback_kernel(struct quant_launch l)
{
	typedef typename team_type<TYPE>::packed block;
	__shared__ struct feedback_state state[FEEDBACK_WARPS];
	const int warp = threadIdx.x / 32;
	const uint64_t i = (uint64_t)blockIdx.x * FEEDBACK_WARPS + warp;
	if (i >= l.n_blocks)
		return;
	const struct block_place p = place_of(&l.m, i, BLOCK_BIG);
	const struct quant_feedback *f = l.feedback + p.col / FEEDBACK_COLUMNS;
	const struct plain_fit fit = l.fits[i];
	if (fit.any && f->correlated)
		team_type<TYPE>::feed(
			&state[warp], team_here<32>(), &l.m, p.row, p.col, f, &fit, (block *)l.packed + i);
}

template <int TYPE> static __global__ void small_kernel(struct quant_launch l)
{
	const uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= l.n_blocks)
		return;
	const struct block_place p = place_of(&l.m, i, BLOCK_SMALL);
	const float *w = l.weights ? l.weights + p.col : NULL;
	if (TYPE == DTYPE_Q8_0)
		encode_small_q8_0(&l.m, p.row, p.col, w, (struct block_q8_0 *)l.packed + i);
	else
		encode_small_q4_0(&l.m, p.row, p.col, w, (struct block_q4_0 *)l.packed + i);
}

template <int TYPE> static void launch_feedback(struct quant_launch l, cudaStream_t stream)
{
	const uint64_t n = (l.n_blocks + FEEDBACK_WARPS - 1) / FEEDBACK_WARPS;
	if (l.feedback)
		feedback_kernel<TYPE><<<(unsigned)n, 32 * FEEDBACK_WARPS, 0, stream>>>(l);
}

template <int TYPE> static void launch_k(struct quant_launch l, cudaStream_t stream)
{
	k_kernel<TYPE><<<(unsigned)((l.n_blocks + TEAMS - 1) / TEAMS), TEAMS * team_type<TYPE>::TEAM, 0,
		stream>>>(l);
	launch_feedback<TYPE>(l, stream);
}

template <int TYPE> static void launch_small(struct quant_launch l, cudaStream_t stream)
{
	small_kernel<TYPE><<<(unsigned)((l.n_blocks + 127) / 128), 128, 0, stream>>>(l);
}

static void launch_iq2(struct quant_launch l, cudaStream_t stream)
{
	iq2_kernel<<<(unsigned)l.n_blocks, 256, 0, stream>>>(l);
	launch_feedback<DTYPE_IQ2_XXS>(l, stream);
}

/* Launches the kernels of a type. NULL: the card does not quantise this type. */
typedef void quant_launch_fn(struct quant_launch l, cudaStream_t stream);
static quant_launch_fn *launch_of(enum dtype type)
{
	switch (type) {
	case DTYPE_Q2_K:
		return launch_k<DTYPE_Q2_K>;
	case DTYPE_Q3_K:
		return launch_k<DTYPE_Q3_K>;
	case DTYPE_Q4_K:
		return launch_k<DTYPE_Q4_K>;
	case DTYPE_Q5_K:
		return launch_k<DTYPE_Q5_K>;
	case DTYPE_Q6_K:
		return launch_k<DTYPE_Q6_K>;
	case DTYPE_Q8_0:
		return launch_small<DTYPE_Q8_0>;
	case DTYPE_Q4_0:
		return launch_small<DTYPE_Q4_0>;
	case DTYPE_IQ2_XXS:
		return launch_iq2;
	default:
		return NULL;
	}
}

static int card_err(cudaError_t rc, const char *what, struct err *e)
{
	return err_set(e, rc == cudaErrorMemoryAllocation ? ERR_MEMORY : ERR_RUN,
		"backend cuda: %s: %s", what, cudaGetErrorString(rc));
}

static cudaError_t grow(struct cuda_quantizer *q, struct scratch_buffer *b, size_t bytes)
{
	if (bytes <= b->bytes)
		return cudaSuccess;
	cudaFree(b->data);
	q->bytes -= b->bytes;
	b->bytes = 0;
	b->data = NULL;
	const cudaError_t rc = cudaMalloc(&b->data, bytes);
	if (rc == cudaSuccess) {
		b->bytes = bytes;
		q->bytes += bytes;
		q->most_bytes = max(q->most_bytes, q->bytes);
	}
	return rc;
}

static uint64_t scale_count(const struct raw_matrix *m)
{
	const uint64_t bands = (m->first_row + m->rows + DTYPE_SCALE_BLOCK - 1) / DTYPE_SCALE_BLOCK;
	return m->scales ? bands * ((m->cols + DTYPE_SCALE_BLOCK - 1) / DTYPE_SCALE_BLOCK) : 0;
}

static cudaError_t copy_in(
	struct cuda_quantizer *q, const struct scratch_buffer *b, const void *src, size_t bytes)
{
	return bytes ? cudaMemcpyAsync(b->data, src, bytes, cudaMemcpyHostToDevice, q->stream)
				 : cudaSuccess;
}

/* Enqueues all steps of a task on the stream. Returns the first error; then some may be missing. */
static cudaError_t enqueue_task(struct cuda_quantizer *q, const struct quantize_task *t,
	size_t packed_bytes, uint64_t *not_finite)
{
	struct quant_launch l = {t->source, NULL, NULL, NULL, NULL, 0};
	const struct raw_matrix *m = &t->source;
	l.n_blocks = m->rows * m->cols / dtype_info(t->type)->block_values;
	const size_t source_bytes = m->rows * m->cols * dtype_info(m->type)->block_bytes,
				 scale_bytes = scale_count(m) * sizeof(float),
				 weight_bytes = t->importance || t->energy ? m->cols * sizeof(float) : 0,
				 feedback_bytes =
					 t->feedback ? m->cols / FEEDBACK_COLUMNS * sizeof *t->feedback : 0,
				 fit_bytes = t->feedback ? l.n_blocks * sizeof *l.fits : 0;
	cudaError_t rc;
	if ((rc = grow(q, &q->source, source_bytes)) || (rc = grow(q, &q->packed, packed_bytes)) ||
		(rc = grow(q, &q->scales, scale_bytes)) || (rc = grow(q, &q->weights, weight_bytes)) ||
		(rc = grow(q, &q->feedback, feedback_bytes)) || (rc = grow(q, &q->fits, fit_bytes)) ||
		(rc = cudaMemsetAsync(q->not_finite, 0xff, sizeof *q->not_finite, q->stream)) ||
		(rc = copy_in(q, &q->source, m->values, source_bytes)) ||
		(rc = copy_in(q, &q->scales, m->scales, scale_bytes)) ||
		(rc = copy_in(q, &q->weights, t->importance, t->importance ? weight_bytes : 0)) ||
		(rc = copy_in(q, &q->feedback, t->feedback, feedback_bytes)))
		return rc;
	l.m.values = q->source.data;
	l.m.scales = m->scales ? (const float *)q->scales.data : NULL;
	l.weights = weight_bytes ? (const float *)q->weights.data : NULL;
	l.packed = q->packed.data;
	l.feedback = t->feedback ? (const struct quant_feedback *)q->feedback.data : NULL;
	l.fits = (struct plain_fit *)q->fits.data;
	finite_kernel<<<1024, 256, 0, q->stream>>>(l.m, q->not_finite);
	if (t->energy)
		energy_kernel<<<(unsigned)((m->cols + 63) / 64), 64, 0, q->stream>>>(
			l.m, (float *)q->weights.data);
	launch_of(t->type)(l, q->stream);
	if ((rc = cudaGetLastError()) || (rc = cudaMemcpyAsync(t->packed, q->packed.data, packed_bytes,
										  cudaMemcpyDeviceToHost, q->stream)))
		return rc;
	return cudaMemcpyAsync(
		not_finite, q->not_finite, sizeof *not_finite, cudaMemcpyDeviceToHost, q->stream);
}

static int quantizer_run(
	struct quantizer *base, const struct quantize_task *t, uint64_t *not_finite, struct err *e)
{
	struct cuda_quantizer *q = (struct cuda_quantizer *)base;
	uint64_t row_bytes = 0;
	unsigned long long bad = 0;
	dtype_row_bytes(t->type, t->source.cols, &row_bytes);
	cudaError_t rc = cuda_select(q->device);
	if (rc == cudaSuccess)
		rc = enqueue_task(q, t, t->source.rows * row_bytes, (uint64_t *)&bad);
	const cudaError_t waited = cudaStreamSynchronize(q->stream);
	*not_finite = bad;
	if (rc == cudaSuccess && (rc = waited) == cudaSuccess)
		return 0;
	cudaGetLastError(); /* reported here, not by the next task */
	return card_err(rc, "quantising", e);
}

static bool quantizer_supports(const struct quantize_task *t)
{
	return launch_of(t->type) && !t->transposed && raw_matrix_supported(t->source.type);
}

static void *quantizer_host_alloc(struct quantizer *base, size_t bytes)
{
	void *p = NULL;
	cuda_select(((struct cuda_quantizer *)base)->device);
	if (cudaHostAlloc(&p, bytes, cudaHostAllocPortable) == cudaSuccess)
		return p;
	cudaGetLastError();
	return NULL;
}

static void quantizer_host_free(struct quantizer *base, void *p, size_t bytes)
{
	(void)bytes;
	cuda_select(((struct cuda_quantizer *)base)->device);
	cudaFreeHost(p);
	cudaGetLastError();
}

static size_t quantizer_card_bytes(const struct quantizer *base)
{
	return ((const struct cuda_quantizer *)base)->most_bytes;
}

static void quantizer_close(struct quantizer *base)
{
	struct cuda_quantizer *q = (struct cuda_quantizer *)base;
	cuda_select(q->device);
	cudaFree(q->source.data);
	cudaFree(q->scales.data);
	cudaFree(q->packed.data);
	cudaFree(q->weights.data);
	cudaFree(q->feedback.data);
	cudaFree(q->fits.data);
	cudaFree(q->not_finite);
	if (q->stream)
		cudaStreamDestroy(q->stream);
	cudaGetLastError();
	free(q);
}

static const struct quantizer_ops cuda_quantizer_ops = {"cuda", quantizer_supports, quantizer_run,
	quantizer_host_alloc, quantizer_host_free, quantizer_card_bytes, quantizer_close};

extern "C" int quantizer_cuda_open(struct quantizer **out, struct err *e)
{
	int major = 0;
	*out = NULL;
	cudaError_t rc = cuda_select(0);
	if (rc == cudaSuccess)
		rc = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
	if (rc != cudaSuccess)
		return card_err(rc, "the card cannot be used", e);
	if (major < 8)
		return err_set(e, ERR_RUN,
			"backend cuda: the card has compute capability %d.x; 8.0 or newer is needed", major);
	struct cuda_quantizer *q = (struct cuda_quantizer *)mem_try_new(1, sizeof *q);
	if (!q)
		return err_set(e, ERR_MEMORY, "no memory for a quantizer");
	q->base.ops = &cuda_quantizer_ops;
	if ((rc = cudaStreamCreateWithFlags(&q->stream, cudaStreamNonBlocking)) ||
		(rc = cudaMalloc(&q->not_finite, sizeof *q->not_finite)) ||
		(rc = cudaMemcpyToSymbol(iq2_codebook, iq2xxs_grid, sizeof iq2_codebook)) ||
		(rc = cudaStreamSynchronize(NULL))) { /* a small copy may return before it is done, and
												 q->stream does not wait for it */
		quantizer_close(&q->base);
		return card_err(rc, "a quantizer", e);
	}
	*out = &q->base;
	return 0;
}
