/* SPDX-License-Identifier: MIT */
/*
 * The tokenizer with the real vocabulary of GLM-5.2: published vectors, the prompts of a hosted
 * model (whose token counts and ids were made by the vendor's tokenizer), decoding at every cut,
 * refusals.
 */
#include "src/text/tokenizer.h"
#include "src/base/num.h"
#include "src/format/gguf.h"
#include "src/text/bpe.h"
#include "src/text/utf8.h"
#include "tests/text/text_data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct tokenizer *glm, *pocket;

static int set_up(void **state)
{
	(void)state;
	glm = text_data_glm();
	pocket = text_data_pocket();
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	tokenizer_free(glm);
	tokenizer_free(pocket);
	return 0;
}

static struct token_ids encode(
	const struct tokenizer *t, const char *text, size_t len, unsigned flags)
{
	struct token_ids ids = {0};
	struct err e = {0};
	if (tokenizer_encode(t, text, len, flags, &ids, &e))
		fail_msg("%s", e.text);
	return ids;
}

static void check_decodes_to(
	const struct tokenizer *t, const struct token_ids *ids, const char *text, size_t len)
{
	struct buf b = {0};
	assert_int_equal(tokenizer_decode(t, ids->data, ids->n, &b, NULL), 0);
	assert_int_equal(b.len, len);
	assert_memory_equal(buf_str(&b), text, len);
	buf_free(&b);
}

static void test_vectors(void **state)
{
	(void)state;
	json_t *list = text_data_lines("tests/data/tokenizer/vectors.jsonl"), *v;
	size_t i;
	assert_int_equal(json_array_size(list), 106);
	json_array_foreach(list, i, v)
	{
		const json_t *text = json_object_get(v, "text");
		const char *s = json_string_value(text);
		size_t len = json_string_length(text);
		struct token_ids ids = encode(glm, s, len, TOKENIZER_PARSE_ADDED);
		text_data_check_ids(s, ids.data, ids.n, json_object_get(v, "ids"));
		check_decodes_to(glm, &ids, s, len);
		token_ids_free(&ids);
	}
	json_decref(list);
}

/* The hosted model was asked without reasoning: [gMASK]<sop><|user|> text
 * <|assistant|><think></think>. */
static void test_fixture_prompts(void **state)
{
	(void)state;
	json_t *list = text_data_lines("tests/data/tokenizer/fixture_prompts.jsonl"), *v;
	size_t i, with_ids = 0, continuations = 0;
	assert_int_equal(json_array_size(list), 105);
	json_array_foreach(list, i, v)
	{
		struct buf b = {0};
		buf_printf(&b, "[gMASK]<sop><|user|>%s<|assistant|><think></think>",
			json_string_value(json_object_get(v, "prompt")));
		struct token_ids ids = encode(glm, buf_str(&b), b.len, TOKENIZER_PARSE_ADDED);
		const json_t *want = json_object_get(v, "prompt_ids");
		assert_int_equal(ids.n, json_integer_value(json_object_get(v, "prompt_tokens")));
		if (json_is_array(want)) {
			text_data_check_ids(json_string_value(json_object_get(v, "id")), ids.data, ids.n, want);
			with_ids++;
		}
		token_ids_free(&ids);
		buf_clear(&b);
		/* what the model wrote: ids decode to the text that the server sent */
		const json_t *out = json_object_get(v, "completion_ids"), *id;
		size_t k;
		/* in case_088 the fixture's ids lack the token "</" that its text has */
		bool known =
			json_is_array(out) && strcmp(json_string_value(json_object_get(v, "id")), "case_088");
		json_array_foreach(out, k, id)
		{
			int32_t one = (int32_t)json_integer_value(id);
			known = known && one >= 0 && !tokenizer_is_stop(glm, one);
			if (known)
				assert_int_equal(tokenizer_decode(glm, &one, 1, &b, NULL), 0);
		}
		if (known) {
			struct buf text = {0};
			utf8_repair(buf_str(&b), b.len, &text);
			/* the server leaves off a character that is not finished */
			const char *sent = json_string_value(json_object_get(v, "text"));
			if (strncmp(buf_str(&text), sent, strlen(sent)))
				fail_msg("%s: decoded \"%s\", sent \"%s\"",
					json_string_value(json_object_get(v, "id")), buf_str(&text), sent);
			buf_free(&text);
			continuations++;
		}
		buf_free(&b);
	}
	assert_true(with_ids >= 100);
	assert_true(continuations >= 90);
	json_decref(list);
}

