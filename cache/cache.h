/* SPDX-License-Identifier: MIT */
/*
 * The expert cache decides which expert lies in which slot, who is evicted and what must be copied.
 * It is bookkeeping only: no threads, no I/O, no GPU call. The caller owns the memory behind the
 * slots and moves the bytes.
 *
 *      disk ---load---> tier 0 ---demotion---> tier 1 ---eviction---> gone
 *      (file)           (VRAM)  <--promotion-- (RAM)
 *
 * Only a warm-up loads into tier 1 alone. A read for prefill may fill a slot of tier 1 on its way
 * (cache_keep_reads).
 *
 * A slot is FREE, FILLING (its bytes are in flight) or READY. Only a READY slot without pins can
 * become a victim. An expert is in one tier. After a promotion tier 1 keeps an inclusive copy until
 * the slot is needed for another expert; a demotion to an inclusive copy moves no bytes. A prompt
 * borrows a few prefill slots of tier 0, which no policy sees.
 *
 * What a caller does, in order of use
 *
 *   1. cache_begin_step     before the first layer of every forward pass. Its plan, like that of
 *                           every call below that has one, is carried out as in 3.
 *   2. cache_acquire        with the expert ids of a layer, best first. Every ref then has a pinned
 *                           slot that is READY, in flight, or to be loaded by the plan.
 *   3. plan.transfers       are started in their order: a transfer may overwrite what one before it
 *                           copies away. Each ends with cache_commit or cache_abort, in any order.
 *   4. cache_flush          when the caller has time: the deferred accounting, see below.
 *   5. cache_ref_poll       until the ref is READY; then its bytes may be used.
 *   6. cache_release        when nothing reads the slots any more.
 *
 * An example, one layer of a decode step:
 *
 *      struct cache_request q = {.layer = 7, .use = CACHE_DECODE, .refs = refs, .n = 8};
 *      struct cache_plan plan;
 *      enum cache_result r = cache_acquire(c, &q, &plan);
 *      for (;;) {
 *          start(plan.transfers, plan.n);
 *          if (r == CACHE_OK)
 *              break;
 *          wait_for_a_transfer();               // CACHE_BUSY, CACHE_FULL: a slot will come free
 *          r = cache_acquire_resume(c, &q, &plan);
 *      }
 *      while (!all_ready(refs))                 // cache_ref_poll of each
 *          wait_for_a_transfer();
 *      compute(refs);
 *      cache_release(c, refs, 8, &plan);
 *      start(plan.transfers, plan.n);
 *
 * Deferred accounting. When every expert of a request is READY in tier 0, the answer does not
 * depend on the policy, so cache_acquire only queues the accesses. cache_flush counts them, informs
 * the policy, and demotes cold experts until the low watermark of free slots is reached. Every call
 * of the compute side that takes a plan flushes first: the policy sees all accesses in the order of
 * the calls, whichever call flushes. A simulated cache therefore counts exactly what a live one
 * does, with two exceptions: hot experts and kept reads (cache_set_hot, cache_keep_reads), of which
 * a trace says nothing; and a tier 1 that evicts or is limited (cache_limit_tier1), since its
 * victims also depend on which transfers have ended, and on when the limit is raised.
 *
 * Sizes. Each tier is a slab arena (slab.h) of a few size classes. An expert that needs a slot
 * gets, in this order:
 *   1. a free slot of its class, or one of a free slab;
 *   2. in tier 1: the slot of an inclusive copy;
 *   3. a slot of a slab of another class that has no slot in use;
 *   4. a demand only, now and then: a slot of a slab taken from the class whose oldest expert has
 *      been unused for much longer than the oldest one of this class;
 *   5. the slot of a victim of its class;
 *   6. not for a prefetch or promotion: a slot of a slab of any other class.
 * So experts of another size neither bypass the cache nor flush it, and a class that is no longer
 * used gives its memory back.
 *
 * Lifetime: nothing is allocated after cache_new. Plans and their transfers are valid until the
 * next call that takes a plan.
 * Threads: none; the loader holds one lock around every call.
 * Errors: broken contracts (an expert that does not exist, a slot committed twice) are bugs and end
 * the program. No answer of enum cache_result is an error.
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

/* The low watermark: with a tier 1, a flush demotes cold experts of tier 0 until so many slots are
 * free. A demand miss then need not wait until a demotion has emptied its slot. */
