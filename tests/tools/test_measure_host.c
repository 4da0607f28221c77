/* SPDX-License-Identifier: MIT */
/* The processor and the link measured at the same time, with a card of a thread and host memory;
 * what bench holds against the two together. */
#include "tools/machine/measure_host.h"

#include "src/base/num.h"
#include "tests/support/copier_null.h"
#include "tools/bench/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MODEL   "tools/pocket/pocket.gguf"
#define SECONDS 0.05
#define REPEATS 3

static struct gguf *file;

static int open_model(void **state)
{
	(void)state;
	struct err e = {0};
	return gguf_open(MODEL, &file, &e);
}

static int close_model(void **state)
{
	(void)state;
	gguf_close(file);
	return 0;
}

static bool above_zero(struct bench_spread s)
{
	return s.low > 0 && s.low <= s.median && s.median <= s.high;
}

static void test_both(void **state)
{
	(void)state;
	struct err e = {0};
	struct copier *copier;
	struct measure_host m;
	assert_int_equal(copier_null_open(NULL, &copier, &e), 0);
	assert_int_equal(measure_host(copier, file, 1, SECONDS, REPEATS, &m, &e), 0);
	assert_true(m.there && above_zero(m.alone_bytes_s) && above_zero(m.host_bytes_s));
	assert_true(m.link_bytes_s.high > 0);
	/* a sum of the same sample */
	assert_true(m.both_bytes_s.low >= m.host_bytes_s.low + m.link_bytes_s.low);
	assert_true(m.both_bytes_s.high <= m.host_bytes_s.high + m.link_bytes_s.high);
	copier->ops->close(copier);
}

static void test_no_card(void **state)
{
	(void)state;
	struct err e = {0};
	struct measure_host m;
	assert_int_equal(measure_host(NULL, file, 1, SECONDS, REPEATS, &m, &e), 0);
	assert_true(m.there && above_zero(m.alone_bytes_s));
	assert_true(m.both_bytes_s.high == 0);
}

static void test_copy_fails(void **state)
{
	(void)state;
	const struct copier_faults faults = {.fail_copy = 2, .fail_all = true};
	struct err e = {0};
	struct copier *copier;
	struct measure_host m;
	assert_int_equal(copier_null_open(&faults, &copier, &e), 0);
	assert_true(measure_host(copier, file, 1, SECONDS, REPEATS, &m, &e) < 0);
	assert_true(e.text[0] && !m.there);
	copier->ops->close(copier);
}

static void test_link_ms(void **state)
{
	(void)state;
	struct limits l = {0};
	assert_true(limits_link_ms(&l, 1000, 0, 1) == 0); /* no link */
	l.card.in_bytes_s.median = 50e9;
	assert_true(limits_link_ms(&l, 500000000, 0, 2) == 5);
	l.host.there = true;
	l.host.both_bytes_s.median = 100e9;
	assert_true(limits_link_ms(&l, 400000000, 600000000, 2) == 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_both),
		cmocka_unit_test(test_no_card),
		cmocka_unit_test(test_copy_fails),
		cmocka_unit_test(test_link_ms),
	};
	return cmocka_run_group_tests(tests, open_model, close_model);
}
