/* SPDX-License-Identifier: MIT */
/*
 * The simulator. Hit counts must equal those of tests/cache/sim_ref.py, an independent and slow
 * simulator: on a small trace with its answers on file, and on fresh random traces when python3 is
 * there. Published figures of the large synthetic trace are checked where that trace is
 * ($GLM_SHARED or ../shared, traces/glm52-sim-a.bin).
 */
#include "cache/trace/sim.h"

#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <setjmp.h>
#include <cmocka.h>

#define SMALL "tests/data/trace_small.gltr1"

static void load(const char *path, struct trace *t)
{
	struct err e = {0};
	*t = (struct trace){0};
	if (trace_open(path, t, &e))
		fail_msg("%s", e.text);
}

static struct sim_result simulate(const struct trace *t, const struct sim_setup *u)
{
	struct sim_result r;
	struct err e = {0};
	if (sim_run(t, u, &r, &e))
		fail_msg("%s", e.text);
	return r;
}

static double percent(const struct sim_result *r)
{
	return 100.0 * (double)r->stats.hits[0] / (double)r->stats.accesses;
}

/* Lines "order pools skip policy slots accesses hits". */
static void test_reference_on_file(void **state)
{
	(void)state;
	struct trace t;
	load(SMALL, &t);
	FILE *f = fopen("tests/data/trace_small.expect", "r");
	assert_non_null(f);
	char line[200];
	int n = 0;
	while (fgets(line, sizeof line, f)) {
		char order[20], pools[20], policy[20];
		unsigned long long skip, slots, accesses, hits;
		if (line[0] == '#')
			continue;
		assert_int_equal(sscanf(line, "%19s %19s %llu %19s %llu %llu %llu", order, pools, &skip,
							 policy, &slots, &accesses, &hits),
			7);
		struct sim_setup u = {.policy = policy_find(policy),
			.order = !strcmp(order, "rank") ? SIM_BY_RANK : SIM_BY_LAYER,
			.per_layer = !strcmp(pools, "each"),
			.skip_tokens = skip,
			.n_slots = slots};
		struct sim_result r = simulate(&t, &u);
		if (r.stats.accesses != accesses || r.stats.hits[0] != hits)
			fail_msg("%s: %llu of %llu", line, (unsigned long long)r.stats.hits[0],
				(unsigned long long)r.stats.accesses);
		n++;
	}
	fclose(f);
	assert_int_equal(n, 120);
	trace_fini(&t);
}

/* A random trace with some locality, small enough for many sizes. */
static void write_random(
	const char *path, uint64_t seed, uint32_t tokens, uint32_t layers, uint32_t k, uint32_t experts)
{
	struct rng r = {seed};
	uint8_t head[24] = "GLTR1\0\0", ids[256];
	store_u32(head + 8, tokens), store_u32(head + 12, layers), store_u32(head + 16, k),
		store_u32(head + 20, experts);
	FILE *f = fopen(path, "wb");
	assert_non_null(f);
	fwrite(head, 1, sizeof head, f);
	uint8_t *last = mem_new(layers * k, 1);
	for (uint32_t t = 0; t < tokens; t++)
		for (uint32_t l = 0; l < layers; l++)
			for (int twice = 0; twice < 2; twice++) {
				for (uint32_t i = 0; i < k;) {
					uint32_t a = rng_below(&r, experts), b = rng_below(&r, experts), x = MIN(a, b);
					if (t && rng_below(&r, 3) == 0)
						x = last[l * k + rng_below(&r, k)];
					ids[i] = (uint8_t)x;
					i += !memchr(ids, (int)x, i);
				}
				if (!twice)
					memcpy(last + l * k, ids, k);
				fwrite(ids, 1, k, f);
			}
	free(last);
	fclose(f);
}

static void compare_with_python(const char *path, const char *options, const struct sim_setup *base)
{
	char command[400], line[200];
	snprintf(command, sizeof command, "python3 tests/cache/sim_ref.py %s %s", path, options);
	FILE *p = popen(command, "r");
	assert_non_null(p);
	struct trace t;
	load(path, &t);
	int n = 0;
	while (fgets(line, sizeof line, p)) {
		char policy[20];
		unsigned long long slots, accesses, hits;
		assert_int_equal(sscanf(line, "%19s %llu %llu %llu", policy, &slots, &accesses, &hits), 4);
		struct sim_setup u = *base;
		u.policy = policy_find(policy);
		u.n_slots = slots;
		struct sim_result r = simulate(&t, &u);
		if (r.stats.accesses != accesses || r.stats.hits[0] != hits)
			fail_msg("%s: %s gives %llu of %llu", command, line,
				(unsigned long long)r.stats.hits[0], (unsigned long long)r.stats.accesses);
		n++;
	}
	assert_int_equal(pclose(p), 0);
	assert_true(n >= 5);
	trace_fini(&t);
}

