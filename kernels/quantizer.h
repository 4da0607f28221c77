/* SPDX-License-Identifier: MIT */
/*
 * Quantises whole matrices, on the CPU or on a card. Both write the same bytes.
 *
 *      quantizer_card_open(&q, &e);                 or quantizer_cpu_open
 *      memory = q->ops->host_alloc(q, bytes);       read the source into it
 *      if (q->ops->supports(&task))                 else the CPU's quantizer takes the task
 *          q->ops->run(q, &task, &not_finite, &e);
 *      q->ops->host_free(q, memory, bytes);
 *      q->ops->close(q);
 *
 * - Threads: a quantizer runs one task at a time, on any thread. Several quantizers, also of one
 *   card, run at the same time.
 * - The CPU's quantizer supports all types of quantize.h and raw_matrix.h.
 * - A task borrows all its pointers until `run` returns.
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
	enum dtype type;         /* of the result; its rows are whole blocks of this type */
	bool transposed;         /* the result is [cols][rows], without weights; feedback is NULL */
	const float *importance; /* [cols] weights of the columns' errors, or NULL */
	bool energy;             /* with importance NULL: a column's weight is its mean square */
	const struct quant_feedback *feedback; /* [cols / 256] src/quant/feedback.h, or NULL */
	void *packed;                          /* out: the rows of the result, without gaps */
	/* The CPU's quantizer calls this between blocks of rows; true ends the task with
	 * ERR_INTERRUPTED. NULL: the task is never cancelled. */
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
	/* Page-aligned memory for sources and results; pinned for a card. Any quantizer with the same
	 * ops may use and free it. NULL: none is left. */
	void *(*host_alloc)(struct quantizer *q, size_t bytes);
	void (*host_free)(struct quantizer *q, void *p, size_t bytes); /* p may be NULL */
	/* The most memory of the card that this quantizer has used at a time so far; 0 on the CPU. */
	size_t (*card_bytes)(const struct quantizer *q);
	void (*close)(struct quantizer *q); /* not of NULL */
};

/* Implementations put this first in their own struct. */
struct quantizer {
	const struct quantizer_ops *ops;
};

/* *out is the caller's, to be released with its ops->close; NULL on error. ERR_MEMORY. */
int quantizer_cpu_open(struct quantizer **out, struct err *e);
/* The same on the first card. ERR_RUN too: no card works, or the program was built without CUDA. */
int quantizer_card_open(struct quantizer **out, struct err *e);

#endif
