/* SPDX-License-Identifier: MIT */
/*
 * Anthropic's /v1/messages. Blocks are brought into the form of OpenAI's messages, which the
 * template takes. As in that API, there is no reasoning unless "thinking" asks for it. Thinking
 * blocks have an empty signature: reasoning that a client sends back is compared with what the
 * model wrote (turn_store.h).
 */
#include "src/serve/api/api.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/serve/api/json_write.h"
#include "src/text/json_text.h"

#include <string.h>

/* ---- request ---- */

static const char *type_of(const json_t *block)
{
	const char *type = json_string_value(json_object_get(block, "type"));
	return type ? type : "";
}

/* One message of the form {"role": role, "content": parts}; takes the reference to `parts`; nothing
 * when it is empty. */
static void add_message(json_t *out, const char *role, json_t *parts)
{
	if (json_array_size(parts))
		json_array_append_new(out, json_pack("{s:s, s:o}", "role", role, "content", parts));
	else
		json_decref(parts);
}

static int wrong_block(
	struct request_error *e, size_t message, size_t block, const char *expected, const json_t *v)
{
	return request_refuse(e, 400, NULL, "messages",
		"messages.%zu.content.%zu: expected %s, found %s%.40s", message, block, expected,
		*type_of(v) ? "" : json_text_type(v), type_of(v));
}

/* A block that shows something: text, or a picture the model cannot see. NULL: another kind. */
static json_t *visible_part(const json_t *block)
{
	const char *type = type_of(block);
	if (!strcmp(type, "text") && json_is_string(json_object_get(block, "text")))
		return json_pack("{s:s, s:O}", "type", "text", "text", json_object_get(block, "text"));
	if (!strcmp(type, "image"))
		return json_pack("{s:s}", "type", "image");
	const json_t *source = json_object_get(block, "source");
	if (!strcmp(type, "document") && !strcmp(type_of(source), "text") &&
		json_is_string(json_object_get(source, "data")))
		return json_pack("{s:s, s:O}", "type", "text", "text", json_object_get(source, "data"));
	return NULL;
}

