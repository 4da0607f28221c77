/* SPDX-License-Identifier: MIT */
/* Text -> JSON values by a tool's schema. A value is held until its text can be nothing but a
 * string. What the parser of json_parse.h does not take is a string too: clients send the arguments
 * back with the next request. */
#include "src/text/chat_args.h"

#include "src/base/err.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/text/json_text.h"
#include "src/text/schema/schema_keywords.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { /* the bits of schema_keywords.h */
	TYPE_STRING = SCHEMA_STRING,
	TYPE_INTEGER = SCHEMA_INTEGER,
	TYPE_NUMBER = SCHEMA_NUMBER,
	TYPE_BOOLEAN = SCHEMA_BOOLEAN,
	TYPE_NULL = SCHEMA_NULL,
	TYPE_ARRAY = SCHEMA_ARRAY,
	TYPE_OBJECT = SCHEMA_OBJECT,
};

/* The types that the tool's schema allows for an argument; 0: it does not say. */
static unsigned allowed_types(const json_t *parameters, struct chat_text key)
{
	if (strlen(key.data) != key.len) /* no schema names a key with a zero byte */
		return 0;
	unsigned mask = schema_property_types(parameters, parameters, key.data);
	return mask == SCHEMA_ANY ? 0 : mask;
}

static const json_t *parameters_of(const json_t *tools, struct chat_text name)
{
	size_t i;
	json_t *tool;
	json_array_foreach(tools, i, tool)
	{
		const json_t *f = chat_tool_function(tool), *n = json_object_get(f, "name");
		if (json_is_string(n) && json_string_length(n) == name.len &&
			!memcmp(json_string_value(n), name.data, name.len))
			return json_object_get(f, "parameters");
	}
	return NULL;
}

static size_t digits(const char *p, size_t n)
{
	size_t i = 0;
	while (i < n && p[i] >= '0' && p[i] <= '9')
		i++;
	return i;
}

static bool is_word(struct chat_text t, const char *word)
{
	return t.len == strlen(word) && !strncasecmp(t.data, word, t.len);
}

/* Appends the value if the text denotes one of an allowed type other than string (0: any of them).
 */
static bool typed_value(struct chat_text text, unsigned mask, struct buf *out)
{
	struct chat_text t = chat_text_trimmed(text);
	if (!t.len)
		return false;
	if (is_word(t, "true") || is_word(t, "false")) { /* models write Python's True as well */
		bool exact = t.data[0] == 't' || t.data[0] == 'f';
		if (mask ? !(mask & TYPE_BOOLEAN) : !exact)
			return false;
		buf_puts(out, (t.data[0] | 32) == 't' ? "true" : "false");
		return true;
	}
	if (is_word(t, "null") && t.data[0] == 'n') {
		if (mask && !(mask & TYPE_NULL))
			return false;
		buf_puts(out, "null");
		return true;
	}
	bool number = t.data[0] == '-' || digits(t.data, 1);
	unsigned kind = number             ? TYPE_NUMBER | TYPE_INTEGER
					: t.data[0] == '[' ? TYPE_ARRAY
					: t.data[0] == '{' ? TYPE_OBJECT
									   : 0;
	if (!kind || (mask && !(mask & kind)))
		return false;
	json_t *v = NULL; /* of repeated keys the last counts */
	json_parse(t.data, t.len, JSON_ALLOW_NUL | JSON_DECODE_ANY, &v, NULL);
	if (v && number) /* digit for digit; inside arrays and objects a fraction becomes a double */
		buf_append(out, t.data, t.len);
	else if (v)
		json_text_dump(v, out);
	json_decref(v);
	return v != NULL;
}

/* Whether `text`, and more to come, may denote a value of an allowed type other than string: what
 * typed_value will look at once it is complete. */
