/* SPDX-License-Identifier: MIT */
/*
 * Packed blocks (src/quant/blocks.h) as signed bytes, eight weights at a time, for the integer
 * tensor cores.
 *
 * A super-block is 256 weights, a step 32 of them. Of a step, lane c = 0 .. 3 of a row has weights
 * 8 c .. 8 c + 7, or, where the type has QUADS, 4 c .. 4 c + 3 and 16 + 4 c .. 16 + 4 c + 3.
 *
 *      weight = factor * byte - minimum * least
 *
 * The second term: if LEAST (the type has minima). factor is
 *
 *   SCALE_FLOAT    scale(s), a float for each step            (unit unused)
 *   SCALE_STEP     unit * scale(s), an integer for each step
 *   SCALE_HALF     the same, one for the first 16 and one for the last 16 weights of a step
 *   SCALE_NONE     unit; the sub-blocks' scales are in the bytes
 *
 * struct bytes_type<T> has, for super-block u of a stage in shared memory, at p:
 *
 *   read_head(p, c, tables, h)           what lane c needs once per super-block
 *   bytes(p, h, u, s, c, tables, a, b)   the eight bytes of lane c of step s: the first four in a
 *   scale(p, h, s [, half])              as above
 *   least(h, s)                          `least` of step s in all four bytes (LEAST)
 *
 * A stage begins at a multiple of 16, so p is 4-byte aligned if SUPER_BLOCK_BYTES is a multiple
 * of 4.
 */
#ifndef GLM_KERNELS_CUDA_BLOCK_BYTES_CUH
#define GLM_KERNELS_CUDA_BLOCK_BYTES_CUH

#include "kernels/cuda/common/block_dot.cuh"

enum scale_kind { SCALE_FLOAT, SCALE_STEP, SCALE_HALF, SCALE_NONE };

template <int T> struct bytes_type;

/* Codebooks of IQ2_XXS in shared memory: one copy for each lane, so that look-ups have no bank
 * conflicts */
struct lane_tables {
	const uint8_t *base; /* grid [256][32] words and signs [128][32] words */
	uint32_t lane;       /* this lane's column: 4 * lane */
};

/* Fills them, 48 KiB from `shared` on, by the n_threads threads of a block. */
static __device__ __forceinline__ void lane_tables_fill(
	uint8_t *shared, const struct cuda_tables *t, int n_threads)
{
	for (int i = threadIdx.x; i < 384 * 8; i += n_threads) {
		uint32_t w = i < 256 * 8 ? t->iq2xxs_nibbles[i / 8] : t->sign_nibbles[i / 8 - 256];
		((uint4 *)shared)[i] = make_uint4(w, w, w, w);
	}
}

/* Byte i of the result is byte (nibble i of pick) of the eight bytes a, b. Without the masking of
 * __byte_perm: the nibbles' top bits must be 0, or the byte's sign is replicated. */
static __device__ __forceinline__ uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t pick)
{
	uint32_t d;
	asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(pick));
	return d;
}

static __device__ __forceinline__ uint32_t byte_of(uint32_t w, int i)
{
	return __byte_perm(w, 0, 0x4440 | i);
}

/* Byte i in all four */
static __device__ __forceinline__ uint32_t replicate_byte(uint32_t w, int i)
{
	return __byte_perm(w, 0, 0x1111 * i);
}

template <> struct bytes_type<DTYPE_Q8_0> {
	static constexpr enum scale_kind SCALE = SCALE_FLOAT;
	static constexpr bool LEAST = false, QUADS = true, TABLES = false;
	struct head {
	};
	static __device__ __forceinline__ void read_head(
		const uint8_t *, int, const struct cuda_tables *, struct head &)
	{
	}
	/* p is a multiple of 4 */
	static __device__ __forceinline__ void bytes(const uint8_t *p, const struct head &, int, int s,
		int c, const struct lane_tables &, uint32_t &a, uint32_t &b)
	{
		const uint32_t *w = (const uint32_t *)(p + 34 * s + (s & 1 ? 2 : 0) + 4 * c);
		if (s & 1) {
			a = w[0];
			b = w[4];
		} else {
			a = __byte_perm(w[0], w[1], 0x5432);
			b = __byte_perm(w[4], w[5], 0x5432);
		}
	}
	static __device__ __forceinline__ float scale(const uint8_t *p, const struct head &, int s)
	{
		return half_float(get16(p + 34 * s));
	}
};

