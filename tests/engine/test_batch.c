/* SPDX-License-Identifier: MIT */
/*
 * Steps over several sessions on the pocket model: whoever shares a step, in whatever order and mix
 * of prompts and single tokens, every session gets the bits it gets alone, also where tokens are
 * drawn by the device and its logits are fetched later; copied prefixes are as good as computed
 * ones.
 */
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/engine/batch.h"
#include "tests/support/engine_help.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MODEL      "tools/pocket/pocket.gguf"
#define N_SESSIONS 5
#define N_TOKENS   220 /* more than index_topk 128: sparse selection is in use */
#define CHUNK      96

static int32_t text[N_SESSIONS][N_TOKENS];
static uint64_t alone[N_SESSIONS]
					 [N_TOKENS + 1]; /* hash of the logits after n tokens; 0: not computed */
static struct engine *g;
static struct session *sessions[N_SESSIONS];

static int batch_setup(void **state)
{
	(void)state;
	struct engine_options o = {.model_path = MODEL,
		.backend = "cpu",
		.context = 256,
		.chunk = CHUNK,
		.sessions = N_SESSIONS};
	g = engine_of(&o);
	struct rng r = {5};
	for (int i = 0; i < N_SESSIONS; i++) {
		for (int k = 0; k < N_TOKENS; k++)
			text[i][k] = (int32_t)rng_below(&r, 8000);
		sessions[i] = session_of(g, false);
	}
	return 0;
}

static int batch_teardown(void **state)
{
	(void)state;
	for (int i = 0; i < N_SESSIONS; i++)
		session_free(sessions[i]);
	return engine_close(g, NULL);
}

/* Hash after the first n tokens of text i, computed by one session in one go. */
static uint64_t expected(int i, uint32_t n)
{
	if (!alone[i][n]) {
		struct err e = {0};
		struct session *s = sessions[N_SESSIONS - 1];
		session_rewind(s, 0);
		if (session_sync(s, text[i], n, NULL, NULL, &e))
			fail_msg("%s", e.text);
		alone[i][n] = logits_hash(s);
	}
	return alone[i][n];
}

static void check_drawn(
	const float *logits, const struct draw_request *request, const struct draw_result *drawn)
{
	struct draw_result want;
	int32_t n = engine_n_valid(g);
	float maxima[draw_blocks(n)];
	draw_row(logits, n, request, maxima, &want);
	assert_int_equal(drawn->id, want.id);
	assert_int_equal(drawn->best, want.best);
	assert_int_equal(drawn->finite, 1);
	assert_int_equal(drawn->n_before, want.n_before);
	assert_int_equal(drawn->mass, want.mass);
}

/* Random mixes: each session of a step adds one token or some, in random order; the sums keep
 * within the chunk. */
static void test_mixed_steps(void **state)
{
	(void)state;
	struct rng r = {99};
	enum { N = N_SESSIONS - 1 }; /* the last one computes what is expected */
	uint64_t got[64] = {0};
	struct {
		int session;
		uint32_t n;
	} at[64];
	int n_got = 0;
	for (int i = 0; i < N; i++)
		session_rewind(sessions[i], 0);
	for (int step = 0; step < 14; step++) {
		struct batch_part parts[N];
		struct draw_request draws[N];
		struct draw_result drawn[N];
		uint32_t n_parts = 0, room = CHUNK;
		int first = (int)rng_below(&r, N);
		for (int k = 0; k < N; k++) {
			int i = (first + k) % N;
			uint32_t length = session_length(sessions[i]),
					 n = rng_below(&r, 3) ? 1 : 1 + rng_below(&r, 60);
			n = MIN(MIN(n, room), N_TOKENS - length);
			if (!n || !rng_below(&r, 5))
				continue;
			room -= n;
			parts[n_parts] = (struct batch_part){.session = sessions[i],
				.tokens = text[i] + length,
				.n = n,
				.logits = rng_below(&r, 4) > 0};
			draws[n_parts] = (struct draw_request){.noise = {rng_u64(&r), length + n},
				.inv_t = rng_below(&r, 4) ? 1.25 : 0,
				.sums = true};
			draws[n_parts].sums = draws[n_parts].inv_t > 0;
			if (rng_below(&r, 2)) {
				parts[n_parts].draws = &draws[n_parts];
				parts[n_parts].drawn = &drawn[n_parts];
			}
			n_parts++;
		}
		struct err e = {0};
		if (batch_step(parts, n_parts, NULL, &e))
			fail_msg("%s", e.text);
		for (uint32_t p = 0; p < n_parts; p++) {
			struct session *s = parts[p].session;
			int i = 0;
			while (sessions[i] != s)
				i++;
			assert_memory_equal(session_tokens(s), text[i], session_length(s) * sizeof **text);
			if (!parts[p].logits) {
				assert_null(session_logits(s));
				continue;
			}
			if (parts[p].draws) {
				assert_null(session_logits(s));
				assert_int_equal(session_fetch_logits(s, &e), 0);
				check_drawn(session_logits(s), &draws[p], &drawn[p]);
			}
			assert_true(n_got < 64);
			at[n_got].session = i;
			at[n_got].n = session_length(s);
			got[n_got++] = logits_hash(s);
		}
	}
	assert_true(n_got > 20);
	for (int i = 0; i < n_got; i++)
		if (got[i] != expected(at[i].session, at[i].n))
			fail_msg("session %d at %u tokens: other bits than alone", at[i].session, at[i].n);
}

