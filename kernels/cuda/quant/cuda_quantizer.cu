/* SPDX-License-Identifier: MIT */
/*
 * The card's quantizer. A task is: copy the source in, look for values that are not finite, weigh
 * the columns if that is asked for, quantise, copy the result out, all on a stream of its own; the
 * host waits at its end. Tasks of several quantizers overlap: one copies while another computes.
 *
 * Threads: 16 or 8 for a block of 256 weights (a thread for each sub-block), 256 for one of
 * IQ2_XXS, one for a block of 32. Compiled with --fmad=false: the bytes are the CPU's.
 */
#include "kernels/cuda/quant/affine_quant.cuh"
#include "kernels/cuda/quant/iq2_quant.cuh"
#include "kernels/cuda/quant/sym_quant.cuh"
#include "kernels/cuda/runtime/gpu_backend.cuh"

extern "C" {
#include "kernels/quantizer_kinds.h"
#include "src/base/mem.h"
}
#include "src/quant/iq_grids.h"

#include <stdlib.h>

#define TEAMS 8 /* of a thread block */

struct cuda_quantizer {
	struct quantizer base; /* first: the pointers are exchanged */
	int device;
	cudaStream_t stream;
	struct scratch_buffer source, scales, packed, weights;
	unsigned long long *not_finite; /* device */
	size_t bytes;                   /* of the card's memory */
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
	struct quant_team t = {(int)(threadIdx.x % TEAM), TEAM, ((1u << TEAM) - 1) << first};
	return t;
}

template <int TYPE> struct team_type;
#define TEAM_TYPE(name, block, threads, encode)                                                    \
	template <> struct team_type<name> {                                                           \
		static const int TEAM = threads;                                                           \
		typedef struct block packed;                                                               \
		static __device__ __forceinline__ void run(struct quant_state *s, struct quant_team t,     \
			const struct raw_matrix *m, uint64_t row, uint64_t col, const float *w, packed *out)   \
		{                                                                                          \
			encode(s, t, m, row, col, w, out);                                                     \
		}                                                                                          \
	};
TEAM_TYPE(DTYPE_Q2_K, block_q2_k, 16, team_encode_q2_k)
TEAM_TYPE(DTYPE_Q3_K, block_q3_k, 16, team_encode_q3_k)
TEAM_TYPE(DTYPE_Q4_K, block_q4_k, 8, team_encode_q4_k)
TEAM_TYPE(DTYPE_Q5_K, block_q5_k, 8, team_encode_q5_k)
TEAM_TYPE(DTYPE_Q6_K, block_q6_k, 16, team_encode_q6_k)

/* Where block i of 256 or 32 values lies. */
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

template <int TYPE>
static __global__ void __launch_bounds__(TEAMS *team_type<TYPE>::TEAM)
	k_kernel(struct raw_matrix m, const float *weights, void *packed, uint64_t n_blocks)
{
	typedef typename team_type<TYPE>::packed block;
	__shared__ struct quant_state state[TEAMS];
	const int team = threadIdx.x / team_type<TYPE>::TEAM;
	const uint64_t i = (uint64_t)blockIdx.x * TEAMS + team;
	if (i >= n_blocks)
		return;
	const struct block_place p = place_of(&m, i, BLOCK_BIG);
	team_type<TYPE>::run(&state[team], team_here<team_type<TYPE>::TEAM>(), &m, p.row, p.col,
		weights ? weights + p.col : NULL, (block *)packed + i);
}

static __global__ void __launch_bounds__(256, 2)
	iq2_kernel(struct raw_matrix m, const float *weights, struct block_iq2_xxs *packed)
{
	__shared__ struct iq2_state state;
	const struct block_place p = place_of(&m, blockIdx.x, BLOCK_BIG);
	const struct quant_team t = {(int)(threadIdx.x % 32), 32, 0xffffffffu};
	team_encode_iq2_xxs(&state, t, threadIdx.x < 32, threadIdx.x / 32, iq2_codebook, &m, p.row,
		p.col, weights ? weights + p.col : NULL, packed + blockIdx.x);
}

template <int TYPE>
static __global__ void small_kernel(
	struct raw_matrix m, const float *weights, void *packed, uint64_t n_blocks)
{
	const uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= n_blocks)
		return;
	const struct block_place p = place_of(&m, i, BLOCK_SMALL);
	const float *w = weights ? weights + p.col : NULL;
	if (TYPE == DTYPE_Q8_0)
		encode_small_q8_0(&m, p.row, p.col, w, (struct block_q8_0 *)packed + i);
	else
		encode_small_q4_0(&m, p.row, p.col, w, (struct block_q4_0 *)packed + i);
}

template <int TYPE>
static void launch_k(struct cuda_quantizer *q, const struct raw_matrix *m, const float *weights)
{
	const uint64_t n = m->rows * m->cols / BLOCK_BIG;
	k_kernel<TYPE>
		<<<(unsigned)((n + TEAMS - 1) / TEAMS), TEAMS * team_type<TYPE>::TEAM, 0, q->stream>>>(
			*m, weights, q->packed.data, n);
}

template <int TYPE>
static void launch_small(struct cuda_quantizer *q, const struct raw_matrix *m, const float *weights)
{
	const uint64_t n = m->rows * m->cols / BLOCK_SMALL;
	small_kernel<TYPE>
		<<<(unsigned)((n + 127) / 128), 128, 0, q->stream>>>(*m, weights, q->packed.data, n);
}

