/* SPDX-License-Identifier: MIT */
/* Members with their types and ranges; refusals in one sentence each. */
#include "src/serve/api/request.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/text/chat_json.h"
#include "src/text/json_text.h"
#include "src/text/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define MEMORY_RETRY_S 2

void request_fini(struct request *r)
{
	/* Before `shared` is dropped: json_t's reference counts are used by one thread at a time, and
	 * the compute thread may release the tools after that. */
	json_decref(r->body);
	json_decref(r->items);
	prompt_talk_fini(&r->talk);
	if (r->shared) {
		job_shared_drop(r->shared);
	} else {
		struct job_shared own = {
			.output = r->output, .prompts = r->prompts, .n_prompts = r->n_prompts, .part = r->part};
		job_shared_fini(&own);
	}
	*r = (struct request){0};
}

bool request_share(struct request *r)
{
	if (r->shared)
		return true;
	r->shared = job_shared_new();
	if (!r->shared)
		return false;
	r->shared->output = r->output;
	r->shared->prompts = r->prompts;
	r->shared->n_prompts = r->n_prompts;
	r->shared->part = r->part;
	return true;
}

int request_hold(struct request *r, size_t bytes, struct request_error *e)
{
	return request_hold_part(&r->part, bytes, e);
}

int request_hold_part(struct budget_part *part, size_t bytes, struct request_error *e)
{
	switch (budget_hold(part, bytes)) {
	case BUDGET_TAKEN:
		return 0;
	case BUDGET_SHARE:
		request_refuse(e, 429, "client_share", NULL,
			"the requests of this client hold too much memory: one client may hold %u %% of what "
			"others leave; try again in %d s",
			client_percent(part->client), MEMORY_RETRY_S);
		e->retry_s = MEMORY_RETRY_S;
		return -1;
	case BUDGET_TOO_LARGE:
		return request_refuse(e, 413, "request_too_large", NULL,
			"the request needs up to %zu MiB of memory, more than the %zu MiB that one may take",
			(bytes >> 20) + 1, budget_most(part->budget) >> 20);
	default:
		request_refuse(e, 429, "memory_full", NULL,
			"the requests under way hold too much memory; try again in %d s", MEMORY_RETRY_S);
		e->retry_s = MEMORY_RETRY_S;
		return -1;
	}
}

void request_make_id(char *out, size_t size, const char *prefix)
{
	static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
	unsigned char random[24];
	for (size_t at = 0; at < sizeof random;) {
		ssize_t got = getrandom(random + at, sizeof random - at, 0);
		at += got > 0 ? (size_t)got : 0;
	}
	size_t n = (size_t)snprintf(out, size, "%s", prefix);
	for (size_t i = 0; i < sizeof random && n + 1 < size; i++)
		out[n++] = letters[random[i] % (sizeof letters - 1)];
	out[n] = 0;
}

/* Texts are quoted up to a length, which may cut a character: what is broken becomes U+FFFD, as far
 * as it fits. */
static void repair_utf8(char *text, size_t size)
{
	struct buf b = {0};
	utf8_repair(text, strlen(text), &b);
	if (!b.data) /* no memory: what is quoted may be broken, so nothing is */
		text[utf8_valid_prefix(text, strlen(text))] = 0;
	if (!b.data)
		return;
	size_t n = b.len < size ? b.len : utf8_valid_prefix(buf_str(&b), size - 1);
	memcpy(text, buf_str(&b), n);
	text[n] = 0;
	buf_free(&b);
}

int request_refuse(
	struct request_error *e, int status, const char *code, const char *param, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	*e = (struct request_error){.status = status, .code = code};
	vsnprintf(e->message, sizeof e->message, fmt, ap);
	va_end(ap);
	repair_utf8(e->message, sizeof e->message);
	if (param)
		snprintf(e->param, sizeof e->param, "%s", param);
	repair_utf8(e->param, sizeof e->param);
	return -1;
}

int request_refuse_memory(struct request_error *e)
{
	request_refuse(e, 503, "out_of_memory", NULL,
		"the server has no memory for this request; try again in %d s", MEMORY_RETRY_S);
	e->retry_s = MEMORY_RETRY_S;
	return -1;
}

