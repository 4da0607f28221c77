/* SPDX-License-Identifier: MIT */
/* The template. render_* follow its order from top to bottom; everything they write goes through
 * put_control and put_text, and neighbouring texts become one segment because the tokenizer sees
 * them as one. */
#include "src/text/chat.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/text/json_text.h"
#include "src/text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* ---- conversations ---- */

struct chat_text chat_text_new(const char *data, size_t len)
{
	char *copy = data ? mem_strndup(data, len) : NULL;
	return (struct chat_text){copy, copy ? len : 0};
}

struct chat_text chat_text_trimmed(struct chat_text t)
{
	while (t.len && memchr(" \t\r\n", t.data[0], 4)) {
		t.data++;
		t.len--;
	}
	while (t.len && memchr(" \t\r\n", t.data[t.len - 1], 4))
		t.len--;
	return t;
}

struct chat_message *chat_add(struct chat *c, enum chat_role role, const char *content, size_t len)
{
	size_t cap = c->n_messages < c->cap ? c->cap : c->cap ? 2 * c->cap : 8;
	if (cap > c->cap && !mem_grow_array(&c->messages, cap, sizeof *c->messages))
		return NULL;
	c->cap = cap;
	struct chat_message *m = &c->messages[c->n_messages++];
	*m = (struct chat_message){.role = role, .content = chat_text_new(content, len)};
	return m;
}

static void texts_free(struct chat_text *list, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(list[i].data);
	free(list);
}

void chat_truncate(struct chat *c, size_t n)
{
	while (c->n_messages > n) {
		struct chat_message *m = &c->messages[--c->n_messages];
		free(m->content.data);
		free(m->reasoning.data);
		for (size_t i = 0; i < m->n_calls; i++) {
			free(m->calls[i].name.data);
			json_decref(m->calls[i].arguments);
		}
		free(m->calls);
		texts_free(m->outputs, m->n_outputs);
		texts_free(m->tool_names, m->n_tool_names);
	}
}

void chat_fini(struct chat *c)
{
	chat_truncate(c, 0);
	free(c->messages);
	json_decref(c->tools);
	*c = (struct chat){0};
}

/* ---- writing a prompt ---- */

static void put_segment(struct chat_prompt *p, const char *s, size_t n, bool control)
{
	if (p->most_bytes && n > p->most_bytes - p->text.len)
		p->too_long = true;
	if (p->too_long || !buf_reserve(&p->text, n))
		return;
	struct chat_segment *last = p->n ? &p->segments[p->n - 1] : NULL;
	if (last && !control && !last->control) {
		last->len += n;
	} else if (n) {
		size_t cap = p->n < p->cap ? p->cap : p->cap ? 2 * p->cap : 32;
		if (cap > p->cap && !mem_grow_array(&p->segments, cap, sizeof *p->segments))
			return;
		p->cap = cap;
		p->segments[p->n++] = (struct chat_segment){p->text.len, n, control};
	}
	buf_append(&p->text, s, n);
}

static void put_control(struct chat_prompt *p, const char *token)
{
	put_segment(p, token, strlen(token), true);
}

static void put_text(struct chat_prompt *p, const char *s)
{
	put_segment(p, s, strlen(s), false);
}

static void put_bytes(struct chat_prompt *p, struct chat_text t)
{
	put_segment(p, t.data, t.len, false);
}

/* Text in which the words of `controls` are control tokens: the template's own sentences, never a
 * user's. */
static void put_template(struct chat_prompt *p, const char *s)
{
	static const char *const controls[] = {
		"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"};
	while (*s) {
		const char *at = NULL, *token = NULL;
		for (size_t i = 0; i < ARRAY_LEN(controls); i++) {
			const char *found = strstr(s, controls[i]);
			if (found && (!at || found < at)) {
				at = found;
				token = controls[i];
			}
		}
		put_segment(p, s, at ? (size_t)(at - s) : strlen(s), false);
		if (!at)
			return;
		put_control(p, token);
		s = at + strlen(token);
	}
}

/* ---- tools ---- */

const json_t *chat_tool_function(const json_t *tool)
{
	const json_t *f = json_object_get(tool, "function");
	return json_is_object(f) ? f : tool;
}

