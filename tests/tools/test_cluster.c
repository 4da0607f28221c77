/* SPDX-License-Identifier: MIT */
/* The forecast of a cluster: the round of micro-batches against a pipeline that is played through,
 * streams and distinct experts of a trace against plain loops, the model of computing against the
 * steps that were measured, plans of clusters that fit and that do not. No clock is looked at. */
#include "tools/plan/cluster_plan.h"

#include "src/base/log.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "tests/support/temp_dir.h"
#include "tools/plan/machine_plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool near(double a, double b, double part)
{
	return fabs(a - b) <= part * fmax(fabs(a), fabs(b));
}

/* ---- micro-batches through stages ---- */

#define MOST_STAGES 6

static double step_ms(const struct stage_cost *s, uint32_t rows, double distinct)
{
	const double computing = s->fixed_ms + (rows - 1) * s->row_ms + distinct * s->expert_ms;
	return forecast_card_ms(computing, rows * s->drive_ms, rows * s->link_ms, s->lookahead) +
		   s->hop_ms + rows * s->hop_row_ms;
}

/* Mean time of a round: each micro-batch enters the first stage when it has left the last one, each
 * stage takes one at a time, in order. */
static double play_rounds(uint32_t n, uint32_t micro_batches, const double *stage_ms)
{
	enum { WARM = 50, ROUNDS = 200 };
	double free_at[MOST_STAGES] = {0}, *done = calloc(micro_batches, sizeof *done), from = 0;
	assert_non_null(done);
	for (int round = 0; round < WARM + ROUNDS; round++) {
		for (uint32_t m = 0; m < micro_batches; m++) {
			double at = done[m];
			for (uint32_t i = 0; i < n; i++)
				at = free_at[i] = fmax(at, free_at[i]) + stage_ms[i];
			done[m] = at;
		}
		if (round == WARM - 1)
			from = done[micro_batches - 1];
	}
	const double mean = (done[micro_batches - 1] - from) / ROUNDS;
	free(done);
	return mean;
}

static void test_rounds(void **state)
{
	(void)state;
	struct rng r = {19};
	for (int round = 0; round < 200; round++) {
		struct stage_cost stages[MOST_STAGES];
		double distinct[32];
		const uint32_t n = 1 + (uint32_t)(rng_unit(&r) * MOST_STAGES);
		const uint32_t streams = 1 + (uint32_t)(rng_unit(&r) * 70);
		const uint32_t most = 1 + (uint32_t)(rng_unit(&r) * 32);
		for (uint32_t i = 0; i < n; i++)
			stages[i] = (struct stage_cost){1 + rng_unit(&r), rng_unit(&r), rng_unit(&r) * 0.1,
				rng_unit(&r), rng_unit(&r), rng_unit(&r) < 0.5, rng_unit(&r), rng_unit(&r) * 0.1};
		for (int i = 0; i < 32; i++)
			distinct[i] = 8 * pow(i + 1, 0.8);
		struct cluster_speed v;
		cluster_schedule(stages, n, streams, most, distinct, &v);
		assert_true(v.rows <= most && v.rows * v.micro_batches >= streams);
		assert_true((v.micro_batches - 1) * v.rows < streams);
		double best = 0;
		for (uint32_t m = 1; m <= streams; m++) {
			const uint32_t rows = (streams + m - 1) / m;
			double ms[MOST_STAGES];
			if (rows > most)
				continue;
			for (uint32_t i = 0; i < n; i++)
				ms[i] = step_ms(&stages[i], rows, distinct[rows - 1]);
			best = fmax(best, streams * 1e3 / play_rounds(n, m, ms));
		}
		if (!near(v.tok_s, best, 1e-3))
			fail_msg("%u stages, %u streams, steps of %u: %g tok/s, played %g", n, streams, most,
				v.tok_s, best);
	}
}

