/* SPDX-License-Identifier: MIT */
/*
 * GLM-5.2's chat template as code (section 6.2 of the specification): a conversation -> the prompt.
 *
 * A prompt is a list of segments: control tokens ("<|user|>", "<think>") and text. Text is encoded
 * without TOKENIZER_PARSE_ADDED, so a user who types "<|user|>" gets these eight characters, not a
 * new turn; only the template's own control tokens become control ids. The rendered text is exactly
 * what the released template gives.
 *
 * All strings of a conversation are owned by it and may contain zero bytes; they must be valid
 * UTF-8, which rendering checks.
 */
#ifndef GLM_TEXT_CHAT_H
#define GLM_TEXT_CHAT_H

#include "src/base/buf.h"
#include "src/base/err.h"
#include "src/text/tokenizer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL };

/* Owned bytes with a 0 behind them. data NULL: absent. */
struct chat_text {
	char *data;
	size_t len;
};

struct chat_call {
	struct chat_text name;
	json_t *arguments; /* an object; owned reference */
};

struct chat_message {
	enum chat_role role;
	struct chat_text content;   /* absent counts as empty */
	struct chat_text reasoning; /* assistant; absent: it may be inside content, in <think> tags */
	struct chat_call *calls;    /* assistant: [n_calls] */
	size_t n_calls;
	struct chat_text *outputs; /* tool: [n_outputs] one response each, instead of content */
	size_t n_outputs;
	/* tool: [n_tool_names] tools made known now, instead of content */
	struct chat_text *tool_names;
	size_t n_tool_names;
};

enum chat_switch { CHAT_UNSET, CHAT_OFF, CHAT_ON };

/* Zeroed: the template's defaults, and no generation prompt. */
struct chat_options {
	bool add_generation_prompt; /* end with the start of an assistant turn */
	bool continue_last;         /* end inside the last message, which is the assistant's, instead */
	bool effort_high;           /* "Reasoning Effort: High" instead of Max */
	/* off: no effort line, and the new turn begins with empty reasoning */
	enum chat_switch enable_thinking;
	/* off: keep the reasoning of all turns, not only of those after the last user message */
	enum chat_switch clear_thinking;
};

struct chat {
	struct chat_message *messages; /* [n_messages], capacity managed by chat_add */
	size_t n_messages, cap;
	/* array of tool objects, with or without the "function" wrapper; NULL: none; owned reference */
	json_t *tools;
	struct chat_options options;
};

/* Appends a message with this content (copied; NULL: absent) and returns it for more to be filled
 * in. The pointer is valid until the next chat_add. NULL in a scope only (mem.h). */
struct chat_message *chat_add(struct chat *c, enum chat_role role, const char *content, size_t len);
void chat_truncate(struct chat *c, size_t n); /* keeps the first n messages */
void chat_fini(struct chat *c);               /* a zeroed struct is fine */

struct chat_text chat_text_new(const char *data, size_t len);
/* A view of t without the blanks, tabs and line ends around it. */
struct chat_text chat_text_trimmed(struct chat_text t);

struct chat_segment {
	size_t start, len; /* of chat_prompt.text */
	bool control;      /* one control token; its text is the token's */
};

struct chat_prompt {
	struct buf text; /* all segments in order */
	struct chat_segment *segments;
	size_t n, cap;
	size_t most_bytes;                     /* of the text, set by the caller; 0: any number */
	bool too_long;                         /* set by chat_render: it stopped at most_bytes */
	const struct tokenizer_memory *memory; /* of chat_prompt_ids, set by the caller; NULL: any */
};

/* Renders a conversation into `out`, whose earlier text and segments are dropped. ERR_INPUT names
 * the message that is not valid UTF-8, or says that the text is longer than most_bytes (a short
 * conversation can name one tool a thousand times). */
int chat_render(const struct chat *c, struct chat_prompt *out, struct err *e);
void chat_prompt_fini(struct chat_prompt *p);

/* Appends the ids of a prompt. ERR_INPUT when the vocabulary lacks one of the control tokens;
 * ERR_MEMORY also when p->memory refuses. */
int chat_prompt_ids(
	const struct chat_prompt *p, const struct tokenizer *t, struct token_ids *out, struct err *e);

/* Both steps; text or ids are appended. */
int chat_render_text(const struct chat *c, struct buf *out, struct err *e);
int chat_render_ids(
	const struct chat *c, const struct tokenizer *t, struct token_ids *out, struct err *e);

/* If the last message is the assistant's: sets continue_last, or removes the message if it is
 * blank. ERR_INPUT if it has calls. Else nothing changes. */
int chat_continue(struct chat *c, struct err *e);

/* Whether what the model writes after this prompt begins inside its reasoning (for chat_parse). */
bool chat_starts_in_reasoning(const struct chat *c);

/* The function object of a tool (inside its "function" wrapper, if it has one), borrowed. */
const json_t *chat_tool_function(const json_t *tool);

#endif
