/* SPDX-License-Identifier: MIT */
/*
 * Fences: how the host follows the device.
 *
 * A fence value is the number of fences in stream order. The device counts them in its own memory:
 * a kernel that ends with a fence adds one and stores the sum in pinned memory (fence_signal). So a
 * kernel needs no value as an argument and can be a node of a replayed graph. The host polls the
 * pinned word, and now and then asks the driver whether the device still works.
 *
 * fence_kernel: grid 1, block 1. Bytes moved: none to speak of.
 */
#include "kernels/cuda/runtime/timeline.cuh"

extern "C" {
#include "src/base/host/clock.h"
#include "src/base/log.h"
}

#include <sched.h>

#define FENCE_POLLS 4096 /* before the driver is asked; about 0.1 ms */
#define SILENCE_NS  120000000000ull
#define YIELD_NS    2000000 /* of waiting; then each question is followed by a sched_yield */
/* A longer time between two questions to the driver counts as this: the process was stopped. */
#define STOPPED_NS 1000000000

static __global__ void fence_kernel(struct cuda_fence fence)
{
	launch_dependents();
	grid_dependency_wait();
	fence_signal(fence, fence_next_value(fence));
}

static bool has_signaled(struct cuda_backend *b, uint64_t fence)
{
	return __atomic_load_n(b->timeline->signaled, __ATOMIC_ACQUIRE) >= fence;
}

/* Asks the driver whether the device, which has not signaled for waited_ns, still works. False: the
 * wait has failed; the failure is kept. */
static bool device_works(struct cuda_backend *b, uint64_t fence, uint64_t waited_ns)
{
	cudaError_t rc = cudaStreamQuery(b->stream);
	bool signaled = has_signaled(b, fence); /* expert ids may come later than their fence */
	if (rc == cudaErrorNotReady || (rc == cudaSuccess && signaled)) {
		cudaGetLastError(); /* not a failure */
		if (waited_ns < SILENCE_NS)
			return true;
	}
	if (b->base.failure.code)
		return false;
	if (rc == cudaErrorNotReady) {
		err_set(&b->base.failure, ERR_RUN,
			"cuda: %s or an op before it: the device has not answered for %llu s", b->op,
			(unsigned long long)(SILENCE_NS / 1000000000));
		/* memory is freed only after a wait for the device, which may never end */
		log_warn("%s; nothing can be freed before it does", b->base.failure.text);
		return false;
	}
	if (rc != cudaSuccess)
		cuda_device_fault(b, rc);
	else if (signaled)
		err_set(&b->base.failure, ERR_RUN,
			"cuda: %s: fence %llu is signaled, but its expert ids have not come", b->op,
			(unsigned long long)fence);
	else
		err_set(&b->base.failure, ERR_RUN,
			"cuda: %s: fence %llu is not signaled, the last one was %llu", b->op,
			(unsigned long long)fence, (unsigned long long)*b->timeline->signaled);
	return false;
}

void cuda_check_aborted(struct cuda_backend *b)
{
	const char *why = __atomic_load_n(&b->timeline->aborted, __ATOMIC_ACQUIRE);
	if (why && !b->base.failure.code)
		err_set(&b->base.failure, ERR_RUN, "%s", why);
}

struct cuda_fence cuda_fence_next(struct cuda_backend *b)
{
	b->base.fence_value++;
	return (struct cuda_fence){b->timeline->count, (unsigned long long *)b->timeline->signaled};
}

void cuda_fence_enqueue(struct cuda_backend *b, struct cuda_fence next)
{
	cuda_launch(b, fence_kernel, 1, 1, 0, next);
}

uint64_t cuda_fence(struct backend *base)
{
	struct cuda_fence next = cuda_fence_next(cuda_of(base));
	if (cuda_begin(base, "fence"))
		cuda_fence_enqueue(cuda_of(base), next);
	return base->fence_value;
}

cudaError_t cuda_fences_catch_up(struct cuda_backend *b)
{
	unsigned long long value = b->base.fence_value;
	cudaError_t rc = cudaMemcpy(b->timeline->count, &value, sizeof value, cudaMemcpyHostToDevice);
	if (rc == cudaSuccess)
		__atomic_store_n(b->timeline->signaled, value, __ATOMIC_RELEASE);
	return rc;
}

bool cuda_fence_signaled(struct backend *b, uint64_t fence)
{
	return has_signaled(cuda_of(b), fence);
}

/* A wait of the host, poll by poll */
struct host_wait {
	unsigned polls;
	uint64_t asked_ns, waited_ns; /* the driver was asked last; time that counts */
};

/* Between two polls. False: the wait has failed; the failure is kept. */
static bool host_wait_continue(struct cuda_backend *b, uint64_t fence, struct host_wait *w)
{
	if (++w->polls % FENCE_POLLS) {
#if defined(__x86_64__)
		__builtin_ia32_pause();
#endif
		return true;
	}
	uint64_t now = clock_ns(), since = w->asked_ns ? now - w->asked_ns : 0;
	w->asked_ns = now;
	w->waited_ns += since < STOPPED_NS ? since : STOPPED_NS;
	if (!device_works(b, fence, w->waited_ns))
		return false;
	if (w->waited_ns > YIELD_NS)
		sched_yield();
	return true;
}

void cuda_fence_poll(struct cuda_backend *b, uint64_t fence)
{
	struct host_wait w = {};
	while (!has_signaled(b, fence) && host_wait_continue(b, fence, &w))
		;
}

/* Deferred kernels before the fence would wait for a host that waits for them. */
static void host_wait_begin(struct cuda_backend *b, uint64_t fence)
{
	cuda_profile_end(b);
	if (b->n_deferred && fence > b->deferred_fence + b->deferred->n_fences)
		cuda_deferred_drain(b);
}

static int host_wait_end(struct cuda_backend *b, struct err *e)
{
	cuda_check_aborted(b);
	if (b->base.failure.code && e)
		*e = b->base.failure;
	return b->base.failure.code;
}

int cuda_fence_wait(struct backend *base, uint64_t fence, struct err *e)
{
	struct cuda_backend *b = cuda_of(base);
	host_wait_begin(b, fence);
	if (!base->failure.code)
		cuda_fence_poll(b, fence);
	return host_wait_end(b, e);
}

int cuda_wait_expert_ids(struct backend *base, uint64_t fence, const uint64_t *expert_ids, int n,
	int32_t *ids, struct err *e)
{
	struct cuda_backend *b = cuda_of(base);
	struct host_wait w = {};
	host_wait_begin(b, fence);
	for (int i = 0; i < n && !base->failure.code;) {
		uint64_t element = __atomic_load_n(expert_ids + i, __ATOMIC_ACQUIRE);
		if ((uint32_t)(element >> 32) == (uint32_t)fence)
			ids[i++] = (int32_t)(uint32_t)element;
		else
			host_wait_continue(b, fence, &w);
	}
	return host_wait_end(b, e);
}
