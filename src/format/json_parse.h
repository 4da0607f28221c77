/* SPDX-License-Identifier: MIT */
/*
 * Parses untrusted JSON with jansson, with a limit on nesting, and so that an allocation that fails
 * is an error of its own: it never reads as text that is not JSON, and never as memory that the
 * parser has not got. All JSON in the program comes through here; src/text/json_text.h has what the
 * server and the chat template add.
 */
#ifndef GLM_FORMAT_JSON_PARSE_H
#define GLM_FORMAT_JSON_PARSE_H

#include "src/base/err.h"

#include <jansson.h>
#include <stddef.h>

#define JSON_PARSE_DEPTH_MAX 128

/* Before there are threads, and before anything else of jansson's: its memory comes from mem.h, so
 * that a scope remembers what it had to leave out. Without it an allocation that fails while a text
 * is parsed is not noticed. */
void json_parse_setup(void);

/* Parses one value. flags: jansson's JSON_REJECT_DUPLICATES, JSON_ALLOW_NUL, JSON_DECODE_ANY,
 * JSON_DISABLE_EOF_CHECK. 0 and *value, the caller's reference; else *value is NULL:
 *   ERR_INPUT   "line 3, column 7: ...", or nested deeper than JSON_PARSE_DEPTH_MAX
 *   ERR_MEMORY  an allocation failed */
int json_parse(const char *text, size_t len, size_t flags, json_t **value, struct err *e);

/* The same of the file `path`, or of `what` in it ("its header "): the sentence is "path: ...is not
 * valid JSON: ...", or "path: " and that of ERR_MEMORY. */
int json_parse_part(const char *path, const char *what, const char *text, size_t len, size_t flags,
	json_t **value, struct err *e);

#endif
