/* SPDX-License-Identifier: MIT */
/*
 * The chunks of a prompt in flight through several stages: the bits are those of one stage, stages
 * compute different chunks at the same time, no more of them than there are stages, and what is
 * cancelled or fails leaves the chunks before it. All stages are on card 0 of the CPU backend, or
 * of the one that GLM_BACKEND names; GLM_CARDS names other cards, stage by stage.
 */
#include "src/base/num.h"
#include "src/engine/session/session_internal.h"
#include "src/engine/stages/pipeline.h"
#include "tests/stream/loader_help.h"
#include "tests/support/engine_help.h"
#include "tests/support/slow_build.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#define N_PROMPT 150
#define CHUNK    40 /* four chunks, the last one of 30 rows */
#define N_CHUNKS 4

static int32_t prompt[N_PROMPT + 8];
static const uint32_t two[] = {4}, three[] = {1, 5};

static int prompt_setup(void **state)
{
	struct rng r = {79};
	for (size_t i = 0; i < ARRAY_LEN(prompt); i++)
		prompt[i] = (int32_t)rng_below(&r, 8000);
	return source_setup(state);
}

static struct engine_options chunk_options(uint32_t n, uint32_t chunk)
{
	skip_unless_stages_overlap(n);
	return (struct engine_options){.model_path = MODEL,
		.backend = getenv("GLM_BACKEND") ? getenv("GLM_BACKEND") : "cpu",
		.threads = 1,
		.context = 320,
		.chunk = chunk,
		.cards = stage_cards(n),
		.n_cards = n,
		.cuts = n == 2   ? two
				: n == 3 ? three
						 : NULL};
}

static void expect_ok(int rc, const struct err *e)
{
	if (rc)
		fail_msg("%s", e->text);
}

/* Of the logits behind the prompt and of some drafts, which read all rows of the MTP layer; then of
 * a prompt that shares its beginning. */
static uint64_t prompt_hash(struct session *s)
{
	struct err e = {0};
	expect_ok(session_sync(s, prompt, N_PROMPT, NULL, NULL, &e), &e);
	uint64_t hash = drafts_hash(s, prompt + N_PROMPT, 3, logits_hash(s));
	expect_ok(session_sync(s, prompt, 55, NULL, NULL, &e), &e);
	expect_ok(session_extend(s, prompt + 20, 100, NULL, NULL, &e), &e);
	return hash * 31 + logits_hash(s);
}

static uint64_t engine_hash(const struct engine_options *o)
{
	struct engine *g = engine_of(o);
	struct session *s = session_of(g, true);
	const uint64_t hash = prompt_hash(s);
	struct engine_overlap overlap;
	engine_overlap(g, &overlap);
	if (o->n_cards > 1)
		assert_true(overlap.micro_batches > N_CHUNKS);
	session_free(s);
	assert_int_equal(engine_close(g, NULL), 0);
	return hash;
}

static void test_bits_of_chunks(void **state)
{
	(void)state;
	static const uint32_t chunks[] = {CHUNK, 16}; /* 16: computed as steps of decoding are */
	for (size_t i = 0; i < IF_SLOW_BUILD(1, ARRAY_LEN(chunks)); i++) {
		struct engine_options o = chunk_options(1, chunks[i]);
		const uint64_t one = engine_hash(&o);
		for (uint32_t n = 2; n <= 3; n++) {
			o = chunk_options(n, chunks[i]);
			assert_true(engine_hash(&o) == one);
			o.cache_bytes = budget(0.8);
			o.lookahead = 1;
			assert_true(engine_hash(&o) == one);
		}
	}
}

/* ---- callbacks ---- */

struct watched {
	const struct session *s;
	uint32_t done[2 * N_CHUNKS], n_done; /* of `progress` */
	uint32_t partial, most_ahead, n_busy;
	uint32_t stop_after; /* chunks; 0: never */
	bool falls;          /* a report was less than the one before */
	atomic_bool cancel;
};

static void on_progress(void *user, uint32_t done, uint32_t total)
{
	struct watched *w = user;
	assert_int_equal(total, N_PROMPT);
	assert_true(w->n_done < ARRAY_LEN(w->done));
	assert_int_equal(session_length(w->s), done);
	w->falls |= done < w->partial;
	w->partial = done;
	w->done[w->n_done++] = done;
	w->most_ahead = MAX(w->most_ahead, w->s->ahead);
	if (w->n_done == w->stop_after)
		atomic_store(&w->cancel, true);
}

static void on_partial(void *user, uint32_t done, uint32_t total)
{
	struct watched *w = user;
	w->falls |= done < w->partial || done >= total;
	w->partial = done;
}

static void on_busy(void *user)
{
	struct watched *w = user;
	w->n_busy++;
}

static int sync_watched(struct session *s, struct watched *w, struct err *e)
{
	w->s = s;
	const struct session_watch watch = {.progress = on_progress,
		.partial = on_partial,
		.on_device_busy = on_busy,
		.user = w,
		.cancel = &w->cancel};
	return session_sync(s, prompt, N_PROMPT, &watch, NULL, e);
}

/* Progress is that of one stage; at most as many chunks are in flight as there are stages. */
static void test_progress(void **state)
{
	(void)state;
	static const uint32_t done[N_CHUNKS] = {CHUNK, 2 * CHUNK, 3 * CHUNK, N_PROMPT};
	for (uint32_t n = 1; n <= 3; n++) {
		struct engine_options o = chunk_options(n, CHUNK);
		struct engine *g = engine_of(&o);
		struct session *s = session_of(g, false);
		struct watched w = {0};
		struct err e = {0};
		expect_ok(sync_watched(s, &w, &e), &e);
		assert_int_equal(w.n_done, N_CHUNKS);
		assert_memory_equal(w.done, done, sizeof done);
		assert_int_equal(w.most_ahead, (n - 1) * CHUNK);
		assert_false(w.falls);
		assert_int_equal(w.n_busy, 1);
		session_free(s);
		assert_int_equal(engine_close(g, NULL), 0);
	}
}

