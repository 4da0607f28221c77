/* SPDX-License-Identifier: MIT */
/* OpenAI's /v1/chat/completions. */
#include "src/serve/api/api.h"

#include "src/base/num.h"
#include "src/serve/api/json_write.h"
#include "src/text/json_text.h"

#include <stdlib.h>
#include <string.h>

/* ---- request ---- */

static int parse_messages(struct request *r, struct request_error *e)
{
	const json_t *messages = json_object_get(r->body, "messages");
	if (!json_is_array(messages) || !json_array_size(messages))
		return request_refuse(e, 400, NULL, "messages",
			"messages: expected an array with at least one message, found %s",
			json_is_array(messages) ? "an empty one" : json_text_type(messages));
	return request_messages(r, messages, e);
}

static int parse_logprobs(struct request *r, struct request_error *e)
{
	int64_t top = 0;
	bool given;
	if (request_bool(r->body, "logprobs", &r->output.logprobs, e) ||
		request_integer(r->body, "top_logprobs", 0, OUTPUT_TOP_MAX, &top, &given, e))
		return -1;
	if (given && top && !r->output.logprobs)
		return request_refuse(
			e, 400, NULL, "top_logprobs", "top_logprobs needs logprobs to be true");
	r->output.n_top = (uint32_t)top;
	return 0;
}

static int parse_modalities(const struct request *r, struct request_error *e)
{
	size_t i;
	json_t *v;
	json_array_foreach(json_object_get(r->body, "modalities"), i, v)
	{
		if (!json_is_string(v) || strcmp(json_string_value(v), "text") != 0)
			return request_refuse(e, 400, "unsupported_parameter", "modalities",
				"modalities: only text is supported by this server");
	}
	return 0;
}

static int chat_request_parse(struct request *r, struct request_error *e)
{
	static const char *const members[] = {"messages", "modalities", "stream_options", "n",
		"max_tokens", "max_completion_tokens", "stop", "logprobs", "top_logprobs",
		"response_format", "reasoning_effort", "chat_template_kwargs", "enable_thinking",
		"thinking", "tools", "tool_choice", "parallel_tool_calls",
		/* */
		"verbosity", "prediction", "skip_special_tokens", "add_generation_prompt",
		"continue_final_message", "cache_prompt", "return_progress", NULL};
	const char *effort = NULL;
	int64_t n = 1, most = -1;
	request_make_id(r->id, sizeof r->id, "chatcmpl-");
	const json_t *options;
	if (request_known(r, members, e) || parse_modalities(r, e) || request_model_name(r, e) ||
		request_bool(r->body, "stream", &r->stream, e) ||
		request_object(r->body, "stream_options", &options, e) ||
		request_bool(options, "include_usage", &r->include_usage, e) ||
		request_bool(r->body, "return_progress", &r->return_progress, e) ||
		request_integer(r->body, "n", 1, REQUEST_ANSWERS_MAX, &n, NULL, e) ||
		request_integer(r->body, "max_tokens", 1, INT32_MAX, &most, NULL, e) ||
		request_integer(r->body, "max_completion_tokens", 1, INT32_MAX, &most, NULL, e) ||
		request_sampling(r, e) || request_stops(r, "stop", e) || parse_logprobs(r, e) ||
		request_format(r, json_object_get(r->body, "response_format"), "response_format", e))
		return -1;
	r->n = (uint32_t)n;
	if (parse_messages(r, e) || request_string(r->body, "reasoning_effort", &effort, e) ||
		request_effort(r, effort, "reasoning_effort", e) || request_template(r, e) ||
		request_tools(r, json_object_get(r->body, "tools"), e) || api_openai_choice(r, e) ||
		request_prompt(r, e))
		return -1;
	return request_limit_new_tokens(r, most, e);
}

/* ---- answers ---- */

static const char *finish_reason(const struct reply_answer *a)
{
	if (a->finish == JOB_LENGTH)
		return "length";
	return a->n_calls && a->finish != JOB_STOP_STRING ? "tool_calls" : "stop";
}

static void write_logprobs(
	struct json_write *w, const struct request *q, const struct output_token *rows, size_t n_rows)
{
	if (!q->output.logprobs || !n_rows) {
		json_write_null(w, "logprobs");
		return;
	}
	json_write_open(w, "logprobs", '{');
	api_write_tokens(w, "content", q->model->tokenizer, rows, n_rows, false);
	json_write_null(w, "refusal");
	json_write_close(w, '}');
}

static void write_call(struct json_write *w, const struct reply_call *c)
{
	json_write_open(w, NULL, '{');
	json_write_string(w, "id", c->id);
	json_write_string(w, "type", "function");
	json_write_open(w, "function", '{');
	json_write_text(w, "name", buf_str(&c->name), c->name.len);
	json_write_text(w, "arguments", buf_str(&c->arguments), c->arguments.len);
	json_write_close(w, '}');
	json_write_close(w, '}');
}

