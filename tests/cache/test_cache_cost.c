/* SPDX-License-Identifier: MIT */
/*
 * What the bookkeeping costs at GLM-5.2's size: memory, time per call, and above all the bytes of a
 * budget that mixed expert sizes waste, and the hits that they lose against an ideal memory (an LRU
 * over bytes in which any free bytes fit any expert). Figures are printed; the bounds that are
 * asserted are wide for time and tight for waste.
 */
#include "cache/cache.h"

#include "src/base/host/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "tests/cache/cache_check.h"

#include <malloc.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <setjmp.h>
#include <cmocka.h>

#define MAX_LAYERS 80

/* Bytes of an expert of GLM-5.2 (3 matrices of 2048 x 6144) and of the pocket model (256 x 256) by
 * type. */
#define IQ2_XXS 9732096ull
#define Q2_K    12386304ull
#define IQ2_Q3  11894784ull /* gate and up IQ2_XXS, down Q3_K */
#define Q8_0    40108032ull
#define POCKET  64512ull

/* ---- routing with some popularity and some memory ---- */

struct routing {
	struct rng r;
	int n_layers, n_experts, top_k;
	int32_t last[MAX_LAYERS][16];
	bool begun;
};

static void route(struct routing *g, int layer, int32_t *ids)
{
	for (int i = 0; i < g->top_k;) {
		double u = rng_unit(&g->r);
		int32_t x = (int32_t)(u * u * g->n_experts); /* low ids are popular */
		x = (x + layer * 37) % g->n_experts;
		if (g->begun && rng_below(&g->r, 4) == 0)
			x = g->last[layer][rng_below(&g->r, (uint32_t)g->top_k)];
		int same = 0;
		for (int j = 0; j < i; j++)
			same += ids[j] == x;
		ids[i] = x;
		i += !same;
	}
	memcpy(g->last[layer], ids, (size_t)g->top_k * sizeof *ids);
}

/* ---- the ideal: LRU over bytes without any granularity ---- */

struct ideal {
	uint64_t budget, used, hits;
	int32_t *next, *prev; /* [n_keys + 1], the last is the head of the ring */
	bool *in;
	int32_t head;
};

static void ideal_unlink(struct ideal *m, int32_t key)
{
	m->next[m->prev[key]] = m->next[key];
	m->prev[m->next[key]] = m->prev[key];
}

static void ideal_access(
	struct ideal *m, int32_t key, uint64_t bytes, const uint64_t *layer_bytes, int n_experts)
{
	if (m->in[key]) {
		m->hits++;
		ideal_unlink(m, key);
	} else {
		while (m->used + bytes > m->budget) {
			int32_t victim = m->prev[m->head];
			ideal_unlink(m, victim);
			m->in[victim] = false;
			m->used -= layer_bytes[victim / n_experts];
		}
		m->used += bytes;
		m->in[key] = true;
	}
	m->next[key] = m->next[m->head];
	m->prev[key] = m->head;
	m->prev[m->next[key]] = key;
	m->next[m->head] = key;
}

/* ---- one run ---- */

struct mix {
	const char *name;
	int n_layers, n_experts, top_k;
	uint64_t bytes[MAX_LAYERS];
	uint64_t budget;
	int idle_layer; /* not visited in the second half of the run; -1: none */
};

struct outcome {
	double wasted, hits, ideal; /* parts of the budget, of the accesses, of the accesses */
	uint64_t slabs_reassigned, accesses;
};

/* One layer of a run (cache.h). */
static void step(struct cache *c, int layer, const int32_t *ids, int n)
{
	struct cache_ref refs[16];
	struct cache_request q = {.layer = layer, .use = CACHE_DECODE, .refs = refs, .n = n};
	struct cache_plan plan;
	for (int i = 0; i < n; i++)
		refs[i].expert = ids[i];
	assert_int_equal(cache_acquire(c, &q, &plan), CACHE_OK);
	for (int i = 0; i < plan.n; i++)
		cache_commit(c, plan.transfers[i].slot);
	cache_release(c, refs, n, &plan);
}

/* Bytes of the memory in which no expert is. */
static double wasted_part(const struct cache *c, const struct mix *m)
{
	uint64_t used = 0;
	for (int l = 0; l < m->n_layers; l++) {
		int n[CACHE_TIERS];
		cache_layer_resident(c, l, n);
		used += (uint64_t)n[0] * m->bytes[l];
	}
	return 1 - (double)used / (double)cache_memory_bytes(c, 0);
}

