/* SPDX-License-Identifier: MIT */
/*
 * gemv for MANY_MIN_ROWS to DECODE_MAX_ROWS rows of x: what gemv_mma_kernel (gemv_mma.cuh)
 * computes, for matrices whose rows are 16-byte aligned, and for stacks (many_set_stack_args), with
 * the same sums in the same order. Split-k: the super-blocks of a row are divided into `split`
 * shares (gemv_k_split), chunk by chunk in turn. A block has one share and one group of rows of x.
 * It keeps the limbs of that share of those rows in shared memory.
 *   - OWN: each block makes these limbs from x. Blocks with the same limbs each do this work. Up to
 *     MANY_OWN_MAX_ROWS rows, and for stacks.
 *   - Else limbs_kernel has made the limbs of x, in a launch more, and the blocks copy their part.
 *   - STACK, a stack with a split of 1: a block has one matrix, one group of up to 16 rows of x
 *     and all of k. It stores y itself.
 *   - Not STACK: the partial sums of the shares go through global memory. gemv_many_sum_kernel adds
 *     them up in the order of the shares.
 *
 *      kind     which limbs a block has: (share, group of up to 8 * ROW_TILES rows of x); STACK:
 *               (matrix, group). Block i has kind i % kinds; the blocks of a kind divide the items
 *      item     16 weight rows (glu: 8 of gate and 8 of up) by the rows of the group; by one warp
 *      column   of an mma tile of 8: a row of x, one limb of it. Eight rows of x are three tiles;
 *               a lane has all three limbs of its results
 *
 * Grid: about one block per SM, but at least one of each kind: stacks with many rows of x have more
 * kinds than there are SMs. Block: as many warps as shared memory has stages for, at most
 * many_max_warps. The only block barrier is behind the limbs, made or loaded.
 *
 * A warp copies MANY_STAGES chunks ahead, across items, to stages of its own. The first copies
 * start before the wait for the previous kernel.
 *   - Compute capability 9.0 and newer (MANY_TILES): one lane starts two copies of eight rows each
 *     (tile_copy.cuh), or one bulk copy of flat rows. An mbarrier of the stage says when they
 *     have arrived. A step of 8 rows is 3 % faster than with cp.async (RESULTS.md).
 *   - Older: all lanes copy lines of 16 bytes (cp.async, item_stage).
 *
 * Shared memory: stages of the warps; limbs of the share [super-block][step][limb][row][c] of 8
 * bytes, with OWN 32 bytes of padding behind each step (many_step); scales [super-block][row];
 * mbarriers [warp][stage].
 *
 * Bytes moved: every packed row once per group of rows (after the first from the L2 cache). A block
 * reads its share of x once: 4 bytes a value (OWN), else 3. Not STACK: partial sums, 4 * split
 * bytes per output, out and in; MANY_PARTIALS bytes at a time stay in the L2 cache.
 */
#ifndef GLM_KERNELS_CUDA_GEMV_MANY_CUH
#define GLM_KERNELS_CUDA_GEMV_MANY_CUH

#include "kernels/cuda/common/tile_copy.cuh"
#include "kernels/cuda/gemv/gemv_pipeline.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define MANY_TILES true
#else
#define MANY_TILES false
#endif
#define MANY_STAGES       2
#define MANY_MIN_WARPS    4                  /* of a block */
#define MANY_PARTIALS     ((size_t)16 << 20) /* bytes of partial sums of a launch, at most */
#define MANY_MIN_ROWS     3                  /* of x */
#define MANY_OWN_MAX_ROWS 16                 /* of x, with OWN; a stack has any number */
#define MANY_SUM_THREADS  256                /* of a block of gemv_many_sum_kernel */

static_assert(MANY_OWN_MAX_ROWS <= 2 * 8, "with OWN a group has at most two tiles");

/* Warps of a block, at most: as many as registers allow. */
static constexpr __host__ __device__ int many_max_warps(int row_tiles)
{
	return row_tiles > 2 ? 8 : 16;
}

/* uint2 from the limbs of a step to those of the next. OWN: 4 of them are padding, or the eight
 * steps that a warp stores at once would share banks. */
