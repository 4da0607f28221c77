/* SPDX-License-Identifier: MIT */
/*
 * The decode pipeline on the pocket model: the host follows the device by fences, and no expert is
 * given back before the device is past it.
 *
 * The CPU computes at once, so a table of ops around the CPU's plays a device that lags: a fence is
 * reached only when it has been waited for, or now and then by chance. It either records, and what
 * a graph holds is checked against what may stand in one, or it holds a deferred expert kernel. A
 * source around the real one counts pins and compares every release with the fences that were
 * reached.
 */
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/batch.h"
#include "src/engine/engine_internal.h"
#include "src/engine/generate.h"
#include "tests/support/engine_help.h"
#include "tests/stream/loader_help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_TEXT   200
#define N_LAYERS 16
#define N_IDS    64
#ifdef __SANITIZE_THREAD__ /* which computes with one thread, and slowly */
#define ROUNDS 8
#else
#define ROUNDS 14
#endif

static int32_t text[4][N_TEXT];

/* ---- the device that lags ---- */

static struct lag {
	struct backend_ops ops;
	const struct backend_ops *inner;
	struct rng rng;
	uint64_t reached;
	bool in_graph, can_defer; /* can_defer: experts are deferred */
	uint64_t graphs, waits;
	struct use {
		const void *expert;
		uint64_t fence; /* the first fence that shows its product to be done */
	} uses[4096];
	int n_uses;
	/* the deferred expert kernel of this step */
	struct lag_deferred {
		bool open;
		const float *x, *out;
		struct expert_job shape;
		int n_used;
		unsigned posted;   /* ranks */
		uint64_t n_fences; /* before it */
	} deferred;
	uint64_t posted, posted_late, abandoned;
} lag;

static uint64_t lag_fence(struct backend *b)
{
	assert_false(lag.deferred.open);
	return ++b->fence_value;
}

/* A device that is waited for must not wait itself. */
static void lag_settle(void)
{
	lag.abandoned += lag.deferred.open;
	lag.deferred.open = false;
}

static int lag_wait(struct backend *b, struct err *e)
{
	assert_false(lag.in_graph);
	lag_settle();
	lag.reached = b->fence_value;
	lag.n_uses = 0;
	lag.waits++;
	return lag.inner->wait(b, e);
}

static int lag_fence_wait(struct backend *b, uint64_t fence, struct err *e)
{
	assert_false(lag.in_graph);
	assert_true(fence && fence <= b->fence_value);
	if (fence > lag.deferred.n_fences)
		lag_settle();
	lag.reached = MAX(lag.reached, fence);
	if (!rng_below(&lag.rng, 4)) /* it has run on meanwhile */
		lag.reached += rng_below(&lag.rng, (uint32_t)(b->fence_value - lag.reached + 1));
	return lag.inner->wait(b, e);
}

static int lag_wait_expert_ids(struct backend *b, uint64_t fence, const uint64_t *expert_ids, int n,
	int32_t *ids, struct err *e)
{
	for (int i = 0; i < n; i++)
		assert_int_equal(expert_ids[i] >> 32, (uint32_t)fence);
	return lag.inner->wait_expert_ids(b, fence, expert_ids, n, ids, e);
}

static bool lag_fence_signaled(struct backend *b, uint64_t fence)
{
	(void)b;
	return fence <= lag.reached;
}

static int lag_download(struct backend *b, void *dst, const void *src, size_t bytes, struct err *e)
{
	lag_wait(b, NULL);
	return lag.inner->download(b, dst, src, bytes, e);
}

static void lag_upload(struct backend *b, void *dst, const void *src, size_t bytes)
{
	assert_false(lag.in_graph || lag.deferred.open);
	lag.inner->upload(b, dst, src, bytes);
}

static enum segment_mode lag_segment_begin(struct backend *b, uint64_t key)
{
	(void)b;
	(void)key;
	assert_false(lag.in_graph || lag.deferred.open);
	lag.in_graph = !lag.can_defer;
	lag.graphs++;
	return lag.can_defer ? SEGMENT_EAGER : SEGMENT_CAPTURE;
}

static void lag_segment_end(struct backend *b)
{
	assert_true(lag.in_graph);
	lag.in_graph = false;
	lag.inner->segment_end(b);
}

static bool lag_can_defer_experts(struct backend *b, const struct expert_job *shape, int n_used)
{
	(void)b;
	return lag.can_defer && shape->gate.n_in && n_used > 0;
}

