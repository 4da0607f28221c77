/* SPDX-License-Identifier: MIT */
/* Single behaviours of the expert cache; test_cache.c has the random runs. */
#include "cache/cache.h"

#include "src/base/num.h"
#include "src/base/rng.h"
#include "tests/cache/cache_check.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <setjmp.h>
#include <cmocka.h>

static void cache_rules_check(const struct cache *c)
{
	struct err e = {0};
	if (cache_check(c, &e))
		fail_msg("%s", e.text);
}

static struct cache *make(int n_layers, int n_experts, const uint64_t *bytes, uint64_t tier0,
	uint64_t tier1, int n_prefill_slots)
{
	struct cache_config cfg = {.n_layers = n_layers,
		.n_experts = n_experts,
		.expert_bytes = bytes,
		.tier_bytes = {tier0, tier1},
		.n_prefill_slots = n_prefill_slots,
		.as_published = true, /* no low watermark */
		.prefetch_cold = 4};
	struct err e = {0};
	struct cache *c = cache_new(&cfg, &e);
	if (!c)
		fail_msg("%s", e.text);
	return c;
}

/* A request of one expert. */
struct one {
	struct cache_ref ref;
	struct cache_request q;
	struct cache_plan plan;
};

static enum cache_result acquire(
	struct cache *c, struct one *o, int layer, int expert, enum cache_use use)
{
	*o = (struct one){.ref = {.expert = expert}, .q = {.layer = layer, .use = use, .n = 1}};
	o->q.refs = &o->ref;
	return cache_acquire(c, &o->q, &o->plan);
}

static void commit_all(struct cache *c, const struct cache_plan *plan)
{
	for (int i = 0; i < plan->n; i++)
		cache_commit(c, plan->transfers[i].slot);
}

static void release(struct cache *c, struct one *o)
{
	cache_release(c, &o->ref, 1, &o->plan);
	assert_int_equal(o->plan.n, 0);
	cache_rules_check(c);
}

/* Acquire, execute, commit, release; returns the slot. */
static int32_t bring(struct cache *c, int layer, int expert)
{
	struct one o;
	assert_int_equal(acquire(c, &o, layer, expert, CACHE_DECODE), CACHE_OK);
	commit_all(c, &o.plan);
	assert_int_equal(cache_ref_poll(c, &o.ref), CACHE_REF_READY);
	release(c, &o);
	return o.ref.slot;
}

static int tier_of(const struct cache *c, int layer, int expert)
{
	int32_t slot = cache_find(c, layer, expert);
	return slot < 0 ? CACHE_TIERS : cache_slot_get(c, slot).tier;
}

static int n_prefill_slots(const struct cache *c)
{
	int n = 0;
	for (int32_t i = 0; i < cache_n_slots(c); i++)
		n += cache_slot_get(c, i).prefill;
	return n;
}

static void test_demote_promote(void **state)
{
	(void)state;
	const uint64_t bytes[] = {10};
	struct cache *c = make(1, 8, bytes, 20, 20, 0);
	bring(c, 0, 0);
	bring(c, 0, 1);
	bring(c, 0, 2); /* 0 goes to tier 1 */
	assert_int_equal(tier_of(c, 0, 0), 1);
	bring(c, 0, 3); /* 1 too */
	bring(c, 0, 4); /* 2 too; 0, the oldest of tier 1, is gone */
	assert_int_equal(cache_find(c, 0, 0), -1);
	assert_int_equal(tier_of(c, 0, 1), 1);
	/* A promotion: 1 comes back, 3 goes down. The demotion stands before the load. */
	int32_t at = cache_find(c, 0, 1);
	struct one one, three;
	assert_int_equal(acquire(c, &one, 0, 1, CACHE_DECODE), CACHE_OK);
	assert_int_equal(one.ref.state, CACHE_REF_LOAD);
	assert_int_equal(one.ref.tier, 1);
	assert_int_equal(one.plan.n, 2);
	struct cache_transfer down = one.plan.transfers[0], up = one.plan.transfers[1];
	assert_true(down.kind == CACHE_DEMOTION && down.expert == 3 && down.source == up.slot);
	assert_true(up.kind == CACHE_LOAD && up.expert == 1 && up.source == at);
	assert_int_equal(up.slot, one.ref.slot);
	assert_int_equal(cache_slot_get(c, up.slot).pins, 1);
	/* 3 is on its way down: whoever wants it has to wait, and may give up. */
	assert_int_equal(acquire(c, &three, 0, 3, CACHE_DECODE), CACHE_BUSY);
	assert_int_equal(three.ref.state, CACHE_REF_NONE);
	assert_int_equal(three.ref.slot, down.slot);
	release(c, &three);
	cache_commit(c, down.slot);
	assert_int_equal(cache_slot_get(c, down.slot).pins, 0);
	cache_abort(c, up.slot); /* the copy failed: 1 is still in tier 1 */
	cache_rules_check(c);
	assert_int_equal(cache_ref_poll(c, &one.ref), CACHE_REF_FAILED);
	release(c, &one);
	assert_int_equal(cache_find(c, 0, 1), at);
	assert_int_equal(bring(c, 0, 1), up.slot);
	const struct cache_stats *s = cache_stats(c);
	assert_int_equal(s->accesses, 8);
	assert_int_equal(s->hits[1], 3);
	assert_int_equal(s->misses, 5);
	assert_int_equal(s->promotions, 2);
	cache_free(c);
}

