/* SPDX-License-Identifier: MIT */
/*
 * The work of the I/O thread, and which is next. The caller of every function here holds the
 * loader's lock.
 *
 * The compute thread reserves the slots of demands, in the order in which the model requests them,
 * so demands have slots when they are queued. The I/O thread reserves slots for read-ahead,
 * prefetch and warm-up, when no decided work is left: they must not take a slot before a demand.
 */
#include "stream/loader/loader_internal.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>
#include <string.h>

/* Throttle of prefetches. Each time JUDGE_EVERY prefetched experts were used or evicted,
 * prefetch_share is halved if less than USEFUL_POOR of them were used, down to SHARE_MIN, and
 * doubled if more than USEFUL_GOOD were, up to 1. */
#define JUDGE_EVERY 64
#define SHARE_MIN   0.125
#define USEFUL_POOR 0.25
#define USEFUL_GOOD 0.5

int loader_queue_init(struct loader *l)
{
	struct work_queue *q = &l->shared.queue;
	q->cap = (size_t)l->n_slots;
	q->decided = mem_try_new(q->cap, sizeof *q->decided);
	q->boosted = mem_try_new(q->cap, sizeof *q->boosted);
	for (int i = 0; i < 2; i++) {
		q->read_ahead[i].layer = -1;
		q->read_ahead[i].ids = NEW_ARRAY(int32_t, (size_t)l->n_experts);
	}
	return q->decided && q->boosted ? 0 : ERR_MEMORY;
}

void loader_queue_free(struct loader *l)
{
	struct work_queue *q = &l->shared.queue;
	for (int i = 0; i < 2; i++)
		free(q->read_ahead[i].ids);
	free(q->decided);
	free(q->boosted);
	free(q->warm);
}

/* ---- what the cache has decided ---- */

static uint8_t *slot_memory(const struct loader *l, int tier, uint64_t offset)
{
	return l->tier_memory[tier] + offset;
}

static void queue_transfer(
	struct loader *l, const struct cache_transfer *t, enum transfer_priority priority)
{
	struct loader_shared *s = &l->shared;
	struct work_queue *q = &s->queue;
	struct slot_work *x = &s->slot_work[t->slot];
	const bool load = t->kind == CACHE_LOAD;
	const int tier = cache_slot_get(s->cache, t->slot).tier;
	if (q->n == q->cap)
		bug("%zu transfers are queued", q->n);
	if (load && priority >= TRANSFER_LOAD_PRIORITIES)
		bug("a load has the priority of a demotion");
	q->decided[(q->first + q->n++) % q->cap] = (struct work){
		.kind = load ? WORK_LOAD : WORK_DEMOTE,
		.request = {.slot = t->slot,
			.layer = t->layer,
			.expert = t->expert,
			.src = t->source < 0 ? NULL : slot_memory(l, load, t->from_offset),
			.dst = slot_memory(l, tier, t->to_offset),
			.to_tier1 = load && tier == 1,
			.keep = t->keep < 0 ? NULL : slot_memory(l, 1, t->keep_offset),
			.bytes = t->bytes},
	};
	x->priority = load ? priority : TRANSFER_DEMOTION;
	x->prefetched = load && priority >= TRANSFER_PREFETCH;
	x->from_tier1 = load && t->source >= 0;
	x->link_bytes = x->from_tier1 ? t->bytes : 0;
	*loader_link_bytes(s, x) += x->link_bytes;
	s->n_in_flight++;
	s->n_demands += x->priority == TRANSFER_DEMAND;
	s->n_prefetches += x->prefetched;
	s->n_tier1_prefetches += x->prefetched && x->from_tier1;
	if (x->priority == TRANSFER_DEMAND && !x->from_tier1)
		s->drive_idle_from = s->layer_clock + LOADER_DRIVE_IDLE_LAYERS;
}

void loader_queue_plan(
	struct loader *l, const struct cache_plan *plan, enum transfer_priority priority)
{
	for (int i = 0; i < plan->n; i++)
		queue_transfer(l, &plan->transfers[i], priority);
}

void loader_queue_boost(struct loader *l, int32_t slot)
{
	struct loader_shared *s = &l->shared;
	if (slot < 0 || cache_slot_get(s->cache, slot).state != CACHE_FILLING)
		return;
	slot = cache_slot_get(s->cache, slot).filled_by;
	struct slot_work *x = &s->slot_work[slot];
	if (x->priority == TRANSFER_DEMAND)
		return;
	*loader_link_bytes(s, x) -= x->link_bytes;
	x->priority = TRANSFER_DEMAND;
	*loader_link_bytes(s, x) += x->link_bytes;
	s->n_demands++;
	if (x->boost_queued)
		return;
	x->boost_queued = true;
	s->queue.boosted[s->queue.n_boosted++] = slot;
}

