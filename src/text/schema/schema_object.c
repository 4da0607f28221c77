/* SPDX-License-Identifier: MIT */
/* Objects: named properties in their order, then all other keys. */
#include "src/text/schema/schema_compiler.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/text/json_text.h"
#include "src/text/schema/pattern.h"
#include "src/text/schema/schema_keywords.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_MAX     1000 /* bytes of a property's name */
#define MEMBERS_MAX 2000 /* properties of one object */

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* *n: the keys that "propertyNames" allows. False: any, or c->failed. The caller frees *n in any
 * case. */
static bool allowed_keys(struct schema_compiler *c, const struct schema_part *w, struct char_nfa *n)
{
	const json_t *names = json_object_get(w->schema, "propertyNames");
	struct char_nfa part;
	size_t i;
	json_t *v;
	char_nfa_init(n);
	if (!names || json_is_true(names))
		return false;
	if (!(names = schema_resolve(c->root, names, c->e))) {
		schema_refuse_part(c, w);
		return false;
	}
	if (json_is_false(names))
		return true;
	const json_t *type = json_object_get(names, "type");
	if (!json_is_object(names) || schema_unknown_keyword(names) || (type && !schema_types(names)) ||
		json_object_get(names, "anyOf") || json_object_get(names, "$ref") ||
		json_object_get(names, "oneOf") || json_object_get(names, "allOf")) {
		schema_refuse(
			c, w, "propertyNames: only enum, const, pattern, format and lengths are supported");
		return false;
	}
	if (type && !(schema_types(names) & SCHEMA_STRING))
		return true; /* a key is a string */
	const json_t *values = json_object_get(names, "enum"),
				 *constant = json_object_get(names, "const");
	bool bound = schema_string_texts(c, &(struct schema_part){names, w->path, 0, false}, n);
	if (c->failed)
		return false;
	if (!bound)
		char_nfa_length(n, 0, SIZE_MAX);
	for (int k = 0; k < 2; k++) {
		if (!(k ? constant : values))
			continue;
		char_nfa_init(&part);
		json_array_foreach(k ? NULL : values, i, v)
		{
			if (json_is_string(v))
				char_nfa_text(&part, json_string_value(v), json_string_length(v));
		}
		if (k && json_is_string(constant))
			char_nfa_text(&part, json_string_value(constant), json_string_length(constant));
		char_nfa_intersect(n, &part);
	}
	return !c->failed;
}

/* "propertyNames" holds for named properties too. */
static void check_named_keys(
	struct schema_compiler *c, const struct schema_part *w, const json_t *properties)
{
	struct char_nfa allowed;
	const char *key;
	json_t *v;
	bool bound = allowed_keys(c, w, &allowed);
	/* each comparison costs as much as the automaton has states */
	if (bound && allowed.n_states > 4 * KEY_MAX) {
		struct char_nfa part;
		char_nfa_length(&part, 0, KEY_MAX);
		char_nfa_intersect(&allowed, &part);
		if (allowed.too_large)
			schema_refuse(c, w, "propertyNames: too many states");
	}
	json_object_foreach((json_t *)properties, key, v)
	{
		if (strlen(key) > KEY_MAX)
			schema_refuse(c, w, "properties: a name is longer than %d bytes", KEY_MAX);
		if (!c->failed && bound && !char_nfa_matches(&allowed, key, strlen(key)))
			schema_refuse(c, w, "propertyNames: the property \"%.60s\" is not among them", key);
	}
	char_nfa_free(&allowed);
}

/* *n: the keys that the schema does not name; only those of propertyNames and of the one pattern of
 * patternProperties where they are given. False: c->failed. The caller frees *n in any case. */
static bool other_keys(struct schema_compiler *c, const struct schema_part *w,
	const json_t *properties, const char *pattern, struct char_nfa *n)
{
	const char **list = NEW_ARRAY(const char *, json_object_size(properties) + 1), *key;
	size_t count = 0;
	json_t *v;
	if (!list) {
		char_nfa_init(n);
		schema_refuse(c, w, "there is no memory for the properties");
		return false;
	}
	json_object_foreach((json_t *)properties, key, v)
	{
		list[count++] = key;
	}
	qsort(list, count, sizeof *list, by_text);
	char_nfa_except(n, list, count);
	free(list);
	struct char_nfa part;
	if (pattern) {
		if (pattern_compile(pattern, strlen(pattern), &part, c->e)) {
			char_nfa_free(&part);
			schema_refuse_part(c, w);
			return false;
		}
		json_object_foreach((json_t *)properties, key, v)
		{
			if (!c->failed && char_nfa_matches(&part, key, strlen(key)))
				schema_refuse(c, w,
					"patternProperties: the pattern also matches the property \"%.60s\"", key);
		}
		char_nfa_intersect(n, &part);
	}
	if (allowed_keys(c, w, &part))
		char_nfa_intersect(n, &part);
	else
		char_nfa_free(&part);
	return !c->failed;
}

