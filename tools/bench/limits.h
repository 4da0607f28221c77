/* SPDX-License-Identifier: MIT */
/* The limits that streaming is held against: drive, link, card and processor, measured in the same
 * run. */
#ifndef GLM_TOOLS_LIMITS_H
#define GLM_TOOLS_LIMITS_H

#include "tools/bench/measure.h"
#include "tools/machine/measure_card.h"
#include "tools/machine/measure_host.h"

struct limits {
	struct measure_disk disk; /* experts of this model through the reader of these options */
	bool before;              /* the drive has been measured before the run */
	struct measure_card card; /* the first card of these options; zero on the CPU */
	struct measure_host host; /* zero unless the options let the processor compute experts */
};

/* The least time of the link, in ms a token. moved: bytes that had to be copied to the card, in
 * `tokens` tokens; computed: bytes of experts that the processor computed in place of a copy, 0 if
 * it may not. Where it may, the bound is the best division of all these bytes between link and
 * processor. 0: there is no link. */
double limits_link_ms(const struct limits *l, uint64_t moved, uint64_t computed, double tokens);

/* Measures the drive before the run; limits_measure then takes the mean of this and of what it
 * measures after the run, since the rate of a shared drive changes. Does nothing with reads through
 * the page cache, which would keep what is read here. */
int limits_measure_before(
	struct bench *b, const struct common_opts *c, struct limits *l, struct err *e);

/* Measures and adds a figure for each to `section`. *l: zero, or as limits_measure_before left it.
 * No engine may be open: it would share drive and card. */
int limits_measure(struct bench *b, const struct common_opts *c, const char *section,
	const char *backend, struct limits *l, struct err *e);

#endif