/* A layer's request: accesses in order, found experts are pinned before room is made, resuming
 * counts nothing twice, and all hits are counted when the cache is flushed. */
static void test_request(void **state)
{
	(void)state;
	const uint64_t bytes[] = {10};
	struct cache *c = make(1, 8, bytes, 30, 0, 0);
	const struct cache_stats *s = cache_stats(c);
	struct cache_plan plan;
	for (int i = 0; i < 3; i++)
		bring(c, 0, i);
	/* 0 is the oldest, but asked for: 1 and 2 leave */
	struct cache_ref refs[4] = {{.expert = 5}, {.expert = 6}, {.expert = 0}, {.expert = 7}};
	struct cache_request q = {.use = CACHE_DECODE, .refs = refs, .n = 4};
	assert_int_equal(cache_acquire(c, &q, &plan), CACHE_FULL);
	assert_int_equal(q.next, 3);
	assert_int_equal(plan.n, 2);
	assert_int_equal(refs[0].state, CACHE_REF_LOAD);
	assert_int_equal(refs[2].state, CACHE_REF_READY);
	assert_int_equal(refs[3].state, CACHE_REF_NONE);
	assert_true(cache_find(c, 0, 1) < 0 && cache_find(c, 0, 2) < 0 && cache_find(c, 0, 0) >= 0);
	commit_all(c, &plan);
	assert_int_equal(cache_acquire_resume(c, &q, &plan), CACHE_FULL);
	cache_release(c, &refs[0], 1, &plan);
	assert_int_equal(cache_acquire_resume(c, &q, &plan), CACHE_OK);
	assert_int_equal(refs[3].slot, refs[0].slot);
	assert_int_equal(s->accesses, 7);
	assert_int_equal(s->full, 2);
	commit_all(c, &plan);
	cache_release(c, &refs[1], 3, &plan);
	cache_rules_check(c);
	/* all hits: the answer comes at once, the count later */
	q.refs = refs + 1;
	q.n = 3;
	assert_int_equal(cache_acquire(c, &q, &plan), CACHE_OK);
	for (int i = 1; i < 4; i++)
		assert_int_equal(refs[i].state, CACHE_REF_READY);
	assert_int_equal(s->accesses, 7);
	assert_true(cache_has_pending(c));
	cache_flush(c, &plan);
	assert_false(cache_has_pending(c));
	assert_int_equal(s->accesses, 10);
	assert_int_equal(s->hits[0], 4);
	cache_release(c, &refs[1], 3, &plan);
	/* a load that nobody waits for any more still arrives, and its pin goes then */
	struct one o;
	assert_int_equal(acquire(c, &o, 0, 1, CACHE_DECODE), CACHE_OK);
	int32_t slot = o.ref.slot;
	release(c, &o);
	assert_int_equal(cache_slot_get(c, slot).pins, 1);
	cache_commit(c, slot);
	assert_int_equal(cache_slot_get(c, slot).pins, 0);
	cache_rules_check(c);
	cache_free(c);
}

