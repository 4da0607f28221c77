/* SPDX-License-Identifier: MIT */
/* tokenizer.json: what comes out of the pocket model's, and one sentence for everything that is not
 * supported. */
#include "src/text/hf_tokenizer.h"
#include "src/text/pretok.h"
#include "tests/text/text_data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check_token(const struct hf_tokenizer *t, uint32_t id, const char *text, uint8_t type)
{
	assert_true(id < t->n_tokens);
	assert_string_equal(t->tokens[id].data, text);
	assert_int_equal(t->tokens[id].len, strlen(text));
	assert_int_equal(t->types[id], type);
}

static void test_pocket(void **state)
{
	(void)state;
	struct hf_tokenizer t;
	struct err e = {0};
	if (hf_tokenizer_open(&t, "tests/data/tokenizer/pocket-tokenizer.json", &e))
		fail_msg("%s", e.text);
	assert_int_equal(t.n_tokens, 8164);
	assert_int_equal(t.n_merges, 7872);
	assert_true(t.ignore_merges);
	assert_string_equal(t.pattern, PRETOK_GLM4);
	assert_string_equal(t.pre, "glm4");
	check_token(&t, 0, "!", TOKEN_NORMAL);
	check_token(&t, 8128, "<|endoftext|>", TOKEN_CONTROL);
	check_token(&t, 8149, "<think>", TOKEN_USER);
	check_token(&t, 8163, "<|video|>", TOKEN_USER);
	assert_string_equal(t.merges[0].data, "h e");
	assert_string_equal(t.merges[2].data, "\xc4\x8a \xc4\x8a");
	size_t control = 0, user = 0;
	for (uint32_t i = 0; i < t.n_tokens; i++) {
		control += t.types[i] == TOKEN_CONTROL;
		user += t.types[i] == TOKEN_USER;
	}
	assert_int_equal(control, 18);
	assert_int_equal(user, 18);
	hf_tokenizer_fini(&t);
}

#define GLM_SPLIT "{'type':'Split','pattern':{'Regex':'a+'},'behavior':'Isolated','invert':false}"
#define GLM_BYTES                                                                                  \
	"{'type':'ByteLevel','add_prefix_space':false,'trim_offsets':true,'use_regex':false}"
#define PRE(a, b)              "'pre_tokenizer':{'type':'Sequence','pretokenizers':[" a "," b "]}"
#define ADDED(id, text, flags) "{'id':" id ",'content':'" text "'" flags ",'special':true}"
#define FLAGS                  ",'single_word':false,'lstrip':false,'rstrip':false,'normalized':false"
#define MODEL(rest)            "'model':{'type':'BPE','vocab':{'a':0,'b':1,'ab':2}" rest "}"

/* A document out of its parts, with ' for ". */
static int parse_literal(const char *text, struct hf_tokenizer *t, struct err *e)
{
	char *json = strdup(text);
	for (char *p = json; *p; p++)
		if (*p == '\'')
			*p = '"';
	int rc = hf_tokenizer_parse(t, json, strlen(json), e);
	free(json);
	return rc;
}

