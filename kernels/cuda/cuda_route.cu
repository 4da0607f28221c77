/* SPDX-License-Identifier: MIT */
/*
 * The router. route_kernel: grid rows, block 32 (one warp a row). Scores, choices and order keys of all experts lie in shared
 * memory; each of the n_used picks is a maximum over the warp, ties to the lower id. Moves n_experts floats in, n_used
 * pairs out; ids go straight to pinned host memory.
 */
#include "kernels/cuda/cuda_common.cuh"

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

static __global__ void route_kernel(const __grid_constant__ struct route a)
{
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
	for (int k = lane; k < a.n_used; k += 32) {
		float v = score[picked[k]];
		a.ids[r * a.n_used + k] = picked[k];
		a.weights[r * a.n_used + k] =
			a.normalise ? __fmul_rn(__fdiv_rn(v, __fadd_rn(sum, 1e-20f)), a.scale) : __fmul_rn(v, a.scale);
	}
}

void cuda_route(struct backend *base, const struct route *a, int rows)
{
	struct cuda_backend *b = cuda_of(base);
	if (!cuda_begin(base, "route") || !rows)
		return;
	size_t shared =
		((size_t)a->n_experts * 13 + (size_t)a->n_group * 5 + (size_t)a->n_used * 4 + 15) & ~(size_t)15;
	static size_t allowed;
	if (!cuda_allow_shared(b, (const void *)route_kernel, shared, &allowed))
		return;
	cuda_launch(b, route_kernel, (unsigned)rows, 32, shared, *a);
}
