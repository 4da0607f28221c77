/* SPDX-License-Identifier: MIT */
/* A communicator that is used and aborted by two threads: it is never used after it was freed, and
 * an abort waits for a call that is in progress, but not for one that does not return. */
#include "kernels/nccl_gate.h"
#include "src/base/host/clock.h"
#include "tests/support/slow_build.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

enum { N_ROUNDS = IF_SLOW_BUILD(200, 500) };

/* What the library keeps of a communicator, without synchronisation: a use after the abort is a
 * data race, and found in plain builds by its value. */
struct communicator {
	struct nccl_gate gate;
	pthread_barrier_t start;
	int calls; /* -1: it was freed */
	bool was_inside, first[2];
};

static void *use_communicator(void *user)
{
	struct communicator *c = user;
	pthread_barrier_wait(&c->start);
	while (nccl_gate_enter(&c->gate)) {
		if (c->calls < 0)
			abort();
		c->calls++;
		nccl_gate_leave(&c->gate);
	}
	return NULL;
}

static void abort_once(struct communicator *c, int me)
{
	c->first[me] = nccl_gate_close(&c->gate);
	if (!c->first[me])
		return;
	c->was_inside = !nccl_gate_wait(&c->gate, 60000);
	c->calls = -1;
}

static void *abort_communicator(void *user)
{
	struct communicator *c = user;
	pthread_barrier_wait(&c->start);
	abort_once(c, 1);
	return NULL;
}

static void test_threads(void **state)
{
	(void)state;
	for (int i = 0; i < N_ROUNDS; i++) {
		struct communicator c = {0};
		pthread_t user, other;
		pthread_barrier_init(&c.start, NULL, 3);
		assert_int_equal(pthread_create(&user, NULL, use_communicator, &c), 0);
		assert_int_equal(pthread_create(&other, NULL, abort_communicator, &c), 0);
		pthread_barrier_wait(&c.start);
		for (volatile int spin = i % 97 * 10; spin > 0; spin--)
			;
		abort_once(&c, 0);
		pthread_join(user, NULL);
		pthread_join(other, NULL);
		assert_true(nccl_gate_is_closed(&c.gate));
		assert_false(c.was_inside);
		assert_int_equal(c.calls, -1);
		assert_int_equal(c.first[0] + c.first[1], 1);
		pthread_barrier_destroy(&c.start);
	}
}

static void test_states(void **state)
{
	(void)state;
	struct nccl_gate g = {0};
	for (int i = 0; i < 2; i++) {
		assert_true(nccl_gate_enter(&g));
		nccl_gate_leave(&g);
	}
	assert_false(nccl_gate_is_closed(&g));
	/* a call that does not return: the wait has an end, and ends early once it does return */
	assert_true(nccl_gate_enter(&g));
	assert_true(nccl_gate_close(&g));
	assert_false(nccl_gate_close(&g));
	const uint64_t start = clock_ns();
	assert_false(nccl_gate_wait(&g, 20));
	assert_true(clock_ns() - start >= 20000000);
	nccl_gate_leave(&g);
	assert_true(nccl_gate_wait(&g, 0));
	assert_false(nccl_gate_enter(&g));
	assert_true(nccl_gate_is_closed(&g));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_states), cmocka_unit_test(test_threads)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