/* One stream is a sum; two like stages compute twice as many rows as one. */
static void test_simple_rounds(void **state)
{
	(void)state;
	const struct stage_cost one[2] = {{.fixed_ms = 4, .hop_ms = 1}, {.fixed_ms = 5}};
	const struct stage_cost like[2] = {{.fixed_ms = 4}, {.fixed_ms = 4}};
	const double distinct[8] = {8, 8, 8, 8, 8, 8, 8, 8};
	struct cluster_speed v;
	cluster_schedule(one, 2, 1, 8, distinct, &v);
	assert_true(near(v.round_ms, 10, 1e-12) && near(v.tok_s, 100, 1e-12));
	assert_true(v.slowest == 0 && near(v.slowest_ms, 5, 1e-12) && near(v.hops_ms, 1, 1e-12));
	cluster_schedule(like, 1, 16, 8, distinct, &v);
	const double alone = v.tok_s;
	cluster_schedule(like, 2, 16, 8, distinct, &v);
	assert_true(near(v.tok_s, alone, 1e-12) && near(v.busy, 1, 1e-12)); /* twice the layers */
	assert_true(near(v.serial_tok_s, alone / 2, 1e-12));
	assert_int_equal(v.rows, 8);
	cluster_schedule(like, 2, 8, 8, distinct, &v); /* one micro-batch would leave a stage idle */
	assert_int_equal(v.micro_batches, 1);          /* rows cost nothing: two of 4 are no faster */
}

/* ---- streams of a trace ---- */

#define TOKENS  31
#define LAYERS  2
#define TOP     3
#define EXPERTS 12

static int used_expert(int token, int layer, int i)
{
	return (token * 7 + layer * 5 + i * (1 + token % 3)) % EXPERTS;
}

static void open_trace(struct forecast *f)
{
	const char *path = temp_dir_path("s.gltr1");
	const uint32_t head[4] = {TOKENS, LAYERS, TOP, EXPERTS};
	struct err e = {0};
	FILE *file = fopen(path, "wb");
	assert_non_null(file);
	fwrite("GLTR1\0\0", 1, 8, file);
	fwrite(head, sizeof head, 1, file);
	for (int t = 0; t < TOKENS; t++)
		for (int l = 0; l < LAYERS; l++)
			for (int k = 0; k < 2 * TOP; k++)
				fputc(used_expert(t, l, k % TOP), file);
	assert_int_equal(fclose(file), 0);
	if (trace_open(path, &f->trace, &e))
		fail_msg("%s", e.text);
}

static void test_streams(void **state)
{
	(void)state;
	struct forecast f = {0}, many = {0};
	struct err e = {0};
	open_trace(&f);
	for (uint32_t streams = 1; streams <= TOKENS / 2; streams++) {
		const int each = TOKENS / (int)streams;
		int order[TOKENS], n = 0;
		for (int i = 0; i < each; i++)
			for (int s = 0; s < (int)streams; s++)
				order[n++] = s * each + i;
		for (int t = n; t < TOKENS; t++)
			order[n++] = t;
		assert_int_equal(forecast_streams(&f, streams, &many, &e), 0);
		int token = -1;
		for (size_t i = 0; i < many.trace.n_events; i++) {
			const struct trace_event *v = &many.trace.events[i];
			if (v->kind == TRACE_STEP)
				assert_int_equal(v->value, order[++token]);
			if (v->kind == TRACE_ACCESS)
				for (uint32_t k = 0; k < v->n; k++)
					assert_int_equal(
						many.trace.ids[v->value + k], used_expert(order[token], v->layer, (int)k));
		}
		assert_int_equal(token, TOKENS - 1);
		for (int rows = 1; rows <= (int)streams; rows++) {
			int distinct = 0;
			for (int g = 0; g < TOKENS / rows; g++)
				for (int l = 0; l < LAYERS; l++) {
					bool used[EXPERTS] = {0};
					for (int i = 0; i < rows * TOP; i++)
						used[used_expert(order[g * rows + i / TOP], l, i % TOP)] = true;
					for (int x = 0; x < EXPERTS; x++)
						distinct += used[x];
				}
			assert_true(near(forecast_distinct(&many, (uint32_t)rows),
				(double)distinct / (TOKENS / rows * LAYERS), 1e-12));
		}
		forecast_free_streams(&many);
	}
	assert_int_equal(forecast_streams(&f, TOKENS / 2 + 1, &many, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "31 decode steps"));
	forecast_free_streams(&many);
	trace_fini(&f.trace);
}

/* ---- computing ---- */