/* Whoever decides flushes first: the policy sees what was asked in the order of the calls. */
static void test_flush_comes_first(void **state)
{
	(void)state;
	const uint64_t bytes[] = {10};
	struct cache *c = make(1, 8, bytes, 30, 0, 1);
	const struct cache_stats *s = cache_stats(c);
	struct one o, next;
	struct cache_plan plan;
	for (int i = 0; i < 2; i++)
		bring(c, 0, i);
	assert_int_equal(s->accesses, 2);
	/* by a release */
	assert_int_equal(acquire(c, &o, 0, 0, CACHE_DECODE), CACHE_OK);
	assert_int_equal(s->accesses, 2);
	release(c, &o);
	assert_int_equal(s->accesses, 3);
	/* by the next request, before its own accesses and victims: 1 was used last when 2 and 3 come
	 */
	assert_int_equal(acquire(c, &o, 0, 1, CACHE_DECODE), CACHE_OK);
	assert_int_equal(acquire(c, &next, 0, 2, CACHE_DECODE), CACHE_OK);
	assert_int_equal(s->accesses, 5);
	commit_all(c, &next.plan);
	release(c, &next);
	release(c, &o);
	bring(c, 0, 3);
	assert_true(cache_find(c, 0, 0) < 0 && cache_find(c, 0, 1) >= 0);
	/* by a step */
	assert_int_equal(acquire(c, &o, 0, 1, CACHE_DECODE), CACHE_OK);
	assert_int_equal(s->accesses, 6);
	cache_begin_step(c, CACHE_PREFILL, &plan);
	assert_int_equal(s->accesses, 7);
	release(c, &o);
	/* not by those that predict */
	assert_int_equal(acquire(c, &o, 0, 1, CACHE_DECODE), CACHE_OK);
	cache_prefetch(c, 0, 5, &plan);
	assert_int_equal(s->accesses, 7);
	assert_true(cache_has_pending(c));
	release(c, &o);
	cache_free(c);
}

/* Cold experts leave before somebody needs their slots, and only those. */
static void test_low_watermark(void **state)
{
	(void)state;
	const uint64_t bytes[] = {10};
	for (int cold = 2; cold <= 6; cold++) {
		struct cache_config cfg = {.n_layers = 1,
			.n_experts = 64,
			.expert_bytes = bytes,
			.tier_bytes = {80, 320},
			.prefetch_cold = (uint64_t)cold};
		struct cache *c = cache_new(&cfg, NULL);
		assert_non_null(c);
		int n[CACHE_TIERS], n_demoted = 0;
		for (int i = 0; i < 20; i++) {
			struct one o;
			assert_int_equal(acquire(c, &o, 0, i, CACHE_DECODE), CACHE_OK);
			n_demoted += o.plan.n - 1;
			commit_all(c, &o.plan);
			assert_true(cache_has_pending(c));
			cache_flush(c, &o.plan);
			for (int k = 0; k < o.plan.n; k++)
				assert_true(o.plan.transfers[k].kind == CACHE_DEMOTION &&
							o.plan.transfers[k].expert + cold < i);
			n_demoted += o.plan.n;
			commit_all(c, &o.plan);
			release(c, &o);
		}
		cache_layer_resident(c, 0, n);
		assert_int_equal(n[0], MAX(8 - CACHE_KEEP_FREE, cold + 1));
		assert_int_equal(n[1], 20 - n[0]);
		assert_int_equal(n_demoted, n[1]);
		cache_free(c);
	}
}

/* Who came up from tier 1 goes down again without a copy as long as nobody needed the room of its
 * inclusive copy. */
static void test_inclusive_copies(void **state)
{
	(void)state;
	const uint64_t bytes[] = {10};
	struct cache *c = make(1, 12, bytes, 20, 50, 0);
	for (int i = 0; i < 4; i++)
		bring(c, 0, i); /* tier 0: 2, 3; tier 1: 0, 1 */
	int32_t at[2] = {cache_find(c, 0, 0), cache_find(c, 0, 1)};
	bring(c, 0, 0);
	bring(c, 0, 1); /* tier 0: 0, 1; tier 1: 2, 3 and the copies */
	struct one o;
	assert_int_equal(cache_stats(c)->demotions_free, 0);
	assert_int_equal(acquire(c, &o, 0, 4, CACHE_DECODE), CACHE_OK);
	assert_int_equal(o.plan.n, 1); /* its load */
	assert_int_equal(cache_find(c, 0, 0), at[0]);
	assert_int_equal(cache_stats(c)->demotions_free, 1);
	commit_all(c, &o.plan);
	release(c, &o);
	/* tier 1: 0, 2, 3, the copy of 1, one free; 1 is used again, so it is 4 that goes down, then 5,
	 * into the copy's room */
	bring(c, 0, 1);
	bring(c, 0, 5);
	assert_int_equal(tier_of(c, 0, 4), 1);
	bring(c, 0, 1);
	bring(c, 0, 6);
	assert_int_equal(cache_find(c, 0, 5), at[1]);
	for (int i = 0; i < 7; i++)
		assert_true(cache_find(c, 0, i) >= 0);
	assert_int_equal(cache_stats(c)->evictions, 0);
	/* tier 1 is full without copies: now somebody is lost */
	bring(c, 0, 7);
	assert_int_equal(cache_stats(c)->evictions, 1);
	cache_rules_check(c);
	cache_free(c);
}

