/* SPDX-License-Identifier: MIT */
/*
 * The expert cache. Random calls run against a slow reference that owns real (small) memory: every
 * byte of an expert is its tag, transfers are executed as the plans say, and after every call all
 * READY slots must still hold their tags. Overlapping slots, lost or misdirected demotions and
 * evicted pins all show up as wrong bytes.
 */
#include "cache/cache.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "tests/cache/cache_check.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <setjmp.h>
#include <cmocka.h>

#define MAX_LAYERS  6
#define MAX_EXPERTS 12
#define MAX_PENDING 512
#define MAX_HELD    40
#define MAX_REFS    4 /* of a request */
#define MAX_SLOTS   4096
#define MAX_WAITS   5 /* of a request, until it is given up */

/* ---- the reference ---- */

struct ref_key {
	int32_t slot;           /* -1: nowhere; tier 0 or 1 */
	int32_t prefill;        /* its prefill slot, -1: none */
	int32_t inclusive_copy; /* of an expert in tier 0: tier 1 slot that still holds its bytes, -1 */
	bool read_ahead;        /* the prefill slot has the pin of a read-ahead */
};

struct reference {
	struct cache *c;
	struct cache_config cfg;
	uint64_t expert_bytes[MAX_LAYERS];
	uint8_t *memory[CACHE_TIERS];
	struct ref_key keys[MAX_LAYERS * MAX_EXPERTS];
	int32_t pending[MAX_PENDING];        /* FILLING slots */
	int32_t pending_source[MAX_PENDING]; /* tier 1 slot, -1: disk, -2: a demotion that is copied */
	int n_pending;
	struct cache_ref held[MAX_HELD]; /* acquired, each with a pin */
	int n_held;
	struct cache_request *request;       /* one that waits */
	struct cache_slot before[MAX_SLOTS]; /* the slots before the call under way */
	/* What the run has been through. */
	uint64_t n_loads, n_full, n_no_cold, n_busy, n_present, n_demotions, n_kept_free, n_borrowed,
		n_promoted, n_slabs, n_dropped, n_free, n_taken_over, n_failed, n_resumed, n_given_up,
		n_stayed, n_promoted_later, n_warmed_below;
	int loads_into; /* the tier that the loads of the next plan fill */
};

static struct ref_key *key_of(struct reference *m, int layer, int expert)
{
	return &m->keys[layer * m->cfg.n_experts + expert];
}

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

static uint64_t largest_of(const struct reference *m)
{
	uint64_t largest = 0;
	for (int l = 0; l < m->cfg.n_layers; l++)
		largest = MAX(largest, m->expert_bytes[l]);
	return largest;
}

static int pins_held(const struct reference *m, int32_t slot)
{
	uint64_t load_id = cache_slot_get(m->c, slot).load_id;
	int n = 0;
	for (int i = 0; i < m->n_held; i++)
		n += m->held[i].slot == slot;
	for (int i = 0; m->request && i < m->request->n; i++)
		n += m->request->refs[i].slot == slot && m->request->refs[i].load_id == load_id;
	return n;
}

static bool is_pending(const struct reference *m, int32_t slot)
{
	int i = 0;
	while (i < m->n_pending && m->pending[i] != slot)
		i++;
	return i < m->n_pending;
}

static bool could_leave(const struct cache_slot *s)
{
	return s->state == CACHE_READY && !s->pins && !s->prefill;
}

/* A prefill slot is in use as long as its bytes are in flight or somebody has a pin. */
static void verify_prefill(struct reference *m)
{
	int n = 0;
	for (int i = 0; i < m->cfg.n_layers * m->cfg.n_experts; i++) {
		struct ref_key *k = &m->keys[i];
		if (k->prefill < 0)
			continue;
		struct cache_slot s = cache_slot_get(m->c, k->prefill);
		bool used = is_pending(m, k->prefill) || pins_held(m, k->prefill) || k->read_ahead;
		assert_int_equal(s.prefill && s.layer * m->cfg.n_experts + s.expert == i, used);
		if (!used)
			k->prefill = -1;
		else
			assert_int_equal(s.read_ahead, k->read_ahead);
	}
	for (int32_t i = 0; i < cache_n_slots(m->c); i++)
		n += cache_slot_get(m->c, i).prefill;
	assert_true(n <= m->cfg.n_prefill_slots);
}

