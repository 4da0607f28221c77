/* SPDX-License-Identifier: MIT */
/* OpenAI's older /v1/completions: text in, text out, without the chat template. Text is text: the
 * spellings of control tokens in it count as such only with "parse_special": true (prompts that
 * were rendered elsewhere); a prompt may also be token ids. Control tokens in the answer
 * ("<|user|>") are no text, unless "skip_special_tokens" is false. */
#include "src/serve/api/api.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/serve/api/json_write.h"
#include "src/text/json_text.h"
#include "src/text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* ---- request ---- */

static int encode(
	struct request *r, const char *text, size_t n, bool special, struct request_error *e)
{
	struct token_ids *out = &r->prompts[r->n_prompts++];
	if (n > request_most_bytes(r->model))
		return request_refuse_length(r, "prompt", e);
	return request_encode(r, text, n, special, out, e);
}

static int take_ids(struct request *r, const json_t *list, struct request_error *e)
{
	struct token_ids *out = &r->prompts[r->n_prompts++];
	int64_t n_tokens = tokenizer_n_tokens(r->model->tokenizer);
	size_t i;
	json_t *v;
	json_array_foreach(list, i, v)
	{
		int64_t id = json_is_integer(v) ? json_integer_value(v) : -1;
		if (id < 0 || id >= n_tokens)
			return request_refuse(e, 400, NULL, "prompt",
				"prompt: item %zu: expected a token id of 0 to %lld", i, (long long)n_tokens - 1);
		if (token_ids_push(out, (int32_t)id))
			return request_refuse(e, 503, NULL, NULL, "no memory for the prompt");
	}
	return 0;
}

static int parse_prompt(struct request *r, struct request_error *e)
{
	const json_t *prompt = json_object_get(r->body, "prompt");
	bool special = false;
	if (request_bool(r->body, "parse_special", &special, e))
		return -1;
	if (!(r->prompts = NEW_ARRAY(struct token_ids, REQUEST_ANSWERS_MAX)))
		return request_refuse_memory(e);
	if (json_is_string(prompt))
		return encode(r, json_string_value(prompt), json_string_length(prompt), special, e);
	if (!json_is_array(prompt) || !json_array_size(prompt))
		return request_refuse(e, 400, NULL, "prompt",
			"prompt: expected a string, an array of strings, or token ids, found %s",
			json_is_array(prompt) ? "an empty array" : json_text_type(prompt));
	if (json_is_integer(json_array_get(prompt, 0)))
		return take_ids(r, prompt, e);
	size_t i;
	json_t *v;
	json_array_foreach(prompt, i, v)
	{
		if (r->n_prompts == REQUEST_ANSWERS_MAX)
			return request_refuse(
				e, 400, NULL, "prompt", "prompt: more than %d at once", REQUEST_ANSWERS_MAX);
		if (json_is_string(v)  ? encode(r, json_string_value(v), json_string_length(v), special, e)
			: json_is_array(v) ? take_ids(r, v, e)
							   : request_refuse(e, 400, NULL, "prompt",
									 "prompt[%zu]: expected a string or token ids, found %s", i,
									 json_text_type(v)))
			return -1;
	}
	return 0;
}

static int completions_parse(struct request *r, struct request_error *e)
{
	static const char *const members[] = {"prompt", "stream_options", "n", "best_of", "max_tokens",
		"logprobs", "stop", "parse_special", "skip_special_tokens", "return_progress", NULL};
	int64_t n = 1, best_of = 0, most = 16, top = 0; /* 16 is the API's own default */
	bool given;
	request_make_id(r->id, sizeof r->id, "cmpl-");
	const json_t *options;
	if (request_known(r, members, e) || request_model_name(r, e) ||
		request_bool(r->body, "stream", &r->stream, e) ||
		request_object(r->body, "stream_options", &options, e) ||
		request_bool(options, "include_usage", &r->include_usage, e) ||
		request_bool(r->body, "return_progress", &r->return_progress, e) ||
		request_integer(r->body, "n", 1, REQUEST_ANSWERS_MAX, &n, NULL, e) ||
		request_integer(r->body, "best_of", 1, REQUEST_ANSWERS_MAX, &best_of, NULL, e) ||
		request_integer(r->body, "max_tokens", 1, INT32_MAX, &most, NULL, e) ||
		request_integer(r->body, "logprobs", 0, OUTPUT_TOP_MAX, &top, &given, e) ||
		request_sampling(r, e) || request_stops(r, "stop", e))
		return -1;
	if (best_of && best_of != n)
		return request_refuse(e, 400, "unsupported_parameter", "best_of",
			"best_of: only the value of n is supported");
	bool skip = true;
	if (request_bool(r->body, "skip_special_tokens", &skip, e)) /* vLLM's name */
		return -1;
	r->output.show_control = !skip;
	r->n = (uint32_t)n;
	r->output.logprobs = given;
	r->output.n_top = (uint32_t)top;
	if (parse_prompt(r, e))
		return -1;
	if ((int64_t)r->n_prompts * n > REQUEST_ANSWERS_MAX)
		return request_refuse(e, 400, NULL, "n", "%zu prompts times n are more than %d answers",
			r->n_prompts, REQUEST_ANSWERS_MAX);
	return request_limit_new_tokens(r, most, e);
}

