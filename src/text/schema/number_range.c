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

#define DIGITS_MAX 18     /* before the point */
#define EXACT_MAX  0x1p53 /* from here on doubles are more than 1 apart */

/* An end of the range as a decimal of at most 15 digits (integers: 18), so that neighbours stay
 * distinct doubles. */
struct decimal {
	char whole[DIGITS_MAX + 8]; /* without leading zeros; "0" */
	char fraction[32];          /* without trailing zeros */
};

static size_t digits_before_point(double v)
{
	char text[64];
	return (size_t)snprintf(text, sizeof text, "%.0f", floor(v));
}

/* The decimal nearest to v inside the range, of at most `places` places: the least that is at least
 * v (up), or the greatest that is at most v; open: not v itself. 0 <= v < NUMBER_TOO_LARGE. False:
 * none. */
static bool decimal_inside(double v, bool open, size_t places, bool up, struct decimal *d)
{
	char text[64];
	*d = (struct decimal){0};
	if (open && v >= EXACT_MAX) {
		v = nextafter(v, up ? INFINITY : 0);
		open = false;
	}
	/* with a fraction there are at most 15 digits: they are one integer */
	size_t whole = digits_before_point(v);
	places = MIN(places, whole < 15 ? 15 - whole : 0);
	snprintf(text, sizeof text, "%.*f", (int)places, v);
	double near = strtod(text, NULL);
	char *dot = strchr(text, '.');
	if (dot)
		memmove(dot, dot + 1, strlen(dot));
	long long n = strtoll(text, NULL, 10);
	if (near == v ? open : up ? near < v : near > v)
		n += up ? 1 : -1;
	if (n < 0)
		return false;
	snprintf(text, sizeof text, "%0*lld", (int)places + 1, n);
	whole = strlen(text) - places;
	memcpy(d->whole, text, MIN(whole, sizeof d->whole - 1));
	memcpy(d->fraction, text + whole, MIN(places, sizeof d->fraction - 1));
	for (size_t k = strlen(d->fraction); k && d->fraction[k - 1] == '0';)
		d->fraction[--k] = 0;
	return true;
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

/* *n: numbers without sign that are at most b (at_most) or at least b. The path `tight` follows the
 * digits of b, `any` counts digits for a number of another length. */
static void compare(struct char_nfa *n, const struct decimal *b, bool at_most)
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
	if (at_most || !places)
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
	char_nfa_empty(n, tight, n->final);
}

/* *n: multiples of m / 10^places; a state for each remainder and each number of digits behind the
 * point. */
static void divisible(struct char_nfa *n, uint32_t m, uint32_t places)
{
	char_nfa_init(n);
	uint32_t first = n->n_states, scale = 1;
	for (uint32_t i = 0; i < m * (places + 2); i++)
		char_nfa_state(n);
	char_nfa_empty(n, n->start, first);
	/* row 0 before the point, row 1 + k behind it with k digits; backwards, for the scale */
	for (uint32_t row = places + 2; row--;) {
		uint32_t at = first + row * m, next = row ? at + m : at;
		for (uint32_t rest = 0; rest < m; rest++) {
			if ((uint64_t)rest * scale % m == 0)
				char_nfa_empty(n, at + rest, n->final);
			for (uint32_t d = 0; d < 10 && row <= places; d++)
				char_nfa_edge(n, at + rest, next + (10 * rest + d) % m, '0' + d, '0' + d);
			if (!row && places)
				char_nfa_edge(n, at + rest, at + m + rest, '.', '.');
		}
		scale *= row > 1 ? 10 : 1;
	}
}

/* Numbers without sign from lo to hi (infinity: no limit). */
static void magnitudes(struct char_nfa *out, const struct number_range *r, double lo, bool lo_open,
	double hi, bool hi_open)
{
	struct decimal min, max;
	bool bounded = hi < NUMBER_TOO_LARGE || (hi == NUMBER_TOO_LARGE && hi_open);
	size_t digits = MAX(digits_before_point(MIN(lo, NUMBER_TOO_LARGE)),
			   bounded ? digits_before_point(hi) : 0),
		   places = r->whole      ? 0
					: digits < 15 ? 15 - digits
								  : 11;
	if (r->multiple_of)
		places = MIN(places, r->multiple_places);
	char_nfa_init(out);
	if (lo >= NUMBER_TOO_LARGE || !decimal_inside(lo, lo_open, places, true, &min) ||
		(bounded && !decimal_inside(hi, hi_open, places, false, &max)))
		return;
	char base[160];
	if (!places)
		snprintf(base, sizeof base, "^(0|[1-9][0-9]{0,17})$");
	else if (digits < 15)
		snprintf(base, sizeof base, "^(0|[1-9][0-9]{0,17})(\\.[0-9]{1,%zu})?$", places);
	else /* a fraction only far from the bound */
		snprintf(base, sizeof base,
			"^((0|[1-9][0-9]{0,3})\\.[0-9]{1,%zu}|(0|[1-9][0-9]{0,9})\\.[0-9]{1,%zu}|"
			"(0|[1-9][0-9]{0,17}))$",
			places, MIN(places, 5));
	struct err e;
	struct char_nfa side;
	pattern_compile(base, strlen(base), out, &e);
	compare(&side, &min, false);
	char_nfa_intersect(out, &side);
	if (bounded) {
		compare(&side, &max, true);
		char_nfa_intersect(out, &side);
	}
	if (r->multiple_of > 1) {
		divisible(&side, r->multiple_of, r->multiple_places);
		char_nfa_intersect(out, &side);
	}
}

void number_range_nfa(const struct number_range *r, struct char_nfa *out)
{
	/* + 0.0: no zero with a sign */
	double min = r->has_min ? r->min + 0.0 : -INFINITY, max = r->has_max ? r->max + 0.0 : INFINITY;
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
