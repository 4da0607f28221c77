/* SPDX-License-Identifier: MIT */
#include "src/text/schema/schema_keywords.h"

#include "src/base/host/clock.h"
#include "src/base/num.h"
#include "src/text/json_text.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FOLLOW_MAX   32      /* references in a row, and alternatives inside alternatives */
#define TYPES_WORK   20000   /* schemas and values that one search for types looks at */
#define COMPARED_MAX 1000000 /* pairs of values of two lists */

bool schema_too_long(const struct schema_budget *left)
{
	return clock_thread_ns() > left->until;
}

static bool is_among(const char *word, const char *const *list, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(word, list[i]))
			return true;
	return false;
}

bool schema_is_annotation(const char *keyword)
{
	static const char *const list[] = {"title", "description", "default", "examples", "example",
		"deprecated", "readOnly", "writeOnly", "$schema", "$id", "id", "$comment", "$defs",
		"definitions", "contentMediaType", "contentEncoding", "contentSchema", "$anchor",
		"$vocabulary", "discriminator", "externalDocs", "xml", "strict"};
	return is_among(keyword, list, ARRAY_LEN(list)) || !strncmp(keyword, "x-", 2);
}

static const char *const supported[] = {"type", "enum", "const", "properties", "required",
	"additionalProperties", "patternProperties", "propertyNames", "items", "prefixItems",
	"additionalItems", "minItems", "maxItems", "uniqueItems", "minLength", "maxLength", "pattern",
	"format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "anyOf",
	"oneOf", "allOf", "$ref", "minProperties", "nullable"};

const char *schema_unknown_keyword(const json_t *s)
{
	const char *key;
	json_t *v;
	json_object_foreach((json_t *)s, key, v)
	{
		if (!schema_is_annotation(key) && !is_among(key, supported, ARRAY_LEN(supported)))
			return key;
	}
	return NULL;
}

bool schema_constrains(const json_t *s, const char *but)
{
	const char *key;
	json_t *v;
	json_object_foreach((json_t *)s, key, v)
	{
		if (!schema_is_annotation(key) && !(but && !strcmp(key, but)))
			return true;
	}
	return false;
}

/* ---- types ---- */

static unsigned type_named(const json_t *name)
{
	static const char *const names[] = {
		"string", "integer", "number", "boolean", "null", "array", "object"};
	for (size_t i = 0; json_is_string(name) && i < ARRAY_LEN(names); i++)
		if (!strcmp(json_string_value(name), names[i]))
			return 1u << i == SCHEMA_NUMBER ? SCHEMA_NUMBER | SCHEMA_INTEGER : 1u << i;
	return 0;
}

unsigned schema_type_of_value(const json_t *value)
{
	return json_is_string(value)    ? SCHEMA_STRING
		   : json_is_integer(value) ? SCHEMA_INTEGER
		   : json_is_real(value)    ? (json_real_value(value) == floor(json_real_value(value))
											  ? SCHEMA_NUMBER | SCHEMA_INTEGER
											  : SCHEMA_NUMBER)
		   : json_is_boolean(value) ? SCHEMA_BOOLEAN
		   : json_is_null(value)    ? SCHEMA_NULL
		   : json_is_array(value)   ? SCHEMA_ARRAY
									: SCHEMA_OBJECT;
}

static_assert(LDBL_MANT_DIG >= 64, "a long double holds every json_int_t and every double");

long double schema_exact_number(const json_t *v)
{
	return json_is_integer(v) ? (long double)json_integer_value(v) : json_real_value(v);
}

bool schema_same_value(const json_t *a, const json_t *b)
{
	const char *key;
	size_t i;
	json_t *v;
	if (json_is_number(a) && json_is_number(b))
		return schema_exact_number(a) == schema_exact_number(b);
	if (json_typeof(a) != json_typeof(b) || json_array_size(a) != json_array_size(b) ||
		json_object_size(a) != json_object_size(b))
		return false;
	if (!json_is_array(a) && !json_is_object(a))
		return json_equal(a, b);
	json_array_foreach(a, i, v)
	{
		if (!schema_same_value(v, json_array_get(b, i)))
			return false;
	}
	json_object_foreach((json_t *)a, key, v)
	{
		const json_t *other = json_object_get(b, key);
		if (!other || !schema_same_value(v, other))
			return false;
	}
	return true;
}

