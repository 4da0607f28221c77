/* SPDX-License-Identifier: MIT */
/* A card that is too small: the least memory that a refusal names is enough, a little less is not;
 * the card it names has it, the next smaller one has not. A run on a card is refused in the words
 * of a plan. */
#include "src/engine/stages/plan_stages.h"

#include "src/base/log.h"
#include "src/base/num.h"
#include "tools/plan/machine_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct plan_inputs inputs_of(
	const struct model_headers *h, const struct engine_options *o, struct backend *b)
{
	return (struct plan_inputs){&h->config, o, h->file, &h->weights, h->resident, b};
}

static int plan_of(const struct model_headers *h, const struct engine_options *o,
	const struct plan_machine *m, struct plan *p, struct err *e)
{
	*e = (struct err){0};
	const struct plan_inputs in = inputs_of(h, o, NULL);
	return plan_for_machine(&in, m, p, e);
}

static int plan_run(const struct model_headers *h, const struct engine_options *o,
	struct backend *b, struct plan *p, struct err *e)
{
	const struct plan_inputs in = inputs_of(h, o, b);
	return plan_make(&in, p, e);
}

/* The last "a card of N GB" of the hint; 0: none. */
static double named_size(const struct err *e)
{
	static const char words[] = "a card of ";
	double size = 0;
	for (const char *at = strstr(e->hint, words); at; at = strstr(at + 1, words))
		size = strtod(at + sizeof words - 1, NULL);
	return size;
}

static void check_least(const struct model_headers *h, const struct engine_options *o)
{
	struct plan p, again;
	struct err e;
	struct plan_machine m = {.card_bytes = plan_card_bytes(8), .host_bytes = 64000000000u};
	assert_int_equal(plan_of(h, o, &m, &p, &e), ERR_MEMORY);
	assert_true(p.least > m.card_bytes);
	const double size = named_size(&e);
	double smaller = 0;
	for (size_t i = 0; i < PLAN_CARD_SIZES && plan_card_sizes[i] < size; i++)
		smaller = plan_card_sizes[i];
	m.card_bytes = p.least;
	assert_int_equal(plan_of(h, o, &m, &again, &e), 0);
	m.card_bytes = p.least - 200000;
	assert_int_equal(plan_of(h, o, &m, &again, &e), ERR_MEMORY);
	m.card_bytes = plan_card_bytes(size);
	assert_int_equal(plan_of(h, o, &m, &again, &e), 0);
	m.card_bytes = plan_card_bytes(smaller);
	assert_int_equal(plan_of(h, o, &m, &again, &e), ERR_MEMORY);
}

static void test_least(void **state)
{
	static const char *const recipes[] = {"iq2-s", "q2-s", "iq2", "iq2-t"};
	static const uint32_t contexts[] = {0, 1, 1024, 8192, 32768};
	(void)state;
	for (size_t r = 0; r < ARRAY_LEN(recipes); r++) {
		struct model_headers h;
		struct err e = {0};
		assert_int_equal(model_headers_make(&h, recipes[r], &e), 0);
		for (size_t i = 0; i < ARRAY_LEN(contexts); i++) {
			struct engine_options o = {
				.context = contexts[i], .cache_bytes = ENGINE_CACHE_AUTO, .sessions = 1 + r};
			check_least(&h, &o);
			o.cache_bytes = 6000000000u;
			o.ram_bytes = ENGINE_CACHE_AUTO;
			check_least(&h, &o);
		}
		model_headers_close(&h);
	}
}

/* ---- a run: a card that only says how much is free ---- */

static size_t card_free;

static size_t free_bytes(struct backend *b)
{
	(void)b;
	return card_free;
}

static int no_copier(struct backend *b, struct copier **out, struct err *e)
{
	(void)b;
	*out = NULL;
	return err_set(e, ERR_RUN, "no copies here");
}

static void test_run(void **state)
{
	static const struct backend_ops ops = {
		.name = "the card", .copier_open = no_copier, .free_bytes = free_bytes};
	(void)state;
	struct backend card = {.ops = &ops, .scratch_bytes = 600000000};
	struct model_headers h;
	struct err of_run = {0}, of_plan;
	struct plan p;
	assert_int_equal(model_headers_make(&h, "iq2-s", &of_run), 0);
	const struct engine_options o = {.context = 32768};
	const struct plan_machine m = {.card_bytes = plan_card_bytes(16)};
	card_free = m.card_bytes;
	assert_int_equal(plan_run(&h, &o, &card, &p, &of_run), ERR_MEMORY);
	assert_true(named_size(&of_run) == 24);
	assert_int_equal(plan_of(&h, &o, &m, &p, &of_plan), ERR_MEMORY);
	assert_string_equal(of_run.text, of_plan.text);
	assert_string_equal(of_run.hint, of_plan.hint);
	model_headers_close(&h);
}

