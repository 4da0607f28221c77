/* SPDX-License-Identifier: MIT */
/* The tokenizer object: owns vocabulary, merges and pattern; encode and decode over them. */
#include "src/text/tokenizer.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/format/gguf.h"
#include "src/text/bpe.h"
#include "src/text/pretok.h"
#include "src/text/utf8.h"

#include <stdlib.h>
#include <string.h>

struct tokenizer {
	struct vocab vocab;
	struct bpe bpe;
	struct pretok *pretok;
	int32_t *stops;
	size_t n_stops;
	bool *is_stop; /* [n_tokens]; NULL: there are none */
};

/* ---- making one ---- */

static void stop_add(struct tokenizer *t, int32_t id)
{
	if (id < 0 || (uint32_t)id >= t->vocab.n_tokens || tokenizer_is_stop(t, id))
		return;
	if (!t->is_stop)
		t->is_stop = NEW_ARRAY(bool, t->vocab.n_tokens);
	t->is_stop[id] = true;
	t->stops = mem_grow(t->stops, t->n_stops + 1, sizeof *t->stops);
	t->stops[t->n_stops++] = id;
}

static void stops_by_text(struct tokenizer *t)
{
	static const char *const text[] = {"<|endoftext|>", "<|user|>", "<|observation|>"};
	for (size_t i = 0; i < ARRAY_LEN(text); i++)
		stop_add(t, vocab_find_added(&t->vocab, text[i]));
}

/* Makes a tokenizer from the arrays of either file format. merges NULL: the ids rank merges. */
static int tokenizer_build(const struct text_span *texts, const uint8_t *types, uint32_t n_tokens,
	const struct text_span *merges, uint32_t n_merges, bool whole_pieces, const char *pattern,
	struct tokenizer **out, struct err *e)
{
	struct tokenizer *t = NEW(struct tokenizer);
	int rc = vocab_init(&t->vocab, texts, types, n_tokens, VOCAB_GPT2, e);
	if (!rc && merges)
		rc = bpe_init_merges(&t->bpe, &t->vocab, merges, n_merges, whole_pieces, e);
	else if (!rc)
		rc = bpe_init_ids(&t->bpe, &t->vocab, whole_pieces, e);
	if (!rc)
		rc = pretok_new(pattern, &t->pretok, e);
	if (rc) {
		tokenizer_free(t);
		t = NULL;
	}
	*out = t;
	return rc;
}

int tokenizer_from_hf(const struct hf_tokenizer *hf, struct tokenizer **out, struct err *e)
{
	int rc = tokenizer_build(hf->tokens, hf->types, hf->n_tokens, hf->merges, hf->n_merges,
		hf->ignore_merges, hf->pattern, out, e);
	if (!rc)
		stops_by_text(*out);
	return rc;
}

/* A key that must be the string `want`. */
static int key_is(const struct gguf *g, const char *key, const char *want, struct err *e)
{
	struct gguf_str s;
	int rc = gguf_get_str(g, key, &s, e);
	if (rc || (s.len == strlen(want) && !memcmp(s.ptr, want, s.len)))
		return rc;
	return err_set(e, ERR_INPUT, "%s: %s is \"%.*s\"; supported is \"%s\"", gguf_path(g), key,
		(int)MIN(s.len, 40), s.ptr, want);
}

static struct text_span *spans_of(const struct gguf_array *a)
{
	struct text_span *spans = mem_try_new(a->n, sizeof *spans);
	for (uint64_t i = 0; spans && i < a->n; i++)
		spans[i] = (struct text_span){a->strings[i].ptr, a->strings[i].len};
	return spans;
}

static int stop_key(
	struct tokenizer *t, const struct gguf *g, const char *key, int64_t id, struct err *e)
{
	if (id < 0 || id >= (int64_t)t->vocab.n_tokens)
		return err_set(e, ERR_INPUT, "%s: %s holds %lld; the vocabulary has %u tokens",
			gguf_path(g), key, (long long)id, t->vocab.n_tokens);
	stop_add(t, (int32_t)id);
	return 0;
}

