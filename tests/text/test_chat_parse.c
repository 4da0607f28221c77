/* SPDX-License-Identifier: MIT */
/*
 * The parser of the model's output: every assistant turn of the golden conversations comes back as
 * the message it was rendered from, fed as ids, as text at once, byte by byte, and cut at every
 * pair of places; broken calls; types.
 */
#include "src/text/chat_parse.h"
#include "src/text/schema/schema_keywords.h"
#include "tests/text/text_data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct tokenizer *glm;

static int set_up(void **state)
{
	(void)state;
	glm = text_data_glm();
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	tokenizer_free(glm);
	return 0;
}

/* Events as one string: R(...) reasoning, A(...) answer, neighbours of one kind joined, C(name
 * arguments). */
struct log {
	struct buf b;
	int last;       /* kind, -1 at the start */
	struct buf raw; /* what the events carry, exact for calls */
	size_t calls;
};

static void on_event(void *user, const struct chat_event *ev)
{
	struct log *l = user;
	if (ev->kind == CHAT_EVENT_CALL) {
		if (l->last >= 0 && l->last != CHAT_EVENT_CALL)
			buf_putc(&l->b, ')');
		buf_printf(&l->b, "C(%s %s)", ev->call->name.data, ev->call->arguments.data);
		buf_append(&l->raw, ev->call->raw.data, ev->call->raw.len);
		assert_int_equal(strlen(ev->call->arguments.data), ev->call->arguments.len);
		l->calls++;
	} else {
		assert_true(ev->len > 0);
		assert_int_equal(utf8_valid_prefix(ev->text, ev->len), ev->len);
		if (l->last != (int)ev->kind) {
			if (l->last >= 0 && l->last != CHAT_EVENT_CALL)
				buf_putc(&l->b, ')');
			buf_puts(&l->b, ev->kind == CHAT_EVENT_REASONING ? "R(" : "A(");
		}
		buf_append(&l->b, ev->text, ev->len);
		buf_append(&l->raw, ev->text, ev->len);
	}
	l->last = (int)ev->kind;
}

/* Feeds text[0..n) cut at a and b; returns the log (free it). */
static char *parse_text(
	const char *text, size_t n, size_t a, size_t b, const json_t *tools, bool in_reasoning)
{
	struct chat_parse p;
	struct log l = {.last = -1};
	chat_parse_init(&p, NULL, tools, in_reasoning, on_event, &l);
	chat_parse_text(&p, text, a);
	chat_parse_text(&p, text + a, b - a);
	chat_parse_text(&p, text + b, n - b);
	chat_parse_finish(&p, true);
	assert_int_equal(p.raw.len, n);
	assert_memory_equal(buf_str(&p.raw), text, n);
	chat_parse_fini(&p);
	if (l.last >= 0 && l.last != CHAT_EVENT_CALL)
		buf_putc(&l.b, ')');
	buf_free(&l.raw);
	return buf_take(&l.b);
}

static char *parse_bytewise(const char *text, size_t n, const json_t *tools, bool in_reasoning)
{
	struct chat_parse p;
	struct log l = {.last = -1};
	chat_parse_init(&p, NULL, tools, in_reasoning, on_event, &l);
	for (size_t i = 0; i < n; i++)
		chat_parse_text(&p, text + i, 1);
	chat_parse_finish(&p, true);
	chat_parse_fini(&p);
	if (l.last >= 0 && l.last != CHAT_EVENT_CALL)
		buf_putc(&l.b, ')');
	buf_free(&l.raw);
	return buf_take(&l.b);
}

static char *parse_ids(
	const char *text, size_t n, unsigned flags, const json_t *tools, bool in_reasoning)
{
	struct chat_parse p;
	struct log l = {.last = -1};
	struct token_ids ids = {0};
	assert_int_equal(tokenizer_encode(glm, text, n, flags, &ids, NULL), 0);
	chat_parse_init(&p, glm, tools, in_reasoning, on_event, &l);
	for (size_t i = 0; i < ids.n; i++)
		chat_parse_token(&p, ids.data[i]);
	chat_parse_finish(&p, true);
	assert_int_equal(p.raw.len, n);
	assert_memory_equal(buf_str(&p.raw), text, n);
	chat_parse_fini(&p);
	token_ids_free(&ids);
	if (l.last >= 0 && l.last != CHAT_EVENT_CALL)
		buf_putc(&l.b, ')');
	buf_free(&l.raw);
	return buf_take(&l.b);
}

