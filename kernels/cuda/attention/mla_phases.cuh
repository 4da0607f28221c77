/* SPDX-License-Identifier: MIT */
/* Private to mla.cu: shape, shared-memory layout and flag words of mla_kernel, and its phases as
 * functions of a warp.
 *
 *      k_b, v_b   the matrices of mla.absorb and mla.expand of a head
 *      z          attend.out of a head, [VALUE]: the values of all segments combined; input of v_b
 */
#ifndef GLM_KERNELS_CUDA_MLA_PHASES_CUH
#define GLM_KERNELS_CUDA_MLA_PHASES_CUH

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/attention/mla_output.cuh"
#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/flag_words.cuh"
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/mma.cuh"
#include "kernels/cuda/gemv/q8_tile.cuh"

#define N_HEADS 64
#define NOPE    192
#define WIDTH   576
#define VALUE   512
#define OUT     256
#define TILE    32
#define SEGMENT 64
#define PARTS   32 /* blocks of a group, most segments */
#define GROUP   16 /* heads of a group */
#define HALF    (VALUE / 2)
#define BLOCKS  (N_HEADS / GROUP * PARTS)
#define WARPS   16
/* One warp more: it splits x into limbs, later it is the producer. */
#define THREADS (WARPS * 32 + 32)

#define K_ROW   (NOPE / 32 * 34)
#define V_ROW   (VALUE / 32 * 34)
#define K_TILE  (16 * K_ROW)
#define V_TILE  (16 * V_ROW)
#define V_WARPS (OUT / 2 / 16)
/* Bytes of a cache row or query in shared memory: no bank conflicts */
#define ROW      (WIDTH * 2 + 16)
#define STEPS    (WIDTH / 16 / 4) /* products of 16 in a quarter of the width */
#define P_STRIDE 40               /* halves of a row of 32 attention weights */
#define P_SCALE  16384.0f         /* of attention weights as halves */

#define MLA_ROWS 5 /* rows of a step, at most */

#define ROW_NAMES 12 /* named barriers: of 256 threads that have a row */

/* Bytes of a buffer: the cache rows of a segment, or the block's half of v_b */
#define BUFFER (SEGMENT * ROW)

/* Byte offsets in shared memory. k_b is overwritten by queries and scores; these by the values of
 * the segments, z of two rows and the sums of half the width of v_b. Bulk copy j = 0 .. ROWS goes
 * to buffer j % 2: for j < ROWS the cache rows of row j of the step, then v_b. */
#define AT_K       0
#define AT_QUERY   0
#define AT_SCORES  (2 * GROUP * ROW)
#define AT_JOIN    0
#define AT_Z       (AT_JOIN + PARTS * HALF * 4)
#define AT_HALVES  (AT_Z + 2 * HALF * 4)
#define AT_BUFFERS (AT_SCORES + 2 * 4 * GROUP * TILE * 4)
#define AT_WEIGHTS (AT_BUFFERS + 2 * BUFFER)
#define AT_LIMBS   (AT_WEIGHTS + 2 * 2 * GROUP * P_STRIDE * 2)
/* The output projection: the limbs of all values overwrite what overwrote k_b, its ring the buffers
 */
#define AT_VALUES 0

/* The form for ROWS rows of the step. AT_LIMBS has limbs of the halves of z of all rows, then of
 * q. */
template <int ROWS> struct mla_form {
	static constexpr int END = AT_LIMBS + 3 * ROWS * SUPER_BLOCK_LIMBS * 8;
};

/* The same with the output projection */
template <int ROWS> struct mla_product_form {
	typedef struct out_form<ROWS> out;
	static constexpr int AT_RING = out::LIMBS < AT_BUFFERS ? AT_BUFFERS : out::LIMBS;
	static constexpr int AT_PARTIALS = AT_RING + out::RING;
	static constexpr int AT_SCALES = AT_PARTIALS + out::PARTIALS;
	static constexpr int AT_HANDED = AT_SCALES + out::SCALES, OUT_END = AT_HANDED + out::HANDED;
	static constexpr int END = mla_form<ROWS>::END < OUT_END ? OUT_END : mla_form<ROWS>::END;

	static_assert(AT_PARTIALS <= AT_LIMBS, "the ring is filled while the limbs of z are used");
};

static_assert(WARPS * K_TILE + 256 <= AT_BUFFERS &&
				  AT_HALVES + MLA_ROWS * V_WARPS * 32 * 8 <= AT_BUFFERS &&
				  V_WARPS * V_TILE <= BUFFER,
	"what comes after k_b is larger");
static_assert(OUT_SUPER_BLOCKS == N_HEADS, "a head's values are a super-block");

