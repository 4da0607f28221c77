/* SPDX-License-Identifier: MIT */
/*
 * ollama's /api/chat and /api/generate. A request is brought into the form of OpenAI's chat or text
 * completions, whose parsers check it; options keep their names, so that a refusal names what the
 * client sent. Options of the machine (num_gpu, num_thread, ...) were decided when the server
 * started and change no answer; num_ctx too: a prompt that is too long for the context is refused
 * whatever it says. Answers are lines of JSON (application/x-ndjson), streamed unless "stream" is
 * false.
 */
#include "src/serve/api/api.h"

#include "src/base/num.h"
#include "src/serve/api/json_write.h"
#include "src/text/json_text.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- request ---- */

static bool is_given(const json_t *v)
{
	return v && !json_is_null(v);
}

/* names: ends with NULL. */
static bool is_one_of(const char *key, const char *const *names)
{
	while (*names && strcmp(*names, key) != 0)
		names++;
	return *names;
}

static const char *const machine_options[] = {"num_ctx", "num_batch", "num_gpu", "main_gpu",
	"num_thread", "num_keep", "numa", "low_vram", "f16_kv", "use_mmap", "use_mlock", "vocab_only",
	"logits_all", "embedding_only", NULL};

/* These have the same name and meaning in a completion's body. */
static const char *const sampling_options[] = {"seed", "temperature", "top_k", "top_p", "min_p",
	"typical_p", "tfs_z", "repeat_penalty", "repeat_last_n", "penalize_newline", "presence_penalty",
	"frequency_penalty", "mirostat", "mirostat_tau", "mirostat_eta", "stop", NULL};

/* "options" -> members of a completion's body. */
static int take_options(struct request *r, json_t *to, struct request_error *e)
{
	const json_t *options;
	const char *key;
	json_t *v;
	if (request_object(r->body, "options", &options, e))
		return -1;
	json_object_foreach((json_t *)options, key, v)
	{
		if (json_is_null(v) || is_one_of(key, machine_options))
			continue;
		if (!strcmp(key, "num_predict")) {
			int64_t n = -1;
			if (request_integer(options, key, -2, INT32_MAX, &n, NULL, e))
				return -1;
			if (n > 0) /* else as much as fits */
				json_object_set(to, "max_tokens", v);
		} else if (!strcmp(key, "seed") && request_is_random_seed(v)) {
			continue;
		} else if (is_one_of(key, sampling_options)) {
			json_object_set(to, key, v);
		} else if (request_unsupported(options, key, e)) {
			return -1;
		}
	}
	return 0;
}

/* "format": "json" or a schema. Compiled here, so that a refusal names "format". */
static int take_format(struct request *r, struct request_error *e)
{
	json_t *format = json_object_get(r->body, "format");
	const char *word = json_string_value(format);
	if (!is_given(format) || (word && !*word))
		return 0;
	if ((!word || strcmp(word, "json") != 0) && !json_is_object(format))
		return request_refuse(e, 400, NULL, "format",
			"format: expected \"json\" or a JSON schema, found %s", json_text_type(format));
	json_t *form = json_pack("{s:s, s:O}", "type", "json_object", "schema", format);
	int rc = request_format(r, form, "format", e);
	json_decref(form);
	return rc;
}

static int take_think(struct request *r, json_t *to, struct request_error *e)
{
	json_t *think = json_object_get(r->body, "think");
	if (!is_given(think))
		return 0;
	if (request_effort(r, json_string_value(think), "think", e)) /* a refusal names "think" */
		return -1;
	if (json_is_string(think))
		json_object_set(to, "reasoning_effort", think);
	else if (json_is_boolean(think))
		json_object_set(to, "enable_thinking", think);
	else
		return request_refuse(e, 400, NULL, "think",
			"think: expected true, false, \"low\", \"medium\" or \"high\", found %s",
			json_text_type(think));
	return 0;
}

static int refuse_images(const json_t *o, struct request_error *e)
{
	if (!json_array_size(json_object_get(o, "images")))
		return 0;
	return request_refuse(
		e, 400, "unsupported_parameter", "images", "images: this model reads text only");
}

