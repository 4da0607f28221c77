/* SPDX-License-Identifier: MIT */
/* Single behaviours of the expert cache; test_cache.c has the random runs. */
#include "cache/cache.h"

#include "src/base/num.h"
#include "src/base/rng.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <setjmp.h>
#include <cmocka.h>

static void check(const struct cache *c)
{
	struct err e = {0};
	if (cache_check(c, &e))
		fail_msg("%s", e.text);
}

static struct cache *make(int n_layers, int n_experts, const uint64_t *bytes, uint64_t tier0,
	uint64_t tier1, int n_staging)
{
	struct cache_config cfg = {.n_layers = n_layers,
		.n_experts = n_experts,
		.expert_bytes = bytes,
		.tier_bytes = {tier0, tier1},
		.n_staging = n_staging,
		.prefetch_cold = 4};
	struct err e = {0};
	struct cache *c = cache_new(&cfg, &e);
	if (!c)
		fail_msg("%s", e.text);
	return c;
}

/* Reserve, execute, commit, unpin; returns the slot. */
static int32_t bring(struct cache *c, int layer, int expert)
{
	struct cache_plan plan;
	int32_t at = cache_access(c, layer, expert, CACHE_DECODE);
	if (at >= 0 && cache_slot_get(c, at).tier == 0)
		return at;
	assert_int_equal(cache_reserve(c, layer, expert, CACHE_DECODE, &plan), CACHE_OK);
	for (int i = 0; i < plan.n_demotions; i++)
		cache_commit(c, plan.demotions[i].to);
	cache_commit(c, plan.slot);
	cache_unpin(c, plan.slot);
	check(c);
	return plan.slot;
}

static void test_demote_promote(void **state)
{
	(void)state;
	const uint64_t bytes[] = {10};
	struct cache *c = make(1, 8, bytes, 20, 20, 0);
	bring(c, 0, 0);
	bring(c, 0, 1);
	bring(c, 0, 2); /* 0 goes to tier 1 */
	assert_int_equal(cache_slot_get(c, cache_find(c, 0, 0)).tier, 1);
	bring(c, 0, 3); /* 1 too */
	bring(c, 0, 4); /* 2 too; 0, the oldest of tier 1, is gone */
	assert_int_equal(cache_find(c, 0, 0), -1);
	assert_int_equal(cache_slot_get(c, cache_find(c, 0, 1)).tier, 1);
	/* A promotion: 1 comes back, 3 goes down. The pin taken on the tier 1 slot follows. */
	int32_t at = cache_access(c, 0, 1, CACHE_DECODE);
	cache_pin(c, at);
	struct cache_plan plan;
	assert_int_equal(cache_reserve(c, 0, 1, CACHE_DECODE, &plan), CACHE_OK);
	assert_int_equal(plan.source, at);
	assert_int_equal(plan.n_demotions, 1);
	assert_int_equal(plan.demotions[0].expert, 3);
	assert_int_equal(cache_slot_get(c, plan.slot).pins, 1);
	struct cache_plan again;
	assert_int_equal(cache_reserve(c, 0, 3, CACHE_DECODE, &again), CACHE_BUSY);
	cache_commit(c, plan.demotions[0].to);
	cache_abort(c, plan.slot); /* the copy failed: 1 is still in tier 1 */
	check(c);
	assert_int_equal(cache_find(c, 0, 1), at);
	assert_int_equal(bring(c, 0, 1), plan.slot);
	const struct cache_stats *s = cache_stats(c);
	assert_int_equal(s->accesses, 7);
	assert_int_equal(s->hits[1], 2);
	assert_int_equal(s->misses, 5);
	assert_int_equal(s->promotions, 2);
	cache_free(c);
}

/* Who came up from tier 1 goes down again without a move as long as nobody needed the room of its
 * copy. */
