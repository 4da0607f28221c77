/* SPDX-License-Identifier: MIT */
/*
 * How many rows of prompts a step reads while somebody else waits. A short slice keeps the pauses
 * of answers short, and the wait of a short prompt beside a long one. But a step has a fixed cost,
 * which is most of it where experts are streamed, so short slices make the prompt take longer. The
 * cost of a step of r rows is modelled as fixed + each * r, fitted to the steps that were measured.
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

/* A step that reads several prompts. */
struct slice_step {
	uint32_t room; /* rows wanted */
	uint32_t most; /* rows possible */
	/* A step in which some prompts end and others do not has at most `slice` rows, or those of the
	 * prompts that end if they are more: first tokens do not wait for the other prompts. With
	 * `others` it may have twice the rows of the prompts that end, so that the others get some. */
	uint32_t slice;
	bool others;
	/* The device computes steps of at most so many rows in another way, which differs in the last
	 * bits (kernels/backend.h: Numbers); 0: it has one way. */
	uint32_t few;
};

/* Divides a step among n prompts evenly. rest: [n] rows that each still needs; the first ones have
 * the first turn. rows: out [n], 0: not in this step.
 * Each part is a whole rest, or has more than `few` rows and leaves more than `few`: so a prompt of
 * more rows than that is computed in one way, however it is cut. For this the step may have up to
 * `few` rows more than `room`. Only with `most` of at most 2 * few + 1 a rest cannot always be cut
 * so. Returns the sum, at most `most`, at least 1 if n is. */
uint32_t slices_divide(
	const struct slice_step *step, const uint32_t *rest, uint32_t n, uint32_t *rows);

#endif
