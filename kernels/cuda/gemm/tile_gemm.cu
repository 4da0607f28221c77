/* SPDX-License-Identifier: MIT */
/*
 * tile_gemm_kernel: grid (multiprocessors), block 384, persistent: a block takes every gridDim-th
 * pair of an x tile and 128 weight rows. Four warps produce, eight consume. A stage has 64 values
 * of the inner dimension:
 *
 *      a   [128 weight rows][128 bytes], decoded by the producers, a warp 32 rows
 *      x   [N rows][128 bytes], by one bulk copy
 *
 * in lines of 128 bytes with swizzled pieces, from which wgmma multiplies. N is the smallest of 64,
 * 128, 192 and 256 that holds the tile. A producing warp loads the packed blocks of its rows two
 * super-blocks ahead (cp.async). Before a tile it reads the factors of its rows, for their scale.
 *
 * split_kernel: grid (x rows), block 256: a row's largest value, then its halves.
 *
 * Bytes moved: packed weights once per 256 x rows, x once per 128 weight rows, mostly from the L2
 * cache; outputs once.
 */
#include "kernels/cuda/gemm/tile_gemm.cuh"

#include "kernels/cuda/common/block_bytes.cuh"
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/wgmma_tiles.cuh"

#define STAGES    3
#define PRODUCERS 128
#define CONSUMERS 256
#define THREADS   (PRODUCERS + CONSUMERS)
#define A_BYTES   (GEMM_M * 128)
#define X_BYTES   (TILE_ROWS * 128)
#define STAGE     (A_BYTES + X_BYTES)

/* ---- weights ---- */

/* The largest |byte * scale| and `least` of a type: weights of a super-block are at most
 * |unit| * MOST + |minimum| * LEAST_MOST. Products byte * scale are whole numbers below 2048: exact
 * as halves. */
template <int T> struct tile_type;
#define TILE_TYPES(X)                                                                              \
	X(IQ2_XXS, 43 * 31, 0, false)                                                                  \
	X(IQ2_XS, 43 * 31, 0, false)                                                                   \
	X(IQ2_S, 43 * 31, 0, false)                                                                    \
	X(IQ3_XXS, 62 * 31, 0, false)                                                                  \
	X(IQ3_S, 15 * 31, 0, false)                                                                    \
	X(Q2_K, 3 * 15, 15, true)                                                                      \
	X(Q3_K, 4 * 32, 0, false)                                                                      \
	X(Q4_K, 15 * 63, 63, true)                                                                     \
	X(Q5_K, 31 * 63, 63, true)
#define TILE_TYPE(name, most, least_most, is_unsigned)                                             \
	template <> struct tile_type<DTYPE_##name> {                                                   \
		static constexpr int MOST = most, LEAST_MOST = least_most;                                 \
		static constexpr bool UNSIGNED = is_unsigned;                                              \
		static_assert(most <= 2048, "whole numbers that are exact as halves");                     \
	};
TILE_TYPES(TILE_TYPE)
TILE_TYPE(Q8_0, 128, 0, false)
#undef TILE_TYPE

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <bool LEAST> struct tile_minimum {
	template <typename type>
	static __device__ __forceinline__ float of(const typename type::head &, int)
	{
		return 0;
	}
	template <typename head> static __device__ __forceinline__ float factor(const head &)
	{
		return 0;
	}
};
template <> struct tile_minimum<true> {
	template <typename type>
	static __device__ __forceinline__ float of(const typename type::head &h, int s)
	{
		return (float)(type::least(h, s) & 255);
	}
	template <typename head> static __device__ __forceinline__ float factor(const head &h)
	{
		return h.minimum;
	}
};

template <typename type, enum scale_kind KIND> struct tile_scale;
template <typename type> struct tile_scale<type, SCALE_STEP> {
	static __device__ __forceinline__ __half2 by(
		const uint8_t *p, const typename type::head &h, int s, int)
	{
		return __half2half2(__int2half_rn(type::scale(p, h, s)));
	}
};
template <typename type> struct tile_scale<type, SCALE_HALF> {
	static __device__ __forceinline__ __half2 by(
		const uint8_t *p, const typename type::head &h, int s, int c)
	{
		return __half2half2(__int2half_rn(type::scale(p, h, s, c / 2)));
	}
};
template <typename type> struct tile_scale<type, SCALE_NONE> {
	static __device__ __forceinline__ __half2 by(
		const uint8_t *, const typename type::head &, int, int)
	{
		return __float2half2_rn(1);
	}
};

