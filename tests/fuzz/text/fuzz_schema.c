/* SPDX-License-Identifier: MIT */
/*
 * A JSON schema and a text for it. Input: a byte of options, the schema, a zero byte, the text.
 * Checked: a refusal has a sentence; a walk takes the text's bytes or not, never comes to a dead
 * end, and what it takes as a whole is JSON.
 */
#include "src/base/log.h"
#include "src/text/json_text.h"
#include "src/text/schema/grammar_run.h"
#include "src/text/schema/schema.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool goes_on(struct grammar_run *r)
{
	for (int b = 0; b < 256; b++) {
		char byte = (char)b;
		if (grammar_run_allows(r, &byte, 1))
			return true;
	}
	return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!size)
		return 0;
	const char *schema = (const char *)data + 1, *end = memchr(schema, 0, size - 1);
	size_t n = end ? (size_t)(end - schema) : size - 1;
	const char *text = end ? end + 1 : "";
	size_t len = end ? size - 2 - n : 0, taken = 0;
	bool argument = data[0] & 1;
	struct err e = {0};
	struct schema *s = NULL;
	json_t *v = json_text_parse(schema, n, true, NULL);
	if (!v)
		return 0;
	if (schema_compile(v, v, argument ? SCHEMA_ARGUMENT : SCHEMA_JSON, &s, &e)) {
		if (!e.text[0])
			bug("refused without a sentence");
		json_decref(v);
		return 0;
	}
	struct grammar_run *r = grammar_run_new(schema_grammar(s), NULL);
	while (taken < len && taken < 4096 && grammar_run_push(r, text + taken, 1))
		taken++;
	if (!grammar_run_may_end(r) && !goes_on(r))
		bug("a dead end behind %.*s", (int)taken, text);
	if (grammar_run_may_end(r) && !argument && !memmem(text, taken, "\\u0000", 6)) {
		json_t *value = json_loadb(text, taken, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
		if (!value)
			bug("taken, but no JSON: %.*s", (int)taken, text);
		json_decref(value);
	}
	grammar_run_free(r);
	schema_free(s);
	json_decref(v);
	return 0;
}
