/* SPDX-License-Identifier: MIT */
/*
 * Quantises one unit of a conversion (convert_units.h): finds the weights of its columns in the
 * imatrix, computes the factors of error feedback, then runs a quantizer (kernels/quantizer.h).
 *
 *      convert_context_init(&c, &choices, quantizer, &e);
 *      if (the quantizer is the CPU's || convert_can_quantise(&choices, c.quantizer, &unit))
 *          convert_quantise(&c, &unit, &matrix, packed, NULL, NULL, &not_finite, &e);
 *      convert_context_fini(&c);
 *
 * Threads: a context quantises one unit at a time; several contexts run at the same time.
 */
#ifndef GLM_TOOLS_CONVERT_QUANTISE_H
#define GLM_TOOLS_CONVERT_QUANTISE_H

#include "kernels/quantizer.h"
#include "tools/convert/convert_units.h"

#include <stdatomic.h>

/* Of matrices with error feedback. */
struct feedback_counts {
	uint64_t blocks;       /* of FEEDBACK_COLUMNS columns */
	uint64_t not_definite; /* of them, without feedback: H is not positive definite (feedback.h) */
	uint64_t uncorrelated; /* of them, without feedback: no two columns are correlated */
};

/* cols: most columns of a tensor of the plan; feedback_cols: of a tensor with error feedback. */
struct convert_context {
	const struct convert_choices *choices; /* lent */
	struct quantizer *quantizer;           /* owned */
	float *importance;                     /* [cols] */
	float *moments;                        /* [feedback_cols / 256][FEEDBACK_MOMENTS] */
	float *values;                         /* [MOMENT_ROWS][feedback_cols] */
	const float **row;                     /* [MOMENT_ROWS] in `values` */
	struct quant_feedback *feedback;       /* [feedback_cols / 256] */
	double *work;                          /* [256][256] */
	struct feedback_counts counts;         /* since init */
};

/* The context owns the quantizer from here on, also after an error (ERR_MEMORY): call fini then
 * too. */
int convert_context_init(struct convert_context *c, const struct convert_choices *choices,
	struct quantizer *quantizer, struct err *e);
void convert_context_fini(struct convert_context *c); /* a zeroed one is fine */
/* Host memory in bytes that a context with a quantizer of the CPU takes, at most. */
uint64_t convert_context_bytes(const struct convert_choices *c);

/* Whether a card's quantizer takes the unit: it supports the types, and the unit has at most
 * CONVERT_UNIT_VALUES values. The CPU's takes every unit. */
bool convert_can_quantise(
	const struct convert_choices *c, const struct quantizer *q, const struct convert_unit *u);

/* m: the unit's source in memory. packed: out, convert_unit_packed_bytes bytes. *not_finite, and
 * cancelled with user: as in kernels/quantizer.h. Errors: those of a quantizer, and ERR_RUN when
 * bytes of the imatrix have been lost. */
int convert_quantise(struct convert_context *c, const struct convert_unit *u,
	const struct raw_matrix *m, void *packed, bool (*cancelled)(void *user), void *user,
	uint64_t *not_finite, struct err *e);

/* The type of a source's values; false: values of this type cannot be converted. */
bool convert_source_type(const struct safetensors_tensor *t, enum dtype *out);

#endif
