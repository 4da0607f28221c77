/* SPDX-License-Identifier: MIT */
/* Request bodies of the four APIs against the pocket's tokenizer: what they come down to, and what
 * is refused. */
#include "src/base/hash.h"
#include "src/base/host/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/format/gguf.h"
#include "src/serve/api/api.h"
#include "src/text/utf8.h"
#include "tests/support/slow_build.h"

#include <malloc.h>
#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct gguf *file;
static struct tokenizer *tokenizer;
static struct request_model model;

static int serve_requests_setup(void **state)
{
	(void)state;
	struct err e = {0};
	if (gguf_open("tools/pocket/pocket.gguf", &file, &e) ||
		tokenizer_from_gguf(file, &tokenizer, &e))
		fail_msg("%s", e.text);
	model = (struct request_model){.tokenizer = tokenizer,
		.name = "pocket",
		.strict_name = true,
		.longest = 128,
		.context = 512,
		.sampling = {.temperature = 1, .top_p = 0.95f},
		.turns = turn_store_new(1 << 20)};
	return 0;
}

static int serve_requests_teardown(void **state)
{
	(void)state;
	turn_store_free(model.turns);
	tokenizer_free(tokenizer);
	gguf_close(file);
	return 0;
}

static void serve_requests_parse(const struct api *api, const char *body, struct request *r)
{
	struct request_error e = {0};
	if (api_parse(api, &model, body, strlen(body), r, &e))
		fail_msg("%s: %s", body, e.message);
}

/* The prompt as text, control tokens spelled out. */
static char *prompt_text(const struct request *r)
{
	struct buf b = {0};
	assert_int_equal(tokenizer_decode(tokenizer, r->prompts[0].data, r->prompts[0].n, &b, NULL), 0);
	return buf_take(&b);
}

static void expect_prompt(const struct api *api, const char *body, const char *text)
{
	struct request r;
	serve_requests_parse(api, body, &r);
	char *got = prompt_text(&r);
	assert_string_equal(got, text);
	free(got);
	request_fini(&r);
}

static void refuse(const struct api *api, const char *body, int status, const char *words)
{
	struct request r;
	struct request_error e = {0};
	if (!api_parse(api, &model, body, strlen(body), &r, &e))
		fail_msg("accepted: %s", body);
	if (e.status != status || !strstr(e.message, words))
		fail_msg("%s: %d %s, expected %d %s", body, e.status, e.message, status, words);
	request_fini(&r);
}

#define HEAD "[gMASK]<sop><|system|>Reasoning Effort: Max"

