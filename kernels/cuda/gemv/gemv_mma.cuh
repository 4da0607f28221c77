/* SPDX-License-Identifier: MIT */
/*
 * gemv for packed weights on the integer tensor cores. Integer sums are exact; they become floats
 * once per super-block (types with float scales: once per step of 32; types with minima: one term
 * more).
 *
 * Algorithm: Ozaki split. 256 values of x become integers of 24 bits with a common scale. Each of
 * them is split into three signed bytes (limbs), so a row of x becomes three columns. Packed
 * weights are signed bytes times a scale (block_bytes.cuh). One mma.m16n8k32 multiplies 16 weight
 * rows x 32 weights by 8 columns. Sums are exact integers over 256 weights (32 where the type has
 * float scales), then become a float. A value of x is off by at most about 2^-24 of the largest of
 * its super-block.
 *
 * limbs_kernel: grid (super-blocks, x rows), block 32.
 *
 * gemv_mma_kernel: items = tasks x matrices of a stack x groups of weight rows x groups of x rows
 * (fastest). Grid: at most BLOCKS blocks per SM, each with a contiguous range of items. Block:
 * WARPS warps, 16 weight rows a warp (glu: 8 of gate and 8 of up). `split` warps share the rows:
 * warp p of them takes the chunks p, p + split, ... A warp copies its own weights (cp.async),
 * STAGES chunks ahead, so only __syncwarp protects a stage. Block barriers: behind the limbs that
 * the block has made, and one per item behind the partial sums (two, where there is a single buffer
 * of them).
 *
 *      lane = 4 r + c   rows r and r + 8 of the tile, eight weights of each step of 32
 *      columns          3 x + limb, x = activation row of the group: up to 2 rows are 1 tile
 *                       of 8 columns, up to 5 rows 2 tiles, up to 8 rows 3 tiles
 *      limbs            [x row][sb][step][limb][c] of 8 bytes, then scales [x row][sb]; of a
 *                       stack, x row counts [row][matrix]
 *
 * Shared memory, in this order: codebooks (types with TABLES), stages [warp][STAGES], partial sums,
 * limbs and scales of the block's x rows (OWN).
 *
 * Bounds: copies of 16 bytes only where rows begin and end at multiples of 16 (unit), or eight rows
 * do (flat); others are of 4 or 2 bytes. None reads past a row's end, or past the last row. What a
 * stage holds behind the end of a row is undefined: the limbs there are zeros, and float scales are
 * replaced by zeros.
 *
 * With one or two x rows a block splits x itself (gemv_makes_limbs), for all matrices of a stack
 * that it has items of at once.
 *
 * Bytes moved: every packed row once per group of x rows; x once by limbs_kernel or by each block;
 * 3 bytes a value per 16 weight rows from the caches or shared memory.
 *
 * Order of additions of an output: each of its three columns over the super-blocks of a warp,
 * ascending; the columns of the warp, as 65536 high + (256 middle + low); the warps of the split in
 * order. It depends on the weight's type and shape alone.
 */
#ifndef GLM_KERNELS_CUDA_GEMV_MMA_CUH
#define GLM_KERNELS_CUDA_GEMV_MMA_CUH

#include "kernels/cuda/common/block_bytes.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/gemv/gemv.cuh"

#include <limits.h>

#define MMA_ROWS          16
#define SUPER_BLOCK_LIMBS 96 /* uint2 of one super-block of one x row */

static __device__ __forceinline__ void mma_16832(int d[4], const uint32_t a[4], uint2 b, int c)
{
	asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
		"{%10,%10,%10,%10};"
		: "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(c));
}

static __device__ __forceinline__ void mma_16832_add(int d[4], const uint32_t a[4], uint2 b)
{
	asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
		"{%0,%1,%2,%3};"
		: "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

static __device__ __forceinline__ void copy_line_if(
	bool wanted, uint32_t shared, const void *global)
{
	asm volatile(
		"{ .reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16; }" ::
			"r"(shared),
		"l"(global), "r"((int)wanted));
}

static __device__ __forceinline__ void copy_word(uint32_t shared, const void *global)
{
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global));
}

/* A stage in shared memory: CHUNK super-blocks of each of 16 rows, rows STRIDE bytes apart. Whole
 * 16-byte lines are copied, so a chunk begins up to PHASE bytes after a line's start, the same for
 * all rows. */
template <int T, int CHUNK> struct gemv_stage {
	static constexpr int BYTES = CHUNK * packed<T>::SUPER_BLOCK_BYTES;
	static constexpr int PHASE = BYTES % 16 == 0 ? 0 : BYTES % 8 == 0 ? 8 : 14;
	static constexpr int LINES = ((BYTES + PHASE + 15) / 16) | 1; /* odd: few bank conflicts */
	static constexpr int STRIDE = LINES * 16;
	static constexpr int ROUNDS = (8 * LINES + 31) / 32; /* copies of a lane for eight rows */
	static constexpr int TABLES = bytes_type<T>::TABLES ? 49152 : 0;
};

