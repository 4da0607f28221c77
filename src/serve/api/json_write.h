/* SPDX-License-Identifier: MIT */
/*
 * JSON into a buffer, member by member, without building a tree: for the many small events of a
 * stream. The writer sets the commas; the caller keeps opening and closing in step. Compact: no
 * blanks. Strings are valid UTF-8 and may hold zero bytes.
 *
 *     struct json_write w = {.out = &buf};
 *     json_write_open(&w, NULL, '{');
 *     json_write_string(&w, "object", "list");
 *     json_write_close(&w, '}');
 *
 * key: the member's name inside an object (plain ASCII, not escaped), NULL inside an array and at
 * the top.
 */
#ifndef GLM_SERVE_JSON_WRITE_H
#define GLM_SERVE_JSON_WRITE_H

#include "src/base/buf.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_write {
	struct buf *out;
	bool comma; /* something stands before the next item */
};

void json_write_open(struct json_write *w, const char *key, char bracket);
void json_write_close(struct json_write *w, char bracket);
void json_write_text(struct json_write *w, const char *key, const char *text, size_t len);
void json_write_string(struct json_write *w, const char *key, const char *text); /* NULL: null */
void json_write_int(struct json_write *w, const char *key, int64_t value);
void json_write_real(struct json_write *w, const char *key, double value); /* not finite: null */
void json_write_bool(struct json_write *w, const char *key, bool value);
void json_write_null(struct json_write *w, const char *key);
/* JSON as it is. */
void json_write_raw(struct json_write *w, const char *key, const char *json, size_t len);
void json_write_value(struct json_write *w, const char *key, const json_t *value); /* NULL: null */

#endif
