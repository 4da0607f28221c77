/* SPDX-License-Identifier: MIT */
/*
 * What differs by block type in experts_kernel (experts_fused.cu): two super-blocks of 16 rows
 * times one row of x, by one warp. Lane 4 r + c, c = 0 .. 3, has rows r and r + 8.
 *
 * IQ2_XXS: super-blocks u and u + 2, u counted in the stage. Both begin at the same offset modulo
 * 4: at 0 if u is even, at 2 if it is odd.
 *
 *      c   super-block   of a group of 32 weights   sums that it ends with, of rows r and r + 8
 *      0   u             weights 0 to 15            high and middle limb
 *      1   u             weights 16 to 31           low limb
 *      2   u + 2         weights 0 to 15            high and middle limb
 *      3   u + 2         weights 16 to 31           low limb
 *
 *   - A group is two products, of eight weights of each lane. Columns of B: 0, 1, 2 are the high,
 *     the middle and the low limb of u's part of x, zero for c = 2, 3; 4, 5, 6 those of u + 2, zero
 *     for c = 0, 1; 3 and 7 are zero. A lane has columns 2 c and 2 c + 1 of the result, which are
 *     of its own group: it multiplies them by its own scale.
 *   - Grid index and sign index of eight weights become their bytes by two lookups in tables with
 *     a copy per lane, at row * 128 + 4 * lane: 256 rows of the grid, then 256 of the signs. A
 *     sign index has seven bits. The first of a lane is taken with eight, the top one of which
 *     belongs to the next index; rows 128 to 255 of the signs therefore repeat rows 0 to 127.
 *
 * Q2_K
 *   - Super-blocks u and u + 1. c = 0, 1 take the first 16 weights of a step of 32, c = 2, 3 the
 *     others; columns 0 to 2 and 4 to 6 are the limbs.
 *   - Bytes are masked, not shifted: step j of four has 4^j times its weights, undone at the end.
 *   - Minima are multiplied by sums of 16 limbs. These have 12 bits, so each takes two columns: the
 *     signed low byte, and the rest divided by 256.
 *
 * expert_type<T>
 *   SUPER_BLOCK_BYTES  of a super-block; TABLE_BYTES: of the tables in shared memory
 *   APART              distance of a warp's two super-blocks
 *   first_super_block  of a warp
 *   constants_of       what a lane of a warp needs for all stages
 *   lane_offset        bytes from row r of the first super-block to the lane's part
 *   read_columns       from the limbs of the two and the scales of x
 *   PARTIALS           float4 from the results of a super-block to the next. A row has one: sums
 *                      of three limbs, scale of x. Rows 0 to 7 are 0 to 7, rows 8 to 15 are 10 to
 *                      17. IQ2_XXS: 2 * 18 is 4 modulo 8, so that the halves of a warp's store are
 *                      in different banks
 */
#ifndef GLM_KERNELS_CUDA_EXPERTS_FUSED_TYPES_CUH
#define GLM_KERNELS_CUDA_EXPERTS_FUSED_TYPES_CUH

#include "kernels/cuda/gemv/gemv_mma.cuh"

/* Shared address of the tables: where dynamic shared memory begins, behind what the system
 * reserves. The kernel checks it. */
#define TABLES_AT 1024

