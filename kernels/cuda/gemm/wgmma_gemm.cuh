/* SPDX-License-Identifier: MIT */
/*
 * The wgmma gemm: products of packed weights for prefill on the tensor cores of compute
 * capability 9.0 (wgmma.cuh). Weights go from the packed blocks through registers (A operand) to
 * wgmma; activations are two halves each, as in gemm.cuh, but in fragment order:
 *
 *      x panel  [stack][n_in / 32][x_pad][128 bytes]: hi 32, lo 32 halves; the eight 16-byte
 *               pieces of row r are at i ^ (r % 8) (128-byte swizzle). Half
 *               16 s + 2 c + i % 2 + 8 (i / 2), i = 0 .. 3, belongs to weight 8 c + 4 s + i
 *               (or, where the type has QUADS, 16 s + 4 c + i) of the 32: the weights that lane
 *               c of a row unpacks
 *
 * wgmma_gemm_kernel: grid (tiles of 128 weight rows, tiles of BN x rows, matrices of a stack),
 * block 256: a warp multiplies 16 weight rows by all x rows. One thread loads x by bulk copies,
 * WGMMA_AHEAD steps of 32 ahead. A warp loads its own weights (cp.async), a super-block ahead, and
 * unpacks a step while the products of the step before run.
 *
 * weight = factor * byte. Where the factor is an integer times that of the super-block, wgmma gets
 * byte * integer, which is exact in a half, and sums are scaled once per super-block (FOLDS); else
 * once per step of 32.
 *
 * Types with minima (LEAST): weight = factor * byte - minimum * least. The sums of 16 x, as two
 * halves, times the sixteen leasts of the super-block are one more product per super-block:
 *
 *      sums     [stack][n_in / 256][x_pad][64 bytes]: hi 16, lo 16 halves, each sum / 32; the
 *               pieces of row r at i ^ (r / 2 % 4) (64-byte swizzle)
 *
 * Bytes moved: packed weights once per tile of x rows, x once per 128 weight rows (both mostly from
 * the L2 cache); outputs once.
 */
#ifndef GLM_KERNELS_CUDA_WGMMA_GEMM_CUH
#define GLM_KERNELS_CUDA_WGMMA_GEMM_CUH

#include "kernels/cuda/common/block_bytes.cuh"
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/gemm/gemm.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/common/wgmma.cuh"

#define WGMMA_WARPS   8
#define WGMMA_THREADS (WGMMA_WARPS * 32)
#define WGMMA_STAGES  4
/* steps that x is loaded ahead: fewer than stages, so that no warp waits for the slowest */
#define WGMMA_AHEAD 2

constexpr int num_up(int n, int unit)
{
	return (n + unit - 1) / unit * unit;
}

template <int T, int BN> struct wgmma_gemm_shape {
	static constexpr int SB_BYTES = packed<T>::SUPER_BLOCK_BYTES, LINES = (SB_BYTES + 14 + 15) / 16,
						 STRIDE = (LINES | 1) * 16;
	static constexpr int X = BN * 128,
						 W = 16 * STRIDE; /* bytes of a stage of x; of a super-block of a warp */
	static constexpr int AT_W = WGMMA_STAGES * X, AT_TABLES = AT_W + WGMMA_WARPS * 2 * W,
						 AT_SUMS =
							 num_up(AT_TABLES + (bytes_type<T>::TABLES ? 384 * 128 : 0), 1024),
						 SUMS = BN * 64,
						 AT_BARRIERS = AT_SUMS + (bytes_type<T>::LEAST ? 2 * SUMS : 0),
						 BYTES = 1024 + AT_BARRIERS + 2 * WGMMA_STAGES * 8 + 4 * 8;
};

/* Four signed bytes as two pairs of halves */
static __device__ __forceinline__ void bytes_halves(uint32_t w, uint32_t &low, uint32_t &high)
{
	const __half2 zero = __half2half2(__ushort_as_half(0x6480)); /* 1024 + 128 */
	w ^= 0x80808080u;
	uint32_t a = __byte_perm(w, 0x64646464u, 0x4140), b = __byte_perm(w, 0x64646464u, 0x4342);
	__half2 l = __hsub2(*(__half2 *)&a, zero), h = __hsub2(*(__half2 *)&b, zero);
	low = *(uint32_t *)&l;
	high = *(uint32_t *)&h;
}

