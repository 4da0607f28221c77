/* SPDX-License-Identifier: MIT */
/*
 * Copies between the host and a card, at the same time as the ops of the backend. A backend whose
 * memory the host reaches has none (backend_ops.copier_open is NULL); there a copy is a memcpy.
 *
 *      c->ops->attach(c);                                  by the thread that makes the calls below
 *      c->ops->copy(c, COPY_IN, slot, staging, n);
 *      fence = c->ops->fence(c, COPY_IN);
 *      ... c->ops->fence_status(c, fence, NULL) == 1: the bytes are in the slot, and the card may
 *      read them
 *
 * - A copy stream runs its copies in the order given. Streams know nothing of each other, except
 *   where stream_wait says so.
 * - A fence value stands for everything given to its stream before. Fences of a stream complete in
 *   order.
 * - Host memory is pinned here before it is copied from or to, and stays untouched until the fence
 *   behind the copy is complete.
 * - Threads: alloc, free, pin and unpin may be called by any thread. The rest belongs to one thread
 *   at a time, the one that called attach last.
 */
#ifndef GLM_KERNELS_COPIER_H
#define GLM_KERNELS_COPIER_H

#include "src/base/err.h"

#include <stddef.h>
#include <stdint.h>

enum copy_stream {
	COPY_IN,     /* host to card, for demand loads */
	COPY_AHEAD,  /* host to card, for prefetch and read-ahead */
	COPY_OUT,    /* card to host */
	COPY_WITHIN, /* card to card */
	COPY_STREAMS
};

struct copier;

struct copier_ops {
	const char *name;
	/* Waits for copies that run. Precondition: all memory has been freed and unpinned. */
	void (*close)(struct copier *c);

	/* Memory of the card, 256-byte aligned, contents undefined; reads of up to 256 bytes beyond its
	 * end are harmless. ERR_MEMORY says how much was requested and is free; ERR_RUN: the card has
	 * failed. free waits for nothing: no copy and no kernel uses the memory any more. p may be
	 * NULL. */
	int (*alloc)(struct copier *c, size_t bytes, void **out, struct err *e);
	void (*free)(struct copier *c, void *p, size_t bytes);
	/* Pins mapped, page-aligned host memory. ERR_MEMORY: the system refuses; ERR_RUN: the card has
	 * failed. */
	int (*pin)(struct copier *c, void *base, size_t bytes, struct err *e);
	void (*unpin)(struct copier *c, void *base, size_t bytes);

	void (*attach)(struct copier *c); /* the calling thread makes the calls below from now on */
	/* Enqueues; never waits for the copy. A failure shows in the fence behind it. */
	void (*copy)(
		struct copier *c, enum copy_stream stream, void *dst, const void *src, size_t bytes);
	/* Never 0. Waits for the oldest fence of the stream if a thousand of them are not complete. */
	uint64_t (*fence)(struct copier *c, enum copy_stream stream);
	/* Copies given to `stream` from now on start after the fence, of any stream, is complete. */
	void (*stream_wait)(struct copier *c, enum copy_stream stream, uint64_t fence);
	/* 1: complete; 0: not yet; negative: it failed, the sentence is in *e (may be NULL). */
	int (*fence_status)(struct copier *c, uint64_t fence, struct err *e);
	/* Returns when no copy touches memory any more, completed or not. */
	void (*drain)(struct copier *c);
};

/* Implementations put this first in their own struct. */
struct copier {
	const struct copier_ops *ops;
};

#endif
