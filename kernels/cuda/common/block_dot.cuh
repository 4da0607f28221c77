/* SPDX-License-Identifier: MIT */
/*
 * Packed blocks (src/quant/blocks.h) decoded in registers: four consecutive weights of a
 * super-block (256 weights) as factor * q + offset. A super-block is one block of the K and IQ
 * types, eight of the 32-weight types; SUPER_BLOCK_BYTES each.
 *
 *      weight v of the super-block, v = 4 lane + 128 g:
 *                       lane  0       1       ...  31
 *                             0..3    4..7         124..127   (g = 0)
 *                             128..   132..        252..255   (g = 1)
 *
 * `p`: the super-block, in shared or global memory, 2-byte aligned (F32: 4-byte). fl(factor * q) +
 * offset, rounded after each operation, are the exact floats of src/quant/dequant.h.
 */
#ifndef GLM_KERNELS_CUDA_BLOCK_DOT_CUH
#define GLM_KERNELS_CUDA_BLOCK_DOT_CUH

#include "kernels/cuda/runtime/gpu_backend.cuh"
#include "src/quant/blocks.h"
#include "src/quant/k_scales.h"

static __device__ __forceinline__ uint32_t get16(const void *p)
{
	return *(const uint16_t *)p;
}

static __device__ __forceinline__ uint32_t get32(const void *p) /* any multiple of 2 */
{
	return get16(p) | get16((const uint8_t *)p + 2) << 16;
}

static __device__ __forceinline__ float half_float(uint32_t bits)
{
	return __half2float(__ushort_as_half((unsigned short)bits));
}

/* Whole numbers below 2^23 as floats, in full-rate instructions. */
static __device__ __forceinline__ float small_float(uint32_t n)
{
	return __fadd_rn(__uint_as_float(0x4b000000u | n), -8388608.0f);
}

/* The four bytes of w as floats, minus `zero` each. */
static __device__ __forceinline__ void bytes_floats(uint32_t w, float zero, float q[4])
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		q[i] =
			__fadd_rn(__uint_as_float(__byte_perm(w, 0x4b000000u, 0x7540 | i)), -8388608.0f - zero);
}

/* Magnitudes with the sign bits of `sign` (bit i: weight i negative). */
static __device__ __forceinline__ void signed_floats(uint32_t w, uint32_t sign, float q[4])
{
	bytes_floats(w, 0, q);
#pragma unroll
	for (int i = 0; i < 4; i++)
		q[i] = __uint_as_float(__float_as_uint(q[i]) ^ (sign >> i & 1) << 31);
}

static __device__ __forceinline__ void iq1_floats(
	uint32_t row, bool second, float delta, float q[4])
{
	row >>= second ? 8 : 0;
#pragma unroll
	for (int i = 0; i < 4; i++)
		q[i] = __fadd_rn(small_float(row >> 2 * i & 3), delta - 1.0f);
}

/* A packed type: bytes of a super-block, whether it has factors and offsets, and get(), which sets
 * q, factor and offset of weights v .. v + 3, v a multiple of 4. Without FACTOR or OFFSET it leaves
 * that argument as it is. */
template <int T> struct packed;

#define PACKED(T, bytes, has_factor, has_offset)                                                   \
	template <> struct packed<DTYPE_##T> {                                                         \
		static constexpr int SUPER_BLOCK_BYTES = bytes;                                            \
		static constexpr bool FACTOR = has_factor, OFFSET = has_offset;                            \
		static __device__ __forceinline__ void get(const uint8_t *p, int v,                        \
			const struct cuda_tables *t, float q[4], float &factor, float &offset)
#define PACKED_END }

PACKED(F32, 1024, false, false)
{
	(void)t, (void)factor, (void)offset;
#pragma unroll
	for (int i = 0; i < 4; i++)
		q[i] = ((const float *)p)[v + i];
}
PACKED_END;

PACKED(F16, 512, false, false)
{
	(void)t, (void)factor, (void)offset;
#pragma unroll
	for (int i = 0; i < 4; i++)
		q[i] = half_float(((const uint16_t *)p)[v + i]);
}
PACKED_END;

PACKED(BF16, 512, false, false)
{
	(void)t, (void)factor, (void)offset;
#pragma unroll
	for (int i = 0; i < 4; i++)
		q[i] = __uint_as_float((uint32_t)((const uint16_t *)p)[v + i] << 16);
}
PACKED_END;

PACKED(Q4_0, 144, true, false)
{
	(void)t, (void)offset;
	p += v / 32 * 18;
	factor = half_float(get16(p));
	bytes_floats(get32(p + 2 + v % 16) >> (v & 16) / 4 & 0x0f0f0f0f, 8, q);
}
PACKED_END;