/* the 6-bit scales and minima of Q4_K and Q5_K, a byte each */
struct six_bits {
	uint32_t scale[2], least[2];
	float unit, minimum;
};

static __device__ __forceinline__ void read_six_bits(const uint8_t *p, struct six_bits &h)
{
	const uint32_t *w = (const uint32_t *)p;
	uint32_t a = w[1], b = w[2], c = w[3];
	h.unit = half_float(w[0] & 0xffff);
	h.minimum = half_float(w[0] >> 16);
	h.scale[0] = a & 0x3f3f3f3f;
	h.least[0] = b & 0x3f3f3f3f;
	h.scale[1] = (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030);
	h.least[1] = (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030);
}

template <> struct bytes_type<DTYPE_Q4_K> {
	static constexpr enum scale_kind SCALE = SCALE_STEP;
	static constexpr bool LEAST = true, QUADS = false, TABLES = false;
	struct head : six_bits {
	};
	static __device__ __forceinline__ void read_head(
		const uint8_t *p, int, const struct cuda_tables *, struct head &h)
	{
		read_six_bits(p, h);
	}
	static __device__ __forceinline__ void bytes(const uint8_t *p, const struct head &, int, int s,
		int c, const struct lane_tables &, uint32_t &a, uint32_t &b)
	{
		const uint32_t *w = (const uint32_t *)(p + 16 + s / 2 * 32 + 8 * c);
		a = w[0] >> 4 * (s & 1) & 0x0f0f0f0f;
		b = w[1] >> 4 * (s & 1) & 0x0f0f0f0f;
	}
	static __device__ __forceinline__ int scale(const uint8_t *, const struct head &h, int s)
	{
		return (int)byte_of(h.scale[s / 4], s % 4);
	}
	static __device__ __forceinline__ uint32_t least(const struct head &h, int s)
	{
		return replicate_byte(h.least[s / 4], s % 4);
	}
};

template <> struct bytes_type<DTYPE_Q2_K> {
	static constexpr enum scale_kind SCALE = SCALE_NONE;
	static constexpr bool LEAST = true, QUADS = false, TABLES = false;
	struct head {
		uint32_t scale[2], least[2]; /* of this lane's half of each step: steps 0 .. 3, 4 .. 7 */
		float unit, minimum;
	};
	static __device__ __forceinline__ void read_head(
		const uint8_t *p, int c, const struct cuda_tables *, struct head &h)
	{
		const uint32_t *w = (const uint32_t *)p;
#pragma unroll
		for (int i = 0; i < 2; i++) {
			uint32_t sc = __byte_perm(w[2 * i], w[2 * i + 1], c & 2 ? 0x7531 : 0x6420);
			h.scale[i] = sc & 0x0f0f0f0f;
			h.least[i] = sc >> 4 & 0x0f0f0f0f;
		}
		h.unit = half_float(w[20] & 0xffff);
		h.minimum = half_float(w[20] >> 16);
	}
	static __device__ __forceinline__ void bytes(const uint8_t *p, const struct head &h, int, int s,
		int c, const struct lane_tables &, uint32_t &a, uint32_t &b)
	{
		const uint32_t *w = (const uint32_t *)(p + 16 + s / 4 * 32 + 8 * c);
		uint32_t scale = byte_of(h.scale[s / 4], s % 4);
		a = (w[0] >> 2 * (s % 4) & 0x03030303) * scale;
		b = (w[1] >> 2 * (s % 4) & 0x03030303) * scale;
	}
	static __device__ __forceinline__ uint32_t least(const struct head &h, int s)
	{
		return replicate_byte(h.least[s / 4], s % 4);
	}
};

