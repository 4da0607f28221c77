/* SPDX-License-Identifier: MIT */
/*
 * The timeline contract on the pocket model: however a session got to its tokens (in one go, in
 * chunks of any size, by extending, after rewinding, beside other sessions, after an interruption),
 * its logits are the same bits.
 */
#include "src/base/mem.h"
#include "src/base/rng.h"
#include "src/engine/generate.h"
#include "tests/support/engine_help.h"
#include "tests/support/slow_build.h"

#include <stdarg.h>
#include <setjmp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define MODEL    "tools/pocket/pocket.gguf"
#define N_TOKENS 300 /* more than index_topk 128: sparse selection is in use */

static int32_t text[N_TOKENS + 64];

static struct engine *session_open_engine(uint32_t chunk, uint32_t sessions, bool kv_f32)
{
	struct engine_options o = {.model_path = MODEL,
		.backend = "cpu",
		.context = 512,
		.chunk = chunk,
		.sessions = sessions,
		.kv_f32 = kv_f32};
	return engine_of(&o);
}

static void sync_to(struct session *s, uint32_t n, uint32_t reused_expected)
{
	struct err e = {0};
	uint32_t reused = 0;
	if (session_sync(s, text, n, NULL, &reused, &e))
		fail_msg("%s", e.text);
	assert_int_equal(reused, reused_expected);
	assert_int_equal(session_length(s), n);
	assert_memory_equal(session_tokens(s), text, n * sizeof *text);
}

/* Logits of text[0..n) computed in one go by a fresh session. */
static uint64_t fresh_hash(struct engine *g, uint32_t n)
{
	struct session *s = session_of(g, false);
	sync_to(s, n, 0);
	uint64_t h = logits_hash(s);
	session_free(s);
	return h;
}

static int session_setup(void **state)
{
	(void)state;
	struct rng r = {11};
	for (size_t i = 0; i < sizeof text / sizeof *text; i++)
		text[i] = (int32_t)rng_below(&r, 8000);
	return 0;
}

static void test_chunks(void **state)
{
	(void)state;
	static const uint32_t chunks[] = {512, 1, 2, 3, 7, 31, 32, 33, 64, 150};
	for (int f32 = 0; f32 < 2; f32++) {
		uint64_t want = 0;
		for (size_t i = 0; i < sizeof chunks / sizeof *chunks;
			 i += IF_SLOW_BUILD(f32 ? 5 : 3, f32 ? 3 : 1)) {
			struct engine *g = session_open_engine(chunks[i], 1, f32);
			uint64_t h = fresh_hash(g, N_TOKENS);
			if (!i)
				want = h;
			assert_true(h == want);
			engine_close(g, NULL);
		}
	}
}

static void test_extend_rewind_sync(void **state)
{
	(void)state;
	struct engine *g = session_open_engine(64, 2, false);
	uint64_t full = fresh_hash(g, N_TOKENS), half = fresh_hash(g, N_TOKENS / 2);
	struct session *s = session_of(g, false);
	struct err e = {0};
	for (uint32_t i = 0; i < N_TOKENS; i += 30) /* by extending */
		assert_int_equal(session_extend(s, text + i, 30, NULL, NULL, &e), 0);
	assert_true(logits_hash(s) == full);
	session_rewind(s, N_TOKENS); /* nothing to forget: the logits stay */
	assert_true(logits_hash(s) == full);
	session_rewind(s, N_TOKENS / 2);
	assert_null(session_logits(s));
	sync_to(s, N_TOKENS / 2, N_TOKENS / 2 - 1); /* the last token again, for its logits */
	assert_true(logits_hash(s) == half);
	sync_to(s, N_TOKENS / 2, N_TOKENS / 2); /* all there */
	/* another branch, then back */
	int32_t saved = text[100];
	text[100] = (saved + 1) % 8000;
	sync_to(s, N_TOKENS, 100);
	assert_true(logits_hash(s) != full);
	text[100] = saved;
	sync_to(s, N_TOKENS, 100);
	assert_true(logits_hash(s) == full);
	session_free(s);
	engine_close(g, NULL);
}

static void test_rows(void **state)
{
	(void)state;
	struct engine *g = session_open_engine(50, 1, false);
	uint32_t n_vocab = engine_config(g)->n_vocab;
	struct session *s = session_of(g, false);
	struct err e = {0};
	float *rows = NEW_ARRAY(float, (size_t)N_TOKENS *n_vocab);
	assert_int_equal(session_extend(s, text, N_TOKENS, rows, NULL, &e), 0);
	assert_memory_equal(
		rows + (size_t)(N_TOKENS - 1) * n_vocab, session_logits(s), n_vocab * sizeof *rows);
	session_free(s);
	static const uint32_t some[] = {1, 2, 50, 51, 129, 200};
	for (size_t i = 0; i < sizeof some / sizeof *some; i++)
		assert_true(fresh_hash(g, some[i]) == generate_hash(GENERATE_HASH_START,
												  rows + (size_t)(some[i] - 1) * n_vocab, n_vocab));
	free(rows);
	engine_close(g, NULL);
}