/* mbarriers of a block: k_b; v_b; limbs of its own half of z of all rows, of the other block's
 * half; cache rows of each row of the step */
enum { HAS_K, HAS_V, HAS_OWN, HAS_OTHER, HAS_CACHE, N_BARRIERS = HAS_CACHE + MLA_ROWS };

struct mla_flags {
	uint32_t query[MLA_ROWS][N_HEADS][VALUE];
	/* in an order of their own, see column_of */
	uint32_t value[MLA_ROWS][N_HEADS][2][PARTS][HALF];
	uint32_t meta[MLA_ROWS][N_HEADS][2][PARTS][2]; /* maximum, sum */
	/* values for the output projection, two sets that launches alternate between */
	uint32_t out[2][OUT_ROWS][N_HEADS * OUT];
	/* Blocks started, modulo two launches: tells which set this launch has. Never FLAG_EMPTY. */
	uint32_t blocks;
};

struct mla_args {
	const uint8_t *k, *v;
	/* q: [rows][N_HEADS][q_stride], rotate: [rows][N_HEADS][rotate_stride] */
	const float *q, *rotate, *cos_sin;
	int64_t q_stride, rotate_stride;
	const __half *cache;
	const int32_t *base, *sel, *n_sel;
	int sel_stride;
	float scale;
	float *y;
	int64_t y_stride;
	struct mla_flags *flags;
	struct poll_report report;
	struct out_args out; /* the output projection, if any */
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/* Barrier of all warps but the last */
static __device__ __forceinline__ void heads_sync()
{
	named_barrier_sync(15, WARPS * 32);
}

/* Barrier of all warps: the rings may be filled */
static __device__ __forceinline__ void ring_sync()
{
	named_barrier_sync(14, THREADS);
}

/* Eight of 64 PAIRS values of x in fragment order; zeros behind the last */
template <int PAIRS>
static __device__ __forceinline__ void load_fragment_order(const float *x, float v[8])
{
	bool there = threadIdx.x % 32 / 4 < 2 * PAIRS;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		float2 two = make_float2(0, 0);
		if (there)
			two = *(const float2 *)(x + q8_tile_pair(i));
		v[2 * i] = two.x, v[2 * i + 1] = two.y;
	}
}

/* q8_tile_combine_limbs as the last addition of a split of one */
static __device__ __forceinline__ float combine(float v)
{
	return __fadd_rn(0.0f, q8_tile_combine_limbs(v));
}

/* The column of a half that is stored at index i: a lane of phase 2 has two neighbouring columns of
 * each 8. */
static __device__ __forceinline__ int column_of(int i)
{
	return i / 32 * 32 + (i / 16 % 2 * 2 + i / 2 % 2) * 8 + i / 4 % 4 * 2 + i % 2;
}

/* Bytes of row t, 16-byte piece `piece`, of the cache rows and queries in
 * shared memory */
static __device__ __forceinline__ uint32_t row_at(int t, int piece)
{
	return (uint32_t)(t * ROW + piece * 16);
}

/* Phase 2: the query of head `warp` of the group, scaled, as two halves to
 * shared memory. query: its flag words; angle, rope: the pair of values that
 * this lane rotates. */
static __device__ __forceinline__ void mla_split_query(const struct poll_report &report,
	uint8_t *shared, const uint32_t *query, float2 angle, float2 rope, float scale, int warp,
	int lane, float *unscale)
{
	uint4 raw[4];
	flag_wait<4>(report, query + 4 * lane, 128, 4, raw);
	float q[4][4], most;
	float2 rest = rotated(angle, rope);
	most = fmaxf(fabsf(rest.x), fabsf(rest.y));
#pragma unroll
	for (int i = 0; i < 4; i++) {
		q[i][0] = __uint_as_float(raw[i].x), q[i][1] = __uint_as_float(raw[i].y);
		q[i][2] = __uint_as_float(raw[i].z), q[i][3] = __uint_as_float(raw[i].w);
#pragma unroll
		for (int j = 0; j < 4; j++)
			most = fmaxf(most, fabsf(q[i][j]));
	}
#pragma unroll
	for (int step = 16; step; step /= 2)
		most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
	int e = half_exponent(most);
	float factor = power_of_two(e);
	if (!lane)
		unscale[warp] = __fmul_rn(power_of_two(-e), scale);
	uint8_t *hi = shared + AT_QUERY + warp * ROW, *lo = hi + GROUP * ROW;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		uint2 h, l;
		split_pair(__fmul_rn(q[i][0], factor), __fmul_rn(q[i][1], factor), h.x, l.x);
		split_pair(__fmul_rn(q[i][2], factor), __fmul_rn(q[i][3], factor), h.y, l.y);
		*(uint2 *)(hi + 256 * i + 8 * lane) = h;
		*(uint2 *)(lo + 256 * i + 8 * lane) = l;
	}
	uint32_t h, l;
	split_pair(__fmul_rn(rest.x, factor), __fmul_rn(rest.y, factor), h, l);
	*(uint32_t *)(hi + 2 * VALUE + 4 * lane) = h;
	*(uint32_t *)(lo + 2 * VALUE + 4 * lane) = l;
}

