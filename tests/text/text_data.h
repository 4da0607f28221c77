/* SPDX-License-Identifier: MIT */
/* What the tests of src/text share: files below tests/data, and the real vocabulary. Failures end
 * the test program. */
#ifndef GLM_TESTS_TEXT_DATA_H
#define GLM_TESTS_TEXT_DATA_H

#include "src/text/tokenizer.h"

#include <jansson.h>
#include <stddef.h>

/* The whole file, with a 0 behind it; free() it. */
char *text_data_read(const char *path, size_t *len);

/* The objects of a JSON-lines file as one array. */
json_t *text_data_lines(const char *path);

/* The normal tokens of GLM-5.2 in GPT-2 spelling, from a rank file (lines "base64(bytes) id", in
 * order of the ids): [*n]. free() the list and *texts, which holds all texts. */
struct text_span *text_data_ranks(uint32_t *n, char **texts);

/* GLM-5.2's vocabulary with its added tokens and 24 padding rows left out: 154,856 tokens. */
struct tokenizer *text_data_glm(void);

/* The pocket model's tokenizer.json. */
struct tokenizer *text_data_pocket(void);

/* Compares ids with a JSON array; prints both and fails when they differ. */
void text_data_check_ids(const char *what, const int32_t *ids, size_t n, const json_t *want);

#endif