int request_refuse_err(struct request_error *e, const struct err *err)
{
	int status = err->code == ERR_INPUT                                    ? 400
				 : err->code == ERR_MEMORY || err->code == ERR_INTERRUPTED ? 503
																		   : 500;
	request_refuse(e, status, NULL, NULL, "%s", err->text);
	/* "messages[3].role: expected ...": the path is the parameter */
	size_t n = strcspn(err->text, ": ");
	if (status == 400 && err->text[n] == ':' && n < sizeof e->param)
		memcpy(e->param, err->text, n);
	repair_utf8(e->param, sizeof e->param);
	return -1;
}

/* ---- members ---- */

static int wrong_type(
	struct request_error *e, const char *key, const char *expected, const json_t *found)
{
	return request_refuse(
		e, 400, NULL, key, "%s: expected %s, found %s", key, expected, json_text_type(found));
}

int request_number(const json_t *o, const char *key, double min, double max, double *out,
	bool *given, struct request_error *e)
{
	const json_t *v = json_object_get(o, key);
	if (given)
		*given = false;
	if (!v || json_is_null(v))
		return 0;
	if (!json_is_number(v))
		return wrong_type(e, key, "a number", v);
	double x = json_number_value(v);
	if (!(x >= min && x <= max))
		return request_refuse(
			e, 400, NULL, key, "%s: expected %g to %g, found %g", key, min, max, x);
	*out = x;
	if (given)
		*given = true;
	return 0;
}

int request_integer(const json_t *o, const char *key, int64_t min, int64_t max, int64_t *out,
	bool *given, struct request_error *e)
{
	const json_t *v = json_object_get(o, key);
	if (given)
		*given = false;
	if (!v || json_is_null(v))
		return 0;
	if (!json_is_integer(v))
		return wrong_type(e, key, "a whole number", v);
	int64_t x = json_integer_value(v);
	if (x < min || x > max)
		return request_refuse(e, 400, NULL, key, "%s: expected %lld to %lld, found %lld", key,
			(long long)min, (long long)max, (long long)x);
	*out = x;
	if (given)
		*given = true;
	return 0;
}

int request_bool(const json_t *o, const char *key, bool *out, struct request_error *e)
{
	const json_t *v = json_object_get(o, key);
	if (!v || json_is_null(v))
		return 0;
	if (!json_is_boolean(v))
		return wrong_type(e, key, "true or false", v);
	*out = json_is_true(v);
	return 0;
}

int request_string(const json_t *o, const char *key, const char **out, struct request_error *e)
{
	const json_t *v = json_object_get(o, key);
	if (!v || json_is_null(v))
		return 0;
	if (!json_is_string(v))
		return wrong_type(e, key, "a string", v);
	*out = json_string_value(v);
	return 0;
}

int request_object(const json_t *o, const char *key, const json_t **out, struct request_error *e)
{
	const json_t *v = json_object_get(o, key);
	*out = json_is_object(v) ? v : NULL;
	return *out || !v || json_is_null(v) ? 0 : wrong_type(e, key, "an object", v);
}

int request_unsupported(const json_t *o, const char *key, struct request_error *e)
{
	const json_t *v = json_object_get(o, key);
	if (!v || json_is_null(v) || json_is_false(v) ||
		(json_is_number(v) && json_number_value(v) == 0) ||
		(json_is_string(v) && !json_string_length(v)) ||
		(json_is_array(v) && !json_array_size(v)) || (json_is_object(v) && !json_object_size(v)))
		return 0;
	return request_refuse(
		e, 400, "unsupported_parameter", key, "%s is not supported by this server", key);
}

/* ---- shared parts ---- */

bool request_names_model(const struct request_model *m, const char *name)
{
	size_t n = strlen(m->name);
	return !strncmp(name, m->name, n) && (!name[n] || !strcmp(name + n, ":latest"));
}

