/* SPDX-License-Identifier: MIT */
#include "src/text/schema/grammar.h"

#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>
#include <string.h>

void grammar_free(struct grammar *g)
{
	free(g->edges);
	free(g->rules);
	free(g->first);
	free(g->needs);
	free(g->final_of);
	*g = (struct grammar){0};
}

int grammar_begin(struct grammar *g)
{
	*g = (struct grammar){.rules_cap = 64};
	return mem_grow_array(&g->rules, g->rules_cap, sizeof *g->rules) ? 0 : ERR_MEMORY;
}

uint32_t grammar_state(struct grammar *g)
{
	if (g->n_states >= GRAMMAR_STATES_MAX) {
		g->too_large = true;
		return 0;
	}
	return g->n_states++;
}

uint32_t grammar_rule(struct grammar *g)
{
	if (g->n_rules == g->rules_cap) {
		if (!mem_grow_array(&g->rules, 2 * g->rules_cap, sizeof *g->rules)) {
			g->too_large = true;
			return 0;
		}
		g->rules_cap *= 2;
	}
	g->rules[g->n_rules] =
		(struct grammar_rule){.start = grammar_state(g), .height = GRAMMAR_NEVER};
	g->rules[g->n_rules].final = grammar_state(g);
	return (uint32_t)g->n_rules++;
}

static void edge_add(struct grammar *g, struct grammar_edge e)
{
	if (g->n_edges >= 3 * (size_t)GRAMMAR_STATES_MAX) {
		g->too_large = true;
		return;
	}
	if (g->n_edges == g->edges_cap) {
		size_t cap = g->edges_cap ? 2 * g->edges_cap : 256;
		if (!mem_grow_array(&g->edges, cap, sizeof *g->edges)) {
			g->too_large = true;
			return;
		}
		g->edges_cap = cap;
	}
	g->edges[g->n_edges++] = e;
}

void grammar_bytes(struct grammar *g, uint32_t from, uint32_t to, uint8_t lo, uint8_t hi)
{
	edge_add(g, (struct grammar_edge){from, to, 0, GRAMMAR_BYTES, lo, hi});
}

void grammar_empty(struct grammar *g, uint32_t from, uint32_t to)
{
	edge_add(g, (struct grammar_edge){from, to, 0, GRAMMAR_EMPTY, 0, 0});
}

void grammar_call(struct grammar *g, uint32_t from, uint32_t to, uint32_t rule)
{
	edge_add(g, (struct grammar_edge){from, to, rule, GRAMMAR_CALL, 0, 0});
}

uint32_t grammar_text(struct grammar *g, uint32_t from, const char *text, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t to = grammar_state(g);
		grammar_bytes(g, from, to, (uint8_t)text[i], (uint8_t)text[i]);
		from = to;
	}
	return from;
}

/* ---- finishing ---- */

#define NO_MEMORY "there is no memory for the schema"

/* False: memory is exhausted; so below. */
static bool edges_sort(struct grammar *g)
{
	struct grammar_edge *sorted = NEW_ARRAY(struct grammar_edge, g->n_edges + 1);
	uint32_t *first = NEW_ARRAY(uint32_t, g->n_states + 2);
	if (!sorted || !first) {
		free(sorted);
		free(first);
		return false;
	}
	for (size_t i = 0; i < g->n_edges; i++)
		first[g->edges[i].from + 2]++;
	for (uint32_t s = 0; s < g->n_states; s++)
		first[s + 2] += first[s + 1];
	for (size_t i = 0; i < g->n_edges; i++)
		sorted[first[g->edges[i].from + 1]++] = g->edges[i];
	free(g->edges);
	g->edges = sorted;
	g->first = first;
	return true;
}

/* The work of needs_find: states by the number of rules that have to be open to reach the end,
 * level by level, from the ends of rules backwards. */
struct needs {
	struct grammar *g;
	uint32_t *back_first, *back; /* edges by target */
	uint32_t *todo;
	size_t n_todo;
};

static void needs_set(struct needs *n, uint32_t state, uint8_t level)
{
	if (n->g->needs[state] != GRAMMAR_NEVER)
		return;
	n->g->needs[state] = level;
	n->todo[n->n_todo++] = state;
}

static bool edge_usable(const struct grammar *g, const struct grammar_edge *e, uint8_t level)
{
	return e->kind != GRAMMAR_CALL || g->rules[e->rule].height < level;
}

static void needs_spread(struct needs *n, uint8_t level)
{
	struct grammar *g = n->g;
	while (n->n_todo) {
		uint32_t s = n->todo[--n->n_todo];
		for (uint32_t i = n->back_first[s]; i < n->back_first[s + 1]; i++) {
			const struct grammar_edge *e = &g->edges[n->back[i]];
			if (edge_usable(g, e, level))
				needs_set(n, e->from, level);
		}
	}
}

