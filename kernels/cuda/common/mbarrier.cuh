/* SPDX-License-Identifier: MIT */
/*
 * Barriers in shared memory (mbarrier), bulk copies that complete on them, and named barriers
 * (bar.sync). `at` is the shared address of an mbarrier (shared_address).
 *
 * Order of use:
 *   1. one thread: mbarrier_init for each; then mbarrier_init_fence, if bulk copies or other
 *      blocks of the cluster use them;
 *   2. a block barrier, or a cluster barrier if other blocks use them (not for bulk copies by the
 *      thread that has initialised them);
 *   3. threads that finish a phase: mbarrier_arrive or mbarrier_expect; threads that wait for its
 *      end: mbarrier_wait.
 *
 * mbarrier_test and mbarrier_init_fence call cuda::ptx. The others are asm on 32-bit shared
 * addresses: the wrappers of cuda::ptx take pointers, which cost the kernels a few instructions.
 */
#ifndef GLM_KERNELS_CUDA_MBARRIER_CUH
#define GLM_KERNELS_CUDA_MBARRIER_CUH

#include "kernels/cuda/common/poll.cuh"

#include <cuda/ptx>

/* The generic address, for cuda::ptx. */
static __device__ __forceinline__ uint64_t *mbarrier_pointer(uint32_t at)
{
	return (uint64_t *)__cvta_shared_to_generic(at);
}

/* arrivals: how many end a phase */
static __device__ __forceinline__ void mbarrier_init(uint32_t at, uint32_t arrivals)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}

static __device__ __forceinline__ void mbarrier_arrive(uint32_t at)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

/* Arrivals of a warp in mbarrier_arrive_warp: one lane arrives for all, behind a __syncwarp.
 * racecheck (CUDA 13.0) does not see that this orders the other lanes' accesses too; with
 * -DCUDA_RACECHECK every lane arrives. */
#ifdef CUDA_RACECHECK
#define WARP_ARRIVES 32
#else
#define WARP_ARRIVES 1
#endif

/* Arrives for the whole warp. */
static __device__ __forceinline__ void mbarrier_arrive_warp(uint32_t at, int lane)
{
	__syncwarp();
	if (lane < WARP_ARRIVES)
		mbarrier_arrive(at);
}

/* Whether the phase of this parity has ended. */
static __device__ __forceinline__ bool mbarrier_test(uint32_t at, uint32_t parity)
{
	return cuda::ptx::mbarrier_test_wait_parity(mbarrier_pointer(at), parity);
}

/* Waits for the end of the phase of this parity. Without a limit: see poll.cuh. */
static __device__ __forceinline__ void mbarrier_wait(uint32_t at, uint32_t parity)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define MBARRIER_TRY "mbarrier.test_wait"
#else
#define MBARRIER_TRY "mbarrier.try_wait"
#endif
	asm volatile("{\n.reg .pred done;\n"
				 "again:\n" MBARRIER_TRY ".parity.shared::cta.b64 done, [%0], %1;\n"
				 "@!done bra again;\n}\n" ::"r"(at),
				 "r"(parity)
				 : "memory");
#undef MBARRIER_TRY
}

/* Makes initialised barriers visible to bulk copies and to the other blocks of the cluster. Nothing
 * below compute capability 9.0, which has neither. */
static __device__ __forceinline__ void mbarrier_init_fence()
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
	cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
#endif
}

/* Arrives; before that the phase expects `bytes` more of bulk copies, and ends only with them. */
static __device__ __forceinline__ void mbarrier_expect(uint32_t at, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
				 : "memory");
}

/* Copies `bytes` from global memory and completes on the barrier. Addresses and bytes are multiples
 * of 16. */
static __device__ __forceinline__ void bulk_copy(
	uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
	asm volatile(
		"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
			"r"(to),
		"l"(from), "r"(bytes), "r"(barrier)
		: "memory");
}

/* Named barrier `name`, 1 to 15. threads: all that take part, whether they wait (sync) or only
 * arrive; a multiple of 32. */
static __device__ __forceinline__ void named_barrier_sync(int name, int threads)
{
	asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

static __device__ __forceinline__ void named_barrier_arrive(int name, int threads)
{
	asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

#endif