static void test_two_sessions(void **state)
{
	(void)state;
	struct engine *g = session_open_engine(64, 2, false);
	struct session *a = session_of(g, false), *b = session_of(g, false), *c;
	struct err e = {0};
	assert_int_equal(session_new(g, &c, &e), ERR_MEMORY);
	/* two different timelines, advanced by turns */
	for (uint32_t i = 0; i < 150; i += 10) {
		assert_int_equal(session_extend(a, text + i, 10, NULL, NULL, &e), 0);
		assert_int_equal(session_extend(b, text + 150 + i, 10, NULL, NULL, &e), 0);
	}
	uint64_t ha = logits_hash(a), hb = logits_hash(b);
	session_free(a);
	session_free(b);
	assert_true(fresh_hash(g, 150) == ha);
	memmove(text, text + 150, 150 * sizeof *text);
	assert_true(fresh_hash(g, 150) == hb);
	session_setup(NULL);
	engine_close(g, NULL);
}

static void test_mtp_rewind(void **state)
{
	(void)state;
	uint32_t ways[] = {512, 1, 40};
	float *want = NULL;
	for (size_t i = 0; i < IF_SLOW_BUILD(2, 3); i++) {
		struct engine *g = session_open_engine(ways[i], 1, false);
		uint32_t n_vocab = engine_config(g)->n_vocab;
		struct session *s = session_of(g, false);
		struct err e = {0};
		float *out = NEW_ARRAY(float, n_vocab);
		int32_t id;
		assert_int_equal(session_mtp_draft(s, 1, 1, &id, out, &e), ERR_RUN); /* not enabled */
		assert_int_equal(session_enable_mtp(s, &e), 0);
		sync_to(s, 200, 0);
		if (!want) {
			want = NEW_ARRAY(float, n_vocab);
			draft_of(s, 42, want);
		}
		draft_of(s, 42, out);
		assert_memory_equal(out, want, n_vocab * sizeof *out);
		draft_of(s, 42, out); /* a draft leaves nothing behind */
		assert_memory_equal(out, want, n_vocab * sizeof *out);
		/* a detour over other tokens, and back to before them: caches of the MTP layer are renewed
		 * too */
		int32_t saved = text[120];
		text[120] = (saved + 5) % 8000;
		sync_to(s, 180, 120);
		text[120] = saved;
		sync_to(s, 119, 118);
		sync_to(s, 200, 119);
		draft_of(s, 42, out);
		assert_memory_equal(out, want, n_vocab * sizeof *out);
		free(out);
		session_free(s);
		engine_close(g, NULL);
	}
	free(want);
}

static void test_session_refusals(void **state)
{
	(void)state;
	struct engine *g = session_open_engine(64, 1, false);
	struct session *s = session_of(g, false);
	struct err e = {0};
	sync_to(s, 10, 0);
	uint64_t before = logits_hash(s);
	int32_t bad[] = {1, -1}, high[] = {1, (int32_t)engine_config(g)->n_vocab},
			*many = NEW_ARRAY(int32_t, 513);
	assert_int_equal(session_sync(s, bad, 2, NULL, NULL, &e), ERR_INPUT);
	assert_int_equal(session_extend(s, high, 2, NULL, NULL, &e), ERR_INPUT);
	assert_int_equal(session_sync(s, many, 513, NULL, NULL, &e), ERR_INPUT);
	assert_int_equal(session_extend(s, many, 503, NULL, NULL, &e), ERR_INPUT);
	assert_int_equal(session_sync(s, many, 0, NULL, NULL, &e), ERR_INPUT);
	assert_int_equal(session_length(s), 10);
	assert_true(logits_hash(s) == before);
	assert_int_equal(session_extend(s, many, 502, NULL, NULL, &e), 0); /* exactly full */
	free(many);
	session_free(s);
	engine_close(g, NULL);
}

struct canceller {
	atomic_bool flag;
	uint32_t at;
};

static void cancel_at(void *user, uint32_t done, uint32_t total)
{
	(void)total;
	struct canceller *c = user;
	if (done >= c->at)
		atomic_store(&c->flag, true);
}

