/* SPDX-License-Identifier: MIT */
/*
 * Quantising one unit of a conversion: which weights its columns have, error feedback, and then the
 * quantizer (kernels/quantizer.h), the CPU's or a card's.
 */
#ifndef GLM_TOOLS_CONVERT_QUANTISE_H
#define GLM_TOOLS_CONVERT_QUANTISE_H

#include "kernels/quantizer.h"
#include "tools/convert/convert_units.h"

#include <stdatomic.h>

/* Blocks of FEEDBACK_COLUMNS columns of matrices with error feedback; those that did without it,
 * because their correlations cannot be factored, or because no two columns are correlated. */
struct feedback_counts {
	uint64_t blocks, not_definite, uncorrelated;
};

/* One of these quantises one unit at a time. */
struct convert_context {
	const struct convert_choices *choices;
	struct quantizer *quantizer; /* owned */
	float *importance;
	/* for error feedback, else NULL */
	float *moments;    /* [cols / 256][FEEDBACK_MOMENTS] */
	float *values;     /* of some rows */
	const float **row; /* pointers to them */
	struct quant_feedback *feedback;
	double *work; /* [256][256] */
	struct feedback_counts counts;
};

/* Takes over the quantizer, also when it fails. */
int convert_context_init(struct convert_context *c, const struct convert_choices *choices,
	struct quantizer *quantizer, struct err *e);
void convert_context_fini(struct convert_context *c); /* a zeroed one is fine */
/* Host memory that a context and a quantizer of the CPU take. */
uint64_t convert_context_bytes(const struct convert_choices *c);

/* Whether the quantizer may be given this unit. */
bool convert_can_quantise(
	const struct convert_choices *c, const struct quantizer *q, const struct convert_unit *u);

/* m: the unit's source in memory. packed: convert_unit_packed_bytes. *not_finite: quantizer.h.
 * cancelled, user: as in struct quantize_task. */
int convert_quantise(struct convert_context *c, const struct convert_unit *u,
	const struct raw_matrix *m, void *packed, bool (*cancelled)(void *user), void *user,
	uint64_t *not_finite, struct err *e);

/* The type of a source's values; false: none that can be converted. */
bool convert_source_type(const struct safetensors_tensor *t, enum dtype *out);

#endif
