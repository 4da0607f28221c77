/* SPDX-License-Identifier: MIT */
/* Numbers are compared as doubles: what misses a bound by less than 1e-9 of it may be rounding, and
 * is let pass. Patterns go to PCRE2 where ECMAScript means the same by them. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "tests/text/schema_check.h"

#include "src/base/num.h"

#include <math.h>
#include <pcre2.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 60
#define WORK_MAX  20000 /* schemas that are looked at for one value */
#define ROUNDING  1e-9

struct schema_walk {
	const json_t *root;
	unsigned depth, work;
};

static enum schema_verdict walk(struct schema_walk *w, const json_t *s, const json_t *v);

static enum schema_verdict verdict(bool good)
{
	return good ? SCHEMA_VALID : SCHEMA_INVALID;
}

/* Both must hold. */
static void require_verdict(enum schema_verdict *all, enum schema_verdict one)
{
	if (*all == SCHEMA_VALID || one == SCHEMA_INVALID)
		*all = one;
}

static bool same_value(const json_t *a, const json_t *b)
{
	size_t i;
	json_t *v;
	const char *key;
	if (json_is_number(a) && json_is_number(b))
		return json_is_integer(a) && json_is_integer(b)
				   ? json_integer_value(a) == json_integer_value(b)
				   : json_number_value(a) == json_number_value(b);
	if (json_is_array(a) && json_is_array(b) && json_array_size(a) == json_array_size(b)) {
		json_array_foreach(a, i, v)
		{
			if (!same_value(v, json_array_get(b, i)))
				return false;
		}
		return true;
	}
	if (json_is_object(a) && json_is_object(b) && json_object_size(a) == json_object_size(b)) {
		json_object_foreach((json_t *)a, key, v)
		{
			if (!json_object_get(b, key) || !same_value(v, json_object_get(b, key)))
				return false;
		}
		return true;
	}
	return json_equal(a, b);
}

static bool is_whole(const json_t *v)
{
	return json_is_integer(v) ||
		   (json_is_real(v) && json_real_value(v) == floor(json_real_value(v)));
}

static enum schema_verdict check_type(const json_t *type, const json_t *v)
{
	const char *name = json_string_value(type);
	size_t i;
	json_t *one;
	if (json_is_array(type)) {
		json_array_foreach(type, i, one)
		{
			if (!json_is_array(one) && check_type(one, v) == SCHEMA_VALID)
				return SCHEMA_VALID;
		}
		return SCHEMA_INVALID;
	}
	if (!name)
		return SCHEMA_UNSURE;
	return verdict((!strcmp(name, "string") && json_is_string(v)) ||
				   (!strcmp(name, "integer") && is_whole(v)) ||
				   (!strcmp(name, "number") && json_is_number(v)) ||
				   (!strcmp(name, "boolean") && json_is_boolean(v)) ||
				   (!strcmp(name, "null") && json_is_null(v)) ||
				   (!strcmp(name, "array") && json_is_array(v)) ||
				   (!strcmp(name, "object") && json_is_object(v)));
}

