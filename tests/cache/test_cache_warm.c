/* SPDX-License-Identifier: MIT */
/* The warm-up: into free slots of the first tier, and what prefill reads of it stays there. */
#include "cache/cache.h"
#include "tests/cache/cache_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Slots of each tier; a layer of 16 experts. */
static struct cache *make_cache(uint64_t slots0, uint64_t slots1, int n_prefill_slots)
{
	static const uint64_t bytes[] = {10};
	struct err e = {0};
	struct cache *c = cache_new(&(struct cache_config){.n_layers = 1,
									.n_experts = 16,
									.expert_bytes = bytes,
									.tier_bytes = {10 * slots0, 10 * slots1},
									.n_prefill_slots = n_prefill_slots,
									.as_published = true, /* no low watermark */
									.prefetch_cold = 4},
		&e);
	if (!c)
		fail_msg("%s", e.text);
	return c;
}

static void check_invariants(const struct cache *c)
{
	struct err e = {0};
	if (cache_check(c, &e))
		fail_msg("%s", e.text);
}

static void commit_plan(struct cache *c, const struct cache_plan *p)
{
	for (int i = 0; i < p->n; i++)
		cache_commit(c, p->transfers[i].slot);
}

/* A token uses the expert. */
static void bring(struct cache *c, int expert)
{
	struct cache_ref ref = {.expert = expert};
	struct cache_request q = {.layer = 0, .use = CACHE_DECODE, .refs = &ref, .n = 1};
	struct cache_plan p;
	assert_int_equal(cache_acquire(c, &q, &p), CACHE_OK);
	commit_plan(c, &p);
	cache_release(c, &ref, 1, &p);
}

/* A request of prefill for one expert. */
struct prefill_request {
	struct cache_ref ref;
	struct cache_request q;
};

static enum cache_result acquire(struct cache *c, struct prefill_request *o, int expert)
{
	struct cache_plan p;
	*o = (struct prefill_request){.ref = {.expert = expert}, .q = {.use = CACHE_PREFILL, .n = 1}};
	o->q.refs = &o->ref;
	return cache_acquire(c, &o->q, &p);
}

static void release(struct cache *c, struct prefill_request *o)
{
	struct cache_plan p;
	cache_release(c, &o->ref, 1, &p);
	check_invariants(c);
}

/* The warm-up takes free slots, and nobody's place, however cold. */
static void test_cache_warm(void **state)
{
	(void)state;
	struct cache *c = make_cache(4, 4, 0);
	const struct cache_stats *s = cache_stats(c);
	struct cache_plan p;
	bring(c, 0); /* is cold below */
	for (int n = 0; n < 4; n++)
		for (int i = 1; i < 3; i++)
			bring(c, i);
	assert_int_equal(cache_warm(c, 0, 0, 10, &p), CACHE_OK);
	assert_int_equal(p.n, 1);
	assert_int_equal(cache_slot_get(c, p.transfers[0].slot).pins, 0);
	commit_plan(c, &p);
	assert_int_equal(cache_warm(c, 0, 0, 10, &p), CACHE_PRESENT);
	assert_int_equal(cache_warm(c, 0, 0, 11, &p), CACHE_NO_COLD);
	assert_int_equal(p.n, 0);
	assert_int_equal(s->prefetch_inserted + s->prefetch_refused + s->demotions + s->evictions, 0);
	assert_int_equal(cache_prefetch(c, 0, 11, &p), CACHE_OK); /* in the place of 0 */
	commit_plan(c, &p);
	check_invariants(c);
	cache_free(c);
}

/* What prefill reads of a warm-up stays: in free slots of tier 0, beside the prefill slots, whether
 * it is read ahead or acquired. What does not fit is not hot. */