static int stops_from_gguf(struct tokenizer *t, const struct gguf *g, struct err *e)
{
	static const char list_key[] = "tokenizer.ggml.eos_token_ids";
	static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
		"tokenizer.ggml.eom_token_id"};
	if (gguf_find(g, list_key)) {
		struct gguf_array a;
		int rc = gguf_get_ints(g, list_key, &a, e);
		if (rc)
			return rc;
		for (uint64_t i = 0; i < a.n && !rc; i++)
			rc = stop_key(t, g, list_key, gguf_array_i64(&a, i), e);
		return rc;
	}
	stops_by_text(t);
	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		uint32_t id;
		if (!gguf_find(g, keys[i]))
			continue;
		int rc = gguf_get_u32(g, keys[i], &id, e);
		if (rc || (rc = stop_key(t, g, keys[i], id, e)))
			return rc;
	}
	return 0;
}

int tokenizer_from_gguf(const struct gguf *g, struct tokenizer **out, struct err *e)
{
	*out = NULL;
	struct gguf_array tokens, types, merges = {0};
	struct text_span *token_spans = NULL, *merge_spans = NULL;
	uint8_t *type_bytes = NULL;
	if (g->folder && !gguf_find(g, "tokenizer.ggml.model"))
		return err_set(e, ERR_INPUT, "%s: tokenizer.json is missing", g->folder);
	int rc = key_is(g, "tokenizer.ggml.model", "gpt2", e);
	if (rc || (rc = key_is(g, "tokenizer.ggml.pre", "glm4", e)) ||
		(rc = gguf_get_strs(g, "tokenizer.ggml.tokens", &tokens, e)) ||
		(rc = gguf_get_ints(g, "tokenizer.ggml.token_type", &types, e)))
		return rc;
	if (gguf_find(g, "tokenizer.ggml.merges") &&
		(rc = gguf_get_strs(g, "tokenizer.ggml.merges", &merges, e)))
		return rc;
	if (tokens.n != types.n || tokens.n > VOCAB_TOKENS_MAX || merges.n >= UINT32_MAX / 4)
		return err_set(e, ERR_INPUT,
			"%s: %llu tokens, %llu token types and %llu merges do not go together", gguf_path(g),
			(unsigned long long)tokens.n, (unsigned long long)types.n,
			(unsigned long long)merges.n);
	token_spans = spans_of(&tokens);
	merge_spans = spans_of(&merges);
	type_bytes = mem_try_new(types.n, 1);
	if (!token_spans || !merge_spans || !type_bytes) {
		rc = err_set(e, ERR_MEMORY, "%s: no memory for %llu tokens", gguf_path(g),
			(unsigned long long)tokens.n);
		goto out;
	}
	for (uint64_t i = 0; i < types.n; i++) {
		int64_t type = gguf_array_i64(&types, i);
		type_bytes[i] = type > 0 && type < 256 ? (uint8_t)type : 0;
	}
	rc = tokenizer_build(token_spans, type_bytes, (uint32_t)tokens.n, merges.n ? merge_spans : NULL,
		(uint32_t)merges.n, true, PRETOK_GLM4, out, e);
	if (rc)
		err_prefix(e, "%s", gguf_path(g));
	else if ((rc = stops_from_gguf(*out, g, e))) {
		tokenizer_free(*out);
		*out = NULL;
	}
out:
	free(token_spans);
	free(merge_spans);
	free(type_bytes);
	return rc;
}

void tokenizer_free(struct tokenizer *t)
{
	if (!t)
		return;
	pretok_free(t->pretok);
	bpe_fini(&t->bpe);
	vocab_fini(&t->vocab);
	free(t->stops);
	free(t->is_stop);
	free(t);
}

/* ---- encoding ---- */

