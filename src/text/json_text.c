/* SPDX-License-Identifier: MIT */
/* JSON text in and out. Nesting is counted over the raw bytes before the parser sees them, so that
 * neither its recursion nor ours depends on the input. */
#include "src/text/json_text.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ----
 *
 * Jansson's parser checks most allocations, but not that of the buffer in which it collects a
 * string or number: when that cannot grow, bytes are missing, and what reads them leaves the
 * buffer. So while a text is parsed there is a reserve. What malloc has not comes from there; then
 * the text ends, at the latest FED_AT_ONCE bytes on, and its value is thrown away. */

#define FED_AT_ONCE 64
/* the buffer that grows, the string that is copied from it, and what the bytes behind it make */
#define RESERVE_BYTES(longest) (3 * (longest) + ((size_t)32 << 10))

struct parsing {
	const char *text;
	size_t len;
	char *reserve; /* [size] */
	size_t size, used;
	bool failed;
};

static _Thread_local struct parsing *parsing;

static void *json_take(size_t n)
{
	struct parsing *p = parsing;
	void *taken = mem_alloc(n);
	if (taken || !p)
		return taken;
	p->failed = true;
	n = (n + 15) / 16 * 16;
	if (n > p->size - p->used)
		return NULL;
	p->used += n;
	return p->reserve + p->used - n;
}

static void json_release(void *taken)
{
	const struct parsing *p = parsing;
	if (!p || (char *)taken < p->reserve || (char *)taken >= p->reserve + p->size)
		free(taken);
}

void json_text_setup(void)
{
	json_set_alloc_funcs(json_take, json_release);
	json_object_seed(0); /* before there are threads that might do it at the same time */
}

static size_t feed(void *out, size_t room, void *user)
{
	struct parsing *p = user;
	size_t n = MIN(MIN(room, FED_AT_ONCE), p->failed ? 0 : p->len);
	memcpy(out, p->text, n);
	p->text += n;
	p->len -= n;
	return n;
}

/* ---- parsing ---- */

/* Deepest nesting of brackets outside strings. *longest: no string or number has more bytes. */
static size_t nesting_of(const char *p, size_t n, size_t *longest)
{
	size_t depth = 0, deepest = 0, from = 0;
	bool in_string = false;
	*longest = 0;
	for (size_t i = 0; i < n; i++) {
		char c = p[i];
		if (in_string) {
			if (c == '\\')
				i++;
			else if (c == '"')
				in_string = false;
		} else if (c == '"') {
			in_string = true;
		} else if (c == ',' || c == ':') {
			*longest = MAX(*longest, i - from);
			from = i;
		} else if (c == '[' || c == '{') {
			depth++;
			deepest = MAX(deepest, depth);
		} else if ((c == ']' || c == '}') && depth) {
			depth--;
		}
	}
	*longest = MAX(*longest, n - from);
	return deepest;
}

json_t *json_text_parse(const char *text, size_t len, bool any, struct err *e)
{
	size_t longest, depth = nesting_of(text, len, &longest);
	if (depth > JSON_TEXT_DEPTH_MAX) {
		err_set(e, ERR_INPUT, "JSON nested %zu levels deep; at most %d are supported", depth,
			JSON_TEXT_DEPTH_MAX);
		return NULL;
	}
	struct parsing own = {.text = text, .len = len, .size = RESERVE_BYTES(longest)};
	own.reserve = mem_alloc(own.size);
	json_error_t je;
	json_t *v = NULL;
	parsing = &own;
	if (own.reserve)
		v = json_load_callback(
			feed, &own, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | (any ? JSON_DECODE_ANY : 0), &je);
	if (own.failed) {
		json_decref(v);
		v = NULL;
	}
	parsing = NULL;
	free(own.reserve);
	if (!own.reserve || own.failed)
		err_set(e, ERR_MEMORY, "there is no memory for the values of %zu bytes of JSON", len);
	else if (!v)
		err_set(e, ERR_INPUT, "line %d, column %d: %s", je.line, je.column, je.text);
	return v;
}

