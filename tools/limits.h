/* SPDX-License-Identifier: MIT */
/* The limits that streaming is held against, measured in the same run as what is held against them. */
#ifndef GLM_TOOLS_LIMITS_H
#define GLM_TOOLS_LIMITS_H

#include "tools/measure.h"
#include "tools/measure_card.h"

struct limits {
	struct measure_disk disk; /* experts of this model through the reader of these options */
	struct measure_card card; /* when the backend is one */
};

/* Measures and adds a figure for each to `section`. No engine may be open: it would share drive and card. */
int limits_measure(struct bench *b, const struct common_opts *c, const char *section, const char *backend,
	struct limits *l, struct err *e);

#endif
