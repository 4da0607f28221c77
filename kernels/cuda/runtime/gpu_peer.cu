/* SPDX-License-Identifier: MIT */
/*
 * Transfers between two cards (peer.h).
 *
 * store_kernel: grid 1, block ROW_THREADS. Copies a row into the other card's memory. Bytes moved:
 * PEER_HAND_BYTES read and written.
 * flags_kernel: grid 1 on each card, block ROW_THREADS; both run at the same time. A round: the
 * first card stores a row whose words all hold the number of the round, the second one polls its
 * own memory until all of them have arrived, and answers with a row of the same words. A word is
 * its own flag, so no order between words is needed (as flag_words.cuh, with system scope). A
 * kernel whose polls reach FLAG_POLLS gives up and sets *gave_up.
 */
#include "kernels/cuda/runtime/gpu_backend.cuh"
#include "kernels/cuda/runtime/nccl_calls.cuh"

extern "C" {
#include "kernels/peer.h"
}

#include <stdio.h>
#include <stdlib.h>

#define ROW_THREADS 768 /* two lines of 16 bytes each */
#define ROW_LINES   (PEER_HAND_BYTES / sizeof(uint4) / ROW_THREADS)
#define ROW_FLOATS  (PEER_HAND_BYTES / sizeof(float))
#define FLAG_POLLS  (1u << 24) /* of one round, at most: some seconds */

static_assert(ROW_LINES * ROW_THREADS * sizeof(uint4) == PEER_HAND_BYTES, "whole lines");

struct peer_card {
	int device;
	char name[256];
	bool access;         /* to the memory of the other card */
	cudaStream_t stream; /* both cards have one, also if they are the same */
	cudaEvent_t event;
	uint8_t *from, *to; /* device, [PEER_COPY_BYTES]: copied from here, to here */
	uint8_t *row;       /* device, [PEER_HAND_BYTES]: written by the other card */
	nccl_comm comm;
};

struct peer_pair {
	struct peer_card card[2];
	uint8_t *host;     /* pinned [PEER_HAND_BYTES] */
	uint32_t *gave_up; /* pinned: a kernel of this run reached FLAG_POLLS */
	uint32_t round;    /* of flags_kernel, the last one */
	const struct nccl_calls *nccl;
};

static __global__ void __launch_bounds__(ROW_THREADS) store_kernel(const uint4 *src, uint4 *dst)
{
	for (unsigned i = 0; i < ROW_LINES; i++)
		dst[i * ROW_THREADS + threadIdx.x] = src[i * ROW_THREADS + threadIdx.x];
}

static __device__ __forceinline__ uint4 system_load4(const uint4 *p)
{
	uint4 v;
	asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
				 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
				 : "l"(p)
				 : "memory");
	return v;
}

static __device__ __forceinline__ void system_store4(uint4 *p, uint32_t v)
{
	asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1,%1,%1,%1};" ::"l"(p), "r"(v) : "memory");
}

/* mine, other: the row in this card's memory, that in the other's. Rounds first + 1 .. last. */
static __global__ void __launch_bounds__(ROW_THREADS) flags_kernel(
	uint4 *mine, uint4 *other, uint32_t first, uint32_t last, bool begins, uint32_t *gave_up)
{
	for (uint32_t round = first + 1; round <= last; round++) {
		if (begins)
			for (unsigned i = 0; i < ROW_LINES; i++)
				system_store4(other + i * ROW_THREADS + threadIdx.x, round);
		bool failed = false;
		for (unsigned i = 0, polls = 0; i < ROW_LINES && !failed; polls++) {
			const uint4 v = system_load4(mine + i * ROW_THREADS + threadIdx.x);
			i += v.x == round && v.y == round && v.z == round && v.w == round;
			failed = polls == FLAG_POLLS;
		}
		if (__syncthreads_or(failed)) {
			*(volatile uint32_t *)gave_up = 1;
			return;
		}
		if (!begins)
			for (unsigned i = 0; i < ROW_LINES; i++)
				system_store4(other + i * ROW_THREADS + threadIdx.x, round);
	}
}

/* ---- opening ---- */

static cudaError_t card_open(struct peer_card *c, const struct peer_card *other)
{
	cudaDeviceProp prop;
	cudaError_t rc;
	int can = 1;
	if ((rc = cuda_select(c->device)) || (rc = cudaGetDeviceProperties(&prop, c->device)))
		return rc;
	snprintf(c->name, sizeof c->name, "%s", prop.name);
	if (c->device != other->device) {
		if ((rc = cudaDeviceCanAccessPeer(&can, c->device, other->device)))
			return rc;
		rc = can ? cudaDeviceEnablePeerAccess(other->device, 0) : cudaSuccess;
		if (rc && rc != cudaErrorPeerAccessAlreadyEnabled)
			can = 0;
		cudaGetLastError(); /* it is a figure, not a failure */
	}
	c->access = can;
	if ((rc = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking)) ||
		(rc = cudaEventCreateWithFlags(&c->event, cudaEventDisableTiming)) ||
		(rc = cudaMalloc((void **)&c->from, PEER_COPY_BYTES)) ||
		(rc = cudaMalloc((void **)&c->to, PEER_COPY_BYTES)) ||
		(rc = cudaMalloc((void **)&c->row, PEER_HAND_BYTES)) ||
		(rc = cudaMemsetAsync(c->from, 1, PEER_COPY_BYTES, c->stream)) ||
		(rc = cudaMemsetAsync(c->row, 0, PEER_HAND_BYTES, c->stream)))
		return rc;
	return cudaStreamSynchronize(c->stream);
}

