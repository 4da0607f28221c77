/* SPDX-License-Identifier: MIT */
/*
 * Every policy, driven through its hooks with random keys, lists and pins, against a reference that
 * looks at everything each time. The seed of a failing run is printed.
 */
#include "cache/policy/policy.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <setjmp.h>
#include <cmocka.h>

#define N_KEYS  48
#define N_LISTS 2

struct policy_reference {
	struct policy p;
	uint64_t last_use[N_KEYS], next_use[N_KEYS];
	bool pinned[N_KEYS];
	int list[N_KEYS];               /* -1: not resident */
	int32_t order[N_LISTS][N_KEYS]; /* resident keys, oldest first: by use (lru, lfu) or by
									   insertion (sieve) */
	int n[N_LISTS];
	bool bit[N_KEYS];      /* sieve */
	int hand[N_LISTS];     /* sieve: index in order, of the next key to look at */
	bool compared[N_KEYS]; /* lfu: in the heap */
	double score[N_KEYS], weight, growth;
	uint64_t now;
	/* What the run has been through. */
	uint64_t n_found, n_none, n_inserted, n_stepped_over, n_recent;
};

static bool evictable(const void *ctx, int32_t key)
{
	const struct policy_reference *m = ctx;
	return m->list[key] >= 0 && !m->pinned[key];
}

static bool is(const struct policy_reference *m, const struct policy_ops *ops)
{
	return m->p.ops == ops;
}

static void order_remove(struct policy_reference *m, int32_t key)
{
	int l = m->list[key], i = 0;
	while (m->order[l][i] != key)
		i++;
	if (m->hand[l] > i)
		m->hand[l]--;
	memmove(&m->order[l][i], &m->order[l][i + 1], (size_t)(m->n[l] - i - 1) * sizeof(int32_t));
	m->n[l]--;
	if (m->hand[l] >= m->n[l])
		m->hand[l] = 0;
}

static void order_append(struct policy_reference *m, int list, int32_t key)
{
	m->order[list][m->n[list]++] = key;
	m->list[key] = list;
}

static void ref_access(struct policy_reference *m, int32_t key)
{
	m->now++;
	m->last_use[key] = m->now;
	m->next_use[key] = m->now * 1000 + (uint64_t)(key * 7919 % 997);
	m->weight *= m->growth;
	m->score[key] += m->weight;
	m->bit[key] = true;
	m->compared[key] = false;
	if (m->list[key] >= 0 && !is(m, &policy_sieve)) {
		int l = m->list[key];
		order_remove(m, key);
		order_append(m, l, key);
	}
	m->p.ops->access(&m->p, key);
}

/* Half a use for lfu, a whole one for lru, nothing for the others; time does not pass. */
static void ref_predicted(struct policy_reference *m, int32_t key)
{
	if (!m->p.ops->predicted)
		return;
	m->last_use[key] = m->now;
	m->score[key] += m->weight / 2;
	m->compared[key] = false;
	if (m->list[key] >= 0) {
		int l = m->list[key];
		order_remove(m, key);
		order_append(m, l, key);
	}
	m->p.ops->predicted(&m->p, key);
}

static void ref_insert(struct policy_reference *m, int list, int32_t key)
{
	m->bit[key] = m->compared[key] = false;
	order_append(m, list, key);
	m->p.ops->insert(&m->p, list, key);
}

static void ref_remove(struct policy_reference *m, int32_t key)
{
	int l = m->list[key];
	order_remove(m, key);
	m->list[key] = -1;
	m->p.ops->remove(&m->p, l, key);
}

static int32_t expect_lru(const struct policy_reference *m, int list, uint64_t before)
{
	for (int i = 0; i < m->n[list]; i++) {
		int32_t key = m->order[list][i];
		if (m->last_use[key] >= before)
			return -1;
		if (!m->pinned[key])
			return key;
	}
	return -1;
}

