/* SPDX-License-Identifier: MIT */
/*
 * What the callers of the expert cache ask for: acquire and release, deferred accounting, prefetch,
 * prefill slots.
 *
 * The policy must see one sequence of accesses, victims and insertions, whether a run or a
 * simulation asks. So the order is fixed here: all accesses of a layer, then the reservations in
 * rank order, then the low watermark.
 */
#include "cache/cache_internal.h"

#include "src/base/log.h"
#include "src/base/num.h"

/* ---- accesses ---- */

static int32_t access_prefill(struct cache *c, int32_t key)
{
	int32_t slot = c->index[key], borrowed = c->prefill_index[key];
	if (slot >= 0 && !(borrowed >= 0 && c->slots[borrowed].kept)) /* kept: read in this step */
		c->stats.prefill_hits[tier_of(c, slot)]++;
	else
		c->stats.prefill_misses++;
	if ((slot < 0 || tier_of(c, slot) == 1) && borrowed >= 0)
		slot = borrowed;
	return slot;
}

/* Tells the policy of an access. */
static void note_used(struct cache *c, int32_t key)
{
	c->clock++;
	c->last_use[key] = c->clock;
	c->policy.ops->access(&c->policy, key);
}

static void note_predicted(struct cache *c, int32_t key)
{
	if (!c->policy.ops->predicted)
		return;
	c->last_use[key] = c->clock;
	c->policy.ops->predicted(&c->policy, key);
}

/* Counts an access and tells the policy. Returns the slot where the expert is, -1: nowhere. A
 * provisional access is a prediction to the policy and does not advance the clock: rows that are
 * dropped later do not make other experts older. */
static int32_t access_decode(struct cache *c, int32_t key, bool provisional)
{
	int32_t slot = c->index[key];
	c->stats.accesses++;
	if (!provisional)
		note_used(c, key);
	else
		note_predicted(c, key);
	if (slot < 0) {
		c->stats.misses++;
		c->stats.bytes_missed += bytes_of(c, key);
		return c->prefill_index[key];
	}
	struct slot *s = &c->slots[slot];
	c->stats.hits[tier_of(c, slot)]++;
	if (s->state == CACHE_FILLING && !tier_of(c, slot))
		c->stats.late++;
	if (s->prefetched) {
		s->prefetched = false;
		c->stats.prefetch_used++;
	} else if (c->inclusive_copy[key] >= 0) { /* it will stay in tier 0: drop its copy first */
		key_list_drop(&c->inclusive_copies, key);
		key_list_push_tail(&c->inclusive_copies, 0, key);
	}
	return slot;
}

void cache_count_prefill(struct cache *c, int layer, const int32_t *experts, int n)
{
	for (int i = 0; i < n; i++)
		access_prefill(c, cache_key(c, layer, experts[i]));
}

/* ---- deferred accounting ---- */

static void pending_add(struct cache *c, int kind, int32_t key)
{
	c->pending[c->n_pending].kind = kind;
	c->pending[c->n_pending++].key = key;
}

static void flush_pending(struct cache *c)
{
	for (int i = 0; i < c->n_pending; i++) {
		int32_t key = c->pending[i].key;
		switch (c->pending[i].kind) {
		case PENDING_ACCESS:
		case PENDING_PROVISIONAL:
			access_decode(c, key, c->pending[i].kind == PENDING_PROVISIONAL);
			break;
		case PENDING_PREDICTED:
			note_predicted(c, key);
			break;
		case PENDING_KEEP_FREE:
			cache_keep_free(c, key);
			break;
		}
	}
	c->n_pending = 0;
}

static void plan_begin(struct cache *c)
{
	c->n_transfers = 0;
}

static void plan_end(const struct cache *c, struct cache_plan *plan)
{
	*plan = (struct cache_plan){.transfers = c->transfers, .n = c->n_transfers};
}

void cache_note_predicted(struct cache *c, int layer, const int32_t *experts, int n)
{
	for (int i = 0; i < n && c->n_pending < c->cap_pending; i++)
		pending_add(c, PENDING_PREDICTED, cache_key(c, layer, experts[i]));
}

void cache_note_used(struct cache *c, int layer, int expert, struct cache_plan *plan)
{
	plan_begin(c);
	flush_pending(c);
	note_used(c, cache_key(c, layer, expert));
	plan_end(c, plan);
}

void cache_flush(struct cache *c, struct cache_plan *plan)
{
	plan_begin(c);
	flush_pending(c);
	plan_end(c, plan);
}

