/* SPDX-License-Identifier: MIT */
/*
 * A channel that carries bytes from a card of one process to a card of another one, by NCCL. The
 * library (libnccl.so.2) is loaded at run time and never required.
 *
 * Order of use:
 *   1. nccl_missing in both processes: can they open a channel?
 *   2. nccl_make_id in one process, which sends the id to the other one (by MPI, for example)
 *   3. nccl_channel_open in both at the same time, with sends = true in one of them
 *   4. nccl_channel_send in that one and nccl_channel_receive in the other, any number of times:
 *      calls match in their order, and matching calls have parts of the same sizes
 *   5. nccl_channel_close in both
 *
 * - Order: sending and receiving are enqueued like ops of the backend. The host does not wait, and
 *   later ops of the backend come behind them.
 * - Threads: the one that calls the backend. nccl_channel_abort: any thread, not at the same time
 *   as nccl_channel_close.
 * - A build without CUDA has these functions; nccl_missing then gives the reason.
 */
#ifndef GLM_KERNELS_NCCL_H
#define GLM_KERNELS_NCCL_H

#include "kernels/backend.h"

#define NCCL_ID_BYTES 128

struct nccl_channel;

struct nccl_part {
	void *data; /* memory of the backend: MEM_DEVICE or MEM_SHARED */
	size_t bytes;
};

/* The reason why this backend cannot have a channel, as a clause; NULL: it can. Loads the library,
 * once. */
const char *nccl_missing(const struct backend *b);

/* The version of the library, "2.21.5"; "": it cannot be loaded. */
const char *nccl_version(void);

/* ERR_RUN with the reason that NCCL gives. */
int nccl_make_id(uint8_t id[NCCL_ID_BYTES], struct err *e);

/* Waits until the other process calls this too. b outlives the channel. ERR_RUN, ERR_MEMORY: *out
 * is NULL. */
int nccl_channel_open(struct backend *b, const uint8_t id[NCCL_ID_BYTES], bool sends,
	struct nccl_channel **out, struct err *e);

/* n parts, one after the other; `parts` is read before the return. A refused call becomes the
 * backend's failure. After an abort these do nothing. */
void nccl_channel_send(struct nccl_channel *c, const struct nccl_part *parts, int n);
void nccl_channel_receive(struct nccl_channel *c, const struct nccl_part *parts, int n);

/* For a caller that knows the other process to be lost. Returns at once.
 * - Transfers in flight end, with undefined data.
 * - Every later wait of the host for this backend fails with ERR_RUN and the sentence `why`, which
 *   must stay valid as long as the backend. */
void nccl_channel_abort(struct nccl_channel *c, const char *why);

/* Waits for the ops of the backend. After an abort it does nothing, and the channel's memory is not
 * freed: the process is about to end. NULL is fine. */
void nccl_channel_close(struct nccl_channel *c);

#endif
