/* SPDX-License-Identifier: MIT */
/*
 * A position is a state of the grammar with the stack of rules that are open. Stacks are linked
 * lists that share their lower parts; equal stacks are one node, so that a position is two numbers.
 * A set of positions is sorted and found by its hash.
 */
#include "src/text/schema/grammar_run.h"

#include "src/base/buf.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/text/schema/unique_keys.h"

#include <stdlib.h>
#include <string.h>

/* If more than a KEPT number are stored when a token is pushed, all but the present set are
 * forgotten. Until then there may be MAX; what goes beyond counts as not allowed. The stacks of one
 * set are fewer than STACKS_KEPT: POSITIONS_MAX of GRAMMAR_DEPTH_MAX nodes. */
#define SETS_KEPT     4096
#define SETS_MAX      20000
#define STORED_KEPT   1000000 /* positions of all sets */
#define STORED_MAX    2000000
#define STACKS_KEPT   250000
#define STACKS_MAX    500000
#define SPENT_MAX     4000000 /* positions looked at for one mask or token */
#define POSITIONS_MAX 2048    /* of one set; further ones are dropped */
#define MASKS_MAX     64
#define LOOK_EVERY    20000 /* positions between two looks at cancel: about a millisecond */
#define UNKNOWN       (-1)
#define DEAD          (-2) /* no set: the grammar does not allow the byte */

struct grammar_position {
	uint32_t state, stack;
};

struct stack_node {
	uint32_t state, below; /* where to go on when the rule has ended */
	uint32_t depth;
};

struct position_set {
	struct grammar_position *positions; /* [n_positions] sorted; those with a byte to take */
	uint32_t n_positions;
	bool accepts;      /* the text may end here */
	int32_t mask;      /* number of its mask, -1: none */
	int32_t next[256]; /* the set behind each byte; UNKNOWN, DEAD */
};

struct mask {
	uint64_t *bits;
	int32_t set;
};

struct grammar_run {
	const struct grammar *g;
	const struct token_trie *tokens;
	struct stack_node *stacks; /* [n_stacks]; 0 is the empty stack */
	size_t n_stacks, stacks_cap;
	uint32_t *stack_table; /* [stack_slots] 1 + number */
	size_t stack_slots;
	struct position_set **sets; /* [n_sets] */
	size_t n_sets, sets_cap;
	size_t n_stored;     /* positions of all sets */
	uint32_t *set_table; /* [set_slots] 1 + number */
	size_t set_slots;
	int32_t now;  /* the present set */
	size_t spent; /* positions looked at, of SPENT_MAX */
	/* the set that is being made: positions that were met, and those of them with a byte to take */
	struct grammar_position *seen, *work; /* [SEEN_MAX], [POSITIONS_MAX] */
	size_t n_seen, n_work;
	bool accepts;
	uint32_t *seen_table;      /* [SEEN_SLOTS] 1 + number in seen */
	const atomic_bool *cancel; /* NULL: none */
	struct mask masks[MASKS_MAX];
	size_t n_masks, oldest;
	struct unique_keys keys; /* of the text so far, with g->unique_keys */
	uint64_t *unique_mask;   /* a mask without tokens that repeat a key; NULL: not made yet */
};

/* A search from one state ends within it: to the end of the rule, and from behind the call on. */
#define SEEN_MAX   (2 * GRAMMAR_REACHED_MAX)
#define SEEN_SLOTS (4 * SEEN_MAX)

/* ---- tokens ---- */

/* A byte behind those of the node above it: the last node before it of a lesser depth. */
struct trie_node {
	uint32_t end;  /* the first node behind this one that is not below it */
	int32_t token; /* that ends here; -1: none */
	uint16_t depth;
	uint8_t byte;
};

struct token_trie {
	struct trie_node *nodes; /* [n_nodes] in the order of texts */
	size_t n_nodes, cap;
	uint32_t n_tokens; /* of the vocabulary */
	size_t longest;    /* bytes of a token */
	/* tokens with a quote, which may end a key: [n_quotes] with their texts one after the other */
	struct quote_token *quotes;
	size_t n_quotes, quotes_cap;
	struct buf quote_texts;
};

struct quote_token {
	int32_t id;
	uint32_t len;
};

struct sorted_token {
	struct text_span text;
	int32_t id;
};