template <> struct bytes_type<DTYPE_Q5_K> {
	static constexpr enum scale_kind SCALE = SCALE_STEP;
	static constexpr bool LEAST = true, QUADS = false, TABLES = false;
	struct head : six_bits {
	};
	static __device__ __forceinline__ void read_head(
		const uint8_t *p, int, const struct cuda_tables *, struct head &h)
	{
		read_six_bits(p, h);
	}
	static __device__ __forceinline__ void bytes(const uint8_t *p, const struct head &, int, int s,
		int c, const struct lane_tables &, uint32_t &a, uint32_t &b)
	{
		const uint32_t *w = (const uint32_t *)(p + 48 + s / 2 * 32 + 8 * c),
					   *high = (const uint32_t *)(p + 16 + 8 * c);
		a = (w[0] >> 4 * (s & 1) & 0x0f0f0f0f) | (high[0] >> s & 0x01010101) << 4;
		b = (w[1] >> 4 * (s & 1) & 0x0f0f0f0f) | (high[1] >> s & 0x01010101) << 4;
	}
	static __device__ __forceinline__ int scale(const uint8_t *, const struct head &h, int s)
	{
		return (int)byte_of(h.scale[s / 4], s % 4);
	}
	static __device__ __forceinline__ uint32_t least(const struct head &h, int s)
	{
		return replicate_byte(h.least[s / 4], s % 4);
	}
};

/* Subtracts ZERO, a power of two, from each byte of w; the bytes are below 2 * ZERO. */
template <int ZERO> static __device__ __forceinline__ uint32_t subtract_zero(uint32_t w)
{
	uint32_t t = w ^ ZERO * 0x01010101u;
	return t + (t & ZERO * 0x01010101u) * (256 / ZERO - 2);
}

/* Head of types whose only value for a super-block is `unit` */
struct unit_head {
	float unit;
};

template <> struct bytes_type<DTYPE_Q6_K> {
	static constexpr enum scale_kind SCALE = SCALE_HALF;
	static constexpr bool LEAST = false, QUADS = false, TABLES = false;
	typedef struct unit_head head;
	static __device__ __forceinline__ void read_head(
		const uint8_t *p, int, const struct cuda_tables *, struct unit_head &h)
	{
		h.unit = half_float(((const struct block_q6_k *)p)->d);
	}
	static __device__ __forceinline__ void bytes(const uint8_t *p, const struct unit_head &, int,
		int s, int c, const struct lane_tables &, uint32_t &a, uint32_t &b)
	{
		const uint8_t *low = p + s / 4 * 64 + s % 2 * 32 + 8 * c,
					  *high = p + 128 + s / 4 * 32 + 8 * c;
		int g = s % 4;
		a = subtract_zero<32>(
			(get32(low) >> (g & 2) * 2 & 0x0f0f0f0f) | (get32(high) >> 2 * g & 0x03030303) << 4);
		b = subtract_zero<32>((get32(low + 4) >> (g & 2) * 2 & 0x0f0f0f0f) |
							  (get32(high + 4) >> 2 * g & 0x03030303) << 4);
	}
	static __device__ __forceinline__ int scale(
		const uint8_t *p, const struct unit_head &, int s, int half)
	{
		return ((const struct block_q6_k *)p)->sc[2 * s + half];
	}
};

template <> struct bytes_type<DTYPE_Q3_K> {
	static constexpr enum scale_kind SCALE = SCALE_HALF;
	static constexpr bool LEAST = false, QUADS = false, TABLES = false;
	typedef struct unit_head head;
	static __device__ __forceinline__ void read_head(
		const uint8_t *p, int, const struct cuda_tables *, struct unit_head &h)
	{
		h.unit = half_float(((const struct block_q3_k *)p)->d);
	}
	static __device__ __forceinline__ void bytes(const uint8_t *p, const struct unit_head &, int,
		int s, int c, const struct lane_tables &, uint32_t &a, uint32_t &b)
	{
		const uint8_t *low = p + 32 + s / 4 * 32 + 8 * c, *high = p + 8 * c;
		int g = s % 4;
		a = subtract_zero<4>(
			(get32(low) >> 2 * g & 0x03030303) | (get32(high) >> s & 0x01010101) << 2);
		b = subtract_zero<4>(
			(get32(low + 4) >> 2 * g & 0x03030303) | (get32(high + 4) >> s & 0x01010101) << 2);
	}
	static __device__ __forceinline__ int scale(
		const uint8_t *p, const struct unit_head &, int s, int half)
	{
		return k_scale6_signed(((const struct block_q3_k *)p)->sc, 2 * s + half);
	}
};