static void test_cache_set_hot(void **state)
{
	(void)state;
	struct cache *c = make_cache(6, 0, 2);
	struct cache_plan p;
	struct prefill_request o[3];
	for (int i = 0; i < 6; i++)
		assert_true(cache_set_hot(c, 0, i));
	assert_false(cache_set_hot(c, 0, 6));
	assert_true(cache_set_hot(c, 0, 5)); /* it is hot already */
	bring(c, 9);
	cache_begin_step(c, CACHE_PREFILL, &p); /* 3 of 6 slots are free */
	assert_int_equal(cache_read_ahead(c, 0, 0, &p), CACHE_OK);
	assert_int_equal(cache_slot_get(c, p.transfers[0].slot).pins, 0);
	assert_false(cache_slot_get(c, p.transfers[0].slot).prefill);
	commit_plan(c, &p);
	assert_int_equal(cache_read_ahead(c, 0, 0, &p), CACHE_PRESENT);
	assert_int_equal(acquire(c, &o[0], 0), CACHE_OK);
	assert_int_equal(o[0].ref.state, CACHE_REF_READY);
	release(c, &o[0]);
	for (int i = 0; i < 3; i++) { /* the last one finds no free slot */
		assert_int_equal(acquire(c, &o[i], 1 + i), CACHE_OK);
		assert_int_equal(cache_slot_get(c, o[i].ref.slot).prefill, i == 2);
		cache_commit(c, o[i].ref.slot);
	}
	for (int i = 0; i < 3; i++)
		release(c, &o[i]);
	assert_int_equal(acquire(c, &o[0], 12), CACHE_OK); /* not hot */
	assert_true(cache_slot_get(c, o[0].ref.slot).prefill);
	cache_commit(c, o[0].ref.slot);
	release(c, &o[0]);
	for (int i = 0; i < 3; i++)
		assert_true(cache_find(c, 0, i) >= 0);
	assert_int_equal(cache_find(c, 0, 3), -1);
	assert_int_equal(cache_find(c, 0, 12), -1);
	assert_true(cache_find(c, 0, 9) >= 0);
	assert_int_equal(cache_stats(c)->evictions, 0);
	cache_begin_step(c, CACHE_DECODE, &p);
	check_invariants(c);
	cache_free(c);
}

/* The load of a hot expert fails while prefill waits for it: the pin is void, and the expert can be
 * loaded again. A load that was read ahead and that nobody acquired ends without a pin. */
static void test_hot_load_fails(void **state)
{
	(void)state;
	struct cache *c = make_cache(4, 0, 2);
	struct cache_plan p;
	struct prefill_request o;
	assert_true(cache_set_hot(c, 0, 0));
	cache_begin_step(c, CACHE_PREFILL, &p);
	assert_int_equal(cache_read_ahead(c, 0, 0, &p), CACHE_OK);
	const int32_t slot = p.transfers[0].slot;
	assert_int_equal(acquire(c, &o, 0), CACHE_OK);
	assert_int_equal(o.ref.state, CACHE_REF_IN_FLIGHT);
	assert_int_equal(o.ref.slot, slot);
	assert_int_equal(cache_slot_get(c, slot).pins, 1);
	cache_abort(c, slot);
	assert_int_equal(cache_ref_poll(c, &o.ref), CACHE_REF_FAILED);
	release(c, &o);
	assert_int_equal(cache_find(c, 0, 0), -1);
	assert_int_equal(cache_read_ahead(c, 0, 0, &p), CACHE_OK);
	cache_read_ahead_drop(c, NULL, NULL);
	assert_int_equal(cache_slot_get(c, p.transfers[0].slot).state, CACHE_FILLING);
	cache_commit(c, p.transfers[0].slot);
	cache_begin_step(c, CACHE_DECODE, &p);
	assert_true(cache_find(c, 0, 0) >= 0);
	check_invariants(c);
	cache_free(c);
}

/* What prefill reads into a prefill slot stays in a free slot of tier 1, once that is asked for.
 * Experts that are hot for tier 1 have its slots, others what is left; nobody is evicted. */
