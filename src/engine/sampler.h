/* SPDX-License-Identifier: MIT */
/*
 * Logits -> token. Greedy at temperature 0 and next to it, else temperature, top-k, top-p, min-p,
 * in that order, with a seeded generator. The same options, seed and logits give the same tokens.
 */
#ifndef GLM_ENGINE_SAMPLER_H
#define GLM_ENGINE_SAMPLER_H

#include "src/base/rng.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sampler_options {
	float temperature; /* below 1e-6: the largest logit, ties to the lower id */
	float top_p;       /* (0, 1]; 1: off */
	float min_p;       /* [0, 1); 0: off */
	int top_k;         /* 0: off */
	uint64_t seed;
};

struct sampler {
	struct sampler_options options;
	struct rng rng;
	struct sampler_candidate *scratch; /* [n_valid]; grown on first use */
	size_t scratch_len;
};

void sampler_init(struct sampler *s, const struct sampler_options *options);
void sampler_fini(struct sampler *s);

/* Draws one of the first n_valid ids. logits: [n_valid] or more, not changed; NaN counts as
 * -infinity. *probability (may be NULL): of that id under the distribution it was drawn from. */
int32_t sampler_pick(struct sampler *s, const float *logits, int32_t n_valid, float *probability);

/* No NaN and no infinity among the first n_valid: else weights or caches are damaged. */
bool sampler_all_finite(const float *logits, int32_t n_valid);

/* ln softmax(logits)[id] over the first n_valid ids, in double. */
double sampler_logprob(const float *logits, int32_t n_valid, int32_t id);

#endif
