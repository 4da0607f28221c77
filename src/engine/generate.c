/* SPDX-License-Identifier: MIT */
/* Prompt in, tokens out. */
#include "src/engine/generate.h"

#include "src/base/clock.h"

#include <string.h>

uint64_t generate_hash(uint64_t hash, const float *logits, size_t n)
{
	/* one lane at a time would wait for its own multiplication: that costs more than the sampler */
	const uint64_t prime = 0x100000001b3u;
	uint64_t lane[8];
	for (size_t k = 0; k < 8; k++)
		lane[k] = (hash ^ k) * prime;
	size_t i = 0;
	for (; i + 8 <= n; i += 8) {
		uint64_t pair[4]; /* two words each, wherever they lie */
		memcpy(pair, logits + i, sizeof pair);
#pragma GCC unroll 4
		for (size_t k = 0; k < 4; k++) {
			lane[2 * k] = (lane[2 * k] ^ (uint32_t)pair[k]) * prime;
			lane[2 * k + 1] = (lane[2 * k + 1] ^ pair[k] >> 32) * prime;
		}
	}
	for (; i < n; i++) {
		uint32_t word;
		memcpy(&word, logits + i, sizeof word);
		lane[i % 8] = (lane[i % 8] ^ word) * prime;
	}
	for (size_t k = 0; k < 8; k++)
		hash = (hash ^ lane[k]) * prime;
	return hash;
}

static bool cancelled(const struct generate_options *o)
{
	return o->watch.cancel && atomic_load_explicit(o->watch.cancel, memory_order_relaxed);
}

/* The decode loop; the session stands at the end of the prompt with its logits. */
static int decode(struct session *s, const struct generate_options *o, const struct engine *g,
	struct sampler *sampler, struct generate_result *r, struct err *e)
{
	const struct tokenizer *t = engine_tokenizer(g);
	int32_t n_valid = engine_n_valid(g);
	struct session_watch watch = {.cancel = o->watch.cancel};
	while (r->new_tokens < o->max_new) {
		const float *logits = session_logits(s);
		r->logits_hash = generate_hash(r->logits_hash, logits, engine_config(g)->n_vocab);
		int32_t id = sampler_pick(sampler, logits, n_valid, NULL);
		bool stop = !o->ignore_stop && tokenizer_is_stop(t, id);
		if (session_length(s) == engine_context(g)) {
			r->stop = GENERATE_CONTEXT_FULL;
			return 0;
		}
		if (!stop) {
			r->new_tokens++;
			if (o->on_token && !o->on_token(o->user, id)) {
				r->stop = GENERATE_CANCELLED;
				return session_extend(s, &id, 1, NULL, NULL, e);
			}
		}
		int rc = cancelled(o) ? ERR_INTERRUPTED : session_extend(s, &id, 1, NULL, &watch, e);
		if (rc == ERR_INTERRUPTED) {
			r->stop = GENERATE_CANCELLED;
			return 0;
		}
		if (rc)
			return rc;
		if (stop) {
			r->stop = GENERATE_STOP_TOKEN;
			r->stop_token = id;
			return 0;
		}
	}
	r->stop = GENERATE_LIMIT;
	return 0;
}

int generate(struct session *s, const int32_t *prompt, uint32_t n, const struct generate_options *o,
	struct generate_result *r, struct err *e)
{
	const struct engine *g = session_engine(s);
	*r = (struct generate_result){
		.stop = GENERATE_LIMIT,
		.stop_token = -1,
		.prompt_tokens = n,
		.logits_hash = GENERATE_HASH_START,
	};
	uint64_t start = clock_ns();
	int rc = session_sync(s, prompt, n, &o->watch, &r->reused_tokens, e);
	uint64_t prefilled = clock_ns();
	r->prefill_ns = prefilled - start;
	if (rc)
		return rc;
	struct sampler sampler;
	sampler_init(&sampler, &o->sampler);
	rc = decode(s, o, g, &sampler, r, e);
	sampler_fini(&sampler);
	r->decode_ns = clock_ns() - prefilled;
	return rc;
}
