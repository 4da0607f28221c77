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

/* Logits that are not in the hash yet: it is made while the device computes the next token. */
struct unhashed {
	const float *logits; /* NULL: there are none */
	size_t n;
	uint64_t *hash;
};

static void hash_now(void *user)
{
	struct unhashed *u = user;
	if (u->logits)
		*u->hash = generate_hash(*u->hash, u->logits, u->n);
	u->logits = NULL;
}

/* Computes the token after the last one; the logits before it are hashed meanwhile, and also if it
 * fails. */
static int extend(struct session *s, int32_t id, struct session_watch *watch, struct err *e)
{
	bool cancelled = watch->cancel && atomic_load_explicit(watch->cancel, memory_order_relaxed);
	int rc = cancelled ? ERR_INTERRUPTED : session_extend(s, &id, 1, NULL, watch, e);
	if (rc)
		hash_now(watch->user);
	return rc;
}

/* The decode loop; the session stands at the end of the prompt with its logits. */
static int decode(struct session *s, const struct generate_options *o, const struct engine *g,
	struct sampler *sampler, struct generate_result *r, struct err *e)
{
	const struct tokenizer *t = engine_tokenizer(g);
	int32_t n_valid = engine_n_valid(g);
	struct unhashed last = {.n = engine_config(g)->n_vocab, .hash = &r->logits_hash};
	struct session_watch watch = {
		.cancel = o->watch.cancel, .on_device_busy = hash_now, .user = &last};
	while (r->new_tokens < o->max_new) {
		const float *logits = last.logits = session_logits(s);
		int32_t id = sampler_pick(sampler, logits, n_valid, NULL);
		bool stop = !o->ignore_stop && tokenizer_is_stop(t, id);
		if (session_length(s) == engine_context(g)) {
			hash_now(&last);
			r->stop = GENERATE_CONTEXT_FULL;
			return 0;
		}
		if (!stop) {
			r->new_tokens++;
			if (o->on_token && !o->on_token(o->user, id)) {
				r->stop = GENERATE_CANCELLED;
				watch.cancel = NULL;
				return extend(s, id, &watch, e);
			}
		}
		int rc = extend(s, id, &watch, e);
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