static void test_full_of_pins(void **state)
{
	(void)state;
	const uint64_t bytes[] = {10};
	struct cache *c = make(1, 8, bytes, 25, 0, 0);
	struct one o[3];
	assert_int_equal(acquire(c, &o[0], 0, 0, CACHE_DECODE), CACHE_OK);
	assert_int_equal(acquire(c, &o[1], 0, 1, CACHE_DECODE), CACHE_OK);
	assert_int_equal(acquire(c, &o[2], 0, 2, CACHE_DECODE), CACHE_FULL);
	cache_commit(c, o[0].ref.slot);
	assert_int_equal(cache_acquire_resume(c, &o[2].q, &o[2].plan), CACHE_FULL);
	release(c, &o[0]);
	assert_int_equal(cache_acquire_resume(c, &o[2].q, &o[2].plan), CACHE_OK);
	assert_int_equal(o[2].ref.slot, o[0].ref.slot);
	assert_int_equal(cache_find(c, 0, 0), -1);
	assert_int_equal(cache_stats(c)->full, 2);
	cache_rules_check(c);
	cache_free(c);
}

/* A prefetch leaves alone what an unfinished request has pinned in tier 1: every pin is given back
 * once. */
static void test_prefetch_of_unfinished(void **state)
{
	(void)state;
	const uint64_t bytes[] = {10};
	struct cache *c = make(1, 16, bytes, 20, 20, 0);
	struct cache_plan p;
	for (int i = 0; i < 3; i++)
		bring(c, 0, i); /* 0 is demoted */
	struct one held, failing;
	assert_int_equal(acquire(c, &held, 0, 2, CACHE_DECODE), CACHE_OK);
	assert_int_equal(acquire(c, &failing, 0, 5, CACHE_DECODE), CACHE_OK); /* demotes 1 */
	struct cache_ref refs[] = {{.expert = 7}, {.expert = 0}};
	struct cache_request q = {.layer = 0, .use = CACHE_DECODE, .refs = refs, .n = 2};
	int32_t slot = failing.ref.slot;
	for (int i = 0; i < failing.plan.n; i++)
		if (failing.plan.transfers[i].slot != slot)
			cache_commit(c, failing.plan.transfers[i].slot);
	assert_int_equal(cache_acquire(c, &q, &p), CACHE_FULL);
	assert_int_equal(q.next, 0);
	assert_true(refs[1].slot >= 0);
	cache_abort(c, slot); /* is free now */
	assert_int_equal(cache_prefetch(c, 0, 0, &p), CACHE_BUSY);
	assert_int_equal(cache_warm(c, 0, 0, 0, &p), CACHE_BUSY);
	assert_int_equal(cache_acquire_resume(c, &q, &p), CACHE_FULL); /* 7 has the free slot */
	commit_all(c, &p);
	release(c, &held);
	assert_int_equal(cache_acquire_resume(c, &q, &p), CACHE_OK);
	commit_all(c, &p);
	cache_release(c, refs, 2, &p);
	commit_all(c, &p);
	for (int i = 0; i < 8; i++)
		if (cache_find(c, 0, i) >= 0)
			assert_int_equal(cache_slot_get(c, cache_find(c, 0, i)).pins, 0);
	cache_rules_check(c);
	cache_free(c);
}