static void test_copied_prefix(void **state)
{
	(void)state;
	struct err e = {0};
	struct session *from = sessions[0], *to = sessions[1];
	session_rewind(from, 0);
	assert_int_equal(session_sync(from, text[0], 200, NULL, NULL, &e), 0);
	session_rewind(to, 0);
	assert_int_equal(session_sync(to, text[1], 90, NULL, NULL, &e), 0);
	assert_int_equal(batch_copy_prefix(to, from, 150, &e), 0);
	assert_int_equal(session_length(to), 150);
	assert_null(session_logits(to));
	uint32_t reused = 0;
	assert_int_equal(session_sync(to, text[0], N_TOKENS, NULL, &reused, &e), 0);
	assert_int_equal(reused, 150);
	assert_true(logits_hash(to) == expected(0, N_TOKENS));
	assert_int_equal(session_length(from), 200); /* and the source is what it was */
	assert_int_equal(session_sync(from, text[0], 210, NULL, NULL, &e), 0);
	assert_true(logits_hash(from) == expected(0, 210));
}

static void test_batch_refusals(void **state)
{
	(void)state;
	struct err e = {0};
	struct session *s = sessions[2], *t = sessions[3];
	session_rewind(s, 0);
	session_rewind(t, 0);
	assert_int_equal(session_sync(s, text[2], 10, NULL, NULL, &e), 0);
	int32_t bad = 8192;
	struct batch_part parts[] = {{.session = s, .tokens = text[2] + 10, .n = 1, .logits = true},
		{.session = t, .tokens = &bad, .n = 1, .logits = true}};
	assert_int_equal(batch_step(parts, 2, NULL, &e), ERR_INPUT);
	assert_int_equal(session_length(s), 10); /* the other part was not computed either */
	assert_non_null(session_logits(s));
	assert_int_equal(session_sync(t, text[3], 220, NULL, NULL, &e), 0);
	int32_t many[40] = {0};
	parts[1] = (struct batch_part){
		.session = t, .tokens = many, .n = 37, .logits = true}; /* context 256 */
	assert_int_equal(batch_step(parts, 2, NULL, &e), ERR_INPUT);
	atomic_bool cancel = true;
	assert_int_equal(
		batch_step(parts, 1, &(struct batch_watch){.cancel = &cancel}, &e), ERR_INTERRUPTED);
	assert_int_equal(session_length(s), 10);
	assert_null(session_logits(s));
	assert_int_equal(batch_step(parts, 1, NULL, &e), 0);
	assert_true(logits_hash(s) == expected(2, 11));
}

/* A step with more rows of logits than are kept on the device at once (64). */
static void test_many_rows_of_logits(void **state)
{
	(void)state;
	enum { N = 9, ROWS = SESSION_ROWS_MAX };
	struct engine_options o = {.model_path = MODEL,
		.backend = "cpu",
		.context = 128,
		/* a chunk has no more */ .chunk = CHUNK,
		.sessions = N + 1};
	struct engine *many = engine_of(&o);
	struct session *s[N], *single = session_of(many, false);
	struct batch_part parts[N];
	struct err e = {0};
	size_t n_vocab = engine_config(many)->n_vocab;
	for (uint32_t i = 0; i < N; i++) {
		s[i] = session_of(many, false);
		assert_int_equal(session_sync(s[i], text[i % N_SESSIONS], 3 + i, NULL, NULL, &e), 0);
		parts[i] = (struct batch_part){
			.session = s[i], .tokens = text[i % N_SESSIONS] + 3 + i, .n = ROWS, .verify = true};
	}
	assert_int_equal(batch_step(parts, N, NULL, &e), 0);
	for (uint32_t i = 0; i < N; i++) {
		session_rewind(single, 0);
		assert_int_equal(session_sync(single, text[i % N_SESSIONS], 3 + i, NULL, NULL, &e), 0);
		assert_int_equal(session_verify(single, parts[i].tokens, ROWS, NULL, NULL, &e), 0);
		for (uint32_t k = 0; k < ROWS; k++)
			assert_memory_equal(session_row_logits(s[i], k), session_row_logits(single, k),
				n_vocab * sizeof(float));
		session_free(s[i]);
	}
	session_free(single);
	assert_int_equal(engine_close(many, NULL), 0);
}

/* Budgets that the plan chooses from the free memory: the same bits. */
static void test_chosen_budgets(void **state)
{
	(void)state;
	struct err e = {0};
	for (int tiers = 1; tiers <= 2; tiers++) {
		struct engine_options o = {.model_path = MODEL,
			.backend = "cpu",
			.context = 128,
			.chunk = CHUNK,
			.sessions = 1,
			.cache_bytes = ENGINE_CACHE_AUTO,
			.ram_bytes = tiers == 2 ? ENGINE_CACHE_AUTO : 0};
		struct engine *auto_budgets = engine_of(&o);
		struct session *s = session_of(auto_budgets, false);
		assert_int_equal(session_sync(s, text[0], 40, NULL, NULL, &e), 0);
		assert_true(logits_hash(s) == expected(0, 40));
		session_free(s);
		assert_int_equal(engine_close(auto_budgets, NULL), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_mixed_steps),
		cmocka_unit_test(test_copied_prefix),
		cmocka_unit_test(test_batch_refusals),
		cmocka_unit_test(test_many_rows_of_logits),
		cmocka_unit_test(test_chosen_budgets),
	};
	return cmocka_run_group_tests(tests, batch_setup, batch_teardown);
}
