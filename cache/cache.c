/* SPDX-License-Identifier: MIT */
/* The expert cache: operations. What is kept and how: cache_internal.h. */
#include "cache/cache_internal.h"

#include "src/base/log.h"
#include "src/base/num.h"

#include <stdlib.h>
#include <string.h>

/* After that many slabfuls of evictions of a class the ages of the classes are compared; a slab
 * changes hands when the other class's oldest key is older by half. At worst one eviction in
 * sixteen is due to such a move.
 */
#define REBALANCE_SLABFULS 16

/* ---- small helpers ---- */

static uint64_t bytes_of(const struct cache *c, int32_t key)
{
	return c->layer_bytes[key / c->n_experts];
}

static int list_of(const struct cache *c, int tier, int class_id)
{
	return tier * c->arena[0].classes.n + class_id;
}

static int32_t key_of(const struct cache *c, int layer, int expert)
{
	if (layer < 0 || layer >= c->n_layers || expert < 0 || expert >= c->n_experts ||
		c->layer_class[layer] < 0)
		bug("no expert %d in layer %d", expert, layer);
	return layer * c->n_experts + expert;
}

static uint64_t offset_of(const struct cache *c, int32_t slot)
{
	int t = tier_of(c, slot);
	return slab_offset(&c->arena[t], slot - c->first[t]);
}

static struct slot *used_slot(struct cache *c, int32_t slot)
{
	if (slot < 0 || slot >= c->n_slots || c->slots[slot].state == CACHE_FREE)
		bug("slot %d is not in use", slot);
	return &c->slots[slot];
}

/* Back to the free list of its arena. */
static void slot_release(struct cache *c, int32_t slot)
{
	int t = tier_of(c, slot);
	c->slots[slot] = (struct slot){.key = -1, .from = -1};
	slab_give(&c->arena[t], slot - c->first[t]);
}

static void slot_fill(struct cache *c, int32_t slot, int32_t key)
{
	c->slots[slot] = (struct slot){
		.key = key, .from = -1, .state = CACHE_FILLING, .staging = c->slots[slot].staging};
}

static int32_t slot_take(struct cache *c, int tier, int class_id)
{
	int32_t s = slab_take(&c->arena[tier], class_id);
	return s < 0 ? -1 : s + c->first[tier];
}

/* ---- copies ---- */

/* The slot of the key's copy, which is none any more. */
static int32_t inclusive_copy_take(struct cache *c, int32_t key)
{
	int32_t slot = c->inclusive_copy[key];
	key_list_drop(&c->inclusive_copies, 0, key);
	c->inclusive_copy[key] = -1;
	return slot;
}

/* The bytes in `slot` have gone up. */
static void inclusive_copy_add(struct cache *c, int32_t slot)
{
	int32_t key = c->slots[slot].key;
	c->slots[slot].pins = 0;
	c->inclusive_copy[key] = slot;
	key_list_push(&c->inclusive_copies, 0, key);
}

/* ---- making room ---- */

static int make_room(struct cache *c, int tier, int32_t key, enum cache_use use, int32_t *slot);

/* Throws a READY, unpinned key out of its tier: from tier 0 into tier 1 when that has room, else
 * out of the cache. */
