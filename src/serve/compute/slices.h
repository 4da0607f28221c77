/* SPDX-License-Identifier: MIT */
/*
 * How much of a prompt is read at a time while answers are being written. A short slice keeps the
 * pauses of the answers short; but a step has a fixed cost, on a card that streams experts most of
 * it, so short slices make the prompt take longer. The cost of a step of r rows is taken for
 * fixed + each * r, fitted to the steps that were measured.
 */
#ifndef GLM_SERVE_SLICES_H
#define GLM_SERVE_SLICES_H

#include <stdbool.h>
#include <stdint.h>

/* A row in a slice costs at most this much of a row in a step of most rows. */
#define SLICE_LOSS 1.12

/* Zero-initialise. Sums over the steps measured, older ones counting less. */
struct slice_costs {
	double n, rows, rows_squared, ns, rows_ns;
	bool fitted;
	double fixed, each; /* ns */
};

/* A step that read so many rows took so long. */
void slices_note(struct slice_costs *c, uint32_t rows, uint64_t ns);

/* Rows of the next slice, 1 to `most`: as many as take target_ns, but not so few that SLICE_LOSS is
 * exceeded. Before enough was measured: most, then half of it. */
uint32_t slices_rows(const struct slice_costs *c, uint64_t target_ns, uint32_t most);

#endif