static void test_copies(void **state)
{
	(void)state;
	const uint64_t bytes[] = {10};
	struct cache *c = make(1, 12, bytes, 20, 50, 0);
	for (int i = 0; i < 4; i++)
		bring(c, 0, i); /* tier 0: 2, 3; tier 1: 0, 1 */
	int32_t at[2] = {cache_find(c, 0, 0), cache_find(c, 0, 1)};
	bring(c, 0, 0);
	bring(c, 0, 1); /* tier 0: 0, 1; tier 1: 2, 3 and the copies */
	struct cache_plan p;
	assert_int_equal(cache_stats(c)->demotions_free, 0);
	assert_int_equal(cache_reserve(c, 0, 4, CACHE_DECODE, &p), CACHE_OK);
	assert_int_equal(p.n_demotions, 0);
	assert_int_equal(cache_find(c, 0, 0), at[0]);
	assert_int_equal(cache_stats(c)->demotions_free, 1);
	cache_commit(c, p.slot);
	cache_unpin(c, p.slot);
	check(c);
	/* tier 1: 0, 2, 3, the copy of 1, one free; 1 is used again, so it is 4 that goes down, then 5,
	 * into the copy's room */
	bring(c, 0, 1);
	bring(c, 0, 5);
	assert_int_equal(cache_slot_get(c, cache_find(c, 0, 4)).tier, 1);
	bring(c, 0, 1);
	bring(c, 0, 6);
	assert_int_equal(cache_find(c, 0, 5), at[1]);
	for (int i = 0; i < 7; i++)
		assert_true(cache_find(c, 0, i) >= 0);
	assert_int_equal(cache_stats(c)->evictions, 0);
	/* tier 1 is full without copies: now somebody is lost */
	bring(c, 0, 7);
	assert_int_equal(cache_stats(c)->evictions, 1);
	check(c);
	cache_free(c);
}

static void test_full_of_pins(void **state)
{
	(void)state;
	const uint64_t bytes[] = {10};
	struct cache *c = make(1, 8, bytes, 25, 0, 0);
	struct cache_plan p[3];
	assert_int_equal(cache_reserve(c, 0, 0, CACHE_DECODE, &p[0]), CACHE_OK);
	assert_int_equal(cache_reserve(c, 0, 1, CACHE_DECODE, &p[1]), CACHE_OK);
	assert_int_equal(cache_reserve(c, 0, 2, CACHE_DECODE, &p[2]), CACHE_FULL);
	cache_commit(c, p[0].slot);
	assert_int_equal(cache_reserve(c, 0, 2, CACHE_DECODE, &p[2]), CACHE_FULL);
	cache_unpin(c, p[0].slot);
	assert_int_equal(cache_reserve(c, 0, 2, CACHE_DECODE, &p[2]), CACHE_OK);
	assert_int_equal(p[2].slot, p[0].slot);
	assert_int_equal(cache_find(c, 0, 0), -1);
	assert_int_equal(cache_stats(c)->full, 2);
	check(c);
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
	assert_int_equal(cache_reserve(c, 0, 10, CACHE_PREFETCH, &p), CACHE_NO_COLD);
	for (int i = 1; i < 4; i++)
		bring(c, 0, i);
	assert_int_equal(cache_reserve(c, 0, 10, CACHE_PREFETCH, &p), CACHE_OK);
	assert_int_equal(cache_find(c, 0, 0), -1);
	assert_int_equal(cache_slot_get(c, p.slot).pins, 0);
	/* a demand joins the read that is under way */
	int32_t at = cache_access(c, 0, 10, CACHE_DECODE);
	assert_int_equal(at, p.slot);
	cache_pin(c, at);
	cache_commit(c, at);
	cache_unpin(c, at);
	const struct cache_stats *s = cache_stats(c);
	assert_int_equal(s->prefetch_used, 1);
	assert_int_equal(s->late, 1);
	/* one that nobody wants */
	for (int n = 0; n < 2; n++)
		for (int i = 2; i < 4; i++)
			bring(c, 0, i);
	bring(c, 0, 10);
	assert_int_equal(cache_reserve(c, 0, 11, CACHE_PREFETCH, &p), CACHE_OK);
	cache_commit(c, p.slot);
	for (int i = 4; i < 8; i++)
		bring(c, 0, i);
	assert_int_equal(s->prefetch_wasted, 1);
	assert_true(s->prefetch_wasted_bytes > 0);
	assert_int_equal(s->prefetch_wasted_bytes, s->prefetch_bytes / s->prefetch_inserted);
	/* and one that is cancelled */
	for (int n = 0; n < 3; n++)
		for (int i = 5; i < 8; i++)
			bring(c, 0, i);
	assert_int_equal(cache_reserve(c, 0, 12, CACHE_PREFETCH, &p), CACHE_OK);
	cache_abort(c, p.slot);
	assert_int_equal(s->prefetch_inserted, 3);
	assert_int_equal(s->prefetch_cancelled, 1);
	assert_int_equal(s->prefetch_refused, 1);
	check(c);
	cache_free(c);
}