template <> struct bytes_type<DTYPE_Q4_0> {
	static constexpr enum scale_kind SCALE = SCALE_FLOAT;
	static constexpr bool LEAST = false, QUADS = true, TABLES = false;
	struct head {
	};
	static __device__ __forceinline__ void read_head(
		const uint8_t *, int, const struct cuda_tables *, struct head &)
	{
	}
	static __device__ __forceinline__ void bytes(const uint8_t *p, const struct head &, int, int s,
		int c, const struct lane_tables &, uint32_t &a, uint32_t &b)
	{
		uint32_t w = get32(p + 18 * s + 2 + 4 * c);
		a = subtract_zero<8>(w & 0x0f0f0f0f);
		b = subtract_zero<8>(w >> 4 & 0x0f0f0f0f);
	}
	static __device__ __forceinline__ float scale(const uint8_t *p, const struct head &, int s)
	{
		return half_float(get16(p + 18 * s));
	}
};

/* The sixteen values of IQ4_NL and IQ4_XS */
struct nl_head {
	uint32_t value[4];
	float unit;
};

static __device__ __forceinline__ void read_nl(const struct cuda_tables *t, struct nl_head &h)
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		h.value[i] = ((const uint32_t *)t->iq4nl)[i];
}

/* Eight nibbles: the low ones of the four bytes to a, the high ones to b */
static __device__ __forceinline__ void nl_bytes(
	const struct nl_head &h, uint32_t w, uint32_t &a, uint32_t &b)
{
	uint32_t two[2];
#pragma unroll
	for (int i = 0; i < 2; i++, w >>= 16) {
		uint32_t below = pick_bytes(h.value[0], h.value[1], w & 0x7777),
				 above = pick_bytes(h.value[2], h.value[3], w & 0x7777);
		two[i] = pick_bytes(below, above, 0x3210 | (w & 0x8888) >> 1);
	}
	a = __byte_perm(two[0], two[1], 0x6420);
	b = __byte_perm(two[0], two[1], 0x7531);
}

template <> struct bytes_type<DTYPE_IQ4_NL> {
	static constexpr enum scale_kind SCALE = SCALE_FLOAT;
	static constexpr bool LEAST = false, QUADS = true, TABLES = false;
	typedef struct nl_head head;
	static __device__ __forceinline__ void read_head(
		const uint8_t *, int, const struct cuda_tables *t, struct nl_head &h)
	{
		read_nl(t, h);
	}
	static __device__ __forceinline__ void bytes(const uint8_t *p, const struct nl_head &h, int,
		int s, int c, const struct lane_tables &, uint32_t &a, uint32_t &b)
	{
		nl_bytes(h, get32(p + 18 * s + 2 + 4 * c), a, b);
	}
	static __device__ __forceinline__ float scale(const uint8_t *p, const struct nl_head &, int s)
	{
		return half_float(get16(p + 18 * s));
	}
};

template <> struct bytes_type<DTYPE_IQ4_XS> {
	static constexpr enum scale_kind SCALE = SCALE_STEP;
	static constexpr bool LEAST = false, QUADS = true, TABLES = false;
	typedef struct nl_head head;
	static __device__ __forceinline__ void read_head(
		const uint8_t *p, int, const struct cuda_tables *t, struct nl_head &h)
	{
		read_nl(t, h);
		h.unit = half_float(get16(p));
	}
	static __device__ __forceinline__ void bytes(const uint8_t *p, const struct nl_head &h, int,
		int s, int c, const struct lane_tables &, uint32_t &a, uint32_t &b)
	{
		nl_bytes(h, get32(p + 8 + 16 * s + 4 * c), a, b);
	}
	static __device__ __forceinline__ int scale(const uint8_t *p, const struct nl_head &, int s)
	{
		const struct block_iq4_xs *b = (const struct block_iq4_xs *)p;
		return ((b->scales_low[s / 2] >> (s & 1) * 4 & 15) | (b->scales_high >> 2 * s & 3) << 4) -
			   32;
	}
};