static int32_t expect_sieve(struct policy_reference *m, int list)
{
	int any = 0, old = 0;
	for (int i = 0; i < m->n[list]; i++) {
		int32_t key = m->order[list][i];
		any += !m->pinned[key];
		old += !m->pinned[key] && m->last_use[key] + m->p.env.recency_window <= m->now;
	}
	if (!any)
		return -1;
	for (int i = m->hand[list];; i++) {
		if (i >= m->n[list])
			i = 0;
		int32_t key = m->order[list][i];
		if (m->pinned[key] || (old && m->last_use[key] + m->p.env.recency_window > m->now))
			continue;
		if (m->bit[key]) {
			m->bit[key] = false;
			continue;
		}
		m->hand[list] = i;
		return key;
	}
}

static int32_t expect_lfu(struct policy_reference *m, int list)
{
	for (int i = 0; i < m->n[list]; i++) {
		int32_t key = m->order[list][i];
		if (m->compared[key])
			continue;
		if (m->last_use[key] + m->p.env.recency_window > m->now)
			break;
		m->compared[key] = true;
	}
	int32_t best = -1;
	for (int i = 0; i < m->n[list]; i++) {
		int32_t key = m->order[list][i];
		if (!m->compared[key] || m->pinned[key])
			continue;
		if (best < 0 || m->score[key] < m->score[best] ||
			(m->score[key] == m->score[best] && m->last_use[key] < m->last_use[best]))
			best = key;
	}
	for (int i = 0; best < 0 && i < m->n[list]; i++)
		if (!m->pinned[m->order[list][i]])
			best = m->order[list][i];
	return best;
}

static int32_t expect_belady(const struct policy_reference *m, int list)
{
	int32_t best = -1;
	for (int32_t key = 0; key < N_KEYS; key++)
		if (m->list[key] == list && !m->pinned[key] &&
			(best < 0 || m->next_use[key] > m->next_use[best]))
			best = key;
	return best;
}

/* Was the search hard: keys that are pinned on the way, or nothing but recent ones? */
static void count_victim(struct policy_reference *m, int list, int32_t victim)
{
	m->n_found += victim >= 0;
	m->n_none += victim < 0;
	m->n_recent += victim >= 0 && m->last_use[victim] + m->p.env.recency_window > m->now;
	for (int i = 0; i < m->n[list] && m->order[list][i] != victim; i++)
		m->n_stepped_over += m->pinned[m->order[list][i]];
}

static void policy_run(const struct policy_ops *ops, uint64_t seed, struct policy_reference *sum)
{
	struct rng r = {seed};
	static struct policy_reference m;
	const int32_t list_keys[N_LISTS] = {N_KEYS, N_KEYS};
	m = (struct policy_reference){.weight = 1};
	double half_life = 1 + rng_below(&r, 60);
	m.growth = 1 + 0.6931471805599453 / MAX(half_life, 1.0);
	for (int i = 0; i < N_KEYS; i++)
		m.list[i] = -1;
	m.p.ops = ops;
	m.p.env = (struct policy_env){.n_keys = N_KEYS,
		.n_lists = N_LISTS,
		.list_keys = list_keys,
		.last_use = m.last_use,
		.evictable = evictable,
		.ctx = &m,
		.half_life = half_life,
		.recency_window = rng_below(&r, 12),
		.next_use = m.next_use};
	assert_int_equal(ops->init(&m.p), 0);
	for (int step = 0; step < 3000; step++) {
		int32_t key = (int32_t)MIN(rng_below(&r, N_KEYS), rng_below(&r, N_KEYS));
		int list = (int)rng_below(&r, N_LISTS);
		uint32_t what = rng_below(&r, 100);
		if (what < 44) {
			ref_access(&m, key);
			if (m.list[key] < 0) {
				ref_insert(&m, list, key);
				m.n_inserted++;
			}
		} else if (what < 52) {
			ref_predicted(&m, key);
		} else if (what < 58) {
			if (m.list[key] >= 0 && !m.pinned[key])
				ref_remove(&m, key);
		} else if (what < 75) {
			m.pinned[key] = rng_below(&r, 3) == 0;
		} else {
			uint64_t before = POLICY_ANY_AGE;
			int32_t want;
			if (is(&m, &policy_lru)) {
				if (rng_below(&r, 2))
					before = m.now > 10 ? m.now - 10 : 0;
				want = expect_lru(&m, list, before);
			} else if (is(&m, &policy_sieve)) {
				want = expect_sieve(&m, list);
			} else if (is(&m, &policy_lfu)) {
				want = expect_lfu(&m, list);
			} else {
				want = expect_belady(&m, list);
			}
			int32_t got = ops->victim(&m.p, list, before);
			if (got != want)
				fail_msg("%s, seed %llu, step %d: picked %d, expected %d", ops->name,
					(unsigned long long)seed, step, got, want);
			count_victim(&m, list, got);
			if (got >= 0)
				ref_remove(&m, got);
		}
	}
	/* With an age limit the search may give up, but never names what is pinned, absent or too
	 * recent. */
	for (int i = 0; i < 200; i++) {
		int list = (int)rng_below(&r, N_LISTS);
		uint64_t before = m.now > 20 ? m.now - rng_below(&r, 20) : 1;
		int32_t got = ops->victim(&m.p, list, before);
		if (got >= 0)
			assert_true(m.list[got] == list && !m.pinned[got] && m.last_use[got] < before);
	}
	ops->fini(&m.p);
	ops->fini(&m.p);
	sum->n_found += m.n_found;
	sum->n_none += m.n_none;
	sum->n_inserted += m.n_inserted;
	sum->n_stepped_over += m.n_stepped_over;
	sum->n_recent += m.n_recent;
}

