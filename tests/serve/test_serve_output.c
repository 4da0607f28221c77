/* SPDX-License-Identifier: MIT */
/*
 * Tokens -> what clients get: stop strings against a slow obvious model, rows of probabilities, and
 * forced calls, whose grammar must hold however wild the tokens are drawn.
 */
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/format/gguf.h"
#include "src/serve/compute/output.h"
#include "src/text/json_text.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct gguf *file;
static struct tokenizer *t;
static int32_t n_valid;

static int serve_output_setup(void **state)
{
	(void)state;
	struct err e = {0};
	if (gguf_open("tools/pocket/pocket.gguf", &file, &e) || tokenizer_from_gguf(file, &t, &e))
		fail_msg("%s", e.text);
	n_valid = (int32_t)tokenizer_n_tokens(t);
	while (tokenizer_is_padding(t, n_valid - 1))
		n_valid--;
	return 0;
}

static int serve_output_teardown(void **state)
{
	(void)state;
	tokenizer_free(t);
	gguf_close(file);
	return 0;
}

struct got {
	struct buf text, reasoning, name, arguments;
	size_t n_calls, n_complete, n_rows, pieces;
	int32_t rows[512];
	struct output_token last;
};

static void on_output(void *user, enum output_kind kind, struct text_span text,
	const struct output_token *rows, size_t n_rows)
{
	struct got *g = user;
	g->pieces++;
	if (kind == OUTPUT_TEXT)
		buf_append(&g->text, text.data, text.len);
	if (kind == OUTPUT_REASONING)
		buf_append(&g->reasoning, text.data, text.len);
	if (kind == OUTPUT_CALL) {
		g->n_calls++;
		buf_clear(&g->name);
		buf_append(&g->name, text.data, text.len);
		buf_clear(&g->arguments);
	}
	if (kind == OUTPUT_ARGUMENTS) {
		assert_true(text.len > 0);
		buf_append(&g->arguments, text.data, text.len);
	}
	g->n_complete += kind == OUTPUT_CALL_END;
	if (n_rows)
		g->last = rows[n_rows - 1];
	for (size_t i = 0; i < n_rows && g->n_rows < ARRAY_LEN(g->rows); i++)
		g->rows[g->n_rows++] = rows[i].id;
}

static void got_free(struct got *g)
{
	buf_free(&g->text);
	buf_free(&g->reasoning);
	buf_free(&g->name);
	buf_free(&g->arguments);
}

/* Random texts of few letters, so that stop strings begin often: what comes out is the text up to
 * the first stop. */
static void test_stop_strings(void **state)
{
	(void)state;
	struct rng r = {7};
	float *logits = NEW_ARRAY(float, (size_t)n_valid);
	for (int round = 0; round < 3000; round++) {
		char text[40], stops_text[3][8], *stops[3];
		size_t n = 1 + rng_below(&r, sizeof text - 2), n_stops = 1 + rng_below(&r, 3);
		for (size_t i = 0; i < n; i++)
			text[i] = "ab c"[rng_below(&r, 4)];
		text[n] = 0;
		for (size_t i = 0; i < n_stops; i++) {
			size_t len = 1 + rng_below(&r, 5);
			for (size_t k = 0; k < len; k++)
				stops_text[i][k] = "ab c"[rng_below(&r, 4)];
			stops_text[i][len] = 0;
			stops[i] = stops_text[i];
		}
		struct output_options o = {.stops = stops, .n_stops = n_stops, .logprobs = true};
		struct got g = {0};
		struct token_ids ids = {0};
		assert_int_equal(tokenizer_encode(t, text, n, 0, &ids, NULL), 0);
		struct output *out = output_new(&o, t, NULL, on_output, &g);
		enum output_next next = OUTPUT_GO_ON;
		size_t used = 0, bytes = 0, want = n;
		while (used < ids.n && next == OUTPUT_GO_ON) {
			bytes += tokenizer_token(t, ids.data[used]).len;
			next = output_push(out, ids.data[used++], logits, n_valid);
		}
		output_finish(out, true);
		/* the model: tokens are looked at one after the other; the earliest begin in what there is
		 * so far */
		for (size_t i = 0; i < n_stops; i++) {
			const char *at = memmem(text, bytes, stops[i], strlen(stops[i]));
			if (at)
				want = MIN(want, (size_t)(at - text));
		}
		bool stopped = next == OUTPUT_STOP_STRING;
		if (stopped != (want < n && output_stop_index(out) >= 0) ||
			g.text.len != (stopped ? want : n) || memcmp(buf_str(&g.text), text, g.text.len) != 0)
			fail_msg("\"%s\", stops \"%s\" ...: got \"%s\", expected %zu bytes", text, stops[0],
				buf_str(&g.text), want);
		if (!stopped)
			assert_int_equal(g.n_rows, ids.n); /* every token is accounted for */
		assert_true(g.n_rows <= used);
		assert_memory_equal(g.rows, ids.data, g.n_rows * sizeof *ids.data);
		output_free(out);
		got_free(&g);
		token_ids_free(&ids);
	}
	free(logits);
}

