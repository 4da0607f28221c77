/* SPDX-License-Identifier: MIT */
/* What the APIs share. */
#include "src/serve/api/api.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/serve/api/json_write.h"
#include "src/text/json_text.h"
#include "src/text/utf8.h"

#include <math.h>
#include <string.h>
#include <time.h>

#define VALUES_MAX    300000
#define VALUE_BYTES   320 /* of the most expensive value, an object in an object */
#define STRING_COPIES 2   /* in the tree and in the conversation */

/* JSON text may stand for a hundred times its size in memory: the values are counted before they
 * are made. */
static size_t count_values(const char *p, size_t n)
{
	size_t values = 1;
	bool in_string = false;
	for (size_t i = 0; i < n; i++) {
		if (in_string && p[i] == '\\')
			i++;
		else if (p[i] == '"')
			in_string = !in_string;
		else if (!in_string)
			values += p[i] == ',' || p[i] == '[' || p[i] == '{';
	}
	return values;
}

size_t api_json_bytes(const char *text, size_t len)
{
	return count_values(text, len) * VALUE_BYTES + STRING_COPIES * len;
}

int api_parse(const struct api *api, const struct request_model *model, const char *body,
	size_t len, struct request *r, struct request_error *e)
{
	struct err err = {0};
	*r = (struct request){.model = model,
		.api = api,
		.n = 1,
		.created = (int64_t)time(NULL),
		.body_bytes = len,
		.part = {.budget = model->budget, .client = client_hold(model->client)}};
	if (count_values(body, len) > VALUES_MAX)
		return request_refuse(e, 400, NULL, NULL, "the body has more than %d values", VALUES_MAX);
	if (request_hold(r, api_json_bytes(body, len), e))
		return -1;
	r->body = json_text_parse(body, len, true, &err);
	if (mem_scope_failed())
		return request_refuse_memory(e);
	if (!r->body)
		return request_refuse(e, 400, NULL, NULL, "the body cannot be read as JSON: %s", err.text);
	if (!json_is_object(r->body))
		return request_refuse(
			e, 400, NULL, NULL, "the body: expected an object, found %s", json_text_type(r->body));
	int rc = api->parse(r, e);
	return mem_scope_failed() ? request_refuse_memory(e) : rc;
}

void api_openai_error(const struct request_error *e, struct buf *out)
{
	struct json_write w = {.out = out};
	const char *type = e->status == 401   ? "authentication_error"
					   : e->status == 403 ? "permission_error"
					   : e->status == 429 ? "rate_limit_error"
					   : e->status >= 500 ? "server_error"
										  : "invalid_request_error";
	json_write_open(&w, NULL, '{');
	json_write_open(&w, "error", '{');
	json_write_string(&w, "message", e->message);
	json_write_string(&w, "type", type);
	json_write_string(&w, "param", e->param[0] ? e->param : NULL);
	json_write_string(&w, "code", e->code);
	json_write_close(&w, '}');
	json_write_close(&w, '}');
}

void api_openai_broken(struct reply *r, const struct request_error *e, struct buf *out)
{
	(void)r;
	struct buf json = {0};
	api_openai_error(e, &json);
	api_sse_data(out, &json);
	buf_free(&json);
}

void api_comment_ping(struct reply *r, struct buf *out)
{
	double left = reply_prompt_left(r);
	if (!r->progress_total || r->progress_done >= r->progress_total) {
		buf_puts(out, r->progress_total ? ": writing\n\n" : ": waiting for a session\n\n");
		return;
	}
	buf_printf(out, ": reading the prompt, %u of %u tokens", r->progress_done, r->progress_total);
	if (r->progress_cached)
		buf_printf(out, ", %u of them cached", r->progress_cached);
	if (left > 0)
		buf_printf(out, ", %.0f s left", ceil(left));
	buf_puts(out, "\n\n");
}

