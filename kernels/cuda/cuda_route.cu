/* SPDX-License-Identifier: MIT */
/*
 * The router's choice.
 *
 * pick_kernel, for at most 32 * PICK_EACH experts of one group and 32 rows times routers: one block, a warp for each row of each
 * router, which keeps PICK_EACH scores and keys a lane in registers. Each of the n_used picks is a maximum over the warp, ties to the
 * lower id: redux for the key, then for the id. The block raises the mark.
 * route_kernel, for the others: grid (rows, routers), block 32. Scores, choices and order keys of all experts lie in shared memory. The
 * mark is a kernel of its own.
 *
 * Both move n_experts floats in, n_used pairs out; ids go straight to pinned host memory.
 */
#include "kernels/cuda/cuda_common.cuh"

#define PICK_EACH 8 /* experts of a lane */

struct routes {
	struct route of[ROUTES_MAX];
};

/* Best of key[0 .. n) that is not taken: (key, lower id first) as one 64-bit number, the same in all lanes. */
static __device__ __forceinline__ int best_of(const uint32_t *key, const uint8_t *taken, int n)
{
	unsigned long long best = 0;
	for (int i = threadIdx.x; i < n; i += 32) {
		unsigned long long v = (unsigned long long)key[i] << 32 | (0xffffffffu - (uint32_t)i);
		best = !taken[i] && v > best ? v : best;
	}
#pragma unroll
	for (int step = 16; step; step /= 2) {
		unsigned long long v = __shfl_xor_sync(0xffffffffu, best, step);
		best = v > best ? v : best;
	}
	return (int)(0xffffffffu - (uint32_t)best);
}

/* Marks the experts of all groups but the n_group_used with the largest sum of their two best choices. */
static __device__ void skip_groups(const struct route &a, const float *choice, const uint32_t *key,
	uint32_t *group_key, uint8_t *group_taken, uint8_t *taken)
{
	int size = a.n_experts / a.n_group;
	for (int g = threadIdx.x; g < a.n_group; g += 32) {
		int first = -1, second = -1;
		for (int i = g * size; i < (g + 1) * size; i++) {
			if (first < 0 || key[i] > key[first]) {
				second = first;
				first = i;
			} else if (second < 0 || key[i] > key[second]) {
				second = i;
			}
		}
		group_key[g] = order_key(second < 0 ? choice[first] : __fadd_rn(choice[first], choice[second]));
		group_taken[g] = 0;
	}
	for (int i = threadIdx.x; i < a.n_experts; i += 32)
		taken[i] = 1;
	__syncwarp();
	for (int k = 0; k < a.n_group_used; k++) {
		int g = best_of(group_key, group_taken, a.n_group);
		__syncwarp();
		group_taken[g] = 1;
		for (int i = threadIdx.x; i < size; i += 32)
			taken[g * size + i] = 0;
		__syncwarp();
	}
}

static __device__ __forceinline__ void put_pick(
	const struct route &a, int64_t place, int id, float score, float sum)
{
	a.ids[place] = id;
	if (a.weights)
		a.weights[place] = a.normalise ? __fmul_rn(__fdiv_rn(score, __fadd_rn(sum, 1e-20f)), a.scale)
									   : __fmul_rn(score, a.scale);
}

static __global__ void route_kernel(const __grid_constant__ struct routes routes)
{
	const struct route &a = routes.of[blockIdx.y];
	extern __shared__ __align__(16) float shared[];
	grid_let_next();
	grid_wait_before();
	int n = a.n_experts, lane = threadIdx.x;
	int64_t r = blockIdx.x;
	float *score = shared, *choice = score + n;
	uint32_t *key = (uint32_t *)(choice + n), *group_key = key + n;
	int32_t *picked = (int32_t *)(group_key + a.n_group);
	uint8_t *taken = (uint8_t *)(picked + a.n_used), *group_taken = taken + n;
	for (int i = lane; i < n; i += 32) {
		score[i] = sigmoid_exact(a.logits[r * n + i]);
		choice[i] = __fadd_rn(score[i], a.bias[i]);
		key[i] = order_key(choice[i]);
		taken[i] = 0;
	}
	__syncwarp();
	if (a.n_group > 1)
		skip_groups(a, choice, key, group_key, group_taken, taken);
	float sum = 0;
	for (int k = 0; k < a.n_used; k++) {
		int id = best_of(key, taken, n);
		__syncwarp();
		taken[id] = 1;
		sum = __fadd_rn(sum, score[id]);
		if (!lane)
			picked[k] = id;
		__syncwarp();
	}
	for (int k = lane; k < a.n_used; k += 32)
		put_pick(a, r * a.n_used + k, picked[k], score[picked[k]], sum);
}