static void test_probabilities(void **state)
{
	(void)state;
	float *logits = NEW_ARRAY(float, (size_t)n_valid);
	struct rng r = {3};
	double sum = 1e-300;
	for (int32_t i = 0; i < n_valid; i++)
		logits[i] = (float)(8 * rng_unit(&r) - 4);
	logits[77] = NAN;
	logits[500] = 9;
	logits[501] = 9;
	for (int32_t i = 0; i < n_valid; i++)
		sum += i == 77 ? 0 : exp((double)logits[i]);
	struct output_options o = {.logprobs = true, .n_top = 5};
	struct got g = {0};
	struct output *out = output_new(&o, t, NULL, on_output, &g);
	output_push(out, 65, logits, n_valid);
	output_finish(out, true);
	assert_int_equal(g.n_rows, 1);
	assert_int_equal(g.last.id, 65);
	assert_true(fabs((double)g.last.logprob - ((double)logits[65] - log(sum))) < 1e-5);
	assert_int_equal(g.last.n_top, 5);
	assert_int_equal(g.last.top[0].id, 500); /* of equals the lower id */
	assert_int_equal(g.last.top[1].id, 501);
	for (uint32_t i = 0; i < 5; i++) {
		assert_true(fabs((double)g.last.top[i].logprob -
						 ((double)logits[g.last.top[i].id] - log(sum))) < 1e-5);
		assert_true(!i || g.last.top[i].logprob <= g.last.top[i - 1].logprob);
	}
	int better = 0;
	for (int32_t i = 0; i < n_valid; i++)
		better += logits[i] > logits[g.last.top[4].id];
	assert_int_equal(better, 4);
	output_free(out);
	got_free(&g);
	free(logits);
}

static const char tools_text[] =
	"[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":"
	"\"object\","
	"\"properties\":{\"city\":{"
	"\"type\":\"string\"},\"days\":{\"type\":\"integer\"}},\"required\":[\"city\"]}}},"
	"{\"type\":\"function\",\"function\":{\"name\":\"get\",\"parameters\":{\"type\":\"object\","
	"\"properties\":{\"a\":{},\"ab\":{}},"
	"\"required\":[\"ab\",\"a\"]}}},"
	"{\"name\":\"now\"},{\"name\":\"free\",\"parameters\":{\"type\":\"object\"}}]";

/* Tokens drawn evenly from all that are allowed: a call must come out, of a tool that exists, with
 * the keys it requires. */
