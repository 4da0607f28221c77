/* SPDX-License-Identifier: MIT */
/* A simulated cache counts what the live one did, steps of prompts between those of decoding. */
#include "cache/trace/sim.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "stream/extent.h"
#include "tests/stream/loader_help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#define N_STEPS  120
#define PROMPTS  5 /* one step in so many is a prompt's */
#define N_PROMPT 16

/* What was asked for, as a trace in memory. */
static void note(struct trace *t, struct trace_event event, const struct expert_ref *refs)
{
	event.value = t->n_ids;
	for (uint32_t i = 0; refs && i < event.n; i++)
		t->ids[t->n_ids++] = (uint16_t)refs[i].id;
	t->events[t->n_events++] = event;
	assert_true(t->n_events <= t->cap_events && t->n_ids <= t->cap_ids);
}

/* Acquires n distinct experts in groups, as the model does. */
static void use(
	struct expert_source *s, struct trace *t, int layer, enum expert_use how, struct rng *r, int n)
{
	enum cache_use as = how == EXPERT_PREFILL ? CACHE_PREFILL : CACHE_DECODE;
	struct expert_ref refs[CONFIG_MAX_EXPERTS];
	bool used[CONFIG_MAX_EXPERTS] = {0};
	struct err e = {0};
	for (int i = 0; i < n;) {
		int id = (int)MIN(rng_below(r, config.n_experts), rng_below(r, config.n_experts));
		if (!used[id])
			refs[i++] = (struct expert_ref){.id = id};
		used[id] = true;
	}
	for (int at = 0, group; at < n; at += group) {
		group = MIN(n - at, s->max_pinned[how]);
		note(t,
			(struct trace_event){
				.kind = TRACE_ACCESS, .use = as, .layer = (uint16_t)layer, .n = (uint32_t)group},
			refs + at);
		t->n_accesses += how == EXPERT_DECODE ? (uint64_t)group : 0;
		int missing = s->ops->acquire(s, layer, how, refs + at, group, &e);
		while (missing > 0)
			missing = s->ops->wait_ready(s, layer, refs + at, group, &e);
		if (missing < 0)
			fail_msg("%s", e.text);
		s->ops->release(s, layer, refs + at, group);
	}
}

static uint64_t slot_bytes[CONFIG_MAX_LAYERS];

/* Apart by no more than 4 % of the accesses. */
static void assert_close(uint64_t live, uint64_t sim, uint64_t accesses)
{
	uint64_t apart = MAX(live, sim) - MIN(live, sim);
	if (apart > accesses / 25)
		fail_msg("%llu in the run, %llu simulated, of %llu", (unsigned long long)live,
			(unsigned long long)sim, (unsigned long long)accesses);
}