/* One of ollama's messages in OpenAI's form. */
static int take_message(json_t *out, const json_t *m, struct request_error *e)
{
	if (!json_is_object(m)) /* the chat's parser says what it expects */
		return json_array_append(out, (json_t *)m);
	if (refuse_images(m, e))
		return -1;
	json_t *copy = json_object();
	static const char *const names[][2] = {{"role", "role"}, {"content", "content"},
		{"thinking", "reasoning_content"}, {"tool_calls", "tool_calls"},
		{"tool_call_id", "tool_call_id"}, {"tool_name", "tool_name"}};
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		json_t *v = json_object_get(m, names[i][0]);
		if (is_given(v))
			json_object_set(copy, names[i][1], v);
	}
	return json_array_append_new(out, copy);
}

/* `own`: members of this path beside those that both have. */
static int refuse_unknown(const struct request *r, const char *const *own, struct request_error *e)
{
	static const char *const both[] = {"model", "stream", "format", "options", "think",
		"keep_alive", "logprobs", "top_logprobs", NULL};
	const char *key;
	json_t *v;
	json_object_foreach(r->body, key, v)
	{
		if (is_given(v) && !json_is_false(v) && !is_one_of(key, both) && !is_one_of(key, own))
			return request_refuse(e, 400, "unsupported_parameter", key,
				"%.60s is not supported here: settings of sampling belong into \"options\"", key);
	}
	return 0;
}

/* "top_logprobs" means nothing without "logprobs". */
static int take_logprobs(struct request *r, json_t *to, struct request_error *e)
{
	bool logprobs = false;
	int64_t top = 0;
	if (request_bool(r->body, "logprobs", &logprobs, e) ||
		request_integer(r->body, "top_logprobs", 0, OUTPUT_TOP_MAX, &top, NULL, e))
		return -1;
	if (logprobs) {
		json_object_set_new(to, "logprobs", json_true());
		json_object_set_new(to, "top_logprobs", json_integer(top));
	}
	return 0;
}

/* What both paths have. */
static int take_common(struct request *r, json_t *to, struct request_error *e)
{
	json_t *model = json_object_get(r->body, "model"), *stream = json_object_get(r->body, "stream");
	if (is_given(model))
		json_object_set(to, "model", model);
	if (is_given(stream))
		json_object_set(to, "stream", stream);
	else
		json_object_set_new(to, "stream", json_true());
	return take_options(r, to, e) || take_format(r, e) || take_think(r, to, e) ||
				   take_logprobs(r, to, e)
			   ? -1
			   : 0;
}

/* Goes on as a request of `api` with this body, which is taken. */
static int parse_as(const struct api *api, struct request *r, json_t *body, struct request_error *e)
{
	json_decref(r->body);
	r->body = body;
	return api->parse(r, e);
}

static int chat_parse_request(struct request *r, struct request_error *e)
{
	json_t *messages = json_object_get(r->body, "messages"), *m,
		   *tools = json_object_get(r->body, "tools"), *to = json_object(), *list = json_array();
	static const char *const own[] = {"messages", "tools", NULL};
	size_t i;
	int rc = refuse_unknown(r, own, e) || take_common(r, to, e) ? -1 : 0;
	if (!rc && !json_is_array(messages))
		rc = request_refuse(e, 400, NULL, "messages", "messages: expected an array, found %s",
			json_text_type(messages));
	json_array_foreach(messages, i, m)
	{
		if (!rc)
			rc = take_message(list, m, e);
	}
	json_object_set_new(to, "messages", list);
	if (is_given(tools))
		json_object_set(to, "tools", tools);
	if (rc) {
		json_decref(to);
		return -1;
	}
	return parse_as(&api_chat, r, to, e);
}