/* tests/e2e/bench/cluster.sh compares the measured figures with RESULTS.md. */
static void test_measured_steps(void **state)
{
	(void)state;
	const struct card_step *steps;
	struct err e = {0};
	int n;
	assert_int_equal(card_check_steps(&steps, &n, &e), 0);
	assert_true(n >= 8);
	for (int i = 0; i < n; i++)
		if (!near(steps[i].model_ms, steps[i].measured_ms, 0.10))
			fail_msg("%s, %u layers, %u rows: measured %g ms, modelled %g", steps[i].recipe,
				steps[i].layers, steps[i].rows, steps[i].measured_ms, steps[i].model_ms);
}

static struct cluster cluster_of(uint32_t hosts, uint32_t cards, const char *card)
{
	return (struct cluster){.hosts = hosts,
		.cards = cards,
		.card = *card_find(card),
		.drive_gb_s = 3.5,
		.hop_us = 40,
		.net_us = 20,
		.net_gb_s = 12.5,
		.token_ms = -1,
		.row_part = CARD_ROW_PART,
		.step_rows = CARD_STEP_ROWS,
		.streams = 64,
		.context = 4096,
		.cache_bytes = ENGINE_CACHE_AUTO,
		.policy = POLICY_DEFAULT,
		.lookahead = ENGINE_LOOKAHEAD_AUTO};
}

static void test_clusters(void **state)
{
	(void)state;
	struct model_headers model;
	struct cluster_plan *p = calloc(1, sizeof *p);
	struct cluster_speed one, two, many;
	struct err e = {0};
	assert_non_null(p);
	assert_int_equal(model_headers_make(&model, "iq2", &e), 0);
	const double token_ms = card_token_ms(card_find("H200"), model.file, &model.config);
	static const uint32_t shapes[][2] = {{1, 2}, {2, 1}, {1, 3}, {4, 2}, {2, 16}};
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
		const struct cluster k = cluster_of(shapes[i][0], shapes[i][1], "H200");
		const uint32_t n = k.hosts * k.cards;
		assert_int_equal(cluster_plan_memory(&model, &k, p, &e), 0);
		assert_int_equal(p->n, n);
		assert_true(p->everything);
		uint32_t layer = 0;
		for (uint32_t s = 0; s < n; s++) {
			assert_int_equal(p->stages[s].first_layer, layer);
			assert_true(p->stages[s].end_layer > layer);
			assert_int_equal(p->stages[s].host, s / k.cards);
			layer = p->stages[s].end_layer;
		}
		assert_int_equal(layer, model.config.n_layers);
		assert_int_equal(cluster_plan_speed(&model, &k, NULL, 1, p, &one, &e), 0);
		/* one stream: what one card would compute, and a hand-over for each cut */
		assert_true(near(one.compute_ms, token_ms, 1e-9));
		const uint32_t net = k.hosts > 1 ? k.hosts : 0; /* one for the command of a step */
		assert_true(one.hops_ms >= 1e-3 * ((n - 1) * k.hop_us + net * k.net_us));
		assert_true(near(one.round_ms, one.compute_ms + one.hops_ms, 1e-9));
		assert_int_equal(cluster_plan_speed(&model, &k, NULL, 64, p, &many, &e), 0);
		assert_true(many.tok_s > one.tok_s * 4 && many.rows <= CARD_STEP_ROWS);
		if (!i)
			two = many;
	}
	assert_true(many.tok_s > two.tok_s * 3); /* 32 cards and 2 */
	/* with half of the computing, and no latencies */
	struct cluster k = cluster_of(1, 2, "H200");
	k.token_ms = token_ms / 2;
	k.hop_us = 0;
	assert_int_equal(cluster_plan_memory(&model, &k, p, &e), 0);
	assert_int_equal(cluster_plan_speed(&model, &k, NULL, 1, p, &one, &e), 0);
	assert_true(near(one.compute_ms, token_ms / 2, 1e-9) && one.hops_ms < 0.01);
	free(p);
	model_headers_close(&model);
}

