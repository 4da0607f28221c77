/* SPDX-License-Identifier: MIT */
/*
 * route: the router's norm, product and top-k selection, then a fence.
 *
 * gate_kernel: all of it in one launch, for one or two routers of F32 rows and up to GATE_X rows of
 * x (see gate_applies); the same sums in the same order as rms_norm_kernel and gemv_kernel. The
 * rows of x are divided into slices; there is more than one only if the whole grid has at most as
 * many blocks as there are SMs. Grid: (a block for each GATE_ROWS weight rows and one more,
 * slices). Block: 8 warps.
 *   - A block loads its weights to registers before it waits for the kernels before it, so that
 *     only x remains to be loaded. Then it computes, each for all rows of its slice and with a
 *     barrier behind it: sums of squares, roots (of several rows; a warp for each), and the
 *     products, for which a warp takes some super-blocks of 256 values of each weight row, as in
 *     gemv_kernel.
 *   - It stores its scores as flag-in-data words of 64 bits: key and score. They are 0 between
 *     launches.
 *   - The last block of the grid has no weights. When the words are there it selects, each warp a
 *     row of a router at a time, zeroes the words and signals the fence. (The last blocks of the
 *     other slices have nothing to do and end at once.)
 *   - Only the last block waits for others, and the device starts blocks in order. So no two blocks
 *     need run at the same time.
 *   - h is the normed x of the first router. A single row is written by the last block, and is
 *     there when the fence is signalled. Several rows are written by the first router's blocks in
 *     turn, and are there when the kernel has ended. These blocks write the words for the host
 *     (h_words) in either case.
 *
 * select_kernel: at most 32 * LANE_EXPERTS experts without expert groups, n_used up to 32, at most
 * 32 pairs of a row and a router. One block, a warp for each pair; it signals the fence.
 * gate_kernel and select_kernel keep LANE_EXPERTS scores and keys a lane in registers. Each of the
 * n_used ids is a maximum over the warp, ties to the lower id.
 *
 * route_kernel: the other cases. Grid (rows, routers), block 32. Scores, choices and order keys of
 * all experts lie in shared memory. The fence is a kernel of its own.
 *
 * Bytes moved by gate_kernel: the weights once per slice, and twice per block the x of its slice,
 * from the L2 cache. By the others: n_experts floats in. n_used pairs out. Ids go straight to
 * pinned host memory, each with the fence value as its flag, so that no memory fence is needed
 * (wait_expert_ids).
 */
#include "kernels/cuda/common/norm.cuh"
#include "kernels/cuda/common/poll.cuh"
#include "kernels/cuda/runtime/signals.cuh"

#define LANE_EXPERTS 8 /* experts of a lane: 8 lane and on */

#define GATE_ROUTERS      2
#define GATE_EXPERTS      (32 * LANE_EXPERTS)
#define GATE_ROWS         4  /* weight rows of a block */
#define GATE_WARPS        8  /* share a weight row, as in gemv_kernel */
#define GATE_SUPER_BLOCKS 3  /* of a warp, at most */
#define GATE_X            32 /* rows of x, at most */

struct routes {
	struct route of[ROUTES_MAX];
};

/* The id of the largest of key[0 .. n) that is not taken, of equal ones the lowest; the same in all
 * lanes. A key and its id are compared as one 64-bit number. Precondition: one is not taken. */
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

/* Masks the experts of all groups but the n_group_used with the largest sum of their two best
 * choices. */
static __device__ void mask_groups(const struct route &a, const float *choice, const uint32_t *key,
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
		group_key[g] =
			order_key(second < 0 ? choice[first] : __fadd_rn(choice[first], choice[second]));
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

/* fence: the value of the call's fence */
static __device__ __forceinline__ void store_expert_id(
	const struct route &a, int64_t slot, int id, float score, float sum, unsigned long long fence)
{
	asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(a.expert_ids + slot),
				 "l"(fence << 32 | (uint32_t)id)
				 : "memory");
	if (a.weights)
		a.weights[slot] = a.normalise ? __fmul_rn(__fdiv_rn(score, __fadd_rn(sum, 1e-20f)), a.scale)
									  : __fmul_rn(score, a.scale);
}