static __device__ __forceinline__ uint32_t times(uint32_t pair, __half2 by)
{
	__half2 v = __hmul2(*(__half2 *)&pair, by);
	return *(uint32_t *)&v;
}

template <typename type, enum scale_kind KIND> struct wgmma_scale;
template <typename type> struct wgmma_scale<type, SCALE_FLOAT> {
	typedef typename type::head head;
	static __device__ __forceinline__ int whole(const uint8_t *, const head &, int, int)
	{
		return 1;
	}
	static __device__ __forceinline__ float factor(const uint8_t *p, const head &h, int s)
	{
		return type::scale(p, h, s);
	}
	static __device__ __forceinline__ float unit(const head &) { return 1; }
};
template <typename type> struct wgmma_scale<type, SCALE_STEP> {
	typedef typename type::head head;
	static __device__ __forceinline__ int whole(const uint8_t *p, const head &h, int s, int)
	{
		return type::scale(p, h, s);
	}
	static __device__ __forceinline__ float factor(const uint8_t *p, const head &h, int s)
	{
		return __fmul_rn(h.unit, (float)type::scale(p, h, s));
	}
	static __device__ __forceinline__ float unit(const head &h) { return h.unit; }
};
template <typename type> struct wgmma_scale<type, SCALE_HALF> {
	typedef typename type::head head;
	static __device__ __forceinline__ int whole(const uint8_t *p, const head &h, int s, int c)
	{
		return type::scale(p, h, s, c / 2);
	}
	static __device__ __forceinline__ float factor(const uint8_t *, const head &, int) { return 1; }
	static __device__ __forceinline__ float unit(const head &h) { return h.unit; }
};

template <typename type> struct wgmma_scale<type, SCALE_NONE> {
	typedef typename type::head head;
	static __device__ __forceinline__ int whole(const uint8_t *, const head &, int, int)
	{
		return 1;
	}
	static __device__ __forceinline__ float factor(const uint8_t *, const head &, int) { return 1; }
	static __device__ __forceinline__ float unit(const head &h) { return h.unit; }
};

/* The leasts of step c and of step c + 4, each of both halves of the step, as pairs of halves; and
 * the factor of all of them. */
template <int T, bool LEAST> struct wgmma_minima {
	static __device__ __forceinline__ void get(
		const uint8_t *, const typename bytes_type<T>::head &, int, uint32_t[2], float &)
	{
	}
};
static __device__ __forceinline__ uint32_t small_halves(uint32_t a, uint32_t b) /* below 1024 */
{
	uint32_t w = 0x64006400u | a | b << 16;
	__half2 h = __hsub2(*(__half2 *)&w, __half2half2(__ushort_as_half(0x6400)));
	return *(uint32_t *)&h;
}
template <int T> struct wgmma_minima<T, true> {
	static __device__ __forceinline__ void get(const uint8_t *,
		const typename bytes_type<T>::head &h, int c, uint32_t pair[2], float &minimum)
	{
#pragma unroll
		for (int k = 0; k < 2; k++)
			pair[k] = small_halves(h.least[k] >> 8 * c & 255, h.least[k] >> 8 * c & 255);
		minimum = h.minimum;
	}
};
template <> struct wgmma_minima<DTYPE_Q2_K, true> {
	static __device__ __forceinline__ void get(const uint8_t *p,
		const struct bytes_type<DTYPE_Q2_K>::head &h, int c, uint32_t pair[2], float &minimum)
	{
#pragma unroll
		for (int k = 0; k < 2; k++)
			pair[k] = small_halves(p[8 * k + 2 * c] >> 4, p[8 * k + 2 * c + 1] >> 4);
		minimum = h.minimum;
	}
};