static void evict(struct cache *c, int32_t key)
{
	int32_t slot = c->index[key], to = -1;
	int tier = tier_of(c, slot), k = class_of(c, key);
	c->policy.ops->remove(&c->policy, list_of(c, tier, k), key);
	c->evicted_since[tier][k]++;
	if (c->slots[slot].prefetched)
		c->stats.prefetch_wasted++;
	if (c->slots[slot].prefetched && c->slots[slot].read)
		c->stats.prefetch_wasted_bytes += bytes_of(c, key);
	uint64_t from_offset = offset_of(c, slot);
	if (tier == 0 && c->inclusive_copy[key] >= 0) {
		to = inclusive_copy_take(c, key);
		c->policy.ops->insert(&c->policy, list_of(c, 1, k), key);
		c->stats.demotions++;
		c->stats.demotions_free++;
	} else if (tier == 0 && c->arena[1].n_slabs &&
			   make_room(c, 1, key, CACHE_DECODE, &to) == CACHE_OK) {
		if (c->n_demotions == c->max_demotions)
			bug("more than %d demotions in one plan", c->max_demotions);
		slot_fill(c, to, key);
		c->demotions[c->n_demotions++] = (struct cache_demotion){.layer = key / c->n_experts,
			.expert = key % c->n_experts,
			.from = slot,
			.to = to,
			.from_offset = from_offset,
			.to_offset = offset_of(c, to),
			.bytes = bytes_of(c, key)};
		c->policy.ops->insert(&c->policy, list_of(c, 1, k), key);
		c->stats.demotions++;
		c->stats.bytes_demoted += bytes_of(c, key);
	} else {
		c->stats.evictions++;
	}
	c->index[key] = to;
	slot_release(c, slot);
}

/* A slab of another class that could be emptied now, the one whose keys were on average used
 * longest ago; -1: none. only_class < 0: of any class but `class_id`. */
