/* SPDX-License-Identifier: MIT */
/* Edges lie in one array in the order of their making; what needs them by state makes an index
 * first (edge_index). */
#include "src/text/schema/char_nfa.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/text/utf8.h"

#include <stdlib.h>
#include <string.h>

void char_nfa_init(struct char_nfa *n)
{
	*n = (struct char_nfa){.n_states = 2, .start = 0, .final = 1};
}

void char_nfa_free(struct char_nfa *n)
{
	free(n->edges);
	*n = (struct char_nfa){0};
}

uint32_t char_nfa_state(struct char_nfa *n)
{
	if (n->n_states >= CHAR_NFA_STATES_MAX) {
		n->too_large = true;
		return n->final;
	}
	return n->n_states++;
}

void char_nfa_edge(struct char_nfa *n, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
	if (n->n_edges >= 4 * (size_t)CHAR_NFA_STATES_MAX) {
		n->too_large = true;
		return;
	}
	if (n->n_edges == n->cap) {
		size_t cap = n->cap ? 2 * n->cap : 32;
		if (!mem_grow_array(&n->edges, cap, sizeof *n->edges)) {
			n->too_large = true;
			return;
		}
		n->cap = cap;
	}
	n->edges[n->n_edges++] = (struct char_edge){from, to, lo, hi};
}

void char_nfa_empty(struct char_nfa *n, uint32_t from, uint32_t to)
{
	char_nfa_edge(n, from, to, 1, 0);
}

static bool edge_is_empty(const struct char_edge *e)
{
	return e->lo > e->hi;
}

void char_nfa_text(struct char_nfa *n, const char *text, size_t len)
{
	uint32_t at = n->start;
	for (size_t i = 0, step; i < len; i += step) {
		uint32_t c = utf8_decode(text + i, &step), next = char_nfa_state(n);
		char_nfa_edge(n, at, next, c, c);
		at = next;
	}
	char_nfa_empty(n, at, n->final);
}

void char_nfa_append(struct char_nfa *n, uint32_t from, uint32_t to, const struct char_nfa *b)
{
	uint32_t base = n->n_states;
	if (b->too_large || base + b->n_states > CHAR_NFA_STATES_MAX) {
		n->too_large = true;
		return;
	}
	n->n_states += b->n_states;
	char_nfa_empty(n, from, base + b->start);
	char_nfa_empty(n, base + b->final, to);
	for (size_t i = 0; i < b->n_edges; i++)
		char_nfa_edge(
			n, base + b->edges[i].from, base + b->edges[i].to, b->edges[i].lo, b->edges[i].hi);
}

void char_nfa_length(struct char_nfa *n, size_t min, size_t max)
{
	char_nfa_init(n);
	uint32_t at = n->start;
	size_t chain = max == SIZE_MAX ? min : max;
	for (size_t i = 0; i < chain && !n->too_large; i++) {
		if (i >= min)
			char_nfa_empty(n, at, n->final);
		uint32_t next = char_nfa_state(n);
		char_nfa_edge(n, at, next, 0, CHAR_MAX_POINT);
		at = next;
	}
	if (max == SIZE_MAX)
		char_nfa_edge(n, at, at, 0, CHAR_MAX_POINT);
	char_nfa_empty(n, at, n->final);
}

/* The edges of `at`, where texts[0..count) go on at byte `skip`: one per next character, and one to
 * `other` for all the rest. */
static void except_below(struct char_nfa *n, uint32_t at, uint32_t other, const char *const *texts,
	size_t count, size_t skip)
{
	uint32_t free_from = 0;
	bool ends = count && !texts[0][skip];
	if (!ends)
		char_nfa_empty(n, at, n->final);
	for (size_t i = ends; i < count;) {
		size_t step, k = i + 1;
		uint32_t c = utf8_decode(texts[i] + skip, &step);
		while (k < count && !strncmp(texts[k] + skip, texts[i] + skip, step))
			k++;
		if (c > free_from)
			char_nfa_edge(n, at, other, free_from, c - 1);
		uint32_t next = char_nfa_state(n);
		char_nfa_edge(n, at, next, c, c);
		if (!n->too_large)
			except_below(n, next, other, texts + i, k - i, skip + step);
		free_from = c + 1;
		i = k;
	}
	if (free_from <= CHAR_MAX_POINT)
		char_nfa_edge(n, at, other, free_from, CHAR_MAX_POINT);
}

void char_nfa_except(struct char_nfa *n, const char *const *texts, size_t count)
{
	char_nfa_init(n);
	uint32_t other = char_nfa_state(n);
	char_nfa_edge(n, other, other, 0, CHAR_MAX_POINT);
	char_nfa_empty(n, other, n->final);
	except_below(n, n->start, other, texts, count, 0);
}

/* ---- index by state ---- */

struct edge_index {
	uint32_t *first; /* [n_states + 1] where each state's edges begin in list */
	uint32_t *list;  /* [n_edges] edge numbers */
};

