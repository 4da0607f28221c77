/* SPDX-License-Identifier: MIT */
/* Text -> JSON values by a tool's schema. Numbers are passed on digit for digit, so that nothing is
 * rounded. */
#include "src/text/chat_args.h"

#include "src/base/err.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/text/json_text.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
	TYPE_STRING = 1,
	TYPE_INTEGER = 2,
	TYPE_NUMBER = 4,
	TYPE_BOOLEAN = 8,
	TYPE_NULL = 16,
	TYPE_ARRAY = 32,
	TYPE_OBJECT = 64,
};

static unsigned type_named(const json_t *name)
{
	static const char *const names[] = {
		"string", "integer", "number", "boolean", "null", "array", "object"};
	for (size_t i = 0; json_is_string(name) && i < ARRAY_LEN(names); i++)
		if (!strcmp(json_string_value(name), names[i]))
			return 1u << i;
	return 0;
}

/* The types that the tool's schema allows for an argument; 0: it does not say. */
static unsigned allowed_types(const json_t *properties, struct chat_text key)
{
	if (strlen(key.data) != key.len) /* no schema names a key with a zero byte */
		return 0;
	const json_t *type = json_object_get(json_object_get(properties, key.data), "type");
	unsigned mask = type_named(type);
	size_t i;
	json_t *v;
	json_array_foreach(type, i, v)
	{
		mask |= type_named(v);
	}
	return mask;
}

static const json_t *properties_of(const json_t *tools, struct chat_text name)
{
	size_t i;
	json_t *tool;
	json_array_foreach(tools, i, tool)
	{
		const json_t *f = chat_tool_function(tool), *n = json_object_get(f, "name");
		if (json_is_string(n) && json_string_length(n) == name.len &&
			!memcmp(json_string_value(n), name.data, name.len))
			return json_object_get(json_object_get(f, "parameters"), "properties");
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

/* TYPE_INTEGER, TYPE_NUMBER (with fraction or exponent) or 0: whether t is a number as JSON writes
 * it. */
static unsigned number_type(struct chat_text t)
{
	const char *p = t.data, *end = t.data + t.len;
	unsigned type = TYPE_INTEGER;
	if (p < end && *p == '-')
		p++;
	size_t n = digits(p, (size_t)(end - p));
	if (!n || (n > 1 && *p == '0'))
		return 0;
	p += n;
	if (p < end && *p == '.') {
		if (!(n = digits(p + 1, (size_t)(end - p - 1))))
			return 0;
		p += 1 + n;
		type = TYPE_NUMBER;
	}
	if (p < end && (*p | 32) == 'e') {
		p++;
		if (p < end && (*p == '+' || *p == '-'))
			p++;
		if (!(n = digits(p, (size_t)(end - p))))
			return 0;
		p += n;
		type = TYPE_NUMBER;
	}
	return p == end ? type : 0;
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
	unsigned number = number_type(t);
	if (number) {
		if (mask && !(mask & (TYPE_NUMBER | TYPE_INTEGER)))
			return false;
		buf_append(out, t.data, t.len);
		return true;
	}
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
	unsigned kind = t.data[0] == '[' ? TYPE_ARRAY : t.data[0] == '{' ? TYPE_OBJECT : 0;
	if (!kind || (mask && !(mask & kind)))
		return false;
	json_t *v = json_text_parse(t.data, t.len, false, NULL);
	if (v)
		json_text_dump(v, out);
	json_decref(v);
	return v != NULL;
}

static int by_key(const void *a, const void *b, void *list)
{
	const struct chat_arg *args = list;
	size_t i = *(const size_t *)a, k = *(const size_t *)b;
	size_t n = MIN(args[i].key.len, args[k].key.len);
	int c = memcmp(args[i].key.data, args[k].key.data, n);
	if (!c)
		c = (args[i].key.len > args[k].key.len) - (args[i].key.len < args[k].key.len);
	return c ? c : (i > k) - (i < k);
}

static bool same_key(const struct chat_arg *a, const struct chat_arg *b)
{
	return a->key.len == b->key.len && !memcmp(a->key.data, b->key.data, a->key.len);
}

void chat_args_json(const json_t *tools, struct chat_text name, const struct chat_arg *args,
	size_t n, struct buf *out)
{
	const json_t *properties = properties_of(tools, name);
	/* of equal keys the last one counts: sort, then mark all but the last of each run */
	size_t *order = NEW_ARRAY(size_t, n);
	bool *overruled = NEW_ARRAY(bool, n);
	for (size_t i = 0; i < n; i++)
		order[i] = i;
	qsort_r(order, n, sizeof *order, by_key, (void *)args);
	for (size_t i = 0; i + 1 < n; i++)
		overruled[order[i]] = same_key(&args[order[i]], &args[order[i + 1]]);
	const char *between = "";
	buf_putc(out, '{');
	for (size_t i = 0; i < n; i++) {
		if (overruled[i])
			continue;
		buf_puts(out, between);
		between = ", ";
		json_text_dump_string(args[i].key.data, args[i].key.len, out);
		buf_puts(out, ": ");
		unsigned mask = allowed_types(properties, args[i].key);
		bool null = (mask & TYPE_NULL) && is_word(chat_text_trimmed(args[i].value), "null");
		bool as_string = (mask & TYPE_STRING) && !null;
		if (as_string || !typed_value(args[i].value, mask, out))
			json_text_dump_string(args[i].value.data, args[i].value.len, out);
	}
	buf_putc(out, '}');
	free(order);
	free(overruled);
}
