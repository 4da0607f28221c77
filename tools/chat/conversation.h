/* SPDX-License-Identifier: MIT */
/*
 * The turns of a chat and the prompt they give. Normally a list of messages rendered by the model's
 * template; with `raw` one run of tokens to which each turn's text and answer are appended.
 */
#ifndef GLM_TOOLS_CONVERSATION_H
#define GLM_TOOLS_CONVERSATION_H

#include "src/text/chat.h"
#include "src/text/tokenizer.h"

/* Zero-initialise. */
struct conversation {
	struct chat chat;
	bool raw;
	struct token_ids raw_ids;
	size_t *marks; /* [n_turns]: messages, or raw ids, before each turn's user text */
	size_t n_turns;
};

void conversation_fini(struct conversation *c);

/* How much the model is to reason from now on (enum think_mode). */
void conversation_set_think(struct conversation *c, int mode);

/* The system message; NULL or "" removes it. ERR_INPUT when it is not UTF-8. */
int conversation_set_system(struct conversation *c, const char *text, struct err *e);
const char *conversation_system(const struct conversation *c); /* NULL: none */

/* ERR_INPUT when text is not UTF-8; `what` names it. */
int conversation_check(const char *text, size_t len, const char *what, struct err *e);

/* Begins a turn. `what` names the text in errors ("line 3", a file). ERR_INPUT when it is not
 * UTF-8. */
int conversation_add_user(struct conversation *c, const struct tokenizer *t, const char *text,
	size_t len, const char *what, struct err *e);

/* Forgets the last turn, its answer included; false when there is none. */
bool conversation_undo(struct conversation *c);

/* The user text of the last turn, NULL if none (or raw). */
const char *conversation_last_user(const struct conversation *c);

/* Forgets all turns; the system message stays. */
void conversation_reset(struct conversation *c);

/* The ids of the whole prompt; replaces *out. */
int conversation_prompt(
	struct conversation *c, const struct tokenizer *t, struct token_ids *out, struct err *e);

#endif
