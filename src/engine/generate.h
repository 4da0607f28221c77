/* SPDX-License-Identifier: MIT */
/*
 * The generation loop: makes a session's timeline the prompt, samples, hands tokens to the caller,
 * stops.
 *
 * How an answer ends is one rule (generate_ends), for this loop and for the server's:
 * 1. A stop token ends the answer. It is never given out, and may come when the context is full.
 * 2. Any other token is given out, also when there is no room left to compute it.
 * 3. The answer then ends if it has max_new tokens, else if the context is full.
 *
 * With drafts (draft/draft.h) a step computes several rows, and as many tokens come from it as
 * drafts were right. Every token is drawn from the logits of its own position, with the random
 * numbers of that position; so text, logits_hash, the order of callbacks and the timeline are those
 * without drafts.
 */
#ifndef GLM_ENGINE_GENERATE_H
#define GLM_ENGINE_GENERATE_H

#include "src/engine/draft/draft.h"
#include "src/engine/sampler.h"
#include "src/engine/session/session.h"

enum generate_stop {
	GENERATE_STOP_TOKEN,   /* the model ended its turn */
	GENERATE_LIMIT,        /* max_new reached */
	GENERATE_CONTEXT_FULL, /* no room for another token */
	GENERATE_COMPLETE,     /* options.complete said so */
	GENERATE_CANCELLED,    /* watch.cancel was set, or on_token returned false */
};

/* Whether the answer ends with `id`, which was drawn for `position` of a timeline of `g`, behind
 * n_given tokens that were given out; *stop says why. ignore_stop: stop tokens are like any other.
 */
bool generate_ends(const struct engine *g, int32_t id, uint32_t position, uint32_t n_given,
	uint32_t max_new, bool ignore_stop, enum generate_stop *stop);

struct generate_options {
	uint32_t max_new; /* most new tokens; UINT32_MAX: until the model stops; 0: compute the prompt
						 only */
	struct sampler_options sampler;
	bool ignore_stop;                    /* go on past stop tokens (benchmarks) */
	const struct sampler_filter *filter; /* which tokens may come; NULL: all */
	/* Called with each new token before the next is computed; false ends the generation. */
	bool (*on_token)(void *user, int32_t id);
	bool (*complete)(void *user); /* behind on_token: nothing may follow; NULL: never */
	void *user;
	struct session_watch watch;
	struct draft_timeline *drafts; /* of the session; NULL: one token a step */
};

struct generate_result {
	enum generate_stop stop;
	int32_t stop_token; /* with GENERATE_STOP_TOKEN, else -1 */
	uint32_t prompt_tokens, reused_tokens, new_tokens;
	uint64_t prefill_ns, decode_ns;
	struct draft_stats drafts; /* zeros without */
	uint64_t logits_hash; /* 64-bit hash of the float32 logits of every position sampled from, in
							 order */
};

/* Syncs `s` to prompt[0..n) and generates. 0 also when cancelled while generating; ERR_INTERRUPTED
 * when cancelled during the prompt. Afterwards the timeline is the prompt and every sampled token,
 * the stop token too, but for a last one that found no room or whose computation was cancelled. */
int generate(struct session *s, const int32_t *prompt, uint32_t n,
	const struct generate_options *options, struct generate_result *result, struct err *e);

/* The hash of logits_hash, usable alone. It is FNV-1a over the 32-bit words of n floats, as eight
 * interleaved hashes that are combined at the end. The seed is the previous value, at first
 * GENERATE_HASH_START. */
#define GENERATE_HASH_START 0xcbf29ce484222325u
uint64_t generate_hash(uint64_t hash, const float *logits, size_t n);

#endif