static void test_forced_calls(void **state)
{
	(void)state;
	struct err e = {0};
	json_t *tools = json_text_parse(tools_text, strlen(tools_text), false, &e);
	assert_non_null(tools);
	struct rng r = {21};
	float *logits = NEW_ARRAY(float, (size_t)n_valid), *masked = NEW_ARRAY(float, (size_t)n_valid);
	int32_t end_value = tokenizer_find_added(t, "</arg_value>"),
			end_key = tokenizer_find_added(t, "</arg_key>"),
			end_think = tokenizer_find_added(t, "</think>");
	int seen[5] = {0};
	for (int round = 0; round < 150; round++) {
		bool thinks = rng_below(&r, 2), named = rng_below(&r, 3) == 0;
		struct output_options o = {.chat = true,
			.in_reasoning = thinks,
			.tools = tools,
			.choice = TOOL_CHOICE_REQUIRED,
			.choice_name = named ? (char *)"get" : NULL,
			.one_call = true};
		struct got g = {0};
		struct output *out = output_new(&o, t, NULL, on_output, &g);
		enum output_next next = OUTPUT_GO_ON;
		int n = 0;
		for (; next == OUTPUT_GO_ON && n < 4000; n++) {
			memcpy(masked, logits, (size_t)n_valid * sizeof *masked);
			/* what ends a part is likely enough for an end to come */
			if (rng_below(&r, 3) == 0)
				masked[end_value] = masked[end_key] = masked[end_think] = 100;
			output_mask(out, masked, n_valid);
			int32_t id = -1, n_same = 0;
			for (int32_t i = 0; i < n_valid; i++) {
				if (masked[i] == -INFINITY || (id >= 0 && masked[i] < masked[id]))
					continue;
				n_same = id >= 0 && masked[i] == masked[id] ? n_same + 1 : 1;
				if (id < 0 || masked[i] > masked[id] || !rng_below(&r, (uint32_t)n_same))
					id = i;
			}
			assert_true(id >= 0);
			assert_false(tokenizer_is_stop(t, id));
			assert_true(output_allows(out, id));
			next = output_push(out, id, logits, n_valid);
		}
		assert_int_equal(next, OUTPUT_ONE_CALL);
		assert_int_equal(g.n_calls, 1);
		assert_int_equal(g.n_complete, 1);
		json_t *arguments = json_text_parse(g.arguments.data, g.arguments.len, false, &e);
		assert_non_null(arguments);
		const char *name = buf_str(&g.name);
		if (named)
			assert_string_equal(name, "get");
		if (!strcmp(name, "get_weather")) {
			seen[0]++;
			assert_non_null(json_object_get(arguments, "city"));
			assert_true(
				json_object_size(arguments) == 1u + (json_object_get(arguments, "days") != NULL));
		} else if (!strcmp(name, "get")) {
			seen[1]++;
			assert_true(json_object_get(arguments, "a") && json_object_get(arguments, "ab"));
			assert_int_equal(json_object_size(arguments), 2);
		} else if (!strcmp(name, "now")) {
			seen[2]++;
		} else {
			assert_string_equal(name, "free");
			seen[3]++;
		}
		seen[4] += g.reasoning.len > 0;
		json_decref(arguments);
		output_free(out);
		got_free(&g);
	}
	for (int i = 0; i < 5; i++)
		assert_true(seen[i] > 0); /* all kinds came up */
	json_decref(tools);
	free(logits);
	free(masked);
}

static bool is_call_tag(int32_t id)
{
	static const char *const tags[] = {
		"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"};
	for (size_t i = 0; i < ARRAY_LEN(tags); i++)
		if (tokenizer_find_added(t, tags[i]) == id)
			return true;
	return false;
}

/* Without tools, or with choice none, no tag of a call may come; with tools only the one that opens
 * a call, and not while the model reasons. */