static void test_small(void **state)
{
	(void)state;
	static const char *const good[] = {
		"{" PRE(GLM_SPLIT, GLM_BYTES) "," MODEL(",'merges':['a b']") "}",
		"{" PRE(GLM_SPLIT, GLM_BYTES) "," MODEL(",'merges':[['a','b']],'dropout':null,'continuing_"
												"subword_prefix':''") ",'normalizer':null}",
		"{" PRE(GLM_SPLIT, GLM_BYTES) "," MODEL(
			",'merges':['a b']") ",'normalizer':{'type':'Sequence','normalizers':[]},"
								 "'post_processor':{'type':'TemplateProcessing','single':[{'"
								 "Sequence':{'id':'"
								 "A','type_id':0}}]},'truncation':{'x':1}}",
	};
	for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
		struct hf_tokenizer t;
		struct err e = {0};
		if (parse_literal(good[i], &t, &e))
			fail_msg("%s", e.text);
		assert_int_equal(t.n_tokens, 3);
		assert_int_equal(t.n_merges, 1);
		assert_string_equal(t.merges[0].data, "a b");
		assert_int_equal(t.merges[0].len, 3);
		assert_string_equal(t.pattern, "a+");
		assert_false(t.ignore_merges);
		assert_null(t.pre);
		hf_tokenizer_fini(&t);
	}
	struct hf_tokenizer t;
	struct err e = {0};
	assert_int_equal(
		parse_literal("{" PRE(GLM_SPLIT, GLM_BYTES) "," MODEL(
						  ",'merges':[],'ignore_merges':true") ",'added_tokens':[" ADDED("5",
						  "<x y>", FLAGS) "]}",
			&t, &e),
		0);
	assert_int_equal(t.n_tokens, 6);
	check_token(&t, 3, "[PAD3]", TOKEN_UNUSED);
	check_token(&t, 4, "[PAD4]", TOKEN_UNUSED);
	check_token(&t, 5, "<x y>", TOKEN_CONTROL);
	assert_true(t.ignore_merges);
	hf_tokenizer_fini(&t);
}