/* The places are not defined until they are asked for. */
static void lag_experts_deferred(
	struct backend *b, const float *x, const struct expert_job *shape, int n_used, float *out)
{
	assert_true(lag.can_defer && !lag.deferred.open && b->fence_value > lag.deferred.n_fences);
	lag.deferred = (struct lag_deferred){true, x, out, *shape, n_used, 0, b->fence_value};
	memset(out, 0xff, (size_t)n_used * (size_t)shape->down.n_out * sizeof *out);
}

static void assert_same_shape(const struct weight *a, const struct weight *b)
{
	assert_true(a->type == b->type && a->n_in == b->n_in && a->n_out == b->n_out &&
				a->row_bytes == b->row_bytes && a->stack_bytes == b->stack_bytes);
}

static void lag_expert_ffn(struct backend *b, const float *x, const struct expert_job *jobs,
	int n_jobs, int rows, int n_used, float *out)
{
	assert_false(lag.in_graph); /* places differ from step to step */
	if (lag.deferred.open) {
		assert_true(x == lag.deferred.x && out == lag.deferred.out && rows == 1 &&
					n_used == lag.deferred.n_used);
		*(lag.deferred.posted ? &lag.posted_late : &lag.posted) += 1;
	}
	for (int i = 0; lag.deferred.open && i < n_jobs; i++) {
		assert_same_shape(&jobs[i].gate, &lag.deferred.shape.gate);
		assert_same_shape(&jobs[i].up, &lag.deferred.shape.up);
		assert_same_shape(&jobs[i].down, &lag.deferred.shape.down);
		assert_false(lag.deferred.posted >> jobs[i].token_slots[0] & 1);
		lag.deferred.posted |= 1u << jobs[i].token_slots[0];
	}
	lag.deferred.open &= lag.deferred.posted != (1u << n_used) - 1;
	for (int i = 0; i < n_jobs; i++) {
		assert_true(lag.n_uses < (int)ARRAY_LEN(lag.uses));
		lag.uses[lag.n_uses++] = (struct use){jobs[i].gate.data, b->fence_value + 1};
	}
	lag.inner->expert_ffn(b, x, jobs, n_jobs, rows, n_used, out);
}

static void lag_start(struct backend *b, uint64_t seed)
{
	lag = (struct lag){.ops = *b->ops, .inner = b->ops, .rng = {seed}};
	lag.ops.fence = lag_fence;
	lag.ops.wait = lag_wait;
	lag.ops.fence_wait = lag_fence_wait;
	lag.ops.wait_expert_ids = lag_wait_expert_ids;
	lag.ops.fence_signaled = lag_fence_signaled;
	lag.ops.download = lag_download;
	lag.ops.upload = lag_upload;
	lag.ops.segment_begin = lag_segment_begin;
	lag.ops.segment_end = lag_segment_end;
	lag.can_defer = seed % 4;
	lag.ops.can_defer_experts = lag_can_defer_experts;
	lag.ops.experts_deferred = lag_experts_deferred;
	lag.ops.expert_ffn = lag_expert_ffn;
	lag.ops.async = true;
	b->ops = &lag.ops;
}

/* ---- the source that counts ---- */

static struct counting {
	struct expert_source base;
	struct expert_source *inner;
	int pins[N_LAYERS][N_IDS], n_pins, most_pins;
	uint64_t acquires, hints, fail_at, cancel_at; /* at which acquire; 0: never */
	bool fail_wait;
	atomic_bool cancel;
} counting;

static void count_step(struct expert_source *s, enum expert_use use, int rows, int position)
{
	counting.inner->cancel = s->cancel;
	if (counting.inner->ops->step)
		counting.inner->ops->step(counting.inner, use, rows, position);
}

static void count_release(struct expert_source *s, int layer, const struct expert_ref *refs, int n)
{
	(void)s;
	for (int i = 0; i < n; i++) {
		assert_true(counting.pins[layer][refs[i].id] > 0);
		counting.pins[layer][refs[i].id]--;
		counting.n_pins--;
		for (int k = 0; refs[i].ready && k < lag.n_uses; k++) {
			if (lag.uses[k].expert != refs[i].gate.data)
				continue;
			if (lag.uses[k].fence > lag.reached)
				fail_msg("expert %d of layer %d is given back while the device computes with it",
					refs[i].id, layer);
			lag.uses[k--] = lag.uses[--lag.n_uses];
		}
	}
	counting.inner->ops->release(counting.inner, layer, refs, n);
}

