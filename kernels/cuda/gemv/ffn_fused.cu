/* SPDX-License-Identifier: MIT */
/*
 * ffn for one row of the released shape's shared expert (6144 > 2048 > 6144, Q8_0) in one launch:
 * the sums of matmul_glu and matmul (gemv_aligned.cuh) in the same order. Other cases run those
 * two.
 *
 * ffn_kernel: grid 128 blocks of 544, one per SM. Block i: 16 rows each of gate and up,
 * 48 of down, in register tiles (q8_tile.cuh). A producer warp loads them by bulk copies, because a
 * warp stalls while its copies are issued: rows of gate and up before the dependency wait; rows of
 * down only when x has arrived, because x would queue behind them. A row of down is as long as a
 * third of a row of gate: the first 32 overwrite the first thirds, which are in registers by then,
 * the other 16 second thirds.
 *
 *      1  The warps split x into limbs. Then each multiplies 8 rows of gate and 8 of up by an
 *         eighth of x: warp 8 i + p has the super-blocks p, p + 8, p + 16.
 *      2  Warp 0 adds up the partial sums and stores the block's 16 hidden values for all blocks.
 *      3  Warps 0 to 7 load the hidden values of all blocks, 256 each, and split them into limbs.
 *         Then warps 4 to 15 multiply 16 rows of down each: warp 4 + 4 i + p has the super-blocks p
 *         and p + 4 of rows 16 i on.
 *
 * Shared memory: rows of gate and up (ROW_STRIDE apart), limbs, their scales, partial sums.
 *
 * Exchange of the hidden values by flag-in-data words (flag_words.cuh), without a barrier. Launches
 * alternate between two sets of words; each clears the other set, which nobody has read since the
 * launch before. All blocks read all words, so there are COPIES of them for different blocks.
 *
 * No deadlock: hidden values need nothing from other blocks, and every block becomes resident: one
 * SM holds one block, a kernel before this one never waits for this launch, and the kernel after it
 * starts when all blocks of this one have started.
 *
 * Bytes moved: 40.1 MB of weights; x and the words once per block from the L2 cache.
 *
 * Tried: the shared expert as a fused gemv chain: slower than two launches (044f56b).
 */
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/flag_words.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/gemv/q8_tile.cuh"

#define N_IN    6144
#define HIDDEN  2048
#define N_OUT   6144
#define BLOCKS  128
#define WARPS   16 /* and a producer warp */
#define THREADS ((WARPS + 1) * 32)
#define COPIES  8 /* at most half of WARPS */

#define UP_ROW     (N_IN / 32 * 34)
#define DOWN_ROW   (HIDDEN / 32 * 34)
#define UP_ROWS    (2 * HIDDEN / BLOCKS)
#define DOWN_ROWS  (N_OUT / BLOCKS)
#define ROW_STRIDE (UP_ROW + 16) /* of rows in shared memory: no bank conflicts of 8 rows */
#define SB_BYTES   (256 / 32 * 34)

#define AT_LIMBS    (UP_ROWS * ROW_STRIDE)
#define AT_SCALES   (AT_LIMBS + N_IN / 256 * SUPER_BLOCK_LIMBS * 8)
#define AT_PARTIALS (AT_SCALES + N_IN / 256 * 4)
#define BYTES       (AT_PARTIALS + WARPS * 16 * 4)

/* mbarriers, all of one phase. HAS_THIRD + t: third t of the rows of gate and up has arrived.
 * HAS_DOWN: the first 32 rows of down, + 1: the others. LOADED: all warps have the first thirds in
 * registers, + 1: the second thirds. HAS_X: all threads have their values of x. */
enum { HAS_THIRD, HAS_DOWN = 3, LOADED = 5, HAS_X = 7, N_BARRIERS };

static_assert(
	UP_ROW == 3 * DOWN_ROW && UP_ROWS == 32 && DOWN_ROWS == 48, "the kernel is for this shape");

/* In device memory, kept between launches; at first all flags FLAG_EMPTY, the rest zero */
struct ffn_state {
	uint32_t flags[2][COPIES][HIDDEN];
	uint32_t turn; /* which set of flags this launch uses */
	uint32_t left; /* blocks that are done with it */
};