/* A float for each step: unit has it. */
template <typename type> struct tile_scale<type, SCALE_FLOAT> : tile_scale<type, SCALE_NONE> {
};

/* The factor of a super-block, or of a step. */
template <typename type, bool FLOAT> struct tile_unit {
	static __device__ __forceinline__ float of(const uint8_t *, const typename type::head &h, int)
	{
		return h.unit;
	}
};
template <typename type> struct tile_unit<type, true> {
	static __device__ __forceinline__ float of(
		const uint8_t *p, const typename type::head &h, int s)
	{
		return type::scale(p, h, s);
	}
};

/* Eight weights of step s, 8 c to 8 c + 7 (QUADS: 4 c to 4 c + 3 and 16 + 4 c to 16 + 4 c + 3),
 * times `by` (a power of two), as halves. */
template <int T>
static __device__ __forceinline__ uint4 tile_weights(const uint8_t *p,
	typename bytes_type<T>::head &h, int s, int c, const struct lane_tables &tables, float by)
{
	typedef struct bytes_type<T> type;
	constexpr bool UNSIGNED = tile_type<T>::UNSIGNED;
	uint32_t w[2], out[4];
	type::bytes(p, h, (int)((uint32_t)(uintptr_t)p & 7) / 2, s, c, tables, w[0], w[1]);
	if (!UNSIGNED)
		w[0] ^= 0x80808080u, w[1] ^= 0x80808080u;
	/* prmt makes 1024 + byte, of signed bytes with the top bit flipped 1024 + 128 + byte */
	__half2 scale = tile_scale<type, type::SCALE>::by(p, h, s, c),
			zero = __half2half2(__ushort_as_half(UNSIGNED ? 0x6400 : 0x6480));
	float unit = __fmul_rn(tile_unit<type, type::SCALE == SCALE_FLOAT>::of(p, h, s), by),
		  minimum = __fmul_rn(__fmul_rn(tile_minimum<type::LEAST>::factor(h), by),
			  tile_minimum<type::LEAST>::template of<type>(h, s));
#pragma unroll
	for (int i = 0; i < 4; i++) {
		uint32_t raw = __byte_perm(w[i / 2], 0x64646464u, i % 2 ? 0x4342 : 0x4140);
		__half2 v = __hmul2(__hsub2(*(__half2 *)&raw, zero), scale); /* exact */
		if (type::LEAST) {
			float2 f = __half22float2(v);
			v = __floats2half2_rn(__fmaf_rn(unit, f.x, -minimum), __fmaf_rn(unit, f.y, -minimum));
		} else
			v = __hmul2(v, __float2half2_rn(unit));
		out[i] = *(uint32_t *)&v;
	}
	return make_uint4(out[0], out[1], out[2], out[3]);
}

#endif

/* ---- the product ---- */

#define TILES_BESIDE 8

struct tile_args {
	struct grouped_gemm_args g;
	const float *row_factors;
	int step; /* x rows of a tile, where there is no list */
};

