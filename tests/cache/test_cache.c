/* SPDX-License-Identifier: MIT */
/*
 * The expert cache. Random operations run against a slow model that owns real (small) memory: every
 * byte of an expert is its tag, moves and reads are executed as the plans say, and after every
 * operation all READY slots must still hold their tags. Overlapping slots, lost or misdirected
 * moves and evicted pins all show up as wrong bytes.
 */
#include "cache/cache.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <setjmp.h>
#include <cmocka.h>

#define MAX_LAYERS  6
#define MAX_EXPERTS 12
#define MAX_PENDING 512

static void check(const struct cache *c)
{
	struct err e = {0};
	if (cache_check(c, &e))
		fail_msg("%s", e.text);
}

/* ---- the model ---- */

struct ref_key {
	int32_t slot;           /* -1: nowhere; tier 0 or 1 */
	int32_t staged;         /* -1 */
	int32_t inclusive_copy; /* of an expert in tier 0: tier 1 slot that still holds its bytes, -1:
							   none */
};

struct reference {
	struct cache *c;
	struct cache_config cfg;
	uint64_t expert_bytes[MAX_LAYERS];
	uint8_t *memory[CACHE_TIERS];
	struct ref_key keys[MAX_LAYERS * MAX_EXPERTS];
	int32_t pending[MAX_PENDING];        /* FILLING slots */
	int32_t pending_source[MAX_PENDING]; /* tier 1 slot, -1: disk, -2: a move whose copy is done */
	int n_pending;
	int32_t pinned[MAX_PENDING]; /* one entry per pin that the model holds */
	int n_pinned;
	uint64_t n_ok, n_full, n_no_cold, n_busy, n_present, n_demotions, n_kept_free, n_borrowed,
		n_promoted, n_slabs, n_dropped, n_free;
};

static uint8_t tag_of(const struct reference *m, int layer, int expert)
{
	return (uint8_t)(1 + layer * m->cfg.n_experts + expert);
}

static uint8_t *bytes_at(const struct reference *m, const struct cache_slot *s)
{
	assert_true(s->offset + s->bytes <= cache_memory_bytes(m->c, s->tier));
	return m->memory[s->tier] + s->offset;
}

static bool holds_tag(const struct reference *m, const struct cache_slot *s)
{
	const uint8_t *p = bytes_at(m, s);
	for (uint64_t i = 0; i < s->bytes; i++)
		if (p[i] != tag_of(m, s->layer, s->expert))
			return false;
	return true;
}

static int pins_held(const struct reference *m, int32_t slot)
{
	int n = 0;
	for (int i = 0; i < m->n_pinned; i++)
		n += m->pinned[i] == slot;
	return n;
}

static void ref_verify(struct reference *m)
{
	check(m->c);
	int n_ready[CACHE_TIERS] = {0}, n_seen[CACHE_TIERS] = {0};
	for (int32_t i = 0; i < cache_n_slots(m->c); i++) {
		struct cache_slot s = cache_slot_get(m->c, i);
		if (s.state == CACHE_READY && !holds_tag(m, &s))
			fail_msg("slot %d lost the bytes of expert %d of layer %d", i, s.expert, s.layer);
		if (s.state == CACHE_READY && !s.staging && cache_find(m->c, s.layer, s.expert) == i)
			n_ready[s.tier]++;
		int held = pins_held(m, i);
		if (held && (s.state == CACHE_FREE || (int)s.pins < held))
			fail_msg("slot %d has %u pins, %d were taken", i, s.pins, held);
	}
	for (int l = 0; l < m->cfg.n_layers; l++) {
		int n[CACHE_TIERS];
		cache_layer_resident(m->c, l, n);
		n_seen[0] += n[0];
		n_seen[1] += n[1];
		for (int x = 0; m->expert_bytes[l] && x < m->cfg.n_experts; x++) {
			const struct ref_key *k = &m->keys[l * m->cfg.n_experts + x];
			int32_t want = k->slot >= 0 ? k->slot : k->staged;
			assert_int_equal(cache_find(m->c, l, x), want);
		}
	}
	assert_int_equal(n_seen[0], n_ready[0]);
	assert_int_equal(n_seen[1], n_ready[1]);
}