#define CACHE_KEEP_FREE 4

/* The fewest prefill slots that cache_choose_prefill_slots gives, and the most that a cache has. */
#define CACHE_PREFILL_SLOTS_MIN 2
#define CACHE_PREFILL_SLOTS_MAX 4096

/* The smallest tier 0 that a run accepts holds 1 / CACHE_FLOOR_PART of the experts that a token
 * uses. */
#define CACHE_FLOOR_PART 4

/* ---- types ---- */

/* Recorded in traces: the numbers stay. */
enum cache_use {
	CACHE_DECODE = 0,   /* a demand: may evict whatever is not pinned */
	CACHE_PREFETCH = 1, /* a prediction: takes free slots and cold victims only */
	CACHE_PREFILL = 2,  /* a pass over many experts: uses what is in tier 0, else a prefill slot, of
						 * hot experts a free slot (cache_set_hot). Evicts only to borrow prefill
						 * slots. The policy does not see it, only reads that are kept in tier
						 * 1 (cache_keep_reads) */
	CACHE_WARM = 3, /* an expert of an earlier run's profile: takes free slots only. Not traced */
	CACHE_PROMOTE = 4, /* from tier 1, after a use there: takes the same slots as a prediction. Not
						* traced */
};

enum cache_state { CACHE_FREE, CACHE_FILLING, CACHE_READY };

enum cache_result {
	CACHE_OK,
	/* Prefetch, read-ahead, promotion: the expert is in tier 0 already, or on its way there.
	 * Warm-up of tier 1: it is in some tier. */
	CACHE_PRESENT,
	/* The expert cannot be moved now:
	 * - its bytes are on their way into tier 1, or from there into a prefill slot (until the
	 *   transfer ends);
	 * - it is used in tier 1 (cache_ref.stay; until it is released);
	 * - prefetch, promotion, warm-up: it is pinned in tier 1. A cache_acquire that has not been
	 *   resumed yet will promote it. */
	CACHE_BUSY,
	CACHE_FULL,    /* every slot that could serve is pinned or FILLING */
	CACHE_NO_COLD, /* prefetch, promotion: no victim is cold enough; warm-up: no slot is free */
	CACHE_BYPASS,  /* simulation only: the policy prefers not to cache it */
};

struct cache_config {
	int n_layers, n_experts; /* layers of the model, those without experts included; experts of a
							  * layer */
	const uint64_t *expert_bytes; /* [n_layers] slot bytes of an expert of the layer, 0: the layer
								   * has none. Includes whatever slack the reader needs. Copied. */
	uint64_t tier_bytes[CACHE_TIERS];
	uint64_t align;      /* of slot offsets and sizes: a power of two, 0 means 1 */
	int n_prefill_slots; /* most slots of tier 0 that prefill borrows, each of the largest size */
	const struct policy_ops *policy; /* NULL: lru */
	uint64_t token_accesses;         /* accesses of one token: MoE layers times top_k; 0: unknown */
	/* lfu, in accesses; 0: CACHE_HALF_LIFE_SLOTS times the slots of tier 0, but at least
	 * CACHE_HALF_LIFE_TOKENS tokens. */
	double half_life;
	/* Simulation of one expert after the other: policies as they were published. No recency window
	 * (policy_sieve.c), no low watermark. */
	bool as_published;
	uint64_t prefetch_cold;   /* a victim is cold when it was not used in so many accesses; 0: two
								 tokens' */
	const uint64_t *next_use; /* simulator, belady: see policy.h; lent for the life of the cache */
};

