/* SPDX-License-Identifier: MIT */
/*
 * Compares bytes with check values while they pass: spans of a run of bytes, each with its value.
 *
 * In order of use: span_check_open once, then for each run span_check_begin, span_check_add with
 * all its bytes in order, and a look at n_wrong; span_check_close. One thread.
 */
#ifndef GLM_STREAM_SPAN_CHECK_H
#define GLM_STREAM_SPAN_CHECK_H

#include "src/base/xxh3.h"

#include <stdbool.h>
#include <stdint.h>

/* Bytes [begin, end) of the run, end > begin. */
struct checked_span {
	uint64_t begin, end, expected;
};

struct span_check {
	struct xxh3 *hash;
	const struct checked_span *spans; /* lent: [n], in order, disjoint */
	unsigned n, next;
	/* of those that have passed */
	unsigned n_wrong;
	unsigned first_wrong; /* index */
	uint64_t found;       /* its value */
};

bool span_check_open(struct span_check *c);  /* false: no memory */
void span_check_close(struct span_check *c); /* a zeroed one is fine */
void span_check_begin(struct span_check *c, const struct checked_span *spans, unsigned n);
/* Bytes [at, at + n) of the run. Those between spans may be left out. */
void span_check_add(struct span_check *c, uint64_t at, const uint8_t *p, uint64_t n);

#endif
