/* SPDX-License-Identifier: MIT */
/*
 * The wgmma gemm: products of packed weights for prefill on the tensor cores of compute
 * capability 9.0 (wgmma.cuh). Weights go from the packed blocks through registers (A operand) to
 * wgmma; activations are halves as in gemm.cuh, but in fragment order:
 *
 *      x panel  [stack][pass][n_in / 32][x_pad][64 bytes]; the four 16-byte pieces of row r
 *               are at i ^ (r / 2 % 4) (64-byte swizzle). Half
 *               16 s + 2 c + i % 2 + 8 (i / 2), i = 0 .. 3, belongs to weight 8 c + 4 s + i
 *               (or, where the type has QUADS, 16 s + 4 c + i) of the 32: the weights that lane
 *               c of a row unpacks
 *
 * wgmma_gemm_kernel: grid (tiles of 128 weight rows, tiles of BN x rows, matrices of a stack; with
 * a list of tiles 1), block 256, two warpgroups: a warp multiplies 16 weight rows by all x rows.
 * Bulk copies load x, groups of wgmma_group_steps steps of 32, wgmma_groups_ahead groups ahead;
 * lane 0 of warp g issues those of group g of each super-block. A warp loads its own weights
 * (cp.async), a super-block ahead, and unpacks a group while the products of the group before run.
 *
 * Barriers: mbarriers `full` and `empty` of each group of steps of x (and of the sums): the copy
 * has arrived; all warps have multiplied it. Weights of a warp need only __syncwarp. There is no
 * block barrier behind the first.
 *
 * Launch: with `beside` a kernel starts when all blocks of the one before have started, and ends
 * behind it; neither reads what the other writes. So its first blocks fill the multiprocessors that
 * the last blocks of that one leave idle.
 *
 * Shared memory (struct wgmma_gemm_shape), from a multiple of 1024 bytes on, which the swizzle of
 * wgmma needs: x [WGMMA_STAGES], packed super-blocks [warp][2][16 rows], codebooks, sums [2],
 * mbarriers. Weights are copied in whole 16-byte lines, as in grouped_gemm.cuh: see its bounds.
 *
 * weight = unit * (byte * by): wgmma gets byte * by as a half, and its sums are scaled by the
 * super-block's unit in float32. The product is exact where by is an integer and byte * by at most
 * 2048. Else (ROUNDS) it is rounded to 11 bits: of IQ4_XS, whose products are larger, and of types
 * whose steps have float factors. Of these unit is the power of two below the super-block's largest
 * factor, and by is factor / unit. If x has two passes, a third one multiplies x with these
 * rounding errors. Q6_K is not multiplied here: it would need ROUNDS. Limits of by as a half: a
 * factor below 2^-14 of unit loses bits (a subnormal half). Where the largest factor is 2^127 or
 * more, by is 0.
 *
 * Types with minima (LEAST): weight = factor * byte - minimum * least (block_bytes.cuh). The sums
 * of 16 x, as two halves, times the sixteen `least` integers of the super-block are one more
 * product per super-block. No type has both ROUNDS and LEAST, so there are no sums for a third
 * pass.
 *
 *      sums     [stack][pass][n_in / 256][x_pad][64 bytes]: hi 16, lo 16 halves, each
 *               sum / 32; pieces as above
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
#define WGMMA_STAGES  8 /* the steps of a super-block */
/* The steps of a group: they are multiplied behind one barrier, while the next group is unpacked.
 * Their weights stay in registers, of which tiles of 128 x rows leave enough for two. (One H200,
 * experts of 256 rows: 6 % faster than one step at a time, a prompt of 8,192 tokens 2 %.) */
template <int BN> static constexpr int wgmma_group_steps = BN == 128 ? 2 : 1;
/* Such groups of steps that x is loaded ahead. Two fewer than there is space for: what is
 * overwritten was multiplied two groups ago, so that a warp seldom waits for the slowest one. */
template <int BN>
static constexpr int wgmma_groups_ahead = WGMMA_STAGES / wgmma_group_steps<BN> - 2;