template <int T, int BN>
static __global__ void __launch_bounds__(
	WGMMA_THREADS, BN == 32 || (BN == 64 && !bytes_type<T>::LEAST) ? 2 : 1)
	wgmma_gemm_kernel(const __grid_constant__ struct grouped_gemm_args g)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
	typedef struct wgmma_gemm_shape<T, BN> shape;
	typedef struct bytes_type<T> type;
	typedef struct wgmma_scale<type, type::SCALE> scales;
	constexpr bool FOLDS = type::SCALE != SCALE_FLOAT && T != DTYPE_IQ4_XS;
	extern __shared__ uint8_t shared_begin[];
	uint32_t begin = shared_address(shared_begin), base = (begin + 1023) & ~1023u;
	uint8_t *shared = shared_begin + (base - begin);
	uint32_t full = base + shape::AT_BARRIERS, empty = full + 8 * WGMMA_STAGES,
			 sums_full = empty + 8 * WGMMA_STAGES, sums_empty = sums_full + 16;
	int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, g8 = lane / 4, c = lane % 4,
		m0 = blockIdx.x * GEMM_M, steps = g.x.steps;
	struct grouped_gemm_tile tile;
	if (g.tiles)
		tile = g.tiles[blockIdx.y];
	else {
		tile.w = g.w + blockIdx.z * g.stack_bytes;
		tile.x_first = blockIdx.y * BN;
		tile.n_x = min(BN, g.n_x - tile.x_first);
		tile.y_first = blockIdx.z * g.y_stack;
	}
	const float *unscale = g.x.unscale + blockIdx.z * g.x.pad + tile.x_first;
	if (type::TABLES)
		for (int i = tid; i < 384 * 8; i += WGMMA_THREADS) {
			uint32_t w =
				i < 256 * 8 ? g.tables->iq2xxs_nibbles[i / 8] : g.tables->sign_nibbles[i / 8 - 256];
			((uint4 *)(shared + shape::AT_TABLES))[i] = make_uint4(w, w, w, w);
		}
	if (!tid) {
		for (int i = 0; i < WGMMA_STAGES; i++) {
			mbarrier_init(full + 8 * i, 1);
			mbarrier_init(empty + 8 * i, WGMMA_WARPS);
		}
		for (int i = 0; i < 2; i++) {
			mbarrier_init(sums_full + 8 * i, 1);
			mbarrier_init(sums_empty + 8 * i, WGMMA_WARPS);
		}
		mbarrier_init_fence();
	}
	__syncthreads();
	/* loads x of a step when all warps have released the stage */
	const uint8_t *from_x =
		(const uint8_t *)(g.x.x + (blockIdx.z * steps * g.x.pad + tile.x_first) * 64);
	auto fetch_x = [&](int step) {
		if (tid || step >= steps)
			return;
		int at = step % WGMMA_STAGES, round = step / WGMMA_STAGES;
		if (round)
			mbarrier_wait(empty + 8 * at, (round & 1) ^ 1);
		mbarrier_expect(full + 8 * at, shape::X);
		bulk_copy(base + at * shape::X, from_x + step * g.x.pad * 128, shape::X, full + 8 * at);
	};
