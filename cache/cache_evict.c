/* SPDX-License-Identifier: MIT */
/*
 * Finds a slot for an expert: victims, their demotions, and slabs that change their size class.
 *
 *      evict from tier 0 --> its inclusive copy (no bytes move)
 *                        --> a slot of tier 1: a demotion, for which tier 1 may evict
 *      evict from tier 1 --> gone
 */
#include "cache/cache_internal.h"

#include "src/base/num.h"

/* After so many slabfuls of evictions of a class the ages of the classes are compared. A slab is
 * reassigned when the other class's oldest key is at least half as old again. So at most one slab
 * of evictions in sixteen is due to a reassignment. */
#define REBALANCE_SLABFULS 16

/* A free slot, of tier 1 within cache_limit_tier1. */
static int32_t arena_slot_take(struct cache *c, int tier, int class_id)
{
	int32_t s = slab_slot_alloc(&c->arena[tier], class_id, tier == 1 ? c->tier1_limit : UINT64_MAX);
	return s < 0 ? -1 : s + c->first[tier];
}

void cache_inclusive_copy_add(struct cache *c, int32_t slot)
{
	int32_t key = c->slots[slot].key;
	c->slots[slot].pins = 0;
	c->inclusive_copy[key] = slot;
	key_list_push(&c->inclusive_copies, 0, key);
}

/* Forgets the key's inclusive copy and returns its slot, which is still in use in the arena. */
static int32_t inclusive_copy_take(struct cache *c, int32_t key)
{
	int32_t slot = c->inclusive_copy[key];
	key_list_drop(&c->inclusive_copies, key);
	c->inclusive_copy[key] = -1;
	return slot;
}

/* ---- victims ---- */

/* A READY key without pins leaves its tier: from tier 0 into tier 1 when that has room, else out of
 * the cache. */
static void evict(struct cache *c, int32_t key)
{
	int32_t slot = c->index[key], to = -1;
	int tier = tier_of(c, slot), k = class_of(c, key);
	c->policy.ops->remove(&c->policy, list_of(c, tier, k), key);
	c->evicted_since[tier][k]++;
	if (c->slots[slot].prefetched)
		c->stats.prefetch_wasted++;
	if (c->slots[slot].prefetched && c->slots[slot].from_disk)
		c->stats.prefetch_wasted_bytes += bytes_of(c, key);
	uint64_t from_offset = offset_of(c, slot);
	if (tier == 0 && c->inclusive_copy[key] >= 0) {
		to = inclusive_copy_take(c, key);
		c->policy.ops->insert(&c->policy, list_of(c, 1, k), key);
		c->stats.demotions++;
		c->stats.demotions_free++;
	} else if (tier == 0 && c->arena[1].n_slabs &&
			   cache_slot_alloc(c, 1, key, CACHE_DECODE, &to) == CACHE_OK) {
		cache_slot_fill(c, to, key);
		cache_plan_add(c, CACHE_DEMOTION, to, slot, from_offset);
		c->policy.ops->insert(&c->policy, list_of(c, 1, k), key);
		c->stats.demotions++;
		c->stats.bytes_demoted += bytes_of(c, key);
	} else {
		c->stats.evictions++;
	}
	c->index[key] = to;
	cache_slot_free(c, slot);
}

/* The slab of class only_class (< 0: of any class but class_id) whose keys were on average used
 * longest ago, of those in which every key can be evicted and that could have a slot of class_id
 * within the limit of tier 1; -1: none. */
static int coldest_slab(const struct cache *c, int tier, int class_id, int only_class)
{
	const struct slab_arena *a = &c->arena[tier];
	int best = -1;
	double best_mean = 0;
	for (int s = 0; s < a->n_slabs; s++) {
		int k = a->slab_class[s];
		if (k < 0 || k == class_id || (only_class >= 0 && k != only_class) || !a->slab_used[s])
			continue;
		if (tier == 1 && (uint64_t)s * a->slab_bytes + a->classes.bytes[class_id] > c->tier1_limit)
			continue;
		double sum = 0;
		bool free_to_go = true;
		for (int i = 0; free_to_go && i < slab_capacity(a, k); i++) {
			const struct slot *slot = &c->slots[c->first[tier] + s * a->per_slab + i];
			if (slot->state == CACHE_FREE && !slot->prefill)
				continue;
			free_to_go = slot_evictable(slot) && !slot->prefill;
			sum += free_to_go ? (double)c->last_use[slot->key] : 0;
		}
		double mean = sum / a->slab_used[s];
		if (free_to_go && (best < 0 || mean < best_mean)) {
			best = s;
			best_mean = mean;
		}
	}
	return best;
}

/* Evicts what is in the slab and gives it to class_id. */
static void take_over_slab(struct cache *c, int tier, int slab, int class_id)
{
	struct slab_arena *a = &c->arena[tier];
	int capacity = slab_capacity(a, a->slab_class[slab]);
	for (int i = 0; i < capacity; i++) {
		const struct slot *s = &c->slots[c->first[tier] + slab * a->per_slab + i];
		if (s->state != CACHE_FREE)
			evict(c, s->key);
	}
	slab_reassign(a, slab, class_id);
	c->stats.slabs_reassigned++;
}

/* When another class keeps its keys much longer than this one, takes the coldest slab of that
 * class. True: it did. Under LRU in one pool all sizes would have the same greatest age; this
 * steers towards that. */
