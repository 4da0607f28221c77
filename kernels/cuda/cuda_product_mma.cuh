/* SPDX-License-Identifier: MIT */
/*
 * product_kernel's task, done by the matrix units, for the types that carry most bytes.
 *
 * A float is the exact sum of three bfloat16 (high, middle, low), so a row of x becomes three columns; packed weights are
 * small whole numbers, exact in bfloat16. One m16n8k16 product takes 16 weight rows x 16 weights to 8 columns with
 * float accumulators; scales are applied to the accumulators after each sub-block. Nothing of float32 activations is lost.
 *
 * split_kernel: grid (runs of 256 values, x rows), block 64: the columns in the order that lanes load them, and the sum of
 * each 16 values (for the types with a minimum). mma_kernel: grid and tasks as product_kernel, 16 weight rows a warp.
 *
 *      lane = 4 r + c:  weights 4 c .. 4 c + 3 of a group of 16, of rows r and r + 8 of the tile;
 *                       pairs (0, 2) and (1, 3) fill the k slots 2 c, 2 c + 1 and 2 c + 8, 2 c + 9
 *      columns:         3 x + part, x = activation row of the group (1 or 8), so 1 or 3 tiles of 8
 *
 * Bytes moved: every packed row once per 8 activation rows; x once by split_kernel and as 6 bytes a value per 16 weight rows from
 * the caches. The order of additions depends on the shape of the weight alone: within the matrix unit, over the sub-blocks in order, over the
 * warps of the split in order, high + middle + low.
 */
#ifndef GLM_KERNELS_CUDA_PRODUCT_MMA_CUH
#define GLM_KERNELS_CUDA_PRODUCT_MMA_CUH

#include "kernels/cuda/cuda_product.cuh"

#define MMA_ROWS 16

/* a b + c of bfloat16 pairs: one rounding, and none where the result is a small whole number */
static __device__ __forceinline__ uint32_t bf16_sub(uint32_t a, uint32_t b)
{
	uint32_t d;
	asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(b), "r"(0xbf80bf80u), "r"(a));
	return d;
}

/* fl(d * n) of a whole number below 2^23: the product is exact inside the fma */
static __device__ __forceinline__ float times_small(float d, uint32_t n)
{
	return __fmaf_rn(d, __uint_as_float(0x4b000000u | n), __fmul_rn(d, -8388608.0f));
}

/* What a type is to mma_kernel: PER_SCALE groups of 16 share a scale, OFFSET: sums of x are needed. head(): what is read once per
 * block of a row; pairs(): the weights 4 c .. 4 c + 3 of group g, plus BIAS each; scale(): of sub-block s. */
template <int T> struct mma_type;

template <> struct mma_type<DTYPE_Q8_0> {
	static constexpr int PER_SCALE = 2, STAGES = 2;
	static constexpr bool OFFSET = false, GRID = false;
	struct head {
	};
	static __device__ __forceinline__ void read_head(const uint8_t *, struct head &) {}
	static __device__ __forceinline__ void pairs(
		const uint8_t *p, int g, int c, const uint2 *, uint32_t &a, uint32_t &b)
	{
		uint32_t w = get32(p + g / 2 * 34 + 2 + g % 2 * 16 + 4 * c), v = w >> 8;
		a = bf16_sub((w & 0x007f007fu) | 0x43004300u, (w & 0x00800080u) | 0x43004300u);
		b = bf16_sub((v & 0x007f007fu) | 0x43004300u, (v & 0x00800080u) | 0x43004300u);
	}
	static __device__ __forceinline__ void scale(
		const uint8_t *p, const struct head &, int s, float &factor, float &offset)
	{
		factor = half_float(get16(p + s * 34));
		offset = 0;
	}
};

