/* SPDX-License-Identifier: MIT */
/* MIN and MAX: each argument once, the common type, nested; checked sums and products;
 * intervals. */
#include "src/base/num.h"

#include "src/base/rng.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

static void test_evaluated_once(void **state)
{
	(void)state;
	int i = 0, j = 10;
	assert_int_equal(MIN(i++, j++), 0);
	assert_int_equal(MAX(i++, j++), 11);
	assert_int_equal(i, 2);
	assert_int_equal(j, 12);
	assert_int_equal(MAX(MIN(i++, 7), MIN(j++, 5)), 5);
	assert_true(i == 3 && j == 13);
}

/* The smaller of two draws below n is below n / 2 three times in four. */
static void test_skewed_draws(void **state)
{
	(void)state;
	struct rng r = {1};
	int low = 0;
	for (int i = 0; i < 10000; i++)
		low += MIN(rng_below(&r, 100), rng_below(&r, 100)) < 50;
	assert_true(low > 7300 && low < 7700);
}

static void test_types(void **state)
{
	(void)state;
	assert_true(MIN(1u, UINT64_MAX) == 1 && sizeof(MIN((uint32_t)1, UINT64_MAX)) == 8);
	assert_true(MAX((uint8_t)200, 100) == 200);
	assert_true(MIN(-1, 1.5) < -0.9);
	const int a = 3, b = 4;
	assert_int_equal(MAX(a, b), 4);
}

static void test_checked(void **state)
{
	(void)state;
	uint64_t v;
	assert_true(num_add(UINT64_MAX - 1, 1, &v) && v == UINT64_MAX);
	assert_false(num_add(UINT64_MAX, 1, &v));
	assert_true(num_mul(1ull << 32, (1ull << 32) - 1, &v));
	assert_false(num_mul(1ull << 32, 1ull << 32, &v));
	assert_true(num_align_up(4097, 4096) == 8192 && num_align_down(4097, 4096) == 4096);
	assert_true(num_is_pow2(64) && !num_is_pow2(0) && !num_is_pow2(65));
}

/* Against a search from the front, with empty intervals at the ends and in between. */
static void test_intervals(void **state)
{
	(void)state;
	struct rng r = {1};
	for (int round = 0; round < 2000; round++) {
		uint64_t first[12] = {rng_below(&r, 3)};
		const size_t n = 1 + rng_below(&r, 11);
		for (size_t i = 0; i < n; i++)
			first[i + 1] = first[i] + rng_below(&r, 4);
		for (uint64_t v = first[0]; v < first[n]; v++) {
			size_t i = 0;
			while (v >= first[i + 1])
				i++;
			assert_int_equal(num_interval_of(first, n, v), i);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_evaluated_once),
		cmocka_unit_test(test_skewed_draws),
		cmocka_unit_test(test_types),
		cmocka_unit_test(test_checked),
		cmocka_unit_test(test_intervals),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