bool cache_has_pending(const struct cache *c)
{
	return c->n_pending > 0;
}

/* ---- prefill slots ---- */

/* Borrows one more prefill slot: a free slot, or a victim's. -1: n_prefill_slots are borrowed, or
 * no slot can be evicted. */
static int32_t prefill_slot_borrow(struct cache *c)
{
	int32_t slot;
	if (c->n_borrowed == c->n_prefill_slots ||
		cache_slot_alloc(c, 0, c->largest_key, CACHE_PREFILL, &slot) != CACHE_OK)
		return -1;
	c->slots[slot].prefill = true;
	c->borrowed[c->n_borrowed++] = slot;
	return slot;
}

/* Returns the prefill slots that are FREE; the others are returned when they are released. */
static void prefill_slots_return(struct cache *c)
{
	c->hold_prefill = false;
	for (int i = c->n_borrowed - 1; i >= 0; i--)
		if (c->slots[c->borrowed[i]].state == CACHE_FREE) {
			cache_slot_free(c, c->borrowed[i]);
			c->borrowed[i] = c->borrowed[--c->n_borrowed];
		}
}

void cache_begin_step(struct cache *c, enum cache_use use, struct cache_plan *plan)
{
	plan_begin(c);
	flush_pending(c);
	cache_read_ahead_drop(c, NULL, NULL);
	if (use == CACHE_PREFILL) {
		c->hold_prefill = true;
		while (prefill_slot_borrow(c) >= 0)
			;
	} else {
		prefill_slots_return(c);
	}
	plan_end(c, plan);
}

/* ---- reservations ---- */

/* Reserves a free slot of tier 1 for an expert that is in neither tier, and enters it in the
 * policy's list. */
static enum cache_result reserve_tier1(struct cache *c, int32_t key, int32_t *slot)
{
	if (!c->arena[1].n_slabs)
		return CACHE_NO_COLD;
	enum cache_result result = cache_slot_alloc(c, 1, key, CACHE_WARM, slot);
	if (result != CACHE_OK)
		return result;
	cache_slot_fill(c, *slot, key);
	c->index[key] = *slot;
	c->last_use[key] = c->clock;
	c->policy.ops->insert(&c->policy, list_of(c, 1, class_of(c, key)), key);
	return CACHE_OK;
}

/* Whether an expert that is not hot would fit in the tier beside all that are hot for it. */
static bool has_room_beside_hot(const struct cache *c, int32_t key, int tier)
{
	return c->hot_bytes[tier] + bytes_of(c, key) <= c->arena[tier].bytes;
}

static void mark_hot(struct cache *c, int32_t key, int tier)
{
	c->hot_bytes[tier] += bytes_of(c, key);
	c->hot[key] = (uint8_t)(1 + tier);
}

/* Reserves a free slot of tier 1 for an expert that is in neither tier and is being read into a
 * prefill slot, so that the same read fills both. False: none is to be filled. Experts that are hot
 * for tier 0 are left to the warm-up, which brings them there. One that was not hot is hot for tier
 * 1 from then on, so that those of the warm-up find room beside all that were kept. */
static bool keep_read(struct cache *c, int32_t key)
{
	int32_t slot;
	if (!c->keep_reads || c->hot[key] == 1 || (!c->hot[key] && !has_room_beside_hot(c, key, 1)))
		return false;
	if (reserve_tier1(c, key, &slot) != CACHE_OK) {
		c->stats.keeps_refused++;
		return false;
	}
	if (!c->hot[key])
		mark_hot(c, key, 1);
	return true;
}

/* Reserves a prefill slot with one pin. An expert in tier 1 stays there, pinned until its copy into
 * the prefill slot ends. */
static enum cache_result reserve_prefill(struct cache *c, int32_t key, int32_t *got)
{
	int32_t in = c->index[key], slot = -1;
	if (in >= 0)
		c->slots[in].pins++;
	for (int i = 0; i < c->n_borrowed && slot < 0; i++)
		slot = c->slots[c->borrowed[i]].state == CACHE_FREE ? c->borrowed[i] : -1;
	if (slot < 0)
		slot = prefill_slot_borrow(c);
	if (slot < 0) {
		if (in >= 0)
			c->slots[in].pins--;
		c->stats.full++;
		return CACHE_FULL;
	}
	cache_slot_fill(c, slot, key);
	c->slots[slot].pins = 1;
	c->slots[slot].from = in;
	c->slots[slot].kept = in < 0 && keep_read(c, key);
	c->prefill_index[key] = *got = slot;
	return CACHE_OK;
}

