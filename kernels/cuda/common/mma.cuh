/* SPDX-License-Identifier: MIT */
/*
 * What the tensor core kernels share: m16n8k16 products of halves with float accumulators,
 * ldmatrix, and cp.async copies to shared memory. All of it exists since sm_80.
 *
 *      lane = 4 g + c of a warp:
 *      a [16 x 16]  rows g and g + 8, columns 2 c, 2 c + 1 (a[0], a[1]) and 8 further on
 *                   (a[2], a[3])
 *      b [16 x 8]   column g, rows 2 c, 2 c + 1 (b0) and 8 further on (b1)
 *      d [16 x 8]   row g (d[0], d[1]) and g + 8 (d[2], d[3]), columns 2 c, 2 c + 1
 *
 * A float is split into two halves, hi + lo, after scaling by a power of two that brings the
 * largest value of its row to [2^14, 2^15): 22 bits of every value above 2^-18 of the largest, and
 * 2^-40 of the largest below that.
 */
#ifndef GLM_KERNELS_CUDA_MMA_CUH
#define GLM_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/runtime/gpu_backend.cuh"

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes to shared memory */
static __device__ __forceinline__ void async_copy(uint32_t to, const void *from)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}

/* UNITS copies of 16 bytes by a block of THREADS threads: from + 16 i to to + at(i). */
template <int UNITS, int THREADS, typename place>
static __device__ __forceinline__ void async_copy_all(
	uint32_t to, const uint8_t *from, const place &at)
{
#pragma unroll
	for (int j = 0; j < (UNITS + THREADS - 1) / THREADS; j++) {
		int i = threadIdx.x + j * THREADS;
		if (UNITS % THREADS == 0 || i < UNITS)
			async_copy(to + at(i), from + i * 16);
	}
}

static __device__ __forceinline__ void async_commit()
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int LEFT> static __device__ __forceinline__ void async_wait()
{
	asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* ldmatrix: four 8 x 8 matrices of halves; lane 8 i + j gives the address of row j of matrix i. */
static __device__ __forceinline__ void load_matrices(uint32_t r[4], uint32_t address)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
				 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
				 : "r"(address));
}

static __device__ __forceinline__ void load_matrices_transposed(uint32_t r[4], uint32_t address)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
				 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
				 : "r"(address));
}

static __device__ __forceinline__ void mma_half(
	float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
		"{%0,%1,%2,%3};"
		: "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The exponent e for which largest * 2^e lies in [2^14, 2^15), within what a float can be; 0 for
 * zeros. */
static __device__ __forceinline__ int half_exponent(float largest)
{
	int e = 14 + 127 - (int)(__float_as_uint(largest) >> 23 & 255);
	return largest == 0 ? 0 : e > 120 ? 120 : e;
}

static __device__ __forceinline__ float power_of_two(int e) /* -126 .. 127 */
{
	return __uint_as_float((uint32_t)(e + 127) << 23);
}

/* Splits two scaled floats into halves, hi + lo, as pairs. */
static __device__ __forceinline__ void split_pair(float x, float y, uint32_t &hi, uint32_t &lo)
{
	__half2 h = __floats2half2_rn(x, y);
	float2 f = __half22float2(h);
	__half2 l = __floats2half2_rn(__fsub_rn(x, f.x), __fsub_rn(y, f.y));
	hi = *(uint32_t *)&h;
	lo = *(uint32_t *)&l;
}

#endif