/* One line of the tools block: the function object without two keys that are not for the model. */
static void render_tool(struct chat_prompt *p, const json_t *tool)
{
	struct buf line = {0};
	const char *key;
	size_t key_len;
	json_t *v;
	const char *between = "";
	buf_putc(&line, '{');
	json_object_keylen_foreach((json_t *)chat_tool_function(tool), key, key_len, v)
	{
		if (!strcmp(key, "strict") || !strcmp(key, "defer_loading"))
			continue;
		buf_puts(&line, between);
		json_text_dump_string(key, key_len, &line);
		buf_puts(&line, ": ");
		json_text_dump(v, &line);
		between = ", ";
	}
	buf_puts(&line, "}\n");
	put_segment(p, line.data, line.len, false);
	buf_free(&line);
}

static void render_tools(struct chat_prompt *p, const json_t *tools)
{
	size_t i;
	json_t *tool;
	if (!json_array_size(tools))
		return;
	put_control(p, "<|system|>");
	put_text(p,
		"\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
		"You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n");
	json_array_foreach(tools, i, tool)
	{
		if (!json_is_true(json_object_get(chat_tool_function(tool), "defer_loading")))
			render_tool(p, tool);
	}
	put_template(p, "</tools>\n\nFor each function call, output the function name and arguments "
					"within the following XML "
					"format:\n<tool_call>{function-name}<arg_key>{arg-key-1}</"
					"arg_key><arg_value>{arg-value-1}</arg_value><arg_key>{arg-key-2}</"
					"arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>");
}

/* ---- messages ---- */