/* ---- the end before the end ---- */

static void test_cancelled_chunks(void **state)
{
	(void)state;
	for (uint32_t n = 2; n <= 3; n++) {
		struct engine_options o = chunk_options(n, CHUNK);
		struct engine *g = engine_of(&o);
		struct session *s = session_of(g, true);
		struct watched w = {.stop_after = 2};
		struct err e = {0};
		const uint64_t whole = prompt_hash(s);
		session_rewind(s, 0);
		assert_int_equal(sync_watched(s, &w, &e), ERR_INTERRUPTED);
		assert_int_equal(w.n_done, 2);
		assert_int_equal(session_length(s), 2 * CHUNK);
		assert_true(!s->ahead && !s->broken && !pipeline_in_flight(g->pipeline));
		assert_null(session_logits(s));
		assert_true(prompt_hash(s) == whole); /* goes on */
		session_free(s);
		assert_int_equal(engine_close(g, NULL), 0);
	}
}

/* The ops of two stages with a first op of a step that does more. */
static struct extra {
	struct backend_ops ops;
	const struct backend_ops *real[3];
	struct backend *stages[3];
	uint32_t n;
	uint32_t calls[3];
	uint32_t fails_at[3]; /* this call of that stage; 0: none */
	bool meets;           /* the first call in stage 1 waits for the second one in stage 0 */
	bool missed;          /* for nothing */
	pthread_mutex_t lock;
	pthread_cond_t came;
} extra = {.lock = PTHREAD_MUTEX_INITIALIZER, .came = PTHREAD_COND_INITIALIZER};

static void extra_rope_angles(
	struct backend *b, const struct batch *rows, const float *inv_freq, int dim, float *cos_sin)
{
	struct extra *x = &extra;
	uint32_t me = 0;
	while (x->stages[me] != b)
		me++;
	x->real[me]->rope_angles(b, rows, inv_freq, dim, cos_sin);
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 60;
	pthread_mutex_lock(&x->lock);
	if (++x->calls[me] == x->fails_at[me])
		err_set(&b->failure, ERR_RUN, "failed on purpose");
	pthread_cond_broadcast(&x->came);
	while (x->meets && me == 1 && x->calls[1] == 1 && x->calls[0] < 2 && !x->missed)
		x->missed = pthread_cond_timedwait(&x->came, &x->lock, &until) != 0;
	pthread_mutex_unlock(&x->lock);
}

static void extra_begin(struct engine *g)
{
	extra.n = g->n_stages;
	extra.ops = *g->stages->backend->ops;
	extra.ops.rope_angles = extra_rope_angles;
	extra.meets = extra.missed = false;
	for (uint32_t i = 0; i < extra.n; i++) {
		extra.stages[i] = g->stages[i].backend;
		extra.real[i] = extra.stages[i]->ops;
		extra.stages[i]->ops = &extra.ops;
		extra.calls[i] = extra.fails_at[i] = 0;
	}
}

static void extra_end(void)
{
	for (uint32_t i = 0; i < extra.n; i++) {
		struct backend *b = extra.stages[i];
		b->ops = extra.real[i];
		if (!extra.fails_at[i])
			continue;
		/* as for want of memory: a card counts the ops that were left out */
		b->failure.code = ERR_MEMORY;
		if (b->ops->recover)
			b->ops->recover(b);
		b->failure = (struct err){0};
	}
}

static void test_stages_overlap(void **state)
{
	(void)state;
	struct engine_options o = chunk_options(2, CHUNK);
	struct engine *g = engine_of(&o);
	struct session *s = session_of(g, false);
	struct err e = {0};
	extra_begin(g);
	extra.meets = true;
	expect_ok(session_sync(s, prompt, N_PROMPT, NULL, NULL, &e), &e);
	extra_end();
	assert_false(extra.missed);
	assert_int_equal(extra.calls[0], N_CHUNKS);
	assert_int_equal(extra.calls[1], N_CHUNKS);
	session_free(s);
	assert_int_equal(engine_close(g, NULL), 0);
}

/* A stage fails with the third chunk: the first two stay. */
static void test_failing_chunk(void **state)
{
	(void)state;
	struct engine_options o = chunk_options(3, CHUNK);
	o.no_graphs = true; /* a graph that is replayed makes no calls, so none would fail */
	struct engine *g = engine_of(&o);
	struct session *s = session_of(g, true);
	const uint64_t whole = prompt_hash(s);
	for (uint32_t stage = 0; stage < 3; stage++) {
		struct watched w = {0};
		struct err e = {0};
		session_rewind(s, 0);
		extra_begin(g);
		extra.fails_at[stage] = stage == 2 ? 5 : 3; /* mtp_append makes a call too */
		assert_int_equal(sync_watched(s, &w, &e), ERR_RUN);
		assert_non_null(strstr(e.text, "on purpose"));
		assert_int_equal(session_length(s), 2 * CHUNK);
		assert_true(!s->ahead && !s->broken && !pipeline_in_flight(g->pipeline));
		extra_end();
		assert_false(engine_has_failed(g));
		assert_true(prompt_hash(s) == whole);
	}
	session_free(s);
	assert_int_equal(engine_close(g, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stages_overlap),
		cmocka_unit_test(test_bits_of_chunks),
		cmocka_unit_test(test_progress),
		cmocka_unit_test(test_cancelled_chunks),
		cmocka_unit_test(test_failing_chunk),
	};
	return cmocka_run_group_tests(tests, prompt_setup, source_teardown);
}
