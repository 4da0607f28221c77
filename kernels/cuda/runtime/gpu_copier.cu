/* SPDX-License-Identifier: MIT */
/*
 * Copies over PCIe and inside the card (copier.h): one non-blocking stream a stream, and a ring of
 * events that serve as fence values.
 *
 * Fence value = number * COPY_STREAMS + stream; number n of a stream is event n % EVENTS. A
 * stream's events complete in order, so it is enough to remember the last one seen. An event is
 * used again only after its former number was seen, so waiting on it for an old number that was
 * seen long ago is never needed. A CUDA fault outlives the copy that met it: from then on every
 * fence value of the copier fails with the first sentence.
 */
#include "kernels/cuda/runtime/gpu_backend.cuh"

extern "C" {
#include "kernels/copier.h"
}

#include <stdlib.h>

#define EVENTS 1024 /* of a stream under way; the next fence waits */

struct copy_queue {
	cudaStream_t stream;
	cudaEvent_t event[EVENTS];
	uint64_t drawn, seen; /* numbers: drawn last, known to be done */
};

struct cuda_copier {
	struct copier base; /* first: the pointers are exchanged */
	int device;
	struct copy_queue queue[COPY_STREAMS];
	struct err failure; /* the first; code 0: none */
};

static struct cuda_copier *of(struct copier *c)
{
	return (struct cuda_copier *)c;
}

static bool check(struct cuda_copier *c, cudaError_t rc, const char *what)
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
	cudaError_t rc = cudaSetDevice(of(c)->device);
	if (rc == cudaSuccess && bytes <= SIZE_MAX - 512)
		rc = cudaMalloc(out, (bytes + 511) / 256 * 256);
	if (rc == cudaSuccess && *out)
		return 0;
	cudaGetLastError();
	*out = NULL;
	cudaMemGetInfo(&left, &all);
	return err_set(e, ERR_MEMORY, "%.3f GB of the card's memory asked for, %.3f GB free (%s)",
		(double)bytes / 1e9, (double)left / 1e9, cudaGetErrorString(rc));
}

static void copier_free(struct copier *c, void *p, size_t bytes)
{
	(void)bytes;
	if (!p)
		return;
	cudaSetDevice(of(c)->device);
	cudaFree(p);
	cudaGetLastError();
}

static int copier_pin(struct copier *c, void *base, size_t bytes, struct err *e)
{
	cudaError_t rc = cudaSetDevice(of(c)->device);
	if (rc == cudaSuccess)
		rc = cudaHostRegister(base, bytes, cudaHostRegisterDefault);
	if (rc == cudaSuccess)
		return 0;
	cudaGetLastError();
	return err_set(e, ERR_MEMORY, "%.3f GB of host memory cannot be pinned: %s",
		(double)bytes / 1e9, cudaGetErrorString(rc));
}

static void copier_unpin(struct copier *c, void *base, size_t bytes)
{
	(void)bytes;
	cudaSetDevice(of(c)->device);
	cudaHostUnregister(base);
	cudaGetLastError();
}

static void copier_attach(struct copier *c)
{
	check(of(c), cudaSetDevice(of(c)->device), "the copying thread cannot select the card");
}

static void copier_copy(
	struct copier *base, enum copy_stream stream, void *dst, const void *src, size_t bytes)
{
	static const cudaMemcpyKind kinds[COPY_STREAMS] = {cudaMemcpyHostToDevice,
		cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice};
	struct cuda_copier *c = of(base);
	if (!c->failure.code && bytes)
		check(c, cudaMemcpyAsync(dst, src, bytes, kinds[stream], c->queue[stream].stream),
			"a copy is refused");
}

/* Looks how far the stream has come; false: a fault. */
static bool look(struct cuda_copier *c, struct copy_queue *l)
{
	while (l->seen < l->drawn) {
		cudaError_t rc = cudaEventQuery(l->event[(l->seen + 1) % EVENTS]);
		if (rc == cudaErrorNotReady)
			return true;
		if (!check(c, rc, "a copy"))
			return false;
		l->seen++;
	}
	return true;
}

static uint64_t copier_fence(struct copier *base, enum copy_stream stream)
{
	struct cuda_copier *c = of(base);
	struct copy_queue *l = &c->queue[stream];
	if (!c->failure.code && l->drawn - l->seen == EVENTS - 1) {
		check(c, cudaEventSynchronize(l->event[(l->seen + 1) % EVENTS]), "a copy");
		look(c, l);
	}
	l->drawn++;
	if (!c->failure.code)
		check(c, cudaEventRecord(l->event[l->drawn % EVENTS], l->stream), "an event is refused");
	return l->drawn * COPY_STREAMS + stream;
}

static void copier_stream_wait(struct copier *base, enum copy_stream stream, uint64_t fence)
{
	struct cuda_copier *c = of(base);
	const struct copy_queue *on = &c->queue[fence % COPY_STREAMS];
	uint64_t number = fence / COPY_STREAMS;
	if (!c->failure.code && number > on->seen)
		check(c, cudaStreamWaitEvent(c->queue[stream].stream, on->event[number % EVENTS], 0),
			"an order is refused");
}

static int copier_fence_status(struct copier *base, uint64_t fence, struct err *e)
{
	struct cuda_copier *c = of(base);
	struct copy_queue *l = &c->queue[fence % COPY_STREAMS];
	if (c->failure.code || (fence / COPY_STREAMS > l->seen && !look(c, l))) {
		if (e)
			*e = c->failure;
		return c->failure.code;
	}
	return fence / COPY_STREAMS <= l->seen;
}

static void copier_drain(struct copier *base)
{
	struct cuda_copier *c = of(base);
	for (int i = 0; i < COPY_STREAMS; i++)
		if (c->queue[i].stream)
			check(c, cudaStreamSynchronize(c->queue[i].stream), "a copy");
}

static void copier_close(struct copier *base)
{
	struct cuda_copier *c = of(base);
	cudaSetDevice(c->device);
	copier_drain(base);
	for (int i = 0; i < COPY_STREAMS; i++) {
		struct copy_queue *l = &c->queue[i];
		for (int k = 0; k < EVENTS; k++)
			if (l->event[k])
				cudaEventDestroy(l->event[k]);
		if (l->stream)
			cudaStreamDestroy(l->stream);
	}
	cudaGetLastError();
	free(c);
}

static const struct copier_ops copier_ops_cuda = {
	"cuda",
	copier_close,
	copier_alloc,
	copier_free,
	copier_pin,
	copier_unpin,
	copier_attach,
	copier_copy,
	copier_fence,
	copier_stream_wait,
	copier_fence_status,
	copier_drain,
};

static cudaError_t open_lanes(struct cuda_copier *c)
{
	int low = 0, high = 0;
	cudaError_t rc = cudaSetDevice(c->device);
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
	cudaError_t rc = open_lanes(c);
	if (rc == cudaSuccess) {
		*out = &c->base;
		return 0;
	}
	copier_close(&c->base);
	return err_set(
		e, ERR_RUN, "cuda: the copy streams cannot be opened: %s", cudaGetErrorString(rc));
}
