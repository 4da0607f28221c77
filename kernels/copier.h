/* SPDX-License-Identifier: MIT */
/*
 * Copies between the host and a card, beside whatever the card computes. A backend whose memory the
 * host reaches has none (backend_ops.copier_open is NULL): there a copy is a memcpy.
 *
 * A lane is a queue of copies that run in the order given. Lanes run beside each other and know
 * nothing of each other, except where `stream_wait` says so. A fence value stands for everything
 * given to a lane before it was drawn:
 *
 *     copy(IN, slot, bounce, n);  t = fence(IN);  ...  fence_status(t) == 1: the bytes are in the
 * slot and the card may read them
 *
 * Host memory must be pinned here (pin) before it is copied from or to, and stays untouched until
 * the fence value is done. Threads: alloc, free, pin and unpin may be called by any thread. The
 * rest belongs to one thread at a time, the one that called attach last.
 */
#ifndef GLM_KERNELS_COPIER_H
#define GLM_KERNELS_COPIER_H

#include "src/base/err.h"

#include <stddef.h>
#include <stdint.h>

enum copy_stream {
	COPY_IN,     /* host to card, what somebody waits for */
	COPY_AHEAD,  /* host to card, guesses and announcements */
	COPY_OUT,    /* card to host */
	COPY_WITHIN, /* card to card */
	COPY_STREAMS
};

struct copier;

struct copier_ops {
	const char *name;
	void (*close)(
		struct copier *c); /* waits for copies that run; the memory has been freed before */

	/* Memory of the card, 256-byte aligned, contents undefined; reads of up to 256 bytes beyond its
	 * end are harmless. ERR_MEMORY says how much was asked for and is free. free waits for nothing:
	 * no copy and no kernel uses it any more. */
	int (*alloc)(struct copier *c, size_t bytes, void **out, struct err *e);
	void (*free)(struct copier *c, void *p, size_t bytes); /* NULL is fine */
	/* Pins mapped, page-aligned host memory. ERR_MEMORY when the system refuses. */
	int (*pin)(struct copier *c, void *base, size_t bytes, struct err *e);
	void (*unpin)(struct copier *c, void *base, size_t bytes);

	void (*attach)(struct copier *c);
	/* Enqueues; never waits for the copy. What fails shows in the fence value. */
	void (*copy)(
		struct copier *c, enum copy_stream stream, void *dst, const void *src, size_t bytes);
	uint64_t (*fence)(struct copier *c, enum copy_stream stream); /* never 0 */
	/* What is given to `stream` from now on waits for the fence value. */
	void (*stream_wait)(struct copier *c, enum copy_stream stream, uint64_t fence);
	/* 1: done; 0: not yet; negative: it failed, the sentence is in *e (may be NULL). Tickets of a
	 * lane are done in order. */
	int (*fence_status)(struct copier *c, uint64_t fence, struct err *e);
	/* Returns when no copy touches memory any more, finished or not. */
	void (*drain)(struct copier *c);
};

/* Implementations put this first in their own struct. */
struct copier {
	const struct copier_ops *ops;
};

#endif