/* Users' text stays text; only the flag makes control tokens of it. */
static void test_added_only_when_asked(void **state)
{
	(void)state;
	static const char text[] = "<|user|>x</think>/nothink";
	struct token_ids parsed = encode(glm, text, strlen(text), TOKENIZER_PARSE_ADDED);
	struct token_ids plain = encode(glm, text, strlen(text), 0);
	assert_int_equal(parsed.n, 4);
	assert_int_equal(parsed.data[0], tokenizer_find_added(glm, "<|user|>"));
	assert_int_equal(parsed.data[2], tokenizer_find_added(glm, "</think>"));
	for (size_t i = 0; i < plain.n; i++)
		assert_false(tokenizer_is_added(glm, plain.data[i]));
	check_decodes_to(glm, &plain, text, strlen(text));
	check_decodes_to(glm, &parsed, text, strlen(text));
	token_ids_free(&parsed);
	token_ids_free(&plain);
}

static void test_stop_set(void **state)
{
	(void)state;
	size_t n;
	const int32_t *stops = tokenizer_stops(glm, &n);
	assert_int_equal(n, 3);
	assert_int_equal(stops[0], 154820);
	assert_true(tokenizer_is_stop(glm, 154827) && tokenizer_is_stop(glm, 154829) &&
				!tokenizer_is_stop(glm, 154828));
	stops = tokenizer_stops(pocket, &n);
	assert_int_equal(n, 3);
	assert_true(tokenizer_is_stop(pocket, 8128) && tokenizer_is_stop(pocket, 8135) &&
				tokenizer_is_stop(pocket, 8137));
}

static void test_tokenizer_refusals(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		size_t len, offset;
	} bad[] = {{"ab\xff", 3, 2}, {"\xc3", 1, 0}, {"abcdefghij\xed\xa0\x80", 13, 10},
		{"\xf4\x90\x80\x80", 4, 0}, {"x\xc0\x80", 3, 1}, {"\xe2\x82", 2, 0}};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct token_ids ids = {0};
		struct err e = {0};
		char want[40];
		assert_int_equal(tokenizer_encode(glm, bad[i].text, bad[i].len, 0, &ids, &e), ERR_INPUT);
		snprintf(want, sizeof want, "offset %zu", bad[i].offset);
		assert_non_null(strstr(e.text, want));
		assert_int_equal(ids.n, 0);
		token_ids_free(&ids);
	}
	static const int32_t ids[] = {5, -1, 154856, INT32_MAX};
	for (size_t i = 1; i < 4; i++) {
		struct buf b = {0};
		struct err e = {0};
		assert_int_equal(tokenizer_decode(glm, &ids[i], 1, &b, &e), ERR_INPUT);
		assert_non_null(strstr(e.text, "out of range"));
		buf_free(&b);
	}
	assert_true(tokenizer_is_padding(glm, 154856) && tokenizer_is_padding(glm, -1) &&
				!tokenizer_is_padding(glm, 0));
}

/* A stream of tokens cut at every place gives the same text as all at once, and never a broken
 * character before the end. */
