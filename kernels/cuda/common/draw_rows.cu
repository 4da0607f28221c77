/* SPDX-License-Identifier: MIT */
/*
 * Draws tokens from rows of logits (src/draw/draw.h: draw_row). The host's draw_row skips blocks of
 * ids that cannot win; this does not: a card makes all random numbers of a row in a microsecond.
 *
 *   scores_kernel    grid (parts, rows), block 256: a warp for each DRAW_BLOCK ids, four ids a
 *                    lane. Finds the winner and the first in rank of its part.
 *   sums_kernel      the same grid, only if a row requests sums or mass: count and mass of a part
 *   results_kernel   grid rows, block 256: combines the parts
 *
 * A part is PART_IDS ids. The results are equal to the host's to the last bit, because scores are
 * compared in the same order (ties to the lower id) and masses are sums of integers.
 */
#include "kernels/cuda/runtime/gpu_backend.cuh"

extern "C" {
#include "src/draw/draw.h"
}

#define THREADS  256
#define WARPS    (THREADS / 32)
#define PART_IDS (WARPS * DRAW_BLOCK)

static_assert(DECODE_MAX_ROWS <= DRAW_ROWS_MAX, "one call draws from all rows of a step");

struct row_request {
	uint64_t seed;
	double inv_t;
	uint32_t position;
	float scale; /* draw_unit_scale */
	bool sums, mass;
};

struct row_requests {
	struct row_request of[DRAW_ROWS_MAX];
};

/* An id and the value that it is ranked by: the larger value first, then the lower id. id -1: none.
 */
struct contender {
	double value;
	int32_t id;
};

/* What scores_kernel finds in a part: the largest score, the first in rank, whether all logits are
 * finite (0, 1). */
struct part_scores {
	struct contender winner, best;
	uint32_t finite;
};

/* A part's contribution to draw_result: mass_before, mass, n_before. */
struct part_sums {
	uint64_t mass_before, mass;
	uint32_t count;
};

static __device__ __forceinline__ struct contender better(struct contender a, struct contender b)
{
	bool takes =
		b.id >= 0 && (a.id < 0 || b.value > a.value || (b.value == a.value && b.id < a.id));
	return takes ? b : a;
}

static __device__ __forceinline__ struct contender warp_best(struct contender c)
{
	for (int step = 16; step; step /= 2)
		c = better(c, {__shfl_xor_sync(~0u, c.value, step), __shfl_xor_sync(~0u, c.id, step)});
	return c;
}

/* The result of all threads of the block, in every thread. scratch: shared [WARPS]. */
static __device__ __forceinline__ struct contender block_best(
	struct contender c, struct contender *scratch)
{
	c = warp_best(c);
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		scratch[threadIdx.x / 32] = c;
	__syncthreads();
	c = scratch[0];
	for (int w = 1; w < WARPS; w++)
		c = better(c, scratch[w]);
	return c;
}

static __device__ __forceinline__ uint64_t block_sum(uint64_t v, uint64_t *scratch)
{
	v = warp_sum(v);
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		scratch[threadIdx.x / 32] = v;
	__syncthreads();
	v = 0;
	for (int w = 0; w < WARPS; w++)
		v += scratch[w];
	return v;
}

static __global__ void __launch_bounds__(THREADS) scores_kernel(const float *logits, int64_t stride,
	int n, const __grid_constant__ struct row_requests requests, struct part_scores *parts)
{
	__shared__ struct contender scratch[WARPS];
	const struct row_request *q = &requests.of[blockIdx.y];
	uint32_t block = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32,
			 first = block * DRAW_BLOCK + 4 * lane;
	launch_dependents();
	const struct draw_noise noise = {q->seed, q->position};
	struct draw_words pair = draw_block_words(&noise, block / 2),
					  words = draw_id_words(&noise, first / 4);
	float least = draw_block_least(pair.w[block % 2 * 2]);
	uint32_t at = block * DRAW_BLOCK + draw_block_at(pair.w[block % 2 * 2 + 1]);
	grid_dependency_wait();
	struct contender winner = {0, -1}, best = {0, -1};
	bool finite = true;
#pragma unroll
	for (uint32_t k = 0; k < 4; k++) {
		uint32_t id = first + k;
		if (id >= (uint32_t)n)
			continue;
		float logit = logits[blockIdx.y * stride + id];
		finite &= fabsf(logit) < INFINITY;
		if (!(logit > -INFINITY))
			continue;
		float e = id == at ? least : least + draw_exponential(words.w[k]);
		winner = better(winner, {draw_score(logit, q->inv_t, e), (int32_t)id});
		best = better(best, {(double)logit, (int32_t)id});
	}
	winner = block_best(winner, scratch);
	best = block_best(best, scratch);
	finite = __syncthreads_and(finite);
	if (!threadIdx.x)
		parts[blockIdx.y * gridDim.x + blockIdx.x] = {winner, best, finite};
}

