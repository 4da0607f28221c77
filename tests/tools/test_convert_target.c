/* SPDX-License-Identifier: MIT */
/* The choice of options within a budget, against all choices of small cases. */
#include "src/base/num.h"
#include "tools/convert/convert_target.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GROUPS 5

static uint64_t seed = 1;

static uint32_t draw(uint32_t n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(seed >> 33) % n;
}

/* Options in any order: larger ones that are worse, equal ones, convex and not. */
static void draw_groups(struct target_group *g)
{
	memset(g, 0, GROUPS * sizeof *g);
	for (int i = 0; i < GROUPS; i++) {
		g[i].n = 1 + draw(4);
		for (uint32_t k = 0; k < g[i].n; k++)
			g[i].option[k] = (struct target_option){1 + draw(20), draw(64) / 8.0};
	}
}

static double loss_of(const struct target_group *g, const uint32_t *choice, uint64_t *bytes)
{
	double loss = 0;
	*bytes = 0;
	for (int i = 0; i < GROUPS; i++) {
		loss += g[i].option[choice[i]].loss;
		*bytes += g[i].option[choice[i]].bytes;
	}
	return loss;
}

/* The least loss of all choices within the budget; negative: none fits. */
static double least_loss(const struct target_group *g, uint64_t budget)
{
	uint32_t choice[GROUPS] = {0};
	double best = -1;
	for (int i = 0; i < GROUPS;) {
		uint64_t bytes;
		const double loss = loss_of(g, choice, &bytes);
		if (bytes <= budget && (best < 0 || loss < best))
			best = loss;
		for (i = 0; i < GROUPS && ++choice[i] == g[i].n; i++)
			choice[i] = 0;
	}
	return best;
}

static void choice_is_optimal_at_its_bytes(void **state)
{
	(void)state;
	struct target_group g[GROUPS];
	uint32_t choice[GROUPS];
	uint64_t bytes, sum;
	int refused = 0, upgraded = 0;
	for (int n = 0; n < 2000; n++) {
		draw_groups(g);
		const uint64_t budget = draw(110);
		const bool fits = convert_target_choose(g, GROUPS, budget, choice, &bytes);
		const double loss = loss_of(g, choice, &sum);
		assert_int_equal(sum, bytes);
		assert_int_equal(fits, least_loss(g, budget) >= 0);
		assert_int_equal(fits, bytes <= budget);
		refused += !fits;
		/* eighths add up without rounding */
		assert_true(loss == least_loss(g, bytes));
		uint32_t least[GROUPS];
		uint64_t least_bytes;
		convert_target_choose(g, GROUPS, 0, least, &least_bytes);
		upgraded += fits && bytes > least_bytes;
	}
	assert_true(refused > 100 && upgraded > 500);
}

static void more_budget_is_never_worse(void **state)
{
	(void)state;
	struct target_group g[GROUPS];
	for (int n = 0; n < 200; n++) {
		uint32_t before[GROUPS], choice[GROUPS];
		uint64_t bytes;
		draw_groups(g);
		convert_target_choose(g, GROUPS, 0, before, &bytes);
		for (uint64_t budget = 0; budget <= 110; budget++) {
			convert_target_choose(g, GROUPS, budget, choice, &bytes);
			for (int i = 0; i < GROUPS; i++) {
				const struct target_option *a = &g[i].option[before[i]],
										   *b = &g[i].option[choice[i]];
				assert_true(b->bytes >= a->bytes && b->loss <= a->loss);
			}
			memcpy(before, choice, sizeof before);
		}
		/* in the end every group has its least loss */
		for (int i = 0; i < GROUPS; i++)
			for (uint32_t k = 0; k < g[i].n; k++)
				assert_true(g[i].option[choice[i]].loss <= g[i].option[k].loss);
	}
}

static void what_is_left_is_less_than_an_upgrade(void **state)
{
	(void)state;
	const struct target_group g[2] = {{2, {{10, 8}, {20, 0}}}, /* 0.8 a byte */
		{3, {{10, 4}, {14, 2}, {30, 1}}}};
	uint32_t choice[2];
	uint64_t bytes;
	assert_false(convert_target_choose(g, 2, 19, choice, &bytes));
	assert_int_equal(bytes, 20);
	assert_true(convert_target_choose(g, 2, 29, choice, &bytes));
	assert_int_equal(bytes, 20);
	assert_true(convert_target_choose(g, 2, 33, choice, &bytes));
	assert_int_equal(bytes, 30);
	assert_true(convert_target_choose(g, 2, 34, choice, &bytes));
	assert_true(bytes == 34 && choice[0] == 1 && choice[1] == 1);
	assert_true(convert_target_choose(g, 2, UINT64_MAX, choice, &bytes));
	assert_true(bytes == 50 && choice[1] == 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(choice_is_optimal_at_its_bytes),
		cmocka_unit_test(more_budget_is_never_worse),
		cmocka_unit_test(what_is_left_is_less_than_an_upgrade),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
