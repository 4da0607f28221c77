/* SPDX-License-Identifier: MIT */
/*
 * The expert cache: which expert lies in which slot, who may be thrown out, what has to be copied.
 * Bookkeeping only: no threads (the loader holds one lock around every call), no I/O, no GPU call,
 * no allocation after cache_new. The caller owns the memory behind the slots and moves the bytes.
 *
 * Two tiers, VRAM-like (0) and RAM-like (1); steps of prefill borrow a few staging slots of tier 0:
 *
 *      disk --reserve/commit--> tier 0 --demoted victim--> tier 1 --victim--> gone
 *                                  ^---------reserve----------'
 *
 * An expert is in one tier; of those that went up tier 1 keeps copies where nobody needs the room.
 * A slot is FREE, FILLING (reserved, bytes under way) or READY. Only a READY slot without pins can
 * become a victim. Slots of an expert that is on its way from tier 1 to tier 0 are pinned by the
 * move: the new slot is FILLING, the old one holds the bytes until commit makes it a copy (or abort
 * restores it).
 *
 * One decode step of a layer, in this order (the simulator does the same, so counts agree exactly):
 *   1. cache_access for every routed expert, in rank order; cache_pin what was found (in either
 * tier);
 *   2. cache_reserve for every expert that was not found in tier 0, in rank order;
 * cache_keep_free;
 *   3. execute the plans in the order in which they were given: the moves of a plan, which empty
 * the memory that this plan or a later one gives out, then the filling of its slot, from
 * plan.source or from disk;
 *   4. cache_commit every move's target and every filled slot, in any order;
 *   5. compute; cache_unpin all.
 * cache_access counts and orders; cache_find does neither. cache_begin_step comes before a step's
 * first layer.
 *
 * Mixed expert sizes: each tier is a slab arena (slab.h). A class that needs room takes, in this
 * order: a free slot, a free or idle slab, a victim of its own; and from time to time, when the
 * oldest expert of another class has been unused for much longer than its own oldest, a whole slab
 * of that class (a class without any slot takes one at once). So experts of another size neither
 * bypass the cache nor flush it, and a class that is no longer used (an MTP layer with drafts
 * switched off) gives its memory back.
 */
#ifndef GLM_CACHE_CACHE_H
#define GLM_CACHE_CACHE_H

#include "cache/policy/policy.h"
#include "src/base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define CACHE_TIERS 2 /* 0: VRAM-like, 1: RAM-like */

/* From synthetic traces of GLM-5.2's routing, where the best half-life grows with the cache: 16
 * tokens with room for 5, 10 and 27 % of the experts, 32 with 50 %, 64 with 64 %. */
#define CACHE_HALF_LIFE_SLOTS  1.75
#define CACHE_HALF_LIFE_TOKENS 16.0

enum cache_use {
	CACHE_DECODE,   /* a demand: may evict whatever is not pinned */
	CACHE_PREFETCH, /* a guess: only takes free slots and cold victims */
	CACHE_PREFILL, /* a pass over many experts: uses what is there, otherwise a staging slot; evicts
					* nobody but for having the staging slots, and the policy does not hear of it */
};

enum cache_state { CACHE_FREE, CACHE_FILLING, CACHE_READY };

/* Answers of cache_reserve; none is an error. */
enum cache_result {
	CACHE_OK,
	CACHE_PRESENT, /* already in tier 0 or staged, READY or FILLING: plan.slot says where; nothing
					  changed */
	CACHE_BUSY, /* being copied into tier 1, or from there into a staging slot: commit that first */
	CACHE_FULL, /* every slot that could serve is pinned or being filled */
	CACHE_NO_COLD, /* prefetch only: no victim is cold enough */
	CACHE_BYPASS,  /* simulation only: the policy knows better than to cache it */
};