template <int T, int BN> struct wgmma_gemm_shape {
	static constexpr int SB_BYTES = packed<T>::SUPER_BLOCK_BYTES, LINES = (SB_BYTES + 14 + 15) / 16,
						 STRIDE = (LINES | 1) * 16;
	static constexpr int X = BN * 64,
						 W = 16 * STRIDE; /* bytes of a stage of x; of a super-block of a warp */
	static constexpr int AT_W = WGMMA_STAGES * X, AT_TABLES = AT_W + WGMMA_WARPS * 2 * W,
						 AT_SUMS =
							 (int)up_to(AT_TABLES + (bytes_type<T>::TABLES ? 384 * 128 : 0), 1024),
						 SUMS = BN * 64,
						 AT_BARRIERS = AT_SUMS + (bytes_type<T>::LEAST ? 2 * SUMS : 0),
						 BYTES = 1024 + AT_BARRIERS + 2 * WGMMA_STAGES * 8 + 4 * 8;
};

/* How the bytes of a type become halves: prmt makes 1024 + byte of them (halves from 1024 to 2047
 * are whole numbers), of signed bytes with the top bit flipped, so 1024 + 128 + byte. */
template <int T> struct wgmma_halves {
	static constexpr bool UNSIGNED = T == DTYPE_Q4_K || T == DTYPE_Q5_K || T == DTYPE_Q2_K;
	/* Whether one fused multiply-add makes byte * by: (zero + byte) * by - zero * by is exact as a
	 * half operation, because by is an integer and zero * by below 65504. Not Q2_K, which has no by
	 * (SCALE_NONE). */
	static constexpr bool FUSED = T == DTYPE_Q4_K || T == DTYPE_Q5_K || T == DTYPE_Q3_K ||
								  T == DTYPE_IQ2_XXS || T == DTYPE_IQ2_XS || T == DTYPE_IQ2_S ||
								  T == DTYPE_IQ3_XXS || T == DTYPE_IQ3_S || T == DTYPE_IQ1_S ||
								  T == DTYPE_IQ1_M;
	static __device__ __forceinline__ __half2 zero()
	{
		return __half2half2(__ushort_as_half(UNSIGNED ? 0x6400 : 0x6480));
	}
};

/* The eight bytes of a lane's step; of signed types with the top bits flipped */
template <int T> struct wgmma_bytes {
	static __device__ __forceinline__ void get(const uint8_t *p,
		const typename bytes_type<T>::head &h, int u, int s, int c, const struct lane_tables &t,
		uint32_t w[2])
	{
		bytes_type<T>::bytes(p, h, u, s, c, t, w[0], w[1]);
		if (!wgmma_halves<T>::UNSIGNED)
			w[0] ^= 0x80808080u, w[1] ^= 0x80808080u;
	}
};
template <> struct wgmma_bytes<DTYPE_IQ2_XXS> {
	static __device__ __forceinline__ void get(const uint8_t *p,
		struct bytes_type<DTYPE_IQ2_XXS>::head &h, int, int s, int c, const struct lane_tables &t,
		uint32_t w[2])
	{
		/* without a branch by alignment: a warp has a chain of such steps and little else to do */
		uint32_t odd = (uint32_t)(uintptr_t)p & 2;
		const uint32_t *words = (const uint32_t *)(p - odd) + 2 * s;
		bytes_type<DTYPE_IQ2_XXS>::bytes_of<0x80808080u>(p[2 + 8 * s + c],
			__byte_perm(words[1], words[2], odd ? 0x7654 : 0x5432), h, c, t, w[0], w[1]);
	}
};

static __device__ __forceinline__ __half2 half2_of(uint32_t pair)
{
	return *(__half2 *)&pair;
}

static __device__ __forceinline__ uint32_t bits_of(__half2 pair)
{
	return *(uint32_t *)&pair;
}

/* n, from -512 to 511, as both halves: 1536 + n is n added to the bits of 1536 */
static __device__ __forceinline__ __half2 small_half_twice(int n)
{
	return __hsub2(
		half2_of(0x66006600u + (uint32_t)n * 0x00010001u), __half2half2(__ushort_as_half(0x6600)));
}