static void test_prefetch(void **state)
{
	(void)state;
	const uint64_t bytes[] = {10};
	struct cache *c = make(1, 16, bytes, 40, 0, 0);
	for (int i = 0; i < 4; i++)
		bring(c, 0, i);
	struct cache_plan p;
	/* prefetch_cold is 4: the oldest was used 3 accesses ago */
	assert_int_equal(cache_prefetch(c, 0, 10, &p), CACHE_NO_COLD);
	for (int i = 1; i < 4; i++)
		bring(c, 0, i);
	assert_int_equal(cache_prefetch(c, 0, 10, &p), CACHE_OK);
	int32_t slot = p.transfers[0].slot;
	assert_int_equal(cache_find(c, 0, 0), -1);
	assert_int_equal(cache_slot_get(c, slot).pins, 0);
	/* a demand joins the read that is in flight */
	struct one o;
	assert_int_equal(acquire(c, &o, 0, 10, CACHE_DECODE), CACHE_OK);
	assert_int_equal(o.ref.state, CACHE_REF_IN_FLIGHT);
	assert_int_equal(o.ref.slot, slot);
	assert_int_equal(o.plan.n, 0);
	cache_commit(c, slot);
	assert_int_equal(cache_ref_poll(c, &o.ref), CACHE_REF_READY);
	release(c, &o);
	const struct cache_stats *s = cache_stats(c);
	assert_int_equal(s->prefetch_used, 1);
	assert_int_equal(s->late, 1);
	/* one that nobody wants */
	for (int n = 0; n < 2; n++)
		for (int i = 2; i < 4; i++)
			bring(c, 0, i);
	bring(c, 0, 10);
	assert_int_equal(cache_prefetch(c, 0, 11, &p), CACHE_OK);
	commit_all(c, &p);
	for (int i = 4; i < 8; i++)
		bring(c, 0, i);
	assert_int_equal(s->prefetch_wasted, 1);
	assert_true(s->prefetch_wasted_bytes > 0);
	assert_int_equal(s->prefetch_wasted_bytes, s->prefetch_bytes / s->prefetch_inserted);
	/* and one that is cancelled */
	for (int n = 0; n < 3; n++)
		for (int i = 5; i < 8; i++)
			bring(c, 0, i);
	assert_int_equal(cache_prefetch(c, 0, 12, &p), CACHE_OK);
	cache_abort(c, p.transfers[0].slot);
	assert_int_equal(s->prefetch_inserted, 3);
	assert_int_equal(s->prefetch_cancelled, 1);
	assert_int_equal(s->prefetch_refused, 1);
	cache_rules_check(c);
	cache_free(c);
}

/* Who is predicted stays, and nothing is counted; a prediction of somebody who is not there is
 * harmless. */
static void test_predicted(void **state)
{
	(void)state;
	const uint64_t bytes[] = {10};
	const int32_t predicted[] = {0, 9};
	struct cache *c = make(1, 16, bytes, 40, 0, 0);
	for (int i = 0; i < 4; i++)
		bring(c, 0, i);
	cache_flush(c, &(struct cache_plan){0});
	struct cache_stats before = *cache_stats(c);
	cache_note_predicted(c, 0, predicted, 2);
	cache_flush(c, &(struct cache_plan){0});
	assert_memory_equal(cache_stats(c), &before, sizeof before);
	assert_int_equal(cache_find(c, 0, 9), -1);
	bring(c, 0, 4);
	assert_int_equal(cache_find(c, 0, 1), -1);
	assert_true(cache_find(c, 0, 0) >= 0);
	cache_rules_check(c);
	cache_free(c);
}

/* A round of drafts behind a prompt acquires without a step of its own: its misses find the prefill
 * slots free, and evict nobody. */
static void test_decode_ends_a_prompt(void **state)
{
	(void)state;
	const uint64_t bytes[] = {10, 10};
	struct cache *c = make(2, 8, bytes, 60, 0, 2);
	struct cache_plan p;
	for (int i = 0; i < 4; i++)
		bring(c, 0, i);
	cache_begin_step(c, CACHE_PREFILL, &p);
	assert_int_equal(n_prefill_slots(c), 2);
	struct one o;
	assert_int_equal(acquire(c, &o, 0, 4, CACHE_PREFILL), CACHE_OK);
	commit_all(c, &o.plan);
	bring(c, 1, 0); /* while the last expert of the prompt is in use */
	assert_int_equal(n_prefill_slots(c), 1);
	release(c, &o);
	assert_int_equal(n_prefill_slots(c), 0);
	bring(c, 1, 1);
	assert_int_equal(cache_stats(c)->evictions, 0);
	/* the next part of the prompt borrows again */
	cache_begin_step(c, CACHE_PREFILL, &p);
	assert_int_equal(n_prefill_slots(c), 2);
	assert_int_equal(cache_stats(c)->evictions, 2);
	cache_free(c);
}

