/* SPDX-License-Identifier: MIT */
/*
 * Answers of /v1/responses: one object whose output is a list of items (reasoning, messages,
 * calls), or a stream in which every item and every part is opened, filled and closed by events of
 * its own. Both walk the answer in the same order and name item i of response R "<kind>_<R>_<i>",
 * so that the last event repeats what the stream has shown.
 */
#include "src/serve/api/openai/api_responses.h"

#include "src/serve/api/json_write.h"

#include <stdio.h>
#include <string.h>

enum open_item { NOTHING, REASONING, TEXT, CALL };

/* What has ended is complete, except the last item of an answer that was cut off. */
static const char *item_status(const struct reply_answer *a, bool last)
{
	return last && a->ended && a->finish == JOB_LENGTH ? "incomplete" : "completed";
}

static void item_id(const struct reply *r, const char *kind, uint32_t i, char out[64])
{
	snprintf(out, 64, "%s_%s_%u", kind, r->request->id + strlen("resp_"), i);
}

/* ---- items ---- */

static void write_rows(
	struct json_write *w, const struct reply *r, const struct output_token *rows, size_t n)
{
	api_write_tokens(w, "logprobs", r->request->model->tokenizer, rows, n, false);
}

static void write_text_part(
	struct json_write *w, const char *key, const struct reply *r, const struct reply_segment *s)
{
	json_write_open(w, key, '{');
	json_write_string(w, "type", "output_text");
	json_write_text(w, "text", s->text, s->len);
	json_write_open(w, "annotations", '[');
	json_write_close(w, ']');
	write_rows(w, r, s->rows, s->n_rows);
	json_write_close(w, '}');
}

/* s NULL: the message has no part yet. */
static void write_message(struct json_write *w, const char *key, const struct reply *r, uint32_t i,
	const struct reply_segment *s, const char *status)
{
	char id[64];
	item_id(r, "msg", i, id);
	json_write_open(w, key, '{');
	json_write_string(w, "id", id);
	json_write_string(w, "type", "message");
	json_write_string(w, "status", status);
	json_write_string(w, "role", "assistant");
	json_write_open(w, "content", '[');
	if (s)
		write_text_part(w, NULL, r, s);
	json_write_close(w, ']');
	json_write_close(w, '}');
}

static void write_reasoning_part(struct json_write *w, const char *key, const struct buf *text)
{
	json_write_open(w, key, '{');
	json_write_string(w, "type", "reasoning_text");
	json_write_text(w, "text", text ? buf_str(text) : "", text ? text->len : 0);
	json_write_close(w, '}');
}

static void write_reasoning(struct json_write *w, const char *key, const struct reply *r,
	uint32_t i, const struct buf *text, const char *status)
{
	char id[64];
	item_id(r, "rs", i, id);
	json_write_open(w, key, '{');
	json_write_string(w, "id", id);
	json_write_string(w, "type", "reasoning");
	json_write_open(w, "summary", '[');
	json_write_close(w, ']');
	json_write_open(w, "content", '[');
	if (text)
		write_reasoning_part(w, NULL, text);
	json_write_close(w, ']');
	json_write_string(w, "status", status);
	json_write_close(w, '}');
}

/* A call that is in progress has no arguments yet. */
static void write_call(struct json_write *w, const char *key, const struct reply *r, uint32_t i,
	const struct reply_call *c, bool done)
{
	char id[64];
	item_id(r, "fc", i, id);
	json_write_open(w, key, '{');
	json_write_string(w, "id", id);
	json_write_string(w, "type", "function_call");
	json_write_string(w, "status",
		!done         ? "in_progress"
		: c->complete ? "completed"
					  : "incomplete");
	json_write_string(w, "call_id", c->id);
	json_write_text(w, "name", buf_str(&c->name), c->name.len);
	json_write_text(w, "arguments", buf_str(&c->arguments), done ? c->arguments.len : 0);
	json_write_close(w, '}');
}

/* ---- the response object ---- */

enum status { IN_PROGRESS, ENDED, FAILED };

