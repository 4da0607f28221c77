/* SPDX-License-Identifier: MIT */
/*
 * A context-free grammar of bytes: rules, each a nondeterministic automaton whose edges take a
 * byte, nothing, or a text of another rule. It describes what an answer may be; grammar_run.h walks
 * it.
 *
 * Build: grammar_begin, grammar_rule, grammar_state and the edges, then grammar_finish. Limits are
 * not checked call by call: beyond them, and when memory is exhausted, too_large is set, rules and
 * edges are dropped, and grammar_finish refuses. A finished grammar is constant: any thread may use
 * it.
 *
 * `needs` of a state: how deep rules have to be nested, at least, on a path from it to the end of
 * its rule. A walk that enters a state only if the rules open there and its `needs` are at most
 * GRAMMAR_DEPTH_MAX together can always end.
 */
#ifndef GLM_TEXT_GRAMMAR_H
#define GLM_TEXT_GRAMMAR_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GRAMMAR_DEPTH_MAX  120 /* rules open at a time; JSON parsers refuse from 128 levels on */
#define GRAMMAR_STATES_MAX 400000
/* Limit of an epsilon closure, called rules included: from the start of a rule, and from each state
 * behind a byte or a call. */
#define GRAMMAR_REACHED_MAX 4096
#define GRAMMAR_NEVER       0xff /* `needs` of a state from which no path ends */

enum grammar_edge_kind { GRAMMAR_BYTES, GRAMMAR_EMPTY, GRAMMAR_CALL };

struct grammar_edge {
	uint32_t from, to;
	uint32_t rule; /* GRAMMAR_CALL */
	uint8_t kind, lo, hi;
};

struct grammar_rule {
	uint32_t start, final;
	uint8_t height; /* `needs` of its start; GRAMMAR_NEVER: it has no text */
};

struct grammar {
	struct grammar_edge *edges; /* [n_edges]; by `from` when finished */
	size_t n_edges, edges_cap;
	struct grammar_rule *rules; /* [n_rules] */
	size_t n_rules, rules_cap;
	uint32_t n_states;
	bool too_large;
	/* Texts are JSON. The rules alone allow a key twice in an object; grammar_run refuses the
	 * repetition (unique_keys.h). */
	bool unique_keys;
	uint32_t root; /* the rule of whole texts */
	/* finished */
	uint32_t *first;    /* [n_states + 1] edges of each state */
	uint8_t *needs;     /* [n_states] */
	uint32_t *final_of; /* [n_states] 1 + the rule that ends there; 0: none */
};

/* Initialises *g; grammar_free also after an error. ERR_MEMORY in a scope only (mem.h). */
int grammar_begin(struct grammar *g);
void grammar_free(struct grammar *g); /* also of a zeroed one */
/* A new rule with its start and final state, and a new state: their numbers. */
uint32_t grammar_rule(struct grammar *g);
uint32_t grammar_state(struct grammar *g);
/* Edges: any byte of lo..hi, nothing, any text of a rule. */
void grammar_bytes(struct grammar *g, uint32_t from, uint32_t to, uint8_t lo, uint8_t hi);
void grammar_empty(struct grammar *g, uint32_t from, uint32_t to);
void grammar_call(struct grammar *g, uint32_t from, uint32_t to, uint32_t rule);
/* The bytes of a text one after the other; returns the state behind them. */
uint32_t grammar_text(struct grammar *g, uint32_t from, const char *text, size_t n);

/* Makes `root` the rule of whole texts and computes the fields below "finished". ERR_INPUT when the
 * grammar is too large, has no text, has a rule that begins with itself, or exceeds
 * GRAMMAR_REACHED_MAX; ERR_MEMORY in a scope only. */
int grammar_finish(struct grammar *g, uint32_t root, struct err *e);

#endif