struct ffn_args {
	const uint8_t *gate, *up, *down;
	const float *x;
	float *y;
	bool add;
	struct ffn_state *state;
	struct poll_report report;
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/* acc += x_scale * (tile times the limbs of a super-block of x) */
static __device__ __forceinline__ void tile_multiply(
	const struct q8_tile<4, true> &t, const uint2 *limbs, float x_scale, float acc[2])
{
	float sum[2];
	q8_tile_mma(t, limbs, sum);
#pragma unroll
	for (int i = 0; i < 2; i++)
		acc[i] = __fmaf_rn(x_scale, sum[i], acc[i]);
}

/* The values of rows r and r + 8 from lanes 4 r to partials[r] and partials[r + 8] */
static __device__ __forceinline__ void store_partials(const float acc[2], float *partials)
{
	int lane = threadIdx.x % 32;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		float v = q8_tile_combine_limbs(acc[i]);
		if (lane % 4 == 0)
			partials[lane / 4 + 8 * i] = v;
	}
}

/* v = this lane's eight of 256 values in fragment order, when they have arrived */
static __device__ __forceinline__ void poll_super_block(
	const struct poll_report &report, const uint32_t *flags, float v[8])
{
	uint2 two[4];
	bool full[4] = {false, false, false, false};
	for (unsigned polls = 0; !(full[0] && full[1] && full[2] && full[3]); polls++) {
		poll_again(report, polls);
#pragma unroll
		for (int i = 0; i < 4; i++)
			if (!full[i])
				two[i] = flag_load2(flags + q8_tile_pair(i));
#pragma unroll
		for (int i = 0; i < 4; i++)
			full[i] = two[i].x != FLAG_EMPTY && two[i].y != FLAG_EMPTY;
	}
	__syncwarp();
#pragma unroll
	for (int i = 0; i < 4; i++)
		v[2 * i] = __uint_as_float(two[i].x), v[2 * i + 1] = __uint_as_float(two[i].y);
}

/* The producer warp. Lane i loads row i of the block's rows: 8 of gate, 8 of up, and the same
 * again; then rows of down. */
static __device__ __forceinline__ void load_rows(
	const struct ffn_args &a, uint32_t base, uint32_t barriers)
{
	int lane = threadIdx.x % 32;
	int64_t row = (2 * blockIdx.x + lane / 16) * 8 + lane % 8;
	const uint8_t *from = (lane % 16 < 8 ? a.gate : a.up) + row * UP_ROW,
				  *down = a.down + (int64_t)(DOWN_ROWS * blockIdx.x + lane) * DOWN_ROW;
	auto load = [&](int rows, const uint8_t *of_lane, int third, int what) {
		if (!lane)
			mbarrier_expect(barriers + 8 * what, rows * DOWN_ROW);
		__syncwarp();
		if (lane < rows)
			bulk_copy(base + lane * ROW_STRIDE + third * DOWN_ROW, of_lane, DOWN_ROW,
				barriers + 8 * what);
	};
#pragma unroll 1
	for (int t = 0; t < 3; t++)
		load(UP_ROWS, from + t * DOWN_ROW, t, HAS_THIRD + t);
	mbarrier_wait(barriers + 8 * HAS_X, 0);
#pragma unroll 1
	for (int t = 0; t < 2; t++) {
		mbarrier_wait(barriers + 8 * (LOADED + t), 0);
		load(t ? DOWN_ROWS - UP_ROWS : UP_ROWS, down + t * UP_ROWS * DOWN_ROW, t, HAS_DOWN + t);
	}
}

#endif

