/* SPDX-License-Identifier: MIT */
/*
 * Flag-in-data words: the blocks of one launch exchange values without a barrier (as NCCL's LL
 * protocol). A 32-bit word in device memory is FLAG_EMPTY until a value is stored in it, so each
 * word is its own flag, and no order between words is needed. Before its next
 * use a word is made FLAG_EMPTY again.
 */
#ifndef GLM_KERNELS_CUDA_FLAG_WORDS_CUH
#define GLM_KERNELS_CUDA_FLAG_WORDS_CUH

#include "kernels/cuda/common/poll.cuh"

#include <cuda_runtime.h>

#define FLAG_EMPTY 0xffffffffu

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

static __device__ __forceinline__ uint4 flag_load4(const uint32_t *p)
{
	uint4 v;
	asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
				 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
				 : "l"(p)
				 : "memory");
	return v;
}

static __device__ __forceinline__ uint2 flag_load2(const uint32_t *p)
{
	uint2 v;
	asm volatile("ld.relaxed.gpu.global.v2.u32 {%0,%1}, [%2];"
				 : "=r"(v.x), "=r"(v.y)
				 : "l"(p)
				 : "memory");
	return v;
}

static __device__ __forceinline__ uint32_t flag_load(const uint32_t *p)
{
	uint32_t v;
	asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

static __device__ __forceinline__ void flag_store4(uint32_t *p, uint4 v)
{
	asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y),
				 "r"(v.z), "r"(v.w)
				 : "memory");
}

static __device__ __forceinline__ void flag_store2(uint32_t *p, uint2 v)
{
	asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1,%2};" ::"l"(p), "r"(v.x), "r"(v.y)
				 : "memory");
}

static __device__ __forceinline__ void flag_store(uint32_t *p, uint32_t v)
{
	asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

/* The word of a float; never FLAG_EMPTY, which is the bits of a NaN. */
static __device__ __forceinline__ uint32_t flag_word(float v)
{
	uint32_t u = __float_as_uint(v);
	return u == FLAG_EMPTY ? 0x7fffffffu : u;
}

static __device__ __forceinline__ bool flag_ready(uint4 v)
{
	return v.x != FLAG_EMPTY && v.y != FLAG_EMPTY && v.z != FLAG_EMPTY && v.w != FLAG_EMPTY;
}

/* Polls until the first n of N groups of four words, `step` words apart, are stored; v[n .. N) are
 * zeros. */
template <int N>
static __device__ __forceinline__ void flag_wait(
	const struct poll_report &report, const uint32_t *p, int step, int n, uint4 (&v)[N])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		v[i] = i < n ? flag_load4(p + i * step) : make_uint4(0, 0, 0, 0);
	poll_until(report, [&]() {
		bool all = true;
#pragma unroll
		for (int i = 0; i < N; i++)
			all &= flag_ready(v[i]);
		if (all)
			return true;
#pragma unroll
		for (int i = 0; i < N; i++)
			if (!flag_ready(v[i]))
				v[i] = flag_load4(p + i * step);
		return false;
	});
}

#endif

#endif
