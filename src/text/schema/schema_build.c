/* SPDX-License-Identifier: MIT */
#include "src/text/schema/schema_build.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/text/json_text.h"
#include "src/text/schema/pattern.h"
#include "src/text/utf8.h"

#include <stdlib.h>
#include <string.h>

#define INDENT_MAX  40 /* blanks or tabs behind a line feed */
#define CLASSES_MAX 512

void schema_build_fini(struct schema_build *b)
{
	free(b->classes);
	*b = (struct schema_build){0};
}

/* ---- characters ---- */

/* n bytes one after the other, byte i of lo[i]..hi[i]. */
static void bytes_chain(
	struct schema_build *b, uint32_t from, uint32_t to, const char *lo, const char *hi, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t next = i + 1 == n ? to : grammar_state(b->g);
		grammar_bytes(b->g, from, next, (uint8_t)lo[i], (uint8_t)hi[i]);
		from = next;
	}
}

/* UTF-8 of lo..hi, split where the number of bytes changes and where a byte carries over. */
static void utf8_range(struct schema_build *b, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
	static const uint32_t ends[] = {0x7f, 0x7ff, 0xd7ff, 0xdfff, 0xffff, CHAR_MAX_POINT};
	for (size_t i = 0; i < ARRAY_LEN(ends); i++)
		if (lo <= ends[i] && hi > ends[i]) {
			utf8_range(b, from, to, lo, ends[i]);
			utf8_range(b, from, to, ends[i] + 1, hi);
			return;
		}
	if (lo > hi || (lo >= 0xd800 && hi <= 0xdfff)) /* surrogates have no UTF-8 */
		return;
	for (unsigned bits = 6; bits <= 18 && hi >= 0x80; bits += 6) {
		uint32_t low = (1u << bits) - 1;
		if ((lo & ~low) == (hi & ~low))
			break;
		if (lo & low) {
			utf8_range(b, from, to, lo, lo | low);
			utf8_range(b, from, to, (lo | low) + 1, hi);
			return;
		}
		if ((hi & low) != low) {
			utf8_range(b, from, to, lo, (hi & ~low) - 1);
			utf8_range(b, from, to, hi & ~low, hi);
			return;
		}
	}
	char first[4], last[4];
	size_t n = utf8_from_code(first, lo);
	utf8_from_code(last, hi);
	bytes_chain(b, from, to, first, last, n);
}

static void hex_digit(struct schema_build *b, uint32_t from, uint32_t to, unsigned lo, unsigned hi)
{
	if (lo <= 9)
		grammar_bytes(b->g, from, to, (uint8_t)('0' + lo), (uint8_t)('0' + MIN(hi, 9)));
	if (hi >= 10) {
		unsigned least = MAX(lo, 10) - 10;
		grammar_bytes(b->g, from, to, (uint8_t)('a' + least), (uint8_t)('a' + hi - 10));
		grammar_bytes(b->g, from, to, (uint8_t)('A' + least), (uint8_t)('A' + hi - 10));
	}
}

/* The escaped forms of the characters lo..hi that have one: two characters for those of the list,
 * \u00XX for control characters. */
static void escapes(struct schema_build *b, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
	static const char list[][2] = {{'"', '"'}, {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'},
		{'\r', 'r'}, {'\t', 't'}, {'/', '/'}};
	uint32_t slash = 0;
	for (size_t i = 0; i < ARRAY_LEN(list); i++) {
		uint32_t c = (unsigned char)list[i][0];
		if (c < lo || c > hi)
			continue;
		if (!slash) {
			slash = grammar_state(b->g);
			grammar_bytes(b->g, from, slash, '\\', '\\');
		}
		grammar_bytes(b->g, slash, to, (uint8_t)list[i][1], (uint8_t)list[i][1]);
	}
	if (lo >= 0x20)
		return;
	uint32_t at = grammar_text(b->g, from, "\\u00", 4);
	for (uint32_t high = 0; high < 2; high++) {
		uint32_t least = MAX(lo, 16 * high), most = MIN(hi, 16 * high + 15);
		if (least > most)
			continue;
		uint32_t next = grammar_state(b->g);
		hex_digit(b, at, next, high, high);
		hex_digit(b, next, to, least & 15, most & 15);
	}
}

/* \uXXXX of any character; above U+FFFF two of them. Halves of pairs do not come alone. */
static void any_unicode_escape(struct schema_build *b, uint32_t from, uint32_t to)
{
	static const struct {
		uint8_t lo[4], hi[4];
		bool pair;
	} forms[] = {{{0, 0, 0, 0}, {12, 15, 15, 15}, false}, {{13, 0, 0, 0}, {13, 7, 15, 15}, false},
		{{14, 0, 0, 0}, {15, 15, 15, 15}, false}, {{13, 8, 0, 0}, {13, 11, 15, 15}, true}};
	uint32_t u = grammar_text(b->g, from, "\\u", 2), low = grammar_state(b->g);
	for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
		uint32_t at = u;
		for (size_t k = 0; k < 4; k++) {
			uint32_t next = k < 3 ? grammar_state(b->g) : forms[i].pair ? low : to;
			hex_digit(b, at, next, forms[i].lo[k], forms[i].hi[k]);
			at = next;
		}
	}
	uint32_t at = grammar_text(b->g, low, "\\u", 2), second = grammar_state(b->g),
			 third = grammar_state(b->g), last = grammar_state(b->g);
	hex_digit(b, at, second, 13, 13);
	hex_digit(b, second, third, 12, 15);
	hex_digit(b, third, last, 0, 15);
	hex_digit(b, last, to, 0, 15);
}