struct cache_config {
	int n_layers,
		n_experts; /* the key space; layers are those of the model, also those without experts */
	const uint64_t *expert_bytes; /* [n_layers] slot bytes of an expert of the layer, 0: the layer
								   * has none. Includes whatever slack the reader needs. Copied. */
	uint64_t tier_bytes[CACHE_TIERS];
	uint64_t align; /* of slot offsets and sizes: a power of two, 0 means 1 */
	int n_staging; /* most slots of tier 0 that prefill may have at a time, each of the largest size
					*/
	const struct policy_ops *policy; /* NULL: lru */
	uint64_t token_accesses;         /* accesses of one token: MoE layers times top_k; 0: unknown */
	/* lfu, in accesses; 0: CACHE_HALF_LIFE_SLOTS times the slots of tier 0, but at least
	 * CACHE_HALF_LIFE_TOKENS tokens. */
	double half_life;
	bool no_recency_window; /* lfu and sieve do not spare what the present token used
							   (policy_sieve.c) */
	uint64_t prefetch_cold; /* a prefetch may evict what was not used in that many accesses; 0: two
							   tokens' */
	const uint64_t *next_use; /* simulator, belady: see policy.h; lent for the life of the cache */
};

struct cache_stats {
	uint64_t accesses;          /* decode; = hits[0] + hits[1] + misses */
	uint64_t hits[CACHE_TIERS]; /* found in that tier, or being read into it */
	uint64_t misses;
	uint64_t late;         /* of hits[0]: bytes were still under way */
	uint64_t bytes_missed; /* to be read from disk for demands */
	uint64_t prefill_hits[CACHE_TIERS], prefill_misses;
	uint64_t evictions; /* left both tiers */
	uint64_t demotions, promotions;
	uint64_t demotions_free; /* of demotions: tier 1 still had the bytes */
	uint64_t bytes_demoted, bytes_promoted;
	uint64_t prefetch_inserted,
		prefetch_bytes;             /* reserved by CACHE_PREFETCH; bytes: those from disk */
	uint64_t prefetch_used;         /* ... and then demanded */
	uint64_t prefetch_wasted;       /* ... and left tier 0 before they were demanded */
	uint64_t prefetch_wasted_bytes; /* ... of those from disk */
	uint64_t prefetch_cancelled;    /* ... and aborted */
	uint64_t prefetch_refused;      /* CACHE_NO_COLD */
	uint64_t full;                  /* CACHE_FULL */
	uint64_t slabs_reassigned;      /* slabs that changed their size class */
};

/* A copy that the caller owes before it overwrites the slot it was given; then cache_commit(to). */
struct cache_demotion {
	int32_t layer, expert;
	int32_t from, to; /* slots; `from` is given out again, its old bytes are what moves */
	uint64_t from_offset, to_offset; /* in their tiers' memory: `from` in tier 0, `to` in tier 1 */
	uint64_t bytes;                  /* of the expert, as in expert_bytes */
};

struct cache_plan {
	int32_t slot;   /* to fill, then commit (or abort); has one pin of the caller unless reserved by
					   prefetch */
	int32_t source; /* tier 1 slot that holds the bytes, -1: read them from disk */
	int n_demotions;
	const struct cache_demotion *demotions; /* valid until the next cache_reserve */
};

struct cache_slot {
	int tier;     /* 0, 1 */
	bool staging; /* lent to prefill */
	enum cache_state state;
	int32_t layer, expert; /* -1 when FREE */
	uint32_t pins;
	uint64_t offset; /* in the memory of the tier */
	uint64_t bytes;  /* of the expert */
};

struct cache;

/* NULL with a sentence in *e: ERR_USAGE for impossible numbers, ERR_MEMORY when tier 0 cannot hold
 * one expert of the largest size beside the staging slots. */
struct cache *cache_new(const struct cache_config *config, struct err *e);
void cache_free(struct cache *c);

/* The smallest tier 0 in which the `top_k` experts of every layer fit together, staging included; 0
 * when the numbers in *config overflow. tier_bytes is not looked at. */
uint64_t cache_working_set_bytes(const struct cache_config *config, int top_k);
/* Bytes in which every expert of the model fits, staging included; 0 as above. */
uint64_t cache_everything_bytes(const struct cache_config *config);

/* How many staging slots a run takes for the budget in *config: at least 2, see cache_classes.c,
 * fewer when the working set would not fit beside them. The simulator asks the same, so a budget
 * means the same to both. */
int cache_choose_staging(const struct cache_config *config, int top_k);
#define CACHE_STAGING_MIN 2

/* The slot where the expert is or is being put, -1: nowhere. Tier 0 or 1; staging slots only when
 * it is nowhere else. */
int32_t cache_find(const struct cache *c, int layer, int expert);

