/* SPDX-License-Identifier: MIT */
/*
 * Decode's matrix-vector products (gemv), below matmul, stacked_matmul and expert_ffn: the tasks of
 * all gemv kernels, and gemv_kernel itself, which is for float weights. Packed weights:
 * gemv_mma.cuh.
 *
 * Types that few files hold for most of their weights (block_decode.cuh): gemv_decoded.cu.
 *
 * Which kernel multiplies what:
 *
 *      F32, F16, BF16                          gemv_kernel
 *      types of block_decode.cuh               gemv_decoded_kernel
 *      other packed types                      gemv_mma_kernel, except
 *        Q8_0, Q4_K: plain rows of x, rows of y n_out apart, weight rows at multiples of 16
 *        bytes, at most ITEM_PARTS matrices that are no stack
 *          3 and more rows of x                gemv_many_kernel, if its limbs fit in shared memory
 *          1, 2 rows of x                      gemv_aligned_kernel, if the block splits x itself
 *                                              (gemv_makes_limbs) and enough SMs have work
 *        Q8_0, Q4_K: a stack, as many_stack_args_of says
 *          3 and more rows of x                gemv_many_kernel, if its limbs fit in shared memory
 *
 * Ops of several products have kernels of their own for the common shapes, with the same sums:
 * latents (gemv_chain.cuh), ffn (ffn_fused.cu), expert_ffn (experts_fused.cu), mla.
 *
 * gemv_kernel: split-k gemv in registers. Grid: x = groups of activation rows (fastest, so that
 * weights stay in the L2 cache) times groups of weight rows; y = tasks times matrices of a stack.
 * Block: 8 warps, no dynamic shared memory. `split` warps share a weight row (gate and up: two
 * rows): warp p takes the super-blocks (256 weights) p, p + split, ...; a lane takes weights
 * 4 lane .. 4 lane + 3 and 4 lane + 128 .. 4 lane + 131 of each. A warp loads SUPER_BLOCKS
 * super-blocks to registers at a time, and the first of them before it waits for the previous
 * kernel: with one row of x, that is all of a row of up to 6144 weights. Loads past the end of a
 * row give zeros; warps past the last weight row load the last one again and store nothing.
 *
 * Bytes moved per call: every weight row once per group of NX activation rows (after the first from
 * the L2 cache); the activation rows once per group of weight rows, from the L1 cache; the outputs.
 *
 * Order of additions of an output: a lane over its weights, super-blocks ascending; the 32 lanes by
 * butterfly; the warps of the split in order. It depends on the weight's shape alone, so the
 * numbers of a row do not depend on how many rows there are.
 *
 * Names in this folder: sb = super-block, n_sb = super-blocks of a row, limb = one of the three
 * signed bytes that a value of x is split into, partials = partial sums of the warps that share a
 * row, chunk = the super-blocks of a row that one stage in shared memory holds, glu = gate and up
 * at once.
 */
#ifndef GLM_KERNELS_CUDA_GEMV_CUH
#define GLM_KERNELS_CUDA_GEMV_CUH

#include "kernels/cuda/common/block_dot.cuh"

#define GEMV_WARPS 8
#define GEMV_ROWS  8 /* most activation rows of a warp */
#define GEMV_TASKS 32

/* How activation and output rows are numbered. */
enum gemv_rows {
	ROWS_PLAIN,     /* i -> i, of all activation rows */
	ROWS_TO_HIDDEN, /* slot i of the task: x row row[i], y row first + i */
	ROWS_TO_SLOTS,  /* slot i of the task: x row first + i, y row slot[i] */
};

struct gemv_task {
	const uint8_t *w;
	const uint8_t *up; /* gate and up at once: y = silu(w x) * (up x); else NULL */
	float *y;
	const float *x; /* its own x (gemv_kernel only); NULL: that of all */
	int n_out;
	bool add;
	int n_x; /* not ROWS_PLAIN: number of slots, at most GEMV_ROWS */
	int first;
	int32_t slot[GEMV_ROWS], row[GEMV_ROWS]; /* (token, rank) slots; row: of x, slot / n_used */
};