static bool may_be_typed(struct chat_text text, unsigned mask)
{
	struct chat_text t = chat_text_trimmed(text);
	static const char *const words[] = {"true", "false", "null"};
	if (!t.len)
		return true;
	if (t.data[0] == '[' || t.data[0] == '{')
		return !mask || (mask & (t.data[0] == '[' ? TYPE_ARRAY : TYPE_OBJECT));
	if (t.data[0] == '-' || digits(t.data, 1)) {
		size_t n = 0;
		while (n < t.len && (digits(t.data + n, 1) || memchr("+-.eE", t.data[n], 5)))
			n++;
		return n == t.len && (!mask || (mask & (TYPE_NUMBER | TYPE_INTEGER)));
	}
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (t.len <= strlen(words[i]) && !strncasecmp(t.data, words[i], t.len))
			return true;
	return false;
}

void chat_args_begin(struct chat_args *a, const json_t *tools, struct chat_text name)
{
	buf_clear(&a->json);
	buf_putc(&a->json, '{');
	a->parameters = parameters_of(tools, name);
	json_decref(a->keys); /* of a call that was given up */
	a->keys = json_object();
}

void chat_args_key(struct chat_args *a, struct chat_text key)
{
	bool plain = strlen(key.data) == key.len; /* the set of keys takes no zero byte */
	a->skip = plain && json_object_get(a->keys, key.data);
	a->as_string = false;
	a->stream = (struct utf8_stream){0};
	buf_clear(&a->held);
	if (a->skip)
		return;
	if (plain)
		json_object_set_new(a->keys, key.data, json_true());
	a->mask = allowed_types(a->parameters, key);
	buf_puts(&a->json, a->json.len > 1 ? ", " : "");
	json_text_dump_string(key.data, key.len, &a->json);
	buf_puts(&a->json, ": ");
}

/* Valid UTF-8 of a string that is open. */
static void add_to_string(struct chat_args *a, const char *s, size_t n)
{
	size_t at = a->json.len;
	json_text_dump_string(s, n, &a->json);
	if (mem_scope_failed())
		return;
	/* without its quotes */
	memmove(a->json.data + at, a->json.data + at + 1, a->json.len - at - 2);
	a->json.len -= 2;
}

static void open_string(struct chat_args *a)
{
	a->as_string = true;
	buf_putc(&a->json, '"');
	add_to_string(a, buf_str(&a->held), a->held.len);
	buf_clear(&a->held);
}

void chat_args_value(struct chat_args *a, const char *s, size_t n)
{
	if (a->skip)
		return;
	buf_clear(&a->piece);
	utf8_stream_push(&a->stream, s, n, &a->piece);
	if (a->as_string) {
		add_to_string(a, buf_str(&a->piece), a->piece.len);
		return;
	}
	buf_append(&a->held, a->piece.data, a->piece.len);
	struct chat_text held = {(char *)buf_str(&a->held), a->held.len};
	bool string = (a->mask & TYPE_STRING) != 0, null = (a->mask & TYPE_NULL) != 0;
	if (!held.len)
		return;
	if (string ? !null || !may_be_typed(held, TYPE_NULL) : !may_be_typed(held, a->mask))
		open_string(a);
}

void chat_args_value_end(struct chat_args *a)
{
	if (a->skip)
		return;
	buf_clear(&a->piece);
	utf8_stream_flush(&a->stream, &a->piece);
	if (a->as_string) {
		add_to_string(a, buf_str(&a->piece), a->piece.len);
		buf_putc(&a->json, '"');
		return;
	}
	buf_append(&a->held, a->piece.data, a->piece.len);
	struct chat_text value = {(char *)buf_str(&a->held), a->held.len};
	bool null = (a->mask & TYPE_NULL) && is_word(chat_text_trimmed(value), "null");
	if (((a->mask & TYPE_STRING) && !null) || !typed_value(value, a->mask, &a->json))
		json_text_dump_string(value.data, value.len, &a->json);
}

void chat_args_end(struct chat_args *a)
{
	buf_putc(&a->json, '}');
	json_decref(a->keys);
	a->keys = NULL;
}

void chat_args_fini(struct chat_args *a)
{
	json_decref(a->keys);
	buf_free(&a->json);
	buf_free(&a->held);
	buf_free(&a->piece);
	*a = (struct chat_args){0};
}