/* Phase 2: scores of 16 heads and a tile of positions over a quarter of the
 * width. warp % 4: the quarter, warp / 4: the tile; cache: shared address of the cache rows. */
static __device__ __forceinline__ void mla_scores(
	uint32_t base, uint32_t cache, float *quarter_scores, int warp, int lane)
{
	int r0 = lane / 4, c = lane % 4;
	constexpr int N = TILE / 8;
	int quarter = warp % 4, tile = warp / 4;
	float hi[N][4], lo[N][4];
#pragma unroll
	for (int n = 0; n < N; n++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			hi[n][i] = lo[n][i] = 0;
#pragma unroll
	for (int s = 0; s < STEPS; s++) {
		uint32_t q_hi[4], q_lo[4];
		int piece = (quarter * STEPS + s) * 2;
		load_matrices(q_hi, base + AT_QUERY + row_at(lane % 16, piece + lane / 16));
		load_matrices(q_lo, base + AT_QUERY + row_at(GROUP + lane % 16, piece + lane / 16));
#pragma unroll
		for (int n = 0; n < N; n += 2) {
			uint32_t b[4];
			load_matrices(b, cache + row_at(tile * TILE + n * 8 + lane / 16 * 8 + lane % 8,
										 piece + lane / 8 % 2));
			mma_half(hi[n], q_hi, b[0], b[1]);
			mma_half(hi[n + 1], q_hi, b[2], b[3]);
			mma_half(lo[n], q_lo, b[0], b[1]);
			mma_half(lo[n + 1], q_lo, b[2], b[3]);
		}
	}
#pragma unroll
	for (int n = 0; n < N; n++)
#pragma unroll
		for (int i = 0; i < 2; i++) {
			int h = r0 + 8 * i, t = (n * 8 + 2 * c) ^ (h & 3) * 8;
			*(float2 *)&quarter_scores[((tile * 4 + quarter) * GROUP + h) * TILE + t] =
				make_float2(__fadd_rn(hi[n][2 * i], lo[n][2 * i]),
					__fadd_rn(hi[n][2 * i + 1], lo[n][2 * i + 1]));
		}
}

/* Phase 2: softmax within a tile, 8 lanes a head, four positions a lane; here:
 * positions of the segment. */
static __device__ __forceinline__ void mla_softmax(const float *quarter_scores, int here, int tid,
	__half *weights, const float *unscale, float (*tops)[GROUP], float (*sums)[GROUP],
	float *shrink)
{
	int tile = tid / 128, h = tid / 8 % GROUP, t = tid % 8 * 4;
	float unscaled = unscale[h];
	auto scores = [&](int of, float s[4]) {
		const float *from = quarter_scores + (of * 4 * GROUP + h) * TILE + (t ^ (h & 3) * 8);
		float4 v[4];
#pragma unroll
		for (int k = 0; k < 4; k++)
			v[k] = *(const float4 *)(from + k * GROUP * TILE);
		s[0] = __fadd_rn(__fadd_rn(v[0].x, v[1].x), __fadd_rn(v[2].x, v[3].x));
		s[1] = __fadd_rn(__fadd_rn(v[0].y, v[1].y), __fadd_rn(v[2].y, v[3].y));
		s[2] = __fadd_rn(__fadd_rn(v[0].z, v[1].z), __fadd_rn(v[2].z, v[3].z));
		s[3] = __fadd_rn(__fadd_rn(v[0].w, v[1].w), __fadd_rn(v[2].w, v[3].w));
#pragma unroll
		for (int i = 0; i < 4; i++)
			s[i] = of * TILE + t + i < here ? __fmul_rn(s[i], unscaled) : -INFINITY;
		return fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3]));
	};
	float s[4], top = -INFINITY, most = scores(0, s);
	if (tile) {
		top = most;
		most = scores(1, s);
	}
#pragma unroll
	for (int step = 4; step; step /= 2) {
		top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
		most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
	}
	most = fmaxf(top, most);
	float e[4];
