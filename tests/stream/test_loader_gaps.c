/* SPDX-License-Identifier: MIT */
/*
 * When demotions leave the card (stream/loader/card_transfer.c): while nothing comes in, chunk by
 * chunk; at once when staging slots become few, when a prompt begins, and when the expert is
 * wanted again.
 *
 * A copier around the emulated card keeps what comes in under way for as long as a test likes, and
 * writes down what leaves.
 */
#include "tests/stream/loader_help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define CHUNK          ((size_t)8192)
#define STAGED_WAITING 7 /* so many experts wait for a gap at most */
#define LEAVES         4096
#define PATIENCE       60000 /* ms until a test gives up */
#define QUIET          300   /* ms without a change: the I/O thread has nothing to do */
#define A_WHILE        20000 /* us in which what shall not happen would have */
#define ROUNDS         6 /* that fill the first tier: some experts are left that were never there */

/* ---- the copier ---- */

struct leave {
	const uint8_t *src;
	uint8_t *dst;
	size_t bytes;
	bool beside_in, beside_out; /* something came in, another one left: at that time */
	bool last;                  /* of its expert, see waiting() */
};

struct gate {
	struct copier_ops ops; /* of the emulated card, from now on */
	const struct copier_ops *inner;
	atomic_bool shut;   /* what comes in is not done */
	atomic_bool broken; /* nothing arrives in a staging slot, and its fence value fails */
	atomic_uint n_broken;
	atomic_uint n_in;               /* copies into the card */
	atomic_uint n_staged, n_leaves; /* copies within it and out of it */
	atomic_uint n_arrived;          /* of those out: seen to be done */
	/* the I/O thread's; of leaves [0, n_leaves) may be read by all */
	uint64_t in_drawn[COPY_STREAMS], in_seen[COPY_STREAMS], lost[LEAVES]; /* lost: fence values */
	struct leave leaves[LEAVES];
	struct staged_copy {
		const uint8_t *at;
		size_t bytes;
	} staged[LEAVES]; /* where the copies within went */
};

static struct gate gate;

static bool under_way(enum copy_stream stream)
{
	return gate.in_seen[stream] < gate.in_drawn[stream];
}

static void gate_copy(
	struct copier *c, enum copy_stream stream, void *dst, const void *src, size_t bytes)
{
	const unsigned n_staged = atomic_load(&gate.n_staged), n = atomic_load(&gate.n_leaves);
	if (stream != COPY_WITHIN || !atomic_load(&gate.broken))
		gate.inner->copy(c, stream, dst, src, bytes);
	if (stream == COPY_IN || stream == COPY_AHEAD)
		atomic_fetch_add(&gate.n_in, 1);
	if (stream == COPY_WITHIN) {
		gate.staged[n_staged % LEAVES] = (struct staged_copy){dst, bytes};
		atomic_store(&gate.n_staged, n_staged + 1);
	}
	if (stream != COPY_OUT)
		return;
	gate.leaves[n % LEAVES] = (struct leave){.src = src,
		.dst = dst,
		.bytes = bytes,
		.beside_in = under_way(COPY_IN) || under_way(COPY_AHEAD),
		.beside_out = under_way(COPY_OUT)};
	atomic_store(&gate.n_leaves, n + 1);
}

static uint64_t gate_fence(struct copier *c, enum copy_stream stream)
{
	gate.in_drawn[stream] = gate.inner->fence(c, stream);
	if (stream == COPY_WITHIN && atomic_load(&gate.broken))
		gate.lost[atomic_fetch_add(&gate.n_broken, 1) % LEAVES] = gate.in_drawn[stream];
	return gate.in_drawn[stream];
}

static int gate_fence_status(struct copier *c, uint64_t fence, struct err *e)
{
	const enum copy_stream stream = (enum copy_stream)(fence % COPY_STREAMS);
	if ((stream == COPY_IN || stream == COPY_AHEAD) && atomic_load(&gate.shut))
		return 0;
	int rc = gate.inner->fence_status(c, fence, e);
	for (unsigned i = 0; rc > 0 && i < atomic_load(&gate.n_broken); i++)
		if (gate.lost[i] == fence)
			rc = err_set(e, ERR_RUN, "broken on purpose");
	if (rc && fence > gate.in_seen[stream]) {
		gate.in_seen[stream] = fence;
		if (stream == COPY_OUT)
			atomic_fetch_add(&gate.n_arrived, 1);
	}
	return rc;
}

