/* SPDX-License-Identifier: MIT */
/* Whose answers are computed next: clients get the same time, whatever their answers cost. */
#include "src/base/num.h"
#include "src/serve/compute/client_time.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <cmocka.h>

#define STEP 1000 /* ns */

/* One step of two clients with n answers each, n 0: none: those that may write do, and each of
 * their answers costs `cost`. Returns the ns that it took. */
static uint64_t step_of(struct client_times *t, struct client_time *const *of, const uint32_t *n,
	const uint64_t *cost, uint64_t *got)
{
	struct client_time *could[2];
	uint32_t count = 0;
	uint64_t took = 0;
	for (int i = 0; i < 2; i++)
		if (n[i])
			could[count++] = of[i];
	client_time_least(t, could, count, CLIENT_WRITES);
	for (int i = 0; i < 2; i++) {
		if (!n[i] || !client_time_may(t, of[i], CLIENT_WRITES, STEP))
			continue;
		for (uint32_t k = 0; k < n[i]; k++)
			client_time_charge(of[i], CLIENT_WRITES, cost[i]);
		got[i] += n[i] * cost[i];
		took += n[i] * cost[i];
	}
	return took;
}

static void test_same_time(void **state)
{
	(void)state;
	static const struct {
		uint32_t n[2];
		uint64_t cost[2];
	} cases[] = {
		{{16, 1}, {100, 100}}, {{1, 1}, {100, 100}}, {{1, 1}, {5000, 100}}, {{3, 7}, {100, 90}}};
	struct client_shares *shares = client_shares_new(75);
	struct client *a = client_find(shares, "a", 1), *b = client_find(shares, "b", 1);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct client_times t = {0};
		struct client_time *of[2] = {
			client_time_join(&t, a, CLIENT_WRITES), client_time_join(&t, b, CLIENT_WRITES)};
		uint64_t got[2] = {0}, most = 0, all = 0;
		for (int k = 0; k < 2; k++)
			most = MAX(most, cases[i].n[k] * cases[i].cost[k]);
		while (all < 1000 * STEP) {
			uint64_t took = step_of(&t, of, cases[i].n, cases[i].cost, got);
			assert_true(took > 0); /* somebody always may */
			all += took;
		}
		uint64_t apart = got[0] > got[1] ? got[0] - got[1] : got[1] - got[0];
		assert_true(apart <= STEP + most);
		client_time_leave(&t, of[0], CLIENT_WRITES);
		client_time_leave(&t, of[1], CLIENT_WRITES);
		client_times_fini(&t);
	}
	client_drop(a);
	client_drop(b);
	assert_int_equal(client_shares_stats(shares).clients, 0); /* the table holds nobody */
	client_shares_free(shares);
}

/* Who waited for other reasons or comes late has no claim on the past. */
static void test_idle_earns_nothing(void **state)
{
	(void)state;
	static const uint64_t cost[2] = {100, 100};
	struct client_shares *shares = client_shares_new(75);
	struct client *a = client_find(shares, "a", 1), *b = client_find(shares, "b", 1);
	struct client_times t = {0};
	struct client_time *of[2] = {
		client_time_join(&t, a, CLIENT_WRITES), client_time_join(&t, b, CLIENT_WRITES)};
	uint64_t got[2] = {0};
	for (int k = 0; k < 1000; k++)
		step_of(&t, of, (const uint32_t[2]){1, 0}, cost, got);
	assert_int_equal(got[1], 0);
	got[0] = 0;
	for (int k = 0; k < 1000; k++)
		step_of(&t, of, (const uint32_t[2]){1, 1}, cost, got);
	assert_true(got[0] + 2 * STEP >= got[1]);
	client_time_leave(&t, of[0], CLIENT_WRITES);
	client_time_leave(&t, of[1], CLIENT_WRITES);
	client_drop(a);
	client_drop(b);
	client_shares_free(shares);
}

/* A client that has gone ahead and leaves is behind nobody when it comes back, until the others
 * have caught up. */
static void test_debts_stay(void **state)
{
	(void)state;
	struct client_shares *shares = client_shares_new(75);
	struct client *b = client_find(shares, "b", 1);
	struct client_times t = {0};
	struct client_time *steady = client_time_join(&t, b, CLIENT_WRITES);
	uint64_t steps = 0;
	for (int k = 0; k < 20; k++) { /* answers of one dear draw, each on a connection of its own */
		struct client *a = client_find(shares, "a", 1);
		struct client_time *of[2] = {client_time_join(&t, a, CLIENT_WRITES), steady};
		for (;; steps++) {
			client_time_least(&t, of, 2, CLIENT_WRITES);
			if (client_time_may(&t, of[0], CLIENT_WRITES, STEP))
				break;
			client_time_charge(steady, CLIENT_WRITES, STEP);
		}
		client_time_charge(of[0], CLIENT_WRITES, 100 * STEP);
		client_time_leave(&t, of[0], CLIENT_WRITES);
		client_drop(a);
	}
	assert_true(steps >= 19 * 99);
	/* whoever is remembered is forgotten: when caught up, when nobody computes, for want of room */
	struct client_time *none = NULL;
	assert_null(client_time_join(&t, NULL, CLIENT_WRITES));
	assert_true(client_time_may(&t, none, CLIENT_WRITES, 0));
	for (uint32_t k = 0; k < 3 * CLIENT_TIMES_MAX; k++) {
		char id[8];
		int n = snprintf(id, sizeof id, "c%u", k);
		struct client *c = client_find(shares, id, (size_t)n);
		struct client_time *of = client_time_join(&t, c, CLIENT_READS);
		client_time_charge(of, CLIENT_READS, STEP);
		client_time_leave(&t, of, CLIENT_READS);
		client_drop(c);
	}
	assert_in_range(client_shares_stats(shares).clients, 2, CLIENT_TIMES_MAX);
	client_time_leave(&t, steady, CLIENT_WRITES);
	client_drop(b);
	assert_int_equal(client_shares_stats(shares).clients, 0);
	client_shares_free(shares);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_time),
		cmocka_unit_test(test_idle_earns_nothing),
		cmocka_unit_test(test_debts_stay),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