static void ref_start(struct reference *m, struct rng *r, const uint64_t *sizes, int n_sizes,
	bool two_tiers, const struct policy_ops *policy)
{
	*m = (struct reference){0};
	m->cfg.n_layers = 3 + (int)rng_below(r, MAX_LAYERS - 2);
	m->cfg.n_experts = 4 + (int)rng_below(r, MAX_EXPERTS - 3);
	uint64_t largest = 0, all = 0;
	for (int l = 0; l < m->cfg.n_layers; l++) {
		m->expert_bytes[l] = l == 0 ? 0 : sizes[rng_below(r, (uint32_t)n_sizes)];
		largest = MAX(largest, m->expert_bytes[l]);
		all += m->expert_bytes[l] * (uint64_t)m->cfg.n_experts;
	}
	m->cfg.expert_bytes = m->expert_bytes;
	m->cfg.align = rng_below(r, 2) ? 4 : 0;
	m->cfg.n_staging = (int)rng_below(r, 4);
	m->cfg.tier_bytes[0] =
		(largest + 3) * (uint64_t)(m->cfg.n_staging + 1) + rng_below(r, (uint32_t)(all + all / 4));
	m->cfg.tier_bytes[1] = two_tiers ? rng_below(r, (uint32_t)all) : 0;
	m->cfg.policy = policy;
	m->cfg.prefetch_cold = 10;
	m->cfg.token_accesses = rng_below(r, 3) * 8;
	struct err e = {0};
	m->c = cache_new(&m->cfg, &e);
	if (!m->c)
		fail_msg("%s", e.text);
	for (int t = 0; t < CACHE_TIERS; t++)
		m->memory[t] = mem_new(cache_memory_bytes(m->c, t), 1);
	for (int i = 0; i < MAX_LAYERS * MAX_EXPERTS; i++)
		m->keys[i] = (struct ref_key){-1, -1, -1};
}

static void ref_stop(struct reference *m)
{
	m->n_slabs += cache_stats(m->c)->slabs_reassigned;
	cache_free(m->c);
	free(m->memory[0]);
	free(m->memory[1]);
}

static void add_pending(struct reference *m, int32_t slot, int32_t source)
{
	assert_true(m->n_pending < MAX_PENDING);
	m->pending[m->n_pending] = slot;
	m->pending_source[m->n_pending++] = source;
}

static void rename_pins(struct reference *m, int32_t from, int32_t to)
{
	for (int i = 0; i < m->n_pinned; i++)
		if (m->pinned[i] == from)
			m->pinned[i] = to;
}

static void drop_pins(struct reference *m, int32_t slot)
{
	int n = 0;
	for (int i = 0; i < m->n_pinned; i++)
		if (m->pinned[i] != slot)
			m->pinned[n++] = m->pinned[i];
	m->n_pinned = n;
}

/* Pins are void once the model's view of the state says so; the model is told by the slots before
 * the call.
 */
struct snapshot {
	struct cache_slot slot[4096];
	int n;
};

static void snapshot_take(const struct reference *m, struct snapshot *s)
{
	s->n = cache_n_slots(m->c);
	assert_true(s->n <= 4096);
	for (int i = 0; i < s->n; i++)
		s->slot[i] = cache_slot_get(m->c, i);
}

static bool could_leave(const struct cache_slot *s)
{
	return s->state == CACHE_READY && !s->pins && !s->staging;
}

