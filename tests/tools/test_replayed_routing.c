/* SPDX-License-Identifier: MIT */
/* Replayed routing around a fake source that records its calls: which experts, under whose ids, in
 * groups and over several rows, with the trace's predictions, folded and confined. */
#include "tools/bench/replayed_routing.h"

#include "src/base/log.h"
#include "src/base/num.h"
#include "tests/support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS  3 /* of the trace, all with experts; the model has a dense one before them */
#define TOKENS  5
#define TOP     4
#define EXPERTS 16

/* The trace: distinct expert ids per token and layer. */
static int pick(int token, int layer, int i)
{
	return (token * 5 + layer * 3 + i * 2 + (i & 1)) % EXPERTS;
}

static int predicted_id(int token, int layer, int i)
{
	return (pick(token, layer, i) + 7) % EXPERTS;
}

static const char *write_trace(void)
{
	const char *path = temp_dir_path("r.gltr1");
	uint32_t head[4] = {TOKENS, LAYERS, TOP, EXPERTS};
	FILE *f = fopen(path, "wb");
	assert_non_null(f);
	fwrite("GLTR1\0\0", 1, 8, f);
	fwrite(head, sizeof head, 1, f);
	for (int t = 0; t < TOKENS; t++)
		for (int l = 0; l < LAYERS; l++)
			for (int k = 0; k < 2 * TOP; k++)
				fputc(k < TOP ? pick(t, l, k) : predicted_id(t, l, k - TOP), f);
	assert_int_equal(fclose(f), 0);
	return path;
}

/* ---- the inner source: the last call of each kind ---- */

static struct {
	struct expert_source base;
	int32_t acquired[64], released[64], prefetched[64];
	int n_acquired, n_released, n_prefetched, prefetch_layer, n_waits, closed;
} inner;

static void fake_close(struct expert_source *s)
{
	(void)s;
	inner.closed++;
}

static int fake_acquire(struct expert_source *s, int layer, enum expert_use use,
	struct expert_ref *refs, int n, struct err *e)
{
	(void)s, (void)layer, (void)use, (void)e;
	inner.n_acquired = n;
	for (int i = 0; i < n; i++) {
		inner.acquired[i] = refs[i].id;
		refs[i].ready = i > 0; /* one is missing */
		refs[i].handle = 100 + refs[i].id;
	}
	return 1;
}

static int fake_wait_ready(
	struct expert_source *s, int layer, struct expert_ref *refs, int n, struct err *e)
{
	(void)s, (void)layer, (void)e;
	inner.n_waits++;
	for (int i = 0; i < n; i++) {
		assert_int_equal(refs[i].handle, 100 + refs[i].id);
		refs[i].ready = true;
	}
	return 0;
}

static void fake_release(struct expert_source *s, int layer, const struct expert_ref *refs, int n)
{
	(void)s, (void)layer;
	inner.n_released = n;
	for (int i = 0; i < n; i++) {
		assert_int_equal(refs[i].handle, 100 + refs[i].id);
		inner.released[i] = refs[i].id;
	}
}

static void fake_prefetch(
	struct expert_source *s, int layer, const int32_t *ids, int n, int distance)
{
	(void)s, (void)distance;
	inner.prefetch_layer = layer;
	inner.n_prefetched = n;
	memcpy(inner.prefetched, ids, (size_t)n * sizeof *ids);
}

static const struct expert_source_ops fake_ops = {.name = "fake",
	.close = fake_close,
	.acquire = fake_acquire,
	.wait_ready = fake_wait_ready,
	.release = fake_release,
	.prefetch = fake_prefetch};

static struct replayed_routing *routing; /* of the source that is open */

static struct expert_source *open_replayed(const char *path, uint32_t confine, uint32_t n_experts)
{
	struct err e = {0};
	memset(&inner, 0, sizeof inner);
	inner.base = (struct expert_source){.ops = &fake_ops, .max_pinned = {8, 8}, .lookahead = 1};
	const struct replayed_routing_options o = {.path = path,
		.confine = confine,
		.n_layers = 1 + LAYERS,
		.n_dense = 1,
		.n_experts = n_experts,
		.n_used = TOP};
	if (replayed_routing_new(&o, &routing, &e))
		fail_msg("%s", e.text);
	return replayed_routing_wrap(routing, &inner.base);
}

static void close_replayed(struct expert_source *s)
{
	s->ops->close(s);
	replayed_routing_free(routing);
}

/* Acquires the router's ids and gives the experts back; the model's ids must come through
 * unchanged. */
static void use_experts(
	struct expert_source *s, int layer, enum expert_use use, const int32_t *ids, int n)
{
	struct expert_ref refs[64] = {0};
	struct err e = {0};
	for (int i = 0; i < n; i++)
		refs[i].id = ids[i];
	assert_int_equal(s->ops->acquire(s, layer, use, refs, n, &e), 1);
	assert_int_equal(s->ops->wait_ready(s, layer, refs, n, &e), 0);
	for (int i = 0; i < n; i++) {
		assert_int_equal(refs[i].id, ids[i]);
		assert_true(refs[i].ready);
		assert_int_equal(refs[i].handle, 100 + inner.acquired[i]);
	}
	s->ops->release(s, layer, refs, n);
	assert_int_equal(inner.n_released, n);
	assert_memory_equal(inner.released, inner.acquired, (size_t)n * sizeof *ids);
}