/* One H200 holds half of the experts: the forecast of one stage is that of `plan`. */
static void test_misses(void **state)
{
	(void)state;
	struct model_headers model;
	struct cluster_plan *p = calloc(1, sizeof *p);
	struct cluster_speed v;
	struct forecast f = {0};
	struct machine_plan of_plan;
	struct err e = {0};
	struct cluster k = cluster_of(1, 1, "H200");
	k.streams = 1;
	const struct machine m = {.card = k.card,
		.memory = {card_free_bytes(k.card.sold_gb), 0},
		.drive_gb_s = k.drive_gb_s,
		.cores = 1,
		.tier_bytes = {ENGINE_CACHE_AUTO, 0}};
	assert_non_null(p);
	assert_int_equal(model_headers_make(&model, "iq2", &e), 0);
	assert_int_equal(machine_plan_forecast(&model, "tools/share/glm52-routing.gltr1", &f, &e), 0);
	assert_int_equal(machine_plan_memory(&model, &m, k.context, &of_plan, &e), 0);
	assert_int_equal(machine_plan_speed(&model, &m, &f, false, &of_plan, &e), 0);
	assert_int_equal(cluster_plan_memory(&model, &k, p, &e), 0);
	assert_false(p->everything);
	assert_int_equal(cluster_plan_speed(&model, &k, &f, 1, p, &v, &e), 0);
	assert_true(v.waits_ms > 10);
	if (!near(v.tok_s, of_plan.steady.tok_s, 1e-6))
		fail_msg("%g tok/s, plan says %g", v.tok_s, of_plan.steady.tok_s);
	/* two cards with half the caches each: as many misses, and the same time */
	k.cards = 2;
	k.cache_bytes = p->stages[0].plan.tiers.tier_bytes[0] / 2;
	k.hop_us = 0;
	assert_int_equal(cluster_plan_memory(&model, &k, p, &e), 0);
	assert_int_equal(cluster_plan_speed(&model, &k, &f, 1, p, &v, &e), 0);
	if (!near(v.tok_s, of_plan.steady.tok_s, 0.05))
		fail_msg("two halves: %g tok/s, plan says %g of one", v.tok_s, of_plan.steady.tok_s);
	free(p);
	forecast_fini(&f);
	model_headers_close(&model);
}

static void test_refusals(void **state)
{
	(void)state;
	struct model_headers model;
	struct cluster_plan *p = calloc(1, sizeof *p);
	struct err e = {0};
	assert_non_null(p);
	assert_int_equal(model_headers_make(&model, "iq2", &e), 0);
	struct cluster k = cluster_of(1, 2, "RTX 4090");
	k.card.sold_gb = 12; /* with more, latents that do not fit lie in host memory */
	assert_int_equal(cluster_plan_memory(&model, &k, p, &e), ERR_MEMORY);
	assert_non_null(strstr(e.text, "card 1 of 2, layers 0 to "));
	const char *least = strstr(e.hint, " such cards are the least that work");
	assert_non_null(least);
	const uint32_t n = (uint32_t)strtoul(e.hint, NULL, 10);
	assert_true(n > 2);
	k.cards = n;
	e = (struct err){0};
	assert_int_equal(cluster_plan_memory(&model, &k, p, &e), 0);
	k.cards = n - 1;
	assert_int_equal(cluster_plan_memory(&model, &k, p, &e), ERR_MEMORY);
	k.cards = 100;
	e = (struct err){0};
	assert_int_equal(cluster_plan_memory(&model, &k, p, &e), ERR_USAGE);
	assert_non_null(strstr(e.text, "100 cards"));
	/* the head alone is too much */
	k = cluster_of(1, 64, "RTX 4060 Ti");
	k.card.sold_gb = 4;
	e = (struct err){0};
	assert_int_equal(cluster_plan_memory(&model, &k, p, &e), ERR_MEMORY);
	assert_null(strstr(e.hint, "such cards"));
	free(p);
	model_headers_close(&model);
}

int main(void)
{
	log_set_level(LOG_QUIET);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rounds),
		cmocka_unit_test(test_simple_rounds),
		cmocka_unit_test(test_streams),
		cmocka_unit_test(test_measured_steps),
		cmocka_unit_test(test_clusters),
		cmocka_unit_test(test_misses),
		cmocka_unit_test(test_refusals),
	};
	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_drop);
}
