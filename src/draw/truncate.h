/* SPDX-License-Identifier: MIT */
/*
 * Top-k, top-p and min-p: how many of the best ids a draw may choose from. In this order, each on
 * what the one before left; the first id in rank is always kept.
 * - top-k keeps the first k ids in rank.
 * - top-p keeps an id if the mass of those before it is below top_p of the mass of all that top-k
 *   left.
 * - min-p keeps an id if its probability is at least min_p of the first one's.
 * Masses are exact sums of units (noise.h), so the same ids are kept whatever way it is computed.
 */
#ifndef GLM_DRAW_TRUNCATE_H
#define GLM_DRAW_TRUNCATE_H

#include "src/draw/draw.h"

struct draw_truncation {
	int top_k;   /* <= 0: off */
	float top_p; /* (0, 1]; 1: off */
	float min_p; /* [0, 1); 0: off */
};

/* The last id that is kept; row->top is finite. In a scope (mem.h) that runs out of memory it may
 * be any. */
struct draw_cut draw_truncate(
	const float *logits, const struct draw_row *row, double inv_t, const struct draw_truncation *t);

/* Whether draw_truncate keeps this id, without the cut where that is cheaper; *cut is then left
 * alone, else it is set. */
bool draw_truncation_keeps(const float *logits, const struct draw_row *row, double inv_t,
	const struct draw_truncation *t, int32_t id, struct draw_cut *cut);

/* Whether the truncation keeps the winner of a row of n ids that was drawn for q. False also where
 * the result does not say: without sums, and with top-k and top-p together. */
bool draw_result_kept(const struct draw_result *r, int32_t n, const struct draw_request *q,
	const struct draw_truncation *t);

#endif
