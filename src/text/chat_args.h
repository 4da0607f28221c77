/* SPDX-License-Identifier: MIT */
/*
 * The arguments of a tool call as JSON while the model writes them; a part of chat_parse.
 *
 *     chat_args_begin(&a, tools, name);
 *     chat_args_key(&a, key);                 then the value in pieces:
 *     chat_args_value(&a, bytes, n); ...
 *     chat_args_value_end(&a);                and so on for each argument
 *     chat_args_end(&a);
 *
 * `json` only grows: after each step it is the beginning of the finished object, as much of it as
 * is certain. The text of a string is appended as it comes; a number, word, array or object at its
 * end, because only then is it known to be one. The finished object does not depend on how a value
 * is cut into pieces.
 */
#ifndef GLM_TEXT_CHAT_ARGS_H
#define GLM_TEXT_CHAT_ARGS_H

#include "src/base/buf.h"
#include "src/text/chat.h"
#include "src/text/utf8.h"

#include <jansson.h>
#include <stdbool.h>

/* All fields private but `json`. Zero-initialise. */
struct chat_args {
	struct buf json;
	const json_t *parameters; /* the tool's schema; NULL: none */
	json_t *keys;             /* an object: the keys so far */
	unsigned mask;            /* types that the value may have */
	bool skip;                /* the value of a key that came before */
	bool as_string;           /* the value is a string: its opening quote is in `json` */
	struct buf held, piece;   /* a value whose type is open; scratch */
	struct utf8_stream stream;
};

/* For types see struct chat_parsed_call. tools may be NULL; borrowed until chat_args_end. */
void chat_args_begin(struct chat_args *a, const json_t *tools, struct chat_text name);
/* key: valid UTF-8. Of repeated keys the first counts: what was given out stays. */
void chat_args_key(struct chat_args *a, struct chat_text key);
void chat_args_value(struct chat_args *a, const char *s, size_t n); /* any bytes */
void chat_args_value_end(struct chat_args *a);
void chat_args_end(struct chat_args *a);
void chat_args_fini(struct chat_args *a);

#endif