static __global__ void route_kernel(
	const __grid_constant__ struct routes routes, struct cuda_fence fence)
{
	const struct route &a = routes.of[blockIdx.y];
	extern __shared__ __align__(16) float shared[];
	launch_dependents();
	grid_dependency_wait();
	unsigned long long number = fence_next_value(fence);
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
		mask_groups(a, choice, key, group_key, group_taken, taken);
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
		store_expert_id(a, r * a.n_used + k, picked[k], score[picked[k]], sum, number);
}

/* Puts two pairs of a key and an id in order: the larger key first, of equal ones the lower id. */
static __device__ __forceinline__ void sort_two(uint32_t &key_a, uint32_t &key_b, int &a, int &b)
{
	bool turn = key_b > key_a || (key_b == key_a && b < a);
	uint32_t key = turn ? key_b : key_a;
	int id = turn ? b : a;
	key_b = turn ? key_a : key_b;
	b = turn ? a : b;
	key_a = key;
	a = id;
}

struct lane_keys {
	uint32_t of[LANE_EXPERTS]; /* j: of id LANE_EXPERTS lane + j; 0: no expert */
};

/* The ids of the n_used largest keys of the warp, in order, ties to the lower id, to chosen:
 * shared, [32]. Each lane puts its own in order; then the first ones of all lanes compete. Not
 * inlined, so that it can be run once for the sake of the instruction cache. */
static __device__ __noinline__ void select_sorted(struct lane_keys keys, int n_used, int *chosen)
{
	static_assert(LANE_EXPERTS == 8, "the network is for eight");
	constexpr int A[19] = {0, 2, 4, 6, 0, 1, 4, 5, 1, 5, 0, 1, 2, 3, 2, 3, 1, 3, 5},
				  B[19] = {1, 3, 5, 7, 2, 3, 6, 7, 2, 6, 4, 5, 6, 7, 4, 5, 2, 4, 6};
	uint32_t(&key)[LANE_EXPERTS] = keys.of;
	int lane = threadIdx.x % 32, id[LANE_EXPERTS];
	uint32_t below = (1u << lane) - 1;
#pragma unroll
	for (int j = 0; j < LANE_EXPERTS; j++)
		id[j] = LANE_EXPERTS * lane + j;
#pragma unroll
	for (int i = 0; i < 19; i++)
		sort_two(key[A[i]], key[B[i]], id[A[i]], id[B[i]]);
#pragma unroll 1
	for (int k = 0; k < n_used; k++) {
		bool most = key[0] == __reduce_max_sync(0xffffffffu, key[0]);
		uint32_t all = __ballot_sync(0xffffffffu, most);
		if (most && !(all & below)) {
			chosen[k] = id[0];
#pragma unroll
			for (int j = 0; j + 1 < LANE_EXPERTS; j++) {
				key[j] = key[j + 1];
				id[j] = id[j + 1];
			}
			key[LANE_EXPERTS - 1] = 0;
		}
	}
	__syncwarp();
}

/* What one warp has of a row's scores, in shared memory */
struct row_scores {
	float of[32 * LANE_EXPERTS];
	int chosen[32];
};

/* Selects the top-k experts of row r and stores ids and weights. By a warp. */
static __device__ __forceinline__ void select_top_k(const struct route &a, int64_t r,
	const struct lane_keys &keys, const float score[LANE_EXPERTS], struct row_scores *shared,
	unsigned long long fence)
{
	int lane = threadIdx.x % 32;
	float sum = 0;
#pragma unroll
	for (int j = 0; j < LANE_EXPERTS; j++)
		shared->of[LANE_EXPERTS * lane + j] = score[j];
	select_sorted(keys, a.n_used, shared->chosen);
	int id = shared->chosen[lane < a.n_used ? lane : 0];
	float s = shared->of[id];
	for (int k = 0; k < a.n_used; k++)
		sum = __fadd_rn(sum, __shfl_sync(0xffffffffu, s, k));
	if (lane < a.n_used)
		store_expert_id(a, r * a.n_used + lane, id, s, sum, fence);
}

static __device__ __forceinline__ uint32_t key_of_choice(float score, float bias)
{
	return max(order_key(__fadd_rn(score, bias)), 1u);
}

