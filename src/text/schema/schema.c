/* SPDX-License-Identifier: MIT */
/*
 * Every schema becomes one rule, found again by its address, so that a reference to a schema that
 * is being compiled is a call of its rule. Schemas wait in a list (struct schema_part), so that the
 * compiler does not recurse, however they nest.
 *
 * The compile_* functions write what the keywords of one type allow between two states of the
 * schema's rule. A schema of several types has one such part for each.
 */
#include "src/text/schema/schema.h"

#include "src/base/host/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/text/json_text.h"
#include "src/text/schema/number_range.h"
#include "src/text/schema/pattern.h"
#include "src/text/schema/schema_compiler.h"
#include "src/text/schema/schema_keywords.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCHEMAS_MAX 20000  /* parts of one schema */
#define LENGTH_MAX  100000 /* of minLength, maxLength */
#define ITEMS_MAX   10000
#define LISTED_MAX  5000 /* values of an enum */
#define ONE_OF_MAX  64
#define NO_MEMORY   "there is no memory for the schema"

struct schema {
	struct grammar grammar;
};

void schema_refuse(struct schema_compiler *c, const struct schema_part *w, const char *fmt, ...)
{
	char text[ERR_TEXT_MAX];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	if (!c->failed)
		err_set(c->e, ERR_INPUT, "%s%s%s", w->path, *w->path ? ": " : "", text);
	c->failed = true;
}

void schema_refuse_part(struct schema_compiler *c, const struct schema_part *w)
{
	if (!c->failed && *w->path)
		err_prefix(c->e, "%s", w->path);
	c->failed = true;
}

/* ---- rules of schemas ---- */

static size_t schema_slot(const struct schema_compiler *c, const json_t *s, bool raw)
{
	size_t at = (((uintptr_t)s >> 4) * 2 + raw) * 0x9e3779b97f4a7c15u % c->slots;
	while (c->table[at]) {
		const struct schema_part *w = &c->list[c->table[at] - 1];
		if (w->schema == s && w->raw == raw)
			break;
		at = (at + 1) % c->slots;
	}
	return at;
}

uint32_t schema_rule(struct schema_compiler *c, const struct schema_part *w, const char *part,
	const json_t *s, bool raw)
{
	if (!(s = schema_resolve(c->root, s, c->e))) {
		schema_refuse_part(c, w);
		return 0;
	}
	if (2 * c->n_list >= c->slots) {
		size_t slots = c->slots ? 2 * c->slots : 256;
		uint32_t *table = NEW_ARRAY(uint32_t, slots);
		if (!table) {
			schema_refuse(c, w, NO_MEMORY);
			return 0;
		}
		free(c->table);
		c->table = table;
		c->slots = slots;
		for (size_t i = 0; i < c->n_list; i++)
			c->table[schema_slot(c, c->list[i].schema, c->list[i].raw)] = (uint32_t)i + 1;
	}
	size_t at = schema_slot(c, s, raw);
	if (c->table[at])
		return c->list[c->table[at] - 1].rule;
	if (c->n_list == SCHEMAS_MAX) {
		schema_refuse(c, w, "the schema has more than %d parts", SCHEMAS_MAX);
		return 0;
	}
	char *path = strlen(w->path) > 200 ? mem_strdup(w->path)
									   : mem_printf("%s%s%s", w->path, *w->path ? "." : "", part);
	if (!path || ((c->n_list & (c->n_list - 1)) == 0 &&
					 !mem_grow_array(&c->list, 2 * c->n_list + 2, sizeof *c->list))) {
		free(path);
		schema_refuse(c, w, NO_MEMORY);
		return 0;
	}
	c->list[c->n_list] = (struct schema_part){s, path, grammar_rule(c->g), raw};
	c->table[at] = (uint32_t)++c->n_list;
	return c->list[c->n_list - 1].rule;
}

uint32_t schema_space(struct schema_compiler *c, uint32_t from)
{
	uint32_t to = grammar_state(c->g);
	build_space(&c->build, from, to);
	return to;
}

