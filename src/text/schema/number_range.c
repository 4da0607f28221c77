/* SPDX-License-Identifier: MIT */
/* A bound is compared digit by digit: as long as all digits were equal to the bound's, the number
 * is "tight"; the first that differs decides, and the number of digits before the point must agree.
 */
#include "src/text/schema/number_range.h"

#include "src/base/err.h"
#include "src/base/num.h"
#include "src/text/schema/pattern.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_MAX 18 /* before the point; larger bounds bind nothing */

struct decimal {
	char whole[DIGITS_MAX + 8]; /* without leading zeros; "0" */
	char fraction[64];          /* without trailing zeros */
};

/* The shortest decimal fraction that is the double `v` >= 0, below 1e18. */
static struct decimal decimal_of(double v)
{
	struct decimal d = {0};
	char text[128];
	for (int places = 0; places <= 40; places++) {
		snprintf(text, sizeof text, "%.*f", places, v);
		if (strtod(text, NULL) == v)
			break;
	}
	char *dot = strchr(text, '.');
	if (dot) {
		*dot = 0;
		snprintf(d.fraction, sizeof d.fraction, "%.60s", dot + 1);
		for (size_t n = strlen(d.fraction); n && d.fraction[n - 1] == '0';)
			d.fraction[--n] = 0;
	}
	snprintf(d.whole, sizeof d.whole, "%.*s", DIGITS_MAX + 1, text);
	return d;
}

/* The ends that both comparisons share: behind them the number is decided. */
struct ends {
	struct char_nfa *n;
	uint32_t whole_end; /* the digits before the point are complete, anything may follow */
	uint32_t fraction;  /* any further digits behind the point */
};

/* Initialises *n with them. */
static struct ends ends_make(struct char_nfa *n)
{
	char_nfa_init(n);
	struct ends e = {n, char_nfa_state(n), char_nfa_state(n)};
	char_nfa_empty(n, e.whole_end, n->final);
	char_nfa_edge(n, e.whole_end, e.fraction, '.', '.');
	char_nfa_edge(n, e.fraction, e.fraction, '0', '9');
	char_nfa_empty(n, e.fraction, n->final);
	return e;
}

/* A way on with digits from lo to hi, if there are any. */
static void digits_edge(struct char_nfa *n, uint32_t from, uint32_t to, int lo, int hi)
{
	if (lo <= hi)
		char_nfa_edge(n, from, to, (uint32_t)lo, (uint32_t)hi);
}

/* *n: numbers without sign that are at most b (at_most) or at least b; exclusive: not b itself. The
 * path `tight` follows the digits of b, `any` counts digits for a number of another length. */
static void compare(struct char_nfa *n, const struct decimal *b, bool at_most, bool exclusive)
{
	struct ends e = ends_make(n);
	size_t whole = strlen(b->whole), places = strlen(b->fraction);
	uint32_t any = n->start, tight = any, loose[DIGITS_MAX + 8];
	for (size_t i = 0; i <= whole; i++) /* i digits are read, the number is decided */
		loose[i] = i == whole ? e.whole_end : char_nfa_state(n);
	for (size_t i = 1; i < whole; i++)
		char_nfa_edge(n, loose[i], loose[i + 1], '0', '9');
	for (size_t i = 0; i < whole; i++) { /* another number of digits */
		uint32_t next = char_nfa_state(n);
		char_nfa_edge(n, any, next, '0', '9');
		any = next;
		if (at_most && i + 1 < whole)
			char_nfa_empty(n, any, e.whole_end);
	}
	if (!at_most) {
		uint32_t more = char_nfa_state(n);
		char_nfa_edge(n, any, more, '0', '9');
		char_nfa_edge(n, more, more, '0', '9');
		char_nfa_empty(n, more, e.whole_end);
	}
	for (size_t i = 0; i < whole; i++) {
		int d = (unsigned char)b->whole[i];
		digits_edge(n, tight, loose[i + 1], at_most ? '0' : d + 1, at_most ? d - 1 : '9');
		uint32_t next = char_nfa_state(n);
		char_nfa_edge(n, tight, next, (uint32_t)d, (uint32_t)d);
		tight = next;
	}
	if (at_most ? !exclusive || places : !exclusive && !places)
		char_nfa_empty(n, tight, n->final);
	uint32_t next = char_nfa_state(n);
	char_nfa_edge(n, tight, next, '.', '.');
	tight = next;
	for (size_t i = 0; i < places; i++) {
		int d = (unsigned char)b->fraction[i];
		digits_edge(n, tight, e.fraction, at_most ? '0' : d + 1, at_most ? d - 1 : '9');
		next = char_nfa_state(n);
		char_nfa_edge(n, tight, next, (uint32_t)d, (uint32_t)d);
		tight = next;
		if (at_most && i + 1 < places)
			char_nfa_empty(n, tight, n->final);
	}
	char_nfa_edge(n, tight, tight, '0', '0');
	if (!at_most)
		char_nfa_edge(n, tight, e.fraction, '1', '9');
	if (!exclusive)
		char_nfa_empty(n, tight, n->final);
}

