/* SPDX-License-Identifier: MIT */
/*
 * OpenAI's /v1/responses. Items are brought into the form of chat messages. A response is kept
 * unless "store" is false (response_store.h). A request with previous_response_id continues the
 * conversation of that response: its input and output items come first, but not its instructions,
 * as in that API. An input item may be a reference to an item of a response that is kept. The
 * writer of answers is api_responses_write.c.
 */
#include "src/serve/api/openai/api_responses.h"

#include "src/base/num.h"
#include "src/text/json_text.h"

#include <string.h>

static const char *string_of(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));
	return s ? s : "";
}

/* ---- items ---- */

/* An assistant turn is spread over items: reasoning, text, calls. They are gathered in `turn` until
 * an item of another role comes. */
struct gather {
	json_t *out;                /* messages */
	json_t *turn;               /* NULL: none open */
	struct buf text, reasoning; /* of the open turn */
	struct request_error *e;
	size_t item, before; /* before: items of earlier responses */
};

static void close_turn(struct gather *g)
{
	if (!g->turn)
		return;
	json_object_set_new(g->turn, "content", json_stringn(buf_str(&g->text), g->text.len));
	if (g->reasoning.len)
		json_object_set_new(
			g->turn, "reasoning_content", json_stringn(g->reasoning.data, g->reasoning.len));
	json_array_append_new(g->out, g->turn);
	g->turn = NULL;
	buf_clear(&g->text);
	buf_clear(&g->reasoning);
}

static json_t *open_turn(struct gather *g)
{
	if (!g->turn)
		g->turn = json_pack("{s:s, s:[]}", "role", "assistant", "tool_calls");
	return g->turn;
}

static int refuse_item(struct gather *g, const char *expected, const char *found)
{
	return request_refuse(g->e, 400, NULL, "input", "input[%zu]: expected %s, found %.60s",
		g->item - MIN(g->before, g->item), expected, found);
}

/* A string, or a list of parts of text -> one string; pictures become parts that say so. NULL after
 * a refusal. */
static json_t *content_of(struct gather *g, const json_t *content)
{
	if (json_is_string(content))
		return json_incref((json_t *)content);
	if (!json_is_array(content)) {
		refuse_item(g, "a string or an array as content", json_text_type(content));
		return NULL;
	}
	json_t *parts = json_array(), *v;
	size_t i;
	json_array_foreach(content, i, v)
	{
		const char *type = string_of(v, "type");
		json_t *text = json_object_get(v, !strcmp(type, "refusal") ? "refusal" : "text");
		bool is_text = !strcmp(type, "input_text") || !strcmp(type, "output_text") ||
					   !strcmp(type, "text") || !strcmp(type, "refusal") ||
					   !strcmp(type, "reasoning_text") || !strcmp(type, "summary_text");
		if (is_text && json_is_string(text)) {
			json_array_append(parts, text);
		} else if (!strcmp(type, "input_image")) {
			json_array_append_new(parts, json_pack("{s:s}", "type", "image"));
		} else {
			json_decref(parts);
			refuse_item(g, "parts of input_text, output_text or input_image",
				*type ? type : json_text_type(v));
			return NULL;
		}
	}
	return parts;
}

/* Appends what content_of gave (strings only count) to a text of the open turn; takes it. */
static void append_text(struct gather *g, struct buf *to, json_t *content)
{
	size_t i;
	json_t *v;
	open_turn(g);
	if (json_is_string(content))
		buf_append(to, json_string_value(content), json_string_length(content));
	json_array_foreach(content, i, v)
	{
		if (json_is_string(v))
			buf_append(to, json_string_value(v), json_string_length(v));
	}
	json_decref(content);
}

static int take_message(struct gather *g, const json_t *item)
{
	const char *role = string_of(item, "role");
	json_t *content = content_of(g, json_object_get(item, "content"));
	if (!content)
		return -1;
	if (!strcmp(role, "assistant")) {
		append_text(g, &g->text, content);
		return 0;
	}
	close_turn(g);
	if (strcmp(role, "user") && strcmp(role, "system") && strcmp(role, "developer")) {
		json_decref(content);
		return refuse_item(g, "the role user, system, developer or assistant", role);
	}
	json_array_append_new(g->out, json_pack("{s:s, s:o}", "role", role, "content", content));
	return 0;
}

static int take_call(struct gather *g, const json_t *item)
{
	json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name"),
		   *arguments = json_object_get(item, "arguments");
	if (!json_is_string(id) || !json_is_string(name) || !json_is_string(arguments))
		return refuse_item(
			g, "function_call with call_id, name and arguments (strings)", "something else");
	json_array_append_new(json_object_get(open_turn(g), "tool_calls"),
		json_pack(
			"{s:O, s:{s:O, s:O}}", "id", id, "function", "name", name, "arguments", arguments));
	return 0;
}