/* experts_kernel is empty below compute capability 9.0: nothing uses these functions. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#pragma nv_diag_suppress 177
#endif

static __device__ __forceinline__ void mma_u8(int d[4], const uint32_t a[4], uint2 b)
{
	asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
		"{%10,%10,%10,%10};"
		: "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(0));
}

static __device__ __forceinline__ void mma_k16(int d[4], uint32_t a0, uint32_t a1, uint32_t b)
{
	asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
		"{%7,%7,%7,%7};"
		: "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
		: "r"(a0), "r"(a1), "r"(b), "r"(0));
}

template <int T> struct expert_type;

/* Two super-blocks of x, eight values each in this lane, as write_limbs leaves them */
static __device__ __forceinline__ void write_two_limbs(
	const float v[2][8], uint2 *limbs, float scales[2])
{
	int lane = threadIdx.x % 32, s = lane / 4, c = lane % 4;
	uint32_t top[2] = {0, 0};
#pragma unroll
	for (int u = 0; u < 2; u++) {
#pragma unroll
		for (int i = 0; i < 8; i++)
			top[u] = max(top[u], __float_as_uint(v[u][i]) & 0x7fffffff);
		top[u] = __reduce_max_sync(0xffffffffu, top[u]);
	}
	/* one division: lanes 0 and 2 have the inverses, lanes 1 and 3 the scales */
	float most = __uint_as_float(lane & 2 ? top[1] : top[0]), limit = 8323072.0f;
	float ratio = __fdiv_rn(lane & 1 ? most : limit, lane & 1 ? limit : most);
	ratio = most < 0x1p-100f ? 0.0f : ratio;
#pragma unroll
	for (int u = 0; u < 2; u++) {
		float inv = __shfl_sync(0xffffffffu, ratio, 2 * u);
		uint32_t n[8];
#pragma unroll
		for (int i = 0; i < 8; i++) /* limbs are its bytes, less 128 each */
			n[i] = (uint32_t)__float2int_rn(__fmul_rn(v[u][i], inv)) + 0x808080u;
		uint32_t word[3][2];
#pragma unroll
		for (int k = 0; k < 2; k++) {
			const uint32_t *q = n + 4 * k;
			uint32_t two = __byte_perm(q[0], q[1], 0x5140), more = __byte_perm(q[2], q[3], 0x5140);
			word[2][k] = __byte_perm(two, more, 0x5410) ^ 0x80808080u;
			word[1][k] = __byte_perm(two, more, 0x7632) ^ 0x80808080u;
			two = __byte_perm(q[0], q[1], 0x0062), more = __byte_perm(q[2], q[3], 0x0062);
			word[0][k] = __byte_perm(two, more, 0x5410) ^ 0x80808080u;
		}
#pragma unroll
		for (int d = 0; d < 3; d++)
			limbs[u * SUPER_BLOCK_LIMBS + s * 12 + 4 * d + c] = make_uint2(word[d][0], word[d][1]);
	}
	if (lane < 4 && lane & 1)
		scales[lane / 2] = ratio;
}