static void test_keep_reads(void **state)
{
	(void)state;
	struct cache *c = make_cache(4, 4, 2);
	const struct cache_stats *s = cache_stats(c);
	struct cache_plan p;
	struct prefill_request o;
	for (int i = 0; i < 7; i++)
		assert_true(cache_set_hot(c, 0, i)); /* 4 to 6 for tier 1, which has room for one more */
	cache_begin_step(c, CACHE_PREFILL, &p);
	assert_int_equal(cache_read_ahead(c, 0, 4, &p), CACHE_OK);
	assert_int_equal(p.transfers[0].keep, -1); /* not asked for */
	cache_commit(c, p.transfers[0].slot);
	assert_int_equal(acquire(c, &o, 4), CACHE_OK);
	release(c, &o);
	assert_int_equal(cache_find(c, 0, 4), -1);
	cache_keep_reads(c);
	for (int i = 4; i < 10; i++) {
		struct cache_transfer t;
		assert_int_equal(cache_read_ahead(c, 0, i, &p), CACHE_OK);
		assert_int_equal(p.n, 1);
		t = p.transfers[0];
		assert_true(cache_slot_get(c, t.slot).prefill);
		assert_int_equal(t.keep >= 0, i < 8); /* 8, 9: no room beside those that are hot */
		if (t.keep >= 0) {
			const struct cache_slot keep = cache_slot_get(c, t.keep);
			assert_int_equal(keep.state, CACHE_FILLING);
			assert_int_equal(keep.filled_by, t.slot);
			assert_int_equal(keep.offset, t.keep_offset);
			assert_int_equal(keep.expert, i);
		}
		check_invariants(c);
		assert_int_equal(cache_read_ahead(c, 0, i, &p), CACHE_PRESENT);
		assert_int_equal(acquire(c, &o, i), CACHE_OK);
		assert_int_equal(o.ref.slot, t.slot);
		cache_commit(c, t.slot);
		release(c, &o);
		if (t.keep >= 0)
			assert_int_equal(cache_slot_get(c, cache_find(c, 0, i)).state, CACHE_READY);
		else
			assert_int_equal(cache_find(c, 0, i), -1);
	}
	assert_int_equal(s->prefill_misses, 7); /* none was there before the step */
	assert_int_equal(s->evictions + s->demotions, 0);
	assert_int_equal(cache_read_ahead(c, 0, 5, &p), CACHE_OK); /* the next chunk copies it */
	assert_true(p.transfers[0].source >= 0 && p.transfers[0].keep < 0);
	cache_commit(c, p.transfers[0].slot);
	cache_begin_step(c, CACHE_DECODE, &p);
	bring(c, 4); /* a token finds it in tier 1, and it is promoted */
	assert_int_equal(s->hits[1], 1);
	assert_int_equal(s->misses, 0);
	assert_int_equal(s->promotions, 1);
	check_invariants(c);
	cache_free(c);
}

/* Warm-up and kept reads take no slot of tier 1 beyond its limit. */
static void test_tier1_limit(void **state)
{
	(void)state;
	struct cache *c = make_cache(4, 4, 2);
	struct cache_plan p;
	cache_keep_reads(c);
	cache_begin_step(c, CACHE_PREFILL, &p);
	uint64_t n_refused = 0;
	for (int usable = 0, next = 0; usable <= 4; usable++) {
		cache_limit_tier1(c, (uint64_t)(10 * usable + 5)); /* slots have 10 */
		for (int tries = 0; tries < 2; tries++, next++) {
			const bool fits = tries == 0 && usable > 0;
			const bool warm = usable % 2;
			if (warm) {
				assert_int_equal(cache_warm(c, 1, 0, next, &p), fits ? CACHE_OK : CACHE_NO_COLD);
				if (fits)
					cache_commit(c, p.transfers[0].slot);
			} else {
				assert_int_equal(cache_read_ahead(c, 0, next, &p), CACHE_OK);
				assert_int_equal(p.transfers[0].keep >= 0, fits);
				n_refused += !fits;
				assert_int_equal(cache_stats(c)->keeps_refused, n_refused);
				cache_commit(c, p.transfers[0].slot);
				cache_read_ahead_drop(c, NULL, NULL);
			}
			assert_int_equal(cache_find(c, 0, next) >= 0, fits);
			check_invariants(c);
		}
	}
	cache_free(c);
}

/* Tier 1 is as full as one of the size of its limit: without a slot what tier 0 evicts leaves the
 * cache; with some, what tier 1 evicts. */