const struct schema_number_format *schema_number_format(const json_t *format)
{
	static const struct schema_number_format list[] = {
		{"int8", true, INT8_MIN, INT8_MAX},
		{"int16", true, INT16_MIN, INT16_MAX},
		{"int32", true, INT32_MIN, INT32_MAX},
		{"int64", true, -INFINITY, INFINITY}, /* numbers have at most 18 digits */
		{"int", true, -INFINITY, INFINITY},
		{"uint8", true, 0, UINT8_MAX},
		{"uint16", true, 0, UINT16_MAX},
		{"uint32", true, 0, UINT32_MAX},
		{"uint64", true, 0, INFINITY},
		{"uint", true, 0, INFINITY},
		{"float", false, -INFINITY, INFINITY},
		{"double", false, -INFINITY, INFINITY},
	};
	for (size_t i = 0; json_is_string(format) && i < ARRAY_LEN(list); i++)
		if (!strcmp(json_string_value(format), list[i].name))
			return &list[i];
	return NULL;
}

unsigned schema_types(const json_t *s)
{
	static const struct {
		const char *keyword;
		unsigned type;
	} implied[] = {{"properties", SCHEMA_OBJECT}, {"required", SCHEMA_OBJECT},
		{"minProperties", SCHEMA_OBJECT}, {"additionalProperties", SCHEMA_OBJECT},
		{"patternProperties", SCHEMA_OBJECT}, {"propertyNames", SCHEMA_OBJECT},
		{"items", SCHEMA_ARRAY}, {"prefixItems", SCHEMA_ARRAY}, {"minItems", SCHEMA_ARRAY},
		{"maxItems", SCHEMA_ARRAY}, {"uniqueItems", SCHEMA_ARRAY}, {"minLength", SCHEMA_STRING},
		{"maxLength", SCHEMA_STRING}, {"pattern", SCHEMA_STRING},
		{"minimum", SCHEMA_NUMBER | SCHEMA_INTEGER}, {"maximum", SCHEMA_NUMBER | SCHEMA_INTEGER},
		{"exclusiveMinimum", SCHEMA_NUMBER | SCHEMA_INTEGER},
		{"exclusiveMaximum", SCHEMA_NUMBER | SCHEMA_INTEGER},
		{"multipleOf", SCHEMA_NUMBER | SCHEMA_INTEGER}};
	const json_t *type = json_object_get(s, "type"), *format = json_object_get(s, "format");
	unsigned mask = type_named(type);
	size_t i;
	json_t *v;
	json_array_foreach(type, i, v)
	{
		if (!type_named(v))
			return 0;
		mask |= type_named(v);
	}
	if (type) /* OpenAPI's "nullable" means something beside "type" only */
		return mask && json_is_true(json_object_get(s, "nullable")) ? mask | SCHEMA_NULL : mask;
	if (json_object_get(s, "enum") || json_object_get(s, "const")) /* the values have their types */
		return SCHEMA_ANY;
	for (i = 0; i < ARRAY_LEN(implied); i++)
		if (json_object_get(s, implied[i].keyword))
			mask |= implied[i].type;
	if (format)
		mask |= schema_number_format(format) ? SCHEMA_NUMBER | SCHEMA_INTEGER : SCHEMA_STRING;
	return mask ? mask : SCHEMA_ANY;
}

/* ---- references ---- */

/* "~1" and "~0" of a JSON pointer, "%25" and the like of a URL. */
static void unescape(char *s)
{
	char *to = s;
	for (; *s; s++) {
		if (*s == '%' && s[1] && s[2]) {
			char hex[3] = {s[1], s[2], 0};
			*to++ = (char)strtoul(hex, NULL, 16);
			s += 2;
		} else if (*s == '~' && (s[1] == '0' || s[1] == '1')) {
			*to++ = *++s == '0' ? '~' : '/';
		} else {
			*to++ = *s;
		}
	}
	*to = 0;
}

