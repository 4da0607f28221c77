/* SPDX-License-Identifier: MIT */
/* Accesses of rows that may be dropped: what the policy makes of them. */
#include "cache/cache.h"

#include "tests/cache/cache_check.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

static void bring(struct cache *c, int layer, int expert, bool provisional)
{
	struct cache_ref ref = {.expert = expert, .provisional = provisional};
	struct cache_request q = {.layer = layer, .use = CACHE_DECODE, .refs = &ref, .n = 1};
	struct cache_plan plan;
	struct err e = {0};
	assert_int_equal(cache_acquire(c, &q, &plan), CACHE_OK);
	for (int i = 0; i < plan.n; i++)
		cache_commit(c, plan.transfers[i].slot);
	cache_release(c, &ref, 1, &plan);
	assert_int_equal(ref.provisional, provisional);
	if (cache_check(c, &e))
		fail_msg("%s", e.text);
}

/* lfu with room for three: an expert that was acquired provisionally, and not used, leaves before
 * one that was used earlier; when it was used, it stays. */
static void test_provisional(void **state)
{
	(void)state;
	for (int used = 0; used < 2; used++) {
		const uint64_t bytes[] = {10, 10};
		const struct cache_config cfg = {.n_layers = 2,
			.n_experts = 8,
			.expert_bytes = bytes,
			.tier_bytes = {30},
			.policy = policy_find("lfu"),
			.half_life = 1000,
			.as_published = true};
		struct cache *c = cache_new(&cfg, NULL);
		struct cache_plan plan;
		assert_non_null(c);
		for (int i = 0; i < 2; i++)
			for (int expert = 0; expert < 2; expert++)
				bring(c, 0, expert, false);
		for (int i = 0; i < 2; i++) { /* missing, then resident */
			bring(c, 0, 2, true);
			if (used)
				cache_note_used(c, 0, 2, &plan);
		}
		cache_flush(c, &plan);
		assert_int_equal(cache_stats(c)->accesses, 6);
		assert_int_equal(cache_stats(c)->misses, 3);
		bring(c, 1, 0, false);
		assert_int_equal(cache_find(c, 0, 2) >= 0, used);
		assert_int_equal(cache_find(c, 0, 0) >= 0, !used); /* the oldest of the others */
		cache_free(c);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_provisional)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