/* Magnitudes 1 .. 127 with the sign bits of the low nibble of `sign` (bit i: weight i negative) */
static __device__ __forceinline__ uint32_t signed_bytes(uint32_t w, uint32_t sign)
{
	uint32_t ones = (sign & 15) * 0x00204081 & 0x01010101;
	return (w ^ ones * 255) + ones;
}

static __device__ __forceinline__ int odd_nibble(uint32_t two, int half)
{
	return (int)(2 * (two >> 4 * half & 15) + 1);
}

static __device__ __forceinline__ uint32_t rotate_left(uint32_t w, int left)
{
	return __funnelshift_l(w, w, left);
}

template <> struct bytes_type<DTYPE_IQ2_XXS> {
	static constexpr enum scale_kind SCALE = SCALE_STEP;
	static constexpr bool LEAST = false, QUADS = false, TABLES = true;
	struct head {
		float unit;
		uint32_t signs; /* second word of the step of the last call of bytes_of() */
	};
	static __device__ __forceinline__ void read_head(
		const uint8_t *p, int, const struct cuda_tables *, struct head &h)
	{
		h.unit = half_float(get16(p)) * 0.125f; /* d (0.5 + n) / 4 = (d / 8) (2 n + 1) */
		h.signs = 0;
	}
	/* Signs and scale of step s (its second 32-bit word) in the fewest loads that the alignment of
	 * super-block u allows; the stage begins at a multiple of 8 */
	static __device__ __forceinline__ uint32_t second_word(const uint8_t *p, int u, int s)
	{
		if (u & 1)
			return *(const uint32_t *)(p + 6 + 8 * s);
		if (u & 2) {
			uint2 v = *(const uint2 *)(p + 4 + 8 * s);
			return __byte_perm(v.x, v.y, 0x5432);
		}
		uint32_t low = s ? ((const uint2 *)(p + 8 * s))->y : *(const uint32_t *)(p + 4);
		return __byte_perm(low, ((const uint2 *)(p + 8 + 8 * s))->x, 0x5432);
	}
	static __device__ __forceinline__ void bytes(const uint8_t *p, struct head &h, int u, int s,
		int c, const struct lane_tables &t, uint32_t &a, uint32_t &b)
	{
		bytes_of(p[2 + 8 * s + c], second_word(p, u, s), h, c, t, a, b);
	}
	/* row: index into the grid; word: the step's second one. A nibble of `pick` is 0, 1 or 2 for
	 * the magnitudes 8, 25, 43, and 4 more if the weight is negative. The bytes are returned xor
	 * FLIP.
	 */
	template <uint32_t FLIP = 0>
	static __device__ __forceinline__ void bytes_of(uint32_t row, uint32_t word, struct head &h,
		int c, const struct lane_tables &t, uint32_t &a, uint32_t &b)
	{
		h.signs = word;
		uint32_t pick =
			*(const uint32_t *)(t.base + (row * 128 + t.lane)) |
			*(const uint32_t *)(t.base + ((rotate_left(h.signs, 7 - 7 * c) & 0x3f80) | t.lane) +
								32768);
		a = pick_bytes(0x002b1908 ^ FLIP, 0x00d5e7f8 ^ FLIP, pick);
		b = pick_bytes(0x002b1908 ^ FLIP, 0x00d5e7f8 ^ FLIP, pick >> 16);
	}
	static __device__ __forceinline__ int scale(const uint8_t *, const struct head &h, int)
	{
		return (int)(h.signs >> 27 | 1);
	}
};