/* ---- deferred access accounting ---- */

void loader_judge_prefetch(struct loader *l)
{
	struct loader_shared *s = &l->shared;
	const struct cache_stats *c = cache_stats(s->cache);
	uint64_t used = c->prefetch_used - s->judged_used,
			 wasted = c->prefetch_wasted - s->judged_wasted;
	if (used + wasted < JUDGE_EVERY)
		return;
	s->judged_used = c->prefetch_used;
	s->judged_wasted = c->prefetch_wasted;
	double useful = (double)used / (double)(used + wasted);
	if (useful < USEFUL_POOR)
		s->prefetch_share = MAX(s->prefetch_share / 2, SHARE_MIN);
	else if (useful > USEFUL_GOOD)
		s->prefetch_share = MIN(s->prefetch_share * 2, 1.0);
}

bool loader_flush_accesses(struct loader *l)
{
	struct loader_shared *s = &l->shared;
	struct cache_plan plan;
	s->flush_due = false;
	if (!cache_has_pending(s->cache))
		return false;
	cache_flush(s->cache, &plan);
	loader_queue_plan(l, &plan, TRANSFER_DEMOTION);
	loader_judge_prefetch(l);
	return plan.n > 0;
}

/* ---- the second tier ---- */

static bool has_card_tier1(const struct loader *l)
{
	return l->card && l->tier_memory_bytes[1];
}

void loader_limit_tier1(struct loader *l)
{
	if (has_card_tier1(l))
		cache_limit_tier1(l->shared.cache, atomic_load(&l->card->tier1.ready));
}

/* Requests one more step of tier 1 if since the last request a read of a prompt found no free slot
 * to stay in. Pinning holds up the copies of the prompt, so it is not requested before. */
static void request_room_for_reads(struct loader *l)
{
	struct pinned *tier1 = &l->card->tier1;
	const uint64_t refused = cache_stats(l->shared.cache)->keeps_refused;
	if (refused != l->shared.keeps_refused)
		pinned_request(tier1, atomic_load(&tier1->ready) + tier1->step);
	l->shared.keeps_refused = refused;
}

/* ---- read-ahead ---- */

static bool read_ahead_names(const void *queue, int layer, int expert)
{
	const struct work_queue *q = queue;
	for (int i = 0; i < 2; i++)
		for (int k = 0; layer == q->read_ahead[i].layer && k < q->read_ahead[i].n; k++)
			if (q->read_ahead[i].ids[k] == expert)
				return true;
	return false;
}

void loader_queue_read_ahead(struct loader *l, int layer, const int32_t *ids, int n)
{
	struct work_queue *q = &l->shared.queue;
	struct read_ahead_list *a = q->read_ahead, *list = NULL;
	for (int i = 0; i < 2; i++)
		if (a[i].layer == layer)
			list = &a[i];
	if (!list)
		list = a[0].layer < a[1].layer ? &a[0] : &a[1];
	list->layer = layer;
	list->n = n;
	list->next = 0;
	memcpy(list->ids, ids, (size_t)n * sizeof *ids);
	if (a[0].layer > a[1].layer) { /* the nearer layer goes first */
		struct read_ahead_list t = a[0];
		a[0] = a[1];
		a[1] = t;
	}
	cache_read_ahead_drop(l->shared.cache, read_ahead_names, q);
	/* without a card a read lands in its slot, and tier 1 would need a copy */
	if (has_card_tier1(l)) {
		request_room_for_reads(l);
		loader_limit_tier1(l);
		cache_keep_reads(l->shared.cache);
	}
}

bool loader_queue_clear_read_ahead(struct loader *l)
{
	struct work_queue *q = &l->shared.queue;
	bool any = q->read_ahead[0].n + q->read_ahead[1].n > 0;
	for (int i = 0; i < 2; i++) {
		q->read_ahead[i].layer = -1;
		q->read_ahead[i].n = q->read_ahead[i].next = 0;
	}
	cache_read_ahead_drop(l->shared.cache, NULL, NULL);
	return any;
}

static bool in_first_tier(const struct loader_shared *s, int layer, int expert)
{
	int32_t slot = cache_find(s->cache, layer, expert);
	return slot >= 0 && cache_slot_get(s->cache, slot).tier == 0;
}

