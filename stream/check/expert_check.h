/* SPDX-License-Identifier: MIT */
/*
 * Which experts are compared with their check values when they are read, and which have been. The
 * values are those of the file (src/format/check_values.h); whoever reads has them hashed.
 *
 * Threads: one, that of the reads. What does not change may be asked by any: expert_check_range,
 * expert_check_spans.
 */
#ifndef GLM_STREAM_EXPERT_CHECK_H
#define GLM_STREAM_EXPERT_CHECK_H

#include "src/base/err.h"
#include "src/format/check_values.h"
#include "stream/check/span_check.h"
#include "stream/extent.h"

enum check_mode {
	CHECK_FIRST,  /* each expert when it is first read */
	CHECK_ALWAYS, /* each time it is read */
	CHECK_OFF,
};

/* What was done; times are of the hashing, of all threads together. */
struct check_figures {
	uint64_t checked; /* experts compared, those that were wrong included */
	uint64_t reread;  /* experts read again, because they were wrong */
	uint64_t wrong;   /* experts that were wrong again */
	uint64_t ns;
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

/* values: NULL, or of the file whose experts these are, which has all of them. */
void expert_check_init(struct expert_check *c, const struct check_values *values,
	enum check_mode mode, int n_layers, int n_experts);
void expert_check_fini(struct expert_check *c); /* a zeroed one is fine */

/* Whether this expert has to be compared when it is read now. */
bool expert_check_due(const struct expert_check *c, int layer, int expert);
/* The number of a part's range. */
uint64_t expert_check_range(
	const struct expert_check *c, int layer, enum extent_part part, int expert);
/* The parts of an expert that is due, as they lie in its slot, in order. Returns their number. */
unsigned expert_check_spans(const struct expert_check *c, const struct extent_plan *plan, int layer,
	int expert, struct checked_span out[EXTENT_PARTS]);
void expert_check_passed(struct expert_check *c, int layer, int expert);

/* The sentence when this span was wrong twice. ERR_RUN. */
int expert_check_err(const struct expert_check *c, const struct extent_plan *plan, int layer,
	int expert, unsigned span, uint64_t found, struct err *e);

#endif