static __global__ void __launch_bounds__(THREADS, 1)
	ffn_kernel(const __grid_constant__ struct ffn_args a)
{
#if __CUDA_ARCH__ >= 900
	extern __shared__ __align__(128) uint8_t shared[];
	__shared__ __align__(8) uint64_t all_barriers[N_BARRIERS];
	int tid = threadIdx.x, lane = tid % 32;
	int warp =
		__shfl_sync(0xffffffffu, tid / 32, 0); /* so that the compiler knows it to be uniform */
	uint2 *limbs = (uint2 *)(shared + AT_LIMBS);
	float *scales = (float *)(shared + AT_SCALES), *partials = (float *)(shared + AT_PARTIALS);
	uint32_t barriers = shared_address(all_barriers);
	auto wait_for = [&](int what) { mbarrier_wait(barriers + 8 * what, 0); };
	auto arrive = [&](int what) { mbarrier_arrive(barriers + 8 * what); };
	auto sync_all = [&]() { named_barrier_sync(15, WARPS * 32); };

	launch_dependents();
	if (!tid) {
		for (int i = 0; i < N_BARRIERS; i++)
			mbarrier_init(barriers + 8 * i, i < LOADED ? 1 : WARPS * 32);
		mbarrier_init_fence();
	}
	__syncthreads();
	if (warp == WARPS) {
		load_rows(a, shared_address(shared), barriers);
		return;
	}
	int item = warp / 8, part = warp % 8;
	const uint8_t *rows = shared + 16 * item * ROW_STRIDE + part * SB_BYTES;
	struct q8_tile<4, true> tile_rows;
	wait_for(HAS_THIRD);
	q8_tile_load(rows, ROW_STRIDE, tile_rows);
	arrive(LOADED);
	grid_dependency_wait();

	/* ---- 1 ---- */
	uint32_t turn = a.state->turn;
	{
		float v[2][8];
#pragma unroll
		for (int u = 0; u < 2; u++)
			if (warp + u * WARPS < N_IN / 256)
#pragma unroll
				for (int i = 0; i < 4; i++) {
					float2 two =
						*(const float2 *)(a.x + (warp + u * WARPS) * 256 + q8_tile_pair(i));
					v[u][2 * i] = two.x, v[u][2 * i + 1] = two.y;
				}
#pragma unroll
		for (int u = 0; u < 2; u++)
			if (warp + u * WARPS < N_IN / 256)
#pragma unroll
				for (int i = 0; i < 8; i++)
					asm volatile("" : "+f"(v[u][i])); /* forces the loads to complete */
		arrive(HAS_X);
#pragma unroll
		for (int u = 0; u < 2; u++)
			if (warp + u * WARPS < N_IN / 256)
				write_limbs(v[u], limbs + (warp + u * WARPS) * SUPER_BLOCK_LIMBS,
					scales + warp + u * WARPS);
	}
	sync_all();
	{
		float acc[2] = {0, 0};
		tile_multiply(tile_rows, limbs + part * SUPER_BLOCK_LIMBS, scales[part], acc);
		wait_for(HAS_THIRD + 1);
		q8_tile_load(rows + DOWN_ROW, ROW_STRIDE, tile_rows);
		arrive(LOADED + 1);
		tile_multiply(tile_rows, limbs + (part + 8) * SUPER_BLOCK_LIMBS, scales[part + 8], acc);
		wait_for(HAS_THIRD + 2);
		q8_tile_load(rows + 2 * DOWN_ROW, ROW_STRIDE, tile_rows);
		tile_multiply(tile_rows, limbs + (part + 16) * SUPER_BLOCK_LIMBS, scales[part + 16], acc);
		store_partials(acc, partials + warp * 16);
	}
	if (warp >= WARPS - COPIES && lane < 16)
		flag_store(a.state->flags[turn ^ 1][WARPS - 1 - warp] + blockIdx.x * 16 + lane, FLAG_EMPTY);
	sync_all(); /* the limbs of x have been used too */

	/* ---- 2 ---- */
	if (!warp) { /* lane % 16: hidden value; the first half of the lanes adds up gate, the other one
					up */
		const float *m = partials + lane % 16 / 8 * 8 * 16 + lane / 16 * 8 + lane % 8;
		float of_part[8], v = 0;
#pragma unroll
		for (int p = 0; p < 8; p++)
			of_part[p] = m[p * 16];
#pragma unroll
		for (int p = 0; p < 8; p++)
			v = __fadd_rn(v, of_part[p]);
		v = swiglu_one(v, __shfl_down_sync(0xffffffffu, v, 16));
		uint32_t word = flag_word(__shfl_sync(0xffffffffu, v, lane % 16));
		uint32_t *to = a.state->flags[turn][lane / 16] + blockIdx.x * 16 + lane % 16;
#pragma unroll
		for (int k = 0; k < COPIES / 2; k++)
			flag_store(to + 2 * k * HIDDEN, word);
	}

	/* ---- 3 ---- */
	int task = warp - 4, tile = task / 4;
	part = task % 4;
	rows = shared + tile % 2 * 16 * ROW_STRIDE + tile / 2 * DOWN_ROW + part * SB_BYTES;
	auto load_down = [&]() {
		wait_for(HAS_DOWN + tile / 2);
		q8_tile_load(rows, ROW_STRIDE, tile_rows);
	};
	if (warp < 8) {
		float v[8];
		poll_super_block(a.report, a.state->flags[turn][blockIdx.x % COPIES] + warp * 256, v);
		write_limbs(v, limbs + warp * SUPER_BLOCK_LIMBS, scales + warp);
		if (task >= 0)
			load_down();
	} else
		load_down();
	sync_all();
	if (task < 0) {
		if (!tid && atomicInc(&a.state->left, BLOCKS - 1) == BLOCKS - 1)
			a.state->turn = turn ^ 1;
		return;
	}
	bool stores = !part && lane < 16;
	float acc[2] = {0, 0}, *y = a.y + DOWN_ROWS * blockIdx.x + 16 * tile + lane, old = 0;
	if (stores && a.add)
		old = *y;
	tile_multiply(tile_rows, limbs + part * SUPER_BLOCK_LIMBS, scales[part], acc);
	q8_tile_load(rows + 4 * SB_BYTES, ROW_STRIDE, tile_rows);
	tile_multiply(tile_rows, limbs + (part + 4) * SUPER_BLOCK_LIMBS, scales[part + 4], acc);
	store_partials(acc, partials + warp * 16);
	named_barrier_sync(1 + tile, 128);
	if (stores) {
		float v = 0;
#pragma unroll
		for (int p = 0; p < 4; p++)
			v = __fadd_rn(v, partials[(warp + p) * 16 + lane]);
		*y = a.add ? __fadd_rn(old, v) : v;
	}
#endif
}

