/* SPDX-License-Identifier: MIT */
/*
 * A profile: how often each expert was used, kept from run to run so that the next start can fill
 * its cache before the first token. It only seeds; it never pins.
 *
 * The file is text, replaced in one step:
 *
 *     # glmstream profile 2 <fingerprint, 16 hex digits> <layers> <experts>
 *     layer,expert,count
 *     3,17,812.5
 *
 * most used first. Counts of earlier runs fade: a save halves them before it adds its own, unless
 * its run has counted nothing.
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

/* Adds the counts of a profile or of a trace (own format or GLTR1) to p. ERR_INPUT with a sentence:
 * malformed, or of a model with another shape or fingerprint (0 on either side matches all). p is
 * unchanged then. *is_trace says which of the two it was. */
int profile_read(struct profile *p, const char *path, bool *is_trace, struct err *e);

/* Whether the file may be replaced by a profile: it is empty, or a profile of this version or an
 * older one, damaged or not. False: another kind of file, a newer program's profile, or it cannot
 * be read. */
bool profile_may_replace(const char *path);

/* *keys: [*n] experts with a count, most used first (ties: lower layer, then lower expert); the
 * caller frees it. */
void profile_order(const struct profile *p, struct profile_key **keys, size_t *n);

/* Writes `earlier` (may be NULL) plus p; `earlier` is halved if p has counts. */
int profile_write(
	const struct profile *p, const struct profile *earlier, const char *path, struct err *e);

#endif
