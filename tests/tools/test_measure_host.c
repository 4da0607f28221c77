/* SPDX-License-Identifier: MIT */
/* The processor and the link measured at the same time, with a card of a thread and host memory;
 * what bench holds against the two together. */
#include "tools/machine/measure_host.h"

#include "src/base/num.h"
#include "tests/support/copier_null.h"
#include "tools/bench/limits.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
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
	/* on a busy machine the card's thread may not run at all for so long: then longer samples */
	double seconds = SECONDS;
	do {
		assert_int_equal(measure_host(copier, file, 1, seconds, REPEATS, &m, &e), 0);
		assert_true(m.there && above_zero(m.alone_bytes_s) && above_zero(m.host_bytes_s));
		seconds *= 2;
	} while (m.link_bytes_s.high == 0 && seconds < 10);
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
	/* shapes of the pocket model: experts of Q3_K in more layers than those of Q2_K */
	char text[MEASURE_SHAPES_TEXT], number[32];
	double slowest = INFINITY, fastest = 0;
	int layers = 0;
	measure_shapes_text(&m, text);
	assert_true(m.n_shapes >= 2 && m.shapes[0].layers >= m.shapes[m.n_shapes - 1].layers);
	for (int i = 0; i < m.n_shapes; i++) {
		const struct measure_shape *s = &m.shapes[i];
		layers += s->layers;
		slowest = fmin(slowest, s->bytes_s);
		fastest = fmax(fastest, s->bytes_s);
		assert_non_null(strstr(text, dtype_name(s->down)));
		snprintf(number, sizeof number, " %.3g GB/s", s->bytes_s * 1e-9);
		assert_non_null(strstr(text, number));
	}
	assert_int_equal(layers, 6);
	/* the rate of all is between those of its shapes; medians of different samples may disagree */
	assert_true(slowest > 0 && m.alone_bytes_s.low < 1.5 * fastest);
	assert_true(m.alone_bytes_s.high > slowest / 1.5);
}

static void test_copy_fails(void **state)
{
	(void)state;
	const struct copier_faults faults = {.fail_copy = 1, .fail_all = true};
	struct err e = {0};
	struct copier *copier;
	struct measure_host m;
	assert_int_equal(copier_null_open(&faults, &copier, &e), 0);
	double seconds = SECONDS;
	int rc;
	do { /* the card's thread may not run at all for so long */
		rc = measure_host(copier, file, 1, seconds, REPEATS, &m, &e);
		seconds *= 2;
	} while (!rc && seconds < 100);
	assert_true(rc < 0);
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
