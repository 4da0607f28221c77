/* SPDX-License-Identifier: MIT */
/*
 * Request bodies of the server. The first byte chooses the API, the rest is the body. Checked: a
 * refusal has a status of 4xx and a sentence, and is JSON; what is accepted gives prompts that fit
 * the context, the same ones a second time, as many tokens as the counting paths say, and answers
 * that are JSON, whole and as a stream, whatever of the request they repeat; no memory stays
 * counted.
 */
#include "src/base/log.h"
#include "src/serve/api/api.h"
#include "src/text/json_text.h"
#include "tests/fuzz/fixture.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct api *const apis[] = {&api_chat, &api_completions, &api_responses, &api_messages,
	&api_ollama_chat, &api_ollama_generate, &api_llamacpp, &api_messages};

static void expect_json(const char *text, size_t n)
{
	struct err e = {0};
	json_t *v = json_text_parse(text, n, false, &e);
	if (!v)
		bug("the server writes what is not JSON: %s: %.200s", e.text, text);
	json_decref(v);
}

/* Every line of a stream of JSON lines. */
static void expect_lines(const struct buf *out)
{
	const char *end;
	for (const char *at = buf_str(out); *at; at = end + 1) {
		if (!(end = strchr(at, '\n')))
			bug("a line without an end");
		expect_json(at, (size_t)(end - at));
	}
}

/* Every data line of a stream. What the client said may hold "data: " as well, but no line begins
 * with that. */
static void expect_events(const struct buf *out)
{
	const char *end;
	for (const char *at = buf_str(out); *at; at = end + 1) {
		if (!(end = strchr(at, '\n')))
			bug("an event without an end");
		if (!strncmp(at, "data: ", 6) && strncmp(at + 6, "[DONE]", 6) != 0)
			expect_json(at + 6, (size_t)(end - at) - 6);
	}
}

static void give(const struct api *api, struct reply *r, struct reply_answer *a,
	enum job_event_kind kind, const char *text, struct buf *out)
{
	struct job_event v = {.kind = kind, .index = a->index, .stop = -1};
	struct output_token row = {
		.id = 5, .logprob = -1, .n_top = 1, .top = {{.id = 6, .logprob = -2}}};
	buf_puts(&v.text, text);
	if (kind == JOB_REASONING)
		buf_puts(&a->reasoning, text);
	if (kind == JOB_TEXT) {
		buf_puts(&a->text, text);
		if (r->request->output.logprobs) {
			a->rows = realloc(a->rows, (a->n_rows + 1) * sizeof row);
			a->rows[a->n_rows++] = row;
			v.rows = &row;
			v.n_rows = 1;
		}
	}
	if (kind == JOB_CALL) {
		a->calls = realloc(a->calls, (a->n_calls + 1) * sizeof *a->calls);
		struct reply_call *c = &a->calls[a->n_calls++];
		*c = (struct reply_call){.id = "call_1", .text_at = a->text.len, .rows_at = a->n_rows};
		buf_puts(&c->name, text);
	}
	if (kind == JOB_ARGUMENTS)
		buf_puts(&a->calls[a->n_calls - 1].arguments, text);
	if (kind == JOB_CALL_END)
		a->calls[a->n_calls - 1].complete = true;
	a->ended = kind == JOB_END;
	api->event(r, a, &v, out);
	buf_free(&v.text);
}

/* A made-up answer through the writers. */
static void write_answers(const struct api *api, struct request *q)
{
	struct reply r = {.request = q, .n_answers = (uint32_t)q->n_prompts * q->n};
	struct buf out = {0}, whole = {0};
	r.answers = calloc(r.n_answers, sizeof *r.answers);
	api->begin(&r, &out);
	for (uint32_t i = 0; i < r.n_answers; i++) {
		struct reply_answer *a = &r.answers[i];
		a->index = i;
		if (q->output.chat) {
			give(api, &r, a, JOB_REASONING, "think \"\\\n", &out);
			give(api, &r, a, JOB_TEXT, "\n", &out);
			give(api, &r, a, JOB_CALL, "f\"\n", &out);
			give(api, &r, a, JOB_ARGUMENTS, "{\"a\": \"x", &out);
			give(api, &r, a, JOB_ARGUMENTS, ",\", \"b\": [1", &out);
			if (!(i & 2)) {
				give(api, &r, a, JOB_ARGUMENTS, "]}", &out);
				give(api, &r, a, JOB_CALL_END, "", &out);
			}
		}
		give(api, &r, a, JOB_TEXT, "text\t\xc3\xa9", &out);
		a->finish = i & 1 ? JOB_LENGTH : JOB_STOP_TOKEN;
		give(api, &r, a, JOB_END, "", &out);
	}
	api->ping(&r, &out);
	api->end(&r, &out);
	if (api->stream_type)
		expect_lines(&out);
	else
		expect_events(&out);
	api->whole(&r, &whole);
	expect_json(buf_str(&whole), whole.len);
	buf_free(&out);
	buf_free(&whole);
	reply_end(&r);
}

