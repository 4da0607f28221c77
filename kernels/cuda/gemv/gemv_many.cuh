/* SPDX-License-Identifier: MIT */
/*
 * gemv for MANY_ROWS to DECODE_MAX_ROWS rows of x: what gemv_rows_kernel (gemv_rows.cuh) computes,
 * for the same matrices, with the same sums in the same order. That kernel reads the limbs of all
 * of x, 3 bytes a value, for each item: with 16 rows three times the bytes of the weights. Here a
 * block has one share of k and one group of rows of x, whose limbs stay in shared memory.
 *   - Up to MANY_OWN_ROWS rows each block splits its part of x itself (OWN), which the other blocks
 *     of its kind repeat.
 *   - Of more rows, or where that does not fit, limbs_kernel splits x once, a launch more, and the
 *     blocks load what they need.
 * The partial sums of the shares go through global memory: gemv_many_sum_kernel adds them up in the
 * order of the shares.
 *
 *      kind     a share of k (gemv_k_split) with a group of up to 8 * ROW_TILES rows of x. Block i
 *               has kind i % kinds; the blocks of a kind divide the items
 *      item     16 weight rows (glu: 8 of gate and 8 of up) by the rows of the group; by one warp
 *      column   of a tile of 8: a row of x; a tile has one limb of 8 rows, so that a lane has all
 *               three limbs of its results
 *
 * Grid: about one block per SM. Block: as many warps as shared memory has stages for, at most
 * many_warps. A warp copies MANY_STAGES chunks ahead (cp.async), across items, to stages of its
 * own. The first copies start before the wait for the previous kernel. The only block barrier is
 * behind the limbs, made or loaded.
 *
 * Shared memory: limbs of the share [super-block][step][limb][row][c] of 8 bytes, with OWN 32 bytes
 * of padding behind each step (many_step); scales [super-block][row]; stages of the warps.
 *
 * Bytes moved: every packed row once per group of rows (after the first from the L2 cache); of x 4
 * (OWN) or 3 bytes a value, a share of k per block; partial sums, 4 * split bytes per output, out
 * and in: MANY_PARTIALS bytes at a time stay in the L2 cache.
 */
#ifndef GLM_KERNELS_CUDA_GEMV_MANY_CUH
#define GLM_KERNELS_CUDA_GEMV_MANY_CUH

#include "kernels/cuda/gemv/gemv_rows.cuh"

#define MANY_STAGES   2
#define MANY_LEAST    4                  /* warps of a block, at least */
#define MANY_PARTIALS ((size_t)16 << 20) /* bytes of partial sums of a launch, at most */
#define MANY_ROWS     4   /* the fewest rows for which it is faster than gemv_rows_kernel */
#define MANY_OWN_ROWS 16  /* up to so many rows the blocks make the limbs themselves */
#define MANY_SUM      256 /* threads of a block of gemv_many_sum_kernel */

static_assert(MANY_OWN_ROWS <= 2 * 8, "with OWN there is one group of at most two tiles");

/* Warps of a block, at most: as many as registers allow. */
static constexpr __host__ __device__ int many_warps(int row_tiles)
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
	struct gemv_rows_args of;
	const float *x; /* OWN; else of.limbs, of.scales */
	int64_t x_row;
	bool x_aligned;
	float *partials; /* [split][n_items][groups * 8 * ROW_TILES rows of x][16 weight rows] */
	int first_item, n_items; /* of this launch */
	int groups, group_rows;  /* of rows of x */
	int share_blocks;        /* super-blocks of a share, at most; a multiple of a chunk's */
};

/* The number in the row of super-block `local` of a share; n_sb or more: there is none */
template <int CHUNK>
static __device__ __forceinline__ int many_super_block(int share, int split, int local)
{
	return (share + local / CHUNK * split) * CHUNK + local % CHUNK;
}

/* Splits the share's part of x into limbs; zeros for rows past the last of the step, of which there
 * is one group, and for super-blocks past the last. By all warps, each four super-blocks at a time,
 * so that their loads overlap. */
