/* SPDX-License-Identifier: MIT */
/*
 * What a step costs by its number of rows: running estimates from the wall times of steps that were
 * made, so missed experts and the link are in them.
 *
 * Each number of rows has a mean of its own, in which old samples fade. A straight line through all
 * means stands in where there are few samples. A drift that is seen at one number of rows (a cache
 * that fills, a context that grows, another program on the cores) moves the estimates of those that
 * were not measured since.
 */
#ifndef GLM_ENGINE_DRAFT_COST_H
#define GLM_ENGINE_DRAFT_COST_H

#include <stdbool.h>
#include <stdint.h>

#define DRAFT_COST_ROWS 128 /* most rows with a mean of their own */

/* Zero-initialise, then set row_prior. */
struct draft_cost {
	double row_prior; /* what a further row costs, of the first, before anything is measured */
	struct {
		double ns, weight; /* mean, and the samples in it */
		double drift;      /* of the time when it was updated */
		uint64_t sampled;  /* n_samples then; 0: never */
		int far;           /* samples in a row far above (> 0) or below (< 0) the mean */
	} rows[DRAFT_COST_ROWS + 1];
	double drift;       /* product of the changes seen; 0 before the first sample */
	double base, slope; /* the line: base + slope * (rows - 1) */
	uint64_t n_samples;
};

/* A step of `rows` rows took ns. The first sample of a number of rows counts little: it may hold
 * the capture of a graph. */
void draft_cost_note(struct draft_cost *c, uint32_t rows, double ns);

/* The expected ns of a step of `rows` >= 1 rows; 0 when nothing was measured. */
double draft_cost_of(const struct draft_cost *c, uint32_t rows);

/* Few samples are of this number of rows, or old ones. */
bool draft_cost_is_vague(const struct draft_cost *c, uint32_t rows);

/* By which factor steps have become slower since the last sample of this number of rows. */
double draft_cost_drift(const struct draft_cost *c, uint32_t rows);

#endif