#pragma unroll
	for (int i = 0; i < 4; i++)
		e[i] = s[i] == -INFINITY ? 0 : exp_exact(s[i] - most);
	uint2 hi, lo;
	split_pair(__fmul_rn(e[0], P_SCALE), __fmul_rn(e[1], P_SCALE), hi.x, lo.x);
	split_pair(__fmul_rn(e[2], P_SCALE), __fmul_rn(e[3], P_SCALE), hi.y, lo.y);
	*(uint2 *)&weights[(tile * 2 * GROUP + h) * P_STRIDE + t] = hi;
	*(uint2 *)&weights[((tile * 2 + 1) * GROUP + h) * P_STRIDE + t] = lo;
	float total = __fadd_rn(__fadd_rn(e[0], e[1]), __fadd_rn(e[2], e[3]));
#pragma unroll
	for (int step = 4; step; step /= 2)
		total = __fadd_rn(total, __shfl_xor_sync(0xffffffffu, total, step));
	if (tid % 8 == 0) {
		tops[tile][h] = most;
		sums[tile][h] = total;
		if (tile)
			shrink[h] = top == -INFINITY ? 0 : exp_exact(top - most);
	}
}

/* Phase 2: values of the segment for 16 heads, 32 columns a warp. A tile's sum starts from zero and
 * is then added to the running sum. value: flag words of the group's heads; cache:
 * shared address of the cache rows. */
static __device__ __forceinline__ void mla_values(uint32_t (*value)[2][PARTS][HALF], int segment,
	bool two, uint32_t cache, const __half *weights, const float *shrink, int warp, int lane)
{
	int r0 = lane / 4, c = lane % 4;
	float acc[4][4];
#pragma unroll
	for (int n = 0; n < 4; n++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			acc[n][i] = 0;
#pragma unroll 1
	for (int tile = 0; tile <= two; tile++) {
		float v[4][4], f[2] = {tile ? shrink[r0] : 0, tile ? shrink[r0 + 8] : 0};
#pragma unroll
		for (int n = 0; n < 4; n++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				v[n][i] = 0;
#pragma unroll
		for (int s = 0; s < 2; s++) {
			uint32_t b[2][4], p[2][4];
#pragma unroll
			for (int term = 0; term < 2; term++)
				load_matrices(p[term],
					shared_address(&weights[((tile * 2 + term) * GROUP + lane % 16) * P_STRIDE +
											s * 16 + lane / 16 * 8]));
#pragma unroll
			for (int k = 0; k < 2; k++)
				load_matrices_transposed(b[k],
					cache + row_at(tile * TILE + s * 16 + lane % 16, warp * 4 + 2 * k + lane / 16));
#pragma unroll
			for (int term = 0; term < 2; term++)
#pragma unroll
				for (int k = 0; k < 4; k++)
					mma_half(v[k], p[term], b[k / 2][k % 2 * 2], b[k / 2][k % 2 * 2 + 1]);
		}
#pragma unroll
		for (int n = 0; n < 4; n++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				acc[n][i] = __fmaf_rn(acc[n][i], f[i / 2], v[n][i]);
	}
#pragma unroll
	for (int i = 0; i < 2; i++) {
		uint32_t *to = value[r0 + 8 * i][warp / 8][segment] + warp % 8 * 32 + 4 * c;
#pragma unroll
		for (int m = 0; m < 2; m++)
			flag_store4(to + 16 * m,
				make_uint4(flag_word(acc[2 * m][2 * i]), flag_word(acc[2 * m][2 * i + 1]),
					flag_word(acc[2 * m + 1][2 * i]), flag_word(acc[2 * m + 1][2 * i + 1])));
	}
}

/* Phase 3, by one warp: weight_of = the segments' weights, *by = the divisor of the values. meta:
 * flag words of segment `lane`; most_sum: an earlier load of them. */
static __device__ __forceinline__ void mla_segment_weights(const struct poll_report &report,
	const uint32_t *meta, uint2 most_sum, int n_segments, int lane, float *weight_of, float *by)
{
	for (unsigned polls = 0; most_sum.x == FLAG_EMPTY || most_sum.y == FLAG_EMPTY; polls++) {
		poll_again(report, polls);
		most_sum = flag_load2(meta);
	}
	__syncwarp();
	bool used = lane < n_segments;
	float most = used ? __uint_as_float(most_sum.x) : -INFINITY, top = most;
#pragma unroll
	for (int step = 16; step; step /= 2)
		top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
	float w = used ? exp_exact(most - top) : 0,
		  sum = used ? __fmaf_rn(__uint_as_float(most_sum.y), w, 0.0f) : 0;
	weight_of[lane] = w;
	sum = warp_sum(sum);
	if (!lane)
		*by = __fmul_rn(sum, P_SCALE);
}

#endif

#endif
