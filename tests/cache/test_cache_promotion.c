/* SPDX-License-Identifier: MIT */
/* Which experts that were used in the second tier move to the first: those that were worth more
 * than the cold one that leaves for them even before that use. */
#include "cache/cache.h"
#include "src/base/num.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define SLOTS 16 /* of each tier */

static struct cache *cache_with(const char *policy)
{
	static const uint64_t bytes[] = {10};
	struct err e = {0};
	struct cache *c = cache_new(&(struct cache_config){.n_layers = 1,
									.n_experts = 2 * SLOTS,
									.expert_bytes = bytes,
									.tier_bytes = {10 * SLOTS, 10 * SLOTS},
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
	struct cache *c = cache_with("lfu");
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
	struct cache *c = cache_with("lru");
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
	struct cache *c = cache_with("lfu");
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_worth),
		cmocka_unit_test(test_lru),
		cmocka_unit_test(test_free_slots),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