static void test_stream_at_every_cut(void **state)
{
	(void)state;
	static const char text[] = "na\xc3\xafve \xe4\xbd\xa0\xe5\xa5\xbd "
							   "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb \xf0\x9d\x94\x98 end"
							   "\x80\xff\xe2\x82 \xf0\x9f\x92\xc3\xed\xa0\x80\xf4\x90\x80\x80\xc3";
	/* Rust's and Python's replacement of the broken part */
	static const char want[] = "na\xc3\xafve \xe4\xbd\xa0\xe5\xa5\xbd "
							   "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb \xf0\x9d\x94\x98 "
							   "end"
							   "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd "
							   "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
							   "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd";
	size_t n = sizeof text - 1;
	for (size_t a = 0; a <= n; a++)
		for (size_t b = a; b <= n; b++) {
			struct utf8_stream s = {0};
			struct buf out = {0};
			utf8_stream_push(&s, text, a, &out);
			utf8_stream_push(&s, text + a, b - a, &out);
			assert_int_equal(utf8_valid_prefix(buf_str(&out), out.len), out.len);
			utf8_stream_push(&s, text + b, n - b, &out);
			utf8_stream_flush(&s, &out);
			assert_string_equal(buf_str(&out), want);
			buf_free(&out);
		}
	struct utf8_stream s = {0};
	struct buf out = {0};
	for (size_t i = 0; i < n; i++)
		utf8_stream_push(&s, text + i, 1, &out);
	utf8_stream_flush(&s, &out);
	assert_string_equal(buf_str(&out), want);
	buf_free(&out);
}

/* Every byte string of one, two and (a sample of) three and four bytes: whatever is valid passes,
 * the rest is repaired to something valid, and the count of valid ones is the count of code points.
 */
static void test_utf8_exhaustively(void **state)
{
	(void)state;
	unsigned valid[5] = {0};
	for (unsigned c = 0; c < 0x110000; c++) {
		if (c >= 0xd800 && c < 0xe000)
			continue;
		struct buf b = {0};
		utf8_append(&b, c);
		size_t len = 0;
		assert_int_equal(utf8_valid_prefix(b.data, b.len), b.len);
		assert_int_equal(utf8_decode(b.data, &len), c);
		assert_int_equal(len, b.len);
		valid[len]++;
		buf_free(&b);
	}
	unsigned two = 0, three = 0;
	for (unsigned i = 0; i < 0x10000; i++) {
		char p[2] = {(char)(i >> 8), (char)i};
		two += p[0] & 0x80 && utf8_valid_prefix(p, 2) == 2 && utf8_valid_prefix(p, 1) == 0;
	}
	for (unsigned i = 0xe00000; i < 0xf00000; i++) {
		char p[3] = {(char)(i >> 16), (char)(i >> 8), (char)i};
		three += utf8_valid_prefix(p, 3) == 3;
	}
	/* two-byte strings without an ASCII start: the characters of two bytes */
	assert_int_equal(two, valid[2]);
	assert_int_equal(three, valid[3]);
}

static void test_runs(void **state)
{
	(void)state;
	/* long runs of one kind: linear time, and nothing lost */
	static const char *const unit[] = {
		"a", " ", "\n", " \n", "1", "-", "\xe4\xbd\xa0", "\xcc\x81", "'s", "\t x"};
	for (size_t i = 0; i < sizeof unit / sizeof *unit; i++) {
		struct buf b = {0};
		while (b.len < 300000)
			buf_puts(&b, unit[i]);
		struct token_ids ids = encode(glm, buf_str(&b), b.len, TOKENIZER_PARSE_ADDED);
		check_decodes_to(glm, &ids, buf_str(&b), b.len);
		token_ids_free(&ids);
		buf_free(&b);
	}
}

static uint64_t fnv(const struct token_ids *ids)
{
	uint64_t h = 0xcbf29ce484222325u;
	const unsigned char *p = (const unsigned char *)ids->data;
	for (size_t i = 0; i < ids->n * sizeof *ids->data; i++)
		h = (h ^ p[i]) * 0x100000001b3u;
	return h;
}

/* 10,000 strings whose ids the Hugging Face package computed (tests/text/tokenizer_corpus.py): both
 * vocabularies, with and without parsing of added tokens. */
static void test_corpus(void **state)
{
	(void)state;
	size_t len, n = 0;
	char *data = text_data_read("tests/data/tokenizer/corpus.bin", &len);
	for (const char *p = data; p < data + len; n++) {
		size_t size = load_u32(p);
		const char *text = p + 4 + 4 * 8;
		for (unsigned k = 0; k < 4; k++) {
			const struct tokenizer *t = k < 2 ? pocket : glm;
			struct token_ids ids = encode(t, text, size, k % 2 ? TOKENIZER_PARSE_ADDED : 0);
			if (fnv(&ids) != load_u64(p + 4 + 8 * k)) {
				for (size_t i = 0; i < ids.n; i++)
					print_error("%d ", ids.data[i]);
				fail_msg("string %zu \"%.*s\", %s, %s: other ids than the package's", n, (int)size,
					text, k < 2 ? "pocket" : "glm", k % 2 ? "parsed" : "plain");
			}
			check_decodes_to(t, &ids, text, size);
			token_ids_free(&ids);
		}
		p = text + size;
	}
	assert_int_equal(n, 10000);
	free(data);
}

