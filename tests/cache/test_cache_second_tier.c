/* SPDX-License-Identifier: MIT */
/* The second tier without a demotion: the warm-up loads into it, and experts that were used there
 * move to the first tier if they were worth more than the cold one that leaves for them even before
 * that use. */
#include "cache/cache.h"
#include "tests/cache/cache_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define SLOTS 16 /* of each tier */

static struct cache *cache_with(const char *policy, uint64_t slots0, uint64_t slots1)
{
	static const uint64_t bytes[] = {10};
	struct err e = {0};
	struct cache *c = cache_new(&(struct cache_config){.n_layers = 1,
									.n_experts = 2 * SLOTS,
									.expert_bytes = bytes,
									.tier_bytes = {10 * slots0, 10 * slots1},
									.policy = policy_find(policy),
									.prefetch_cold = 4,
									.half_life = 1e6},
		&e);
	if (!c)
		fail_msg("%s", e.text);
	return c;
}

static void commit_plan(struct cache *c, const struct cache_plan *p)
{
	for (int i = 0; i < p->n; i++)
		cache_commit(c, p->transfers[i].slot);
}

/* stay: it is used in tier 1, if it is there. */
static void use(struct cache *c, int expert, bool stay)
{
	struct cache_ref ref = {.expert = expert, .stay = stay};
	struct cache_request q = {.layer = 0, .use = CACHE_DECODE, .refs = &ref, .n = 1};
	struct cache_plan p;
	assert_int_equal(cache_acquire(c, &q, &p), CACHE_OK);
	commit_plan(c, &p);
	cache_release(c, &ref, 1, &p);
	commit_plan(c, &p);
	cache_flush(c, &p);
	commit_plan(c, &p);
}

static void check_invariants(const struct cache *c)
{
	struct err e = {0};
	if (cache_check(c, &e))
		fail_msg("%s", e.text);
}

static int tier_of_expert(struct cache *c, int expert)
{
	const int32_t slot = cache_find(c, 0, expert);
	return slot < 0 ? -1 : cache_slot_get(c, slot).tier;
}

/* Uses all experts once, then those of tier 0 three times more. Returns one of tier 1. */
static int fill_tiers(struct cache *c)
{
	int below = -1;
	for (int i = 0; i < SLOTS; i++)
		use(c, i, false);
	for (int n = 0; n < 3; n++)
		for (int i = 0; i < SLOTS; i++)
			if (tier_of_expert(c, i) == 0)
				use(c, i, false);
	for (int i = 0; i < SLOTS; i++)
		below = tier_of_expert(c, i) == 1 ? i : below;
	assert_true(below >= 0);
	return below;
}

static void test_worth(void **state)
{
	(void)state;
	struct cache *c = cache_with("lfu", SLOTS, SLOTS);
	const int below = fill_tiers(c);
	struct cache_plan p;
	use(c, below, true);
	assert_int_equal(tier_of_expert(c, below), 1);
	assert_int_equal(cache_promote(c, 0, below, &p), CACHE_NO_COLD);
	assert_int_equal(p.n, 0);
	/* its prediction counts as little as the use that follows it */
	for (int n = 0; n < 2; n++)
		use(c, below, true);
	cache_note_predicted(c, 0, &below, 1);
	use(c, below, true); /* five uses now, its prediction included four and a half before */
	use(c, below, true);
	assert_int_equal(cache_promote(c, 0, below, &p), CACHE_OK);
	const struct cache_transfer *t = &p.transfers[p.n - 1];
	assert_true(t->kind == CACHE_LOAD && t->expert == below && t->source >= 0);
	commit_plan(c, &p);
	assert_int_equal(tier_of_expert(c, below), 0);
	assert_int_equal(cache_promote(c, 0, below, &p), CACHE_PRESENT);
	cache_free(c);
}

/* To lru what was used last is worth most. */
static void test_lru(void **state)
{
	(void)state;
	struct cache *c = cache_with("lru", SLOTS, SLOTS);
	const int below = fill_tiers(c);
	struct cache_plan p;
	use(c, below, true);
	assert_int_equal(cache_promote(c, 0, below, &p), CACHE_OK);
	commit_plan(c, &p);
	cache_free(c);
}

