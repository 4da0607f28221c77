/* SPDX-License-Identifier: MIT */
/*
 * Small device functions that most kernels use: sums over a warp and a block, the exponential, keys
 * that order floats. Their bits are part of the numbers: every step is rounded explicitly.
 *
 * The exponential is the CPU backend's, step by step (kernels/cpu/cpu_lanes.h), so that router
 * scores are the same bits.
 */
#ifndef GLM_KERNELS_CUDA_DEVICE_MATH_CUH
#define GLM_KERNELS_CUDA_DEVICE_MATH_CUH

#include <cuda_fp16.h>
#include <stdint.h>

/* Sums over the warp by a butterfly: every lane gets the same bits. */
template <typename T> static __device__ __forceinline__ T warp_sum(T v)
{
#pragma unroll
	for (int step = 16; step; step /= 2)
		v += __shfl_xor_sync(0xffffffffu, v, step);
	return v;
}

/* Sum over a block of whole warps, at most 32: the warps by a butterfly too; every thread gets it.
 * `scratch`: shared, 32 values; free again after the next barrier. */
template <typename T> static __device__ __forceinline__ T block_sum(T v, T *scratch)
{
	int lane = threadIdx.x % 32;
	v = warp_sum(v);
	__syncthreads();
	if (!lane)
		scratch[threadIdx.x / 32] = v;
	__syncthreads();
	return warp_sum(lane < (int)blockDim.x / 32 ? scratch[lane] : (T)0);
}

/* e^x within 1 unit in the last place; the steps of lanes_exp. */
static __device__ __forceinline__ float exp_exact(float x)
{
	x = x < -104.0f ? -104.0f : x;
	x = x > 89.0f ? 89.0f : x;
	float shifted = __fmaf_rn(x, 0x1.715476p+0f, 0x1.8p+23f), n = __fadd_rn(shifted, -0x1.8p+23f);
	float r = __fmaf_rn(n, -0x1.62e4p-1f, x);
	r = __fmaf_rn(n, -0x1.7f7d1cp-20f, r);
	float q = 0x1.a01a02p-13f;
	q = __fmaf_rn(q, r, 0x1.6c16c2p-10f);
	q = __fmaf_rn(q, r, 0x1.111112p-7f);
	q = __fmaf_rn(q, r, 0x1.555556p-5f);
	q = __fmaf_rn(q, r, 0x1.555556p-3f);
	q = __fmaf_rn(q, r, 0.5f);
	float y = __fadd_rn(__fmaf_rn(__fmul_rn(q, r), r, r), 1.0f);
	int whole = __float_as_int(shifted) - 0x4b400000, half = whole >> 1;
	return __fmul_rn(__fmul_rn(y, __int_as_float((half + 127) << 23)),
		__int_as_float((whole - half + 127) << 23));
}

static __device__ __forceinline__ float sigmoid_exact(float x)
{
	return __fdiv_rn(1.0f, __fadd_rn(1.0f, exp_exact(-x)));
}

static __device__ __forceinline__ float swiglu_one(float gate, float up)
{
	return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.0f, exp_exact(-gate))), up);
}

/* Unsigned keys in the order of the floats they stand for; -0 equals +0 and NaN is below
 * everything. */
static __device__ __forceinline__ uint32_t order_key(float v)
{
	uint32_t u = __float_as_uint(__fadd_rn(v, 0.0f));
	return v != v ? 0 : u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* v rotated by an angle; angle: (cosine, sine) */
static __device__ __forceinline__ float2 rotated(float2 angle, float2 v)
{
	float c = angle.x, s = angle.y;
	return make_float2(__fsub_rn(__fmul_rn(v.x, c), __fmul_rn(v.y, s)),
		__fadd_rn(__fmul_rn(v.x, s), __fmul_rn(v.y, c)));
}

/* Value i of a cache row, or of any array of F32 or F16. */
static __device__ __forceinline__ float cache_load(const void *data, bool is_half, int64_t i)
{
	return is_half ? __half2float(((const __half *)data)[i]) : ((const float *)data)[i];
}

#endif