/* Python's str.isspace for one character. */
static bool is_space(unsigned c)
{
	return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
		   c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
		   c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Valid UTF-8 without blank characters at both ends; a view. */
static struct chat_text strip(struct chat_text t)
{
	size_t n;
	while (t.len && is_space(utf8_decode(t.data, &n))) {
		t.data += n;
		t.len -= n;
	}
	while (t.len) {
		size_t at = t.len - 1;
		while (at && ((unsigned char)t.data[at] & 0xc0) == 0x80)
			at--;
		if (!is_space(utf8_decode(t.data + at, &n)))
			break;
		t.len = at;
	}
	return t;
}

/* Last occurrence of `tag` in t as offset, or t.len. first: first occurrence instead. */
static size_t find_tag(struct chat_text t, const char *tag, bool first)
{
	size_t n = strlen(tag), found = t.len;
	const char *p = t.data;
	while (t.len && (p = memmem(p, t.len - (size_t)(p - t.data), tag, n))) {
		found = (size_t)(p - t.data);
		if (first)
			break;
		p += n;
	}
	return found;
}

/* Reasoning written into the content: it ends at the first </think> and begins after the last
 * <think> before that; the answer is what follows the last </think>. Views into `content`. */
static void split_thinking(struct chat_text *content, struct chat_text *reasoning)
{
	static const char open[] = "<think>", close[] = "</think>";
	size_t end = find_tag(*content, close, true);
	if (end == content->len)
		return;
	*reasoning = (struct chat_text){content->data, end};
	size_t begin = find_tag(*reasoning, open, false);
	if (begin < end) {
		reasoning->data += begin + strlen(open);
		reasoning->len -= begin + strlen(open);
	}
	size_t rest = find_tag(*content, close, false) + strlen(close);
	content->data += rest;
	content->len -= rest;
}

static void render_call(struct chat_prompt *p, const struct chat_call *call)
{
	const char *key;
	size_t key_len;
	json_t *v;
	put_control(p, "<tool_call>");
	put_bytes(p, call->name);
	json_object_keylen_foreach(call->arguments, key, key_len, v)
	{
		put_control(p, "<arg_key>");
		put_segment(p, key, key_len, false);
		put_control(p, "</arg_key>");
		put_control(p, "<arg_value>");
		if (json_is_string(v)) {
			put_segment(p, json_string_value(v), json_string_length(v), false);
		} else {
			struct buf b = {0};
			json_text_dump(v, &b);
			put_segment(p, buf_str(&b), b.len, false);
			buf_free(&b);
		}
		put_control(p, "</arg_value>");
	}
	put_control(p, "</tool_call>");
}

/* Whether a turn that goes on does so inside its reasoning. */
static bool ends_in_reasoning(const struct chat_message *m, const struct chat_options *o)
{
	struct chat_text content = m->content;
	return !strip(content).len && m->reasoning.len && o->enable_thinking != CHAT_OFF;
}

/* open: the turn goes on behind what it says. */
static void render_assistant(struct chat_prompt *p, const struct chat_message *m,
	const struct chat_options *o, bool keep_reasoning, bool open)
{
	struct chat_text content = m->content, reasoning = m->reasoning;
	if (!reasoning.data)
		split_thinking(&content, &reasoning);
	put_control(p, "<|assistant|>");
	put_control(p, "<think>");
	if (reasoning.data && keep_reasoning)
		put_bytes(p, reasoning);
	if (open && ends_in_reasoning(m, o))
		return;
	put_control(p, "</think>");
	struct chat_text words = strip(content);
	if (open && words.len) /* what comes next depends on the blanks at the end */
		words.len = (size_t)(content.data + content.len - words.data);
	put_bytes(p, words);
	for (size_t i = 0; i < m->n_calls; i++)
		render_call(p, &m->calls[i]);
}

/* Name -> array of the tools that have it. The caller owns it. */
static json_t *tools_by_name(const json_t *tools)
{
	json_t *out = json_object(), *tool;
	size_t i;
	json_array_foreach(tools, i, tool)
	{
		const char *name = json_string_value(json_object_get(chat_tool_function(tool), "name"));
		if (name && !json_object_get(out, name))
			json_object_set_new(out, name, json_array());
		if (name)
			json_array_append(json_object_get(out, name), tool);
	}
	return out;
}

static void render_tool_message(
	struct chat_prompt *p, const json_t *by_name, const struct chat_message *m, bool first)
{
	if (first)
		put_control(p, "<|observation|>");
	for (size_t i = 0; i < MAX(m->n_outputs, 1); i++) {
		put_control(p, "<tool_response>");
		if (m->n_outputs) {
			put_bytes(p, m->outputs[i]);
		} else if (m->n_tool_names) {
			put_text(p, "<tools>\n");
			for (size_t k = 0; k < m->n_tool_names && !p->too_long; k++) {
				size_t at;
				json_t *tool;
				json_array_foreach(json_object_get(by_name, m->tool_names[k].data), at, tool)
				{
					render_tool(p, tool);
				}
			}
			put_text(p, "</tools>");
		} else {
			put_bytes(p, m->content);
		}
		put_control(p, "</tool_response>");
	}
}

static int check_text(struct chat_text t, size_t message, const char *field, struct err *e)
{
	size_t valid = t.data ? utf8_valid_prefix(t.data, t.len) : t.len;
	if (valid == t.len)
		return 0;
	return err_set(
		e, ERR_INPUT, "messages[%zu].%s: byte %zu is not valid UTF-8", message, field, valid);
}

static int check_texts(const struct chat *c, struct err *e)
{
	int rc = 0;
	for (size_t i = 0; i < c->n_messages && !rc; i++) {
		const struct chat_message *m = &c->messages[i];
		if (!(rc = check_text(m->content, i, "content", e)))
			rc = check_text(m->reasoning, i, "reasoning_content", e);
		for (size_t k = 0; k < m->n_calls && !rc; k++)
			rc = check_text(m->calls[k].name, i, "tool_calls", e);
		for (size_t k = 0; k < m->n_outputs && !rc; k++)
			rc = check_text(m->outputs[k], i, "content", e);
	}
	return rc;
}

int chat_render(const struct chat *c, struct chat_prompt *out, struct err *e)
{
	int rc = check_texts(c, e);
	if (rc)
		return rc;
	buf_clear(&out->text);
	out->n = 0;
	out->too_long = false;
	const struct chat_options *o = &c->options;
	put_control(out, "[gMASK]");
	put_control(out, "<sop>");
	if (o->enable_thinking != CHAT_OFF) {
		put_control(out, "<|system|>");
		put_text(out, o->effort_high ? "Reasoning Effort: High" : "Reasoning Effort: Max");
	}
	render_tools(out, c->tools);
	json_t *by_name = tools_by_name(c->tools);
	size_t after_user = 0; /* index of the first message behind the last user message */
	for (size_t i = 0; i < c->n_messages; i++)
		if (c->messages[i].role == CHAT_USER)
			after_user = i + 1;
	for (size_t i = 0; i < c->n_messages && !out->too_long; i++) {
		const struct chat_message *m = &c->messages[i];
		switch (m->role) {
		case CHAT_SYSTEM:
		case CHAT_USER:
			put_control(out, m->role == CHAT_USER ? "<|user|>" : "<|system|>");
			put_bytes(out, m->content);
			break;
		case CHAT_ASSISTANT:
			render_assistant(out, m, o, o->clear_thinking == CHAT_OFF || i >= after_user,
				o->continue_last && i + 1 == c->n_messages);
			break;
		case CHAT_TOOL:
			render_tool_message(out, by_name, m, !i || c->messages[i - 1].role != CHAT_TOOL);
			break;
		}
	}
	json_decref(by_name);
	if (o->add_generation_prompt && !o->continue_last) {
		put_control(out, "<|assistant|>");
		put_control(out, "<think>");
		if (o->enable_thinking == CHAT_OFF)
			put_control(out, "</think>");
	}
	if (out->too_long)
		return err_set(e, ERR_INPUT, "the prompt has more than %zu bytes", out->most_bytes);
	return 0;
}

int chat_continue(struct chat *c, struct err *e)
{
	const struct chat_message *m = c->n_messages ? &c->messages[c->n_messages - 1] : NULL;
	if (!m || m->role != CHAT_ASSISTANT)
		return 0;
	if (m->n_calls)
		return err_set(e, ERR_INPUT,
			"messages[%zu].tool_calls: the conversation ends with calls; expected their results "
			"behind them",
			c->n_messages - 1);
	if (chat_text_trimmed(m->content).len || chat_text_trimmed(m->reasoning).len)
		c->options.continue_last = true;
	else
		chat_truncate(c, c->n_messages - 1);
	return 0;
}

bool chat_starts_in_reasoning(const struct chat *c)
{
	const struct chat_options *o = &c->options;
	if (o->continue_last)
		return ends_in_reasoning(&c->messages[c->n_messages - 1], o);
	return o->add_generation_prompt && o->enable_thinking != CHAT_OFF;
}

void chat_prompt_fini(struct chat_prompt *p)
{
	buf_free(&p->text);
	free(p->segments);
	*p = (struct chat_prompt){0};
}

int chat_prompt_ids(
	const struct chat_prompt *p, const struct tokenizer *t, struct token_ids *out, struct err *e)
{
	for (size_t i = 0; i < p->n; i++) {
		const struct chat_segment *s = &p->segments[i];
		const char *text = p->text.data + s->start;
		if (!s->control) {
			int rc = tokenizer_encode_within(t, text, s->len, 0, p->memory, out, e);
			if (rc)
				return rc;
			continue;
		}
		char name[32];
		memcpy(name, text, MIN(s->len, sizeof name - 1));
		name[MIN(s->len, sizeof name - 1)] = 0;
		int32_t id = tokenizer_find_added(t, name);
		if (id < 0)
			return err_set(e, ERR_INPUT,
				"the vocabulary has no control token \"%s\", which the chat template needs", name);
		if (token_ids_push(out, id))
			return err_set(e, ERR_MEMORY, "no memory for the prompt's tokens");
	}
	return 0;
}

int chat_render_text(const struct chat *c, struct buf *out, struct err *e)
{
	struct chat_prompt p = {0};
	int rc = chat_render(c, &p, e);
	if (!rc)
		buf_append(out, p.text.data, p.text.len);
	chat_prompt_fini(&p);
	return rc;
}

int chat_render_ids(
	const struct chat *c, const struct tokenizer *t, struct token_ids *out, struct err *e)
{
	struct chat_prompt p = {0};
	int rc = chat_render(c, &p, e);
	if (!rc)
		rc = chat_prompt_ids(&p, t, out, e);
	chat_prompt_fini(&p);
	return rc;
}