/* Who is named by a guess stays, and nothing is counted; a guess about somebody who is not there is
 * harmless. */
static void test_hint(void **state)
{
	(void)state;
	const uint64_t bytes[] = {10};
	struct cache *c = make(1, 16, bytes, 40, 0, 0);
	for (int i = 0; i < 4; i++)
		bring(c, 0, i);
	struct cache_stats before = *cache_stats(c);
	cache_note_predicted(c, 0, 0);
	cache_note_predicted(c, 0, 9);
	assert_memory_equal(cache_stats(c), &before, sizeof before);
	assert_int_equal(cache_find(c, 0, 9), -1);
	bring(c, 0, 4);
	assert_int_equal(cache_find(c, 0, 1), -1);
	assert_true(cache_find(c, 0, 0) >= 0);
	check(c);
	cache_free(c);
}

static void test_prefill_leaves_decode_set(void **state)
{
	(void)state;
	const uint64_t bytes[] = {10, 10};
	struct cache *c = make(2, 8, bytes, 60, 40, 2);
	for (int i = 0; i < 6; i++)
		bring(c, 0, i); /* decode has all six slots of tier 0 */
	int32_t before[8];
	for (int i = 2; i < 6; i++)
		assert_int_equal(cache_slot_get(c, before[i] = cache_find(c, 0, i)).tier, 0);
	/* a prompt takes the two that were used longest ago down */
	struct cache_plan p;
	cache_begin_step(c, CACHE_PREFILL, &p);
	assert_int_equal(p.n_demotions, 2);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(p.demotions[i].expert, i);
		cache_commit(c, p.demotions[i].to);
	}
	check(c);
	cache_begin_step(c, CACHE_PREFILL, &p);
	assert_int_equal(p.n_demotions, 0);
	for (int i = 0; i < 8; i++)
		before[i] = cache_find(c, 0, i);
	for (int i = 0; i < 8; i++) {
		int32_t at = cache_access(c, 1, i, CACHE_PREFILL);
		assert_int_equal(at, -1);
		assert_int_equal(cache_reserve(c, 1, i, CACHE_PREFILL, &p), CACHE_OK);
		assert_true(cache_slot_get(c, p.slot).staging);
		cache_commit(c, p.slot);
		cache_unpin(c, p.slot);
		check(c);
	}
	/* what is in tier 1 is copied to a staging slot and stays */
	assert_int_equal(cache_access(c, 0, 0, CACHE_PREFILL), before[0]);
	assert_int_equal(cache_reserve(c, 0, 0, CACHE_PREFILL, &p), CACHE_OK);
	assert_int_equal(p.source, before[0]);
	struct cache_plan q, none;
	assert_int_equal(cache_reserve(c, 0, 0, CACHE_DECODE, &none), CACHE_BUSY);
	assert_int_equal(cache_reserve(c, 0, 1, CACHE_PREFILL, &q), CACHE_OK);
	assert_int_equal(cache_reserve(c, 0, 7, CACHE_PREFILL, &none), CACHE_FULL);
	cache_commit(c, p.slot);
	cache_unpin(c, p.slot);
	check(c);
	for (int i = 0; i < 8; i++)
		if (i != 1)
			assert_int_equal(cache_find(c, 0, i), before[i]);
	assert_int_equal(cache_stats(c)->prefill_misses, 8);
	assert_int_equal(cache_stats(c)->prefill_hits[1], 1);
	assert_int_equal(cache_stats(c)->accesses, 6);
	/* decode has them again: the one in use when that has landed, nobody leaves */
	cache_begin_step(c, CACHE_DECODE, &p);
	assert_int_equal(p.n_demotions, 0);
	assert_int_equal(cache_staging_slot(c, 0), q.slot);
	assert_int_equal(cache_staging_slot(c, 1), -1);
	cache_commit(c, q.slot);
	cache_unpin(c, q.slot);
	assert_int_equal(cache_staging_slot(c, 0), -1);
	check(c);
	for (int i = 0; i < 2; i++)
		assert_int_equal(cache_slot_get(c, bring(c, 0, i)).tier, 0);
	for (int i = 2; i < 6; i++)
		assert_int_equal(cache_find(c, 0, i), before[i]);
	cache_free(c);
}