void api_write_progress(struct json_write *w, const struct job_event *v)
{
	if (v->kind != JOB_PROGRESS)
		return;
	json_write_open(w, "prompt_progress", '{');
	json_write_int(w, "total", v->total);
	json_write_int(w, "cache", v->cached);
	json_write_int(w, "processed", v->done);
	json_write_int(w, "time_ms", (int64_t)(v->reading_ns / 1000000));
	json_write_close(w, '}');
}

void api_sse_data(struct buf *out, const struct buf *json)
{
	buf_puts(out, "data: ");
	buf_append(out, json->data, json->len);
	buf_puts(out, "\n\n");
}

void api_sse_event(struct json_write *w, const char *type, struct buf *out)
{
	json_write_close(w, '}');
	buf_printf(out, "event: %s\n", type);
	api_sse_data(out, w->out);
	buf_free(w->out);
}

int api_openai_choice(struct request *r, struct request_error *e)
{
	const json_t *v = json_object_get(r->body, "tool_choice");
	bool parallel = true;
	if (request_bool(r->body, "parallel_tool_calls", &parallel, e))
		return -1;
	r->output.one_call = !parallel;
	if (!v || json_is_null(v))
		return 0;
	if (json_is_string(v)) {
		const char *s = json_string_value(v);
		if (!strcmp(s, "auto"))
			return 0;
		if (!strcmp(s, "none"))
			return request_choice(r, TOOL_CHOICE_NONE, NULL, "tool_choice", e);
		if (!strcmp(s, "required"))
			return request_choice(r, TOOL_CHOICE_REQUIRED, NULL, "tool_choice", e);
		return request_refuse(e, 400, NULL, "tool_choice",
			"tool_choice: expected auto, none, required or an object that names a function, found "
			"\"%.40s\"",
			s);
	}
	const json_t *f = json_object_get(v, "function");
	const json_t *name = json_object_get(json_is_object(f) ? f : v, "name");
	const char *type = json_string_value(json_object_get(v, "type"));
	if (!type || strcmp(type, "function") || !json_is_string(name))
		return request_refuse(e, 400, NULL, "tool_choice",
			"tool_choice: expected auto, none, required or an object that names a function, found "
			"%s",
			json_text_type(v));
	return request_choice(r, TOOL_CHOICE_REQUIRED, json_string_value(name), "tool_choice", e);
}

/* The bytes of a token as text (broken UTF-8 repaired) and as numbers. */
static void write_token(
	struct json_write *w, const struct tokenizer *t, int32_t id, float logprob, bool ids)
{
	struct text_span s = tokenizer_token(t, id);
	struct buf text = {0};
	utf8_repair(s.data, s.len, &text);
	if (ids)
		json_write_int(w, "id", id);
	json_write_text(w, "token", buf_str(&text), text.len);
	json_write_real(w, "logprob", (double)MAX(logprob, -9999.0f));
	json_write_open(w, "bytes", '[');
	for (size_t i = 0; i < s.len; i++)
		json_write_int(w, NULL, (unsigned char)s.data[i]);
	json_write_close(w, ']');
	buf_free(&text);
}

void api_write_tokens(struct json_write *w, const char *key, const struct tokenizer *t,
	const struct output_token *rows, size_t n, bool ids)
{
	json_write_open(w, key, '[');
	for (size_t i = 0; i < n; i++) {
		json_write_open(w, NULL, '{');
		write_token(w, t, rows[i].id, rows[i].logprob, ids);
		json_write_open(w, "top_logprobs", '[');
		for (uint32_t k = 0; k < rows[i].n_top; k++) {
			json_write_open(w, NULL, '{');
			write_token(w, t, rows[i].top[k].id, rows[i].top[k].logprob, ids);
			json_write_close(w, '}');
		}
		json_write_close(w, ']');
		json_write_close(w, '}');
	}
	json_write_close(w, ']');
}