/* All counters are uint64_t: the simulator adds them up. */
struct cache_stats {
	uint64_t accesses;          /* decode; = hits[0] + hits[1] + misses */
	uint64_t hits[CACHE_TIERS]; /* found in that tier, or on its way there */
	uint64_t misses;            /* in neither tier; prefill slots do not count */
	uint64_t late;              /* of hits[0]: the bytes were still in flight */
	uint64_t bytes_missed;      /* of misses */
	uint64_t prefill_hits[CACHE_TIERS], prefill_misses;
	uint64_t keeps_refused; /* reads of prefill: no slot of tier 1 was free (cache_keep_reads) */
	uint64_t evictions;     /* left both tiers */
	uint64_t demotions, promotions;
	uint64_t demotions_free; /* of demotions: to an inclusive copy */
	uint64_t bytes_demoted, bytes_promoted;
	uint64_t prefetch_inserted,
		prefetch_bytes;             /* reserved by cache_prefetch; bytes: those from disk */
	uint64_t prefetch_used;         /* ... and then demanded */
	uint64_t prefetch_wasted;       /* ... and left tier 0 before they were demanded */
	uint64_t prefetch_wasted_bytes; /* ... of those from disk */
	uint64_t prefetch_cancelled;    /* ... and aborted */
	uint64_t prefetch_refused;      /* CACHE_NO_COLD */
	uint64_t full;                  /* CACHE_FULL */
	uint64_t slabs_reassigned;      /* slabs that changed their size class */
};

/* A copy or a read that the caller must start. `slot` is FILLING until it calls cache_commit or
 * cache_abort. */
struct cache_transfer {
	enum { CACHE_DEMOTION, CACHE_LOAD } kind;
	int32_t layer, expert;
	int32_t slot;   /* target. DEMOTION: of tier 1. LOAD: of tier 0, maybe a prefill slot; of a
					 * warm-up also of tier 1 */
	int32_t source; /* DEMOTION: slot of tier 0. It is FREE or reserved again already; the bytes
					 * to copy are those it held before. LOAD: slot of tier 1, pinned; -1: the
					 * expert is read from disk */
	uint64_t from_offset; /* of source in its tier's memory; 0 when it is -1 */
	uint64_t to_offset;   /* of slot in its tier's memory */
	uint64_t bytes;       /* of the expert, as in expert_bytes */
	int32_t keep;         /* LOAD from disk into a prefill slot: slot of tier 1 that holds the
						   * bytes, too, when the load ends (cache_keep_reads); -1: none.
						   * cache_commit or cache_abort of `slot` is that of `keep` as well */
	uint64_t keep_offset; /* of keep in its tier's memory; 0 when it is -1 */
};

struct cache_plan {
	const struct cache_transfer *transfers; /* [n], to be started in this order */
	int n;
};

enum cache_ref_state {
	CACHE_REF_NONE, /* no slot yet: cache_acquire has to be resumed, or the policy bypassed it */
	CACHE_REF_LOAD, /* the last plan loads it */
	CACHE_REF_IN_FLIGHT, /* an earlier plan loads it */
	CACHE_REF_READY,
	CACHE_REF_FAILED, /* its load was aborted: the pin is void, and the slot may hold another expert
					   */
};

/* One expert of a request. */
struct cache_ref {
	int32_t expert; /* in */
	/* in, CACHE_DECODE: the result may be dropped. The stats count the access; the policy takes it
	 * for a prediction, until cache_note_used. */
	bool provisional;
	/* in, CACHE_DECODE: use the expert in tier 1 if it is READY there. The ref then gets that slot,
	 * pinned, and nothing is promoted. */
	bool stay;
	uint8_t state; /* enum cache_ref_state */
	uint8_t tier;  /* where it was found: 0 (also in a prefill slot), 1; CACHE_TIERS: nowhere */
	/* Pinned, -1: none. With CACHE_REF_NONE it may be the slot of tier 1 that the expert is in or
	 * on its way to. */
	int32_t slot;
	uint64_t load_id; /* of the load that filled the slot, see struct cache_slot */
};

