/* SPDX-License-Identifier: MIT */
/*
 * Copies over PCIe and inside the card (copier.h): one CUDA stream for each copy stream, and
 * a ring of events for its fences.
 *
 * Fence value = number * COPY_STREAMS + stream; fence n of a stream is event n % EVENTS.
 * Events of a stream complete in order, so the last fence that was seen complete is enough to
 * remember. An event is recorded again only when its earlier fence was seen complete, so a wait for
 * a fence never waits for a later one. A CUDA fault is not limited to its copy: from then on every
 * fence of the copier fails with the first sentence.
 */
#include "kernels/cuda/runtime/gpu_backend.cuh"

extern "C" {
#include "kernels/copier.h"
}

#include <stdlib.h>

/* Events of a queue. With EVENTS - 1 fences pending, the next call of fence waits for the oldest.
 */
#define EVENTS 1024

struct copy_queue {
	cudaStream_t stream;
	cudaEvent_t event[EVENTS];
	uint64_t last, seen; /* numbers of fences: enqueued last; last seen to be complete */
};

struct cuda_copier {
	struct copier base; /* first: the pointers are exchanged */
	int device;
	struct copy_queue queue[COPY_STREAMS];
	struct err failure; /* the first; code 0: none */
};

static struct cuda_copier *copier_of(struct copier *c)
{
	return (struct cuda_copier *)c;
}

static bool copier_check(struct cuda_copier *c, cudaError_t rc, const char *what)
{
	if (rc == cudaSuccess)
		return true;
	if (!c->failure.code)
		err_set(&c->failure, ERR_RUN, "cuda: %s: %s", what, cudaGetErrorString(rc));
	return false;
}

static int copier_alloc(struct copier *c, size_t bytes, void **out, struct err *e)
{
	size_t left = 0, all = 0;
	*out = NULL;
	cudaError_t rc = cuda_select(copier_of(c)->device);
	if (rc == cudaSuccess)
		rc = bytes > SIZE_MAX - 512 ? cudaErrorMemoryAllocation
									: cudaMalloc(out, (bytes + 511) / 256 * 256);
	if (rc == cudaSuccess)
		return 0;
	cudaGetLastError();
	*out = NULL;
	cudaMemGetInfo(&left, &all);
	return err_set(e, cuda_memory_code(rc),
		"%.3f GB of the card's memory requested, %.3f GB free (%s)", (double)bytes / 1e9,
		(double)left / 1e9, cudaGetErrorString(rc));
}

static void copier_free(struct copier *c, void *p, size_t bytes)
{
	(void)bytes;
	if (!p)
		return;
	cuda_select(copier_of(c)->device);
	cudaFree(p);
	cudaGetLastError();
}

static int copier_pin(struct copier *c, void *base, size_t bytes, struct err *e)
{
	cudaError_t rc = cuda_select(copier_of(c)->device);
	if (rc == cudaSuccess)
		rc = cudaHostRegister(base, bytes, cudaHostRegisterDefault);
	if (rc == cudaSuccess)
		return 0;
	cudaGetLastError();
	return err_set(e, cuda_memory_code(rc), "%.3f GB of host memory cannot be pinned: %s",
		(double)bytes / 1e9, cudaGetErrorString(rc));
}

static void copier_unpin(struct copier *c, void *base, size_t bytes)
{
	(void)bytes;
	cuda_select(copier_of(c)->device);
	cudaHostUnregister(base);
	cudaGetLastError();
}

static void copier_attach(struct copier *c)
{
	copier_check(copier_of(c), cuda_select(copier_of(c)->device),
		"the copying thread cannot select the card");
}

static void copier_copy(
	struct copier *base, enum copy_stream stream, void *dst, const void *src, size_t bytes)
{
	static const cudaMemcpyKind kinds[COPY_STREAMS] = {cudaMemcpyHostToDevice,
		cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice};
	struct cuda_copier *c = copier_of(base);
	if (!c->failure.code && bytes)
		copier_check(c, cudaMemcpyAsync(dst, src, bytes, kinds[stream], c->queue[stream].stream),
			"a copy is refused");
}

/* Sets q->seen to the last fence that is complete. False: a fault. */
static bool queue_poll(struct cuda_copier *c, struct copy_queue *q)
{
	while (q->seen < q->last) {
		cudaError_t rc = cudaEventQuery(q->event[(q->seen + 1) % EVENTS]);
		if (rc == cudaErrorNotReady) {
			cudaGetLastError(); /* not a failure: the thread's next call must not report it */
			return true;
		}
		if (!copier_check(c, rc, "a copy"))
			return false;
		q->seen++;
	}
	return true;
}

