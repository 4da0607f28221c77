/* SPDX-License-Identifier: MIT */
/*
 * Quantises whole matrices, on the CPU or on a card. Both write the same bytes.
 *
 *      if (quantizer_card_open(&q, &e))                no card: the CPU does it
 *          quantizer_cpu_open(&q, &e);
 *      memory = q->ops->host_alloc(q, bytes);          for the source and the result
 *      ... fill the source and a struct quantize_task ...
 *      if (q->ops->supports(&task))
 *          q->ops->run(q, &task, &not_finite, &e);
 *      q->ops->host_free(q, memory, bytes);
 *      q->ops->close(q);
 *
 * - Threads: one task at a time runs on a quantizer, called by any thread. Several quantizers run
 *   at the same time, also on one card.
 * - Ownership: a task is lent for the call. The caller frees memory of host_alloc before it closes
 *   the last quantizer of that kind.
 * - The CPU's quantizer supports every type that quantize_supported names; a card's supports fewer.
 * - Errors of run: ERR_MEMORY; ERR_INTERRUPTED, by `cancelled`; ERR_RUN, the card failed. The bytes
 *   of the result are undefined then.
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
	struct raw_matrix source; /* on a card: values aligned to their type */
	enum dtype type;          /* of the result; the length of its rows is a multiple of a block */
	bool transposed; /* the result is [cols][rows]; columns have no weights, feedback is NULL */
	const float *importance; /* [cols] weights of the columns, or NULL */
	bool energy;             /* importance is NULL: a column's weight is its mean square */
	const struct quant_feedback *feedback; /* [cols / 256] src/quant/feedback.h, or NULL */
	void *packed;                          /* [rows of the result][dtype_row_bytes of `type`] */
	/* The CPU calls it between blocks of rows, a card does not; true ends the task with
	 * ERR_INTERRUPTED. May be NULL. */
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
	 * A card's is page-locked, so that the card copies from and to it directly. run accepts other
	 * memory too. NULL: none is left. */
	void *(*host_alloc)(struct quantizer *q, size_t bytes);
	void (*host_free)(struct quantizer *q, void *p, size_t bytes); /* p may be NULL */
	/* Bytes of the card's memory that this quantizer holds. Until close they only grow. 0 on the
	 * CPU. */
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
