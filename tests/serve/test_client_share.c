/* SPDX-License-Identifier: MIT */
/* What one client may hold, who is next, and who is who. */
#include "src/base/num.h"
#include "src/serve/budget.h"
#include "src/serve/client_share.h"
#include "src/serve/http/identity.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <setjmp.h>
#include <string.h>
#include <cmocka.h>

#define LIMIT 100

/* Takes one by one until it is refused; returns how many the client has then. */
static size_t take_all(struct client *c, size_t *held)
{
	while (*held < LIMIT && client_take(c, CLIENT_PLACES, 1, *held, LIMIT))
		++*held;
	return client_held(c, CLIENT_PLACES);
}

static void test_shares(void **state)
{
	(void)state;
	struct client_shares *s = client_shares_new(75);
	struct client *a = client_find(s, "a", 1), *b = client_find(s, "b", 1),
				  *c = client_find(s, "c", 1);
	size_t held = 0;
	assert_int_equal(take_all(a, &held), 75); /* alone: its part of everything */
	assert_int_equal(take_all(b, &held), 19); /* of 25 */
	assert_int_equal(take_all(c, &held), 5);  /* of 6: somebody who comes late finds room */
	assert_false(client_take(a, CLIENT_PLACES, 1, held, LIMIT));
	/* what a lets go, the others may have, until all hold the same */
	for (int i = 0; i < 200; i++) {
		client_give(a, CLIENT_PLACES, 1);
		held--;
		take_all(b, &held);
		take_all(c, &held);
		take_all(a, &held);
	}
	size_t least = SIZE_MAX, most = 0;
	struct client *all[] = {a, b, c};
	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		least = MIN(least, client_held(all[i], CLIENT_PLACES));
		most = MAX(most, client_held(all[i], CLIENT_PLACES));
	}
	assert_true(most - least <= 3 && held >= 85);
	/* one free place of few is for who holds none */
	struct client *d = client_find(s, "d", 1);
	assert_true(client_take(d, CLIENT_CONNECTIONS, 1, 3, 4));
	assert_false(client_take(d, CLIENT_CONNECTIONS, 1, 4, 4));
	struct client_stats stats = client_shares_stats(s);
	assert_int_equal(stats.clients, 4);
	assert_true(stats.refused[CLIENT_PLACES] > 3 && stats.refused[CLIENT_CONNECTIONS] == 1);
	assert_ptr_equal(client_find(s, "a", 1), a);
	client_drop(a);
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		client_drop(all[i]);
	client_drop(d);
	assert_int_equal(client_shares_stats(s).clients, 0);
	client_shares_free(s);
	/* a share of 100 is no bound, nor is one on nobody */
	s = client_shares_new(100);
	a = client_find(s, "a", 1);
	held = 0;
	assert_int_equal(take_all(a, &held), LIMIT);
	assert_true(client_take(NULL, CLIENT_PLACES, 1000, 0, 1));
	client_drop(a);
	client_shares_free(s);
}

static void test_rank(void **state)
{
	(void)state;
	struct client_shares *s = client_shares_new(75);
	struct client *a = client_find(s, "a", 1), *b = client_find(s, "b", 1);
	client_begin_answer(a, 1);
	assert_true(client_rank(a) > client_rank(b));
	client_begin_answer(b, 2);
	assert_true(client_rank(b) > client_rank(a)); /* as many, but later */
	client_end_answer(b);
	assert_true(client_rank(b) < client_rank(a));
	client_end_answer(a);
	assert_true(client_rank(b) > client_rank(a)); /* none runs: in turn */
	client_drop(a);
	client_drop(b);
	client_shares_free(s);
}

/* One session: a client with a second answer waits, while others each send one, leave, and come
 * back as new clients. It is served after each of them once. */
static void test_rank_of_those_who_come_back(void **state)
{
	(void)state;
	struct client_shares *s = client_shares_new(75);
	struct client *a = client_find(s, "a", 1);
	client_begin_answer(a, 1);
	struct client *others[] = {client_find(s, "b", 1), client_find(s, "c", 1)};
	client_end_answer(a);
	uint32_t n_before = 0;
	for (; n_before < 20; n_before++) {
		size_t k = client_rank(others[1]) < client_rank(others[0]);
		if (client_rank(a) <= client_rank(others[k])) /* among equals it came first */
			break;
		client_begin_answer(others[k], n_before + 2);
		client_end_answer(others[k]);
		client_drop(others[k]);
		others[k] = client_find(s, &"bc"[k], 1);
	}
	assert_int_equal(n_before, 2);
	client_drop(a);
	for (size_t k = 0; k < ARRAY_LEN(others); k++)
		client_drop(others[k]);
	client_shares_free(s);
}

