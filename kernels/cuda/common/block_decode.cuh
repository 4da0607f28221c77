/* SPDX-License-Identifier: MIT */
/*
 * packed<T> (block_dot.cuh) of DECODED_TYPES: types that few files use, and then for few tensors.
 * ALL_TYPES are these and the types of block_dot.cuh. DECODED_TYPES have no integer form
 * (block_bytes.cuh): decode multiplies floats (gemv_decoded.cu), prefill unpacks panels
 * (unpack.cu). So they do not lengthen the compilation of *_types.cu.
 *
 * MXFP4 blocks have 17 bytes: they are read byte by byte, at any address. Values of F8_E4M3 may lie
 * anywhere too. Their scales are a separate array (backend.h: weight.scales); block_scale reads it.
 */
#ifndef GLM_KERNELS_CUDA_BLOCK_DECODE_CUH
#define GLM_KERNELS_CUDA_BLOCK_DECODE_CUH

#include "kernels/cuda/common/block_dot.cuh"
#include "src/quant/fp4.h"

/* Bit i of `four` becomes bit 4 of byte i: the fifth bits of four values of Q5_0 or Q5_1. */
static __device__ __forceinline__ uint32_t fifth_bits(uint32_t four)
{
	return ((four & 15) * 0x00204081 & 0x01010101) << 4;
}

/* FP4_VALUES (fp4.h) of the low nibbles of four bytes. */
static __device__ __forceinline__ void fp4_floats(uint32_t nibbles, float q[4])
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		uint32_t n = nibbles >> 8 * i & 15;
		float v = small_float(__byte_perm(0x03020100, 0x0c080604, n & 7) & 255);
		q[i] = n & 8 ? __fsub_rn(0.0f, v) : v; /* not -v: there is no -0 */
	}
}

PACKED(Q4_1, 160, true, true)
{
	(void)t;
	p += v / 32 * 20;
	factor = half_float(get16(p));
	offset = half_float(get16(p + 2));
	bytes_floats(get32(p + 4 + v % 16) >> (v & 16) / 4 & 0x0f0f0f0f, 0, q);
}
PACKED_END;

PACKED(Q5_0, 176, true, false)
{
	(void)t, (void)offset;
	p += v / 32 * 22;
	factor = half_float(get16(p));
	bytes_floats(
		(get32(p + 6 + v % 16) >> (v & 16) / 4 & 0x0f0f0f0f) | fifth_bits(get32(p + 2) >> v % 32),
		16, q);
}
PACKED_END;

PACKED(Q5_1, 192, true, true)
{
	(void)t;
	p += v / 32 * 24;
	factor = half_float(get16(p));
	offset = half_float(get16(p + 2));
	bytes_floats(
		(get32(p + 8 + v % 16) >> (v & 16) / 4 & 0x0f0f0f0f) | fifth_bits(get32(p + 4) >> v % 32),
		0, q);
}
PACKED_END;

PACKED(MXFP4, 136, true, false)
{
	(void)t, (void)offset;
	p += v / 32 * 17;
	factor = __uint_as_float(fp4_scale_e8m0_bits(p[0]));
	const uint8_t *w = p + 1 + v % 16;
	fp4_floats((w[0] | w[1] << 8 | w[2] << 16 | (uint32_t)w[3] << 24) >> (v & 16) / 4, q);
}
PACKED_END;

PACKED(NVFP4, 144, true, false)
{
	(void)t, (void)offset;
	p += v / 64 * 36;
	int j = v % 64 / 16;
	factor = __uint_as_float(fp4_scale_ue4m3_bits(p[j]));
	fp4_floats(get32(p + 4 + 8 * j + v % 8) >> (v & 8) / 2, q);
}
PACKED_END;