bool schema_count(struct schema_compiler *c, const struct schema_part *w, const char *key,
	size_t most, size_t *out)
{
	const json_t *v = json_object_get(w->schema, key);
	double x = json_number_value(v);
	if (!v)
		return true;
	if (!json_is_number(v) || x < 0 || x != floor(x))
		schema_refuse(c, w, "%s: expected a whole number, found %s", key, json_text_type(v));
	else if (x > (double)most)
		schema_refuse(c, w, "%s: at most %zu are supported", key, most);
	else
		*out = (size_t)x;
	return !c->failed;
}

/* ---- strings ---- */

bool schema_string_texts(struct schema_compiler *c, const struct schema_part *w, struct char_nfa *n)
{
	const json_t *s = w->schema, *pattern = json_object_get(s, "pattern"),
				 *format = json_object_get(s, "format");
	size_t min = 0, max = SIZE_MAX;
	struct char_nfa part;
	bool any = true;
	char_nfa_init(n);
	if (!schema_count(c, w, "minLength", LENGTH_MAX, &min) ||
		!schema_count(c, w, "maxLength", LENGTH_MAX, &max))
		return false;
	if (max < min) /* *n has no text */
		return true;
	if (min || max != SIZE_MAX) {
		char_nfa_length(n, min, max);
		any = false;
	}
	if ((pattern && !json_is_string(pattern)) || (format && !json_is_string(format))) {
		schema_refuse(c, w, "pattern and format: expected strings");
		return false;
	}
	for (int i = 0; i < 2; i++) {
		const json_t *v = i ? format : pattern;
		if (!v)
			continue;
		if (i ? pattern_format(json_string_value(v), &part, c->e)
			  : pattern_compile(json_string_value(v), json_string_length(v), &part, c->e)) {
			char_nfa_free(&part);
			schema_refuse_part(c, w);
			return false;
		}
		if (any) {
			char_nfa_free(n);
			*n = part;
		} else {
			char_nfa_intersect(n, &part);
		}
		any = false;
	}
	if (n->too_large) {
		schema_refuse(c, w, "pattern, format and length together need too many states");
		return false;
	}
	return !any;
}

static void compile_string(
	struct schema_compiler *c, const struct schema_part *w, uint32_t from, uint32_t to)
{
	struct grammar *g = c->g;
	struct char_nfa n;
	bool bound = schema_string_texts(c, w, &n);
	if (!w->raw) {
		from = grammar_text(g, from, "\"", 1);
		uint32_t end = grammar_state(g);
		grammar_bytes(g, end, to, '"', '"');
		to = end;
	}
	if (c->failed) {
		/* refused */
	} else if (bound) {
		build_chars(&c->build, &n, w->raw, from, to);
	} else {
		uint32_t loop = grammar_state(g);
		grammar_empty(g, from, loop);
		grammar_call(g, loop, loop, build_common(&c->build, w->raw ? RULE_RAW_CHAR : RULE_CHAR));
		grammar_empty(g, loop, to);
	}
	char_nfa_free(&n);
}

/* ---- numbers ---- */

/* A bound as a double. Integers above 2^53 are rounded towards the inside of the range. */
static double bound_value(const json_t *v, bool max)
{
	double x = json_number_value(v);
	if (!json_is_integer(v) || fabs(x) >= 9e18)
		return x;
	json_int_t exact = json_integer_value(v), rounded = (json_int_t)x;
	if (max ? rounded > exact : rounded < exact)
		return nextafter(x, max ? -INFINITY : INFINITY);
	return x;
}

/* "exclusiveMinimum" is a number, or (draft 4) true beside "minimum". */
static void bound_of(
	struct schema_compiler *c, const struct schema_part *w, bool max, struct number_range *r)
{
	const json_t *v = json_object_get(w->schema, max ? "maximum" : "minimum"),
				 *x = json_object_get(w->schema, max ? "exclusiveMaximum" : "exclusiveMinimum");
	bool has = false, open = false;
	double bound = 0;
	if ((v && !json_is_number(v)) || (x && !json_is_number(x) && !json_is_boolean(x))) {
		schema_refuse(c, w, "%s: expected a number", max ? "maximum" : "minimum");
		return;
	}
	if (v) {
		bound = bound_value(v, max);
		open = json_is_true(x);
		has = true;
	}
	double y = bound_value(x, max);
	if (json_is_number(x) && (!has || (max ? y <= bound : y >= bound))) {
		bound = y;
		open = has = true;
	}
	if (has && (max ? -bound : bound) >= NUMBER_TOO_LARGE)
		schema_refuse(c, w, "%s: only numbers of at most 18 digits before the point are supported",
			max ? "maximum" : "minimum");
	*(max ? &r->has_max : &r->has_min) = has;
	*(max ? &r->exclusive_max : &r->exclusive_min) = open;
	*(max ? &r->max : &r->min) = bound;
}

