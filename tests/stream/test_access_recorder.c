/* SPDX-License-Identifier: MIT */
/* The recorder counts every access, and allocates nothing while it does: memory that is exhausted
 * then would be missing accesses. */
#include "stream/access_recorder.h"

#include <malloc.h>
#include <stdlib.h>

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#define N_LAYERS  3
#define N_EXPERTS 500

static int fake_acquire(struct expert_source *s, int layer, enum expert_use use,
	struct expert_ref *refs, int n, struct err *e)
{
	(void)s, (void)layer, (void)use, (void)refs, (void)n, (void)e;
	return 0;
}

static void fake_close(struct expert_source *s)
{
	(void)s;
}

static const struct expert_source_ops fake_ops = {
	.name = "fake", .acquire = fake_acquire, .close = fake_close};

static void test_accesses(void **state)
{
	(void)state;
	struct expert_source inner = {.ops = &fake_ops};
	struct expert_ref *refs = calloc(N_EXPERTS, sizeof *refs);
	struct profile p = {0};
	struct err e = {0};
	assert_non_null(refs);
	assert_int_equal(profile_init(&p, 1, N_LAYERS, N_EXPERTS), 0);
	struct expert_source *s = access_recorder_open(&inner, &p, NULL, N_EXPERTS, 0, false);
	for (int i = 0; i < N_EXPERTS; i++)
		refs[i].id = i;
	const size_t before = mallinfo2().uordblks;
	for (int layer = 0; layer < N_LAYERS; layer++)
		assert_int_equal(
			s->ops->acquire(s, layer, EXPERT_DECODE, refs, layer == 1 ? N_EXPERTS : 8, &e), 0);
	assert_int_equal(mallinfo2().uordblks, before);
	for (int i = 0; i < N_LAYERS * N_EXPERTS; i++)
		assert_true(p.count[i] == (i / N_EXPERTS == 1 || i % N_EXPERTS < 8));
	s->ops->close(s);
	profile_fini(&p);
	free(refs);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_accesses)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