/* What a plan that makes room for `key` (NULL: for nobody yet) did to the others. */
static void ref_demotions(struct reference *m, const struct snapshot *before,
	const struct cache_plan *plan, const struct ref_key *key, bool may_evict)
{
	/* Copies go before anybody is lost who was in tier 1. */
	bool lost = false;
	int n_copies = 0;
	for (int i = 0; i < m->cfg.n_layers * m->cfg.n_experts; i++) {
		struct ref_key *k = &m->keys[i];
		lost |= k->slot >= 0 && before->slot[k->slot].tier == 1 && k != key &&
				cache_find(m->c, i / m->cfg.n_experts, i % m->cfg.n_experts) < 0;
		if (k->inclusive_copy < 0)
			continue;
		struct cache_slot s = cache_slot_get(m->c, k->inclusive_copy);
		if (s.state != CACHE_READY || s.layer * m->cfg.n_experts + s.expert != i) {
			k->inclusive_copy = -1;
			m->n_dropped++;
		}
		n_copies += k->inclusive_copy >= 0 && cache_slot_get(m->c, k->slot).tier == 0 &&
					cache_find(m->c, s.layer, s.expert) == k->slot;
	}
	assert_false(lost && n_copies);
	/* Whoever is gone from tier 0 could leave, and is where its copy was, in tier 1 if there is a
	 * move for it, else nowhere. */
	for (int i = 0; i < before->n; i++) {
		const struct cache_slot *b = &before->slot[i];
		if (b->state == CACHE_FREE || b->staging)
			continue;
		int32_t now = cache_find(m->c, b->layer, b->expert);
		struct ref_key *k = &m->keys[b->layer * m->cfg.n_experts + b->expert];
		if (k->slot != i || now == i || k == key)
			continue;
		assert_true(could_leave(b));
		assert_true(may_evict);
		k->slot = b->tier == 0 ? k->inclusive_copy : -1;
		m->n_free += k->slot >= 0;
		k->inclusive_copy = -1;
	}
	for (int i = 0; i < plan->n_demotions; i++) {
		const struct cache_demotion *v = &plan->demotions[i];
		const struct cache_slot *from = &before->slot[v->from];
		struct cache_slot to = cache_slot_get(m->c, v->to);
		assert_int_equal(m->keys[v->layer * m->cfg.n_experts + v->expert].slot, -1);
		assert_int_equal(from->layer, v->layer);
		assert_int_equal(from->expert, v->expert);
		assert_int_equal(from->tier, 0);
		assert_int_equal(to.tier, 1);
		assert_int_equal(to.state, CACHE_FILLING);
		assert_true(
			from->offset == v->from_offset && to.offset == v->to_offset && from->bytes == v->bytes);
		assert_true(holds_tag(m, from));
		memcpy(bytes_at(m, &to), bytes_at(m, from), v->bytes);
		m->keys[v->layer * m->cfg.n_experts + v->expert].slot = v->to;
		add_pending(m, v->to, -2);
		m->n_demotions++;
	}
}

static uint64_t largest_of(const struct reference *m)
{
	uint64_t largest = 0;
	for (int l = 0; l < m->cfg.n_layers; l++)
		largest = MAX(largest, m->expert_bytes[l]);
	return largest;
}

/* Before prefill as many slots as possible are staging slots, before decode only those in use. */
static void ref_begin(struct reference *m, enum cache_use use)
{
	static struct snapshot before;
	struct cache_plan plan;
	int n_staging = 0, n_leave = 0;
	snapshot_take(m, &before);
	cache_begin_step(m->c, use, &plan);
	assert_int_equal(plan.slot, -1);
	ref_demotions(m, &before, &plan, NULL, use == CACHE_PREFILL);
	for (int32_t i = 0; i < cache_n_slots(m->c); i++) {
		struct cache_slot s = cache_slot_get(m->c, i);
		assert_false(s.staging && s.state == CACHE_FREE && use == CACHE_DECODE);
		n_staging += s.staging;
		n_leave += could_leave(&s) && s.tier == 0 && s.bytes == largest_of(m);
	}
	assert_true(n_staging <= m->cfg.n_staging);
	assert_true(n_staging == m->cfg.n_staging || use == CACHE_DECODE || !n_leave);
	m->n_borrowed += (uint64_t)plan.n_demotions;
}

static void ref_keep_free(struct reference *m, int layer)
{
	static struct snapshot before;
	struct cache_plan plan;
	snapshot_take(m, &before);
	cache_keep_free(m->c, layer, &plan);
	assert_int_equal(plan.slot, -1);
	assert_true(plan.n_demotions <= CACHE_KEEP_FREE && (!plan.n_demotions || m->cfg.tier_bytes[1]));
	ref_demotions(m, &before, &plan, NULL, true);
	m->n_kept_free += (uint64_t)plan.n_demotions;
}