/* The merges of GLM's own list are all splits of tokens into tokens: as many as published. */
static void test_merge_count(void **state)
{
	(void)state;
	struct vocab v;
	struct bpe b;
	uint32_t n;
	char *texts;
	struct text_span *ranks = text_data_ranks(&n, &texts);
	assert_int_equal(vocab_init(&v, ranks, NULL, n, VOCAB_GPT2, NULL), 0);
	assert_int_equal(v.n_tokens, 154820);
	assert_int_equal(bpe_init_ids(&b, &v, true, NULL), 0);
	assert_int_equal(b.n_pairs, 321649);
	bpe_fini(&b);
	vocab_fini(&v);
	free(ranks);
	free(texts);
}

/* ---- the same tokenizer out of a GGUF ---- */

static void tokenizer_put_u32(struct buf *b, uint32_t v)
{
	buf_append(b, &v, sizeof v);
}

static void put_str(struct buf *b, const char *s, uint64_t n)
{
	buf_append(b, &n, sizeof n);
	buf_append(b, s, n);
}

static void put_key(struct buf *b, const char *key, uint32_t type)
{
	put_str(b, key, strlen(key));
	tokenizer_put_u32(b, type);
}

static void put_array(struct buf *b, const char *key, uint32_t element, uint64_t n)
{
	put_key(b, key, GGUF_ARRAY);
	tokenizer_put_u32(b, element);
	buf_append(b, &n, sizeof n);
}

struct gguf_case {
	const char *model, *pre;
	bool merges, eos_ids;
	uint32_t eot;     /* UINT32_MAX: absent */
	uint32_t n_types; /* less than n_tokens: too few */
};

static int from_gguf(
	const struct hf_tokenizer *hf, const struct gguf_case *c, struct tokenizer **t, struct err *e)
{
	struct buf b = {0};
	uint64_t n_tensors = 0, n_kv = 4 + c->merges + c->eos_ids + (c->eot != UINT32_MAX);
	tokenizer_put_u32(&b, 0x46554747);
	tokenizer_put_u32(&b, 3);
	buf_append(&b, &n_tensors, 8);
	buf_append(&b, &n_kv, 8);
	put_key(&b, "tokenizer.ggml.model", GGUF_STRING);
	put_str(&b, c->model, strlen(c->model));
	put_key(&b, "tokenizer.ggml.pre", GGUF_STRING);
	put_str(&b, c->pre, strlen(c->pre));
	put_array(&b, "tokenizer.ggml.tokens", GGUF_STRING, hf->n_tokens);
	for (uint32_t i = 0; i < hf->n_tokens; i++)
		put_str(&b, hf->tokens[i].data, hf->tokens[i].len);
	put_array(&b, "tokenizer.ggml.token_type", GGUF_I32, c->n_types);
	for (uint32_t i = 0; i < c->n_types; i++)
		tokenizer_put_u32(&b, hf->types[i]);
	if (c->merges) {
		put_array(&b, "tokenizer.ggml.merges", GGUF_STRING, hf->n_merges);
		for (uint32_t i = 0; i < hf->n_merges; i++)
			put_str(&b, hf->merges[i].data, hf->merges[i].len);
	}
	if (c->eos_ids) {
		put_array(&b, "tokenizer.ggml.eos_token_ids", GGUF_I32, 2);
		tokenizer_put_u32(&b, 7);
		tokenizer_put_u32(&b, 8128);
	}
	if (c->eot != UINT32_MAX) {
		put_key(&b, "tokenizer.ggml.eot_token_id", GGUF_U32);
		tokenizer_put_u32(&b, c->eot);
	}
	while (b.len % 32)
		buf_putc(&b, 0);
	struct gguf *g;
	*t = NULL;
	int rc = gguf_parse(b.data, b.len, "t.gguf", &g, e);
	if (!rc)
		rc = tokenizer_from_gguf(g, t, e);
	gguf_close(g);
	buf_free(&b);
	return rc;
}