/* *n: digits of the multiples of m; a state for each remainder. */
static void divisible(struct char_nfa *n, uint32_t m)
{
	char_nfa_init(n);
	uint32_t first = n->n_states;
	for (uint32_t i = 0; i < m; i++)
		char_nfa_state(n);
	char_nfa_empty(n, n->start, first);
	char_nfa_empty(n, first, n->final);
	for (uint32_t rest = 0; rest < m; rest++)
		for (uint32_t d = 0; d < 10; d++)
			char_nfa_edge(n, first + rest, first + (10 * rest + d) % m, '0' + d, '0' + d);
}

/* Numbers without sign from lo to hi (infinity: no limit). */
static void magnitudes(struct char_nfa *out, const struct number_range *r, double lo, bool lo_open,
	double hi, bool hi_open)
{
	struct decimal min = decimal_of(lo < 1e18 ? lo : 1e18), max = decimal_of(hi < 1e18 ? hi : 0);
	bool bounded = hi < 1e18;
	size_t digits = MAX(strlen(min.whole), bounded ? strlen(max.whole) : 0);
	size_t places = r->whole || r->multiple_of || digits >= 15 ? 0 : 15 - digits;
	char base[96];
	snprintf(base, sizeof base,
		places ? "^(0|[1-9][0-9]{0,17})(\\.[0-9]{1,%zu})?$" : "^(0|[1-9][0-9]{0,17})$", places);
	struct err e;
	struct char_nfa side;
	pattern_compile(base, strlen(base), out, &e);
	compare(&side, &min, false, lo_open);
	char_nfa_intersect(out, &side);
	if (bounded) {
		compare(&side, &max, true, hi_open);
		char_nfa_intersect(out, &side);
	}
	if (r->multiple_of > 1) {
		divisible(&side, r->multiple_of);
		char_nfa_intersect(out, &side);
	}
}

void number_range_nfa(const struct number_range *r, struct char_nfa *out)
{
	double min = r->has_min ? r->min : -INFINITY, max = r->has_max ? r->max : INFINITY;
	struct char_nfa part;
	char_nfa_init(out);
	if (max >= 0) {
		bool from_min = min >= 0;
		magnitudes(
			&part, r, from_min ? min : 0, from_min && r->exclusive_min, max, r->exclusive_max);
		char_nfa_append(out, out->start, out->final, &part);
		char_nfa_free(&part);
	}
	if (min < 0) {
		bool to_max = max < 0;
		uint32_t minus = char_nfa_state(out);
		magnitudes(
			&part, r, to_max ? -max : 0, to_max ? r->exclusive_max : true, -min, r->exclusive_min);
		char_nfa_edge(out, out->start, minus, '-', '-');
		char_nfa_append(out, minus, out->final, &part);
		char_nfa_free(&part);
	}
	char_nfa_trim(out);
}
