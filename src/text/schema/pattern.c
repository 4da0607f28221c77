/* SPDX-License-Identifier: MIT */
/*
 * A recursive-descent parser makes a tree, which is then written out as states; a repetition writes
 * its part as often as it says. ^ and $ are edges of their own kind first. At the end every state
 * is split by "something was read" and "the end was asserted", which makes them plain edges.
 */
#include "src/text/schema/pattern.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/text/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX    64
#define REPEAT_MAX   10000
#define PATTERN_MAX  4096    /* bytes */
#define WORK_MAX     2000000 /* nodes written out, those of repetitions counted again */
#define NO_LIMIT     UINT32_MAX
#define ASSERT_BEGIN 2 /* edges with lo = this, hi = 0: ^ and $ (as empty edges have lo > hi) */
#define ASSERT_END   3

enum node_kind {
	NODE_EMPTY,
	NODE_SET,
	NODE_CONCAT,
	NODE_ALTERNATE,
	NODE_REPEAT,
	NODE_BEGIN,
	NODE_END
};

struct char_range {
	uint32_t lo, hi;
};

struct pattern_node {
	enum node_kind kind;
	uint32_t a, b;     /* children; SET: first range and count */
	uint32_t min, max; /* REPEAT */
};

struct pattern_parser {
	const char *text, *at, *end;
	struct pattern_node *nodes;
	size_t n_nodes, nodes_cap;
	struct char_range *ranges;
	size_t n_ranges, ranges_cap;
	int depth;
	uint32_t work;
	struct err *e;
	bool failed;
};

#define NO_MEMORY "there is no memory for it"

static uint32_t parse_alternatives(struct pattern_parser *p);

/* The first error counts; ends the parse. Returns 0, so that `return fail(...)` works. */
static uint32_t fail(struct pattern_parser *p, const char *what)
{
	if (!p->failed)
		err_set(p->e, ERR_INPUT, "pattern \"%.100s\": %s", p->text, what);
	p->failed = true;
	p->at = p->end;
	return 0;
}

static uint32_t node_add(struct pattern_parser *p, struct pattern_node n)
{
	if (p->n_nodes == p->nodes_cap) {
		size_t cap = p->nodes_cap ? 2 * p->nodes_cap : 64;
		if (!mem_grow_array(&p->nodes, cap, sizeof *p->nodes))
			return fail(p, NO_MEMORY);
		p->nodes_cap = cap;
	}
	p->nodes[p->n_nodes] = n;
	return (uint32_t)p->n_nodes++;
}

/* ---- sets of characters ---- */

static void range_add(struct pattern_parser *p, uint32_t lo, uint32_t hi)
{
	if (p->n_ranges == p->ranges_cap) {
		size_t cap = p->ranges_cap ? 2 * p->ranges_cap : 64;
		if (!mem_grow_array(&p->ranges, cap, sizeof *p->ranges)) {
			fail(p, NO_MEMORY);
			return;
		}
		p->ranges_cap = cap;
	}
	p->ranges[p->n_ranges++] = (struct char_range){lo, hi};
}

static int range_order(const void *a, const void *b)
{
	uint32_t x = ((const struct char_range *)a)->lo, y = ((const struct char_range *)b)->lo;
	return (x > y) - (x < y);
}

/* Sorts and joins the ranges from `first` on. */
static void ranges_join(struct pattern_parser *p, size_t first)
{
	size_t n = p->n_ranges - first, kept = 0;
	struct char_range *r = p->ranges + first;
	if (n) /* an allocation failed */
		qsort(r, n, sizeof *r, range_order);
	for (size_t i = 0; i < n; i++) {
		if (kept && r[i].lo <= r[kept - 1].hi + 1)
			r[kept - 1].hi = MAX(r[kept - 1].hi, r[i].hi);
		else
			r[kept++] = r[i];
	}
	p->n_ranges = first + kept;
}

