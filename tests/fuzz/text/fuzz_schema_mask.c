/* SPDX-License-Identifier: MIT */
/*
 * A JSON schema, and an answer that its masks allow, token by token. Input: the schema, a zero
 * byte, then a byte for each token: which of those that the mask allows comes next. Checked: a mask
 * allows what single tokens are allowed, and nothing else; there is always a token, or the text may
 * end; what ends is JSON, and a validator that knows nothing of grammars does not refuse it.
 */
#include "src/base/log.h"
#include "src/text/json_text.h"
#include "src/text/schema/grammar_run.h"
#include "src/text/schema/schema.h"
#include "tests/fuzz/fixture.h"
#include "tests/text/schema_check.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define TOKENS_MAX 400

/* Every id of a mask against the same token alone. Sets that were given up for their size make a
 * mask allow less, so only that counts which it allows beyond. */
static size_t count_allowed(
	struct grammar_run *r, const struct tokenizer *t, const uint64_t *mask, bool compare)
{
	size_t n = 0;
	for (uint32_t id = 0; id < tokenizer_n_tokens(t); id++) {
		bool allowed = mask[id / 64] >> id % 64 & 1;
		struct text_span s = tokenizer_token(t, (int32_t)id);
		n += allowed;
		if (compare && allowed &&
			(tokenizer_is_added(t, (int32_t)id) || !grammar_run_allows(r, s.data, s.len)))
			bug("token %u is in the mask and not allowed", id);
		if (compare && !allowed && s.len == 1 && grammar_run_allows(r, s.data, s.len))
			bug("token %u is allowed and not in the mask", id);
	}
	return n;
}

/* The number-th id of a mask. */
static int32_t pick_id(const uint64_t *mask, size_t number)
{
	for (int32_t id = 0;; id++)
		if ((mask[id / 64] >> id % 64 & 1) && !number--)
			return id;
}

static void check_answer(const json_t *schema, const struct buf *text)
{
	struct err e = {0};
	if (memmem(text->data, text->len, "\\u0000", 6))
		return; /* the JSON library takes no keys with it */
	json_t *value = json_loadb(buf_str(text), text->len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	if (!value)
		bug("allowed, but no JSON: %s: %s", e.text, buf_str(text));
	if (schema_check(schema, schema, value) == SCHEMA_INVALID)
		bug("allowed, but not valid: %s", buf_str(text));
	json_decref(value);
}

static void walk_masks(
	const json_t *schema, const struct grammar *g, const uint8_t *choices, size_t n)
{
	static struct token_trie *tokens;
	const struct tokenizer *t = fixture_small_tokenizer();
	if (!tokens)
		tokens = token_trie_new(t);
	struct grammar_run *r = grammar_run_new(g, tokens);
	struct buf text = {0};
	for (size_t i = 0; i < TOKENS_MAX; i++) {
		const uint64_t *mask = grammar_run_mask(r);
		uint64_t own[16]; /* the mask is only valid until the next call */
		memcpy(own, mask, (tokenizer_n_tokens(t) + 63) / 64 * sizeof *own);
		size_t allowed = count_allowed(r, t, own, i < n);
		bool may_end = grammar_run_may_end(r);
		if (!allowed && !may_end)
			bug("a dead end behind %s", buf_str(&text));
		if (may_end && (!allowed || i >= n || choices[i] == 255)) {
			check_answer(schema, &text);
			break;
		}
		/* behind the choices: what is likely to come to an end */
		size_t number = i < n ? choices[i] % allowed : allowed - 1 - (i / 3) % allowed;
		struct text_span s = tokenizer_token(t, pick_id(own, number));
		if (!grammar_run_push(r, s.data, s.len))
			bug("a token of the mask is refused");
		buf_append(&text, s.data, s.len);
	}
	buf_free(&text);
	grammar_run_free(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *end = size ? memchr(data, 0, size) : NULL;
	struct err e = {0};
	struct schema *s = NULL;
	if (!end)
		return 0;
	json_t *v = json_text_parse((const char *)data, (size_t)(end - data), true, NULL);
	if (v && schema_compile(v, v, SCHEMA_JSON, &s, &e) && !e.text[0])
		bug("refused without a sentence");
	if (s)
		walk_masks(v, schema_grammar(s), end + 1, size - 1 - (size_t)(end - data));
	schema_free(s);
	json_decref(v);
	return 0;
}
