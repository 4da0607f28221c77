/* SPDX-License-Identifier: MIT */
/*
 * A conversion plan as a list of units in file order. The parts of a tensor:
 *
 *   slab    a matrix of the source (convert_map.h): an expert's of a routed-expert tensor, one of
 *           attn_k_b for each head, the only one of most tensors
 *   unit    what is read, quantised and written at a time: a slab, or of a slab of more than
 *           CONVERT_UNIT_VALUES values so many rows that it has at most as many values
 *   piece   what the journal counts as done: a slab where each has a check value of its own, else
 *           the whole tensor
 *
 * A slab of any size is one unit where its rows cannot be quantised alone: attn_k_b (transposed),
 * IQ2_XXS weighted by the energy of its columns, and error feedback, whose factors belong to the
 * matrix.
 *
 *      convert_units_init(&units, &choices);
 *      while (convert_units_next(&units, writer, done, &unit))
 *          ... convert_unit_source_bytes, convert_unit_packed_bytes, convert_unit_offset ...
 *      convert_units_fini(&units);
 *
 * Threads: a list belongs to one thread at a time; the functions of a unit may run in any.
 * `writer`: planned (gguf_writer_plan); tensor i of the plan is its tensor i.
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

/* Rows [row0, row1) of a slab, as the source has them. */
struct convert_unit {
	uint32_t tensor; /* of the plan */
	uint64_t slab, row0, row1;
};

/* What decides how a plan is cut and how its units are quantised; all lent. */
struct convert_choices {
	const struct convert_plan *plan;
	const bool *feedback; /* [n_tensors] quantised with error feedback (src/quant/feedback.h) */
	const struct imatrix_file *imatrix; /* or NULL: has_importance is false everywhere */
	const bool *has_importance; /* [n_tensors] the imatrix has it, and its type makes use of that */
};

/* Read-only for callers. */
struct convert_units {
	const struct convert_choices *choices;
	bool *whole;              /* [n_tensors] a slab is one unit, whatever its size */
	struct convert_unit next; /* cursor */
};

/* choices: lent until fini. */
void convert_units_init(struct convert_units *u, const struct convert_choices *c);
void convert_units_fini(struct convert_units *u);

/* The next unit, without the first done[i] pieces of each tensor i; false: there is none. */
bool convert_units_next(struct convert_units *u, const struct gguf_writer *w, const uint64_t *done,
	struct convert_unit *out);

/* How many pieces a tensor has, at least 1. */
uint64_t convert_pieces(const struct convert_plan *p, const struct gguf_writer *w, size_t tensor);

/* Bytes of a unit's values in the checkpoint, without FP8 scales. */
uint64_t convert_unit_source_bytes(const struct convert_plan *p, const struct convert_unit *u);
/* Bytes of a unit in the result, and their offset in its tensor. */
uint64_t convert_unit_packed_bytes(const struct convert_plan *p, const struct convert_unit *u);
uint64_t convert_unit_offset(const struct convert_plan *p, const struct convert_unit *u);

#endif
