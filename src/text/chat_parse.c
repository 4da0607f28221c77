/* SPDX-License-Identifier: MIT */
/*
 * The output parser. Both kinds of input are reduced to two: a tag, or bytes that are no tag
 * (on_tag, on_bytes). A call is collected twice: as parts, and as exact bytes with the places of
 * its tags, from which it can be read again or given out as text. Every byte is looked at once, and
 * once more if the output ends inside a call.
 */
#include "src/text/chat_parse.h"

#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>
#include <string.h>

enum tag { THINK, END_THINK, CALL, END_CALL, KEY, END_KEY, VALUE, END_VALUE, N_TAGS };

static const char *const tag_text[N_TAGS] = {"<think>", "</think>", "<tool_call>", "</tool_call>",
	"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"};

enum state {
	REASONING,
	ANSWER,
	IN_NAME,     /* <tool_call> ... */
	IN_KEY,      /* <arg_key> ... */
	AFTER_KEY,   /* </arg_key>, blanks */
	IN_VALUE,    /* <arg_value> ... */
	AFTER_VALUE, /* </arg_value>, blanks */
};

struct chat_parse_tag {
	size_t at; /* in chat_parse.call */
	enum tag tag;
};

static bool is_blank(char c)
{
	return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Blanks that s[0..n) begins with. */
static size_t count_blanks(const char *s, size_t n)
{
	size_t i = 0;
	while (i < n && is_blank(s[i]))
		i++;
	return i;
}

static bool all_blank(const char *s, size_t n)
{
	return count_blanks(s, n) == n;
}

/* ---- events ---- */

/* Gives out the text collected for the present state. last: the state ends, so an unfinished
 * character is broken. */
static void emit_text(struct chat_parse *p, bool last)
{
	if (last)
		utf8_stream_flush(&p->stream, &p->delta);
	if (!p->delta.len)
		return;
	struct chat_event event = {
		.kind = p->state == REASONING ? CHAT_EVENT_REASONING : CHAT_EVENT_ANSWER,
		.text = p->delta.data,
		.len = p->delta.len,
	};
	p->on_event(p->user, &event);
	buf_clear(&p->delta);
}

static void add_text(struct chat_parse *p, const char *s, size_t n)
{
	if (p->state == ANSWER && !p->written)
		p->written = !all_blank(s, n);
	utf8_stream_push(&p->stream, s, n, &p->delta);
}

/* ---- calls ---- */

static void call_clear(struct chat_parse *p)
{
	for (size_t i = 0; i < p->n_args; i++) {
		free(p->args[i].key.data);
		free(p->args[i].value.data);
	}
	p->n_args = p->n_tags = p->reported = 0;
	p->begun = false;
	buf_clear(&p->call);
	buf_clear(&p->name);
	buf_clear(&p->part);
}

static void call_begin(struct chat_parse *p)
{
	emit_text(p, true);
	p->written = true; /* a <think> behind a call is no beginning */
	call_clear(p);
	p->state = IN_NAME;
}

static void call_note(struct chat_parse *p, enum tag tag)
{
	size_t cap = p->n_tags < p->tags_cap ? p->tags_cap : p->tags_cap ? 2 * p->tags_cap : 16;
	if (cap > p->tags_cap && !mem_grow_array(&p->tags, cap, sizeof *p->tags))
		return;
	p->tags_cap = cap;
	p->tags[p->n_tags++] = (struct chat_parse_tag){p->call.len, tag};
	buf_puts(&p->call, tag_text[tag]);
}

/* The call broke the rules: what was read of it becomes answer text, unless CALL_BEGIN was
 * reported; then it stays a partial call. */
static void call_give_up(struct chat_parse *p)
{
	p->state = ANSWER;
	if (!p->begun)
		add_text(p, buf_str(&p->call), p->call.len);
	call_clear(p);
}

/* The part being read, as valid UTF-8. */
static struct chat_text take_part(struct chat_parse *p)
{
	struct buf b = {0};
	utf8_repair(buf_str(&p->part), p->part.len, &b);
	buf_clear(&p->part);
	size_t len = b.len;
	return (struct chat_text){buf_take(&b), len};
}

static struct chat_text call_name(struct chat_parse *p, struct buf *name)
{
	struct chat_text t =
		chat_text_trimmed((struct chat_text){(char *)buf_str(&p->name), p->name.len});
	utf8_repair(t.data, t.len, name);
	return (struct chat_text){(char *)buf_str(name), name->len};
}

static void report(struct chat_parse *p, enum chat_event_kind kind, const char *text, size_t len)
{
	struct chat_event event = {.kind = kind, .text = text, .len = len};
	if (p->live_calls && len)
		p->on_event(p->user, &event);
}

static void report_arguments(struct chat_parse *p)
{
	const struct buf *json = &p->json.json;
	report(p, CHAT_EVENT_CALL_ARGUMENTS, buf_str(json) + p->reported, json->len - p->reported);
	p->reported = json->len;
}

/* The name is complete: its tool decides the types of arguments, and CALL_BEGIN is reported. */
static void call_named(struct chat_parse *p)
{
	struct buf name = {0};
	struct chat_text text = call_name(p, &name);
	chat_args_begin(&p->json, p->tools, text);
	p->begun = p->live_calls;
	report(p, CHAT_EVENT_CALL_BEGIN, text.data, text.len);
	buf_free(&name);
}

static void call_key(struct chat_parse *p)
{
	size_t cap = p->n_args < p->args_cap ? p->args_cap : p->args_cap ? 2 * p->args_cap : 8;
	struct chat_text key = take_part(p);
	if (!key.data || (cap > p->args_cap && !mem_grow_array(&p->args, cap, sizeof *p->args))) {
		free(key.data);
		return;
	}
	p->args_cap = cap;
	p->args[p->n_args++] = (struct chat_arg){.key = key};
	chat_args_key(&p->json, key);
}

static void value_bytes(struct chat_parse *p, const char *s, size_t n)
{
	buf_append(&p->part, s, n);
	chat_args_value(&p->json, s, n);
	report_arguments(p);
}

static void call_end(struct chat_parse *p)
{
	struct buf name = {0};
	chat_args_end(&p->json);
	report_arguments(p);
	struct chat_parsed_call call = {
		.name = call_name(p, &name), .args = p->args, .n_args = p->n_args};
	call.arguments = (struct chat_text){p->json.json.data, p->json.json.len};
	call.raw = (struct chat_text){p->call.data, p->call.len};
	struct chat_event event = {.kind = CHAT_EVENT_CALL, .call = &call};
	p->on_event(p->user, &event);
	buf_free(&name);
	call_clear(p);
	p->state = ANSWER;
}

/* ---- the two inputs ---- */

static void on_bytes(struct chat_parse *p, const char *s, size_t n)
{
	switch (p->state) {
	case REASONING:
	case ANSWER:
		add_text(p, s, n);
		return;
	case IN_NAME:
		buf_append(&p->name, s, n);
		break;
	case IN_KEY:
		buf_append(&p->part, s, n);
		break;
	case IN_VALUE:
		value_bytes(p, s, n);
		break;
	case AFTER_KEY:
	case AFTER_VALUE: {
		/* blanks between the parts of a call are the call's, however the bytes come in */
		size_t blanks = count_blanks(s, n);
		buf_append(&p->call, s, blanks);
		if (blanks < n) {
			call_give_up(p);
			add_text(p, s + blanks, n - blanks);
		}
		return;
	}
	}
	buf_append(&p->call, s, n);
}

/* Whether the tag may stand here; moves on if so. The tag is already recorded in p->call. */
static bool call_accepts(struct chat_parse *p, enum tag tag)
{
	bool named = !all_blank(buf_str(&p->name), p->name.len);
	switch (p->state) {
	case IN_NAME:
	case AFTER_VALUE:
		if (!named || (tag != KEY && tag != END_CALL))
			return false;
		if (p->state == IN_NAME)
			call_named(p);
		if (tag == KEY)
			p->state = IN_KEY;
		else
			call_end(p);
		return true;
	case IN_KEY:
		if (tag != END_KEY)
			return false;
		call_key(p);
		p->state = AFTER_KEY;
		return true;
	case AFTER_KEY:
		if (tag != VALUE)
			return false;
		p->state = IN_VALUE;
		p->depth = 0;
		return true;
	default: /* IN_VALUE */
		if (tag == END_VALUE && !p->depth) {
			chat_args_value_end(&p->json);
			report_arguments(p);
			if (p->n_args && !p->args[p->n_args - 1].value.data)
				p->args[p->n_args - 1].value = take_part(p);
			p->state = AFTER_VALUE;
			return true;
		}
		if (p->strict && (tag == CALL || tag == END_CALL))
			return false;
		if (!p->strict && tag == VALUE)
			p->depth++;
		if (tag == END_VALUE)
			p->depth--;
		value_bytes(p, tag_text[tag], strlen(tag_text[tag]));
		return true;
	}
}

static void on_tag(struct chat_parse *p, enum tag tag)
{
	if (p->state > ANSWER) {
		size_t before = p->call.len;
		call_note(p, tag);
		if (call_accepts(p, tag))
			return;
		/* give up what stood before this tag; the tag itself may begin the next call */
		p->call.len = MIN(before, p->call.len);
		call_give_up(p);
	}
	if (p->state == REASONING ? tag == END_THINK : tag == THINK && !p->written) {
		emit_text(p, true);
		p->state = tag == THINK ? REASONING : ANSWER;
	} else if (p->state == ANSWER && tag == CALL) {
		call_begin(p);
		call_note(p, tag);
	} else {
		add_text(p, tag_text[tag], strlen(tag_text[tag]));
	}
}

/* Reads the unfinished call again, this time with values that end at their first </arg_value> and
 * that <tool_call> and </tool_call> break. */
static void call_again(struct chat_parse *p)
{
	struct buf bytes = p->call;
	struct chat_parse_tag *tags = p->tags;
	size_t n_tags = p->n_tags, at = 0;
	p->call = (struct buf){0};
	p->tags = NULL;
	p->n_tags = p->tags_cap = 0;
	call_clear(p);
	p->state = ANSWER;
	p->strict = true;
	for (size_t i = 0; i < n_tags && tags[i].at <= bytes.len; i++) {
		if (tags[i].at > at)
			on_bytes(p, bytes.data + at, tags[i].at - at);
		on_tag(p, tags[i].tag);
		at = tags[i].at + strlen(tag_text[tags[i].tag]);
	}
	if (bytes.len > at)
		on_bytes(p, bytes.data + at, bytes.len - at);
	buf_free(&bytes);
	free(tags);
}

/* ---- public ---- */

void chat_parse_init(struct chat_parse *p, const struct tokenizer *tokenizer, const json_t *tools,
	bool in_reasoning, chat_event_fn *on_event, void *user)
{
	*p = (struct chat_parse){
		.tokenizer = tokenizer,
		.tools = tools,
		.on_event = on_event,
		.user = user,
		.state = in_reasoning ? REASONING : ANSWER,
	};
	for (int i = 0; i < N_TAGS; i++)
		p->tag_id[i] = tokenizer ? tokenizer_find_added(tokenizer, tag_text[i]) : -1;
}

/* What was held as a possible tag is none. */
static void release_held(struct chat_parse *p)
{
	unsigned n = p->n_held;
	p->n_held = 0;
	if (n)
		on_bytes(p, p->held, n);
}

void chat_parse_token(struct chat_parse *p, int32_t id)
{
	struct text_span s = tokenizer_token(p->tokenizer, id);
	release_held(p);
	buf_append(&p->raw, s.data, s.len);
	for (int i = 0; i < N_TAGS; i++) {
		if (id >= 0 && p->tag_id[i] == id) {
			on_tag(p, (enum tag)i);
			goto out;
		}
	}
	/* Roles and the like come where the model's own end is banned (ignore_eos): no text of it. */
	if (s.len && !tokenizer_is_control(p->tokenizer, id))
		on_bytes(p, s.data, s.len);
out:
	if (p->state <= ANSWER)
		emit_text(p, false);
}

/* Whether s[0..n) begins a tag; *whole: is one. */
static bool begins_tag(const char *s, size_t n, enum tag *whole)
{
	bool begins = false;
	*whole = N_TAGS;
	for (int i = 0; i < N_TAGS; i++) {
		if (strlen(tag_text[i]) < n || memcmp(tag_text[i], s, n))
			continue;
		begins = true;
		if (!tag_text[i][n])
			*whole = (enum tag)i;
	}
	return begins;
}

void chat_parse_text(struct chat_parse *p, const char *text, size_t n)
{
	buf_append(&p->raw, text, n);
	while (n) {
		if (!p->n_held) { /* everything up to the next '<' is no tag */
			const char *lt = memchr(text, '<', n);
			size_t plain = lt ? (size_t)(lt - text) : n;
			if (plain)
				on_bytes(p, text, plain);
			text += plain;
			n -= plain;
			if (!n)
				break;
		}
		p->held[p->n_held++] = *text;
		enum tag tag;
		if (!begins_tag(p->held, p->n_held, &tag)) {
			/* all tags have their only '<' in front: the held bytes are text, this byte may begin a
			 * tag */
			p->n_held--;
			release_held(p);
			continue;
		}
		text++;
		n--;
		if (tag != N_TAGS) {
			p->n_held = 0;
			on_tag(p, tag);
		}
	}
	if (p->state <= ANSWER)
		emit_text(p, false);
}

/* Whether what is written of the name is the name of a tool and can be of no other. */
static bool names_tool(struct chat_parse *p)
{
	struct buf name = {0};
	struct chat_text text = call_name(p, &name);
	bool found = false, longer = false;
	size_t i;
	json_t *tool;
	json_array_foreach(p->tools, i, tool)
	{
		const json_t *s = json_object_get(chat_tool_function(tool), "name");
		size_t n = json_string_length(s);
		if (!text.len || n < text.len || memcmp(json_string_value(s), text.data, text.len) != 0)
			continue;
		found = found || n == text.len;
		longer = longer || n > text.len;
	}
	buf_free(&name);
	return found && !longer;
}

/* The output ends inside a call: it stays a partial one. */
static void call_cut(struct chat_parse *p)
{
	if (!p->begun && names_tool(p))
		call_named(p);
	call_clear(p);
	p->state = ANSWER;
}

void chat_parse_finish(struct chat_parse *p, bool ended)
{
	release_held(p);
	if (p->state > ANSWER && p->live_calls && (p->begun || !ended))
		call_cut(p);
	if (p->state > ANSWER && ended)
		call_again(p);
	if (p->state > ANSWER)
		call_give_up(p);
	emit_text(p, true);
}

bool chat_parse_in_call(const struct chat_parse *p)
{
	return p->state > ANSWER;
}

void chat_parse_fini(struct chat_parse *p)
{
	call_clear(p);
	buf_free(&p->raw);
	buf_free(&p->delta);
	buf_free(&p->call);
	buf_free(&p->name);
	buf_free(&p->part);
	chat_args_fini(&p->json);
	free(p->tags);
	free(p->args);
	*p = (struct chat_parse){0};
}