static int token_order(const void *a, const void *b)
{
	const struct sorted_token *x = a, *y = b;
	int c = memcmp(x->text.data, y->text.data, MIN(x->text.len, y->text.len));
	if (!c)
		c = (x->text.len > y->text.len) - (x->text.len < y->text.len);
	return c ? c : (x->id > y->id) - (x->id < y->id);
}

/* common: bytes that the token before it, in the order of texts, begins with too. */
static void trie_add(struct token_trie *x, const struct sorted_token *t, size_t common)
{
	/* of two tokens with one text each gets a last node */
	size_t n = t->text.len, from = common == n ? n - 1 : common;
	for (size_t i = from; i < n; i++) {
		if (x->n_nodes == x->cap) {
			x->cap = x->cap ? 2 * x->cap : 4096;
			x->nodes = mem_grow(x->nodes, x->cap, sizeof *x->nodes);
		}
		x->nodes[x->n_nodes++] = (struct trie_node){.token = i + 1 == n ? t->id : -1,
			.depth = (uint16_t)i,
			.byte = (uint8_t)t->text.data[i]};
	}
	x->longest = MAX(x->longest, n);
}

static void quotes_add(struct token_trie *x, const struct sorted_token *t)
{
	if (!memchr(t->text.data, '"', t->text.len))
		return;
	if (x->n_quotes == x->quotes_cap) {
		x->quotes_cap = x->quotes_cap ? 2 * x->quotes_cap : 256;
		x->quotes = mem_grow(x->quotes, x->quotes_cap, sizeof *x->quotes);
	}
	x->quotes[x->n_quotes++] = (struct quote_token){t->id, (uint32_t)t->text.len};
	buf_append(&x->quote_texts, t->text.data, t->text.len);
}

struct token_trie *token_trie_new(const struct tokenizer *t)
{
	struct token_trie *x = NEW(struct token_trie);
	x->n_tokens = tokenizer_n_tokens(t);
	struct sorted_token *list = NEW_ARRAY(struct sorted_token, x->n_tokens + 1);
	size_t n = 0;
	for (int32_t id = 0; id < (int32_t)x->n_tokens; id++) {
		struct text_span s = tokenizer_token(t, id);
		if (s.len && s.len < UINT16_MAX && !tokenizer_is_added(t, id) &&
			!tokenizer_is_padding(t, id))
			list[n++] = (struct sorted_token){s, id};
	}
	qsort(list, n, sizeof *list, token_order);
	for (size_t i = 0; i < n; i++) {
		size_t common = 0;
		if (i)
			while (common < list[i].text.len && common < list[i - 1].text.len &&
				   list[i].text.data[common] == list[i - 1].text.data[common])
				common++;
		trie_add(x, &list[i], common);
		quotes_add(x, &list[i]);
	}
	free(list);
	uint32_t *open = NEW_ARRAY(uint32_t, x->longest + 1); /* the last node of each depth */
	size_t depth = 0;
	for (size_t i = 0; i <= x->n_nodes; i++) {
		size_t d = i < x->n_nodes ? x->nodes[i].depth : 0;
		for (; depth > d; depth--)
			x->nodes[open[depth - 1]].end = (uint32_t)i;
		if (i < x->n_nodes) {
			open[d] = (uint32_t)i;
			depth = d + 1;
		}
	}
	free(open);
	return x;
}

void token_trie_free(struct token_trie *x)
{
	if (!x)
		return;
	free(x->nodes);
	free(x->quotes);
	buf_free(&x->quote_texts);
	free(x);
}

/* ---- stacks ---- */

static uint64_t mix(uint64_t h, uint64_t v)
{
	h = (h ^ v) * 0x9e3779b97f4a7c15u;
	return h ^ h >> 29;
}

static size_t stack_slot(const struct grammar_run *r, uint32_t state, uint32_t below)
{
	size_t at = mix(mix(1, state), below) % r->stack_slots;
	while (r->stack_table[at]) {
		const struct stack_node *s = &r->stacks[r->stack_table[at] - 1];
		if (s->state == state && s->below == below)
			break;
		at = (at + 1) % r->stack_slots;
	}
	return at;
}