/* Where nobody announces steps a slot is prefill's for as long as it is used, and never more of
 * them than agreed. */
static void test_prefill_without_steps(void **state)
{
	(void)state;
	const uint64_t bytes[] = {10};
	struct cache *c = make(1, 8, bytes, 40, 0, 2);
	struct cache_plan p[3];
	for (int i = 0; i < 4; i++)
		bring(c, 0, i);
	assert_int_equal(cache_reserve(c, 0, 4, CACHE_PREFILL, &p[0]), CACHE_OK);
	assert_int_equal(cache_reserve(c, 0, 5, CACHE_PREFILL, &p[1]), CACHE_OK);
	assert_int_equal(cache_reserve(c, 0, 6, CACHE_PREFILL, &p[2]), CACHE_FULL);
	assert_true(cache_find(c, 0, 0) < 0 && cache_find(c, 0, 1) < 0 && cache_find(c, 0, 2) >= 0);
	cache_commit(c, p[0].slot);
	cache_unpin(c, p[0].slot);
	assert_int_equal(bring(c, 0, 0), p[0].slot);
	cache_abort(c, p[1].slot);
	assert_int_equal(bring(c, 0, 1), p[1].slot);
	cache_free(c);
}

static void test_layers_of_one_step_fit(void **state)
{
	(void)state;
	/* The working set that the cache announces is enough to hold top_k of every layer, whatever the
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
	for (int i = 0; i < 40000; i++) /* every access is checked: few keys, many rounds */
		bring(c, 0, (int)MIN(rng_below(&r, 256), rng_below(&r, 256)));
	cache_layer_resident(c, 0, n);
	assert_true(n[0] >= 240);
	cache_layer_resident(c, 1, n);
	assert_true(n[0] <= 20);
	/* Both in use: the second holds about what its share of the use is worth. */
	for (int i = 0; i < 60000; i++)
		bring(c, i % 2, (int)MIN(rng_below(&r, 256), rng_below(&r, 256)));
	cache_layer_resident(c, 1, n);
	int large = n[0];
	cache_layer_resident(c, 0, n);
	assert_true(large >= 55 && large <= 95 && n[0] >= 30);
	print_message("two equally used classes, 3:1 in size: %d small, %d large\n", n[0], large);
	cache_free(c);
}

static void test_staging_fits(void **state)
{
	(void)state;
	uint64_t bytes[20];
	for (int l = 0; l < 20; l++)
		bytes[l] = l < 3 ? 0 : l % 2 ? 1000 : 1500;
	struct cache_config cfg = {.n_layers = 20, .n_experts = 64, .expert_bytes = bytes};
	cfg.n_staging = CACHE_STAGING_MIN;
	uint64_t floor_bytes = cache_working_set_bytes(&cfg, 4), all = cache_everything_bytes(&cfg);
	int last = 0;
	for (uint64_t b = floor_bytes; b < all; b += 10000) {
		cfg.tier_bytes[0] = b;
		cfg.n_staging = cache_choose_staging(&cfg, 4);
		assert_true(cfg.n_staging >= CACHE_STAGING_MIN && cfg.n_staging <= 32);
		assert_true(cache_working_set_bytes(&cfg, 4) <= b);
		last = cfg.n_staging;
	}
	assert_int_equal(last, 32);
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
	bad[6].n_staging = 10;
	bad[7].policy = &policy_belady;
	bad[8].n_staging = -1;
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
		cmocka_unit_test(test_copies),
		cmocka_unit_test(test_full_of_pins),
		cmocka_unit_test(test_prefetch),
		cmocka_unit_test(test_hint),
		cmocka_unit_test(test_prefill_leaves_decode_set),
		cmocka_unit_test(test_prefill_without_steps),
		cmocka_unit_test(test_layers_of_one_step_fit),
		cmocka_unit_test(test_idle_class_gives_back),
		cmocka_unit_test(test_staging_fits),
		cmocka_unit_test(test_bad_config),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
