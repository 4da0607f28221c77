/* SPDX-License-Identifier: MIT */
#include "src/engine/draft/draft_cost.h"

#include "src/base/num.h"

#include <math.h>
#include <stdlib.h>

#define FIRST_WEIGHT 0.25  /* of the first sample of a number of rows */
#define WEIGHT_MAX   32.0  /* samples in a mean */
#define LINE_WEIGHT  2.0   /* weight of the line beside a mean, in samples */
#define PRIOR_WEIGHT 4.0   /* weight of row_prior in the line, in samples */
#define HALF_LIFE    512.0 /* samples of all rows after which a mean has half its weight */
#define DRIFT_DOUBT  4.0   /* halvings of a mean's weight for each doubling of the drift since */
/* FAR_RUN samples in a row that differ from the mean by the factor FAR, all in the same direction:
 * the cost has changed. The mean then has at most the weight FAR_WEIGHT. */
#define FAR        1.25
#define FAR_RUN    3
#define FAR_WEIGHT 4.0
#define VAGUE      3.0 /* samples */
/* A larger sample counts as so many times the mean: a single slow step says little. LEAST for a
 * mean of few samples, MOST for one of many. */
#define CLIP_LEAST 1.5
#define CLIP_MOST  3.0

double draft_cost_drift(const struct draft_cost *c, uint32_t rows)
{
	uint32_t r = MIN(rows, DRAFT_COST_ROWS);
	return c->rows[r].sampled ? c->drift / c->rows[r].drift : 1;
}

/* Mean of entry r as of now, and its weight. */
static double entry_now(const struct draft_cost *c, uint32_t r, double *weight)
{
	*weight = 0;
	if (!c->rows[r].sampled)
		return 0;
	double age = (double)(c->n_samples - c->rows[r].sampled), drift = draft_cost_drift(c, r);
	*weight = c->rows[r].weight * exp2(-age / HALF_LIFE - DRIFT_DOUBT * fabs(log2(drift)));
	return c->rows[r].ns * drift;
}

/* Weighted least squares through all means, with the prior that a row costs row_prior * base. */
static void line_fit(struct draft_cost *c)
{
	double k = PRIOR_WEIGHT, p = c->row_prior;
	double aa = k * p * p, ab = -k * p, bb = k, ya = 0, yb = 0, sum = 0;
	for (uint32_t r = 1; r <= DRAFT_COST_ROWS; r++) {
		double w, y = entry_now(c, r, &w), x = r - 1;
		aa += w;
		ab += w * x;
		bb += w * x * x;
		ya += w * y;
		yb += w * x * y;
		sum += w;
	}
	double det = aa * bb - ab * ab;
	c->base = (ya * bb - yb * ab) / det;
	c->slope = (yb * aa - ya * ab) / det;
	if (c->slope < 0 || c->base <= 0) { /* noise: steps of any size cost the same */
		c->base = ya / sum;
		c->slope = 0;
	}
}

void draft_cost_note(struct draft_cost *c, uint32_t rows, double ns)
{
	uint32_t r = MIN(rows, DRAFT_COST_ROWS);
	double weight, mean = entry_now(c, r, &weight);
	double known = weight;
	c->n_samples++;
	if (!c->drift)
		c->drift = 1;
	if (!c->rows[r].sampled) {
		c->rows[r].ns = ns;
		c->rows[r].weight = FIRST_WEIGHT;
	} else {
		int side = ns > mean * FAR ? 1 : ns * FAR < mean ? -1 : 0;
		c->rows[r].far = side && side * c->rows[r].far > 0 ? c->rows[r].far + side : side;
		if (abs(c->rows[r].far) >= FAR_RUN)
			weight = MIN(weight, FAR_WEIGHT);
		double clip = MIN(MAX(1 + weight / 8, CLIP_LEAST), CLIP_MOST);
		ns = MIN(ns, mean * clip); /* not from below: what disturbs a step makes it slower */
		double now = weight < 1 && ns < mean ? ns : mean + (ns - mean) / (weight + 1);
		/* with few samples it is the mean that was wrong, not the cost that changed */
		c->drift *= 1 + (now / mean - 1) * known / (known + 8);
		c->rows[r].ns = now;
		c->rows[r].weight = MIN(weight + 1, WEIGHT_MAX);
	}
	c->rows[r].drift = c->drift;
	c->rows[r].sampled = c->n_samples;
	line_fit(c);
}

double draft_cost_of(const struct draft_cost *c, uint32_t rows)
{
	uint32_t r = MIN(rows, DRAFT_COST_ROWS);
	double weight, mean = entry_now(c, r, &weight);
	double line = c->base + c->slope * (double)(rows - 1);
	return (weight * mean + LINE_WEIGHT * line) / (weight + LINE_WEIGHT);
}

bool draft_cost_is_vague(const struct draft_cost *c, uint32_t rows)
{
	double weight;
	entry_now(c, MIN(rows, DRAFT_COST_ROWS), &weight);
	return weight < VAGUE;
}