static int coldest_slab(const struct cache *c, int tier, int class_id, int only_class)
{
	const struct slab_arena *a = &c->arena[tier];
	int best = -1;
	double best_mean = 0;
	for (int s = 0; s < a->n_slabs; s++) {
		int k = a->slab_class[s];
		if (k < 0 || k == class_id || (only_class >= 0 && k != only_class) || !a->slab_used[s])
			continue;
		double sum = 0;
		bool free_to_go = true;
		for (int i = 0; free_to_go && i < slab_capacity(a, k); i++) {
			const struct slot *slot = &c->slots[c->first[tier] + s * a->per_slab + i];
			if (slot->state == CACHE_FREE && !slot->staging)
				continue;
			free_to_go = slot_evictable(slot) && !slot->staging;
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

/* When another class keeps its keys much longer than this one can, takes its coldest slab. Under
 * LRU in one pool all sizes would have the same greatest age; this steers towards that. */
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

/* CACHE_OK and a slot number taken from the arena for `key`, or CACHE_FULL, CACHE_NO_COLD or
 * CACHE_BYPASS. */
static int make_room(struct cache *c, int tier, int32_t key, enum cache_use use, int32_t *slot)
{
	int class_id = class_of(c, key);
	struct slab_arena *a = &c->arena[tier];
	bool mixed = a->classes.n > 1;
	*slot = slot_take(c, tier, class_id);
	while (*slot < 0 && tier == 1 && c->inclusive_copies.tail[0] >= 0) {
		slot_release(c, inclusive_copy_take(c, c->inclusive_copies.tail[0]));
		if (mixed)
			slab_reclaim_idle(a, class_id);
		*slot = slot_take(c, tier, class_id);
	}
	if (*slot >= 0)
		return CACHE_OK;
	if (mixed &&
		(slab_reclaim_idle(a, class_id) || (use == CACHE_DECODE && rebalance(c, tier, class_id)))) {
		*slot = slot_take(c, tier, class_id);
		return CACHE_OK;
	}
	uint64_t used_before = POLICY_ANY_AGE;
	if (use == CACHE_PREFETCH)
		used_before = c->clock > c->prefetch_cold ? c->clock - c->prefetch_cold : 0;
	int32_t victim = c->policy.ops->victim(&c->policy, list_of(c, tier, class_id), used_before);
	if (victim >= 0 && tier == 0 && use == CACHE_DECODE && c->policy.ops->admit &&
		!c->policy.ops->admit(&c->policy, key, victim))
		return CACHE_BYPASS;
	if (victim >= 0) {
		evict(c, victim);
	} else if (use == CACHE_PREFETCH) {
		return CACHE_NO_COLD;
	} else {
		int slab = mixed ? coldest_slab(c, tier, class_id, -1) : -1;
		if (slab < 0)
			return CACHE_FULL;
		take_over_slab(c, tier, slab, class_id);
	}
	*slot = slot_take(c, tier, class_id);
	return CACHE_OK;
}

/* ---- operations ---- */

int32_t cache_find(const struct cache *c, int layer, int expert)
{
	int32_t key = key_of(c, layer, expert);
	return c->index[key] >= 0 ? c->index[key] : c->staged[key];
}

static int32_t access_prefill(struct cache *c, int32_t key)
{
	int32_t slot = c->index[key];
	if (slot >= 0)
		c->stats.prefill_hits[tier_of(c, slot)]++;
	else
		c->stats.prefill_misses++;
	if ((slot < 0 || tier_of(c, slot) == 1) && c->staged[key] >= 0)
		slot = c->staged[key];
	return slot;
}

int32_t cache_access(struct cache *c, int layer, int expert, enum cache_use use)
{
	int32_t key = key_of(c, layer, expert), slot = c->index[key];
	if (use != CACHE_DECODE)
		return access_prefill(c, key);
	c->clock++;
	c->stats.accesses++;
	c->last_use[key] = c->clock;
	c->policy.ops->access(&c->policy, key);
	if (slot < 0) {
		c->stats.misses++;
		c->stats.bytes_missed += bytes_of(c, key);
		return c->staged[key];
	}
	struct slot *s = &c->slots[slot];
	c->stats.hits[tier_of(c, slot)]++;
	if (s->state == CACHE_FILLING && !tier_of(c, slot))
		c->stats.late++;
	if (s->prefetched) {
		s->prefetched = false;
		c->stats.prefetch_used++;
	} else if (c->inclusive_copy[key] >= 0) { /* used again, it stays above for long */
		key_list_drop(&c->inclusive_copies, 0, key);
		key_list_push_tail(&c->inclusive_copies, 0, key);
	}
	return slot;
}

void cache_note_predicted(struct cache *c, int layer, int expert)
{
	int32_t key = key_of(c, layer, expert);
	if (!c->policy.ops->predicted)
		return;
	c->last_use[key] = c->clock;
	c->policy.ops->predicted(&c->policy, key);
}

/* ---- staging ---- */

/* One staging slot more: a free slot, or a victim's. -1: there are as many as may be, or nobody can
 * leave. */
static int32_t staging_borrow(struct cache *c)
{
	int32_t slot;
	if (c->n_borrowed == c->n_staging ||
		make_room(c, 0, c->largest_key, CACHE_PREFILL, &slot) != CACHE_OK)
		return -1;
	c->slots[slot].staging = true;
	c->borrowed[c->n_borrowed++] = slot;
	return slot;
}

/* The i-th staging slot, which is FREE, is a slot like any other again. */
static void staging_return(struct cache *c, int i)
{
	slot_release(c, c->borrowed[i]);
	c->borrowed[i] = c->borrowed[--c->n_borrowed];
}

static void staging_release(struct cache *c, int32_t slot)
{
	c->staged[c->slots[slot].key] = -1;
	c->slots[slot] = (struct slot){.key = -1, .from = -1, .staging = true};
	if (c->hold_staging)
		return;
	int i = 0;
	while (c->borrowed[i] != slot)
		i++;
	staging_return(c, i);
}

void cache_begin_step(struct cache *c, enum cache_use use, struct cache_plan *plan)
{
	*plan = (struct cache_plan){.slot = -1, .source = -1, .demotions = c->demotions};
	c->n_demotions = 0;
	c->hold_staging = use == CACHE_PREFILL;
	if (c->hold_staging)
		while (staging_borrow(c) >= 0)
			;
	for (int i = c->n_borrowed - 1; !c->hold_staging && i >= 0; i--)
		if (c->slots[c->borrowed[i]].state == CACHE_FREE)
			staging_return(c, i);
	plan->n_demotions = c->n_demotions;
}

static enum cache_result reserve_staging(struct cache *c, int32_t key, struct cache_plan *plan)
{
	int32_t in = c->index[key], slot = -1;
	if (in >= 0)
		c->slots[in].pins++;
	for (int i = 0; i < c->n_borrowed && slot < 0; i++)
		slot = c->slots[c->borrowed[i]].state == CACHE_FREE ? c->borrowed[i] : -1;
	if (slot < 0)
		slot = staging_borrow(c);
	plan->n_demotions = c->n_demotions;
	if (slot < 0) {
		if (in >= 0)
			c->slots[in].pins--;
		c->stats.full++;
		return CACHE_FULL;
	}
	slot_fill(c, slot, key);
	c->slots[slot].pins = 1;
	c->slots[slot].from = plan->source = in;
	c->staged[key] = slot;
	plan->slot = slot;
	return CACHE_OK;
}

enum cache_result cache_reserve(
	struct cache *c, int layer, int expert, enum cache_use use, struct cache_plan *plan)
{
	int32_t key = key_of(c, layer, expert), in = c->index[key];
	int k = class_of(c, key);
	*plan = (struct cache_plan){.slot = -1, .source = -1, .demotions = c->demotions};
	c->n_demotions = 0;
	if (in >= 0 && !tier_of(c, in)) {
		plan->slot = in;
		return CACHE_PRESENT;
	}
	if (use == CACHE_PREFILL && c->staged[key] >= 0) {
		plan->slot = c->staged[key];
		return CACHE_PRESENT;
	}
	bool being_staged = in >= 0 && c->staged[key] >= 0 && c->slots[c->staged[key]].from == in;
	if (in >= 0 && (c->slots[in].state == CACHE_FILLING || being_staged))
		return CACHE_BUSY;
	if (use == CACHE_PREFILL)
		return reserve_staging(c, key, plan);

	if (in >= 0)
		c->slots[in].pins++; /* it must not be the victim that makes room for its own promotion */
	int32_t slot;
	int answer = make_room(c, 0, key, use, &slot);
	plan->n_demotions = c->n_demotions;
	if (answer != CACHE_OK) {
		if (in >= 0)
			c->slots[in].pins--;
		c->stats.full += answer == CACHE_FULL;
		c->stats.prefetch_refused += answer == CACHE_NO_COLD;
		return answer;
	}
	slot_fill(c, slot, key);
	struct slot *s = &c->slots[slot];
	if (in >= 0) {
		/* The move keeps its pin on the old slot; pins of callers go to the new one. */
		s->from = plan->source = in;
		s->pins = c->slots[in].pins - 1;
		c->slots[in].pins = 1;
		c->policy.ops->remove(&c->policy, list_of(c, 1, k), key);
		c->stats.promotions++;
		c->stats.bytes_promoted += bytes_of(c, key);
	}
	c->index[key] = plan->slot = slot;
	if (use == CACHE_PREFETCH) {
		s->prefetched = true;
		s->read = in < 0;
		c->last_use[key] = c->clock;
		c->stats.prefetch_inserted++;
		c->stats.prefetch_bytes += in < 0 ? bytes_of(c, key) : 0;
	} else if (!s->pins) {
		s->pins = 1;
	}
	c->policy.ops->insert(&c->policy, list_of(c, 0, k), key);
	return CACHE_OK;
}

void cache_keep_free(struct cache *c, int layer, struct cache_plan *plan)
{
	struct slab_arena *a = &c->arena[0];
	int k = class_of(c, key_of(c, layer, 0));
	*plan = (struct cache_plan){.slot = -1, .source = -1, .demotions = c->demotions};
	c->n_demotions = 0;
	if (!c->arena[1].n_slabs || c->clock <= c->prefetch_cold)
		return;
	for (int n = slab_n_free(a, k, CACHE_KEEP_FREE); n < CACHE_KEEP_FREE; n++) {
		int32_t victim =
			c->policy.ops->victim(&c->policy, list_of(c, 0, k), c->clock - c->prefetch_cold);
		if (victim < 0)
			break;
		evict(c, victim);
	}
	plan->n_demotions = c->n_demotions;
}

void cache_commit(struct cache *c, int32_t slot)
{
	struct slot *s = used_slot(c, slot);
	if (s->state != CACHE_FILLING)
		bug("slot %d committed twice", slot);
	s->state = CACHE_READY;
	if (s->from >= 0) {
		if (s->staging)
			c->slots[s->from].pins--;
		else
			inclusive_copy_add(c, s->from);
		s->from = -1;
	}
	if (s->staging && !s->pins)
		bug("staging slot %d committed without a pin", slot);
}

void cache_abort(struct cache *c, int32_t slot)
{
	struct slot *s = used_slot(c, slot);
	int32_t key = s->key, from = s->from;
	if (s->state != CACHE_FILLING)
		bug("slot %d aborted after its commit", slot);
	if (from >= 0)
		c->slots[from].pins--;
	if (s->staging) {
		staging_release(c, slot);
		return;
	}
	int tier = tier_of(c, slot), k = class_of(c, key);
	c->stats.prefetch_cancelled += s->prefetched;
	c->policy.ops->remove(&c->policy, list_of(c, tier, k), key);
	c->index[key] = from;
	if (from >= 0)
		c->policy.ops->insert(&c->policy, list_of(c, 1, k), key);
	slot_release(c, slot);
}

void cache_pin(struct cache *c, int32_t slot)
{
	used_slot(c, slot)->pins++;
}

void cache_unpin(struct cache *c, int32_t slot)
{
	struct slot *s = used_slot(c, slot);
	if (!s->pins)
		bug("slot %d unpinned more often than pinned", slot);
	if (!--s->pins && s->staging) {
		if (s->state != CACHE_READY)
			bug("staging slot %d lost its last pin before its bytes came", slot);
		staging_release(c, slot);
	}
}

/* ---- questions ---- */

struct cache_slot cache_slot_get(const struct cache *c, int32_t slot)
{
	if (slot < 0 || slot >= c->n_slots)
		bug("no slot %d", slot);
	const struct slot *s = &c->slots[slot];
	struct cache_slot out = {.tier = tier_of(c, slot),
		.staging = s->staging,
		.state = (enum cache_state)s->state,
		.layer = -1,
		.expert = -1,
		.pins = s->pins};
	if (s->state != CACHE_FREE) {
		out.layer = s->key / c->n_experts;
		out.expert = s->key % c->n_experts;
		out.offset = offset_of(c, slot);
		out.bytes = bytes_of(c, s->key);
	}
	return out;
}

bool cache_is_ready(const struct cache *c, int32_t slot)
{
	return slot < c->first[1] && c->slots[slot].state == CACHE_READY && !c->slots[slot].staging;
}

int32_t cache_staging_slot(const struct cache *c, int i)
{
	return i < c->n_borrowed ? c->borrowed[i] : -1;
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

uint64_t cache_metadata_bytes(const struct cache *c)
{
	return c->metadata_bytes;
}

int cache_capacity(const struct cache *c, int tier, int layer)
{
	const struct slab_arena *a = &c->arena[tier];
	return c->layer_class[layer] < 0 ? 0 : a->n_slabs * slab_capacity(a, c->layer_class[layer]);
}

uint64_t cache_wasted_bytes(const struct cache *c, int tier)
{
	const struct slab_arena *a = &c->arena[tier];
	uint64_t used = (uint64_t)a->n_free_slabs * a->slab_bytes;
	for (int32_t i = c->first[tier]; i < c->first[tier + 1]; i++)
		if (c->slots[i].state != CACHE_FREE)
			used += bytes_of(c, c->slots[i].key);
	return a->bytes - used;
}