/* Reserves a slot of tier 0 and enters it in the policy's list. With CACHE_DECODE it has a pin: a
 * new one, or those that callers hold on the slot of tier 1. */
static enum cache_result reserve_cached(
	struct cache *c, int32_t key, enum cache_use use, int32_t *got)
{
	int32_t in = c->index[key], slot;
	int k = class_of(c, key);
	if (in >= 0)
		c->slots[in].pins++; /* it must not be the victim that makes room for its own promotion */
	enum cache_result result = cache_slot_alloc(c, 0, key, use, &slot);
	if (result != CACHE_OK) {
		if (in >= 0)
			c->slots[in].pins--;
		c->stats.full += result == CACHE_FULL;
		c->stats.prefetch_refused += use == CACHE_PREFETCH && result == CACHE_NO_COLD;
		return result;
	}
	cache_slot_fill(c, slot, key);
	struct slot *s = &c->slots[slot];
	if (in >= 0) {
		/* The promotion keeps its pin on the old slot; pins of callers go to the new one. */
		s->from = in;
		s->pins = c->slots[in].pins - 1;
		c->slots[in].pins = 1;
		c->policy.ops->remove(&c->policy, list_of(c, 1, k), key);
		c->stats.promotions++;
		c->stats.bytes_promoted += bytes_of(c, key);
	}
	c->index[key] = *got = slot;
	if (use == CACHE_PREFETCH) {
		s->prefetched = true;
		s->from_disk = in < 0;
		c->stats.prefetch_inserted++;
		c->stats.prefetch_bytes += in < 0 ? bytes_of(c, key) : 0;
	}
	if (use == CACHE_DECODE)
		s->pins = MAX(s->pins, 1);
	else if (use != CACHE_PROMOTE)
		c->last_use[key] = c->clock;
	c->policy.ops->insert(&c->policy, list_of(c, 0, k), key);
	return CACHE_OK;
}

/* Prefill: reserves a free slot of tier 0, pinned, for a hot expert that is in neither tier. */
static bool reserve_hot(struct cache *c, int32_t key, int32_t *slot)
{
	if (c->hot[key] != 1 || c->index[key] >= 0 ||
		reserve_cached(c, key, CACHE_WARM, slot) != CACHE_OK)
		return false;
	c->slots[*slot].pins = 1;
	return true;
}

/* Reserves a slot of tier 0 for an expert and adds its load to the plan. *slot: with CACHE_OK the
 * new slot, with CACHE_PRESENT the one it is in. */
static enum cache_result reserve(struct cache *c, int32_t key, enum cache_use use, int32_t *slot)
{
	int32_t in = c->index[key];
	bool prefill = use == CACHE_PREFILL;
	*slot = in >= 0 && !tier_of(c, in) ? in : prefill ? c->prefill_index[key] : -1;
	if (*slot >= 0)
		return CACHE_PRESENT;
	bool being_copied =
		in >= 0 && c->prefill_index[key] >= 0 && c->slots[c->prefill_index[key]].from == in;
	if (in >= 0 && (c->slots[in].state == CACHE_FILLING || being_copied))
		return CACHE_BUSY;
	if (in >= 0 && c->slots[in].stays && !prefill)
		return CACHE_BUSY;
	/* A request that has not been resumed yet has pinned the expert and will promote it. */
	if (in >= 0 && use != CACHE_DECODE && use != CACHE_PREFILL && c->slots[in].pins)
		return CACHE_BUSY;
	enum cache_result result = !prefill                    ? reserve_cached(c, key, use, slot)
							   : reserve_hot(c, key, slot) ? CACHE_OK
														   : reserve_prefill(c, key, slot);
	if (result == CACHE_OK)
		cache_plan_add(c, CACHE_LOAD, *slot, in, in >= 0 ? offset_of(c, in) : 0);
	return result;
}

/* ---- acquire ---- */

static void ref_set(const struct cache *c, struct cache_ref *r, int32_t slot, int state)
{
	r->slot = slot;
	r->state = (uint8_t)state;
	r->load_id = c->slots[slot].load_id;
}