static __global__ void __launch_bounds__(1024)
	select_kernel(const __grid_constant__ struct routes routes, int rows, struct cuda_fence fence)
{
	extern __shared__ struct row_scores scores[]; /* of each warp */
	launch_dependents();
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = LANE_EXPERTS * lane;
	const struct route &a = routes.of[warp / rows];
	int64_t r = warp % rows;
	float score[LANE_EXPERTS], bias[LANE_EXPERTS];
	struct lane_keys keys;
#pragma unroll
	for (int j = 0; j < LANE_EXPERTS; j++)
		bias[j] = first + j < a.n_experts ? a.bias[first + j] : 0;
	grid_dependency_wait();
	unsigned long long number = fence_next_value(fence);
#pragma unroll
	for (int j = 0; j < LANE_EXPERTS; j++)
		score[j] = first + j < a.n_experts ? a.logits[r * a.n_experts + first + j] : 0;
#pragma unroll
	for (int j = 0; j < LANE_EXPERTS; j++) {
		score[j] = sigmoid_exact(score[j]);
		keys.of[j] = first + j < a.n_experts ? key_of_choice(score[j], bias[j]) : 0;
	}
	select_top_k(a, r, keys, score, scores + warp, number);
	__syncthreads();
	if (!threadIdx.x)
		fence_signal_relaxed(fence, number);
}

/* ---- the normed x for the host ---- */

/* Stores h[0 .. 4) as words, each with the fence value as its flag. */
static __device__ __forceinline__ void store_h_words(
	uint64_t *words, float4 h, unsigned long long fence)
{
	unsigned long long flag = fence << 32,
					   two[4] = {flag | __float_as_uint(h.x), flag | __float_as_uint(h.y),
						   flag | __float_as_uint(h.z), flag | __float_as_uint(h.w)};
#pragma unroll
	for (int i = 0; i < 4; i += 2)
		asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(words + i), "l"(two[i]),
					 "l"(two[i + 1])
					 : "memory");
}

/* The normed x for the host, where gate_kernel does not apply. Grid: blocks of 256 threads, four
 * values each. */
static __global__ void h_words_kernel(
	const float *h, int64_t n, uint64_t *words, struct cuda_fence fence)
{
	launch_dependents();
	grid_dependency_wait();
	unsigned long long number = fence_next_value(fence);
	int64_t i = 4 * ((int64_t)blockIdx.x * blockDim.x + threadIdx.x);
	if (i < n)
		store_h_words(words + i, make_float4(h[i], h[i + 1], h[i + 2], h[i + 3]), number);
}

/* ---- norm, products and choice ---- */

struct gate_args {
	struct route of[GATE_ROUTERS];
	int n, rows, n_in;
	int slice_rows;            /* rows of x of a slice */
	unsigned long long *words; /* [n][rows][GATE_EXPERTS]; see above */
	struct cuda_fence fence;
	struct poll_report report;
};

#if __CUDA_ARCH__ >= 900
/* By a warp of the last block: the selection of row r of a router, when its words are there. */
static __device__ __forceinline__ void select_from_words(const struct route &a, int64_t r,
	unsigned long long *words, const struct poll_report &report, struct row_scores *shared,
	unsigned long long fence)
{
	int first = LANE_EXPERTS * (threadIdx.x % 32);
	unsigned long long word[LANE_EXPERTS];
	poll_until(report, [&]() {
		bool all = true;
#pragma unroll
		for (int j = 0; j < LANE_EXPERTS; j += 2)
			asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
						 : "=l"(word[j]), "=l"(word[j + 1])
						 : "l"(words + first + j)
						 : "memory");
#pragma unroll
		for (int j = 0; j < LANE_EXPERTS; j++)
			all &= word[j] || first + j >= a.n_experts;
		return __all_sync(0xffffffffu, all);
	});
	struct lane_keys keys;
	float score[LANE_EXPERTS];
#pragma unroll
	for (int j = 0; j < LANE_EXPERTS; j++) {
		keys.of[j] = (uint32_t)(word[j] >> 32);
		score[j] = __uint_as_float((uint32_t)word[j]);
		words[first + j] = 0; /* the end of the launch orders that before the next one */
	}
	select_top_k(a, r, keys, score, shared, fence);
}
#endif

static_assert(GATE_ROWS * GATE_X <= 32 * GATE_WARPS, "a thread for each score of a block");