static void test_prefill_leaves_decode_set(void **state)
{
	(void)state;
	const uint64_t bytes[] = {10, 10};
	struct cache *c = make(2, 8, bytes, 60, 40, 2);
	for (int i = 0; i < 6; i++)
		bring(c, 0, i); /* decode has all six slots of tier 0 */
	for (int i = 2; i < 6; i++)
		assert_int_equal(tier_of(c, 0, i), 0);
	/* a prompt takes the two that were used longest ago down */
	struct cache_plan p;
	cache_begin_step(c, CACHE_PREFILL, &p);
	assert_int_equal(p.n, 2);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(p.transfers[i].expert, i);
		assert_int_equal(p.transfers[i].kind, CACHE_DEMOTION);
	}
	commit_all(c, &p);
	cache_rules_check(c);
	cache_begin_step(c, CACHE_PREFILL, &p);
	assert_int_equal(p.n, 0);
	int32_t before[8];
	for (int i = 0; i < 8; i++)
		before[i] = cache_find(c, 0, i);
	struct one o, other, none;
	for (int i = 0; i < 8; i++) {
		assert_int_equal(acquire(c, &o, 1, i, CACHE_PREFILL), CACHE_OK);
		assert_int_equal(o.ref.tier, CACHE_TIERS);
		assert_true(cache_slot_get(c, o.ref.slot).prefill);
		commit_all(c, &o.plan);
		release(c, &o);
	}
	/* what is in tier 1 is copied to a prefill slot and stays */
	assert_int_equal(acquire(c, &o, 0, 0, CACHE_PREFILL), CACHE_OK);
	assert_int_equal(o.ref.tier, 1);
	assert_int_equal(o.plan.transfers[0].source, before[0]);
	assert_int_equal(acquire(c, &none, 0, 0, CACHE_DECODE), CACHE_BUSY);
	release(c, &none);
	assert_int_equal(acquire(c, &other, 0, 1, CACHE_PREFILL), CACHE_OK);
	int32_t last = other.ref.slot;
	assert_int_equal(acquire(c, &none, 0, 7, CACHE_PREFILL), CACHE_FULL);
	release(c, &none);
	cache_commit(c, o.ref.slot);
	release(c, &o);
	for (int i = 0; i < 8; i++)
		if (i != 1)
			assert_int_equal(cache_find(c, 0, i), before[i]);
	assert_int_equal(cache_stats(c)->prefill_misses, 9);
	assert_int_equal(cache_stats(c)->prefill_hits[1], 2);
	assert_int_equal(cache_stats(c)->accesses, 7);
	/* decode has them again: the one in use when its bytes have arrived, nobody leaves */
	cache_begin_step(c, CACHE_DECODE, &p);
	assert_int_equal(p.n, 0);
	assert_int_equal(n_prefill_slots(c), 1);
	assert_true(cache_slot_get(c, last).prefill);
	cache_commit(c, last);
	release(c, &other);
	assert_int_equal(n_prefill_slots(c), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(cache_slot_get(c, bring(c, 0, i)).tier, 0);
	for (int i = 2; i < 6; i++)
		assert_int_equal(cache_find(c, 0, i), before[i]);
	cache_free(c);
}

/* Where nobody begins steps a slot is prefill's for as long as it is used, and never more of them
 * than agreed. */
static void test_prefill_without_steps(void **state)
{
	(void)state;
	const uint64_t bytes[] = {10};
	struct cache *c = make(1, 8, bytes, 40, 0, 2);
	struct one o[3];
	for (int i = 0; i < 4; i++)
		bring(c, 0, i);
	assert_int_equal(acquire(c, &o[0], 0, 4, CACHE_PREFILL), CACHE_OK);
	assert_int_equal(acquire(c, &o[1], 0, 5, CACHE_PREFILL), CACHE_OK);
	assert_int_equal(acquire(c, &o[2], 0, 6, CACHE_PREFILL), CACHE_FULL);
	assert_true(cache_find(c, 0, 0) < 0 && cache_find(c, 0, 1) < 0 && cache_find(c, 0, 2) >= 0);
	cache_commit(c, o[0].ref.slot);
	release(c, &o[0]);
	assert_int_equal(bring(c, 0, 0), o[0].ref.slot);
	cache_abort(c, o[1].ref.slot);
	assert_int_equal(bring(c, 0, 1), o[1].ref.slot);
	cache_free(c);
}

static bool keep_three(const void *ctx, int layer, int expert)
{
	return layer == *(const int *)ctx && expert == 3;
}

/* A read-ahead's pin is taken over by who acquires the expert; those dropped empty their slots. */
static void test_read_ahead(void **state)
{
	(void)state;
	const uint64_t bytes[] = {10};
	struct cache *c = make(1, 8, bytes, 60, 0, 3);
	struct cache_plan p;
	int32_t slots[3];
	const int layer = 0;
	cache_begin_step(c, CACHE_PREFILL, &p);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(cache_read_ahead(c, 0, 2 + i, &p), CACHE_OK);
		slots[i] = p.transfers[0].slot;
	}
	assert_int_equal(cache_read_ahead(c, 0, 2, &p), CACHE_PRESENT);
	assert_int_equal(cache_read_ahead(c, 0, 7, &p), CACHE_FULL);
	struct one o;
	cache_commit(c, slots[0]);
	assert_int_equal(acquire(c, &o, 0, 2, CACHE_PREFILL), CACHE_OK);
	assert_int_equal(o.ref.state, CACHE_REF_READY);
	assert_int_equal(cache_slot_get(c, slots[0]).pins, 1);
	release(c, &o);
	assert_int_equal(cache_find(c, 0, 2), -1);
	cache_read_ahead_drop(c, keep_three, &layer); /* 4 is dropped when it has arrived */
	cache_commit(c, slots[1]);
	cache_commit(c, slots[2]);
	assert_int_equal(cache_find(c, 0, 3), slots[1]);
	assert_int_equal(cache_find(c, 0, 4), -1);
	cache_begin_step(c, CACHE_DECODE, &p);
	assert_int_equal(n_prefill_slots(c), 0);
	cache_rules_check(c);
	cache_free(c);
}