/* False: "multipleOf" is not among the numbers that number_range.h takes. */
static bool multiple_of(const json_t *v, struct number_range *r)
{
	double m = json_number_value(v);
	char text[64];
	if (!json_is_number(v) || m <= 0 || m > NUMBER_MULTIPLE_MAX)
		return false;
	for (uint32_t places = 0; places <= NUMBER_PLACES_MAX; places++) {
		snprintf(text, sizeof text, "%.*f", (int)places, m);
		if (strtod(text, NULL) != m)
			continue;
		double scaled = round(m * pow(10, places));
		r->multiple_of = (uint32_t)scaled;
		r->multiple_places = places;
		return scaled <= NUMBER_MULTIPLE_MAX;
	}
	return false;
}

/* The numbers that the keywords of w's schema allow; c->failed: refused. */
static struct number_range range_of(struct schema_compiler *c, const struct schema_part *w)
{
	const json_t *multiple = json_object_get(w->schema, "multipleOf");
	struct number_range r = {0};
	bound_of(c, w, false, &r);
	bound_of(c, w, true, &r);
	if (multiple && !multiple_of(multiple, &r))
		schema_refuse(c, w,
			"multipleOf: only 1 to %d, also divided by a power of ten up to 1e%d, are supported",
			NUMBER_MULTIPLE_MAX, NUMBER_PLACES_MAX);
	return r;
}

static void compile_number(
	struct schema_compiler *c, const struct schema_part *w, bool whole, uint32_t from, uint32_t to)
{
	const struct schema_number_format *format =
		schema_number_format(json_object_get(w->schema, "format"));
	struct number_range r = range_of(c, w);
	if (c->failed)
		return;
	r.whole = whole || (format && format->whole);
	if (format && format->min > (r.has_min ? r.min : -INFINITY)) {
		r.min = format->min;
		r.has_min = true;
		r.exclusive_min = false;
	}
	if (format && format->max < (r.has_max ? r.max : INFINITY)) {
		r.max = format->max;
		r.has_max = true;
		r.exclusive_max = false;
	}
	if (!r.has_min && !r.has_max && !r.multiple_of) {
		grammar_call(c->g, from, to, build_common(&c->build, r.whole ? RULE_INTEGER : RULE_NUMBER));
		return;
	}
	struct char_nfa n;
	number_range_nfa(&r, &n);
	build_chars(&c->build, &n, true, from, to);
	char_nfa_free(&n);
}

/* ---- arrays ---- */

