/* SPDX-License-Identifier: MIT */
/*
 * Decides which steps are captured as graphs (segment.h). A graph serves one number of rows; it
 * costs memory of the card and its capture, about 25 ms for the 80 segments of 78 layers.
 * - Steps of up to GRAPH_ROWS_FEW rows are always captured.
 * - Steps of up to GRAPH_ROWS rows are captured if their number of rows is frequent: about one in
 *   STEP_COUNTS_SHARE of the latest STEP_COUNTS_WINDOW such steps, or more. So at most about
 *   STEP_COUNTS_SHARE numbers of rows have graphs at a time, and a load with a different number in
 *   each step captures none.
 * - Larger steps are never captured.
 */
#ifndef GLM_FORWARD_STEP_COUNTS_H
#define GLM_FORWARD_STEP_COUNTS_H

#include <stdbool.h>
#include <stdint.h>

#define GRAPH_ROWS_FEW     8
#define GRAPH_ROWS         64
#define STEP_COUNTS_WINDOW 256
#define STEP_COUNTS_SHARE  16

/* Of steps of GRAPH_ROWS_FEW + 1 to GRAPH_ROWS rows. Zero-initialise. */
struct step_counts {
	uint16_t of[GRAPH_ROWS + 1]; /* by rows */
	uint16_t n;                  /* their sum, about; all halve at STEP_COUNTS_WINDOW */
};

/* Counts a step of so many rows. True: capture it. */
bool step_counts_add(struct step_counts *c, uint32_t rows);

#endif