static void test_prompts(void **state)
{
	(void)state;
	expect_prompt(&api_chat, "{\"messages\":[{\"role\":\"user\",\"content\":\"<|user|>\"}]}",
		HEAD "<|user|><|user|><|assistant|><think>");
	expect_prompt(&api_chat,
		"{\"messages\":[{\"role\":\"developer\",\"content\":\"S\"},{\"role\":\"user\",\"content\":["
		"{\"type\":"
		"\"text\",\"text\":\"a\"},"
		"{\"type\":\"text\",\"text\":\"b\"}]}],\"reasoning_effort\":\"low\"}",
		"[gMASK]<sop><|system|>Reasoning Effort: High<|system|>S<|user|>ab<|assistant|><think>");
	expect_prompt(&api_chat,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"reasoning_effort\":\"none\"}",
		"[gMASK]<sop><|user|>a<|assistant|><think></think>");
	expect_prompt(&api_chat,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
		"\"b\","
		"\"reasoning_content\":\"r\"},"
		"{\"role\":\"user\",\"content\":\"c\"}],\"chat_template_kwargs\":{\"clear_thinking\":false}"
		"}",
		HEAD "<|user|>a<|assistant|><think>r</think>b<|user|>c<|assistant|><think>");
	/* the same conversation through the other APIs */
	const char *rest = "<|system|>S<|user|>q<|assistant|><think>r</think>t<tool_call>f<arg_key>x</"
					   "arg_key><arg_value>1"
					   "</arg_value></tool_call><|observation|><tool_response>o</"
					   "tool_response><|assistant|><think>";
	char *want = mem_printf(HEAD "%s", rest);
	expect_prompt(&api_chat,
		"{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":"
		"\"q\"},{"
		"\"role\":\"assistant\","
		"\"content\":\"t\",\"reasoning_content\":\"r\",\"tool_calls\":[{\"id\":\"i\",\"type\":"
		"\"function\","
		"\"function\":{\"name\":"
		"\"f\",\"arguments\":\"{\\\"x\\\": "
		"1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"i\",\"content\":\"o\"}]}",
		want);
	expect_prompt(&api_messages,
		"{\"max_tokens\":5,\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024},\"system\":[{"
		"\"type\":"
		"\"text\",\"text\":\"S\"}],"
		"\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":[{"
		"\"type\":"
		"\"thinking\",\"thinking\":"
		"\"r\",\"signature\":\"\"},{\"type\":\"text\",\"text\":\"t\"},{\"type\":\"tool_use\","
		"\"id\":\"i\","
		"\"name\":\"f\",\"input\":"
		"{\"x\":1}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":"
		"\"i\","
		"\"content\":\"o\"}]}]}",
		want);
	expect_prompt(&api_responses,
		"{\"instructions\":\"S\",\"input\":[{\"role\":\"user\",\"content\":\"q\"},{\"type\":"
		"\"reasoning\","
		"\"id\":\"z\",\"summary\":[],"
		"\"content\":[{\"type\":\"reasoning_text\",\"text\":\"r\"}]},{\"type\":\"message\","
		"\"role\":"
		"\"assistant\",\"content\":[{\"type\":"
		"\"output_text\",\"text\":\"t\"}]},{\"type\":\"function_call\",\"call_id\":\"i\",\"name\":"
		"\"f\","
		"\"arguments\":\"{\\\"x\\\":1}\"},"
		"{\"type\":\"function_call_output\",\"call_id\":\"i\",\"output\":\"o\"}]}",
		want);
	free(want);
	/* the last message is the assistant's: the answer goes on from it, without reasoning; blanks at
	 * its end count; what it was thinking goes on when there is no answer yet */
	expect_prompt(&api_chat,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
		"\"content\":\" The \"}]}",
		HEAD "<|user|>q<|assistant|><think></think>The ");
	expect_prompt(&api_messages,
		"{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":"
		"\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"The\"}]}]}",
		"[gMASK]<sop><|user|>q<|assistant|><think></think>The");
	expect_prompt(&api_chat,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
		"\"content\":\"The\",\"reasoning_content\":\"r\"}]}",
		HEAD "<|user|>q<|assistant|><think>r</think>The");
	expect_prompt(&api_chat,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
		"\"content\":\"\",\"reasoning_content\":\"r\"}]}",
		HEAD "<|user|>q<|assistant|><think>r");
	expect_prompt(&api_chat,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
		"\"content\":\"\"}]}",
		HEAD "<|user|>q<|assistant|><think>");
	/* Anthropic: no reasoning unless asked for; text beside a result; system parts */
	expect_prompt(&api_messages,
		"{\"max_tokens\":5,\"system\":[{\"type\":\"text\",\"text\":\"A\"},{\"type\":\"text\","
		"\"text\":\"B\"}]"
		",\"messages\":[{\"role\":"
		"\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"i\"},{\"type\":\"text\","
		"\"text\":"
		"\"go on\"}]}]}",
		"[gMASK]<sop><|system|>A\nB<|observation|><tool_response></tool_response><|user|>go "
		"on<|assistant|><think></think>");
}

/* Results stand in the order of their calls. Calls with the same id: in the order of the results.
 */
static void test_result_order(void **state)
{
	(void)state;
	static const struct {
		const char *calls[3], *results[3]; /* ids; the contents of the results are "1", "2", "3" */
		const char *order;
	} cases[] = {
		{{"a", "b", "c"}, {"c", "a", "b"}, "231"},
		{{"a", "b", "c"}, {"c", "a", NULL}, "21"},
		{{"x", "x", "x"}, {"x", "x", "x"}, "123"},
		{{"", "", ""}, {"", "", ""}, "123"},
		{{"a", "b", "a"}, {"b", "a", "a"}, "213"},
		{{"a", "b", NULL}, {"a", "a", "b"}, "123"}, /* a result of no call: as they came */
		{{"a", "b", "c"}, {"c", "a", "z"}, "123"},
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct buf body = {0}, want = {0};
		buf_puts(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":"
						"\"assistant\",\"content\":\"\",\"tool_calls\":[");
		buf_puts(&want, HEAD "<|user|>q<|assistant|><think></think>");
		for (size_t k = 0; k < 3 && cases[i].calls[k]; k++) {
			buf_printf(&body,
				"%s{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"f%zu\","
				"\"arguments\":\"{}\"}}",
				k ? "," : "", cases[i].calls[k], k);
			buf_printf(&want, "<tool_call>f%zu</tool_call>", k);
		}
		buf_puts(&body, "]}");
		for (size_t k = 0; k < 3 && cases[i].results[k]; k++)
			buf_printf(&body, ",{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"content\":\"%zu\"}",
				cases[i].results[k], k + 1);
		buf_puts(&body, "]}");
		buf_puts(&want, "<|observation|>");
		for (const char *p = cases[i].order; *p; p++)
			buf_printf(&want, "<tool_response>%c</tool_response>", *p);
		buf_puts(&want, "<|assistant|><think>");
		expect_prompt(&api_chat, buf_str(&body), buf_str(&want));
		buf_free(&body);
		buf_free(&want);
	}
	/* ollama has no ids: a result names the tool */
	expect_prompt(&api_ollama_chat,
		"{\"think\":false,\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":"
		"\"assistant\","
		"\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{}}},"
		"{\"function\":{\"name\":\"g\",\"arguments\":{}}},"
		"{\"function\":{\"name\":\"f\",\"arguments\":{}}}]},"
		"{\"role\":\"tool\",\"tool_name\":\"g\",\"content\":\"1\"},"
		"{\"role\":\"tool\",\"tool_name\":\"f\",\"content\":\"2\"},"
		"{\"role\":\"tool\",\"tool_name\":\"f\",\"content\":\"3\"}]}",
		"[gMASK]<sop><|user|>q<|assistant|><think></think><tool_call>f</tool_call>"
		"<tool_call>g</tool_call><tool_call>f</tool_call><|observation|>"
		"<tool_response>2</tool_response><tool_response>1</tool_response>"
		"<tool_response>3</tool_response><|assistant|><think></think>");
}

/* Which of the members that turn reasoning on or off wins: efforts first, then "thinking", then
 * enable_thinking, chat_template_kwargs last. */
static void test_thinking(void **state)
{
	(void)state;
	static const struct {
		const char *members;
		bool thinks;
	} cases[] = {
		{"\"reasoning_effort\":\"high\"", true},
		{"\"reasoning_effort\":\"high\",\"thinking\":{\"type\":\"disabled\"}", false},
		{"\"chat_template_kwargs\":{\"reasoning_effort\":\"high\"},"
		 "\"thinking\":{\"type\":\"disabled\"}",
			false},
		{"\"chat_template_kwargs\":{\"reasoning_effort\":\"none\"},"
		 "\"thinking\":{\"type\":\"enabled\"}",
			true},
		{"\"thinking\":{\"type\":\"disabled\"},\"enable_thinking\":true", true},
		{"\"chat_template_kwargs\":{\"reasoning_effort\":\"high\"},\"enable_thinking\":false",
			false},
		{"\"chat_template_kwargs\":{\"enable_thinking\":false,\"reasoning_effort\":\"high\"},"
		 "\"thinking\":{\"type\":\"enabled\"},\"enable_thinking\":true",
			false},
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		char *body = mem_printf(
			"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],%s}", cases[i].members);
		struct request r;
		serve_requests_parse(&api_chat, body, &r);
		if (r.output.in_reasoning != cases[i].thinks)
			fail_msg("%s: reasoning is %s", body, cases[i].thinks ? "off" : "on");
		request_fini(&r);
		free(body);
	}
}

static void test_members(void **state)
{
	(void)state;
	struct request r;
	serve_requests_parse(&api_chat,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"temperature\":0.5,\"top_p\":0,"
		"\"top_k\":-1,"
		"\"min_p\":1,\"seed\":-3,"
		"\"n\":3,\"max_tokens\":1000,\"stop\":[\"x\",\"yz\"],\"logprobs\":true,\"top_logprobs\":4,"
		"\"stream\":"
		"true,"
		"\"stream_options\":{\"include_usage\":true},\"model\":\"pocket\"}",
		&r);
	assert_true(r.sampling.temperature == 0.5f && r.sampling.top_p > 0 && r.sampling.top_k == 0 &&
				r.sampling.min_p < 1);
	assert_true(r.sampling.seed == (uint64_t)-3 && r.n == 3 && r.stream && r.include_usage);
	assert_int_equal(r.max_new, 512 - r.prompts[0].n + 1); /* as much as the context leaves */
	assert_int_equal(r.output.n_stops, 2);
	assert_string_equal(r.output.stops[1], "yz");
	assert_true(r.output.logprobs && r.output.n_top == 4 && r.output.chat && r.output.in_reasoning);
	request_fini(&r);
	serve_requests_parse(
		&api_completions, "{\"prompt\":[[1,2],\"ab\"],\"n\":2,\"logprobs\":0}", &r);
	assert_int_equal(r.n_prompts, 2);
	assert_int_equal(r.prompts[0].n, 2);
	assert_int_equal(r.max_new, 16);
	assert_true(r.output.logprobs && !r.output.n_top && !r.output.chat);
	request_fini(&r);
	serve_requests_parse(&api_messages,
		"{\"max_tokens\":7,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{"
		"\"name\":\"f\","
		"\"input_schema\":{\"type\":"
		"\"object\"}}],\"tool_choice\":{\"type\":\"tool\",\"name\":\"f\"}}",
		&r);
	assert_true(r.output.choice == TOOL_CHOICE_REQUIRED && r.output.one_call && r.max_new == 7);
	assert_string_equal(r.output.choice_name, "f");
	request_fini(&r);
	serve_requests_parse(&api_llamacpp, "{\"prompt\":\"a\",\"seed\":4294967295}", &r);
	assert_true(r.sampling.seed != UINT32_MAX); /* drawn */
	request_fini(&r);
}

static void test_serve_requests_refused(void **state)
{
	(void)state;
	const char *m = "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]";
	static const struct {
		const char *member;
		int status;
		const char *words;
	} cases[] = {
		{"\"temperature\":3", 400, "temperature"},
		{"\"temperature\":true", 400, "a number"},
		{"\"n\":17", 400, "1 to 16"},
		{"\"stop\":\"\"", 400, "empty"},
		{"\"stop\":\"a\\u0000b\"", 400, "zero byte"},
		{"\"model\":\"other\"", 404, "does not exist"},
		{"\"tool_choice\":\"required\"", 400, "no tools"},
		{"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\\u0000b\"}}]", 400, "name"},
		{"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":{"
		 "\"type\":"
		 "\"function\",\"function\":{\"name\":"
		 "\"g\"}}",
			400, "not among"},
		{"\"response_format\":{\"type\":\"json_schema\"}", 400, "expected a schema"},
		{"\"response_format\":{\"type\":\"xml\"}", 400, "json_object or json_schema"},
		{"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"not\":{}}}}",
			400, "response_format.json_schema.schema: the keyword \"not\" is not supported"},
		{"\"response_format\":{\"type\":\"json_object\"},\"ignore_eos\":true", 400, "ignore_eos"},
		{"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,"
		 "\"parameters\":{\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"(\"}}}}}]",
			400, "tools: f: a: pattern"},
		{"\"logit_bias\":{\"a\":2}", 400, "token ids as keys"},
		{"\"logit_bias\":{\"1\":200}", 400, "-100 to 100"},
		{"\"logit_bias\":{\"100000000\":2}", 400, "token ids of 0 to"},
		{"\"presence_penalty\":3", 400, "presence_penalty"},
		{"\"repetition_penalty\":0", 400, "repetition_penalty"},
		{"\"stop_token_ids\":[-1]", 400, "stop_token_ids"},
		{"\"grammar\":\"root ::= x\"", 400, "grammar is not supported"},
		{"\"unheard_of\":1", 400, "unheard_of is not supported"},
		{"\"mirostat\":2", 400, "mirostat is not supported"},
		{"\"typical_p\":0.9", 400, "typical_p is not supported"},
		{"\"best_of\":2", 400, "best_of is not supported"},
		{"\"modalities\":[\"text\",\"audio\"]", 400, "only text"},
		{"\"thinking\":{\"type\":\"maybe\"}", 400, "enabled"},
		{"\"thinking\":true", 400, "thinking: expected an object"},
		{"\"stream_options\":\"usage\"", 400, "stream_options: expected an object"},
		{"\"chat_template_kwargs\":[]", 400, "chat_template_kwargs: expected an object"},
		{"\"chat_template_kwargs\":{\"enable_thinking\":\"no\"}", 400,
			"chat_template_kwargs.enable_thinking:"},
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		char *body = mem_printf("{%s,%s}", m, cases[i].member);
		refuse(&api_chat, body, cases[i].status, cases[i].words);
		free(body);
	}
	refuse(&api_chat, "[]", 400, "an object");
	refuse(&api_chat, "{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", 400,
		"cannot be read as JSON");
	refuse(
		&api_messages, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", 400, "max_tokens");
	refuse(&api_chat,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
		"\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]}]}",
		400, "ends with calls");
	refuse(&api_chat, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"store\":true}", 400,
		"store");
	refuse(&api_messages,
		"{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"video\"}]}]}",
		400, "video");
	refuse(&api_messages,
		"{\"max_tokens\":1,\"tools\":[{\"type\":\"bash_1\",\"name\":\"b\"}],\"messages\":[{"
		"\"role\":\"user\","
		"\"content\":\"a\"}]}",
		400, "tools.0");
	refuse(&api_responses, "{\"input\":\"a\",\"reasoning\":\"high\"}", 400,
		"reasoning: expected an object");
	refuse(&api_responses, "{\"input\":\"a\",\"unheard_of\":1}", 400, "unheard_of");
	refuse(&api_completions, "{\"prompt\":\"a\",\"guided_json\":{\"a\":1}}", 400, "guided_json");
	refuse(&api_messages,
		"{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"dry_multiplier\":"
		"1}",
		400, "dry_multiplier");
	refuse(&api_responses, "{\"input\":\"a\",\"text\":5}", 400, "text: expected an object");
	refuse(&api_responses, "{\"input\":\"a\",\"previous_response_id\":\"r\"}", 400,
		"there is no response");
	refuse(&api_responses, "{\"input\":[{\"type\":\"item_reference\",\"id\":\"x\"}]}", 400,
		"item_reference");
	refuse(&api_responses, "{\"input\":[{\"type\":\"function_call\",\"name\":\"f\"}]}", 400,
		"call_id");
	refuse(&api_completions, "{\"prompt\":[]}", 400, "empty");
	refuse(&api_completions, "{\"prompt\":\"\"}", 400, "no tokens");
	refuse(&api_completions, "{\"prompt\":[8192]}", 400, "token id");
	refuse(&api_completions, "{\"prompt\":\"a\",\"echo\":true}", 400, "not supported");
	struct buf deep = {0};
	/* a name is quoted as far as it fits, never half a character */
	buf_puts(&deep, "{\"prompt\":\"a\",\"x");
	for (int i = 0; i < 60; i++)
		buf_puts(&deep, "\xc3\xa9");
	buf_puts(&deep, "\":1}");
	struct request cut;
	struct request_error e = {0};
	assert_int_not_equal(
		api_parse(&api_completions, &model, buf_str(&deep), deep.len, &cut, &e), 0);
	assert_true(strlen(e.param) > 50);
	assert_int_equal(utf8_valid_prefix(e.param, strlen(e.param)), strlen(e.param));
	request_fini(&cut);
	/* each argument is small, all together are not */
	buf_clear(&deep);
	buf_puts(&deep,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"type\":"
		"\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{"
		"\"$defs\":{\"s\":{\"type\":\"string\",\"maxLength\":100000}},\"properties\":{");
	for (int i = 0; i < 12; i++)
		buf_printf(&deep, "%s\"a%d\":{\"$ref\":\"#/$defs/s\"}", i ? "," : "", i);
	buf_puts(&deep, "}}}}]}");
	/* a sanitizer makes compiling so slow that the limit of time may come first */
	refuse(&api_chat, buf_str(&deep), 400, IF_SANITIZER("schemas of", "too large together"));
	buf_clear(&deep);
	for (int i = 0; i < 10000; i++)
		buf_puts(&deep, "[");
	refuse(&api_chat, buf_str(&deep), 400, "levels deep");
	buf_clear(&deep);
	buf_puts(&deep, "{\"prompt\":\"");
	for (int i = 0; i < 600; i++)
		buf_puts(&deep, " zx");
	buf_puts(&deep, "\"}");
	refuse(&api_completions, buf_str(&deep), 400, "context");
	/* too long to be worth cutting into tokens, and too many values to be worth making */
	buf_clear(&deep);
	buf_puts(&deep, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
	for (int i = 0; i < 70000; i++)
		buf_putc(&deep, 'x');
	buf_puts(&deep, "\"}]}");
	refuse(&api_chat, buf_str(&deep), 400, "the context can hold");
	buf_clear(&deep);
	buf_puts(&deep, "{\"messages\":[\"");
	for (int i = 0; i < 400000; i++)
		buf_puts(&deep, ",[]");
	buf_puts(&deep, "\",1]}"); /* inside a string nothing counts */
	refuse(&api_chat, buf_str(&deep), 400, "messages[0]");
	buf_clear(&deep);
	buf_puts(&deep, "{\"messages\":[1");
	for (int i = 0; i < 400000; i++)
		buf_puts(&deep, ",1");
	buf_puts(&deep, "]}");
	refuse(&api_chat, buf_str(&deep), 400, "values");
	buf_free(&deep);
}

/* llama.cpp's range of the penalties matters only where one is on. */
static void test_penalty_ranges(void **state)
{
	(void)state;
	static const char *const good[] = {"\"repeat_last_n\":64", "\"repeat_last_n\":0",
		"\"repeat_last_n\":-1,\"presence_penalty\":1.5", "\"penalize_newline\":false",
		"\"penalize_newline\":false,\"frequency_penalty\":1"};
	static const char *const bad[] = {"\"repeat_last_n\":64,\"repeat_penalty\":1.1",
		"\"repeat_last_n\":64,\"frequency_penalty\":1",
		"\"repeat_last_n\":0,\"presence_penalty\":1.5"};
	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		struct request r;
		char *body = mem_printf("{\"prompt\":\"a\",%s}", good[i]);
		serve_requests_parse(&api_llamacpp, body, &r);
		request_fini(&r);
		free(body);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		char *body = mem_printf("{\"prompt\":\"a\",%s}", bad[i]);
		refuse(&api_llamacpp, body, 400, "repeat_last_n is not supported");
		free(body);
	}
}

/* Parameters of strict tools that calls cannot be held to, and some that look like it. */
static void test_strict_parameters(void **state)
{
	(void)state;
	static const char body[] =
		"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"type\":\"function\","
		"\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":%s}}]}";
	static const char *const bad[][2] = {
		{"{\"type\":\"string\"}", "tools: f: the parameters are an object, which their type"},
		{"{\"type\":[\"null\",\"array\"],\"properties\":{}}", "which their type does not allow"},
		{"[]", "tools: f: parameters: expected an object, found an array"},
		{"{\"type\":\"objekt\"}", "which their type does not allow"},
		{"{\"type\":\"object\",\"properties\":[\"a\"]}",
			"properties: expected an object, found an"},
		{"{\"properties\":{\"a\":{}},\"required\":true}",
			"required: expected an array, found a boolean"},
		{"{\"properties\":{\"\":{}},\"required\":[\"\"]}", "\"\" is required but not among"},
		{"{\"properties\":{\"a\":{}},\"required\":[\"b\"]}", "\"b\" is required but not among"},
		{"{\"additionalProperties\":{\"type\":\"integer\"}}",
			"additionalProperties: a schema without properties is not supported"},
		{"{\"additionalProperties\":\"x\"}",
			"additionalProperties: expected a schema, found a string"},
		{"{\"properties\":{\"a\":{}},\"additionalProperties\":3}",
			"additionalProperties: expected a schema, found a number"},
		{"{\"properties\":{},\"propertyNames\":{\"maxLength\":1}}", "\"propertyNames\" beside"},
		{"{\"properties\":{\"a\":{}},\"minProperties\":1}", "\"minProperties\" beside"},
	};
	static const char *const good[] = {
		"{\"type\":\"object\"}",
		"{\"type\":[\"object\",\"null\"],\"properties\":{\"a\":{}},\"required\":[]}",
		"{\"additionalProperties\":false}",
		"{\"additionalProperties\":{}}",
		"{\"properties\":{\"a\":{}},\"additionalProperties\":{\"type\":\"integer\"}}",
		"{\"type\":null,\"properties\":null,\"required\":null,\"additionalProperties\":null}",
		"{\"properties\":{\"a\":{}},\"required\":null}",
		"{\"$comment\":\"c\",\"deprecated\":true,\"x-order\":1,\"properties\":{\"a\":{}}}",
		"null",
	};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		char *text = mem_printf(body, bad[i][0]);
		refuse(&api_chat, text, 400, bad[i][1]);
		free(text);
	}
	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		struct request r;
		char *text = mem_printf(body, good[i]);
		serve_requests_parse(&api_chat, text, &r);
		request_fini(&r);
		free(text);
	}
}

