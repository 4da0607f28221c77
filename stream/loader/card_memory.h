/* SPDX-License-Identifier: MIT */
/*
 * The memory between files, a card and the host:
 *
 *     on the card   | tier 0 .................... | device staging: slots for demotions |
 *     on the host   | host staging: a buffer for each read in flight |      pinned
 *                   | tier 1 .................... |                         pinned step by step
 *
 * In order of use: card_memory_plan, card_memory_open, pinned_stop(&m->tier1), card_memory_close.
 * Threads: the fields are constant after card_memory_open. Any thread may call
 * card_memory_refused_bytes; one thread calls the other functions.
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
	void (*notify)(void *arg);      /* as in pinned_start, for tier 1: called by another thread */
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

/* Computes what streaming to a card takes, without taking it. requests: reader_options.requests.
 * checked: bytes are compared with check values. A chunk may then wait in its buffer for the one
 * before it, so there are more buffers. */
struct card_memory_plan card_memory_plan(const struct extent_table *t, const struct reader *r,
	unsigned requests, bool has_tier1, bool checked);
/* Takes the memory of the card and the host staging buffers, and starts to pin tier 1 (pinned.h).
 * Errors: ERR_MEMORY; those of copier_open and alloc. *out is set in any case: after an error
 * card_memory_close releases what was taken. */
int card_memory_open(struct card_memory **out, const struct card_memory_options *o,
	const struct card_memory_plan *plan, struct err *e);
/* Bytes of tier 1 behind the last pinned step when the system has refused to pin the next one; else
 * 0. A warning has said so. Never waits. */
uint64_t card_memory_refused_bytes(const struct card_memory *m);
void card_memory_close(struct card_memory *m); /* NULL is fine */

#endif