template <> struct expert_type<DTYPE_IQ2_XXS> {
	static constexpr int SUPER_BLOCK_BYTES = 66, TABLE_BYTES = 65536, APART = 2, PARTIALS = 18;
	struct columns {
		uint2 step[8][2]; /* [group][eight of the lane's 16 weights] */
		float x_scale;
	};
	struct constants {
		uint32_t lane4;        /* 4 times the lane */
		uint32_t magnitudes;   /* 8, 25, 43 */
		uint32_t grid_byte[2]; /* for __dp4a: 128 in the byte of the first, second grid index */
		uint32_t sign_shift;   /* to the lane's first sign index */
	};
	/* An odd super-block: word 0 of a group has grid indices 0 to 3, word 1 signs and scale. An
	 * even one: aligned words begin two bytes before the group. Grid indices 0 and 1 (even c) are
	 * the upper bytes of one word, 2 and 3 (odd c) the lower bytes of the next. */
	static __device__ __forceinline__ struct constants constants_of(int lane, int first_super_block)
	{
		uint32_t first = (lane & 1) == (first_super_block & 1) ? 0x800000 : 0x80;
		struct constants a = {4u * lane, 0x002b1908, {first, first << 8}, lane & 1 ? 14u : 0u};
		/* kept in registers: the compiler would make them anew each time */
		asm volatile(""
					 : "+r"(a.lane4), "+r"(a.magnitudes), "+r"(a.grid_byte[0]),
					 "+r"(a.grid_byte[1]), "+r"(a.sign_shift));
		return a;
	}
	/* Warps w, w + 4 and w + 8 share a scheduler. Some of them have even super-blocks, which take
	 * more instructions, others odd ones. */
	static __device__ __forceinline__ int first_super_block(int warp)
	{
		return warp / 2 * 4 + ((warp ^ warp >> 2) & 1);
	}
	static __device__ __forceinline__ int lane_offset(int lane)
	{
		return (lane & 2) * SUPER_BLOCK_BYTES;
	}
	static __device__ __forceinline__ void read_columns(
		const uint2 *limbs, const float *x_scales, int lane, struct columns &b)
	{
		int c = lane % 4, n = lane / 4;
		const uint2 *d = limbs + c / 2 * SUPER_BLOCK_LIMBS + 4 * (n % 4) + 2 * (c % 2);
		bool mine = c / 2 == n / 4 && n % 4 < 3;
		b.x_scale = x_scales[c / 2];
#pragma unroll
		for (int g = 0; g < 8; g++)
#pragma unroll
			for (int t = 0; t < 2; t++)
				b.step[g][t] = mine ? d[g * 12 + t] : make_uint2(0, 0);
	}
	static __device__ __forceinline__ void fill_tables(
		const struct cuda_tables *t, uint8_t *shared, int first, int threads)
	{
		for (int i = first; i < 512; i += threads) {
			int row = i & 255;
			uint32_t w = i & 256 ? t->sign_nibbles[row & 127] : t->iq2xxs_nibbles[row];
			uint4 *to = (uint4 *)(shared + i * 128);
#pragma unroll
			for (int k = 0; k < 8; k++)
				to[(k + i) & 7] = make_uint4(w, w, w, w); /* eight threads: different banks */
		}
	}
	/* t: the first or the second eight of the lane's 16 weights. signs: bits 0 to 6 and 7 to 13 are
	 * the sign indices of the two. */
	static __device__ __forceinline__ void eight_weights(const struct constants &constants,
		uint32_t index_word, uint32_t signs, int t, uint32_t &lo, uint32_t &hi)
	{
		/* 128 * index + 4 * lane. A sign index in bits 7 to 13 is multiplied by 128 already. */
		uint32_t row = __dp4a(index_word, constants.grid_byte[t], constants.lane4);
		uint32_t sign =
			t ? (signs & 0x3f80) | constants.lane4 : __dp4a(signs, 0x80u, constants.lane4);
		uint32_t g, s, pick;
		asm("ld.shared.u32 %0, [%1+%2];" : "=r"(g) : "r"(row), "n"(TABLES_AT));
		asm("ld.shared.u32 %0, [%1+%2];" : "=r"(s) : "r"(sign), "n"(TABLES_AT + 256 * 128));
		/* g and s have no common bit, so the sum is g | s. It is made by a multiplication, in units
		 * that have less to do. */
		asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(pick) : "r"(g), "r"(1), "r"(s));
		lo = pick_bytes(constants.magnitudes, 0x00d5e7f8, pick);
		hi = pick_bytes(constants.magnitudes, 0x00d5e7f8, pick >> 16);
	}
	/* ODD: p is 2 modulo 4, and the aligned words begin at p + 2; else at p. */
	template <bool ODD>
	static __device__ __forceinline__ void super_block_pair(const uint8_t *p, int stride8, int lane,
		const struct constants &constants, const struct columns &b, float4 *partial)
	{
		int c = lane % 4, whole[2][2]; /* [row][column of this lane] */
		uint32_t next[2];              /* not ODD: the word in which the next group begins */
#pragma unroll
		for (int i = 0; i < 2; i++)
			next[i] = ODD ? 0 : *(const uint32_t *)(p + i * stride8);
#pragma unroll
		for (int g = 0; g < 8; g++) {
			uint32_t index[2], second[2]; /* second word of the group: signs and scale */
#pragma unroll
			for (int i = 0; i < 2; i++) {
				const uint32_t *from = (const uint32_t *)(p + i * stride8 + 8 * g + (ODD ? 2 : 0));
				if (ODD) {
					index[i] = from[0];
					second[i] = from[1];
				} else {
					uint32_t middle = from[1];
					index[i] = c & 1 ? middle : next[i];
					next[i] = from[2];
					second[i] = __byte_perm(middle, next[i], 0x5432);
				}
			}
			int d[4];
#pragma unroll
			for (int t = 0; t < 2; t++) {
				uint32_t m[4];
#pragma unroll
				for (int i = 0; i < 2; i++)
					eight_weights(
						constants, index[i], second[i] >> constants.sign_shift, t, m[i], m[2 + i]);
				if (t)
					mma_16832_add(d, m, b.step[g][t]);
				else
					mma_16832(d, m, b.step[g][t], 0);
			}
#pragma unroll
			for (int i = 0; i < 2; i++) {
				int scale = (int)(second[i] >> 27 | 1);
#pragma unroll
				for (int k = 0; k < 2; k++)
					whole[i][k] = g ? whole[i][k] + scale * d[2 * i + k] : scale * d[2 * i + k];
			}
		}
#pragma unroll
		for (int i = 0; i < 2; i++) {
			float unit = half_float(get16(p + i * stride8)) * 0.125f, v[2];
#pragma unroll
			for (int k = 0; k < 2; k++)
				v[k] = __fmul_rn(unit, (float)whole[i][k]);
			float2 *to = (float2 *)(partial + c / 2 * APART * PARTIALS + lane / 4 + 10 * i);
			to[c & 1] = make_float2(v[0], c & 1 ? b.x_scale : v[1]);
		}
	}
	/* p: at this lane's place of row r; first: the number of the first super-block */
	static __device__ __forceinline__ void two_super_blocks(const uint8_t *p, int first,
		int stride8, int lane, const struct constants &constants, const struct columns &b,
		float4 *partial)
	{
		if (first & 1)
			super_block_pair<true>(p, stride8, lane, constants, b, partial);
		else
			super_block_pair<false>(p, stride8, lane, constants, b, partial);
	}
};