template <int T, int ROW_TILES>
static __device__ __forceinline__ void many_make_limbs(
	const struct gemv_many_args &m, int share, int split, int n_sb, uint2 *limbs, float *scales)
{
	constexpr int X = 8 * ROW_TILES, STEP = many_step(ROW_TILES, true);
	int warp = threadIdx.x / 32, warps = blockDim.x / 32, n = X * m.share_blocks;
	for (int first = warp; first < n; first += 4 * warps) {
		float v[4][8];
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int at = first + i * warps, r = at % X,
				sb = many_super_block<item_stage<T>::CHUNK>(share, split, at / X);
			if (at < n && sb < n_sb && r < m.of.n_rows)
				load_super_block<bytes_type<T>::QUADS>(
					m.x + r * m.x_row, sb, m.of.n_in, m.x_aligned, v[i]);
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

/* Loads the limbs of the share and their scales. Rows past the last of the group repeat it; their
 * sums are not stored. A super-block's limbs of a row are 48 lines of 16 bytes:
 * [step][limb][half]. */
template <int T, int ROW_TILES>
static __device__ __forceinline__ void many_load_limbs(const struct gemv_many_args &m, int share,
	int split, int n_sb, int x_first, int n_x, uint2 *limbs, float *scales)
{
	constexpr int X = 8 * ROW_TILES, CHUNK = item_stage<T>::CHUNK;
	for (int i = threadIdx.x; i < X * m.share_blocks * 48; i += blockDim.x) {
		int line = i % 48, local = i / 48 % m.share_blocks, r = i / 48 / m.share_blocks,
			sb = many_super_block<CHUNK>(share, split, local);
		int64_t row = x_first + min(r, n_x - 1);
		int at = ((local * 8 + line / 6) * 3 + line % 6 / 2) * X + r;
		if (sb < n_sb)
			async_copy(shared_address(limbs + 4 * at + line % 2 * 2),
				m.of.limbs + (row * n_sb + sb) * SUPER_BLOCK_LIMBS + 2 * line);
	}
	async_commit();
	for (int i = threadIdx.x; i < X * m.share_blocks; i += blockDim.x) {
		int sb = many_super_block<CHUNK>(share, split, i / X);
		int64_t row = x_first + min(i % X, n_x - 1);
		scales[i] = sb < n_sb ? m.of.scales[row * n_sb + sb] : 0;
	}
	async_wait<0>();
}

template <int T, int ROW_TILES, bool OWN>
__global__ void __launch_bounds__(many_warps(ROW_TILES) * 32, 1)
	gemv_many_kernel(const __grid_constant__ struct gemv_many_args m)
{
	typedef struct bytes_type<T> type;
	typedef struct item_stage<T> stage_shape;
	constexpr int CHUNK = stage_shape::CHUNK, STRIDE = stage_shape::STRIDE,
				  STAGE = stage_shape::STAGE, X = 8 * ROW_TILES, TILES = 3 * ROW_TILES,
				  STEP = many_step(ROW_TILES, OWN);
	static_assert(!type::TABLES, "types with codebooks need their tables in shared memory");
	extern __shared__ __align__(16) uint8_t shared[];
	const struct gemv_rows_args &a = m.of;
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
	int split = 1 << a.log_split, kinds = split * m.groups, kind = blockIdx.x % kinds,
		share = kind & (split - 1), group = kind >> a.log_split;
	/* this block among those of its kind */
	int nth = blockIdx.x / kinds, of_kind = ((int)gridDim.x - kind + kinds - 1) / kinds;
	int first = (int)((int64_t)m.n_items * nth / of_kind),
		end = (int)((int64_t)m.n_items * (nth + 1) / of_kind);
	int n_sb = (a.n_in + 255) / 256, chunks = (n_sb + CHUNK - 1) / CHUNK;
	int tile_rows = a.glu ? MMA_ROWS / 2 : MMA_ROWS;
	int x_first = group * m.group_rows, n_x = min(m.group_rows, a.n_rows - x_first);
	uint2 *limbs = (uint2 *)shared;
	float *scales = (float *)(limbs + m.share_blocks * 8 * STEP);
	uint8_t *stages = (uint8_t *)(scales + m.share_blocks * X) + warp * (MANY_STAGES * STAGE);

	launch_dependents();

	/* The copies run MANY_STAGES chunks ahead of the products, across items. */
	struct item_stage<T> copies;
	int ahead = first + warp, ahead_chunk = share, ahead_stage = 0, ahead_rows = 0;
	const uint8_t *from0 = NULL, *from8 = NULL;
	copies.init(shared_address(stages), lane);
	copies.set_row_bytes(a.row_bytes, lane);
	auto set_rows = [&]() {
		if (ahead >= end)
			return;
		struct item_position p = item_position_of(a, m.first_item + ahead, tile_rows);
		const struct item_part &t = a.part[p.part];
		int64_t at = (int64_t)p.row * a.row_bytes;
		ahead_rows = t.n_out - p.row;
		from0 = t.w + at;
		from8 = a.glu ? t.up + at : from0 + 8 * a.row_bytes;
	};
	auto fetch = [&]() {
		if (ahead < end && ahead_chunk < chunks) {
			copies.copy(ahead_stage, from0, from8, a.row_bytes, ahead_chunk * copies.BYTES,
				ahead_rows, a.glu, lane);
			ahead_stage = ahead_stage + 1 == MANY_STAGES ? 0 : ahead_stage + 1;
			ahead_chunk += split;
			if (ahead_chunk >= chunks) {
				ahead_chunk = share;
				ahead += warps;
				set_rows();
			}
		}
		async_commit();
	};
	set_rows();
#pragma unroll 1
	for (int s = 0; s < MANY_STAGES; s++)
		fetch();
	grid_dependency_wait();

	if constexpr (OWN)
		many_make_limbs<T, ROW_TILES>(m, share, split, n_sb, limbs, scales);
	else
		many_load_limbs<T, ROW_TILES>(m, share, split, n_sb, x_first, n_x, limbs, scales);
	__syncthreads();

	int stage = 0, r0 = lane / 4, c = lane % 4;
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
			async_wait<MANY_STAGES - 1>();
			__syncwarp();
			const uint8_t *row = stages + stage * STAGE + r0 * STRIDE;
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
				const uint8_t *p0 = row + u * stage_shape::SB_BYTES;
				super_block_mma<T, TILES, 8, 1, STEP>(p0, p0 + 8 * STRIDE, u, a.n_in - sb * 256, c,
					a.tables, lane_tables{shared, 0}, at, x_scale, acc);
			}
			__syncwarp(); /* the stage may be overwritten */
			fetch();
			stage = stage + 1 == MANY_STAGES ? 0 : stage + 1;
		}
		float *to = m.partials +
					(((int64_t)share * m.n_items + item) * m.groups + group) * (X * MMA_ROWS) + r0;
#pragma unroll
		for (int h = 0; h < ROW_TILES; h++)
#pragma unroll
			for (int i = 0; i < 4; i++) {
				int x = 8 * h + 2 * c + i % 2;
				const float(*v)[4] = acc + 3 * h;
				if (x < n_x)
					to[x * MMA_ROWS + i / 2 * 8] =
						__fmaf_rn(65536.0f, v[0][i], __fmaf_rn(256.0f, v[1][i], v[2][i]));
			}
	}
	async_wait<0>();
}

