/* SPDX-License-Identifier: MIT */
/* --cards: its numbers, and the card of which bench measures limits. */
#include "src/engine/engine.h"
#include "tools/options/common_opts.h"

#include "src/base/num.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_cards(void **state)
{
	static const struct {
		const char *text;
		int code;
		uint32_t n, first, last;
	} cases[] = {
		{NULL, 0, 0, 0, 0},
		{"auto", 0, ENGINE_CARDS_AUTO, 0, 0},
		{"0", 0, 1, 0, 0},
		{"3", 0, 1, 3, 3},
		{"2,0,11", 0, 3, 2, 11},
		{"", ERR_USAGE, 0, 0, 0},
		{"1,", ERR_USAGE, 0, 0, 0},
		{"1,x", ERR_USAGE, 0, 0, 0},
		{"10000", ERR_USAGE, 0, 0, 0},
	};
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const struct common_opts c = {.cards = cases[i].text};
		struct common_cards cards;
		struct err e = {0};
		assert_int_equal(common_opts_cards(&c, &cards, &e), cases[i].code);
		assert_int_equal(common_opts_first_card(&c), cases[i].first);
		if (cases[i].code)
			continue;
		assert_int_equal(cards.n, cases[i].n);
		if (cards.n && cards.n != ENGINE_CARDS_AUTO)
			assert_int_equal(cards.card[cards.n - 1], cases[i].last);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_cards)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
