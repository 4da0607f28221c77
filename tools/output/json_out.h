/* SPDX-License-Identifier: MIT */
/* JSON that the commands print: jansson objects with finite numbers of sensible length and strings
 * that are always valid. */
#ifndef GLM_TOOLS_JSON_OUT_H
#define GLM_TOOLS_JSON_OUT_H

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

/* Sets a key. A real that is not finite becomes null; bytes that are not UTF-8 become U+FFFD. */
void json_out_real(json_t *object, const char *key, double v);
void json_out_uint(json_t *object, const char *key, uint64_t v);
void json_out_str(json_t *object, const char *key, const char *s);

/* Prints on one line, or indented over several; ends with a line feed. Releases `object`. */
void json_out_line(FILE *f, json_t *object);
void json_out_tree(FILE *f, json_t *object);

#endif