/* Partial sums per weight row: of two x rows, or of all columns */
static constexpr __host__ __device__ int partials_per_row(int tiles)
{
	return tiles == 1 ? 2 : tiles * 8;
}

/* The position of an item. out_first: first weight row */
struct gemv_mma_position {
	int task, stack, out_first, row_group;
};

static __device__ __forceinline__ struct gemv_mma_position first_item(
	const struct gemv_args &a, int item, int block_rows)
{
	struct gemv_mma_position p = {0, 0, 0, 0};
	while (item >= a.item_end[p.task])
		p.task++;
	int i = item - (p.task ? a.item_end[p.task - 1] : 0);
	if (a.row_groups > 1) {
		p.row_group = i % a.row_groups;
		i /= a.row_groups;
	}
	if (a.n_stack > 1) {
		int groups = (a.task[p.task].n_out + block_rows - 1) / block_rows;
		p.stack = i / groups;
		i -= p.stack * groups;
	}
	p.out_first = i * block_rows;
	return p;
}

static __device__ __forceinline__ void next_item(
	const struct gemv_args &a, struct gemv_mma_position &p, int block_rows, int n_out)
{
	if (++p.row_group < a.row_groups)
		return;
	p.row_group = 0;
	p.out_first += block_rows;
	if (p.out_first < n_out)
		return;
	p.out_first = 0;
	if (++p.stack < a.n_stack)
		return;
	p.stack = 0;
	p.task++;
}

/* This lane's eight of 256 values of x, zeros past n_in: lane 4 s + c has those of step s. */
template <bool QUADS>
static __device__ __forceinline__ void load_super_block(
	const float *x, int sb, int n_in, bool aligned, float v[8])
{
	int lane = threadIdx.x % 32, k = sb * 256 + lane / 4 * 32 + (QUADS ? 4 : 8) * (lane % 4);
	load_x(x, k, n_in, aligned, v);
	load_x(x, k + (QUADS ? 16 : 4), n_in, aligned, v + 4);
}

/* Splits 256 values, eight per lane, into limbs and a scale; by one warp. Lane 4 s + c has the
 * values of step s that lane c multiplies (fragment order). LIMB: uint2 from a limb to the next;
 * STEP: from a step to the next. */
template <int LIMB = 4, int STEP = 12>
static __device__ __forceinline__ void write_limbs(const float v[8], uint2 *limbs, float *scale_to)
{
	int lane = threadIdx.x % 32, s = lane / 4, c = lane % 4;
	uint32_t top = 0; /* as bits, so that infinities and NaN are the largest */
#pragma unroll
	for (int i = 0; i < 8; i++)
		top = max(top, __float_as_uint(v[i]) & 0x7fffffff);
	top = __reduce_max_sync(0xffffffffu, top);
	float most = __uint_as_float(top);
	bool tiny = most < 0x1p-100f;
	float inv = tiny ? 0.0f : __fdiv_rn(8323072.0f, most),
		  scale = tiny ? 0.0f : __fdiv_rn(most, 8323072.0f);
	/* Adding 2^23 with the value's sign leaves the nearest integer n in the low mantissa bits. The
	 * bytes of n + 0x808080 are the limbs of n, each plus 128. If a value is infinite or NaN, all
	 * limbs are zero; the scale is infinite or NaN and makes every product NaN. */
	uint32_t word[3][2], kept = top < 0x7f800000 ? 0xffffffff : 0;
#pragma unroll
	for (int q = 0; q < 2; q++) {
		uint32_t t[4];
#pragma unroll
		for (int i = 0; i < 4; i++) {
			float x = __fmul_rn(v[4 * q + i], inv);
			int u = __float_as_int(
				__fadd_rn(x, __uint_as_float((__float_as_uint(x) & 0x80000000) | 0x4b000000)));
			t[i] = (uint32_t)(((u & 0x7fffff) ^ u >> 31) + (0x808080 - (u >> 31)));
		}
		uint32_t low01 = __byte_perm(t[0], t[1], 0x5140), low23 = __byte_perm(t[2], t[3], 0x5140),
				 high01 = __byte_perm(t[0], t[1], 0x0062), high23 = __byte_perm(t[2], t[3], 0x0062);
		word[0][q] = (__byte_perm(high01, high23, 0x5410) ^ 0x80808080) & kept;
		word[1][q] = (__byte_perm(low01, low23, 0x7632) ^ 0x80808080) & kept;
		word[2][q] = (__byte_perm(low01, low23, 0x5410) ^ 0x80808080) & kept;
	}
#pragma unroll
	for (int d = 0; d < 3; d++)
		limbs[s * STEP + LIMB * d + c] = make_uint2(word[d][0], word[d][1]);
	if (!lane)
		*scale_to = scale;
}