/* Returns `below` when memory is exhausted: a wrong stack, but the answer fails anyway. */
static uint32_t stack_push(struct grammar_run *r, uint32_t state, uint32_t below)
{
	if (2 * r->n_stacks >= r->stack_slots) {
		size_t slots = r->stack_slots ? 2 * r->stack_slots : 1024;
		uint32_t *table = NEW_ARRAY(uint32_t, slots);
		if (!table)
			return below;
		free(r->stack_table);
		r->stack_table = table;
		r->stack_slots = slots;
		for (size_t i = 1; i < r->n_stacks; i++)
			r->stack_table[stack_slot(r, r->stacks[i].state, r->stacks[i].below)] = (uint32_t)i + 1;
	}
	size_t at = stack_slot(r, state, below);
	if (r->stack_table[at])
		return r->stack_table[at] - 1;
	if (r->n_stacks == r->stacks_cap) {
		if (!mem_grow_array(&r->stacks, 2 * r->stacks_cap, sizeof *r->stacks))
			return below;
		r->stacks_cap *= 2;
	}
	r->stacks[r->n_stacks] = (struct stack_node){state, below, r->stacks[below].depth + 1};
	r->stack_table[at] = (uint32_t)r->n_stacks + 1;
	return (uint32_t)r->n_stacks++;
}

/* ---- sets of positions ---- */

/* From the position a path leads to the end. */
static bool may_enter(const struct grammar_run *r, uint32_t state, uint32_t stack)
{
	uint8_t needs = r->g->needs[state];
	return needs != GRAMMAR_NEVER && needs + r->stacks[stack].depth <= GRAMMAR_DEPTH_MAX;
}

/* Adds a position unless it is known or cannot reach the end. */
static void closure_meet(struct grammar_run *r, uint32_t state, uint32_t stack)
{
	if (!may_enter(r, state, stack) || r->n_seen == SEEN_MAX)
		return;
	size_t at = mix(mix(7, state), stack) % SEEN_SLOTS;
	while (r->seen_table[at]) {
		const struct grammar_position *p = &r->seen[r->seen_table[at] - 1];
		if (p->state == state && p->stack == stack)
			return;
		at = (at + 1) % SEEN_SLOTS;
	}
	r->seen[r->n_seen++] = (struct grammar_position){state, stack};
	r->seen_table[at] = (uint32_t)r->n_seen;
}

/* Adds a position, and everything that is reached from there without a byte: before the next one,
 * so that a set that has grown too large keeps a way to the end. */
static void closure_add(struct grammar_run *r, uint32_t state, uint32_t stack)
{
	const struct grammar *g = r->g;
	size_t i = r->n_seen;
	closure_meet(r, state, stack);
	for (; i < r->n_seen; i++) {
		struct grammar_position p = r->seen[i];
		bool bytes = false;
		for (uint32_t k = g->first[p.state]; k < g->first[p.state + 1]; k++) {
			const struct grammar_edge *e = &g->edges[k];
			if (e->kind == GRAMMAR_BYTES) {
				bytes = bytes || may_enter(r, e->to, p.stack);
			} else if (e->kind == GRAMMAR_EMPTY) {
				closure_meet(r, e->to, p.stack);
			} else if (g->rules[e->rule].height != GRAMMAR_NEVER && may_enter(r, e->to, p.stack) &&
					   r->n_stacks < STACKS_MAX) {
				closure_meet(r, g->rules[e->rule].start, stack_push(r, e->to, p.stack));
			}
		}
		if (g->final_of[p.state]) {
			if (p.stack)
				closure_meet(r, r->stacks[p.stack].state, r->stacks[p.stack].below);
			else
				r->accepts = true;
		}
		if (bytes && r->n_work < POSITIONS_MAX)
			r->work[r->n_work++] = p;
	}
}

static int position_order(const void *a, const void *b)
{
	const struct grammar_position *x = a, *y = b;
	return x->state != y->state ? (x->state > y->state) - (x->state < y->state)
								: (x->stack > y->stack) - (x->stack < y->stack);
}

/* Empties seen, its table and work. A table of SEEN_SLOTS is cleared where it is used only. */
static void closure_begin(struct grammar_run *r)
{
	for (size_t i = 0; i < r->n_seen; i++) {
		size_t at = mix(mix(7, r->seen[i].state), r->seen[i].stack) % SEEN_SLOTS;
		while (r->seen_table[at] != i + 1)
			at = (at + 1) % SEEN_SLOTS;
		r->seen[i].state = (uint32_t)at; /* cleared below, when no search needs it any more */
	}
	for (size_t i = 0; i < r->n_seen; i++)
		r->seen_table[r->seen[i].state] = 0;
	r->n_seen = r->n_work = 0;
	r->accepts = false;
}