static constexpr __host__ __device__ int many_step(int row_tiles, bool own)
{
	return 3 * 8 * row_tiles * 4 + (own ? 4 : 0);
}

struct gemv_many_args {
	const float *x; /* OWN; else limbs and scales. STACK: of the first matrix */
	/* [n_rows][super-blocks][SUPER_BLOCK_LIMBS] of x, by limbs_kernel */
	const uint2 *limbs;
	const float *scales; /* [n_rows][super-blocks] of x */
	const struct cuda_tables *tables;
	int64_t x_row;
	int64_t y_row;            /* STACK: floats from a row of y to the next */
	int64_t x_stack, y_stack; /* STACK: floats from a matrix to the next */
	int64_t stack_bytes;
	int n_stack; /* 1: none */
	bool flat;   /* STACK: a row fits in a chunk; 16 rows (gemv_args.flat: 8) are copied at once */
	int row_bytes, n_in, n_rows, n_parts, log_split;
	uint32_t add; /* bit i: the product of part i is added to y */
	bool glu;     /* y = silu(w x) * (up x) */
	bool x_aligned;
	struct item_part part[ITEM_PARTS];
	float *partials; /* [split][n_items][groups * 8 * ROW_TILES rows of x][16 weight rows] */
	int first_item, n_items; /* of this launch */
	int groups, group_rows;  /* of rows of x */
	int share_super_blocks;  /* super-blocks of a share, at most; a multiple of a chunk's */
};

/* Of each part: w, and with glu up. Used with MANY_TILES, but not for flat rows. */
struct many_maps {
	CUtensorMap of[ITEM_PARTS][2];
};

/* Which super-block of the row is super-block `local` of a share; n_sb and more: past its end */
template <int CHUNK>
static __device__ __forceinline__ int many_super_block(int share, int split, int local)
{
	return (share + local / CHUNK * split) * CHUNK + local % CHUNK;
}

/* Splits the share's part of n_x rows from x on into limbs; zeros for rows and super-blocks past
 * the last. By all warps, each four super-blocks at a time, so that their loads overlap. */
template <int T, int ROW_TILES>
static __device__ __forceinline__ void many_make_limbs(const struct gemv_many_args &a,
	const float *x, int n_x, int share, int split, int n_sb, uint2 *limbs, float *scales)
{
	constexpr int X = 8 * ROW_TILES, STEP = many_step(ROW_TILES, true);
	int warp = threadIdx.x / 32, warps = blockDim.x / 32, n = X * a.share_super_blocks;
	for (int first = warp; first < n; first += 4 * warps) {
		float v[4][8];
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int at = first + i * warps, r = at % X,
				sb = many_super_block<item_stage<T>::CHUNK>(share, split, at / X);
			if (at < n && sb < n_sb && r < n_x)
				load_super_block<bytes_type<T>::QUADS>(
					x + r * a.x_row, sb, a.n_in, a.x_aligned, v[i]);
			else
#pragma unroll
				for (int k = 0; k < 8; k++)
					v[i][k] = 0;
		}
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int at = first + i * warps;
			if (at < n)
				write_limbs<X * 4, STEP>(
					v[i], limbs + at / X * (8 * STEP) + at % X * 4, scales + at);
		}
	}
}

/* Loads the limbs of the share and their scales. Rows past the group's last one are
 * copies of it; their sums are not stored. A super-block's limbs of a row are 48 lines
 * of 16 bytes: [step][limb][half]. Limbs past the end of a row are not set, and not used. */
template <int T, int ROW_TILES>
static __device__ __forceinline__ void many_load_limbs(const struct gemv_many_args &a, int share,
	int split, int n_sb, int x_first, int n_x, uint2 *limbs, float *scales)
{
	constexpr int X = 8 * ROW_TILES, CHUNK = item_stage<T>::CHUNK;
	for (int i = threadIdx.x; i < X * a.share_super_blocks * 48; i += blockDim.x) {
		int line = i % 48, local = i / 48 % a.share_super_blocks, r = i / 48 / a.share_super_blocks,
			sb = many_super_block<CHUNK>(share, split, local);
		int64_t row = x_first + min(r, n_x - 1);
		int at = ((local * 8 + line / 6) * 3 + line % 6 / 2) * X + r;
		if (sb < n_sb)
			async_copy(shared_address(limbs + 4 * at + line % 2 * 2),
				a.limbs + (row * n_sb + sb) * SUPER_BLOCK_LIMBS + 2 * line);
	}
	async_commit();
	for (int i = threadIdx.x; i < X * a.share_super_blocks; i += blockDim.x) {
		int sb = many_super_block<CHUNK>(share, split, i / X);
		int64_t row = x_first + min(i % X, n_x - 1);
		scales[i] = sb < n_sb ? a.scales[row * n_sb + sb] : 0;
	}
	async_wait<0>();
}

