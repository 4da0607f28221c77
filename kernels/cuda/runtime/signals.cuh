/* SPDX-License-Identifier: MIT */
/* What kernels leave for the host: fences and profile events. */
#ifndef GLM_KERNELS_CUDA_SIGNALS_CUH
#define GLM_KERNELS_CUDA_SIGNALS_CUH

#include <cuda_runtime.h>

/* ---- fences ----
 *
 * In a kernel, in this order:
 *   1. all threads: grid_dependency_wait;
 *   2. threads that need the value: value = fence_next_value(fence);
 *   3. the block writes what the host is to read and synchronises at a barrier;
 *   4. one thread of the grid: fence_signal(fence, value). */

struct cuda_fence {
	unsigned long long *count;             /* device: the value of the latest fence */
	volatile unsigned long long *signaled; /* pinned: the same for the host */
};

static __device__ __forceinline__ unsigned long long fence_next_value(const struct cuda_fence &f)
{
	return *f.count + 1;
}

static __device__ __forceinline__ void fence_signal(
	const struct cuda_fence &f, unsigned long long value)
{
	__threadfence_system(); /* cumulative: also for the writes of the block before the barrier */
	*f.signaled = value;
	*f.count = value;
}

/* For a kernel that has written nothing for the host but expert ids, which carry their own flag
 * (wait_expert_ids). The memory fence that it saves takes 1 to 3 us. */
static __device__ __forceinline__ void fence_signal_relaxed(
	const struct cuda_fence &f, unsigned long long value)
{
	*f.signaled = value;
	*f.count = value;
}

/* ---- profile events ---- */

#define PROFILE_EVENTS 65536

/* On the device: timestamps of the begin and the end of intervals, in turns. */
struct cuda_profile {
	unsigned long long n;      /* written since the backend was opened */
	unsigned long long *ring;  /* [PROFILE_EVENTS]; NULL: `measure` is off */
	unsigned long long waited; /* ns in which deferred kernels waited for further messages, within
								  intervals of USAGE_EXPERTS */
};

static __device__ __forceinline__ unsigned long long device_clock()
{
	unsigned long long t;
	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)::"memory");
	return t;
}

/* One interval ends, the next begins. By one thread, behind grid_dependency_wait. ring:
 * profile->ring, not NULL. */
static __device__ __forceinline__ void profile_next_interval(
	struct cuda_profile *profile, unsigned long long *ring)
{
	unsigned long long now = device_clock();
	ring[profile->n++ % PROFILE_EVENTS] = now;
	ring[profile->n++ % PROFILE_EVENTS] = now;
}

#endif