static size_t set_slot(
	const struct grammar_run *r, const struct grammar_position *positions, uint32_t n, bool accepts)
{
	uint64_t h = mix(accepts, n);
	for (uint32_t i = 0; i < n; i++)
		h = mix(mix(h, positions[i].state), positions[i].stack);
	size_t at = h % r->set_slots;
	while (r->set_table[at]) {
		const struct position_set *s = r->sets[r->set_table[at] - 1];
		if (s->n_positions == n && s->accepts == accepts &&
			(!n || !memcmp(s->positions, positions, n * sizeof *positions)))
			break;
		at = (at + 1) % r->set_slots;
	}
	return at;
}

/* The number of the set in `work`, which may be empty; DEAD when there are too many sets, or no
 * memory for one more. */
static int32_t set_intern(struct grammar_run *r)
{
	qsort(r->work, r->n_work, sizeof *r->work, position_order);
	if (2 * r->n_sets >= r->set_slots) {
		size_t slots = r->set_slots ? 2 * r->set_slots : 256;
		uint32_t *table = NEW_ARRAY(uint32_t, slots);
		if (!table)
			return DEAD;
		free(r->set_table);
		r->set_table = table;
		r->set_slots = slots;
		for (size_t i = 0; i < r->n_sets; i++)
			r->set_table[set_slot(r, r->sets[i]->positions, r->sets[i]->n_positions,
				r->sets[i]->accepts)] = (uint32_t)i + 1;
	}
	size_t at = set_slot(r, r->work, (uint32_t)r->n_work, r->accepts);
	if (r->set_table[at])
		return (int32_t)r->set_table[at] - 1;
	if (r->n_sets && (r->n_sets >= SETS_MAX || r->n_stored >= STORED_MAX))
		return DEAD;
	size_t cap = r->n_sets < r->sets_cap ? r->sets_cap : r->sets_cap ? 2 * r->sets_cap : 64;
	if (cap > r->sets_cap && !mem_grow_array(&r->sets, cap, sizeof *r->sets))
		return DEAD;
	r->sets_cap = cap;
	struct position_set *s = NEW(struct position_set);
	if (!s || !(s->positions = NEW_ARRAY(struct grammar_position, r->n_work + 1))) {
		free(s);
		return DEAD;
	}
	s->n_positions = (uint32_t)r->n_work;
	r->n_stored += r->n_work;
	memcpy(s->positions, r->work, r->n_work * sizeof *r->work);
	s->accepts = r->accepts;
	s->mask = -1;
	memset(s->next, 0xff, sizeof s->next);
	r->sets[r->n_sets] = s;
	r->set_table[at] = (uint32_t)r->n_sets + 1;
	return (int32_t)r->n_sets++;
}

static int32_t set_step(struct grammar_run *r, int32_t from, uint8_t byte)
{
	const struct grammar *g = r->g;
	const struct position_set *s = r->sets[from];
	if (r->spent > SPENT_MAX)
		return DEAD; /* not remembered: the next mask may find out */
	closure_begin(r);
	for (uint32_t i = 0; i < s->n_positions; i++) {
		struct grammar_position p = s->positions[i];
		for (uint32_t k = g->first[p.state]; k < g->first[p.state + 1]; k++) {
			const struct grammar_edge *e = &g->edges[k];
			if (e->kind == GRAMMAR_BYTES && e->lo <= byte && byte <= e->hi)
				closure_add(r, e->to, p.stack);
		}
	}
	r->spent += s->n_positions + r->n_seen;
	int32_t to = r->n_work || r->accepts ? set_intern(r) : DEAD;
	return r->sets[from]->next[byte] = to;
}

static inline int32_t step(struct grammar_run *r, int32_t from, uint8_t byte)
{
	int32_t to = r->sets[from]->next[byte];
	return to == UNKNOWN ? set_step(r, from, byte) : to;
}

static void sets_clear(struct grammar_run *r)
{
	for (size_t i = 0; i < r->n_sets; i++) {
		free(r->sets[i]->positions);
		free(r->sets[i]);
	}
	r->n_sets = r->n_stored = 0;
	if (r->set_slots)
		memset(r->set_table, 0, r->set_slots * sizeof *r->set_table);
	for (size_t i = 0; i < r->n_masks; i++)
		r->masks[i].set = -1;
}