/* *rule: of values under keys that are not named; *pattern: the one of patternProperties that those
 * keys match, or NULL. False: no such keys may come, or c->failed. */
static bool other_values(
	struct schema_compiler *c, const struct schema_part *w, const char **pattern, uint32_t *rule)
{
	json_t *patterns = json_object_get(w->schema, "patternProperties"),
		   *more = json_object_get(w->schema, "additionalProperties"), *v;
	const char *key;
	*pattern = NULL;
	if (json_object_size(patterns) > 1) {
		schema_refuse(c, w, "patternProperties: only one pattern is supported");
		return false;
	}
	json_object_foreach(patterns, key, v)
	{
		*pattern = key;
		*rule = schema_rule(c, w, "patternProperties", v, false);
		return !c->failed;
	}
	if (json_is_false(more))
		return false;
	*rule = more && !json_is_true(more) ? schema_rule(c, w, "additionalProperties", more, false)
										: build_common(&c->build, RULE_VALUE);
	return !c->failed;
}

static bool is_required(const struct schema_part *w, const char *key)
{
	size_t i;
	json_t *v;
	json_array_foreach(json_object_get(w->schema, "required"), i, v)
	{
		if (json_is_string(v) && !strcmp(json_string_value(v), key))
			return true;
	}
	return false;
}

/* Behind `from` (a comma and space, or the opening brace and space): "key": value. */
static uint32_t object_member(
	struct schema_compiler *c, uint32_t from, const char *key, uint32_t rule)
{
	uint32_t value = schema_space(c, grammar_text(c->g, build_key(&c->build, key, from), ":", 1)),
			 behind = grammar_state(c->g);
	grammar_call(c->g, value, behind, rule);
	return behind;
}

/* "properties" with what "required" adds: a key that the schema does not describe has a value by
 * additionalProperties. Of c->made; NULL: refused. */
static json_t *named_properties(struct schema_compiler *c, const struct schema_part *w)
{
	json_t *properties = json_object_get(w->schema, "properties"), *v,
		   *required = json_object_get(w->schema, "required"),
		   *more = json_object_get(w->schema, "additionalProperties");
	size_t i;
	if ((properties && !json_is_object(properties)) || json_object_size(properties) > MEMBERS_MAX) {
		schema_refuse(c, w, "properties: expected an object with at most %d members", MEMBERS_MAX);
		return NULL;
	}
	if ((required && !json_is_array(required)) || json_array_size(required) > MEMBERS_MAX) {
		schema_refuse(c, w, "required: expected an array of at most %d names", MEMBERS_MAX);
		return NULL;
	}
	json_t *all = properties ? json_copy(properties) : json_object();
	if (json_array_append_new(c->made, all)) { /* which has released it */
		schema_refuse(c, w, "there is no memory for the properties");
		return NULL;
	}
	json_array_foreach(required, i, v)
	{
		const char *name = json_string_value(v);
		if (name && json_object_get(all, name))
			continue;
		if (!name)
			schema_refuse(c, w, "required: expected names, found %s", json_text_type(v));
		else if (json_object_get(w->schema, "patternProperties"))
			schema_refuse(c, w, "required: \"%.60s\" is not among the properties", name);
		else
			json_object_set_new(all, name, more ? json_incref(more) : json_true());
	}
	return c->failed ? NULL : all;
}

/* Adds the keys that an enum or const of "propertyNames" lists to the properties `all`, so that
 * each comes at most once. False: it lists none, or c->failed; or patternProperties says which keys
 * may come. */
