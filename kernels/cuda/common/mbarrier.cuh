/* SPDX-License-Identifier: MIT */
/*
 * Barriers in shared memory (mbarrier), at `at`, and copies that they hear of. Who made one lets
 * the others meet at bar.sync before they use it; copies and other blocks of a cluster need
 * fence.mbarrier_init besides. And the barriers that have names (bar.sync).
 */
#ifndef GLM_KERNELS_CUDA_MBARRIER_CUH
#define GLM_KERNELS_CUDA_MBARRIER_CUH

#include "kernels/cuda/runtime/gpu_backend.cuh"

static __device__ __forceinline__ void mbarrier_init(uint32_t at, uint32_t arrivals)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}

static __device__ __forceinline__ void mbarrier_arrive(uint32_t at)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

/* How often a warp arrives where one lane may answer for all behind a __syncwarp. racecheck (of
 * CUDA 13.0) takes that lane to answer for itself alone; -DCUDA_RACECHECK makes code that it
 * follows: every lane arrives. */
#ifdef CUDA_RACECHECK
#define WARP_ARRIVES 32
#else
#define WARP_ARRIVES 1
#endif

/* All lanes have done what the barrier is to hear of. */
static __device__ __forceinline__ void mbarrier_arrive_warp(uint32_t at, int lane)
{
	__syncwarp();
	if (lane < WARP_ARRIVES)
		mbarrier_arrive(at);
}

/* Arrives, and the barrier waits for so many bytes of copies besides. */
static __device__ __forceinline__ void mbarrier_expect(uint32_t at, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
				 : "memory");
}

static __device__ __forceinline__ void mbarrier_wait(uint32_t at, uint32_t parity)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define BARRIER_LOOK "mbarrier.test_wait"
#else
#define BARRIER_LOOK "mbarrier.try_wait" /* one that may take a while */
#endif
	asm volatile("{\n.reg .pred done;\n"
				 "again:\n" BARRIER_LOOK ".parity.shared::cta.b64 done, [%0], %1;\n"
				 "@!done bra again;\n}\n" ::"r"(at),
				 "r"(parity)
				 : "memory");
#undef BARRIER_LOOK
}

static __device__ __forceinline__ bool mbarrier_test(uint32_t at, uint32_t parity)
{
	uint32_t passed;
	asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 "
				 "%0, 1, 0, p; }"
				 : "=r"(passed)
				 : "r"(at), "r"(parity)
				 : "memory");
	return passed;
}

/* Compute capability 9.0. `bytes` from global memory, all multiples of 16; the barrier hears of
 * them. */
static __device__ __forceinline__ void bulk_copy(
	uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
	asm volatile(
		"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
			"r"(to),
		"l"(from), "r"(bytes), "r"(barrier)
		: "memory");
}

/* Some warps of a block meet, under a name from 1 to 15; those that only arrive wait for nobody. */
static __device__ __forceinline__ void named_barrier_sync(int name, int threads)
{
	asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

static __device__ __forceinline__ void named_barrier_arrive(int name, int threads)
{
	asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

#endif