template <> struct expert_type<DTYPE_Q2_K> {
	static constexpr int SUPER_BLOCK_BYTES = 84, TABLE_BYTES = 0, APART = 1, PARTIALS = 20;
	struct super_block_columns {
		uint2 step[8];
		uint32_t outer, mid; /* sums of 16 limbs */
		float x_scale;
	};
	struct columns {
		struct super_block_columns of[2];
	};
	struct constants {
	};
	static __device__ __forceinline__ struct constants constants_of(int, int) { return {}; }
	static __device__ __forceinline__ int first_super_block(int warp) { return 2 * warp; }
	static __device__ __forceinline__ int lane_offset(int) { return 0; }
	static __device__ __forceinline__ void read_columns(
		const uint2 *limbs, const float *x_scales, int lane, struct columns &b)
	{
#pragma unroll
		for (int u = 0; u < 2; u++) {
			read_super_block(limbs + u * SUPER_BLOCK_LIMBS, lane, b.of[u]);
			b.of[u].x_scale = x_scales[u];
		}
	}
	static __device__ __forceinline__ void read_super_block(
		const uint2 *limbs, int lane, struct super_block_columns &b)
	{
		int c = lane % 4, n = lane / 4;
		bool mine = c / 2 == n / 4 && n % 4 < 3;
#pragma unroll
		for (int s = 0; s < 8; s++)
			b.step[s] = mine ? limbs[s * 12 + 4 * (n % 4) + c] : make_uint2(0, 0);
		b.outer = b.mid = 0;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const uint2 *d = limbs + (2 * c + i / 2) * 12 + 2 * (i & 1);
			int sum[2];
#pragma unroll
			for (int k = 0; k < 2; k++) {
				const uint2 *f = d + 4 * (k ? 1 : n & 2 ? 2 : 0);
				uint2 g = f[0], h = f[1];
				sum[k] = __dp4a((int)g.x, 0x01010101,
					__dp4a((int)g.y, 0x01010101,
						__dp4a((int)h.x, 0x01010101, __dp4a((int)h.y, 0x01010101, 0))));
				int low = (int)(int8_t)sum[k];
				sum[k] = n & 1 ? low : (sum[k] - low) >> 8;
			}
			b.outer |= (uint32_t)(sum[0] & 255) << 8 * i;
			if (!(n & 2))
				b.mid |= (uint32_t)(sum[1] & 255) << 8 * i;
		}
	}
	static __device__ void fill_tables(const struct cuda_tables *, uint8_t *, int, int) {}
	static __device__ __forceinline__ void two_super_blocks(const uint8_t *p, int, int stride8,
		int lane, const struct constants &, const struct columns &b, float4 *partial)
	{
		one_super_block<false>(p, stride8, lane, b.of[0], partial);
		one_super_block<true>(p + SUPER_BLOCK_BYTES, stride8, lane, b.of[1], partial + PARTIALS);
	}
	template <bool ODD>
	static __device__ __forceinline__ void one_super_block(const uint8_t *p, int stride8, int lane,
		const struct super_block_columns &b, float4 *partial)
	{
		int c = lane % 4;
		uint32_t scales[2][2], least[2], word[2][2][2];
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const uint32_t *w = (const uint32_t *)(p + i * stride8);
#pragma unroll
			for (int h = 0; h < 2; h++) {
				scales[i][h] =
					__byte_perm(w[2 * h], w[2 * h + 1], c & 2 ? 0x7531 : 0x6420) & 0x0f0f0f0f;
				if (ODD) {
					word[i][h][0] = w[4 + 8 * h + 2 * c];
					word[i][h][1] = w[5 + 8 * h + 2 * c];
				} else {
					uint2 two = *(const uint2 *)(w + 4 + 8 * h + 2 * c);
					word[i][h][0] = two.x;
					word[i][h][1] = two.y;
				}
			}
			least[i] = w[c] >> 4 & 0x0f0f0f0f;
		}
		/* a step's bytes hold 4^j times the weights */
		int sum[4][4];