static __global__ void __launch_bounds__(1024)
	pick_kernel(const __grid_constant__ struct routes routes, int rows, struct cuda_mark mark)
{
	grid_let_next();
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const struct route &a = routes.of[warp / rows];
	int64_t r = warp % rows;
	float score[PICK_EACH], bias[PICK_EACH];
	uint32_t key[PICK_EACH]; /* 0: taken, or no expert */
#pragma unroll
	for (int j = 0; j < PICK_EACH; j++)
		bias[j] = lane + 32 * j < a.n_experts ? a.bias[lane + 32 * j] : 0;
	grid_wait_before();
	unsigned long long number = threadIdx.x ? 0 : mark_number(mark);
#pragma unroll
	for (int j = 0; j < PICK_EACH; j++)
		score[j] = lane + 32 * j < a.n_experts ? a.logits[r * a.n_experts + lane + 32 * j] : 0;
#pragma unroll
	for (int j = 0; j < PICK_EACH; j++) {
		score[j] = sigmoid_exact(score[j]);
		key[j] = lane + 32 * j < a.n_experts ? max(order_key(__fadd_rn(score[j], bias[j])), 1u) : 0;
	}
	float sum = 0, my_score = 0;
	int my_id = 0; /* pick number `lane` */
	for (int k = 0; k < a.n_used; k++) {
		uint32_t most = 0, id = 0xffffffffu;
		float s = 0;
#pragma unroll
		for (int j = 0; j < PICK_EACH; j++)
			most = max(most, key[j]);
		most = __reduce_max_sync(0xffffffffu, most);
#pragma unroll
		for (int j = PICK_EACH - 1; j >= 0; j--)
			if (key[j] == most) {
				id = (uint32_t)(lane + 32 * j);
				s = score[j];
			}
		id = __reduce_min_sync(0xffffffffu, id);
		s = __shfl_sync(0xffffffffu, s, id % 32);
#pragma unroll
		for (int j = 0; j < PICK_EACH; j++)
			if (id == (uint32_t)(lane + 32 * j))
				key[j] = 0;
		sum = __fadd_rn(sum, s);
		if (lane == k) {
			my_id = (int)id;
			my_score = s;
		}
	}
	if (lane < a.n_used)
		put_pick(a, r * a.n_used + lane, my_id, my_score, sum);
	__syncthreads();
	if (!threadIdx.x)
		mark_here(mark, number);
}

void cuda_route(struct backend *base, const struct route *a, int n, int rows)
{
	struct cuda_backend *b = cuda_of(base);
	struct routes routes = {};
	if (!rows || !n || base->failure.code) {
		cuda_mark(base);
		return;
	}
	cuda_begin(base, "route");
	for (int i = 0; i < n; i++)
		routes.of[i] = a[i];
	if (a->n_group <= 1 && a->n_experts <= 32 * PICK_EACH && a->n_used <= 32 && n * rows <= 32) {
		cuda_launch(b, pick_kernel, 1, (unsigned)(32 * n * rows), 0, routes, rows, cuda_mark_next(b));
		return;
	}
	size_t shared =
		((size_t)a->n_experts * 13 + (size_t)a->n_group * 5 + (size_t)a->n_used * 4 + 15) & ~(size_t)15;
	static size_t allowed;
	if (cuda_allow_shared(b, (const void *)route_kernel, shared, &allowed))
		cuda_launch(b, route_kernel, dim3((unsigned)rows, (unsigned)n), 32, shared, routes);
	cuda_mark(base);
}
