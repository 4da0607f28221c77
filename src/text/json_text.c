/* SPDX-License-Identifier: MIT */
/* Writes JSON text. The parser is src/format/json_parse.c. */
#include "src/text/json_text.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

json_t *json_text_parse(const char *text, size_t len, bool any, struct err *e)
{
	json_t *v;
	json_parse(text, len, JSON_TEXT_FLAGS | (any ? JSON_DECODE_ANY : 0), &v, e);
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
	if (depth > JSON_PARSE_DEPTH_MAX) {
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
