/* SPDX-License-Identifier: MIT */
/* The sampler against distributions computed by brute force in double. */
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/engine/sampler.h"
#include "tests/support/slow_build.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N     64
#define DRAWS IF_SLOW_BUILD(50000, 200000)

/* What each id's probability should be, the slow obvious way: sort, cut, renormalise. */
static void expected(const float *logits, int n, struct sampler_options o, double *p)
{
	int order[N];
	for (int i = 0; i < n; i++) {
		order[i] = i;
		p[i] = 0;
	}
	for (int i = 0; i < n; i++)
		for (int j = i + 1; j < n; j++)
			if (logits[order[j]] > logits[order[i]]) {
				int t = order[i];
				order[i] = order[j];
				order[j] = t;
			}
	int limit = o.top_k > 0 && o.top_k < n ? o.top_k : n;
	double all = 0, kept = 0;
	for (int i = 0; i < limit; i++)
		all += exp(((double)logits[order[i]] - logits[order[0]]) / o.temperature);
	for (int i = 0; i < limit; i++) {
		double v = exp(((double)logits[order[i]] - logits[order[0]]) / o.temperature);
		if (i && (v < o.min_p || kept >= o.top_p * all))
			break;
		p[order[i]] = v;
		kept += v;
	}
	for (int i = 0; i < n; i++)
		p[i] /= kept;
}

static void fill(float *logits, int n, uint64_t seed)
{
	struct rng r = {seed};
	for (int i = 0; i < n; i++)
		logits[i] = (float)(rng_unit(&r) * 8 - 4);
}

static void test_distribution(void **state)
{
	(void)state;
	static const struct sampler_options cases[] = {
		{.temperature = 1, .top_p = 1, .seed = 1},
		{.temperature = 0.5f, .top_p = 1, .seed = 2},
		{.temperature = 2, .top_p = 0.7f, .seed = 3},
		{.temperature = 1, .top_p = 0.95f, .seed = 4},
		{.temperature = 1, .top_p = 1, .top_k = 5, .seed = 5},
		{.temperature = 1, .top_p = 0.8f, .top_k = 7, .seed = 6},
		{.temperature = 1, .top_p = 1, .min_p = 0.2f, .seed = 7},
		{.temperature = 1.3f, .top_p = 0.9f, .top_k = 30, .min_p = 0.05f, .seed = 8},
	};
	float logits[N];
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		fill(logits, N, 100 + c);
		double p[N];
		expected(logits, N, cases[c], p);
		int count[N] = {0};
		struct sampler s;
		sampler_init(&s, &cases[c]);
		for (int i = 0; i < DRAWS; i++) {
			int32_t id = sampler_draw(&s, logits, N, NULL, (uint32_t)i);
			assert_in_range(id, 0, N - 1);
			assert_true(p[id] > 0);
			count[id]++;
		}
		sampler_fini(&s);
		double chi2 = 0;
		int cells = 0;
		for (int i = 0; i < N; i++)
			if (p[i] * DRAWS > 5) {
				chi2 += pow(count[i] - p[i] * DRAWS, 2) / (p[i] * DRAWS);
				cells++;
			}
		/* mean cells - 1, standard deviation sqrt(2 cells): five of them is one chance in millions
		 */
		assert_true(chi2 < cells + 5 * sqrt(2.0 * cells));
	}
}

static void test_greedy_and_bad_logits(void **state)
{
	(void)state;
	struct sampler s;
	sampler_init(&s, &(struct sampler_options){.temperature = 0});
	float tie[] = {1, 3, 3, 2};
	assert_int_equal(sampler_draw(&s, tie, 4, NULL, 0), 1);
	float holes[] = {NAN, -INFINITY, 0.5f, NAN};
	assert_int_equal(sampler_draw(&s, holes, 4, NULL, 0), 2);
	float none[] = {NAN, NAN, NAN};
	assert_int_equal(sampler_draw(&s, none, 3, NULL, 0), 0);
	float padded[] = {1, 2, 1000}; /* the third row is padding */
	assert_int_equal(sampler_draw(&s, padded, 2, NULL, 0), 1);
	sampler_fini(&s);

	sampler_init(&s, &(struct sampler_options){.temperature = 1, .top_p = 1, .seed = 9});
	for (uint32_t i = 0; i < 1000; i++) {
		assert_int_equal(sampler_draw(&s, holes, 4, NULL, i), 2);
		assert_in_range(sampler_draw(&s, none, 3, NULL, i), 0, 2);
		assert_in_range(sampler_draw(&s, padded, 2, NULL, i), 0, 1);
	}
	sampler_fini(&s);
}