/* What stands where another kind of value is expected, in each API's own shapes. MESSAGES and INPUT
 * begin a body that is fine but for what follows. */
#define MESSAGES "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
#define BLOCK(b) "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[" b "]}]}"
#define INPUT    "{\"input\":\"a\","
#define ITEM(i)  "{\"input\":[" i "]}"
static void test_shapes_refused(void **state)
{
	(void)state;
	static const struct {
		const struct api *api;
		const char *body, *words;
	} cases[] = {
		{&api_messages, BLOCK("{\"type\":\"tool_result\",\"content\":\"x\"}"),
			"a tool_use_id in tool_result"},
		{&api_messages,
			BLOCK(
				"{\"type\":\"tool_result\",\"tool_use_id\":\"i\",\"content\":[{\"type\":\"x\"}]}"),
			"text or images in tool_result"},
		{&api_messages, BLOCK("{\"type\":\"tool_result\",\"tool_use_id\":\"i\",\"content\":5}"),
			"a string or an array as the content of tool_result"},
		{&api_messages,
			"{\"max_tokens\":1,\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":"
			"\"tool_use\"}]}]}",
			"text, thinking or tool_use (with id and name)"},
		{&api_messages, MESSAGES "\"system\":[{\"type\":\"text\"}]}", "system.0: expected a text"},
		{&api_messages, MESSAGES "\"system\":5}", "system: expected a string or an array"},
		{&api_messages, MESSAGES "\"tools\":5}", "tools: expected an array"},
		{&api_messages, MESSAGES "\"tools\":[{\"type\":\"web_search_20250305\"}]}",
			"tools.0: expected a tool with name and input_schema"},
		{&api_messages, MESSAGES "\"tool_choice\":{\"type\":\"tool\"}}",
			"expected auto, any, none, or tool with a name"},
		{&api_messages, MESSAGES "\"tool_choice\":{\"type\":\"any\",\"name\":5}}", "name"},
		{&api_messages,
			MESSAGES "\"tools\":[{\"name\":\"f\",\"strict\":true,\"input_schema\":{\"properties\":{"
					 "\"a\":{\"not\":{}}}}}]}",
			"\"not\" is not supported"},
		{&api_responses, ITEM("{\"role\":\"user\",\"content\":5}"), "a string or an array"},
		{&api_responses, ITEM("{\"role\":\"user\",\"content\":[{\"type\":\"input_file\"}]}"),
			"parts of input_text, output_text or input_image, found input_file"},
		{&api_responses, ITEM("{\"role\":\"judge\",\"content\":\"a\"}"),
			"the role user, system, developer or assistant, found judge"},
		{&api_responses, ITEM("{\"type\":\"function_call_output\",\"output\":\"x\"}"),
			"function_call_output with a call_id"},
		{&api_responses, ITEM("{\"type\":\"function_call_output\",\"call_id\":\"i\",\"output\":1}"),
			"a string or an array as content"},
		{&api_responses, ITEM("{\"type\":\"reasoning\",\"content\":[{\"type\":\"x\"}]}"),
			"parts of input_text"},
		{&api_responses, INPUT "\"truncation\":\"auto\"}", "truncation: only disabled"},
		{&api_responses, INPUT "\"tools\":[{\"type\":\"web_search\"}]}",
			"tools[0].type: only function is supported"},
		{&api_chat, MESSAGES "\"logit_bias\":5}", "expected an object of token ids"},
		{&api_chat, MESSAGES "\"logit_bias\":{\"a\":1}}", "expected token ids as keys"},
		{&api_chat, MESSAGES "\"logit_bias\":[[1]]}", "pairs of a token id and a number"},
		{&api_chat, MESSAGES "\"logit_bias\":[[1,2],[8192,1]]}", "token ids of 0 to"},
		{&api_chat, MESSAGES "\"logit_bias\":{\"1\":101}}", "numbers of -100 to 100"},
		{&api_chat, MESSAGES "\"ignore_eos\":5}", "ignore_eos"},
		{&api_chat, MESSAGES "\"stop_token_ids\":5}", "an array of at most"},
		{&api_chat, MESSAGES "\"stop_token_ids\":[1,-1]}", "item 1: expected a token id"},
		{&api_completions, "{\"prompt\":\"a\",\"n\":2,\"best_of\":3}", "best_of"},
		{&api_completions, "{\"prompt\":[\"a\",\"b\",\"c\"],\"n\":9}", "16"},
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		refuse(cases[i].api, cases[i].body, 400, cases[i].words);
	/* what is next to these, and fine */
	struct request r;
	serve_requests_parse(
		&api_chat, MESSAGES "\"logit_bias\":[[1,2],[5,false]],\"stop_token_ids\":[3,4]}", &r);
	assert_int_equal(r.sampling.n_bias, 2);
	assert_true(r.sampling.bias[1].add == -INFINITY);
	assert_int_equal(r.output.n_stop_ids, 2);
	request_fini(&r);
}

/* An answer that was given comes back as its own tokens: also where the text alone would be cut
 * into others. */
static void test_known_turns(void **state)
{
	(void)state;
	struct request r;
	const char *first = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}";
	serve_requests_parse(&api_chat, first, &r);
	/* reasoning "r", then "lake" as single bytes */
	int32_t ids[8], end_think = tokenizer_find_added(tokenizer, "</think>");
	struct token_ids one = {0};
	size_t n = 0;
	for (const char *c = "r|lake"; *c; c++) {
		one.n = 0;
		assert_int_equal(tokenizer_encode(tokenizer, c, 1, 0, &one, NULL), 0);
		ids[n++] = *c == '|' ? end_think : one.data[0];
	}
	token_ids_free(&one);
	struct stored_turn turn = {.content = {(char *)"lake", 4},
		.call_ids = "",
		.before = hash_bytes(HASH_START, r.prompts[0].data, r.prompts[0].n * sizeof(int32_t)),
		.n_before = r.prompts[0].n,
		.reasoning = {(char *)"r", 1}};
	turn_store_put(model.turns, &turn, ids, n, 2);
	size_t before = r.prompts[0].n;
	request_fini(&r);
	/* as clients send it: with blanks, without reasoning; the reasoning goes with the next user
	 * message */
	serve_requests_parse(&api_chat,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
		"\" "
		"lake\\n\"},{\"role\":\"user\","
		"\"content\":\"b\"}]}",
		&r);
	assert_int_equal(r.built.replayed, 1);
	assert_int_equal(r.prompts[0].data[before], end_think);
	assert_memory_equal(r.prompts[0].data + before + 1, ids + 2, 4 * sizeof *ids);
	request_fini(&r);
	serve_requests_parse(&api_chat,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
		"\"lake\"},{"
		"\"role\":\"user\","
		"\"content\":\"b\"}],\"chat_template_kwargs\":{\"clear_thinking\":false}}",
		&r);
	assert_int_equal(r.built.replayed, 1);
	assert_memory_equal(r.prompts[0].data + before, ids, n * sizeof *ids);
	request_fini(&r);
	/* other reasoning, another answer, another beginning: not it */
	static const char *const others[] = {
		"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
		"\"lake\","
		"\"reasoning_content\":\"s\"},"
		"{\"role\":\"user\",\"content\":\"b\"}]}",
		"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
		"\"lakes\"},"
		"{\"role\":\"user\","
		"\"content\":\"b\"}]}",
		"{\"messages\":[{\"role\":\"user\",\"content\":\"z\"},{\"role\":\"assistant\",\"content\":"
		"\"lake\"},{"
		"\"role\":\"user\","
		"\"content\":\"b\"}]}",
	};
	for (size_t i = 0; i < ARRAY_LEN(others); i++) {
		serve_requests_parse(&api_chat, others[i], &r);
		assert_int_equal(r.built.replayed, 0);
		request_fini(&r);
	}
}