static int count_acquire(struct expert_source *s, int layer, enum expert_use use,
	struct expert_ref *refs, int n, struct err *e)
{
	counting.inner->cancel = s->cancel;
	assert_true(n <= s->max_pinned[use]);
	if (++counting.acquires == counting.fail_at && !counting.fail_wait)
		return err_set(e, ERR_RUN, "made up");
	if (counting.acquires == counting.cancel_at)
		atomic_store(&counting.cancel, true);
	int rc = counting.inner->ops->acquire(counting.inner, layer, use, refs, n, e);
	for (int i = 0; rc >= 0 && i < n; i++) {
		counting.pins[layer][refs[i].id]++;
		counting.n_pins++;
	}
	counting.most_pins = MAX(counting.most_pins, counting.n_pins);
	assert_true((counting.n_pins + 1) / 2 <= s->max_pinned[use]);
	return rc;
}

static int count_wait_ready(
	struct expert_source *s, int layer, struct expert_ref *refs, int n, struct err *e)
{
	(void)s;
	if (counting.fail_at && counting.acquires >= counting.fail_at)
		return err_set(e, ERR_RUN, "made up");
	return counting.inner->ops->wait_ready(counting.inner, layer, refs, n, e);
}

static void count_prefetch(
	struct expert_source *s, int layer, const int32_t *ids, int n, int distance)
{
	(void)s;
	for (int i = 0; i < n; i++)
		assert_in_range(ids[i], 0, 31);
	assert_in_range(distance, 1, 3);
	counting.hints++;
	counting.inner->ops->prefetch(counting.inner, layer, ids, n, distance);
}

static void count_read_ahead(struct expert_source *s, int layer, const int32_t *ids, int n)
{
	(void)s;
	if (counting.inner->ops->read_ahead)
		counting.inner->ops->read_ahead(counting.inner, layer, ids, n);
}

static const struct expert_source_ops count_ops = {
	.name = "counting",
	.step = count_step,
	.acquire = count_acquire,
	.wait_ready = count_wait_ready,
	.release = count_release,
	.prefetch = count_prefetch,
	.read_ahead = count_read_ahead,
};

static void count_start(struct model *m)
{
	counting = (struct counting){.inner = m->source};
	counting.base.ops = &count_ops;
	counting.base.max_pinned[0] = m->source->max_pinned[0];
	counting.base.max_pinned[1] = m->source->max_pinned[1];
	counting.base.lookahead = m->source->ops->prefetch ? m->source->lookahead : 0;
	m->source = &counting.base;
}

/* ---- tests ---- */

static int pipeline_setup(void **state)
{
	struct rng r = {77};
	for (int i = 0; i < 4; i++)
		for (int k = 0; k < N_TEXT; k++)
			text[i][k] = (int32_t)rng_below(&r, 8000);
	return source_setup(state);
}

static struct engine *pipeline_open_engine(
	const struct engine_options *o, bool lagging, uint64_t seed)
{
	struct engine *g = engine_of(o);
	if (lagging) {
		lag_start(g->stages->backend, seed);
		count_start(&g->stages->model);
	}
	return g;
}

static void close_engine(struct engine *g, bool lagging)
{
	if (lagging)
		moe_drain(&g->stages->model, NULL);
	assert_int_equal(lagging ? counting.n_pins : 0, 0);
	assert_int_equal(engine_close(g, NULL), 0);
}

/* Greedy text, prompts in chunks, steps over several sessions and drafts: one hash of all logits.
 */
static uint64_t pipeline_run(const struct engine_options *o, bool lagging, uint64_t seed)
{
	struct err e = {0};
	struct engine *g = pipeline_open_engine(o, lagging, seed);
	uint32_t n_vocab = engine_config(g)->n_vocab;
	struct session *s[4];
	for (int i = 0; i < 4; i++)
		s[i] = session_of(g, i == 3);
	struct generate_options go = {.max_new = 6, .ignore_stop = true};
	struct generate_result r;
	if (generate(s[0], text[0], 70, &go, &r, &e))
		fail_msg("%s", e.text);
	uint64_t hash = r.logits_hash;
	for (int i = 1; i < 4; i++) {
		assert_int_equal(session_sync(s[i], text[i], 10 + 20 * (uint32_t)i, NULL, NULL, &e), 0);
		hash = generate_hash(hash, session_logits(s[i]), n_vocab);
	}
	for (uint32_t k = 0; k < 4; k++) {
		struct batch_part p[3];
		for (int i = 0; i < 3; i++) /* 9 rows in the last step: more than are recorded */
			p[i] = (struct batch_part){.session = s[i],
				.tokens = text[i] + 100 + 3 * k,
				.n = k == 3 ? 3 : 1,
				.logits = true};
		if (batch_step(p, 3, NULL, &e))
			fail_msg("%s", e.text);
		for (int i = 0; i < 3; i++)
			hash = generate_hash(hash, session_logits(s[i]), n_vocab);
	}
	hash = drafts_hash(s[3], &text[3][120], 3, hash);
	for (int i = 0; i < 4; i++)
		session_free(s[i]);
	close_engine(g, lagging);
	return hash;
}