/* Is it written with letters whose meaning PCRE2 and ECMAScript share? */
static bool is_plain_pattern(const char *p)
{
	static const char *const unlike[] = {
		"(?", "[]", "[^]", "[:", "[.", "[=", "++", "*+", "?+", "}+", "{,", NULL};
	if (strspn(
			p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ^$()|*+?{},[]-") !=
		strlen(p))
		return false;
	for (const char *const *u = unlike; *u; u++)
		if (strstr(p, *u))
			return false;
	return true;
}

static enum schema_verdict check_pattern(const json_t *pattern, const char *text, size_t n)
{
	const char *p = json_string_value(pattern);
	int code;
	PCRE2_SIZE at;
	if (!p || !is_plain_pattern(p))
		return SCHEMA_UNSURE;
	pcre2_code *re = pcre2_compile(
		(PCRE2_SPTR)p, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_DOLLAR_ENDONLY, &code, &at, NULL);
	if (!re)
		return SCHEMA_UNSURE;
	pcre2_match_data *m = pcre2_match_data_create_from_pattern(re, NULL);
	int found = pcre2_match(re, (PCRE2_SPTR)text, n, 0, 0, m, NULL);
	pcre2_match_data_free(m);
	pcre2_code_free(re);
	return found >= 0                     ? SCHEMA_VALID
		   : found == PCRE2_ERROR_NOMATCH ? SCHEMA_INVALID
										  : SCHEMA_UNSURE;
}

static enum schema_verdict check_string(const json_t *s, const json_t *v)
{
	enum schema_verdict all = SCHEMA_VALID;
	const json_t *min = json_object_get(s, "minLength"), *max = json_object_get(s, "maxLength"),
				 *pattern = json_object_get(s, "pattern");
	const char *text = json_string_value(v);
	size_t n = json_string_length(v), length = 0;
	for (size_t i = 0; i < n; i++)
		length += ((unsigned char)text[i] & 0xc0) != 0x80;
	if (json_is_number(min))
		require_verdict(&all, verdict((double)length >= json_number_value(min)));
	if (json_is_number(max))
		require_verdict(&all, verdict((double)length <= json_number_value(max)));
	if (pattern)
		require_verdict(&all, check_pattern(pattern, text, n));
	if (json_object_get(s, "format"))
		require_verdict(&all, SCHEMA_UNSURE);
	return all;
}

/* sign 1: v is not below the bound; -1: not above. */
static enum schema_verdict check_bound(
	const json_t *s, const char *keyword, int sign, bool exclusive, const json_t *v)
{
	const json_t *bound = json_object_get(s, keyword);
	if (!bound)
		return SCHEMA_VALID;
	if (!json_is_number(bound)) /* draft 4: true beside "minimum" */
		return json_is_false(bound) ? SCHEMA_VALID : SCHEMA_UNSURE;
	if (json_is_integer(bound) && json_is_integer(v)) {
		json_int_t a = json_integer_value(v), b = json_integer_value(bound);
		return verdict(a == b ? !exclusive : (a > b) == (sign > 0));
	}
	double a = json_number_value(v), b = json_number_value(bound), slack = fabs(b) * ROUNDING;
	if (fabs(a - b) <= slack)
		return a == b && exclusive && json_is_integer(v) ? SCHEMA_INVALID : SCHEMA_UNSURE;
	return verdict((a > b) == (sign > 0));
}

static enum schema_verdict check_number(const json_t *s, const json_t *v)
{
	enum schema_verdict all = check_bound(s, "minimum", 1, false, v);
	const json_t *step = json_object_get(s, "multipleOf");
	require_verdict(&all, check_bound(s, "maximum", -1, false, v));
	require_verdict(&all, check_bound(s, "exclusiveMinimum", 1, true, v));
	require_verdict(&all, check_bound(s, "exclusiveMaximum", -1, true, v));
	if (json_is_integer(step) && json_integer_value(step) > 0 && json_is_integer(v))
		require_verdict(&all, verdict(json_integer_value(v) % json_integer_value(step) == 0));
	else if (step)
		require_verdict(&all, SCHEMA_UNSURE);
	return all;
}

static enum schema_verdict check_array(struct schema_walk *w, const json_t *s, const json_t *v)
{
	enum schema_verdict all = SCHEMA_VALID;
	const json_t *min = json_object_get(s, "minItems"), *max = json_object_get(s, "maxItems"),
				 *items = json_object_get(s, "items"), *prefix = json_object_get(s, "prefixItems");
	size_t n = json_array_size(v), i, k;
	json_t *item;
	if (json_is_array(items)) {
		prefix = items;
		items = json_object_get(s, "additionalItems");
	}
	if (json_is_number(min))
		require_verdict(&all, verdict((double)n >= json_number_value(min)));
	if (json_is_number(max))
		require_verdict(&all, verdict((double)n <= json_number_value(max)));
	json_array_foreach(v, i, item)
	{
		const json_t *one = i < json_array_size(prefix) ? json_array_get(prefix, i) : items;
		if (one)
			require_verdict(&all, walk(w, one, item));
		for (k = 0; json_is_true(json_object_get(s, "uniqueItems")) && k < i; k++)
			require_verdict(&all, verdict(!same_value(json_array_get(v, k), item)));
	}
	if (json_object_get(s, "contains"))
		require_verdict(&all, SCHEMA_UNSURE);
	return all;
}

static enum schema_verdict check_object(struct schema_walk *w, const json_t *s, const json_t *v)
{
	enum schema_verdict all = SCHEMA_VALID;
	const json_t *properties = json_object_get(s, "properties"),
				 *patterns = json_object_get(s, "patternProperties"),
				 *others = json_object_get(s, "additionalProperties"),
				 *names = json_object_get(s, "propertyNames"),
				 *min = json_object_get(s, "minProperties");
	const char *key, *pattern;
	size_t i;
	json_t *value, *name, *part;
	if (json_is_number(min))
		require_verdict(&all, verdict((double)json_object_size(v) >= json_number_value(min)));
	json_array_foreach(json_object_get(s, "required"), i, name)
	{
		if (json_is_string(name))
			require_verdict(&all, verdict(json_object_get(v, json_string_value(name)) != NULL));
	}
	json_object_foreach((json_t *)v, key, value)
	{
		const json_t *known = json_object_get(properties, key);
		enum schema_verdict matched = verdict(known != NULL);
		if (known)
			require_verdict(&all, walk(w, known, value));
		json_object_foreach((json_t *)patterns, pattern, part)
		{
			json_t *p = json_string(pattern);
			enum schema_verdict fits = check_pattern(p, key, strlen(key));
			json_decref(p);
			if (fits == SCHEMA_VALID)
				require_verdict(&all, walk(w, part, value));
			if (fits == SCHEMA_UNSURE)
				require_verdict(&all, SCHEMA_UNSURE);
			matched = matched == SCHEMA_VALID || fits == SCHEMA_VALID ? SCHEMA_VALID
					  : fits == SCHEMA_UNSURE                         ? fits
																	  : matched;
		}
		if (others && matched == SCHEMA_INVALID)
			require_verdict(&all, walk(w, others, value));
		if (names) {
			json_t *text = json_string(key);
			require_verdict(&all, walk(w, names, text));
			json_decref(text);
		}
	}
	return all;
}

/* How many of a list hold: anyOf at least one, oneOf one, allOf all. */
static enum schema_verdict check_list(
	struct schema_walk *w, const json_t *s, const char *keyword, const json_t *v)
{
	const json_t *list = json_object_get(s, keyword);
	size_t n[3] = {0}, i;
	json_t *one;
	if (!list)
		return SCHEMA_VALID;
	if (!json_is_array(list))
		return SCHEMA_UNSURE;
	json_array_foreach(list, i, one)
	{
		n[walk(w, one, v)]++;
	}
	if (!strcmp(keyword, "allOf"))
		return n[SCHEMA_INVALID] ? SCHEMA_INVALID : n[SCHEMA_UNSURE] ? SCHEMA_UNSURE : SCHEMA_VALID;
	if (!strcmp(keyword, "anyOf"))
		return n[SCHEMA_VALID] ? SCHEMA_VALID : n[SCHEMA_UNSURE] ? SCHEMA_UNSURE : SCHEMA_INVALID;
	return n[SCHEMA_VALID] > 1 ? SCHEMA_INVALID
		   : n[SCHEMA_UNSURE]  ? SCHEMA_UNSURE
							   : verdict(n[SCHEMA_VALID] == 1);
}

/* The place of a reference "#/a/b"; NULL: none, or of a form that is not known here. */
static const json_t *find_reference(const json_t *root, const json_t *reference)
{
	const char *at = json_string_value(reference);
	if (!at || *at++ != '#' || strpbrk(at, "~%"))
		return NULL;
	while (root && *at == '/') {
		size_t n = strcspn(++at, "/");
		char *key = strndup(at, n), *end;
		if (json_is_array(root)) {
			unsigned long i = strtoul(key, &end, 10);
			root = *key && !*end ? json_array_get(root, i) : NULL;
		} else {
			root = json_object_get(root, key);
		}
		free(key);
		at += n;
	}
	return *at ? NULL : root;
}

static bool is_known(const char *keyword)
{
	static const char *const list[] = {"type", "enum", "const", "properties", "required",
		"additionalProperties", "patternProperties", "propertyNames", "items", "prefixItems",
		"additionalItems", "minItems", "maxItems", "uniqueItems", "minLength", "maxLength",
		"pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
		"multipleOf", "anyOf", "oneOf", "allOf", "$ref", "$defs", "definitions", "title",
		"description", "default", "nullable", "minProperties"};
	for (size_t i = 0; i < ARRAY_LEN(list); i++)
		if (!strcmp(keyword, list[i]))
			return true;
	return false;
}

static enum schema_verdict walk_object(struct schema_walk *w, const json_t *s, const json_t *v)
{
	static const char *const lists[] = {"anyOf", "oneOf", "allOf"};
	enum schema_verdict all = SCHEMA_VALID;
	const json_t *values = json_object_get(s, "enum"), *constant = json_object_get(s, "const"),
				 *reference = json_object_get(s, "$ref"), *type = json_object_get(s, "type");
	const char *key;
	json_t *member;
	size_t i;
	json_object_foreach((json_t *)s, key, member)
	{
		if (!is_known(key))
			require_verdict(&all, SCHEMA_UNSURE);
	}
	if (type && !(json_is_null(v) && json_is_true(json_object_get(s, "nullable")))) /* OpenAPI */
		require_verdict(&all, check_type(type, v));
	if (constant)
		require_verdict(&all, verdict(same_value(constant, v)));
	if (json_is_array(values)) {
		bool listed = false;
		json_array_foreach(values, i, member)
		{
			listed = listed || same_value(member, v);
		}
		require_verdict(&all, verdict(listed));
	}
	if (reference) {
		const json_t *target = find_reference(w->root, reference);
		require_verdict(&all, target ? walk(w, target, v) : SCHEMA_UNSURE);
	}
	for (i = 0; i < ARRAY_LEN(lists); i++)
		require_verdict(&all, check_list(w, s, lists[i], v));
	require_verdict(&all, json_is_string(v)   ? check_string(s, v)
						  : json_is_number(v) ? check_number(s, v)
						  : json_is_array(v)  ? check_array(w, s, v)
						  : json_is_object(v) ? check_object(w, s, v)
											  : SCHEMA_VALID);
	return all;
}

static enum schema_verdict walk(struct schema_walk *w, const json_t *s, const json_t *v)
{
	if (json_is_boolean(s))
		return verdict(json_is_true(s));
	if (!json_is_object(s) || w->depth == DEPTH_MAX || w->work == WORK_MAX)
		return SCHEMA_UNSURE;
	w->depth++;
	w->work++;
	enum schema_verdict all = walk_object(w, s, v);
	w->depth--;
	return all;
}

enum schema_verdict schema_check(const json_t *root, const json_t *schema, const json_t *value)
{
	struct schema_walk w = {.root = root};
	return walk(&w, schema, value);
}