/* Reserves a prefill slot for the next expert to be read ahead. False: none is left, or no slot. */
static bool reserve_read_ahead(struct loader *l)
{
	struct loader_shared *s = &l->shared;
	for (int i = 0; i < 2; i++) {
		struct read_ahead_list *a = &s->queue.read_ahead[i];
		for (; a->next < a->n; a->next++) {
			struct cache_plan plan;
			if (in_first_tier(s, a->layer, a->ids[a->next]))
				continue;
			switch (cache_read_ahead(s->cache, a->layer, a->ids[a->next], &plan)) {
			case CACHE_OK:
				loader_queue_plan(l, &plan, TRANSFER_READ_AHEAD);
				a->next++;
				return true;
			case CACHE_PRESENT:
				break;
			case CACHE_BUSY: /* on its way into tier 1, maybe by the warm-up: it goes first now */
				loader_queue_boost(l, cache_find(s->cache, a->layer, a->ids[a->next]));
				return false;
			default:
				return false;
			}
		}
	}
	return false;
}

/* ---- prefetch and warm-up ---- */

void loader_queue_prefetch(struct loader *l, int layer, const int32_t *ids, int n, uint64_t due)
{
	struct loader_shared *s = &l->shared;
	struct work_queue *q = &s->queue;
	for (int i = 0; i < n && q->n_prefetch < LOADER_PREFETCH_REQUESTS; i++) {
		if (in_first_tier(s, layer, ids[i]))
			continue;
		int k = 0;
		while (
			k < q->n_prefetch && (q->prefetch[k].layer != layer || q->prefetch[k].expert != ids[i]))
			k++;
		if (k < q->n_prefetch)
			continue;
		for (; k && q->prefetch[k - 1].due > due; k--)
			q->prefetch[k] = q->prefetch[k - 1];
		q->prefetch[k] = (struct prefetch_request){
			.due = due, .layer = (int16_t)layer, .expert = (int16_t)ids[i]};
		q->n_prefetch++;
	}
}

void loader_queue_drop_stale(struct loader *l)
{
	struct work_queue *q = &l->shared.queue;
	int kept = 0;
	for (int i = 0; i < q->n_prefetch; i++)
		if (q->prefetch[i].due > l->shared.layer_clock)
			q->prefetch[kept++] = q->prefetch[i];
	q->n_prefetch = kept;
}

/* Whether the link (from tier 1) or the drive may take this prefetch now. */
static bool may_prefetch(const struct loader *l, const struct prefetch_request *r)
{
	const struct loader_shared *s = &l->shared;
	if (l->card && cache_find(s->cache, r->layer, r->expert) >= 0)
		return s->n_tier1_prefetches < LOADER_TIER1_PREFETCH_MAX;
	return s->n_prefetches - s->n_tier1_prefetches < l->prefetches_max &&
		   (!l->card || s->layer_clock >= s->drive_idle_from);
}

/* Reserves a free or cold slot for the prefetch that is due first. Drops those before it that are
 * late, in tier 0 already, being demoted, or without a cold victim. False: none may start now. */
static bool reserve_prefetch(struct loader *l)
{
	struct loader_shared *s = &l->shared;
	struct work_queue *q = &s->queue;
	int kept = 0, i = 0;
	bool reserved = false;
	for (; i < q->n_prefetch && !reserved; i++) {
		const struct prefetch_request r = q->prefetch[i];
		struct cache_plan plan;
		if (!may_prefetch(l, &r)) {
			q->prefetch[kept++] = r;
		} else if (r.due > s->layer_clock && !in_first_tier(s, r.layer, r.expert) &&
				   cache_prefetch(s->cache, r.layer, r.expert, &plan) == CACHE_OK) {
			loader_queue_plan(l, &plan, TRANSFER_PREFETCH);
			reserved = true;
		}
	}
	memmove(&q->prefetch[kept], &q->prefetch[i], (size_t)(q->n_prefetch - i) * sizeof *q->prefetch);
	q->n_prefetch -= i - kept;
	return reserved;
}

void loader_queue_promotion(struct loader *l, int layer, int expert)
{
	struct work_queue *q = &l->shared.queue;
	if (q->n_promote == LOADER_PROMOTIONS)
		memmove(&q->promote[0], &q->promote[1], (size_t)--q->n_promote * sizeof q->promote[0]);
	q->promote[q->n_promote++] = (struct profile_key){.layer = layer, .expert = expert};
}