/* "raw": the prompt as it stands, as a text completion. `to` is taken. */
static int parse_raw(struct request *r, json_t *prompt, json_t *to, struct request_error *e)
{
	static const char *const unsupported[] = {"system", "format"};
	for (size_t i = 0; i < ARRAY_LEN(unsupported); i++)
		if (request_unsupported(r->body, unsupported[i], e)) {
			json_decref(to);
			return request_refuse(e, 400, "unsupported_parameter", unsupported[i],
				"%s is not supported with raw", unsupported[i]);
		}
	json_object_set(to, "prompt", prompt);
	json_object_set_new(to, "parse_special", json_true());
	if (!json_object_get(to, "max_tokens")) /* as much as fits */
		json_object_set_new(to, "max_tokens", json_integer(INT32_MAX));
	if (json_object_get(to, "logprobs")) /* there it is the number of rivals */
		json_object_set(to, "logprobs", json_object_get(to, "top_logprobs"));
	json_object_del(to, "top_logprobs");
	json_object_del(to, "enable_thinking");
	json_object_del(to, "reasoning_effort");
	return parse_as(&api_completions, r, to, e);
}

static int generate_parse_request(struct request *r, struct request_error *e)
{
	static const char *const unsupported[] = {"suffix", "template", "context"};
	static const char *const own[] = {
		"prompt", "system", "raw", "images", "suffix", "template", "context", NULL};
	const char *system = NULL;
	bool raw = false;
	json_t *prompt = json_object_get(r->body, "prompt"), *to = json_object();
	int rc = refuse_unknown(r, own, e) || take_common(r, to, e) || refuse_images(r->body, e) ||
					 request_string(r->body, "system", &system, e) ||
					 request_bool(r->body, "raw", &raw, e)
				 ? -1
				 : 0;
	for (size_t i = 0; i < ARRAY_LEN(unsupported) && !rc; i++)
		rc = request_unsupported(r->body, unsupported[i], e);
	if (!rc && !json_is_string(prompt))
		rc = request_refuse(
			e, 400, NULL, "prompt", "prompt: expected a string, found %s", json_text_type(prompt));
	if (rc) {
		json_decref(to);
		return -1;
	}
	if (raw)
		return parse_raw(r, prompt, to, e);
	json_t *list = json_array();
	if (system && *system)
		json_array_append_new(list, json_pack("{s:s, s:O}", "role", "system", "content",
										json_object_get(r->body, "system")));
	json_array_append_new(list, json_pack("{s:s, s:O}", "role", "user", "content", prompt));
	json_object_set_new(to, "messages", list);
	return parse_as(&api_chat, r, to, e);
}

/* ---- answers ---- */

static struct json_write line_begin(struct buf *json, const struct reply *r)
{
	struct json_write w = {.out = json};
	char when[40];
	json_write_open(&w, NULL, '{');
	json_write_string(&w, "model", r->request->model->name);
	api_time_text(time(NULL), when);
	json_write_string(&w, "created_at", when);
	return w;
}

static void line_end(struct json_write *w, struct buf *out)
{
	json_write_close(w, '}');
	buf_append(out, w->out->data, w->out->len);
	buf_putc(out, '\n');
	buf_free(w->out);
}

static void write_calls(struct json_write *w, const struct reply_call *calls, size_t n)
{
	if (!n)
		return;
	json_write_open(w, "tool_calls", '[');
	for (size_t i = 0; i < n; i++) {
		struct buf arguments = {0};
		reply_call_object(&calls[i], &arguments);
		json_write_open(w, NULL, '{');
		json_write_open(w, "function", '{');
		json_write_text(w, "name", buf_str(&calls[i].name), calls[i].name.len);
		json_write_raw(w, "arguments", buf_str(&arguments), arguments.len);
		json_write_close(w, '}');
		json_write_close(w, '}');
		buf_free(&arguments);
	}
	json_write_close(w, ']');
}

/* The text, reasoning and calls of a line; text and thinking may be NULL. */
static void write_words(struct json_write *w, const struct reply *r, const struct buf *text,
	const struct buf *thinking, const struct reply_call *calls, size_t n_calls)
{
	bool chat = r->request->api == &api_ollama_chat;
	if (chat) {
		json_write_open(w, "message", '{');
		json_write_string(w, "role", "assistant");
	}
	json_write_text(
		w, chat ? "content" : "response", text ? buf_str(text) : "", text ? text->len : 0);
	if (thinking && thinking->len)
		json_write_text(w, "thinking", thinking->data, thinking->len);
	write_calls(w, calls, n_calls);
	if (chat)
		json_write_close(w, '}');
}