static void test_cancel(void **state)
{
	(void)state;
	struct engine *g = session_open_engine(20, 1, false);
	uint64_t want = fresh_hash(g, N_TOKENS);
	struct session *s = session_of(g, false);
	struct err e = {0};
	for (uint32_t at = 20; at < N_TOKENS; at += IF_SLOW_BUILD(240, 120)) {
		struct canceller c = {.at = at};
		struct session_watch watch = {.progress = cancel_at, .user = &c, .cancel = &c.flag};
		session_rewind(s, 0);
		assert_int_equal(session_sync(s, text, N_TOKENS, &watch, NULL, &e), ERR_INTERRUPTED);
		assert_int_equal(session_length(s), at);
		assert_null(session_logits(s));
		assert_int_equal(session_sync(s, text, N_TOKENS, NULL, NULL, &e), 0);
		assert_true(logits_hash(s) == want);
	}
	session_free(s);
	engine_close(g, NULL);
}

/* What the callbacks saw; sets the flag when so much work is done. */
struct observer {
	atomic_bool flag;
	uint32_t stop_at, done, calls, chunks;
};

static void observe_partial(void *user, uint32_t done, uint32_t total)
{
	struct observer *o = user;
	assert_int_equal(total, N_TOKENS);
	assert_true(done >= o->done && done < total && !atomic_load(&o->flag));
	o->done = done;
	o->calls++;
	if (done >= o->stop_at)
		atomic_store(&o->flag, true);
}

static void observe_chunk(void *user, uint32_t done, uint32_t total)
{
	(void)total;
	struct observer *o = user;
	assert_true(done >= o->done);
	o->done = done;
	o->chunks++;
}

/* Progress is reported layer by layer. A prompt that is stopped inside a chunk keeps the chunks
 * before it, and computes only the others when it comes again. */
static void test_cancel_inside_chunk(void **state)
{
	(void)state;
	enum { CHUNK = 48 };
	struct engine *g = session_open_engine(CHUNK, 1, false);
	uint32_t n_chunks = (N_TOKENS + CHUNK - 1) / CHUNK, layers = engine_config(g)->n_layers;
	uint64_t want = fresh_hash(g, N_TOKENS);
	struct session *s = session_of(g, false);
	struct err e = {0};
	for (uint32_t at = 1; at < N_TOKENS; at += IF_SLOW_BUILD(205, 82)) {
		struct observer o = {.stop_at = at};
		struct session_watch watch = {
			.progress = observe_chunk, .partial = observe_partial, .user = &o, .cancel = &o.flag};
		session_rewind(s, 0);
		int rc = session_sync(s, text, N_TOKENS, &watch, NULL, &e);
		if (!atomic_load(&o.flag)) { /* so late that no layer but the last came behind */
			assert_int_equal(rc, 0);
			assert_int_equal(o.calls, n_chunks * (layers - 1));
			continue;
		}
		assert_int_equal(rc, ERR_INTERRUPTED);
		assert_int_equal(session_length(s), o.chunks * CHUNK);
		assert_int_equal(o.chunks, o.done / CHUNK);
		uint32_t reused;
		struct observer again = {.stop_at = UINT32_MAX};
		watch = (struct session_watch){.progress = observe_chunk, .user = &again};
		assert_int_equal(session_sync(s, text, N_TOKENS, &watch, &reused, &e), 0);
		assert_int_equal(reused, o.chunks * CHUNK);
		assert_int_equal(again.done, N_TOKENS - o.chunks * CHUNK);
		assert_true(logits_hash(s) == want);
	}
	session_free(s);
	engine_close(g, NULL);
}

static void *set_later(void *arg)
{
	atomic_bool *flag = arg;
	static unsigned round;
	usleep(200 + 977 * (++round * 7 % 12 * 3));
	atomic_store(flag, true);
	return NULL;
}

/* The flag is set at any time, by another thread: ops are left undone, and nothing of them stays.
 */
static void test_cancel_any_time(void **state)
{
	(void)state;
	struct engine *g = session_open_engine(N_TOKENS / 2 + 1, 1, false);
	uint64_t want = fresh_hash(g, N_TOKENS);
	struct session *s = session_of(g, false);
	struct err e = {0};
	for (int i = 0; i < IF_SLOW_BUILD(2, 6); i++) {
		atomic_bool flag = false;
		struct session_watch watch = {.cancel = &flag};
		pthread_t thread;
		session_rewind(s, 0);
		assert_int_equal(pthread_create(&thread, NULL, set_later, &flag), 0);
		int rc = session_sync(s, text, N_TOKENS, &watch, NULL, &e);
		pthread_join(thread, NULL);
		if (rc) {
			assert_int_equal(rc, ERR_INTERRUPTED);
			assert_true(!session_length(s) || session_length(s) == N_TOKENS / 2 + 1);
			assert_int_equal(session_sync(s, text, N_TOKENS, NULL, NULL, &e), 0);
		}
		assert_true(logits_hash(s) == want);
	}
	session_free(s);
	engine_close(g, NULL);
}

