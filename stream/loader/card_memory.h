/* SPDX-License-Identifier: MIT */
/*
 * The memory between files, a card and the host:
 *
 *     on the card   | tier 0 .................... | device staging: slots for demotions |
 *     on the host   | host staging: a buffer for each read in flight |      pinned
 *                   | tier 1 .................... |                         pinned step by step
 *
 * Life: plan, open, (wait,) stop_pinning, close. What is half open is closed by close. Threads: the
 * fields are constant after open; card_memory_refused may be called by any thread, the rest by
 * whoever opens and closes.
 */
#ifndef GLM_STREAM_CARD_MEMORY_H
#define GLM_STREAM_CARD_MEMORY_H

#include "kernels/backend.h"
#include "kernels/copier.h"
#include "stream/extent.h"
#include "stream/pinned.h"

/* Demotions that may be on their way out of the card at a time. */
#define DEVICE_STAGING_SLOTS 16

struct card_memory_plan {
	uint64_t slot_bytes;           /* of the largest expert */
	uint64_t buffer_bytes;         /* of a staging buffer on the host: a read lands in one */
	unsigned n_buffers;            /* of them */
	uint64_t host_staging_bytes;   /* all of them */
	uint64_t device_staging_bytes; /* 0 without a second tier */
};

struct card_memory_options {
	struct backend *backend;
	struct copier *copier; /* lent; NULL: the backend's, closed with the memory */
	uint64_t tier_bytes[2];
	size_t pin_step_bytes;          /* of tier 1; 0: 256 MiB */
	struct numa_division *division; /* of tier 1, as in pinned_start */
	void (*notify)(void *arg); /* from another thread: a step of tier 1 was pinned, or refused */
	void *arg;
};

struct card_memory {
	struct copier *copier;
	struct card_memory_plan plan;
	uint8_t *tier0, *device_staging;
	struct pinned tier1, host_staging;
#ifdef LOADER_POISON
	uint8_t *poison; /* behind the host staging buffers: a slot's worth of READER_POISON */
#endif
	/* its own */
	bool owns_copier;
	size_t device_bytes; /* tier 0 and device staging: one allocation */
	void (*notify)(void *arg);
	void *arg;
};

/* What streaming to a card takes. `requests`: those that the reader takes at a time; `checked`:
 * bytes are compared with check values, so that a chunk may have to wait for the one before it. */
struct card_memory_plan card_memory_plan(const struct extent_table *t, const struct reader *r,
	unsigned requests, bool has_tier1, bool checked);
/* Takes everything but tier 1, and begins to pin that. ERR_MEMORY: refused. *out is set in any
 * case. */
int card_memory_open(struct card_memory **out, const struct card_memory_options *o,
	const struct card_memory_plan *plan, struct err *e);
/* ERR_MEMORY with the sentence when a step of tier 1 could not be pinned, else 0. Never waits. */
int card_memory_refused(const struct card_memory *m, struct err *e);
void card_memory_close(struct card_memory *m); /* NULL is fine */

#endif
