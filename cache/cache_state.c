/* SPDX-License-Identifier: MIT */
/* The expert cache: its beginning, its end, its invariants. */
#include "cache/cache_internal.h"

#include "cache/cache_classes.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <math.h>
#include <stdlib.h>

/* ---- life ---- */

void cache_free(struct cache *c)
{
	if (!c)
		return;
	if (c->policy.ops)
		c->policy.ops->fini(&c->policy);
	slab_fini(&c->arena[0]);
	slab_fini(&c->arena[1]);
	free(c->layer_bytes);
	free(c->layer_class);
	free(c->slots);
	free(c->index);
	free(c->staged);
	free(c->borrowed);
	free(c->inclusive_copy);
	key_lists_fini(&c->inclusive_copies);
	free(c->last_use);
	free(c->demotions);
	free(c);
}

static void *counted_new(struct cache *c, size_t n, size_t size)
{
	c->metadata_bytes += n * size;
	return mem_try_new(n, size);
}

static double default_half_life(const struct cache *c, const struct cache_config *cfg)
{
	if (cfg->half_life > 0)
		return cfg->half_life;
	/* Experts that fit when every class gets the same share of its experts. */
	double wanted = 0, bytes = 0;
	const struct slab_arena *a = &c->arena[0];
	for (int k = 0; k < a->classes.n; k++) {
		wanted += (double)a->classes.n_wanted[k];
		bytes += (double)a->classes.n_wanted[k] * (double)a->classes.bytes[k];
	}
	double tokens = CACHE_HALF_LIFE_TOKENS * (double)MAX(cfg->token_accesses, (uint64_t)1);
	return MAX(CACHE_HALF_LIFE_SLOTS * floor((double)a->bytes * wanted / bytes), tokens);
}

static bool key_evictable(const void *ctx, int32_t key)
{
	const struct cache *c = ctx;
	int32_t slot = c->index[key];
	return slot >= 0 && slot_evictable(&c->slots[slot]);
}

static int policy_start(struct cache *c, const struct cache_config *cfg, struct err *e)
{
	int n_classes = c->arena[0].classes.n, list_keys[CACHE_TIERS * SLAB_MAX_CLASSES];
	for (int i = 0; i < CACHE_TIERS * n_classes; i++)
		list_keys[i] = (int)c->arena[0].classes.n_wanted[i % n_classes];
	c->policy.env = (struct policy_env){.n_keys = c->n_keys,
		.n_lists = CACHE_TIERS * n_classes,
		.list_keys = list_keys,
		.last_use = c->last_use,
		.evictable = key_evictable,
		.ctx = c,
		.half_life = default_half_life(c, cfg),
		.recency_window =
			cfg->no_recency_window ? 0 : cfg->token_accesses + cfg->token_accesses / 16,
		.next_use = cfg->next_use};
	c->policy.ops = cfg->policy ? cfg->policy : &policy_lru;
	if (c->policy.ops->needs_future && !cfg->next_use)
		return err_set(e, ERR_USAGE, "policy %s needs to know the future: it can only be simulated",
			c->policy.ops->name);
	if (c->policy.ops->init(&c->policy))
		return err_set(e, ERR_MEMORY, "no memory for the lists of policy %s", c->policy.ops->name);
	c->policy.env.list_keys = NULL; /* only valid during init */
	return 0;
}