/* weight = unit * (byte * by): unit of a super-block, by as a half of a step or of half a step. */
template <typename type, enum scale_kind KIND> struct wgmma_scale;
template <typename type> struct wgmma_scale<type, SCALE_FLOAT> {
	typedef typename type::head head;
	static constexpr bool MULTIPLIES = true;
	/* The power of two below the largest factor of the super-block's steps; and 1 / unit. Whole
	 * warps call it. */
	static __device__ __forceinline__ void begin(
		const uint8_t *p, const head &h, int c, int steps, float &unit, float &inverse)
	{
		float most = fmaxf(c < steps ? fabsf(type::scale(p, h, c)) : 0,
			c + 4 < steps ? fabsf(type::scale(p, h, c + 4)) : 0);
		most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
		most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
		uint32_t exponent = most == 0 ? 0x3f800000 : __float_as_uint(most) & 0x7f800000;
		unit = __uint_as_float(exponent);
		inverse = __uint_as_float(0x7f000000 - exponent);
	}
	static __device__ __forceinline__ __half2 by(
		const uint8_t *p, const head &h, int s, int, float inverse, int steps)
	{
		float v = s < steps ? __fmul_rn(type::scale(p, h, s), inverse) : 0;
		return __floats2half2_rn(v, v);
	}
};
template <typename type> struct wgmma_scale_whole {
	typedef typename type::head head;
	static __device__ __forceinline__ void begin(
		const uint8_t *, const head &h, int, int, float &unit, float &)
	{
		unit = h.unit;
	}
};
template <typename type> struct wgmma_scale<type, SCALE_STEP> : wgmma_scale_whole<type> {
	typedef typename type::head head;
	static constexpr bool MULTIPLIES = true;
	static __device__ __forceinline__ __half2 by(
		const uint8_t *p, const head &h, int s, int, float, int)
	{
		return small_half_twice(type::scale(p, h, s));
	}
};
template <typename type> struct wgmma_scale<type, SCALE_HALF> : wgmma_scale_whole<type> {
	typedef typename type::head head;
	static constexpr bool MULTIPLIES = true;
	static __device__ __forceinline__ __half2 by(
		const uint8_t *p, const head &h, int s, int c, float, int)
	{
		return small_half_twice(type::scale(p, h, s, c / 2));
	}
};
template <typename type> struct wgmma_scale<type, SCALE_NONE> : wgmma_scale_whole<type> {
	typedef typename type::head head;
	static constexpr bool MULTIPLIES = false;
	static __device__ __forceinline__ __half2 by(
		const uint8_t *, const head &, int, int, float, int)
	{
		return __float2half2_rn(1);
	}
};

/* `least` of step c and of step c + 4, each for both halves of the step, as pairs of halves; and
 * minimum, their common factor. */
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