template <> struct bytes_type<DTYPE_IQ2_XS> {
	static constexpr enum scale_kind SCALE = SCALE_HALF;
	static constexpr bool LEAST = false, QUADS = false, TABLES = false;
	struct head {
		const struct cuda_tables *t;
		float unit;
	};
	static __device__ __forceinline__ void read_head(
		const uint8_t *p, int, const struct cuda_tables *t, struct head &h)
	{
		h.t = t;
		h.unit = half_float(get16(p)) * 0.125f;
	}
	static __device__ __forceinline__ void bytes(const uint8_t *p, const struct head &h, int, int s,
		int c, const struct lane_tables &, uint32_t &a, uint32_t &b)
	{
		uint32_t w = ((const struct block_iq2_xs *)p)->q[4 * s + c], sign = h.t->signs[w >> 9];
		a = signed_bytes(h.t->iq2xs[2 * (w & 511)], sign);
		b = signed_bytes(h.t->iq2xs[2 * (w & 511) + 1], sign >> 4);
	}
	static __device__ __forceinline__ int scale(
		const uint8_t *p, const struct head &, int s, int half)
	{
		return odd_nibble(((const struct block_iq2_xs *)p)->sc[s], half);
	}
};

template <> struct bytes_type<DTYPE_IQ2_S> {
	static constexpr enum scale_kind SCALE = SCALE_HALF;
	static constexpr bool LEAST = false, QUADS = false, TABLES = false;
	typedef struct bytes_type<DTYPE_IQ2_XS>::head head;
	static __device__ __forceinline__ void read_head(
		const uint8_t *p, int c, const struct cuda_tables *t, head &h)
	{
		bytes_type<DTYPE_IQ2_XS>::read_head(p, c, t, h);
	}
	static __device__ __forceinline__ void bytes(const uint8_t *p, const head &h, int, int s, int c,
		const struct lane_tables &, uint32_t &a, uint32_t &b)
	{
		const struct block_iq2_s *k = (const struct block_iq2_s *)p;
		uint32_t row = k->q[4 * s + c] | (k->high[s] >> 2 * c & 3) << 8, sign = k->sign[4 * s + c];
		a = signed_bytes(h.t->iq2s[2 * row], sign);
		b = signed_bytes(h.t->iq2s[2 * row + 1], sign >> 4);
	}
	static __device__ __forceinline__ int scale(const uint8_t *p, const head &, int s, int half)
	{
		return odd_nibble(((const struct block_iq2_s *)p)->sc[s], half);
	}
};

template <> struct bytes_type<DTYPE_IQ3_XXS> {
	static constexpr enum scale_kind SCALE = SCALE_STEP;
	static constexpr bool LEAST = false, QUADS = false, TABLES = false;
	typedef struct bytes_type<DTYPE_IQ2_XS>::head head;
	static __device__ __forceinline__ void read_head(
		const uint8_t *p, int, const struct cuda_tables *t, head &h)
	{
		h.t = t;
		h.unit = half_float(get16(p)) * 0.25f;
	}
	static __device__ __forceinline__ void bytes(const uint8_t *p, const head &h, int, int s, int c,
		const struct lane_tables &, uint32_t &a, uint32_t &b)
	{
		const struct block_iq3_xxs *k = (const struct block_iq3_xxs *)p;
		uint32_t rows = get16(k->q + 8 * s + 2 * c),
				 sign = h.t->signs[get32(k->sas + 4 * s) >> 7 * c & 127];
		a = signed_bytes(h.t->iq3xxs[rows & 255], sign);
		b = signed_bytes(h.t->iq3xxs[rows >> 8], sign >> 4);
	}
	static __device__ __forceinline__ int scale(const uint8_t *p, const head &, int s)
	{
		return (int)(get16(((const struct block_iq3_xxs *)p)->sas + 4 * s + 2) >> 11 | 1);
	}
};