int request_check_model(const struct request_model *m, const char *name, struct request_error *e)
{
	if (!name || !m->strict_name || request_names_model(m, name))
		return 0;
	return request_refuse(e, 404, "model_not_found", "model",
		"the model \"%.100s\" does not exist here; this server has \"%s\"", name, m->name);
}

int request_model_name(struct request *r, struct request_error *e)
{
	const char *name = NULL;
	if (request_string(r->body, "model", &name, e))
		return -1;
	return request_check_model(r->model, name, e);
}

static int add_stop(struct request *r, const char *key, const json_t *v, struct request_error *e)
{
	size_t n = json_string_length(v);
	if (!json_is_string(v))
		return wrong_type(e, key, "a string or an array of strings", v);
	if (!n) /* would stop everything; OpenAI and Anthropic clients send it by mistake */
		return request_refuse(e, 400, NULL, key, "%s: a stop string is empty", key);
	if (n > REQUEST_STOP_BYTES || strlen(json_string_value(v)) != n)
		return request_refuse(e, 400, NULL, key,
			"%s: a stop string has a zero byte or more than %d bytes", key, REQUEST_STOP_BYTES);
	if (r->output.n_stops == REQUEST_STOPS_MAX)
		return request_refuse(
			e, 400, NULL, key, "%s: more than %d stop strings", key, REQUEST_STOPS_MAX);
	struct output_options *o = &r->output;
	char *stop = mem_strndup(json_string_value(v), n);
	if (!stop || !mem_grow_array(&o->stops, o->n_stops + 1, sizeof *o->stops)) {
		free(stop);
		return request_refuse_memory(e);
	}
	o->stops[o->n_stops++] = stop;
	return 0;
}

int request_stops(struct request *r, const char *key, struct request_error *e)
{
	const json_t *v = json_object_get(r->body, key);
	if (!v || json_is_null(v))
		return 0;
	if (!json_is_array(v))
		return add_stop(r, key, v, e);
	size_t i;
	json_t *item;
	json_array_foreach(v, i, item)
	{
		if (add_stop(r, key, item, e))
			return -1;
	}
	return 0;
}