static void compile_array(
	struct schema_compiler *c, const struct schema_part *w, uint32_t from, uint32_t to)
{
	struct grammar *g = c->g;
	const json_t *prefix = json_object_get(w->schema, "prefixItems"),
				 *items = json_object_get(w->schema, "items");
	size_t min = 0, max = SIZE_MAX, n_prefix;
	if (!schema_count(c, w, "minItems", ITEMS_MAX, &min) ||
		!schema_count(c, w, "maxItems", SIZE_MAX >> 12, &max))
		return;
	if (json_is_array(items)) { /* draft 7's spelling of prefixItems */
		prefix = items;
		items = json_object_get(w->schema, "additionalItems");
	}
	if (prefix && !json_is_array(prefix)) {
		schema_refuse(c, w, "prefixItems: expected an array, found %s", json_text_type(prefix));
		return;
	}
	if (json_is_true(json_object_get(w->schema, "uniqueItems")) && max > 1) {
		schema_refuse(c, w, "the keyword \"uniqueItems\" is not supported");
		return;
	}
	n_prefix = json_array_size(prefix);
	if (json_is_false(items))
		max = MIN(max, n_prefix);
	if (max < min)
		return;
	/* the first `chain` items get states of their own, later ones share a loop */
	size_t chain = max != SIZE_MAX && max <= ITEMS_MAX ? max : MAX(min, n_prefix);
	if (max != SIZE_MAX && max > ITEMS_MAX) {
		schema_refuse(c, w, "maxItems: at most %d are supported", ITEMS_MAX);
		return;
	}
	uint32_t rest =
		items ? schema_rule(c, w, "items", items, false) : build_common(&c->build, RULE_VALUE);
	uint32_t open = grammar_text(g, from, "[", 1), entry = schema_space(c, open),
			 close = grammar_state(g), behind = 0;
	grammar_bytes(g, close, to, ']', ']');
	if (!min)
		build_space(&c->build, open, close);
	for (size_t i = 0; i < chain && !c->failed && !g->too_large; i++) {
		char part[48];
		snprintf(part, sizeof part, "prefixItems.%zu", i);
		uint32_t rule =
			i < n_prefix ? schema_rule(c, w, part, json_array_get(prefix, i), false) : rest;
		behind = grammar_state(g);
		grammar_call(g, entry, behind, rule);
		if (i + 1 >= min)
			build_space(&c->build, behind, close);
		if (i + 1 < max)
			entry = schema_space(c, grammar_text(g, behind, ",", 1));
	}
	if (max == SIZE_MAX) {
		behind = grammar_state(g);
		grammar_call(g, entry, behind, rest);
		build_space(&c->build, behind, close);
		build_space(&c->build, grammar_text(g, behind, ",", 1), entry);
	}
}

/* ---- any schema ---- */

/* Whether a number is inside the bounds of s, without rounding. */
static bool is_within(const json_t *s, const json_t *v)
{
	const json_t *min = json_object_get(s, "minimum"), *max = json_object_get(s, "maximum"),
				 *above = json_object_get(s, "exclusiveMinimum"),
				 *below = json_object_get(s, "exclusiveMaximum");
	long double x = schema_exact_number(v), low = schema_exact_number(min),
				high = schema_exact_number(max);
	return !(min && (json_is_true(above) ? x <= low : x < low)) &&
		   !(max && (json_is_true(below) ? x >= high : x > high)) &&
		   !(json_is_number(above) && x <= schema_exact_number(above)) &&
		   !(json_is_number(below) && x >= schema_exact_number(below));
}

/* Whether a number is a multiple of r->multiple_of. */
static bool is_multiple(const struct number_range *r, const json_t *v)
{
	double x = json_number_value(v), scale = pow(10, r->multiple_places);
	char text[64];
	if (!r->multiple_of)
		return true;
	if (json_is_integer(v))
		return json_integer_value(v) % r->multiple_of * ((json_int_t)scale % r->multiple_of) %
				   r->multiple_of ==
			   0;
	if (fabs(x) >= 1e15 / scale) /* more digits than a double has */
		return false;
	snprintf(text, sizeof text, "%.*f", (int)r->multiple_places, x);
	return strtod(text, NULL) == x && llround(x * scale) % r->multiple_of == 0;
}

/* Refuses keywords beside enum and const that are not looked at. format is allowed and ignored. */
static void check_beside_listed(struct schema_compiler *c, const struct schema_part *w)
{
	static const char *const beside[] = {"type", "enum", "const", "format", "nullable", "minLength",
		"maxLength", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
		"multipleOf"};
	const char *key;
	json_t *v;
	json_object_foreach((json_t *)w->schema, key, v)
	{
		bool fine = schema_is_annotation(key);
		for (size_t i = 0; i < ARRAY_LEN(beside); i++)
			fine = fine || !strcmp(key, beside[i]);
		if (!fine)
			schema_refuse(c, w, "\"%.60s\" beside enum or const is not supported", key);
	}
}