const json_t *schema_find(const json_t *root, const char *reference, struct err *e)
{
	char part[256];
	const json_t *at = root;
	const char *p = reference + 1;
	if (*reference != '#' || (*p && *p != '/')) {
		err_set(e, ERR_INPUT,
			"$ref \"%.100s\": only references of the form #/... into the same schema are supported",
			reference);
		return NULL;
	}
	while (at && *p == '/') {
		size_t n = strcspn(++p, "/");
		if (n >= sizeof part)
			break;
		memcpy(part, p, n);
		part[n] = 0;
		unescape(part);
		at = json_is_array(at) ? json_array_get(at, strtoul(part, NULL, 10))
							   : json_object_get(at, part);
		p += n;
	}
	if (at && !*p)
		return at;
	err_set(e, ERR_INPUT, "$ref \"%.100s\": there is nothing at this place", reference);
	return NULL;
}

const json_t *schema_resolve(const json_t *root, const json_t *s, struct err *e)
{
	for (int i = 0; i < FOLLOW_MAX; i++) {
		const json_t *ref = json_object_get(s, "$ref");
		if (!ref || schema_constrains(s, "$ref"))
			return s;
		if (!json_is_string(ref)) {
			err_set(e, ERR_INPUT, "$ref: expected a string, found %s", json_text_type(ref));
			return NULL;
		}
		if (!(s = schema_find(root, json_string_value(ref), e)))
			return NULL;
	}
	err_set(e, ERR_INPUT, "$ref: more than %d references in a row", FOLLOW_MAX);
	return NULL;
}

/* The search for types. */
struct type_search {
	const json_t *root;
	int work;   /* schemas and values that it may still look at: alternatives refer to others */
	bool typed; /* a schema that accepted_types met has type, enum or const */
	bool cut;   /* it ended early: the result is an upper bound */
};

/* Counts one more schema. False: the search goes no further, which any type answers. */
static bool search_goes_on(struct type_search *t, int depth)
{
	bool ends = depth > FOLLOW_MAX || --t->work < 0;
	t->cut = t->cut || ends;
	return !ends;
}

static const char *const unions[] = {"anyOf", "oneOf"};

/* Whether s has a part that its grammar merges with it. */
static bool is_combined(const json_t *s)
{
	return json_object_get(s, "$ref") || json_object_get(s, "allOf") ||
		   (json_object_get(s, "anyOf") && schema_constrains(s, "anyOf")) ||
		   (json_object_get(s, "oneOf") && schema_constrains(s, "oneOf"));
}

/* The types that s accepts by the standard: a schema without "type" any of them. */
static unsigned accepted_types(struct type_search *t, const json_t *s, int depth)
{
	struct err e;
	size_t i;
	json_t *v;
	if (!search_goes_on(t, depth) || !(s = schema_resolve(t->root, s, &e)) || !json_is_object(s))
		return json_is_false(s) ? 0 : SCHEMA_ANY;
	const json_t *ref = json_object_get(s, "$ref"), *constant = json_object_get(s, "const"),
				 *values = json_object_get(s, "enum"), *type = json_object_get(s, "type");
	unsigned mask = type ? schema_types(s) : SCHEMA_ANY;
	t->typed = t->typed || type || constant || values;
	if (json_is_string(ref) && (ref = schema_find(t->root, json_string_value(ref), &e)))
		mask &= accepted_types(t, ref, depth + 1);
	if (constant)
		mask &= schema_type_of_value(constant);
	if (values) {
		unsigned any = 0;
		json_array_foreach(values, i, v)
		{
			any |= schema_type_of_value(v);
			t->work--;
		}
		mask &= any;
	}
	for (size_t k = 0; k < ARRAY_LEN(unions); k++) {
		const json_t *list = json_object_get(s, unions[k]);
		unsigned any = 0;
		json_array_foreach(list, i, v)
		{
			any |= accepted_types(t, v, depth + 1);
		}
		if (list)
			mask &= any;
	}
	const json_t *all = json_object_get(s, "allOf");
	json_array_foreach(all, i, v)
	{
		mask &= accepted_types(t, v, depth + 1);
	}
	return mask;
}

/* Upper bound of the types of two merged schemas of which either may lack an implied type
 * (SCHEMA_ANY). */
static unsigned types_either(unsigned a, unsigned b)
{
	return a == SCHEMA_ANY ? b : b == SCHEMA_ANY ? a : a | b;
}