#pragma unroll
		for (int h = 0; h < 2; h++)
#pragma unroll
			for (int j = 0; j < 4; j++) {
				uint32_t m[4];
#pragma unroll
				for (int i = 0; i < 4; i++)
					m[i] = word[i & 1][h][i >> 1] & 0x03030303u << 2 * j;
				int d[4];
				mma_u8(d, m, b.step[4 * h + j]);
#pragma unroll
				for (int i = 0; i < 4; i++) {
					int scale = (int)byte_of(scales[i / 2][h], j);
					sum[j][i] = h ? sum[j][i] + scale * d[i] : scale * d[i];
				}
			}
		int all[4], l0[4], l1[4];
#pragma unroll
		for (int i = 0; i < 4; i++)
			all[i] = ((sum[0][i] * 4 + sum[1][i]) * 4 + sum[2][i]) * 4 + sum[3][i];
		mma_k16(l0, least[0], least[1], b.outer);
		mma_k16(l1, least[0], least[1], b.mid);
		/* lanes 0, 1 keep row r, lanes 2, 3 row r + 8; even ones have the high and the middle
		 * limb, odd ones the low one */
		bool upper = c & 2;
		const uint32_t head = *(const uint32_t *)(p + (upper ? stride8 : 0) + 80);
		float unit = half_float(head & 0xffff), minimum = half_float(head >> 16);
		float v[2];
#pragma unroll
		for (int k = 0; k < 2; k++) {
			int whole = upper ? all[2 + k] : all[k];
			whole += __shfl_xor_sync(0xffffffffu, upper ? all[k] : all[2 + k], 2);
			const int *l = k ? l1 : l0;
			int least_sum = upper ? l[2] * 256 + l[3] : l[0] * 256 + l[1];
			v[k] = __fmaf_rn(-minimum, (float)least_sum, __fmul_rn(unit, (float)(whole >> 6)));
		}
		float2 *to = (float2 *)(partial + lane / 4 + (upper ? 10 : 0));
		to[c & 1] = make_float2(v[0], c & 1 ? b.x_scale : v[1]);
	}
};

#endif