static void write_end(struct json_write *w, const struct reply_answer *a)
{
	struct reply_times t = reply_times(a);
	json_write_bool(w, "done", true);
	json_write_string(w, "done_reason", a->finish == JOB_LENGTH ? "length" : "stop");
	json_write_int(w, "total_duration", (int64_t)t.total_ns);
	json_write_int(w, "load_duration", (int64_t)t.wait_ns); /* for a session */
	json_write_int(w, "prompt_eval_count", a->prompt_tokens);
	json_write_int(w, "prompt_eval_duration", (int64_t)t.prompt_ns);
	json_write_int(w, "eval_count", a->new_tokens);
	json_write_int(w, "eval_duration", (int64_t)t.answer_ns);
}

static void write_rows(
	struct json_write *w, const struct reply *r, const struct output_token *rows, size_t n)
{
	if (r->request->output.logprobs && n)
		api_write_tokens(w, "logprobs", r->request->model->tokenizer, rows, n, false);
}

static void ollama_begin(struct reply *r, struct buf *out)
{
	(void)r, (void)out;
}

/* A call goes out when it is complete: its arguments are an object here. */
static void ollama_event(
	struct reply *r, struct reply_answer *a, const struct job_event *v, struct buf *out)
{
	struct buf json = {0};
	struct json_write w;
	const struct reply_call *last = a->n_calls ? &a->calls[a->n_calls - 1] : NULL;
	bool cut = v->kind == JOB_END && last && !last->complete;
	if (v->kind != JOB_TEXT && v->kind != JOB_REASONING && v->kind != JOB_CALL_END && !cut)
		return;
	w = line_begin(&json, r);
	write_words(&w, r, v->kind == JOB_TEXT ? &v->text : NULL,
		v->kind == JOB_REASONING ? &v->text : NULL, last, v->kind == JOB_CALL_END || cut ? 1 : 0);
	write_rows(&w, r, v->rows, v->n_rows);
	json_write_bool(&w, "done", false);
	line_end(&w, out);
}

static void ollama_end(struct reply *r, struct buf *out)
{
	struct buf json = {0};
	struct json_write w = line_begin(&json, r);
	write_words(&w, r, NULL, NULL, NULL, 0);
	write_end(&w, &r->answers[0]);
	line_end(&w, out);
}

static void ollama_whole(struct reply *r, struct buf *out)
{
	const struct reply_answer *a = &r->answers[0];
	struct buf json = {0};
	struct json_write w = line_begin(&json, r);
	write_words(&w, r, &a->text, &a->reasoning, a->calls, a->n_calls);
	write_rows(&w, r, a->rows, a->n_rows);
	write_end(&w, a);
	line_end(&w, out);
}

/* Clients parse every line; an empty piece of text says that the server is at work. */
static void ollama_ping(struct reply *r, struct buf *out)
{
	struct buf json = {0};
	struct json_write w = line_begin(&json, r);
	write_words(&w, r, NULL, NULL, NULL, 0);
	json_write_bool(&w, "done", false);
	line_end(&w, out);
}

static void ollama_error(const struct request_error *e, struct buf *out)
{
	struct json_write w = {.out = out};
	json_write_open(&w, NULL, '{');
	json_write_string(&w, "error", e->message);
	json_write_close(&w, '}');
}

static void ollama_broken(struct reply *r, const struct request_error *e, struct buf *out)
{
	(void)r;
	ollama_error(e, out);
	buf_putc(out, '\n');
}

const struct api api_ollama_chat = {
	.name = "/api/chat",
	.stream_type = "application/x-ndjson",
	.parse = chat_parse_request,
	.begin = ollama_begin,
	.event = ollama_event,
	.end = ollama_end,
	.broken = ollama_broken,
	.ping = ollama_ping,
	.whole = ollama_whole,
	.error = ollama_error,
};

const struct api api_ollama_generate = {
	.name = "/api/generate",
	.stream_type = "application/x-ndjson",
	.parse = generate_parse_request,
	.begin = ollama_begin,
	.event = ollama_event,
	.end = ollama_end,
	.broken = ollama_broken,
	.ping = ollama_ping,
	.whole = ollama_whole,
	.error = ollama_error,
};