#pragma unroll
	for (int i = 0; i < WGMMA_AHEAD; i++)
		fetch_x(i);

	int n_sb = (steps + 7) / 8;
	const uint8_t *from_sums =
		(const uint8_t *)g.x.sums + (blockIdx.z * n_sb * g.x.pad + tile.x_first) * 64;
	auto fetch_sums = [&](int sb) {
		if (tid || sb >= n_sb || !type::LEAST)
			return;
		int at = sb & 1;
		if (sb >= 2)
			mbarrier_wait(sums_empty + 8 * at, (sb >> 1 & 1) ^ 1);
		mbarrier_expect(sums_full + 8 * at, shape::SUMS);
		bulk_copy(base + shape::AT_SUMS + at * shape::SUMS, from_sums + sb * g.x.pad * 64,
			shape::SUMS, sums_full + 8 * at);
	};
	fetch_sums(0);

	/* this warp's weights */
	int last_row = g.n_out - 1 - m0 - 16 * warp;
	const uint8_t *first_row = tile.w + (int64_t)(m0 + 16 * warp) * g.row_bytes;
	uint8_t *own = shared + shape::AT_W + warp * 2 * shape::W;
	auto row_at = [&](int row) { /* rows past the last repeat it; they are not stored */
		return (uintptr_t)first_row + (int64_t)min(row, last_row) * g.row_bytes;
	};
	auto fetch = [&](int sb) {
		int bytes = (int)min((int64_t)shape::SB_BYTES, g.row_bytes - (int64_t)sb * shape::SB_BYTES);
		if (bytes > 0)
#pragma unroll
			for (int j = 0; j < (16 * shape::LINES + 31) / 32; j++) {
				int i = lane + 32 * j, row = i / shape::LINES, line = i % shape::LINES * 16;
				uintptr_t at = row_at(row) + (uint32_t)(sb * shape::SB_BYTES);
				if (row < 16 && line < bytes + (int)(at & 15))
					async_copy(
						shared_address(own) + (sb & 1) * shape::W + row * shape::STRIDE + line,
						(const void *)((at & ~(uintptr_t)15) + line));
			}
		async_commit();
	};
	uint32_t low[2] = {(uint32_t)row_at(g8), (uint32_t)row_at(g8 + 8)};
	struct lane_tables tables;
	tables.base = shared + shape::AT_TABLES;
	tables.lane = 4 * lane;
	const uint8_t *p[2];
	typename type::head head[2];
	float next_factor[2] = {1, 1}, next_minimum[2] = {0, 0};
	uint32_t next_least[2][2] = {}; /* [row][step c, step c + 4] */
	auto begin_super_block = [&](int sb) {
		async_wait<1>();
		__syncwarp();
#pragma unroll
		for (int i = 0; i < 2; i++) {
			p[i] = own + (sb & 1) * shape::W + (g8 + 8 * i) * shape::STRIDE +
				   ((low[i] + (uint32_t)(sb * shape::SB_BYTES)) & 15);
			type::read_head(p[i], c, g.tables, head[i]);
			wgmma_minima<T, type::LEAST>::get(p[i], head[i], c, next_least[i], next_minimum[i]);
		}
	};
	auto unpack = [&](int s, uint32_t(&a)[2][4]) {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			uint32_t w[2];
			type::bytes(
				p[i], head[i], (int)((uint32_t)(uintptr_t)p[i] & 7) / 2, s, c, tables, w[0], w[1]);
#pragma unroll
			for (int k = 0; k < 2; k++)
				bytes_halves(w[k], a[k][i], a[k][i + 2]);
			if (FOLDS && type::SCALE != SCALE_NONE) {
				__half2 by = __half2half2(__int2half_rn(scales::whole(p[i], head[i], s, c)));
#pragma unroll
				for (int k = 0; k < 2; k++)
					a[k][i] = times(a[k][i], by), a[k][i + 2] = times(a[k][i + 2], by);
			}
			if (!FOLDS)
				next_factor[i] = scales::factor(p[i], head[i], s);
		}
	};

	float acc[BN / 2], d[BN / 2];