static void test_no_calls(void **state)
{
	(void)state;
	json_t *tools = json_text_parse(tools_text, strlen(tools_text), false, NULL);
	float *logits = NEW_ARRAY(float, (size_t)n_valid);
	int32_t call = tokenizer_find_added(t, "<tool_call>");
	for (int round = 0; round < 8; round++) {
		bool offered = round & 1, none = round & 2, thinks = round & 4;
		struct output_options o = {.chat = true,
			.in_reasoning = thinks,
			.tools = offered ? tools : NULL,
			.choice = none ? TOOL_CHOICE_NONE : TOOL_CHOICE_AUTO};
		struct got g = {0};
		struct output *out = output_new(&o, t, NULL, on_output, &g);
		memset(logits, 0, (size_t)n_valid * sizeof *logits);
		output_mask(out, logits, n_valid);
		for (int32_t i = 0; i < n_valid; i++) {
			bool opens = i == call && offered && !none && !thinks;
			assert_true((logits[i] == -INFINITY) == (is_call_tag(i) && !opens));
		}
		output_free(out);
		got_free(&g);
	}
	json_decref(tools);
	free(logits);
}

/* A call that the model opens itself: names of offered tools only; its arguments come as they are
 * written; cut off anywhere it is a partial call, and no text. */
static void test_own_calls(void **state)
{
	(void)state;
	static const char text[] =
		"hm<tool_call>get_weather<arg_key>city</arg_key><arg_value>Saint \"Denis\"</arg_value>"
		"<arg_key>days</arg_key><arg_value>12</arg_value></tool_call>";
	static const char want[] = "{\"city\": \"Saint \\\"Denis\\\"\", \"days\": 12}";
	json_t *tools = json_text_parse(tools_text, strlen(tools_text), false, NULL);
	float *logits = NEW_ARRAY(float, (size_t)n_valid);
	struct token_ids ids = {0};
	assert_int_equal(tokenizer_encode(t, text, strlen(text), TOKENIZER_PARSE_ADDED, &ids, NULL), 0);
	size_t most_pieces = 0;
	for (size_t cut = 1; cut <= ids.n; cut++) {
		struct output_options o = {.chat = true, .tools = tools};
		struct got g = {0};
		struct output *out = output_new(&o, t, NULL, on_output, &g);
		for (size_t i = 0; i < cut; i++) {
			memset(logits, 0, (size_t)n_valid * sizeof *logits);
			output_mask(out, logits, n_valid);
			assert_true(logits[ids.data[i]] == 0);
			if (output_in_call(out) && !g.n_calls) { /* no other name */
				struct text_span other = {"zebra", 5};
				for (int32_t k = 0; k < n_valid; k++) {
					struct text_span s = tokenizer_token(t, k);
					if (s.len == other.len && !memcmp(s.data, other.data, s.len))
						assert_true(logits[k] == -INFINITY);
				}
			}
			output_push(out, ids.data[i], logits, n_valid);
		}
		most_pieces = MAX(most_pieces, g.pieces);
		output_finish(out, false);
		assert_true(strlen("hm") >= g.text.len); /* never a tag */
		assert_memory_equal(want, buf_str(&g.arguments), g.arguments.len);
		assert_int_equal(g.n_complete, cut == ids.n);
		if (cut == ids.n)
			assert_string_equal(buf_str(&g.arguments), want);
		if (g.n_calls)
			assert_string_equal(buf_str(&g.name), "get_weather");
		output_free(out);
		got_free(&g);
	}
	assert_true(most_pieces > 5);
	token_ids_free(&ids);
	json_decref(tools);
	free(logits);
}

/* An answer with a schema: behind a call that the model opened in its place, another call or the
 * end of the turn may come, and no text. */