/* enum and const: their values, as far as `types` and the keywords beside them allow. */
static void compile_listed(struct schema_compiler *c, const struct schema_part *w, unsigned types,
	uint32_t from, uint32_t to)
{
	const json_t *values = json_object_get(w->schema, "enum"),
				 *constant = json_object_get(w->schema, "const");
	struct char_nfa texts;
	size_t i, k, work = 0;
	json_t *v, *other;
	check_beside_listed(c, w);
	if (values && (!json_is_array(values) || json_array_size(values) > LISTED_MAX))
		schema_refuse(c, w, "enum: expected an array of at most %d values", LISTED_MAX);
	if (c->failed)
		return;
	json_t *one = constant ? json_pack("[O]", constant) : json_incref((json_t *)values),
		   *no_format = json_copy((json_t *)w->schema);
	json_object_del(no_format, "format");
	struct number_range range = range_of(c, w);
	bool bound =
		schema_string_texts(c, &(struct schema_part){no_format, w->path, w->rule, w->raw}, &texts);
	json_array_foreach(one, i, v)
	{
		bool listed = !values || !constant; /* const beside enum: only if enum has it */
		json_array_foreach(constant ? values : NULL, k, other)
		{
			listed = listed || schema_same_value(other, v);
		}
		if (bound && json_is_string(v))
			work += (texts.n_states + texts.n_edges) * (1 + json_string_length(v));
		if (work > LISTED_WORK)
			schema_refuse(c, w, "a pattern or length beside so many values is not supported");
		if (c->failed)
			break;
		if (json_is_string(v) && bound)
			listed =
				listed && char_nfa_matches(&texts, json_string_value(v), json_string_length(v));
		if (json_is_number(v))
			listed = listed && is_within(w->schema, v) && is_multiple(&range, v);
		if (listed && (schema_type_of_value(v) & types))
			build_value(&c->build, v, w->raw, from, to);
	}
	char_nfa_free(&texts);
	json_decref(no_format);
	json_decref(one);
}

/* A copy of s in which OpenAPI's discriminator is required: it decides which alternative of oneOf
 * is meant. The caller owns it. */
static json_t *with_discriminator(
	struct schema_compiler *c, const json_t *s, const json_t *discriminator)
{
	const json_t *name = json_object_get(discriminator, "propertyName");
	struct err e;
	const json_t *target = schema_resolve(c->root, s, &e);
	if (!json_is_string(name) || !json_is_object(target))
		return json_incref((json_t *)s);
	json_t *out = json_copy((json_t *)target), *required = json_array(), *v;
	size_t i;
	json_array_foreach(json_object_get(target, "required"), i, v)
	{
		json_array_append(required, v);
	}
	json_array_append(required, (json_t *)name);
	json_object_set_new(out, "required", required);
	return out;
}

/* v, which lives as long as the compiler; NULL, and refused, when memory is exhausted. */
static json_t *keep_made(struct schema_compiler *c, const struct schema_part *w, json_t *v)
{
	if (!json_array_append_new(c->made, v))
		return v;
	schema_refuse(c, w, NO_MEMORY);
	return NULL;
}

/* Whether s, or the schema that it refers to, has an allOf: only merged it shows what excludes it
 * from other alternatives. */
static bool has_all_of(struct schema_compiler *c, const json_t *s)
{
	struct err e;
	return json_object_get(schema_resolve(c->root, s, &e), "allOf");
}