static void gate_open(void)
{
	struct err e = {0};
	assert_int_equal(copier_null_open(NULL, &card, &e), 0);
	memset(&gate, 0, sizeof gate);
	gate.inner = card->ops;
	gate.ops = *card->ops;
	gate.ops.copy = gate_copy;
	gate.ops.fence = gate_fence;
	gate.ops.fence_status = gate_fence_status;
	card->ops = &gate.ops;
}

/* ---- the source ---- */

/* Acquires experts [first, first + n) of a layer; what the caller does not wait for is still on its
 * way. */
static void acquire(struct expert_source *s, int layer, int first, int n, struct expert_ref *refs)
{
	struct err e = {0};
	refs_from(refs, first, n);
	if (s->ops->acquire(s, layer, EXPERT_DECODE, refs, n, &e) < 0)
		fail_msg("%s", e.text);
}

/* Waits for acquired experts, looks at their bytes and gives them back. */
static void finish(struct expert_source *s, int layer, struct expert_ref *refs, int n)
{
	struct err e = {0};
	int missing;
	while ((missing = s->ops->wait_ready(s, layer, refs, n, &e)) > 0)
		;
	if (missing < 0)
		fail_msg("%s", e.text);
	for (int i = 0; i < n; i++)
		check_expert(layer, &refs[i]);
	s->ops->release(s, layer, refs, n);
}

/* Waits until all that left has arrived and nothing more leaves. */
static void settle(void)
{
	for (int quiet = 0, ms = 0; quiet < QUIET; ms++) {
		unsigned n = atomic_load(&gate.n_leaves);
		usleep(1000);
		quiet =
			n == atomic_load(&gate.n_leaves) && n == atomic_load(&gate.n_arrived) ? quiet + 1 : 0;
		assert_true(ms < PATIENCE);
	}
}

static void wait_until(atomic_uint *counter, unsigned least)
{
	for (int ms = 0; atomic_load(counter) < least; ms++) {
		if (ms >= PATIENCE)
			fail_msg("%u copies, expected %u", atomic_load(counter), least);
		usleep(1000);
	}
}

/* A source whose first tier is full and whose link is at rest. */
static struct expert_source *open_full(void)
{
	struct err e = {0};
	struct expert_source *s;
	struct expert_ref refs[CONFIG_MAX_USED];
	gate_open();
	struct loader_options o = source_options(1.0 / 3, full.everything_bytes);
	o.copier = card;
	o.lookahead = 0;
	o.reader.slice_bytes = 65536;
	o.demotion_chunk_bytes = CHUNK;
	if (loader_open(&o, &s, &e) || source_wait_pinned(s, &e))
		fail_msg("%s", e.text);
	for (int round = 0, k = (int)config.n_used; round < ROUNDS; round++) {
		s->ops->step(s, EXPERT_DECODE, 1, round);
		for (int layer = (int)config.n_dense; layer < (int)config.n_layers; layer++) {
			acquire(s, layer, round * k, k, refs);
			finish(s, layer, refs, k);
		}
	}
	settle();
	return s;
}

/* Experts that were never there: [0, n) of them, asked for and not waited for. */
struct fresh {
	struct expert_ref refs[CONFIG_MAX_EXPERTS];
	int n;
};

static int fresh_layer(int i)
{
	return (int)config.n_dense + i % (int)(config.n_layers - config.n_dense);
}

/* Asks for one more. */
static void ask(struct expert_source *s, struct fresh *f)
{
	const int n_moe = (int)(config.n_layers - config.n_dense),
			  left = (int)config.n_experts - ROUNDS * (int)config.n_used;
	assert_true(f->n < n_moe * left);
	acquire(s, fresh_layer(f->n), ROUNDS * (int)config.n_used + f->n / n_moe, 1, &f->refs[f->n]);
	f->n++;
}