/* The types that keywords of s or of one of its parts imply, where none of them has "type". */
static unsigned implied_types(struct type_search *t, const json_t *s, int depth)
{
	struct err e;
	size_t i;
	json_t *v;
	if (!search_goes_on(t, depth) || !(s = schema_resolve(t->root, s, &e)) || !json_is_object(s))
		return SCHEMA_ANY;
	unsigned mask = schema_types(s);
	const json_t *ref = json_object_get(s, "$ref"), *all = json_object_get(s, "allOf");
	if (json_is_string(ref) && (ref = schema_find(t->root, json_string_value(ref), &e)))
		mask = types_either(mask, implied_types(t, ref, depth + 1));
	json_array_foreach(all, i, v)
	{
		mask = types_either(mask, implied_types(t, v, depth + 1));
	}
	for (size_t k = 0; k < ARRAY_LEN(unions); k++) {
		const json_t *list = json_object_get(s, unions[k]);
		unsigned any = 0;
		json_array_foreach(list, i, v)
		{
			any |= types_either(mask, implied_types(t, v, depth + 1));
		}
		if (json_array_size(list))
			mask = any;
	}
	return mask;
}

/* The types of the grammar of s. Parts that are merged have the types that "type" says in any of
 * them; only without one those that a keyword implies. */
static unsigned compiled_types(struct type_search *t, const json_t *s, int depth)
{
	struct err e;
	size_t i;
	json_t *v;
	if (!search_goes_on(t, depth) || !(s = schema_resolve(t->root, s, &e)) || !json_is_object(s))
		return json_is_false(s) ? 0 : SCHEMA_ANY;
	for (size_t k = 0; k < ARRAY_LEN(unions) && !is_combined(s); k++) {
		const json_t *list = json_object_get(s, unions[k]);
		unsigned any = 0;
		json_array_foreach(list, i, v)
		{
			any |= compiled_types(t, v, depth + 1);
		}
		if (list)
			return any;
	}
	t->typed = false;
	unsigned mask = accepted_types(t, s, depth);
	if (!is_combined(s))
		mask &= schema_types(s);
	else if (!t->typed)
		mask &= implied_types(t, s, depth);
	return mask;
}

unsigned schema_possible_types(const json_t *root, const json_t *s)
{
	return compiled_types(&(struct type_search){.root = root, .work = TYPES_WORK}, s, 0);
}

bool schema_may_be_string(const json_t *root, const json_t *s)
{
	struct type_search search = {.root = root, .work = TYPES_WORK};
	unsigned mask = compiled_types(&search, s, 0);
	return (mask & SCHEMA_STRING) && (mask != SCHEMA_ANY || !search.cut);
}

static unsigned property_types(struct type_search *t, const json_t *s, const char *key, int depth)
{
	struct err e;
	size_t i;
	json_t *v;
	const char *pattern;
	if (!search_goes_on(t, depth) || !(s = schema_resolve(t->root, s, &e)))
		return SCHEMA_ANY;
	const json_t *own = json_object_get(json_object_get(s, "properties"), key),
				 *more = json_object_get(s, "additionalProperties"),
				 *ref = json_object_get(s, "$ref"), *all = json_object_get(s, "allOf");
	unsigned mask = SCHEMA_ANY;
	if (own || more)
		mask = compiled_types(t, own ? own : more, depth + 1);
	json_object_foreach(json_object_get(s, "patternProperties"), pattern, v)
	{
		mask |= own ? 0 : compiled_types(t, v, depth + 1);
	}
	if (json_is_string(ref) && (ref = schema_find(t->root, json_string_value(ref), &e)))
		mask &= property_types(t, ref, key, depth + 1);
	json_array_foreach(all, i, v)
	{
		mask &= property_types(t, v, key, depth + 1);
	}
	for (size_t k = 0; k < ARRAY_LEN(unions); k++) {
		const json_t *list = json_object_get(s, unions[k]);
		unsigned any = 0;
		json_array_foreach(list, i, v)
		{
			any |= property_types(t, v, key, depth + 1);
		}
		if (list)
			mask &= any;
	}
	return mask;
}

unsigned schema_property_types(const json_t *root, const json_t *s, const char *key)
{
	return property_types(&(struct type_search){.root = root, .work = TYPES_WORK}, s, key, 0);
}