/* The store forgets the least recently used turn first and never holds more than its limit. */
static void test_turn_store(void **state)
{
	(void)state;
	struct turn_store *s = turn_store_new(64 << 10);
	int32_t ids[256] = {0};
	struct token_ids out = {0};
	for (int i = 0; i < 500; i++) {
		char text[16];
		snprintf(text, sizeof text, "turn %d", i);
		ids[0] = i;
		struct stored_turn t = {.content = {text, strlen(text)}, .call_ids = "", .n_before = 0};
		turn_store_put(s, &t, ids, 256, 0);
		t.content = (struct chat_text){(char *)"turn 0", 6}; /* kept alive by use */
		out.n = 0;
		assert_true(turn_store_get(s, &t, true, &out));
		assert_int_equal(out.n, 256);
		assert_int_equal(out.data[0], 0);
	}
	struct stored_turn t = {.content = {(char *)"turn 1", 6}, .call_ids = "", .n_before = 0};
	assert_false(turn_store_get(s, &t, true, &out));
	t.content.data = (char *)"turn 499";
	t.content.len = 8;
	assert_true(turn_store_get(s, &t, true, &out));
	assert_true(turn_store_bytes(s) > 60 << 10 && turn_store_bytes(s) <= 64 << 10);
	static const int32_t many[20 << 10]; /* larger than the store: nothing goes for it */
	t.content.data = (char *)"turn 500";
	turn_store_put(s, &t, many, ARRAY_LEN(many), 0);
	assert_false(turn_store_get(s, &t, true, &out));
	t.content.data = (char *)"turn 499";
	assert_true(turn_store_get(s, &t, true, &out));
	token_ids_free(&out);
	turn_store_free(s);
}