struct cache_request {
	int layer;
	enum cache_use use; /* CACHE_DECODE or CACHE_PREFILL */
	struct cache_ref *refs;
	int n;
	/* Index of the first ref that has no slot yet; set by the cache. Incrementing it before a
	 * resume gives that ref up. */
	int next;
};

struct cache_slot {
	int tier;        /* 0, 1 */
	bool prefill;    /* borrowed by prefill */
	bool read_ahead; /* holds the pin of cache_read_ahead */
	enum cache_state state;
	int32_t layer, expert; /* -1 when FREE */
	uint32_t pins;
	uint64_t offset;   /* in the memory of the tier */
	uint64_t bytes;    /* of the expert */
	uint64_t load_id;  /* a number that no other load has; 0 when FREE */
	int32_t filled_by; /* FILLING: the `slot` of the transfer that fills it: another one only for a
						* slot that is cache_transfer.keep */
};

struct cache;

/* ---- life ---- */

/* NULL with a sentence in *e:
 * - ERR_USAGE: impossible numbers, or a policy that needs next_use without it;
 * - ERR_MEMORY: tier 0 cannot hold one expert of the largest size beside the prefill slots, or
 *   there is no memory for the tables. */
struct cache *cache_new(const struct cache_config *config, struct err *e);
void cache_free(struct cache *c);

/* Sizes of tier 0 in bytes, with n_prefill_slots prefill slots included. tier_bytes is not read. 0:
 * *config is one that cache_new refuses with ERR_USAGE.
 * - working set: the smallest in which the `top_k` experts of every layer fit together.
 * - floor: the smallest that a run accepts. Room for 1 / CACHE_FLOOR_PART of the working set, and
 *   at least for top_k experts of two layers. In such a cache a token finds few of the experts of
 *   the token before it; only lfu keeps those that are used most.
 * - everything: every expert of the model fits. */
uint64_t cache_working_set_bytes(const struct cache_config *config, int top_k);
uint64_t cache_floor_bytes(const struct cache_config *config, int top_k);
uint64_t cache_everything_bytes(const struct cache_config *config);

/* How many prefill slots a run takes when tier 0 has config->tier_bytes[0] bytes: as PREFILL_* in
 * cache_classes.c say, fewer when the working set would not fit beside them (the floor, if even
 * that does not fit), but at least CACHE_PREFILL_SLOTS_MIN. The simulator calls it too, so that a
 * budget means the same to both. */
int cache_choose_prefill_slots(const struct cache_config *config, int top_k);

/* ---- compute side: every call that takes a plan flushes first ---- */

/* A forward pass begins. Drops all pins of cache_read_ahead.
 * - CACHE_PREFILL: borrows all n_prefill_slots, free slots first, then those of victims. Slots that
 *   cannot be borrowed now are borrowed when they are needed.
 * - CACHE_DECODE: returns the prefill slots that are FREE, the others when they are released. So
 *   does the first cache_acquire with CACHE_DECODE after a prefill step, such as that of a round of
 *   drafts behind a prompt, which begins no step. Pins of cache_read_ahead stay until the next
 *   cache_begin_step.
 * Without this call each prefill slot is borrowed when needed and returned when released. */
void cache_begin_step(struct cache *c, enum cache_use use, struct cache_plan *plan);

/* Finds or makes room for refs[0..n) of a layer (distinct experts, best first) and pins them.
 *
 *   - Counts the accesses, and tells the policy of those of CACHE_DECODE.
 *   - Pins what is in tier 0 or in a prefill slot, or in flight to either. It is CACHE_REF_READY or
 *     CACHE_REF_IN_FLIGHT.
 *   - Reserves a slot of tier 0 for every other ref, in order, and plans its load: CACHE_REF_LOAD.
 *     CACHE_DECODE promotes what is in tier 1 and may evict whatever is not pinned. CACHE_PREFILL
 *     takes prefill slots, or free slots for hot experts (cache_set_hot); what is in tier 1 stays
 *     there.
 *   - A prefill ref that cache_read_ahead has reserved takes over its pin.
 *
 * CACHE_OK: every ref has a slot. CACHE_BUSY, CACHE_FULL: refs[next] and those behind it are not
 * served. The caller starts the plan's transfers, waits until some transfer ends, and resumes with
 * the same request until it gets CACHE_OK, or releases the refs. If nothing is in flight,
 * CACHE_FULL will not change before something is released. */