static struct engine_options options(uint32_t chunk)
{
	return (struct engine_options){
		.model_path = MODEL, .backend = "cpu", .context = 256, .sessions = 4, .chunk = chunk};
}

static void test_same_bits(void **state)
{
	(void)state;
	struct engine_options o = options(48);
	uint64_t want = pipeline_run(&o, false, 0);
	for (uint64_t seed = 1; seed <= 5; seed++) {
		o = options(
			seed % 2 ? 48 : 12); /* chunks of the prompt above and below what counts as prefill */
		o.cache_bytes = seed == 1   ? 0
						: seed == 5 ? full.everything_bytes
									: full.floor_bytes + full.everything_bytes / 16 * (seed - 2);
		o.ram_bytes = seed == 3 ? full.floor_bytes : 0;
		o.lookahead = (int)(seed % 4);
		if (pipeline_run(&o, true, seed) != want)
			fail_msg("seed %llu: other logits", (unsigned long long)seed);
		print_message(
			"seed %llu: %llu acquires, at most %d pins, %llu hints, %llu lists, drained %llu "
			"times; jobs were posted to deferred kernels %llu times, %llu times late\n",
			(unsigned long long)seed, (unsigned long long)counting.acquires, counting.most_pins,
			(unsigned long long)counting.hints, (unsigned long long)lag.graphs,
			(unsigned long long)lag.waits, (unsigned long long)lag.posted,
			(unsigned long long)lag.posted_late);
		assert_true(
			lag.graphs > 40 && !lag.abandoned && (lag.can_defer ? lag.posted > 40 : !lag.posted));
		assert_true(seed != 2 || lag.posted_late > 0);
		assert_true((o.cache_bytes && o.lookahead) == (counting.hints > 0));
	}
}

/* Whatever fails or is cancelled, and wherever: every pin is given back once, and after a
 * cancellation the session goes on with the same numbers. */
static void test_ends_midway(void **state)
{
	(void)state;
	struct engine_options o = options(40);
	o.cache_bytes = full.floor_bytes;
	o.lookahead = 2;
	struct rng r = {4};
	struct err e = {0};
	uint64_t want = 0, settled = 0;
	for (int round = 0; round < ROUNDS; round++) {
		struct engine *g = pipeline_open_engine(&o, true, (uint64_t)round + 50);
		struct session *s = session_of(g, false);
		struct session_watch watch = {.cancel = &counting.cancel};
		uint64_t at = !round       ? 0
					  : round == 4 ? 350
								   : 1 + rng_below(&r, 200); /* 350: of a single row */
		if (round % 2)
			counting.cancel_at = at;
		else
			counting.fail_at = at;
		counting.fail_wait = round % 4 == 2;
		int rc = session_sync(s, text[0], 80, &watch, NULL, &e); /* two chunks */
		for (int k = 0; !rc && k < 16; k++)
			rc = session_extend(s, &text[0][80 + k], 1, NULL, &watch, &e);
		assert_int_equal(rc, !round ? 0 : round % 2 ? ERR_INTERRUPTED : ERR_RUN);
		assert_int_equal(round ? counting.n_pins : 0, 0);
		assert_null(counting.base.cancel); /* it was lent for the steps */
		assert_false(lag.deferred.open);
		settled += lag.abandoned;
		counting.fail_at = counting.cancel_at = 0;
		atomic_store(&counting.cancel, false);
		if (session_sync(s, text[0], 96, &watch, NULL, &e))
			fail_msg("%s", e.text);
		uint64_t hash = logits_hash(s);
		want = round ? want : hash;
		assert_true(hash == want);
		session_free(s);
		close_engine(g, true);
	}
	assert_true(settled > 0); /* some ended between a segment and its experts */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_bits),
		cmocka_unit_test(test_ends_midway),
	};
	return cmocka_run_group_tests(tests, pipeline_setup, source_teardown);
}
