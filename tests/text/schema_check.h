/* SPDX-License-Identifier: MIT */
/* A JSON Schema validator that shares nothing with src/text/schema: it looks at a finished value,
 * keyword after keyword, as the drafts describe it. For tests: slow, and content to say that it
 * does not know. */
#ifndef GLM_TESTS_SCHEMA_CHECK_H
#define GLM_TESTS_SCHEMA_CHECK_H

#include <jansson.h>

enum schema_verdict {
	SCHEMA_VALID,
	SCHEMA_INVALID,
	SCHEMA_UNSURE, /* a keyword or pattern that it does not know, or too deep */
};

/* root: the document that "$ref" refers to; schema: root or inside it. */
enum schema_verdict schema_check(const json_t *root, const json_t *schema, const json_t *value);

#endif