static const int32_t own[] = {9, 2, 11, 0, 1, 3, 4, 5};

static void test_single_rows(void **state)
{
	(void)state;
	struct expert_source *s = open_replayed(write_trace(), 0, EXPERTS);
	for (int t = 0; t < 2 * TOKENS; t++) { /* the trace begins again */
		s->ops->step(s, EXPERT_DECODE, 1, t);
		for (int l = 0; l < LAYERS; l++) {
			s->ops->prefetch(s, 1 + l, own, TOP, 1);
			assert_true(inner.prefetch_layer == 1 + l && inner.n_prefetched == TOP);
			use_experts(s, 1 + l, EXPERT_DECODE, own, TOP);
			for (int i = 0; i < TOP; i++) {
				assert_int_equal(inner.acquired[i], pick(t % TOKENS, l, i));
				assert_int_equal(inner.prefetched[i], predicted_id(t % TOKENS, l, i));
			}
		}
		/* drafts: the tokens behind, each acquired at once or in groups; the layer is the one in
		 * which the trace goes on */
		for (int d = 0; d < 3; d++) {
			use_experts(s, 1 + LAYERS, EXPERT_DECODE, own, d == 1 ? 1 : TOP);
			assert_int_equal(inner.acquired[0], pick((t + 1 + d) % TOKENS, 0, 0));
			if (d == 1) {
				use_experts(s, 1 + LAYERS, EXPERT_DECODE, own + 1, TOP - 1);
				assert_int_equal(inner.acquired[0], pick((t + 1 + d) % TOKENS, 0, 1));
			}
		}
		/* predictions further ahead than the trace has are dropped */
		inner.n_prefetched = 0;
		s->ops->prefetch(s, LAYERS, own, TOP, 2);
		assert_int_equal(inner.n_prefetched, 0);
	}
	/* prefill is the model's own, and does not move the trace on */
	s->ops->step(s, EXPERT_PREFILL, 64, 0);
	use_experts(s, 1, EXPERT_PREFILL, own, 8);
	assert_memory_equal(inner.acquired, own, sizeof own);
	s->ops->step(s, EXPERT_DECODE, 1, 64);
	use_experts(s, 1, EXPERT_DECODE, own, TOP);
	assert_int_equal(inner.acquired[0], pick(0, 0, 0));
	close_replayed(s);
	assert_int_equal(inner.closed, 1);
}

/* Two rows in groups of three: the distinct expert ids of both tokens in order, each once, then
 * others, each once. */
static void test_rows_and_groups(void **state)
{
	(void)state;
	struct expert_source *s = open_replayed(write_trace(), 0, EXPERTS);
	for (int step = 0; step < 3; step++) {
		s->ops->step(s, EXPERT_DECODE, 2, 0);
		int want[2 * TOP], n = 0, got[EXPERTS] = {0};
		for (int i = 0; i < 2 * TOP; i++) {
			int id = pick((2 * step + i / TOP) % TOKENS, 1, i % TOP), known = 0;
			for (int k = 0; k < n; k++)
				known |= want[k] == id;
			if (!known)
				want[n++] = id;
		}
		for (int at = 0; at < 12; at += 3) {
			int32_t ids[] = {(at + 3) % EXPERTS, (at + 4) % EXPERTS, (at + 5) % EXPERTS};
			use_experts(s, 2, EXPERT_DECODE, ids, 3);
			for (int i = 0; i < 3; i++) {
				if (at + i < n)
					assert_int_equal(inner.acquired[i], want[at + i]);
				assert_true(inner.acquired[i] >= 0 && inner.acquired[i] < EXPERTS);
				assert_int_equal(got[inner.acquired[i]]++, 0);
			}
		}
	}
	close_replayed(s);
}