static void test_demotions_within_limit(void **state)
{
	(void)state;
	struct cache *c = make_cache(1, 4, 0);
	const struct cache_stats *s = cache_stats(c);
	cache_limit_tier1(c, 9); /* slots have 10 */
	bring(c, 0);
	bring(c, 1);
	assert_int_equal(cache_find(c, 0, 0), -1);
	assert_int_equal(s->demotions, 0);
	assert_int_equal(s->evictions, 1);
	for (int usable = 1, next = 2; usable <= 4; usable++) {
		cache_limit_tier1(c, (uint64_t)(10 * usable + 9));
		for (int i = 0; i < 2; i++, next++) {
			const uint64_t evictions = s->evictions;
			bring(c, next);
			int in_tier1 = 0;
			for (int expert = 0; expert < next; expert++) {
				const int32_t slot = cache_find(c, 0, expert);
				in_tier1 += slot >= 0 && cache_slot_get(c, slot).tier == 1;
			}
			assert_int_equal(in_tier1, usable);
			assert_int_equal(s->evictions - evictions, i);
			check_invariants(c);
		}
	}
	assert_int_equal(s->demotions, 8);
	cache_free(c);
}

/* A read that fills a slot of either tier fails: the expert is in neither. While it is in flight a
 * token that asks for the expert waits for it. */
static void test_kept_read_fails(void **state)
{
	(void)state;
	for (int fails = 0; fails < 2; fails++) {
		struct cache *c = make_cache(4, 4, 2);
		struct cache_plan p;
		struct cache_ref ref = {.expert = 3};
		struct cache_request q = {.use = CACHE_DECODE, .refs = &ref, .n = 1};
		cache_keep_reads(c);
		cache_begin_step(c, CACHE_PREFILL, &p);
		assert_int_equal(cache_read_ahead(c, 0, 3, &p), CACHE_OK);
		const struct cache_transfer t = p.transfers[0];
		cache_begin_step(c, CACHE_DECODE, &p);
		assert_int_equal(cache_acquire(c, &q, &p), CACHE_BUSY);
		assert_int_equal(p.n, 0);
		assert_int_equal(ref.slot, t.keep);
		check_invariants(c);
		if (fails)
			cache_abort(c, t.slot);
		else
			cache_commit(c, t.slot);
		check_invariants(c);
		assert_int_equal(cache_slot_get(c, t.slot).state, CACHE_FREE);
		assert_int_equal(cache_find(c, 0, 3), fails ? -1 : t.keep);
		cache_release(c, &ref, 1, &p);
		bring(c, 3);
		assert_int_equal(cache_slot_get(c, cache_find(c, 0, 3)).tier, 0);
		assert_int_equal(cache_stats(c)->promotions, !fails);
		check_invariants(c);
		cache_free(c);
	}
}

/* An expert that is hot for tier 0 and finds no free slot there is the warm-up's to load. */
static void test_hot_for_tier0_is_not_kept(void **state)
{
	(void)state;
	struct cache *c = make_cache(4, 4, 2);
	struct cache_plan p;
	struct prefill_request o;
	int borrowed = 0;
	for (int i = 0; i < 4; i++)
		assert_true(cache_set_hot(c, 0, i));
	cache_begin_step(c, CACHE_PREFILL, &p);
	cache_keep_reads(c);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(cache_read_ahead(c, 0, i, &p), CACHE_OK);
		const struct cache_transfer t = p.transfers[0];
		borrowed += cache_slot_get(c, t.slot).prefill;
		assert_int_equal(t.keep, -1);
		assert_int_equal(acquire(c, &o, i), CACHE_OK);
		cache_commit(c, t.slot);
		release(c, &o);
	}
	assert_true(borrowed > 0);
	check_invariants(c);
	cache_free(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cache_warm),
		cmocka_unit_test(test_cache_set_hot),
		cmocka_unit_test(test_hot_load_fails),
		cmocka_unit_test(test_keep_reads),
		cmocka_unit_test(test_tier1_limit),
		cmocka_unit_test(test_demotions_within_limit),
		cmocka_unit_test(test_hot_for_tier0_is_not_kept),
		cmocka_unit_test(test_kept_read_fails),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