template <int T> struct tile_shape {
	/* a unit is what a producer loads at a time: a super-block, or half of one where it is large */
	static constexpr int UNIT = bytes_type<T>::SCALE == SCALE_FLOAT ? 128 : 256,
						 SB_BYTES = packed<T>::SUPER_BLOCK_BYTES * UNIT / 256,
						 LINES = (SB_BYTES + 14 + 15) / 16,
						 STRIDE = (LINES | 1) * 16; /* of a row's super-block in shared memory */
	static constexpr int AT_PACKED = STAGES * STAGE, PACKED = 32 * STRIDE, /* of a warp */
		AT_TABLES = AT_PACKED + 2 * 4 * PACKED,
						 AT_SCALES = AT_TABLES + (bytes_type<T>::TABLES ? 384 * 128 : 0),
						 AT_BARRIERS = AT_SCALES + 2 * GEMM_M * 4,
						 BYTES = 1024 + AT_BARRIERS + 2 * STAGES * 8;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* What both kinds of warps know of a tile. */
struct tile_place {
	struct grouped_gemm_tile tile;
	int m0; /* its first weight row */
};

/* Without a list TILES_BESIDE tiles of x take turns with the same weights, which the L2 cache then
 * holds. */
static __device__ __forceinline__ struct tile_place tile_at(
	const struct tile_args &a, int i, int across)
{
	const struct grouped_gemm_args &g = a.g;
	struct tile_place p;
	if (g.tiles) {
		p.tile = g.tiles[i / across];
		p.m0 = i % across * GEMM_M;
		return p;
	}
	int group = i / (across * TILES_BESIDE), first = group * TILES_BESIDE,
		beside = min(TILES_BESIDE, g.n_tiles - first), in_group = i - first * across;
	p.m0 = in_group / beside * GEMM_M;
	p.tile.w = g.w;
	p.tile.x_first = (first + in_group % beside) * a.step;
	p.tile.n_x = min(a.step, g.n_x - p.tile.x_first);
	p.tile.y_first = 0;
	return p;
}

/* One producing warp: 32 weight rows. */
template <int T> struct tile_producer {
	typedef struct tile_shape<T> shape;
	typedef struct bytes_type<T> type;
	const struct grouped_gemm_args &g;
	const float *row_factors; /* [n_out], SCALE_FLOAT only: their blocks are too many to look at */
	uint8_t *shared;
	uint32_t base, full, empty;
	int warp, lane, stage, round; /* round: how often the stages have been used */

	/* The power of two by which a row is multiplied. */
	__device__ __forceinline__ float row_factor(const uint8_t *row, int number) const
	{
		if constexpr (type::SCALE == SCALE_FLOAT)
			return row_factors[number];
		else {
			float most = 0;
#pragma unroll 8
			for (int sb = 0; sb < g.x.n_in / 256; sb++) {
				typename type::head h;
				type::read_head(row + sb * shape::SB_BYTES, 0, g.tables, h);
				most = fmaxf(most,
					fmaf(fabsf(h.unit), tile_type<T>::MOST,
						fabsf(tile_minimum<type::LEAST>::factor(h)) * tile_type<T>::LEAST_MOST));
			}
			return power_of_two(half_exponent(most));
		}
	}

	/* Eight weights of half h of a line. */
	__device__ __forceinline__ void store_weights(uint8_t *line, int h, int c, uint4 v) const
	{
		if (!type::QUADS) {
			*(uint4 *)(line + ((4 * h + c ^ lane % 8) << 4)) = v;
			return;
		}
		*(uint2 *)(line + ((4 * h + c / 2 ^ lane % 8) << 4) + c % 2 * 8) = make_uint2(v.x, v.y);
		*(uint2 *)(line + ((4 * h + 2 + c / 2 ^ lane % 8) << 4) + c % 2 * 8) = make_uint2(v.z, v.w);
	}

	__device__ __forceinline__ void run(const struct tile_place &at, int turn)
	{
		int c = lane / 8, n_sb = g.x.n_in / shape::UNIT, last_row = g.n_out - 1,
			bytes_x = (at.tile.n_x + 63) / 64 * 64 * 128;
		auto row_at = [&](int r) { /* rows past the last repeat it; they are not stored */
			return at.tile.w + (int64_t)min(at.m0 + 32 * warp + r, last_row) * g.row_bytes;
		};
		uint8_t *own = shared + shape::AT_PACKED + warp * 2 * shape::PACKED;
		auto fetch = [&](int sb) {
			if (sb < n_sb)
#pragma unroll
				for (int j = 0; j < shape::LINES; j++) {
					int i = lane + 32 * j, r = i / shape::LINES, line = i % shape::LINES * 16;
					uintptr_t from = (uintptr_t)row_at(r) + (uint32_t)(sb * shape::SB_BYTES);
					if (line < shape::SB_BYTES + (int)(from & 15))
						async_copy(shared_address(own) + (sb & 1) * shape::PACKED +
									   r * shape::STRIDE + line,
							(const void *)((from & ~(uintptr_t)15) + line));
				}
			async_commit();
		};
		fetch(0);
		fetch(1);
		float factor = row_factor(row_at(lane), min(at.m0 + 32 * warp + lane, last_row)), by[4];
		((float *)(shared + shape::AT_SCALES))[turn * GEMM_M + 32 * warp + lane] =
			__fdiv_rn(1, factor);
		uint32_t low[4];
#pragma unroll
		for (int j = 0; j < 4; j++) {
			by[j] = __shfl_sync(0xffffffffu, factor, 8 * j + lane % 8);
			low[j] = (uint32_t)(uintptr_t)row_at(8 * j + lane % 8);
		}
		struct lane_tables tables;
		tables.base = shared + shape::AT_TABLES;
		tables.lane = 4 * lane;
		const uint8_t *from_x = (const uint8_t *)g.x.x + (int64_t)at.tile.x_first * 128;
		for (int sb = 0; sb < n_sb; sb++) {
			const uint8_t *p[4];
			typename type::head head[4];
			async_wait<1>();
			__syncwarp();
#pragma unroll
			for (int j = 0; j < 4; j++) {
				p[j] = own + (sb & 1) * shape::PACKED + (8 * j + lane % 8) * shape::STRIDE +
					   (low[j] + (uint32_t)(sb * shape::SB_BYTES) & 15);
				type::read_head(p[j], c, g.tables, head[j]);
			}
#pragma unroll
			for (int k = 0; k < shape::UNIT / 64; k++) {
				if (round)
					mbarrier_wait(empty + 8 * stage, (round & 1) ^ 1);
				if (!warp && !lane) {
					mbarrier_expect(full + 8 * stage, bytes_x);
					bulk_copy(base + stage * STAGE + A_BYTES,
						from_x + (int64_t)(shape::UNIT / 64 * sb + k) * g.x.pad * 128, bytes_x,
						full + 8 * stage);
				}
				uint8_t *a = shared + stage * STAGE + (32 * warp + lane % 8) * 128;
#pragma unroll
				for (int j = 0; j < 4; j++)
#pragma unroll
					for (int h = 0; h < 2; h++)
						store_weights(a + j * 8 * 128, h, c,
							tile_weights<T>(p[j], head[j], 2 * k + h, c, tables, by[j]));
				wgmma_fence_shared();
				mbarrier_arrive_warp(full + 8 * stage, lane);
				if (++stage == STAGES)
					stage = 0, round++;
			}
			__syncwarp();
			fetch(sb + 2);
		}
		async_wait<0>();
	}
};

/* A consuming warp: 16 of the 64 weight rows of its group, N x rows. */
struct tile_consumer {
	const struct grouped_gemm_args &g;
	const float *scales; /* [2][GEMM_M] */
	uint32_t base, full, empty;
	int group, warp, lane, stage, parity;

	template <int N> __device__ __forceinline__ void run(const struct tile_place &at, int turn)
	{
		float d[N / 2];
		int steps = g.x.n_in / 64, before = 0;
#pragma unroll
		for (int i = 0; i < N / 2; i++)
			d[i] = 0;
		for (int k = 0; k < steps; k++) {
			uint32_t a = base + stage * STAGE;
			uint64_t lines_a = wgmma_desc_128(a + group * 64 * 128),
					 lines_x = wgmma_desc_128(a + A_BYTES);
			mbarrier_wait(full + 8 * stage, parity);
			wgmma_fence();
#pragma unroll
			for (int i = 0; i < 4; i++)
				wgmma_tiles<N>(d, lines_a + 2 * i, lines_x + 2 * i, k || i);
			wgmma_commit();
			if (k) { /* the step before is done */
				wgmma_wait<1>();
				if (!lane)
					mbarrier_arrive(empty + 8 * before);
			}
			before = stage;
			if (++stage == STAGES)
				stage = 0, parity ^= 1;
		}
		wgmma_wait<0>();
		wgmma_keep_registers(d);
		if (!lane)
			mbarrier_arrive(empty + 8 * before);
		store(d, at, turn);
	}

	template <int HALF_N>
	__device__ __forceinline__ void store(
		const float (&d)[HALF_N], const struct tile_place &at, int turn)
	{
		int o = 64 * group + 16 * warp + lane / 4, c = lane % 4;
		float by[2] = {scales[turn * GEMM_M + o], scales[turn * GEMM_M + o + 8]};
		float *y = g.y + at.tile.y_first + at.m0 + o;
		bool kept[2] = {at.m0 + o < g.n_out, at.m0 + o + 8 < g.n_out};
#pragma unroll
		for (int n = 0; n < HALF_N / 4; n++)
#pragma unroll
			for (int e = 0; e < 2; e++) {
				int i = n * 8 + 2 * c + e;
				if (i >= at.tile.n_x)
					continue;
				int64_t row = at.tile.x_first + i;
				float unscale = g.x.unscale[row],
					  *to = y + (g.y_map ? g.y_map[row] : row) * g.y_row;
#pragma unroll
				for (int j = 0; j < 2; j++)
					if (kept[j]) {
						float v = __fmul_rn(__fmul_rn(d[4 * n + 2 * j + e], unscale), by[j]);
						to[8 * j] = g.add ? __fadd_rn(to[8 * j], v) : v;
					}
			}
	}
};

#endif

template <int T>
static __global__ void __launch_bounds__(THREADS, 1)
	tile_gemm_kernel(const __grid_constant__ struct tile_args args)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
	const struct grouped_gemm_args &g = args.g;
	typedef struct tile_shape<T> shape;
	static_assert(shape::BYTES <= 232448, "shared memory of a block on compute capability 9.0");
	extern __shared__ uint8_t shared_begin[];
	uint32_t begin = shared_address(shared_begin), base = (begin + 1023) & ~1023u;
	uint8_t *shared = shared_begin + (base - begin);
	uint32_t full = base + shape::AT_BARRIERS, empty = full + 8 * STAGES;
	int warp = threadIdx.x / 32, lane = threadIdx.x % 32, across = (g.n_out + GEMM_M - 1) / GEMM_M,
		n = g.n_tiles * across;
	if (bytes_type<T>::TABLES)
		lane_tables_fill(shared + shape::AT_TABLES, g.tables, THREADS);
	if (!threadIdx.x) {
		for (int i = 0; i < STAGES; i++) {
			mbarrier_init(full + 8 * i, 4 * WARP_ARRIVES + 1); /* producers, the bulk copy */
			mbarrier_init(empty + 8 * i, CONSUMERS / 32);
		}
		mbarrier_init_fence();
	}
	__syncthreads();
	if (warp >= CONSUMERS / 32) {
		struct tile_producer<T> p = {
			g, args.row_factors, shared, base, full, empty, warp - CONSUMERS / 32, lane, 0, 0
		};
		for (int i = blockIdx.x, turn = 0; i < n; i += gridDim.x, turn ^= 1)
			p.run(tile_at(args, i, across), turn);
		return;
	}
	struct tile_consumer c = {g, (const float *)(shared + shape::AT_SCALES), base, full, empty,
		warp / 4, warp % 4, lane, 0, 0};
	for (int i = blockIdx.x, turn = 0; i < n; i += gridDim.x, turn ^= 1) {
		struct tile_place at = tile_at(args, i, across);
		if (at.tile.n_x <= 64)
			c.run<64>(at, turn);
		else if (at.tile.n_x <= 128)
			c.run<128>(at, turn);
		else if (at.tile.n_x <= 192)
			c.run<192>(at, turn);
		else
			c.run<256>(at, turn);
	}
#endif
}