enum cache_result cache_acquire(struct cache *c, struct cache_request *q, struct cache_plan *plan);
enum cache_result cache_acquire_resume(
	struct cache *c, struct cache_request *q, struct cache_plan *plan);

/* Updates and returns the state of an acquired ref. */
enum cache_ref_state cache_ref_poll(const struct cache *c, struct cache_ref *ref);

/* Unpins the refs of a request, those without a slot included. A ref in flight loses its pin when
 * its bytes arrive: the load goes on. */
void cache_release(struct cache *c, const struct cache_ref *refs, int n, struct cache_plan *plan);

/* ---- deferred accounting ---- */

/* Queues the prediction that these experts of a later layer will be used. The policy sees it,
 * whether they are resident or not: they are likely to be used soon even if this prediction is
 * wrong (fewer bytes are copied into tier 0: 1 to 9 % with lru, 1 to 8 % with lfu, on traces of
 * GLM-5.2's shape and of the pocket model). No counter changes. When the queue is full (two layers'
 * experts and 1024) the rest is dropped. */
void cache_note_predicted(struct cache *c, int layer, const int32_t *experts, int n);

/* The result of a provisional ref was kept: the policy sees the access, behind all that is queued,
 * whether the expert is resident or not. (Simulated drafts, routing of GLM-5.2's shape on the
 * pocket model, caches of 20 to 60 % of the experts: 2 % fewer bytes are read than if dropped rows
 * counted as uses, 4 to 12 % fewer than if they did not reach the policy at all.) */
void cache_note_used(struct cache *c, int layer, int expert, struct cache_plan *plan);

/* Carries out the queued accounting; the plan has demotions only. */
void cache_flush(struct cache *c, struct cache_plan *plan);
/* Whether accounting is queued. */
bool cache_has_pending(const struct cache *c);

/* ---- I/O side: nothing is flushed ---- */

/* Reserves a slot of tier 0 for a predicted expert: CACHE_OK with its load planned and no pin, or
 * CACHE_PRESENT, CACHE_BUSY, CACHE_NO_COLD. */
enum cache_result cache_prefetch(struct cache *c, int layer, int expert, struct cache_plan *plan);
/* Reserves a free slot of `tier` for an expert of an earlier run's profile: CACHE_OK with its load
 * planned and no pin. Nothing is evicted. The prefetch counters do not count it.
 *   tier 0: CACHE_PRESENT, CACHE_BUSY; CACHE_NO_COLD when no slot is free beside those of the low
 *           watermark.
 *   tier 1: CACHE_PRESENT when the expert is in any tier, CACHE_NO_COLD when no slot within
 *           cache_limit_tier1 is free. Until the load ends, cache_acquire answers CACHE_BUSY for
 *           the expert, as during a demotion.
 */
enum cache_result cache_warm(
	struct cache *c, int tier, int layer, int expert, struct cache_plan *plan);

/* False: cache_warm would find no slot in either tier, whatever the expert's size. True: it may
 * find one; slots of tier 1 beyond cache_limit_tier1 are counted too. */
bool cache_can_warm(const struct cache *c);

/* Marks an expert that the warm-up will bring to tier 0 as hot, for the life of the cache. If it is
 * in no tier, cache_acquire and cache_read_ahead with CACHE_PREFILL load it into a free slot of
 * tier 0, from which its release does not evict it. Without a free slot beside those of the low
 * watermark they take a prefill slot. When the hot experts fill tier 0, the next ones are hot for
 * tier 1 (cache_keep_reads). To be called in the order of the warm-up. True: it is hot, or was
 * already. False: the hot experts would not fit in the tiers, and nothing changes. */
