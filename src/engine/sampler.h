/* SPDX-License-Identifier: MIT */
/*
 * Logits -> token. First penalties and biases, then greedy at temperature 0 and next to it, else
 * temperature, top-k, top-p, min-p, in that order (src/draw/truncate.h).
 *
 * There is no generator with a state. A token's random numbers depend on the seed and on the
 * token's position in its timeline alone (src/draw/noise.h), so a position may be drawn for twice,
 * out of order, or not at all. The same options, position, tokens before and logits give the same
 * token.
 *
 * sampler_note tells it of every token of the prompt and of the answer, when sampler_adjusts says
 * that it matters.
 */
#ifndef GLM_ENGINE_SAMPLER_H
#define GLM_ENGINE_SAMPLER_H

#include "src/draw/draw.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SAMPLER_BIAS_MAX 300

struct sampler_bias {
	int32_t id;
	float add;
};

struct sampler_options {
	float temperature; /* below 1e-6: the largest logit, ties to the lower id */
	float top_p;       /* (0, 1]; 1: off */
	float min_p;       /* [0, 1); 0: off */
	int top_k;         /* 0: off */
	uint64_t seed;
	/* Of a token that stands in the prompt or the answer, a positive logit is divided by this, a
	 * negative one multiplied; 0 and 1: off. */
	float repetition;
	/* Of a token that stands in the answer c times, presence + c * frequency is taken off. */
	float presence, frequency;
	struct sampler_bias bias[SAMPLER_BIAS_MAX]; /* [n_bias] added to logits */
	uint32_t n_bias;
};

/* What else decides which tokens may come. All may be NULL and 0; mask goes with allows. */
struct sampler_filter {
	void *user;
	bool (*allows)(void *user, int32_t id);
	void (*mask)(void *user, float *logits, int32_t n_valid); /* -infinity for what it forbids */
	const int32_t *banned; /* [n_banned] ids that must not come */
	size_t n_banned;
};

/* In a scope (mem.h) that runs out of memory, a token that is drawn follows neither options nor
 * filter, and one that came does not count. */
struct sampler {
	struct sampler_options options;
	uint32_t *counts; /* [n_counts] by id: times in the answer; top bit: in the prompt */
	size_t n_counts;
	int32_t *seen; /* [n_seen] ids that stand in the prompt or the answer */
	size_t n_seen, seen_cap;
	float *adjusted; /* [n_valid]; made on first use */
	float *maxima;   /* [n_maxima] of blocks (src/draw); grown on first use */
	size_t n_maxima;
};

void sampler_init(struct sampler *s, const struct sampler_options *options); /* copies them */
void sampler_fini(struct sampler *s); /* a zeroed struct is fine */

/* No NaN and no infinity among the first n_valid: else weights or caches are damaged. */
bool sampler_all_finite(const float *logits, int32_t n_valid);

bool sampler_adjusts(const struct sampler *s); /* penalties or biases are set */
/* A token that came: of the prompt, or of the answer. Only needed when sampler_adjusts. */
void sampler_note(struct sampler *s, int32_t id, bool in_prompt);

/* Draws the token of `position`, the index of that token in its timeline, from the first n_valid
 * ids. logits: [n_valid] or more, not changed; NaN counts as -infinity; n_valid is the same in all
 * calls.
 * filter (NULL: none): the token is one that it allows. First one is drawn from all tokens; only
 * when that one is forbidden, from those that are allowed, with the same random numbers. So the
 * filter changes nothing as long as the model keeps to it by itself, and costs next to nothing
 * then. Where biases and `banned` leave none of the tokens that it allows, they do not count. */
int32_t sampler_draw(struct sampler *s, const float *logits, int32_t n_valid,
	const struct sampler_filter *filter, uint32_t position);

/* The same with the op `draw` of the backends: what to ask for, and whether what came is the token
 * that sampler_draw gives without a filter. Where it is not known, sampler_draw must decide: always
 * with penalties or biases. */
struct draw_request sampler_request(const struct sampler *s, uint32_t position);
bool sampler_accepts(
	const struct sampler *s, int32_t n_valid, uint32_t position, const struct draw_result *drawn);

/* ln softmax(logits)[id] over the first n_valid ids, in double. */
double sampler_logprob(const float *logits, int32_t n_valid, int32_t id);

#endif
