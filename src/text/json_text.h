/* SPDX-License-Identifier: MIT */
/*
 * JSON as this layer needs it: parsing of untrusted text with a limit on nesting and one-sentence
 * errors, and writing in the style of Python's json.dumps(ensure_ascii=False), which is what the
 * chat template was trained with: ", " and
 * ": " between items, non-ASCII kept, keys in their order, floats in Python's shortest form.
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

/* json_parse with these flags; duplicate keys are refused, NUL inside strings is allowed. any: a
 * bare string, number, true, false or null is accepted as well. NULL and a sentence ("line 3: ...")
 * on error. ERR_MEMORY is one. The caller owns the reference. */
json_t *json_text_parse(const char *text, size_t len, bool any, struct err *e);

/* Appends the value. Values nested deeper than JSON_PARSE_DEPTH_MAX (not made by json_text_parse)
 * are cut to null. */
void json_text_dump(const json_t *value, struct buf *out);

/* Appends a quoted, escaped string; the bytes are valid UTF-8. */
void json_text_dump_string(const char *s, size_t n, struct buf *out);

/* "an object", "a string", ...: for sentences. NULL: "nothing". */
const char *json_text_type(const json_t *value);

#endif