/* The types of values that the grammar of one of both has and the other accepts. What is merged has
 * the types that its parts' keywords imply, so it does not say what a part accepts. */
static unsigned types_common_to(
	const json_t *root, const struct schema_alternative *a, const struct schema_alternative *b)
{
	struct type_search search = {.root = root, .work = TYPES_WORK};
	unsigned of_a = accepted_types(&search, a->schema, 0),
			 of_b = accepted_types(&search, b->schema, 0);
	return (schema_possible_types(root, a->compiled) & of_b) |
		   (of_a & schema_possible_types(root, b->compiled));
}

/* ---- merging ---- */

static json_t *merge_schemas(const json_t *root, const json_t *a, const json_t *b, int depth,
	struct schema_budget *left, struct err *e);

static bool is_in(const json_t *list, const json_t *value)
{
	size_t i;
	json_t *v;
	json_array_foreach(list, i, v)
	{
		if (schema_same_value(v, value))
			return true;
	}
	return false;
}

bool schema_loses_null(const json_t *s)
{
	return json_is_true(json_object_get(s, "nullable")) && !json_object_get(s, "type") &&
		   schema_constrains(s, "nullable") && !json_is_null(json_object_get(s, "const")) &&
		   !is_in(json_object_get(s, "enum"), json_null());
}

/* Values of both lists; NULL: too many to compare. */
static json_t *list_common(const json_t *a, const json_t *b)
{
	if (json_array_size(a) * json_array_size(b) > COMPARED_MAX)
		return NULL;
	json_t *out = json_array(), *v;
	size_t i;
	json_array_foreach(a, i, v)
	{
		if (is_in(b, v))
			json_array_append(out, v);
	}
	return out;
}

/* Values of either list; NULL: too many to compare. */
static json_t *list_union(const json_t *a, const json_t *b)
{
	if ((json_array_size(a) + json_array_size(b)) * json_array_size(b) > COMPARED_MAX)
		return NULL;
	json_t *out = json_copy((json_t *)a), *v;
	size_t i;
	json_array_foreach(b, i, v)
	{
		if (!is_in(out, v))
			json_array_append(out, v);
	}
	return out;
}

/* A mask of types as a list of their names. */
static json_t *types_list(unsigned mask)
{
	static const struct {
		const char *name;
		unsigned type;
	} names[] = {{"string", SCHEMA_STRING}, {"number", SCHEMA_NUMBER}, {"integer", SCHEMA_INTEGER},
		{"boolean", SCHEMA_BOOLEAN}, {"null", SCHEMA_NULL}, {"array", SCHEMA_ARRAY},
		{"object", SCHEMA_OBJECT}};
	json_t *out = json_array();
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if ((mask & names[i].type) && !(names[i].type == SCHEMA_INTEGER && (mask & SCHEMA_NUMBER)))
			json_array_append_new(out, json_string(names[i].name));
	return out;
}

static json_t *properties_merged(const json_t *a, const json_t *b)
{
	json_t *out = json_copy((json_t *)a), *v;
	const char *key;
	json_object_foreach((json_t *)b, key, v)
	{
		json_t *mine = json_object_get(out, key);
		if (mine && !json_equal(mine, v))
			json_object_set_new(out, key, json_pack("{s:[O,O]}", "allOf", mine, v));
		else if (!mine)
			json_object_set(out, key, v);
	}
	return out;
}

/* Both of two values of one keyword; NULL: they cannot be one. */
static json_t *keyword_merged(const char *key, const json_t *a, const json_t *b)
{
	static const char *const greater[] = {"minimum", "exclusiveMinimum", "minLength", "minItems",
		"minProperties"},
							 *const less[] = {
								 "maximum", "exclusiveMaximum", "maxLength", "maxItems"};
	if (json_equal((json_t *)a, (json_t *)b))
		return json_incref((json_t *)a);
	bool numbers = json_is_number(a) && json_is_number(b),
		 a_greater = numbers && schema_exact_number(a) > schema_exact_number(b);
	if (numbers && is_among(key, greater, ARRAY_LEN(greater)))
		return json_incref((json_t *)(a_greater ? a : b));
	if (numbers && is_among(key, less, ARRAY_LEN(less)))
		return json_incref((json_t *)(a_greater ? b : a));
	if (!strcmp(key, "required") && json_is_array(a) && json_is_array(b))
		return list_union(a, b);
	if (!strcmp(key, "enum") && json_is_array(a) && json_is_array(b))
		return list_common(a, b);
	if (!strcmp(key, "properties") && json_is_object(a) && json_is_object(b))
		return properties_merged(a, b);
	if (!strcmp(key, "items") && (json_is_object(a) || json_is_boolean(a)))
		return json_pack("{s:[O,O]}", "allOf", a, b);
	return NULL;
}