/* acc += one super-block of 16 weight rows times 8 * TILES columns of limbs. By a warp.
 * - p0, p1: the super-block of rows r and r + 8, in shared memory; u: its number in the stage.
 * - left: weights of the row from this super-block on; scales behind them are not used.
 * - column: this lane's limbs of each tile; NULL: the lane has no column. x_scale: of the columns
 *   2 c and 2 c + 1, those of the lane's accumulators.
 * - BATCH: steps whose loads are in flight together. STEP: uint2 from the limbs of a step to those
 *   of the next. */
template <int T, int TILES, int UNROLL = 8,
	int BATCH = (bytes_type<T>::TABLES || TILES > 1) ? 1 : 4, int STEP = 12>
static __device__ __forceinline__ void super_block_mma(const uint8_t *p0, const uint8_t *p1, int u,
	int left, int c, const struct cuda_tables *t, const struct lane_tables &tables,
	const uint2 *const column[TILES], const float x_scale[TILES][2], float acc[TILES][4])
{
	typedef struct bytes_type<T> type;
	typename type::head h0, h1;
	type::read_head(p0, c, t, h0);
	type::read_head(p1, c, t, h1);
	float part_sum[TILES][4];
	int whole[TILES][4], least[TILES][4];
#pragma unroll
	for (int n = 0; n < TILES; n++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			part_sum[n][i] = 0, whole[n][i] = 0, least[n][i] = 0;
#pragma unroll UNROLL
	for (int first = 0; first < 8; first += BATCH) {
		uint32_t words[BATCH][4];
		uint2 limbs[BATCH][TILES];
		float float_scale[BATCH][2];
		int int_scale[BATCH][2];
#pragma unroll
		for (int i = 0; i < BATCH; i++) {
			int s = first + i;
			type::bytes(p0, h0, u, s, c, tables, words[i][0], words[i][2]);
			type::bytes(p1, h1, u, s, c, tables, words[i][1], words[i][3]);
			if constexpr (type::SCALE == SCALE_FLOAT) {
				/* past the end of the row x is zero, but what lies there as a scale may be infinite
				 */
				bool inside = s * 32 < left;
				float_scale[i][0] = inside ? type::scale(p0, h0, s) : 0;
				float_scale[i][1] = inside ? type::scale(p1, h1, s) : 0;
			} else if constexpr (type::SCALE == SCALE_STEP) {
				int_scale[i][0] = type::scale(p0, h0, s);
				int_scale[i][1] = type::scale(p1, h1, s);
			}
#pragma unroll
			for (int n = 0; n < TILES; n++)
				limbs[i][n] = column[n] ? column[n][s * STEP] : make_uint2(0, 0);
		}
#pragma unroll
		for (int i = 0; i < BATCH; i++) {
			int s = first + i;
			const uint32_t *w = words[i];
#pragma unroll
			for (int n = 0; n < TILES; n++) {
				uint2 b = limbs[i][n];
				if constexpr (type::SCALE == SCALE_NONE) {
					mma_16832_add(whole[n], w, b);
				} else if constexpr (type::SCALE == SCALE_FLOAT) {
					/* whole numbers below 2^22 on top of 1.5 * 2^23 are floats */
					int d[4];
					mma_16832(d, w, b, 0x4b400000);
#pragma unroll
					for (int k = 0; k < 4; k++)
						part_sum[n][k] = __fmaf_rn(float_scale[i][k / 2],
							__fadd_rn(__int_as_float(d[k]), -12582912.0f), part_sum[n][k]);
				} else if constexpr (type::SCALE == SCALE_HALF) {
					/* lanes 0, 1 of a row have the first 16 weights, lanes 2, 3 the others */
#pragma unroll
					for (int half = 0; half < 2; half++) {
						uint32_t v[4];
						int d[4];
#pragma unroll
						for (int k = 0; k < 4; k++)
							v[k] = c / 2 == half ? w[k] : 0;
						mma_16832(d, v, b, 0);
						int f0 = type::scale(p0, h0, s, half), f1 = type::scale(p1, h1, s, half);
#pragma unroll
						for (int k = 0; k < 4; k++)
							whole[n][k] += (k < 2 ? f0 : f1) * d[k];
					}
				} else {
					int d[4];
					mma_16832(d, w, b, 0);
#pragma unroll
					for (int k = 0; k < 4; k++)
						whole[n][k] += int_scale[i][k / 2] * d[k];
				}
				if constexpr (type::LEAST) {
					uint32_t m0 = type::least(h0, s), m1 = type::least(h1, s),
							 m[4] = {m0, m1, m0, m1};
					mma_16832_add(least[n], m, b);
				}
			}
		}
	}
#pragma unroll
	for (int n = 0; n < TILES; n++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			float v = part_sum[n][i];
			if constexpr (type::SCALE != SCALE_FLOAT)
				v = __fmul_rn(i < 2 ? h0.unit : h1.unit, (float)whole[n][i]);
			if constexpr (type::LEAST)
				v = __fmaf_rn(i < 2 ? -h0.minimum : -h1.minimum, (float)least[n][i], v);
			acc[n][i] = __fmaf_rn(x_scale[n][i % 2], v, acc[n][i]);
		}
}

/* The sums of three limbs as one value, of x rows 0 and 1, whose limbs are the columns 0, 1, 2 and
 * 3, 4, 5. two: of columns 2 c and 2 c + 1. Of a row's four lanes, lane 0 returns the value of x
 * row 0 and lane 2 that of x row 1; what lanes 1 and 3 return is of no use. */
static __device__ __forceinline__ float combine_limbs(const float two[2], int lane)
{
	float b0 = __shfl_sync(0xffffffffu, two[0], (lane & ~3) | 1),
		  b1 = __shfl_sync(0xffffffffu, two[1], (lane & ~3) | 1);
	return lane & 3 ? __fmaf_rn(65536.0f, b1, __fmaf_rn(256.0f, two[0], two[1]))
					: __fmaf_rn(65536.0f, two[0], __fmaf_rn(256.0f, two[1], b0));
}

/* Partial sums of a warp: [warp][weight row][x row], or with more tiles [warp][weight row][column]
 */
template <int TILES>
static __device__ __forceinline__ void store_warp_partials(
	const float acc[TILES][4], float *here, int warp, int lane, int r0, int c)
{
	constexpr int PARTIALS = partials_per_row(TILES);
	if (TILES == 1) {
#pragma unroll
		for (int half = 0; half < 2; half++) {
			float v = combine_limbs(acc[0] + 2 * half, lane);
			if (!(c & 1))
				here[(warp * MMA_ROWS + r0 + 8 * half) * PARTIALS + c / 2] = v;
		}
	} else {
#pragma unroll
		for (int n = 0; n < TILES; n++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				here[(warp * MMA_ROWS + r0 + i / 2 * 8) * PARTIALS + 8 * n + 2 * c + i % 2] =
					acc[n][i];
	}
}

/* v[0] = sum over the warps of a group for weight row j of the block and x row r, limbs combined;
 * glu: v[1] = the same 8 rows further on. */
template <int TILES>
static __device__ __forceinline__ void add_warp_partials(
	const float *here, int j, int r, int log_rows, int w_rows, int split, bool glu, float v[2])
{
	constexpr int PARTIALS = partials_per_row(TILES);
	const float *first =
		here + ((j >> log_rows) * split * MMA_ROWS + (j & (w_rows - 1))) * PARTIALS;
	v[0] = v[1] = 0;
	for (int p = 0; p < split; p++)
		for (int half = 0; half <= (int)glu; half++) {
			const float *m = first + (p * MMA_ROWS + 8 * half) * PARTIALS;
			v[half] = __fadd_rn(v[half],
				TILES == 1
					? m[r]
					: __fmaf_rn(65536.0f, m[3 * r], __fmaf_rn(256.0f, m[3 * r + 1], m[3 * r + 2])));
		}
}

/* OWN: the block splits its x rows into limbs itself, in shared memory. */
template <int T, int TILES, bool OWN, int WARPS, int STAGES, int CHUNK, int BLOCKS>
__global__ void __launch_bounds__(WARPS * 32, BLOCKS)
	gemv_mma_kernel(const __grid_constant__ struct gemv_args a)
{
	typedef struct bytes_type<T> type;
	typedef struct gemv_stage<T, CHUNK> shape;
	constexpr int SB_BYTES = packed<T>::SUPER_BLOCK_BYTES, LINES = shape::LINES,
				  STRIDE = shape::STRIDE, ROUNDS = shape::ROUNDS, STAGE = MMA_ROWS * STRIDE;
	constexpr bool FLAT = type::SCALE == SCALE_FLOAT;
	constexpr int NX = TILES * 8 / 3, PARTIALS = partials_per_row(TILES),
				  PARTIAL_BUFFERS = TILES == 1 ? 2 : 1;
	extern __shared__ __align__(16) uint8_t shared[];
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, split = a.split,
		part = warp & (split - 1);
	int r0 = lane / 4, c = lane % 4;
	int log_rows = a.glu ? 3 : 4, w_rows = 1 << log_rows, my_row = warp / split << log_rows,
		block_rows = WARPS / split << log_rows;
	int n_sb = (a.n_in + 255) / 256, chunks = (n_sb + CHUNK - 1) / CHUNK;
	float *partials = (float *)(shared + shape::TABLES + WARPS * (STAGES * STAGE));
	uint2 *limbs = (uint2 *)(partials + PARTIAL_BUFFERS * WARPS * MMA_ROWS * PARTIALS);
	float *own_scales = (float *)(limbs + (OWN ? a.own_rows * n_sb * SUPER_BLOCK_LIMBS : 0));
	struct lane_tables tables = {shared, 4u * lane};
	/* Offset of this warp's stages, and the shared address to which this lane copies. The asm keeps
	 * both in registers, else they are recomputed at every access. */
	uint32_t stages = shape::TABLES + warp * (STAGES * STAGE),
			 lines_to = (uint32_t)__cvta_generic_to_shared(shared) + stages + 16 * lane;
	asm("" : "+r"(stages), "+r"(lines_to));
	int n_items = a.item_end[a.n_tasks - 1];
	int item = (int)((int64_t)n_items * blockIdx.x / gridDim.x),
		end = (int)((int64_t)n_items * (blockIdx.x + 1) / gridDim.x);

	launch_dependents();

	/* Copies run STAGES chunks ahead of the products, across items. Eight rows lie in a stage line
	 * after line: line 32 i + lane of them comes from lines_from[i] past the first row. */
	struct gemv_mma_position ahead = first_item(a, item, block_rows), now = ahead;
	int ahead_items = end - item, ahead_chunk = part, ahead_stage = 0, ahead_out = 0,
		rows_there = 0;
	const uint8_t *row0 = NULL, *row8 = NULL;
	int lines_from[ROUNDS];
#pragma unroll
	for (int i = 0; i < ROUNDS; i++)
		lines_from[i] = (i * 32 + lane) / LINES * (int)a.row_bytes + (i * 32 + lane) % LINES * 16;
	auto set_rows = [&]() {
		const struct gemv_task &t = a.task[ahead.task];
		int mine = ahead.out_first + my_row;
		ahead_out = t.n_out;
		rows_there = min(w_rows, ahead_out - mine);
		row0 = t.w + ahead.stack * a.stack_bytes + mine * a.row_bytes;
		row8 = a.glu ? t.up + ahead.stack * a.stack_bytes + mine * a.row_bytes
					 : row0 + 8 * a.row_bytes;
	};
	auto fetch = [&]() {
		if (ahead_items > 0 && part < chunks) {
			int at = ahead_chunk * shape::BYTES, bytes = min(shape::BYTES, (int)a.row_bytes - at);
			if (FLAT && a.flat && rows_there == w_rows) {
				/* a row is one chunk, and eight rows are contiguous */
				for (int i = lane; i < (int)a.row_bytes; i += 32) {
					bool second = 2 * i >= (int)a.row_bytes;
					int at8 = i - (second ? (int)a.row_bytes / 2 : 0);
					copy_line_if(true, lines_to + ahead_stage * STAGE + 16 * (i - lane),
						(second ? row8 : row0) + 16 * at8);
				}
			} else if (a.unit == 16 && rows_there == w_rows) {
				int phase = shape::PHASE ? at & 15 : 0, lines = (bytes + phase + 15) / 16;
#pragma unroll
				for (int half = 0; half < 2; half++) {
					const uint8_t *from = (half ? row8 : row0) + (at - phase);
					uint32_t to = lines_to + ahead_stage * STAGE + half * (STAGE / 2);
#pragma unroll
					for (int i = 0; i < ROUNDS; i++)
						copy_line_if((i * 32 + 31 < 8 * LINES || i * 32 + lane < 8 * LINES) &&
										 (i * 32 + lane) % LINES < lines,
							to + 512 * i, from + lines_from[i]);
				}
			} else {
				for (int row = 0; row < MMA_ROWS; row++) {
					int r = a.glu ? row % 8 : row;
					const uint8_t *from = (a.glu && row >= 8 ? row8 : row0) + r * a.row_bytes + at;
					uint32_t to = stages + ahead_stage * STAGE + row * STRIDE;
					if (r >= rows_there)
						continue;
					if (shape::BYTES % 4 == 0 && a.unit >= 4)
						for (int i = 4 * lane; i < bytes; i += 128)
							copy_word(lines_to - stages - 16 * lane + to + i, from + i);
					else
						for (int i = 2 * lane; i < bytes; i += 64)
							*(uint16_t *)(shared + to + i) = *(const uint16_t *)(from + i);
				}
			}
			ahead_stage = ahead_stage + 1 == STAGES ? 0 : ahead_stage + 1;
			ahead_chunk += split;
			if (ahead_chunk >= chunks) {
				ahead_chunk = part;
				if (--ahead_items > 0) {
					next_item(a, ahead, block_rows, ahead_out);
					set_rows();
				}
			}
		}
		async_commit();
	};
	set_rows();
#pragma unroll
	for (int s = 0; s < STAGES; s++)
		fetch();
	if (type::TABLES)
		lane_tables_fill(shared, a.tables, WARPS * 32);
	grid_dependency_wait();
	if (type::TABLES)
		__syncthreads();

	int stage = 0, turn = 0;
	/* OWN: the x rows whose limbs are in shared memory. ROWS_PLAIN: own_made of them, from matrix
	 * own_stack on. Else own_x: the numbers of the first and the last row, of one or two. */
	int own_stack = 0, own_made = 0;
	int64_t own_x = -1;
	/* Splits n_slots rows into limbs: n_x rows of x of each matrix from own_stack on. A warp takes
	 * four super-blocks at a time, whose loads overlap. */
	auto make_own = [&](int n_slots, int n_x, auto x_row) {
		for (int u = warp; u < n_slots * n_sb; u += 4 * WARPS) {
			float v[4][8];
#pragma unroll
			for (int i = 0; i < 4; i++) {
				int at = u + i * WARPS, slot = at / n_sb;
				if (at < n_slots * n_sb)
					load_super_block<type::QUADS>(
						a.x + x_row(slot % n_x) * a.x_row + (own_stack + slot / n_x) * a.x_stack,
						at - slot * n_sb, a.n_in, a.x_aligned, v[i]);
			}
#pragma unroll
			for (int i = 0; i < 4; i++)
				if (u + i * WARPS < n_slots * n_sb)
					write_limbs(v[i], limbs + (u + i * WARPS) * SUPER_BLOCK_LIMBS,
						own_scales + u + i * WARPS);
		}
		__syncthreads();
	};
	for (; item < end; item++) {
		const struct gemv_task &t = a.task[now.task];
		int n_out = t.n_out,
			n_x = a.rows == ROWS_PLAIN ? min(NX, a.n_rows - now.row_group * NX) : t.n_x;
		auto x_row = [&](int i) {
			return a.rows == ROWS_PLAIN       ? now.row_group * NX + i
				   : a.rows == ROWS_TO_HIDDEN ? t.row[i]
											  : t.first + i;
		};
		if (OWN) { /* overwriting limbs is safe: the block has synchronised since their last use */
			int64_t this_x = (int64_t)x_row(0) << 32 | x_row(n_x - 1);
			bool plain = a.rows == ROWS_PLAIN;
			if (plain ? (now.stack - own_stack + 1) * n_x > own_made : this_x != own_x) {
				own_stack = now.stack;
				own_made = plain ? min(a.own_rows, (a.n_stack - own_stack) * n_x) : n_x;
				make_own(own_made, n_x, x_row);
			}
			own_x = this_x;
		}
		int own_slot = (now.stack - own_stack) * n_x;
		/* this lane's limbs of each tile of columns, and the scales of its accumulators' columns */
		const uint2 *column[TILES];
		const float *scales[TILES][2];
#pragma unroll
		for (int n = 0; n < TILES; n++) {
			int col = 8 * n + lane / 4, r = col / 3;
			bool used = r < n_x;
			int64_t row = OWN ? own_slot + r : (int64_t)x_row(used ? r : 0) * a.n_stack + now.stack;
			column[n] =
				used ? (OWN ? limbs : a.limbs) + row * n_sb * SUPER_BLOCK_LIMBS + col % 3 * 4 + c
					 : NULL;
#pragma unroll
			for (int e = 0; e < 2; e++) {
				r = min((8 * n + 2 * c + e) / 3, n_x - 1);
				row = OWN ? own_slot + r : (int64_t)x_row(r) * a.n_stack + now.stack;
				scales[n][e] = (OWN ? own_scales : a.scales) + row * n_sb;
			}
		}

		/* Where output i of the block's item goes: x row r, weight row j of the item. With one tile
		 * a thread has at most one output; what that is added to is loaded before the products. */
		int64_t y_row = a.y_row ? a.y_row : n_out;
		auto output_of = [&](int i, int &r, int &j) {
			r = TILES == 1 ? i >= block_rows : i / block_rows;
			j = i - r * block_rows;
			int64_t at = a.rows == ROWS_PLAIN       ? now.row_group * NX + r
						 : a.rows == ROWS_TO_HIDDEN ? t.first + r
													: t.slot[r];
			return t.y + now.stack * a.y_stack + at * y_row + now.out_first + j;
		};
		float old = 0;
		if (TILES == 1 && t.add && threadIdx.x < block_rows * n_x) {
			int r, j;
			const float *y = output_of(threadIdx.x, r, j);
			old = now.out_first + j < n_out ? *y : 0;
		}
		int stride =
			FLAT && a.flat && now.out_first + my_row + w_rows <= n_out ? (int)a.row_bytes : STRIDE;

		float acc[TILES][4];
#pragma unroll
		for (int n = 0; n < TILES; n++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				acc[n][i] = 0;
		for (int chunk = part; chunk < chunks; chunk += split) {
			async_wait<STAGES - 1>();
			__syncwarp();
			const uint8_t *row = shared + stages + stage * STAGE + r0 * stride;
			if (shape::PHASE && a.unit == 16 && now.out_first + my_row + w_rows <= n_out)
				row += chunk * shape::BYTES & 15;
#pragma unroll
			for (int u = 0; u < CHUNK; u++) {
				int sb = chunk * CHUNK + u;
				if (sb >= n_sb)
					break;
				const uint8_t *p0 = row + u * SB_BYTES, *p1 = p0 + 8 * stride;
				const uint2 *at[TILES];
				float x_scale[TILES][2];
#pragma unroll
				for (int n = 0; n < TILES; n++) {
					at[n] = column[n] ? column[n] + sb * SUPER_BLOCK_LIMBS : NULL;
					x_scale[n][0] = scales[n][0][sb], x_scale[n][1] = scales[n][1][sb];
				}
				super_block_mma<T, TILES>(
					p0, p1, u, a.n_in - sb * 256, c, a.tables, tables, at, x_scale, acc);
			}
			__syncwarp(); /* the stage may be overwritten */
			fetch();
			stage = stage + 1 == STAGES ? 0 : stage + 1;
		}

		/* Combine the warps' partial sums. With two buffers one barrier per item is enough: before
		 * a buffer is written again all warps have passed the barrier behind its reads. */
		float *here = partials + turn * (WARPS * MMA_ROWS * PARTIALS);
		turn = (turn + 1) % PARTIAL_BUFFERS;
		store_warp_partials<TILES>(acc, here, warp, lane, r0, c);
		__syncthreads();
		for (int i = threadIdx.x; i < block_rows * n_x; i += WARPS * 32) {
			int r, j;
			float *to = output_of(i, r, j);
			if (now.out_first + j >= n_out)
				continue;
			float v[2];
			add_warp_partials<TILES>(here, j, r, log_rows, w_rows, split, a.glu, v);
			*to = a.glu   ? swiglu_one(v[0], v[1])
				  : t.add ? __fadd_rn(TILES == 1 ? old : *to, v[0])
						  : v[0];
		}
		if (PARTIAL_BUFFERS == 1)
			__syncthreads();
		next_item(a, now, block_rows, n_out);
	}
	async_wait<0>();
}

/* Dynamic shared memory of a block that splits n_x rows into limbs; 0: it splits none. */
template <int T, int TILES, int WARPS, int STAGES, int CHUNK>
static size_t gemv_mma_shared_bytes(int n_x, int64_t n_in)
{
	typedef struct gemv_stage<T, CHUNK> shape;
	size_t groups = (size_t)n_x * (size_t)((n_in + 255) / 256);
	return shape::TABLES + (size_t)WARPS * STAGES * MMA_ROWS * shape::STRIDE +
		   (size_t)(TILES == 1 ? 2 : 1) * WARPS * MMA_ROWS * partials_per_row(TILES) *
			   sizeof(float) +
		   groups * (SUPER_BLOCK_LIMBS * sizeof(uint2)) + (groups + 3) / 4 * 16;
}

/* The tiling of a type: super-blocks of a stage, stages of a warp, warps of a block, blocks that a
 * multiprocessor holds at a time. A copy costs by the 128-byte lines that it touches, so a stage
 * has some hundred bytes of a row.
 *
 * SMALL: for cards with less shared memory. A type may need it for many rows of x and not for few.
 * Both must have the warps of the largest split, or the sums of a row would be in an order that
 * depends on the number of rows: so types without codebooks give up a stage and not warps. Types
 * with codebooks take SMALL for all numbers of rows, or for none; there a split is at most 4. */
template <int T, bool SMALL> struct gemv_tiling {
	static constexpr int SB_BYTES = packed<T>::SUPER_BLOCK_BYTES;
	static constexpr int CHUNK = SB_BYTES >= 150 ? 1 : SB_BYTES >= 98 ? 2 : 4;
	static constexpr int STAGES = SMALL && !bytes_type<T>::TABLES ? 1 : 2;
	static constexpr int WARPS = !bytes_type<T>::TABLES ? 8 : SMALL ? 4 : 16;
	static constexpr int BLOCKS = SMALL || bytes_type<T>::TABLES ? 1 : 2;
};

/* Dynamic shared memory of a block that every card from sm_80 on has. */
#define MMA_SMALL_BYTES (92 << 10)

/* The split-k factor: the largest with which each warp of a split has two chunks to do, or one if
 * there are few weight rows. rows: of all matrices of this shape that are multiplied together. */
template <int T> static int gemv_mma_k_split(int64_t n_in, int64_t rows)
{
	typedef struct gemv_tiling<T, false> cut;
	int64_t chunks = (n_in + 256 * cut::CHUNK - 1) / (256 * cut::CHUNK);
	int split = 1;
	while (2 * split <= GEMV_WARPS &&
		   (chunks >= 4 * split || (chunks >= 2 * split && rows * split < 16 * 128 * GEMV_WARPS)))
		split *= 2;
	return split;
}

template <int T, int TILES, bool OWN, bool SMALL>
static void gemv_mma_launch_tiling(struct cuda_backend *b, const struct gemv_args *given, int n_x)
{
	typedef struct gemv_tiling<T, SMALL> cut;
	constexpr int WARPS = cut::WARPS, STAGES = cut::STAGES, CHUNK = cut::CHUNK;
	struct gemv_args a = *given;
	a.split = a.split < WARPS ? a.split : WARPS;
	int rows = WARPS / a.split * (a.glu ? MMA_ROWS / 2 : MMA_ROWS), x_rows = TILES * 8 / 3,
		items = 0;
	uintptr_t bases = 0;
	a.row_groups = a.rows == ROWS_PLAIN ? (a.n_rows + x_rows - 1) / x_rows : 1;
	for (int i = 0; i < a.n_tasks; i++) {
		a.item_end[i] = items += (a.task[i].n_out + rows - 1) / rows * a.n_stack * a.row_groups;
		bases |= (uintptr_t)a.task[i].w | (a.glu ? (uintptr_t)a.task[i].up : 0);
	}
	uintptr_t all = bases | (uintptr_t)a.row_bytes | (uintptr_t)a.stack_bytes;
	a.flat = bytes_type<T>::SCALE == SCALE_FLOAT && a.row_bytes % 16 && a.row_bytes % 4 == 0 &&
			 a.row_bytes <= gemv_stage<T, CHUNK>::BYTES && a.stack_bytes % 16 == 0 &&
			 a.row_bytes * 8 % 16 == 0 && bases % 16 == 0;
	a.unit = all % 16 == 0 ? 16 : all % 4 == 0 && gemv_stage<T, CHUNK>::BYTES % 4 == 0 ? 4 : 2;
	int blocks = cut::BLOCKS * b->n_sm;
	blocks = items < blocks ? items : blocks;
	/* A block makes the limbs of as many matrices of the stack as it has items of, if they fit. */
	int stack_items = items / a.n_stack,
		stacks = items ? ((items + blocks - 1) / blocks + stack_items - 2) / stack_items + 1 : 1;
	stacks = stacks < a.n_stack ? stacks : a.n_stack;
	size_t bytes;
	do {
		a.own_rows = OWN ? n_x * stacks : 0;
		bytes = gemv_mma_shared_bytes<T, TILES, WARPS, STAGES, CHUNK>(a.own_rows, a.n_in);
	} while (bytes > b->max_shared && --stacks > 0);
	auto kernel = gemv_mma_kernel<T, TILES, OWN, WARPS, STAGES, CHUNK, cut::BLOCKS>;
	if (!cuda_allow_shared(b, (const void *)kernel, bytes))
		return;
	cuda_launch(b, kernel, dim3((unsigned)blocks), WARPS * 32, bytes, a);
}

template <int T, int TILES, bool OWN>
static void gemv_mma_launch_as(struct cuda_backend *b, const struct gemv_args *a, int n_x)
{
	typedef struct gemv_tiling<T, false> cut;
	constexpr bool LARGE = cut::WARPS * cut::STAGES * MMA_ROWS * gemv_stage<T, cut::CHUNK>::STRIDE +
							   gemv_stage<T, cut::CHUNK>::TABLES +
							   cut::WARPS * MMA_ROWS * partials_per_row(TILES) * 4 >
						   MMA_SMALL_BYTES;
	/* on cards with little shared memory limbs come from limbs_kernel (gemv_makes_limbs) */
	if constexpr (LARGE && !OWN)
		if (gemv_mma_shared_bytes<T, TILES, cut::WARPS, cut::STAGES, cut::CHUNK>(0, 0) >
			b->max_shared) {
			gemv_mma_launch_tiling<T, TILES, OWN, true>(b, a, n_x);
			return;
		}
	gemv_mma_launch_tiling<T, TILES, OWN, false>(b, a, n_x);
}

/* n_x: the most x rows of a task. */
template <int T>
static void gemv_mma_launch(struct cuda_backend *b, const struct gemv_args *a, int n_x)
{
	if (!a->limbs)
		gemv_mma_launch_as<T, 1, true>(b, a, n_x);
	else if (n_x <= 2)
		gemv_mma_launch_as<T, 1, false>(b, a, n_x);
	else {
		if constexpr (bytes_type<T>::TABLES != 0) /* experts of few slots */
			if (n_x <= 5) {
				gemv_mma_launch_as<T, 2, false>(b, a, n_x);
				return;
			}
		gemv_mma_launch_as<T, 3, false>(b, a, n_x);
	}
}

#endif