/* ---- the CPU: products of fast prompts take memory for themselves ---- */

static size_t matmul_takes(const struct backend *b, const struct weight *w, int rows)
{
	(void)b;
	return (size_t)(w->n_in * w->n_stack * rows);
}

static size_t expert_takes(
	const struct backend *b, const struct expert_job *shape, int rows, int n_used)
{
	(void)b;
	return (size_t)((shape->gate.n_in + shape->gate.n_out) * rows * n_used);
}

static void test_fast_prompts(void **state)
{
	static const struct backend_ops with = {.name = "cpu",
										.free_bytes = free_bytes,
										.matmul_scratch = matmul_takes,
										.expert_scratch = expert_takes},
									without = {.name = "cpu", .free_bytes = free_bytes};
	(void)state;
	struct backend fast = {.ops = &with}, floats = {.ops = &without};
	struct model_headers h;
	struct err e = {0};
	struct plan p, q;
	assert_int_equal(model_headers_make(&h, "iq2-s", &e), 0);
	const struct engine_options o = {.context = 4096, .chunk = 2048};
	card_free = (size_t)1 << 45;
	assert_int_equal(plan_run(&h, &o, &floats, &q, &e), 0);
	assert_int_equal(q.scratch, 0);
	assert_int_equal(plan_run(&h, &o, &fast, &p, &e), 0);
	/* of GLM-5.2: experts of 6144 -> 2048, 8 a token, take more than any other product */
	assert_int_equal(p.scratch, (size_t)(6144 + 2048) * 8 * 2048);
	card_free = q.resident + q.kv + q.workspace + p.scratch;
	assert_int_equal(plan_run(&h, &o, &fast, &p, &e), 0);
	card_free--;
	assert_int_equal(plan_run(&h, &o, &floats, &q, &e), 0);
	assert_int_equal(plan_run(&h, &o, &fast, &p, &e), ERR_MEMORY);
	assert_non_null(strstr(e.text, "GB scratch"));
	model_headers_close(&h);
}

/* No size of card is named where another card would not help, or where the plan is of a part. */
static void test_not_named(void **state)
{
	(void)state;
	struct model_headers h;
	struct err e = {0};
	struct plan p;
	assert_int_equal(model_headers_make(&h, "iq2-s", &e), 0);
	struct engine_options o = {.context = 8192, .cache_bytes = ENGINE_CACHE_AUTO};
	struct plan_machine m = {.card_bytes = plan_card_bytes(12), .part = true};
	assert_int_equal(plan_of(&h, &o, &m, &p, &e), ERR_MEMORY);
	assert_true(p.least == 0);
	assert_null(strstr(e.hint, "options as they are"));
	o.ram_bytes = 70000000000u;
	m = (struct plan_machine){.card_bytes = plan_card_bytes(24), .host_bytes = 64000000000u};
	assert_int_equal(plan_of(&h, &o, &m, &p, &e), ERR_MEMORY);
	assert_true(p.least == 0 && named_size(&e) == 0);
	o = (struct engine_options){.context = 1000000, .sessions = 60};
	m.card_bytes = plan_card_bytes(288); /* the largest of the list */
	assert_int_equal(plan_of(&h, &o, &m, &p, &e), ERR_MEMORY);
	assert_true(p.least == 0 && named_size(&e) == 0);
	/* a first tier below the smallest */
	o = (struct engine_options){.context = 8192, .cache_bytes = 500000000};
	m.card_bytes = plan_card_bytes(24);
	assert_int_equal(plan_of(&h, &o, &m, &p, &e), ERR_MEMORY);
	assert_non_null(strstr(e.hint, "--cache-gb auto would fit"));
	m.card_bytes = plan_card_bytes(12);
	assert_int_equal(plan_of(&h, &o, &m, &p, &e), ERR_MEMORY);
	assert_true(p.least > m.card_bytes && named_size(&e) == 16);
	model_headers_close(&h);
}

