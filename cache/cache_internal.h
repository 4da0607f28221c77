/* SPDX-License-Identifier: MIT */
/*
 * Inside of the expert cache. Everything is a slot: index[key] names the slot where an expert is or
 * is on its way to, slots hold key, state and pins, the policy orders keys in one list per (tier,
 * class), the arenas hand out slot numbers.
 *
 *      index[key] ---> slots[i] <--- arena 0: numbers [0, first[1])
 *      prefill_index[key] --> slots[i] <--- arena 0, borrowed by prefill
 *      inclusive_copy[key] -> slots[i] <--- arena 1: numbers [first[1], first[2])
 *
 * A prefill slot is a slot of tier 0's largest class that prefill has borrowed: taken from the
 * arena, in no policy's list. It is FREE, FILLING or READY like any other; the expert in it stands
 * in prefill_index[], not in index[].
 *
 * An inclusive copy is the tier 1 slot of an expert that was promoted: READY and without pins, in
 * no policy's list and not in index[]. When tier 1 needs a slot, inclusive copies are dropped
 * before any expert that exists nowhere else: first those of experts that were used in tier 0
 * since, then the oldest. If the expert leaves tier 0 before that, the copy becomes its slot, and
 * no bytes move.
 *
 *      cache.c          life, commit and abort, questions
 *      cache_acquire.c  access, acquire and release, prefetch, prefill slots, deferred accounting
 *      cache_evict.c    victims, demotions, slabs that change their class
 *      cache_classes.c  size classes, budgets
 */
#ifndef GLM_CACHE_CACHE_INTERNAL_H
#define GLM_CACHE_CACHE_INTERNAL_H

#include "cache/cache.h"
#include "cache/policy/key_list.h"
#include "cache/slab.h"

struct slot {
	int32_t key;  /* -1: FREE */
	int32_t from; /* FILLING by a promotion or a copy for prefill: the pinned tier 1 slot with the
					 bytes; else -1 */
	uint64_t load_id; /* 0: FREE */
	uint32_t pins;
	uint16_t unpins; /* of pins: released while FILLING, dropped by cache_commit */
	uint16_t stays;  /* of pins: of refs with `stay`, READY in tier 1; blocks a promotion */
	uint8_t state;
	bool prefetched; /* reserved by a prefetch and not demanded since */
	bool from_disk;  /* of a prefetched one: it was read from disk, not copied from tier 1 */
	bool prefill;    /* borrowed by prefill, FREE or not */
	bool read_ahead; /* one of pins is cache_read_ahead's */
	bool kept; /* of a prefill slot: its load fills, or has filled, a slot of tier 1, too. While
				* the prefill slot is FILLING, index[key] is the slot of tier 1 */
};

/* What cache_flush has to do. */
struct pending {
	enum { PENDING_ACCESS, PENDING_PROVISIONAL, PENDING_PREDICTED, PENDING_KEEP_FREE } kind;
	int32_t key; /* KEEP_FREE: any of the class */
};

/* Predictions that can be queued beside two layers' experts. */
#define CACHE_PENDING_PREDICTED 1024