/* The characters lo..hi: raw, or as they stand in a JSON string. */
static void class_body(
	struct schema_build *b, bool raw, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
	if (raw) {
		utf8_range(b, from, to, lo, hi);
		return;
	}
	static const uint32_t bounds[][2] = {
		{0x20, 0x21}, {0x23, 0x5b}, {0x5d, CHAR_MAX_POINT}}; /* need no escape */
	for (size_t i = 0; i < ARRAY_LEN(bounds); i++)
		if (MAX(lo, bounds[i][0]) <= MIN(hi, bounds[i][1]))
			utf8_range(b, from, to, MAX(lo, bounds[i][0]), MIN(hi, bounds[i][1]));
	escapes(b, from, to, lo, hi);
}

/* Characters lo..hi between two states: an edge where one byte does, else a call of the class's
 * rule, of which there are CLASSES_MAX at most, since they are searched one by one. */
static void build_class(
	struct schema_build *b, bool raw, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
	if (lo == 0 && hi == CHAR_MAX_POINT) {
		grammar_call(b->g, from, to, build_common(b, raw ? RULE_RAW_CHAR : RULE_CHAR));
		return;
	}
	bool plain = hi < 0x80 &&
				 (raw || (lo >= 0x20 && !(lo <= '"' && hi >= '"') && !(lo <= '\\' && hi >= '\\')));
	if (plain) {
		grammar_bytes(b->g, from, to, (uint8_t)lo, (uint8_t)hi);
		return;
	}
	size_t i = 0;
	while (i < b->n_classes &&
		   (b->classes[i].lo != lo || b->classes[i].hi != hi || b->classes[i].raw != raw))
		i++;
	if (i == b->n_classes && i < CLASSES_MAX &&
		mem_grow_array(&b->classes, i + 1, sizeof *b->classes)) {
		uint32_t rule = grammar_rule(b->g);
		class_body(b, raw, b->g->rules[rule].start, b->g->rules[rule].final, lo, hi);
		b->classes[b->n_classes++] = (struct class_rule){lo, hi, rule, raw};
	}
	if (i < b->n_classes)
		grammar_call(b->g, from, to, b->classes[i].rule);
	else
		class_body(b, raw, from, to, lo, hi);
}

void build_chars(
	struct schema_build *b, const struct char_nfa *n, bool raw, uint32_t from, uint32_t to)
{
	struct grammar *g = b->g;
	if (n->too_large || g->n_states + n->n_states > GRAMMAR_STATES_MAX) {
		g->too_large = true;
		return;
	}
	uint32_t base = g->n_states;
	g->n_states += n->n_states;
	grammar_empty(g, from, base + n->start);
	grammar_empty(g, base + n->final, to);
	for (size_t i = 0; i < n->n_edges; i++) {
		const struct char_edge *e = &n->edges[i];
		if (e->lo > e->hi)
			grammar_empty(g, base + e->from, base + e->to);
		else
			build_class(b, raw, base + e->from, base + e->to, e->lo, e->hi);
	}
}

/* ---- rules ---- */

static void rule_of_pattern(struct schema_build *b, const char *pattern, uint32_t from, uint32_t to)
{
	struct char_nfa n;
	struct err e;
	pattern_compile(pattern, strlen(pattern), &n, &e);
	build_chars(b, &n, true, from, to);
	char_nfa_free(&n);
}

void build_space(struct schema_build *b, uint32_t from, uint32_t to)
{
	grammar_call(b->g, from, to, build_common(b, RULE_SPACE));
}

static void space_body(struct grammar *g, uint32_t from, uint32_t to)
{
	grammar_empty(g, from, to);
	grammar_bytes(g, from, to, ' ', ' ');
	uint32_t at = grammar_state(g);
	grammar_bytes(g, from, at, '\n', '\n');
	for (int i = 0; i < INDENT_MAX; i++) {
		uint32_t next = grammar_state(g);
		grammar_empty(g, at, to);
		grammar_bytes(g, at, next, ' ', ' ');
		grammar_bytes(g, at, next, '\t', '\t');
		at = next;
	}
	grammar_empty(g, at, to);
}

