/* SPDX-License-Identifier: MIT */
/* Memory that is pinned step by step: what is requested, the rest in the background, and the end at
 * any time. */
#include "stream/pinned.h"
#include "tests/support/copier_null.h"

#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>
#include <cmocka.h>

#define STEP  ((size_t)1 << 20)
#define STEPS 8

static atomic_uint n_notified;

static void notified(void *arg)
{
	(void)arg;
	atomic_fetch_add(&n_notified, 1);
}

static struct copier *start(struct pinned *p, const struct copier_faults *f)
{
	struct copier *c;
	struct err e = {0};
	assert_int_equal(copier_null_open(f, &c, &e), 0);
	atomic_store(&n_notified, 0);
	assert_int_equal(pinned_start(p, c, STEPS * STEP, STEP, NULL, notified, NULL, &e), 0);
	return c;
}

static void wait_for_steps(const struct pinned *p, size_t n)
{
	while (atomic_load(&p->ready) < n * STEP) /* pauses grow with the machine's load */
		usleep(1000);
}

static void end(struct pinned *p, struct copier *c)
{
	pinned_free(p);
	c->ops->close(c); /* ends the program when memory is still pinned */
}

static void test_requested(void **state)
{
	(void)state;
	struct pinned p;
	struct copier *c = start(&p, NULL);
	struct err e = {0};
	wait_for_steps(&p, 1);
	pinned_request(&p, 2 * STEP + 1);
	wait_for_steps(&p, 3);
	usleep(5000);
	assert_int_equal(copier_null_pins(c), 3);
	assert_int_equal(pinned_wait(&p, &e), 0);
	assert_int_equal(copier_null_pins(c), STEPS);
	end(&p, c);
}

static void test_background(void **state)
{
	(void)state;
	struct pinned p;
	struct copier *c = start(&p, NULL);
	pinned_continue(&p);
	wait_for_steps(&p, STEPS);
	end(&p, c);
}

/* Stopping ends the thread while it waits for a request, pins nothing more, and is no refusal. */
static void test_stop(void **state)
{
	(void)state;
	struct pinned p;
	struct copier *c = start(&p, NULL);
	struct err e = {0};
	wait_for_steps(&p, 1);
	pinned_stop(&p);
	unsigned n = atomic_load(&n_notified);
	assert_int_equal(atomic_load(&p.state), PINNED_STOPPED);
	pinned_request(&p, STEPS * STEP);
	pinned_continue(&p);
	assert_int_equal(pinned_wait(&p, &e), ERR_INTERRUPTED);
	assert_int_equal(copier_null_pins(c), 1);
	assert_int_equal(atomic_load(&n_notified), n);
	end(&p, c);
	/* after the last step it changes nothing */
	c = start(&p, NULL);
	assert_int_equal(pinned_wait(&p, &e), 0);
	pinned_stop(&p);
	assert_int_equal(atomic_load(&p.state), PINNED_READY);
	end(&p, c);
	struct pinned never = {0};
	pinned_stop(&never);
	pinned_free(&never);
}

static void test_refused(void **state)
{
	(void)state;
	struct pinned p;
	struct copier *c = start(&p, &(struct copier_faults){.refuse_pin = 3});
	struct err e = {0};
	assert_int_equal(pinned_wait(&p, &e), ERR_MEMORY);
	assert_true(e.text[0]);
	assert_int_equal(atomic_load(&p.ready), 2 * STEP);
	end(&p, c);
}

/* A copy ends at the border of a step. */
static void test_contiguous(void **state)
{
	(void)state;
	struct pinned p;
	struct copier *c = start(&p, NULL);
	assert_int_equal(pinned_contiguous_bytes(&p, p.base, 2 * STEP), STEP);
	assert_int_equal(pinned_contiguous_bytes(&p, p.base + STEP - 3, 10), 3);
	assert_int_equal(pinned_contiguous_bytes(&p, p.base + STEP, 10), 10);
	assert_int_equal(pinned_contiguous_bytes(&p, &p, 4 * STEP), 4 * STEP);
	end(&p, c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_requested),
		cmocka_unit_test(test_background),
		cmocka_unit_test(test_stop),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_contiguous),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
