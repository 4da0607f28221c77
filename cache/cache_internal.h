/* SPDX-License-Identifier: MIT */
/*
 * The expert cache. Everything is a slot: index[key] names the slot where an expert is or is being
 * put, slots hold key, state and pins, the policy orders keys in one list per (tier, class), the
 * arenas hand out slot numbers.
 *
 * Slot numbers: tier 0 [0, first[1]), tier 1 [first[1], first[2]).
 *
 * A staging slot is a slot of tier 0's largest class that is lent to prefill: taken from the arena,
 * in no policy's list. It holds FREE, FILLING or READY like any other; what is put there stands in
 * staged[], not in index[].
 *
 * A copy is the tier 1 slot of an expert that went up to tier 0, READY and without pins, in no
 * policy's list and not in index[]. It stays until somebody needs the room, the oldest first,
 * before anybody who is nowhere else. Should the expert leave tier 0 before that, it is where it
 * goes, and no bytes move.
 */
#ifndef GLM_CACHE_CACHE_INTERNAL_H
#define GLM_CACHE_CACHE_INTERNAL_H

#include "cache/cache.h"
#include "cache/policy/key_list.h"
#include "cache/slab.h"

struct slot {
	int32_t key;  /* -1: FREE */
	int32_t from; /* FILLING by a promotion or a staged copy: the pinned tier 1 slot with the bytes;
					 else -1 */
	uint32_t pins;
	uint8_t state;
	bool prefetched; /* reserved by a prefetch and not demanded since */
	bool read;       /* ... whose bytes come from disk, not from tier 1 */
	bool staging;    /* lent to prefill, FREE or not */
};

struct cache {
	/* constant after cache_new */
	int n_layers, n_experts, n_keys, n_slots;
	uint64_t *layer_bytes; /* [n_layers] */
	int8_t *layer_class;   /* [n_layers], -1: no experts */
	int32_t first[CACHE_TIERS + 1];
	int n_staging;
	int32_t largest_key; /* some key of the largest class: staging slots are as large as its */
	uint64_t prefetch_cold;
	uint64_t metadata_bytes;
	/* changing */
	struct policy policy;
	struct slab_arena arena[CACHE_TIERS];
	struct slot *slots; /* [n_slots] */
	int32_t *index;     /* [n_keys] slot in tier 0 or 1, -1: in neither */
	int32_t *staged;    /* [n_keys] staging slot, -1: none */
	int32_t *borrowed;  /* [n_borrowed, at most n_staging] the staging slots */
	int n_borrowed;
	int32_t *inclusive_copy;           /* [n_keys] its copy in tier 1, -1: none */
	struct key_lists inclusive_copies; /* one list of those that have one, the latest at its head */
	bool hold_staging;  /* a step of prefill: staging slots that come free stay such */
	uint64_t *last_use; /* [n_keys] clock of the last demand access or insertion into tier 0 */
	uint64_t clock;     /* demand accesses so far */
	uint32_t evicted_since[CACHE_TIERS][SLAB_MAX_CLASSES]; /* since ages were last compared */
	struct cache_demotion *demotions;                      /* [max_demotions] of the last plan */
	int n_demotions, max_demotions;
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

static inline bool slot_evictable(const struct slot *s)
{
	return s->state == CACHE_READY && !s->pins;
}

#endif