static void test_layers_of_one_step_fit(void **state)
{
	(void)state;
	/* The working set that the cache computes is enough to hold top_k of every layer, whatever the
	 * mix. */
	const uint64_t mixes[][6] = {{0, 100, 100, 100, 100, 100}, {0, 300, 100, 300, 100, 100},
		{50, 61, 72, 83, 94, 105}, {7, 0, 0, 0, 0, 1000}};
	for (size_t m = 0; m < ARRAY_LEN(mixes); m++)
		for (int top_k = 1; top_k <= 8; top_k++) {
			struct cache_config cfg = {.n_layers = 6, .n_experts = 8, .expert_bytes = mixes[m]};
			cfg.tier_bytes[0] = cache_working_set_bytes(&cfg, top_k);
			struct err e = {0};
			struct cache *c = cache_new(&cfg, &e);
			assert_non_null(c);
			for (int l = 0; l < 6; l++)
				for (int x = 0; mixes[m][l] && x < top_k; x++)
					bring(c, l, x);
			assert_int_equal(cache_stats(c)->evictions, 0);
			if (top_k == 8)
				assert_true(cache_everything_bytes(&cfg) == cfg.tier_bytes[0]);
			cache_free(c);
		}
}

/* A class that is no longer used gives its memory to the one that is, and gets some back when it is
 * used again. */
static void test_idle_class_gives_back(void **state)
{
	(void)state;
	const uint64_t bytes[] = {10, 30};
	struct cache *c = make(2, 256, bytes, 3000, 0, 0); /* 300 small or 100 large ones */
	struct rng r = {5};
	int n[2];
	for (int i = 0; i < 100; i++)
		bring(c, 1, i);
	cache_layer_resident(c, 1, n);
	assert_true(n[0] >= 95);
	/* Skewed draws: the rarest of the 256 come once in 65,536. */
	for (int i = 0; i < 60000; i++)
		bring(c, 0, (int)MIN(rng_below(&r, 256), rng_below(&r, 256)));
	cache_layer_resident(c, 0, n);
	int small = n[0];
	cache_layer_resident(c, 1, n);
	print_message("small ones alone: %d, and %d large left\n", small, n[0]);
	assert_true(small >= 240 && n[0] <= 20);
	/* Both in use alike: least recently used of both sizes is 75 of each. */
	for (int i = 0; i < 60000; i++)
		bring(c, i % 2, (int)MIN(rng_below(&r, 256), rng_below(&r, 256)));
	cache_layer_resident(c, 1, n);
	int large = n[0];
	cache_layer_resident(c, 0, n);
	print_message("two equally used classes, 3:1 in size: %d small, %d large\n", n[0], large);
	assert_true(large >= 70 && large <= 80 && n[0] >= 60 && n[0] <= 90);
	cache_free(c);
}

static void test_prefill_slots_fit(void **state)
{
	(void)state;
	uint64_t bytes[20];
	for (int l = 0; l < 20; l++)
		bytes[l] = l < 3 ? 0 : l % 2 ? 1000 : 1500;
	struct cache_config cfg = {.n_layers = 20, .n_experts = 64, .expert_bytes = bytes};
	cfg.n_prefill_slots = CACHE_PREFILL_SLOTS_MIN;
	uint64_t floor_bytes = cache_working_set_bytes(&cfg, 4), all = cache_everything_bytes(&cfg);
	int last = 0;
	for (uint64_t b = floor_bytes; b < all; b += 10000) {
		cfg.tier_bytes[0] = b;
		cfg.n_prefill_slots = cache_choose_prefill_slots(&cfg, 4);
		assert_true(cfg.n_prefill_slots >= CACHE_PREFILL_SLOTS_MIN && cfg.n_prefill_slots <= 32);
		assert_true(cache_working_set_bytes(&cfg, 4) <= b);
		last = cfg.n_prefill_slots;
	}
	assert_int_equal(last, 32);
}

