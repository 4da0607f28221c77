/* SPDX-License-Identifier: MIT */
/*
 * A profile: how often each expert was used, kept from run to run so that the next start can fill
 * its cache before the first token. Experts loaded by it can be evicted like any other.
 *
 * The file is text, replaced in one step:
 *
 *     # glmstream profile 2 <fingerprint, 16 hex digits> <layers> <experts>
 *     layer,expert,count
 *     3,17,812.5
 *
 * most used first. Counts of earlier runs fade: profile_write halves them before it adds those of a
 * run that has counted something.
 */
#ifndef GLM_CACHE_EXPERT_PROFILE_H
#define GLM_CACHE_EXPERT_PROFILE_H

#include "cache/trace/trace.h"
#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct profile {
	uint64_t fingerprint; /* of the model; 0: unknown */
	uint32_t n_layers, n_experts;
	double *count; /* [n_layers][n_experts] */
};

struct profile_key {
	int32_t layer, expert;
};

int profile_init(struct profile *p, uint64_t fingerprint, uint32_t n_layers,
	uint32_t n_experts);              /* 0 or ERR_MEMORY */
void profile_fini(struct profile *p); /* a zeroed struct is fine */

static inline void profile_count(struct profile *p, int layer, int expert)
{
	p->count[(size_t)layer * p->n_experts + (size_t)expert] += 1;
}

/* Adds the counts of a profile or of a trace (own format or GLTR1) to p. *is_trace: which of the
 * two it is, if the file can be opened. After an error p is unchanged; errors:
 * - ERR_INPUT: missing or malformed, or of a model with another shape or fingerprint. A fingerprint
 *   of 0 on either side matches all; a GLTR1 trace may have fewer layers.
 * - ERR_MEMORY; -errno of a failed read. */
int profile_read(struct profile *p, const char *path, bool *is_trace, struct err *e);

/* Whether the file may be replaced by a profile: it is empty, or a profile of this version or an
 * older one, damaged or not. False: another kind of file, a newer program's profile, or it cannot
 * be read. */
bool profile_may_replace(const char *path);

/* *keys: [*n] experts with a count above 0, most used first (ties: lower layer, then lower expert);
 * the caller frees it. */
void profile_order(const struct profile *p, struct profile_key **keys, size_t *n);

/* Writes p + earlier, or p + earlier / 2 if p has counts; earlier NULL: zeros. 0, or the error of
 * out_file.h, ERR_MEMORY. */
int profile_write(
	const struct profile *p, const struct profile *earlier, const char *path, struct err *e);

#endif