/* Puts the parts of a row together, in every thread of the block. */
static __device__ struct part_scores row_scores(
	const struct part_scores *parts, int n_parts, struct contender *scratch)
{
	struct part_scores mine = {{0, -1}, {0, -1}, 1};
	for (int i = threadIdx.x; i < n_parts; i += THREADS) {
		mine.winner = better(mine.winner, parts[i].winner);
		mine.best = better(mine.best, parts[i].best);
		mine.finite &= parts[i].finite;
	}
	mine.winner = block_best(mine.winner, scratch);
	mine.best = block_best(mine.best, scratch);
	mine.finite = __syncthreads_and(mine.finite);
	return mine;
}

/* The id that draw_row returns. */
static __device__ __forceinline__ int32_t row_winner(const struct part_scores *s, double inv_t)
{
	if (s->best.id < 0)
		return 0;
	return inv_t > 0 && s->best.value < INFINITY ? s->winner.id : s->best.id;
}

static __global__ void __launch_bounds__(THREADS) sums_kernel(const float *logits, int64_t stride,
	int n, const __grid_constant__ struct row_requests requests, const struct part_scores *parts,
	struct part_sums *sums)
{
	__shared__ struct contender scratch[WARPS];
	__shared__ uint64_t numbers[WARPS];
	const struct row_request *q = &requests.of[blockIdx.y];
	launch_dependents();
	grid_dependency_wait();
	logits += blockIdx.y * stride;
	struct part_scores s = row_scores(parts + blockIdx.y * gridDim.x, gridDim.x, scratch);
	int32_t id = row_winner(&s, q->inv_t);
	float top = s.best.id < 0 ? -INFINITY : (float)s.best.value, logit = logits[id];
	uint64_t count = 0, before = 0, mass = 0;
	for (int k = 0; k < PART_IDS / THREADS; k++) {
		int i = blockIdx.x * PART_IDS + k * THREADS + threadIdx.x;
		if (i >= n)
			break;
		float v = logits[i];
		uint64_t units = draw_units(v, top, q->scale);
		bool is_before = v > logit || (v == logit && i < id);
		count += is_before;
		before += is_before ? units : 0;
		mass += units;
	}
	count = block_sum(count, numbers);
	before = block_sum(before, numbers);
	mass = block_sum(mass, numbers);
	if (!threadIdx.x)
		sums[blockIdx.y * gridDim.x + blockIdx.x] = {before, mass, (uint32_t)count};
}

/* sums: of all rows; read only for rows that request sums or mass. */
static __global__ void __launch_bounds__(THREADS) results_kernel(const float *logits,
	int64_t stride, int n_parts, const __grid_constant__ struct row_requests requests,
	const struct part_scores *parts, const struct part_sums *sums, struct draw_result *out)
{
	__shared__ struct contender scratch[WARPS];
	__shared__ uint64_t numbers[WARPS];
	launch_dependents();
	grid_dependency_wait();
	int r = blockIdx.x;
	const struct row_request *q = &requests.of[r];
	struct part_scores s = row_scores(parts + r * n_parts, n_parts, scratch);
	int32_t id = row_winner(&s, q->inv_t), best = s.best.id < 0 ? 0 : s.best.id;
	uint64_t count = 0, before = 0, mass = 0;
	bool asks = q->sums && id != best;
	if (asks || (q->mass && s.best.id >= 0 && s.best.value < INFINITY)) {
		for (int i = threadIdx.x; i < n_parts; i += THREADS) {
			count += sums[r * n_parts + i].count;
			before += sums[r * n_parts + i].mass_before;
			mass += sums[r * n_parts + i].mass;
		}
		count = block_sum(count, numbers);
		before = block_sum(before, numbers);
		mass = block_sum(mass, numbers);
	}
	if (!threadIdx.x)
		out[r] = {id, best, logits[r * stride + id],
			s.best.id < 0 ? -INFINITY : (float)s.best.value, s.finite, asks ? (uint32_t)count : 0,
			asks ? before : 0, mass};
}

void cuda_draw(struct backend *base, const float *logits, int64_t stride, int32_t n,
	const struct draw_request *requests, int rows, struct draw_result *out)
{
	struct cuda_backend *b = cuda_of(base);
	if (!cuda_begin(base, "draw") || rows <= 0)
		return;
	struct row_requests all = {};
	bool any_sums = false;
	for (int r = 0; r < rows; r++) {
		const struct draw_request *q = &requests[r];
		all.of[r] = {q->noise.seed, q->inv_t, q->noise.position,
			draw_unit_scale(draw_mass_inv_t(q)), q->sums && q->inv_t > 0, q->mass};
		any_sums |= all.of[r].sums || q->mass;
	}
	unsigned n_parts = (unsigned)((n + PART_IDS - 1) / PART_IDS);
	size_t n_all = (size_t)rows * n_parts;
	struct part_scores *parts = (struct part_scores *)cuda_scratch(
		b, n_all * (sizeof(struct part_scores) + sizeof(struct part_sums)));
	if (!parts)
		return;
	struct part_sums *sums = (struct part_sums *)(parts + n_all);
	dim3 grid(n_parts, (unsigned)rows);
	cuda_launch(b, scores_kernel, grid, THREADS, 0, logits, stride, n, all, parts);
	if (any_sums)
		cuda_launch(b, sums_kernel, grid, THREADS, 0, logits, stride, n, all, parts, sums);
	cuda_launch(b, results_kernel, (unsigned)rows, THREADS, 0, logits, stride, (int)n_parts, all,
		parts, sums, out);
}
