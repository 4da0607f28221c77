/* SPDX-License-Identifier: MIT */
/*
 * Weight rows times float rows, what is under matmul, stacked_matmul and expert_ffn: the tasks of both kernels, and
 * product_kernel for weights that are floats. Packed weights: cuda_product_mma.cuh.
 *
 * Grid: x = groups of activation rows (fastest, so that weights stay in the second-level cache) times groups of weight rows,
 * y = tasks times matrices of a stack. Block: 8 warps. `split` of them share W weight rows: warp p of them takes the runs
 * p, p + split, ... of 256 weights. A run of each of the W rows is copied to shared memory as it lies (cp.async, whole 16-byte
 * lines, STAGES runs ahead), then each lane takes 8 weights of it to NX activation rows.
 *
 * Bytes moved per call: every packed row once per group of NX activation rows (from the second-level cache after the first),
 * the activation rows once per weight row group from the first-level cache, the outputs.
 *
 * The order of additions of one output: per lane over its weights in run order; the 32 lanes by butterfly; the warps of the
 * split in order. It depends on the shape of the weight alone, so a row's numbers do not depend on how many rows there are.
 */
#ifndef GLM_KERNELS_CUDA_PRODUCT_CUH
#define GLM_KERNELS_CUDA_PRODUCT_CUH

#include "kernels/cuda/block_dot.cuh"

#define PRODUCT_WARPS 8
#define PRODUCT_W     2 /* weight rows of a warp */
#define PRODUCT_ROWS  8 /* most activation rows of a warp */
#define PRODUCT_TASKS 32

/* How activation and output rows are numbered. */
enum product_rows {
	ROWS_PLAIN,     /* i -> i, of all activation rows */
	ROWS_TO_HIDDEN, /* task's place i: x row row[i], y row first + i */
	ROWS_TO_PLACES, /* x row first + i, y row place */
};

struct product_task {
	const uint8_t *w;
	const uint8_t *up; /* gate and up at once: y = silu(w x) * (up x); else NULL */
	float *y;
	int n_out;
	bool add;
	int n_x; /* with places: at most PRODUCT_ROWS */
	int first;
	int32_t place[PRODUCT_ROWS], row[PRODUCT_ROWS]; /* row: of x, place / n_used */
};

struct product_args {
	struct product_task task[PRODUCT_TASKS]; /* of one type, n_in and row_bytes */
	const struct cuda_tables *tables;
	const float *x;
	const uint2 *digits; /* x for mma_kernel, see cuda_product_digits; NULL: it makes them itself */
	const float *scales;
	int own_rows;                /* of x that it makes itself */
	int item_end[PRODUCT_TASKS]; /* of mma_kernel: see there */
	int unit;                    /* bytes that mma_kernel may copy at once: 16, 4 or 2 */
	int64_t x_row, y_row;        /* floats between rows */
	int64_t x_stack, y_stack;    /* floats between matrices of a stack */
	int64_t row_bytes, stack_bytes;
	int n_in, n_tasks, n_stack, n_rows; /* n_rows: ROWS_PLAIN */
	int split, row_groups, out_most;    /* out_most: the largest n_out */
	enum product_rows rows;
	bool glu, x_aligned; /* x_aligned: every x row begins at a multiple of 16 bytes and n_in is one of 4 */
};

/* How a type wants x: as it is, or as digits with the weights of a step of 32 dealt to lanes in one of two ways. */
enum product_layout { LAYOUT_FLOATS, LAYOUT_EIGHTS, LAYOUT_QUADS };

enum product_layout cuda_product_layout(enum dtype type);

/* Whether mma_kernel makes the digits of x itself: n_x is the most rows of x of a task. Codebooks leave it less room. */
static inline bool cuda_product_own(const struct cuda_backend *b, enum dtype type, int n_x, int64_t n_in)
{
	int64_t values = n_x * ((n_in + 255) / 256 * 256);
	return n_x <= 2 && b->max_shared > 200 << 10 && values <= (type == DTYPE_IQ2_XXS ? 6144 : 12288);
}

/* How many warps share a weight row. Depends on the weight's type and shape alone; rows: of all matrices of this shape that come
 * together in decode. */
int cuda_product_split(enum dtype type, int64_t n_in, int64_t rows);

/* Sets a->digits and a->scales: all x rows, n_x per matrix of a stack, in scratch memory that the next such call uses again. */
bool cuda_product_digits(
	struct cuda_backend *b, struct product_args *a, int64_t n_x, enum product_layout layout);