/* A piece of the latest call: its beginning, or more of its arguments. */
static void write_call_delta(
	struct json_write *w, const struct reply_answer *a, const struct job_event *v)
{
	const struct reply_call *c = &a->calls[a->n_calls - 1];
	bool begins = v->kind == JOB_CALL;
	json_write_open(w, "tool_calls", '[');
	json_write_open(w, NULL, '{');
	json_write_int(w, "index", (int64_t)a->n_calls - 1);
	if (begins) {
		json_write_string(w, "id", c->id);
		json_write_string(w, "type", "function");
	}
	json_write_open(w, "function", '{');
	if (begins)
		json_write_text(w, "name", buf_str(&c->name), c->name.len);
	json_write_text(w, "arguments", begins ? "" : v->text.data, begins ? 0 : v->text.len);
	json_write_close(w, '}');
	json_write_close(w, '}');
	json_write_close(w, ']');
}

static void chat_whole(struct reply *r, struct buf *out)
{
	struct json_write w = {.out = out};
	api_completion_head(&w, r->request, "chat.completion");
	json_write_open(&w, "choices", '[');
	for (uint32_t i = 0; i < r->n_answers; i++) {
		const struct reply_answer *a = &r->answers[i];
		json_write_open(&w, NULL, '{');
		json_write_int(&w, "index", i);
		json_write_open(&w, "message", '{');
		json_write_string(&w, "role", "assistant");
		if (a->text.len || !a->n_calls)
			json_write_text(&w, "content", buf_str(&a->text), a->text.len);
		else
			json_write_null(&w, "content");
		if (a->reasoning.len)
			json_write_text(&w, "reasoning_content", a->reasoning.data, a->reasoning.len);
		json_write_null(&w, "refusal");
		if (a->n_calls) {
			json_write_open(&w, "tool_calls", '[');
			for (size_t k = 0; k < a->n_calls; k++)
				write_call(&w, &a->calls[k]);
			json_write_close(&w, ']');
		}
		json_write_close(&w, '}');
		write_logprobs(&w, r->request, a->rows, a->n_rows);
		json_write_string(&w, "finish_reason", finish_reason(a));
		json_write_close(&w, '}');
	}
	json_write_close(&w, ']');
	api_completion_usage(&w, r);
	json_write_close(&w, '}');
}

/* ---- stream ---- */

static void chunk_begin(struct json_write *w, const struct reply *r, uint32_t index)
{
	api_completion_head(w, r->request, "chat.completion.chunk");
	json_write_open(w, "choices", '[');
	json_write_open(w, NULL, '{');
	json_write_int(w, "index", index);
	json_write_open(w, "delta", '{');
}

/* Closes the delta and the rest. */
static void chunk_end(struct json_write *w, const struct reply *r, const struct job_event *v,
	const char *reason, struct buf *out)
{
	json_write_close(w, '}');
	write_logprobs(w, r->request, v && v->kind == JOB_TEXT ? v->rows : NULL,
		v && v->kind == JOB_TEXT ? v->n_rows : 0);
	json_write_string(w, "finish_reason", reason);
	json_write_close(w, '}');
	json_write_close(w, ']');
	if (r->request->include_usage)
		json_write_null(w, "usage");
	if (v)
		api_write_progress(w, v);
	json_write_close(w, '}');
	api_sse_data(out, w->out);
	buf_free(w->out);
}

static void chat_begin(struct reply *r, struct buf *out)
{
	for (uint32_t i = 0; i < r->n_answers; i++) {
		struct buf json = {0};
		struct json_write w = {.out = &json};
		chunk_begin(&w, r, i);
		json_write_string(&w, "role", "assistant");
		json_write_string(&w, "content", "");
		chunk_end(&w, r, NULL, NULL, out);
	}
}

static void chat_event(
	struct reply *r, struct reply_answer *a, const struct job_event *v, struct buf *out)
{
	if (v->kind == JOB_CALL_END)
		return;
	struct buf json = {0};
	struct json_write w = {.out = &json};
	const char *reason = NULL;
	chunk_begin(&w, r, a->index);
	if (v->kind == JOB_REASONING) {
		json_write_text(&w, "reasoning_content", v->text.data, v->text.len);
	} else if (v->kind == JOB_TEXT) {
		json_write_text(&w, "content", v->text.data, v->text.len);
	} else if (v->kind == JOB_CALL || v->kind == JOB_ARGUMENTS) {
		write_call_delta(&w, a, v);
	} else if (v->kind != JOB_PROGRESS) {
		reason = finish_reason(a);
	}
	chunk_end(&w, r, v, reason, out);
}

static void chat_end(struct reply *r, struct buf *out)
{
	api_completion_end(r, "chat.completion.chunk", out);
}

const struct api api_chat = {
	.name = "/v1/chat/completions",
	.call_prefix = "call_",
	.parse = chat_request_parse,
	.begin = chat_begin,
	.event = chat_event,
	.end = chat_end,
	.broken = api_openai_broken,
	.ping = api_comment_ping,
	.whole = chat_whole,
	.error = api_openai_error,
};