/* A slot that is free beside those of the low watermark costs nobody's place. */
static void test_free_slots(void **state)
{
	(void)state;
	struct cache *c = cache_with("lfu", SLOTS, SLOTS);
	struct cache_plan p;
	for (int i = 0; i < SLOTS; i++) /* all in tier 1 */
		assert_int_equal(cache_warm(c, 1, 0, i, &p), CACHE_OK), commit_plan(c, &p);
	use(c, 0, true);
	assert_int_equal(tier_of_expert(c, 0), 1);
	assert_int_equal(cache_promote(c, 0, 0, &p), CACHE_OK);
	commit_plan(c, &p);
	assert_int_equal(tier_of_expert(c, 0), 0);
	assert_int_equal(cache_promote(c, 0, SLOTS, &p), CACHE_NO_COLD); /* in no tier */
	cache_free(c);
}

/* When tier 0 is full the warm-up goes on in free slots of tier 1. An expert that is on its way
 * there is waited for, and then promoted; one whose load fails is read like any other. */
static void test_warm_below(void **state)
{
	(void)state;
	struct cache *c = cache_with("lru", 2, 3);
	struct cache_plan p, warm;
	struct cache_ref refs[] = {{.expert = 5}};
	struct cache_request q = {.layer = 0, .use = CACHE_DECODE, .refs = refs, .n = 1};
	use(c, 0, false);
	use(c, 1, false);
	assert_int_equal(cache_warm(c, 1, 0, 0, &p), CACHE_PRESENT);
	for (int i = 5; i < 8; i++) {
		assert_int_equal(cache_warm(c, 0, 0, i, &p), CACHE_NO_COLD);
		assert_int_equal(cache_warm(c, 1, 0, i, &p), CACHE_OK);
		const struct cache_transfer *t = p.transfers;
		assert_true(p.n == 1 && t->kind == CACHE_LOAD && t->source == -1 && t->expert == i);
		const struct cache_slot slot = cache_slot_get(c, t->slot);
		assert_true(slot.tier == 1 && slot.state == CACHE_FILLING && !slot.pins);
		assert_int_equal(slot.offset, t->to_offset);
		check_invariants(c);
	}
	assert_int_equal(cache_warm(c, 1, 0, 8, &p), CACHE_NO_COLD); /* full: nobody leaves */
	assert_int_equal(cache_warm(c, 1, 0, 5, &p), CACHE_PRESENT);
	/* 5 is asked for before its bytes are there; 6 cannot be read */
	assert_int_equal(cache_acquire(c, &q, &p), CACHE_BUSY);
	assert_int_equal(refs[0].slot, cache_find(c, 0, 5));
	cache_abort(c, cache_find(c, 0, 6));
	assert_int_equal(cache_find(c, 0, 6), -1);
	check_invariants(c);
	cache_commit(c, cache_find(c, 0, 5));
	assert_int_equal(cache_acquire_resume(c, &q, &warm), CACHE_OK);
	assert_int_equal(cache_stats(c)->promotions, 1);
	commit_plan(c, &warm);
	cache_release(c, refs, 1, &p);
	/* 7 is asked for and cannot be read: the demand reads it itself */
	refs[0] = (struct cache_ref){.expert = 7};
	assert_int_equal(cache_acquire(c, &q, &p), CACHE_BUSY);
	cache_abort(c, refs[0].slot);
	assert_int_equal(cache_acquire_resume(c, &q, &p), CACHE_OK);
	assert_int_equal(refs[0].state, CACHE_REF_LOAD);
	assert_int_equal(p.transfers[p.n - 1].source, -1);
	commit_plan(c, &p);
	cache_release(c, refs, 1, &p);
	check_invariants(c);
	cache_free(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_worth),
		cmocka_unit_test(test_lru),
		cmocka_unit_test(test_free_slots),
		cmocka_unit_test(test_warm_below),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