static void write_output(struct json_write *w, const struct reply *r, const struct reply_answer *a)
{
	uint32_t n = 0;
	json_write_open(w, "output", '[');
	if (a && a->reasoning.len)
		write_reasoning(
			w, NULL, r, n++, &a->reasoning, item_status(a, !a->text.len && !a->n_calls));
	for (size_t k = 0; a && k <= a->n_calls; k++) {
		struct reply_segment s;
		if (reply_segment(a, k, &s))
			write_message(w, NULL, r, n++, &s, item_status(a, k == a->n_calls));
		if (k < a->n_calls)
			write_call(w, NULL, r, n++, &a->calls[k], true);
	}
	json_write_close(w, ']');
}

static void write_usage(struct json_write *w, const struct reply_answer *a)
{
	json_write_open(w, "usage", '{');
	json_write_int(w, "input_tokens", a->prompt_tokens);
	json_write_open(w, "input_tokens_details", '{');
	json_write_int(w, "cached_tokens", a->cached_tokens);
	json_write_int(w, "cache_write_tokens", 0);
	json_write_close(w, '}');
	json_write_int(w, "output_tokens", a->new_tokens);
	json_write_open(w, "output_tokens_details", '{');
	json_write_int(w, "reasoning_tokens", a->reasoning_tokens);
	json_write_close(w, '}');
	json_write_int(w, "total_tokens", (int64_t)a->prompt_tokens + a->new_tokens);
	json_write_close(w, '}');
}

/* A member of the request as it was, or what it means when absent. */
static void write_echo(
	struct json_write *w, const struct reply *r, const char *key, const char *otherwise)
{
	const json_t *v = json_object_get(r->request->body, key);
	if (v && !json_is_null(v))
		json_write_value(w, key, v);
	else
		json_write_raw(w, key, otherwise, strlen(otherwise));
}

static void write_response(struct json_write *w, const char *key, const struct reply *r,
	enum status status, const struct request_error *e)
{
	const struct request *q = r->request;
	const struct reply_answer *a = status == ENDED ? &r->answers[0] : NULL;
	bool cut = a && a->finish == JOB_LENGTH;
	json_write_open(w, key, '{');
	json_write_string(w, "id", q->id);
	json_write_string(w, "object", "response");
	json_write_int(w, "created_at", q->created);
	json_write_string(w, "status",
		status == FAILED        ? "failed"
		: status == IN_PROGRESS ? "in_progress"
		: cut                   ? "incomplete"
								: "completed");
	json_write_bool(w, "background", false);
	if (e) {
		json_write_open(w, "error", '{');
		json_write_string(w, "code", "server_error");
		json_write_string(w, "message", e->message);
		json_write_close(w, '}');
	} else {
		json_write_null(w, "error");
	}
	if (cut) {
		json_write_open(w, "incomplete_details", '{');
		json_write_string(w, "reason", "max_output_tokens");
		json_write_close(w, '}');
	} else {
		json_write_null(w, "incomplete_details");
	}
	write_echo(w, r, "instructions", "null");
	write_echo(w, r, "max_output_tokens", "null");
	json_write_string(w, "model", q->model->name);
	write_output(w, r, a);
	write_echo(w, r, "parallel_tool_calls", "true");
	write_echo(w, r, "previous_response_id", "null");
	write_echo(w, r, "reasoning", "{\"effort\":null,\"summary\":null}");
	json_write_bool(w, "store", q->store);
	json_write_real(w, "temperature", (double)q->sampling.temperature);
	write_echo(w, r, "text", "{\"format\":{\"type\":\"text\"}}");
	write_echo(w, r, "tool_choice", "\"auto\"");
	write_echo(w, r, "tools", "[]");
	json_write_int(w, "top_logprobs", q->output.n_top);
	json_write_real(w, "top_p", (double)q->sampling.top_p);
	json_write_string(w, "truncation", "disabled");
	if (a)
		write_usage(w, a);
	else
		json_write_null(w, "usage");
	json_write_null(w, "user");
	write_echo(w, r, "metadata", "{}");
	json_write_close(w, '}');
}