static void test_against_reference(void **state)
{
	(void)state;
	const struct policy_ops *all[] = {&policy_lru, &policy_lfu, &policy_sieve, &policy_belady};
	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		struct policy_reference sum = {0};
		for (uint64_t seed = 1; seed <= 40; seed++)
			policy_run(all[i], seed, &sum);
		print_message("%-6s %llu inserted, %llu victims, %llu times none, %llu pinned keys stepped "
					  "over, %llu victims used in the window\n",
			all[i]->name, (unsigned long long)sum.n_inserted, (unsigned long long)sum.n_found,
			(unsigned long long)sum.n_none, (unsigned long long)sum.n_stepped_over,
			(unsigned long long)sum.n_recent);
		/* Searches of all kinds, or the run proves little. */
		assert_true(sum.n_inserted > 20000 && sum.n_found > 20000 && sum.n_none > 2000 &&
					sum.n_stepped_over > 80000 && sum.n_recent > 2000);
	}
}

static void test_lfu_rescale(void **state)
{
	(void)state;
	/* half_life 1: the weight doubles or so with every access and passes 2^500 many times in this
	 * run. */
	struct policy_reference *m = mem_new(1, sizeof *m);
	const int32_t list_keys[1] = {N_KEYS};
	for (int i = 0; i < N_KEYS; i++)
		m->list[i] = -1;
	m->p.ops = &policy_lfu;
	m->p.env = (struct policy_env){.n_keys = N_KEYS,
		.n_lists = 1,
		.list_keys = list_keys,
		.last_use = m->last_use,
		.evictable = evictable,
		.ctx = m,
		.half_life = 1};
	assert_int_equal(policy_lfu.init(&m->p), 0);
	for (int step = 0; step < 20000; step++) {
		int32_t key = step % 8;
		m->last_use[key] = (uint64_t)step + 1;
		policy_lfu.access(&m->p, key);
		if (m->list[key] < 0) {
			policy_lfu.insert(&m->p, 0, key);
			m->list[key] = 0;
		}
		/* a cycle through 8 keys: the one that comes next is always the one with the least score */
		if (step > 8)
			assert_int_equal(policy_lfu.victim(&m->p, 0, POLICY_ANY_AGE), (step + 1) % 8);
	}
	policy_lfu.fini(&m->p);
	free(m);
}

static void test_registry(void **state)
{
	(void)state;
	assert_ptr_equal(policy_find("lru"), &policy_lru);
	assert_ptr_equal(policy_find("lfu"), &policy_lfu);
	assert_ptr_equal(policy_find("sieve"), &policy_sieve);
	assert_ptr_equal(policy_find("belady"), &policy_belady);
	assert_null(policy_find("arc"));
	assert_null(policy_find(""));
	int n = 0;
	for (; policy_list(n); n++) {
		assert_false(policy_list(n)->needs_future);
		assert_ptr_equal(policy_find(policy_list(n)->name), policy_list(n));
	}
	assert_int_equal(n, 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_against_reference),
		cmocka_unit_test(test_lfu_rescale),
		cmocka_unit_test(test_registry),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
