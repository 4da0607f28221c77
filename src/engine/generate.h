/* SPDX-License-Identifier: MIT */
/* The generation loop: sync the session to a prompt, sample, tell the caller, stop. */
#ifndef GLM_ENGINE_GENERATE_H
#define GLM_ENGINE_GENERATE_H

#include "src/engine/sampler.h"
#include "src/engine/session.h"

enum generate_stop {
	GENERATE_STOP_TOKEN, /* the model ended its turn; the stop token is on the timeline but was not
							given to on_token */
	GENERATE_LIMIT,      /* max_new reached */
	GENERATE_CONTEXT_FULL, /* no room for another token */
	GENERATE_CANCELLED, /* watch.cancel was set, or on_token returned false; a token that was given
						 * to on_token may then be missing at the end of the timeline */
};

struct generate_options {
	uint32_t max_new; /* most new tokens; UINT32_MAX: until the model stops; 0: compute the prompt
						 only */
	struct sampler_options sampler;
	bool ignore_stop; /* go on past stop tokens (benchmarks) */
	/* Called with each new token before the next is computed; false ends the generation. */
	bool (*on_token)(void *user, int32_t id);
	void *user;
	struct session_watch watch;
};

struct generate_result {
	enum generate_stop stop;
	int32_t stop_token; /* with GENERATE_STOP_TOKEN, else -1 */
	uint32_t prompt_tokens, reused_tokens, new_tokens;
	uint64_t prefill_ns, decode_ns;
	uint64_t logits_hash; /* 64-bit hash of the float32 logits of every position sampled from, in
							 order */
};

/* Syncs `s` to prompt[0..n) and generates. 0 also when cancelled while generating; ERR_INTERRUPTED
 * when cancelled during the prompt. After the call the timeline is the prompt and every sampled
 * token. */
int generate(struct session *s, const int32_t *prompt, uint32_t n,
	const struct generate_options *options, struct generate_result *result, struct err *e);

/* The hash of logits_hash, usable alone: FNV-1a over the 32-bit words of n floats, eight lanes in
 * turn that are joined at the end; seeded with the previous value, at first GENERATE_HASH_START. */
#define GENERATE_HASH_START 0xcbf29ce484222325u
uint64_t generate_hash(uint64_t hash, const float *logits, size_t n);

#endif