/* Copies a stack of `old` into the present, empty stacks. */
static uint32_t stack_copy(struct grammar_run *r, const struct stack_node *old, uint32_t at)
{
	uint32_t path[GRAMMAR_DEPTH_MAX + 2], n = 0, copy = 0;
	for (; at; at = old[at].below)
		path[n++] = at;
	while (n)
		copy = stack_push(r, old[path[--n]].state, copy);
	return copy;
}

/* Forgets all sets and stacks but those of the present one. */
static void sets_forget(struct grammar_run *r)
{
	struct stack_node *old = r->stacks, *stacks = NEW_ARRAY(struct stack_node, r->stacks_cap);
	if (!stacks)
		return;
	struct position_set *s = r->sets[r->now];
	r->sets[r->now] = r->sets[--r->n_sets];
	sets_clear(r);
	r->stacks = stacks;
	r->n_stacks = 1;
	memset(r->stack_table, 0, r->stack_slots * sizeof *r->stack_table);
	closure_begin(r);
	for (uint32_t i = 0; i < s->n_positions; i++)
		r->work[r->n_work++] = (struct grammar_position){
			s->positions[i].state, stack_copy(r, old, s->positions[i].stack)};
	r->accepts = s->accepts;
	r->now = set_intern(r);
	free(old);
	free(s->positions);
	free(s);
}

/* ---- public ---- */

struct grammar_run *grammar_run_new(const struct grammar *g, const struct token_trie *tokens)
{
	struct grammar_run *r = NEW(struct grammar_run);
	if (!r)
		return NULL;
	r->g = g;
	r->tokens = tokens;
	r->stacks_cap = 256;
	r->stacks = NEW_ARRAY(struct stack_node, r->stacks_cap);
	r->n_stacks = 1;
	r->work = NEW_ARRAY(struct grammar_position, POSITIONS_MAX);
	r->seen = NEW_ARRAY(struct grammar_position, SEEN_MAX);
	r->seen_table = NEW_ARRAY(uint32_t, SEEN_SLOTS);
	if (r->stacks && r->work && r->seen && r->seen_table)
		grammar_run_restart(r);
	else
		r->now = DEAD;
	if (r->now >= 0)
		return r;
	grammar_run_free(r);
	return NULL;
}

void grammar_run_set_cancel(struct grammar_run *r, const atomic_bool *cancel)
{
	r->cancel = cancel;
}

void grammar_run_restart(struct grammar_run *r)
{
	sets_clear(r);
	unique_keys_free(&r->keys);
	closure_begin(r);
	closure_add(r, r->g->rules[r->g->root].start, 0);
	r->now = set_intern(r);
}

void grammar_run_free(struct grammar_run *r)
{
	if (!r)
		return;
	sets_clear(r);
	for (size_t i = 0; i < r->n_masks; i++)
		free(r->masks[i].bits);
	free(r->sets);
	free(r->set_table);
	free(r->stacks);
	free(r->stack_table);
	free(r->work);
	free(r->seen);
	free(r->seen_table);
	unique_keys_free(&r->keys);
	free(r->unique_mask);
	free(r);
}

/* Whether a byte other than a quote may come: a key can be made longer. */
static bool goes_on(const struct grammar_run *r, int32_t set)
{
	const struct grammar *g = r->g;
	const struct position_set *s = r->sets[set];
	for (uint32_t i = 0; i < s->n_positions; i++) {
		struct grammar_position p = s->positions[i];
		for (uint32_t k = g->first[p.state]; k < g->first[p.state + 1]; k++) {
			const struct grammar_edge *e = &g->edges[k];
			if (e->kind == GRAMMAR_BYTES && (e->lo != '"' || e->hi != '"') &&
				may_enter(r, e->to, p.stack))
				return true;
		}
	}
	return false;
}

static int32_t walk_unique(struct grammar_run *r, const char *bytes, size_t n)
{
	if (!unique_keys_reserve(&r->keys, n))
		return DEAD;
	struct unique_keys keys = r->keys;
	int32_t at = r->now;
	keys.copy = true;
	for (size_t i = 0; i < n && at >= 0; i++) {
		if (unique_keys_repeats(&keys, (uint8_t)bytes[i]) && goes_on(r, at))
			return DEAD;
		at = step(r, at, (uint8_t)bytes[i]);
		unique_keys_push(&keys, (uint8_t)bytes[i]);
	}
	return at;
}