PACKED(Q8_0, 272, true, false)
{
	(void)t, (void)offset;
	p += v / 32 * 34;
	factor = half_float(get16(p));
	bytes_floats(get32(p + 2 + v % 32) ^ 0x80808080u, 128, q);
}
PACKED_END;

PACKED(Q2_K, 84, true, true)
{
	(void)t;
	const struct block_q2_k *b = (const struct block_q2_k *)p;
	int h = v / 128, g = v % 128 / 32, l = v % 32;
	uint32_t sc = b->sc[v / 16];
	factor = __fmul_rn(half_float(b->d), small_float(sc & 15));
	offset = -__fmul_rn(half_float(b->dmin), small_float(sc >> 4));
	bytes_floats(get32(b->q + 32 * h + l) >> 2 * g & 0x03030303, 0, q);
}
PACKED_END;

PACKED(Q3_K, 110, true, false)
{
	(void)t, (void)offset;
	const struct block_q3_k *b = (const struct block_q3_k *)p;
	int h = v / 128, g = v % 128 / 32, l = v % 32;
	factor = __fmul_rn(half_float(b->d), (float)k_scale6_signed(b->sc, v / 16));
	uint32_t low = get32(b->q + 32 * h + l) >> 2 * g & 0x03030303,
			 high = get32(b->high + l) >> (4 * h + g) & 0x01010101;
	bytes_floats(low | high << 2, 4, q);
}
PACKED_END;

PACKED(Q4_K, 144, true, true)
{
	(void)t;
	const struct block_q4_k *b = (const struct block_q4_k *)p;
	int k = v / 32, l = v % 32;
	factor = __fmul_rn(half_float(b->d), small_float((uint32_t)k_scale6(b->sc, k)));
	offset = -__fmul_rn(half_float(b->dmin), small_float((uint32_t)k_min6(b->sc, k)));
	bytes_floats(get32(b->q + 32 * (k / 2) + l) >> 4 * (k & 1) & 0x0f0f0f0f, 0, q);
}
PACKED_END;

PACKED(Q5_K, 176, true, true)
{
	(void)t;
	const struct block_q5_k *b = (const struct block_q5_k *)p;
	int k = v / 32, l = v % 32;
	factor = __fmul_rn(half_float(b->d), small_float((uint32_t)k_scale6(b->sc, k)));
	offset = -__fmul_rn(half_float(b->dmin), small_float((uint32_t)k_min6(b->sc, k)));
	uint32_t low = get32(b->q + 32 * (k / 2) + l) >> 4 * (k & 1) & 0x0f0f0f0f,
			 high = get32(b->high + l) >> k & 0x01010101;
	bytes_floats(low | high << 4, 0, q);
}
PACKED_END;

PACKED(Q6_K, 210, true, false)
{
	(void)t, (void)offset;
	const struct block_q6_k *b = (const struct block_q6_k *)p;
	int h = v / 128, g = v % 128 / 32, l = v % 32;
	factor = __fmul_rn(half_float(b->d), (float)b->sc[v / 16]);
	uint32_t low = get32(b->q + 64 * h + 32 * (g & 1) + l) >> (g & 2) * 2 & 0x0f0f0f0f;
	uint32_t high = get32(b->high + 32 * h + l) >> 2 * g & 0x03030303;
	bytes_floats(low | high << 4, 32, q);
}
PACKED_END;

PACKED(IQ2_XXS, 66, true, false)
{
	(void)offset;
	const struct block_iq2_xxs *b = (const struct block_iq2_xxs *)p;
	int k = v / 32, j = v % 32 / 8;
	uint32_t a1 = get32(b->q + 4 * k + 2), index = ((const uint8_t *)(b->q + 4 * k))[j],
			 s = a1 >> 7 * j & 127;
	s |= (uint32_t)(__popc(s) & 1) << 7;
	factor = __fmul_rn(__fmul_rn(half_float(b->d), 0.5f + small_float(a1 >> 28)), 0.25f);
	signed_floats(t->iq2xxs[2 * index + (v / 4 & 1)], s >> (v & 4), q);
}
PACKED_END;

PACKED(IQ2_XS, 74, true, false)
{
	(void)offset;
	const struct block_iq2_xs *b = (const struct block_iq2_xs *)p;
	int j = v / 8;
	uint32_t w = b->q[j], scale = b->sc[j / 4] >> (j & 2) * 2 & 15;
	factor = __fmul_rn(__fmul_rn(half_float(b->d), 0.5f + small_float(scale)), 0.25f);
	signed_floats(t->iq2xs[2 * (w & 511) + (v / 4 & 1)], (uint32_t)t->signs[w >> 9] >> (v & 4), q);
}
PACKED_END;

