/* SPDX-License-Identifier: MIT */
/* Turns a conversation into the tokens of its prompt. Earlier answers that turn_store.h knows get
 * the very tokens that the model wrote. */
#ifndef GLM_SERVE_PROMPT_H
#define GLM_SERVE_PROMPT_H

#include "src/serve/compute/turn_store.h"
#include "src/text/chat.h"

/* A conversation with the ids of its tool calls. Zero-initialise. */
struct prompt_talk {
	struct chat chat;
	/* [n_call_ids] of message i: the ids of its calls, each followed by a line feed */
	struct buf *call_ids;
	size_t n_call_ids;
};

void prompt_talk_fini(struct prompt_talk *t);

/* Adds the id of one more call of message i. id [len] ends early at a zero byte; len 0: "". */
void prompt_talk_call_id(struct prompt_talk *t, size_t i, const char *id, size_t len);

struct prompt_built {
	bool too_long;   /* the error is that of most_bytes */
	size_t replayed; /* turns that were found in `turns` */
	size_t text_len; /* bytes of the rendered text */
	/* If the last message is to be continued (chat_options.continue_last): index in the prompt of
	 * its first token behind <think>. Else 0. */
	size_t goes_on;
};
/* Appends the ids of the prompt to *out.
 * - turns: may be NULL.
 * - most_bytes: of the rendered text; a longer one is an error (request_most_bytes).
 * - memory: of tokenizing, beside *out; ERR_MEMORY if it refuses.
 * - *built: out, also after an error. */
int prompt_build(const struct prompt_talk *t, const struct tokenizer *tokenizer,
	struct turn_store *turns, size_t most_bytes, const struct tokenizer_memory *memory,
	struct token_ids *out, struct prompt_built *built, struct err *e);

#endif