static void responses_whole(struct reply *r, struct buf *out)
{
	struct json_write w = {.out = out};
	write_response(&w, NULL, r, ENDED, NULL);
	api_responses_keep(r->request, out);
}

/* ---- stream ---- */

static struct json_write event_begin(struct reply *r, struct buf *json, const char *type)
{
	struct json_write w = {.out = json};
	json_write_open(&w, NULL, '{');
	json_write_string(&w, "type", type);
	json_write_int(&w, "sequence_number", (int64_t)r->sequence++);
	return w;
}

static void response_event(struct reply *r, const char *type, enum status status,
	const struct request_error *e, struct buf *out)
{
	struct buf json = {0};
	struct json_write w = event_begin(r, &json, type);
	write_response(&w, "response", r, status, e);
	api_sse_event(&w, type, out);
}

static void responses_begin(struct reply *r, struct buf *out)
{
	response_event(r, "response.created", IN_PROGRESS, NULL, out);
	response_event(r, "response.in_progress", IN_PROGRESS, NULL, out);
}

/* An event about a place in the item that is open: "item_id", "output_index", and if `part`
 * "content_index". */
static struct json_write place_begin(struct reply *r, const struct reply_answer *a,
	struct buf *json, const char *type, const char *kind, bool part)
{
	char id[64];
	struct json_write w = event_begin(r, json, type);
	item_id(r, kind, a->n_items, id);
	json_write_string(&w, "item_id", id);
	json_write_int(&w, "output_index", a->n_items);
	if (part)
		json_write_int(&w, "content_index", 0);
	return w;
}

static struct json_write item_begin(
	struct reply *r, const struct reply_answer *a, struct buf *json, const char *type)
{
	struct json_write w = event_begin(r, json, type);
	json_write_int(&w, "output_index", a->n_items);
	return w;
}

static void close_item(struct reply *r, struct reply_answer *a, struct buf *out)
{
	struct buf json = {0};
	struct json_write w;
	struct reply_segment s;
	if (a->open == REASONING) {
		w = place_begin(r, a, &json, "response.reasoning_text.done", "rs", true);
		json_write_text(&w, "text", buf_str(&a->reasoning), a->reasoning.len);
		api_sse_event(&w, "response.reasoning_text.done", out);
		w = place_begin(r, a, &json, "response.content_part.done", "rs", true);
		write_reasoning_part(&w, "part", &a->reasoning);
		api_sse_event(&w, "response.content_part.done", out);
		w = item_begin(r, a, &json, "response.output_item.done");
		write_reasoning(
			&w, "item", r, a->n_items, &a->reasoning, item_status(a, !a->text.len && !a->n_calls));
		api_sse_event(&w, "response.output_item.done", out);
	} else if (a->open == TEXT) {
		reply_segment(a, a->segment, &s);
		w = place_begin(r, a, &json, "response.output_text.done", "msg", true);
		json_write_text(&w, "text", s.text, s.len);
		write_rows(&w, r, s.rows, s.n_rows);
		api_sse_event(&w, "response.output_text.done", out);
		w = place_begin(r, a, &json, "response.content_part.done", "msg", true);
		write_text_part(&w, "part", r, &s);
		api_sse_event(&w, "response.content_part.done", out);
		w = item_begin(r, a, &json, "response.output_item.done");
		write_message(&w, "item", r, a->n_items, &s, item_status(a, a->segment == a->n_calls));
		api_sse_event(&w, "response.output_item.done", out);
	} else if (a->open == CALL) {
		const struct reply_call *c = &a->calls[a->n_calls - 1];
		if (c->complete) {
			w = place_begin(r, a, &json, "response.function_call_arguments.done", "fc", false);
			json_write_text(&w, "name", buf_str(&c->name), c->name.len);
			json_write_text(&w, "arguments", buf_str(&c->arguments), c->arguments.len);
			api_sse_event(&w, "response.function_call_arguments.done", out);
		}
		w = item_begin(r, a, &json, "response.output_item.done");
		write_call(&w, "item", r, a->n_items, c, true);
		api_sse_event(&w, "response.output_item.done", out);
	} else {
		return;
	}
	a->open = NOTHING;
	a->n_items++;
}