/* ---- answers ---- */

#define OBJECT "text_completion"

static const char *finish_reason(const struct reply_answer *a)
{
	return a->finish == JOB_LENGTH ? "length" : "stop";
}

static void token_text(const struct tokenizer *t, int32_t id, struct buf *out)
{
	struct text_span s = tokenizer_token(t, id);
	buf_clear(out);
	utf8_repair(s.data, s.len, out);
}

/* The characters of text before a token. Calls are in the order of the tokens. */
static size_t text_offset(struct reply_answer *a, const struct output_token *row)
{
	for (; a->n_counted < MIN(row->at, a->text.len); a->n_counted++)
		a->characters += ((unsigned char)a->text.data[a->n_counted] & 0xc0) != 0x80;
	return a->characters;
}

static void write_logprobs(struct json_write *w, const struct request *q, struct reply_answer *a,
	const struct output_token *rows, size_t n)
{
	const struct tokenizer *t = q->model->tokenizer;
	struct buf text = {0};
	if (!q->output.logprobs) {
		json_write_null(w, "logprobs");
		return;
	}
	json_write_open(w, "logprobs", '{');
	json_write_open(w, "tokens", '[');
	for (size_t i = 0; i < n; i++) {
		token_text(t, rows[i].id, &text);
		json_write_text(w, NULL, buf_str(&text), text.len);
	}
	json_write_close(w, ']');
	json_write_open(w, "token_logprobs", '[');
	for (size_t i = 0; i < n; i++)
		json_write_real(w, NULL, (double)rows[i].logprob);
	json_write_close(w, ']');
	json_write_open(w, "top_logprobs", '[');
	for (size_t i = 0; i < n; i++) {
		json_write_open(w, NULL, '{');
		for (uint32_t k = 0; k < rows[i].n_top; k++) {
			struct buf key = {0};
			token_text(t, rows[i].top[k].id, &text);
			json_text_dump_string(buf_str(&text), text.len, &key);
			if (k)
				buf_putc(w->out, ',');
			buf_printf(
				w->out, "%s:%.9g", buf_str(&key), (double)MAX(rows[i].top[k].logprob, -9999.0f));
			buf_free(&key);
		}
		json_write_close(w, '}');
	}
	json_write_close(w, ']');
	json_write_open(w, "text_offset", '[');
	for (size_t i = 0; i < n; i++)
		json_write_int(w, NULL, (int64_t)text_offset(a, &rows[i]));
	json_write_close(w, ']');
	json_write_close(w, '}');
	buf_free(&text);
}

static void completions_whole(struct reply *r, struct buf *out)
{
	struct json_write w = {.out = out};
	api_completion_head(&w, r->request, OBJECT);
	json_write_open(&w, "choices", '[');
	for (uint32_t i = 0; i < r->n_answers; i++) {
		struct reply_answer *a = &r->answers[i];
		json_write_open(&w, NULL, '{');
		json_write_int(&w, "index", i);
		json_write_text(&w, "text", buf_str(&a->text), a->text.len);
		write_logprobs(&w, r->request, a, a->rows, a->n_rows);
		json_write_string(&w, "finish_reason", finish_reason(a));
		json_write_close(&w, '}');
	}
	json_write_close(&w, ']');
	api_completion_usage(&w, r);
	json_write_close(&w, '}');
}

/* ---- stream ---- */

static void completions_begin(struct reply *r, struct buf *out)
{
	(void)r, (void)out;
}

static void completions_event(
	struct reply *r, struct reply_answer *a, const struct job_event *v, struct buf *out)
{
	if (v->kind != JOB_TEXT && v->kind != JOB_END && v->kind != JOB_PROGRESS)
		return;
	struct buf json = {0};
	struct json_write w = {.out = &json};
	api_completion_head(&w, r->request, OBJECT);
	json_write_open(&w, "choices", '[');
	json_write_open(&w, NULL, '{');
	json_write_int(&w, "index", a->index);
	json_write_text(&w, "text", buf_str(&v->text), v->text.len);
	write_logprobs(&w, r->request, a, v->rows, v->n_rows);
	json_write_string(&w, "finish_reason", v->kind == JOB_END ? finish_reason(a) : NULL);
	json_write_close(&w, '}');
	json_write_close(&w, ']');
	if (r->request->include_usage)
		json_write_null(&w, "usage");
	api_write_progress(&w, v);
	json_write_close(&w, '}');
	api_sse_data(out, &json);
	buf_free(&json);
}

static void completions_end(struct reply *r, struct buf *out)
{
	api_completion_end(r, OBJECT, out);
}

const struct api api_completions = {
	.name = "/v1/completions",
	.call_prefix = "call_",
	.parse = completions_parse,
	.begin = completions_begin,
	.event = completions_event,
	.end = completions_end,
	.broken = api_openai_broken,
	.ping = api_comment_ping,
	.whole = completions_whole,
	.error = api_openai_error,
};