static struct outcome cache_cost_run(
	const struct mix *m, int n_tokens, const struct policy_ops *policy)
{
	struct cache_config cfg = {.n_layers = m->n_layers,
		.n_experts = m->n_experts,
		.expert_bytes = m->bytes,
		.tier_bytes = {m->budget},
		.policy = policy,
		.align = 4096};
	for (int l = 0; l < m->n_layers; l++)
		cfg.token_accesses += m->bytes[l] ? (uint64_t)m->top_k : 0;
	struct err e = {0};
	struct cache *c = cache_new(&cfg, &e);
	if (!c)
		fail_msg("%s: %s", m->name, e.text);
	int n_keys = m->n_layers * m->n_experts;
	struct ideal ideal = {.budget = m->budget, .head = n_keys};
	ideal.next = NEW_ARRAY(int32_t, (size_t)n_keys + 1);
	ideal.prev = NEW_ARRAY(int32_t, (size_t)n_keys + 1);
	ideal.in = NEW_ARRAY(bool, (size_t)n_keys);
	ideal.next[n_keys] = ideal.prev[n_keys] = n_keys;
	struct routing g = {
		.r = {7}, .n_layers = m->n_layers, .n_experts = m->n_experts, .top_k = m->top_k};
	struct outcome o = {0};
	double wasted = 0;
	int samples = 0;
	for (int t = 0; t < n_tokens; t++) {
		if (t == n_tokens / 3) { /* warm */
			cache_reset_stats(c);
			ideal.hits = 0;
		}
		for (int l = 0; l < m->n_layers; l++) {
			int32_t ids[16];
			if (!m->bytes[l] || (l == m->idle_layer && t >= n_tokens / 2))
				continue;
			route(&g, l, ids);
			step(c, l, ids, m->top_k);
			for (int i = 0; i < m->top_k; i++)
				ideal_access(
					&ideal, l * m->n_experts + ids[i], m->bytes[l], m->bytes, m->n_experts);
		}
		g.begun = true;
		if (t >= n_tokens / 3) {
			wasted += wasted_part(c, m);
			samples++;
		}
	}
	if (cache_check(c, &e))
		fail_msg("%s: %s", m->name, e.text);
	const struct cache_stats *s = cache_stats(c);
	o.accesses = s->accesses;
	o.wasted = wasted / samples;
	o.hits = (double)s->hits[0] / (double)s->accesses;
	o.ideal = (double)ideal.hits / (double)s->accesses;
	o.slabs_reassigned = s->slabs_reassigned;
	free(ideal.next);
	free(ideal.prev);
	free(ideal.in);
	cache_free(c);
	return o;
}

static void fill(struct mix *m, int first, int n, uint64_t a, uint64_t b, uint64_t c, uint64_t mtp)
{
	*m = (struct mix){.n_layers = first + n, .n_experts = 256, .top_k = 8, .idle_layer = -1};
	for (int i = 0; i < n; i++)
		m->bytes[first + i] = i % 3 == 0 ? a : i % 3 == 1 ? b : c;
	if (mtp)
		m->bytes[m->n_layers++] = mtp;
}

static void test_waste(void **state)
{
	(void)state;
	static struct mix m;
	const double budgets[] = {12e9, 40e9, 117e9};
	for (int kind = 0; kind < 7; kind++)
		for (size_t b = 0; b < ARRAY_LEN(budgets); b++) {
			const char *name = "";
			switch (kind) {
			case 0:
				fill(&m, 3, 75, IQ2_XXS, IQ2_XXS, IQ2_XXS, 0), name = "all the same";
				break;
			case 1:
				fill(&m, 3, 75, IQ2_XXS, 3 * IQ2_XXS, IQ2_XXS, 0), name = "two classes 3:1";
				break;
			case 2:
				fill(&m, 3, 75, IQ2_XXS, IQ2_XXS, IQ2_XXS, Q8_0), name = "MTP layer in Q8_0";
				break;
			case 3:
				fill(&m, 3, 75, IQ2_XXS, IQ2_XXS, IQ2_XXS, Q8_0), name = "MTP layer falls idle";
				m.idle_layer = m.n_layers - 1;
				break;
			case 4:
				fill(&m, 3, 76, IQ2_XXS, Q2_K, IQ2_Q3, 0), name = "79 layers, 3 sizes";
				break;
			case 5:
				fill(&m, 3, 75, IQ2_XXS, Q2_K, IQ2_Q3, Q8_0), name = "3 sizes and MTP";
				break;
			default: /* the pocket: few experts, odd sizes */
				fill(&m, 1, 6, POCKET, POCKET * 5 / 4, POCKET * 3 / 2, POCKET * 4),
					name = "pocket, 4 sizes";
				m.n_experts = 32, m.top_k = 4;
			}
			m.name = name;
			m.budget = (uint64_t)budgets[b];
			if (kind == 6)
				m.budget = (uint64_t)(budgets[b] / 117e9 * 16e6);
			struct outcome o = cache_cost_run(&m, kind == 6 ? 3000 : 240, &policy_lru);
			print_message("%-21s %8.4g GB: wasted %5.2f %%, hits %6.2f %%, ideal %6.2f %%, %llu "
						  "slabs moved\n",
				name, (double)m.budget / 1e9, 100 * o.wasted, 100 * o.hits, 100 * o.ideal,
				(unsigned long long)o.slabs_reassigned);
			if (kind < 6) {
				assert_true(o.wasted < (kind == 0 ? 0.001 : 0.04));
				assert_true(o.hits > o.ideal - 0.015);
			}
		}
}