PACKED(IQ2_S, 82, true, false)
{
	(void)offset;
	const struct block_iq2_s *b = (const struct block_iq2_s *)p;
	int j = v / 8;
	uint32_t index = b->q[j] | (b->high[j / 4] >> 2 * (j % 4) & 3) << 8,
			 scale = b->sc[j / 4] >> (j & 2) * 2 & 15;
	factor = __fmul_rn(__fmul_rn(half_float(b->d), 0.5f + small_float(scale)), 0.25f);
	signed_floats(t->iq2s[2 * index + (v / 4 & 1)], (uint32_t)b->sign[j] >> (v & 4), q);
}
PACKED_END;

PACKED(IQ3_XXS, 98, true, false)
{
	(void)offset;
	const struct block_iq3_xxs *b = (const struct block_iq3_xxs *)p;
	int j = v / 8;
	uint32_t a = get32(b->sas + 4 * (j / 4));
	factor = __fmul_rn(__fmul_rn(half_float(b->d), 0.5f + small_float(a >> 28)), 0.5f);
	signed_floats(t->iq3xxs[b->q[v / 4]], (uint32_t)t->signs[a >> 7 * (j % 4) & 127] >> (v & 4), q);
}
PACKED_END;

PACKED(IQ3_S, 110, true, false)
{
	(void)offset;
	const struct block_iq3_s *b = (const struct block_iq3_s *)p;
	int j = v / 4, k = v / 32;
	uint32_t scale = b->sc[k / 2] >> (k & 1) * 4 & 15, index = b->q[j] | (b->high[k] >> j % 8 & 1)
																			 << 8;
	factor = __fmul_rn(half_float(b->d), small_float(1 + 2 * scale));
	signed_floats(t->iq3s[index], (uint32_t)b->sign[v / 8] >> (v & 4), q);
}
PACKED_END;

PACKED(IQ1_S, 50, true, false)
{
	(void)offset;
	const struct block_iq1_s *b = (const struct block_iq1_s *)p;
	int j = v / 8;
	uint32_t h = b->high[j / 4], index = b->q[j] | (h >> 3 * (j % 4) & 7) << 8;
	factor = __fmul_rn(half_float(b->d), small_float(2 * (h >> 12 & 7) + 1));
	iq1_floats(t->iq1s[index], v & 4, h & 0x8000 ? -0.125f : 0.125f, q);
}
PACKED_END;

PACKED(IQ1_M, 56, true, false)
{
	(void)offset;
	const struct block_iq1_m *b = (const struct block_iq1_m *)p;
	int j = v / 8;
	uint32_t bits = b->sc[0] >> 12 | b->sc[1] >> 12 << 4 | b->sc[2] >> 12 << 8 |
					(uint32_t)(b->sc[3] >> 12) << 12;
	uint32_t h = b->high[j / 2] >> (j & 1) * 4 & 15, index = b->q[j] | (h & 7) << 8,
			 scale = b->sc[j / 8] >> 3 * (j / 2 % 4) & 7;
	factor = __fmul_rn(half_float(bits), small_float(2 * scale + 1));
	iq1_floats(t->iq1s[index], v & 4, h & 8 ? -0.125f : 0.125f, q);
}
PACKED_END;

static __device__ __forceinline__ void nl_floats(
	uint32_t nibbles, const struct cuda_tables *t, float q[4])
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		q[i] = (float)t->iq4nl[nibbles >> 8 * i & 15];
}

PACKED(IQ4_NL, 144, true, false)
{
	(void)offset;
	p += v / 32 * 18;
	factor = half_float(get16(p));
	nl_floats(get32(p + 2 + v % 16) >> (v & 16) / 4, t, q);
}
PACKED_END;

PACKED(IQ4_XS, 136, true, false)
{
	(void)offset;
	const struct block_iq4_xs *b = (const struct block_iq4_xs *)p;
	int k = v / 32;
	int scale = (b->scales_low[k / 2] >> (k & 1) * 4 & 15) | (b->scales_high >> 2 * k & 3) << 4;
	factor = __fmul_rn(half_float(b->d), (float)(scale - 32));
	nl_floats(get32(b->q + 16 * k + v % 16) >> (v & 16) / 4, t, q);
}
PACKED_END;

/* The types: X(name). The others: block_decode.cuh. */
#define FLOAT_TYPES(X)    X(F32) X(F16) X(BF16)
#define PACKED_TYPES_A(X) X(Q4_0) X(Q8_0) X(IQ4_NL) X(IQ4_XS)
#define PACKED_TYPES_B(X) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K)
#define PACKED_TYPES_C(X) X(IQ2_XXS) X(IQ2_XS) X(IQ2_S) X(IQ3_XXS) X(IQ3_S) X(IQ1_S) X(IQ1_M)
#define PACKED_TYPES(X)   FLOAT_TYPES(X) PACKED_TYPES_A(X) PACKED_TYPES_B(X) PACKED_TYPES_C(X)

#endif