/* Pins the slot that a ref's expert is in. The pin of a read-ahead becomes the ref's. */
static void ref_pin(struct cache *c, struct cache_ref *r, int32_t slot)
{
	struct slot *s = &c->slots[slot];
	int state = tier_of(c, slot)            ? CACHE_REF_NONE
				: s->state == CACHE_FILLING ? CACHE_REF_IN_FLIGHT
											: CACHE_REF_READY;
	if (s->read_ahead)
		s->read_ahead = false;
	else
		s->pins++;
	ref_set(c, r, slot, state);
}

/* True: all refs are READY in tier 0 and were pinned. Nothing has to be decided, so the accesses
 * are only queued. */
static bool acquire_resident(struct cache *c, struct cache_request *q)
{
	for (int i = 0; i < q->n; i++) {
		int32_t slot = c->index[cache_key(c, q->layer, q->refs[i].expert)];
		if (slot < 0 || tier_of(c, slot) || c->slots[slot].state != CACHE_READY)
			return false;
		q->refs[i].slot = slot;
	}
	for (int i = 0; i < q->n; i++) {
		struct cache_ref *r = &q->refs[i];
		c->slots[r->slot].pins++;
		r->tier = 0;
		ref_set(c, r, r->slot, CACHE_REF_READY);
		pending_add(c, r->provisional ? PENDING_PROVISIONAL : PENDING_ACCESS,
			q->layer * c->n_experts + r->expert);
	}
	q->next = q->n;
	return true;
}

/* Counts an access and pins the expert where it is. */
static void acquire_found(struct cache *c, const struct cache_request *q, struct cache_ref *r)
{
	int32_t key = cache_key(c, q->layer, r->expert);
	int32_t slot =
		q->use == CACHE_PREFILL ? access_prefill(c, key) : access_decode(c, key, r->provisional);
	*r = (struct cache_ref){.expert = r->expert,
		.provisional = r->provisional,
		.stay = r->stay && q->use == CACHE_DECODE,
		.state = CACHE_REF_NONE,
		.tier = CACHE_TIERS,
		.slot = -1};
	if (slot < 0)
		return;
	r->tier = (uint8_t)tier_of(c, slot);
	if (!r->tier || q->use == CACHE_DECODE) /* prefill: the reservation pins the slot of tier 1 */
		ref_pin(c, r, slot);
}

/* Reserves for the refs that are not in tier 0, from q->next on, until one has to wait. */
static enum cache_result acquire_missing(struct cache *c, struct cache_request *q)
{
	for (; q->next < q->n; q->next++) {
		struct cache_ref *r = &q->refs[q->next];
		int32_t slot;
		if (r->slot >= 0 && !tier_of(c, r->slot))
			continue;
		if (r->slot >= 0 && r->stay && c->slots[r->slot].state == CACHE_READY) {
			r->state = CACHE_REF_READY;
			c->slots[r->slot].stays++;
			continue;
		}
		switch (reserve(c, cache_key(c, q->layer, r->expert), q->use, &slot)) {
		case CACHE_OK:
			ref_set(c, r, slot, CACHE_REF_LOAD);
			break;
		case CACHE_PRESENT: /* it got a slot since the request began */
			ref_pin(c, r, slot);
			break;
		case CACHE_BYPASS:
			break;
		case CACHE_BUSY:
			return CACHE_BUSY;
		default:
			return CACHE_FULL;
		}
	}
	return CACHE_OK;
}

static enum cache_result acquire_rest(
	struct cache *c, struct cache_request *q, struct cache_plan *plan)
{
	enum cache_result result = acquire_missing(c, q);
	if (result == CACHE_OK && q->use == CACHE_DECODE && c->keep_free)
		pending_add(c, PENDING_KEEP_FREE, q->layer * c->n_experts);
	plan_end(c, plan);
	return result;
}

enum cache_result cache_acquire(struct cache *c, struct cache_request *q, struct cache_plan *plan)
{
	plan_begin(c);
	flush_pending(c);
	if (q->use == CACHE_DECODE && c->hold_prefill)
		prefill_slots_return(c);
	q->next = 0;
	if (q->use != CACHE_DECODE || !acquire_resident(c, q))
		for (int i = 0; i < q->n; i++)
			acquire_found(c, q, &q->refs[i]);
	return acquire_rest(c, q, plan);
}

enum cache_result cache_acquire_resume(
	struct cache *c, struct cache_request *q, struct cache_plan *plan)
{
	plan_begin(c);
	flush_pending(c);
	return acquire_rest(c, q, plan);
}