#pragma unroll
	for (int i = 0; i < BN / 2; i++)
		acc[i] = d[i] = 0;
	uint32_t a[2][2][4];
	fetch(0);
	fetch(1);
	begin_super_block(0);
	unpack(0, a[0]);
	int stage = 0, round = 0, before = 0;
	for (int sb = 0; sb < n_sb; sb++) {
		int left = min(8, steps - 8 * sb);
		float unit[2] = {scales::unit(head[0]), scales::unit(head[1])},
			  minimum[2] = {next_minimum[0], next_minimum[1]};
		uint32_t least[4] = {
			next_least[0][0], next_least[1][0], next_least[0][1], next_least[1][1]};
#pragma unroll
		for (int s = 0; s < 8; s++) {
			if (s >= left)
				break;
			float factor[2] = {next_factor[0], next_factor[1]};
			fetch_x(8 * sb + s + WGMMA_AHEAD);
			if (s == 4)
				fetch_sums(sb + 1);
			uint64_t lines = wgmma_desc_128(base + stage * shape::X);
			mbarrier_wait(full + 8 * stage, round & 1);
			wgmma_fence();
			wgmma_f16(d, a[s & 1][0], lines, FOLDS && s);
			wgmma_f16(d, a[s & 1][1], lines + 2, 1);
			wgmma_f16(d, a[s & 1][0], lines + 4, 1);
			wgmma_f16(d, a[s & 1][1], lines + 6, 1);
			wgmma_commit();
			if (FOLDS && s) { /* the step before is done: its registers and its x are free */
				wgmma_wait<1>();
				if (!lane)
					mbarrier_arrive(empty + 8 * before);
			}
			if (s + 1 < left)
				unpack(s + 1, a[(s + 1) & 1]);
			else if (sb + 1 < n_sb) {
				__syncwarp();
				fetch(sb + 2);
				begin_super_block(sb + 1);
				unpack(0, a[0]);
			}
			if (!FOLDS || s + 1 == left) {
				wgmma_wait<0>();
				wgmma_keep_registers(d);
				if (!lane)
					mbarrier_arrive(empty + 8 * stage);
#pragma unroll
				for (int i = 0; i < BN / 2; i++)
					acc[i] = __fmaf_rn(FOLDS ? unit[i / 2 % 2] : factor[i / 2 % 2], d[i], acc[i]);
			}
			if (type::LEAST && s + 1 == left) {
				uint64_t sums = wgmma_desc_64(base + shape::AT_SUMS + (sb & 1) * shape::SUMS);
				mbarrier_wait(sums_full + 8 * (sb & 1), sb >> 1 & 1);
				wgmma_fence();
				wgmma_f16(d, least, sums, 0);
				wgmma_f16(d, least, sums + 2, 1);
				wgmma_commit();
				wgmma_wait<0>();
				wgmma_keep_registers(d);
				if (!lane)
					mbarrier_arrive(sums_empty + 8 * (sb & 1));
#pragma unroll
				for (int i = 0; i < BN / 2; i++)
					acc[i] = __fmaf_rn(-32.0f * minimum[i / 2 % 2], d[i], acc[i]);
			}
			before = stage;
			stage = stage + 1 == WGMMA_STAGES ? 0 : stage + 1;
			round += !stage;
		}
	}
	float *y = g.y + tile.y_first + m0;
#pragma unroll
	for (int n = 0; n < BN / 8; n++)
#pragma unroll
		for (int e = 0; e < 2; e++) {
			int i = n * 8 + 2 * c + e;
			if (i >= tile.n_x)
				continue;
			float by = unscale[i];
			int64_t row = tile.x_first + i;
			float *to = y + (g.y_map ? g.y_map[row] : row) * g.y_row;
#pragma unroll
			for (int j = 0; j < 2; j++) {
				int o = 16 * warp + g8 + 8 * j;
				if (m0 + o >= g.n_out)
					continue;
				float v = __fmul_rn(acc[4 * n + 2 * j + e], by);
				to[o] = g.add ? __fadd_rn(to[o], v) : v;
			}
		}
#endif
}

template <int T, int BN>
static void wgmma_gemm_launch_as(struct cuda_backend *b, const struct grouped_gemm_args *a)
{
	constexpr size_t bytes = wgmma_gemm_shape<T, BN>::BYTES;
	if (!cuda_allow_shared(b, (const void *)wgmma_gemm_kernel<T, BN>, bytes))
		return;
	dim3 grid((unsigned)((a->n_out + GEMM_M - 1) / GEMM_M), (unsigned)a->n_tiles,
		(unsigned)(a->tiles ? 1 : a->n_stack));
	wgmma_gemm_kernel<T, BN><<<grid, WGMMA_THREADS, bytes, b->stream>>>(*a);
	cuda_launched(b);
}

template <int T>
static bool wgmma_gemm_launch(struct cuda_backend *b, const struct grouped_gemm_args *a, int bn)
{
	if (!a) /* query */
		return true;
	if (bn == 32)
		wgmma_gemm_launch_as<T, 32>(b, a);
	else if (bn == 64)
		wgmma_gemm_launch_as<T, 64>(b, a);
	else
		wgmma_gemm_launch_as<T, 128>(b, a);
	return true;
}

#endif
