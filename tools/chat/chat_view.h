/* SPDX-License-Identifier: MIT */
/*
 * Shows an answer while it is made, and keeps it. The answer goes to stdout; reasoning to stderr,
 * dimmed on a terminal; a tool call to stdout as a line "call NAME {ARGUMENTS}" (with --raw what
 * was written). On a terminal control characters in the model's text do nothing. Characters appear
 * whole: what is not yet complete is held back.
 */
#ifndef GLM_TOOLS_CHAT_VIEW_H
#define GLM_TOOLS_CHAT_VIEW_H

#include "src/text/chat.h"
#include "src/text/chat_parse.h"
#include "src/text/tokenizer.h"
#include "src/text/utf8.h"

/* Zero-initialise, chat_view_init once, then per answer begin, token ..., end. */
struct chat_view {
	bool out_terminal, err_terminal; /* stdout, stderr is one */
	bool out_colours, err_colours;
	bool show_reasoning;
	/* of the answer being made */
	const struct tokenizer *tokenizer;
	bool raw, lost; /* lost: stdout takes no more */
	bool no_memory; /* for the arguments of a call: the answer cannot be kept */
	struct chat_parse parse;
	struct utf8_stream stream; /* raw */
	struct buf piece, reasoning, answer;
	struct chat_call *calls; /* [n_calls] */
	size_t n_calls;
	bool reasoning_open; /* the cursor on stderr stands behind reasoning */
	bool wrote;          /* something of the answer went to stdout */
	char last;           /* its last byte */
};

void chat_view_init(struct chat_view *v, bool show_reasoning);
void chat_view_fini(struct chat_view *v);

void chat_view_begin(struct chat_view *v, const struct tokenizer *t, bool raw, bool in_reasoning);

/* Shows one more token; false when stdout takes no more (full disk, closed pipe). */
bool chat_view_token(struct chat_view *v, int32_t id);

/* The end of the answer: shows what was held back and ends the line. ended: the model ended its
 * turn. */
void chat_view_end(struct chat_view *v, bool ended);

/* Appends the answer as an assistant message. Valid between end and the next begin. */
void chat_view_message(const struct chat_view *v, struct chat *c);

/* Text of the conversation, on stderr: as it is, without control characters on a terminal. */
void chat_view_quote(const struct chat_view *v, const char *text, size_t n);

#endif