static void test_hf_tokenizer_refusals(void **state)
{
	(void)state;
#define REST PRE(GLM_SPLIT, GLM_BYTES) "," MODEL(",'merges':[]") "}"
	static const struct {
		const char *json, *want;
	} cases[] = {
		{"", "line 1"},
		{"{", "line 1"},
		{"[]", "pre_tokenizer: expected a Sequence"},
		{"{}", "pre_tokenizer: expected a Sequence"},
		{"{'normalizer':{'type':'NFC'}," REST, "normalizer of type NFC is not supported"},
		{"{'normalizer':5," REST, "normalizer: a number found, not supported"},
		{"{'post_processor':{'type':'BertProcessing'}," REST,
			"post_processor of type BertProcessing"},
		{"{'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken':{}},{'Sequence':"
		 "{}}]}"
		 "," REST,
			"post_processor of type TemplateProcessing"},
		{"{'decoder':{'type':'Metaspace'}," REST, "decoder of type Metaspace"},
		{"{" PRE("{'type':'Whitespace'}", GLM_BYTES) "}", "pre_tokenizer of type Whitespace"},
		{"{" PRE("{'type':'Split','pattern':{'String':' '}}", GLM_BYTES) "}", "no pattern.Regex"},
		{"{" PRE("{'type':'Split','pattern':{'Regex':' '},'behavior':'Removed'}", GLM_BYTES) "}",
			"only behavior Isolated"},
		{"{" PRE("{'type':'Split','pattern':{'Regex':'a\\u0000'},'behavior':'Isolated'}",
			 GLM_BYTES) "}",
			"zero byte"},
		{"{" PRE(GLM_SPLIT, "{'type':'Digits'}") "}", "pre_tokenizer of type Digits"},
		{"{" PRE(GLM_SPLIT, "{'type':'ByteLevel','add_prefix_space':false}") "}",
			"add_prefix_space and use_regex must be false"},
		{"{" PRE(GLM_SPLIT, GLM_BYTES) ",'model':[]}", "model: expected an object, found an array"},
		{"{" PRE(GLM_SPLIT, GLM_BYTES) ",'model':{'type':'Unigram'}}",
			"model of type Unigram is not supported"},
		{"{" PRE(GLM_SPLIT, GLM_BYTES) "," MODEL(",'dropout':0.1") "}", "model.dropout"},
		{"{" PRE(GLM_SPLIT, GLM_BYTES) "," MODEL(",'end_of_word_suffix':'</w>'") "}",
			"model.end_of_word_suffix"},
		{"{" PRE(GLM_SPLIT, GLM_BYTES) "," MODEL(",'byte_fallback':true") "}",
			"model.byte_fallback"},
		{"{" PRE(GLM_SPLIT, GLM_BYTES) ",'model':{'vocab':{}}}",
			"model.vocab: expected a non-empty object"},
		{"{" PRE(GLM_SPLIT, GLM_BYTES) "," MODEL("") "}",
			"model.merges: expected an array, found nothing"},
		{"{" PRE(GLM_SPLIT, GLM_BYTES) "," MODEL(",'merges':[5]") "}", "model.merges[0]: expected"},
		{"{" PRE(GLM_SPLIT, GLM_BYTES) "," MODEL(",'merges':[['a']]") "}",
			"model.merges[0]: expected"},
		{"{" PRE(GLM_SPLIT, GLM_BYTES) ",'model':{'vocab':{'a':-1},'merges':[]}}",
			"the id of \"a\" is not a number below"},
		{"{" PRE(GLM_SPLIT, GLM_BYTES) ",'model':{'vocab':{'a':16777216},'merges':[]}}",
			"the id of \"a\" is not a number below"},
		{"{" PRE(GLM_SPLIT, GLM_BYTES) ",'model':{'vocab':{'a':'0'},'merges':[]}}",
			"the id of \"a\" is not a number below"},
		{"{" PRE(GLM_SPLIT, GLM_BYTES) ",'model':{'vocab':{'a':1,'b':1},'merges':[]}}",
			"id 1 is used by \"a\" and \"b\""},
		{"{" PRE(GLM_SPLIT, GLM_BYTES) ",'model':{'vocab':{'a':16000000},'merges':[]}}",
			"ids go up to 16000000, but there are only 1 tokens"},
		{"{'added_tokens':{}," REST, "added_tokens: expected an array"},
		{"{'added_tokens':[{'id':9}]," REST, "added_tokens[0]: expected an id"},
		{"{'added_tokens':[" ADDED("2", "x", FLAGS) "]," REST,
			"added_tokens[0] \"x\": id 2 is taken by \"ab\""},
		{"{'added_tokens':[" ADDED("9", "x", FLAGS) "," ADDED("9", "y", FLAGS) "]," REST,
			"added_tokens[1] \"y\": id 9 is taken by \"x\""},
		{"{'added_tokens':[" ADDED("9", "x", "") "]," REST, "\"x\": single_word must be false"},
		{"{'added_tokens':[" ADDED("9", "x", ",'single_word':false,'lstrip':true") "]," REST,
			"\"x\": lstrip must be false"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct hf_tokenizer t;
		struct err e = {0};
		if (parse_literal(cases[i].json, &t, &e) != ERR_INPUT)
			fail_msg("case %zu was accepted", i);
		if (!strstr(e.text, cases[i].want))
			fail_msg("case %zu: \"%s\", expected \"%s\"", i, e.text, cases[i].want);
		assert_null(t.tokens);
	}
	struct hf_tokenizer t;
	struct err e = {0};
	assert_int_equal(hf_tokenizer_open(&t, "tests/data/tokenizer/none.json", &e), ERR_INPUT);
	assert_int_equal(strncmp(e.text, "tests/data/tokenizer/none.json: ", 32), 0);
	assert_int_equal(hf_tokenizer_open(&t, "tests/data/tokenizer", &e), ERR_INPUT);
	assert_int_equal(hf_tokenizer_open(&t, "tests/data/tokenizer/vectors.jsonl", &e), ERR_INPUT);
	assert_int_equal(strncmp(e.text, "tests/data/tokenizer/vectors.jsonl: line 2", 42), 0);
}

/* A file cut short anywhere is refused, never crashes. */
static void test_truncated(void **state)
{
	(void)state;
	static const char text[] = "{" PRE(GLM_SPLIT, GLM_BYTES) "," MODEL(
		",'merges':['a b']") ",'added_tokens':[" ADDED("3", "x", FLAGS) "]}";
	for (size_t n = 0; n < strlen(text); n++) {
		char *cut = strndup(text, n);
		struct hf_tokenizer t;
		struct err e = {0};
		assert_int_equal(parse_literal(cut, &t, &e), ERR_INPUT);
		free(cut);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pocket),
		cmocka_unit_test(test_small),
		cmocka_unit_test(test_hf_tokenizer_refusals),
		cmocka_unit_test(test_truncated),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
