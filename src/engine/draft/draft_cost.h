/* SPDX-License-Identifier: MIT */
/*
 * The time of a step as a function of its number of rows, estimated from the wall times of past
 * steps. So it includes cache misses and transfers.
 *
 * Each number of rows has a decaying mean. A straight line fitted to all means takes the place of a
 * mean with few samples. The speed of the machine drifts: a cache fills, the context grows, another
 * program runs. A change that is seen at one number of rows scales the older means of the others.
 */
#ifndef GLM_ENGINE_DRAFT_COST_H
#define GLM_ENGINE_DRAFT_COST_H

#include <stdbool.h>
#include <stdint.h>

#define DRAFT_COST_ROWS 128 /* most rows with a mean of their own */

/* Zero-initialise, then set row_prior. */
struct draft_cost {
	double row_prior; /* cost of each further row as a part of the first one's, unmeasured */
	struct {
		double ns, weight; /* mean, and how many samples it stands for */
		double drift;      /* draft_cost.drift when the mean was updated */
		uint64_t sampled;  /* draft_cost.n_samples then; 0: never */
		int far;           /* how many of the latest samples were far above (> 0) or below (< 0) */
	} rows[DRAFT_COST_ROWS + 1]; /* [number of rows]; the last one for all larger numbers */
	double drift;                /* product of all changes of speed; 0 before the first sample */
	double base, slope;          /* the line: base + slope * (rows - 1) */
	uint64_t n_samples;
};

/* A step of `rows` >= 1 rows took ns > 0. The first sample of a number of rows has little weight:
 * it may include the capture of a graph. */
void draft_cost_note(struct draft_cost *c, uint32_t rows, double ns);

/* The expected ns of a step of `rows` >= 1 rows; 0 when nothing was measured. */
double draft_cost_of(const struct draft_cost *c, uint32_t rows);

/* Whether this number of rows has few samples, or only old ones. */
bool draft_cost_is_vague(const struct draft_cost *c, uint32_t rows);

/* Factor by which steps have become slower since the last sample of this number of rows; 1 if there
 * is none. */
double draft_cost_drift(const struct draft_cost *c, uint32_t rows);

#endif
