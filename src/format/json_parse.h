/* SPDX-License-Identifier: MIT */
/*
 * Parses untrusted JSON with jansson. All JSON that the program reads comes through here; what the
 * server and the chat template add is in src/text/json_text.h.
 *
 * - Nesting is limited to JSON_PARSE_DEPTH_MAX.
 * - An allocation that fails is ERR_MEMORY. Jansson alone reports some of these failures as invalid
 *   JSON, and after others reads beyond the end of its buffer.
 * - Threads: any, after json_parse_setup.
 */
#ifndef GLM_FORMAT_JSON_PARSE_H
#define GLM_FORMAT_JSON_PARSE_H

#include "src/base/err.h"

#include <jansson.h>
#include <stddef.h>

#define JSON_PARSE_DEPTH_MAX 128

/* Gives jansson the allocator of mem.h, so that failures mark a scope (mem_scope). Call it first in
 * main, before there are threads and before any other use of jansson. Without it json_parse does
 * not notice allocations that fail. */
void json_parse_setup(void);

/* Parses one value: text[len]. flags: jansson's JSON_REJECT_DUPLICATES, JSON_ALLOW_NUL,
 * JSON_DECODE_ANY, JSON_DISABLE_EOF_CHECK. *value: the caller's reference, NULL on error.
 *   ERR_INPUT   "line 3, column 7: ...": not JSON, or an integer outside -2^63 to 2^63 - 1, or a
 *               number beyond a double's range; or nested deeper than JSON_PARSE_DEPTH_MAX
 *   ERR_MEMORY  an allocation failed */
int json_parse(const char *text, size_t len, size_t flags, json_t **value, struct err *e);

/* The same for text from a file. what: "" or the part of it that `text` is, with a space ("its
 * header "). The sentence of ERR_INPUT is then "<path>: <what>is not valid JSON: ...", that of
 * ERR_MEMORY begins with "<path>: ". */
int json_parse_part(const char *path, const char *what, const char *text, size_t len, size_t flags,
	json_t **value, struct err *e);

#endif