/* All ways to feed `text` give `want`. */
static void chat_parse_check(
	const char *text, const char *want, const json_t *tools, bool in_reasoning)
{
	size_t n = strlen(text);
	for (size_t a = 0; a <= n; a++)
		for (size_t b = a; b <= n; b += n > 200 ? 7 : 1) {
			char *got = parse_text(text, n, a, b, tools, in_reasoning);
			if (strcmp(got, want))
				fail_msg("\"%s\" cut at %zu and %zu:\n  got  %s\n  want %s", text, a, b, got, want);
			free(got);
		}
	char *got = parse_bytewise(text, n, tools, in_reasoning);
	assert_string_equal(got, want);
	free(got);
	if (utf8_valid_prefix(text, n) == n) {
		got = parse_ids(text, n, TOKENIZER_PARSE_ADDED, tools, in_reasoning);
		assert_string_equal(got, want);
		free(got);
	}
}

/* What the events of a golden assistant message must be. */
static char *expected(const json_t *message, const char *part)
{
	struct buf b = {0};
	const char *close = strstr(part, "</think>");
	size_t reasoning = (size_t)(close - part) - strlen("<think>");
	if (reasoning)
		buf_printf(&b, "R(%.*s)", (int)reasoning, part + strlen("<think>"));
	const char *content = json_string_value(json_object_get(message, "content"));
	const char *inline_end = strstr(content, "</think>");
	if (inline_end)
		content = inline_end + strlen("</think>");
	content += strspn(content, " \n");
	size_t n = strlen(content);
	while (n && strchr(" \n", content[n - 1]))
		n--;
	if (n)
		buf_printf(&b, "A(%.*s)", (int)n, content);
	size_t i;
	json_t *call;
	json_array_foreach(json_object_get(message, "tool_calls"), i, call)
	{
		const json_t *f = json_object_get(call, "function");
		char *args = json_dumps(json_object_get(f, "arguments"), 0);
		buf_printf(&b, "C(%s %s)", json_string_value(json_object_get(f, "name")), args);
		free(args);
	}
	buf_reserve(&b, 0);
	return buf_take(&b);
}

static void test_golden(void **state)
{
	(void)state;
	json_t *list = text_data_lines("tests/data/chat/chat_golden.jsonl"), *v, *m;
	size_t i, k, turns = 0, calls = 0;
	json_array_foreach(list, i, v)
	{
		const json_t *tools = json_object_get(json_object_get(v, "options"), "tools");
		const char *at = json_string_value(json_object_get(v, "rendered"));
		json_array_foreach(json_object_get(v, "messages"), k, m)
		{
			if (strcmp(json_string_value(json_object_get(m, "role")), "assistant"))
				continue;
			at = strstr(at, "<|assistant|>") + strlen("<|assistant|>");
			size_t n = strlen(at);
			static const char *const ends[] = {
				"<|user|>", "<|observation|>", "<|assistant|>", "<|system|>"};
			for (size_t j = 0; j < 4; j++) {
				const char *end = strstr(at, ends[j]);
				if (end && (size_t)(end - at) < n)
					n = (size_t)(end - at);
			}
			char *part = strndup(at, n), *want = expected(m, part);
			chat_parse_check(part, want, tools, false);
			/* the usual case: <think> was the end of the prompt */
			chat_parse_check(part + strlen("<think>"), want, tools, true);
			turns++;
			calls += json_array_size(json_object_get(m, "tool_calls"));
			free(part);
			free(want);
		}
	}
	assert_true(turns >= 16);
	assert_true(calls >= 10);
	json_decref(list);
}

#define CALL "<tool_call>"
#define END  "</tool_call>"
#define K(k) "<arg_key>" k "</arg_key>"
#define V(v) "<arg_value>" v "</arg_value>"