/* Whether all blocks can be resident at a time with the shared memory that they need. That is more
 * than max_shared, which leaves more for static arrays than this kernel has. Queried once. */
static bool ffn_fused_supported(struct cuda_backend *b)
{
	int *known = &b->ffn_supported;
	if (!*known) {
		int blocks = 0;
		*known = 2;
		if (b->has_pdl && b->n_sm >= BLOCKS &&
			cudaFuncSetAttribute(ffn_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES) ==
				cudaSuccess &&
			cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, ffn_kernel, THREADS, BYTES) ==
				cudaSuccess &&
			blocks)
			*known = 1;
		else
			cudaGetLastError();
	}
	return *known == 1;
}

static bool is_q8_0_matrix(const struct weight *w, int n_in, int n_out)
{
	return w->type == DTYPE_Q8_0 && w->n_in == n_in && w->n_out == n_out && w->n_stack == 1 &&
		   w->row_bytes == (size_t)n_in / 32 * 34 && (uintptr_t)w->data % 16 == 0;
}

static bool ffn_fused_applies(const struct ffn *f, int rows)
{
	return rows == 1 && is_q8_0_matrix(&f->gate, N_IN, HIDDEN) &&
		   is_q8_0_matrix(&f->up, N_IN, HIDDEN) && is_q8_0_matrix(&f->down, HIDDEN, N_OUT) &&
		   (uintptr_t)f->x % 16 == 0;
}

void cuda_ffn(struct backend *base, const struct ffn *f, int rows)
{
	struct cuda_backend *b = cuda_of(base);
	if (!cuda_begin(base, "ffn") || !rows)
		return;
	if (!ffn_fused_applies(f, rows) || !ffn_fused_supported(b) || base->observer) {
		const struct matmul down = {f->down, f->y, f->add, NULL};
		cuda_matmul_glu(base, f, rows);
		cuda_matmul(base, &down, 1, f->hidden, rows);
		return;
	}
	if (!b->ffn_flags.data) {
		struct ffn_state *s = (struct ffn_state *)cuda_scratch_reserve(b, &b->ffn_flags, sizeof *s);
		if (!s || !cuda_check(b, cudaMemsetAsync(s, 0, sizeof *s, b->stream)) ||
			!cuda_check(b, cudaMemsetAsync(s->flags, 0xff, sizeof s->flags, b->stream))) {
			cuda_scratch_free(&b->ffn_flags);
			return;
		}
		b->next_serialized = true;
	}
	struct ffn_args a = {(const uint8_t *)f->gate.data, (const uint8_t *)f->up.data,
		(const uint8_t *)f->down.data, f->x, f->y, f->add, (struct ffn_state *)b->ffn_flags.data,
		cuda_poll_report(b, POLL_FFN)};
	cuda_launch(b, ffn_kernel, dim3(BLOCKS), THREADS, BYTES, a);
}