/* Against a plain loop in which NaN counts as -infinity: lengths around the blocks, few different
 * values so that many are equal, everything a float can be. */
static void test_greedy_is_the_first_best(void **state)
{
	(void)state;
	static const float odd[] = {NAN, -INFINITY, INFINITY, 0.0f, -0.0f, -1.0f, 1.0f, -NAN};
	static const int lengths[] = {1, 2, 3, 4, 15, 16, 17, 1023, 1024, 1025, 2049, 5000};
	float *x = NEW_ARRAY(float, 5000);
	struct rng r = {11};
	struct sampler s;
	sampler_init(&s, &(struct sampler_options){.top_p = 1});
	for (int round = 0; round < 400; round++) {
		int n = lengths[rng_below(&r, ARRAY_LEN(lengths))], best = 0;
		uint32_t values = 1 + rng_below(&r, 40), first = rng_below(&r, ARRAY_LEN(odd));
		for (int i = 0; i < n; i++) {
			uint32_t v = rng_below(&r, values);
			x[i] = v < ARRAY_LEN(odd) ? odd[(v + first) % ARRAY_LEN(odd)] : (float)v * 0.25f - 5;
		}
		for (int i = 0; i < n; i++)
			if (!isnan(x[i]) && x[i] > (isnan(x[best]) ? -INFINITY : x[best]))
				best = i;
		assert_int_equal(sampler_draw(&s, x, n, NULL, 0), best);
	}
	sampler_fini(&s);
	free(x);
}

/* A token depends on seed and position, not on what was drawn before; both of them matter. */
static void test_seed_and_position_repeat(void **state)
{
	(void)state;
	float logits[N];
	int32_t ids[50];
	int other_seed = 0, other_position = 0;
	fill(logits, N, 5);
	for (uint64_t seed = 0; seed < 20; seed++) {
		struct sampler_options o = {.temperature = 1, .top_p = 0.95f, .seed = seed};
		struct sampler a, b;
		sampler_init(&a, &o);
		sampler_init(&b, &o);
		for (uint32_t i = 0; i < 50; i++) {
			int32_t id = sampler_draw(&a, logits, N, NULL, i);
			other_seed += seed && id != ids[i];
			other_position += i && id != ids[i - 1];
			ids[i] = id;
		}
		for (uint32_t i = 50; i-- > 0;)
			assert_int_equal(sampler_draw(&b, logits, N, NULL, i), ids[i]);
		sampler_fini(&a);
		sampler_fini(&b);
	}
	assert_true(other_seed > 500 && other_position > 500);
}

static void test_logprob(void **state)
{
	(void)state;
	float logits[N];
	fill(logits, N, 77);
	double sum = 0;
	for (int i = 0; i < N; i++)
		sum += exp(sampler_logprob(logits, N, i));
	assert_true(fabs(sum - 1) < 1e-12);
	assert_true(fabs(sampler_logprob(logits, N, 3) - sampler_logprob(logits, N, 4) -
					 ((double)logits[3] - logits[4])) < 1e-12);
}

/* 1 / temperature has no place in a float below 2.9e-39. */
static void test_tiny_temperatures_are_greedy(void **state)
{
	(void)state;
	static const float tiny[] = {1e-7f, 1e-30f, 3e-39f, 2.9e-39f, 1e-39f, 1e-44f};
	float logits[N];
	fill(logits, N, 21);
	struct sampler s;
	sampler_init(&s, &(struct sampler_options){0});
	int32_t best = sampler_draw(&s, logits, N, NULL, 0);
	sampler_fini(&s);
	for (size_t i = 0; i < ARRAY_LEN(tiny); i++)
		for (int cut = 0; cut < 2; cut++) {
			sampler_init(&s, &(struct sampler_options){
								 .temperature = tiny[i], .top_p = cut ? 0.95f : 1, .seed = i});
			for (uint32_t k = 0; k < 20; k++)
				assert_int_equal(sampler_draw(&s, logits, N, NULL, k), best);
			sampler_fini(&s);
		}
}

static void test_all_finite(void **state)
{
	(void)state;
	static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
	float logits[N];
	fill(logits, N, 22);
	logits[3] = -3.4e38f;
	logits[4] = 3.4e38f;
	for (int n = 1; n <= N; n++) {
		assert_true(sampler_all_finite(logits, n));
		for (int at = 0; at < n; at++)
			for (size_t b = 0; b < ARRAY_LEN(bad); b++) {
				float was = logits[at];
				logits[at] = bad[b];
				assert_false(sampler_all_finite(logits, n));
				assert_true(sampler_all_finite(logits, at)); /* behind the end */
				logits[at] = was;
			}
	}
}