static int cache_init(struct cache *c, const struct cache_config *cfg, struct err *e)
{
	struct slab_classes k;
	cache_classes_make(cfg, &k);
	uint64_t stage = cache_staging_bytes(cfg, &k);
	if (cfg->tier_bytes[0] < stage || cfg->tier_bytes[0] - stage < k.bytes[0])
		return err_set(e, ERR_MEMORY,
			"an expert cache of %llu bytes cannot hold one expert of %llu bytes beside %llu bytes "
			"of staging",
			(unsigned long long)cfg->tier_bytes[0], (unsigned long long)k.bytes[0],
			(unsigned long long)stage);
	c->n_layers = cfg->n_layers;
	c->n_experts = cfg->n_experts;
	c->n_keys = cfg->n_layers * cfg->n_experts;
	c->prefetch_cold = cfg->prefetch_cold ? cfg->prefetch_cold : 2 * cfg->token_accesses;
	c->n_staging = cfg->n_staging;
	/* No tier needs more than everything, and slot numbers must not run away with a huge budget. */
	uint64_t align = cfg->align ? cfg->align : 1;
	struct cache_config without = *cfg; /* tier 1 has no staging slots */
	without.n_staging = 0;
	uint64_t arena_bytes[CACHE_TIERS] = {
		MIN(num_align_down(cfg->tier_bytes[0], align), cache_everything_bytes(cfg)),
		MIN(cfg->tier_bytes[1], cache_everything_bytes(&without))};
	if (arena_bytes[1] < k.bytes[0])
		arena_bytes[1] = 0;
	for (int t = 0; t < CACHE_TIERS; t++) {
		if (slab_init(&c->arena[t], arena_bytes[t], &k, e))
			return ERR_MEMORY;
		c->first[t + 1] = c->first[t] + c->arena[t].n_slots;
	}
	c->n_slots = c->first[CACHE_TIERS];
	c->max_demotions =
		MAX(1, c->n_staging) * c->arena[0].per_slab + CACHE_KEEP_FREE; /* whole slabs may leave */
	size_t n_layers = (size_t)cfg->n_layers, n_keys = (size_t)c->n_keys;
	c->metadata_bytes = sizeof *c;
	for (int t = 0; t < CACHE_TIERS; t++)
		c->metadata_bytes += (uint64_t)c->arena[t].n_slabs * 10 + (uint64_t)c->arena[t].n_slots * 8;
	c->layer_bytes = counted_new(c, n_layers, sizeof *c->layer_bytes);
	c->layer_class = counted_new(c, n_layers, sizeof *c->layer_class);
	c->slots = counted_new(c, (size_t)c->n_slots, sizeof *c->slots);
	c->index = counted_new(c, n_keys, sizeof *c->index);
	c->staged = counted_new(c, n_keys, sizeof *c->staged);
	c->last_use = counted_new(c, n_keys, sizeof *c->last_use);
	c->inclusive_copy = counted_new(c, n_keys, sizeof *c->inclusive_copy);
	c->metadata_bytes += n_keys * 8;
	c->borrowed = counted_new(c, (size_t)c->n_staging + 1, sizeof *c->borrowed);
	c->demotions = counted_new(c, (size_t)c->max_demotions, sizeof *c->demotions);
	if (!c->layer_bytes || !c->layer_class || !c->slots || !c->index || !c->staged ||
		!c->last_use || !c->borrowed || !c->inclusive_copy || !c->demotions ||
		!key_lists_init(&c->inclusive_copies, c->n_keys, 1))
		return err_set(e, ERR_MEMORY, "no memory for the bookkeeping of %d experts", c->n_keys);
	for (int l = 0; l < cfg->n_layers; l++) {
		c->layer_bytes[l] = cfg->expert_bytes[l];
		c->layer_class[l] =
			cfg->expert_bytes[l] ? (int8_t)cache_classes_find(&k, cfg->expert_bytes[l]) : -1;
		c->largest_key = c->layer_class[l] == 0 ? l * c->n_experts : c->largest_key;
	}
	for (int i = 0; i < c->n_slots; i++)
		c->slots[i] = (struct slot){.key = -1, .from = -1};
	for (int i = 0; i < c->n_keys; i++)
		c->index[i] = c->staged[i] = c->inclusive_copy[i] = -1;
	return policy_start(c, cfg, e);
}

struct cache *cache_new(const struct cache_config *cfg, struct err *e)
{
	if (cache_config_check(cfg, e))
		return NULL;
	struct cache *c = NEW(struct cache);
	if (cache_init(c, cfg, e)) {
		cache_free(c);
		return NULL;
	}
	return c;
}

/* ---- invariants ---- */

static int check_slot(const struct cache *c, int32_t i, struct err *e)
{
	const struct slot *s = &c->slots[i];
	int at_borrowed = 0;
	while (at_borrowed < c->n_borrowed && c->borrowed[at_borrowed] != i)
		at_borrowed++;
	if (s->staging != (at_borrowed < c->n_borrowed))
		return err_set(
			e, ERR_RUN, "slot %d is %s staging", i, s->staging ? "wrongly" : "not said to be");
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
	if (s->staging) {
		if (c->staged[s->key] != i || !s->pins)
			return err_set(e, ERR_RUN, "staging slot %d: key %d staged in %d, %u pins", i, s->key,
				c->staged[s->key], s->pins);
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
		if (c->arena[t].n_slabs && slab_check(&c->arena[t], e))
			return err_prefix(e, "tier %d", t);
		for (int s = 0; s < c->arena[t].n_slabs; s++)
			handed_out[t] += c->arena[t].slab_used[s];
	}
	for (int32_t i = 0; i < c->n_slots; i++) {
		if (check_slot(c, i, e))
			return ERR_RUN;
		used[tier_of(c, i)] += c->slots[i].state != CACHE_FREE || c->slots[i].staging;
	}
	for (int t = 0; t < CACHE_TIERS; t++)
		if (used[t] != handed_out[t])
			return err_set(e, ERR_RUN, "tier %d: %d slots in use, the arena handed out %d", t,
				used[t], handed_out[t]);
	for (int32_t key = 0; key < c->n_keys; key++) {
		int32_t at = c->index[key], st = c->staged[key];
		if (at >= 0 && (c->slots[at].staging || c->slots[at].key != key))
			return err_set(e, ERR_RUN, "key %d is said to be in slot %d", key, at);
		if (st >= 0 && (!c->slots[st].staging || c->slots[st].key != key))
			return err_set(e, ERR_RUN, "key %d is said to be staged in slot %d", key, st);
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