bool cache_set_hot(struct cache *c, int layer, int expert);

/* From now on an expert that prefill reads from disk into a prefill slot fills a free slot of tier
 * 1 with the same read, if one is free. Nothing is evicted.
 * - Experts that are hot for tier 1 have priority: others are kept only as far as tier 1 has room
 *   beside all that are hot for it, and count as such from then on.
 * - Experts that are hot for tier 0 are not kept: the warm-up brings them there.
 * - Off until it is called: the caller must be able to read through tier 1's memory. */
void cache_keep_reads(struct cache *c);

/* From now on experts are given only those slots of tier 1 that end within its first `bytes`;
 * before the first call all of them. For a tier 1 whose memory becomes usable step by step: its
 * owner raises the limit, and never lowers it.
 * - Below the limit tier 1 behaves like a tier of `bytes` bytes, but has the slabs of the whole: a
 *   demotion evicts from it; or, if no slot lies within the limit, its expert leaves the cache. */
void cache_limit_tier1(struct cache *c, uint64_t bytes);

/* Reserves a slot of tier 0 for an expert of tier 1 that was just used there (cache_ref.stay):
 * CACHE_OK with its promotion planned and no pin, or CACHE_PRESENT, CACHE_BUSY, CACHE_NO_COLD.
 * CACHE_NO_COLD: no victim is cold; the expert has left tier 1; or the policy, leaving that last
 * use out, values it no higher than the victim (one use alone does not pay for the copy). The
 * prefetch counters do not count it. */
enum cache_result cache_promote(struct cache *c, int layer, int expert, struct cache_plan *plan);

/* Reserves a slot for an expert that prefill will acquire: CACHE_OK with its load planned, or
 * CACHE_PRESENT, CACHE_BUSY, CACHE_FULL. It is a free slot of tier 0 without a pin for a hot expert
 * (cache_set_hot), if there is one; else a prefill slot with one pin. cache_acquire takes the pin
 * over, or cache_read_ahead_drop or cache_begin_step drops it. */
enum cache_result cache_read_ahead(struct cache *c, int layer, int expert, struct cache_plan *plan);
/* Drops the pins of cache_read_ahead on experts for which keep(ctx, ...) is false; NULL: all. */
void cache_read_ahead_drop(
	struct cache *c, bool (*keep)(const void *ctx, int layer, int expert), const void *ctx);

/* The transfer into this slot is complete: FILLING -> READY. After a promotion tier 1 keeps an
 * inclusive copy. */
void cache_commit(struct cache *c, int32_t slot);
/* The transfer into this slot has failed: the slot becomes FREE and all pins on it are void. After
 * a promotion the expert is still in tier 1; after a demotion it is in no tier. */
void cache_abort(struct cache *c, int32_t slot);

/* ---- questions ---- */

/* The slot where the expert is or is on its way to, -1: none. A prefill slot only if the expert is
 * in no tier. */
int32_t cache_find(const struct cache *c, int layer, int expert);
struct cache_slot cache_slot_get(const struct cache *c, int32_t slot);
int cache_n_slots(const struct cache *c); /* slots are numbered from 0 to below this */

/* Counters without the accounting that is still queued; valid as long as the cache. */
const struct cache_stats *cache_stats(const struct cache *c);
void cache_reset_stats(struct cache *c);

/* Simulation: counts accesses of prefill without reserving anything. */
void cache_count_prefill(struct cache *c, int layer, const int32_t *experts, int n);

/* Bytes of memory that the slots of a tier span: tier_bytes, or less when every expert fits in
 * less. */
uint64_t cache_memory_bytes(const struct cache *c, int tier);
/* No slot of a tier crosses a multiple of this offset. */
uint64_t cache_slab_bytes(const struct cache *c, int tier);
/* How many experts of the layer are READY in each tier. */
void cache_layer_resident(const struct cache *c, int layer, int n[CACHE_TIERS]);
/* How many experts of a layer's size class a tier could hold if only that class were used. */
int cache_capacity(const struct cache *c, int tier, int layer);

#endif