static bool rebalance(struct cache *c, int tier, int class_id)
{
	struct slab_arena *a = &c->arena[tier];
	if (c->evicted_since[tier][class_id] <
		(uint32_t)(REBALANCE_SLABFULS * slab_capacity(a, class_id)))
		return false;
	c->evicted_since[tier][class_id] = 0;
	uint64_t oldest[SLAB_MAX_CLASSES] = {0};
	for (int32_t i = c->first[tier]; i < c->first[tier + 1]; i++)
		if (slot_evictable(&c->slots[i])) {
			int32_t key = c->slots[i].key;
			uint64_t age = c->clock - c->last_use[key];
			oldest[class_of(c, key)] = MAX(oldest[class_of(c, key)], age);
		}
	int richest = class_id;
	for (int k = 0; k < a->classes.n; k++)
		if (oldest[k] > oldest[richest])
			richest = k;
	if (richest == class_id || oldest[richest] <= oldest[class_id] + oldest[class_id] / 2)
		return false;
	int slab = coldest_slab(c, tier, class_id, richest);
	if (slab < 0)
		return false;
	take_over_slab(c, tier, slab, class_id);
	return true;
}

/* Whether a slot is free; in tier 0 with a tier 1: above the low watermark. */
static bool free_for_warm(const struct cache *c, int tier, int class_id)
{
	int kept = tier == 0 && c->arena[1].n_slabs ? c->keep_free : 0;
	return slab_n_free(&c->arena[tier], class_id, kept + 1) > kept;
}

bool cache_can_warm(const struct cache *c)
{
	for (int k = 0; k < c->arena[0].classes.n; k++)
		for (int tier = 0; tier < CACHE_TIERS; tier++)
			if (c->arena[tier].n_slabs && free_for_warm(c, tier, k))
				return true;
	return false;
}

/* Experts of tier 0 whose last_use is below this clock value are cold. */
static uint64_t cold_before(const struct cache *c)
{
	return c->clock > c->prefetch_cold ? c->clock - c->prefetch_cold : 0;
}

/* The order is that of cache.h, Sizes. */
enum cache_result cache_slot_alloc(
	struct cache *c, int tier, int32_t key, enum cache_use use, int32_t *slot)
{
	int class_id = class_of(c, key);
	struct slab_arena *a = &c->arena[tier];
	bool mixed = a->classes.n > 1;
	if (use == CACHE_WARM && tier == 1) {
		*slot = arena_slot_take(c, tier, class_id);
		return *slot < 0 ? CACHE_NO_COLD : CACHE_OK;
	}
	if (use == CACHE_WARM && !free_for_warm(c, tier, class_id))
		return CACHE_NO_COLD;
	*slot = arena_slot_take(c, tier, class_id);
	while (*slot < 0 && tier == 1 && c->inclusive_copies.tail[0] >= 0) {
		cache_slot_free(c, inclusive_copy_take(c, c->inclusive_copies.tail[0]));
		if (mixed)
			slab_reclaim_idle(a, class_id);
		*slot = arena_slot_take(c, tier, class_id);
	}
	if (*slot >= 0)
		return CACHE_OK;
	if (mixed &&
		(slab_reclaim_idle(a, class_id) || (use == CACHE_DECODE && rebalance(c, tier, class_id)))) {
		*slot = arena_slot_take(c, tier, class_id);
		if (*slot >= 0)
			return CACHE_OK;
	}
	const bool cold_only = use == CACHE_PREFETCH || use == CACHE_PROMOTE;
	uint64_t used_before = POLICY_ANY_AGE;
	if (cold_only)
		used_before = cold_before(c);
	int32_t victim = c->policy.ops->victim(&c->policy, list_of(c, tier, class_id), used_before);
	if (victim >= 0 && tier == 0 && use == CACHE_DECODE && c->policy.ops->admit &&
		!c->policy.ops->admit(&c->policy, key, victim))
		return CACHE_BYPASS;
	if (victim >= 0) {
		evict(c, victim);
	} else if (cold_only) {
		return CACHE_NO_COLD;
	} else {
		int slab = mixed ? coldest_slab(c, tier, class_id, -1) : -1;
		if (slab < 0)
			return CACHE_FULL;
		take_over_slab(c, tier, slab, class_id);
	}
	*slot = arena_slot_take(c, tier, class_id);
	return *slot < 0 ? CACHE_FULL : CACHE_OK; /* < 0: none of the slab is within the limit */
}

bool cache_worth_promoting(struct cache *c, int32_t key)
{
	const int k = class_of(c, key);
	if (free_for_warm(c, 0, k))
		return true;
	const struct policy_ops *ops = c->policy.ops;
	const int32_t victim = ops->victim(&c->policy, list_of(c, 0, k), cold_before(c));
	return victim >= 0 && (!ops->worth_more || ops->worth_more(&c->policy, key, victim));
}

void cache_keep_free(struct cache *c, int32_t key)
{
	int k = class_of(c, key);
	if (!c->arena[1].n_slabs || c->clock <= c->prefetch_cold)
		return;
	for (int n = slab_n_free(&c->arena[0], k, c->keep_free); n < c->keep_free; n++) {
		int32_t victim =
			c->policy.ops->victim(&c->policy, list_of(c, 0, k), c->clock - c->prefetch_cold);
		if (victim < 0)
			break;
		evict(c, victim);
	}
}