static void test_calls_before_answer(void **state)
{
	(void)state;
	static const char call_text[] = "<tool_call>now</tool_call>",
					  keyed_text[] = "<tool_call>get_weather<arg_key>city</arg_key>"
									 "<arg_value>Rome</arg_value></tool_call>";
	const char *const calls[] = {call_text, keyed_text, call_text};
	struct err e = {0};
	json_t *tools = json_text_parse(tools_text, strlen(tools_text), false, NULL);
	json_t *v = json_pack("{s:s}", "type", "integer");
	struct schema *answer;
	struct token_trie *trie = token_trie_new(t);
	float *logits = NEW_ARRAY(float, (size_t)n_valid);
	const int32_t call = tokenizer_find_added(t, "<tool_call>");
	assert_int_equal(schema_compile(v, v, SCHEMA_JSON, &answer, &e), 0);
	for (int choice = TOOL_CHOICE_AUTO; choice <= TOOL_CHOICE_REQUIRED; choice++) {
		if (choice == TOOL_CHOICE_NONE)
			continue;
		const struct output_options o = {.chat = true,
			.tools = tools,
			.choice = (enum tool_choice)choice,
			.answer = answer,
			.tokens = trie};
		struct got g = {0};
		struct output *out = output_new(&o, t, NULL, on_output, &g);
		for (size_t k = 0; k < ARRAY_LEN(calls); k++) {
			struct token_ids ids = {0};
			assert_int_equal(
				tokenizer_encode(t, calls[k], strlen(calls[k]), TOKENIZER_PARSE_ADDED, &ids, NULL),
				0);
			for (size_t i = 0; i < ids.n; i++) {
				assert_true(output_allows(out, ids.data[i]));
				assert_int_equal(output_push(out, ids.data[i], NULL, n_valid), OUTPUT_GO_ON);
			}
			token_ids_free(&ids);
			memset(logits, 0, (size_t)n_valid * sizeof *logits);
			output_mask(out, logits, n_valid);
			for (int32_t i = 0; i < n_valid; i++)
				assert_int_equal(logits[i] != -INFINITY, i == call || tokenizer_is_stop(t, i));
		}
		output_finish(out, true);
		assert_int_equal(g.n_complete, ARRAY_LEN(calls));
		assert_int_equal(g.text.len, 0);
		output_free(out);
		got_free(&g);
	}
	token_trie_free(trie);
	schema_free(answer);
	json_decref(v);
	json_decref(tools);
	free(logits);
}

/* The results of pushing the tokens of `text`: GO_ON for all but the last, which is returned. */
static enum output_next push_text(struct output *out, const char *text)
{
	struct token_ids ids = {0};
	enum output_next next = OUTPUT_GO_ON;
	assert_int_equal(tokenizer_encode(t, text, strlen(text), TOKENIZER_PARSE_ADDED, &ids, NULL), 0);
	for (size_t i = 0; i < ids.n; i++) {
		assert_int_equal(next, OUTPUT_GO_ON);
		next = output_push(out, ids.data[i], NULL, n_valid);
	}
	token_ids_free(&ids);
	return next;
}

/* A tool that says that it takes no arguments gets none, also where it names no properties. */
static void test_no_arguments(void **state)
{
	(void)state;
	static const char *const parameters[] = {"{\"additionalProperties\":false}",
		"{\"properties\":{}}", "{}", "{\"additionalProperties\":true}"};
	const int32_t key = tokenizer_find_added(t, "<arg_key>"),
				  end_call = tokenizer_find_added(t, "</tool_call>");
	for (size_t i = 0; i < ARRAY_LEN(parameters); i++) {
		json_t *tools = json_pack("[{s:s, s:o}]", "name", "f", "parameters",
			json_text_parse(parameters[i], strlen(parameters[i]), false, NULL));
		const struct output_options o = {.chat = true, .tools = tools};
		struct got g = {0};
		struct output *out = output_new(&o, t, NULL, on_output, &g);
		push_text(out, "<tool_call>f");
		assert_int_equal(output_allows(out, key), i >= 2);
		assert_true(output_allows(out, end_call));
		output_free(out);
		got_free(&g);
		json_decref(tools);
	}
}

