/* SPDX-License-Identifier: MIT */
#include "src/forward/step_counts.h"

bool step_counts_add(struct step_counts *c, uint32_t rows)
{
	if (rows <= GRAPH_ROWS_FEW || rows > GRAPH_ROWS)
		return rows <= GRAPH_ROWS_FEW;
	if (c->n == STEP_COUNTS_WINDOW) {
		c->n /= 2;
		for (uint32_t r = 0; r <= GRAPH_ROWS; r++)
			c->of[r] /= 2;
	}
	c->n++;
	return ++c->of[rows] >= STEP_COUNTS_WINDOW / STEP_COUNTS_SHARE;
}
