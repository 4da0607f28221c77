/* SPDX-License-Identifier: MIT */
/*
 * The warpgroup matrix instructions (wgmma) of compute capability 9.0 (sm_90a).
 *
 *      a [64 x 16]  in registers of four warps, each 16 rows: lane 4 g + c has rows g and
 *                   g + 8, columns 2 c, 2 c + 1 (a[0], a[1]) and 8 further on (a[2], a[3])
 *      b [16 x N]   in shared memory, column by column (K-major): a line has consecutive rows of a
 *                   column, in swizzled 16-byte pieces; the lines begin at a multiple of 1024.
 *                   The descriptor for rows 16 i and up has an address 32 i bytes further
 *      d [64 x N]   row g (d[4 n], d[4 n + 1]) and g + 8 (d[4 n + 2], d[4 n + 3]), columns
 *                   8 n + 2 c and the next
 */
#ifndef GLM_KERNELS_CUDA_WGMMA_CUH
#define GLM_KERNELS_CUDA_WGMMA_CUH

#include "kernels/cuda/runtime/gpu_backend.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Matrix descriptors of b: lines of 128 bytes, piece i at i ^ (column % 8); of 64 bytes, piece i at
 * i ^ (column / 2 % 4). */
static __device__ __forceinline__ uint64_t wgmma_desc_128(uint32_t address)
{
	return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
		   (uint64_t)1 << 62;
}

static __device__ __forceinline__ uint64_t wgmma_desc_64(uint32_t address)
{
	return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)(512 >> 4) << 32 |
		   (uint64_t)2 << 62;
}

/* Matrix descriptor of b [16 x N] stored row by row (MN-major): line i has 64 columns of row i,
 * swizzled as above. columns_64: bytes from a line to that of the next 64 columns, a multiple of
 * 1024. */
static __device__ __forceinline__ uint64_t wgmma_desc_transposed(
	uint32_t address, uint32_t columns_64)
{
	return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)(columns_64 >> 4) << 16 |
		   (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* Orders this thread's accesses to shared memory, and those that a barrier has ordered before them,
 * before the accesses of wgmma instructions (the async proxy). */
static __device__ __forceinline__ void wgmma_fence_shared()
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Before the first product, and after other instructions have written registers of a product. */
static __device__ __forceinline__ void wgmma_fence()
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit()
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until all groups but the last LEFT are complete. */
template <int LEFT> static __device__ __forceinline__ void wgmma_wait()
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* Prevents the compiler from moving uses of these registers across. */
template <int N> static __device__ __forceinline__ void wgmma_keep_registers(float (&d)[N])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+f"(d[i])::"memory");
}

/* d = a b, or d += a b */
static __device__ __forceinline__ void wgmma_f16(
	float (&d)[64], const uint32_t (&a)[4], uint64_t b, int add)
{
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
				 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
				 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
				 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
				 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
				 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
				 "{%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}\n"
				 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
				 "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
				 "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
				 "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
				 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
				 "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
				 "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
				 "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
				 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]),
				 "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
				 "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
				 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

static __device__ __forceinline__ void wgmma_f16(
	float (&d)[32], const uint32_t (&a)[4], uint64_t b, int add)
{
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
				 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
				 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
				 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
				 "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}\n"
				 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
				 "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
				 "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
				 "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
				 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
				 "+f"(d[30]), "+f"(d[31])
				 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

static __device__ __forceinline__ void wgmma_f16(
	float (&d)[16], const uint32_t (&a)[4], uint64_t b, int add)
{
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
				 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
				 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
				 "{%16, %17, %18, %19}, %20, p, 1, 1, 0;\n}\n"
				 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
				 "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
				 "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
				 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

static __device__ __forceinline__ void wgmma_f16(
	float (&d)[24], const uint32_t (&a)[4], uint64_t b, int add)
{
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %29, 0;\n"
				 "wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 {"
				 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
				 "%16, %17, %18, %19, %20, %21, %22, %23}, "
				 "{%24, %25, %26, %27}, %28, p, 1, 1, 0;\n}\n"
				 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
				 "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
				 "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
				 "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
				 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/* The same with a [64 x 16] in shared memory, row by row, in lines as those of b. */
static __device__ __forceinline__ void wgmma_f16(float (&d)[24], uint64_t a, uint64_t b, int add)
{
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %26, 0;\n"
				 "wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 {"
				 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
				 "%16, %17, %18, %19, %20, %21, %22, %23}, "
				 "%24, %25, p, 1, 1, 0, 0;\n}\n"
				 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
				 "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
				 "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
				 "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
				 : "l"(a), "l"(b), "r"(add));
}

/* The same as the first with b stored row by row (wgmma_desc_transposed). */
static __device__ __forceinline__ void wgmma_f16_transposed(
	float (&d)[64], const uint32_t (&a)[4], uint64_t b, int add)
{
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
				 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
				 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
				 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
				 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
				 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
				 "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
				 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
				 "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
				 "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
				 "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
				 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
				 "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
				 "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
				 "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
				 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]),
				 "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
				 "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
				 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

#endif

#endif
