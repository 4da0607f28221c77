/* SPDX-License-Identifier: MIT */
/* Prompt in, tokens out. */
#include "src/engine/generate.h"

#include "src/base/clock.h"

#include <string.h>

uint64_t generate_hash(uint64_t hash, const float *logits, size_t n)
{
	/* eight hashes in turn: a single one would wait for its own multiplication */
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

bool generate_ends(const struct session *s, int32_t id, uint32_t n_given, uint32_t max_new,
	bool ignore_stop, enum generate_stop *stop)
{
	const struct engine *g = session_engine(s);
	if (!ignore_stop && tokenizer_is_stop(engine_tokenizer(g), id))
		*stop = GENERATE_STOP_TOKEN;
	else if (n_given + 1 >= max_new)
		*stop = GENERATE_LIMIT;
	else if (session_length(s) >= engine_context(g))
		*stop = GENERATE_CONTEXT_FULL;
	else
		return false;
	return true;
}

/* Logits that are not in the hash yet: they are hashed while the device computes the next token. */
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

/* Computes the sampled token if there is room for it. The logits it was sampled from are hashed
 * meanwhile, and in any case. */
static int extend_and_hash(
	struct session *s, int32_t id, struct session_watch *watch, struct err *e)
{
	int rc = 0;
	if (watch->cancel && atomic_load_explicit(watch->cancel, memory_order_relaxed))
		rc = ERR_INTERRUPTED;
	else if (session_length(s) < engine_context(session_engine(s)))
		rc = session_extend(s, &id, 1, NULL, watch, e);
	hash_now(watch->user);
	return rc;
}

/* The decode loop; the session stands at the end of the prompt with its logits. */
static int decode_tokens(struct session *s, const struct generate_options *o,
	struct sampler *sampler, struct generate_result *r, struct err *e)
{
	const struct engine *g = session_engine(s);
	struct unhashed last = {.n = engine_config(g)->n_vocab, .hash = &r->logits_hash};
	struct session_watch watch = {
		.cancel = o->watch.cancel, .on_device_busy = hash_now, .user = &last};
	for (bool ends = !o->max_new; !ends;) {
		const float *logits = last.logits = session_logits(s);
		int32_t id = sampler_draw(sampler, logits, engine_n_valid(g), o->filter, session_length(s));
		ends = generate_ends(s, id, r->new_tokens, o->max_new, o->ignore_stop, &r->stop);
		if (ends && r->stop == GENERATE_STOP_TOKEN) {
			r->stop_token = id;
		} else {
			r->new_tokens++;
			if (o->on_token && !o->on_token(o->user, id)) {
				r->stop = GENERATE_CANCELLED;
				watch.cancel = NULL; /* this token is still computed */
				ends = true;
			} else if (o->complete && o->complete(o->user)) {
				r->stop = GENERATE_COMPLETE;
				ends = true;
			}
			if (sampler_adjusts(sampler))
				sampler_note(sampler, id, false);
		}
		int rc = extend_and_hash(s, id, &watch, e);
		if (rc && rc != ERR_INTERRUPTED)
			return rc;
		if (rc) {
			r->stop = GENERATE_CANCELLED;
			r->stop_token = -1;
			ends = true;
		}
	}
	return 0;
}

int generate(struct session *s, const int32_t *prompt, uint32_t n, const struct generate_options *o,
	struct generate_result *r, struct err *e)
{
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
	for (uint32_t i = 0; i < n && sampler_adjusts(&sampler); i++)
		sampler_note(&sampler, prompt[i], true);
	rc = decode_tokens(s, o, &sampler, r, e);
	sampler_fini(&sampler);
	r->decode_ns = clock_ns() - prefilled;
	return rc;
}