template <int T> static void tile_gemm_as(struct cuda_backend *b, const struct tile_args *a)
{
	constexpr size_t bytes = tile_shape<T>::BYTES;
	int n = (a->g.n_out + GEMM_M - 1) / GEMM_M * a->g.n_tiles, most = b->n_sm;
	if (!cuda_allow_shared(b, (const void *)tile_gemm_kernel<T>, bytes))
		return;
	dim3 grid((unsigned)(n < most ? n : most));
	tile_gemm_kernel<T><<<grid, THREADS, bytes, b->stream>>>(*a);
	cuda_launched(b);
}

static void tile_enqueue(struct cuda_backend *b, enum dtype type, const struct tile_args *a)
{
	switch (type) {
#define CASE(name, most, least_most, is_unsigned)                                                  \
	case DTYPE_##name:                                                                             \
		tile_gemm_as<DTYPE_##name>(b, a);                                                          \
		break;
		TILE_TYPES(CASE)
		CASE(Q8_0, 0, 0, 0)
#undef CASE
	default: /* it does not take them */
		break;
	}
}

static bool is_tile_type(enum dtype type)
{
	switch (type) {
#define CASE(name, most, least_most, is_unsigned) case DTYPE_##name:
		TILE_TYPES(CASE)
#undef CASE
		return true;
	default:
		return false;
	}
}