static bool allows_three(void *user, int32_t id)
{
	(void)user;
	return id == 3;
}

static void mask_to_three(void *user, float *logits, int32_t n_valid)
{
	(void)user;
	for (int32_t i = 0; i < n_valid; i++)
		if (i != 3)
			logits[i] = -INFINITY;
}

/* A bias or a ban of all that the filter allows gives way to it. */
static void test_filter_has_the_last_word(void **state)
{
	(void)state;
	float logits[N];
	fill(logits, N, 5);
	const int32_t three = 3;
	for (int banned = 0; banned < 2; banned++) {
		struct sampler s;
		sampler_init(&s,
			&(struct sampler_options){
				.temperature = 1, .top_p = 1, .bias = {{3, -INFINITY}}, .n_bias = banned ? 0 : 1});
		const struct sampler_filter filter = {.allows = allows_three,
			.mask = mask_to_three,
			.banned = &three,
			.n_banned = banned ? 1 : 0};
		for (uint32_t k = 0; k < 20; k++)
			assert_int_equal(sampler_draw(&s, logits, N, &filter, k), 3);
		sampler_fini(&s);
	}
}

/* Penalties and biases, one after the other, on logits whose best token is known: greedy draws. */
static void test_penalties_and_biases(void **state)
{
	(void)state;
	static const float logits[] = {4, 3.5f, -1, -1.5f, 2};
	enum { N_IDS = ARRAY_LEN(logits) };
	static const struct {
		struct sampler_options o;
		int32_t prompt[3], answer[4]; /* ids, -1: the end */
		int32_t best;
	} cases[] = {
		{{.repetition = 1}, {0, -1}, {0, -1}, 0},
		/* 4 / 1.2 < 3.5, for a token of the prompt and for one of the answer */
		{{.repetition = 1.2f}, {0, -1}, {-1}, 1},
		{{.repetition = 1.2f}, {-1}, {0, 0, -1}, 1},
		/* negative logits are multiplied: -1 * 2 < -1.5 */
		{{.repetition = 2, .n_bias = 3, .bias = {{0, -50}, {1, -50}, {4, -50}}}, {2, -1}, {-1}, 3},
		/* presence counts once, and not for the prompt */
		{{.presence = 0.6f}, {0, 0, -1}, {-1}, 0},
		{{.presence = 0.6f}, {-1}, {0, -1}, 1},
		{{.presence = 0.4f}, {-1}, {0, 0, 0, -1}, 0},
		/* frequency for each time */
		{{.frequency = 0.2f}, {0, -1}, {0, 0, -1}, 0},
		{{.frequency = 0.2f}, {-1}, {0, 0, 0, -1}, 1},
		{{.n_bias = 2, .bias = {{4, 3}, {99, 100}}}, {-1}, {-1}, 4},
		/* biases that leave nothing do not count */
		{{.n_bias = 5,
			 .bias = {{0, -INFINITY}, {1, -INFINITY}, {2, -INFINITY}, {3, -INFINITY},
				 {4, -INFINITY}}},
			{-1}, {-1}, 0},
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct sampler s;
		sampler_init(&s, &cases[i].o);
		assert_int_equal(sampler_adjusts(&s), i > 0);
		for (const int32_t *id = cases[i].prompt; *id >= 0; id++)
			sampler_note(&s, *id, true);
		for (const int32_t *id = cases[i].answer; *id >= 0; id++)
			sampler_note(&s, *id, false);
		sampler_note(&s, -1, false); /* nothing */
		int32_t got = sampler_draw(&s, logits, N_IDS, NULL, 0);
		if (got != cases[i].best)
			fail_msg("case %zu: token %d, expected %d", i, got, cases[i].best);
		sampler_fini(&s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_distribution),
		cmocka_unit_test(test_greedy_and_bad_logits),
		cmocka_unit_test(test_greedy_is_the_first_best),
		cmocka_unit_test(test_seed_and_position_repeat),
		cmocka_unit_test(test_logprob),
		cmocka_unit_test(test_tiny_temperatures_are_greedy),
		cmocka_unit_test(test_all_finite),
		cmocka_unit_test(test_filter_has_the_last_word),
		cmocka_unit_test(test_penalties_and_biases),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