/* Text without added tokens. */
static int encode_text(const struct tokenizer *t, struct pretok_scan *scan, struct bpe_work *work,
	const char *text, size_t len, struct token_ids *out, struct err *e)
{
	size_t start, end;
	int more;
	pretok_scan_text(scan, text, len);
	while ((more = pretok_next(scan, &start, &end, e)) > 0)
		if (bpe_encode(&t->bpe, work, text + start, end - start, out))
			return err_set(e, ERR_MEMORY, "no memory for the tokens of %zu bytes of text", len);
	return more;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
	struct token_ids *out, struct err *e)
{
	return tokenizer_encode_within(t, text, len, flags, NULL, out, e);
}

int tokenizer_encode_within(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
	const struct tokenizer_memory *memory, struct token_ids *out, struct err *e)
{
	if (!len)
		return 0;
	size_t valid = utf8_valid_prefix(text, len);
	if (valid != len)
		return err_set(e, ERR_INPUT, "text is not valid UTF-8: byte 0x%02x at offset %zu",
			(unsigned char)text[valid], valid);
	struct pretok_scan scan;
	struct bpe_work work = {0};
	if (memory) {
		work.hold = memory->hold;
		work.user = memory->user;
	}
	int rc = pretok_scan_init(&scan, t->pretok, text, len, e);
	if (rc)
		return rc;
	size_t from = 0, at = 0;
	if (flags & TOKENIZER_PARSE_ADDED) {
		while (at < len && !rc) {
			size_t n = 0;
			int32_t id = vocab_match_added(&t->vocab, text + at, len - at, &n);
			if (id < 0) {
				at++;
				continue;
			}
			if (at > from)
				rc = encode_text(t, &scan, &work, text + from, at - from, out, e);
			if (!rc && token_ids_push(out, id))
				rc = err_set(e, ERR_MEMORY, "no memory for the tokens of %zu bytes of text", len);
			from = at += n;
		}
	}
	if (!rc && from < len)
		rc = encode_text(t, &scan, &work, text + from, len - from, out, e);
	pretok_scan_fini(&scan);
	bpe_work_fini(&work);
	return rc;
}

/* ---- decoding and questions ---- */

int tokenizer_decode(
	const struct tokenizer *t, const int32_t *ids, size_t n, struct buf *out, struct err *e)
{
	for (size_t i = 0; i < n; i++) {
		if (ids[i] < 0 || (uint32_t)ids[i] >= t->vocab.n_tokens)
			return err_set(e, ERR_INPUT,
				"token id %d at position %zu is out of range; the vocabulary has %u", ids[i], i,
				t->vocab.n_tokens);
		struct text_span s = vocab_text(&t->vocab, ids[i]);
		buf_append(out, s.data, s.len);
	}
	return 0;
}

struct text_span tokenizer_token(const struct tokenizer *t, int32_t id)
{
	if (id < 0 || (uint32_t)id >= t->vocab.n_tokens)
		return (struct text_span){"", 0};
	return vocab_text(&t->vocab, id);
}

uint32_t tokenizer_n_tokens(const struct tokenizer *t)
{
	return t->vocab.n_tokens;
}

bool tokenizer_is_padding(const struct tokenizer *t, int32_t id)
{
	return !tokenizer_token(t, id).len;
}

bool tokenizer_is_control(const struct tokenizer *t, int32_t id)
{
	return id >= 0 && (uint32_t)id < t->vocab.n_tokens && t->vocab.type[id] == TOKEN_CONTROL;
}

bool tokenizer_is_added(const struct tokenizer *t, int32_t id)
{
	return id >= 0 && (uint32_t)id < t->vocab.n_tokens && vocab_is_added(&t->vocab, id);
}

int32_t tokenizer_find_added(const struct tokenizer *t, const char *text)
{
	return vocab_find_added(&t->vocab, text);
}

bool tokenizer_is_stop(const struct tokenizer *t, int32_t id)
{
	return t->is_stop && id >= 0 && (uint32_t)id < t->vocab.n_tokens && t->is_stop[id];
}

const int32_t *tokenizer_stops(const struct tokenizer *t, size_t *n)
{
	*n = t->n_stops;
	return t->stops;
}
