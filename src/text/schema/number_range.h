/* SPDX-License-Identifier: MIT */
/*
 * Which decimal numbers lie in a range and are multiples of a number, as automata.
 *
 * Numbers are written without exponent, with at most 18 digits before the point. They have at most
 * 15 significant digits near a bound, so that reading them as doubles cannot move them across it.
 */
#ifndef GLM_TEXT_NUMBER_RANGE_H
#define GLM_TEXT_NUMBER_RANGE_H

#include "src/text/schema/char_nfa.h"

struct number_range {
	bool has_min, has_max, exclusive_min, exclusive_max;
	bool whole;      /* integers only */
	double min, max; /* finite */
	/* Multiples of multiple_of / 10^multiple_places: 1 .. NUMBER_MULTIPLE_MAX and 0 ..
	 * NUMBER_PLACES_MAX. 0: any number. */
	uint32_t multiple_of, multiple_places;
};

#define NUMBER_TOO_LARGE    1e18 /* has more than 18 digits before the point */
#define NUMBER_MULTIPLE_MAX 1000
#define NUMBER_PLACES_MAX   9

/* *out: a trimmed automaton, perhaps without any text. */
void number_range_nfa(const struct number_range *r, struct char_nfa *out);

#endif
