/* SPDX-License-Identifier: MIT */
/*
 * The expert cache. Everything is a slot: index[key] names the slot where an expert is or is being put, slots
 * hold key, state and pins, the policy orders keys in one list per (tier, class), the arenas hand out slot
 * numbers.
 *
 * Slot numbers: tier 0 [0, first[1]), tier 1 [first[1], first[2]), staging [first[2], n_slots).
 */
#include "cache/cache.h"

#include "cache/cache_classes.h"
#include "cache/slab.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STAGING 2 /* in first[] */

/* After that many slabfuls of evictions of a class the ages of the classes are compared; a slab changes hands
 * when the other class's oldest key is older by half. At worst one eviction in sixteen is due to such a move.
 */
#define REBALANCE_SLABFULS 16

struct slot {
	int32_t key; /* -1: FREE */
	int32_t
		from; /* FILLING by a promotion or a staged copy: the pinned tier 1 slot with the bytes; else -1 */
	uint32_t pins;
	uint8_t state;
	bool prefetched; /* reserved by a prefetch and not demanded since */
};

struct cache {
	/* constant after cache_new */
	int n_layers, n_experts, n_keys, n_slots;
	uint64_t *layer_bytes; /* [n_layers] */
	int8_t *layer_class;   /* [n_layers], -1: no experts */
	int32_t first[STAGING + 1];
	uint64_t staging_offset, staging_bytes; /* of the first staging slot; of one */
	uint64_t prefetch_cold;
	uint64_t metadata_bytes;
	/* changing */
	struct policy policy;
	struct slab_arena arena[CACHE_TIERS];
	struct slot *slots; /* [n_slots] */
	int32_t *index;     /* [n_keys] slot in tier 0 or 1, -1: in neither */
	int32_t *staged;    /* [n_keys] staging slot, -1: none */
	uint64_t *last_use; /* [n_keys] clock of the last demand access or insertion into tier 0 */
	uint64_t clock;     /* demand accesses so far */
	uint32_t evicted_since[CACHE_TIERS][SLAB_MAX_CLASSES]; /* since ages were last compared */
	struct cache_move *moves;                              /* [max_moves] of the last plan */
	int n_moves, max_moves;
	struct cache_stats stats;
};

/* ---- small helpers ---- */

static int tier_of(const struct cache *c, int32_t slot)
{
	return slot >= c->first[1];
}

static int class_of(const struct cache *c, int32_t key)
{
	return c->layer_class[key / c->n_experts];
}

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

static bool slot_evictable(const struct slot *s)
{
	return s->state == CACHE_READY && !s->pins;
}

static bool key_evictable(const void *ctx, int32_t key)
{
	const struct cache *c = ctx;
	int32_t slot = c->index[key];
	return slot >= 0 && slot_evictable(&c->slots[slot]);
}

static uint64_t offset_of(const struct cache *c, int32_t slot)
{
	if (slot >= c->first[STAGING])
		return c->staging_offset + (uint64_t)(slot - c->first[STAGING]) * c->staging_bytes;
	int t = tier_of(c, slot);
	return slab_offset(&c->arena[t], slot - c->first[t]);
}

static struct slot *used_slot(struct cache *c, int32_t slot)
{
	if (slot < 0 || slot >= c->n_slots || c->slots[slot].state == CACHE_FREE)
		bug("slot %d is not in use", slot);
	return &c->slots[slot];
}

/* Slot of an arena (not staging) back to its free list. */
static void slot_release(struct cache *c, int32_t slot)
{
	int t = tier_of(c, slot);
	c->slots[slot] = (struct slot){.key = -1, .from = -1};
	slab_give(&c->arena[t], slot - c->first[t]);
}

static void slot_fill(struct cache *c, int32_t slot, int32_t key)
{
	c->slots[slot] = (struct slot){.key = key, .from = -1, .state = CACHE_FILLING};
}

static int32_t take(struct cache *c, int tier, int class_id)
{
	int32_t s = slab_take(&c->arena[tier], class_id);
	return s < 0 ? -1 : s + c->first[tier];
}

/* ---- making room ---- */

static int make_room(struct cache *c, int tier, int32_t key, enum cache_use use, int32_t *slot);

