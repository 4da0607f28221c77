/* SPDX-License-Identifier: MIT */
/*
 * One mutable timeline of tokens over an engine. The caller states the tokens it wants computed;
 * the session reuses the common prefix, rewinds or extends. Logits of the last position are kept.
 */
#ifndef GLM_ENGINE_SESSION_H
#define GLM_ENGINE_SESSION_H

#include "src/engine/engine.h"

#include <stdatomic.h>

struct session;

/* Creates a timeline of up to engine_context() positions; ERR_MEMORY when the caches do not fit. */
int session_new(struct engine *g, struct session **out, struct err *e);
void session_free(struct session *s); /* NULL is fine */
struct engine *session_engine(const struct session *s);

/* What a long computation tells and asks while it runs. Zero-initialise; every field is optional.
 */
struct session_watch {
	void (*progress)(void *user, uint32_t done, uint32_t total); /* after each chunk of tokens */
	/* Called once, when the computation of the first chunk is under way and the thread would only
	 * wait for it: the place for work that is not urgent. The logits of the position before still
	 * stand where session_logits said. Not called when the computation ends early. */
	void (*on_device_busy)(void *user);
	void *user;
	/* Set by anyone, from a signal handler too: the computation stops after the chunk or layer in
	 * hand with ERR_INTERRUPTED; the session then holds the tokens finished so far and stays
	 * usable. */
	atomic_bool *cancel;
};

/* Makes the timeline equal to tokens[0..n): reuses the longest common prefix (at least the last
 * token is computed anew when its logits are not at hand), computes the rest in chunks. *n_reused
 * (may be NULL): tokens not computed. ERR_INPUT for an id out of range, n = 0, or n beyond the
 * context; then the session is unchanged. */
int session_sync(struct session *s, const int32_t *tokens, uint32_t n,
	const struct session_watch *watch, uint32_t *n_reused, struct err *e);

/* Appends n tokens and computes them. rows (may be NULL): [n][vocab] logits of every appended
 * position. */
int session_extend(struct session *s, const int32_t *tokens, uint32_t n, float *rows,
	const struct session_watch *watch, struct err *e);

/* Forgets all but the first n tokens. n <= length. The logits are gone until something is computed,
 * unless n equals the length. */
void session_rewind(struct session *s, uint32_t n);

uint32_t session_length(const struct session *s);
const int32_t *session_tokens(const struct session *s); /* [length], valid until the next change */

/* [vocab] logits of the last position, host memory, valid until the next change; NULL when not at
 * hand. Rows beyond the tokenizer's vocabulary are what the model computed: mask them when
 * sampling. */
const float *session_logits(const struct session *s);

/* Keeps the MTP layer's caches along, which session_mtp_logits needs; the cost is two projections a
 * token. Call before the first token. ERR_INPUT when the model has no MTP layer. */
int session_enable_mtp(struct session *s, struct err *e);

/* MTP: logits [vocab] (host, written by the call) of the token after `next`, given that `next`
 * follows the last position. Needs session_enable_mtp and logits at hand (session_logits not NULL);
 * else ERR_RUN. The timeline does not change. */
int session_mtp_logits(struct session *s, int32_t next, float *logits, struct err *e);

/* What parity checks look at; filled by session_extend/sync while set. Arrays are the caller's,
 * sized by it. */
struct session_taps {
	float *resid_last; /* [layers][n_embd]: residual stream after each layer, of the last position
						  computed */
	uint16_t *router;  /* [tokens][moe layers][n_used], sorted, of every position computed; at most
						  router_rows */
	uint32_t router_rows; /* capacity in tokens */
	int32_t *index_last;  /* [layers][top_k]: selection of the last position, ascending; full layers
							 only */
	int32_t *n_index_last; /* [layers]: how many; 0 for shared layers */
};
void session_set_taps(struct session *s, struct session_taps *taps); /* NULL: off */

#endif