bool tile_gemm_takes(const struct cuda_backend *b, const struct weight *w)
{
	return b->has_wgmma && !b->exact_prompts && is_tile_type(w->type) && w->n_in % 256 == 0 &&
		   w->row_bytes % 4 == 0 && (uintptr_t)w->data % 4 == 0;
}

void tile_gemm_enqueue(struct cuda_backend *b, enum dtype type, const struct grouped_gemm_args *a)
{
	struct tile_args t = {*a, NULL, 0};
	tile_enqueue(b, type, &t);
}

/* ---- activations ---- */

#define SPLIT_THREADS 256

/* HOLD: float4 that a thread keeps between the two loops, so that rows of at most 1024 HOLD values
 * are read once; 0: rows of any length, read twice. */
template <enum split_from FROM, int HOLD>
static __global__ void __launch_bounds__(SPLIT_THREADS)
	split_kernel(const __grid_constant__ struct split_args a)
{
	__shared__ float warp_most[SPLIT_THREADS / 32];
	const struct x_panel &to = a.to;
	int64_t row = blockIdx.x;
	const float *from = a.x + (FROM == FROM_SLOTS ? a.token_slots[row] / a.n_used : row) * a.x_row;
	auto read = [&](int k) {
		float4 v = *(const float4 *)(from + k);
		if (FROM == FROM_GLU) {
			float4 up = *(const float4 *)(from + a.up + k);
			v = make_float4(swiglu_one(v.x, up.x), swiglu_one(v.y, up.y), swiglu_one(v.z, up.z),
				swiglu_one(v.w, up.w));
		}
		return v;
	};
	float4 held[HOLD ? HOLD : 1];
	float most = 0;
#pragma unroll(HOLD ? HOLD : 1)
	for (int i = 0; HOLD ? i < HOLD : 4 * (threadIdx.x + i * SPLIT_THREADS) < to.n_in; i++) {
		int k = 4 * (threadIdx.x + i * SPLIT_THREADS);
		float4 v = !HOLD || k < to.n_in ? read(k) : make_float4(0, 0, 0, 0);
		most = fmaxf(most, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
		if (HOLD)
			held[i] = v;
	}
#pragma unroll
	for (int step = 16; step; step /= 2)
		most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
	if (threadIdx.x % 32 == 0)
		warp_most[threadIdx.x / 32] = most;
	__syncthreads();
#pragma unroll
	for (int i = 0; i < SPLIT_THREADS / 32; i++)
		most = fmaxf(most, warp_most[i]);
	int e = half_exponent(most);
	float by = power_of_two(e);
	if (!threadIdx.x)
		to.unscale[row] = power_of_two(-e);
#pragma unroll(HOLD ? HOLD : 1)
	for (int i = 0; HOLD ? i < HOLD : 4 * (threadIdx.x + i * SPLIT_THREADS) < to.n_in; i++) {
		int k = 4 * (threadIdx.x + i * SPLIT_THREADS);
		if (HOLD && k >= to.n_in)
			break;
		float4 v = HOLD ? held[HOLD ? i : 0] : read(k);
		__half2 h[2] = {__floats2half2_rn(__fmul_rn(v.x, by), __fmul_rn(v.y, by)),
			__floats2half2_rn(__fmul_rn(v.z, by), __fmul_rn(v.w, by))};
		uint8_t *line = (uint8_t *)to.x + ((int64_t)(k / 64) * to.pad + row) * 128;
		*(uint2 *)(line + ((k % 64 / 8 ^ row % 8) << 4) + k % 8 * 2) = *(uint2 *)h;
	}
}

template <enum split_from FROM>
static void split_from_rows(struct cuda_backend *b, const struct split_args *s)
{
	if (s->to.n_in <= 4 * SPLIT_THREADS * 2)
		split_kernel<FROM, 2><<<(unsigned)s->rows, SPLIT_THREADS, 0, b->stream>>>(*s);
	else if (s->to.n_in <= 4 * SPLIT_THREADS * 6)
		split_kernel<FROM, 6><<<(unsigned)s->rows, SPLIT_THREADS, 0, b->stream>>>(*s);
	else
		split_kernel<FROM, 0><<<(unsigned)s->rows, SPLIT_THREADS, 0, b->stream>>>(*s);
	cuda_launched(b);
}

void tile_split_rows(struct cuda_backend *b, enum split_from from, const struct split_args *s)
{
	if (from == FROM_SLOTS)
		split_from_rows<FROM_SLOTS>(b, s);
	else if (from == FROM_GLU)
		split_from_rows<FROM_GLU>(b, s);
	else
		split_from_rows<FROM_ROWS>(b, s);
}

/* ---- one matrix ---- */

/* The power of two for each row of Q8_0, a warp a row. */
static __global__ void __launch_bounds__(256)
	row_factors_kernel(const uint8_t *w, int64_t row_bytes, int n_blocks, int n_out, float *factors)
{
	int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
	if (row >= n_out)
		return;
	float most = 0;
	for (int i = lane; i < n_blocks; i += 32)
		most = fmaxf(most, fabsf(half_float(get16(w + row * row_bytes + i * 34))));
#pragma unroll
	for (int step = 16; step; step /= 2)
		most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
	if (!lane)
		factors[row] = power_of_two(half_exponent(__fmul_rn(most, 128)));
}

#define X_MOST ((size_t)128 << 20) /* bytes of the x rows of a group */

bool tile_matmul_takes(const struct cuda_backend *b, const struct weight *w)
{
	return b->has_wgmma && !b->exact_prompts && w->n_stack == 1 && w->n_in % 256 == 0 &&
		   w->row_bytes % 4 == 0 && (uintptr_t)w->data % 4 == 0 &&
		   (w->type == DTYPE_Q8_0 || is_tile_type(w->type));
}

/* The largest tiles of x that leave few multiprocessors idle. */
static int step_of(const struct cuda_backend *b, int rows, int64_t n_out)
{
	int64_t across = (n_out + GEMM_M - 1) / GEMM_M;
	for (int step = TILE_ROWS; step > 64; step -= 64)
		if (across * ((rows + step - 1) / step) >= b->n_sm)
			return step;
	return 64;
}

void tile_matmul(
	struct cuda_backend *b, const struct matmul *parts, int n_parts, const float *x, int rows)
{
	int64_t n_in = parts[0].w.n_in, most = 0;
	for (int i = 0; i < n_parts; i++)
		most = parts[i].w.n_out > most ? parts[i].w.n_out : most;
	int64_t fit = (int64_t)(X_MOST / (size_t)(2 * n_in)) / TILE_ROWS * TILE_ROWS;
	int64_t group = rows < fit ? rows : fit < TILE_ROWS ? TILE_ROWS : fit;
	struct x_panel panel = {};
	panel.pad = up_to(group, TILE_ROWS);
	panel.n_in = (int)n_in;
	panel.steps = (int)(n_in / 32);
	panel.passes = 1;
	size_t for_x = (size_t)(2 * panel.pad * n_in), for_unscale = (size_t)(4 * panel.pad);
	uint8_t *scratch =
		(uint8_t *)cuda_scratch_reserve(b, &b->gemm_panels, for_x + for_unscale + 4 * (size_t)most);
	if (!scratch)
		return;
	panel.x = (__half *)scratch;
	panel.unscale = (float *)(scratch + for_x);
	float *factors = (float *)(scratch + for_x + for_unscale);
	for (int64_t r = 0; r < rows && !b->base.failure.code; r += group) {
		struct split_args s = {};
		s.to = panel;
		s.x = x + r * n_in;
		s.x_row = n_in;
		s.rows = (int)(rows - r < group ? rows - r : group);
		tile_split_rows(b, FROM_ROWS, &s);
		for (int i = 0; i < n_parts; i++) {
			const struct weight *w = &parts[i].w;
			struct tile_args a = {};
			if (w->type == DTYPE_Q8_0) {
				row_factors_kernel<<<(unsigned)((w->n_out + 7) / 8), 256, 0, b->stream>>>(
					(const uint8_t *)w->data, (int64_t)w->row_bytes, (int)(n_in / 32),
					(int)w->n_out, factors);
				cuda_launched(b);
			}
			a.row_factors = factors;
			a.step = step_of(b, s.rows, w->n_out);
			a.g.tables = b->tables;
			a.g.x = panel;
			a.g.row_bytes = (int64_t)w->row_bytes;
			a.g.n_x = s.rows;
			a.g.n_tiles = (s.rows + a.step - 1) / a.step;
			a.g.n_out = (int)w->n_out;
			a.g.y = parts[i].y + r * w->n_out;
			a.g.y_row = w->n_out;
			a.g.w = (const uint8_t *)w->data;
			a.g.add = parts[i].add;
			tile_enqueue(b, w->type, &a);
		}
	}
}