/* additionalProperties of a holds for all keys but those that a names, so b may not name others;
 * items of a likewise, for all items but those of a's prefixItems. */
static bool closes_over(const json_t *a, const json_t *b)
{
	const char *key;
	json_t *v;
	const json_t *rule = json_object_get(a, "additionalProperties"),
				 *prefix = json_object_get(b, "prefixItems"),
				 *patterns = json_object_get(b, "patternProperties");
	if (json_object_get(a, "items") && prefix &&
		!json_equal((json_t *)prefix, json_object_get(a, "prefixItems")))
		return false;
	if (!rule || json_is_true(rule))
		return true;
	if (patterns && !json_equal((json_t *)patterns, json_object_get(a, "patternProperties")))
		return false;
	json_object_foreach((json_t *)json_object_get(b, "properties"), key, v)
	{
		if (!json_object_get(json_object_get(a, "properties"), key))
			return false;
	}
	return true;
}

/* Takes the members of a copy from what merges may cost. False after err_set. */
static bool merge_pay(const json_t *copy, struct schema_budget *left, struct err *e)
{
	size_t n = 1 + json_object_size(copy) + json_object_size(json_object_get(copy, "properties")) +
			   json_array_size(json_object_get(copy, "required")) +
			   json_array_size(json_object_get(copy, "enum"));
	if (schema_too_long(left)) {
		err_set(e, ERR_INPUT, SCHEMA_TOO_LONG);
		return false;
	}
	if (n <= (size_t)left->merges) {
		left->merges -= (int)n;
		return true;
	}
	err_set(e, ERR_INPUT, "the schema has too many parts that have to be merged");
	return false;
}

/* A copy of s with its reference and its allOf made part of it; the caller owns it. NULL after
 * err_set. */
static json_t *flattened(
	const json_t *root, const json_t *s, int depth, struct schema_budget *left, struct err *e)
{
	if (!(s = schema_resolve(root, s, e)))
		return NULL;
	if (depth > FOLLOW_MAX) {
		err_set(e, ERR_INPUT, "allOf: nested more than %d deep", FOLLOW_MAX);
		return NULL;
	}
	const json_t *ref = json_object_get(s, "$ref"), *all = json_object_get(s, "allOf");
	if (all && (!json_is_array(all) || !json_array_size(all))) {
		err_set(e, ERR_INPUT, "allOf: expected an array of at least one schema, found %s",
			json_is_array(all) ? "an empty one" : json_text_type(all));
		return NULL;
	}
	if (schema_loses_null(s)) {
		err_set(e, ERR_INPUT, SCHEMA_LOSES_NULL);
		return NULL;
	}
	if (!merge_pay(s, left, e))
		return NULL;
	json_t *out = json_copy((json_t *)s);
	if (json_is_true(json_object_get(out, "nullable")) && json_object_get(out, "type"))
		json_object_set_new(out, "type", types_list(schema_types(out)));
	json_object_del(out, "nullable"); /* which is of this type only */
	if (ref) {
		json_object_del(out, "$ref");
		const json_t *target =
			json_is_string(ref) ? schema_find(root, json_string_value(ref), e) : NULL;
		json_t *both = target ? merge_schemas(root, target, out, depth + 1, left, e) : NULL;
		json_decref(out);
		return both; /* its allOf was part of `out` */
	}
	size_t i;
	json_t *v;
	if (out && all)
		json_object_del(out, "allOf");
	json_array_foreach(all, i, v)
	{
		json_t *both = out ? merge_schemas(root, out, v, depth + 1, left, e) : NULL;
		json_decref(out);
		out = both;
	}
	return out;
}

