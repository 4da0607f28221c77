/* SPDX-License-Identifier: MIT */
/* The expert cache: life, slots, questions. What is kept and how: cache_internal.h. */
#include "cache/cache_classes.h"
#include "cache/cache_internal.h"

#include "src/base/log.h"
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
	free(c->prefill_index);
	free(c->hot);
	free(c->borrowed);
	free(c->inclusive_copy);
	key_lists_fini(&c->inclusive_copies);
	free(c->last_use);
	free(c->transfers);
	free(c->pending);
	free(c);
}

/* How many experts fit in tier 0 when every class gets the same share of its experts. */
static double experts_that_fit(const struct cache *c)
{
	double wanted = 0, bytes = 0;
	const struct slab_arena *a = &c->arena[0];
	for (int k = 0; k < a->classes.n; k++) {
		wanted += (double)a->classes.n_objects[k];
		bytes += (double)a->classes.n_objects[k] * (double)a->classes.bytes[k];
	}
	return floor((double)a->bytes * wanted / bytes);
}

static double default_half_life(const struct cache *c, const struct cache_config *cfg)
{
	if (cfg->half_life > 0)
		return cfg->half_life;
	double tokens = CACHE_HALF_LIFE_TOKENS * (double)MAX(cfg->token_accesses, (uint64_t)1);
	return MAX(CACHE_HALF_LIFE_SLOTS * experts_that_fit(c), tokens);
}

/* How many accesses an expert counts as recent: a little more than a token. 0 in a cache that holds
 * less than a token's experts. There all would be recent, so the one that was not used for longest
 * would be evicted, and that is the one needed next. */
