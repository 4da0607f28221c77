/* SPDX-License-Identifier: MIT */
/*
 * Compares bytes that arrive in chunks with check values. A run is a sequence of bytes, such as the
 * content of a slot; spans are disjoint parts of it, each with a check value.
 *
 * In order of use: span_check_open once; for each run span_check_begin, span_check_add for its
 * chunks in order, then span_check_next_wrong; span_check_close. One thread at a time.
 */
#ifndef GLM_STREAM_SPAN_CHECK_H
#define GLM_STREAM_SPAN_CHECK_H

#include "src/base/xxh3/xxh3.h"

#include <stdbool.h>
#include <stdint.h>

/* Bytes [begin, end) of the run, end > begin. */
struct checked_span {
	uint64_t begin, end, expected;
	uint64_t found; /* set when the span is complete: the value of its bytes */
};

struct span_check {
	struct xxh3 *hash;
	struct checked_span *spans; /* lent: [n], in order, disjoint */
	unsigned n, next;           /* `next` spans are complete */
};

bool span_check_open(struct span_check *c);  /* false: no memory */
void span_check_close(struct span_check *c); /* a zeroed one is fine */
void span_check_begin(struct span_check *c, struct checked_span *spans, unsigned n);
/* Bytes [at, at + n) of the run, at p[n]. Bytes outside of all spans may be left out. */
void span_check_add(struct span_check *c, uint64_t at, const uint8_t *p, uint64_t n);
/* The first complete span from number `from` on whose bytes are wrong; NULL: there is none. */
const struct checked_span *span_check_next_wrong(const struct span_check *c, unsigned from);

#endif
