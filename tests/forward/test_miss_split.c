/* SPDX-License-Identifier: MIT */
/* The split of misses between processor and link, against all splits. */
#include "stream/miss_split.h"

#include "src/base/num.h"
#include "src/base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define MOST     8
#define NODES    2
#define START_NS 20000.0 /* as in miss_split.c */

/* When the later side ends, and what stays. bits: the processor's. */
static double cost_of(const struct miss *m, int n, unsigned bits, double busy_ns)
{
	double host = 0, link = busy_ns + START_NS, stay = 0, node[NODES + 1] = {0};
	bool copies = false;
	for (int i = 0; i < n; i++) {
		if (bits >> i & 1) {
			node[m[i].node] += m[i].host_ns;
			host = MAX(host, node[m[i].node]);
			stay += MISS_STAY_COPIES * m[i].link_ns;
		} else {
			link += m[i].link_ns;
			copies = true;
		}
	}
	return stay + (copies ? MAX(host, link) : host);
}

static unsigned bits_of(const struct miss *m, int n)
{
	unsigned bits = 0;
	for (int i = 0; i < n; i++)
		bits |= (unsigned)m[i].on_host << i;
	return bits;
}

static double best_of(const struct miss *m, int n, double busy_ns)
{
	double best = cost_of(m, n, 0, busy_ns);
	for (unsigned bits = 1; bits < 1u << n; bits++)
		best = MIN(best, cost_of(m, n, bits, busy_ns));
	return best;
}

/* Each of the caller's misses is there once, with its times. */
static void check_kept(const struct miss *before, const struct miss *after, int n)
{
	unsigned seen = 0;
	for (int i = 0; i < n; i++) {
		const struct miss *b = &before[after[i].ref];
		assert_true(b->node == after[i].node && b->host_ns == after[i].host_ns &&
					b->link_ns == after[i].link_ns);
		seen |= 1u << after[i].ref;
	}
	assert_int_equal(seen, (1u << n) - 1);
}

/* Equal experts: no split costs less. */
static void test_equal(void **state)
{
	(void)state;
	struct rng r = {1};
	bool both = false, none = false, all = false;
	for (int round = 0; round < 3000; round++) {
		struct miss m[MOST], before[MOST];
		const int n = (int)rng_below(&r, MOST + 1);
		const double host = 1 + rng_below(&r, 400000), link = 1 + rng_below(&r, 400000),
					 busy = rng_below(&r, 3) * 150000.0;
		for (int i = 0; i < n; i++)
			before[i] = m[i] = (struct miss){.ref = i, .host_ns = host, .link_ns = link};
		miss_split(m, n, busy);
		check_kept(before, m, n);
		unsigned bits = bits_of(m, n);
		assert_true(cost_of(m, n, bits, busy) <= best_of(m, n, busy) * (1 + 1e-12));
		none |= n && !bits;
		all |= n && bits == (1u << n) - 1;
		both |= bits && bits != (1u << n) - 1;
	}
	assert_true(none && all && both);
}

/* Equal experts on nodes of unequal rates: no split costs less, and a node of which all lie is
 * not given all. */
static void test_nodes(void **state)
{
	(void)state;
	struct rng r = {3};
	bool both = false;
	for (int round = 0; round < 3000; round++) {
		struct miss m[MOST], before[MOST];
		const int n = (int)rng_below(&r, MOST + 1);
		const double host[NODES + 1] = {0, 1 + rng_below(&r, 400000), 1 + rng_below(&r, 400000)},
								  link = 1 + rng_below(&r, 400000),
								  busy = rng_below(&r, 3) * 150000.0;
		for (int i = 0; i < n; i++) {
			const int node = 1 + (int)rng_below(&r, NODES);
			before[i] = m[i] =
				(struct miss){.ref = i, .node = node, .host_ns = host[node], .link_ns = link};
		}
		miss_split(m, n, busy);
		check_kept(before, m, n);
		assert_true(cost_of(m, n, bits_of(m, n), busy) <= best_of(m, n, busy) * (1 + 1e-12));
		bool seen[NODES + 1] = {false};
		for (int i = 0; i < n; i++)
			seen[m[i].node] |= m[i].on_host;
		both |= seen[1] && seen[2];
	}
	assert_true(both);
	/* 6 on the fast node, 2 on the slow one */
	struct miss m[8];
	for (int i = 0; i < 8; i++)
		m[i] = (struct miss){
			.ref = i, .node = 1 + i / 6, .host_ns = i < 6 ? 100000 : 200000, .link_ns = 170000};
	miss_split(m, 8, 0);
	int on[NODES + 1] = {0};
	for (int i = 0; i < 8; i++)
		on[m[i].node] += m[i].on_host;
	assert_int_equal(on[1], 4);
	assert_int_equal(on[2], 2);
}

/* Unlike ones: never more than by one side alone, and at most twice the best split. */
static void test_unlike(void **state)
{
	(void)state;
	struct rng r = {2};
	for (int round = 0; round < 3000; round++) {
		struct miss m[MOST], before[MOST];
		const int n = 1 + (int)rng_below(&r, MOST);
		const double busy = rng_below(&r, 3) * 150000.0;
		for (int i = 0; i < n; i++)
			before[i] = m[i] = (struct miss){.ref = i,
				.host_ns = 1 + rng_below(&r, 400000),
				.link_ns = 1 + rng_below(&r, 400000)};
		miss_split(m, n, busy);
		check_kept(before, m, n);
		const double cost = cost_of(m, n, bits_of(m, n), busy);
		assert_true(cost <= cost_of(m, n, 0, busy) * (1 + 1e-12));
		assert_true(cost <= cost_of(m, n, (1u << n) - 1, busy) * (1 + 1e-12));
		assert_true(cost <= best_of(m, n, busy) * 2);
	}
}

/* A busy link sends work to the processor; a slow processor gets none. */
static void test_by_hand(void **state)
{
	(void)state;
	struct miss m[2] = {{.ref = 0, .host_ns = 100000, .link_ns = 176000},
		{.ref = 1, .host_ns = 100000, .link_ns = 176000}};
	miss_split(m, 1, 0);
	assert_true(m[0].on_host);
	m[0].host_ns = m[1].host_ns = 150000;
	miss_split(m, 2, 0);
	assert_true(m[0].on_host && !m[1].on_host);
	miss_split(m, 2, 300000);
	assert_true(m[0].on_host && m[1].on_host);
	m[0].host_ns = m[1].host_ns = 5000000;
	miss_split(m, 2, 300000);
	assert_true(!m[0].on_host && !m[1].on_host);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_equal),
		cmocka_unit_test(test_nodes),
		cmocka_unit_test(test_unlike),
		cmocka_unit_test(test_by_hand),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