static void ref_reserve(
	struct reference *m, struct rng *r, int layer, int expert, enum cache_use use)
{
	static struct snapshot before;
	struct ref_key *key = &m->keys[layer * m->cfg.n_experts + expert];
	snapshot_take(m, &before);
	struct cache_plan plan;
	enum cache_result a = cache_reserve(m->c, layer, expert, use, &plan);
	switch (a) {
	case CACHE_PRESENT:
		m->n_present++;
		assert_true(plan.slot >= 0 && (plan.slot == key->slot || plan.slot == key->staged));
		return;
	case CACHE_BUSY:
		m->n_busy++;
		assert_int_equal(before.slot[key->slot].tier, 1);
		return;
	case CACHE_NO_COLD:
		m->n_no_cold++;
		assert_int_equal(use, CACHE_PREFETCH);
		return;
	case CACHE_FULL:
		m->n_full++;
		assert_int_not_equal(use, CACHE_PREFETCH);
		if (use == CACHE_PREFILL) {
			int n_staging = 0;
			for (int i = 0; i < before.n; i++) {
				assert_false(before.slot[i].staging && before.slot[i].state == CACHE_FREE);
				n_staging += before.slot[i].staging;
			}
			for (int i = 0; i < before.n && n_staging < m->cfg.n_staging; i++)
				assert_false(could_leave(&before.slot[i]) && before.slot[i].tier == 0 &&
							 before.slot[i].bytes == largest_of(m));
		} else {
			for (int i = 0; i < before.n;
				 i++) /* a slot of the same size that could leave would have been taken */
				assert_false(could_leave(&before.slot[i]) && before.slot[i].tier == 0 &&
							 before.slot[i].bytes == m->expert_bytes[layer]);
		}
		return;
	case CACHE_BYPASS:
		fail();
	case CACHE_OK:
		break;
	}
	m->n_ok++;
	ref_demotions(m, &before, &plan, key, true);
	struct cache_slot got = cache_slot_get(m->c, plan.slot);
	assert_int_equal(got.state, CACHE_FILLING);
	assert_int_equal(got.tier, 0);
	assert_true(got.layer == layer && got.expert == expert);
	assert_int_equal(got.staging, use == CACHE_PREFILL);
	assert_true(plan.source == key->slot);
	memset(bytes_at(m, &got), 0,
		got.bytes); /* poison: whoever reads this before its commit is wrong */
	add_pending(m, plan.slot, plan.source);
	if (use == CACHE_PREFILL) {
		key->staged = plan.slot;
	} else {
		if (key->slot >= 0) {
			rename_pins(m, key->slot, plan.slot);
			m->n_promoted++;
		}
		key->slot = plan.slot;
	}
	if (use != CACHE_PREFETCH && !pins_held(m, plan.slot))
		m->pinned[m->n_pinned++] = plan.slot;
	(void)r;
}

static void ref_finish(struct reference *m, int i, bool commit)
{
	int32_t slot = m->pending[i], source = m->pending_source[i];
	struct cache_slot s = cache_slot_get(m->c, slot);
	struct ref_key *k = &m->keys[s.layer * m->cfg.n_experts + s.expert];
	m->pending[i] = m->pending[--m->n_pending];
	m->pending_source[i] = m->pending_source[m->n_pending];
	if (!commit) {
		cache_abort(m->c, slot);
		drop_pins(m, slot);
		if (s.staging)
			k->staged = -1;
		else
			k->slot = source >= 0 ? source : -1;
		return;
	}
	if (source >= 0) {
		struct cache_slot from = cache_slot_get(m->c, source);
		assert_true(from.state == CACHE_READY && from.tier == 1);
		assert_true(from.layer == s.layer && from.expert == s.expert);
		assert_true(holds_tag(m, &from));
		memcpy(bytes_at(m, &s), bytes_at(m, &from), s.bytes);
	} else if (source == -1) {
		memset(bytes_at(m, &s), tag_of(m, s.layer, s.expert), s.bytes);
	}
	cache_commit(m->c, slot);
	if (source >= 0 && !s.staging && cache_slot_get(m->c, source).state == CACHE_READY)
		k->inclusive_copy = source;
}

static void ref_unpin(struct reference *m, int i)
{
	int32_t slot = m->pinned[i];
	struct cache_slot s = cache_slot_get(m->c, slot);
	if (s.staging && s.state != CACHE_READY)
		return; /* not allowed: the staged bytes are still under way */
	m->pinned[i] = m->pinned[--m->n_pinned];
	cache_unpin(m->c, slot);
	if (s.staging && !pins_held(m, slot))
		m->keys[s.layer * m->cfg.n_experts + s.expert].staged = -1;
}

static void random_step(struct reference *m, struct rng *r)
{
	uint32_t what = rng_below(r, 100);
	int layer, expert = (int)rng_below(r, (uint32_t)m->cfg.n_experts);
	do
		layer = (int)rng_below(r, (uint32_t)m->cfg.n_layers);
	while (!m->expert_bytes[layer]);
	const struct ref_key *k = &m->keys[layer * m->cfg.n_experts + expert];
	if (what >= 99) {
		ref_begin(m, rng_below(r, 2) ? CACHE_PREFILL : CACHE_DECODE);
	} else if (what >= 97) {
		cache_note_predicted(m->c, layer, expert);
	} else if (what >= 94) {
		ref_keep_free(m, layer);
	} else if (what < 45) {
		enum cache_use use = what < 30 ? CACHE_DECODE : what < 38 ? CACHE_PREFETCH : CACHE_PREFILL;
		int32_t slot = k->slot >= 0 ? k->slot : k->staged;
		if (use != CACHE_PREFETCH) {
			int32_t got = cache_access(m->c, layer, expert, use);
			if (use == CACHE_PREFILL && k->staged >= 0 &&
				(k->slot < 0 || cache_slot_get(m->c, k->slot).tier == 1))
				slot = k->staged;
			assert_int_equal(got, slot);
			if (got >= 0 && m->n_pinned < 40 && rng_below(r, 2)) {
				cache_pin(m->c, got);
				m->pinned[m->n_pinned++] = got;
			}
		}
		ref_reserve(m, r, layer, expert, use);
	} else if (what < 75) {
		if (m->n_pending)
			ref_finish(m, (int)rng_below(r, (uint32_t)m->n_pending), rng_below(r, 10) != 0);
	} else if (m->n_pinned) {
		ref_unpin(m, (int)rng_below(r, (uint32_t)m->n_pinned));
	}
}

