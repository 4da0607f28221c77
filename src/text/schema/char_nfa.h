/* SPDX-License-Identifier: MIT */
/*
 * Nondeterministic finite automata over Unicode characters: the set of texts that a JSON string or
 * number may have. The schema compiler makes one for each pattern, format, length and range,
 * intersects them, and turns the result into bytes of JSON (schema_build.h).
 *
 * An automaton has one start and one final state. Build it with char_nfa_state and the edges, then
 * char_nfa_trim it; char_nfa_free releases it, also one that was never trimmed. Beyond the limit
 * of states or edges, and when memory is exhausted, too_large is set and the texts of the automaton
 * mean nothing. One thread at a time.
 */
#ifndef GLM_TEXT_CHAR_NFA_H
#define GLM_TEXT_CHAR_NFA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHAR_MAX_POINT      0x10ffffu
#define CHAR_NFA_STATES_MAX 120000 /* of one automaton; edges: four times as many */

/* Takes one character of lo..hi; lo > hi: an empty edge, which takes none. */
struct char_edge {
	uint32_t from, to, lo, hi;
};

/* Zero-initialise, then char_nfa_init. */
struct char_nfa {
	struct char_edge *edges; /* [n_edges] */
	size_t n_edges, cap;
	uint32_t n_states, start, final;
	bool too_large;
};

void char_nfa_init(struct char_nfa *n);      /* start 0, final 1, no edges */
void char_nfa_free(struct char_nfa *n);      /* what it owns; leaves it zeroed */
uint32_t char_nfa_state(struct char_nfa *n); /* the number of a new state */
/* lo <= hi. */
void char_nfa_edge(struct char_nfa *n, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi);
void char_nfa_empty(struct char_nfa *n, uint32_t from, uint32_t to);
/* An alternative: this ASCII or UTF-8 text from start to final. */
void char_nfa_text(struct char_nfa *n, const char *text, size_t len);
/* The texts of b, between two states of n. */
void char_nfa_append(struct char_nfa *n, uint32_t from, uint32_t to, const struct char_nfa *b);

/* These make n anew (it was not initialised, or freed). Texts of min to max characters (max
 * SIZE_MAX: no limit). */
void char_nfa_length(struct char_nfa *n, size_t min, size_t max);
/* Every text but these. texts: [count] sorted with strcmp, without duplicates. Recurses as deep as
 * the longest has characters. */
void char_nfa_except(struct char_nfa *n, const char *const *texts, size_t count);

/* *a becomes the intersection of *a and *b, trimmed; *b is freed. */
void char_nfa_intersect(struct char_nfa *a, struct char_nfa *b);
/* Drops states that lie on no path from start to final. False: no text is left. */
bool char_nfa_trim(struct char_nfa *n);
/* Whether a text of valid UTF-8 is accepted. */
bool char_nfa_matches(const struct char_nfa *n, const char *text, size_t len);

#endif