/* False: no type of the card's. */
static bool launch_type(
	struct cuda_quantizer *q, enum dtype type, const struct raw_matrix *m, const float *weights)
{
	switch (type) {
	case DTYPE_Q2_K:
		launch_k<DTYPE_Q2_K>(q, m, weights);
		return true;
	case DTYPE_Q3_K:
		launch_k<DTYPE_Q3_K>(q, m, weights);
		return true;
	case DTYPE_Q4_K:
		launch_k<DTYPE_Q4_K>(q, m, weights);
		return true;
	case DTYPE_Q5_K:
		launch_k<DTYPE_Q5_K>(q, m, weights);
		return true;
	case DTYPE_Q6_K:
		launch_k<DTYPE_Q6_K>(q, m, weights);
		return true;
	case DTYPE_Q8_0:
		launch_small<DTYPE_Q8_0>(q, m, weights);
		return true;
	case DTYPE_Q4_0:
		launch_small<DTYPE_Q4_0>(q, m, weights);
		return true;
	case DTYPE_IQ2_XXS:
		iq2_kernel<<<(unsigned)(m->rows * m->cols / BLOCK_BIG), 256, 0, q->stream>>>(
			*m, weights, (struct block_iq2_xxs *)q->packed.data);
		return true;
	default:
		return false;
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
	}
	return rc;
}

static uint64_t scale_count(const struct raw_matrix *m)
{
	const uint64_t bands = (m->first_row + m->rows + DTYPE_SCALE_BLOCK - 1) / DTYPE_SCALE_BLOCK;
	return m->scales ? bands * ((m->cols + DTYPE_SCALE_BLOCK - 1) / DTYPE_SCALE_BLOCK) : 0;
}

/* Everything of a task on the stream. The first error ends it. */
static cudaError_t enqueue_task(struct cuda_quantizer *q, const struct quantize_task *t,
	size_t packed_bytes, uint64_t *not_finite)
{
	struct raw_matrix m = t->source;
	const size_t source_bytes = m.rows * m.cols * dtype_info(m.type)->block_bytes,
				 scale_bytes = scale_count(&m) * sizeof(float),
				 weight_bytes = t->importance || t->energy ? m.cols * sizeof(float) : 0;
	cudaError_t rc;
	if ((rc = grow(q, &q->source, source_bytes)) || (rc = grow(q, &q->packed, packed_bytes)) ||
		(rc = grow(q, &q->scales, scale_bytes)) || (rc = grow(q, &q->weights, weight_bytes)) ||
		(rc = cudaMemsetAsync(q->not_finite, 0xff, sizeof *q->not_finite, q->stream)) ||
		(rc = cudaMemcpyAsync(
			 q->source.data, m.values, source_bytes, cudaMemcpyHostToDevice, q->stream)))
		return rc;
	m.values = q->source.data;
	if (m.scales) {
		if ((rc = cudaMemcpyAsync(
				 q->scales.data, m.scales, scale_bytes, cudaMemcpyHostToDevice, q->stream)))
			return rc;
		m.scales = (const float *)q->scales.data;
	}
	finite_kernel<<<1024, 256, 0, q->stream>>>(m, q->not_finite);
	float *weights = weight_bytes ? (float *)q->weights.data : NULL;
	if (t->importance && (rc = cudaMemcpyAsync(weights, t->importance, weight_bytes,
							  cudaMemcpyHostToDevice, q->stream)))
		return rc;
	if (t->energy)
		energy_kernel<<<(unsigned)((m.cols + 63) / 64), 64, 0, q->stream>>>(m, weights);
	launch_type(q, t->type, &m, weights);
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
	return rc != cudaSuccess || (rc = waited) != cudaSuccess ? card_err(rc, "quantising", e) : 0;
}

static bool card_has_type(enum dtype type)
{
	return type == DTYPE_Q2_K || type == DTYPE_Q3_K || type == DTYPE_Q4_K || type == DTYPE_Q5_K ||
		   type == DTYPE_Q6_K || type == DTYPE_Q8_0 || type == DTYPE_Q4_0 || type == DTYPE_IQ2_XXS;
}

static bool quantizer_supports(const struct quantize_task *t)
{
	return card_has_type(t->type) && !t->transposed && !t->feedback &&
		   raw_matrix_supported(t->source.type);
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
	return ((const struct cuda_quantizer *)base)->bytes;
}

static void quantizer_close(struct quantizer *base)
{
	struct cuda_quantizer *q = (struct cuda_quantizer *)base;
	cuda_select(q->device);
	cudaFree(q->source.data);
	cudaFree(q->scales.data);
	cudaFree(q->packed.data);
	cudaFree(q->weights.data);
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
			"backend cuda: the card is of compute capability %d.x, 8.0 or "
			"above is needed",
			major);
	struct cuda_quantizer *q = (struct cuda_quantizer *)mem_try_new(1, sizeof *q);
	if (!q)
		return err_set(e, ERR_MEMORY, "no memory for a quantizer");
	q->base.ops = &cuda_quantizer_ops;
	if ((rc = cudaStreamCreateWithFlags(&q->stream, cudaStreamNonBlocking)) ||
		(rc = cudaMalloc(&q->not_finite, sizeof *q->not_finite)) ||
		(rc = cudaMemcpyToSymbol(iq2_codebook, iq2xxs_grid, sizeof iq2_codebook))) {
		quantizer_close(&q->base);
		return card_err(rc, "a quantizer", e);
	}
	*out = &q->base;
	return 0;
}
