/* SPDX-License-Identifier: MIT */
/*
 * A conversion as a list of units in file order. A unit is a slab of a tensor (an expert's matrix)
 * or, of slabs of more than CONVERT_UNIT_VALUES values, rows of one. A slab stays whole where its
 * rows cannot be quantised alone: attn_k_b (transposed), IQ2_XXS by the energy of its columns, and
 * error feedback, whose factors are made once for the matrix.
 */
#ifndef GLM_TOOLS_CONVERT_UNITS_H
#define GLM_TOOLS_CONVERT_UNITS_H

#include "src/checkpoint/convert_map.h"
#include "src/format/gguf_write.h"
#include "tools/imatrix/imatrix_file.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONVERT_UNIT_VALUES (1u << 24)

struct convert_unit {
	uint32_t tensor;
	uint64_t slab, row0, row1; /* rows of the slab in the source */
};

/* What decides how a plan is cut; all borrowed, all [plan->n_tensors]. */
struct convert_choices {
	const struct convert_plan *plan;
	const bool *feedback;               /* quantised with error feedback (src/quant/feedback.h) */
	const struct imatrix_file *imatrix; /* or NULL */
	const bool *has_importance;         /* the imatrix knows it and its type makes use of that */
};

struct convert_units {
	const struct convert_choices *choices;
	bool *whole;              /* [n_tensors] its slabs are units */
	struct convert_unit next; /* cursor */
};

void convert_units_init(struct convert_units *u, const struct convert_choices *c);
void convert_units_fini(struct convert_units *u);

/* The next unit, skipping the first done[i] pieces of each tensor; false: there is none. */
bool convert_units_next(struct convert_units *u, const struct gguf_writer *w, const uint64_t *done,
	struct convert_unit *out);

/* A tensor's pieces in the journal: its matrices where each has a check value of its own, else 1.
 */
uint64_t convert_pieces(const struct convert_plan *p, const struct gguf_writer *w, size_t tensor);

/* Bytes in the checkpoint without scales; bytes as written, and where in the tensor. */
uint64_t convert_unit_source_bytes(const struct convert_plan *p, const struct convert_unit *u);
uint64_t convert_unit_packed_bytes(const struct convert_plan *p, const struct convert_unit *u);
uint64_t convert_unit_offset(const struct convert_plan *p, const struct convert_unit *u);

#endif
