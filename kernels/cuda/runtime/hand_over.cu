/* SPDX-License-Identifier: MIT */
/*
 * Copies from one CUDA backend to another one, of the same card or of another (hand_over.h). They
 * run in the sender's stream. The host only enqueues: one event orders the copies behind the ops of
 * the receiver, a second one orders the receiver's later ops behind the copies.
 *
 * hand_over_kernel: grid (blocks, parts), block 256. It runs on the sender's card and stores into
 * the receiver's memory. Bytes moved: those of the parts, read once and written once. All parts of
 * a decode step take one launch.
 *
 * Larger parts, and those between cards without access to each other's memory, are copied by the
 * driver: by a copy engine, or through host memory.
 */
#include "kernels/cuda/runtime/timeline.cuh"

extern "C" {
#include "kernels/hand_over.h"
}

/* Most bytes of a part that the kernel copies. With more, the overhead of a copy by the driver no
 * longer counts. */
#define KERNEL_BYTES  ((size_t)4 << 20)
#define BLOCK_THREADS 256
#define BLOCKS_MOST   64

struct hand_over_parts {
	struct handed_part part[HANDED_PARTS_MAX];
};

static __global__ void __launch_bounds__(BLOCK_THREADS)
	hand_over_kernel(const __grid_constant__ struct hand_over_parts parts)
{
	const struct handed_part p = parts.part[blockIdx.y];
	const size_t at = blockIdx.x * (size_t)blockDim.x + threadIdx.x,
				 step = gridDim.x * (size_t)blockDim.x;
	const uint4 *src = (const uint4 *)p.src;
	uint4 *dst = (uint4 *)p.dst;
	const size_t lines = p.bytes / sizeof *src, words = p.bytes / sizeof(uint32_t);
	for (size_t i = at; i < lines; i += step)
		dst[i] = src[i];
	for (size_t i = lines * 4 + at; i < words; i += step)
		((uint32_t *)p.dst)[i] = ((const uint32_t *)p.src)[i];
}

/* Can kernels of `from` store into memory of `to`? The answer is kept for each card. */
static bool has_access(struct cuda_backend *from, const struct cuda_backend *to)
{
	if (from->device == to->device)
		return true;
	if (to->device >= CUDA_PEERS)
		return false;
	uint8_t *known = &from->timeline->peer_access[to->device];
	if (*known == PEER_UNKNOWN) {
		int can = 0;
		cudaError_t rc = cudaDeviceCanAccessPeer(&can, from->device, to->device);
		if (rc == cudaSuccess && can)
			rc = cudaDeviceEnablePeerAccess(to->device, 0);
		/* another backend of this card has asked before */
		if (rc == cudaErrorPeerAccessAlreadyEnabled)
			rc = cudaSuccess;
		cudaGetLastError(); /* without access the driver copies */
		*known = rc == cudaSuccess && can ? PEER_ACCESS : PEER_NO_ACCESS;
	}
	return *known == PEER_ACCESS;
}

static void launch_copies(struct cuda_backend *from, const struct hand_over_parts *parts, int n)
{
	size_t most = 0;
	for (int i = 0; i < n; i++)
		most = parts->part[i].bytes > most ? parts->part[i].bytes : most;
	size_t blocks = (most / sizeof(uint4) + BLOCK_THREADS - 1) / BLOCK_THREADS;
	blocks = blocks < 1 ? 1 : blocks > BLOCKS_MOST ? BLOCKS_MOST : blocks;
	from->next_serialized = true; /* an event is before it in the stream */
	cuda_launch(
		from, hand_over_kernel, dim3((unsigned)blocks, (unsigned)n), BLOCK_THREADS, 0, *parts);
}

void cuda_hand_over(
	struct backend *base, struct backend *to_base, const struct handed_part *parts, int n)
{
	struct cuda_backend *from = cuda_of(base), *to = cuda_of(to_base);
	const cudaEvent_t sent = from->timeline->handed, ready = to->timeline->handed;
	struct hand_over_parts small = {};
	int n_small = 0;
	cuda_deferred_drain(from);
	cuda_deferred_drain(to);
	to->op = "taking rows over";
	if (to_base->failure.code || !cuda_begin(base, "hand over") ||
		!cuda_check(to, cudaEventRecord(ready, to->stream)) ||
		!cuda_check(from, cudaStreamWaitEvent(from->stream, ready, 0)))
		return;
	const bool access = has_access(from, to);
	for (int i = 0; i < n; i++) {
		const struct handed_part *p = &parts[i];
		if (!p->bytes)
			continue;
		if (access && p->bytes <= KERNEL_BYTES) {
			small.part[n_small++] = *p;
			continue;
		}
		from->next_serialized = true;
		if (!cuda_check(from, cudaMemcpyPeerAsync(p->dst, to->device, p->src, from->device,
								  p->bytes, from->stream)))
			return;
	}
	if (n_small)
		launch_copies(from, &small, n_small);
	if (base->failure.code || !cuda_check(from, cudaEventRecord(sent, from->stream)))
		return;
	cuda_check(to, cudaStreamWaitEvent(to->stream, sent, 0));
	to->next_serialized = true;
}