/* Looks whether everything left in the order in which it was staged, without a hole; says how
 * many have not left wholly. */
static unsigned waiting(void)
{
	const unsigned n_leaves = atomic_load(&gate.n_leaves), n_staged = atomic_load(&gate.n_staged);
	unsigned staged = 0;
	size_t done = 0;
	assert_true(n_leaves <= LEAVES && n_staged <= LEAVES);
	for (unsigned i = 0; i < n_leaves; i++) {
		struct leave *v = &gate.leaves[i];
		assert_true(staged < n_staged);
		assert_ptr_equal(v->src, gate.staged[staged].at + done);
		assert_true(!done || v->dst == gate.leaves[i - 1].dst + gate.leaves[i - 1].bytes);
		done += v->bytes;
		assert_true(done <= gate.staged[staged].bytes);
		if ((v->last = done == gate.staged[staged].bytes)) {
			staged++;
			done = 0;
		}
	}
	return n_staged - staged;
}

/* After waiting(): what has left since did so whole, beside what comes in. */
static void check_left_whole(unsigned since)
{
	for (unsigned i = since; i < atomic_load(&gate.n_leaves); i++)
		assert_true(gate.leaves[i].last && gate.leaves[i].beside_in);
}

/* From now on something comes in, for ever. */
static void shut(struct expert_source *s, struct fresh *f)
{
	const unsigned before = atomic_load(&gate.n_in);
	atomic_store(&gate.shut, true);
	ask(s, f);
	wait_until(&gate.n_in, before + 1);
	settle();
}

/* Asks for more until `least` more victims have been staged. */
static void stage_victims(struct expert_source *s, struct fresh *f, unsigned least)
{
	const unsigned before = atomic_load(&gate.n_staged);
	for (unsigned most = 0; atomic_load(&gate.n_staged) - before < least && most < 4 * least;
		 most++) {
		const unsigned now = atomic_load(&gate.n_staged);
		ask(s, f);
		for (int ms = 0; ms < QUIET && atomic_load(&gate.n_staged) == now; ms++)
			usleep(1000);
	}
	wait_until(&gate.n_staged, before + least);
	usleep(A_WHILE);
}

/* The same until four wait. A layer stages no more than CACHE_KEEP_FREE victims at a time, so none
 * too many do. */
static void stage_some(struct expert_source *s, struct fresh *f)
{
	while (waiting() < 4)
		stage_victims(s, f, 1);
	assert_in_range(waiting(), 4, STAGED_WAITING);
}

static void finish_fresh(struct expert_source *s, struct fresh *f)
{
	atomic_store(&gate.shut, false);
	for (int i = 0; i < f->n; i++)
		finish(s, fresh_layer(i), &f->refs[i], 1);
	settle();
}

/* What is staged waits as long as something comes in, then it leaves chunk by chunk, in order. */
static void test_gap(void **state)
{
	(void)state;
	struct expert_source *s = open_full();
	struct fresh f = {.n = 0};
	shut(s, &f);
	const unsigned leaves = atomic_load(&gate.n_leaves);
	stage_some(s, &f);
	assert_int_equal(atomic_load(&gate.n_leaves), leaves);
	finish_fresh(s, &f);
	assert_int_equal(waiting(), 0);
	for (unsigned i = leaves; i < atomic_load(&gate.n_leaves); i++) {
		assert_true(gate.leaves[i].bytes <= CHUNK);
		assert_false(gate.leaves[i].beside_in);
		assert_false(gate.leaves[i].beside_out);
	}
	close_source(s);
}

/* When many are staged, the oldest leave whole beside what comes in; the others go on waiting. */
static void test_pressure(void **state)
{
	(void)state;
	struct expert_source *s = open_full();
	struct fresh f = {.n = 0};
	shut(s, &f);
	const unsigned leaves = atomic_load(&gate.n_leaves);
	stage_victims(s, &f, 12);
	settle();
	assert_int_equal(waiting(), STAGED_WAITING);
	assert_true(atomic_load(&gate.n_leaves) >= leaves + 12 - STAGED_WAITING);
	check_left_whole(leaves);
	finish_fresh(s, &f);
	assert_int_equal(waiting(), 0);
	/* and it may be closed while they wait */
	shut(s, &f);
	stage_victims(s, &f, 3);
	close_source(s);
}