static bool needs_find(struct grammar *g)
{
	struct needs n = {.g = g,
		.back_first = NEW_ARRAY(uint32_t, g->n_states + 2),
		.back = NEW_ARRAY(uint32_t, g->n_edges + 1),
		.todo = NEW_ARRAY(uint32_t, g->n_states + 1)};
	g->needs = NEW_ARRAY(uint8_t, g->n_states + 1);
	bool good = n.back_first && n.back && n.todo && g->needs;
	if (!good)
		goto done;
	memset(g->needs, GRAMMAR_NEVER, g->n_states);
	for (size_t i = 0; i < g->n_edges; i++)
		n.back_first[g->edges[i].to + 2]++;
	for (uint32_t s = 0; s < g->n_states; s++)
		n.back_first[s + 2] += n.back_first[s + 1];
	for (size_t i = 0; i < g->n_edges; i++)
		n.back[n.back_first[g->edges[i].to + 1]++] = (uint32_t)i;
	for (size_t r = 0; r < g->n_rules; r++)
		needs_set(&n, g->rules[r].final, 0);
	bool more = true;
	for (uint8_t level = 0; more && level <= GRAMMAR_DEPTH_MAX; level++) {
		for (size_t i = 0; level && i < g->n_edges; i++) {
			const struct grammar_edge *e = &g->edges[i];
			if (e->kind == GRAMMAR_CALL && g->needs[e->to] != GRAMMAR_NEVER &&
				edge_usable(g, e, level))
				needs_set(&n, e->from, level);
		}
		needs_spread(&n, level);
		more = !level;
		for (size_t r = 0; r < g->n_rules; r++)
			if (g->rules[r].height == GRAMMAR_NEVER &&
				g->needs[g->rules[r].start] != GRAMMAR_NEVER) {
				g->rules[r].height = level;
				more = true;
			}
	}
done:
	free(n.back_first);
	free(n.back);
	free(n.todo);
	return good;
}

/* ---- what is reached without a byte ---- */

#define REACHED_WORK 40000000 /* states that the searches of one grammar may meet */

/* The rules that a rule may call before its first byte: edges of a graph. Rules that may be empty
 * (white space) stand behind bytes only, or begin the root, which nothing calls; so what follows a
 * call need not be looked at. */
struct first_calls {
	const struct grammar *g;
	/* the search from one state: states of its rule, GRAMMAR_REACHED_MAX + 1 at most */
	uint32_t *reached; /* [n_reached] */
	size_t n_reached;
	uint32_t *met; /* [n_states] number of the search that met a state last */
	uint32_t searches;
	size_t work;     /* states that all searches have met */
	uint32_t *calls; /* of all rules, one after the other */
	size_t n_calls, cap;
	size_t *from; /* [n_rules + 1] where each rule's begin */
	/* [n_rules] states that are reached before a byte: own, then with those of calls */
	uint32_t *size;
};

/* Fills f->reached. */
static void reach_from(struct first_calls *f, uint32_t state)
{
	const struct grammar *g = f->g;
	f->met[state] = ++f->searches;
	f->reached[0] = state;
	f->n_reached = 1;
	for (size_t k = 0; k < f->n_reached; k++)
		for (uint32_t i = g->first[f->reached[k]]; i < g->first[f->reached[k] + 1]; i++) {
			const struct grammar_edge *e = &g->edges[i];
			if (e->kind != GRAMMAR_EMPTY || f->met[e->to] == f->searches ||
				f->n_reached > GRAMMAR_REACHED_MAX)
				continue;
			f->met[e->to] = f->searches;
			f->reached[f->n_reached++] = e->to;
		}
	f->work += f->n_reached;
}

static bool first_calls_find(struct first_calls *f, size_t rule)
{
	const struct grammar *g = f->g;
	f->from[rule] = f->n_calls;
	reach_from(f, g->rules[rule].start);
	f->size[rule] = (uint32_t)f->n_reached;
	for (size_t k = 0; k < f->n_reached; k++)
		for (uint32_t i = g->first[f->reached[k]]; i < g->first[f->reached[k] + 1]; i++) {
			if (g->edges[i].kind != GRAMMAR_CALL)
				continue;
			if (f->n_calls == f->cap) {
				size_t cap = f->cap ? 2 * f->cap : 256;
				if (!mem_grow_array(&f->calls, cap, sizeof *f->calls))
					return false;
				f->cap = cap;
			}
			f->calls[f->n_calls++] = g->edges[i].rule;
		}
	return true;
}