#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
/* What the store counts is at least what the allocator gave it. */
static void test_turn_bytes(void **state)
{
	(void)state;
	struct turn_store *s = turn_store_new(1 << 20);
	int32_t ids[60] = {0};
	size_t before = mallinfo2().uordblks;
	for (int i = 0; i < 300; i++) {
		char text[40];
		snprintf(text, sizeof text, "an answer, number %d", i);
		struct stored_turn t = {.content = {text, strlen(text)}, .call_ids = ""};
		turn_store_put(s, &t, ids, (size_t)i % 60, 0);
	}
	size_t after = mallinfo2().uordblks, counted = turn_store_bytes(s);
	print_message("300 answers: from %zu to %zu bytes, counted %zu\n", before, after, counted);
	assert_true(after <= before + counted + 4096); /* the allocator keeps some freed blocks */
	turn_store_free(s);
}
#endif

/* Processor time of a conversation of n turns, in nanoseconds. */
static uint64_t turns_cost(const struct request_model *m, size_t n)
{
	struct buf body = {0};
	struct request r;
	struct request_error e = {0};
	buf_puts(&body, "{\"messages\":[");
	for (size_t i = 0; i < n; i++)
		buf_puts(&body, "{\"role\":\"assistant\",\"content\":\"\"},"
						"{\"role\":\"user\",\"content\":\"\"},");
	buf_puts(&body, "{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":1}");
	uint64_t start = clock_thread_ns();
	if (api_parse(&api_chat, m, buf_str(&body), body.len, &r, &e))
		fail_msg("%s", e.message);
	uint64_t took = clock_thread_ns() - start;
	request_fini(&r);
	buf_free(&body);
	return took;
}

/* Six times as many turns take about six times as long, not 36 times. */
static void test_many_turns(void **state)
{
	(void)state;
	struct request_model m = model;
	m.context = 1 << 20;
	turns_cost(&m, 1000);
	uint64_t few = 0, many = 1;
	for (int i = 0; i < 5 && many >= 14 * few; i++)
		few = turns_cost(&m, 8000), many = turns_cost(&m, 48000);
	print_message("8,000 turns: %.3f s, 48,000: %.3f s\n", (double)few / 1e9, (double)many / 1e9);
	assert_true(many < 14 * few);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_prompts),
		cmocka_unit_test(test_result_order),
		cmocka_unit_test(test_thinking),
		cmocka_unit_test(test_members),
		cmocka_unit_test(test_serve_requests_refused),
		cmocka_unit_test(test_penalty_ranges),
		cmocka_unit_test(test_strict_parameters),
		cmocka_unit_test(test_shapes_refused),
		cmocka_unit_test(test_known_turns),
		cmocka_unit_test(test_turn_store),
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
		cmocka_unit_test(test_turn_bytes),
#endif
		cmocka_unit_test(test_many_turns),
	};
	return cmocka_run_group_tests(tests, serve_requests_setup, serve_requests_teardown);
}