/* llama.cpp's paths that answer at once. */
static void try_token_paths(const struct request_model *model, const char *body, size_t len)
{
	static int (*const paths[])(const struct request_model *model, const char *body, size_t len,
		struct buf *out,
		struct request_error *e) = {api_tokenize, api_detokenize, api_apply_template};
	for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
		struct buf out = {0};
		struct request_error e = {0};
		if (!paths[i](model, body, len, &out, &e))
			expect_json(buf_str(&out), out.len);
		else if (e.status < 400 || e.status > 499 || !e.message[0])
			bug("a refusal of status %d: %s", e.status, e.message);
		buf_free(&out);
	}
}

static void expect_nothing_counted(const struct budget *b)
{
	if (atomic_load(&b->held))
		bug("%zu bytes stay counted", atomic_load(&b->held));
}

/* What the paths that only count say of a request that was accepted. */
static void check_count(const struct api *api, const struct request_model *model, const char *body,
	size_t len, const struct request *r)
{
	struct request_error e = {0};
	int64_t n = api == &api_messages    ? api_messages_count(model, body, len, &e)
				: api == &api_responses ? api_responses_count(model, body, len, &e)
										: -1;
	if (n >= 0 && (size_t)n != r->prompts[0].n)
		bug("%lld tokens are counted, the prompt has %zu", (long long)n, r->prompts[0].n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct budget budget = {.limit = 256 << 20};
	static struct request_model model;
	if (!model.tokenizer) {
		model = (struct request_model){.tokenizer = fixture_tokenizer(),
			.name = "pocket",
			.longest = 128,
			.context = 2048,
			.sampling = {.temperature = 1, .top_p = 0.95f},
			.tokens = token_trie_new(fixture_tokenizer()),
			.budget = &budget,
			.turns = turn_store_new(1 << 16)};
	}
	if (!size)
		return 0;
	const struct api *api = apis[data[0] % 8];
	const char *body = (const char *)data + 1;
	struct request r, again;
	struct request_error e = {0};
	struct buf out = {0};
	if (data[0] % 9 == 8)
		try_token_paths(&model, body, size - 1);
	if (data[0] % 5 == 4 && api_messages_count(&model, body, size - 1, &e) < 0 && !e.status)
		bug("a refusal without a status");
	if (api_parse(api, &model, body, size - 1, &r, &e)) {
		if (e.status < 400 || e.status > 499 || !e.message[0])
			bug("a refusal of status %d: %s", e.status, e.message);
		api->error(&e, &out);
		expect_json(buf_str(&out), out.len);
		buf_free(&out);
		request_fini(&r);
		expect_nothing_counted(&budget);
		return 0;
	}
	if (api_parse(api, &model, body, size - 1, &again, &e) || again.n_prompts != r.n_prompts)
		bug("refused the second time: %s", e.message);
	for (size_t i = 0; i < r.n_prompts; i++) {
		const struct token_ids *a = &r.prompts[i], *b = &again.prompts[i];
		if (!a->n || a->n >= model.context || a->n + r.max_new > model.context + 1)
			bug("a prompt of %zu tokens and an answer of %u", a->n, r.max_new);
		for (size_t k = 0; k < a->n; k++)
			if (a->data[k] < 0 || a->data[k] >= (int32_t)tokenizer_n_tokens(model.tokenizer))
				bug("token %d in a prompt", a->data[k]);
		if (a->n != b->n || memcmp(a->data, b->data, a->n * sizeof *a->data))
			bug("another prompt the second time");
	}
	if (!r.n || r.n_prompts * r.n > REQUEST_ANSWERS_MAX)
		bug("%zu prompts, %u answers", r.n_prompts, r.n);
	check_count(api, &model, body, size - 1, &r);
	write_answers(api, &r);
	request_fini(&again);
	request_fini(&r);
	expect_nothing_counted(&budget);
	return 0;
}
