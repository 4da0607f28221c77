/* SPDX-License-Identifier: MIT */
/*
 * Which steps are captured as graphs (segment.h). A graph is of one number of rows, and costs its
 * capture and memory of the card: 80 segments for 78 layers, about 25 ms. Up to GRAPH_ROWS_FEW rows
 * all are captured. Larger steps only if their number of rows comes often: one step in
 * STEP_COUNTS_SHARE over the latest STEP_COUNTS_WINDOW steps. So at most about STEP_COUNTS_SHARE
 * numbers have graphs at a time, and a load with a different number in each step captures none.
 */
#ifndef GLM_FORWARD_STEP_COUNTS_H
#define GLM_FORWARD_STEP_COUNTS_H

#include <stdbool.h>
#include <stdint.h>

#define GRAPH_ROWS_FEW     8
#define GRAPH_ROWS         64 /* larger steps are never captured */
#define STEP_COUNTS_WINDOW 256
#define STEP_COUNTS_SHARE  16

/* Zero-initialise. */
struct step_counts {
	uint16_t of[GRAPH_ROWS + 1]; /* by rows; all halve when n reaches the window */
	uint16_t n;
};

/* Counts a step of so many rows. Returns whether it is to be captured. */
bool step_counts_add(struct step_counts *c, uint32_t rows);

#endif