static void test_reference_live(void **state)
{
	(void)state;
	if (system("python3 -c pass >/dev/null 2>&1"))
		skip();
	char path[] = "/tmp/test_sim_XXXXXX";
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	close(fd);
	const struct sim_setup rank = {.order = SIM_BY_RANK}, layer = {.order = SIM_BY_LAYER};
	const struct sim_setup each = {.order = SIM_BY_LAYER, .per_layer = true, .half_life = 3};
	write_random(path, 11, 60, 4, 3, 20);
	compare_with_python(path, "--experts 1,2,5,12,31,60,80", &rank);
	write_random(path, 12, 60, 5, 4, 30);
	compare_with_python(path, "--order layer --experts 1,3,4,13,40,90", &layer);
	write_random(path, 13, 60, 3, 6, 24);
	compare_with_python(path, "--order layer --per-layer --half-life 3 --experts 2,6,7,20", &each);
	unlink(path);
}

/* Belady is a bound, a larger LRU never loses, first touches are misses, everything fits at the
 * end. */
static void test_properties(void **state)
{
	(void)state;
	struct trace t;
	load(SMALL, &t);
	uint64_t last = 0;
	for (uint64_t slots = 1; slots <= 3072; slots = slots * 3 / 2 + 1) {
		struct sim_setup u = {.n_slots = slots, .policy = &policy_belady_bypass};
		uint64_t bound = simulate(&t, &u).stats.hits[0];
		u.policy = &policy_belady;
		uint64_t must = simulate(&t, &u).stats.hits[0];
		assert_true(must <= bound);
		for (int i = 0; policy_list(i); i++) {
			u.policy = policy_list(i);
			assert_true(simulate(&t, &u).stats.hits[0] <= must);
		}
		u.policy = &policy_lru;
		uint64_t lru = simulate(&t, &u).stats.hits[0];
		assert_true(lru >= last);
		last = lru;
	}
	struct sim_setup all = {.n_slots = 3072, .policy = &policy_lru};
	struct sim_result r = simulate(&t, &all);
	assert_true(r.stats.evictions == 0 && r.stats.misses > 1000);
	uint64_t distinct = 0;
	uint8_t *seen = mem_new(3072, 1);
	for (size_t i = 0; i < t.n_events; i++)
		for (uint32_t x = 0; t.events[i].kind == TRACE_ACCESS && x < t.events[i].n; x++) {
			uint8_t *s = &seen[t.events[i].layer * 256 + t.ids[t.events[i].value + x]];
			distinct += !*s;
			*s = 1;
		}
	free(seen);
	assert_int_equal(r.stats.misses, distinct);
	trace_fini(&t);
}

/* Two exclusive LRU tiers hold as much as one of their common size, and both count. */
static void test_two_tiers(void **state)
{
	(void)state;
	struct trace t;
	load(SMALL, &t);
	for (int order = 0; order < 2; order++) {
		struct sim_setup one = {
			.n_slots = 900, .policy = &policy_lru, .order = (enum sim_order)order};
		struct sim_setup two = {
			.n_slots = 300, .n_ram_slots = 600, .policy = &policy_lru, .order = one.order};
		struct sim_setup small = {.n_slots = 300, .policy = &policy_lru, .order = one.order};
		struct sim_result a = simulate(&t, &one), b = simulate(&t, &two), c = simulate(&t, &small);
		/* The upper tier notices the lower one only by the slots that are kept free, for which cold
		 * experts leave. */
		uint64_t lost = c.stats.hits[0] - b.stats.hits[0];
		assert_true(order == SIM_BY_RANK ? !lost : lost <= c.stats.hits[0] / 100);
		assert_true(b.stats.hits[1] > 0 && b.stats.promotions == b.stats.hits[1]);
		uint64_t both = b.stats.hits[0] + b.stats.hits[1];
		/* A promotion needs a spare slot below for its victim: so do the free slots above: one of
		 * 900 is worth a few hits. */
		assert_true(both <= a.stats.hits[0] && both + 40 >= a.stats.hits[0]);
	}
	trace_fini(&t);
}

/* Predictions turn misses into hits, cost bytes, and are counted as used or wasted. */
static void test_lookahead(void **state)
{
	(void)state;
	struct trace t;
	load(SMALL, &t);
	struct sim_setup u = {.n_slots = 800, .policy = &policy_lru, .order = SIM_BY_LAYER};
	struct sim_result off = simulate(&t, &u);
	u.lookahead = 1;
	struct sim_result on = simulate(&t, &u);
	assert_int_equal(off.stats.prefetch_inserted, 0);
	assert_true(on.stats.prefetch_used > 0 && on.stats.prefetch_wasted > 0);
	assert_true(on.stats.prefetch_used + on.stats.prefetch_wasted <= on.stats.prefetch_inserted);
	assert_true(on.stats.hits[0] > off.stats.hits[0]);
	assert_int_equal(on.stats.accesses, off.stats.accesses);
	print_message(
		"800 of 3072 slots: %.1f %% without, %.1f %% with lookahead; misses covered %.1f %%\n",
		percent(&off), percent(&on),
		100.0 * (double)on.stats.prefetch_used /
			(double)(on.stats.prefetch_used + on.stats.misses));
	trace_fini(&t);
}

