/* SPDX-License-Identifier: MIT */
/*
 * A line plot as one self-contained SVG: no scripts, no fonts or files from elsewhere, readable on
 * a light and on a dark page (it brings its own background). Up to 8 curves, each with a marker at
 * every point and its name at its right end.
 */
#ifndef GLM_TOOLS_SVG_PLOT_H
#define GLM_TOOLS_SVG_PLOT_H

#include "src/base/err.h"

#include <stdbool.h>

#define SVG_MAX_SERIES 8

struct svg_series {
	const char *name;
	const double *x, *y; /* [n], x rising */
	int n;
	bool dashed; /* a bound rather than something that can be had */
	int colour;  /* 0: by its place; else svg_policy_colour or another of 1 .. SVG_MAX_SERIES */
};

struct svg_plot {
	const char *title, *subtitle; /* subtitle: NULL for none */
	const char *x_label, *y_label;
	double y_min, y_max; /* both 0: from the data */
	bool x_from_zero, y_from_zero;
	struct svg_series series[SVG_MAX_SERIES];
	int n_series;
};

/* The colour of a policy in every plot; 0 for other names. */
int svg_policy_colour(const char *policy);

/* Writes the whole document to a file. Text is escaped. Only an earlier plot is replaced, or with
 * force any file. */
int svg_plot_save(const struct svg_plot *p, const char *path, bool force, struct err *e);

#endif