static __global__ void __launch_bounds__(32 * GATE_WARPS, 1)
	gate_kernel(const __grid_constant__ struct gate_args a)
{
#if __CUDA_ARCH__ >= 900
	__shared__ double squares[GATE_X][32];
	__shared__ float scales[GATE_X]; /* factors of the norms; with one row not used */
	__shared__ float parts[GATE_X][GATE_ROWS][GATE_WARPS];
	__shared__ struct row_scores scores[GATE_WARPS];
	launch_dependents();
	int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, n_in = a.n_in,
		super_blocks = n_in / 256;
	bool last = blockIdx.x == gridDim.x - 1; /* has no weights; selects */
	if (last && blockIdx.y != gridDim.y - 1)
		return;
	int first = last ? 0 : (int)blockIdx.x * GATE_ROWS, router = first >= a.of[0].n_experts;
	first -= router ? a.of[0].n_experts : 0;
	/* its rows of x */
	int first_row = (int)blockIdx.y * a.slice_rows,
		end_row = last && a.rows > 1 ? 0 : min(first_row + a.slice_rows, a.rows);
	const struct route &own = a.of[router];
	const float *weights = (const float *)own.w.data + (int64_t)first * n_in;
	float4 w[GATE_SUPER_BLOCKS][2][GATE_ROWS], gain[GATE_SUPER_BLOCKS][2];
	/* Offset of this lane's first four values of a super-block. Where the warp has none it is the
	 * last one, whose products are left out. */
	int at[GATE_SUPER_BLOCKS];
#pragma unroll
	for (int i = 0; i < GATE_SUPER_BLOCKS; i++) {
		at[i] = min(warp + i * GATE_WARPS, super_blocks - 1) * 256 + 4 * lane;
#pragma unroll
		for (int g = 0; g < 2; g++) {
			gain[i][g] = load_ahead(own.gain + at[i] + 128 * g);
#pragma unroll
			for (int e = 0; e < GATE_ROWS; e++)
				w[i][g][e] = last ? make_float4(0, 0, 0, 0)
								  : load_ahead(weights + (int64_t)e * n_in + at[i] + 128 * g);
		}
	}
	/* bit 2 i + g: this block writes half g, 128 values, of the warp's super-block i of h */
	uint32_t writes_h = 0;
#pragma unroll
	for (int k = 0; k < 2 * GATE_SUPER_BLOCKS; k++) {
		int half = 2 * (warp + k / 2 * GATE_WARPS) + k % 2; /* counted within the row */
		if (last || (!router && half % (own.n_experts / GATE_ROWS) == (int)blockIdx.x))
			writes_h |= 1u << k;
	}
	float bias =
		!last && tid < GATE_ROWS * (end_row - first_row) ? own.bias[first + tid % GATE_ROWS] : 0;
	if (last &&
		warp < a.n * a.rows) { /* only to load the code: it is in the cache when the words come */
		struct lane_keys keys;
#pragma unroll
		for (int j = 0; j < LANE_EXPERTS; j++)
			keys.of[j] = (uint32_t)(lane ^ j);
		select_sorted(keys, own.n_used, scores[warp].chosen);
	}
	grid_dependency_wait();
	unsigned long long number = fence_next_value(a.fence);
	/* This lane's values of row r for the products. Here and for the squares, row r + 1 is loaded
	 * before row r is computed. */
	auto load_x = [&](int r, float4 v[GATE_SUPER_BLOCKS][2]) {
		const float *from = own.x + (int64_t)r * n_in;
#pragma unroll
		for (int i = 0; i < GATE_SUPER_BLOCKS; i++)
#pragma unroll
			for (int g = 0; g < 2; g++)
				v[i][g] = *(const float4 *)(from + at[i] + 128 * g);
	};
	/* For the sums of squares, in norm_row's order: a thread does what threads tid, tid + 256 and
	 * tid + 512 of norm_row do. Where there is no such value it is the last one. */
	auto load_for_squares = [&](int r, float4 v[GATE_SUPER_BLOCKS][2]) {
		const float *from = own.x + (int64_t)r * n_in;
#pragma unroll
		for (int i = 0; i < GATE_SUPER_BLOCKS; i++) {
			int k = min(4 * (tid + i * 32 * GATE_WARPS), n_in / 2 - 4);
#pragma unroll
			for (int g = 0; g < 2; g++)
				v[i][g] = *(const float4 *)(from + k + g * (n_in / 2));
		}
	};
	float4 next[GATE_SUPER_BLOCKS][2], next_squares[GATE_SUPER_BLOCKS][2];
	load_for_squares(first_row, next_squares);
	load_x(first_row, next);
	/* squares[r][super_blocks] and on are of no such values, and not used. */
#pragma unroll 1
	for (int r = first_row; r < end_row; r++) {
		double sum[GATE_SUPER_BLOCKS];
#pragma unroll
		for (int i = 0; i < GATE_SUPER_BLOCKS; i++)
			sum[i] = add_squares(add_squares(0, next_squares[i][0]), next_squares[i][1]);
		if (r + 1 < end_row)
			load_for_squares(r + 1, next_squares);
#pragma unroll
		for (int i = 0; i < GATE_SUPER_BLOCKS; i++) {
			sum[i] = warp_sum(sum[i]);
			if (!lane)
				squares[r][warp + i * GATE_WARPS] = sum[i];
		}
	}
	__syncthreads();
	auto scale_of = [&](int r) {
		double sum = warp_sum(lane < super_blocks ? squares[r][lane] : 0);
		return (float)rsqrt(sum / n_in + (double)own.eps);
	};
	/* Several rows: a warp computes each root. A single row: every warp does, without a barrier. */
	if (a.rows > 1) {
#pragma unroll 1
		for (int r = first_row + warp; r < end_row; r += GATE_WARPS) {
			float scale = scale_of(r);
			if (!lane)
				scales[r] = scale;
		}
		__syncthreads();
	}
#pragma unroll 1
	for (int r = first_row; r < end_row; r++) {
		float4 v[GATE_SUPER_BLOCKS][2];
#pragma unroll
		for (int i = 0; i < GATE_SUPER_BLOCKS; i++)
			v[i][0] = next[i][0], v[i][1] = next[i][1];
		if (r + 1 < end_row)
			load_x(r + 1, next);
		float scale = a.rows > 1 ? scales[r] : scale_of(r);
		float acc[GATE_ROWS] = {0, 0, 0, 0};
#pragma unroll
		for (int i = 0; i < GATE_SUPER_BLOCKS; i++) {
			if (warp + i * GATE_WARPS >= super_blocks)
				continue;
#pragma unroll
			for (int g = 0; g < 2; g++) {
				float4 h = normed(v[i][g], scale, gain[i][g]);
				int64_t to = (int64_t)r * n_in + at[i] + 128 * g;
				if (writes_h >> (2 * i + g) & 1) {
					if (last || a.rows > 1)
						*(float4 *)(own.h + to) = h;
					if (own.h_words && !last)
						store_h_words(own.h_words + to, h, number);
				}
#pragma unroll
				for (int e = 0; e < GATE_ROWS; e++) {
					acc[e] = __fmaf_rn(w[i][g][e].x, h.x, acc[e]);
					acc[e] = __fmaf_rn(w[i][g][e].y, h.y, acc[e]);
					acc[e] = __fmaf_rn(w[i][g][e].z, h.z, acc[e]);
					acc[e] = __fmaf_rn(w[i][g][e].w, h.w, acc[e]);
				}
			}
		}
#pragma unroll
		for (int e = 0; e < GATE_ROWS; e++) {
			acc[e] = warp_sum(acc[e]);
			if (lane == e)
				parts[r][e][warp] = acc[e];
		}
	}
	if (last) {
		/* A deferred expert kernel of one row reads h. It does not wait for this kernel, but for a
		 * message that the host posts when it has seen the fence (not the ids, which may come
		 * before other warps have written their part of h). Both kernels run on this device: h need
		 * only be in its L2 cache. */
		if (a.rows == 1)
			__threadfence();
		for (int u = warp; u < a.n * a.rows; u += GATE_WARPS)
			select_from_words(a.of[u / a.rows], u % a.rows, a.words + u * GATE_EXPERTS, a.report,
				scores + warp, number);
	}
	__syncthreads();
	if (last) {
		if (!tid)
			fence_signal_relaxed(a.fence, number);
	} else if (tid < GATE_ROWS * (end_row - first_row)) {
		int r = first_row + tid / GATE_ROWS, e = tid % GATE_ROWS;
		float logit = 0;
#pragma unroll
		for (int p = 0; p < GATE_WARPS; p++)
			logit = __fadd_rn(logit, parts[r][e][p]);
		float score = sigmoid_exact(logit);
		unsigned long long word =
			(unsigned long long)key_of_choice(score, bias) << 32 | __float_as_uint(score);
		asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(
						 a.words + (router * a.rows + r) * GATE_EXPERTS + first + e),
					 "l"(word)
					 : "memory");
	}
