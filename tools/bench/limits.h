/* SPDX-License-Identifier: MIT */
/* The limits that streaming is held against, measured in the same run as what is held against them.
 */
#ifndef GLM_TOOLS_LIMITS_H
#define GLM_TOOLS_LIMITS_H

#include "tools/bench/measure.h"
#include "tools/machine/measure_card.h"
#include "tools/machine/measure_host.h"

struct limits {
	struct measure_disk disk; /* experts of this model through the reader of these options */
	bool before;              /* the drive has been measured before the run */
	struct measure_card card; /* when the backend is one */
	struct measure_host host; /* ... and the options let the processor compute experts */
};

/* ms a token of the link: `moved` bytes that had to come to the card and `computed` bytes of
 * experts that the processor computed meanwhile, in so many tokens. Where it may, the two share
 * both as they end earliest. 0: there is no link. */
double limits_link_ms(const struct limits *l, uint64_t moved, uint64_t computed, double tokens);

/* Measures the drive before the run, for limits_measure to put beside what it finds after it: a
 * drive that others share is not the same a minute later. Does nothing when the page cache takes
 * part: it would hold what is read here. */
int limits_measure_before(
	struct bench *b, const struct common_opts *c, struct limits *l, struct err *e);

/* Measures and adds a figure for each to `section`. *l: zero, or as limits_measure_before left it.
 * No engine may be open: it would share drive and card. */
int limits_measure(struct bench *b, const struct common_opts *c, const char *section,
	const char *backend, struct limits *l, struct err *e);

#endif