template <> struct mma_type<DTYPE_Q4_K> {
	static constexpr int PER_SCALE = 2, STAGES = 3;
	static constexpr bool OFFSET = true, GRID = false;
	struct head {
		float d, dmin;
		uint32_t sc[3];
	};
	static __device__ __forceinline__ void read_head(const uint8_t *p, struct head &h)
	{
		const uint32_t *w = (const uint32_t *)p;
		h.d = half_float(w[0] & 0xffff);
		h.dmin = half_float(w[0] >> 16);
		h.sc[0] = w[1], h.sc[1] = w[2], h.sc[2] = w[3];
	}
	/* 16 + nibble: the nibble as the top of the mantissa */
	static __device__ __forceinline__ void pairs(
		const uint8_t *p, int g, int c, const uint2 *, uint32_t &a, uint32_t &b)
	{
		uint32_t w = *(const uint32_t *)(p + 16 + g / 4 * 32 + g % 2 * 16 + 4 * c);
		a = ((g & 2 ? w >> 1 : w << 3) & 0x00780078u) | 0x41804180u;
		b = ((g & 2 ? w >> 9 : w >> 5) & 0x00780078u) | 0x41804180u;
	}
	static __device__ __forceinline__ void scale(
		const uint8_t *, const struct head &h, int k, float &factor, float &offset)
	{
		int at = 8 * (k % 4);
		uint32_t s, m;
		if (k < 4) {
			s = h.sc[0] >> at & 63;
			m = h.sc[1] >> at & 63;
		} else {
			s = (h.sc[2] >> at & 15) | (h.sc[0] >> (at + 2) & 48);
			m = (h.sc[2] >> (at + 4) & 15) | (h.sc[1] >> (at + 2) & 48);
		}
		factor = times_small(h.d, s);
		offset = __fmaf_rn(-16.0f, factor, -times_small(h.dmin, m));
	}
};

template <> struct mma_type<DTYPE_Q2_K> {
	static constexpr int PER_SCALE = 1, STAGES = 4;
	static constexpr bool OFFSET = true, GRID = false;
	struct head {
		float d, dmin;
		uint32_t sc[4];
	};
	static __device__ __forceinline__ void read_head(const uint8_t *p, struct head &h)
	{
		const uint32_t *w = (const uint32_t *)p;
		h.sc[0] = w[0], h.sc[1] = w[1], h.sc[2] = w[2], h.sc[3] = w[3];
		h.d = half_float(w[20] & 0xffff);
		h.dmin = half_float(w[20] >> 16);
	}
	/* 4 + two bits */
	static __device__ __forceinline__ void pairs(
		const uint8_t *p, int g, int c, const uint2 *, uint32_t &a, uint32_t &b)
	{
		uint32_t w = *(const uint32_t *)(p + 16 + g / 8 * 32 + g % 2 * 16 + 4 * c);
		int shift = g % 8 / 2 * 2; /* the two bits go to bits 5 and 6 of each half */
		a = ((shift <= 5 ? w << (5 - shift) : w >> (shift - 5)) & 0x00600060u) | 0x40804080u;
		b = ((w >> (3 + shift)) & 0x00600060u) | 0x40804080u;
	}
	static __device__ __forceinline__ void scale(
		const uint8_t *, const struct head &h, int s, float &factor, float &offset)
	{
		uint32_t w = h.sc[s / 4] >> 8 * (s % 4);
		factor = times_small(h.d, w & 15);
		offset = __fmaf_rn(-4.0f, factor, -times_small(h.dmin, w >> 4 & 15));
	}
};

template <> struct mma_type<DTYPE_IQ2_XXS> {
	static constexpr int PER_SCALE = 2, STAGES = 4;
	static constexpr bool OFFSET = false, GRID = true;
	struct head {
		float d;
	};
	static __device__ __forceinline__ void read_head(const uint8_t *p, struct head &h)
	{
		h.d = __fmul_rn(half_float(get16(p)), 0.125f); /* d (0.5 + n) / 4 = (d / 8) (2 n + 1) */
	}
	static __device__ __forceinline__ void pairs(
		const uint8_t *p, int g, int c, const uint2 *grid, uint32_t &a, uint32_t &b)
	{
		const uint8_t *group = p + 2 + g / 2 * 8;
		int j = g % 2 * 2 + c / 2;
		uint32_t s = get32(group + 4) >> 7 * j & 127;
		s |= (uint32_t)(__popc(s) & 1) << 7;
		s >>= 4 * (c & 1);
		uint2 v = grid[2 * group[j] + (c & 1)];
		a = v.x ^ ((s << 15 | s << 29) & 0x80008000u);
		b = v.y ^ ((s << 14 | s << 28) & 0x80008000u);
	}
	static __device__ __forceinline__ void scale(
		const uint8_t *p, const struct head &h, int k, float &factor, float &offset)
	{
		factor = times_small(h.d, 2 * (get16(p + 2 + 8 * k + 6) >> 12) + 1);
		offset = 0;
	}
};