/* All calls of the rule have their size. */
static void first_calls_sum(struct first_calls *f, uint32_t rule)
{
	uint64_t all = f->size[rule];
	for (size_t i = f->from[rule]; i < f->from[rule + 1]; i++)
		all += f->size[f->calls[i]];
	f->size[rule] = (uint32_t)MIN(all, UINT32_MAX);
}

/* True when more than GRAMMAR_REACHED_MAX states are reached from a state behind a byte or a call,
 * or when REACHED_WORK does not do to find out. All rules have their size. */
static bool too_many_behind(struct first_calls *f, uint8_t *looked)
{
	const struct grammar *g = f->g;
	for (size_t i = 0; i < g->n_edges; i++) {
		uint32_t to = g->edges[i].to;
		if (g->edges[i].kind == GRAMMAR_EMPTY || looked[to])
			continue;
		looked[to] = 1;
		reach_from(f, to);
		uint64_t all = f->n_reached;
		for (size_t k = 0; k < f->n_reached; k++)
			for (uint32_t j = g->first[f->reached[k]]; j < g->first[f->reached[k] + 1]; j++)
				if (g->edges[j].kind == GRAMMAR_CALL)
					all += f->size[g->edges[j].rule];
		if (all > GRAMMAR_REACHED_MAX || f->work > REACHED_WORK)
			return true;
	}
	return false;
}

/* Refuses rules that begin with themselves, and places with too many ways to go on. */
static int check_reached(const struct grammar *g, struct err *e)
{
	struct first_calls f = {.g = g,
		.reached = NEW_ARRAY(uint32_t, GRAMMAR_REACHED_MAX + 1),
		.met = NEW_ARRAY(uint32_t, g->n_states + 1),
		.from = NEW_ARRAY(size_t, g->n_rules + 1),
		.size = NEW_ARRAY(uint32_t, g->n_rules)};
	/* depth first: 1 on the way here, 2 done */
	uint8_t *mark = NEW_ARRAY(uint8_t, g->n_rules), *looked = NEW_ARRAY(uint8_t, g->n_states + 1);
	uint32_t *path = NEW_ARRAY(uint32_t, g->n_rules);
	size_t *next = NEW_ARRAY(size_t, g->n_rules), depth;
	bool found = false, too_many = false,
		 good = f.reached && f.met && f.from && f.size && mark && looked && path && next;
	for (size_t r = 0; r < g->n_rules && good; r++)
		good = first_calls_find(&f, r);
	if (!good)
		goto done;
	f.from[g->n_rules] = f.n_calls;
	for (size_t r = 0; r < g->n_rules && !found; r++) {
		if (mark[r])
			continue;
		path[0] = (uint32_t)r;
		next[0] = f.from[r];
		mark[r] = 1;
		for (depth = 1; depth && !found;) {
			uint32_t at = path[depth - 1];
			if (next[depth - 1] == f.from[at + 1]) {
				first_calls_sum(&f, at);
				too_many = too_many || f.size[at] > GRAMMAR_REACHED_MAX;
				mark[at] = 2;
				depth--;
				continue;
			}
			uint32_t to = f.calls[next[depth - 1]++];
			found = mark[to] == 1;
			if (mark[to])
				continue;
			mark[to] = 1;
			path[depth] = to;
			next[depth++] = f.from[to];
		}
	}
	too_many = too_many || (!found && too_many_behind(&f, looked));
done:
	free(mark);
	free(looked);
	free(path);
	free(next);
	free(f.reached);
	free(f.met);
	free(f.calls);
	free(f.from);
	free(f.size);
	if (!good)
		return err_set(e, ERR_MEMORY, NO_MEMORY);
	if (found)
		return err_set(e, ERR_INPUT, "the schema refers to itself with nothing between");
	if (too_many)
		return err_set(e, ERR_INPUT,
			"a value has more than %d alternatives, or a pattern as many parts that may be empty",
			GRAMMAR_REACHED_MAX);
	return 0;
}

int grammar_finish(struct grammar *g, uint32_t root, struct err *e)
{
	if (g->too_large)
		return err_set(
			e, ERR_INPUT, "the schema is too large: more than %d states", GRAMMAR_STATES_MAX);
	g->root = root;
	g->final_of = NEW_ARRAY(uint32_t, g->n_states + 1);
	if (!g->final_of || !edges_sort(g) || !needs_find(g))
		return err_set(e, ERR_MEMORY, NO_MEMORY);
	for (size_t r = 0; r < g->n_rules; r++)
		g->final_of[g->rules[r].final] = 1 + (uint32_t)r;
	if (g->rules[root].height == GRAMMAR_NEVER)
		return err_set(e, ERR_INPUT,
			"no value satisfies the schema (or none nested less than %d deep)", GRAMMAR_DEPTH_MAX);
	return check_reached(g, e);
}