static int take_output(struct gather *g, const json_t *item)
{
	json_t *id = json_object_get(item, "call_id");
	if (!json_is_string(id))
		return refuse_item(g, "function_call_output with a call_id", json_text_type(id));
	json_t *content = content_of(g, json_object_get(item, "output"));
	if (!content)
		return -1;
	close_turn(g);
	json_array_append_new(g->out,
		json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", content));
	return 0;
}

static int take_reasoning(struct gather *g, const json_t *item)
{
	const json_t *content = json_object_get(item, "content");
	if (!json_array_size(content)) /* a summary is not what the model wrote */
		return 0;
	json_t *text = content_of(g, content);
	if (!text)
		return -1;
	append_text(g, &g->reasoning, text);
	return 0;
}

static int take_item(struct gather *g, const json_t *item)
{
	const char *type = string_of(item, "type");
	if (!json_is_object(item))
		return refuse_item(g, "an object", json_text_type(item));
	if (!strcmp(type, "message") || (!*type && json_object_get(item, "role")))
		return take_message(g, item);
	if (!strcmp(type, "function_call"))
		return take_call(g, item);
	if (!strcmp(type, "function_call_output"))
		return take_output(g, item);
	if (!strcmp(type, "reasoning"))
		return take_reasoning(g, item);
	return refuse_item(g,
		"message, function_call, function_call_output, reasoning or item_reference",
		*type ? type : "no type");
}

/* r->items: those of the responses before, then the input's. */
static int gather_items(struct request *r, size_t *before, struct request_error *e)
{
	json_t *input = json_object_get(r->body, "input");
	if (api_responses_previous(r, &r->items, e))
		return -1;
	*before = json_array_size(r->items);
	if (json_is_string(input))
		json_array_append_new(r->items,
			json_pack("{s:s, s:s, s:O}", "type", "message", "role", "user", "content", input));
	else if (json_array_size(input))
		json_array_extend(r->items, input);
	else
		return request_refuse(e, 400, NULL, "input",
			"input: expected a string or an array of items, found %s",
			json_is_array(input) ? "an empty one" : json_text_type(input));
	return api_responses_resolve(r, *before, e) || api_responses_hold_items(r, e) ? -1 : 0;
}

static int parse_input(struct request *r, struct request_error *e)
{
	const char *instructions = NULL;
	struct gather g = {.e = e};
	if (request_string(r->body, "instructions", &instructions, e) || gather_items(r, &g.before, e))
		return -1;
	int rc = 0;
	g.out = json_array();
	if (instructions && *instructions)
		json_array_append_new(g.out, json_pack("{s:s, s:O}", "role", "system", "content",
										 json_object_get(r->body, "instructions")));
	for (; g.item < json_array_size(r->items) && !rc; g.item++)
		rc = take_item(&g, json_array_get(r->items, g.item));
	close_turn(&g);
	if (!rc)
		rc = request_messages(r, g.out, e);
	json_decref(g.out);
	buf_free(&g.text);
	buf_free(&g.reasoning);
	return rc;
}

/* ---- the rest ---- */

static int parse_logprobs(struct request *r, struct request_error *e)
{
	const json_t *include = json_object_get(r->body, "include");
	int64_t top = 0;
	size_t i;
	json_t *v;
	json_array_foreach(include, i, v)
	{
		if (json_is_string(v) && !strcmp(json_string_value(v), "message.output_text.logprobs"))
			r->output.logprobs = true;
	}
	if (request_integer(r->body, "top_logprobs", 0, OUTPUT_TOP_MAX, &top, NULL, e))
		return -1;
	r->output.n_top = (uint32_t)top;
	r->output.logprobs = r->output.logprobs || top;
	return 0;
}

int api_responses_parse(struct request *r, struct request_error *e)
{
	static const char *const members[] = {"input", "instructions", "store", "previous_response_id",
		"max_output_tokens", "stop", "include", "top_logprobs", "truncation", "text", "reasoning",
		"tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "enable_thinking",
		"thinking",
		/* */
		"stream_options", "client_metadata", NULL};
	const char *effort = NULL, *truncation = NULL;
	int64_t most = -1;
	request_make_id(r->id, sizeof r->id, "resp_");
	const json_t *text, *format, *reasoning;
	if (request_known(r, members, e))
		return -1;
	r->store = true;
	if (request_model_name(r, e) || request_bool(r->body, "stream", &r->stream, e) ||
		request_bool(r->body, "store", &r->store, e) ||
		request_integer(r->body, "max_output_tokens", 1, INT32_MAX, &most, NULL, e) ||
		request_sampling(r, e) || request_stops(r, "stop", e) || parse_logprobs(r, e) ||
		request_string(r->body, "truncation", &truncation, e) ||
		request_object(r->body, "text", &text, e) || request_object(text, "format", &format, e) ||
		request_object(r->body, "reasoning", &reasoning, e) ||
		request_string(reasoning, "effort", &effort, e) ||
		request_effort(r, effort, "reasoning.effort", e) || request_template(r, e))
		return -1;
	if (request_format(r, format, "text.format", e))
		return -1;
	if (truncation && strcmp(truncation, "disabled"))
		return request_refuse(e, 400, "unsupported_parameter", "truncation",
			"truncation: only disabled is supported by this server");
	const json_t *tools = json_object_get(r->body, "tools");
	size_t i;
	json_t *tool;
	json_array_foreach(tools, i, tool)
	{
		if (strcmp(string_of(tool, "type"), "function"))
			return request_refuse(e, 400, "unsupported_parameter", "tools",
				"tools[%zu].type: only function is supported by this server, found \"%.40s\"", i,
				string_of(tool, "type"));
	}
	/* here a tool is flat, and the template would show its "type" */
	json_t *flat = json_is_array(tools) ? json_array() : json_incref((json_t *)tools);
	json_array_foreach(tools, i, tool)
	{
		json_t *copy = json_copy(tool);
		json_object_del(copy, "type");
		json_array_append_new(flat, copy);
	}
	int rc = request_tools(r, flat, e);
	json_decref(flat);
	if (rc || parse_input(r, e) || api_openai_choice(r, e) || request_prompt(r, e))
		return -1;
	return request_limit_new_tokens(r, most, e);
}

int64_t api_responses_count(
	const struct request_model *model, const char *body, size_t len, struct request_error *e)
{
	struct request r;
	int64_t n = -1;
	if (!api_parse(&api_responses, model, body, len, &r, e))
		n = (int64_t)r.prompts[0].n;
	request_fini(&r);
	return n;
}