static bool add_listed_keys(struct schema_compiler *c, const struct schema_part *w, json_t *all)
{
	struct err e;
	const json_t *names = schema_resolve(c->root, json_object_get(w->schema, "propertyNames"), &e),
				 *values = json_object_get(names, "enum"),
				 *constant = json_object_get(names, "const"),
				 *more = json_object_get(w->schema, "additionalProperties");
	struct char_nfa texts;
	size_t i, work = 0;
	json_t *v;
	if ((!values && !constant) || json_object_get(w->schema, "patternProperties"))
		return false;
	json_t *list = values ? json_incref((json_t *)values) : json_pack("[O]", constant);
	if (json_array_size(list) > MEMBERS_MAX)
		schema_refuse(c, w, "propertyNames: at most %d values are supported", MEMBERS_MAX);
	bool bound = schema_string_texts(c, &(struct schema_part){names, w->path, 0, false}, &texts);
	json_array_foreach(list, i, v)
	{
		const char *key = json_string_value(v);
		size_t n = json_string_length(v);
		if (c->failed || !(schema_types(names) & SCHEMA_STRING))
			break;
		if (!key || strlen(key) != n || (constant && !json_equal(v, (json_t *)constant)))
			continue;
		work += bound ? (texts.n_states + texts.n_edges) * (1 + n) : 0;
		if (n > KEY_MAX)
			schema_refuse(c, w, "propertyNames: a name is longer than %d bytes", KEY_MAX);
		else if (work > LISTED_WORK)
			schema_refuse(
				c, w, "propertyNames: a pattern or length beside so many values is not supported");
		else if (!json_object_get(all, key) && (!bound || char_nfa_matches(&texts, key, n)))
			json_object_set_new(all, key, more ? json_incref((json_t *)more) : json_true());
	}
	char_nfa_free(&texts);
	json_decref(list);
	return !c->failed;
}

/* Two rows of states, one of each before each property: in `none` no member is written yet, in
 * `some` there is one, so that a comma comes before the next. */
void schema_compile_object(
	struct schema_compiler *c, const struct schema_part *w, uint32_t from, uint32_t to)
{
	struct grammar *g = c->g;
	const char *key, *pattern;
	json_t *all = named_properties(c, w), *v;
	if (!all)
		return;
	check_named_keys(c, w, all);
	/* none is added where additionalProperties is false: other_values says so */
	bool listed = !json_is_false(json_object_get(w->schema, "additionalProperties")) &&
				  add_listed_keys(c, w, all);
	if (c->failed)
		return;
	size_t least = 0, required = 0;
	json_object_foreach(all, key, v)
	{
		required += is_required(w, key);
	}
	if (!schema_count(c, w, "minProperties", SIZE_MAX >> 12, &least))
		return;
	if (least > MAX(required, 1)) {
		schema_refuse(c, w, "minProperties: at most 1, or as many as are required, is supported");
		return;
	}
	uint32_t open = grammar_text(g, from, "{", 1), none = schema_space(c, open),
			 some = grammar_state(g), close = grammar_state(g), rule = 0;
	bool may_be_empty = true;
	grammar_bytes(g, close, to, '}', '}');
	json_object_foreach(all, key, v)
	{
		char part[160];
		snprintf(part, sizeof part, "properties.%.120s", key);
		rule = schema_rule(c, w, part, v, false);
		uint32_t next_none = grammar_state(g), next_some = grammar_state(g);
		if (c->failed || g->too_large)
			return;
		if (may_be_empty)
			grammar_empty(g, object_member(c, none, key, rule), next_some);
		uint32_t comma = schema_space(c, grammar_text(g, some, ",", 1));
		grammar_empty(g, object_member(c, comma, key, rule), next_some);
		if (is_required(w, key)) {
			may_be_empty = false;
		} else {
			grammar_empty(g, none, next_none);
			grammar_empty(g, some, next_some);
		}
		none = next_none;
		some = next_some;
	}
	if (!listed && other_values(c, w, &pattern, &rule)) {
		g->unique_keys = true;
		struct char_nfa keys;
		uint32_t key_rule = grammar_rule(g);
		uint32_t start = g->rules[key_rule].start, end = g->rules[key_rule].final;
		if (other_keys(c, w, all, pattern, &keys)) {
			uint32_t quote = grammar_text(g, start, "\"", 1), last = grammar_state(g);
			build_chars(&c->build, &keys, false, quote, last);
			grammar_bytes(g, last, end, '"', '"');
		}
		char_nfa_free(&keys);
		uint32_t entry = schema_space(c, grammar_text(g, some, ",", 1)), colon = grammar_state(g);
		grammar_call(g, entry, colon, key_rule);
		if (may_be_empty)
			grammar_call(g, none, colon, key_rule);
		grammar_call(g, schema_space(c, grammar_text(g, colon, ":", 1)), some, rule);
	}
	build_space(&c->build, some, close);
	if (may_be_empty && !least)
		grammar_empty(g, none, close);
}