static void compile_alternatives(struct schema_compiler *c, const struct schema_part *w,
	const char *keyword, uint32_t from, uint32_t to)
{
	const json_t *list = json_object_get(w->schema, keyword);
	bool one = !strcmp(keyword, "oneOf");
	size_t n = json_array_size(list);
	if (!n || (one && n > ONE_OF_MAX)) {
		schema_refuse(c, w, "%s: expected an array of 1 to %d schemas", keyword,
			one ? ONE_OF_MAX : SCHEMAS_MAX);
		return;
	}
	json_t *parts = keep_made(c, w, json_array()),
		   *base = keep_made(c, w, json_copy((json_t *)w->schema));
	bool merge = schema_constrains(w->schema, keyword);
	json_object_del(base, keyword);
	for (size_t i = 0; i < n && !c->failed; i++) {
		json_t *part = one ? with_discriminator(c, json_array_get(list, i),
								 json_object_get(w->schema, "discriminator"))
						   : json_incref(json_array_get(list, i));
		if (merge || (one && has_all_of(c, part))) {
			json_t *both = schema_merge(c->root, base, part, &c->left, c->e);
			json_decref(part);
			part = both;
		}
		if (!part) {
			schema_refuse_part(c, w);
			return;
		}
		if (json_array_append_new(parts, part)) { /* which has released it */
			schema_refuse(c, w, NO_MEMORY);
			return;
		}
		if (schema_too_long(&c->left))
			schema_refuse(c, w, SCHEMA_TOO_LONG);
		const struct schema_alternative last = {json_array_get(list, i), part};
		for (size_t k = 0; one && k < i && !c->failed; k++) {
			const struct schema_alternative other = {
				json_array_get(list, k), json_array_get(parts, k)};
			if (schema_exclude_each_other(c->root, &other, &last, &c->left))
				continue;
			if (schema_too_long(&c->left))
				schema_refuse(c, w, SCHEMA_TOO_LONG);
			else
				schema_refuse(c, w,
					"oneOf: alternatives %zu and %zu may both match one value; where that is "
					"meant, write anyOf",
					k + 1, i + 1);
		}
	}
	for (size_t i = 0; i < n && !c->failed; i++) {
		const json_t *part = json_array_get(parts, i);
		char name[48];
		snprintf(name, sizeof name, "%s.%zu", keyword, i);
		if (schema_too_long(&c->left))
			schema_refuse(c, w, SCHEMA_TOO_LONG);
		if (w->raw && c->string &&
			!(schema_possible_types(c->root, part) & (SCHEMA_STRING | SCHEMA_NULL)))
			continue;
		grammar_call(c->g, from, to, schema_rule(c, w, name, part, w->raw));
	}
}

/* Makes w->schema one schema without $ref and allOf, if it has either. False: refused. */
static bool merge_parts(struct schema_compiler *c, struct schema_part *w)
{
	if (!json_object_get(w->schema, "$ref") && !json_object_get(w->schema, "allOf"))
		return true;
	json_t *nothing = json_object(),
		   *merged = schema_merge(c->root, w->schema, nothing, &c->left, c->e);
	json_decref(nothing);
	if (!merged) {
		schema_refuse_part(c, w);
		return false;
	}
	return (w->schema = keep_made(c, w, merged));
}

/* Writes the rule of one schema of the list. */
static void compile_one(struct schema_compiler *c, struct schema_part w)
{
	uint32_t from = c->g->rules[w.rule].start, to = c->g->rules[w.rule].final;
	if (!merge_parts(c, &w))
		return;
	if (w.raw && json_is_true(w.schema) && !(w.schema = keep_made(c, &w, json_object())))
		return;
	if (json_is_boolean(w.schema)) {
		if (json_is_true(w.schema))
			grammar_call(c->g, from, to, build_common(&c->build, RULE_VALUE));
		return;
	}
	if (!json_is_object(w.schema)) {
		schema_refuse(c, &w, "expected a schema (an object, true or false), found %s",
			json_text_type(w.schema));
		return;
	}
	const char *unknown = schema_unknown_keyword(w.schema);
	if (unknown) {
		schema_refuse(c, &w, "the keyword \"%.60s\" is not supported", unknown);
		return;
	}
	const json_t *names = json_object_get(w.schema, "type");
	unsigned types = schema_types(w.schema);
	if (!types) {
		if (!json_is_array(names) || json_array_size(names))
			schema_refuse(c, &w,
				"type: expected one or several of string, number, integer, boolean, null, "
				"array and object");
		return;
	}
	const json_t *nullable = json_object_get(w.schema, "nullable");
	if (nullable && !json_is_boolean(nullable)) {
		schema_refuse(
			c, &w, "nullable: expected true or false, found %s", json_text_type(nullable));
		return;
	}
	if (schema_loses_null(w.schema)) {
		schema_refuse(c, &w, SCHEMA_LOSES_NULL);
		return;
	}
	bool any_of = json_object_get(w.schema, "anyOf"), one_of = json_object_get(w.schema, "oneOf");
	if (any_of && one_of) {
		schema_refuse(c, &w, "anyOf beside oneOf is not supported");
		return;
	}
	if (any_of || one_of) {
		compile_alternatives(c, &w, any_of ? "anyOf" : "oneOf", from, to);
		return;
	}
	if (w.raw)
		types &= schema_possible_types(c->root, w.schema);
	if (w.raw && c->string)
		types &= SCHEMA_STRING | SCHEMA_NULL;
	if (json_object_get(w.schema, "enum") || json_object_get(w.schema, "const")) {
		compile_listed(c, &w, types, from, to);
		return;
	}
	if (types == SCHEMA_ANY && !schema_constrains(w.schema, "type")) {
		grammar_call(c->g, from, to, build_common(&c->build, RULE_VALUE));
		return;
	}
	if (types & SCHEMA_STRING)
		compile_string(c, &w, from, to);
	if (types & SCHEMA_INTEGER)
		compile_number(c, &w, !(types & SCHEMA_NUMBER), from, to);
	if (types & SCHEMA_BOOLEAN)
		grammar_call(c->g, from, to, build_common(&c->build, RULE_BOOLEAN));
	if (types & SCHEMA_NULL)
		grammar_call(c->g, from, to, build_common(&c->build, RULE_NULL));
	if (types & SCHEMA_ARRAY)
		compile_array(c, &w, from, to);
	if (types & SCHEMA_OBJECT)
		schema_compile_object(c, &w, from, to);
}