static void index_free(struct edge_index *x)
{
	free(x->first);
	free(x->list);
	*x = (struct edge_index){0};
}

/* first is NULL when memory is exhausted. */
static struct edge_index index_make(const struct char_nfa *n, bool by_target)
{
	struct edge_index x = {
		NEW_ARRAY(uint32_t, n->n_states + 2), NEW_ARRAY(uint32_t, n->n_edges + 1)};
	if (!x.first || !x.list) {
		index_free(&x);
		return x;
	}
	for (size_t i = 0; i < n->n_edges; i++)
		x.first[(by_target ? n->edges[i].to : n->edges[i].from) + 2]++;
	for (uint32_t s = 0; s < n->n_states; s++)
		x.first[s + 2] += x.first[s + 1];
	for (size_t i = 0; i < n->n_edges; i++)
		x.list[x.first[(by_target ? n->edges[i].to : n->edges[i].from) + 1]++] = (uint32_t)i;
	return x;
}

/* ---- intersection ---- */

struct pair_map {
	uint64_t *keys; /* [cap] key + 1; 0: free */
	uint32_t *ids;  /* [cap] state of the product */
	size_t cap, n;
};

/* NULL: memory is exhausted. */
static uint32_t *pair_find(struct pair_map *m, uint64_t key, bool *fresh)
{
	if (2 * m->n >= m->cap) {
		struct pair_map old = *m;
		m->cap = old.cap ? 2 * old.cap : 1024;
		m->keys = NEW_ARRAY(uint64_t, m->cap);
		m->ids = NEW_ARRAY(uint32_t, m->cap);
		if (!m->keys || !m->ids) {
			free(m->keys);
			free(m->ids);
			*m = old;
			return NULL;
		}
		for (size_t i = 0; i < old.cap; i++)
			if (old.keys[i]) {
				size_t at = (old.keys[i] * 0x9e3779b97f4a7c15u >> 20) % m->cap;
				while (m->keys[at])
					at = (at + 1) % m->cap;
				m->keys[at] = old.keys[i];
				m->ids[at] = old.ids[i];
			}
		free(old.keys);
		free(old.ids);
	}
	size_t at = ((key + 1) * 0x9e3779b97f4a7c15u >> 20) % m->cap;
	while (m->keys[at] && m->keys[at] != key + 1)
		at = (at + 1) % m->cap;
	*fresh = !m->keys[at];
	if (*fresh) {
		m->keys[at] = key + 1;
		m->n++;
	}
	return &m->ids[at];
}

/* Of two automata: a state for each pair of theirs that can be reached. */
struct product {
	struct char_nfa out;
	struct pair_map map;
	uint64_t *todo; /* [n_todo] pairs a << 32 | b, in the order they were met */
	size_t n_todo, cap;
};

static uint32_t product_state(struct product *p, uint32_t a, uint32_t b)
{
	bool fresh;
	uint64_t key = (uint64_t)a << 32 | b;
	uint32_t *id = pair_find(&p->map, key, &fresh);
	if (id && !fresh)
		return *id;
	size_t cap = p->n_todo < p->cap ? p->cap : p->cap ? 2 * p->cap : 1024;
	if (!id || (cap > p->cap && !mem_grow_array(&p->todo, cap, sizeof *p->todo))) {
		p->out.too_large = true;
		return p->out.final;
	}
	p->cap = cap;
	*id = char_nfa_state(&p->out);
	p->todo[p->n_todo++] = key;
	return *id;
}

static void product_pair(struct product *p, const struct char_nfa *a, const struct char_nfa *b,
	const struct edge_index *ia, const struct edge_index *ib, uint64_t key)
{
	uint32_t sa = (uint32_t)(key >> 32), sb = (uint32_t)key, from = product_state(p, sa, sb);
	if (sa == a->final && sb == b->final)
		char_nfa_empty(&p->out, from, p->out.final);
	for (uint32_t i = ia->first[sa]; i < ia->first[sa + 1]; i++) {
		const struct char_edge *ea = &a->edges[ia->list[i]];
		if (edge_is_empty(ea)) {
			char_nfa_empty(&p->out, from, product_state(p, ea->to, sb));
			continue;
		}
		for (uint32_t k = ib->first[sb]; k < ib->first[sb + 1]; k++) {
			const struct char_edge *eb = &b->edges[ib->list[k]];
			uint32_t lo = MAX(ea->lo, eb->lo), hi = MIN(ea->hi, eb->hi);
			if (!edge_is_empty(eb) && lo <= hi)
				char_nfa_edge(&p->out, from, product_state(p, ea->to, eb->to), lo, hi);
		}
	}
	for (uint32_t k = ib->first[sb]; k < ib->first[sb + 1]; k++)
		if (edge_is_empty(&b->edges[ib->list[k]]))
			char_nfa_empty(&p->out, from, product_state(p, sa, b->edges[ib->list[k]].to));
}