static void ref_verify(struct reference *m)
{
	struct err e = {0};
	if (cache_check(m->c, &e))
		fail_msg("%s", e.text);
	verify_prefill(m);
	int n_ready[CACHE_TIERS] = {0}, n_seen[CACHE_TIERS] = {0};
	for (int32_t i = 0; i < cache_n_slots(m->c); i++) {
		struct cache_slot s = cache_slot_get(m->c, i);
		if (s.state == CACHE_READY && !holds_tag(m, &s))
			fail_msg("slot %d lost the bytes of expert %d of layer %d", i, s.expert, s.layer);
		if (s.state == CACHE_READY && !s.prefill && cache_find(m->c, s.layer, s.expert) == i)
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
			const struct ref_key *k = key_of(m, l, x);
			assert_int_equal(cache_find(m->c, l, x), k->slot >= 0 ? k->slot : k->prefill);
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
	m->cfg.n_prefill_slots = (int)rng_below(r, 4);
	m->cfg.tier_bytes[0] = (largest + 3) * (uint64_t)(m->cfg.n_prefill_slots + 1) +
						   rng_below(r, (uint32_t)(all + all / 4));
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
		m->keys[i] = (struct ref_key){.slot = -1, .prefill = -1, .inclusive_copy = -1};
}

static void ref_stop(struct reference *m)
{
	m->n_slabs += cache_stats(m->c)->slabs_reassigned;
	cache_free(m->c);
	free(m->memory[0]);
	free(m->memory[1]);
}

/* ---- what a plan did ---- */

static void snapshot_take(struct reference *m)
{
	int n = cache_n_slots(m->c);
	assert_true(n <= MAX_SLOTS);
	for (int i = 0; i < n; i++)
		m->before[i] = cache_slot_get(m->c, i);
}

static void add_pending(struct reference *m, int32_t slot, int32_t source)
{
	assert_true(m->n_pending < MAX_PENDING);
	m->pending[m->n_pending] = slot;
	m->pending_source[m->n_pending++] = source;
}

static bool loads(const struct cache_plan *plan, int layer, int expert)
{
	for (int i = 0; i < plan->n; i++)
		if (plan->transfers[i].kind == CACHE_LOAD && plan->transfers[i].layer == layer &&
			plan->transfers[i].expert == expert)
			return true;
	return false;
}

/* Inclusive copies go before anybody is lost who was in tier 1. */
static void follow_copies(struct reference *m, const struct cache_plan *plan)
{
	bool lost = false;
	int n_copies = 0;
	for (int i = 0; i < m->cfg.n_layers * m->cfg.n_experts; i++) {
		struct ref_key *k = &m->keys[i];
		int layer = i / m->cfg.n_experts, expert = i % m->cfg.n_experts;
		if (k->slot >= 0 && m->before[k->slot].tier == 1 && !loads(plan, layer, expert))
			lost |= cache_find(m->c, layer, expert) != k->slot;
		if (k->inclusive_copy < 0)
			continue;
		struct cache_slot s = cache_slot_get(m->c, k->inclusive_copy);
		if (s.state != CACHE_READY || s.layer != layer || s.expert != expert) {
			k->inclusive_copy = -1;
			m->n_dropped++;
		}
		n_copies += k->inclusive_copy >= 0 && cache_slot_get(m->c, k->slot).tier == 0 &&
					cache_find(m->c, layer, expert) == k->slot;
	}
	assert_false(lost && n_copies);
}

static void follow_demotion(struct reference *m, const struct cache_transfer *v)
{
	const struct cache_slot *from = &m->before[v->source];
	struct cache_slot to = cache_slot_get(m->c, v->slot);
	assert_int_equal(key_of(m, v->layer, v->expert)->slot, -1);
	assert_true(from->layer == v->layer && from->expert == v->expert);
	assert_int_equal(from->tier, 0);
	assert_int_equal(to.tier, 1);
	assert_int_equal(to.state, CACHE_FILLING);
	assert_true(
		from->offset == v->from_offset && to.offset == v->to_offset && from->bytes == v->bytes);
	assert_true(holds_tag(m, from));
	memcpy(bytes_at(m, &to), bytes_at(m, from), v->bytes);
	key_of(m, v->layer, v->expert)->slot = v->slot;
	add_pending(m, v->slot, -2);
	m->n_demotions++;
}

static void follow_load(struct reference *m, const struct cache_transfer *v)
{
	struct ref_key *k = key_of(m, v->layer, v->expert);
	struct cache_slot got = cache_slot_get(m->c, v->slot);
	assert_int_equal(got.state, CACHE_FILLING);
	assert_int_equal(got.tier, m->loads_into);
	assert_true(got.layer == v->layer && got.expert == v->expert);
	assert_true(got.offset == v->to_offset && got.bytes == v->bytes);
	assert_int_equal(v->source, k->slot);
	if (v->source >= 0)
		assert_true(v->from_offset == cache_slot_get(m->c, v->source).offset);
	/* poison: whoever reads this before its commit is wrong */
	memset(bytes_at(m, &got), 0, got.bytes);
	add_pending(m, v->slot, v->source);
	m->n_loads++;
	if (got.prefill) {
		assert_int_equal(k->prefill, -1);
		k->prefill = v->slot;
		return;
	}
	m->n_promoted += k->slot >= 0;
	k->slot = v->slot;
}

static void ref_follow(struct reference *m, const struct cache_plan *plan, bool may_evict)
{
	follow_copies(m, plan);
	/* Whoever is gone from tier 0 could leave, and is where its inclusive copy was, in tier 1 if
	 * there is a demotion of it, else nowhere. */
	for (int i = 0; i < cache_n_slots(m->c); i++) {
		const struct cache_slot *b = &m->before[i];
		if (b->state == CACHE_FREE || b->prefill)
			continue;
		struct ref_key *k = key_of(m, b->layer, b->expert);
		if (k->slot != i || cache_find(m->c, b->layer, b->expert) == i ||
			loads(plan, b->layer, b->expert))
			continue;
		assert_true(could_leave(b));
		assert_true(may_evict);
		k->slot = b->tier == 0 ? k->inclusive_copy : -1;
		m->n_free += k->slot >= 0;
		k->inclusive_copy = -1;
	}
	for (int i = 0; i < plan->n; i++) {
		if (plan->transfers[i].kind == CACHE_DEMOTION)
			follow_demotion(m, &plan->transfers[i]);
		else
			follow_load(m, &plan->transfers[i]);
	}
}

/* ---- calls ---- */

static void ref_flush(struct reference *m)
{
	struct cache_plan plan;
	snapshot_take(m);
	cache_flush(m->c, &plan);
	assert_false(cache_has_pending(m->c));
	assert_true(plan.n <= CACHE_KEEP_FREE && (!plan.n || m->cfg.tier_bytes[1]));
	ref_follow(m, &plan, true);
	m->n_kept_free += (uint64_t)plan.n;
}

/* Before prefill as many slots as possible are borrowed, before decode only those in use are left.
 */
static void ref_begin(struct reference *m, enum cache_use use)
{
	struct cache_plan plan;
	int n_prefill = 0, n_leave = 0;
	ref_flush(m);
	snapshot_take(m);
	cache_begin_step(m->c, use, &plan);
	ref_follow(m, &plan, use == CACHE_PREFILL);
	for (int i = 0; i < m->cfg.n_layers * m->cfg.n_experts; i++)
		m->keys[i].read_ahead = false;
	for (int32_t i = 0; i < cache_n_slots(m->c); i++) {
		struct cache_slot s = cache_slot_get(m->c, i);
		assert_false(s.prefill && s.state == CACHE_FREE && use == CACHE_DECODE);
		n_prefill += s.prefill;
		n_leave += could_leave(&s) && s.tier == 0 && s.bytes == largest_of(m);
	}
	assert_true(n_prefill == m->cfg.n_prefill_slots || use == CACHE_DECODE || !n_leave);
	m->n_borrowed += (uint64_t)plan.n;
}

/* Nobody could have made room. */
static void verify_full(const struct reference *m, int layer, enum cache_use use)
{
	int n_prefill = 0;
	for (int32_t i = 0; i < cache_n_slots(m->c); i++) {
		struct cache_slot s = cache_slot_get(m->c, i);
		assert_false(use == CACHE_PREFILL && s.prefill && s.state == CACHE_FREE);
		n_prefill += s.prefill;
	}
	if (use == CACHE_PREFILL && n_prefill == m->cfg.n_prefill_slots)
		return;
	uint64_t bytes = use == CACHE_PREFILL ? largest_of(m) : m->expert_bytes[layer];
	for (int32_t i = 0; i < cache_n_slots(m->c); i++) {
		struct cache_slot s = cache_slot_get(m->c, i);
		assert_false(could_leave(&s) && s.tier == 0 && s.bytes == bytes);
	}
}

static void verify_answer(struct reference *m, int layer, int expert, enum cache_use use,
	enum cache_result result, const struct cache_plan *plan)
{
	struct ref_key *k = key_of(m, layer, expert);
	assert_int_equal(result == CACHE_OK, loads(plan, layer, expert));
	switch (result) {
	case CACHE_OK:
		break;
	case CACHE_PRESENT:
		m->n_present++;
		assert_int_not_equal(use, CACHE_DECODE);
		assert_true((use == CACHE_PREFILL && k->prefill >= 0) ||
					(k->slot >= 0 && cache_slot_get(m->c, k->slot).tier == 0));
		break;
	case CACHE_BUSY:
		m->n_busy++;
		assert_int_equal(cache_slot_get(m->c, k->slot).tier, 1);
		break;
	case CACHE_NO_COLD:
		m->n_no_cold++;
		assert_int_equal(use, CACHE_PREFETCH);
		break;
	case CACHE_FULL:
		m->n_full++;
		assert_int_not_equal(use, CACHE_PREFETCH);
		verify_full(m, layer, use);
		break;
	case CACHE_BYPASS:
		fail();
	}
}

/* The refs of a slot whose transfer has ended; returns how many are left. */
static int tell_refs(struct reference *m, struct cache_ref *refs, int n, int32_t slot, bool commit)
{
	int kept = 0;
	for (int i = 0; i < n; i++) {
		if (refs[i].slot != slot || refs[i].state == CACHE_REF_NONE ||
			refs[i].state == CACHE_REF_FAILED) {
			refs[kept++] = refs[i];
			continue;
		}
		assert_int_equal(
			cache_ref_poll(m->c, &refs[i]), commit ? CACHE_REF_READY : CACHE_REF_FAILED);
		m->n_failed += !commit;
		if (commit)
			refs[kept++] = refs[i];
	}
	return kept;
}

static void ref_finish(struct reference *m, int i, bool commit)
{
	int32_t slot = m->pending[i], source = m->pending_source[i];
	struct cache_slot s = cache_slot_get(m->c, slot);
	struct ref_key *k = key_of(m, s.layer, s.expert);
	m->pending[i] = m->pending[--m->n_pending];
	m->pending_source[i] = m->pending_source[m->n_pending];
	if (!commit) {
		cache_abort(m->c, slot);
		if (s.prefill)
			k->prefill = -1, k->read_ahead = false;
		else
			k->slot = source >= 0 ? source : -1;
	} else {
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
		if (source >= 0 && !s.prefill && cache_slot_get(m->c, source).state == CACHE_READY)
			k->inclusive_copy = source;
	}
	m->n_held = tell_refs(m, m->held, m->n_held, slot, commit);
	for (int r = 0; m->request && r < m->request->n; r++)
		tell_refs(m, &m->request->refs[r], 1, slot, commit);
	verify_prefill(m);
}

/* What a ref that has just been served says is true. */
static void verify_ref(struct reference *m, int layer, enum cache_use use,
	const struct cache_ref *r, const struct cache_plan *plan)
{
	const struct ref_key *k = key_of(m, layer, r->expert);
	struct cache_slot s = cache_slot_get(m->c, r->slot);
	bool loaded = loads(plan, layer, r->expert);
	if (r->state == CACHE_REF_FAILED) /* while those before it waited */
		return;
	assert_true(r->slot == k->slot || r->slot == k->prefill);
	assert_true(r->load_id == s.load_id && s.pins);
	if (r->stay && s.tier) { /* used where it is */
		assert_true(use == CACHE_DECODE && !loaded && r->tier == 1);
		assert_true(s.state == CACHE_READY && r->state == CACHE_REF_READY);
		m->n_stayed++;
		return;
	}
	assert_int_equal(s.tier, 0);
	assert_int_equal(r->state, loaded                   ? CACHE_REF_LOAD
							   : s.state == CACHE_READY ? CACHE_REF_READY
														: CACHE_REF_IN_FLIGHT);
	assert_int_equal(s.prefill, loaded ? use == CACHE_PREFILL : r->slot == k->prefill);
}

static void ref_release(struct reference *m, const struct cache_ref *refs, int n)
{
	struct cache_plan plan;
	ref_flush(m);
	cache_release(m->c, refs, n, &plan);
	assert_int_equal(plan.n, 0);
}

static void draw_refs(
	struct reference *m, struct rng *r, struct cache_request *q, int tiers[MAX_REFS])
{
	for (int want = 1 + (int)rng_below(r, MAX_REFS); q->n < want;) {
		int expert = (int)rng_below(r, (uint32_t)m->cfg.n_experts), same = 0;
		for (int i = 0; i < q->n; i++)
			same += q->refs[i].expert == expert;
		if (same)
			continue;
		const struct ref_key *k = key_of(m, q->layer, expert);
		int tier = k->slot >= 0 ? cache_slot_get(m->c, k->slot).tier : CACHE_TIERS;
		if (k->prefill >= 0 && (tier == CACHE_TIERS || q->use == CACHE_PREFILL))
			tier = 0;
		tiers[q->n] = tier;
		q->refs[q->n++] =
			(struct cache_ref){.expert = expert, .slot = -1, .stay = !rng_below(r, 4)};
	}
}

/* A request of a few experts. While it has to wait, transfers end; if nothing helps it is given up.
 */
static void ref_acquire(struct reference *m, struct rng *r, int layer, enum cache_use use)
{
	struct cache_ref refs[MAX_REFS];
	struct cache_request q = {.layer = layer, .use = use, .refs = refs};
	struct cache_plan plan;
	int tiers[MAX_REFS], seen = 0;
	ref_flush(m);
	draw_refs(m, r, &q, tiers);
	uint64_t accesses = cache_stats(m->c)->accesses;
	snapshot_take(m);
	enum cache_result result = cache_acquire(m->c, &q, &plan);
	for (int i = 0; i < q.n; i++) {
		struct ref_key *k = key_of(m, layer, refs[i].expert);
		assert_int_equal(refs[i].tier, tiers[i]);
		if (refs[i].slot >= 0 && refs[i].slot == k->prefill && k->read_ahead) {
			k->read_ahead = false;
			m->n_taken_over++;
		}
	}
	m->request = &q; /* cppcheck-suppress autoVariables; reset below */
	for (int waits = 0;; waits++) {
		ref_follow(m, &plan, true);
		for (; seen < q.next; seen++)
			verify_ref(m, layer, use, &refs[seen], &plan);
		if (result == CACHE_OK)
			break;
		verify_answer(m, layer, refs[q.next].expert, use, result, &plan);
		if (waits == MAX_WAITS || !m->n_pending)
			break;
		m->n_resumed++;
		ref_finish(m, (int)rng_below(r, (uint32_t)m->n_pending), rng_below(r, 10) != 0);
		snapshot_take(m);
		result = cache_acquire_resume(m->c, &q, &plan);
	}
	m->request = NULL;
	if (result != CACHE_OK) {
		ref_release(m, refs, q.n);
		m->n_given_up++;
		return;
	}
	assert_int_equal(q.next, q.n);
	for (int i = 0; i < q.n; i++)
		if (cache_ref_poll(m->c, &refs[i]) != CACHE_REF_FAILED)
			m->held[m->n_held++] = refs[i];
	ref_flush(m);
	assert_int_equal(
		cache_stats(m->c)->accesses - accesses, use == CACHE_DECODE ? (uint64_t)q.n : 0);
}

static bool keep_even(const void *ctx, int layer, int expert)
{
	(void)ctx;
	return (layer + expert) % 2 == 0;
}

static void ref_read_ahead(struct reference *m, int layer, int expert)
{
	struct cache_plan plan;
	snapshot_take(m);
	enum cache_result result = cache_read_ahead(m->c, layer, expert, &plan);
	ref_follow(m, &plan, true);
	verify_answer(m, layer, expert, CACHE_PREFILL, result, &plan);
	if (result == CACHE_OK)
		key_of(m, layer, expert)->read_ahead = true;
}

static void ref_read_ahead_drop(struct reference *m)
{
	cache_read_ahead_drop(m->c, keep_even, NULL);
	for (int l = 0; l < m->cfg.n_layers; l++)
		for (int x = 0; x < m->cfg.n_experts; x++)
			key_of(m, l, x)->read_ahead &= keep_even(NULL, l, x);
}

static void ref_prefetch(struct reference *m, int layer, int expert)
{
	struct cache_plan plan;
	snapshot_take(m);
	enum cache_result result = cache_prefetch(m->c, layer, expert, &plan);
	ref_follow(m, &plan, true);
	verify_answer(m, layer, expert, CACHE_PREFETCH, result, &plan);
}

static void ref_promote(struct reference *m, int layer, int expert)
{
	const struct ref_key *k = key_of(m, layer, expert);
	const bool in_tier1 = k->slot >= 0 && cache_slot_get(m->c, k->slot).tier == 1;
	struct cache_plan plan;
	uint64_t prefetches = cache_stats(m->c)->prefetch_inserted;
	snapshot_take(m);
	enum cache_result result = cache_promote(m->c, layer, expert, &plan);
	ref_follow(m, &plan, true);
	if (result != CACHE_NO_COLD || k->slot >= 0)
		verify_answer(m, layer, expert, CACHE_PREFETCH, result, &plan);
	assert_true(result != CACHE_OK || in_tier1);
	assert_int_equal(cache_stats(m->c)->prefetch_inserted, prefetches);
	m->n_promoted_later += result == CACHE_OK;
}

static void ref_warm(struct reference *m, int tier, int layer, int expert)
{
	const bool present = key_of(m, layer, expert)->slot >= 0;
	struct cache_plan plan;
	snapshot_take(m);
	enum cache_result result = cache_warm(m->c, tier, layer, expert, &plan);
	assert_int_equal(result == CACHE_OK, loads(&plan, layer, expert));
	assert_int_equal(plan.n, result == CACHE_OK);
	m->loads_into = tier;
	ref_follow(m, &plan, false);
	m->loads_into = 0;
	if (tier == 1) {
		assert_int_equal(result == CACHE_PRESENT, present);
		m->n_warmed_below += result == CACHE_OK;
	}
}

static void random_step(struct reference *m, struct rng *r)
{
	uint32_t what = rng_below(r, 100);
	int layer, expert = (int)rng_below(r, (uint32_t)m->cfg.n_experts);
	do
		layer = (int)rng_below(r, (uint32_t)m->cfg.n_layers);
	while (!m->expert_bytes[layer]);
	if (what >= 99) {
		ref_begin(m, rng_below(r, 2) ? CACHE_PREFILL : CACHE_DECODE);
	} else if (what >= 96) {
		cache_note_predicted(m->c, layer, &expert, 1);
		assert_true(cache_has_pending(m->c));
	} else if (what >= 94) {
		ref_read_ahead_drop(m);
	} else if (what < 25) {
		if (m->n_held + MAX_REFS <= MAX_HELD)
			ref_acquire(m, r, layer, what < 18 ? CACHE_DECODE : CACHE_PREFILL);
	} else if (what < 33) {
		switch (rng_below(r, 3)) {
		case 0:
			ref_prefetch(m, layer, expert);
			break;
		case 1:
			ref_promote(m, layer, expert);
			break;
		default:
			ref_warm(m, (int)rng_below(r, 2), layer, expert);
		}
	} else if (what < 38) {
		ref_read_ahead(m, layer, expert);
	} else if (what < 70) {
		if (m->n_pending)
			ref_finish(m, (int)rng_below(r, (uint32_t)m->n_pending), rng_below(r, 10) != 0);
	} else if (m->n_held) {
		int i = (int)rng_below(r, (uint32_t)m->n_held);
		struct cache_ref ref = m->held[i];
		m->held[i] = m->held[--m->n_held];
		ref_release(m, &ref, 1);
	}
}

static void add_counts(struct reference *sum, const struct reference *m)
{
	sum->n_loads += m->n_loads;
	sum->n_full += m->n_full;
	sum->n_no_cold += m->n_no_cold;
	sum->n_busy += m->n_busy;
	sum->n_present += m->n_present;
	sum->n_demotions += m->n_demotions;
	sum->n_kept_free += m->n_kept_free;
	sum->n_borrowed += m->n_borrowed;
	sum->n_promoted += m->n_promoted;
	sum->n_slabs += m->n_slabs;
	sum->n_dropped += m->n_dropped;
	sum->n_free += m->n_free;
	sum->n_taken_over += m->n_taken_over;
	sum->n_failed += m->n_failed;
	sum->n_resumed += m->n_resumed;
	sum->n_given_up += m->n_given_up;
	sum->n_stayed += m->n_stayed;
	sum->n_promoted_later += m->n_promoted_later;
	sum->n_warmed_below += m->n_warmed_below;
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
		/* Everything comes to rest: no pins, nothing in flight. */
		while (m.n_pending)
			ref_finish(&m, 0, true);
		ref_release(&m, m.held, m.n_held);
		m.n_held = 0;
		ref_begin(&m, CACHE_DECODE);
		ref_verify(&m);
		for (int32_t i = 0; i < cache_n_slots(m.c); i++) {
			struct cache_slot s = cache_slot_get(m.c, i);
			assert_true(s.state != CACHE_FILLING && !s.pins && !s.prefill);
		}
		ref_stop(&m);
		add_counts(sum, &m);
	}
	print_message("seeds %llu..: %llu loads, %llu full, %llu without a cold victim, %llu busy, "
				  "%llu present, %llu demotions, %llu promotions, %llu slabs reassigned, %llu "
				  "resumed, %llu given up, %llu failed\n",
		(unsigned long long)seed0, (unsigned long long)sum->n_loads,
		(unsigned long long)sum->n_full, (unsigned long long)sum->n_no_cold,
		(unsigned long long)sum->n_busy, (unsigned long long)sum->n_present,
		(unsigned long long)sum->n_demotions, (unsigned long long)sum->n_promoted,
		(unsigned long long)sum->n_slabs, (unsigned long long)sum->n_resumed,
		(unsigned long long)sum->n_given_up, (unsigned long long)sum->n_failed);
	/* The run must have been through every answer, or it proves nothing. */
	assert_true(sum->n_loads && sum->n_full && sum->n_no_cold && sum->n_busy && sum->n_present);
	assert_true(sum->n_demotions && sum->n_kept_free && sum->n_borrowed && sum->n_promoted);
	assert_true(sum->n_stayed && sum->n_promoted_later && sum->n_warmed_below);
	assert_true(sum->n_taken_over && sum->n_failed && sum->n_resumed && sum->n_given_up);
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