#endif
}

/* Whether gate_kernel computes these routers: its shapes, alignment, and sums in gemv_kernel's
 * order (a split of 8: n_in of 16 super-blocks and more). */
static bool gate_applies(const struct cuda_backend *b, const struct route *a, int n, int rows)
{
	int64_t n_in = a->w.n_in;
	uintptr_t lines = (uintptr_t)a->x | (uintptr_t)a->h;
	bool all = b->has_pdl && n <= GATE_ROUTERS && rows <= GATE_X && a->n_group <= 1 &&
			   a->n_experts <= GATE_EXPERTS && a->n_experts % GATE_ROWS == 0 && a->n_used <= 32 &&
			   n_in % 256 == 0 && n_in >= 16 * 256 && n_in <= GATE_SUPER_BLOCKS * GATE_WARPS * 256;
	for (int i = 0; i < n && all; i++) {
		all = a[i].w.type == DTYPE_F32 && a[i].w.row_bytes == (size_t)n_in * sizeof(float);
		lines |= (uintptr_t)a[i].w.data | (uintptr_t)a[i].gain;
	}
	return all && lines % 16 == 0;
}

static void gate_launch(struct cuda_backend *b, const struct route *a, int n, int rows)
{
	size_t bytes = GATE_ROUTERS * GATE_X * GATE_EXPERTS * sizeof(unsigned long long);
	if (!cuda_scratch_reserve(b, &b->route_flags, bytes)) {
		cuda_fence(&b->base);
		return;
	}
	struct gate_args args = {};
	for (int i = 0; i < n; i++)
		args.of[i] = a[i];
	int blocks = n * a->n_experts / GATE_ROWS + 1, slices = min(max(b->n_sm / blocks, 1), rows);
	args.n = n, args.rows = rows, args.n_in = (int)a->w.n_in;
	args.slice_rows = (rows + slices - 1) / slices;
	slices = (rows + args.slice_rows - 1) / args.slice_rows;
	args.words = (unsigned long long *)b->route_flags.data;
	args.fence = cuda_fence_next(b);
	args.report = cuda_poll_report(b, POLL_ROUTE);
	cuda_launch(b, gate_kernel, dim3((unsigned)blocks, (unsigned)slices), 32 * GATE_WARPS, 0, args);
}

