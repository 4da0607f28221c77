/* SPDX-License-Identifier: MIT */
/*
 * Draws an id from a row of logits with the noise of src/draw/noise.h, from all ids or from the
 * best of them (truncate.h).
 *
 * Ids are ranked: the larger logit first, of equal ones the lower id; NaN counts as -infinity. A
 * truncation (top-k, top-p, min-p) keeps the first ids of this order, so it is described by the
 * last id that it keeps (struct draw_cut).
 *
 *      draw_scan_row(logits, n, maxima, &row);
 *      id = draw_winner(logits, &row, &noise, inv_t, NULL);
 *      if (the truncation does not keep it)
 *              id = draw_winner(logits, &row, &noise, inv_t, &cut);
 *
 * All results are exact integers or the bits of noise.h: they do not depend on the instruction set,
 * on the order of the work, or on what was skipped.
 */
#ifndef GLM_DRAW_DRAW_H
#define GLM_DRAW_DRAW_H

#include "src/draw/noise.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What draw_scan_row finds in a row of logits. */
struct draw_row {
	const float *maxima; /* [draw_blocks(n)] the largest logit of each DRAW_BLOCK ids */
	int32_t n;
	int32_t best; /* the first in rank; 0 when all are NaN or -infinity */
	float top;    /* its logit, at least -infinity */
	bool finite;  /* no NaN and no infinity */
};

static inline size_t draw_blocks(int32_t n)
{
	return ((size_t)n + DRAW_BLOCK - 1) / DRAW_BLOCK;
}

/* Fills *row for logits [n], n >= 1. maxima: [draw_blocks(n)] of the caller, filled too; *row
 * points to it. */
void draw_scan_row(const float *logits, int32_t n, float *maxima, struct draw_row *row);

/* A truncation, by the last id in rank that it keeps. */
struct draw_cut {
	float logit;
	int32_t id;
};

static inline bool draw_keeps(const struct draw_cut *cut, float logit, int32_t id)
{
	return logit > cut->logit || (logit == cut->logit && id <= cut->id);
}

/* The id with the largest score (noise.h) among those that the cut (NULL: all) keeps; of equal
 * scores the lower id. Precondition: row->top is finite; inv_t > 0, and at most about 1e6. */
int32_t draw_winner(const float *logits, const struct draw_row *row, const struct draw_noise *noise,
	double inv_t, const struct draw_cut *cut);

/* Sums over ids: how many, and their exp((logit - top) * inv_t) in units of 2^-DRAW_UNIT_BITS. */
struct draw_sum {
	uint64_t count, mass;
};

/* *before: the sums of the ids that rank before `id`; *all: of all ids, with count row->n. scale:
 * draw_unit_scale(inv_t). */
void draw_before(const float *logits, const struct draw_row *row, float scale, int32_t id,
	struct draw_sum *before, struct draw_sum *all);

/* ---- a row as a whole: the op `draw` of the backends ---- */

#define DRAW_ROWS_MAX 64 /* of one call */

struct draw_request {
	struct draw_noise noise;
	double inv_t; /* 1 / temperature, at most about 1e6; 0: the first in rank wins */
	bool sums;    /* fill n_before, mass_before and mass; inv_t > 0 */
	bool mass;    /* fill mass also where id is best, if top is finite; for draw_mass_inv_t */
};

static inline double draw_mass_inv_t(const struct draw_request *q)
{
	return q->inv_t > 0 ? q->inv_t : 1;
}

struct draw_result {
	int32_t id;      /* the winner among all ids; where row->top is not finite the first in rank */
	int32_t best;    /* the first in rank */
	float logit;     /* of id */
	float top;       /* of best */
	uint32_t finite; /* 1: no NaN and no infinity */
	/* draw_before of id, if `sums` was set; 0 where id is best, but for `mass` if that was set */
	uint32_t n_before;
	uint64_t mass_before, mass;
};

/* softmax(logits * draw_mass_inv_t)[r->id], to float precision; 0 where r->top is not finite.
 * `mass` was set in the request. */
float draw_result_probability(const struct draw_result *r, const struct draw_request *q);

/* Draws from logits [n], n >= 1, as the request says. maxima: [draw_blocks(n)] scratch. */
void draw_row(const float *logits, int32_t n, const struct draw_request *request, float *maxima,
	struct draw_result *result);

#endif