static void compare(const char *policy, double share, double ram, uint64_t seed, bool exact)
{
	struct err e = {0};
	struct rng r = {seed};
	struct loader_options o =
		source_options(share, (uint64_t)(ram * (double)full.everything_bytes));
	o.policy = policy;
	o.lookahead = 0;
	o.reader.buffered = true;
	struct extent_table *table;
	assert_int_equal(extent_table_from_gguf(&table, file, NULL, &e), 0);
	for (uint32_t l = 0; l < extent_n_layers(table); l++)
		slot_bytes[l] = extent_slot_bytes(table, l);
	extent_table_free(table);
	struct trace t = {.model = {.n_layers = (uint32_t)o.n_layers,
						  .n_experts = config.n_experts,
						  .top_k = config.n_used,
						  .expert_bytes = slot_bytes},
		.cap_events = N_STEPS * (1 + (size_t)o.n_layers * config.n_experts)};
	t.cap_ids = t.cap_events * config.n_experts;
	t.events = NEW_ARRAY(struct trace_event, t.cap_events);
	t.ids = NEW_ARRAY(uint16_t, t.cap_ids);
	struct expert_source *s;
	assert_int_equal(loader_open(&o, &s, &e), 0);
	for (int step = 0; step < N_STEPS; step++) {
		enum expert_use how = rng_below(&r, PROMPTS) ? EXPERT_DECODE : EXPERT_PREFILL;
		note(&t,
			(struct trace_event){.kind = TRACE_STEP,
				.use = how == EXPERT_PREFILL ? CACHE_PREFILL : CACHE_DECODE,
				.n = 1},
			NULL);
		s->ops->step(s, how, how == EXPERT_PREFILL ? 64 : 1, step);
		for (int l = (int)config.n_dense; l < (int)config.n_layers; l++)
			use(s, &t, l, how, &r, how == EXPERT_PREFILL ? N_PROMPT : (int)config.n_used);
	}
	struct cache_stats live = source_cache_stats(s);
	s->ops->close(s);
	struct sim_result sim;
	struct sim_setup setup = {.policy = policy_find(policy),
		.order = SIM_BY_LAYER,
		.tier_bytes = {o.tier_bytes[0], o.tier_bytes[1]}};
	assert_int_equal(sim_run(&t, &setup, &sim, &e), 0);
	print_message(
		"%s, %.2f + %.2f: %llu hits, %llu below, %llu missed of %llu; prompts %llu, %llu, %llu; "
		"%llu demotions (%llu "
		"without a copy), %llu promotions, %llu lost\n",
		policy, share, ram, (unsigned long long)live.hits[0], (unsigned long long)live.hits[1],
		(unsigned long long)live.misses, (unsigned long long)live.accesses,
		(unsigned long long)live.prefill_hits[0], (unsigned long long)live.prefill_hits[1],
		(unsigned long long)live.prefill_misses, (unsigned long long)live.demotions,
		(unsigned long long)live.demotions_free, (unsigned long long)live.promotions,
		(unsigned long long)live.evictions);
	if (exact) {
		assert_memory_equal(live.hits, sim.stats.hits, sizeof live.hits);
		assert_memory_equal(live.prefill_hits, sim.stats.prefill_hits, sizeof live.prefill_hits);
		assert_int_equal(live.misses, sim.stats.misses);
		assert_int_equal(live.prefill_misses, sim.stats.prefill_misses);
		assert_int_equal(live.promotions, sim.stats.promotions);
		assert_int_equal(live.demotions, sim.stats.demotions);
		assert_int_equal(live.evictions, sim.stats.evictions);
	} else {
		assert_close(live.hits[0], sim.stats.hits[0], live.accesses);
		assert_close(live.hits[1], sim.stats.hits[1], live.accesses);
		assert_close(live.misses, sim.stats.misses, live.accesses);
	}
	/* A cache that is never full leaves the policy nothing to decide. */
	if (ram > 0)
		assert_true(live.hits[1] > 300 && live.demotions_free >= (exact ? 20 : 0) &&
					live.demotions > live.demotions_free + 50);
	if (ram <= 0 || !exact)
		assert_true(live.evictions > 50 && live.misses > live.evictions);
	free(t.events);
	free(t.ids);
}

static void test_one_tier(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 3; seed++)
		compare(policy_list((int)seed - 1)->name, 0.15 + 0.12 * (double)seed, 0, seed, true);
}

static void test_two_tiers(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 6; seed++)
		compare(policy_list((int)seed % 3)->name, 0.08 * (double)seed, 1 - 0.1 * (double)seed, seed,
			true);
}

/* Who leaves a full second tier depends on which promotions have ended by then and left inclusive
 * copies: in a simulation none of the layer's has. */
static void test_two_full_tiers(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 6; seed++)
		compare(policy_list((int)seed % 3)->name, 0.05 + 0.04 * (double)seed,
			0.4 - 0.04 * (double)seed, seed, false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_tier),
		cmocka_unit_test(test_two_tiers),
		cmocka_unit_test(test_two_full_tiers),
	};
	return cmocka_run_group_tests(tests, source_setup, source_teardown);
}
