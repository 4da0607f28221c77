/* SPDX-License-Identifier: MIT */
/*
 * What the model writes -> reasoning, answer text and tool calls, as it arrives.
 *
 * Input is token ids or text. Of token ids only the tag tokens are tags: "<tool_call>" spelled out
 * with letters is text. In text the spellings are tags. How the input is cut into pieces decides
 * only where one event ends and the next of the same kind begins.
 *
 * Form of a call: <tool_call>NAME{<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>}</tool_call>;
 * blanks between tags and around the name do not matter. Inside a value everything up to its
 * </arg_value> belongs to the value, whole quoted calls too (inner <arg_value> pairs are counted).
 * A call that breaks these rules is not lost: its exact text, tags included, comes out as answer
 * text. When the model ends its turn inside a call (something was never closed), the call is read
 * again: then a value ends at its first </arg_value>, and <tool_call> and </tool_call> break it. So
 * only the broken call becomes text, and later ones are found.
 *
 * With live_calls a call is reported while it is written: CALL_BEGIN once its name is complete (at
 * its first <arg_key> or its end), CALL_ARGUMENTS for each certain piece of the JSON object, then
 * CALL. What was reported is not taken back:
 * - A call that breaks the rules or is cut off after CALL_BEGIN gets no CALL event. What was
 *   reported stays, and none of it becomes text.
 * - A call that breaks the rules before CALL_BEGIN is text, also if the model ends its turn in it.
 * - A call in whose name the output is cut off is dropped. But if the name so far is that of a tool
 *   and begins no other tool's, CALL_BEGIN is reported: a partial call.
 *
 * Reasoning ends at the first </think>. A <think> is a tag only where nothing but blanks was
 * written before; elsewhere it, and every other stray tag, is text. Other control tokens (roles,
 * where the model's own end is banned) have no text.
 *
 * Event texts are valid UTF-8, never cut inside a character; broken bytes appear as U+FFFD. `raw`
 * keeps every byte as it came.
 */
#ifndef GLM_TEXT_CHAT_PARSE_H
#define GLM_TEXT_CHAT_PARSE_H

#include "src/base/buf.h"
#include "src/text/chat.h"
#include "src/text/chat_args.h"
#include "src/text/tokenizer.h"
#include "src/text/utf8.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum chat_event_kind {
	CHAT_EVENT_REASONING,
	CHAT_EVENT_ANSWER,
	CHAT_EVENT_CALL,
	CHAT_EVENT_CALL_BEGIN,     /* live_calls; text: the name */
	CHAT_EVENT_CALL_ARGUMENTS, /* live_calls */
};

struct chat_arg {
	struct chat_text key, value; /* as written, valid UTF-8 */
};

struct chat_parsed_call {
	struct chat_text name;
	struct chat_arg *args; /* [n_args] in order, repeated keys too */
	size_t n_args;
	/* The arguments as one JSON object. Of repeated keys the first counts. Types of the values:
	 * - What may be a string by the tool's schema stays one.
	 * - Other JSON text of an allowed type becomes that value, 3.5 also where only integers are.
	 * - Without a schema JSON text other than a quoted string becomes the value it denotes.
	 * - What does not fit stays a string, and so does a number out of range. The range of integers
	 *   is -2^63 to 2^63 - 1; others are doubles.
	 * A number keeps its digits. Inside arrays and objects integers keep their value, and others
	 * are rounded to doubles. */
	struct chat_text arguments;
	struct chat_text raw; /* the call as the model wrote it, tags included */
};

/* Everything pointed to is valid only during the callback. */
struct chat_event {
	enum chat_event_kind kind;
	const char *text; /* all but CALL: the next piece, never empty */
	size_t len;
	const struct chat_parsed_call *call; /* CHAT_EVENT_CALL */
};

typedef void chat_event_fn(void *user, const struct chat_event *event);

struct chat_parse_tag; /* a tag inside the call being read */

/* All fields private but the first two. */
struct chat_parse {
	struct buf raw;  /* all bytes so far */
	bool live_calls; /* see above; set it after chat_parse_init */
	const struct tokenizer *tokenizer;
	int32_t tag_id[8];
	const json_t *tools;
	chat_event_fn *on_event;
	void *user;
	int state;
	bool strict;               /* a broken call is being read again */
	bool written;              /* the answer has more than blanks */
	struct utf8_stream stream; /* of the event text in `delta` */
	struct buf delta;
	char held[16]; /* text input: the beginning of what may be a tag */
	unsigned n_held;
	struct buf call;             /* exact bytes of the call being read */
	struct chat_parse_tag *tags; /* [n_tags] where its tags are */
	size_t n_tags, tags_cap;
	struct buf name, part; /* name; the key or value being read */
	size_t depth;          /* unclosed <arg_value> inside the value */
	struct chat_args json; /* the arguments so far */
	bool begun;            /* CALL_BEGIN was reported */
	size_t reported;       /* bytes of json.json */
	struct chat_arg *args; /* [n_args] */
	size_t n_args, args_cap;
};

/* tokenizer: needed for chat_parse_token, else NULL. tools: the request's tool array for the types
 * of arguments, or NULL. Both are borrowed until chat_parse_fini. in_reasoning: see
 * chat_starts_in_reasoning. */
void chat_parse_init(struct chat_parse *p, const struct tokenizer *tokenizer, const json_t *tools,
	bool in_reasoning, chat_event_fn *on_event, void *user);

/* The next token. Ids out of range count as empty. The token that ended the turn is not part of the
 * output. */
void chat_parse_token(struct chat_parse *p, int32_t id);

/* The next bytes of text. */
void chat_parse_text(struct chat_parse *p, const char *text, size_t n);

/* The end of the output: delivers what was held back. Then only chat_parse_fini may follow. ended:
 * the model ended its turn. False: the output was cut off (limit, cancelled), and an unfinished
 * call is text as a whole (live_calls: see above), so that calls which it quotes are not run. */
void chat_parse_finish(struct chat_parse *p, bool ended);

/* Whether the output stands inside a call. */
bool chat_parse_in_call(const struct chat_parse *p);

void chat_parse_fini(struct chat_parse *p);

#endif