void char_nfa_intersect(struct char_nfa *a, struct char_nfa *b)
{
	struct product p = {0};
	struct edge_index ia = index_make(a, false), ib = index_make(b, false);
	char_nfa_init(&p.out);
	char_nfa_empty(&p.out, p.out.start, product_state(&p, a->start, b->start));
	p.out.too_large = p.out.too_large || !ia.first || !ib.first;
	for (size_t i = 0; i < p.n_todo && !p.out.too_large; i++)
		product_pair(&p, a, b, &ia, &ib, p.todo[i]);
	p.out.too_large = p.out.too_large || a->too_large || b->too_large;
	index_free(&ia);
	index_free(&ib);
	free(p.map.keys);
	free(p.map.ids);
	free(p.todo);
	char_nfa_free(a);
	char_nfa_free(b);
	*a = p.out;
	char_nfa_trim(a);
}

/* ---- trimming ---- */

/* False: memory is exhausted. */
static bool mark_reachable(const struct char_nfa *n, bool backwards, uint8_t *mark, uint8_t bit)
{
	struct edge_index x = index_make(n, backwards);
	uint32_t *todo = NEW_ARRAY(uint32_t, n->n_states + 1), count = 0;
	if (!todo || !x.first) {
		free(todo);
		index_free(&x);
		return false;
	}
	todo[count++] = backwards ? n->final : n->start;
	mark[todo[0]] |= bit;
	while (count) {
		uint32_t s = todo[--count];
		for (uint32_t i = x.first[s]; i < x.first[s + 1]; i++) {
			const struct char_edge *e = &n->edges[x.list[i]];
			uint32_t next = backwards ? e->from : e->to;
			if (!(mark[next] & bit)) {
				mark[next] |= bit;
				todo[count++] = next;
			}
		}
	}
	free(todo);
	index_free(&x);
	return true;
}

bool char_nfa_trim(struct char_nfa *n)
{
	uint8_t *mark = NEW_ARRAY(uint8_t, n->n_states);
	uint32_t *ids = NEW_ARRAY(uint32_t, n->n_states), count = 2;
	if (!mark || !ids || !mark_reachable(n, false, mark, 1) || !mark_reachable(n, true, mark, 2)) {
		n->too_large = true;
		free(mark);
		free(ids);
		return true;
	}
	bool any = mark[n->start] == 3;
	for (uint32_t s = 0; s < n->n_states; s++)
		ids[s] = s == n->start ? 0 : s == n->final ? 1 : mark[s] == 3 ? count++ : 0;
	size_t kept = 0;
	for (size_t i = 0; i < n->n_edges; i++) {
		struct char_edge e = n->edges[i];
		if (mark[e.from] != 3 || mark[e.to] != 3)
			continue;
		n->edges[kept++] = (struct char_edge){ids[e.from], ids[e.to], e.lo, e.hi};
	}
	n->n_edges = kept;
	n->n_states = count;
	n->start = 0;
	n->final = 1;
	free(mark);
	free(ids);
	return any;
}

/* ---- matching ---- */

static void match_close(const struct char_nfa *n, const struct edge_index *x, uint8_t *in,
	uint32_t *list, size_t *count)
{
	for (size_t i = 0; i < *count; i++)
		for (uint32_t k = x->first[list[i]]; k < x->first[list[i] + 1]; k++) {
			const struct char_edge *e = &n->edges[x->list[k]];
			if (edge_is_empty(e) && !in[e->to]) {
				in[e->to] = 1;
				list[(*count)++] = e->to;
			}
		}
}

bool char_nfa_matches(const struct char_nfa *n, const char *text, size_t len)
{
	struct edge_index x = index_make(n, false);
	uint32_t *now = NEW_ARRAY(uint32_t, n->n_states), *next = NEW_ARRAY(uint32_t, n->n_states);
	uint8_t *in = NEW_ARRAY(uint8_t, n->n_states);
	size_t n_now = 1, step;
	bool found = false;
	if (!x.first || !now || !next || !in)
		goto done;
	now[0] = n->start;
	in[n->start] = 1;
	match_close(n, &x, in, now, &n_now);
	for (size_t at = 0; at < len && n_now; at += step) {
		uint32_t c = utf8_decode(text + at, &step);
		size_t n_next = 0;
		memset(in, 0, n->n_states);
		for (size_t i = 0; i < n_now; i++)
			for (uint32_t k = x.first[now[i]]; k < x.first[now[i] + 1]; k++) {
				const struct char_edge *e = &n->edges[x.list[k]];
				if (e->lo <= c && c <= e->hi && !in[e->to]) {
					in[e->to] = 1;
					next[n_next++] = e->to;
				}
			}
		match_close(n, &x, in, next, &n_next);
		uint32_t *other = now;
		now = next;
		next = other;
		n_now = n_next;
	}
	found = n_now && in[n->final];
done:
	free(now);
	free(next);
	free(in);
	index_free(&x);
	return found;
}