/* From the floor to a token's working set: a run has room, and lfu keeps what every token uses. */
static void test_less_than_a_token(void **state)
{
	(void)state;
	enum { LAYERS = 20, TOP_K = 4, TOKENS = 300 };
	uint64_t bytes[LAYERS];
	for (int l = 0; l < LAYERS; l++)
		bytes[l] = l < 3 ? 0 : 1000;
	struct cache_config cfg = {.n_layers = LAYERS,
		.n_experts = 64,
		.expert_bytes = bytes,
		.policy = &policy_lfu,
		.n_prefill_slots = CACHE_PREFILL_SLOTS_MIN,
		.token_accesses = 17 * TOP_K};
	uint64_t least = cache_floor_bytes(&cfg, TOP_K), all = cache_working_set_bytes(&cfg, TOP_K);
	assert_true(least <= all / 3);
	struct rng r = {3};
	for (uint64_t b = least; b < all; b += 7000) {
		cfg.tier_bytes[0] = b;
		cfg.n_prefill_slots = cache_choose_prefill_slots(&cfg, TOP_K);
		assert_true(cfg.n_prefill_slots >= CACHE_PREFILL_SLOTS_MIN);
		assert_true(cache_floor_bytes(&cfg, TOP_K) <= b);
		struct cache *c = cache_new(&cfg, &(struct err){0});
		assert_non_null(c);
		for (int t = 0; t < TOKENS; t++)
			for (int l = 3; l < LAYERS; l++)
				for (int k = 0; k < TOP_K; k++)
					bring(c, l, k ? 1 + (int)rng_below(&r, 63) : 0);
		double hits = (double)cache_stats(c)->hits[0] / (17 * TOP_K * TOKENS);
		print_message("%llu bytes: %.1f %% hits\n", (unsigned long long)b, 100 * hits);
		assert_true(hits > 0.1);
		cache_free(c);
	}
}

static void test_bad_config(void **state)
{
	(void)state;
	const uint64_t bytes[] = {10, 0}, none[] = {0, 0}, huge[] = {UINT64_MAX, 10};
	struct err e;
	struct cache_config good = {
		.n_layers = 2, .n_experts = 8, .expert_bytes = bytes, .tier_bytes = {100, 0}};
	struct cache_config bad[] = {good, good, good, good, good, good, good, good, good};
	int want[] = {ERR_USAGE, ERR_USAGE, ERR_USAGE, ERR_USAGE, ERR_USAGE, ERR_MEMORY, ERR_MEMORY,
		ERR_USAGE, ERR_USAGE};
	bad[0].n_layers = 0;
	bad[1].n_experts = -1;
	bad[2].expert_bytes = none;
	bad[3].expert_bytes = huge;
	bad[4].align = 3;
	bad[5].tier_bytes[0] = 9;
	bad[6].n_prefill_slots = 10;
	bad[7].policy = &policy_belady;
	bad[8].n_prefill_slots = -1;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		e = (struct err){0};
		assert_null(cache_new(&bad[i], &e));
		assert_int_equal(e.code, want[i]);
		assert_true(e.text[0]);
	}
	/* A budget far above everything is not an error and costs nothing. */
	good.tier_bytes[0] = good.tier_bytes[1] = UINT64_MAX / 2;
	struct cache *c = cache_new(&good, &e);
	assert_non_null(c);
	assert_true(cache_memory_bytes(c, 0) <= 8 * 10);
	assert_int_equal(cache_n_slots(c), 16);
	cache_free(c);
	cache_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_demote_promote),
		cmocka_unit_test(test_request),
		cmocka_unit_test(test_flush_comes_first),
		cmocka_unit_test(test_low_watermark),
		cmocka_unit_test(test_inclusive_copies),
		cmocka_unit_test(test_full_of_pins),
		cmocka_unit_test(test_prefetch_of_unfinished),
		cmocka_unit_test(test_prefetch),
		cmocka_unit_test(test_predicted),
		cmocka_unit_test(test_decode_ends_a_prompt),
		cmocka_unit_test(test_prefill_leaves_decode_set),
		cmocka_unit_test(test_prefill_without_steps),
		cmocka_unit_test(test_read_ahead),
		cmocka_unit_test(test_layers_of_one_step_fit),
		cmocka_unit_test(test_idle_class_gives_back),
		cmocka_unit_test(test_prefill_slots_fit),
		cmocka_unit_test(test_less_than_a_token),
		cmocka_unit_test(test_bad_config),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
