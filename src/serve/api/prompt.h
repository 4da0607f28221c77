/* SPDX-License-Identifier: MIT */
/* A conversation -> the tokens of its prompt, with the tokens of earlier answers as the model wrote
 * them (turn_store.h). */
#ifndef GLM_SERVE_PROMPT_H
#define GLM_SERVE_PROMPT_H

#include "src/serve/compute/turn_store.h"
#include "src/text/chat.h"

/* A conversation with the ids of its tool calls. Zero-initialise. */
struct prompt_talk {
	struct chat chat;
	struct buf *call_ids; /* [n_call_ids] of message i: the ids of its calls, each followed by a
							 line feed */
	size_t n_call_ids;
};

void prompt_talk_fini(struct prompt_talk *t);

/* Message `i` has one more call, with this id (NULL: ""). */
void prompt_talk_call_id(struct prompt_talk *t, size_t i, const char *id, size_t len);

/* Appends the ids. most_bytes: a longer text is not made (request_most_bytes). */
struct prompt_built {
	bool too_long;   /* the error is that of most_bytes */
	size_t replayed; /* turns that were found in `turns` */
	size_t goes_on;  /* of a turn that goes on: its first token behind <think>; else 0 */
};
int prompt_build(const struct prompt_talk *t, const struct tokenizer *tokenizer,
	struct turn_store *turns, size_t most_bytes, struct token_ids *out, struct prompt_built *built,
	struct err *e); /* turns may be NULL */

#endif