/* weight.scales of the tasks' w and up (block_decode.cuh: block_scale). */
struct gemv_block_scales {
	const uint8_t *w[GEMV_TASKS], *up[GEMV_TASKS];
};

struct gemv_args {
	struct gemv_task task[GEMV_TASKS]; /* of one type, n_in and row_bytes */
	/* F8_E4M3: host memory, never read on the device; valid until gemv_enqueue returns, which makes
	 * it a second argument of gemv_decoded_kernel: those of the other kernels stay shorter. */
	const struct gemv_block_scales *block_scales;
	const struct cuda_tables *tables;
	const float *x;
	/* packed types: x as limbs (gemv_split_limbs) and their scales; NULL: the kernel splits x
	 * (gemv_aligned_kernel, gemv_mma_kernel: gemv_makes_limbs; gemv_many_kernel: gemv_many_splits)
	 */
	const uint2 *limbs;
	const float *scales;
	int own_rows; /* x rows (of all matrices of a stack) whose limbs fit in shared memory */
	int item_end[GEMV_TASKS]; /* gemv_mma_kernel: items of the tasks so far */
	/* gemv_mma_kernel: bytes of a copy, 16, 4 or 2; gemv_kernel: whether four weights are aligned
	 */
	int unit;
	int64_t x_row;            /* floats between rows of x */
	int64_t y_row;            /* and of y; 0: n_out of the task */
	int64_t x_stack, y_stack; /* floats between matrices of a stack */
	int64_t row_bytes, stack_bytes;
	int n_in, n_tasks, n_stack, n_rows; /* n_rows: ROWS_PLAIN */
	int split, row_groups, out_most;    /* split: of gemv_k_split; out_most: the largest n_out */
	enum gemv_rows rows;
	bool flat; /* gemv_mma_kernel: a row is one chunk, and eight rows are copied as one extent */
	bool glu;
	bool x_aligned; /* all x rows are 16-byte aligned and n_in is a multiple of 4 */
};

/* The form of x that a type needs: floats, or limbs in one of two fragment orders (which lane has
 * which weights of a step of 32: bytes_type<T>::QUADS). */
enum limb_layout { LAYOUT_FLOATS, LAYOUT_EIGHTS, LAYOUT_QUADS };

enum limb_layout gemv_limb_layout(enum dtype type);

/* Whether gemv_mma_kernel and gemv_aligned_kernel split x into limbs themselves, in shared memory.
 * n_x: most rows of x of a task. The limits are the shared-memory budget that codebooks leave. */
static inline bool gemv_makes_limbs(
	const struct cuda_backend *b, enum dtype type, int n_x, int64_t n_in)
{
	int64_t values = n_x * ((n_in + 255) / 256 * 256);
	int64_t most = type == DTYPE_IQ2_XXS                      ? 6144
				   : type == DTYPE_Q8_0 || type == DTYPE_Q4_K ? 16384
															  : 12288;
	return n_x <= 2 && b->max_shared > 200 << 10 && values <= most;
}

/* The split-k factor: warps that share a weight row, 1, 2, 4 or 8. It depends on the weight's type
 * and shape alone. rows: weight rows of all matrices of this shape that decode multiplies together.
 */
int gemv_k_split(enum dtype type, int64_t n_in, int64_t rows);

/* Whether gemv_many_kernel takes these tasks and splits x into limbs itself. */
bool gemv_many_splits(struct cuda_backend *b, enum dtype type, const struct gemv_args *a);

/* Splits all x rows, n_x per matrix of a stack, into limbs in scratch memory; sets a->limbs and
 * a->scales. They are valid until the next call. */
bool gemv_split_limbs(
	struct cuda_backend *b, struct gemv_args *a, int64_t n_x, enum limb_layout layout);

/* Sets a->limbs and a->scales to what this type needs: those of *last if they have the same layout;
 * NULL for floats, and if the kernel splits x itself. Preconditions: with ROWS_PLAIN all tasks are
 * in *a. n_x: rows of x; most: of a task.
 * *last_layout: LAYOUT_FLOATS before the first call for an x. False: the failure is kept. */