/* Throws a READY, unpinned key out of its tier: from tier 0 into tier 1 when that has room, else out of the
 * cache. */
static void evict(struct cache *c, int32_t key)
{
	int32_t slot = c->index[key], to = -1;
	int tier = tier_of(c, slot), k = class_of(c, key);
	c->policy.ops->remove(&c->policy, list_of(c, tier, k), key);
	c->evicted_since[tier][k]++;
	if (c->slots[slot].prefetched)
		c->stats.prefetch_wasted++;
	uint64_t from_offset = offset_of(c, slot);
	if (tier == 0 && c->arena[1].n_slabs && make_room(c, 1, key, CACHE_DECODE, &to) == CACHE_OK) {
		if (c->n_moves == c->max_moves)
			bug("more than %d moves in one plan", c->max_moves);
		slot_fill(c, to, key);
		c->moves[c->n_moves++] = (struct cache_move){.layer = key / c->n_experts,
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

/* A slab of another class that could be emptied now, the one whose keys were on average used longest ago; -1:
 * none. only_class < 0: of any class but `class_id`. */
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
			if (slot->state == CACHE_FREE)
				continue;
			free_to_go = slot_evictable(slot);
			sum += (double)c->last_use[slot->key];
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
	c->stats.slabs_moved++;
}

/* When another class keeps its keys much longer than this one can, takes its coldest slab. Under LRU in one
 * pool all sizes would have the same greatest age; this steers towards that. */
static bool rebalance(struct cache *c, int tier, int class_id)
{
	struct slab_arena *a = &c->arena[tier];
	if (c->evicted_since[tier][class_id] < (uint32_t)(REBALANCE_SLABFULS * slab_capacity(a, class_id)))
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

/* CACHE_OK and a slot number taken from the arena for `key`, or CACHE_FULL, CACHE_WARM or CACHE_BYPASS. */
static int make_room(struct cache *c, int tier, int32_t key, enum cache_use use, int32_t *slot)
{
	int class_id = class_of(c, key);
	struct slab_arena *a = &c->arena[tier];
	bool mixed = a->classes.n > 1;
	*slot = take(c, tier, class_id);
	if (*slot >= 0)
		return CACHE_OK;
	if (mixed && (slab_reclaim_idle(a, class_id) || (use == CACHE_DECODE && rebalance(c, tier, class_id)))) {
		*slot = take(c, tier, class_id);
		return CACHE_OK;
	}
	uint64_t used_before = POLICY_ANY_AGE;
	if (use == CACHE_PREFETCH)
		used_before = c->clock > c->prefetch_cold ? c->clock - c->prefetch_cold : 0;
	int32_t victim = c->policy.ops->pick(&c->policy, list_of(c, tier, class_id), used_before);
	if (victim >= 0 && tier == 0 && use == CACHE_DECODE && c->policy.ops->admit &&
		!c->policy.ops->admit(&c->policy, key, victim))
		return CACHE_BYPASS;
	if (victim >= 0) {
		evict(c, victim);
	} else if (use == CACHE_PREFETCH) {
		return CACHE_WARM;
	} else {
		int slab = mixed ? coldest_slab(c, tier, class_id, -1) : -1;
		if (slab < 0)
			return CACHE_FULL;
		take_over_slab(c, tier, slab, class_id);
	}
	*slot = take(c, tier, class_id);
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
	}
	return slot;
}

void cache_hint(struct cache *c, int layer, int expert)
{
	int32_t key = key_of(c, layer, expert);
	if (!c->policy.ops->hint)
		return;
	c->last_use[key] = c->clock;
	c->policy.ops->hint(&c->policy, key);
}

static enum cache_answer reserve_staging(struct cache *c, int32_t key, struct cache_plan *plan)
{
	int32_t in = c->index[key], slot = c->first[STAGING];
	while (slot < c->n_slots && c->slots[slot].state != CACHE_FREE)
		slot++;
	if (slot == c->n_slots) {
		c->stats.full++;
		return CACHE_FULL;
	}
	slot_fill(c, slot, key);
	c->slots[slot].pins = 1;
	if (in >= 0) {
		c->slots[in].pins++;
		c->slots[slot].from = plan->source = in;
	}
	c->staged[key] = slot;
	plan->slot = slot;
	return CACHE_OK;
}

enum cache_answer cache_reserve(
	struct cache *c, int layer, int expert, enum cache_use use, struct cache_plan *plan)
{
	int32_t key = key_of(c, layer, expert), in = c->index[key];
	int k = class_of(c, key);
	*plan = (struct cache_plan){.slot = -1, .source = -1, .moves = c->moves};
	c->n_moves = 0;
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
	plan->n_moves = c->n_moves;
	if (answer != CACHE_OK) {
		if (in >= 0)
			c->slots[in].pins--;
		c->stats.full += answer == CACHE_FULL;
		c->stats.prefetch_refused += answer == CACHE_WARM;
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
		c->last_use[key] = c->clock;
		c->stats.prefetch_inserted++;
		c->stats.prefetch_bytes += in < 0 ? bytes_of(c, key) : 0;
	} else if (!s->pins) {
		s->pins = 1;
	}
	c->policy.ops->insert(&c->policy, list_of(c, 0, k), key);
	return CACHE_OK;
}

void cache_make_spare(struct cache *c, int layer, struct cache_plan *plan)
{
	struct slab_arena *a = &c->arena[0];
	int k = class_of(c, key_of(c, layer, 0));
	*plan = (struct cache_plan){.slot = -1, .source = -1, .moves = c->moves};
	c->n_moves = 0;
	if (!c->arena[1].n_slabs || c->clock <= c->prefetch_cold)
		return;
	for (int n = slab_n_free(a, k, CACHE_SPARE); n < CACHE_SPARE; n++) {
		int32_t victim = c->policy.ops->pick(&c->policy, list_of(c, 0, k), c->clock - c->prefetch_cold);
		if (victim < 0)
			break;
		evict(c, victim);
	}
	plan->n_moves = c->n_moves;
}

void cache_commit(struct cache *c, int32_t slot)
{
	struct slot *s = used_slot(c, slot);
	if (s->state != CACHE_FILLING)
		bug("slot %d committed twice", slot);
	s->state = CACHE_READY;
	if (s->from >= 0) {
		if (slot >= c->first[STAGING])
			c->slots[s->from].pins--;
		else
			slot_release(c, s->from);
		s->from = -1;
	}
	if (slot >= c->first[STAGING] && !s->pins)
		bug("staging slot %d committed without a pin", slot);
}

static void staging_release(struct cache *c, int32_t slot)
{
	c->staged[c->slots[slot].key] = -1;
	c->slots[slot] = (struct slot){.key = -1, .from = -1};
}

void cache_abort(struct cache *c, int32_t slot)
{
	struct slot *s = used_slot(c, slot);
	int32_t key = s->key, from = s->from;
	if (s->state != CACHE_FILLING)
		bug("slot %d aborted after its commit", slot);
	if (from >= 0)
		c->slots[from].pins--;
	if (slot >= c->first[STAGING]) {
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
	if (!--s->pins && slot >= c->first[STAGING]) {
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
	bool staging = slot >= c->first[STAGING];
	struct cache_slot out = {.tier = staging ? 0 : tier_of(c, slot),
		.staging = staging,
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
	if (tier == 1)
		return c->arena[1].bytes;
	return c->staging_offset + (uint64_t)(c->n_slots - c->first[STAGING]) * c->staging_bytes;
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
	free(c->last_use);
	free(c->moves);
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
		.spare = cfg->textbook ? 0 : cfg->token_accesses + cfg->token_accesses / 16,
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
			"an expert cache of %llu bytes cannot hold one expert of %llu bytes beside %llu bytes of staging",
			(unsigned long long)cfg->tier_bytes[0], (unsigned long long)k.bytes[0],
			(unsigned long long)stage);
	c->n_layers = cfg->n_layers;
	c->n_experts = cfg->n_experts;
	c->n_keys = cfg->n_layers * cfg->n_experts;
	c->prefetch_cold = cfg->prefetch_cold ? cfg->prefetch_cold : 2 * cfg->token_accesses;
	c->staging_bytes = k.bytes[0];
	/* No tier needs more than everything, and slot numbers must not run away with a huge budget. */
	uint64_t align = cfg->align ? cfg->align : 1;
	uint64_t arena_bytes[CACHE_TIERS] = {
		num_align_down(cfg->tier_bytes[0] - stage, align), cfg->tier_bytes[1]};
	if (arena_bytes[1] < k.bytes[0])
		arena_bytes[1] = 0;
	uint64_t everything = cache_everything_bytes(cfg) - stage;
	for (int t = 0; t < CACHE_TIERS; t++) {
		if (slab_init(&c->arena[t], MIN(arena_bytes[t], everything), &k, e))
			return ERR_MEMORY;
		c->first[t + 1] = c->first[t] + c->arena[t].n_slots;
		c->max_moves = MAX(c->max_moves, MAX(c->arena[t].per_slab, CACHE_SPARE));
	}
	c->staging_offset = num_align_up(c->arena[0].bytes, align);
	c->n_slots = c->first[STAGING] + cfg->n_staging;
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
	c->moves = counted_new(c, (size_t)c->max_moves, sizeof *c->moves);
	if (!c->layer_bytes || !c->layer_class || !c->slots || !c->index || !c->staged || !c->last_use ||
		!c->moves)
		return err_set(e, ERR_MEMORY, "no memory for the bookkeeping of %d experts", c->n_keys);
	for (int l = 0; l < cfg->n_layers; l++) {
		c->layer_bytes[l] = cfg->expert_bytes[l];
		c->layer_class[l] = cfg->expert_bytes[l] ? (int8_t)cache_classes_find(&k, cfg->expert_bytes[l]) : -1;
	}
	for (int i = 0; i < c->n_slots; i++)
		c->slots[i] = (struct slot){.key = -1, .from = -1};
	for (int i = 0; i < c->n_keys; i++)
		c->index[i] = c->staged[i] = -1;
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
	bool staging = i >= c->first[STAGING];
	if (s->state == CACHE_FREE) {
		if (s->key != -1 || s->pins || s->from != -1 || s->prefetched)
			return err_set(e, ERR_RUN, "slot %d is free but has key %d, %u pins, source %d", i, s->key,
				s->pins, s->from);
		return 0;
	}
	if (s->key < 0 || s->key >= c->n_keys || class_of(c, s->key) < 0)
		return err_set(e, ERR_RUN, "slot %d holds key %d", i, s->key);
	if (s->state == CACHE_READY && s->from >= 0)
		return err_set(e, ERR_RUN, "slot %d is ready but still has source %d", i, s->from);
	if (s->from >= 0) {
		const struct slot *f = &c->slots[s->from];
		if (tier_of(c, s->from) != 1 || s->from >= c->first[STAGING] || f->key != s->key ||
			f->state != CACHE_READY || !f->pins)
			return err_set(
				e, ERR_RUN, "slot %d is filled from slot %d, which does not hold its key pinned", i, s->from);
	}
	if (staging) {
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
	if (at != i && !source)
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
		if (i < c->first[STAGING] && c->slots[i].state != CACHE_FREE)
			used[tier_of(c, i)]++;
	}
	for (int t = 0; t < CACHE_TIERS; t++)
		if (used[t] != handed_out[t])
			return err_set(
				e, ERR_RUN, "tier %d: %d slots in use, the arena handed out %d", t, used[t], handed_out[t]);
	for (int32_t key = 0; key < c->n_keys; key++) {
		int32_t at = c->index[key], st = c->staged[key];
		if (at >= 0 && (at >= c->first[STAGING] || c->slots[at].key != key))
			return err_set(e, ERR_RUN, "key %d is said to be in slot %d", key, at);
		if (st >= 0 && (st < c->first[STAGING] || c->slots[st].key != key))
			return err_set(e, ERR_RUN, "key %d is said to be staged in slot %d", key, st);
		if (c->last_use[key] > c->clock)
			return err_set(e, ERR_RUN, "key %d was last used after now", key);
	}
	const struct cache_stats *s = &c->stats;
	if (s->accesses != s->hits[0] + s->hits[1] + s->misses)
		return err_set(e, ERR_RUN, "hits and misses do not add up to the accesses");
	return 0;
}