static int pair_failure(cudaError_t rc, const char *what, struct err *e)
{
	cudaGetLastError();
	return err_set(e, rc == cudaErrorMemoryAllocation ? ERR_MEMORY : ERR_RUN, "cuda: %s: %s", what,
		cudaGetErrorString(rc));
}

int peer_pair_open(uint32_t first, uint32_t second, struct peer_pair **out, struct err *e)
{
	const uint32_t n = cuda_count_cards(), wanted[] = {first, second};
	*out = NULL;
	if (!n)
		return err_set(e, ERR_RUN, "no graphics card answers");
	for (int i = 0; i < 2; i++)
		if (wanted[i] >= n)
			return err_set(
				e, ERR_USAGE, "there is no card %u; this machine has %u, from 0", wanted[i], n);
	struct peer_pair *p = (struct peer_pair *)calloc(1, sizeof *p);
	if (!p)
		return err_set(e, ERR_MEMORY, "no memory for two cards");
	p->card[0].device = (int)first;
	p->card[1].device = (int)second;
	cudaError_t rc;
	if ((rc = card_open(&p->card[0], &p->card[1])) || (rc = card_open(&p->card[1], &p->card[0])) ||
		(rc = cudaHostAlloc((void **)&p->host, PEER_HAND_BYTES, cudaHostAllocDefault)) ||
		(rc = cudaHostAlloc((void **)&p->gave_up, sizeof *p->gave_up, cudaHostAllocMapped))) {
		peer_pair_close(p);
		return pair_failure(rc, "two cards", e);
	}
	*out = p;
	return 0;
}

void peer_pair_close(struct peer_pair *p)
{
	if (!p)
		return;
	for (int i = 0; i < 2; i++) {
		struct peer_card *c = &p->card[i];
		cuda_select(c->device);
		if (c->stream)
			cudaStreamSynchronize(c->stream);
	}
	for (int i = 0; i < 2; i++) {
		struct peer_card *c = &p->card[i];
		cuda_select(c->device);
		if (c->comm)
			p->nccl->ncclCommDestroy(c->comm);
		cudaFree(c->from);
		cudaFree(c->to);
		cudaFree(c->row);
		if (c->event)
			cudaEventDestroy(c->event);
		if (c->stream)
			cudaStreamDestroy(c->stream);
	}
	cudaFreeHost(p->host);
	cudaFreeHost(p->gave_up);
	cudaGetLastError();
	free(p);
}

const char *peer_pair_card(const struct peer_pair *p, int which)
{
	return p->card[which].name;
}

bool peer_pair_access(const struct peer_pair *p, int which)
{
	return p->card[which].access;
}

/* ---- NCCL ---- */

/* One communicator of both cards, in one process. */
static const char *open_nccl(struct peer_pair *p)
{
	const char *why = NULL;
	struct nccl_id id;
	if (p->card[0].comm)
		return NULL;
	if (p->card[0].device == p->card[1].device)
		return "NCCL takes two different cards";
	if (!(p->nccl = nccl_load(&why)))
		return why;
	int rc = p->nccl->ncclGetUniqueId(&id);
	if (!rc)
		rc = p->nccl->ncclGroupStart();
	for (int i = 0; i < 2 && !rc; i++) {
		cuda_select(p->card[i].device);
		rc = p->nccl->ncclCommInitRank(&p->card[i].comm, 2, id, i);
	}
	int ended = p->nccl->ncclGroupEnd();
	rc = rc ? rc : ended;
	if (!rc)
		return NULL;
	p->card[0].comm = p->card[1].comm = NULL;
	return p->nccl->ncclGetErrorString(rc);
}

static int all_reduce(struct peer_pair *p, struct err *e)
{
	int rc = 0;
	for (int k = 0; k < PEER_HANDS && !rc; k++) {
		rc = p->nccl->ncclGroupStart();
		for (int i = 0; i < 2 && !rc; i++) {
			struct peer_card *c = &p->card[i];
			cuda_select(c->device);
			rc = p->nccl->ncclAllReduce(
				c->from, c->to, ROW_FLOATS, NCCL_FLOAT32, NCCL_SUM, c->comm, c->stream);
		}
		int ended = p->nccl->ncclGroupEnd();
		rc = rc ? rc : ended;
	}
	return rc ? err_set(e, ERR_RUN, "NCCL: %s", p->nccl->ncclGetErrorString(rc)) : 0;
}

