/* SPDX-License-Identifier: MIT */
/* Which numbers of rows are captured: those that come often, and few of them at a time. */
#include "src/forward/step_counts.h"

#include "src/base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static void test_few_rows_and_too_many(void **state)
{
	(void)state;
	struct step_counts c = {{0}, 0};
	for (int i = 0; i < 3 * STEP_COUNTS_WINDOW; i++) {
		assert_true(step_counts_add(&c, 1 + i % GRAPH_ROWS_FEW));
		assert_false(step_counts_add(&c, GRAPH_ROWS + 1));
		assert_false(step_counts_add(&c, 100000));
	}
	assert_int_equal(c.n, 0); /* they say nothing of the others */
}

/* A load that stays the same, and one that changes. */
static void test_loads(void **state)
{
	(void)state;
	struct step_counts c = {{0}, 0};
	for (uint32_t rows = GRAPH_ROWS; rows > GRAPH_ROWS_FEW; rows -= 5)
		for (int i = 1; i <= 1000; i++) {
			bool captured = step_counts_add(&c, rows);
			if (captured ? i < STEP_COUNTS_SHARE : i >= 2 * STEP_COUNTS_SHARE)
				fail_msg("step %d of %u rows: captured %d", i, rows, captured);
		}
	/* two numbers in turns */
	bool both = true;
	for (int i = 0; i < 1000; i++) {
		bool captured = step_counts_add(&c, i % 2 ? 20 : 30);
		both &= captured || i < 4 * STEP_COUNTS_SHARE;
	}
	assert_true(both);
}

/* A different number in each step: none comes often. */
static void test_random_numbers(void **state)
{
	(void)state;
	struct step_counts c = {{0}, 0};
	struct rng r = {3};
	int captured = 0;
	for (int i = 0; i < 100000; i++)
		captured +=
			step_counts_add(&c, GRAPH_ROWS_FEW + 1 + rng_below(&r, GRAPH_ROWS - GRAPH_ROWS_FEW));
	assert_in_range(captured, 0, 10);
	/* at any time only so many can be captured */
	int often = 0;
	for (uint32_t rows = GRAPH_ROWS_FEW + 1; rows <= GRAPH_ROWS; rows++)
		often += c.of[rows] >= STEP_COUNTS_WINDOW / STEP_COUNTS_SHARE;
	assert_in_range(often, 0, STEP_COUNTS_SHARE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_few_rows_and_too_many),
		cmocka_unit_test(test_loads),
		cmocka_unit_test(test_random_numbers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
