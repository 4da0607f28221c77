/* SPDX-License-Identifier: MIT */
/*
 * Quantises whole matrices, on the CPU or on a card. Both write the same bytes.
 *
 *      quantizer_open("auto", &q, &note, &e);
 *      memory = q->ops->host_alloc(q, bytes, &e);      the source is read into it
 *      q->ops->run(q, &task, &not_finite, &e);
 *      q->ops->host_free(q, memory, bytes); q->ops->close(q);
 *
 * - A quantizer runs one task at a time. Several of them run beside each other, from any threads.
 * - A card's quantizer takes only what its `supports` says; the CPU's takes everything.
 * - Errors: ERR_MEMORY, ERR_INTERRUPTED, ERR_RUN (the card failed).
 */
#ifndef GLM_KERNELS_QUANTIZER_H
#define GLM_KERNELS_QUANTIZER_H

#include "src/base/err.h"
#include "src/quant/raw_matrix.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct quant_feedback;
struct quantizer;

struct quantize_task {
	struct raw_matrix source;
	enum dtype type;         /* of the result; rows fit it */
	bool transposed;         /* the result is [cols][rows]; without weights of columns */
	const float *importance; /* [cols] weights of the columns, or NULL */
	bool energy;             /* importance is NULL: a column's weight is its mean square */
	const struct quant_feedback *feedback; /* [cols / 256] src/quant/feedback.h, or NULL */
	void *packed;                          /* the result, row after row */
	/* Asked now and then while the CPU works; true ends the task with ERR_INTERRUPTED. May be
	 * NULL. */
	bool (*cancelled)(void *user);
	void *user;
};

#define QUANTIZE_ALL_FINITE UINT64_MAX

struct quantizer_ops {
	const char *name; /* "cpu", "cuda" */
	bool (*supports)(const struct quantize_task *t);
	/* *not_finite: index in the source of the first value that is infinite or not a number, with
	 * undefined bytes in `packed`; else QUANTIZE_ALL_FINITE. */
	int (*run)(
		struct quantizer *q, const struct quantize_task *t, uint64_t *not_finite, struct err *e);
	/* Page-aligned memory for sources and results; any quantizer of these ops may use and free it.
	 * A card copies from it without the driver's buffers. NULL: none is left. */
	void *(*host_alloc)(struct quantizer *q, size_t bytes);
	void (*host_free)(struct quantizer *q, void *p, size_t bytes); /* p may be NULL */
	/* Most of the card's memory that it has used so far; 0 on the CPU. */
	size_t (*card_bytes)(const struct quantizer *q);
	void (*close)(struct quantizer *q); /* NULL is not allowed */
};

/* Implementations put this first in their own struct. */
struct quantizer {
	const struct quantizer_ops *ops;
};

int quantizer_cpu_open(struct quantizer **out, struct err *e);
/* A card's, on the first card. ERR_RUN: there is none that works, or the program has no CUDA. */
int quantizer_card_open(struct quantizer **out, struct err *e);

#endif