/* The ranges from `first` on become those that they leave out of 0..most. */
static void ranges_invert(struct pattern_parser *p, size_t first, uint32_t most)
{
	ranges_join(p, first);
	size_t n = p->n_ranges - first;
	struct char_range *old = NEW_ARRAY(struct char_range, n + 1);
	if (!old) {
		fail(p, NO_MEMORY);
		return;
	}
	if (n)
		memcpy(old, p->ranges + first, n * sizeof *old);
	p->n_ranges = first;
	uint32_t from = 0;
	for (size_t i = 0; i < n && from <= most; i++) {
		if (old[i].lo > from)
			range_add(p, from, MIN(old[i].lo - 1, most));
		from = old[i].hi + 1;
	}
	if (from <= most)
		range_add(p, from, most);
	free(old);
}

/* Adds the class \d \w \s \D \W \S of letter c to a set that is inverted afterwards or not; false:
 * c is none of these. Engines disagree on the blanks, and on all classes beyond ASCII. So a set
 * that includes \s includes only the blanks that all engines agree on, and one that excludes \s
 * excludes every blank that any engine knows. *ascii becomes true: a set that is inverted stays
 * within ASCII. */
static bool class_add(struct pattern_parser *p, char c, bool inverted, bool *ascii)
{
	static const struct char_range blanks[] = {{9, 13}, {32, 32}, {0x1c, 0x1f}, {0x85, 0x85},
		{0xa0, 0xa0}, {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f},
		{0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
	size_t first = p->n_ranges;
	switch (c | 32) {
	case 'd':
		range_add(p, '0', '9');
		break;
	case 'w':
		range_add(p, '0', '9');
		range_add(p, 'A', 'Z');
		range_add(p, '_', '_');
		range_add(p, 'a', 'z');
		break;
	case 's':
		for (size_t i = 0; i < ((c == 's') != inverted ? 2 : ARRAY_LEN(blanks)); i++)
			range_add(p, blanks[i].lo, blanks[i].hi);
		break;
	default:
		return false;
	}
	if (c < 'a')
		ranges_invert(p, first, c == 'S' ? CHAR_MAX_POINT : 0x7f);
	*ascii = true;
	return true;
}

static uint32_t parse_hex(struct pattern_parser *p, int digits)
{
	uint32_t v = 0;
	for (int i = 0; i < digits; i++) {
		char c = p->at < p->end ? *p->at++ : 0;
		int d = c >= '0' && c <= '9'                 ? c - '0'
				: (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
													 : -1;
		if (d < 0)
			return fail(p, "expected hexadecimal digits");
		v = v * 16 + (uint32_t)d;
	}
	return v;
}

/* The character that an escape means. p->at: behind the backslash, before the end. */
static uint32_t parse_escape(struct pattern_parser *p)
{
	char c = *p->at++;
	switch (c) {
	case 'n':
		return '\n';
	case 'r':
		return '\r';
	case 't':
		return '\t';
	case 'f':
		return '\f';
	case 'v':
		return '\v';
	case '0':
		return 0;
	case 'x':
		return parse_hex(p, 2);
	case 'u': {
		uint32_t v = parse_hex(p, 4);
		if (v >= 0xd800 && v < 0xe000)
			return fail(p, "\\u with half of a surrogate pair is not supported");
		return v;
	}
	case 'b':
	case 'B':
		return fail(p, "\\b (word boundaries) is not supported");
	case 'p':
	case 'P':
		return fail(p, "\\p{...} (Unicode properties) is not supported");
	case 'k':
		return fail(p, "back references are not supported");
	case 'A':
	case 'Z':
	case 'z':
	case 'G':
	case 'K':
	case 'c':
		return fail(p, "this escape is not supported");
	default:
		break;
	}
	if (c >= '1' && c <= '9')
		return fail(p, "back references are not supported");
	if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
		return fail(p, "an escape is not known");
	if ((unsigned char)c >= 0x80) {
		size_t step;
		uint32_t v = utf8_decode(--p->at, &step);
		p->at += step;
		return v;
	}
	return (unsigned char)c;
}

static uint32_t parse_char(struct pattern_parser *p)
{
	size_t step;
	uint32_t c = utf8_decode(p->at, &step);
	p->at += step;
	return c;
}

/* Behind '['. */
static uint32_t parse_set(struct pattern_parser *p)
{
	size_t first = p->n_ranges;
	bool inverted = p->at < p->end && *p->at == '^', ascii = false, empty = true;
	p->at += inverted;
	while (p->at < p->end && (*p->at != ']' || empty)) {
		if (*p->at == ']' && empty)
			return fail(p, "an empty class [] is not supported");
		empty = false;
		if (*p->at == '[' && p->at + 1 < p->end && p->at[1] == ':')
			return fail(p, "[:names:] in classes are not supported");
		uint32_t lo;
		if (*p->at == '\\' && p->at + 1 < p->end) {
			p->at++;
			if (*p->at == 'b') {
				lo = 8;
				p->at++;
			} else if (class_add(p, *p->at, inverted, &ascii)) {
				p->at++;
				continue;
			} else {
				lo = parse_escape(p);
			}
		} else {
			lo = parse_char(p);
		}
		uint32_t hi = lo;
		if (p->end - p->at >= 2 && *p->at == '-' && p->at[1] != ']') {
			p->at++;
			if (*p->at == '\\' && p->at + 1 < p->end) {
				p->at++;
				hi = parse_escape(p);
			} else {
				hi = parse_char(p);
			}
			if (hi < lo)
				return fail(p, "a range of a class goes backwards");
		}
		range_add(p, lo, hi);
	}
	if (p->at >= p->end)
		return fail(p, "a class has no end");
	p->at++;
	if (inverted)
		ranges_invert(p, first, ascii ? 0x7f : CHAR_MAX_POINT);
	else
		ranges_join(p, first);
	return node_add(
		p, (struct pattern_node){NODE_SET, (uint32_t)first, (uint32_t)(p->n_ranges - first), 0, 0});
}

static uint32_t one_char(struct pattern_parser *p, uint32_t c)
{
	size_t first = p->n_ranges;
	range_add(p, c, c);
	return node_add(p, (struct pattern_node){NODE_SET, (uint32_t)first, 1, 0, 0});
}

/* ---- the tree ---- */

/* Behind '('. */
static uint32_t parse_group(struct pattern_parser *p)
{
	if (p->at < p->end && *p->at == '?') {
		const char *rest = p->at + 1;
		size_t n = (size_t)(p->end - rest);
		if (n && *rest == ':') {
			p->at += 2;
		} else if (n && (*rest == '=' || *rest == '!')) {
			return fail(p, "look-ahead is not supported");
		} else if (n >= 2 && *rest == '<' && (rest[1] == '=' || rest[1] == '!')) {
			return fail(p, "look-behind is not supported");
		} else if (n && (*rest == '<' || (n >= 2 && rest[0] == 'P' && rest[1] == '<'))) {
			while (p->at < p->end && *p->at != '>')
				p->at++;
			p->at += p->at < p->end;
		} else {
			return fail(p, "a group of the form (?...) is not supported");
		}
	}
	if (++p->depth > DEPTH_MAX)
		return fail(p, "groups are nested too deeply");
	uint32_t inner = parse_alternatives(p);
	p->depth--;
	if (p->at >= p->end || *p->at != ')')
		return fail(p, "a group has no end");
	p->at++;
	return inner;
}

static bool parse_count(struct pattern_parser *p, uint32_t *v)
{
	const char *from = p->at;
	*v = 0;
	while (p->at < p->end && *p->at >= '0' && *p->at <= '9' && *v <= REPEAT_MAX)
		*v = *v * 10 + (uint32_t)(*p->at++ - '0');
	return p->at > from;
}

/* *, +, ?, {n}, {n,}, {n,m} at p->at; false: none, nothing is read. */
static bool parse_repeat(struct pattern_parser *p, uint32_t *min, uint32_t *max)
{
	const char *from = p->at;
	char c = p->at < p->end ? *p->at : 0;
	*min = c == '+';
	*max = c == '?' ? 1 : NO_LIMIT;
	if (c == '*' || c == '+' || c == '?') {
		p->at++;
	} else if (c == '{') {
		p->at++;
		bool given = parse_count(p, min), comma = p->at < p->end && *p->at == ',';
		*max = *min;
		if (comma) {
			p->at++;
			if (!parse_count(p, max))
				*max = NO_LIMIT;
		}
		if (!given || p->at >= p->end || *p->at != '}') { /* text, as in other engines */
			p->at = from;
			return false;
		}
		p->at++;
		if (*min > REPEAT_MAX || (*max != NO_LIMIT && (*max > REPEAT_MAX || *max < *min))) {
			fail(p, "a repetition goes backwards or beyond 10000");
			return true;
		}
	} else {
		return false;
	}
	if (p->at < p->end && *p->at == '?')
		p->at++;
	else if (p->at < p->end && *p->at == '+')
		fail(p, "possessive repetitions are not supported");
	return true;
}

static uint32_t parse_atom(struct pattern_parser *p)
{
	size_t first = p->n_ranges;
	bool ascii;
	switch (*p->at) {
	case '^':
		p->at++;
		return node_add(p, (struct pattern_node){.kind = NODE_BEGIN});
	case '$':
		p->at++;
		return node_add(p, (struct pattern_node){.kind = NODE_END});
	case '(':
		p->at++;
		return parse_group(p);
	case '[':
		p->at++;
		return parse_set(p);
	case '.':
		p->at++;
		range_add(p, '\n', '\n');
		range_add(p, '\r', '\r');
		range_add(p, 0x2028, 0x2029);
		ranges_invert(p, first, CHAR_MAX_POINT);
		break;
	case '*':
	case '+':
	case '?':
		return fail(p, "a repetition repeats nothing");
	case '\\':
		if (++p->at >= p->end)
			return fail(p, "it ends with a backslash");
		if (!class_add(p, *p->at, false, &ascii))
			return one_char(p, parse_escape(p));
		p->at++;
		break;
	default:
		return one_char(p, parse_char(p));
	}
	return node_add(
		p, (struct pattern_node){NODE_SET, (uint32_t)first, (uint32_t)(p->n_ranges - first), 0, 0});
}

static uint32_t parse_sequence(struct pattern_parser *p)
{
	uint32_t all = node_add(p, (struct pattern_node){.kind = NODE_EMPTY}), min, max;
	while (p->at < p->end && *p->at != '|' && *p->at != ')') {
		uint32_t atom = parse_atom(p);
		while (!p->failed && parse_repeat(p, &min, &max))
			atom = node_add(p, (struct pattern_node){NODE_REPEAT, atom, 0, min, max});
		all = node_add(p, (struct pattern_node){NODE_CONCAT, all, atom, 0, 0});
	}
	return all;
}

static uint32_t parse_alternatives(struct pattern_parser *p)
{
	uint32_t all = parse_sequence(p);
	while (p->at < p->end && *p->at == '|') {
		p->at++;
		uint32_t other = parse_sequence(p);
		all = node_add(p, (struct pattern_node){NODE_ALTERNATE, all, other, 0, 0});
	}
	return all;
}

/* ---- tree -> states ---- */

/* Writes node `id` from state `from`; returns the state where it ends. Recursion: PATTERN_MAX calls
 * at most, since every node stands for a byte of the pattern. ALTERNATE is a loop because its
 * alternatives end in one state. */
static uint32_t emit(struct pattern_parser *p, struct char_nfa *n, uint32_t id, uint32_t from)
{
	const struct pattern_node *v = &p->nodes[id];
	uint32_t to;
	if (++p->work > WORK_MAX)
		n->too_large = true;
	if (n->too_large)
		return from;
	switch (v->kind) {
	case NODE_EMPTY:
		return from;
	case NODE_SET:
		to = char_nfa_state(n);
		for (uint32_t i = 0; i < v->b; i++)
			char_nfa_edge(n, from, to, p->ranges[v->a + i].lo, p->ranges[v->a + i].hi);
		return to;
	case NODE_BEGIN:
	case NODE_END:
		to = char_nfa_state(n);
		char_nfa_edge(n, from, to, v->kind == NODE_BEGIN ? ASSERT_BEGIN : ASSERT_END, 0);
		return to;
	case NODE_CONCAT:
		return emit(p, n, v->b, emit(p, n, v->a, from));
	case NODE_ALTERNATE:
		to = char_nfa_state(n);
		for (;; v = &p->nodes[v->a]) {
			char_nfa_empty(n, emit(p, n, v->b, from), to);
			if (p->nodes[v->a].kind != NODE_ALTERNATE)
				break;
		}
		char_nfa_empty(n, emit(p, n, v->a, from), to);
		return to;
	case NODE_REPEAT:
		for (uint32_t i = 0; i < v->min && !n->too_large; i++)
			from = emit(p, n, v->a, from);
		if (v->max == NO_LIMIT) {
			uint32_t loop = char_nfa_state(n);
			char_nfa_empty(n, from, loop);
			char_nfa_empty(n, emit(p, n, v->a, loop), loop);
			return loop;
		}
		to = char_nfa_state(n);
		for (uint32_t i = v->min; i < v->max && !n->too_large; i++) {
			char_nfa_empty(n, from, to);
			from = emit(p, n, v->a, from);
		}
		char_nfa_empty(n, from, to);
		return to;
	}
	return from;
}

/* State q of `in` once for each of: nothing or something was read; the end was asserted or not. */
static uint32_t layer(uint32_t q, bool read, bool ended)
{
	return 8 + 4 * q + 2 * read + ended;
}

/* *out: the pattern `in` anywhere in a text, its assertions resolved. */
static void resolve_anchors(const struct char_nfa *in, struct char_nfa *out)
{
	enum { BEFORE = 2, BEFORE_READ = 3, BEHIND = 4 };
	char_nfa_init(out);
	if (8 + 4 * (size_t)in->n_states > CHAR_NFA_STATES_MAX) {
		out->too_large = true;
		return;
	}
	out->n_states = 8 + 4 * in->n_states;
	char_nfa_empty(out, out->start, BEFORE);
	char_nfa_edge(out, BEFORE, BEFORE_READ, 0, CHAR_MAX_POINT);
	char_nfa_edge(out, BEFORE_READ, BEFORE_READ, 0, CHAR_MAX_POINT);
	char_nfa_empty(out, BEFORE, layer(in->start, false, false));
	char_nfa_empty(out, BEFORE_READ, layer(in->start, true, false));
	char_nfa_edge(out, BEHIND, BEHIND, 0, CHAR_MAX_POINT);
	char_nfa_empty(out, BEHIND, out->final);
	for (int read = 0; read < 2; read++) {
		char_nfa_empty(out, layer(in->final, read, false), BEHIND);
		char_nfa_empty(out, layer(in->final, read, true), out->final);
	}
	for (size_t i = 0; i < in->n_edges; i++) {
		struct char_edge v = in->edges[i];
		for (int k = 0; k < 4; k++) {
			bool read = k & 2, ended = k & 1;
			if (v.lo <= v.hi) {
				if (!ended)
					char_nfa_edge(
						out, layer(v.from, read, false), layer(v.to, true, false), v.lo, v.hi);
			} else if (v.lo == ASSERT_END) {
				char_nfa_empty(out, layer(v.from, read, ended), layer(v.to, read, true));
			} else if (v.lo != ASSERT_BEGIN || !read) {
				char_nfa_empty(out, layer(v.from, read, ended), layer(v.to, read, ended));
			}
		}
	}
}

int pattern_compile(const char *pattern, size_t len, struct char_nfa *out, struct err *e)
{
	struct pattern_parser p = {.text = pattern, .at = pattern, .end = pattern + len, .e = e};
	struct char_nfa inner;
	char_nfa_init(out);
	char_nfa_init(&inner);
	if (len > PATTERN_MAX)
		fail(&p, "more than 4096 bytes");
	uint32_t root = p.failed ? 0 : parse_alternatives(&p);
	if (!p.failed && p.at < p.end)
		fail(&p, "a ) closes nothing");
	if (!p.failed) {
		char_nfa_empty(&inner, emit(&p, &inner, root, inner.start), inner.final);
		char_nfa_free(out);
		resolve_anchors(&inner, out);
		if (inner.too_large || out->too_large)
			fail(&p, "it needs too many states");
		else
			char_nfa_trim(out);
	}
	char_nfa_free(&inner);
	free(p.nodes);
	free(p.ranges);
	return p.failed ? ERR_INPUT : 0;
}

/* ---- formats ---- */

#define YEAR "[1-9][0-9]{3}"
#define DATE                                                                                       \
	YEAR "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"          \
		 "02-(0[1-9]|1[0-9]|2[0-8]))"
#define TIME                                                                                       \
	"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]" \
	")"
#define HEX4          "[0-9a-fA-F]{1,4}"
#define BYTE          "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define HEX           "[0-9a-fA-F]"
#define UUID(version) HEX "{8}-" HEX "{4}-" version HEX "{3}-[89abAB]" HEX "{3}-" HEX "{12}"
#define LABEL         "[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
#define HOST          "(" LABEL "\\.){1,4}[A-Za-z]{2,12}"
#define PATH          "(/[A-Za-z0-9._~-]*)*"
#define QUERY         "(\\?[A-Za-z0-9._~=&-]*)?(#[A-Za-z0-9._~-]*)?"

int pattern_format(const char *format, struct char_nfa *out, struct err *e)
{
	static const char *const table[][2] = {
		{"date", DATE},
		{"time", TIME},
		{"date-time", DATE "T" TIME},
		{"duration",
			"P([0-9]{1,4}W|[0-9]{1,4}Y([0-9]{1,2}M([0-9]{1,2}D)?)?|[0-9]{1,2}M([0-9]{1,2}D)?|"
			"[0-9]{1,4}D(T[0-9]{1,2}H([0-9]{1,2}M([0-9]{1,2}S)?)?)?|"
			"T([0-9]{1,4}H([0-9]{1,2}M([0-9]{1,2}S)?)?|[0-9]{1,4}M([0-9]{1,2}S)?|[0-9]{1,4}S))"},
		{"uuid", UUID("[1-8]")},
		{"uuid4", UUID("4")},
		{"email", "[A-Za-z0-9]+([._+-][A-Za-z0-9]+){0,4}@" HOST},
		{"hostname", HOST},
		{"ipv4", BYTE "(\\." BYTE "){3}"},
		{"ipv6", "(" HEX4 ":){7}" HEX4 "|" HEX4 "(:" HEX4 "){0,2}::" HEX4 "(:" HEX4 "){0,3}|::"
				 "(" HEX4 "(:" HEX4 "){0,6})?|" HEX4 "(:" HEX4 "){0,6}::"},
		{"byte", "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"},
		/* numbers as strings, as protobuf writes them */
		{"int32", "-?(0|[1-9][0-9]{0,8})"},
		{"int64", "-?(0|[1-9][0-9]{0,17})"},
		{"double", "-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,16})?([eE][+-]?[0-9]{1,2})?"},
		{"uri", "https?://" HOST "(:[1-9][0-9]{1,3})?" PATH QUERY},
	};
	static const char *const same[][2] = {{"uri-reference", "uri"}, {"iri", "uri"},
		{"idn-email", "email"}, {"idn-hostname", "hostname"}, {"float", "double"}};
	static const char *const any[] = {
		"password", "binary", "path", "file-path", "directory-path"}; /* only describe */
	for (size_t i = 0; i < ARRAY_LEN(any); i++)
		if (!strcmp(format, any[i])) {
			char_nfa_length(out, 0, SIZE_MAX);
			return 0;
		}
	for (size_t i = 0; i < ARRAY_LEN(same); i++)
		if (!strcmp(format, same[i][0]))
			format = same[i][1];
	char_nfa_init(out);
	for (size_t i = 0; i < ARRAY_LEN(table); i++) {
		if (strcmp(format, table[i][0]) != 0)
			continue;
		char anchored[1024];
		char_nfa_free(out);
		int n = snprintf(anchored, sizeof anchored, "^(%s)$", table[i][1]);
		return pattern_compile(anchored, (size_t)n, out, e);
	}
	return err_set(e, ERR_INPUT, "the format \"%.60s\" is not supported", format);
}
