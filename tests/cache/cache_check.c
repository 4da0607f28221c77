/* SPDX-License-Identifier: MIT */
#include "tests/cache/cache_check.h"

#include "cache/cache_internal.h"

/* Free lists, counts, classes. */
static int check_arena(const struct slab_arena *a, struct err *e)
{
	int idle = 0, without_class = 0, free_slots = 0, in_lists = 0;
	for (int s = 0; s < a->n_slabs; s++) {
		int k = a->slab_class[s];
		if (k < 0) {
			without_class++;
			if (a->slab_used[s])
				return err_set(
					e, ERR_RUN, "slab %d has no class but %d slots in use", s, a->slab_used[s]);
			continue;
		}
		if (k >= a->classes.n || a->slab_used[s] < 0 || a->slab_used[s] > slab_capacity(a, k))
			return err_set(
				e, ERR_RUN, "slab %d: class %d with %d slots in use", s, k, a->slab_used[s]);
		idle += !a->slab_used[s];
		free_slots += slab_capacity(a, k) - a->slab_used[s];
	}
	if (without_class != a->n_free_slabs || idle != a->n_idle_slabs)
		return err_set(e, ERR_RUN, "%d free and %d idle slabs, counted as %d and %d", without_class,
			idle, a->n_free_slabs, a->n_idle_slabs);
	for (int i = 0; i < a->n_free_slabs; i++)
		if (a->slab_class[a->free_slabs[i]] >= 0)
			return err_set(
				e, ERR_RUN, "slab %d is on the free stack but has a class", a->free_slabs[i]);
	for (int k = 0; k < a->classes.n; k++) {
		int32_t before = -1;
		for (int32_t s = a->free_slots.head[k]; s >= 0; before = s, s = a->free_slots.next[s]) {
			if (a->free_slots.prev[s] != before || a->slab_class[slab_of(a, s)] != k ||
				s % a->per_slab >= slab_capacity(a, k) || ++in_lists > a->n_slots)
				return err_set(e, ERR_RUN, "slot %d is wrong in the free list of class %d", s, k);
		}
	}
	if (in_lists != free_slots)
		return err_set(e, ERR_RUN, "%d slots in free lists, %d are free", in_lists, free_slots);
	return 0;
}

static int check_slot(const struct cache *c, int32_t i, struct err *e)
{
	const struct slot *s = &c->slots[i];
	int at_borrowed = 0;
	while (at_borrowed < c->n_borrowed && c->borrowed[at_borrowed] != i)
		at_borrowed++;
	if (s->prefill != (at_borrowed < c->n_borrowed))
		return err_set(e, ERR_RUN, "slot %d is %s a prefill slot", i,
			s->prefill ? "wrongly" : "not said to be");
	if (s->state == CACHE_FREE) {
		if (s->key != -1 || s->pins || s->from != -1 || s->prefetched)
			return err_set(e, ERR_RUN, "slot %d is free but has key %d, %u pins, source %d", i,
				s->key, s->pins, s->from);
		return 0;
	}
	if (s->key < 0 || s->key >= c->n_keys || class_of(c, s->key) < 0)
		return err_set(e, ERR_RUN, "slot %d holds key %d", i, s->key);
	if (s->state == CACHE_READY && s->from >= 0)
		return err_set(e, ERR_RUN, "slot %d is ready but still has source %d", i, s->from);
	if (s->from >= 0) {
		const struct slot *f = &c->slots[s->from];
		if (tier_of(c, s->from) != 1 || f->key != s->key || f->state != CACHE_READY || !f->pins)
			return err_set(e, ERR_RUN,
				"slot %d is filled from slot %d, which does not hold its key pinned", i, s->from);
	}
	if (s->kept && (!s->prefill || s->from >= 0))
		return err_set(e, ERR_RUN, "slot %d wrongly fills another", i);
	if (s->kept && s->state == CACHE_FILLING) {
		const int32_t keep = c->index[s->key];
		if (keep < 0 || tier_of(c, keep) != 1 || c->slots[keep].state != CACHE_FILLING)
			return err_set(e, ERR_RUN, "slot %d fills slot %d, which is not FILLING", i, keep);
	}
	if (s->prefill) {
		if (c->prefill_index[s->key] != i || !s->pins)
			return err_set(e, ERR_RUN, "prefill slot %d: key %d said to be in %d, %u pins", i,
				s->key, c->prefill_index[s->key], s->pins);
		return 0;
	}
	int t = tier_of(c, i);
	const struct slab_arena *a = &c->arena[t];
	if (a->slab_class[slab_of(a, i - c->first[t])] != class_of(c, s->key))
		return err_set(e, ERR_RUN, "slot %d holds key %d of another class", i, s->key);
	int32_t at = c->index[s->key];
	bool source = at >= 0 && at != i && c->slots[at].from == i;
	bool copy = c->inclusive_copy[s->key] == i;
	if (copy && (t != 1 || s->state != CACHE_READY || s->pins || at < 0 || tier_of(c, at)))
		return err_set(
			e, ERR_RUN, "slot %d is a copy of key %d, whose place is slot %d", i, s->key, at);
	if (at != i && !source && !copy)
		return err_set(e, ERR_RUN, "slot %d holds key %d, whose place is slot %d", i, s->key, at);
	return 0;
}

int cache_check(const struct cache *c, struct err *e)
{
	int used[CACHE_TIERS] = {0}, handed_out[CACHE_TIERS] = {0};
	for (int t = 0; t < CACHE_TIERS; t++) {
		if (c->arena[t].n_slabs && check_arena(&c->arena[t], e))
			return err_prefix(e, "tier %d", t);
		for (int s = 0; s < c->arena[t].n_slabs; s++)
			handed_out[t] += c->arena[t].slab_used[s];
	}
	for (int32_t i = 0; i < c->n_slots; i++) {
		if (check_slot(c, i, e))
			return ERR_RUN;
		used[tier_of(c, i)] += c->slots[i].state != CACHE_FREE || c->slots[i].prefill;
	}
	for (int t = 0; t < CACHE_TIERS; t++)
		if (used[t] != handed_out[t])
			return err_set(e, ERR_RUN, "tier %d: %d slots in use, the arena handed out %d", t,
				used[t], handed_out[t]);
	for (int32_t key = 0; key < c->n_keys; key++) {
		int32_t at = c->index[key], st = c->prefill_index[key];
		if (at >= 0 && (c->slots[at].prefill || c->slots[at].key != key))
			return err_set(e, ERR_RUN, "key %d is said to be in slot %d", key, at);
		if (st >= 0 && (!c->slots[st].prefill || c->slots[st].key != key))
			return err_set(e, ERR_RUN, "key %d is said to be in prefill slot %d", key, st);
		if (c->inclusive_copy[key] >= 0 && c->slots[c->inclusive_copy[key]].key != key)
			return err_set(e, ERR_RUN, "key %d is said to have a copy in slot %d", key,
				c->inclusive_copy[key]);
		if (c->last_use[key] > c->clock)
			return err_set(e, ERR_RUN, "key %d was last used after now", key);
	}
	const struct cache_stats *s = &c->stats;
	if (s->accesses != s->hits[0] + s->hits[1] + s->misses)
		return err_set(e, ERR_RUN, "hits and misses do not add up to the accesses");
	return 0;
}