static void test_memory(void **state)
{
	(void)state;
	struct client_shares *s = client_shares_new(75);
	struct budget budget = {.limit = 1000};
	struct client *a = client_find(s, "a", 1), *b = client_find(s, "b", 1);
	struct budget_part one = {&budget, client_hold(a), 0}, two = {&budget, client_hold(a), 0},
					   other = {&budget, client_hold(b), 0};
	assert_int_equal(budget_hold(&one, 501), BUDGET_TOO_LARGE);
	assert_int_equal(budget_hold(&one, 500), BUDGET_TAKEN);
	assert_int_equal(budget_hold(&two, 251), BUDGET_SHARE);
	assert_int_equal(budget_hold(&two, 250), BUDGET_TAKEN);
	assert_int_equal(budget_hold(&other, 251), BUDGET_FULL);
	assert_int_equal(budget_hold(&other, 180), BUDGET_TAKEN);
	assert_int_equal(client_held(a, CLIENT_MEMORY), 750);
	assert_int_equal(budget_hold(&one, 100), BUDGET_TAKEN); /* less */
	assert_int_equal(client_held(a, CLIENT_MEMORY), 350);
	budget_count(&one, 900); /* more than the limit together: nobody else gets any */
	assert_int_equal(atomic_load(&budget.held), 900 + 250 + 180);
	assert_int_equal(client_held(a, CLIENT_MEMORY), 900 + 250);
	assert_int_equal(budget_hold(&other, 181), BUDGET_FULL);
	assert_int_equal(budget_hold(&other, 100), BUDGET_TAKEN);
	budget_count(&one, 100);
	assert_int_equal(budget_hold(&other, 181), BUDGET_TAKEN);
	assert_int_equal(atomic_load(&budget.peak), 900 + 250 + 180);
	budget_release(&one);
	budget_release(&two);
	budget_release(&other);
	assert_int_equal(client_held(a, CLIENT_MEMORY), 0);
	assert_int_equal(atomic_load(&budget.held), 0);
	client_drop(a);
	client_drop(b);
	assert_int_equal(client_shares_stats(s).clients, 0);
	client_shares_free(s);
}

static bool same(struct identity a, struct identity b)
{
	return a.n && a.n == b.n && !memcmp(a.id, b.id, a.n);
}

static void test_identity(void **state)
{
	(void)state;
	struct sockaddr_in four = {.sin_family = AF_INET};
	struct sockaddr_in6 six = {.sin6_family = AF_INET6}, near = six;
	const struct sockaddr *a4 = (const struct sockaddr *)&four, *a6 = (const struct sockaddr *)&six;
	inet_pton(AF_INET, "192.0.2.7", &four.sin_addr);
	inet_pton(AF_INET6, "2001:db8:1:2::1", &six.sin6_addr);
	inet_pton(AF_INET6, "2001:db8:1:2:ffff::9", &near.sin6_addr);
	struct identity id4 = identity_of_address(a4), id6 = identity_of_address(a6);
	assert_true(same(id6, identity_of_address((const struct sockaddr *)&near)));
	assert_false(same(id4, id6));
	/* a proxy's header: what stands before the last comma was written by the client */
	assert_true(same(id4, identity_of_forwarded("192.0.2.7")));
	assert_true(same(id4, identity_of_forwarded("10.0.0.1, 192.0.2.7")));
	assert_true(same(id4, identity_of_forwarded("10.0.0.1,\t192.0.2.7:5123 ")));
	assert_true(same(id4, identity_of_forwarded("::ffff:192.0.2.7")));
	assert_false(same(id4, identity_of_forwarded("192.0.2.7, 10.0.0.1")));
	assert_true(same(id6, identity_of_forwarded("[2001:db8:1:2::1]:80")));
	static const char *const nobody[] = {"", ",", "unknown", "192.0.2.7,", "192.0.2",
		"[2001:db8::1",
		"1111111111111111111111111111111111111111111111111111111111111111111111111111111"};
	for (size_t i = 0; i < ARRAY_LEN(nobody); i++)
		assert_int_equal(identity_of_forwarded(nobody[i]).n, 0);
	assert_true(identity_is(a4, "192.0.2.7") && identity_is(a4, "::ffff:192.0.2.7"));
	assert_true(identity_is(a6, "2001:db8:1:2::1"));
	assert_false(
		identity_is((const struct sockaddr *)&near, "2001:db8:1:2::1")); /* trust is exact */
	assert_false(identity_is(a4, NULL) || identity_is(a4, "192.0.2.8"));
	assert_true(identity_is_address("::1") && !identity_is_address("localhost"));
	/* keys */
	assert_int_equal(identity_find_key("one", "Bearer one", NULL), 0);
	assert_int_equal(identity_find_key("one,two", NULL, "two"), 1);
	assert_int_equal(identity_find_key("one,two", "bearer two", "three"), 1);
	static const char *const wrong[] = {"", "one,two", "on", "onee", "two ", ","};
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
		assert_int_equal(identity_find_key("one,two,", NULL, wrong[i]), -1);
	assert_int_equal(identity_find_key("one", "Basic one", NULL), -1);
	assert_int_equal(identity_find_key("one", NULL, NULL), -1);
	assert_true(
		identity_has_several("a,b") && !identity_has_several("a") && !identity_has_several(NULL));
	assert_false(same(identity_of_key(0), identity_of_key(1)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shares),
		cmocka_unit_test(test_rank),
		cmocka_unit_test(test_rank_of_those_who_come_back),
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_identity),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
