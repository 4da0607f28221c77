/* SPDX-License-Identifier: MIT */
/*
 * The tokens of answers that were given. When a client sends an answer back as part of its next
 * request, the prompt gets the very tokens that the model wrote (with reasoning that the client
 * left out, its spacing, its spelling of arguments). So the session's timeline goes on instead of
 * being computed anew.
 *
 * An answer is found by its text, the names and arguments of its tool calls, and the calls' ids. If
 * there are no ids (no calls, or an API without them) the tokens before it stand for them. A turn
 * that the client changed is not found; it is rendered by the template. Bounded in bytes; the least
 * recently used answer is forgotten first, and one that is larger than the bound is not remembered.
 * Any thread.
 */
#ifndef GLM_SERVE_TURN_STORE_H
#define GLM_SERVE_TURN_STORE_H

#include "src/text/chat.h"
#include "src/text/vocab.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct turn_store;

struct turn_store *turn_store_new(size_t limit_bytes);
void turn_store_free(struct turn_store *r); /* NULL is fine */

/* An assistant turn. Everything but ids and n_reasoning decides whether it is found; all is
 * borrowed. */
struct stored_turn {
	struct chat_text content; /* blanks at both ends do not count */
	const struct chat_call *calls;
	size_t n_calls;
	const char *call_ids; /* the ids of the calls, each followed by a line feed; "" without calls */
	uint64_t before;      /* hash_bytes of the n_before tokens before the turn */
	size_t n_before;
	struct chat_text reasoning; /* get: as the client has it; data NULL or empty: it has none */
};

/* Remembers ids[0..n): all that follows <think>; the first n_reasoning of them end with </think>.
 */
void turn_store_put(struct turn_store *r, const struct stored_turn *t, const int32_t *ids, size_t n,
	size_t n_reasoning);

/* Appends the turn's tokens to *out: all, or those behind the reasoning when !with_reasoning.
 * False: not known, or the client has other reasoning than was given. */
bool turn_store_get(
	struct turn_store *r, const struct stored_turn *t, bool with_reasoning, struct token_ids *out);

/* What the turns take of the allocator, at most the limit. */
size_t turn_store_bytes(struct turn_store *r);

#endif