/* Memory of the CPU backend that is too small for the caches of several sessions: a context that a
 * hint names fits. */
static void test_context_of_sessions(void **state)
{
	static const struct backend_ops ops = {.name = "the CPU"};
	(void)state;
	struct backend cpu = {.ops = &ops};
	struct model_headers h;
	struct err e = {0};
	struct plan p;
	uint32_t hinted = 0;
	assert_int_equal(model_headers_make(&h, "iq2-s", &e), 0);
	struct engine_options o = {.context = 65536, .sessions = 8};
	const struct plan_inputs in = inputs_of(&h, &o, &cpu);
	struct plan_machine m = {.card_bytes = (size_t)1 << 45};
	assert_int_equal(plan_on_machine(&in, &m, &p, &e), 0);
	const size_t fixed = p.resident + p.workspace, step = p.kv / o.context * 1024;
	m.card_bytes = fixed + step / 2;
	assert_int_equal(plan_on_machine(&in, &m, &p, &e), ERR_MEMORY);
	assert_null(strstr(e.hint, "would fit"));
	m.card_bytes = fixed + 3 * step;
	e = (struct err){0};
	assert_int_equal(plan_on_machine(&in, &m, &p, &e), ERR_MEMORY);
	assert_int_equal(sscanf(e.hint, "-c %u would fit", &hinted), 1);
	o.context = hinted;
	assert_int_equal(plan_on_machine(&in, &m, &p, &e), 0);
	model_headers_close(&h);
}

/* What no machine could do is refused before memory is counted. */
static void test_impossible(void **state)
{
	(void)state;
	struct model_headers h;
	struct err e = {0};
	struct plan p;
	const struct plan_machine m = {.card_bytes = plan_card_bytes(288), .host_bytes = 1 << 30};
	assert_int_equal(model_headers_make(&h, "iq2-s", &e), 0);
	struct engine_options o = {.context = 1000000, .sessions = 3000};
	assert_int_equal(plan_of(&h, &o, &m, &p, &e), ERR_USAGE);
	assert_non_null(strstr(e.text, "3000 sessions of 1000000 tokens"));
	o = (struct engine_options){.context = h.config.n_context + 1};
	assert_int_equal(plan_of(&h, &o, &m, &p, &e), ERR_USAGE);
	o = (struct engine_options){.context = 8192, .kv_f8 = true, .kv_f32 = true};
	assert_int_equal(plan_of(&h, &o, &m, &p, &e), ERR_USAGE);
	o.kv_f32 = false;
	h.config.kv_rank = 500;
	assert_int_equal(plan_of(&h, &o, &m, &p, &e), ERR_USAGE);
	assert_non_null(strstr(e.text, "no whole blocks of 128"));
	model_headers_close(&h);
}

/* The longest context of the model on a card that cannot hold it: its latents go to host memory,
 * where there is enough of it. */
static void test_latents_on_host(void **state)
{
	(void)state;
	struct model_headers h;
	struct err e = {0};
	struct plan p;
	assert_int_equal(model_headers_make(&h, "iq2", &e), 0);
	struct engine_options o = {.context = 1048576, .cache_bytes = ENGINE_CACHE_AUTO};
	struct plan_machine m = {.card_bytes = plan_card_bytes(80), .host_bytes = 128000000000u};
	assert_int_equal(plan_of(&h, &o, &m, &p, &e), 0);
	assert_true(p.kv_shape.latents_on_host && p.kv < 8000000000u && p.kv_host > 95000000000u);
	assert_true(p.resident + p.kv + p.workspace + p.tiers.tier_bytes[0] < m.card_bytes);
	const size_t wide = p.kv_host;
	o.kv_f8 = true; /* 656 bytes in place of 1,152 */
	assert_int_equal(plan_of(&h, &o, &m, &p, &e), 0);
	assert_true(p.kv_host > wide / 1152 * 655 && p.kv_host < wide / 1152 * 657);
	o.kv_f8 = false;
	o.ram_bytes = ENGINE_CACHE_AUTO; /* has what they leave */
	assert_int_equal(plan_of(&h, &o, &m, &p, &e), 0);
	assert_true(p.tiers.tier_bytes[1] > 0);
	assert_true(
		p.kv_host + p.tiers.tier_bytes[1] + plan_host_reserve(m.host_bytes) <= m.host_bytes);
	o.ram_bytes = 40000000000u; /* a promise */
	assert_int_equal(plan_of(&h, &o, &m, &p, &e), ERR_MEMORY);
	o.ram_bytes = 0;
	o.kv_ram = ENGINE_KV_RAM_OFF;
	assert_int_equal(plan_of(&h, &o, &m, &p, &e), ERR_MEMORY);
	assert_non_null(strstr(e.hint, "-c "));
	o.kv_ram = ENGINE_KV_RAM_ON;
	m.host_bytes = 64000000000u;
	assert_int_equal(plan_of(&h, &o, &m, &p, &e), ERR_MEMORY);
	assert_non_null(strstr(e.text, "of latents"));
	o.kv_ram = ENGINE_KV_RAM_AUTO;
	assert_int_equal(plan_of(&h, &o, &m, &p, &e), ERR_MEMORY);
	o.context = 8192; /* fits the card: stays there, unless asked for */
	assert_int_equal(plan_of(&h, &o, &m, &p, &e), 0);
	assert_true(!p.kv_shape.latents_on_host && !p.kv_host);
	o.kv_ram = ENGINE_KV_RAM_ON;
	assert_int_equal(plan_of(&h, &o, &m, &p, &e), 0);
	assert_true(p.kv_host > p.kv);
	o.context = 0; /* found: neither memory overflows */
	assert_int_equal(plan_of(&h, &o, &m, &p, &e), 0);
	assert_true(p.context > 8192 && p.kv_host < m.host_bytes / 2);
	model_headers_close(&h);
}