bool gemv_prepare_limbs(struct cuda_backend *b, struct gemv_args *a, enum dtype type, int64_t n_x,
	int most, struct gemv_args *last, enum limb_layout *last_layout);

/* Appends a task with these weights, and their scales to *scales, of which each gemv_args has its
 * own. up: NULL if there is none. Precondition: n_tasks < GEMV_TASKS. */
struct gemv_task *gemv_task_add(struct gemv_args *a, struct gemv_block_scales *scales,
	const struct weight *w, const struct weight *up);

/* Enqueues a->task[0 .. n_tasks), all of the given type; sets the fields that follow from the
 * others (groups, alignment). Preconditions: a->split is gemv_k_split's; gemv_prepare_limbs has
 * been called for these tasks. False: the failure is kept. */
bool gemv_enqueue(struct cuda_backend *b, enum dtype type, struct gemv_args *a);

typedef void gemv_launcher(struct cuda_backend *b, const struct gemv_args *a, int n_x);

/* x[k .. k + 4), zeros past n_in. aligned: x is 16-byte aligned and n_in a multiple of 4. */
static __device__ __forceinline__ void load_x(
	const float *x, int k, int n_in, bool aligned, float v[4])
{
	if (aligned && k < n_in) {
		float4 f = *(const float4 *)(x + k);
		v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
		return;
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
		v[i] = k + i < n_in ? x[k + i] : 0;
}

/* Four weights as stored */
template <int T> struct raw_four {
	typedef uint2 type;
	static __device__ __forceinline__ void get(uint2 r, float q[4])
	{
		uint32_t h[4] = {r.x & 0xffff, r.x >> 16, r.y & 0xffff, r.y >> 16};
#pragma unroll
		for (int i = 0; i < 4; i++)
			q[i] = T == DTYPE_F16 ? half_float(h[i]) : __uint_as_float(h[i] << 16);
	}
};

template <> struct raw_four<DTYPE_F32> {
	typedef uint4 type;
	static __device__ __forceinline__ void get(uint4 r, float q[4])
	{
		q[0] = __uint_as_float(r.x), q[1] = __uint_as_float(r.y);
		q[2] = __uint_as_float(r.z), q[3] = __uint_as_float(r.w);
	}
};

/* row[k .. k + 4), zeros past n_in. aligned: groups of four begin at a multiple of their bytes. */
template <int T>
static __device__ __forceinline__ typename raw_four<T>::type load_weights(
	const uint8_t *row, int k, int n_in, bool aligned)
{
	typedef typename raw_four<T>::type raw;
	if (aligned && k + 4 <= n_in)
		return __ldg((const raw *)row + k / 4);
	uint32_t v[4];
#pragma unroll
	for (int i = 0; i < 4; i++)
		v[i] = k + i >= n_in    ? 0
			   : T == DTYPE_F32 ? ((const uint32_t *)row)[k + i]
								: get16(row + 2 * (k + i));
	if constexpr (T == DTYPE_F32)
		return make_uint4(v[0], v[1], v[2], v[3]);
	else
		return make_uint2(v[0] | v[1] << 16, v[2] | v[3] << 16);
}

/* x[r]: activation row r of the group; past n_x the last one again. */
template <int NX>
static __device__ __forceinline__ void gemv_x_rows(const struct gemv_args &a,
	const struct gemv_task &t, int stack, int row_group, int n_x, const float *x[NX])
{
#pragma unroll
	for (int r = 0; r < NX; r++) {
		int i = min(r, n_x - 1);
		int64_t of = a.rows == ROWS_PLAIN       ? row_group * NX + i
					 : a.rows == ROWS_TO_HIDDEN ? t.row[i]
												: t.first + i;
		x[r] = (t.x ? t.x : a.x) + stack * a.x_stack + of * a.x_row;
	}
}

/* Adds the sums of the lanes, then of the warps of the split, and stores the outputs of a block
 * from weight row out_first on. All threads of the block call it: it has a barrier. part_sum:
 * shared. */
template <int NX, bool GLU>
static __device__ __forceinline__ void gemv_store(const struct gemv_args &a,
	const struct gemv_task &t, int lane, int warp, int split, int stack, int row_group,
	int out_first, int n_x, float (&acc)[GLU ? 2 : 1][NX],
	float (&part_sum)[GEMV_WARPS][(GLU ? 2 : 1) * NX])
{
	constexpr int W = GLU ? 2 : 1;
#pragma unroll
	for (int j = 0; j < W; j++)
#pragma unroll
		for (int r = 0; r < NX; r++) {
			float v = warp_sum(acc[j][r]);
			if (lane == (j * NX + r) % 32)
				part_sum[warp][j * NX + r] = v;
		}
	__syncthreads();
	/* one thread per output of the block */
	int i = threadIdx.x, r = i % NX, group = i / NX, o = out_first + group;
	if (group >= GEMV_WARPS / split || r >= n_x || o >= t.n_out)
		return;
	float v = 0, up = 0;
	for (int p = 0; p < split; p++) {
		v = __fadd_rn(v, part_sum[group * split + p][r]);
		if (GLU)
			up = __fadd_rn(up, part_sum[group * split + p][(W - 1) * NX + r]);
	}
	int64_t to = a.rows == ROWS_PLAIN       ? row_group * NX + r
				 : a.rows == ROWS_TO_HIDDEN ? t.first + r
											: t.slot[r];
	float *y = t.y + stack * a.y_stack + to * (a.y_row ? a.y_row : t.n_out) + o;
	*y = GLU ? swiglu_one(v, up) : t.add ? __fadd_rn(*y, v) : v;
}

/* One x row: four blocks per multiprocessor, so that the loads of several routers' weights overlap.
 */
template <int T, int NX, bool GLU>
__global__ void __launch_bounds__(GEMV_WARPS * 32, NX == 1 ? 4 : 1)
	gemv_kernel(const __grid_constant__ struct gemv_args a)
{
	constexpr int W = GLU ? 2 : 1, SUPER_BLOCKS = NX == 1 && !GLU ? 3 : 2;
	__shared__ float part_sum[GEMV_WARPS][W * NX];

	launch_dependents();
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, split = a.split, part = warp % split;
	const struct gemv_task &t = a.task[blockIdx.y / a.n_stack];
	int stack = blockIdx.y % a.n_stack, row_group = blockIdx.x % a.row_groups,
		out_group = blockIdx.x / a.row_groups, out_first = out_group * (GEMV_WARPS / split);
	if (out_first >= t.n_out)
		return;
	int n_x = min(NX, a.rows == ROWS_PLAIN ? a.n_rows - row_group * NX : t.n_x);
	int64_t at = stack * a.stack_bytes + min(out_first + warp / split, t.n_out - 1) * a.row_bytes;
	int n_sb = (a.n_in + 255) / 256;

	/* loads this warp's super-blocks sb, sb + split, ...; zeros past the last */
	typename raw_four<T>::type raw[SUPER_BLOCKS][W][2];
	auto fetch = [&](int sb) {
#pragma unroll
		for (int i = 0; i < SUPER_BLOCKS; i++)
#pragma unroll
			for (int j = 0; j < W; j++)
#pragma unroll
				for (int g = 0; g < 2; g++)
					raw[i][j][g] = load_weights<T>((j ? t.up : t.w) + at,
						(sb + i * split) * 256 + 4 * lane + 128 * g, a.n_in, a.unit);
	};
	fetch(part);

	float acc[W][NX];
#pragma unroll
	for (int j = 0; j < W; j++)
#pragma unroll
		for (int r = 0; r < NX; r++)
			acc[j][r] = 0;
	const float *x[NX];
	gemv_x_rows<NX>(a, t, stack, row_group, n_x, x);
	grid_dependency_wait();
	for (int sb = part; sb < n_sb; sb += SUPER_BLOCKS * split) {
		if (sb > part)
			fetch(sb);
		float xs[SUPER_BLOCKS][2][4]; /* of a single x row: all loads before the first use */
		if (NX == 1)
#pragma unroll
			for (int i = 0; i < SUPER_BLOCKS; i++)
#pragma unroll
				for (int g = 0; g < 2; g++)
					load_x(x[0], (sb + i * split) * 256 + 4 * lane + 128 * g, a.n_in, a.x_aligned,
						xs[i][g]);
#pragma unroll
		for (int i = 0; i < SUPER_BLOCKS; i++)
#pragma unroll
			for (int g = 0; g < 2; g++) {
				int k = (sb + i * split) * 256 + 4 * lane + 128 * g;
				if (k >= a.n_in)
					continue;
				float q[W][4];
#pragma unroll
				for (int j = 0; j < W; j++)
					raw_four<T>::get(raw[i][j][g], q[j]);
#pragma unroll
				for (int r = 0; r < NX; r++) {
					float xv[4];
					if (NX > 1)
						load_x(x[r], k, a.n_in, a.x_aligned, xv);
#pragma unroll
					for (int j = 0; j < W; j++)
#pragma unroll
						for (int e = 0; e < 4; e++)
							acc[j][r] =
								__fmaf_rn(q[j][e], NX == 1 ? xs[i][g][e] : xv[e], acc[j][r]);
				}
			}
	}
	gemv_store<NX, GLU>(a, t, lane, warp, split, stack, row_group, out_first, n_x, acc, part_sum);
}

/* The grid of gemv_kernel and gemv_decoded_kernel; sets a->row_groups. */
template <int NX> static dim3 gemv_float_grid(struct gemv_args *a)
{
	a->row_groups = a->rows == ROWS_PLAIN ? (a->n_rows + NX - 1) / NX : 1;
	int rows = GEMV_WARPS / a->split;
	return dim3((unsigned)(((a->out_most + rows - 1) / rows) * a->row_groups),
		(unsigned)(a->n_tasks * a->n_stack));
}

template <int T, int NX, bool GLU>
static void gemv_float_launch_as(struct cuda_backend *b, const struct gemv_args *given)
{
	struct gemv_args arranged = *given, *a = &arranged;
	int four = T == DTYPE_F32 ? 16 : 8;
	dim3 grid = gemv_float_grid<NX>(a);
	uintptr_t all = (uintptr_t)a->row_bytes | (uintptr_t)a->stack_bytes;
	for (int i = 0; i < a->n_tasks; i++)
		all |= (uintptr_t)a->task[i].w | (GLU ? (uintptr_t)a->task[i].up : 0);
	a->unit = all % four == 0;
	cuda_launch(b, gemv_kernel<T, NX, GLU>, grid, GEMV_WARPS * 32, 0, *a);
}

/* n_x: the most activation rows of a group. */
template <int T>
static void gemv_float_launch(struct cuda_backend *b, const struct gemv_args *a, int n_x)
{
	if (n_x == 1)
		a->glu ? gemv_float_launch_as<T, 1, true>(b, a) : gemv_float_launch_as<T, 1, false>(b, a);
	else
		a->glu ? gemv_float_launch_as<T, GEMV_ROWS, true>(b, a)
			   : gemv_float_launch_as<T, GEMV_ROWS, false>(b, a);
}

/* The launch of a type of this group (gemv_types.cu); NULL: the type is not of the group. */
template <int GROUP> gemv_launcher *gemv_launcher_of_group(enum dtype type);
template <> gemv_launcher *gemv_launcher_of_group<1>(enum dtype type);
template <> gemv_launcher *gemv_launcher_of_group<2>(enum dtype type);
template <> gemv_launcher *gemv_launcher_of_group<3>(enum dtype type);
template <> gemv_launcher *gemv_launcher_of_group<4>(enum dtype type);

/* gemv_decoded.cu: the same for the types of block_decode.cuh. False: not for this type. */
bool gemv_decoded_enqueue(
	struct cuda_backend *b, enum dtype type, const struct gemv_args *a, int n_x);

#endif