/* {"type": "tool_result"} -> a tool message. */
static int tool_result(
	json_t *out, const json_t *block, size_t m, size_t b, struct request_error *e)
{
	const json_t *content = json_object_get(block, "content"),
				 *id = json_object_get(block, "tool_use_id");
	json_t *text;
	if (!json_is_string(id))
		return wrong_block(e, m, b, "a tool_use_id in tool_result", id);
	if (json_is_array(content)) {
		size_t i;
		json_t *v;
		text = json_array();
		json_array_foreach(content, i, v)
		{
			json_t *part = visible_part(v);
			if (!part) {
				json_decref(text);
				return wrong_block(e, m, b, "text or images in tool_result", v);
			}
			json_array_append_new(text, part);
		}
	} else if (!content || json_is_null(content) || json_is_string(content)) {
		text = json_is_string(content) ? json_incref((json_t *)content) : json_string("");
	} else {
		return wrong_block(e, m, b, "a string or an array as the content of tool_result", content);
	}
	json_array_append_new(
		out, json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", text));
	return 0;
}

static int user_blocks(json_t *out, const json_t *blocks, size_t m, struct request_error *e)
{
	json_t *parts = json_array(), *block;
	size_t i;
	int rc = 0;
	json_array_foreach(blocks, i, block)
	{
		json_t *part = visible_part(block);
		if (part) {
			json_array_append_new(parts, part);
		} else if (!strcmp(type_of(block), "tool_result")) {
			add_message(out, "user", parts);
			parts = json_array();
			rc = tool_result(out, block, m, i, e);
		} else {
			rc = wrong_block(e, m, i, "text, image, document (plain text) or tool_result", block);
		}
		if (rc)
			break;
	}
	add_message(out, "user", parts);
	return rc;
}

static int assistant_blocks(json_t *out, const json_t *blocks, size_t m, struct request_error *e)
{
	struct buf text = {0}, reasoning = {0};
	json_t *calls = json_array(), *block;
	size_t i;
	int rc = 0;
	json_array_foreach(blocks, i, block)
	{
		const char *type = type_of(block);
		const json_t *t = json_object_get(block, "text"), *r = json_object_get(block, "thinking");
		if (!strcmp(type, "text") && json_is_string(t)) {
			buf_append(&text, json_string_value(t), json_string_length(t));
		} else if (!strcmp(type, "thinking") && json_is_string(r)) {
			buf_append(&reasoning, json_string_value(r), json_string_length(r));
		} else if (!strcmp(type, "tool_use") && json_is_string(json_object_get(block, "name")) &&
				   json_is_string(json_object_get(block, "id"))) {
			const json_t *input = json_object_get(block, "input");
			json_array_append_new(
				calls, json_pack("{s:O, s:{s:O, s:o}}", "id", json_object_get(block, "id"),
						   "function", "name", json_object_get(block, "name"), "arguments",
						   json_is_object(input) ? json_incref((json_t *)input) : json_object()));
		} else if (strcmp(type, "redacted_thinking") != 0) {
			rc = wrong_block(e, m, i, "text, thinking or tool_use (with id and name)", block);
			break;
		}
	}
	json_t *msg = json_pack("{s:s}", "role", "assistant");
	json_object_set_new(msg, "content", json_stringn(buf_str(&text), text.len));
	if (reasoning.len)
		json_object_set_new(msg, "reasoning_content", json_stringn(reasoning.data, reasoning.len));
	if (json_array_size(calls))
		json_object_set(msg, "tool_calls", calls);
	json_array_append_new(out, msg);
	json_decref(calls);
	buf_free(&text);
	buf_free(&reasoning);
	return rc;
}

/* Every text of `system` is a part of one system message, with line feeds between. */
static int convert_system(json_t *out, const json_t *system, struct request_error *e)
{
	if (!system || json_is_null(system))
		return 0;
	json_t *parts = json_array(), *v;
	size_t i;
	if (json_is_string(system) && json_string_length(system))
		json_array_append(parts, (json_t *)system);
	json_array_foreach(system, i, v)
	{
		const json_t *text = json_object_get(v, "text");
		if (!json_is_string(text)) {
			json_decref(parts);
			return request_refuse(e, 400, NULL, "system",
				"system.%zu: expected a text block, found %s", i, json_text_type(v));
		}
		if (i)
			json_array_append_new(parts, json_string("\n"));
		json_array_append(parts, (json_t *)text);
	}
	if (!json_is_string(system) && !json_is_array(system)) {
		json_decref(parts);
		return request_refuse(e, 400, NULL, "system",
			"system: expected a string or an array of text blocks, found %s",
			json_text_type(system));
	}
	add_message(out, "system", parts);
	return 0;
}

static int convert_messages(json_t *out, const json_t *body, struct request_error *e)
{
	const json_t *messages = json_object_get(body, "messages");
	size_t i;
	json_t *m;
	if (!json_is_array(messages) || !json_array_size(messages))
		return request_refuse(e, 400, NULL, "messages",
			"messages: expected an array with at least one message, found %s",
			json_is_array(messages) ? "an empty one" : json_text_type(messages));
	if (convert_system(out, json_object_get(body, "system"), e))
		return -1;
	json_array_foreach(messages, i, m)
	{
		const char *role = json_string_value(json_object_get(m, "role"));
		json_t *content = json_object_get(m, "content");
		bool user = role && !strcmp(role, "user"), assistant = role && !strcmp(role, "assistant"),
			 system = role && !strcmp(role, "system");
		if (!user && !assistant && !system)
			return request_refuse(e, 400, NULL, "messages",
				"messages.%zu.role: expected user or assistant, found %.40s", i,
				role ? role : json_text_type(json_object_get(m, "role")));
		if (json_is_string(content))
			json_array_append_new(out, json_pack("{s:s, s:O}", "role", role, "content", content));
		else if (!json_is_array(content))
			return request_refuse(e, 400, NULL, "messages",
				"messages.%zu.content: expected a string or an array of blocks, found %s", i,
				json_text_type(content));
		else if (system ? convert_system(out, content, e)
				 : user ? user_blocks(out, content, i, e)
						: assistant_blocks(out, content, i, e))
			return -1;
	}
	return 0;
}

static int parse_tools(struct request *r, struct request_error *e)
{
	const json_t *tools = json_object_get(r->body, "tools"),
				 *choice = json_object_get(r->body, "tool_choice");
	size_t i;
	json_t *tool;
	if (tools && !json_is_null(tools) && !json_is_array(tools))
		return request_refuse(
			e, 400, NULL, "tools", "tools: expected an array, found %s", json_text_type(tools));
	json_t *out = json_array();
	json_array_foreach(tools, i, tool)
	{
		const json_t *name = json_object_get(tool, "name"),
					 *text = json_object_get(tool, "description"),
					 *schema = json_object_get(tool, "input_schema");
		if ((*type_of(tool) && strcmp(type_of(tool), "custom")) || !json_is_string(name) ||
			(text && !json_is_null(text) && !json_is_string(text)) || !json_is_object(schema)) {
			json_decref(out);
			return request_refuse(e, 400, NULL, "tools",
				"tools.%zu: expected a tool with name and input_schema (tools that a server runs "
				"are not supported)",
				i);
		}
		json_t *f = json_object();
		json_object_set(f, "name", (json_t *)name);
		if (json_is_string(text))
			json_object_set(f, "description", (json_t *)text);
		json_object_set(f, "parameters", (json_t *)schema);
		json_array_append_new(out, json_pack("{s:s, s:o}", "type", "function", "function", f));
	}
	int rc = request_tools(r, out, e);
	json_decref(out);
	json_array_foreach(tools, i, tool)
	{
		if (!rc && json_is_true(json_object_get(tool, "strict")))
			rc = request_strict_tool(r, json_string_value(json_object_get(tool, "name")),
				json_object_get(tool, "input_schema"), e);
	}
	if (rc || !choice || json_is_null(choice))
		return rc;
	bool alone = false;
	const char *type = type_of(choice), *name = NULL;
	if (request_bool(choice, "disable_parallel_tool_use", &alone, e) ||
		request_string(choice, "name", &name, e))
		return -1;
	r->output.one_call = alone;
	if (!strcmp(type, "auto"))
		return 0;
	if (!strcmp(type, "none"))
		return request_choice(r, TOOL_CHOICE_NONE, NULL, "tool_choice", e);
	if (!strcmp(type, "any"))
		return request_choice(r, TOOL_CHOICE_REQUIRED, NULL, "tool_choice", e);
	if (!strcmp(type, "tool") && name)
		return request_choice(r, TOOL_CHOICE_REQUIRED, name, "tool_choice", e);
	return request_refuse(e, 400, NULL, "tool_choice",
		"tool_choice.type: expected auto, any, none, or tool with a name");
}

/* Everything that decides the prompt. */
static int parse_talk(struct request *r, struct request_error *e)
{
	static const char *const members[] = {"messages", "system", "max_tokens", "stop_sequences",
		"thinking", "tools", "tool_choice", "output_config", "output_format",
		"chat_template_kwargs", "enable_thinking",
		/* */
		"cache_control", "context_management", "inference_geo", NULL};
	const char *effort = NULL;
	const json_t *config;
	if (request_known(r, members, e) || request_object(r->body, "output_config", &config, e) ||
		request_format(r, json_object_get(config, "format"), "output_config.format", e) ||
		request_format(r, json_object_get(r->body, "output_format"), "output_format", e) ||
		request_string(config, "effort", &effort, e) ||
		request_effort(r, effort, "output_config.effort", e))
		return -1;
	r->think_is_set = false; /* an effort alone does not turn reasoning on */
	if (request_template(r, e))
		return -1;
	if (!r->think_is_set)
		r->talk.chat.options.enable_thinking = CHAT_OFF;
	json_t *messages = json_array();
	int rc = convert_messages(messages, r->body, e);
	if (!rc)
		rc = request_messages(r, messages, e);
	json_decref(messages);
	return rc ? rc : parse_tools(r, e);
}

static int messages_parse(struct request *r, struct request_error *e)
{
	int64_t most = 0;
	bool given;
	request_make_id(r->id, sizeof r->id, "msg_");
	if (request_model_name(r, e) || request_bool(r->body, "stream", &r->stream, e) ||
		request_integer(r->body, "max_tokens", 1, INT32_MAX, &most, &given, e) ||
		request_sampling(r, e) || request_stops(r, "stop_sequences", e))
		return -1;
	if (!given)
		return request_refuse(e, 400, NULL, "max_tokens", "max_tokens: Field required");
	if (parse_talk(r, e) || request_prompt(r, e))
		return -1;
	return request_limit_new_tokens(r, most, e);
}

int64_t api_messages_count(
	const struct request_model *model, const char *body, size_t len, struct request_error *e)
{
	struct request r;
	static const struct api counting = {.parse = parse_talk};
	int64_t n = -1;
	if (!api_parse(&counting, model, body, len, &r, e) && !request_model_name(&r, e) &&
		!request_prompt(&r, e))
		n = (int64_t)r.prompts[0].n;
	request_fini(&r);
	return n;
}

/* ---- answers ---- */

static const char *stop_reason(const struct reply_answer *a)
{
	if (a->finish == JOB_LENGTH)
		return "max_tokens";
	if (a->finish == JOB_STOP_STRING)
		return "stop_sequence";
	return a->n_calls ? "tool_use" : "end_turn";
}

static void write_usage(struct json_write *w, const struct reply_answer *a)
{
	json_write_open(w, "usage", '{');
	json_write_int(w, "input_tokens", (int64_t)a->prompt_tokens - a->cached_tokens);
	json_write_int(w, "cache_creation_input_tokens", 0);
	json_write_int(w, "cache_read_input_tokens", a->cached_tokens);
	json_write_int(w, "output_tokens", a->new_tokens);
	json_write_close(w, '}');
}

/* input: a JSON object. */
static void write_call(struct json_write *w, const char *key, const struct reply_call *c,
	const char *input, size_t input_len)
{
	json_write_open(w, key, '{');
	json_write_string(w, "type", "tool_use");
	json_write_string(w, "id", c->id);
	json_write_text(w, "name", buf_str(&c->name), c->name.len);
	json_write_raw(w, "input", input, input_len);
	json_write_close(w, '}');
}

/* The members of a message up to its content, whose bracket is open then. */
static void write_head(struct json_write *w, const struct request *q)
{
	json_write_string(w, "id", q->id);
	json_write_string(w, "type", "message");
	json_write_string(w, "role", "assistant");
	json_write_string(w, "model", q->model->name);
	json_write_open(w, "content", '[');
}

static void messages_whole(struct reply *r, struct buf *out)
{
	struct json_write w = {.out = out};
	const struct reply_answer *a = &r->answers[0];
	json_write_open(&w, NULL, '{');
	write_head(&w, r->request);
	if (a->reasoning.len) {
		json_write_open(&w, NULL, '{');
		json_write_string(&w, "type", "thinking");
		json_write_text(&w, "thinking", a->reasoning.data, a->reasoning.len);
		json_write_string(&w, "signature", "");
		json_write_close(&w, '}');
	}
	for (size_t k = 0; k <= a->n_calls; k++) {
		struct reply_segment s;
		if (reply_segment(a, k, &s)) {
			json_write_open(&w, NULL, '{');
			json_write_string(&w, "type", "text");
			json_write_text(&w, "text", s.text, s.len);
			json_write_close(&w, '}');
		}
		if (k < a->n_calls) {
			struct buf input = {0};
			reply_call_object(&a->calls[k], &input);
			write_call(&w, NULL, &a->calls[k], buf_str(&input), input.len);
			buf_free(&input);
		}
	}
	json_write_close(&w, ']');
	json_write_string(&w, "stop_reason", stop_reason(a));
	json_write_string(&w, "stop_sequence", a->stop);
	write_usage(&w, a);
	json_write_close(&w, '}');
}

/* ---- stream ---- */

enum open_block { NOTHING, THINKING, TEXT, CALL };

static struct json_write event_begin(struct buf *json, const char *type)
{
	struct json_write w = {.out = json};
	json_write_open(&w, NULL, '{');
	json_write_string(&w, "type", type);
	return w;
}

static void messages_begin(struct reply *r, struct buf *out)
{
	struct buf json = {0};
	struct json_write w = event_begin(&json, "message_start");
	json_write_open(&w, "message", '{');
	write_head(&w, r->request);
	json_write_close(&w, ']');
	json_write_null(&w, "stop_reason");
	json_write_null(&w, "stop_sequence");
	write_usage(&w, &r->answers[0]);
	json_write_close(&w, '}');
	api_sse_event(&w, "message_start", out);
}

static void close_block(struct reply_answer *a, struct buf *out)
{
	if (a->open == NOTHING)
		return;
	struct buf json = {0};
	if (a->open == THINKING) {
		struct json_write w = event_begin(&json, "content_block_delta");
		json_write_int(&w, "index", a->n_items);
		json_write_open(&w, "delta", '{');
		json_write_string(&w, "type", "signature_delta");
		json_write_string(&w, "signature", "");
		json_write_close(&w, '}');
		api_sse_event(&w, "content_block_delta", out);
	}
	struct json_write w = event_begin(&json, "content_block_stop");
	json_write_int(&w, "index", a->n_items++);
	api_sse_event(&w, "content_block_stop", out);
	a->open = NOTHING;
}

static void open_block(struct reply_answer *a, enum open_block kind, struct buf *out)
{
	if (a->open == (int)kind)
		return;
	close_block(a, out);
	struct buf json = {0};
	struct json_write w = event_begin(&json, "content_block_start");
	json_write_int(&w, "index", a->n_items);
	json_write_open(&w, "content_block", '{');
	json_write_string(&w, "type", kind == THINKING ? "thinking" : "text");
	json_write_string(&w, kind == THINKING ? "thinking" : "text", "");
	if (kind == THINKING)
		json_write_string(&w, "signature", "");
	json_write_close(&w, '}');
	api_sse_event(&w, "content_block_start", out);
	a->open = kind;
}

static void write_delta(struct reply_answer *a, const char *type, const char *key, const char *text,
	size_t n, struct buf *out)
{
	struct buf json = {0};
	struct json_write w = event_begin(&json, "content_block_delta");
	json_write_int(&w, "index", a->n_items);
	json_write_open(&w, "delta", '{');
	json_write_string(&w, "type", type);
	json_write_text(&w, key, text, n);
	json_write_close(&w, '}');
	api_sse_event(&w, "content_block_delta", out);
}

static void open_call(struct reply_answer *a, struct buf *out)
{
	struct buf json = {0};
	close_block(a, out);
	struct json_write w = event_begin(&json, "content_block_start");
	json_write_int(&w, "index", a->n_items);
	write_call(&w, "content_block", &a->calls[a->n_calls - 1], "{}", 2);
	api_sse_event(&w, "content_block_start", out);
	a->open = CALL;
	a->text_sent = a->text.len;
}

static void messages_event(
	struct reply *r, struct reply_answer *a, const struct job_event *v, struct buf *out)
{
	struct reply_segment s;
	(void)r;
	switch (v->kind) {
	case JOB_REASONING:
		open_block(a, THINKING, out);
		write_delta(a, "thinking_delta", "thinking", v->text.data, v->text.len, out);
		break;
	case JOB_TEXT:
		if (!reply_segment(a, a->n_calls, &s)) /* blanks may turn out to stand between calls */
			break;
		open_block(a, TEXT, out);
		write_delta(
			a, "text_delta", "text", a->text.data + a->text_sent, a->text.len - a->text_sent, out);
		a->text_sent = a->text.len;
		break;
	case JOB_CALL:
		open_call(a, out);
		break;
	case JOB_ARGUMENTS:
		write_delta(a, "input_json_delta", "partial_json", v->text.data, v->text.len, out);
		break;
	case JOB_CALL_END:
		close_block(a, out);
		break;
	default:
		break;
	}
}

static void messages_end(struct reply *r, struct buf *out)
{
	struct reply_answer *a = &r->answers[0];
	struct buf json = {0};
	close_block(a, out);
	struct json_write w = event_begin(&json, "message_delta");
	json_write_open(&w, "delta", '{');
	json_write_string(&w, "stop_reason", stop_reason(a));
	json_write_string(&w, "stop_sequence", a->stop);
	json_write_close(&w, '}');
	write_usage(&w, a);
	api_sse_event(&w, "message_delta", out);
	w = event_begin(&json, "message_stop");
	api_sse_event(&w, "message_stop", out);
}

static void write_error(const struct request_error *e, struct buf *out)
{
	const char *type = e->status == 401   ? "authentication_error"
					   : e->status == 403 ? "permission_error"
					   : e->status == 404 ? "not_found_error"
					   : e->status == 413 ? "request_too_large"
					   : e->status == 429 ? "rate_limit_error"
					   : e->status == 503 ? "overloaded_error"
					   : e->status >= 500 ? "api_error"
										  : "invalid_request_error";
	struct json_write w = {.out = out};
	json_write_open(&w, NULL, '{');
	json_write_string(&w, "type", "error");
	json_write_open(&w, "error", '{');
	json_write_string(&w, "type", type);
	json_write_string(&w, "message", e->message);
	json_write_close(&w, '}');
	json_write_close(&w, '}');
}

static void messages_broken(struct reply *r, const struct request_error *e, struct buf *out)
{
	struct buf json = {0};
	(void)r;
	write_error(e, &json);
	buf_puts(out, "event: error\n");
	api_sse_data(out, &json);
	buf_free(&json);
}

static void messages_ping(struct reply *r, struct buf *out)
{
	api_comment_ping(r, out);
	buf_puts(out, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
}

const struct api api_messages = {
	.name = "/v1/messages",
	.call_prefix = "toolu_",
	.parse = messages_parse,
	.begin = messages_begin,
	.event = messages_event,
	.end = messages_end,
	.broken = messages_broken,
	.ping = messages_ping,
	.whole = messages_whole,
	.error = write_error,
};
