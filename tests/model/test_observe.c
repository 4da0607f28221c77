/* SPDX-License-Identifier: MIT */
/*
 * An observer sees every row of every input exactly once, and steps compute the same bits with and
 * without it: in one stage, in several, with experts streamed. What the values are is compared with
 * numpy by tests/e2e/convert/imatrix.sh.
 */
#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/base/rng.h"
#include "src/forward/observe.h"
#include "tests/support/engine_help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { TOKENS = 150, LAYERS = 16, MATRICES = 64 };

struct seen_rows {
	const struct model_config *c;
	uint64_t rows[LAYERS][OBSERVED_INPUTS][MATRICES];
	double sum[LAYERS][OBSERVED_INPUTS]; /* of squares: the same in every run */
};

static void see(void *user, const struct observed_rows *r)
{
	struct seen_rows *s = user;
	uint32_t n_matrices, n_in;
	assert_true(r->layer < s->c->n_layers);
	observed_shape(s->c, r->layer, r->input, &n_matrices, &n_in);
	assert_true(n_in > 0 && r->n_in == n_in && r->matrix < n_matrices && r->n > 0);
	s->rows[r->layer][r->input][r->matrix] += (uint64_t)r->n;
	for (int i = 0; i < r->n; i++) {
		const float *x = r->x + (r->index ? r->index[i] / r->divisor : i) * r->stride;
		for (uint32_t k = 0; k < n_in; k++)
			s->sum[r->layer][r->input] += (double)x[k] * (double)x[k];
	}
}

static void check_rows(const struct seen_rows *s)
{
	const struct model_config *c = s->c;
	for (uint32_t layer = 0; layer < c->n_layers; layer++)
		for (int i = 0; i < OBSERVED_INPUTS; i++) {
			const bool experts = i == OBSERVED_EXPERT || i == OBSERVED_EXPERT_DOWN;
			uint32_t n_matrices, n_in;
			uint64_t rows = 0;
			observed_shape(c, layer, (enum observed_input)i, &n_matrices, &n_in);
			assert_true(!n_in == !n_matrices && n_matrices <= MATRICES);
			for (uint32_t m = 0; m < n_matrices; m++) {
				rows += s->rows[layer][i][m];
				if (!experts)
					assert_int_equal(s->rows[layer][i][m], TOKENS);
				assert_true(i != OBSERVED_EXPERT_DOWN ||
							s->rows[layer][i][m] == s->rows[layer][OBSERVED_EXPERT][m]);
			}
			if (experts && n_in)
				assert_int_equal(rows, (uint64_t)TOKENS * c->n_used);
			assert_true(!n_in == (s->sum[layer][i] == 0));
		}
}

/* The logits of the last token and of three more, each a step of its own. */
static uint64_t run(const struct engine_options *o, struct seen_rows *seen)
{
	struct rng r = {5};
	struct err e = {0};
	int32_t text[TOKENS];
	for (int i = 0; i < TOKENS; i++)
		text[i] = (int32_t)rng_below(&r, 8000);
	struct engine *g = engine_of(o);
	struct session *s = session_of(g, false);
	const struct model_observer observer = {see, seen};
	if (seen) {
		seen->c = engine_config(g);
		engine_observe(g, &observer);
	}
	uint64_t hash = HASH_START;
	for (int at = 0, n; at < TOKENS; at += n) {
		n = at ? 1 : TOKENS - 3;
		assert_int_equal(session_extend(s, text + at, (uint32_t)n, NULL, NULL, &e), 0);
		hash = hash_u64(hash, logits_hash(s));
	}
	if (seen) {
		check_rows(seen);
		engine_observe(g, NULL);
		seen->c = NULL; /* a call from here on would crash */
		assert_int_equal(session_extend(s, text, 1, NULL, NULL, &e), 0);
	}
	session_free(s);
	engine_close(g, NULL);
	return hash;
}

static void test_observe(void **state)
{
	(void)state;
	const uint32_t twice[] = {0, 0};
	struct engine_options o = {.model_path = "tools/pocket/pocket.gguf",
		.backend = "cpu",
		.context = 256,
		.chunk = 64,
		.no_mtp = true};
	struct seen_rows *seen = NEW_ARRAY(struct seen_rows, 3);
	const uint64_t bits = run(&o, NULL);
	assert_true(run(&o, &seen[0]) == bits);
	o.cache_bytes = 6000000;
	o.lookahead = 2; /* its routers are products of other layers' inputs */
	assert_true(run(&o, &seen[1]) == bits);
	o.cache_bytes = 0;
	o.lookahead = 0;
	o.cards = twice;
	o.n_cards = 2;
	assert_true(run(&o, &seen[2]) == bits);
	for (int i = 1; i < 3; i++)
		for (uint32_t layer = 0; layer < LAYERS; layer++)
			for (int k = 0; k < OBSERVED_EXPERT; k++) /* those come in the order of the tokens */
				assert_true(seen[i].sum[layer][k] == seen[0].sum[layer][k]);
	free(seen);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_observe)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