static bool stop_after(void *user, int32_t id)
{
	(void)id;
	return --*(int *)user > 0;
}

struct cancel_late {
	atomic_bool flag;
	int left;
};

/* Goes on, and raises the flag. */
static bool cancel_late(void *user, int32_t id)
{
	(void)id;
	struct cancel_late *c = user;
	if (!--c->left)
		atomic_store(&c->flag, true);
	return true;
}

static void test_generate(void **state)
{
	(void)state;
	struct engine *g = session_open_engine(64, 1, false);
	struct session *s = session_of(g, false);
	struct err e = {0};
	struct generate_result r, again;
	struct generate_options o = {
		.max_new = 40, .sampler = {.temperature = 0.8f, .top_p = 0.95f, .seed = 3}};
	o.ignore_stop = true;
	assert_int_equal(generate(s, text, 100, &o, &r, &e), 0);
	assert_int_equal(r.stop, GENERATE_LIMIT);
	assert_int_equal(r.new_tokens, 40);
	assert_int_equal(session_length(s), 140);
	int32_t said[140];
	memcpy(said, session_tokens(s), sizeof said);
	assert_int_equal(generate(s, text, 100, &o, &again, &e), 0); /* the same seed says the same */
	assert_memory_equal(said, session_tokens(s), sizeof said);
	assert_true(again.logits_hash == r.logits_hash);
	assert_int_equal(again.reused_tokens, 99);

	int left = 5;
	o.on_token = stop_after;
	o.user = &left;
	assert_int_equal(generate(s, text, 100, &o, &r, &e), 0);
	assert_int_equal(r.stop, GENERATE_CANCELLED);
	assert_int_equal(r.new_tokens, 5);
	assert_int_equal(session_length(s), 105);

	o.on_token = NULL;
	o.max_new = 0;
	assert_int_equal(generate(s, text, 100, &o, &r, &e), 0);
	assert_int_equal(r.new_tokens, 0);
	o.max_new = UINT32_MAX;
	assert_int_equal(generate(s, text, 300, &o, &r, &e), 0);
	assert_int_equal(r.stop, GENERATE_CONTEXT_FULL);
	assert_int_equal(session_length(s), 512);
	session_free(s);
	engine_close(g, NULL);
}

/* The hash is made while the next token is computed: it must be that of every position sampled
 * from, however the run ends. */
static void test_generate_hash(void **state)
{
	(void)state;
	struct engine *g = session_open_engine(64, 1, false);
	struct session *s = session_of(g, false);
	struct err e = {0};
	struct generate_result r;
	struct generate_options o = {.max_new = 12, .ignore_stop = true, .sampler = {.top_p = 1}};
	assert_int_equal(generate(s, text, 100, &o, &r, &e), 0);
	int32_t said[112];
	memcpy(said, session_tokens(s), sizeof said);
	uint64_t hash[13] = {GENERATE_HASH_START};
	session_rewind(s, 0);
	assert_int_equal(session_sync(s, said, 100, NULL, NULL, &e), 0);
	for (int i = 0; i < 12; i++) {
		hash[i + 1] = generate_hash(hash[i], session_logits(s), engine_config(g)->n_vocab);
		assert_int_equal(session_extend(s, &said[100 + i], 1, NULL, NULL, &e), 0);
	}
	assert_true(r.logits_hash == hash[12]);
	for (int n = 1; n < 6; n++) { /* ended by the caller */
		int left = n;
		o.on_token = stop_after;
		o.user = &left;
		assert_int_equal(generate(s, text, 100, &o, &r, &e), 0);
		assert_true(r.logits_hash == hash[n]);
	}
	struct cancel_late c = {.left = 3};
	o.on_token = cancel_late;
	o.user = &c;
	o.watch.cancel = &c.flag;
	assert_int_equal(generate(s, text, 100, &o, &r, &e), 0);
	assert_int_equal(r.stop, GENERATE_CANCELLED);
	assert_int_equal(session_length(s), 102);
	assert_true(r.logits_hash == hash[3]);
	session_free(s);
	engine_close(g, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_chunks),
		cmocka_unit_test(test_extend_rewind_sync),
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_two_sessions),
		cmocka_unit_test(test_mtp_rewind),
		cmocka_unit_test(test_session_refusals),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_cancel_inside_chunk),
		cmocka_unit_test(test_cancel_any_time),
		cmocka_unit_test(test_generate),
		cmocka_unit_test(test_generate_hash),
	};
#ifdef __SANITIZE_THREAD__
	/* the only case with a thread beside those of the engine */
	cmocka_set_test_filter("test_cancel_any_time");
#endif
	return cmocka_run_group_tests(tests, session_setup, NULL);
}
