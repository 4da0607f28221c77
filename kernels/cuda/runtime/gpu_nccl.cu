/* SPDX-License-Identifier: MIT */
/* Channels of NCCL (nccl.h). A channel is a communicator of two ranks, of which 0 sends and 1
 * receives. Its transfers are enqueued in the backend's stream. */
#include "kernels/cuda/runtime/nccl_calls.cuh"
#include "kernels/cuda/runtime/timeline.cuh"

extern "C" {
#include "kernels/nccl.h"
#include "kernels/nccl_gate.h"
}

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* What an abort waits for a call of NCCL in progress. It takes microseconds to enqueue a transfer,
 * and the process is ended GRACE_NS (src/ranks/heartbeats.c) after the other was lost. */
#define ABORT_WAIT_MS 200

struct nccl_channel {
	struct cuda_backend *b;
	const struct nccl_calls *calls;
	nccl_comm comm;
	struct nccl_gate gate; /* of comm; closed by nccl_channel_abort */
};

static_assert(sizeof(struct nccl_id) == NCCL_ID_BYTES, "an id of NCCL has another length");

static int nccl_failure(const struct nccl_calls *calls, int rc, struct err *e)
{
	return err_set(e, ERR_RUN, "NCCL: %s", calls->ncclGetErrorString(rc));
}

const char *nccl_missing(const struct backend *b)
{
	const char *why;
	if (strcmp(b->ops->name, "cuda") != 0)
		return "the rows are not on a card";
	nccl_load(&why);
	return why;
}

const char *nccl_version(void)
{
	const char *why;
	const struct nccl_calls *calls = nccl_load(&why);
	return calls ? calls->version : "";
}

int nccl_make_id(uint8_t id[NCCL_ID_BYTES], struct err *e)
{
	const char *why;
	const struct nccl_calls *calls = nccl_load(&why);
	struct nccl_id made;
	if (!calls)
		return err_set(e, ERR_RUN, "%s", why);
	int rc = calls->ncclGetUniqueId(&made);
	if (rc != NCCL_SUCCESS)
		return nccl_failure(calls, rc, e);
	memcpy(id, &made, sizeof made);
	return 0;
}

int nccl_channel_open(struct backend *b, const uint8_t id[NCCL_ID_BYTES], bool sends,
	struct nccl_channel **out, struct err *e)
{
	const char *why;
	struct nccl_id both;
	*out = NULL;
	const struct nccl_calls *calls = nccl_load(&why);
	if (!calls)
		return err_set(e, ERR_RUN, "%s", why);
	struct nccl_channel *c = (struct nccl_channel *)calloc(1, sizeof *c);
	if (!c)
		return err_set(e, ERR_MEMORY, "no memory for a channel of NCCL");
	c->b = cuda_of(b);
	c->calls = calls;
	memcpy(&both, id, sizeof both);
	cuda_select(c->b->device);
	int rc = calls->ncclCommInitRank(&c->comm, 2, both, sends ? 0 : 1);
	cudaGetLastError(); /* reported here, not by the next op */
	if (rc != NCCL_SUCCESS) {
		free(c);
		return nccl_failure(calls, rc, e);
	}
	*out = c;
	return 0;
}

static void transfer(struct nccl_channel *c, const struct nccl_part *parts, int n, bool sends)
{
	struct cuda_backend *b = c->b;
	if (!cuda_begin(&b->base, sends ? "sending rows by NCCL" : "receiving rows by NCCL") ||
		nccl_gate_is_closed(&c->gate))
		return;
	cuda_deferred_drain(b);
	if (!nccl_gate_enter(&c->gate))
		return;
	int rc = c->calls->ncclGroupStart();
	for (int i = 0; i < n && !rc; i++)
		rc = sends ? c->calls->ncclSend(
						 parts[i].data, parts[i].bytes, NCCL_INT8, 1, c->comm, b->stream)
				   : c->calls->ncclRecv(
						 parts[i].data, parts[i].bytes, NCCL_INT8, 0, c->comm, b->stream);
	int ended = c->calls->ncclGroupEnd();
	nccl_gate_leave(&c->gate);
	rc = rc ? rc : ended;
	b->next_serialized = true; /* a kernel of NCCL is before it in the stream */
	if (rc != NCCL_SUCCESS && !b->base.failure.code)
		nccl_failure(c->calls, rc, &b->base.failure);
}

void nccl_channel_send(struct nccl_channel *c, const struct nccl_part *parts, int n)
{
	transfer(c, parts, n, true);
}

void nccl_channel_receive(struct nccl_channel *c, const struct nccl_part *parts, int n)
{
	transfer(c, parts, n, false);
}

static void *abort_comm(void *user)
{
	struct nccl_channel *c = (struct nccl_channel *)user;
	nccl_gate_wait(&c->gate, ABORT_WAIT_MS);
	c->calls->ncclCommAbort(c->comm);
	return NULL;
}

/* ncclCommAbort frees the communicator, so a transfer that is being enqueued ends first. One that
 * takes longer than ABORT_WAIT_MS waits for the other process inside NCCL, where it polls the abort
 * flag: it does not return without ncclCommAbort. All of it runs in a thread of its own, because
 * the caller has to end the process in time. */
void nccl_channel_abort(struct nccl_channel *c, const char *why)
{
	pthread_t thread;
	const char *none = NULL;
	/* the first reason is kept; it is there before any op can end early */
	__atomic_compare_exchange_n(
		&c->b->timeline->aborted, &none, why, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	if (!nccl_gate_close(&c->gate))
		return;
	if (!pthread_create(&thread, NULL, abort_comm, c))
		pthread_detach(thread);
}

/* After an abort the memory stays: a thread may still use it, and the process is about to end. */
void nccl_channel_close(struct nccl_channel *c)
{
	if (!c || nccl_gate_is_closed(&c->gate))
		return;
	cuda_select(c->b->device);
	cudaStreamSynchronize(c->b->stream);
	c->calls->ncclCommDestroy(c->comm);
	cudaGetLastError();
	free(c);
}