static void random_runs(const uint64_t *sizes, int n_sizes, uint64_t seed0, struct reference *sum)
{
	*sum = (struct reference){0};
	for (uint64_t seed = seed0; seed < seed0 + 60; seed++) {
		struct rng r = {seed};
		static struct reference m;
		ref_start(&m, &r, sizes, n_sizes, seed % 3 != 0, policy_list((int)(seed % 3)));
		for (int step = 0; step < 600; step++) {
			random_step(&m, &r);
			struct err e = {0};
			if (cache_check(m.c, &e))
				fail_msg("seed %llu step %d: %s", (unsigned long long)seed, step, e.text);
			ref_verify(&m);
		}
		/* Everything comes to rest: no pins, nothing under way. */
		while (m.n_pending)
			ref_finish(&m, 0, true);
		while (m.n_pinned)
			ref_unpin(&m, 0);
		ref_begin(&m, CACHE_DECODE);
		ref_verify(&m);
		for (int32_t i = 0; i < cache_n_slots(m.c); i++) {
			struct cache_slot s = cache_slot_get(m.c, i);
			assert_true(s.state != CACHE_FILLING && !s.pins && !s.staging);
		}
		ref_stop(&m);
		sum->n_ok += m.n_ok;
		sum->n_full += m.n_full;
		sum->n_no_cold += m.n_no_cold;
		sum->n_busy += m.n_busy;
		sum->n_present += m.n_present;
		sum->n_demotions += m.n_demotions;
		sum->n_kept_free += m.n_kept_free;
		sum->n_borrowed += m.n_borrowed;
		sum->n_promoted += m.n_promoted;
		sum->n_slabs += m.n_slabs;
		sum->n_dropped += m.n_dropped;
		sum->n_free += m.n_free;
	}
	print_message(
		"seeds %llu..: %llu reserved, %llu full, %llu warm, %llu busy, %llu present, %llu moves, "
		"%llu promotions, %llu slabs moved\n",
		(unsigned long long)seed0, (unsigned long long)sum->n_ok, (unsigned long long)sum->n_full,
		(unsigned long long)sum->n_no_cold, (unsigned long long)sum->n_busy,
		(unsigned long long)sum->n_present, (unsigned long long)sum->n_demotions,
		(unsigned long long)sum->n_promoted, (unsigned long long)sum->n_slabs);
	/* The run must have been through every answer, or it proves nothing. */
	assert_true(sum->n_ok && sum->n_full && sum->n_no_cold && sum->n_busy && sum->n_present &&
				sum->n_demotions && sum->n_kept_free && sum->n_borrowed && sum->n_promoted);
}

static void test_random_one_size(void **state)
{
	(void)state;
	struct reference sum;
	random_runs((const uint64_t[]){24}, 1, 1000, &sum);
	assert_int_equal(sum.n_slabs, 0);
	assert_true(sum.n_dropped && sum.n_free);
	print_message("%llu copies given up, %llu demotions without a move\n",
		(unsigned long long)sum.n_dropped, (unsigned long long)sum.n_free);
}

static void test_random_two_sizes(void **state)
{
	(void)state;
	struct reference sum;
	random_runs((const uint64_t[]){36, 12}, 2, 2000, &sum);
	assert_true(sum.n_slabs > 0);
}

static void test_random_odd_sizes(void **state)
{
	(void)state;
	struct reference sum;
	random_runs((const uint64_t[]){29, 64, 65, 17, 128}, 5, 3000, &sum);
	assert_true(sum.n_slabs > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_one_size),
		cmocka_unit_test(test_random_two_sizes),
		cmocka_unit_test(test_random_odd_sizes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
