/* SPDX-License-Identifier: MIT */
/* Slices of prompts against steps whose cost is known. */
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/serve/compute/slices.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

struct machine {
	double fixed, each; /* ns */
	uint32_t flat;      /* up to so many rows a step costs the same */
	double noise;
};

static double cost(const struct machine *m, uint32_t rows)
{
	return m->fixed + m->each * (double)(rows > m->flat ? rows : m->flat);
}

/* Reads a prompt in slices behind one whole step. Returns its time over that of whole steps;
 * *longest: the longest slice, without the first two. */
static double read_prompt(
	const struct machine *m, double target, uint32_t n, uint32_t most, double *longest)
{
	struct slice_costs c = {0};
	struct rng r = {3};
	double sliced = 0, whole = 0;
	*longest = 0;
	slices_note(&c, most, (uint64_t)cost(m, most));
	for (uint32_t left = n, k = 0; left; k++) {
		uint32_t rows = slices_rows(&c, (uint64_t)target, most);
		assert_in_range(rows, 1, most);
		rows = MIN(rows, left);
		double t = cost(m, rows) * (1 + m->noise * (rng_unit(&r) - 0.5));
		slices_note(&c, rows, (uint64_t)t);
		sliced += t;
		*longest = k > 1 && t > *longest ? t : *longest;
		left -= rows;
	}
	for (uint32_t left = n; left; left -= MIN(left, most))
		whole += cost(m, MIN(left, most));
	return sliced / whole;
}

static void test_costs(void **state)
{
	(void)state;
	double longest;
	assert_int_equal(slices_rows(&(struct slice_costs){0}, 1000, 512), 512);
	/* rows cost the same wherever they are: short slices, in time */
	const struct machine linear = {.each = 1e6};
	assert_true(read_prompt(&linear, 40e6, 8192, 1024, &longest) < 1.01);
	assert_true(longest < 45e6);
	/* a small fixed part */
	const struct machine some = {.fixed = 10e6, .each = 1e6};
	assert_true(read_prompt(&some, 40e6, 8192, 1024, &longest) < SLICE_LOSS + 0.02);
	assert_true(longest < 100e6); /* of the 1034 ms of a whole step */
	/* nothing but a fixed part: only whole steps will do */
	const struct machine fixed = {.fixed = 300e6};
	assert_true(read_prompt(&fixed, 40e6, 8192, 1024, &longest) < 1.2);
	/* all experts are read, flat below 400 rows */
	const struct machine card = {.fixed = 50e6, .each = 0.3e6, .flat = 400};
	assert_true(read_prompt(&card, 40e6, 16384, 2048, &longest) < 1.2);
	assert_true(longest < cost(&card, 2048));
	const struct machine noisy = {.fixed = 20e6, .each = 0.5e6, .noise = 0.3};
	assert_true(read_prompt(&noisy, 40e6, 16384, 1024, &longest) < 1.25);
}

/* A machine that becomes slower is noticed. */
static void test_costs_change(void **state)
{
	(void)state;
	struct slice_costs c = {0};
	for (int i = 0; i < 50; i++)
		slices_note(&c, i % 2 ? 512 : 64, i % 2 ? 512000 : 64000);
	assert_in_range(slices_rows(&c, 100000, 512), 95, 105);
	for (int i = 0; i < 50; i++)
		slices_note(&c, i % 2 ? 512 : 64, i % 2 ? 1024000 : 128000);
	assert_in_range(slices_rows(&c, 100000, 512), 47, 53);
}

/* Any prompts, read to their ends in steps of any room: no part is, or leaves, few rows. */
static void test_divide(void **state)
{
	(void)state;
	struct rng r = {5};
	for (int round = 0; round < 3000; round++) {
		uint32_t few = round % 3 ? 16 : 0, n = 1 + rng_below(&r, 6), left = n, rest[6], rows[6];
		struct slice_step step = {.few = few, .most = 2 * few + 2 + rng_below(&r, 100)};
		for (uint32_t i = 0; i < n; i++)
			rest[i] = few + 1 + rng_below(&r, round % 2 ? 40 : 400);
		for (int steps = 0; left; steps++) {
			step.room = 1 + rng_below(&r, step.most + 10);
			step.slice = 1 + rng_below(&r, step.most);
			step.others = rng_below(&r, 2);
			uint32_t total = slices_divide(&step, rest, n, rows), sum = 0;
			for (uint32_t i = 0; i < n; i++)
				sum += rows[i];
			assert_int_equal(sum, total);
			assert_in_range(total, 1, MIN(step.most, MAX(step.room, few + 1) + few));
			for (uint32_t i = left = 0; i < n; i++) {
				assert_true(rows[i] <= rest[i] && (!rows[i] || rows[i] > few));
				rest[i] -= rows[i];
				assert_true(!rest[i] || rest[i] > few);
				if (rest[i])
					rest[left++] = rest[i];
			}
			n = left;
			assert_true(steps < 3000);
		}
	}
}

/* A prompt that ends has its rows first. The step is then no longer than a slice, or than its rows
 * and as many for the others. */
static void test_divide_ends(void **state)
{
	(void)state;
	struct slice_step step = {.room = 512, .most = 512, .slice = 100};
	const uint32_t rest[] = {5000, 40, 3000};
	uint32_t rows[3];
	assert_int_equal(slices_divide(&step, rest, 3, rows), 100);
	assert_true(rows[0] == 30 && rows[1] == 40 && rows[2] == 30);
	step.slice = 20;
	assert_int_equal(slices_divide(&step, rest, 3, rows), 40);
	assert_true(!rows[0] && rows[1] == 40 && !rows[2]);
	step.others = true;
	assert_int_equal(slices_divide(&step, rest, 3, rows), 80);
	assert_true(rows[0] == 20 && rows[1] == 40 && rows[2] == 20);
	assert_int_equal(slices_divide(&step, rest, 1, rows), 512); /* nobody ends */
	assert_int_equal(slices_divide(&step, rest + 1, 1, rows), 40);
	assert_int_equal(slices_divide(&step, rest, 0, rows), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_costs),
		cmocka_unit_test(test_costs_change),
		cmocka_unit_test(test_divide),
		cmocka_unit_test(test_divide_ends),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
