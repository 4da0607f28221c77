/* SPDX-License-Identifier: MIT */
/*
 * Conversations in JSON, as `render` and chat servers take them:
 *     {"messages": [...], "tools": [...], "options": {...}}
 * "tools" may also stand inside "options". Members that the template does not look at are ignored;
 * a member it does look at must have the right type, or one sentence names it: `messages[3].role:
 * expected ..., found ...`.
 *
 * Roles: system (or developer), user, assistant, tool. Content: a string, null, or a list of parts
 * {"type": "text"} (or bare strings); images, video and audio become the template's reminder that
 * the model cannot see them. For tool messages also lists of {"output": text} (one response each)
 * and of {"type": "tool_reference", "name": tool}. A call's arguments are an object or a string
 * holding one ("" counts as {}).
 */
#ifndef GLM_TEXT_CHAT_JSON_H
#define GLM_TEXT_CHAT_JSON_H

#include "src/text/chat.h"

/* Parses text into an empty conversation. Without an option add_generation_prompt it is true. */
int chat_json_parse(struct chat *c, const char *json, size_t len, struct err *e);

/* The same from parsed JSON, in parts, for servers. Each appends or sets; `c` stays valid after an
 * error. `name`: what the options are called in sentences about them. */
int chat_json_messages(struct chat *c, const json_t *messages, struct err *e);
int chat_json_tools(struct chat *c, const json_t *tools, struct err *e); /* NULL and null: none */
/* NULL and null: nothing changes. */
int chat_json_options(struct chat *c, const json_t *options, const char *name, struct err *e);

#endif