/* A free key cannot end where it would be one that the call has; it can be made longer. */
static void test_free_keys(void **state)
{
	(void)state;
	static const char first[] = "<tool_call>free<arg_key>a</arg_key><arg_value>1</arg_value>"
								"<arg_key>ab</arg_key><arg_value>2</arg_value><arg_key>a";
	json_t *tools = json_text_parse(tools_text, strlen(tools_text), false, NULL);
	const struct output_options o = {.chat = true, .tools = tools};
	const int32_t end_key = tokenizer_find_added(t, "</arg_key>");
	struct got g = {0};
	struct output *out = output_new(&o, t, NULL, on_output, &g);
	push_text(out, first);
	assert_false(output_allows(out, end_key));
	push_text(out, "b");
	assert_false(output_allows(out, end_key));
	push_text(out, "c");
	assert_true(output_allows(out, end_key));
	push_text(out, "</arg_key><arg_value>3</arg_value></tool_call><tool_call>free<arg_key>a");
	assert_true(output_allows(out, end_key)); /* another call */
	output_free(out);
	got_free(&g);
	json_decref(tools);
}

/* A token that the grammar does not take, which an empty mask lets through, fails the answer: of
 * the answer's schema and of a strict argument's. It is not given out. A cancelled answer ends
 * anyway. */
static void test_broken_schema(void **state)
{
	(void)state;
	static const struct {
		const char *good, *bad;
		bool cancelled;
		enum output_next next;
	} cases[] = {
		{"12", "x", false, OUTPUT_INVALID},
		{"12", "</tool_call>", false, OUTPUT_INVALID},
		{"12", "<tool_call>", false, OUTPUT_INVALID},
		{"12", "x", true, OUTPUT_GO_ON},
		{"<tool_call>get_weather<arg_key>days</arg_key><arg_value>1", "x", false, OUTPUT_INVALID},
		{"<tool_call>get_weather<arg_key>days</arg_key><arg_value>", "</arg_value>", false,
			OUTPUT_INVALID},
		{"<tool_call>get_weather<arg_key>days</arg_key><arg_value>1", "</arg_value>", false,
			OUTPUT_GO_ON},
	};
	struct err e = {0};
	json_t *tools = json_text_parse(tools_text, strlen(tools_text), false, NULL);
	json_t *v = json_pack("{s:s}", "type", "integer");
	struct token_trie *trie = token_trie_new(t);
	struct schema *answer, *days;
	assert_int_equal(schema_compile(v, v, SCHEMA_JSON, &answer, &e), 0);
	assert_int_equal(schema_compile(v, v, SCHEMA_ARGUMENT, &days, &e), 0);
	char tool[] = "get_weather", key[] = "days";
	struct constraint_argument strict = {tool, key, days};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const struct output_options o = {.chat = true,
			.tools = tools,
			.answer = answer,
			.strict = &strict,
			.n_strict = 1,
			.tokens = trie};
		struct got g = {0};
		atomic_bool cancel = cases[i].cancelled;
		struct output *out = output_new(&o, t, &cancel, on_output, &g);
		assert_int_equal(push_text(out, cases[i].good), OUTPUT_GO_ON);
		if (push_text(out, cases[i].bad) != cases[i].next)
			fail_msg("%s behind %s", cases[i].bad, cases[i].good);
		output_finish(out, false);
		if (cases[i].next == OUTPUT_INVALID)
			assert_false(strchr(buf_str(&g.text), 'x') || strchr(buf_str(&g.arguments), 'x'));
		output_free(out);
		got_free(&g);
	}
	schema_free(days);
	schema_free(answer);
	token_trie_free(trie);
	json_decref(v);
	json_decref(tools);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stop_strings),
		cmocka_unit_test(test_probabilities),
		cmocka_unit_test(test_forced_calls),
		cmocka_unit_test(test_no_calls),
		cmocka_unit_test(test_calls_before_answer),
		cmocka_unit_test(test_own_calls),
		cmocka_unit_test(test_no_arguments),
		cmocka_unit_test(test_free_keys),
		cmocka_unit_test(test_broken_schema),
	};
	return cmocka_run_group_tests(tests, serve_output_setup, serve_output_teardown);
}