/* A step begins. CACHE_PREFILL: the staging slots are taken for it, free slots first, then those of
 * whoever would leave next, who are moved down like other victims: the caller owes plan->demotions
 * (plan->slot is -1); cache_reserve takes what could not be taken now. CACHE_DECODE: what prefill
 * no longer uses goes back to the others. Without this call each staging slot is taken when
 * cache_reserve needs it and goes back when it is released. */
void cache_begin_step(struct cache *c, enum cache_use use, struct cache_plan *plan);

/* Counts an access and tells the policy (decode), or counts only (prefill). Returns cache_find's
 * answer; for CACHE_PREFILL a staged copy goes before one in tier 1. CACHE_PREFETCH is not an
 * access. */
int32_t cache_access(struct cache *c, int layer, int expert, enum cache_use use);

/* A guess names this expert for a layer to come. The policy hears of it, wherever the expert
 * stands: whom the lookahead names is likely to be used soon even if this guess turns out wrong
 * (traces of GLM-5.2's shape and of the pocket model: lru copies 1 to 9 % less, lfu 1 to 8). Counts
 * nothing. */
void cache_note_predicted(struct cache *c, int layer, int expert);

/* Room in tier 0 for an expert that is not there: in tier 1 (then plan.source says where and this
 * is a promotion) or nowhere. A caller's pin on the tier 1 slot passes to the new slot with
 * CACHE_DECODE, so that it is unpinned once. CACHE_PREFILL gives a staging slot; a copy in tier 1
 * stays there, pinned until commit or abort. */
enum cache_result cache_reserve(
	struct cache *c, int layer, int expert, enum cache_use use, struct cache_plan *plan);

/* With two tiers: moves cold experts (those that a prefetch could evict) of the layer's class down
 * until CACHE_KEEP_FREE slots of tier 0 are free, so that who comes next need not wait until a
 * victim's bytes are out of the way. The caller owes plan->demotions as those of cache_reserve;
 * plan->slot is -1. Step 2 of a layer ends with this. */
void cache_keep_free(struct cache *c, int layer, struct cache_plan *plan);
#define CACHE_KEEP_FREE 4

/* The bytes are there: FILLING -> READY. Ends a promotion: the tier 1 slot is a copy now, which
 * nobody misses. */
void cache_commit(struct cache *c, int32_t slot);
/* The bytes will never be there: the slot becomes free, all pins on it are void. Aborting a
 * promotion leaves the expert in tier 1; aborting a move's target forgets the expert. */
void cache_abort(struct cache *c, int32_t slot);

void cache_pin(struct cache *c, int32_t slot);   /* FILLING or READY */
void cache_unpin(struct cache *c, int32_t slot); /* the last unpin of a staging slot empties it */

struct cache_slot cache_slot_get(const struct cache *c, int32_t slot);
bool cache_is_ready(const struct cache *c, int32_t slot); /* READY in tier 0, not staging */
/* The i-th of the slots that prefill has now, in no particular order, -1 past the end. Releasing it
 * changes those behind it. */
int32_t cache_staging_slot(const struct cache *c, int i);
int cache_n_slots(const struct cache *c); /* slots are numbered from 0 to below this */
const struct cache_stats *cache_stats(const struct cache *c);
void cache_reset_stats(struct cache *c);

/* Bytes of memory that the slots of a tier span: at most tier_bytes, less when everything fits in
 * less. */
uint64_t cache_memory_bytes(const struct cache *c, int tier);

/* How many experts of the layer are READY in each tier. */
void cache_layer_resident(const struct cache *c, int layer, int n[CACHE_TIERS]);
/* Memory of the bookkeeping itself. */
uint64_t cache_metadata_bytes(const struct cache *c);
/* How many experts of a layer's size class tier 0 could hold if only that class were used. */
int cache_capacity(const struct cache *c, int tier, int layer);
/* Bytes of a tier that no expert can use now: remainders of slabs, tail of the arena, free slots in
 * slabs of a class. Free slabs are not counted. */
uint64_t cache_wasted_bytes(const struct cache *c, int tier);

/* Every invariant; 0, or ERR_RUN with the first one that is broken. Slow: for tests. */
int cache_check(const struct cache *c, struct err *e);

#endif