static uint64_t recency_window(const struct cache *c, const struct cache_config *cfg)
{
	if (cfg->as_published || experts_that_fit(c) < (double)cfg->token_accesses)
		return 0;
	return cfg->token_accesses + cfg->token_accesses / 16;
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
		list_keys[i] = (int)c->arena[0].classes.n_objects[i % n_classes];
	c->policy.env = (struct policy_env){.n_keys = c->n_keys,
		.n_lists = CACHE_TIERS * n_classes,
		.list_keys = list_keys,
		.last_use = c->last_use,
		.evictable = key_evictable,
		.ctx = c,
		.half_life = default_half_life(c, cfg),
		.recency_window = recency_window(c, cfg),
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

/* The arenas of both tiers, and the slot numbers that they have. */
static int arenas_init(struct cache *c, const struct cache_config *cfg, struct err *e)
{
	struct slab_classes k;
	cache_classes_make(cfg, &k);
	uint64_t prefill = cache_prefill_bytes(cfg, &k);
	if (cfg->tier_bytes[0] < prefill || cfg->tier_bytes[0] - prefill < k.bytes[0])
		return err_set(e, ERR_MEMORY,
			"an expert cache of %llu bytes cannot hold one expert of %llu bytes beside %llu bytes "
			"for prefill",
			(unsigned long long)cfg->tier_bytes[0], (unsigned long long)k.bytes[0],
			(unsigned long long)prefill);
	/* No tier needs more than everything, and slot numbers must not run away with a huge budget. */
	uint64_t align = cfg->align ? cfg->align : 1;
	struct cache_config without = *cfg; /* tier 1 has no prefill slots */
	without.n_prefill_slots = 0;
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
	return 0;
}

static int tables_alloc(struct cache *c, struct err *e)
{
	/* Every slot that is given out may empty a whole slab; no slot is filled twice in a plan. */
	uint64_t most =
		(uint64_t)(c->n_experts + c->n_prefill_slots) * (uint64_t)(c->arena[0].per_slab + 1);
	c->cap_transfers = (int)MIN((uint64_t)c->n_slots, most + CACHE_KEEP_FREE);
	c->cap_pending = 2 * c->n_experts + CACHE_PENDING_PREDICTED;
	size_t n_layers = (size_t)c->n_layers, n_keys = (size_t)c->n_keys;
	c->layer_bytes = mem_try_new(n_layers, sizeof *c->layer_bytes);
	c->layer_class = mem_try_new(n_layers, sizeof *c->layer_class);
	c->slots = mem_try_new((size_t)c->n_slots, sizeof *c->slots);
	c->index = mem_try_new(n_keys, sizeof *c->index);
	c->prefill_index = mem_try_new(n_keys, sizeof *c->prefill_index);
	c->hot = mem_try_new(n_keys, sizeof *c->hot);
	c->last_use = mem_try_new(n_keys, sizeof *c->last_use);
	c->inclusive_copy = mem_try_new(n_keys, sizeof *c->inclusive_copy);
	c->borrowed = mem_try_new((size_t)c->n_prefill_slots + 1, sizeof *c->borrowed);
	c->transfers = mem_try_new((size_t)c->cap_transfers, sizeof *c->transfers);
	c->pending = mem_try_new((size_t)c->cap_pending, sizeof *c->pending);
	if (!c->layer_bytes || !c->layer_class || !c->slots || !c->index || !c->prefill_index ||
		!c->hot || !c->last_use || !c->borrowed || !c->inclusive_copy || !c->transfers ||
		!c->pending || !key_lists_init(&c->inclusive_copies, c->n_keys, 1))
		return err_set(e, ERR_MEMORY, "no memory for the bookkeeping of %d experts", c->n_keys);
	return 0;
}

static int cache_init(struct cache *c, const struct cache_config *cfg, struct err *e)
{
	c->n_layers = cfg->n_layers;
	c->n_experts = cfg->n_experts;
	c->n_keys = cfg->n_layers * cfg->n_experts;
	c->prefetch_cold = cfg->prefetch_cold ? cfg->prefetch_cold : 2 * cfg->token_accesses;
	c->n_prefill_slots = cfg->n_prefill_slots;
	c->tier1_limit = UINT64_MAX;
	c->keep_free = cfg->as_published ? 0 : CACHE_KEEP_FREE;
	int rc = arenas_init(c, cfg, e);
	if (rc || (rc = tables_alloc(c, e)))
		return rc;
	const struct slab_classes *k = &c->arena[0].classes;
	for (int l = 0; l < cfg->n_layers; l++) {
		c->layer_bytes[l] = cfg->expert_bytes[l];
		c->layer_class[l] =
			cfg->expert_bytes[l] ? (int8_t)cache_classes_find(k, cfg->expert_bytes[l]) : -1;
		c->largest_key = c->layer_class[l] == 0 ? l * c->n_experts : c->largest_key;
	}
	for (int i = 0; i < c->n_slots; i++)
		c->slots[i] = (struct slot){.key = -1, .from = -1};
	for (int i = 0; i < c->n_keys; i++)
		c->index[i] = c->prefill_index[i] = c->inclusive_copy[i] = -1;
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

/* ---- slots ---- */

int32_t cache_key(const struct cache *c, int layer, int expert)
{
	if (layer < 0 || layer >= c->n_layers || expert < 0 || expert >= c->n_experts ||
		c->layer_class[layer] < 0)
		bug("no expert %d in layer %d", expert, layer);
	return layer * c->n_experts + expert;
}

void cache_slot_fill(struct cache *c, int32_t slot, int32_t key)
{
	c->slots[slot] = (struct slot){.key = key,
		.from = -1,
		.load_id = ++c->n_loads,
		.state = CACHE_FILLING,
		.prefill = c->slots[slot].prefill};
}

void cache_slot_free(struct cache *c, int32_t slot)
{
	int t = tier_of(c, slot);
	c->slots[slot] = (struct slot){.key = -1, .from = -1};
	slab_slot_free(&c->arena[t], slot - c->first[t]);
}

void cache_plan_add(struct cache *c, int kind, int32_t slot, int32_t source, uint64_t from_offset)
{
	int32_t key = c->slots[slot].key, keep = c->slots[slot].kept ? c->index[key] : -1;
	if (c->n_transfers == c->cap_transfers)
		bug("more than %d transfers in one plan", c->cap_transfers);
	c->transfers[c->n_transfers++] = (struct cache_transfer){.kind = kind,
		.layer = key / c->n_experts,
		.expert = key % c->n_experts,
		.slot = slot,
		.source = source,
		.from_offset = from_offset,
		.to_offset = offset_of(c, slot),
		.bytes = bytes_of(c, key),
		.keep = keep,
		.keep_offset = keep >= 0 ? offset_of(c, keep) : 0};
}

static struct slot *used_slot(struct cache *c, int32_t slot)
{
	if (slot < 0 || slot >= c->n_slots || c->slots[slot].state == CACHE_FREE)
		bug("slot %d is not in use", slot);
	return &c->slots[slot];
}

/* A prefill slot is FREE again. It goes back to the arena unless a step of prefill holds it. */
static void prefill_slot_release(struct cache *c, int32_t slot)
{
	c->prefill_index[c->slots[slot].key] = -1;
	c->slots[slot] = (struct slot){.key = -1, .from = -1, .prefill = true};
	if (c->hold_prefill)
		return;
	int i = 0;
	while (c->borrowed[i] != slot)
		i++;
	cache_slot_free(c, slot);
	c->borrowed[i] = c->borrowed[--c->n_borrowed];
}

void cache_unpin(struct cache *c, int32_t slot)
{
	struct slot *s = used_slot(c, slot);
	if (s->pins <= s->unpins)
		bug("slot %d unpinned more often than pinned", slot);
	if (s->state == CACHE_FILLING) {
		s->unpins++;
		return;
	}
	if (!--s->pins && s->prefill)
		prefill_slot_release(c, slot);
}

void cache_commit(struct cache *c, int32_t slot)
{
	struct slot *s = used_slot(c, slot);
	if (s->state != CACHE_FILLING)
		bug("slot %d committed twice", slot);
	if (s->kept)
		cache_commit(c, c->index[s->key]);
	s->state = CACHE_READY;
	if (s->from >= 0) {
		if (s->prefill)
			c->slots[s->from].pins--;
		else
			cache_inclusive_copy_add(c, s->from);
		s->from = -1;
	}
	s->pins -= s->unpins;
	s->unpins = 0;
	if (s->prefill && !s->pins)
		prefill_slot_release(c, slot);
}

void cache_abort(struct cache *c, int32_t slot)
{
	struct slot *s = used_slot(c, slot);
	int32_t key = s->key, from = s->from;
	if (s->state != CACHE_FILLING)
		bug("slot %d aborted after its commit", slot);
	if (s->kept)
		cache_abort(c, c->index[key]);
	if (from >= 0)
		c->slots[from].pins--;
	if (s->prefill) {
		prefill_slot_release(c, slot);
		return;
	}
	int tier = tier_of(c, slot), k = class_of(c, key);
	c->stats.prefetch_cancelled += s->prefetched;
	c->policy.ops->remove(&c->policy, list_of(c, tier, k), key);
	c->index[key] = from;
	if (from >= 0)
		c->policy.ops->insert(&c->policy, list_of(c, 1, k), key);
	cache_slot_free(c, slot);
}

/* ---- questions ---- */

/* Whether the load into a prefill slot fills this slot of tier 1. */
static bool filled_by_prefill(const struct cache *c, int32_t slot)
{
	const int32_t borrowed = c->prefill_index[c->slots[slot].key];
	return tier_of(c, slot) == 1 && borrowed >= 0 && c->slots[borrowed].kept &&
		   c->slots[borrowed].state == CACHE_FILLING;
}

struct cache_slot cache_slot_get(const struct cache *c, int32_t slot)
{
	if (slot < 0 || slot >= c->n_slots)
		bug("no slot %d", slot);
	const struct slot *s = &c->slots[slot];
	struct cache_slot out = {.tier = tier_of(c, slot),
		.prefill = s->prefill,
		.read_ahead = s->read_ahead,
		.state = (enum cache_state)s->state,
		.layer = -1,
		.expert = -1,
		.pins = s->pins,
		.load_id = s->load_id,
		.filled_by = slot};
	if (s->state == CACHE_FILLING && filled_by_prefill(c, slot))
		out.filled_by = c->prefill_index[s->key];
	if (s->state != CACHE_FREE) {
		out.layer = s->key / c->n_experts;
		out.expert = s->key % c->n_experts;
		out.offset = offset_of(c, slot);
		out.bytes = bytes_of(c, s->key);
	}
	return out;
}

int32_t cache_find(const struct cache *c, int layer, int expert)
{
	int32_t key = cache_key(c, layer, expert);
	return c->index[key] >= 0 ? c->index[key] : c->prefill_index[key];
}

int cache_n_slots(const struct cache *c)
{
	return c->n_slots;
}

const struct cache_stats *cache_stats(const struct cache *c)
{
	return &c->stats;
}

void cache_reset_stats(struct cache *c)
{
	c->stats = (struct cache_stats){0};
}

void cache_layer_resident(const struct cache *c, int layer, int n[CACHE_TIERS])
{
	n[0] = n[1] = 0;
	for (int i = 0; i < c->n_experts; i++) {
		int32_t slot = c->index[layer * c->n_experts + i];
		if (slot >= 0 && c->slots[slot].state == CACHE_READY)
			n[tier_of(c, slot)]++;
	}
}

uint64_t cache_memory_bytes(const struct cache *c, int tier)
{
	return c->arena[tier].bytes;
}

uint64_t cache_slab_bytes(const struct cache *c, int tier)
{
	return c->arena[tier].slab_bytes;
}

int cache_capacity(const struct cache *c, int tier, int layer)
{
	const struct slab_arena *a = &c->arena[tier];
	return c->layer_class[layer] < 0 ? 0 : a->n_slabs * slab_capacity(a, c->layer_class[layer]);
}