/* Result i of this lane: its sums over the three limbs, combined */
static __device__ __forceinline__ float many_value(const float of_limb[3][4], int i)
{
	return __fmaf_rn(65536.0f, of_limb[0][i], __fmaf_rn(256.0f, of_limb[1][i], of_limb[2][i]));
}

/* STACK: stores the products of weight rows from `row` on and n_x rows of x. y: of the matrix and
 * the first of these rows of x. By a warp. */
template <int ROW_TILES>
static __device__ __forceinline__ void many_store(const struct gemv_many_args &a, float *y, int row,
	int n_x, const float acc[3 * ROW_TILES][4], int lane)
{
#pragma unroll
	for (int h = 0; h < ROW_TILES; h++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int x = 8 * h + 2 * (lane % 4) + i % 2, o = row + lane / 4 + i / 2 * 8;
			if (x < n_x && o < a.part[0].n_out)
				y[x * a.y_row + o] =
					__fadd_rn(0, many_value(acc + 3 * h, i)); /* sums start from 0 */
		}
}

template <int T, int ROW_TILES, bool OWN, bool STACK>
__global__ void __launch_bounds__(many_max_warps(ROW_TILES) * 32, 1) gemv_many_kernel(
	const __grid_constant__ struct gemv_many_args a, const __grid_constant__ struct many_maps maps)
{
	typedef struct bytes_type<T> type;
	typedef struct item_stage<T> stage_shape;
	constexpr int CHUNK = stage_shape::CHUNK, STRIDE = stage_shape::STRIDE,
				  STAGE = stage_shape::STAGE, X = 8 * ROW_TILES, TILES = 3 * ROW_TILES,
				  STEP = many_step(ROW_TILES, OWN);
	static_assert(!type::TABLES, "types with codebooks need their tables in shared memory");
	static_assert(OWN || !STACK, "blocks of stacks make the limbs");
	static_assert(STAGE % 256 == 0, "tiles of eight rows begin at multiples of 128 bytes");
	extern __shared__ __align__(128) uint8_t block_memory[];
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
	int split = STACK ? 1 : 1 << a.log_split, kinds = split * a.groups * (STACK ? a.n_stack : 1),
		kind = blockIdx.x % kinds, share = kind & (split - 1),
		group = STACK ? kind % a.groups : kind >> a.log_split, stack = STACK ? kind / a.groups : 0;
	/* this block among those of its kind */
	int nth = blockIdx.x / kinds, of_kind = ((int)gridDim.x - kind + kinds - 1) / kinds;
	int first = (int)((int64_t)a.n_items * nth / of_kind),
		end = (int)((int64_t)a.n_items * (nth + 1) / of_kind);
	int n_sb = (a.n_in + 255) / 256, chunks = (n_sb + CHUNK - 1) / CHUNK;
	int item_rows = a.glu ? MMA_ROWS / 2 : MMA_ROWS;
	int x_first = group * a.group_rows, n_x = min(a.group_rows, a.n_rows - x_first);
	uint8_t *stages = block_memory + warp * (MANY_STAGES * STAGE);
	uint2 *limbs = (uint2 *)(block_memory + warps * (MANY_STAGES * STAGE));
	float *scales = (float *)(limbs + a.share_super_blocks * 8 * STEP);
	uint32_t stages_at = shared_address(stages),
			 full = shared_address(scales + a.share_super_blocks * X) + warp * (8 * MANY_STAGES);

	launch_dependents();

	/* The copies run MANY_STAGES chunks ahead of the products, across items. */
	struct item_stage<T> copies;
	struct item_position ahead_position = {0, 0};
	int ahead = first + warp, ahead_chunk = share, ahead_stage = 0;
	const uint8_t *from0 = NULL, *from8 = NULL;
	if constexpr (!MANY_TILES) {
		copies.init(stages_at, lane);
		copies.set_row_bytes(a.row_bytes, lane);
	} else if (!lane) {
		for (int i = 0; i < MANY_STAGES; i++)
			mbarrier_init(full + 8 * i, 1);
		mbarrier_init_fence();
	}
	auto set_rows = [&]() {
		if (ahead >= end)
			return;
		ahead_position = item_position_of(a, a.first_item + ahead, item_rows);
		const struct item_part &t = a.part[ahead_position.part];
		int64_t at =
			(int64_t)ahead_position.row * a.row_bytes + (STACK ? stack * a.stack_bytes : 0);
		from0 = t.w + at;
		from8 = a.glu ? t.up + at : from0 + 8 * a.row_bytes;
	};
	[[maybe_unused]] auto copy_tiles = [&]() { /* by one lane */
		uint32_t to = stages_at + ahead_stage * STAGE, barrier = full + 8 * ahead_stage;
		if (STACK && a.flat) {
			mbarrier_expect(barrier, MMA_ROWS * a.row_bytes);
			bulk_copy(to, from0, MMA_ROWS * a.row_bytes, barrier);
			return;
		}
		const CUtensorMap *map = maps.of[ahead_position.part];
		int row = ahead_position.row, word = ahead_chunk * (stage_shape::BYTES / 4);
		mbarrier_expect(barrier, STAGE);
		tile_copy(to, map, word, row, stack, barrier);
		tile_copy(to + STAGE / 2, map + a.glu, word, row + (a.glu ? 0 : 8), stack, barrier);
	};
	[[maybe_unused]] auto copy_lines = [&]() {
		if (STACK && a.flat)
			/* 16 rows of row_bytes are row_bytes lines of 16 bytes */
			for (int i = lane; i < a.row_bytes; i += 32)
				async_copy(copies.to + ahead_stage * STAGE + 16 * (i - lane), from0 + 16 * i);
		else
			copies.copy(ahead_stage, from0, from8, a.row_bytes, ahead_chunk * copies.BYTES,
				a.part[ahead_position.part].n_out - ahead_position.row, a.glu, lane);
	};
	auto fetch = [&]() {
		if (ahead < end && ahead_chunk < chunks) {
			if constexpr (!MANY_TILES)
				copy_lines();
			else if (!lane)
				copy_tiles();
			ahead_stage = ahead_stage + 1 == MANY_STAGES ? 0 : ahead_stage + 1;
			ahead_chunk += split;
			if (ahead_chunk >= chunks) {
				ahead_chunk = share;
				ahead += warps;
				set_rows();
			}
		}
		if constexpr (!MANY_TILES)
			async_commit();
	};
	set_rows();
#pragma unroll 1
	for (int s = 0; s < MANY_STAGES; s++)
		fetch();
	grid_dependency_wait();

	if constexpr (OWN)
		many_make_limbs<T, ROW_TILES>(
			a, a.x + stack * a.x_stack + x_first * a.x_row, n_x, share, split, n_sb, limbs, scales);
	else
		many_load_limbs<T, ROW_TILES>(a, share, split, n_sb, x_first, n_x, limbs, scales);
	__syncthreads();

	uint32_t parity = 0;
	int stage = 0, r0 = lane / 4, c = lane % 4, stride = STACK && a.flat ? a.row_bytes : STRIDE;
	/* counted within the launch, from a.first_item on */
	for (int item = first + warp; item < end; item += warps) {
		float acc[TILES][4];
#pragma unroll
		for (int n = 0; n < TILES; n++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				acc[n][i] = 0;
		int local = 0;
#pragma unroll 1
		for (int chunk = share; chunk < chunks; chunk += split, local += CHUNK) {
			if constexpr (MANY_TILES) {
				mbarrier_wait(full + 8 * stage, parity);
			} else {
				async_wait<MANY_STAGES - 1>();
				__syncwarp();
			}
			const uint8_t *stage_row = stages + stage * STAGE + r0 * stride;
#pragma unroll
			for (int u = 0; u < CHUNK; u++) {
				int sb = chunk * CHUNK + u;
				if (sb >= n_sb)
					break;
				const uint2 *at[TILES];
				float x_scale[TILES][2];
#pragma unroll
				for (int n = 0; n < TILES; n++) {
					int x = n / 3 * 8;
					at[n] = limbs + (local + u) * (8 * STEP) + (n % 3 * X + x + r0) * 4 + c;
					__builtin_assume(at[n] != NULL); /* else each load is tested */
					float2 two = *(const float2 *)(scales + (local + u) * X + x + 2 * c);
					x_scale[n][0] = two.x, x_scale[n][1] = two.y;
				}
				const uint8_t *p0 = stage_row + u * stage_shape::SB_BYTES;
				super_block_mma<T, TILES, 8, 1, STEP>(p0, p0 + 8 * stride, u, a.n_in - sb * 256, c,
					a.tables, lane_tables{block_memory, 0}, at, x_scale, acc);
			}
			__syncwarp(); /* the stage may be overwritten */
			fetch();
			if (++stage == MANY_STAGES) {
				stage = 0;
				parity ^= 1;
			}
		}
		if constexpr (STACK) {
			many_store<ROW_TILES>(a, a.part[0].y + stack * a.y_stack + x_first * a.y_row,
				item * MMA_ROWS, n_x, acc, lane);
			continue;
		}
		float *to = a.partials +
					(((int64_t)share * a.n_items + item) * a.groups + group) * (X * MMA_ROWS) + r0;
#pragma unroll
		for (int h = 0; h < ROW_TILES; h++)
#pragma unroll
			for (int i = 0; i < 4; i++) {
				int x = 8 * h + 2 * c + i % 2;
				if (x < n_x)
					to[x * MMA_ROWS + i / 2 * 8] = many_value(acc + 3 * h, i);
			}
	}
}

/* y from the partial sums. Grid: (items times 16 weight rows in blocks of MANY_SUM_THREADS threads,
 * rows of x); a thread for each output. x_rows: rows of x of a group in partials, 8 * ROW_TILES;
 * group_rows of them are used. */
static __global__ void __launch_bounds__(MANY_SUM_THREADS)
	gemv_many_sum_kernel(const __grid_constant__ struct gemv_many_args a, int x_rows)
{
	launch_dependents();
	int i = blockIdx.x * MANY_SUM_THREADS + threadIdx.x, item = i / MMA_ROWS, j = i % MMA_ROWS,
		x = blockIdx.y, item_rows = a.glu ? MMA_ROWS / 2 : MMA_ROWS, split = 1 << a.log_split;
	if (item >= a.n_items || j >= item_rows)
		return;
	struct item_position p = item_position_of(a, a.first_item + item, item_rows);
	const struct item_part &t = a.part[p.part];
	int64_t stride = (int64_t)a.n_items * a.groups * x_rows * MMA_ROWS;
	const float *from =
		a.partials +
		(((int64_t)item * a.groups + x / a.group_rows) * x_rows + x % a.group_rows) * MMA_ROWS + j;
	if (p.row + j >= t.n_out)
		return;
	grid_dependency_wait();
	float sums[GEMV_WARPS], up_sums[GEMV_WARPS], v = 0, up = 0;
#pragma unroll
	for (int s = 0; s < GEMV_WARPS; s++) {
		sums[s] = s < split ? __ldcg(from + s * stride) : 0;
		up_sums[s] = a.glu && s < split ? __ldcg(from + s * stride + 8) : 0;
	}
#pragma unroll
	for (int s = 0; s < GEMV_WARPS; s++)
		if (s < split) {
			v = __fadd_rn(v, sums[s]);
			up = __fadd_rn(up, up_sums[s]);
		}
	float *to = t.y + (int64_t)x * t.n_out + p.row + j;
	*to = a.glu ? swiglu_one(v, up) : a.add >> p.part & 1 ? __fadd_rn(*to, v) : v;
}

/* How a launch uses shared memory */
struct many_layout {
	int warps; /* 0: it does not fit */
	int share_super_blocks;
	size_t bytes;
};

template <int T, int ROW_TILES, bool OWN>
static struct many_layout many_layout_of(const struct cuda_backend *b, int n_in, int split)
{
	constexpr int X = 8 * ROW_TILES, CHUNK = item_stage<T>::CHUNK;
	constexpr size_t stages = MANY_STAGES * (item_stage<T>::STAGE + sizeof(uint64_t)),
					 of_super_block =
						 8 * many_step(ROW_TILES, OWN) * sizeof(uint2) + X * sizeof(float);
	int n_sb = (n_in + 255) / 256, chunks = (n_sb + CHUNK - 1) / CHUNK;
	struct many_layout l = {};
	l.share_super_blocks = (chunks + split - 1) / split * CHUNK;
	l.bytes = (size_t)l.share_super_blocks * of_super_block;
	if (l.bytes + MANY_MIN_WARPS * stages > b->max_shared)
		return l;
	size_t warps = (b->max_shared - l.bytes) / stages;
	l.warps = warps < many_max_warps(ROW_TILES) ? (int)warps : many_max_warps(ROW_TILES);
	l.bytes += l.warps * stages;
	return l;
}

/* The blocks of a launch: n_sm / kinds of each kind, at least one, at most n_items. If SMs are left
 * that are fewer than the kinds, the first kinds have one block more. */
static inline unsigned many_blocks(const struct cuda_backend *b, int kinds, int n_items)
{
	int blocks = kinds * min(n_items, max(b->n_sm / kinds, 1));
	return (unsigned)(blocks + kinds > b->n_sm ? max(b->n_sm, kinds) : blocks);
}

/* The maps of a launch. A tile is eight rows of a stage: STRIDE bytes of each, so that the rows lie
 * an odd number of lines apart (item_stage); the bytes behind a chunk are not used. False: the
 * failure is kept. */
template <int T>
static bool many_maps_make(
	struct cuda_backend *b, const struct gemv_many_args *a, struct many_maps *maps)
{
	for (int i = 0; i < a->n_parts; i++)
		for (int up = 0; up <= a->glu && a->part[i].n_out; up++) {
			const struct item_part *p = &a->part[i];
			struct tiled_matrices m = {.data = up ? p->up : p->w,
				.row_bytes = a->row_bytes,
				.n_rows = p->n_out,
				.stack_bytes = a->stack_bytes,
				.count = a->n_stack,
				.tile_bytes = item_stage<T>::STRIDE,
				.tile_rows = MMA_ROWS / 2};
			if (!tile_map_make(b, &maps->of[i][up], &m))
				return false;
		}
	return true;
}

/* False: not enough shared memory; nothing was enqueued. True: enqueued, or the failure is kept. */
template <int T, int ROW_TILES, bool OWN, bool STACK>
static bool gemv_many_launch_as(struct cuda_backend *b, const struct gemv_many_args *given)
{
	constexpr int X = 8 * ROW_TILES;
	struct gemv_many_args a = *given;
	int split = 1 << a.log_split, items = a.part[a.n_parts - 1].item_end;
	struct many_layout l = many_layout_of<T, ROW_TILES, OWN>(b, a.n_in, split);
	if (!l.warps)
		return false;
	a.share_super_blocks = l.share_super_blocks;
	a.groups = (a.n_rows + X - 1) / X;
	a.group_rows = (a.n_rows + a.groups - 1) / a.groups;
	auto kernel = gemv_many_kernel<T, ROW_TILES, OWN, STACK>;
	struct many_maps maps = {};
	if (!cuda_allow_shared(b, (const void *)kernel, l.bytes) ||
		(b->has_pdl && !(STACK && a.flat) && !many_maps_make<T>(b, &a, &maps)))
		return true;
	if (STACK) {
		a.n_items = items;
		cuda_launch(b, kernel, dim3(many_blocks(b, a.n_stack * a.groups, items)),
			(unsigned)l.warps * 32, l.bytes, a, maps);
		return true;
	}
	size_t item_bytes = (size_t)split * (size_t)a.groups * X * MMA_ROWS * sizeof(float);
	int most = (int)(MANY_PARTIALS / item_bytes);
	a.partials = (float *)cuda_scratch_reserve(b, &b->gemv_partials, MANY_PARTIALS);
	if (!a.partials)
		return true;
	for (; a.first_item < items && !b->base.failure.code; a.first_item += a.n_items) {
		a.n_items = min(items - a.first_item, most);
		cuda_launch(b, kernel, dim3(many_blocks(b, split * a.groups, a.n_items)),
			(unsigned)l.warps * 32, l.bytes, a, maps);
		unsigned sums = (unsigned)(a.n_items * MMA_ROWS + MANY_SUM_THREADS - 1) / MANY_SUM_THREADS;
		cuda_launch(
			b, gemv_many_sum_kernel, dim3(sums, (unsigned)a.n_rows), MANY_SUM_THREADS, 0, a, X);
	}
	return true;
}

/* Whether the kernel takes p, a stack: a split of 1, one task, no add, no glu, and rows of whole
 * 16-byte lines; or (flat) rows of one chunk, of which 16 are whole lines. Sets the fields of a
 * stack. */
template <int T>
static bool many_set_stack_args(const struct gemv_args *p, struct gemv_many_args *a)
{
	const struct gemv_task *t = &p->task[0];
	a->n_stack = p->n_stack;
	a->x_stack = p->x_stack, a->y_stack = p->y_stack;
	a->y_row = p->y_row ? p->y_row : t->n_out;
	a->stack_bytes = p->stack_bytes;
	a->flat = p->row_bytes % 16 != 0;
	/* what follows a flat row in its stage meets zeros as limbs, and must not be its scale */
	if (a->flat && bytes_type<T>::SCALE != SCALE_FLOAT)
		return false;
	return p->split == 1 && p->n_tasks == 1 && !t->add && !p->glu && p->stack_bytes % 16 == 0 &&
		   (!a->flat || (p->row_bytes <= item_stage<T>::BYTES && p->row_bytes % 4 == 0 &&
							t->n_out % MMA_ROWS == 0));
}

/* The arguments that do not depend on the launch's tiling. False: the kernel does not apply. */
template <int T> static bool gemv_many_args_of(const struct gemv_args *p, struct gemv_many_args *a)
{
	*a = {};
	a->x = p->x, a->x_row = p->x_row, a->x_aligned = p->x_aligned;
	a->limbs = p->limbs, a->scales = p->scales;
	a->n_stack = 1;
	if (p->n_rows < MANY_MIN_ROWS)
		return false;
	bool stack = p->n_stack > 1;
	return (!stack || many_set_stack_args<T>(p, a)) && item_args_set(a, p, stack);
}

/* Whether gemv_many_kernel makes the limbs of this product. */
template <int T>
static bool gemv_many_makes_limbs(struct cuda_backend *b, const struct gemv_args *p)
{
	struct gemv_many_args a;
	if (!gemv_many_args_of<T>(p, &a) || (a.n_stack == 1 && p->n_rows > MANY_OWN_MAX_ROWS))
		return false;
	int split = 1 << a.log_split;
	return (p->n_rows > 8 ? many_layout_of<T, 2, true>(b, p->n_in, split)
						  : many_layout_of<T, 1, true>(b, p->n_in, split))
			   .warps > 0;
}

/* False: the kernel does not apply; nothing was enqueued. */
template <int T> static bool gemv_many_launch(struct cuda_backend *b, const struct gemv_args *p)
{
	struct gemv_many_args a;
	if (!gemv_many_args_of<T>(p, &a) || (p->limbs && a.n_stack > 1))
		return false;
	if (a.n_stack > 1)
		return p->n_rows > 8 ? gemv_many_launch_as<T, 2, true, true>(b, &a)
							 : gemv_many_launch_as<T, 1, true, true>(b, &a);
	if (!p->limbs)
		return p->n_rows > 8 ? gemv_many_launch_as<T, 2, true, false>(b, &a)
							 : gemv_many_launch_as<T, 1, true, false>(b, &a);
	/* groups of 32 rows where they leave no more columns unused than groups of 16 do; smaller
	 * groups where shared memory is too small */
	bool large = p->n_rows > 16 && (p->n_rows + 15) / 16 % 2 == 0;
	return (large && gemv_many_launch_as<T, 4, false, false>(b, &a)) ||
		   (p->n_rows > 8 && gemv_many_launch_as<T, 2, false, false>(b, &a)) ||
		   gemv_many_launch_as<T, 1, false, false>(b, &a);
}

#endif