static uint64_t copier_fence(struct copier *base, enum copy_stream stream)
{
	struct cuda_copier *c = copier_of(base);
	struct copy_queue *q = &c->queue[stream];
	if (!c->failure.code && q->last - q->seen == EVENTS - 1) {
		copier_check(c, cudaEventSynchronize(q->event[(q->seen + 1) % EVENTS]), "a copy");
		queue_poll(c, q);
	}
	q->last++;
	if (!c->failure.code)
		copier_check(
			c, cudaEventRecord(q->event[q->last % EVENTS], q->stream), "an event is refused");
	return q->last * COPY_STREAMS + stream;
}

static void copier_stream_wait(struct copier *base, enum copy_stream stream, uint64_t fence)
{
	struct cuda_copier *c = copier_of(base);
	const struct copy_queue *on = &c->queue[fence % COPY_STREAMS];
	uint64_t number = fence / COPY_STREAMS;
	if (!c->failure.code && number > on->seen)
		copier_check(c, cudaStreamWaitEvent(c->queue[stream].stream, on->event[number % EVENTS], 0),
			"an order is refused");
}

static int copier_fence_status(struct copier *base, uint64_t fence, struct err *e)
{
	struct cuda_copier *c = copier_of(base);
	struct copy_queue *q = &c->queue[fence % COPY_STREAMS];
	if (c->failure.code || (fence / COPY_STREAMS > q->seen && !queue_poll(c, q))) {
		if (e)
			*e = c->failure;
		return c->failure.code;
	}
	return fence / COPY_STREAMS <= q->seen;
}

static void copier_drain(struct copier *base)
{
	struct cuda_copier *c = copier_of(base);
	for (int i = 0; i < COPY_STREAMS; i++)
		if (c->queue[i].stream)
			copier_check(c, cudaStreamSynchronize(c->queue[i].stream), "a copy");
}

static void copier_close(struct copier *base)
{
	struct cuda_copier *c = copier_of(base);
	cuda_select(c->device);
	copier_drain(base);
	for (int i = 0; i < COPY_STREAMS; i++) {
		struct copy_queue *q = &c->queue[i];
		for (int k = 0; k < EVENTS; k++)
			if (q->event[k])
				cudaEventDestroy(q->event[k]);
		if (q->stream)
			cudaStreamDestroy(q->stream);
	}
	cudaGetLastError();
	free(c);
}

static const struct copier_ops copier_ops_cuda = {
	.name = "cuda",
	.close = copier_close,
	.alloc = copier_alloc,
	.free = copier_free,
	.pin = copier_pin,
	.unpin = copier_unpin,
	.attach = copier_attach,
	.copy = copier_copy,
	.fence = copier_fence,
	.stream_wait = copier_stream_wait,
	.fence_status = copier_fence_status,
	.drain = copier_drain,
};

static cudaError_t queues_open(struct cuda_copier *c)
{
	int low = 0, high = 0;
	cudaError_t rc = cuda_select(c->device);
	if (rc == cudaSuccess)
		rc = cudaDeviceGetStreamPriorityRange(&low, &high);
	for (int i = 0; rc == cudaSuccess && i < COPY_STREAMS; i++) {
		int priority = i == COPY_IN || i == COPY_WITHIN ? high : low;
		rc = cudaStreamCreateWithPriority(&c->queue[i].stream, cudaStreamNonBlocking, priority);
		for (int k = 0; rc == cudaSuccess && k < EVENTS; k++)
			rc = cudaEventCreateWithFlags(&c->queue[i].event[k], cudaEventDisableTiming);
	}
	return rc;
}

int cuda_copier_open(struct backend *b, struct copier **out, struct err *e)
{
	*out = NULL;
	struct cuda_copier *c = (struct cuda_copier *)calloc(1, sizeof *c);
	if (!c)
		return err_set(e, ERR_MEMORY, "cuda: no memory for the copy streams");
	c->base.ops = &copier_ops_cuda;
	c->device = cuda_of(b)->device;
	cudaError_t rc = queues_open(c);
	if (rc == cudaSuccess) {
		*out = &c->base;
		return 0;
	}
	copier_close(&c->base);
	return err_set(
		e, ERR_RUN, "cuda: the copy streams cannot be opened: %s", cudaGetErrorString(rc));
}