struct cache {
	/* constant after cache_new */
	int n_layers, n_experts, n_keys, n_slots;
	uint64_t *layer_bytes;          /* [n_layers] bytes of an expert */
	int8_t *layer_class;            /* [n_layers], -1: no experts */
	int32_t first[CACHE_TIERS + 1]; /* tier t has the slots [first[t], first[t + 1]) */
	int n_prefill_slots;
	int32_t largest_key; /* some key of the largest class: prefill slots are as large as its */
	uint64_t prefetch_cold;
	int keep_free; /* slots of tier 0; 0: no low watermark */
	/* changing */
	struct policy policy;
	struct slab_arena arena[CACHE_TIERS];
	struct slot *slots;     /* [n_slots] */
	int32_t *index;         /* [n_keys] slot in tier 0 or 1, -1: in neither */
	int32_t *prefill_index; /* [n_keys] prefill slot, -1: none */
	uint8_t *hot;           /* [n_keys] cache_set_hot: 1 + the tier it is hot for; 0: not hot */
	uint64_t hot_bytes[CACHE_TIERS];
	bool keep_reads;      /* cache_keep_reads */
	uint64_t tier1_limit; /* cache_limit_tier1 */
	int32_t *borrowed;    /* [n_borrowed, at most n_prefill_slots] the prefill slots */
	int n_borrowed;
	int32_t *inclusive_copy; /* [n_keys] slot of its inclusive copy, -1: none */
	/* One list of the keys that have an inclusive copy; the tail is dropped first. A new one enters
	 * at the head; one that is used again in tier 0 goes to the tail. */
	struct key_lists inclusive_copies;
	bool hold_prefill;  /* a step of prefill, until a decode access: prefill slots that come free
						   stay borrowed */
	uint64_t *last_use; /* [n_keys] clock of the last demand access, prediction
						   (cache_note_predicted) or insertion into tier 0 without a demand */
	uint64_t clock;     /* demand accesses so far */
	uint64_t n_loads;   /* slots filled so far: the last load_id */
	/* evictions since the ages of the classes were last compared (rebalance) */
	uint32_t evicted_since[CACHE_TIERS][SLAB_MAX_CLASSES];
	struct cache_transfer *transfers; /* [cap_transfers] of the last plan */
	int n_transfers, cap_transfers;
	struct pending *pending; /* [cap_pending] in order of the calls */
	int n_pending, cap_pending;
	struct cache_stats stats;
};

static inline int tier_of(const struct cache *c, int32_t slot)
{
	return slot >= c->first[1];
}

static inline int class_of(const struct cache *c, int32_t key)
{
	return c->layer_class[key / c->n_experts];
}

static inline uint64_t bytes_of(const struct cache *c, int32_t key)
{
	return c->layer_bytes[key / c->n_experts];
}

/* The policy's list of a tier and class. */
static inline int list_of(const struct cache *c, int tier, int class_id)
{
	return tier * c->arena[0].classes.n + class_id;
}

static inline uint64_t offset_of(const struct cache *c, int32_t slot)
{
	int t = tier_of(c, slot);
	return slab_offset(&c->arena[t], slot - c->first[t]);
}

static inline bool slot_evictable(const struct slot *s)
{
	return s->state == CACHE_READY && !s->pins;
}

/* ---- cache.c ---- */

/* Key of an expert that exists (bug otherwise). */
int32_t cache_key(const struct cache *c, int layer, int expert);

/* FREE -> FILLING with a new load_id; a prefill slot stays one. */
void cache_slot_fill(struct cache *c, int32_t slot, int32_t key);
/* Back to the free list of its arena. */
void cache_slot_free(struct cache *c, int32_t slot);

/* Appends a transfer into `slot` to the plan under way; kind and the rest as in cache_transfer. */
void cache_plan_add(struct cache *c, int kind, int32_t slot, int32_t source, uint64_t from_offset);

/* Drops one pin, now or, of a FILLING slot, at its commit. */
void cache_unpin(struct cache *c, int32_t slot);

/* ---- cache_evict.c ---- */

/* CACHE_OK and in *slot a FREE slot, taken from the arena for `key`; or CACHE_FULL, CACHE_NO_COLD
 * or CACHE_BYPASS. Demotions of what it evicts are added to the plan. */
enum cache_result cache_slot_alloc(
	struct cache *c, int tier, int32_t key, enum cache_use use, int32_t *slot);

/* Whether to promote this expert of tier 1: a slot of tier 0 is free above the low watermark, or
 * the policy values the expert that a promotion evicts less (policy_ops.worth_more). */
bool cache_worth_promoting(struct cache *c, int32_t key);

/* Demotes cold experts of the key's class until keep_free slots (the low watermark) are free. */
void cache_keep_free(struct cache *c, int32_t key);

/* The promotion from `slot` of tier 1 is complete: the slot becomes an inclusive copy. */
void cache_inclusive_copy_add(struct cache *c, int32_t slot);

#endif