/* Reserves a slot for the oldest promotion that is still possible. False: none is, or a load from
 * tier 1 is in flight. */
static bool reserve_promotion(struct loader *l)
{
	struct loader_shared *s = &l->shared;
	struct work_queue *q = &s->queue;
	while (q->n_promote && s->n_tier1_prefetches < LOADER_TIER1_PREFETCH_MAX) {
		const struct profile_key k = q->promote[0];
		memmove(&q->promote[0], &q->promote[1], (size_t)--q->n_promote * sizeof k);
		struct cache_plan plan;
		if (cache_promote(s->cache, k.layer, k.expert, &plan) != CACHE_OK)
			continue;
		loader_queue_plan(l, &plan, TRANSFER_PREFETCH);
		for (int i = 0; i < plan.n; i++)
			s->bytes_promoted += plan.transfers[i].kind == CACHE_LOAD ? plan.transfers[i].bytes : 0;
		return true;
	}
	return false;
}

/* Reserves a free slot for the next expert of the warm-up: of the first tier, else of the second.
 * An expert that finds none is skipped: those of another size may find one. Not so while slots are
 * still to come: those that a prompt has borrowed, or a second tier that is still being pinned.
 * False: none is left, or no slot is free now. */
static bool reserve_warm(struct loader *l)
{
	struct loader_shared *s = &l->shared;
	struct work_queue *q = &s->queue;
	for (; q->next_warm < q->n_warm && s->n_prefetches < l->prefetches_max; q->next_warm++) {
		const struct profile_key k = q->warm[q->next_warm];
		struct cache_plan plan;
		if (cache_find(s->cache, k.layer, k.expert) >= 0)
			continue;
		const bool grows =
			has_card_tier1(l) && atomic_load(&l->card->tier1.state) == PINNED_IN_PROGRESS;
		loader_limit_tier1(l); /* after the state: `ready` is final once that is not IN_PROGRESS */
		enum cache_result result = cache_warm(s->cache, 0, k.layer, k.expert, &plan);
		if (result != CACHE_OK)
			result = cache_warm(s->cache, 1, k.layer, k.expert, &plan);
		if (result == CACHE_OK) {
			loader_queue_plan(l, &plan, TRANSFER_WARM);
			q->next_warm++;
			return true;
		}
		if (grows || s->in_prompt)
			return false;
		if (!cache_can_warm(s->cache)) {
			q->next_warm = q->n_warm; /* full */
			return false;
		}
	}
	return false;
}

/* ---- what is next ---- */

static bool next_boost(struct loader *l, struct work *w)
{
	struct loader_shared *s = &l->shared;
	struct work_queue *q = &s->queue;
	while (q->n_boosted) {
		int32_t slot = q->boosted[0];
		memmove(&q->boosted[0], &q->boosted[1], --q->n_boosted * sizeof slot);
		s->slot_work[slot].boost_queued = false;
		if (s->slot_work[slot].priority != TRANSFER_DEMAND)
			continue; /* the boosted load has ended; the slot holds another expert */
		*w = (struct work){.kind = WORK_BOOST, .request = {.slot = slot}};
		return true;
	}
	return false;
}

/* False: none, or the first is a demotion that cannot leave its slot now. */
static bool next_decided(struct loader *l, struct work *w)
{
	struct work_queue *q = &l->shared.queue;
	if (!q->n)
		return false;
	*w = q->decided[q->first];
	w->request.priority = l->shared.slot_work[w->request.slot].priority;
	if (w->kind == WORK_DEMOTE && !l->transfer->ops->can_demote(l->transfer))
		return false;
	q->first = (q->first + 1) % q->cap;
	q->n--;
	return true;
}

bool loader_next_work(struct loader *l, struct work *w)
{
	struct loader_shared *s = &l->shared;
	loader_limit_tier1(l);
	for (;;) {
		if (next_boost(l, w) || next_decided(l, w))
			return true;
		if (s->queue.n)
			return false;
		/* Without a card other reads would delay a demand. With one, start_next (card_transfer.c)
		 * gives demands their priority. */
		const bool beside_demands = l->card || !s->n_demands;
		if (beside_demands && (reserve_read_ahead(l) || reserve_prefetch(l) ||
								  reserve_promotion(l) || reserve_warm(l)))
			continue;
		if (!s->flush_due)
			return next_boost(l, w); /* the read-ahead may have queued one */
		loader_flush_accesses(l);
	}
}
