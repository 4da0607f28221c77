/* SPDX-License-Identifier: MIT */
/* Thin helpers over jansson, which prints keys in the order they were set. */
#include "tools/output/json_out.h"

#include "src/base/buf.h"
#include "src/text/utf8.h"

#include <math.h>
#include <string.h>

void json_out_real(json_t *object, const char *key, double v)
{
	json_object_set_new(object, key, isfinite(v) ? json_real(v) : json_null());
}

void json_out_uint(json_t *object, const char *key, uint64_t v)
{
	if (v <= INT64_MAX)
		json_object_set_new(object, key, json_integer((json_int_t)v));
	else
		json_object_set_new(object, key, json_real((double)v));
}

void json_out_str(json_t *object, const char *key, const char *s)
{
	json_t *v = json_string(s);
	if (!v) { /* not UTF-8 */
		struct buf b = {0};
		utf8_repair(s, strlen(s), &b);
		v = json_string(buf_str(&b));
		buf_free(&b);
	}
	json_object_set_new(object, key, v);
}

static void print(FILE *f, json_t *object, size_t flags)
{
	json_dumpf(object, f, JSON_REAL_PRECISION(10) | flags);
	fputc('\n', f);
	json_decref(object);
}

void json_out_line(FILE *f, json_t *object)
{
	print(f, object, 0);
}

void json_out_tree(FILE *f, json_t *object)
{
	print(f, object, JSON_INDENT(2));
}