/* Whether the ref has a pin on its slot; an abort voids it. */
static bool ref_holds(const struct cache *c, const struct cache_ref *r)
{
	return r->slot >= 0 && c->slots[r->slot].load_id == r->load_id;
}

enum cache_ref_state cache_ref_poll(const struct cache *c, struct cache_ref *r)
{
	if (r->state == CACHE_REF_LOAD || r->state == CACHE_REF_IN_FLIGHT) {
		if (!ref_holds(c, r))
			r->state = CACHE_REF_FAILED;
		else if (c->slots[r->slot].state == CACHE_READY)
			r->state = CACHE_REF_READY;
	}
	return (enum cache_ref_state)r->state;
}

void cache_release(struct cache *c, const struct cache_ref *refs, int n, struct cache_plan *plan)
{
	plan_begin(c);
	flush_pending(c);
	for (int i = 0; i < n; i++)
		if (ref_holds(c, &refs[i])) {
			c->slots[refs[i].slot].stays -=
				refs[i].stay && refs[i].state == CACHE_REF_READY && tier_of(c, refs[i].slot) == 1;
			cache_unpin(c, refs[i].slot);
		}
	plan_end(c, plan);
}

/* ---- prefetch, warm-up, read-ahead ---- */

static enum cache_result reserve_planned(struct cache *c, int layer, int expert, enum cache_use use,
	int32_t *slot, struct cache_plan *plan)
{
	plan_begin(c);
	enum cache_result result = reserve(c, cache_key(c, layer, expert), use, slot);
	plan_end(c, plan);
	return result;
}

enum cache_result cache_prefetch(struct cache *c, int layer, int expert, struct cache_plan *plan)
{
	int32_t slot;
	return reserve_planned(c, layer, expert, CACHE_PREFETCH, &slot, plan);
}

enum cache_result cache_warm(
	struct cache *c, int tier, int layer, int expert, struct cache_plan *plan)
{
	int32_t slot;
	if (tier == 0)
		return reserve_planned(c, layer, expert, CACHE_WARM, &slot, plan);
	const int32_t key = cache_key(c, layer, expert);
	plan_begin(c);
	enum cache_result result = c->index[key] >= 0 ? CACHE_PRESENT : reserve_tier1(c, key, &slot);
	if (result == CACHE_OK)
		cache_plan_add(c, CACHE_LOAD, slot, -1, 0);
	plan_end(c, plan);
	return result;
}

bool cache_set_hot(struct cache *c, int layer, int expert)
{
	const int32_t key = cache_key(c, layer, expert);
	for (int tier = 0; tier < CACHE_TIERS && !c->hot[key]; tier++)
		if (has_room_beside_hot(c, key, tier))
			mark_hot(c, key, tier);
	return c->hot[key];
}

void cache_keep_reads(struct cache *c)
{
	c->keep_reads = true;
}

void cache_limit_tier1(struct cache *c, uint64_t bytes)
{
	c->tier1_limit = bytes;
}

enum cache_result cache_promote(struct cache *c, int layer, int expert, struct cache_plan *plan)
{
	int32_t slot;
	const int32_t key = cache_key(c, layer, expert);
	if (c->index[key] >= 0 && (!tier_of(c, c->index[key]) || cache_worth_promoting(c, key)))
		return reserve_planned(c, layer, expert, CACHE_PROMOTE, &slot, plan);
	*plan = (struct cache_plan){0};
	return CACHE_NO_COLD;
}

enum cache_result cache_read_ahead(struct cache *c, int layer, int expert, struct cache_plan *plan)
{
	int32_t slot;
	enum cache_result result = reserve_planned(c, layer, expert, CACHE_PREFILL, &slot, plan);
	if (result == CACHE_OK && c->slots[slot].prefill)
		c->slots[slot].read_ahead = true;
	else if (result == CACHE_OK)
		c->slots[slot].pins = 0; /* hot: in a slot of tier 0, which needs no pin to keep it */
	return result;
}

void cache_read_ahead_drop(
	struct cache *c, bool (*keep)(const void *ctx, int layer, int expert), const void *ctx)
{
	for (int i = c->n_borrowed - 1; i >= 0; i--) {
		struct slot *s = &c->slots[c->borrowed[i]];
		if (!s->read_ahead || (keep && keep(ctx, s->key / c->n_experts, s->key % c->n_experts)))
			continue;
		s->read_ahead = false;
		cache_unpin(c, c->borrowed[i]);
	}
}