/* y from the partial sums. Grid: (items times 16 weight rows in blocks of MANY_SUM threads, rows of
 * x); a thread for each output. x_rows: rows of x of a group in partials, 8 * ROW_TILES; group_rows
 * of them are used. */
static __global__ void __launch_bounds__(MANY_SUM)
	gemv_many_sum_kernel(const __grid_constant__ struct gemv_many_args m, int x_rows)
{
	const struct gemv_rows_args &a = m.of;
	launch_dependents();
	int i = blockIdx.x * MANY_SUM + threadIdx.x, item = i / MMA_ROWS, j = i % MMA_ROWS,
		x = blockIdx.y, tile_rows = a.glu ? MMA_ROWS / 2 : MMA_ROWS, split = 1 << a.log_split;
	if (item >= m.n_items || j >= tile_rows)
		return;
	struct item_position p = item_position_of(a, m.first_item + item, tile_rows);
	const struct item_part &t = a.part[p.part];
	int64_t stride = (int64_t)m.n_items * m.groups * x_rows * MMA_ROWS;
	const float *from =
		m.partials +
		(((int64_t)item * m.groups + x / m.group_rows) * x_rows + x % m.group_rows) * MMA_ROWS + j;
	if (p.row + j >= t.n_out)
		return;
	grid_dependency_wait();
	float part[GEMV_WARPS], part_up[GEMV_WARPS], v = 0, up = 0;
#pragma unroll
	for (int s = 0; s < GEMV_WARPS; s++) {
		part[s] = s < split ? __ldcg(from + s * stride) : 0;
		part_up[s] = a.glu && s < split ? __ldcg(from + s * stride + 8) : 0;
	}
#pragma unroll
	for (int s = 0; s < GEMV_WARPS; s++)
		if (s < split) {
			v = __fadd_rn(v, part[s]);
			up = __fadd_rn(up, part_up[s]);
		}
	float *to = t.y + (int64_t)x * t.n_out + p.row + j;
	*to = a.glu ? swiglu_one(v, up) : a.add >> p.part & 1 ? __fadd_rn(*to, v) : v;
}

/* How a launch uses shared memory */
struct many_layout {
	int warps; /* 0: it does not fit */
	int share_blocks;
	size_t bytes;
};