static void test_gguf(void **state)
{
	(void)state;
	struct hf_tokenizer hf;
	struct err e = {0};
	assert_int_equal(hf_tokenizer_open(&hf, "tests/data/tokenizer/pocket-tokenizer.json", &e), 0);
	assert_string_equal(hf.pre, "glm4");
	struct gguf_case good = {"gpt2", "glm4", true, false, UINT32_MAX, hf.n_tokens}, c;
	struct tokenizer *t;
	if (from_gguf(&hf, &good, &t, &e))
		fail_msg("%s", e.text);
	static const char text[] =
		"It's 12345 <|user|> caf\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd prochaine\n\n  x";
	struct token_ids a = encode(t, text, strlen(text), TOKENIZER_PARSE_ADDED),
					 b = encode(pocket, text, strlen(text), TOKENIZER_PARSE_ADDED);
	assert_int_equal(a.n, b.n);
	assert_memory_equal(a.data, b.data, a.n * sizeof *a.data);
	token_ids_free(&a);
	token_ids_free(&b);
	size_t n;
	tokenizer_stops(t, &n);
	assert_int_equal(n, 3);
	tokenizer_free(t);

	c = good;
	c.eos_ids = true; /* the key says it all */
	assert_int_equal(from_gguf(&hf, &c, &t, &e), 0);
	tokenizer_stops(t, &n);
	assert_int_equal(n, 2);
	assert_true(
		tokenizer_is_stop(t, 7) && tokenizer_is_stop(t, 8128) && !tokenizer_is_stop(t, 8135));
	tokenizer_free(t);

	c = good;
	c.eot = 9;
	c.merges = false;
	assert_int_equal(from_gguf(&hf, &c, &t, &e), 0);
	assert_true(tokenizer_is_stop(t, 9) && tokenizer_is_stop(t, 8135));
	tokenizer_free(t);

	static const char *const want[] = {"tokenizer.ggml.eot_token_id holds 8164",
		"tokenizer.ggml.model is \"llama\"", "tokenizer.ggml.pre is \"qwen2\"",
		"8164 tokens, 8163 token types"};
	for (size_t i = 0; i < 4; i++) {
		c = good;
		if (i == 0)
			c.eot = hf.n_tokens;
		else if (i == 1)
			c.model = "llama";
		else if (i == 2)
			c.pre = "qwen2";
		else
			c.n_types--;
		assert_int_equal(from_gguf(&hf, &c, &t, &e), ERR_INPUT);
		assert_null(t);
		if (!strstr(e.text, want[i]) || strncmp(e.text, "t.gguf: ", 8))
			fail_msg("%s", e.text);
	}
	hf_tokenizer_fini(&hf);

	/* a checkpoint's folder has these keys if it has the file that they come from */
	static const uint32_t no_keys[] = {0x46554747, 3, 0, 0, 0, 0, 0, 0};
	struct gguf *g;
	assert_int_equal(gguf_parse(no_keys, sizeof no_keys, "t.gguf", &g, &e), 0);
	assert_int_equal(tokenizer_from_gguf(g, &t, &e), ERR_INPUT);
	assert_string_equal(e.text, "t.gguf: key tokenizer.ggml.model is missing");
	g->folder = "dir";
	assert_int_equal(tokenizer_from_gguf(g, &t, &e), ERR_INPUT);
	assert_string_equal(e.text, "dir: tokenizer.json is missing");
	g->folder = NULL;
	gguf_close(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_vectors),
		cmocka_unit_test(test_fixture_prompts),
		cmocka_unit_test(test_added_only_when_asked),
		cmocka_unit_test(test_stop_set),
		cmocka_unit_test(test_tokenizer_refusals),
		cmocka_unit_test(test_stream_at_every_cut),
		cmocka_unit_test(test_utf8_exhaustively),
		cmocka_unit_test(test_runs),
		cmocka_unit_test(test_corpus),
		cmocka_unit_test(test_merge_count),
		cmocka_unit_test(test_gguf),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