static json_t *merge_schemas(const json_t *root, const json_t *a, const json_t *b, int depth,
	struct schema_budget *left, struct err *e)
{
	json_t *x = flattened(root, a, depth, left, e),
		   *y = x ? flattened(root, b, depth, left, e) : NULL, *out = NULL;
	const char *key;
	json_t *v;
	if (!x || !y)
		goto done;
	if (json_is_boolean(x) || json_is_boolean(y)) {
		out = json_incref(json_is_false(x) || json_is_true(y) ? x : y);
		goto done;
	}
	if (!json_is_object(x) || !json_is_object(y)) {
		err_set(e, ERR_INPUT, "expected a schema (an object, true or false), found %s",
			json_text_type(json_is_object(x) ? y : x));
		goto done;
	}
	if (!closes_over(x, y) || !closes_over(y, x)) {
		err_set(e, ERR_INPUT,
			"allOf: additionalProperties or items beside properties or prefixItems of another part "
			"cannot be merged");
		goto done;
	}
	if (!merge_pay(x, left, e) || !merge_pay(y, left, e))
		goto done;
	out = json_copy(x);
	json_object_foreach(y, key, v)
	{
		json_t *mine = json_object_get(out, key), *both;
		if (!mine) {
			json_object_set(out, key, v);
			continue;
		}
		if (schema_is_annotation(key))
			continue;
		both = !strcmp(key, "type") ? types_list(schema_types(x) & schema_types(y))
									: keyword_merged(key, mine, v);
		if (!both) {
			err_set(e, ERR_INPUT, "allOf: two values of \"%.60s\" cannot be merged", key);
			json_decref(out);
			out = NULL;
			goto done;
		}
		json_object_set_new(out, key, both);
	}
	/* without a type, keywords imply one: of the parts, not of their sum */
	if (!json_object_get(out, "type") && (schema_types(x) & schema_types(y)) != SCHEMA_ANY &&
		!json_object_get(out, "enum") && !json_object_get(out, "const"))
		json_object_set_new(out, "type", types_list(schema_types(x) & schema_types(y)));
done:
	json_decref(x);
	json_decref(y);
	return out;
}

json_t *schema_merge(
	const json_t *root, const json_t *a, const json_t *b, struct schema_budget *left, struct err *e)
{
	return merge_schemas(root, a, b, 0, left, e);
}

/* ---- alternatives ---- */

/* The values that s names one by one: a new list, or NULL. */
static json_t *listed_values(const json_t *s)
{
	const json_t *constant = json_object_get(s, "const"), *values = json_object_get(s, "enum");
	if (constant)
		return json_pack("[O]", constant);
	return json_is_array(values) ? json_incref((json_t *)values) : NULL;
}

static bool values_exclude(const json_t *root, const json_t *a, const json_t *b)
{
	struct err e;
	if (!(a = schema_resolve(root, a, &e)) || !(b = schema_resolve(root, b, &e)))
		return false;
	json_t *x = listed_values(a), *y = listed_values(b),
		   *common = x && y ? list_common(x, y) : NULL;
	bool apart = common && !json_array_size(common);
	json_decref(x);
	json_decref(y);
	json_decref(common);
	return apart;
}

bool schema_exclude_each_other(const json_t *root, const struct schema_alternative *one,
	const struct schema_alternative *other, const struct schema_budget *left)
{
	struct err e;
	const json_t *a = one->compiled, *b = other->compiled;
	unsigned common = types_common_to(root, one, other);
	if (!common || values_exclude(root, a, b))
		return true;
	if (!(a = schema_resolve(root, a, &e)) || !(b = schema_resolve(root, b, &e)) ||
		common != SCHEMA_OBJECT)
		return false;
	size_t i;
	json_t *v;
	json_array_foreach(json_object_get(a, "required"), i, v)
	{
		const char *key = json_string_value(v);
		if (schema_too_long(left))
			return false;
		if (!key || !is_in(json_object_get(b, "required"), v))
			continue;
		const json_t *x = json_object_get(json_object_get(a, "properties"), key),
					 *y = json_object_get(json_object_get(b, "properties"), key);
		const struct schema_alternative of_a = {x, x}, of_b = {y, y};
		if (x && y && (values_exclude(root, x, y) || !types_common_to(root, &of_a, &of_b)))
			return true;
	}
	return false;
}