template <int T, int ROW_TILES, bool OWN>
static struct many_layout many_layout_of(const struct cuda_backend *b, int n_in, int split)
{
	constexpr int X = 8 * ROW_TILES, CHUNK = item_stage<T>::CHUNK;
	constexpr size_t stages = MANY_STAGES * item_stage<T>::STAGE,
					 of_super_block =
						 8 * many_step(ROW_TILES, OWN) * sizeof(uint2) + X * sizeof(float);
	int n_sb = (n_in + 255) / 256, chunks = (n_sb + CHUNK - 1) / CHUNK;
	struct many_layout l = {};
	l.share_blocks = (chunks + split - 1) / split * CHUNK;
	l.bytes = (size_t)l.share_blocks * of_super_block;
	if (l.bytes + MANY_LEAST * stages > b->max_shared)
		return l;
	size_t warps = (b->max_shared - l.bytes) / stages;
	l.warps = warps < many_warps(ROW_TILES) ? (int)warps : many_warps(ROW_TILES);
	l.bytes += l.warps * stages;
	return l;
}

/* False: not enough shared memory; nothing was enqueued. True: enqueued, or the failure is kept. */
template <int T, int ROW_TILES, bool OWN>
static bool gemv_many_launch_as(
	struct cuda_backend *b, const struct gemv_rows_args *a, const struct gemv_args *p)
{
	constexpr int X = 8 * ROW_TILES;
	struct gemv_many_args m = {};
	int split = 1 << a->log_split, items = a->part[a->n_parts - 1].item_end;
	struct many_layout l = many_layout_of<T, ROW_TILES, OWN>(b, a->n_in, split);
	if (!l.warps)
		return false;
	m.of = *a;
	m.x = p->x, m.x_row = p->x_row, m.x_aligned = p->x_aligned;
	m.share_blocks = l.share_blocks;
	m.groups = (a->n_rows + X - 1) / X;
	m.group_rows = (a->n_rows + m.groups - 1) / m.groups;
	size_t item_bytes = (size_t)split * (size_t)m.groups * X * MMA_ROWS * sizeof(float);
	int most = (int)(MANY_PARTIALS / item_bytes), kinds = split * m.groups;
	auto kernel = gemv_many_kernel<T, ROW_TILES, OWN>;
	m.partials = (float *)cuda_scratch_reserve(b, &b->gemv_partials, MANY_PARTIALS);
	if (!m.partials || !cuda_allow_shared(b, (const void *)kernel, l.bytes))
		return true;
	for (; m.first_item < items && !b->base.failure.code; m.first_item += m.n_items) {
		m.n_items = min(items - m.first_item, most);
		int blocks = kinds * min(m.n_items, max(b->n_sm / kinds, 1));
		/* SMs that are too few for one more block of each kind: blocks of the first kinds */
		blocks = blocks + kinds > b->n_sm ? max(b->n_sm, kinds) : blocks;
		cuda_launch(b, kernel, dim3((unsigned)blocks), (unsigned)l.warps * 32, l.bytes, m);
		unsigned sums = (unsigned)(m.n_items * MMA_ROWS + MANY_SUM - 1) / MANY_SUM;
		cuda_launch(b, gemv_many_sum_kernel, dim3(sums, (unsigned)a->n_rows), MANY_SUM, 0, m, X);
	}
	return true;
}

/* Whether gemv_many_launch takes this product without limbs. */
template <int T>
static bool gemv_many_makes_limbs(struct cuda_backend *b, const struct gemv_args *p)
{
	struct gemv_rows_args a;
	if (p->n_rows < MANY_ROWS || p->n_rows > MANY_OWN_ROWS || !gemv_rows_args_of(p, &a))
		return false;
	int split = 1 << a.log_split;
	return (p->n_rows > 8 ? many_layout_of<T, 2, true>(b, p->n_in, split)
						  : many_layout_of<T, 1, true>(b, p->n_in, split))
			   .warps > 0;
}

/* False: the kernel does not apply; nothing was enqueued. */
template <int T> static bool gemv_many_launch(struct cuda_backend *b, const struct gemv_args *p)
{
	struct gemv_rows_args a;
	if (p->n_rows < MANY_ROWS || !gemv_rows_args_of(p, &a))
		return false;
	if (!p->limbs)
		return p->n_rows > 8 ? gemv_many_launch_as<T, 2, true>(b, &a, p)
							 : gemv_many_launch_as<T, 1, true>(b, &a, p);
	/* groups of 32 rows where they leave no more columns unused than groups of 16 do */
	bool large = p->n_rows > 16 && (p->n_rows + 15) / 16 % 2 == 0;
	if (large && gemv_many_launch_as<T, 4, false>(b, &a, p))
		return true;
	return p->n_rows > 8 ? gemv_many_launch_as<T, 2, false>(b, &a, p)
						 : gemv_many_launch_as<T, 1, false>(b, &a, p);
}

#endif
