/* SPDX-License-Identifier: MIT */
/*
 * Logits -> token. First penalties and biases change the logits. Then, at temperatures below 1e-6,
 * the largest logit wins; else temperature, top-k, top-p and min-p apply in this order
 * (src/draw/truncate.h), and a token is drawn.
 *
 * There is no generator with a state. A token's random numbers depend on the seed and on the
 * token's position in its timeline alone (src/draw/noise.h), so a position may be drawn for twice,
 * out of order, or not at all. The same options, position, tokens before and logits give the same
 * token.
 *
 * Order of use: sampler_init; if sampler_adjusts, sampler_note for every token of the prompt, and
 * of the answer as it is drawn; sampler_draw for a position; sampler_fini. Threads: one at a time.
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

/* When memory is exhausted in a scope (mem.h), the scope has failed and the results may not be
 * used: sampler_draw returns an id that need not follow options and filter, and sampler_note may
 * not count its token. */
struct sampler {
	struct sampler_options options;
	uint32_t *counts; /* [n_counts] by id: occurrences in the answer; top bit: in the prompt */
	size_t n_counts;
	int32_t *seen; /* [n_seen] ids that stand in the prompt or the answer */
	size_t n_seen, seen_cap;
	float *adjusted; /* [n_valid] logits after penalties, biases, filter; made on first use */
	float *maxima;   /* [n_maxima] scratch of draw_scan_row; grown on first use */
	size_t n_maxima;
};

void sampler_init(struct sampler *s, const struct sampler_options *options); /* copies them */
void sampler_fini(struct sampler *s); /* a zeroed struct is fine */

/* No NaN and no infinity among the first n_valid: else weights or caches are damaged. */
bool sampler_all_finite(const float *logits, int32_t n_valid);

bool sampler_adjusts(const struct sampler *s); /* penalties or biases are set */
/* Counts a token of the prompt or of the answer for the penalties. Only needed when
 * sampler_adjusts.
 */
void sampler_note(struct sampler *s, int32_t id, bool in_prompt);

/* Draws the token of `position`, the index of that token in its timeline, from the first n_valid
 * ids. logits: [n_valid] or more, not changed; NaN counts as -infinity; n_valid is the same in all
 * calls.
 * filter (NULL: none): the token is one that it allows. First a token is drawn from all tokens. If
 * that one is forbidden, another is drawn from the allowed ones with the same random numbers. So a
 * filter that the model keeps to by itself changes nothing and costs next to nothing. If biases and
 * `banned` leave none of the tokens that `allows` permits, biases, penalties and `banned` are
 * ignored. */
int32_t sampler_draw(struct sampler *s, const float *logits, int32_t n_valid,
	const struct sampler_filter *filter, uint32_t position);

/* The same draw by the op `draw` of the backends. sampler_request: what to ask the op for.
 * sampler_accepts: whether its result for this position is known to be the token that sampler_draw
 * gives without a filter. If not (always with penalties or biases) the caller uses sampler_draw. */
struct draw_request sampler_request(const struct sampler *s, uint32_t position);
bool sampler_accepts(
	const struct sampler *s, int32_t n_valid, uint32_t position, const struct draw_result *drawn);

/* ln softmax(logits)[id] over the first n_valid ids, in double. */
double sampler_logprob(const float *logits, int32_t n_valid, int32_t id);

#endif
