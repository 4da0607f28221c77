/* SPDX-License-Identifier: MIT */
/*
 * Rows between cards of two processes, by NCCL. The library (libnccl.so.2) is loaded at run time
 * and never required.
 *
 * Order of use: nccl_missing; nccl_make_id in one process, which sends the id to the other one;
 * nccl_channel_open in both at the same time; nccl_channel_send in the first one and
 * nccl_channel_receive in the second, in the same order and of the same parts; nccl_channel_close
 * in both.
 *
 * - Sending and receiving are enqueued like ops of the backend; its later ops come behind them.
 * - Threads: that of the backend. nccl_channel_abort: any thread, before nccl_channel_close.
 * - A build without CUDA has these functions, and nccl_missing says so.
 */
#ifndef GLM_KERNELS_NCCL_H
#define GLM_KERNELS_NCCL_H

#include "kernels/backend.h"

#define NCCL_ID_BYTES 128

struct nccl_channel;

struct nccl_part {
	void *data; /* memory of the backend: of the device, or shared */
	size_t bytes;
};

/* Why rows of this backend cannot go by NCCL, in a clause; NULL: they can. Loads the library. */
const char *nccl_missing(const struct backend *b);

/* "2.21.5", once it is loaded. */
const char *nccl_version(void);

/* ERR_RUN with NCCL's words. */
int nccl_make_id(uint8_t id[NCCL_ID_BYTES], struct err *e);

/* Waits for the other process. b outlives the channel. ERR_RUN. */
int nccl_channel_open(struct backend *b, const uint8_t id[NCCL_ID_BYTES], bool sends,
	struct nccl_channel **out, struct err *e);

/* A refused call becomes the backend's failure. */
void nccl_channel_send(struct nccl_channel *c, const struct nccl_part *parts, int n);
void nccl_channel_receive(struct nccl_channel *c, const struct nccl_part *parts, int n);

/* The other process is lost: what was enqueued ends with undefined data, and from now on every wait
 * of the host for this backend fails with `why`, which stays valid. Returns at once. */
void nccl_channel_abort(struct nccl_channel *c, const char *why);

void nccl_channel_close(struct nccl_channel *c); /* waits for the ops; NULL is fine */

#endif