/* The layer and expert whose bytes are staged there. */
static void find_staged(const struct staged_copy *staged, int *layer, int *expert)
{
	const uint8_t *there = copier_null_peek(card, staged->at);
	assert_non_null(there);
	for (int ms = 0; ms < PATIENCE; ms++, usleep(1000)) /* its copy may be under way */
		for (*layer = (int)config.n_dense; *layer < (int)config.n_layers; ++*layer) {
			char name[64];
			snprintf(name, sizeof name, "blk.%d.ffn_gate_exps.weight", *layer);
			const struct gguf_tensor *t = gguf_find_tensor(file, name);
			const uint64_t bytes = t->bytes / t->ne[2];
			for (*expert = 0; *expert < (int)config.n_experts; ++*expert)
				if (memmem(there, staged->bytes, t->data + (uint64_t)*expert * bytes, bytes))
					return;
		}
	fail_msg("nobody's bytes are staged");
}

/* An expert that is demanded while its demotion is staged leaves before the others, at once, and
 * comes back whole. Two others may have left before: there is pressure as long as the demand waits.
 */
static void test_wanted_again(void **state)
{
	(void)state;
	struct expert_source *s = open_full();
	struct fresh f = {.n = 0};
	struct expert_ref ref;
	int layer = 0, expert = 0;
	shut(s, &f);
	const unsigned leaves = atomic_load(&gate.n_leaves);
	stage_some(s, &f);
	assert_int_equal(atomic_load(&gate.n_leaves), leaves);
	const struct staged_copy *last = &gate.staged[atomic_load(&gate.n_staged) - 1];
	find_staged(last, &layer, &expert);
	acquire(s, layer, expert, 1, &ref);
	assert_int_equal(ref.tier, EXPERT_RAM);
	unsigned at = leaves;
	while (at < atomic_load(&gate.n_leaves) && gate.leaves[at].src != last->at)
		at++;
	assert_in_range(at, leaves, leaves + 2);
	assert_true(at < atomic_load(&gate.n_leaves));
	assert_int_equal(gate.leaves[at].bytes, last->bytes);
	assert_true(gate.leaves[at].beside_in);
	atomic_store(&gate.shut, false);
	finish(s, layer, &ref, 1);
	finish_fresh(s, &f);
	close_source(s);
}

/* Whose bytes never came to a staging slot is not in the second tier, whatever left from there. */
static void test_lost_staging(void **state)
{
	(void)state;
	struct expert_source *s = open_full();
	struct fresh f = {.n = 0};
	struct expert_ref refs[CONFIG_MAX_USED];
	atomic_store(&gate.broken, true);
	stage_victims(s, &f, 12);
	finish_fresh(s, &f);
	atomic_store(&gate.broken, false);
	assert_true(atomic_load(&gate.n_broken) >= 12);
	for (int round = 0, k = (int)config.n_used; round < ROUNDS; round++)
		for (int layer = (int)config.n_dense; layer < (int)config.n_layers; layer++) {
			acquire(s, layer, round * k, k, refs);
			finish(s, layer, refs, k);
		}
	close_source(s);
}

/* A prompt's first step lets all go at once. */
static void test_prompt(void **state)
{
	(void)state;
	struct expert_source *s = open_full();
	struct fresh f = {.n = 0};
	shut(s, &f);
	const unsigned leaves = atomic_load(&gate.n_leaves);
	stage_some(s, &f);
	s->ops->step(s, EXPERT_PREFILL, 64, ROUNDS);
	wait_until(&gate.n_leaves, leaves + 4);
	settle();
	assert_int_equal(waiting(), 0);
	check_left_whole(leaves);
	finish_fresh(s, &f);
	close_source(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_gap),
		cmocka_unit_test(test_pressure),
		cmocka_unit_test(test_wanted_again),
		cmocka_unit_test(test_lost_staging),
		cmocka_unit_test(test_prompt),
	};
	return cmocka_run_group_tests(tests, source_setup, source_teardown);
}
