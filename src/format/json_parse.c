/* SPDX-License-Identifier: MIT */
/* Nesting is counted over the raw bytes before the parser sees them, so that neither its recursion
 * nor that of those who read the values depends on the input. */
#include "src/format/json_parse.h"

#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ----
 *
 * Jansson's parser checks most allocations, but not that of the buffer in which it collects a
 * string or number: when that cannot grow, bytes are missing, and the parser reads beyond the
 * buffer's end. So while a text is parsed there is a reserve, from which memory comes when malloc
 * fails. After that the parser gets no more text than the FED_AT_ONCE bytes it may have read
 * already, and its value is discarded. */

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

void json_parse_setup(void)
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

int json_parse(const char *text, size_t len, size_t flags, json_t **value, struct err *e)
{
	*value = NULL;
	size_t longest, depth = nesting_of(text, len, &longest);
	if (depth > JSON_PARSE_DEPTH_MAX)
		return err_set(e, ERR_INPUT, "JSON nested %zu levels deep; at most %d are supported", depth,
			JSON_PARSE_DEPTH_MAX);
	struct parsing own = {.text = text, .len = len, .size = RESERVE_BYTES(longest)};
	own.reserve = mem_alloc(own.size);
	json_error_t je;
	json_t *v = NULL;
	parsing = &own;
	if (own.reserve)
		v = json_load_callback(feed, &own, flags, &je);
	if (own.failed) {
		json_decref(v);
		v = NULL;
	}
	parsing = NULL;
	free(own.reserve);
	if (!own.reserve || own.failed)
		return err_set(
			e, ERR_MEMORY, "there is no memory for the values of %zu bytes of JSON", len);
	if (!v && json_error_code(&je) == json_error_numeric_overflow)
		return err_set(e, ERR_INPUT,
			"line %d, column %d: a number is out of range: integers are from -2^63 to 2^63 - 1, "
			"others are doubles",
			je.line, je.column);
	if (!v)
		return err_set(e, ERR_INPUT, "line %d, column %d: %s", je.line, je.column, je.text);
	*value = v;
	return 0;
}

int json_parse_part(const char *path, const char *what, const char *text, size_t len, size_t flags,
	json_t **value, struct err *e)
{
	struct err own = {0};
	int code = json_parse(text, len, flags, value, &own);
	if (code == ERR_INPUT)
		return err_set(e, code, "%s: %sis not valid JSON: %s", path, what, own.text);
	return code ? err_set(e, code, "%s: %s", path, own.text) : 0;
}