PACKED(Q1_0, 36, true, false)
{
	(void)t, (void)offset;
	p += v / 128 * 18;
	factor = half_float(get16(p));
	uint32_t plus = p[2 + v % 128 / 8] >> (v & 4);
#pragma unroll
	for (int i = 0; i < 4; i++)
		q[i] = plus >> i & 1 ? 1.0f : -1.0f;
}
PACKED_END;

PACKED(Q2_0, 72, true, false)
{
	(void)t, (void)offset;
	p += v / 64 * 18;
	factor = half_float(get16(p));
	uint32_t four = p[2 + v % 64 / 4];
#pragma unroll
	for (int i = 0; i < 4; i++)
		q[i] = __fadd_rn(small_float(four >> 2 * i & 3), -1.0f);
}
PACKED_END;

PACKED(TQ1_0, 54, true, false)
{
	(void)t, (void)offset;
	factor = half_float(get16(p + 52));
	/* digit n of the four bytes from `at` on */
	int n = v < 160   ? v / 32
			: v < 240 ? (v - 160) / 16
					  : (v - 240) / 4,
		at = v < 160   ? v % 32
			 : v < 240 ? 32 + v % 16
					   : 48;
	uint32_t power = __byte_perm(0x1b090301, 81, n) & 255, w = get32(p + at);
#pragma unroll
	for (int i = 0; i < 4; i++)
		q[i] = __fadd_rn(small_float(((w >> 8 * i & 255) * power & 255) * 3 >> 8), -1.0f);
}
PACKED_END;

PACKED(TQ2_0, 66, true, false)
{
	(void)t, (void)offset;
	factor = half_float(get16(p + 64));
	bytes_floats(get32(p + v / 128 * 32 + v % 32) >> v % 128 / 32 * 2 & 0x03030303, 1, q);
}
PACKED_END;

/* Four bytes at any address. */
static __device__ __forceinline__ uint32_t bytes_at(const uint8_t *p)
{
	if ((uintptr_t)p % 4)
		return p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24;
	return *(const uint32_t *)p;
}

/* A value of F8_E4M3. A half with its bits is 1/256 of it, since the bias of a half's exponent is
 * 15, not 7; NaN stays NaN. */
static __device__ __forceinline__ float f8_float(uint32_t byte)
{
	float v = __fmul_rn(half_float((byte & 0x80) << 8 | (byte & 0x7f) << 7), 256.0f);
	return (byte & 0x7f) == 0x7f ? __uint_as_float(0x7fc00000u) : v;
}

/* The last `left` < 4 values of a row, from v on; zeros behind them. */
static __device__ __forceinline__ void f8_row_end(const uint8_t *p, int v, int left, float q[4])
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		q[i] = i < left ? f8_float(p[v + i]) : 0.0f;
}

/* Four values without their scales: `factor` is left to the caller. */
PACKED(F8_E4M3, 256, true, false)
{
	(void)t, (void)factor, (void)offset;
	uint32_t w = bytes_at(p + v);
#pragma unroll
	for (int i = 0; i < 4; i++, w >>= 8)
		q[i] = f8_float(w & 255);
}
PACKED_END;

/* The scale of weight (row, column) of a matrix of n_in columns. scales: weight.scales. */
static __device__ __forceinline__ float block_scale(
	const uint8_t *scales, int n_in, int row, int column)
{
	int across = (n_in + DTYPE_SCALE_BLOCK - 1) / DTYPE_SCALE_BLOCK;
	int64_t at = (int64_t)(row / DTYPE_SCALE_BLOCK) * across + column / DTYPE_SCALE_BLOCK;
	return scales ? __uint_as_float(bytes_at(scales + 4 * at)) : 1.0f;
}

#define DECODED_TYPES(X) X(Q4_1) X(Q5_0) X(Q5_1) X(MXFP4) X(NVFP4) X(Q1_0) X(Q2_0) X(TQ1_0) X(TQ2_0)
#define ALL_TYPES(X)     PACKED_TYPES(X) DECODED_TYPES(X)

#endif