/* Sizes: the same bytes budget, mixed sizes, no more than the budget and no flushing. */
static void test_mixed_sizes(void **state)
{
	(void)state;
	struct trace t;
	load(SMALL, &t);
	struct sim_setup u = {.tier_bytes = {800 * 1000}, .expert_bytes = 1000, .policy = &policy_lru};
	struct sim_setup v = {.n_slots = 800, .policy = &policy_lru};
	struct sim_result same = simulate(&t, &u), slots = simulate(&t, &v);
	assert_int_equal(same.stats.hits[0], slots.stats.hits[0]);
	assert_int_equal(same.stats.bytes_missed, same.stats.misses * 1000);
	/* Now every third layer has experts three times as large; the budget grows with the mean. */
	for (uint32_t l = 0; l < t.model.n_layers; l++)
		t.expert_bytes[l] = l % 3 ? 1000 : 3000;
	u.expert_bytes = 0;
	u.tier_bytes[0] = 800ull * 5000 / 3;
	struct sim_result mixed = simulate(&t, &u);
	print_message("mixed sizes %.2f %%, one size %.2f %%, %llu slabs changed class\n",
		percent(&mixed), percent(&same), (unsigned long long)mixed.stats.slabs_reassigned);
	assert_true(percent(&mixed) > percent(&same) - 2);
	trace_fini(&t);
}

static void test_sim_refusals(void **state)
{
	(void)state;
	struct trace t;
	load(SMALL, &t);
	struct sim_setup bad[] = {{.policy = &policy_lru},
		{.policy = &policy_lru, .tier_bytes = {1000}, .per_layer = true},
		{.policy = &policy_lru, .tier_bytes = {1000}, .expert_bytes = 1001}};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct sim_result r;
		struct err e = {0};
		assert_true(sim_run(&t, &bad[i], &r, &e) < 0 && e.text[0]);
		assert_true(sim_run(&t, &bad[i], &r, NULL) < 0);
	}
	trace_fini(&t);
}

/* The table in the README of the shared traces. */
static void test_published_figures(void **state)
{
	(void)state;
	const char *shared = getenv("GLM_SHARED");
	char path[1000];
	snprintf(path, sizeof path, "%s/traces/glm52-sim-a.bin", shared ? shared : "../shared");
	if (access(path, R_OK))
		skip();
	struct trace t;
	load(path, &t);
	const struct {
		bool per_layer;
		uint64_t slots, skip, window;
		const struct policy_ops *policy;
		double want;
	} rows[] = {
		{false, 1920, 512, 0, &policy_lru, 49.5},
		{false, 5184, 512, 0, &policy_lru, 72.5},
		{false, 9600, 512, 0, &policy_lru, 87.3},
		{false, 12288, 512, 0, &policy_lru, 92.5},
		{false, 14400, 512, 0, &policy_lru, 95.5},
		{true, 26, 512, 0, &policy_lru, 50.6},
		{true, 69, 512, 0, &policy_lru, 72.3},
		{true, 128, 512, 0, &policy_lru, 87.0},
		{true, 164, 512, 0, &policy_lru, 92.2},
		{true, 192, 512, 0, &policy_lru, 95.2},
		{true, 69, 0, 128, &policy_lru, 69.8},
		{false, 5184, 0, 128, &policy_lru, 69.9},
		{true, 69, 0, 128, &policy_belady, 80.5},
		{false, 5184, 0, 128, &policy_belady, 80.9},
		{true, 1, 0, 0, &policy_belady_bypass, 11},
		{true, 2, 0, 0, &policy_belady_bypass, 20},
		{true, 4, 0, 0, &policy_belady_bypass, 33},
		{true, 8, 0, 0, &policy_belady_bypass, 48},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct sim_setup u = {.policy = rows[i].policy,
			.per_layer = rows[i].per_layer,
			.n_slots = rows[i].slots,
			.skip_tokens = rows[i].skip,
			.window_tokens = rows[i].window};
		struct sim_result r = simulate(&t, &u);
		double tolerance =
			rows[i].want == (int)rows[i].want ? 0.5 : 0.06; /* as the figure is rounded */
		if (percent(&r) < rows[i].want - tolerance || percent(&r) > rows[i].want + tolerance)
			fail_msg("row %zu: %.2f %%, published %.1f %%", i, percent(&r), rows[i].want);
	}
	trace_fini(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reference_on_file),
		cmocka_unit_test(test_reference_live),
		cmocka_unit_test(test_properties),
		cmocka_unit_test(test_two_tiers),
		cmocka_unit_test(test_lookahead),
		cmocka_unit_test(test_mixed_sizes),
		cmocka_unit_test(test_sim_refusals),
		cmocka_unit_test(test_published_figures),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