void api_completion_head(struct json_write *w, const struct request *q, const char *object)
{
	json_write_open(w, NULL, '{');
	json_write_string(w, "id", q->id);
	json_write_string(w, "object", object);
	json_write_int(w, "created", q->created);
	json_write_string(w, "model", q->model->name);
	json_write_string(w, "system_fingerprint", q->model->fingerprint);
}

void api_completion_usage(struct json_write *w, const struct reply *r)
{
	uint32_t prompt = 0, cached = 0, written = 0, reasoning = 0;
	for (uint32_t i = 0; i < r->n_answers; i++) {
		const struct reply_answer *a = &r->answers[i];
		if (i % r->request->n == 0) { /* a prompt counts once, however many answers it gets */
			prompt += a->prompt_tokens;
			cached += a->cached_tokens;
		}
		written += a->new_tokens;
		reasoning += a->reasoning_tokens;
	}
	json_write_open(w, "usage", '{');
	json_write_int(w, "prompt_tokens", prompt);
	json_write_int(w, "completion_tokens", written);
	json_write_int(w, "total_tokens", (int64_t)prompt + written);
	json_write_open(w, "prompt_tokens_details", '{');
	json_write_int(w, "cached_tokens", cached);
	json_write_close(w, '}');
	if (r->request->output.chat) {
		json_write_open(w, "completion_tokens_details", '{');
		json_write_int(w, "reasoning_tokens", reasoning);
		json_write_close(w, '}');
	}
	json_write_close(w, '}');
}

void api_completion_end(const struct reply *r, const char *object, struct buf *out)
{
	if (r->request->include_usage) {
		struct buf json = {0};
		struct json_write w = {.out = &json};
		api_completion_head(&w, r->request, object);
		json_write_open(&w, "choices", '[');
		json_write_close(&w, ']');
		api_completion_usage(&w, r);
		json_write_close(&w, '}');
		api_sse_data(out, &json);
		buf_free(&json);
	}
	buf_puts(out, "data: [DONE]\n\n");
}

/* ---- models ---- */

void api_time_text(time_t t, char out[40])
{
	struct tm tm;
	gmtime_r(&t, &tm);
	strftime(out, 40, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

static void write_model(
	struct json_write *w, const struct request_model *m, const char *id, bool anthropic)
{
	json_write_open(w, NULL, '{');
	json_write_string(w, "id", id);
	if (anthropic) {
		char when[40];
		api_time_text((time_t)m->created, when);
		json_write_string(w, "type", "model");
		json_write_string(w, "display_name", m->name);
		json_write_string(w, "created_at", when);
		json_write_string(w, "lifecycle", "active");
		json_write_int(w, "max_input_tokens", (int64_t)m->context - 1);
		json_write_int(w, "max_tokens", m->context);
	} else {
		json_write_string(w, "object", "model");
		json_write_int(w, "created", m->created);
		json_write_string(w, "owned_by", "glmstream");
		json_write_int(w, "context_length", m->context);
		json_write_int(w, "max_model_len", m->context); /* vLLM's name */
	}
	json_write_close(w, '}');
}

void api_models_list(const struct request_model *m, bool anthropic, struct buf *out)
{
	struct json_write w = {.out = out};
	json_write_open(&w, NULL, '{');
	if (!anthropic)
		json_write_string(&w, "object", "list");
	json_write_open(&w, "data", '[');
	write_model(&w, m, m->name, anthropic);
	json_write_close(&w, ']');
	if (anthropic) {
		json_write_string(&w, "first_id", m->name);
		json_write_string(&w, "last_id", m->name);
		json_write_bool(&w, "has_more", false);
	}
	json_write_close(&w, '}');
}

int api_models_one(const struct request_model *m, const char *name, bool anthropic, struct buf *out,
	struct request_error *e)
{
	if (request_check_model(m, name, e))
		return -1;
	struct json_write w = {.out = out};
	struct buf id = {0}; /* a path may have any bytes */
	utf8_repair(name, strlen(name), &id);
	write_model(&w, m, buf_str(&id), anthropic);
	buf_free(&id);
	return 0;
}