/* The block's tile of bn x rows */
static __device__ __forceinline__ struct grouped_gemm_tile wgmma_tile_of_block(
	const struct grouped_gemm_args &g, int bn)
{
	if (g.tiles)
		return g.tiles[blockIdx.y];
	struct grouped_gemm_tile tile;
	tile.w = g.w + blockIdx.z * g.stack_bytes;
	tile.x_first = blockIdx.y * bn;
	tile.n_x = min(bn, g.n_x - tile.x_first);
	tile.y_first = blockIdx.z * g.y_stack;
	return tile;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/* By one thread */
static __device__ __forceinline__ void wgmma_init_barriers(
	uint32_t full, uint32_t empty, uint32_t sums_full, uint32_t sums_empty)
{
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

#endif

template <int T, int BN>
static __global__ void __launch_bounds__(
	WGMMA_THREADS, BN == 32 || (BN == 64 && !bytes_type<T>::LEAST) ? 2 : 1)
	wgmma_gemm_kernel(const __grid_constant__ struct grouped_gemm_args g)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
	typedef struct wgmma_gemm_shape<T, BN> shape;
	typedef struct bytes_type<T> type;
	typedef struct wgmma_scale<type, type::SCALE> scales;
	constexpr bool ROUNDS = type::SCALE == SCALE_FLOAT || T == DTYPE_IQ4_XS,
				   WHOLE = type::SCALE != SCALE_FLOAT; /* rows are whole super-blocks */
	constexpr int GROUP = wgmma_group_steps<BN>, GROUPS = WGMMA_STAGES / GROUP;
	static_assert(GROUPS % 2 == 0 && GROUPS <= WGMMA_WARPS, "two sets of registers take turns");
	static_assert(!(ROUNDS && type::LEAST), "the third pass has no sums");
	static_assert(shape::BYTES <= 232448, "shared memory of a block on compute capability 9.0");
	typedef struct wgmma_halves<T> halves;
	extern __shared__ uint8_t shared_begin[];
	uint32_t begin = shared_address(shared_begin), base = (begin + 1023) & ~1023u;
	uint8_t *shared = shared_begin + (base - begin);
	uint32_t full = base + shape::AT_BARRIERS, empty = full + 8 * WGMMA_STAGES,
			 sums_full = empty + 8 * WGMMA_STAGES, sums_empty = sums_full + 16;
	int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, g8 = lane / 4, c = lane % 4,
		m0 = blockIdx.x * GEMM_M, of_pass = g.x.steps, x_steps = g.x.passes * of_pass,
		passes = ROUNDS && g.x.passes == 2 ? 3 : g.x.passes, steps = passes * of_pass;
	const struct grouped_gemm_tile tile = wgmma_tile_of_block(g, BN);
	const float *unscale = g.x.unscale + blockIdx.z * g.x.pad + tile.x_first;
	launch_dependents();
	if (type::TABLES)
		lane_tables_fill(shared + shape::AT_TABLES, g.tables, WGMMA_THREADS);
	if (!tid)
		wgmma_init_barriers(full, empty, sums_full, sums_empty);
	__syncthreads();
	/* loads x of a group when all warps have multiplied what it overwrites; the warps take turns */
	const uint8_t *from_x =
		(const uint8_t *)(g.x.x + (blockIdx.z * x_steps * g.x.pad + tile.x_first) * 32);
	auto fetch_x = [&](int group) {
		int at = group % GROUPS, round = group / GROUPS, step = group * GROUP;
		if (lane || warp != at || step >= steps)
			return;
		if (round)
			mbarrier_wait(empty + 8 * at, (round & 1) ^ 1);
		mbarrier_expect(full + 8 * at, GROUP * shape::X);
		if (ROUNDS && step >= x_steps)
			step -= x_steps;
#pragma unroll
		for (int j = 0; j < GROUP; j++)
			bulk_copy(base + (at * GROUP + j) * shape::X, from_x + (step + j) * g.x.pad * 64,
				shape::X, full + 8 * at);
	};
#pragma unroll
	for (int i = 0; i < wgmma_groups_ahead<BN>; i++)
		fetch_x(i);

	int sb_of_pass = of_pass / 8, n_sb = passes * sb_of_pass;
	auto sb_of_weights = [&](int sb) {
		sb = sb < sb_of_pass ? sb : sb - sb_of_pass;
		return ROUNDS && sb >= sb_of_pass ? sb - sb_of_pass : sb;
	};
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
		int at_sb = sb_of_weights(sb) * shape::SB_BYTES,
			bytes = sb < n_sb ? (int)min((int64_t)shape::SB_BYTES, g.row_bytes - at_sb) : 0;
		if (bytes > 0)
#pragma unroll
			for (int j = 0; j < (16 * shape::LINES + 31) / 32; j++) {
				int i = lane + 32 * j, row = i / shape::LINES, line = i % shape::LINES * 16;
				uintptr_t at = row_at(row) + (uint32_t)at_sb;
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
	bool third_pass = false;
	float next_unit[2], inverse[2] = {1, 1}, next_minimum[2] = {0, 0};
	uint32_t next_least[2][2] = {}; /* [row][step c, step c + 4] */
	int filled = 8; /* steps of the super-block being unpacked before the row ends */
	auto begin_super_block = [&](int sb) {
		async_wait<1>();
		__syncwarp();
		third_pass = ROUNDS && sb >= 2 * sb_of_pass;
		if (!WHOLE)
			filled = min(8, g.x.n_in / 32 - 8 * sb_of_weights(sb));
#pragma unroll
		for (int i = 0; i < 2; i++) {
			p[i] = own + (sb & 1) * shape::W + (g8 + 8 * i) * shape::STRIDE +
				   ((low[i] + (uint32_t)(sb_of_weights(sb) * shape::SB_BYTES)) & 15);
			type::read_head(p[i], c, g.tables, head[i]);
			scales::begin(p[i], head[i], c, filled, next_unit[i], inverse[i]);
			wgmma_minima<T, type::LEAST>::get(p[i], head[i], c, next_least[i], next_minimum[i]);
		}
	};
	auto unpack = [&](int s, uint32_t(&a)[2][4]) {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			uint32_t w[2], raw[2][2]; /* [byte word][its halves] */
			wgmma_bytes<T>::get(
				p[i], head[i], (int)((uint32_t)(uintptr_t)p[i] & 7) / 2, s, c, tables, w);
#pragma unroll
			for (int k = 0; k < 2; k++) {
				raw[k][0] = __byte_perm(w[k], 0x64646464u, 0x4140);
				raw[k][1] = __byte_perm(w[k], 0x64646464u, 0x4342);
			}
			__half2 zero = halves::zero(), by = scales::by(p[i], head[i], s, c, inverse[i], filled),
					shift = __hneg2(__hmul2(zero, by));
#pragma unroll
			for (int k = 0; k < 2; k++)
#pragma unroll
				for (int j = 0; j < 2; j++) {
					__half2 v = half2_of(raw[k][j]);
					if (halves::FUSED)
						v = __hfma2(v, by, shift);
					else {
						v = __hsub2(v, zero);
						if (ROUNDS && third_pass) /* what the rounding of the product leaves */
							v = __hfma2(v, by, __hneg2(__hmul2(v, by)));
						else if (scales::MULTIPLIES)
							v = __hmul2(v, by);
					}
					a[k][i + 2 * j] = bits_of(v);
				}
		}
	};

	float acc[BN / 2], d[BN / 2];
#pragma unroll
	for (int i = 0; i < BN / 2; i++)
		acc[i] = d[i] = 0;
	uint32_t a[2][GROUP][2][4];
	fetch(0);
	fetch(1);
	begin_super_block(0);
#pragma unroll
	for (int j = 0; j < GROUP; j++)
		unpack(j, a[0][j]);
	for (int sb = 0; sb < n_sb; sb++) {
		float unit[2] = {next_unit[0], next_unit[1]},
			  minimum[2] = {next_minimum[0], next_minimum[1]};
		uint32_t least[4] = {
			next_least[0][0], next_least[1][0], next_least[0][1], next_least[1][1]};
#pragma unroll
		for (int at = 0; at < GROUPS; at++) {
			fetch_x(GROUPS * sb + at + wgmma_groups_ahead<BN>);
			if (at == GROUPS / 2)
				fetch_sums(sb + 1);
			mbarrier_wait(full + 8 * at, sb & 1);
			wgmma_fence();
#pragma unroll
			for (int j = 0; j < GROUP; j++) {
				uint64_t lines = wgmma_desc_64(base + (at * GROUP + j) * shape::X);
				wgmma_f16(d, a[at & 1][j][0], lines, at + j != 0);
				wgmma_f16(d, a[at & 1][j][1], lines + 2, 1);
			}
			wgmma_commit();
			if (at) { /* the group before is done: its registers and its x are free */
				wgmma_wait<1>();
				if (!lane)
					mbarrier_arrive(empty + 8 * (at - 1));
			}
			bool last = at == GROUPS - 1;
			if (last && sb + 1 == n_sb)
				break;
			if (last) {
				__syncwarp();
				fetch(sb + 2);
				begin_super_block(sb + 1);
			}
#pragma unroll
			for (int j = 0; j < GROUP; j++)
				unpack(last ? j : (at + 1) * GROUP + j, a[(at + 1) & 1][j]);
		}
		wgmma_wait<0>();
		wgmma_keep_registers(d);
		if (!lane)
			mbarrier_arrive(empty + 8 * (GROUPS - 1));
#pragma unroll
		for (int i = 0; i < BN / 2; i++)
			acc[i] = __fmaf_rn(unit[i / 2 % 2], d[i], acc[i]);
		if (type::LEAST) {
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
	/* With `beside` the kernel before may still run. Kernels behind this one wait for this one
	 * alone: it must not end first. */
	grid_dependency_wait();
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
	b->next_serialized |= !a->beside;
	cuda_launch(b, wgmma_gemm_kernel<T, BN>, grid, WGMMA_THREADS, bytes, *a);
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