/* Gives *a the digits of x that its type wants, those of *last if they will do; none if the kernel makes them itself. n_x: rows
 * of x; most: of a task. */
bool cuda_product_with_digits(struct cuda_backend *b, struct product_args *a, enum dtype type, int64_t n_x,
	int most, struct product_args *last, enum product_layout *last_layout);

/* Enqueues a->task[0 .. n_tasks) of the given type; sets what follows from the rest (groups, alignment). The digits of x are
 * there if the type's layout asks for them and cuda_product_own is false. */
bool cuda_product(struct cuda_backend *b, enum dtype type, struct product_args *a);

typedef void product_launch(struct cuda_backend *b, const struct product_args *a, int n_x);

static __device__ __forceinline__ void copy_line(void *shared, const void *global)
{
	asm volatile(
		"cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
		"l"(global));
}

static __device__ __forceinline__ void copy_commit()
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int LEFT> static __device__ __forceinline__ void copy_wait()
{
	asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

template <int T> struct product_shape {
	static constexpr int W = PRODUCT_W;
	static constexpr int STAGE_BYTES = (packed<T>::RUN_BYTES + 15) / 16 * 16 + 16; /* of one row: its lines */
	static constexpr int STAGES = 4; /* within the 99 KiB a block has on the smaller cards */
	static constexpr int WARP_BYTES = STAGES * W * STAGE_BYTES;
	static constexpr int BYTES = PRODUCT_WARPS * WARP_BYTES;
};

/* x[0 .. 4) at weight k, zeros past n_in */
static __device__ __forceinline__ void load_x(const float *x, int k, int n_in, bool aligned, float v[4])
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

template <int T, int NX>
__global__ void __launch_bounds__(PRODUCT_WARPS * 32)
	product_kernel(const __grid_constant__ struct product_args a)
{
	constexpr int W = product_shape<T>::W, RUN = packed<T>::RUN_BYTES, STAGE = product_shape<T>::STAGE_BYTES,
				  STAGES = product_shape<T>::STAGES;
	extern __shared__ __align__(16) uint8_t shared[];
	__shared__ float part_sum[PRODUCT_WARPS][W * NX];

	grid_let_next();
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, split = a.split, part = warp % split;
	const struct product_task &t = a.task[blockIdx.y / a.n_stack];
	int stack = blockIdx.y % a.n_stack, row_group = blockIdx.x % a.row_groups,
		out_group = blockIdx.x / a.row_groups;
	int w_rows = a.glu ? W / 2 : W, out_first = out_group * (PRODUCT_WARPS / split) * w_rows;
	if (out_first >= t.n_out)
		return;
	int n_x = min(NX, a.rows == ROWS_PLAIN ? a.n_rows - row_group * NX : t.n_x);
	int mine = out_first + warp / split * w_rows;

	const uint8_t *row[W];
#pragma unroll
	for (int j = 0; j < W; j++) {
		int o = min(mine + (a.glu ? j % (W / 2) : j), t.n_out - 1);
		row[j] = (a.glu && j >= W / 2 ? t.up : t.w) + stack * a.stack_bytes + o * a.row_bytes;
	}
	const float *x[NX];
#pragma unroll
	for (int r = 0; r < NX; r++) {
		int i = min(r, n_x - 1);
		int64_t at = a.rows == ROWS_PLAIN       ? row_group * NX + i
					 : a.rows == ROWS_TO_HIDDEN ? t.row[i]
												: t.first + i;
		x[r] = a.x + stack * a.x_stack + at * a.x_row;
	}

	int runs = (a.n_in + 255) / 256;
	uint8_t *stages = shared + warp * product_shape<T>::WARP_BYTES;
	auto fetch = [&](int run, int stage) {
		if (run < runs) {
			int bytes = (int)min((int64_t)RUN, a.row_bytes - (int64_t)run * RUN);
#pragma unroll
			for (int j = 0; j < W; j++) {
				uintptr_t at = (uintptr_t)row[j] + (size_t)run * RUN;
				int lines = bytes + (int)(at & 15);
				for (int i = lane * 16; i < lines; i += 512)
					copy_line(
						stages + (stage * W + j) * STAGE + i, (const void *)((at & ~(uintptr_t)15) + i));
			}
		}
		copy_commit();
	};

	float acc[W][NX];
#pragma unroll
	for (int j = 0; j < W; j++)
#pragma unroll
		for (int r = 0; r < NX; r++)
			acc[j][r] = 0;
#pragma unroll
	for (int s = 0; s < STAGES - 1; s++)
		fetch(part + s * split, s);
	grid_wait_before();
	int stage = 0;
	for (int run = part; run < runs; run += split) {
		int ahead = stage + STAGES - 1;
		fetch(run + (STAGES - 1) * split, ahead >= STAGES ? ahead - STAGES : ahead);
		copy_wait<STAGES - 1>();
		__syncwarp();
#pragma unroll
		for (int g = 0; g < 2; g++) {
			int v = 4 * lane + 128 * g, k = run * 256 + v;
			if (k < a.n_in) {
				float q[W][4], factor, offset;
#pragma unroll
				for (int j = 0; j < W; j++) {
					const uint8_t *p =
						stages + (stage * W + j) * STAGE + (((uintptr_t)row[j] + (size_t)run * RUN) & 15);
					packed<T>::get(p, v, a.tables, q[j], factor, offset);
					if (k + 4 > a.n_in) /* what follows the row may be anything */
						for (int i = 1; i < 4; i++)
							q[j][i] = k + i < a.n_in ? q[j][i] : 0;
				}
#pragma unroll
				for (int r = 0; r < NX; r++) {
					float xv[4];
					load_x(x[r], k, a.n_in, a.x_aligned, xv);
#pragma unroll
					for (int j = 0; j < W; j++)
#pragma unroll
						for (int i = 0; i < 4; i++)
							acc[j][r] = __fmaf_rn(q[j][i], xv[i], acc[j][r]);
				}
			}
		}
		__syncwarp(); /* the stage may be overwritten */
		stage = stage + 1 == STAGES ? 0 : stage + 1;
	}
	copy_wait<0>();

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
	for (int i = threadIdx.x; i < PRODUCT_WARPS / split * w_rows * NX; i += blockDim.x) {
		int r = i % NX, j = i / NX % w_rows, group = i / NX / w_rows, o = out_first + group * w_rows + j;
		if (r >= n_x || o >= t.n_out)
			continue;
		float v = 0, up = 0;
		for (int p = 0; p < split; p++) {
			v = __fadd_rn(v, part_sum[group * split + p][j * NX + r]);
			if (a.glu)
				up = __fadd_rn(up, part_sum[group * split + p][(j + W / 2) * NX + r]);
		}
		int64_t at = a.rows == ROWS_PLAIN       ? row_group * NX + r
					 : a.rows == ROWS_TO_HIDDEN ? t.first + r
												: t.place[r];
		float *y = t.y + stack * a.y_stack + at * a.y_row + o;
		*y = a.glu ? swiglu_one(v, up) : t.add ? __fadd_rn(*y, v) : v;
	}
}

template <int T, int NX>
static void product_launch_as(struct cuda_backend *b, const struct product_args *given)
{
	struct product_args arranged = *given, *a = &arranged;
	int runs = (a->n_in + 255) / 256;
	a->split = runs >= 16  ? 8
			   : runs >= 8 ? 4
			   : runs >= 4 ? 2
						   : 1; /* depends on the shape of the weight alone */
	a->row_groups = a->rows == ROWS_PLAIN ? (a->n_rows + NX - 1) / NX : 1;
	const int bytes = product_shape<T>::BYTES;
	static size_t allowed;
	if (!cuda_allow_shared(b, (const void *)product_kernel<T, NX>, bytes, &allowed))
		return;
	int rows = PRODUCT_WARPS / a->split * (a->glu ? PRODUCT_W / 2 : PRODUCT_W);
	dim3 grid(
		(unsigned)(((a->out_most + rows - 1) / rows) * a->row_groups), (unsigned)(a->n_tasks * a->n_stack));
	cuda_launch(b, product_kernel<T, NX>, grid, PRODUCT_WARPS * 32, (size_t)bytes, *a);
}

/* n_x: the most activation rows of a group. */
template <int T>
static void product_launch_type(struct cuda_backend *b, const struct product_args *a, int n_x)
{
	if (n_x == 1)
		product_launch_as<T, 1>(b, a);
	else
		product_launch_as<T, PRODUCT_ROWS>(b, a);
}

product_launch *cuda_product_a(enum dtype type), *cuda_product_b(enum dtype type),
	*cuda_product_c(enum dtype type), *cuda_product_d(enum dtype type);

#endif
