/* SPDX-License-Identifier: MIT */
/*
 * JSON of requests and of the chat template: parsed by src/format/json_parse.h, written in the
 * style of Python's json.dumps(ensure_ascii=False), with which the chat template was trained. That
 * is: a space behind each comma and colon, non-ASCII kept, keys in their order, floats in Python's
 * shortest form.
 */
#ifndef GLM_TEXT_JSON_TEXT_H
#define GLM_TEXT_JSON_TEXT_H

#include "src/base/buf.h"
#include "src/base/err.h"
#include "src/format/json_parse.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Before jansson 2.14 keys could not contain zero bytes. */
#ifndef json_object_keylen_foreach
#define json_object_keylen_foreach(object, key, key_len, value)                                    \
	json_object_foreach(object, key, value) if (key_len = strlen(key), true)
#endif

#define JSON_TEXT_FLAGS (JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL)

/* json_parse with JSON_TEXT_FLAGS: duplicate keys are refused, NUL inside strings is allowed. any:
 * a bare string, number, true, false or null is accepted as well. The caller owns the reference.
 * NULL on error: e->code is ERR_INPUT or ERR_MEMORY. */
json_t *json_text_parse(const char *text, size_t len, bool any, struct err *e);

/* Appends the value. Values nested deeper than JSON_PARSE_DEPTH_MAX (not made by json_text_parse)
 * are cut to null. */
void json_text_dump(const json_t *value, struct buf *out);

/* Appends a quoted, escaped string; the bytes are valid UTF-8. */
void json_text_dump_string(const char *s, size_t n, struct buf *out);

/* "an object", "a string", ...: for sentences. NULL: "nothing". */
const char *json_text_type(const json_t *value);

#endif