template <> struct bytes_type<DTYPE_IQ3_S> {
	static constexpr enum scale_kind SCALE = SCALE_STEP;
	static constexpr bool LEAST = false, QUADS = false, TABLES = false;
	typedef struct bytes_type<DTYPE_IQ2_XS>::head head;
	static __device__ __forceinline__ void read_head(
		const uint8_t *p, int, const struct cuda_tables *t, head &h)
	{
		h.t = t;
		h.unit = half_float(get16(p));
	}
	static __device__ __forceinline__ void bytes(const uint8_t *p, const head &h, int, int s, int c,
		const struct lane_tables &, uint32_t &a, uint32_t &b)
	{
		const struct block_iq3_s *k = (const struct block_iq3_s *)p;
		uint32_t rows = get16(k->q + 8 * s + 2 * c), high = k->high[s] >> 2 * c,
				 sign = k->sign[4 * s + c];
		a = signed_bytes(h.t->iq3s[(rows & 255) | (high & 1) << 8], sign);
		b = signed_bytes(h.t->iq3s[rows >> 8 | (high & 2) << 7], sign >> 4);
	}
	static __device__ __forceinline__ int scale(const uint8_t *p, const head &, int s)
	{
		return odd_nibble(((const struct block_iq3_s *)p)->sc[s / 2], s & 1);
	}
};

/* IQ1: two bits of a row for each weight w; the byte is 8 (w - 1) plus or minus 1 */
static __device__ __forceinline__ uint32_t iq1_bytes(uint32_t row, bool minus)
{
	uint32_t pick = (row & 3) | (row & 0xc) << 2 | (row & 0x30) << 4 | (row & 0xc0) << 6;
	return pick_bytes(minus ? 0x0f07fff7 : 0x110901f9, 0, pick);
}

template <> struct bytes_type<DTYPE_IQ1_S> {
	static constexpr enum scale_kind SCALE = SCALE_STEP;
	static constexpr bool LEAST = false, QUADS = false, TABLES = false;
	typedef struct bytes_type<DTYPE_IQ2_XS>::head head;
	static __device__ __forceinline__ void read_head(
		const uint8_t *p, int c, const struct cuda_tables *t, head &h)
	{
		bytes_type<DTYPE_IQ2_XS>::read_head(p, c, t, h);
	}
	static __device__ __forceinline__ void bytes(const uint8_t *p, const head &h, int, int s, int c,
		const struct lane_tables &, uint32_t &a, uint32_t &b)
	{
		const struct block_iq1_s *k = (const struct block_iq1_s *)p;
		uint32_t high = k->high[s], row = h.t->iq1s[k->q[4 * s + c] | (high >> 3 * c & 7) << 8];
		a = iq1_bytes(row, high & 0x8000);
		b = iq1_bytes(row >> 8, high & 0x8000);
	}
	static __device__ __forceinline__ int scale(const uint8_t *p, const head &, int s)
	{
		return (((const struct block_iq1_s *)p)->high[s] >> 11 & 14) + 1;
	}
};

template <> struct bytes_type<DTYPE_IQ1_M> {
	static constexpr enum scale_kind SCALE = SCALE_HALF;
	static constexpr bool LEAST = false, QUADS = false, TABLES = false;
	typedef struct bytes_type<DTYPE_IQ2_XS>::head head;
	static __device__ __forceinline__ void read_head(
		const uint8_t *p, int, const struct cuda_tables *t, head &h)
	{
		const struct block_iq1_m *k = (const struct block_iq1_m *)p;
		uint32_t bits = k->sc[0] >> 12 | k->sc[1] >> 12 << 4 | k->sc[2] >> 12 << 8 |
						(uint32_t)(k->sc[3] >> 12) << 12;
		h.t = t;
		h.unit = half_float(bits) * 0.125f;
	}
	static __device__ __forceinline__ void bytes(const uint8_t *p, const head &h, int, int s, int c,
		const struct lane_tables &, uint32_t &a, uint32_t &b)
	{
		const struct block_iq1_m *k = (const struct block_iq1_m *)p;
		uint32_t high = k->high[2 * s + c / 2] >> (c & 1) * 4 & 15,
				 row = h.t->iq1s[k->q[4 * s + c] | (high & 7) << 8];
		a = iq1_bytes(row, high & 8);
		b = iq1_bytes(row >> 8, high & 8);
	}
	static __device__ __forceinline__ int scale(const uint8_t *p, const head &, int s, int half)
	{
		int i = 2 * s + half;
		return 2 * (((const struct block_iq1_m *)p)->sc[i / 4] >> 3 * (i % 4) & 7) + 1;
	}
};

#endif
