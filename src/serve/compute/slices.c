/* SPDX-License-Identifier: MIT */
/* Least squares with weights that decay. */
#include "src/serve/compute/slices.h"

#include "src/base/num.h"

#define DECAY 0.9
#define WHOLE 0.75 /* a slice of at least this part of `most` becomes `most` */

/* Fits the costs anew. If all steps had about the same size, the fixed part cannot be separated:
 * the previous fit stays. */
static void costs_fit(struct slice_costs *c)
{
	double spread = c->n * c->rows_squared - c->rows * c->rows;
	if (spread < 0.01 * c->n * c->rows_squared)
		return;
	double slope = (c->n * c->rows_ns - c->rows * c->ns) / spread;
	double start = (c->ns - slope * c->rows) / c->n;
	c->fitted = true;
	if (slope <= 0) { /* all cost the same */
		c->fixed = c->ns / c->n;
		c->each = 0;
	} else if (start <= 0) {
		c->fixed = 0;
		c->each = c->rows_ns / c->rows_squared;
	} else {
		c->fixed = start;
		c->each = slope;
	}
}

void slices_note(struct slice_costs *c, uint32_t rows, uint64_t ns)
{
	double r = (double)rows, t = (double)ns;
	c->n = DECAY * c->n + 1;
	c->rows = DECAY * c->rows + r;
	c->rows_squared = DECAY * c->rows_squared + r * r;
	c->ns = DECAY * c->ns + t;
	c->rows_ns = DECAY * c->rows_ns + r * t;
	costs_fit(c);
}

uint32_t slices_rows(const struct slice_costs *c, uint64_t target_ns, uint32_t most)
{
	if (c->n <= 0 || most <= 1)
		return most;
	if (!c->fitted)
		return most / 2; /* a second size, which the fit needs, at little loss */
	/* the machine may have become slower or faster since the fit */
	double pace = c->ns / (c->fixed * c->n + c->each * c->rows);
	double fixed = pace * c->fixed, each = pace * c->each;
	/* fixed / rows + each <= SLICE_LOSS * (fixed / most + each) */
	double allowed = SLICE_LOSS * fixed / most + (SLICE_LOSS - 1) * each;
	double rows = allowed > 0 ? fixed / allowed : 1;
	double in_time = each > 0 ? ((double)target_ns - fixed) / each : 0;
	if (in_time > rows)
		rows = in_time;
	return rows >= WHOLE * most ? most : rows > 1 ? (uint32_t)rows : 1;
}

/* How many of `rest` rows are read when `share` > few are wanted. */
static uint32_t slice_cut(uint32_t rest, uint32_t share, uint32_t few)
{
	if (rest <= share)
		return rest;
	if (rest - share > few)
		return share;
	return rest > 2 * few + 1 ? rest - (few + 1) : rest;
}

uint32_t slices_divide(
	const struct slice_step *step, const uint32_t *rest, uint32_t n, uint32_t *rows)
{
	uint32_t least = step->few + 1, room = MIN(MAX(step->room, least), step->most);
	uint32_t share = n ? room / n : 0, n_end = 0, total = 0;
	for (uint32_t i = 0; i < n; i++) {
		bool ends = rest[i] <= share;
		rows[i] = ends ? rest[i] : 0;
		total += rows[i];
		n_end += ends;
	}
	if (n_end)
		room = MIN(room, MAX(step->slice, step->others ? 2 * total : total));
	room -= MIN(room, total);
	uint32_t parts = MIN(n - n_end, room / least);
	for (uint32_t i = 0; i < n && parts; i++) {
		if (rows[i])
			continue;
		uint32_t part = slice_cut(rest[i], room / parts, step->few);
		if (part > step->most - total) { /* not all of a rest that cannot be cut */
			if (total)
				continue;
			part = step->most;
		}
		rows[i] = part;
		total += part;
		room -= MIN(room, part);
		parts = MIN(parts - 1, room / least);
	}
	return total;
}