int request_effort(
	struct request *r, const char *effort, const char *param, struct request_error *e)
{
	static const char *const words[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
	size_t i = 0;
	if (!effort)
		return 0;
	while (i < ARRAY_LEN(words) && strcmp(words[i], effort))
		i++;
	if (i == ARRAY_LEN(words))
		return request_refuse(e, 400, NULL, param,
			"%s: expected none, minimal, low, medium, high, xhigh or max, found \"%.40s\"", param,
			effort);
	r->think_is_set = true;
	r->talk.chat.options.enable_thinking = i ? CHAT_ON : CHAT_OFF;
	r->talk.chat.options.effort_high = i >= 1 && i <= 4;
	return 0;
}

/* true and false set *out. */
static int take_switch(
	const json_t *o, const char *key, enum chat_switch *out, struct request_error *e)
{
	bool on = *out == CHAT_ON;
	if (request_bool(o, key, &on, e))
		return -1;
	if (json_is_boolean(json_object_get(o, key)))
		*out = on ? CHAT_ON : CHAT_OFF;
	return 0;
}

/* "thinking" {type, clear_thinking}; NULL: absent. */
static int take_thinking(struct request *r, const json_t *thinking, struct request_error *e)
{
	struct chat_options *o = &r->talk.chat.options;
	const char *type = NULL;
	if (request_string(thinking, "type", &type, e))
		return -1;
	if (type && strcmp(type, "enabled") && strcmp(type, "disabled") && strcmp(type, "adaptive"))
		return request_refuse(e, 400, NULL, "thinking",
			"thinking.type: expected enabled, adaptive or disabled, found \"%.40s\"", type);
	if (type) {
		o->enable_thinking = strcmp(type, "disabled") ? CHAT_ON : CHAT_OFF;
		r->think_is_set = true;
	}
	return take_switch(thinking, "clear_thinking", &o->clear_thinking, e);
}

int request_template(struct request *r, struct request_error *e)
{
	struct chat_options *o = &r->talk.chat.options;
	const json_t *kwargs, *thinking;
	const char *effort = NULL;
	struct err err = {0};
	if (request_object(r->body, "chat_template_kwargs", &kwargs, e) ||
		request_object(r->body, "thinking", &thinking, e))
		return -1;
	if (chat_json_options(&r->talk.chat, kwargs, "chat_template_kwargs", &err))
		return request_refuse_err(e, &err);
	/* in the order of precedence, the last one wins */
	if (request_string(kwargs, "reasoning_effort", &effort, e) ||
		request_effort(r, effort, "chat_template_kwargs.reasoning_effort", e) ||
		take_thinking(r, thinking, e) ||
		take_switch(r->body, "enable_thinking", &o->enable_thinking, e) ||
		take_switch(kwargs, "enable_thinking", &o->enable_thinking, e) ||
		take_switch(kwargs, "clear_thinking", &o->clear_thinking, e))
		return -1;
	r->think_is_set = r->think_is_set ||
					  json_is_boolean(json_object_get(r->body, "enable_thinking")) ||
					  json_is_boolean(json_object_get(kwargs, "enable_thinking"));
	o->add_generation_prompt = true;
	return 0;
}

int request_tools(struct request *r, const json_t *tools, struct request_error *e)
{
	struct err err = {0};
	size_t i;
	json_t *tool;
	if (!tools || json_is_null(tools) || (json_is_array(tools) && !json_array_size(tools)))
		return 0;
	if (json_array_size(tools) > REQUEST_TOOLS_MAX)
		return request_refuse(e, 400, NULL, "tools", "tools: more than %d", REQUEST_TOOLS_MAX);
	json_array_foreach(tools, i, tool)
	{
		const char *type = json_string_value(json_object_get(tool, "type"));
		if (type && strcmp(type, "function") && strcmp(type, "custom"))
			return request_refuse(e, 400, "unsupported_parameter", "tools",
				"tools[%zu].type: expected function, found \"%.40s\"", i, type);
	}
	if (chat_json_tools(&r->talk.chat, tools, &err))
		return request_refuse_err(e, &err);
	json_array_foreach(r->talk.chat.tools, i, tool)
	{
		const json_t *name = json_object_get(chat_tool_function(tool), "name");
		size_t n = json_string_length(name);
		if (!n || n > REQUEST_NAME_MAX || strlen(json_string_value(name)) != n)
			return request_refuse(e, 400, NULL, "tools",
				"tools[%zu]: expected a name of 1 to %d bytes, found %zu", i, REQUEST_NAME_MAX, n);
		const json_t *f = chat_tool_function(tool);
		const json_t *properties = json_object_get(json_object_get(f, "parameters"), "properties");
		const char *key;
		size_t key_len;
		json_t *v;
		json_object_keylen_foreach((json_t *)properties, key, key_len, v)
		{
			if (key_len > REQUEST_NAME_MAX)
				return request_refuse(e, 400, NULL, "tools",
					"tools[%zu]: the name of a property has %zu bytes, expected at most %d", i,
					key_len, REQUEST_NAME_MAX);
		}
		if ((json_is_true(json_object_get(f, "strict")) ||
				json_is_true(json_object_get(tool, "strict"))) &&
			request_strict_tool(r, json_string_value(name), json_object_get(f, "parameters"), e))
			return -1;
	}
	return 0;
}

int request_choice(struct request *r, enum tool_choice choice, const char *name, const char *param,
	struct request_error *e)
{
	const json_t *tools = r->talk.chat.tools;
	if (choice == TOOL_CHOICE_REQUIRED && !json_array_size(tools))
		return request_refuse(
			e, 400, NULL, param, "%s asks for a call, but there are no tools", param);
	if (name) {
		bool found = false;
		size_t i;
		json_t *tool;
		json_array_foreach(tools, i, tool)
		{
			const char *s = json_string_value(json_object_get(chat_tool_function(tool), "name"));
			found = found || (s && !strcmp(s, name));
		}
		if (!found)
			return request_refuse(e, 400, NULL, param,
				"%s names \"%.100s\", which is not among the tools", param, name);
		if (!(r->output.choice_name = mem_strdup(name)))
			return request_refuse_memory(e);
		r->output.one_call = true; /* this one call is what was asked for */
	}
	r->output.choice = choice;
	return 0;
}

/* The ids of all calls, so that known turns can be found. Messages have been checked. */
static void collect_call_ids(struct request *r, const json_t *messages)
{
	size_t i, k;
	json_t *m, *call;
	json_array_foreach(messages, i, m)
	{
		json_array_foreach(json_object_get(m, "tool_calls"), k, call)
		{
			const json_t *id = json_object_get(call, "id");
			prompt_talk_call_id(&r->talk, i, json_string_value(id), json_string_length(id));
		}
	}
}

#define ORDERED_MAX 256 /* calls of one message: each is compared with every result */

static bool is_result(const json_t *message)
{
	const char *role = json_string_value(json_object_get(message, "role"));
	return role && !strcmp(role, "tool");
}

/* Whether a result names this call: by its id, or without one by its tool (ollama's tool_name). */
static bool names_call(const json_t *result, const json_t *call)
{
	const char *of = json_string_value(json_object_get(result, "tool_call_id")),
			   *wanted = json_string_value(json_object_get(call, "id"));
	if (!of) {
		of = json_string_value(json_object_get(result, "tool_name"));
		wanted = json_string_value(json_object_get(chat_tool_function(call), "name"));
	}
	return of && wanted && !strcmp(of, wanted);
}

/* Appends the results messages[from] to messages[to - 1] in the order of their calls: each call
 * takes the first result that names it and that no call before it has taken. If a result is left
 * over, all stay in the order of the messages. */
static void append_results(
	json_t *out, const json_t *messages, size_t from, size_t to, const json_t *calls)
{
	size_t order[ORDERED_MAX], n = 0, n_calls = json_array_size(calls), n_results = to - from;
	bool taken[ORDERED_MAX] = {0};
	if (n_calls > ORDERED_MAX || n_results > n_calls)
		n_calls = 0;
	for (size_t k = 0; k < n_calls; k++) {
		const json_t *call = json_array_get(calls, k);
		for (size_t t = 0; t < n_results; t++) {
			if (!taken[t] && names_call(json_array_get(messages, from + t), call)) {
				taken[t] = true;
				order[n++] = t;
				break;
			}
		}
	}
	for (size_t t = 0; t < n_results; t++)
		json_array_append(out, json_array_get(messages, from + (n == n_results ? order[t] : t)));
}

/* The messages, with the results of each run of tool messages in the order of their calls: the
 * template has no ids. */
static json_t *order_results(const json_t *messages)
{
	json_t *out = json_array();
	const json_t *calls = NULL;
	size_t n = json_array_size(messages), end;
	for (size_t i = 0; i < n; i = end) {
		json_t *m = json_array_get(messages, i);
		end = i + 1;
		if (is_result(m)) {
			while (end < n && is_result(json_array_get(messages, end)))
				end++;
			append_results(out, messages, i, end, calls);
			continue;
		}
		const char *role = json_string_value(json_object_get(m, "role"));
		if (role)
			calls = strcmp(role, "assistant") ? NULL : json_object_get(m, "tool_calls");
		json_array_append(out, m);
	}
	return out;
}

int request_messages(struct request *r, const json_t *messages, struct request_error *e)
{
	struct err err = {0};
	json_t *ordered = order_results(messages);
	int rc = chat_json_messages(&r->talk.chat, ordered, &err);
	if (!rc)
		collect_call_ids(r, ordered);
	json_decref(ordered);
	return rc ? request_refuse_err(e, &err) : 0;
}

#define TEMPLATE_BYTES (64u << 10) /* of text that the template adds to a short conversation */
/* Memory for each byte of text: the buffer while it grows, segments, tokens. */
#define TEXT_FACTOR 3

int request_refuse_length(const struct request *r, const char *param, struct request_error *e)
{
	size_t most = request_most_bytes(r->model);
	if (most < REQUEST_PROMPT_BYTES)
		return request_refuse(e, 400, "context_length_exceeded", param,
			"the prompt has more than %zu bytes, more than the context can hold", most);
	return request_refuse(e, 413, "request_too_large", param,
		"the prompt has more than %zu bytes, more than a request may take", most);
}

/* What tokenizing takes beside the tokens counts for the budget while it lasts. */
struct piece_memory {
	struct request *r;
	size_t before; /* what the request holds without it */
	struct request_error *e;
	bool refused; /* *e says why */
};

static bool hold_piece(void *user, size_t bytes)
{
	struct piece_memory *m = user;
	m->refused = request_hold(m->r, m->before + bytes, m->e) != 0;
	return !m->refused;
}

#define ID_BYTES 8 /* of a token for each byte of text, in a list that doubles */

int request_encode(struct request *r, const char *text, size_t n, bool special,
	struct token_ids *out, struct request_error *e)
{
	struct err err = {0};
	const size_t before = r->part.bytes;
	struct piece_memory piece = {r, before + ID_BYTES * n, e, false};
	const struct tokenizer_memory memory = {hold_piece, &piece};
	if (request_hold(r, piece.before, e))
		return -1;
	if (tokenizer_encode_within(
			r->model->tokenizer, text, n, special ? TOKENIZER_PARSE_ADDED : 0, &memory, out, &err))
		return piece.refused ? -1 : request_refuse_err(e, &err);
	return request_hold(r, before + out->cap * sizeof *out->data, e);
}

/* Most prompts are hardly longer than their bodies; only one that turns out to be longer counts for
 * as much as the context can hold. */
static int build_prompt(struct request *r, struct request_error *e)
{
	struct err err = {0};
	size_t before = r->part.bytes, whole = request_most_bytes(r->model),
		   most = MIN(whole, 2 * r->body_bytes + TEMPLATE_BYTES);
	struct piece_memory piece = {.r = r, .e = e};
	const struct tokenizer_memory memory = {hold_piece, &piece};
	int rc;
	for (;; most = whole) {
		piece.before = before + TEXT_FACTOR * most;
		if (request_hold(r, piece.before, e))
			return -1;
		rc = prompt_build(&r->talk, r->model->tokenizer, r->model->turns, most, &memory,
			&r->prompts[0], &r->built, &err);
		if (!rc || !r->built.too_long || most == whole)
			break;
	}
	if (piece.refused)
		return -1;
	request_hold(r, before + r->prompts[0].cap * sizeof *r->prompts[0].data, e);
	if (!rc)
		return 0;
	return r->built.too_long ? request_refuse_length(r, NULL, e) : request_refuse_err(e, &err);
}

int request_prompt(struct request *r, struct request_error *e)
{
	struct err err = {0};
	if (chat_continue(&r->talk.chat, &err))
		return request_refuse_err(e, &err);
	if (!(r->prompts = NEW_ARRAY(struct token_ids, 1)))
		return request_refuse_memory(e);
	r->n_prompts = 1;
	if (build_prompt(r, e))
		return -1;
	if (r->output.answer && r->built.goes_on)
		return request_refuse(e, 400, "unsupported_parameter", "messages",
			"an answer that follows a schema cannot go on from a given beginning");
	r->output.chat = true;
	r->output.in_reasoning = chat_starts_in_reasoning(&r->talk.chat);
	r->output.tools = json_incref(r->talk.chat.tools);
	return 0;
}

int request_limit_new_tokens(struct request *r, int64_t asked, struct request_error *e)
{
	uint32_t context = r->model->context;
	r->max_new = asked < 0 ? UINT32_MAX : (uint32_t)MIN(asked, UINT32_MAX);
	for (size_t i = 0; i < r->n_prompts; i++) {
		size_t n = r->prompts[i].n;
		if (!n)
			return request_refuse(e, 400, NULL, "prompt", "the prompt has no tokens");
		if (n >= context)
			return request_refuse(e, 400, "context_length_exceeded", NULL,
				"the prompt has %zu tokens; with at least one token of answer the context of %u is "
				"exceeded",
				n, context);
		r->max_new = (uint32_t)MIN(r->max_new, context - n + 1);
	}
	return 0;
}