template <int T> struct mma_shape {
	static constexpr int LINES = (packed<T>::RUN_BYTES + 14 + 15) / 16; /* at most, of one run of a row */
	static constexpr int STRIDE = (LINES | 1) * 16; /* an odd number of lines: rows meet in no bank */
	static constexpr int WARP_BYTES = mma_type<T>::STAGES * MMA_ROWS * STRIDE;
	static constexpr int BYTES = PRODUCT_WARPS * WARP_BYTES + (mma_type<T>::GRID ? 4096 : 0);
};

static __device__ __forceinline__ void mma_16816(float d[4], const uint32_t a[4], uint2 b)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
		"{%0,%1,%2,%3};"
		: "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

template <int T, int NX>
__global__ void __launch_bounds__(PRODUCT_WARPS * 32)
	mma_kernel(const __grid_constant__ struct product_args a)
{
	typedef struct mma_type<T> type;
	constexpr int RUN = packed<T>::RUN_BYTES, LINES = mma_shape<T>::LINES, STRIDE = mma_shape<T>::STRIDE,
				  STAGES = type::STAGES;
	constexpr int TILES = (NX * 3 + 7) / 8, ITEMS = MMA_ROWS * LINES, ROUNDS = (ITEMS + 31) / 32;
	extern __shared__ __align__(16) uint8_t shared[];
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, split = a.split, part = warp % split, c = lane % 4;
	const struct product_task &t = a.task[blockIdx.y / a.n_stack];
	int stack = blockIdx.y % a.n_stack, row_group = blockIdx.x % a.row_groups,
		out_group = blockIdx.x / a.row_groups;
	int w_rows = a.glu ? MMA_ROWS / 2 : MMA_ROWS, out_first = out_group * (PRODUCT_WARPS / split) * w_rows;
	if (out_first >= t.n_out)
		return;
	int n_x = min(NX, a.rows == ROWS_PLAIN ? a.n_rows - row_group * NX : t.n_x);
	int mine = out_first + warp / split * w_rows, runs = (a.n_in + 255) / 256;

	const uint2 *grid = NULL;
	if (type::GRID) {
		uint32_t *to = (uint32_t *)(shared + PRODUCT_WARPS * mma_shape<T>::WARP_BYTES);
		for (int i = threadIdx.x; i < 512; i += PRODUCT_WARPS * 32) {
			uint32_t w = a.tables->iq2xxs[i];
			uint32_t v[4];
			for (int j = 0; j < 4; j++)
				v[j] = __float_as_uint((float)(w >> 8 * j & 255)) >> 16;
			to[2 * i] = v[0] | v[2] << 16;
			to[2 * i + 1] = v[1] | v[3] << 16;
		}
		grid = (const uint2 *)to;
		__syncthreads();
	}

	/* the lines that this lane copies */
	const uint8_t *from[ROUNDS];
#pragma unroll
	for (int i = 0; i < ROUNDS; i++) {
		int item = min(lane + 32 * i, ITEMS - 1), j = item / LINES,
			o = min(mine + (a.glu ? j % 8 : j), t.n_out - 1);
		from[i] = (a.glu && j >= 8 ? t.up : t.w) + stack * a.stack_bytes + o * a.row_bytes;
	}
	uint8_t *stages = shared + warp * mma_shape<T>::WARP_BYTES;
	auto fetch = [&](int run, int stage) {
		if (run < runs) {
			int bytes = (int)min((int64_t)RUN, a.row_bytes - (int64_t)run * RUN);
#pragma unroll
			for (int i = 0; i < ROUNDS; i++) {
				int item = lane + 32 * i, j = item / LINES, line = item % LINES * 16;
				uintptr_t at = (uintptr_t)from[i] + (size_t)run * RUN;
				if (item < ITEMS && line < bytes + (int)(at & 15))
					copy_line(stages + (stage * MMA_ROWS + j) * STRIDE + line,
						(const void *)((at & ~(uintptr_t)15) + line));
			}
		}
		copy_commit();
	};
	/* rows lane / 4 and lane / 4 + 8 of the tile */
	int r0 = lane / 4, o0 = min(mine + r0, t.n_out - 1), o1 = a.glu ? o0 : min(mine + r0 + 8, t.n_out - 1);
	uint32_t low0 = (uint32_t)(uintptr_t)(t.w + stack * a.stack_bytes + o0 * a.row_bytes);
	uint32_t low1 = (uint32_t)(uintptr_t)((a.glu ? t.up : t.w) + stack * a.stack_bytes + o1 * a.row_bytes);

	/* columns: where this lane's part of each tile of B lies, and the sums for its accumulators' columns */
	auto x_row = [&](int i) {
		int64_t at = a.rows == ROWS_PLAIN       ? row_group * NX + i
					 : a.rows == ROWS_TO_HIDDEN ? t.place[i] / a.n_used
												: t.first + i;
		return at * a.n_stack + stack;
	};
	int groups = runs * 16;
	const uint2 *column[TILES];
	const float *sums[TILES][2];
#pragma unroll
	for (int n = 0; n < TILES; n++) {
		/* what the columns behind the last one yield is not used; for a single row they are not even read */
		int col = min(8 * n + lane / 4, 3 * n_x - 1);
		column[n] = a.columns + x_row(col / 3) * groups * 12 + col % 3 * 4 + c;
		if (TILES == 1 && lane / 4 >= 3)
			column[n] = NULL;
#pragma unroll
		for (int e = 0; e < 2; e++) {
			col = 8 * n + 2 * c + e;
			sums[n][e] =
				type::OFFSET && col < 3 * n_x && col % 3 == 0 ? a.sums + x_row(col / 3) * groups : NULL;
		}
	}

	float acc[TILES][4];
#pragma unroll
	for (int n = 0; n < TILES; n++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			acc[n][i] = 0;
#pragma unroll
	for (int s = 0; s < STAGES - 1; s++)
		fetch(part + s * split, s);
	int stage = 0;
	for (int run = part; run < runs; run += split) {
		int ahead = stage + STAGES - 1;
		fetch(run + (STAGES - 1) * split, ahead >= STAGES ? ahead - STAGES : ahead);
		/* one row of x: its columns for the whole run are asked for at once, while the weights are still on their way */
		constexpr bool AHEAD = TILES == 1;
		uint2 next_b[AHEAD ? 16 : 1];
		float4 next_sum[AHEAD && type::OFFSET ? 4 : 1];
		if (AHEAD) {
#pragma unroll
			for (int g = 0; g < 16; g++)
				next_b[g % (AHEAD ? 16 : 1)] =
					column[0] ? __ldg(column[0] + (run * 16 + g) * 12) : make_uint2(0, 0);
			if (type::OFFSET)
#pragma unroll
				for (int g = 0; g < 4; g++)
					next_sum[g % (AHEAD && type::OFFSET ? 4 : 1)] =
						sums[0][0] ? __ldg((const float4 *)(sums[0][0] + run * 16) + g)
								   : make_float4(0, 0, 0, 0);
		}
		copy_wait<STAGES - 1>();
		__syncwarp();
		const uint8_t *p0 = stages + (stage * MMA_ROWS + r0) * STRIDE + ((low0 + (uint32_t)run * RUN) & 15);
		const uint8_t *p1 =
			stages + (stage * MMA_ROWS + r0 + 8) * STRIDE + ((low1 + (uint32_t)run * RUN) & 15);
		struct type::head h0, h1;
		type::read_head(p0, h0);
		type::read_head(p1, h1);
		constexpr int SUBS = 16 / type::PER_SCALE;
#pragma unroll
		for (int s = 0; s < SUBS; s++) {
			if (run * 256 + s * 256 / SUBS >= a.n_in)
				break;
			float dot[TILES][4], sum[TILES][2];
#pragma unroll
			for (int n = 0; n < TILES; n++) {
				dot[n][0] = dot[n][1] = dot[n][2] = dot[n][3] = 0;
				sum[n][0] = sum[n][1] = 0;
			}
#pragma unroll
			for (int i = 0; i < type::PER_SCALE; i++) {
				int g = s * type::PER_SCALE + i;
				uint32_t w[4];
				type::pairs(p0, g, c, grid, w[0], w[2]);
				type::pairs(p1, g, c, grid, w[1], w[3]);
#pragma unroll
				for (int n = 0; n < TILES; n++) {
					uint2 b;
					if (AHEAD)
						b = next_b[g % (AHEAD ? 16 : 1)];
					else
						b = __ldg(column[n] + (run * 16 + g) * 12);
					mma_16816(dot[n], w, b);
					if (type::OFFSET && AHEAD)
						sum[n][0] += ((const float *)next_sum)[g % (AHEAD && type::OFFSET ? 16 : 4)];
					else if (type::OFFSET)
#pragma unroll
						for (int e = 0; e < 2; e++)
							sum[n][e] += sums[n][e] ? __ldg(sums[n][e] + run * 16 + g) : 0;
				}
			}
			float f0, f1, off0, off1;
			type::scale(p0, h0, s, f0, off0);
			type::scale(p1, h1, s, f1, off1);
#pragma unroll
			for (int n = 0; n < TILES; n++)
#pragma unroll
				for (int e = 0; e < 2; e++) {
					acc[n][e] = __fmaf_rn(f0, dot[n][e], acc[n][e]);
					acc[n][2 + e] = __fmaf_rn(f1, dot[n][2 + e], acc[n][2 + e]);
					if (type::OFFSET && !(AHEAD && e)) { /* of one row, only the first column */
						acc[n][e] = __fmaf_rn(off0, sum[n][e], acc[n][e]);
						acc[n][2 + e] = __fmaf_rn(off1, sum[n][e], acc[n][2 + e]);
					}
				}
		}
		__syncwarp(); /* the stage may be overwritten */
		stage = stage + 1 == STAGES ? 0 : stage + 1;
	}
	copy_wait<0>();
	__syncthreads();               /* the stages become the place where warps meet */
	float *meet = (float *)shared; /* [warp][MMA_ROWS][TILES * 8] */
#pragma unroll
	for (int n = 0; n < TILES; n++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			meet[(warp * MMA_ROWS + r0 + i / 2 * 8) * (TILES * 8) + 8 * n + 2 * c + i % 2] = acc[n][i];
	__syncthreads();
	for (int i = threadIdx.x; i < PRODUCT_WARPS / split * w_rows * NX; i += blockDim.x) {
		int r = i % NX, j = i / NX % w_rows, group = i / NX / w_rows, o = out_first + group * w_rows + j;
		if (r >= n_x || o >= t.n_out)
			continue;
		float v[2] = {0, 0};
		for (int p = 0; p < split; p++)
			for (int half = 0; half <= (int)a.glu; half++) {
				const float *m = meet + ((group * split + p) * MMA_ROWS + j + 8 * half) * (TILES * 8) + 3 * r;
				v[half] = __fadd_rn(v[half], __fadd_rn(__fadd_rn(m[0], m[1]), m[2]));
			}
		int64_t at = a.rows == ROWS_PLAIN       ? row_group * NX + r
					 : a.rows == ROWS_TO_HIDDEN ? t.first + r
												: t.place[r];
		float *y = t.y + stack * a.y_stack + at * a.y_row + o;
		*y = a.glu ? swiglu_one(v[0], v[1]) : t.add ? __fadd_rn(*y, v[0]) : v[0];
	}
}

template <int T, int NX> static void mma_launch_as(struct cuda_backend *b, const struct product_args *a)
{
	const size_t meet = sizeof(float) * PRODUCT_WARPS * MMA_ROWS * ((NX * 3 + 7) / 8) * 8;
	const size_t bytes = (size_t)mma_shape<T>::BYTES > meet ? (size_t)mma_shape<T>::BYTES : meet;
	static size_t allowed;
	if (!cuda_allow_shared(b, (const void *)mma_kernel<T, NX>, bytes, &allowed))
		return;
	int rows = PRODUCT_WARPS / a->split * (a->glu ? MMA_ROWS / 2 : MMA_ROWS);
	dim3 grid(
		(unsigned)(((a->out_most + rows - 1) / rows) * a->row_groups), (unsigned)(a->n_tasks * a->n_stack));
	mma_kernel<T, NX><<<grid, PRODUCT_WARPS * 32, bytes, b->stream>>>(*a);
	cuda_launched(b);
}

template <int T> static void mma_launch_type(struct cuda_backend *b, const struct product_args *a, int n_x)
{
	if (n_x == 1)
		mma_launch_as<T, 1>(b, a);
	else
		mma_launch_as<T, PRODUCT_ROWS>(b, a);
}

#endif
