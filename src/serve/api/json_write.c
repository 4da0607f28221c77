/* SPDX-License-Identifier: MIT */
/* Commas and quotes. */
#include "src/serve/api/json_write.h"

#include "src/text/json_text.h"

#include <math.h>
#include <string.h>

static void member_begin(struct json_write *w, const char *key)
{
	if (w->comma)
		buf_putc(w->out, ',');
	w->comma = true;
	if (key)
		buf_printf(w->out, "\"%s\":", key);
}

void json_write_open(struct json_write *w, const char *key, char bracket)
{
	member_begin(w, key);
	buf_putc(w->out, bracket);
	w->comma = false;
}

void json_write_close(struct json_write *w, char bracket)
{
	buf_putc(w->out, bracket);
	w->comma = true;
}

void json_write_text(struct json_write *w, const char *key, const char *text, size_t len)
{
	member_begin(w, key);
	json_text_dump_string(text, len, w->out);
}

void json_write_string(struct json_write *w, const char *key, const char *text)
{
	if (text)
		json_write_text(w, key, text, strlen(text));
	else
		json_write_null(w, key);
}

void json_write_int(struct json_write *w, const char *key, int64_t value)
{
	member_begin(w, key);
	buf_printf(w->out, "%lld", (long long)value);
}

void json_write_real(struct json_write *w, const char *key, double value)
{
	member_begin(w, key);
	if (isfinite(value))
		buf_printf(w->out, "%.9g", value);
	else
		buf_puts(w->out, "null");
}

void json_write_bool(struct json_write *w, const char *key, bool value)
{
	member_begin(w, key);
	buf_puts(w->out, value ? "true" : "false");
}

void json_write_null(struct json_write *w, const char *key)
{
	member_begin(w, key);
	buf_puts(w->out, "null");
}

void json_write_raw(struct json_write *w, const char *key, const char *json, size_t len)
{
	member_begin(w, key);
	buf_append(w->out, json, len);
}

void json_write_value(struct json_write *w, const char *key, const json_t *value)
{
	member_begin(w, key);
	if (value)
		json_text_dump(value, w->out);
	else
		buf_puts(w->out, "null");
}
