/* SPDX-License-Identifier: MIT */
/* The recorder counts every access, and allocates nothing while it does: memory that is exhausted
 * then would be missing accesses. It records every wait. */
#include "cache/trace/trace.h"
#include "stream/access_recorder.h"
#include "tests/support/temp_dir.h"

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

static int waiting_acquire(struct expert_source *s, int layer, enum expert_use use,
	struct expert_ref *refs, int n, struct err *e)
{
	(void)layer, (void)use, (void)refs, (void)n, (void)e;
	s->stats.wait_ns += 5;
	return 1;
}

static int waiting_ready(
	struct expert_source *s, int layer, struct expert_ref *refs, int n, struct err *e)
{
	(void)layer, (void)refs, (void)n, (void)e;
	s->stats.wait_ns += 7;
	return 0;
}

/* Both a wait for a slot and one for bytes. */
static void test_waits(void **state)
{
	(void)state;
	static const struct expert_source_ops ops = {.name = "waiting",
		.acquire = waiting_acquire,
		.wait_ready = waiting_ready,
		.close = fake_close};
	static const uint64_t bytes[N_LAYERS] = {1, 1, 1};
	const char *path = temp_dir_path("waits.trace");
	struct expert_source inner = {.ops = &ops};
	struct expert_ref ref = {.id = 1};
	struct err e = {0};
	const struct trace_model model = {.n_layers = N_LAYERS,
		.n_experts = N_EXPERTS,
		.top_k = 1,
		.name = "waits",
		.expert_bytes = bytes};
	struct trace_writer *w = trace_writer_open(path, true, &model, &e);
	assert_non_null(w);
	struct expert_source *s = access_recorder_open(&inner, NULL, w, N_EXPERTS, 0, true);
	s->ops->step(s, EXPERT_DECODE, 1, 0);
	assert_int_equal(s->ops->acquire(s, 2, EXPERT_DECODE, &ref, 1, &e), 1);
	assert_int_equal(s->ops->wait_ready(s, 2, &ref, 1, &e), 0);
	s->ops->close(s);
	assert_int_equal(trace_writer_close(w, &e), 0);
	struct trace t = {0};
	uint64_t waited[2] = {0};
	int n = 0;
	assert_int_equal(trace_open(path, &t, &e), 0);
	for (size_t i = 0; i < t.n_events; i++)
		if (t.events[i].kind == TRACE_WAIT && n < 2)
			waited[n++] = t.events[i].value;
	assert_int_equal(waited[0], 5);
	assert_int_equal(waited[1], 7);
	trace_fini(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_accesses), cmocka_unit_test(test_waits)};
	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_drop);
}