/* Nobody bypasses the cache and nobody flushes it: with half the layers three times as large, both
 * kinds of layers find about as much as each would with the same share of its experts alone. */
static void test_fair(void **state)
{
	(void)state;
	static struct mix both, alone;
	const struct policy_ops *all[] = {&policy_lru, &policy_lfu, &policy_sieve};
	for (size_t p = 0; p < ARRAY_LEN(all); p++) {
		fill(&both, 0, 30, IQ2_XXS, 3 * IQ2_XXS, IQ2_XXS, 0);
		both.budget = (uint64_t)(0.3 * 30 * 256 * 5 / 3 * IQ2_XXS);
		fill(&alone, 0, 30, IQ2_XXS, IQ2_XXS, IQ2_XXS, 0);
		alone.budget = (uint64_t)(0.3 * 30 * 256 * IQ2_XXS);
		both.name = alone.name = "fair";
		struct outcome x = cache_cost_run(&both, 400, all[p]),
					   y = cache_cost_run(&alone, 400, all[p]);
		print_message("%-6s 30 %% of the bytes: mixed 3:1 %.2f %% hits, one size %.2f %%\n",
			all[p]->name, 100 * x.hits, 100 * y.hits);
		assert_true(fabs(x.hits - y.hits) < 0.02);
	}
}

static void test_time_and_memory(void **state)
{
	(void)state;
	static struct mix m;
	fill(&m, 3, 75, IQ2_XXS, IQ2_XXS, IQ2_XXS, IQ2_XXS); /* 76 layers: 19,456 experts */
	const struct policy_ops *all[] = {&policy_lru, &policy_lfu, &policy_sieve};
	for (size_t p = 0; p < ARRAY_LEN(all); p++) {
		struct cache_config cfg = {.n_layers = m.n_layers,
			.n_experts = 256,
			.expert_bytes = m.bytes,
			.tier_bytes = {50000000000ull, 64000000000ull},
			.policy = all[p],
			.token_accesses = 608};
		struct err e = {0};
		size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
		struct cache *c = cache_new(&cfg, &e);
		assert_non_null(c);
		size_t bytes = mallinfo2().uordblks + mallinfo2().hblkhd - before;
		struct routing g = {.r = {3}, .n_layers = m.n_layers, .n_experts = 256, .top_k = 8};
		uint64_t hit_ns = 0, miss_ns = 0, flush_ns = 0, commit_ns = 0, release_ns = 0, n_hit = 0,
				 n_miss = 0, n_commit = 0;
		for (int t = 0; t < 300; t++) {
			for (int l = 3; l < m.n_layers; l++) {
				struct cache_ref refs[8];
				struct cache_request q = {.layer = l, .use = CACHE_DECODE, .refs = refs, .n = 8};
				struct cache_plan plan;
				int32_t ids[8];
				route(&g, l, ids);
				for (int again = 0; again < 2; again++) { /* the second time all are hits */
					for (int i = 0; i < 8; i++)
						refs[i].expert = ids[i];
					uint64_t t0 = clock_ns();
					assert_int_equal(cache_acquire(c, &q, &plan), CACHE_OK);
					uint64_t t1 = clock_ns();
					for (int i = 0; i < plan.n; i++)
						cache_commit(c, plan.transfers[i].slot);
					uint64_t t2 = clock_ns();
					int n = plan.n;
					cache_flush(c, &plan);
					uint64_t t3 = clock_ns();
					for (int i = 0; i < plan.n; i++)
						cache_commit(c, plan.transfers[i].slot);
					uint64_t t4 = clock_ns();
					cache_release(c, refs, 8, &plan);
					uint64_t t5 = clock_ns();
					if (t < 100) /* until both tiers are full */
						continue;
					*(again ? &hit_ns : &miss_ns) += t1 - t0;
					*(again ? &n_hit : &n_miss) += 1;
					flush_ns += t3 - t2, release_ns += t5 - t4;
					commit_ns += t2 - t1, n_commit += (uint64_t)n;
				}
			}
			g.begun = true;
		}
		print_message("%-6s a layer's acquire: all hits %.0f ns, with misses %.0f ns; flush %.0f "
					  "ns, release %.0f ns, a commit %.0f ns, bookkeeping %.2f MB\n",
			all[p]->name, (double)hit_ns / (double)n_hit, (double)miss_ns / (double)n_miss,
			(double)flush_ns / (double)(n_hit + n_miss),
			(double)release_ns / (double)(n_hit + n_miss), (double)commit_ns / (double)n_commit,
			(double)bytes / 1e6);
		assert_true(bytes < 4 << 20);
		cache_free(c);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_waste),
		cmocka_unit_test(test_fair),
		cmocka_unit_test(test_time_and_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