static int32_t walk(struct grammar_run *r, const char *bytes, size_t n)
{
	int32_t at = r->now;
	r->spent = 0;
	if (r->g->unique_keys && memchr(bytes, '"', n))
		return walk_unique(r, bytes, n);
	for (size_t i = 0; i < n && at >= 0; i++)
		at = step(r, at, (uint8_t)bytes[i]);
	return at;
}

bool grammar_run_allows(struct grammar_run *r, const char *bytes, size_t n)
{
	return walk(r, bytes, n) >= 0;
}

bool grammar_run_push(struct grammar_run *r, const char *bytes, size_t n)
{
	if (r->now < 0)
		return false;
	if (r->n_sets > SETS_KEPT || r->n_stored > STORED_KEPT || r->n_stacks > STACKS_KEPT)
		sets_forget(r);
	int32_t to = walk(r, bytes, n);
	if (to < 0)
		return false;
	for (size_t i = 0; i < n && r->g->unique_keys; i++)
		unique_keys_push(&r->keys, (uint8_t)bytes[i]);
	r->now = to;
	return true;
}

bool grammar_run_may_end(const struct grammar_run *r)
{
	return r->now >= 0 && r->sets[r->now]->accepts;
}

bool grammar_run_must_end(const struct grammar_run *r)
{
	return r->now >= 0 && r->sets[r->now]->accepts && !r->sets[r->now]->n_positions;
}

/* The mask of the set r->now. */
static const uint64_t *set_mask(struct grammar_run *r)
{
	const struct token_trie *x = r->tokens;
	if (r->sets[r->now]->mask >= 0)
		return r->masks[r->sets[r->now]->mask].bits;
	size_t slot = r->n_masks < MASKS_MAX ? r->n_masks++ : r->oldest++ % MASKS_MAX,
		   words = (x->n_tokens + 63) / 64;
	struct mask *m = &r->masks[slot];
	int32_t *at = NEW_ARRAY(int32_t, x->longest + 1);
	if (!m->bits) {
		m->set = -1;
		m->bits = NEW_ARRAY(uint64_t, words + 1);
	} else {
		if (m->set >= 0)
			r->sets[m->set]->mask = -1;
		memset(m->bits, 0, words * sizeof *m->bits);
		m->set = -1;
	}
	if (!at || !m->bits) {
		free(at);
		return NULL;
	}
	at[0] = r->now;
	r->spent = 0;
	for (size_t i = 0, looked = 0; i < x->n_nodes;) {
		const struct trie_node *node = &x->nodes[i];
		if (r->cancel && r->spent - looked > LOOK_EVERY) {
			looked = r->spent;
			if (atomic_load(r->cancel)) {
				free(at);
				return m->bits; /* not kept: it is not the mask of the set */
			}
		}
		int32_t to = step(r, at[node->depth], node->byte);
		if (to < 0) {
			i = node->end;
			continue;
		}
		at[node->depth + 1] = to;
		if (node->token >= 0)
			m->bits[node->token / 64] |= (uint64_t)1 << (node->token % 64);
		i++;
	}
	free(at);
	m->set = r->now;
	r->sets[r->now]->mask = (int32_t)slot;
	return m->bits;
}

const uint64_t *grammar_run_mask(struct grammar_run *r)
{
	const struct token_trie *x = r->tokens;
	size_t words = (x->n_tokens + 63) / 64;
	const uint64_t *mask = r->now < 0 ? NULL : set_mask(r);
	if (!mask || !r->g->unique_keys)
		return mask;
	if (!r->unique_mask && !(r->unique_mask = NEW_ARRAY(uint64_t, words + 1)))
		return NULL;
	memcpy(r->unique_mask, mask, words * sizeof *mask);
	const char *text = buf_str(&x->quote_texts);
	for (size_t i = 0; i < x->n_quotes; text += x->quotes[i++].len) {
		int32_t id = x->quotes[i].id;
		if ((mask[id / 64] >> id % 64 & 1) && !grammar_run_allows(r, text, x->quotes[i].len))
			r->unique_mask[id / 64] &= ~((uint64_t)1 << id % 64);
	}
	return r->unique_mask;
}
