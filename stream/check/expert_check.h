/* SPDX-License-Identifier: MIT */
/*
 * Decides which experts are compared with their check values (src/format/check_values.h) when they
 * are read, and records which have passed. The code that reads also has them hashed.
 *
 * In order of use, for each read of an expert:
 *   1. expert_check_due; if false, nothing is compared;
 *   2. hash the spans that expert_check_spans gives;
 *   3. all are right: expert_check_passed;
 *   4. else read and hash the expert once more; expert_check_passed, or expert_check_err.
 * The caller keeps `figures`.
 *
 * Threads: the one that reads. expert_check_range and expert_check_spans read constants only; any
 * thread may call them.
 */
#ifndef GLM_STREAM_EXPERT_CHECK_H
#define GLM_STREAM_EXPERT_CHECK_H

#include "src/base/err.h"
#include "src/format/check_values.h"
#include "stream/check/span_check.h"
#include "stream/extent.h"

enum check_mode {
	CHECK_FIRST,  /* each expert when it is first read, from whichever copy of the file */
	CHECK_ALWAYS, /* each time it is read */
	CHECK_OFF,
};

struct check_figures {
	uint64_t checked; /* experts compared, those that were wrong included */
	uint64_t reread;  /* experts read again, because they were wrong */
	uint64_t wrong;   /* experts that were wrong again */
	uint64_t ns;      /* spent hashing, summed over all threads */
};

struct expert_check {
	const struct check_values *values; /* lent; NULL: nothing is checked */
	enum check_mode mode;
	int n_layers, n_experts;
	bool has_copies;                 /* reads may come from copies of the file: an error says so */
	uint64_t (*first)[EXTENT_PARTS]; /* [n_layers] number of a part's first range */
	bool *passed;                    /* [n_layers * n_experts] */
	struct check_figures figures;
};

/* values: NULL, or those of the file that these experts are read from; lent. */
void expert_check_init(struct expert_check *c, const struct check_values *values,
	enum check_mode mode, int n_layers, int n_experts);
void expert_check_fini(struct expert_check *c); /* a zeroed one is fine */

/* Whether this expert has to be compared when it is read now. */
bool expert_check_due(const struct expert_check *c, int layer, int expert);
/* The number of the range (check_values.h) of one part of an expert. Only if `values` is not NULL.
 */
uint64_t expert_check_range(
	const struct expert_check *c, int layer, enum extent_part part, int expert);
/* The parts of an expert as spans of its slot, in the order of their offsets there. Returns their
 * number. Only if `values` is not NULL. */
unsigned expert_check_spans(const struct expert_check *c, const struct extent_plan *plan, int layer,
	int expert, struct checked_span out[EXTENT_PARTS]);
void expert_check_passed(struct expert_check *c, int layer, int expert);

/* Sets the error for an expert whose span number `span` (of expert_check_spans) was wrong twice,
 * the second time with the value `found`. Returns ERR_RUN. */
int expert_check_err(const struct expert_check *c, const struct extent_plan *plan, int layer,
	int expert, unsigned span, uint64_t found, struct err *e);

#endif
