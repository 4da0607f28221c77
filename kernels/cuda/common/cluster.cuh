/* SPDX-License-Identifier: MIT */
/* Thread block clusters (compute capability 9.0): the cluster barrier; and for clusters of two
 * blocks addresses in the other block's shared memory and asynchronous stores there. */
#ifndef GLM_KERNELS_CUDA_CLUSTER_CUH
#define GLM_KERNELS_CUDA_CLUSTER_CUH

#include "kernels/cuda/runtime/gpu_backend.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/* Arrives at the cluster barrier. Relaxed, so it orders no memory: a release would wait for all
 * outstanding copies of the thread. */
static __device__ __forceinline__ void cluster_arrive()
{
	asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

/* Waits until all threads of the cluster have arrived. */
static __device__ __forceinline__ void cluster_wait()
{
	asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* The same offset in the shared memory of the other block; half: rank of this block */
static __device__ __forceinline__ uint32_t remote_address(uint32_t at, int half)
{
	uint32_t other;
	asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(other) : "r"(at), "r"(half ^ 1));
	return other;
}

/* Asynchronous store to a remote address; completes its bytes on the mbarrier there. */
static __device__ __forceinline__ void store_remote(uint32_t to, uint2 v, uint32_t barrier)
{
	asm volatile(
		"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::
			"r"(to),
		"r"(v.x), "r"(v.y), "r"(barrier)
		: "memory");
}

static __device__ __forceinline__ void store_remote(uint32_t to, float v, uint32_t barrier)
{
	asm volatile(
		"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
		"r"(__float_as_uint(v)), "r"(barrier)
		: "memory");
}

#endif

#endif