int schema_compile(const json_t *root, const json_t *part, enum schema_form form,
	struct schema **out, struct err *e)
{
	struct schema *s = NEW(struct schema);
	*out = NULL;
	if (!s || grammar_begin(&s->grammar)) {
		schema_free(s);
		return err_set(e, ERR_MEMORY, NO_MEMORY);
	}
	struct err own;
	struct schema_compiler c = {.g = &s->grammar,
		.build.g = &s->grammar,
		.root = root,
		.e = e ? e : &own,
		.left = {SCHEMA_MERGES_MAX, clock_thread_ns() + SCHEMA_COMPILE_NS}};
	struct schema_part top = {.path = (char *)""};
	c.string = form == SCHEMA_ARGUMENT && schema_may_be_string(root, part);
	c.made = json_array();
	uint32_t rule = grammar_rule(c.g), start = c.g->rules[rule].start, end = c.g->rules[rule].final;
	uint32_t value = part ? schema_rule(&c, &top, "", part, form == SCHEMA_ARGUMENT)
						  : build_common(&c.build, RULE_OBJECT);
	uint32_t begin = grammar_state(c.g);
	if (form == SCHEMA_ARGUMENT)
		grammar_empty(c.g, start, begin);
	else
		build_space(&c.build, start, begin); /* models put a line feed behind their reasoning */
	grammar_call(c.g, begin, end, value);
	while (!c.failed && c.next < c.n_list) {
		if (c.g->too_large)
			break; /* grammar_finish says so */
		if (schema_too_long(&c.left)) {
			schema_refuse(&c, &c.list[c.next], SCHEMA_TOO_LONG);
			break;
		}
		compile_one(&c, c.list[c.next++]);
	}
	if (c.string)
		c.g->unique_keys = false;
	int rc = c.failed ? ERR_INPUT : grammar_finish(c.g, rule, c.e);
	for (size_t i = 0; i < c.n_list; i++)
		free(c.list[i].path);
	free(c.list);
	free(c.table);
	json_decref(c.made);
	schema_build_fini(&c.build);
	if (rc)
		schema_free(s);
	else
		*out = s;
	return rc;
}

void schema_free(struct schema *s)
{
	if (s)
		grammar_free(&s->grammar);
	free(s);
}

size_t schema_bytes(const struct schema *s)
{
	const struct grammar *g = &s->grammar;
	return sizeof *s + g->n_edges * sizeof *g->edges + g->rules_cap * sizeof *g->rules +
		   g->n_states * (sizeof *g->first + sizeof *g->needs + sizeof *g->final_of);
}

const struct grammar *schema_grammar(const struct schema *s)
{
	return &s->grammar;
}