/* The second tiers of all stages leave what --ram-gb auto promises to leave, and no more. */
static void test_host_shares(void **state)
{
	static const struct {
		size_t gb;
		uint32_t stages;
	} hosts[] = {{40, 2}, {80, 4}, {200, 4}, {300, 2}, {512, 4}, {560, 8}, {1000, 8}};
	(void)state;
	struct model_headers h;
	struct err e = {0};
	struct plan p;
	assert_int_equal(model_headers_make(&h, "q4", &e), 0);
	const struct engine_options o = {
		.context = 8192, .cache_bytes = ENGINE_CACHE_AUTO, .ram_bytes = ENGINE_CACHE_AUTO};
	for (size_t i = 0; i < ARRAY_LEN(hosts); i++) {
		const size_t host = hosts[i].gb * 1000000000, n = hosts[i].stages;
		const size_t most = host - plan_host_reserve(host);
		size_t pinned = 0, staging = 0;
		for (uint32_t k = 0; k < n; k++) {
			const uint64_t experts = k % 2 ? 5 : 3; /* of 4 * n */
			struct plan_machine m = {.card_bytes = plan_card_bytes(80), .part = true};
			plan_share_host(host, experts, 4 * n, &m);
			assert_int_equal(plan_of(&h, &o, &m, &p, &e), 0);
			pinned += p.tiers.tier_bytes[1] + p.tiers.host_staging_bytes;
			staging = p.tiers.host_staging_bytes;
		}
		if (pinned > most || pinned + n * staging < most)
			fail_msg(
				"%zu GB, %zu stages: %zu bytes are pinned of %zu", hosts[i].gb, n, pinned, most);
	}
	model_headers_close(&h);
}

static void check_part(double chance, double host_bytes_s, double want)
{
	const double part = forecast_host_part(8, chance, 25e9, host_bytes_s);
	if (!(part > want - 1e-4 && part < want + 1e-4))
		fail_msg("%g of the link's time, not %g", part, want);
}

/* Eight misses in host memory, or as many as chance gives, shared with the link. */
static void test_host_part(void **state)
{
	(void)state;
	check_part(1, 25e9, 4.0 / 8); /* four each */
	check_part(1, 75e9, 2.0 / 8); /* six by the processor */
	check_part(1, 1e9, 1);
	check_part(0, 25e9, 1);
	check_part(1e-6, 25e9, 1); /* one at a time: there is nothing to share */
	assert_true(forecast_host_part(8, 0.3, 25e9, 25e9) > forecast_host_part(8, 0.6, 25e9, 25e9));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_least), cmocka_unit_test(test_run),
		cmocka_unit_test(test_not_named), cmocka_unit_test(test_context_of_sessions),
		cmocka_unit_test(test_fast_prompts), cmocka_unit_test(test_impossible),
		cmocka_unit_test(test_latents_on_host), cmocka_unit_test(test_host_shares),
		cmocka_unit_test(test_host_part)};
	log_set_level(LOG_WARN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