static void open_item(struct reply *r, struct reply_answer *a, enum open_item kind, struct buf *out)
{
	struct buf json = {0};
	if (a->open == (int)kind)
		return;
	close_item(r, a, out);
	struct json_write w = item_begin(r, a, &json, "response.output_item.added");
	if (kind == REASONING)
		write_reasoning(&w, "item", r, a->n_items, NULL, "in_progress");
	else
		write_message(&w, "item", r, a->n_items, NULL, "in_progress");
	api_sse_event(&w, "response.output_item.added", out);
	w = place_begin(
		r, a, &json, "response.content_part.added", kind == REASONING ? "rs" : "msg", true);
	if (kind == REASONING)
		write_reasoning_part(&w, "part", NULL);
	else
		write_text_part(&w, "part", r, &(struct reply_segment){.text = ""});
	api_sse_event(&w, "response.content_part.added", out);
	a->open = kind;
	a->segment = a->n_calls;
}

static void open_call(struct reply *r, struct reply_answer *a, struct buf *out)
{
	struct buf json = {0};
	close_item(r, a, out);
	struct json_write w = item_begin(r, a, &json, "response.output_item.added");
	write_call(&w, "item", r, a->n_items, &a->calls[a->n_calls - 1], false);
	api_sse_event(&w, "response.output_item.added", out);
	a->open = CALL;
	a->text_sent = a->text.len;
	a->rows_sent = a->n_rows;
}

static void responses_event(
	struct reply *r, struct reply_answer *a, const struct job_event *v, struct buf *out)
{
	struct buf json = {0};
	struct json_write w;
	struct reply_segment s;
	switch (v->kind) {
	case JOB_REASONING:
		open_item(r, a, REASONING, out);
		w = place_begin(r, a, &json, "response.reasoning_text.delta", "rs", true);
		json_write_text(&w, "delta", v->text.data, v->text.len);
		api_sse_event(&w, "response.reasoning_text.delta", out);
		break;
	case JOB_TEXT:
		if (!reply_segment(a, a->n_calls, &s)) /* blanks may turn out to stand between calls */
			break;
		open_item(r, a, TEXT, out);
		w = place_begin(r, a, &json, "response.output_text.delta", "msg", true);
		json_write_text(&w, "delta", a->text.data + a->text_sent, a->text.len - a->text_sent);
		write_rows(&w, r, a->rows ? a->rows + a->rows_sent : NULL, a->n_rows - a->rows_sent);
		api_sse_event(&w, "response.output_text.delta", out);
		a->text_sent = a->text.len;
		a->rows_sent = a->n_rows;
		break;
	case JOB_CALL:
		open_call(r, a, out);
		break;
	case JOB_ARGUMENTS:
		w = place_begin(r, a, &json, "response.function_call_arguments.delta", "fc", false);
		json_write_text(&w, "delta", v->text.data, v->text.len);
		api_sse_event(&w, "response.function_call_arguments.delta", out);
		break;
	case JOB_CALL_END:
		close_item(r, a, out);
		break;
	default:
		break;
	}
}

static void responses_end(struct reply *r, struct buf *out)
{
	struct reply_answer *a = &r->answers[0];
	struct buf whole = {0};
	close_item(r, a, out);
	responses_whole(r, &whole); /* before the client sees the end: it may ask for it at once */
	buf_free(&whole);
	response_event(r, a->finish == JOB_LENGTH ? "response.incomplete" : "response.completed", ENDED,
		NULL, out);
}

static void responses_broken(struct reply *r, const struct request_error *e, struct buf *out)
{
	response_event(r, "response.failed", FAILED, e, out);
}

const struct api api_responses = {
	.name = "/v1/responses",
	.call_prefix = "call_",
	.parse = api_responses_parse,
	.begin = responses_begin,
	.event = responses_event,
	.end = responses_end,
	.broken = responses_broken,
	.ping = api_comment_ping,
	.whole = responses_whole,
	.error = api_openai_error,
};