void json_text_dump_string(const char *s, size_t n, struct buf *out)
{
	static const char letter[] = {['"'] = '"',
		['\\'] = '\\',
		['\n'] = 'n',
		['\r'] = 'r',
		['\t'] = 't',
		['\b'] = 'b',
		['\f'] = 'f'};
	buf_putc(out, '"');
	size_t from = 0;
	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)s[i];
		if (c >= 0x20 && c != '"' && c != '\\')
			continue;
		buf_append(out, s + from, i - from);
		from = i + 1;
		if (c < sizeof letter && letter[c])
			buf_printf(out, "\\%c", letter[c]);
		else
			buf_printf(out, "\\u%04x", c);
	}
	buf_append(out, s + from, n - from);
	buf_putc(out, '"');
}

/* Python's repr(float): fewest digits that read back the same; exponent form below 1e-4 and from
 * 1e16 on. */
static void dump_real(double x, struct buf *out)
{
	if (!isfinite(x)) { /* JSON has none; the parser never makes one */
		buf_puts(out, isnan(x) ? "NaN" : x < 0 ? "-Infinity" : "Infinity");
		return;
	}
	char s[40];
	int digits = 1;
	do
		snprintf(s, sizeof s, "%.*e", digits - 1, x);
	while (strtod(s, NULL) != x && digits++ < 17);
	int exponent = atoi(strchr(s, 'e') + 1);
	if (exponent < -4 || exponent >= 16) {
		/* d.ddde+XX: Python drops the point of a single digit as printf does, and writes two
		 * exponent digits at least */
		buf_puts(out, s);
		return;
	}
	int decimals = MAX(digits - 1 - exponent, 1);
	buf_printf(out, "%.*f", decimals, x);
}

static void dump_value(const json_t *v, struct buf *out, unsigned depth)
{
	if (depth > JSON_TEXT_DEPTH_MAX) {
		buf_puts(out, "null");
		return;
	}
	switch (json_typeof(v)) {
	case JSON_OBJECT: {
		const char *key;
		size_t key_len;
		json_t *item;
		const char *between = "";
		buf_putc(out, '{');
		json_object_keylen_foreach((json_t *)v, key, key_len, item)
		{
			buf_puts(out, between);
			json_text_dump_string(key, key_len, out);
			buf_puts(out, ": ");
			dump_value(item, out, depth + 1);
			between = ", ";
		}
		buf_putc(out, '}');
		break;
	}
	case JSON_ARRAY: {
		size_t i;
		json_t *item;
		buf_putc(out, '[');
		json_array_foreach(v, i, item)
		{
			if (i)
				buf_puts(out, ", ");
			dump_value(item, out, depth + 1);
		}
		buf_putc(out, ']');
		break;
	}
	case JSON_STRING:
		json_text_dump_string(json_string_value(v), json_string_length(v), out);
		break;
	case JSON_INTEGER:
		buf_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
		break;
	case JSON_REAL:
		dump_real(json_real_value(v), out);
		break;
	case JSON_TRUE:
		buf_puts(out, "true");
		break;
	case JSON_FALSE:
		buf_puts(out, "false");
		break;
	case JSON_NULL:
		buf_puts(out, "null");
		break;
	}
}

void json_text_dump(const json_t *value, struct buf *out)
{
	if (!value && mem_scope_failed()) /* it found no memory */
		return;
	if (!value)
		bug("JSON of no value");
	dump_value(value, out, 0);
}

const char *json_text_type(const json_t *value)
{
	if (!value)
		return "nothing";
	switch (json_typeof(value)) {
	case JSON_OBJECT:
		return "an object";
	case JSON_ARRAY:
		return "an array";
	case JSON_STRING:
		return "a string";
	case JSON_INTEGER:
	case JSON_REAL:
		return "a number";
	case JSON_TRUE:
	case JSON_FALSE:
		return "a boolean";
	default:
		return "null";
	}
}
