/* SPDX-License-Identifier: MIT */
/*
 * The tokenizer with the real vocabulary of GLM-5.2: published vectors, the prompts of a hosted model (whose token
 * counts and ids were made by the vendor's tokenizer), decoding at every cut, refusals.
 */
#include "src/text/tokenizer.h"
#include "src/text/utf8.h"
#include "tests/text_data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
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

static struct token_ids encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags)
{
	struct token_ids ids = {0};
	struct err e = {0};
	if (tokenizer_encode(t, text, len, flags, &ids, &e))
		fail_msg("%s", e.text);
	return ids;
}

static void check_decodes_to(const struct tokenizer *t, const struct token_ids *ids, const char *text, size_t len)
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
	json_array_foreach(list, i, v) {
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

/* The hosted model was asked without reasoning: [gMASK]<sop><|user|> text <|assistant|><think></think>. */
static void test_fixture_prompts(void **state)
{
	(void)state;
	json_t *list = text_data_lines("tests/data/tokenizer/fixture_prompts.jsonl"), *v;
	size_t i, with_ids = 0, continuations = 0;
	assert_int_equal(json_array_size(list), 105);
	json_array_foreach(list, i, v) {
		struct buf b = {0};
		buf_printf(&b, "[gMASK]<sop><|user|>%s<|assistant|><think></think>", json_string_value(json_object_get(v, "prompt")));
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
		bool known = json_is_array(out) && strcmp(json_string_value(json_object_get(v, "id")), "case_088");
		json_array_foreach(out, k, id) {
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
				fail_msg("%s: decoded \"%s\", sent \"%s\"", json_string_value(json_object_get(v, "id")), buf_str(&text), sent);
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
	assert_true(tokenizer_is_stop(glm, 154827) && tokenizer_is_stop(glm, 154829) && !tokenizer_is_stop(glm, 154828));
	stops = tokenizer_stops(pocket, &n);
	assert_int_equal(n, 3);
	assert_true(tokenizer_is_stop(pocket, 8128) && tokenizer_is_stop(pocket, 8135) && tokenizer_is_stop(pocket, 8137));
}

static void test_refusals(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		size_t len, offset;
	} bad[] = {{"ab\xff", 3, 2}, {"\xc3", 1, 0}, {"abcdefghij\xed\xa0\x80", 13, 10}, {"\xf4\x90\x80\x80", 4, 0},
		{"x\xc0\x80", 3, 1}, {"\xe2\x82", 2, 0}};
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
	assert_true(tokenizer_is_padding(glm, 154856) && tokenizer_is_padding(glm, -1) && !tokenizer_is_padding(glm, 0));
}

/* A stream of tokens cut at every place gives the same text as all at once, and never a broken character before the end. */
static void test_stream_at_every_cut(void **state)
{
	(void)state;
	static const char text[] = "na\xc3\xafve \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb \xf0\x9d\x94\x98 end"
							   "\x80\xff\xe2\x82 \xf0\x9f\x92\xc3\xed\xa0\x80\xf4\x90\x80\x80\xc3";
	/* Rust's and Python's replacement of the broken part */
	static const char want[] = "na\xc3\xafve \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb \xf0\x9d\x94\x98 end"
							   "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
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

/* Every byte string of one, two and (a sample of) three and four bytes: whatever is valid passes, the rest is repaired to
 * something valid, and the count of valid ones is the count of code points. */
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
	static const char *const unit[] = {"a", " ", "\n", " \n", "1", "-", "\xe4\xbd\xa0", "\xcc\x81", "'s", "\t x"};
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_vectors),
		cmocka_unit_test(test_fixture_prompts),
		cmocka_unit_test(test_added_only_when_asked),
		cmocka_unit_test(test_stop_set),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_stream_at_every_cut),
		cmocka_unit_test(test_utf8_exhaustively),
		cmocka_unit_test(test_runs),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