const char *peer_pair_lacks(struct peer_pair *p, enum peer_kind kind)
{
	if (kind == PEER_ALL_REDUCE)
		return open_nccl(p);
	if ((kind == PEER_HAND_KERNEL || kind == PEER_HAND_FLAGS) &&
		!(p->card[0].access && p->card[1].access))
		return "the cards do not reach each other's memory";
	return NULL;
}

/* ---- runs ---- */

static cudaError_t copy_large(struct peer_pair *p, bool there, bool back)
{
	const struct peer_card *a = &p->card[0], *b = &p->card[1];
	cudaError_t rc = cudaSuccess;
	if (there)
		rc = cudaMemcpyPeerAsync(b->to, b->device, a->from, a->device, PEER_COPY_BYTES, a->stream);
	if (!rc && back)
		rc = cudaMemcpyPeerAsync(a->to, a->device, b->from, b->device, PEER_COPY_BYTES, b->stream);
	return rc;
}

/* A row from card `i` to the other one, whose stream goes on behind it. */
static cudaError_t hand_row(struct peer_pair *p, int i, bool by_kernel)
{
	struct peer_card *c = &p->card[i], *other = &p->card[!i];
	cudaError_t rc = cuda_select(c->device);
	if (!rc && by_kernel) {
		store_kernel<<<1, ROW_THREADS, 0, c->stream>>>((const uint4 *)c->row, (uint4 *)other->row);
		rc = cudaGetLastError();
	} else if (!rc) {
		rc = cudaMemcpyPeerAsync(
			other->row, other->device, c->row, c->device, PEER_HAND_BYTES, c->stream);
	}
	if (rc || (rc = cudaEventRecord(c->event, c->stream)))
		return rc;
	return cudaStreamWaitEvent(other->stream, c->event, 0);
}

/* A row from card `i` to the other one by way of the host, which waits for both copies. */
static cudaError_t hand_row_by_host(struct peer_pair *p, int i)
{
	const struct peer_card *c = &p->card[i], *other = &p->card[!i];
	cudaError_t rc;
	if ((rc = cuda_select(c->device)) ||
		(rc = cudaMemcpyAsync(
			 p->host, c->row, PEER_HAND_BYTES, cudaMemcpyDeviceToHost, c->stream)) ||
		(rc = cudaStreamSynchronize(c->stream)) || (rc = cuda_select(other->device)) ||
		(rc = cudaMemcpyAsync(
			 other->row, p->host, PEER_HAND_BYTES, cudaMemcpyHostToDevice, other->stream)))
		return rc;
	return cudaStreamSynchronize(other->stream);
}

static cudaError_t launch_flags(struct peer_pair *p)
{
	const uint32_t first = p->round, last = p->round + PEER_HANDS / 2;
	cudaError_t rc = cudaSuccess;
	/* no rounds at first: a kernel must not be loaded while the other one polls */
	for (int run = p->round ? 1 : 0; run < 2 && !rc; run++)
		for (int i = 0; i < 2 && !rc; i++) {
			struct peer_card *c = &p->card[i];
			cuda_select(c->device);
			flags_kernel<<<1, ROW_THREADS, 0, c->stream>>>((uint4 *)c->row,
				(uint4 *)p->card[!i].row, first, run ? last : first, !i, p->gave_up);
			rc = cudaGetLastError();
			if (!rc && !run)
				rc = cudaStreamSynchronize(c->stream);
		}
	p->round = last;
	return rc;
}

static cudaError_t run_rows(struct peer_pair *p, enum peer_kind kind)
{
	cudaError_t rc = cudaSuccess;
	if (kind == PEER_HAND_FLAGS)
		return launch_flags(p);
	for (int k = 0; k < PEER_HANDS && !rc; k++)
		rc = kind == PEER_HAND_HOST ? hand_row_by_host(p, k % 2)
									: hand_row(p, k % 2, kind == PEER_HAND_KERNEL);
	return rc;
}

int peer_pair_run(struct peer_pair *p, enum peer_kind kind, struct err *e)
{
	cudaError_t rc = cudaSuccess;
	*p->gave_up = 0; /* the run before has ended */
	if (kind == PEER_ALL_REDUCE) {
		int failed = all_reduce(p, e);
		if (failed)
			return failed;
	} else if (kind <= PEER_COPY_BOTH) {
		rc = copy_large(p, kind != PEER_COPY_BACK, kind != PEER_COPY);
	} else {
		rc = run_rows(p, kind);
	}
	for (int i = 0; i < 2; i++) {
		cuda_select(p->card[i].device);
		cudaError_t ended = cudaStreamSynchronize(p->card[i].stream);
		rc = rc ? rc : ended;
	}
	if (rc)
		return pair_failure(rc, "between two cards", e);
	if (*p->gave_up)
		return err_set(e, ERR_RUN, "cuda: a row that one card stored has not come to the other");
	return 0;
}
