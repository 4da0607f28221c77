/* SPDX-License-Identifier: MIT */
/* The arguments of a parsed tool call as JSON; a part of chat_parse. */
#ifndef GLM_TEXT_CHAT_ARGS_H
#define GLM_TEXT_CHAT_ARGS_H

#include "src/base/buf.h"
#include "src/text/chat_parse.h"

/* Appends the JSON object of n arguments of the tool `name`; see struct chat_parsed_call for the
 * types. Keys and values are valid UTF-8. tools may be NULL. */
void chat_args_json(const json_t *tools, struct chat_text name, const struct chat_arg *args,
	size_t n, struct buf *out);

#endif
