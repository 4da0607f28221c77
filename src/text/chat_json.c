/* SPDX-License-Identifier: MIT */
/* JSON -> struct chat. A struct json_walk carries the path of the member being looked at, so that
 * every sentence begins with it: "messages[3].content[1].type: expected ...". */
#include "src/text/chat_json.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/text/json_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct json_walk {
	char path[160];
	size_t len; /* of path */
	struct err *e;
};

/* Goes into a member; returns what `leave` needs. After a failure nobody leaves: the path stays for
 * the sentence. */
static size_t walk_enter(struct json_walk *w, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
static size_t walk_enter(struct json_walk *w, const char *fmt, ...)
{
	size_t old = w->len;
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(w->path + w->len, sizeof w->path - w->len, fmt, ap);
	va_end(ap);
	w->len = MIN(w->len + (size_t)MAX(n, 0), sizeof w->path - 1);
	return old;
}

static void walk_leave(struct json_walk *w, size_t old)
{
	w->len = old;
	w->path[old] = 0;
}

static int walk_refuse(struct json_walk *w, const char *expected, const json_t *found)
{
	return err_set(
		w->e, ERR_INPUT, "%s: expected %s, found %s", w->path, expected, json_text_type(found));
}

static int walk_no_memory(struct json_walk *w)
{
	return err_set(w->e, ERR_MEMORY, "%s: there is no memory for it", w->path);
}

static bool is_nothing(const json_t *v)
{
	return !v || json_is_null(v);
}

static struct chat_text text_of(const json_t *string)
{
	return chat_text_new(json_string_value(string), json_string_length(string));
}

/* Member `name` of `o`, which must be a string; NULL after writing the sentence. */
static const json_t *string_member(struct json_walk *w, const json_t *o, const char *name)
{
	const json_t *v = json_object_get(o, name);
	if (json_is_string(v))
		return v;
	walk_enter(w, ".%s", name);
	walk_refuse(w, "a string", v);
	return NULL;
}

/* ---- content ---- */

/* What kind of medium a part's type names; NULL: none. */
static const char *medium_of(const char *type)
{
	static const char *const media[] = {"image", "video", "audio"};
	const char *rest = strncmp(type, "input_", 6) ? type : type + 6; /* input_audio */
	for (size_t i = 0; i < ARRAY_LEN(media); i++) {
		size_t n = strlen(media[i]);
		if (!strncmp(rest, media[i], n) && (!rest[n] || !strcmp(rest + n, "_url")))
			return media[i];
	}
	return NULL;
}

static int content_part(struct json_walk *w, const json_t *p, struct buf *out)
{
	if (json_is_string(p)) {
		buf_append(out, json_string_value(p), json_string_length(p));
		return 0;
	}
	if (!json_is_object(p))
		return walk_refuse(w, "an object or a string", p);
	const json_t *type = string_member(w, p, "type");
	if (!type)
		return ERR_INPUT;
	if (!strcmp(json_string_value(type), "text")) {
		const json_t *text = string_member(w, p, "text");
		if (!text)
			return ERR_INPUT;
		buf_append(out, json_string_value(text), json_string_length(text));
		return 0;
	}
	const char *what = medium_of(json_string_value(type));
	if (!what)
		return err_set(w->e, ERR_INPUT,
			"%s.type: expected text, image, video or audio, found \"%.40s\"", w->path,
			json_string_value(type));
	buf_printf(out,
		"<reminder>You are unable to process this %s because you don't have multi-modal input "
		"ability. Try different methods.</reminder>",
		what);
	return 0;
}

/* String, list of parts, or nothing -> one text. */
static int visible_text(struct json_walk *w, const json_t *content, struct chat_text *out)
{
	if (is_nothing(content))
		return 0;
	if (json_is_string(content)) {
		*out = text_of(content);
		return 0;
	}
	if (!json_is_array(content))
		return walk_refuse(w, "a string or an array", content);
	struct buf b = {0};
	size_t i;
	json_t *p;
	json_array_foreach(content, i, p)
	{
		size_t old = walk_enter(w, "[%zu]", i);
		if (content_part(w, p, &b)) {
			buf_free(&b);
			return ERR_INPUT;
		}
		walk_leave(w, old);
	}
	out->len = b.len;
	out->data = buf_take(&b);
	return 0;
}

/* A list whose items all have the string member `key` (or `other`) -> their texts. */
static int member_texts(struct json_walk *w, const json_t *list, const char *key, const char *other,
	struct chat_text **out, size_t *n)
{
	size_t i;
	json_t *item;
	*out = NEW_ARRAY(struct chat_text, json_array_size(list));
	if (!*out)
		return walk_no_memory(w);
	json_array_foreach(list, i, item)
	{
		size_t old = walk_enter(w, "[%zu]", i);
		const json_t *v = json_object_get(item, other);
		if (!json_is_string(v) && !(v = string_member(w, item, key)))
			return ERR_INPUT;
		(*out)[*n] = text_of(v);
		if (!(*out)[*n].data)
			return walk_no_memory(w);
		++*n;
		walk_leave(w, old);
	}
	return 0;
}

static int tool_content(struct json_walk *w, struct chat_message *m, const json_t *content)
{
	const json_t *first = json_array_get(content, 0); /* NULL unless a non-empty array */
	const json_t *type = json_object_get(first, "type");
	if (json_is_string(type) && !strcmp(json_string_value(type), "tool_reference"))
		return member_texts(w, content, "name", "tool_name", &m->tool_names, &m->n_tool_names);
	if (json_object_get(first, "output"))
		return member_texts(w, content, "output", "output", &m->outputs, &m->n_outputs);
	return visible_text(w, content, &m->content);
}

/* ---- calls ---- */

static int call_arguments(struct json_walk *w, const json_t *v, json_t **out)
{
	if (json_is_object(v)) {
		*out = json_incref((json_t *)v);
		return 0;
	}
	if (is_nothing(v) || (json_is_string(v) && !json_string_length(v))) {
		*out = json_object();
		return 0;
	}
	if (!json_is_string(v))
		return walk_refuse(w, "an object or a string of JSON", v);
	json_t *parsed;
	int rc = json_parse(json_string_value(v), json_string_length(v),
		JSON_TEXT_FLAGS | JSON_DECODE_ANY, &parsed, w->e);
	if (rc) {
		err_prefix(w->e, rc == ERR_INPUT ? "%s: the string cannot be read as JSON" : "%s", w->path);
		return rc;
	}
	if (json_is_object(parsed)) {
		*out = parsed;
		return 0;
	}
	walk_refuse(w, "a string holding an object", parsed);
	json_decref(parsed);
	return ERR_INPUT;
}

static int tool_call(struct json_walk *w, struct chat_call *c, const json_t *v)
{
	if (!json_is_object(v))
		return walk_refuse(w, "an object", v);
	if (json_is_object(json_object_get(v, "function"))) {
		walk_enter(w, ".function");
		v = json_object_get(v, "function");
	}
	const json_t *name = string_member(w, v, "name");
	if (!name)
		return ERR_INPUT;
	if (!json_string_length(name))
		return err_set(w->e, ERR_INPUT,
			"%s.name: expected the name of a function, found an empty string", w->path);
	walk_enter(w, ".arguments");
	if (call_arguments(w, json_object_get(v, "arguments"), &c->arguments))
		return ERR_INPUT;
	c->name = text_of(name);
	if (c->name.data && c->arguments)
		return 0;
	free(c->name.data);
	json_decref(c->arguments);
	return walk_no_memory(w);
}

static int tool_calls(struct json_walk *w, struct chat_message *m, const json_t *list)
{
	if (is_nothing(list))
		return 0;
	if (!json_is_array(list))
		return walk_refuse(w, "an array", list);
	size_t i;
	json_t *v;
	m->calls = NEW_ARRAY(struct chat_call, json_array_size(list));
	if (!m->calls)
		return walk_no_memory(w);
	json_array_foreach(list, i, v)
	{
		size_t old = walk_enter(w, "[%zu]", i);
		if (tool_call(w, &m->calls[i], v))
			return ERR_INPUT;
		m->n_calls++;
		walk_leave(w, old);
	}
	return 0;
}

/* ---- messages ---- */

static int message(struct json_walk *w, struct chat *c, const json_t *v)
{
	static const struct {
		const char *name;
		enum chat_role role;
	} roles[] = {{"system", CHAT_SYSTEM}, {"developer", CHAT_SYSTEM}, {"user", CHAT_USER},
		{"assistant", CHAT_ASSISTANT}, {"tool", CHAT_TOOL}};
	if (!json_is_object(v))
		return walk_refuse(w, "an object", v);
	const json_t *role = string_member(w, v, "role");
	if (!role)
		return ERR_INPUT;
	size_t r = 0;
	while (r < ARRAY_LEN(roles) && strcmp(roles[r].name, json_string_value(role)))
		r++;
	if (r == ARRAY_LEN(roles))
		return err_set(w->e, ERR_INPUT,
			"%s.role: expected system, user, assistant or tool, found \"%.40s\"", w->path,
			json_string_value(role));
	struct chat_message *m = chat_add(c, roles[r].role, NULL, 0);
	if (!m)
		return walk_no_memory(w);
	const json_t *content = json_object_get(v, "content");
	size_t old = walk_enter(w, ".content");
	if (m->role == CHAT_TOOL ? tool_content(w, m, content) : visible_text(w, content, &m->content))
		return ERR_INPUT;
	walk_leave(w, old);
	if (m->role != CHAT_ASSISTANT)
		return 0;
	if (!is_nothing(json_object_get(v, "reasoning_content"))) {
		const json_t *reasoning = string_member(w, v, "reasoning_content");
		if (!reasoning)
			return ERR_INPUT;
		m->reasoning = text_of(reasoning);
	}
	walk_enter(w, ".tool_calls");
	return tool_calls(w, m, json_object_get(v, "tool_calls"));
}

int chat_json_messages(struct chat *c, const json_t *messages, struct err *e)
{
	struct json_walk w = {.e = e};
	walk_enter(&w, "messages");
	if (!json_is_array(messages))
		return walk_refuse(&w, "an array", messages);
	size_t i, start = w.len;
	json_t *v;
	json_array_foreach(messages, i, v)
	{
		walk_enter(&w, "[%zu]", i);
		if (message(&w, c, v))
			return ERR_INPUT;
		walk_leave(&w, start);
	}
	return 0;
}

int chat_json_tools(struct chat *c, const json_t *tools, struct err *e)
{
	struct json_walk w = {.e = e};
	if (is_nothing(tools))
		return 0;
	walk_enter(&w, "tools");
	if (!json_is_array(tools))
		return walk_refuse(&w, "an array", tools);
	size_t i;
	json_t *tool;
	json_array_foreach(tools, i, tool)
	{
		size_t old = walk_enter(&w, "[%zu]", i);
		if (!json_is_object(tool))
			return walk_refuse(&w, "an object", tool);
		const json_t *f = json_object_get(tool, "function");
		if (f)
			walk_enter(&w, ".function");
		if (f && !json_is_object(f))
			return walk_refuse(&w, "an object", f);
		if (!string_member(&w, chat_tool_function(tool), "name"))
			return ERR_INPUT;
		walk_leave(&w, old);
	}
	json_t *kept = json_incref((json_t *)tools);
	json_decref(c->tools);
	c->tools = kept;
	return 0;
}

static int switch_option(
	struct json_walk *w, const json_t *options, const char *name, enum chat_switch *out)
{
	const json_t *v = json_object_get(options, name);
	if (is_nothing(v))
		return 0;
	if (!json_is_boolean(v)) {
		walk_enter(w, ".%s", name);
		return walk_refuse(w, "true or false", v);
	}
	*out = json_is_true(v) ? CHAT_ON : CHAT_OFF;
	return 0;
}

int chat_json_options(struct chat *c, const json_t *options, const char *name, struct err *e)
{
	struct json_walk w = {.e = e};
	if (is_nothing(options))
		return 0;
	walk_enter(&w, "%s", name);
	if (!json_is_object(options))
		return walk_refuse(&w, "an object", options);
	struct chat_options *o = &c->options;
	enum chat_switch add = o->add_generation_prompt ? CHAT_ON : CHAT_OFF;
	if (switch_option(&w, options, "add_generation_prompt", &add) ||
		switch_option(&w, options, "enable_thinking", &o->enable_thinking) ||
		switch_option(&w, options, "clear_thinking", &o->clear_thinking))
		return ERR_INPUT;
	o->add_generation_prompt = add == CHAT_ON;
	const json_t *effort = json_object_get(options, "reasoning_effort");
	if (!is_nothing(effort)) {
		if (!string_member(&w, options, "reasoning_effort"))
			return ERR_INPUT;
		o->effort_high = !strcmp(json_string_value(effort), "high");
	}
	return 0;
}

int chat_json_parse(struct chat *c, const char *json, size_t len, struct err *e)
{
	*c = (struct chat){.options.add_generation_prompt = true};
	json_t *root;
	int rc = json_parse(json, len, JSON_TEXT_FLAGS, &root, e);
	if (rc)
		return rc;
	const json_t *options = json_object_get(root, "options"),
				 *tools = json_object_get(root, "tools");
	if (!json_is_object(root))
		rc = err_set(
			e, ERR_INPUT, "expected an object with \"messages\", found %s", json_text_type(root));
	else if (!(rc = chat_json_options(c, options, "options", e)) &&
			 !(rc = chat_json_messages(c, json_object_get(root, "messages"), e))) {
		rc = chat_json_tools(c, is_nothing(tools) ? json_object_get(options, "tools") : tools, e);
		if (rc && is_nothing(tools))
			err_prefix(e, "options");
	}
	json_decref(root);
	if (rc)
		chat_fini(c);
	return rc;
}