/* An array or an object of anything: opening, entries with commas, closing. */
static void free_container(struct schema_build *b, bool object, uint32_t from, uint32_t to)
{
	struct grammar *g = b->g;
	uint32_t open = grammar_text(g, from, object ? "{" : "[", 1), entry = grammar_state(g),
			 value = entry, behind = grammar_state(g), close = grammar_state(g);
	build_space(b, open, entry);
	if (object) {
		g->unique_keys = true;
		uint32_t key = grammar_state(g), colon;
		grammar_call(g, entry, key, build_common(b, RULE_STRING));
		colon = grammar_text(g, key, ":", 1);
		value = grammar_state(g);
		build_space(b, colon, value);
	}
	grammar_call(g, value, behind, build_common(b, RULE_VALUE));
	build_space(b, grammar_text(g, behind, ",", 1), entry);
	build_space(b, behind, close);
	build_space(b, open, close);
	grammar_bytes(g, close, to, object ? '}' : ']', object ? '}' : ']');
}

uint32_t build_common(struct schema_build *b, enum common_rule which)
{
	struct grammar *g = b->g;
	if (b->common[which])
		return b->common[which] - 1;
	uint32_t rule = grammar_rule(g), from = g->rules[rule].start, to = g->rules[rule].final, at;
	b->common[which] = rule + 1;
	switch (which) {
	case RULE_SPACE:
		space_body(g, from, to);
		break;
	case RULE_CHAR:
		class_body(b, false, from, to, 0, CHAR_MAX_POINT);
		any_unicode_escape(b, from, to);
		break;
	case RULE_RAW_CHAR:
		class_body(b, true, from, to, 0, CHAR_MAX_POINT);
		break;
	case RULE_STRING:
		at = grammar_text(g, from, "\"", 1);
		grammar_call(g, at, at, build_common(b, RULE_CHAR));
		grammar_bytes(g, at, to, '"', '"');
		break;
	case RULE_NUMBER:
		rule_of_pattern(
			b, "^-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,16})?([eE][+-]?[0-9]{1,2})?$", from, to);
		break;
	case RULE_INTEGER:
		rule_of_pattern(b, "^-?(0|[1-9][0-9]{0,17})$", from, to);
		break;
	case RULE_BOOLEAN:
		rule_of_pattern(b, "^(true|false)$", from, to);
		break;
	case RULE_NULL:
		rule_of_pattern(b, "^null$", from, to);
		break;
	case RULE_VALUE:
		for (int k = RULE_STRING; k <= RULE_NULL; k++)
			if (k != RULE_INTEGER)
				grammar_call(g, from, to, build_common(b, (enum common_rule)k));
		free_container(b, false, from, to);
		free_container(b, true, from, to);
		break;
	default:
		free_container(b, which == RULE_OBJECT, from, to);
		break;
	}
	return rule;
}

/* ---- constants ---- */

uint32_t build_key(struct schema_build *b, const char *key, uint32_t from)
{
	struct buf text = {0};
	json_text_dump_string(key, strlen(key), &text);
	from = grammar_text(b->g, from, buf_str(&text), text.len);
	buf_free(&text);
	return from;
}

static void build_members(struct schema_build *b, const json_t *v, uint32_t from, uint32_t to)
{
	struct grammar *g = b->g;
	bool object = json_is_object(v);
	size_t n = object ? json_object_size(v) : json_array_size(v), i = 0;
	uint32_t at = grammar_text(g, from, object ? "{" : "[", 1), next;
	void *member = json_object_iter((json_t *)v);
	for (; i < n; i++) {
		if (i)
			at = grammar_text(g, at, ",", 1);
		build_space(b, at, next = grammar_state(g));
		at = next;
		if (object) {
			at = grammar_text(g, build_key(b, json_object_iter_key(member), at), ":", 1);
			build_space(b, at, next = grammar_state(g));
			at = next;
		}
		next = grammar_state(g);
		build_value(
			b, object ? json_object_iter_value(member) : json_array_get(v, i), false, at, next);
		at = next;
		member = object ? json_object_iter_next((json_t *)v, member) : NULL;
	}
	if (n) {
		build_space(b, at, next = grammar_state(g));
		at = next;
	}
	grammar_bytes(g, at, to, object ? '}' : ']', object ? '}' : ']');
}

void build_value(struct schema_build *b, const json_t *v, bool raw, uint32_t from, uint32_t to)
{
	if (json_is_object(v) || json_is_array(v)) {
		build_members(b, v, from, to);
		return;
	}
	struct buf text = {0};
	if (raw && json_is_string(v))
		buf_append(&text, json_string_value(v), json_string_length(v));
	else
		json_text_dump(v, &text);
	grammar_empty(b->g, grammar_text(b->g, from, buf_str(&text), text.len), to);
	buf_free(&text);
}