/* ---- the op ---- */

/* Norm and products of the routers as ops of their own: what gate_kernel does not take. */
static void make_logits(struct backend *base, const struct route *a, int n, int rows)
{
	struct norm norms[ROUTES_MAX];
	struct matmul products[ROUTES_MAX];
	for (int i = 0; i < n; i++) {
		norms[i] = {a[i].gain, a[i].h};
		products[i] = {a[i].w, a[i].logits, false, a[i].h};
	}
	cuda_rms_norm(base, a->x, a->w.n_in, norms, n, a->eps, rows, (int)a->w.n_in, a->w.n_in);
	cuda_matmul(base, products, n, NULL, rows);
}

void cuda_route(struct backend *base, const struct route *a, int n, int rows)
{
	struct cuda_backend *b = cuda_of(base);
	struct routes routes = {};
	if (!rows || !n || base->failure.code) {
		cuda_fence(base);
		return;
	}
	cuda_begin(base, "route");
	if (a->x) {
		if (gate_applies(b, a, n, rows) && !base->observer) {
			gate_launch(b, a, n, rows);
			return;
		}
		make_logits(base, a, n, rows);
		if (!cuda_begin(base, "route")) {
			cuda_fence(base);
			return;
		}
	}
	for (int i = 0; i < n; i++)
		routes.of[i] = a[i];
	struct cuda_fence fence = cuda_fence_next(b);
	int64_t values = rows * a->w.n_in;
	if (a->x && a->h_words)
		cuda_launch(b, h_words_kernel, (unsigned)((values + 1023) / 1024), 256, 0,
			(const float *)a->h, values, a->h_words, fence);
	if (a->n_group <= 1 && a->n_experts <= 32 * LANE_EXPERTS && a->n_used <= 32 && n * rows <= 32) {
		cuda_launch(b, select_kernel, 1, (unsigned)(32 * n * rows),
			(size_t)(n * rows) * sizeof(struct row_scores), routes, rows, fence);
		return;
	}
	size_t shared =
		((size_t)a->n_experts * 13 + (size_t)a->n_group * 5 + (size_t)a->n_used * 4 + 15) &
		~(size_t)15;
	if (cuda_allow_shared(b, (const void *)route_kernel, shared)) {
		cuda_launch(b, route_kernel, dim3((unsigned)rows, (unsigned)n), 32, shared, routes, fence);
		cuda_fence_enqueue(b, fence);
	}
}