/* Steps of three rows of which one, two or all count. */
static void test_kept_rows(void **state)
{
	(void)state;
	for (int far = 0; far < 2; far++) {
		struct expert_source *s = open_replayed(write_trace(), 0, EXPERTS);
		int token = 0;
		for (int step = 0; step < 9; step++) {
			int kept = step % 3 + 1;
			if (kept < 3 || step % 2) /* said or not: all of them */
				replayed_routing_keep(routing, (uint32_t)kept, far);
			s->ops->step(s, EXPERT_DECODE, 3, 0);
			int want[3 * TOP], n = 0;
			for (int i = 0; i < 3 * TOP; i++) {
				int row = i / TOP, of = token + row + (far && row >= kept ? TOKENS / 2 : 0),
					id = pick(of % TOKENS, 0, i % TOP), known = 0;
				for (int k = 0; k < n; k++)
					known |= want[k] == id;
				if (!known)
					want[n++] = id;
			}
			for (int row = 0; row < 3; row++) {
				int of = token + row + (far && row >= kept ? TOKENS / 2 : 0);
				s->ops->prefetch(s, 2, own, TOP, 1);
				assert_int_equal(inner.prefetched[0], predicted_id(of % TOKENS, 1, 0));
			}
			use_experts(s, 1, EXPERT_DECODE, own, 8);
			for (int i = 0; i < MIN(n, 8); i++)
				assert_int_equal(inner.acquired[i], want[i]);
			use_experts(s, 1 + LAYERS, EXPERT_DECODE, own, TOP);
			token += kept;
			assert_int_equal(inner.acquired[0], pick(token % TOKENS, 0, 0));
		}
		close_replayed(s);
	}
}

static void test_folded_and_confined(void **state)
{
	(void)state;
	for (int way = 0; way < 3; way++) { /* fewer experts, a confined trace, the confined router */
		const int most = way ? 6 : 5;
		struct expert_source *s =
			open_replayed(way == 2 ? NULL : write_trace(), way ? 6 : 0, way ? EXPERTS : 5);
		int32_t small[] = {3, 0, 4, 1};
		for (int t = 0; t < TOKENS; t++) {
			int got[EXPERTS] = {0};
			s->ops->step(s, EXPERT_DECODE, 1, t);
			s->ops->prefetch(s, 1, small, TOP, 1);
			use_experts(s, 1, EXPERT_DECODE, way == 2 ? own : small, TOP);
			for (int i = 0; i < TOP; i++) {
				assert_true(inner.acquired[i] >= 0 && inner.acquired[i] < most);
				assert_int_equal(got[inner.acquired[i]]++, 0);
			}
			assert_int_equal(inner.acquired[0], (way == 2 ? own[0] : pick(t, 0, 0)) % most);
			for (int i = 0; i < inner.n_prefetched; i++)
				assert_true(inner.prefetched[i] < most);
		}
		close_replayed(s);
	}
}

/* Two stages, of which the second one has the MTP layer: both are at the same token of the trace,
 * whatever is kept, and what is confined holds for both. */
static void test_two_stages(void **state)
{
	(void)state;
	struct expert_source *first = open_replayed(write_trace(), 0, EXPERTS),
						 *second = replayed_routing_wrap(routing, &inner.base);
	int token = 0;
	for (int step = 0; step < 4; step++) {
		int kept = 1 + step % 2;
		replayed_routing_keep(routing, (uint32_t)kept, false);
		first->ops->step(first, EXPERT_DECODE, 2, 0);
		use_experts(first, 1, EXPERT_DECODE, own, 1);
		assert_int_equal(inner.acquired[0], pick(token % TOKENS, 0, 0));
		second->ops->step(second, EXPERT_DECODE, 2, 0);
		use_experts(second, 3, EXPERT_DECODE, own, 1);
		assert_int_equal(inner.acquired[0], pick(token % TOKENS, 2, 0));
		token += kept;
		use_experts(second, 1 + LAYERS, EXPERT_DECODE, own, TOP);
		assert_int_equal(inner.acquired[0], pick(token % TOKENS, 0, 0));
	}
	static const int32_t few[] = {15, 3, 8, 1};
	replayed_routing_confine(routing, 1, few, TOP);
	replayed_routing_confine(routing, 3, few, TOP);
	for (int i = 0; i < 2; i++) {
		struct expert_source *s = i ? second : first;
		s->ops->step(s, EXPERT_DECODE, 1, 0);
		use_experts(s, i ? 3 : 1, EXPERT_DECODE, own, 1);
		assert_int_equal(inner.acquired[0], few[pick(token % TOKENS, i ? 2 : 0, 0) % TOP]);
	}
	second->ops->close(second);
	close_replayed(first);
	assert_int_equal(inner.closed, 2);
}

static void test_replayed_routing_refused(void **state)
{
	(void)state;
	struct err e = {0};
	struct replayed_routing_options o = {
		.confine = 3, .n_layers = 4, .n_dense = 1, .n_experts = 16, .n_used = TOP};
	assert_int_equal(replayed_routing_new(&o, &routing, &e), ERR_USAGE);
	o.confine = 17;
	assert_int_equal(replayed_routing_new(&o, &routing, &e), ERR_USAGE);
	o.confine = 0;
	o.path = temp_dir_path("missing");
	assert_int_equal(replayed_routing_new(&o, &routing, &e), ERR_INPUT);
	assert_null(routing);
}

int main(void)
{
	log_set_level(LOG_QUIET);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_single_rows),
		cmocka_unit_test(test_rows_and_groups),
		cmocka_unit_test(test_kept_rows),
		cmocka_unit_test(test_folded_and_confined),
		cmocka_unit_test(test_two_stages),
		cmocka_unit_test(test_replayed_routing_refused),
	};
	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_drop);
}