static void test_broken_calls(void **state)
{
	(void)state;
	static const struct {
		const char *text, *want;
	} cases[] = {
		{"", ""},
		{"just text", "A(just text)"},
		{"a < b <to <tool_cal", "A(a < b <to <tool_cal)"},
		{"<<tool_call>f" END ">", "A(<)C(f {})A(>)"},
		{CALL "f" END CALL "g" END, "C(f {})C(g {})"},
		/* blanks between the parts */
		{"hi\n" CALL "f\n" K("a") "\n" V("1") "\n" END "\n", "A(hi\n)C(f {\"a\": 1})A(\n)"},
		/* never closed: all of it is text */
		{CALL "f" K("a") V("x"), "A(" CALL "f" K("a") V("x") ")"},
		{CALL "f" K("a") "<arg_value>x", "A(" CALL "f" K("a") "<arg_value>x)"},
		{CALL "f" K("a"), "A(" CALL "f" K("a") ")"},
		{CALL "f", "A(" CALL "f)"},
		{CALL, "A(" CALL ")"},
		/* no name */
		{CALL END "x", "A(" CALL END "x)"},
		{CALL " " K("a") V("b") END, "A(" CALL " " K("a") V("b") END ")"},
		/* one call inside another's name or key */
		{CALL "f" CALL "g" END, "A(" CALL "f)C(g {})"},
		{CALL "f<arg_key>a" CALL "g" END, "A(" CALL "f<arg_key>a)C(g {})"},
		/* tags inside a value belong to it */
		{CALL "f" K("a") V("x" CALL "g" END "y<think>") END,
			"C(f {\"a\": \"x" CALL "g" END "y<think>\"})"},
		/* a value that is never closed costs only its own call */
		{CALL "f" K("a") "<arg_value>x" END "then " CALL "g" K("b") V("2") END "end",
			"A(" CALL "f" K("a") "<arg_value>x" END "then )C(g {\"b\": 2})A(end)"},
		/* a whole call quoted in a value, and a lone tag in one */
		{CALL "f" K("a") V("say " CALL "g" K("b") V("2") END "!") END "x",
			"C(f {\"a\": \"say " CALL "g" K("b") V("2") END "!\"})A(x)"},
		{CALL "f" K("a") V("x <arg_value> y") END "z", "C(f {\"a\": \"x <arg_value> y\"})A(z)"},
		/* stray tags */
		{"x" END K("a") V("b") "</think>y", "A(x" END K("a") V("b") "</think>y)"},
		{CALL "f" V("x") END "z", "A(" CALL "f" V("x") END "z)"},
		{CALL "f" K("a") "junk" V("x") END, "A(" CALL "f" K("a") "junk" V("x") END ")"},
		{CALL "f" K("a") V("x") "junk" END, "A(" CALL "f" K("a") V("x") "junk" END ")"},
		/* thinking */
		{"<think>r</think>a", "R(r)A(a)"},
		{"\n<think>r</think>a<think>b", "A(\n)R(r)A(a<think>b)"},
		{"<think>r " CALL "f" END " s</think>" CALL "g" END, "R(r " CALL "f" END " s)C(g {})"},
		{"<think>never closed", "R(never closed)"},
		/* a repeated key: the first counts */
		{CALL "f" K("a") V("1") K("b") V("2") K("a") V("3") END, "C(f {\"a\": 1, \"b\": 2})"},
		{CALL "f" K("") V("") END, "C(f {\"\": \"\"})"},
		/* broken UTF-8 and quotes */
		{"a\xe4\xbd" CALL "f\xff" K("\"\n") V("\xc3") END "\xf0\x9f\x98\x80\xf0\x9f",
			"A(a\xef\xbf\xbd)C(f\xef\xbf\xbd {\"\\\"\\n\": "
			"\"\xef\xbf\xbd\"})A(\xf0\x9f\x98\x80\xef\xbf\xbd)"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		chat_parse_check(cases[i].text, cases[i].want, NULL, false);
	chat_parse_check("r</think>a</think>b", "R(r)A(a</think>b)", NULL, true);
	chat_parse_check("r <think> s", "R(r <think> s)", NULL, true);
}

static void test_types(void **state)
{
	(void)state;
	json_t *tools = json_loads(
		"[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{"
		"\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"n\":{\"type\":\"number\"},"
		"\"b\":{\"type\":\"boolean\"},\"o\":{\"type\":\"object\"},\"l\":{\"type\":\"array\"},"
		"\"sn\":{\"type\":[\"string\",\"null\"]},\"in\":{\"type\":[\"integer\",\"null\"]},"
		"\"any\":{},\"e\":{\"enum\":[1]}}}}},{\"name\":\"flat\",\"parameters\":{\"properties\":{"
		"\"s\":{\"type\":\"string\"}}}}]",
		0, NULL);
	assert_non_null(tools);
	static const struct {
		const char *key, *value, *want;
	} cases[] = {
		{"s", "5", "\"5\""},
		{"s", " null ", "\" null \""},
		{"s", "{\"a\":1}", "\"{\\\"a\\\":1}\""},
		{"s", "", "\"\""},
		{"i", "5", "5"},
		{"i", " -12 ", "-12"},
		{"i", "9223372036854775807", "9223372036854775807"},
		{"i", "9223372036854775808", "\"9223372036854775808\""},
		{"i", "3.5", "3.5"},
		{"i", "five", "\"five\""},
		{"i", "05", "\"05\""},
		{"i", "\"5\"", "\"\\\"5\\\"\""},
		{"i", "", "\"\""},
		{"n", "1.50", "1.50"},
		{"n", "1e400", "\"1e400\""},
		{"n", "3.14159265358979323846", "3.14159265358979323846"},
		{"n", "-", "\"-\""},
		{"n", "1.", "\"1.\""},
		{"n", ".5", "\".5\""},
		{"n", "1e", "\"1e\""},
		{"n", "3", "3"},
		{"n", "3 4", "\"3 4\""},
		{"n", "-1.5E+3", "-1.5E+3"},
		{"b", "true", "true"},
		{"b", "True", "true"},
		{"b", "FALSE", "false"},
		{"b", "yes", "\"yes\""},
		{"b", "1", "\"1\""},
		{"o", "{\"k\":[1,{\"z\":\"\\u00e9\"}]}", "{\"k\": [1, {\"z\": \"\xc3\xa9\"}]}"},
		{"o", "{\"k\":1,\"k\":2}", "{\"k\": 2}"}, /* as most clients read it */
		{"o", "{", "\"{\""},
		{"o", "[1]", "\"[1]\""},
		{"l", " [1, 2] ", "[1, 2]"},
		{"l", "[18446744073709551615]", "\"[18446744073709551615]\""},
		{"l", "[1", "\"[1\""},
		{"sn", "null", "null"},
		{"sn", "nul", "\"nul\""},
		{"sn", "3", "\"3\""},
		{"in", "null", "null"},
		{"in", "7", "7"},
		{"any", "7", "7"},
		{"any", "true", "true"},
		{"any", "True", "\"True\""},
		{"any", "null", "null"},
		{"any", "x", "\"x\""},
		{"any", "\"quoted\"", "\"\\\"quoted\\\"\""},
		{"e", "1", "1"},
		{"unknown", "[]", "[]"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct buf text = {0}, want = {0};
		buf_printf(&text, CALL "f<arg_key>%s</arg_key><arg_value>%s</arg_value>" END, cases[i].key,
			cases[i].value);
		buf_printf(&want, "C(f {\"%s\": %s})", cases[i].key, cases[i].want);
		chat_parse_check(buf_str(&text), buf_str(&want), tools, false);
		buf_free(&text);
		buf_free(&want);
	}
	chat_parse_check(CALL "flat" K("s") V("1") END, "C(flat {\"s\": \"1\"})", tools, false);
	chat_parse_check(CALL "unknown" K("s") V("1") END, "C(unknown {\"s\": 1})", tools, false);
	json_decref(tools);
}

/* A property's schema may stand behind references, in parts and alternatives, or be that of all
 * other keys. */
static void test_types_of_parameters(void **state)
{
	(void)state;
	static const struct {
		const char *parameters, *want; /* of the text 1 */
	} cases[] = {
		{"{'$ref':'#/$defs/a','$defs':{'a':{'properties':{'k':{'type':'string'}}}}}", "\"1\""},
		{"{'$ref':'#/$defs/a','type':'object','$defs':{'a':{'properties':{'k':{'type':'string'}}}}"
		 "}",
			"\"1\""},
		{"{'allOf':[{'properties':{'j':{}}},{'properties':{'k':{'type':'string'}}}]}", "\"1\""},
		{"{'anyOf':[{'properties':{'k':{'type':'string'}}},{'properties':{'k':{'type':'null'}}}]}",
			"\"1\""},
		{"{'anyOf':[{'properties':{'k':{'type':'string'}}},{'required':['j']}]}", "1"},
		{"{'additionalProperties':{'type':'string'}}", "\"1\""},
		{"{'additionalProperties':{'type':'string'},'properties':{'k':{'type':'integer'}}}", "1"},
		{"{'patternProperties':{'^k':{'type':'string'}},'additionalProperties':false}", "\"1\""},
		{"{'additionalProperties':false}", "1"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char parameters[200], want[80];
		snprintf(parameters, sizeof parameters, "%s", cases[i].parameters);
		for (char *p = parameters; *p; p++)
			*p = *p == '\'' ? '"' : *p;
		json_t *schema = json_loads(parameters, 0, NULL),
			   *tools = json_pack("[{s:s,s:o}]", "name", "f", "parameters", schema);
		assert_non_null(tools);
		snprintf(want, sizeof want, "C(f {\"k\": %s})", cases[i].want);
		chat_parse_check(CALL "f" K("k") V("1") END, want, tools, false);
		json_decref(tools);
	}
	/* endless, so the search for types ends when its work is used up */
	json_t *endless = json_loads("{\"allOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#\"}]}", 0, NULL);
	assert_int_equal(schema_property_types(endless, endless, "k"), SCHEMA_ANY);
	json_decref(endless);
}

/* Letters that spell a tag are text when the ids are known. */
static void test_spelled_tags_are_text(void **state)
{
	(void)state;
	static const char text[] = "x" CALL "f" END "</think><think>";
	char *got = parse_ids(text, strlen(text), 0, NULL, false);
	assert_string_equal(got, "A(x" CALL "f" END "</think><think>)");
	free(got);
}

/* An output that was cut off inside a call runs nothing that the call quotes. */
static void test_cut_off(void **state)
{
	(void)state;
	static const char text[] = CALL "f" K("a") "<arg_value>say " CALL "g" END " and";
	for (int ended = 0; ended < 2; ended++) {
		struct chat_parse p;
		struct log l = {.last = -1};
		chat_parse_init(&p, NULL, NULL, false, on_event, &l);
		chat_parse_text(&p, text, strlen(text));
		chat_parse_finish(&p, ended);
		assert_int_equal(l.calls, ended);
		assert_string_equal(buf_str(&l.raw), text);
		chat_parse_fini(&p);
		buf_free(&l.b);
		buf_free(&l.raw);
	}
}

/* Nothing is lost: events carry the input except tags of well-formed parts. And many broken calls
 * take linear time. */
static void test_many_broken_calls(void **state)
{
	(void)state;
	struct buf b = {0};
	for (int i = 0; i < 20000; i++)
		buf_puts(&b, CALL "f" K("a") "<arg_value>x");
	struct chat_parse p;
	struct log l = {.last = -1};
	chat_parse_init(&p, NULL, NULL, false, on_event, &l);
	chat_parse_text(&p, buf_str(&b), b.len);
	chat_parse_finish(&p, true);
	assert_int_equal(l.raw.len, b.len);
	assert_memory_equal(l.raw.data, b.data, b.len);
	assert_int_equal(l.calls, 0);
	chat_parse_fini(&p);
	buf_free(&l.b);
	buf_free(&l.raw);
	buf_free(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_golden),
		cmocka_unit_test(test_broken_calls),
		cmocka_unit_test(test_types),
		cmocka_unit_test(test_types_of_parameters),
		cmocka_unit_test(test_spelled_tags_are_text),
		cmocka_unit_test(test_cut_off),
		cmocka_unit_test(test_many_broken_calls),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
