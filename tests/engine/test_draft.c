/* SPDX-License-Identifier: MIT */
/*
 * Drafts without a model: the index of prompt lookup against a search, and the drafter against
 * machines with known costs and texts with known acceptance. Time is simulated.
 */
#include "src/base/host/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/engine/draft/draft.h"
#include "src/engine/draft/draft_lookup.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <cmocka.h>

/* ---- prompt lookup ---- */

/* The longest suffix of text[0..n), up to `most` tokens, that stands earlier too. */
static uint32_t longest_suffix(const int32_t *text, uint32_t n, uint32_t most)
{
	uint32_t best = 0;
	for (uint32_t end = 1; end < n; end++) {
		uint32_t k = 0;
		while (k < most && k < end && text[end - 1 - k] == text[n - 1 - k])
			k++;
		best = MAX(best, k);
	}
	return best;
}

static void test_lookup_finds_suffixes(void **state)
{
	(void)state;
	enum { N = 3000 };
	static int32_t text[N];
	struct rng rng = {.state = 7};
	struct draft_lookup *l = lookup_new();
	for (uint32_t i = 0; i < N; i++) {
		/* few symbols, and copies of earlier parts */
		text[i] = i > 100 && i % 97 < 40 ? text[i - 90] : (int32_t)rng_below(&rng, 12);
		lookup_push(l, text[i]);
		int32_t ids[DRAFT_MAX];
		uint32_t length, n = lookup_find(l, DRAFT_MAX, ids, &length);
		uint32_t least = longest_suffix(text, i + 1, 16);
		/* the longest run of 2, 4, 8 or 16 that the suffix has is found, and may be longer */
		uint32_t run = least >= 16 ? 16 : least >= 8 ? 8 : least >= 4 ? 4 : least >= 2 ? 2 : 0;
		assert_true(length >= run && (length == 0) == (run == 0));
		assert_int_equal(n, run ? DRAFT_MAX : 0);
		assert_true(length <= longest_suffix(text, i + 1, LOOKUP_MATCH_MAX));
		bool stands = !run; /* the suffix with these drafts behind it stands in the text */
		for (uint32_t end = length; run && end <= i && !stands; end++) {
			uint32_t known = MIN(n, i + 1 - end);
			stands = !memcmp(text + end - length, text + i + 1 - length, length * 4) &&
					 !memcmp(text + end, ids, known * 4);
		}
		assert_true(stands);
	}
	/* the same text from its beginning, then another one */
	lookup_sync(l, text, N);
	int32_t ids[2];
	uint32_t length;
	const int32_t other[] = {1, 2, 3, 4, 1, 2};
	lookup_sync(l, other, 6);
	assert_int_equal(lookup_find(l, 2, ids, &length), 2);
	assert_int_equal(length, 2);
	assert_int_equal(ids[0], 3);
	assert_int_equal(ids[1], 4);
	lookup_sync(l, other, 4);
	assert_int_equal(lookup_find(l, 2, ids, &length), 0);
	lookup_sync(l, other, 6);
	lookup_sync(l, other, 0); /* an empty text has no suffix, whatever the text before had */
	assert_int_equal(lookup_find(l, 2, ids, &length), 0);
	lookup_free(l);
}

/* Without memory for a longer text nothing is found, and nothing is lost but that: the next text is
 * read again. */
static void test_lookup_without_memory(void **state)
{
	(void)state;
#if defined(__SANITIZE_ADDRESS__) ||                                                               \
	defined(__SANITIZE_THREAD__) /* which map more than any limit */
	skip();
#endif
	enum { MOST = 1 << 24 };
	struct rlimit old;
	assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
	const struct rlimit tight = {1 << 20, old.rlim_max}; /* nothing more */
	struct draft_lookup *l = lookup_new();
	int32_t ids[2], *text = mem_try_new(MOST, sizeof *text);
	uint32_t length;
	assert_non_null(text);
	for (uint32_t i = 0; i < 8; i++)
		text[i] = (int32_t)(i % 4);
	lookup_sync(l, text, 8);
	assert_int_equal(lookup_find(l, 2, ids, &length), 2);
	assert_int_equal(setrlimit(RLIMIT_AS, &tight), 0);
	lookup_sync(l, text, MOST);
	lookup_push(l, 1);
	assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
	assert_int_equal(lookup_find(l, 2, ids, &length), 0);
	lookup_sync(l, text, 8);
	assert_int_equal(lookup_find(l, 2, ids, &length), 2);
	assert_int_equal(ids[0], 0);
	lookup_free(l);
	free(text);
}

static void test_lookup_continues_repetitions(void **state)
{
	(void)state;
	struct draft_lookup *l = lookup_new();
	const int32_t text[] = {9, 5, 6, 7, 5, 6, 7, 5, 6};
	lookup_sync(l, text, 9);
	int32_t ids[7];
	uint32_t length;
	assert_int_equal(lookup_find(l, 7, ids, &length), 7);
	const int32_t expected[] = {7, 5, 6, 7, 5, 6, 7};
	assert_memory_equal(ids, expected, sizeof ids);
	lookup_free(l);
}

/* Microseconds of processor time a token at 100,000 tokens of text that repeats itself and that
 * does not. */
static void test_lookup_is_fast(void **state)
{
	(void)state;
	enum { N = 120000 };
	for (uint32_t symbols = 2; symbols <= 200000; symbols *= 100) {
		struct draft_lookup *l = lookup_new();
		struct rng rng = {.state = 1};
		uint64_t start = 0, found = 0;
		for (uint32_t i = 0; i < N; i++) {
			if (i == 100000)
				start = clock_thread_ns();
			lookup_push(l, (int32_t)rng_below(&rng, symbols));
			int32_t ids[DRAFT_MAX];
			uint32_t length;
			found += lookup_find(l, DRAFT_MAX, ids, &length);
		}
		double us = (double)(clock_thread_ns() - start) / 1e3 / (N - 100000);
		assert_true(found || symbols > 2);
#ifdef COVERAGE_FOLDER /* which compiles it without optimisation */
		us /= 10;
#endif
		if (us > 20)
			fail_msg("%.1f us a token with %u symbols", us, symbols);
		lookup_free(l);
	}
}

/* ---- the drafter on simulated machines ---- */

static double now_ns;

static uint64_t simulated_clock(void)
{
	return (uint64_t)now_ns;
}

/* A machine and a text. */
struct world {
	double row;   /* what a further row costs, of a step */
	double jump;  /* what the second row costs beside that */
	double level; /* what a draft of the source that computes costs, of a step */
	double noise; /* standard deviation of a step's time */
	double accepted[DRAFT_MAX];
	double sure;         /* how often the grade says whether a draft is right: 0 never, 1 always */
	const int32_t *text; /* [n]; what comes */
	uint32_t n, at;      /* at: tokens drawn */
	struct rng rng;
	double spent; /* steps, without noise */
};

#define STEP_NS 1e6

static double world_step(const struct world *w, uint32_t rows)
{
	return 1 + (rows > 1 ? w->jump : 0) + w->row * (rows - 1);
}

static int world_propose(void *user, struct draft_proposal *proposals, uint32_t n, struct err *e)
{
	(void)e;
	struct world *w = user;
	for (uint32_t i = 0; i < n; i++) {
		struct draft_proposal *r = &proposals[i];
		bool right = true;
		r->chain->n = r->k;
		for (uint32_t k = 0; k < r->k; k++) {
			right = right && rng_unit(&w->rng) < w->accepted[k] && w->at + k < w->n;
			r->chain->ids[k] = right ? w->text[w->at + k] : -1;
			bool tells = rng_unit(&w->rng) < w->sure;
			r->chain->grades[k] = !tells ? 4 : right ? 7 : 0;
		}
		now_ns += w->level * r->k * STEP_NS;
		w->spent += w->level * r->k;
	}
	return 0;
}

static double normal(struct rng *rng)
{
	double sum = -6;
	for (int i = 0; i < 12; i++)
		sum += rng_unit(rng);
	return sum;
}

/* Writes up to `until` tokens of the text of one timeline. */
static void world_run(struct world *w, struct drafter *d, struct draft_timeline *t, uint32_t until)
{
	struct err e;
	while (w->at < until) {
		if (!w->at)
			drafts_push(t, w->text[w->at++]);
		assert_int_equal(drafts_propose(d, &t, 1, DRAFT_MAX + 1, &e), 0);
		double steps = world_step(w, 1 + t->n);
		w->spent += steps;
		double ns = steps * STEP_NS * MAX(0.2, 1 + w->noise * normal(&w->rng));
		if (w->noise > 0 && rng_unit(&w->rng) < 0.02)
			ns *= 8; /* another program had the core */
		now_ns += ns;
		uint32_t n = t->n;
		for (uint32_t k = 0; k <= n && w->at < until; k++) {
			int32_t id = w->text[w->at++];
			drafts_push(t, id);
			if (k == n || t->ids[k] != id)
				break;
		}
		drafts_computed(d, &t, 1, (uint64_t)ns);
	}
}

static const struct draft_gate_source computed_expects = {
	.chance = {0.1f, 0.2f, 0.3f, 0.5f, 0.6f, 0.7f, 0.8f, 0.9f},
	.first_chance = 0.7f,
	.costs = true,
};

static struct drafter *world_drafter(struct world *w, bool computes, bool looks_up)
{
	const struct draft_source source = {
		.name = "simulated", .user = w, .expect = computed_expects, .propose = world_propose};
	now_ns = 0;
	return drafter_new(&(struct drafter_options){.limit = DRAFT_MAX,
		.no_lookup = !looks_up,
		.source = computes ? &source : NULL,
		.clock = simulated_clock});
}

/* Steps of time for n tokens, of what they take without drafts. */
static double world_time(struct world w, uint32_t seed, bool computes, bool looks_up)
{
	w.rng.state = seed;
	struct drafter *d = world_drafter(&w, computes, looks_up);
	struct draft_timeline *t = draft_timeline_new(d, NULL);
	world_run(&w, d, t, w.n);
	draft_timeline_free(t);
	drafter_free(d);
	return w.spent / (w.n - 1);
}

static int32_t *random_text(uint32_t n, uint32_t symbols, uint64_t seed)
{
	int32_t *text = NEW_ARRAY(int32_t, n);
	struct rng rng = {.state = seed};
	for (uint32_t i = 0; i < n; i++)
		text[i] = (int32_t)rng_below(&rng, symbols);
	return text;
}

/* Texts in which no draft is right, or by chance only. Short ones on machines whose steps vary may
 * pay for one more trial, because the first said little. */
static void test_nothing_is_accepted(void **state)
{
	(void)state;
	static const double rows[] = {0, 0.05, 0.2, 0.6, 1};
	static const double levels[] = {0.01, 0.1, 0.3};
	static const uint32_t lengths[] = {120, 500, 4000}, symbols[] = {4, 60, 150000};
	enum { N = 5 * 3 * 3 * 3 * 8 };
	double mean = 0;
	uint32_t n_runs = 0;
	for (uint32_t i = 0; i < N; i++) {
		uint32_t seed = i % 8, n = lengths[i / 8 % 3];
		if (n > 500 && seed > 3) /* long texts say more, and take most of the time */
			continue;
		int32_t *text = random_text(n, symbols[i / 24 % 3], i);
		struct world w = {.row = rows[i / 216 % 5],
			.level = levels[i / 72 % 3],
			.noise = seed % 2 ? 0.2 : 0,
			.text = text,
			.n = n};
		double time = world_time(w, seed, true, true);
		if (time > (n < 500 && seed % 2 ? 1.03 : 1.02))
			fail_msg("time %.4f: row %.2f, level %.2f, %u tokens of %u symbols, seed %u", time,
				w.row, w.level, n, symbols[i / 24 % 3], seed);
		mean += time;
		n_runs++;
		free(text);
	}
	mean /= n_runs;
	if (mean > 1.01)
		fail_msg("%.2f %% slower than without drafts", 100 * mean - 100);
}

/* ---- several timelines in a step, and a cache that fills ---- */

#define CROWD_MOST 16

/* Answers that are written together. No computed draft is right. A step costs what its rows do; at
 * first, while the cache is empty, `cold` times as much on top. */
struct draft_crowd {
	uint32_t n;
	double row;   /* what a further row costs, of a step of n rows */
	double level; /* what a draft of all n costs, of a step of n rows */
	double cold, noise;
	const int32_t *text[CROWD_MOST]; /* [length] each */
	uint32_t length, at[CROWD_MOST];
	struct rng rng;
	double tokens, spent; /* tokens of a timeline, steps without noise */
};

/* Time of everything after so many tokens of each timeline, in that with a full cache. */
static double crowd_slowness(const struct draft_crowd *c, double tokens)
{
	return 1 + c->cold * exp(-tokens / 100);
}

static int crowd_propose(void *user, struct draft_proposal *proposals, uint32_t n, struct err *e)
{
	struct draft_crowd *c = user;
	uint32_t levels = 0;
	(void)e;
	for (uint32_t i = 0; i < n; i++) {
		struct draft_proposal *r = &proposals[i];
		r->chain->n = r->k;
		levels = MAX(levels, r->k);
		for (uint32_t k = 0; k < r->k; k++) {
			r->chain->ids[k] = -1;
			r->chain->grades[k] = (uint8_t)rng_below(&c->rng, DRAFT_GRADES);
		}
	}
	double steps = c->level * levels * crowd_slowness(c, c->tokens);
	now_ns += steps * STEP_NS;
	c->spent += steps;
	return 0;
}

/* A step of the answers that have not ended; returns their number. */
static uint32_t crowd_step(
	struct draft_crowd *c, struct drafter *d, struct draft_timeline *const *all)
{
	struct draft_timeline *t[CROWD_MOST];
	uint32_t of[CROWD_MOST], n = 0, rows = 0;
	struct err e;
	for (uint32_t i = 0; i < c->n; i++)
		if (c->at[i] < c->length) {
			of[n] = i;
			t[n++] = all[i];
		}
	if (!n)
		return 0;
	assert_int_equal(drafts_propose(d, t, n, 64, &e), 0);
	for (uint32_t i = 0; i < n; i++)
		rows += 1 + t[i]->n;
	double slow = crowd_slowness(c, c->tokens), steps = slow * (1 + c->row * ((double)rows - c->n));
	double ns = steps * STEP_NS * MAX(0.2, 1 + c->noise * normal(&c->rng));
	c->spent += steps;
	now_ns += ns;
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0, more = 1; more && c->at[of[i]] < c->length; k++) {
			int32_t id = c->text[of[i]][c->at[of[i]]++];
			more = k < t[i]->n && t[i]->ids[k] == id;
			drafts_push(t[i], id);
			c->tokens += 1.0 / c->n;
		}
	drafts_computed(d, t, n, (uint64_t)ns);
	return n;
}

/* Time of all answers, of what they take without drafts. */
static double crowd_time(struct draft_crowd c, uint32_t seed)
{
	const struct draft_source source = {
		.name = "wrong", .user = &c, .expect = computed_expects, .propose = crowd_propose};
	double plain = 0;
	int32_t *text[CROWD_MOST];
	struct draft_timeline *t[CROWD_MOST];
	c.rng.state = seed;
	now_ns = 0;
	struct drafter *d = drafter_new(
		&(struct drafter_options){.limit = DRAFT_MAX, .source = &source, .clock = simulated_clock});
	for (uint32_t i = 0; i < c.n; i++) {
		c.text[i] = text[i] = random_text(c.length, seed % 3 ? 150000 : 60, seed * 100 + i);
		t[i] = draft_timeline_new(d, NULL);
		drafts_push(t[i], c.text[i][c.at[i]++]);
	}
	c.tokens = 1;
	for (uint32_t k = 1; k < c.length; k++)
		plain += crowd_slowness(&c, k);
	while (crowd_step(&c, d, t))
		;
	for (uint32_t i = 0; i < c.n; i++) {
		draft_timeline_free(t[i]);
		free(text[i]);
	}
	drafter_free(d);
	return c.spent / plain;
}

static void test_crowds_lose_nothing(void **state)
{
	(void)state;
	static const uint32_t crowds[] = {1, 2, 4, 8, 16};
	static const double rows[] = {0.02, 0.1, 0.3, 0.9}, colds[] = {0, 1, 5};
	for (uint32_t i = 0; i < 5 * 4 * 3 * 2 * 2; i++) {
		const uint32_t n = crowds[i % 5];
		struct draft_crowd c = {.n = n,
			.row = rows[i / 5 % 4] / n,
			.level = i / 60 % 2 ? 0.3 : 0.05,
			.cold = colds[i / 20 % 3],
			.noise = i / 120 ? 0.1 : 0,
			.length = 500};
		for (uint32_t seed = 0; seed < 2; seed++) {
			double time = crowd_time(c, seed);
			if (time > 1.02)
				fail_msg("time %.4f: %u timelines, row %.2f, level %.2f, cold %.0f, noise %.1f, "
						 "seed %u",
					time, n, c.row * n, c.level, c.cold, c.noise, seed);
		}
	}
}

/* The best fixed number of drafts. */
static double best_fixed(const struct world *w)
{
	double best = 1, tokens = 1, chance = 1;
	for (uint32_t k = 1; k <= DRAFT_MAX; k++) {
		chance *= w->accepted[k - 1];
		tokens += chance;
		best = MIN(best, (world_step(w, 1 + k) + w->level * k) / tokens);
	}
	return best;
}

static void test_gain_is_found(void **state)
{
	(void)state;
	enum { N = 600 };
	int32_t *text = random_text(N, 150000, 3);
	static const double rows[] = {0.02, 0.1, 0.2, 0.3};
	for (uint32_t i = 0; i < 4 * 2 * 2; i++) {
		struct world w = {.row = rows[i % 4],
			.level = 0.03,
			.noise = i / 4 % 2 ? 0.15 : 0,
			.accepted = {0.72, 0.68, 0.62, 0.6, 0.58, 0.55, 0.5},
			.sure = i / 8 ? 0.5 : 0,
			.text = text,
			.n = N};
		double sum = 0, best = best_fixed(&w);
		for (uint32_t seed = 0; seed < 16; seed++)
			sum += world_time(w, seed + 10, true, true) / 16;
		if (1 - sum < 0.85 * (1 - best))
			fail_msg("time %.3f with a row at %.2f, best fixed %.3f", sum, w.row, best);
	}
	free(text);
}

static void test_repeated_text_is_looked_up(void **state)
{
	(void)state;
	enum { N = 1200 };
	int32_t *text = random_text(N, 150000, 5);
	for (int i = 0; i < N / 2; i++)
		text[N / 2 + i] = text[i];
	struct world w = {.row = 0.1, .level = 0.1, .noise = 0.1, .text = text, .n = N};
	double both = world_time(w, 1, true, true), lookup = world_time(w, 1, false, true);
	assert_true(both < 0.7 && lookup < 0.7); /* 0.5 + 0.5 * 1.7 / 8 is the best */
	assert_true(world_time(w, 1, true, false) > 0.98);
	w.row = 0.3; /* two rows are not worth it, eight that are all right are */
	w.jump = 0.75;
	double dear = world_time(w, 1, true, true);
	if (dear > 0.79)
		fail_msg("time %.3f where a second row costs a step", dear);
	free(text);
}

/* Acceptance or the cost of rows changes in the middle of the text. */
static void test_changes_are_followed(void **state)
{
	(void)state;
	enum { N = 3000, HALF = N / 2 };
	int32_t *text = random_text(N, 150000, 4);
	for (uint32_t kind = 0; kind < 3; kind++) {
		double late = 0, best = 0;
		for (uint32_t seed = 0; seed < 8; seed++) {
			struct world w = {.row = 0.15,
				.level = 0.03,
				.noise = 0.1,
				.text = text,
				.n = N,
				.rng = {.state = seed}};
			const double good[DRAFT_MAX] = {0.75, 0.7, 0.65, 0.6, 0.6, 0.6, 0.6};
			if (kind)
				memcpy(w.accepted, good, sizeof good);
			struct drafter *d = world_drafter(&w, true, true);
			struct draft_timeline *t = draft_timeline_new(d, NULL);
			world_run(&w, d, t, HALF);
			double before = w.spent;
			memcpy(w.accepted, good, sizeof good);
			if (kind == 1)
				memset(w.accepted, 0, sizeof w.accepted);
			if (kind == 2)
				w.row = 1.2;
			best = best_fixed(&w);
			world_run(&w, d, t, N);
			late += (w.spent - before) / HALF / 8;
			draft_timeline_free(t);
			drafter_free(d);
		}
		if (kind ? late > 1.02 : 1 - late < 0.7 * (1 - best))
			fail_msg("change %u: time %.3f, best %.3f", kind, late, best);
	}
	free(text);
}

/* Drafts of many timelines share the rows of a step; those likelier to be right come first. */
static void test_rows_go_to_the_likeliest(void **state)
{
	(void)state;
	struct draft_gate g;
	const struct draft_gate_source sources[DRAFT_SOURCES] = {
		{.chance = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f, 0.8f, 0.95f}}, {.first_chance = 0.5f}};
	draft_gate_init(&g, DRAFT_MAX, false, sources);
	for (uint32_t i = 0; i < 64; i++) {
		draft_gate_note_step(&g, 4, 4, 4, 1e6);
		draft_cost_note(&g.steps, 4 + i % 8, 1e6 * (1 + 0.02 * (i % 8)));
	}
	struct draft_record records[4] = {0};
	struct draft_chain chains[4] = {{0}};
	struct draft_offer offers[4];
	for (uint32_t i = 0; i < 4; i++) {
		chains[i].n = 3;
		memset(chains[i].grades, i == 2 ? 7 : i == 1 ? 5 : 0, 3);
		offers[i] = (struct draft_offer){.record = &records[i], .chain = &chains[i]};
	}
	draft_gate_choose(&g, offers, 4, 8);
	assert_int_equal(offers[2].n, 3);
	assert_int_equal(offers[1].n, 1);
	assert_int_equal(offers[0].n + offers[3].n, 0);
	draft_gate_choose(&g, offers, 4, 5);
	assert_int_equal(offers[2].n, 1);
	draft_gate_choose(&g, offers, 4, 4);
	assert_int_equal(offers[2].n, 0);
	/* rows that cost as much as steps are not worth it */
	for (uint32_t i = 0; i < 400; i++)
		draft_cost_note(&g.steps, 4 + i % 8, 1e6 * (1 + 0.3 * (i % 8)));
	draft_gate_choose(&g, offers, 4, 8);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(offers[i].n, 0);
	g.always = true;
	draft_gate_choose(&g, offers, 4, 8);
	assert_int_equal(offers[0].n + offers[1].n + offers[2].n + offers[3].n, 4);
}

/* The counts are of what was verified. */
static void test_statistics(void **state)
{
	(void)state;
	struct drafter *d = drafter_new(&(struct drafter_options){.limit = 3, .always = true});
	struct draft_timeline *t = draft_timeline_new(d, NULL);
	const int32_t text[] = {1, 2, 3, 4, 5, 6};
	struct err e;
	drafts_begin(t, text, 6, NULL);
	drafts_push(t, 1);
	drafts_push(t, 2);
	assert_int_equal(drafts_propose(d, &t, 1, 8, &e), 0);
	assert_int_equal(t->n, 3);
	assert_int_equal(t->ids[0], 3);
	drafts_push(t, 3);
	drafts_push(t, 9); /* not 4 */
	drafts_computed(d, &t, 1, 1000);
	assert_int_equal(drafts_propose(d, &t, 1, 8, &e), 0);
	assert_int_equal(t->n, 0); /* 3 9 is new */
	drafts_push(t, 1);
	drafts_computed(d, &t, 1, 1000);
	struct draft_stats s = drafter_stats(d);
	assert_int_equal(s.steps, 2);
	assert_int_equal(s.rows, 5);
	assert_int_equal(s.tried[0], 1);
	assert_int_equal(s.accepted[0], 1);
	assert_int_equal(s.tried[1], 1);
	assert_int_equal(s.accepted[1], 0);
	assert_int_equal(s.tried[2], 0);
	assert_int_equal(s.tried_by[DRAFT_LOOKUP], 2);
	assert_int_equal(s.accepted_by[DRAFT_LOOKUP], 1);
	struct draft_stats none = draft_stats_between(s, s);
	assert_int_equal(none.rows + none.tried[0] + none.accepted_by[0], 0);
	draft_timeline_free(t);
	drafter_free(d);
}

static int propose_and_fail(void *user, struct draft_proposal *proposals, uint32_t n, struct err *e)
{
	(void)user;
	for (uint32_t i = 0; i < n; i++)
		proposals[i].chain->n = proposals[i].k; /* without ids */
	return err_set(e, ERR_RUN, "the device failed");
}

/* Chains of a source that failed are neither verified nor judged. */
static void test_failed_source_is_not_judged(void **state)
{
	(void)state;
	const struct draft_source source = {
		.name = "failing", .expect = computed_expects, .propose = propose_and_fail};
	struct drafter *d = drafter_new(&(struct drafter_options){
		.limit = 3, .always = true, .no_lookup = true, .source = &source});
	struct draft_timeline *t = draft_timeline_new(d, NULL);
	const int32_t text[] = {1, 2, 3};
	struct err e;
	drafts_begin(t, text, 3, NULL);
	drafts_push(t, 4);
	assert_int_equal(drafts_propose(d, &t, 1, 8, &e), ERR_RUN);
	assert_int_equal(t->n, 0);
	drafts_push(t, 0);
	assert_true(t->record.chances[DRAFT_COMPUTED].tried_at[0] == 0);
	draft_timeline_free(t);
	drafter_free(d);
}

static uint64_t slow_now;

static uint64_t slow_clock(void)
{
	return slow_now;
}

static int propose_slowly(void *user, struct draft_proposal *proposals, uint32_t n, struct err *e)
{
	(void)user, (void)n, (void)e;
	slow_now += 5000000;
	*proposals[0].chain = (struct draft_chain){.n = 1, .ids = {7}};
	return 0;
}

/* The drafts of a step that was interrupted are not charged to the step behind it. */
static void test_interrupted_step_is_not_charged(void **state)
{
	(void)state;
	const struct draft_source source = {
		.name = "slow", .expect = computed_expects, .propose = propose_slowly};
	struct drafter *d = drafter_new(&(struct drafter_options){
		.limit = 1, .always = true, .no_lookup = true, .source = &source, .clock = slow_clock});
	struct draft_timeline *t = draft_timeline_new(d, NULL);
	const int32_t text[] = {1, 2, 3};
	struct err e;
	drafts_begin(t, text, 3, NULL);
	drafts_push(t, 4);
	assert_int_equal(drafts_propose(d, &t, 1, 8, &e), 0);
	assert_int_equal(t->n, 1); /* and the step is not computed */
	drafts_begin(t, text, 3, NULL);
	drafts_limit(t, 0);
	drafts_push(t, 4);
	assert_int_equal(drafts_propose(d, &t, 1, 8, &e), 0);
	assert_int_equal(t->n, 0);
	drafts_push(t, 5);
	drafts_computed(d, &t, 1, 1000000);
	assert_true(drafter_stats(d).drafting_ns == 5e6);
	assert_true(drafter_stats(d).saved_ns == 0);
	draft_timeline_free(t);
	drafter_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lookup_finds_suffixes),
		cmocka_unit_test(test_lookup_continues_repetitions),
		cmocka_unit_test(test_lookup_without_memory),
		cmocka_unit_test(test_lookup_is_fast),
		cmocka_unit_test(test_nothing_is_accepted),
		cmocka_unit_test(test_crowds_lose_nothing),
		cmocka_unit_test(test_gain_is_found),
		cmocka_unit_test(test_repeated_text_is_looked_up),
		cmocka_unit_test(test_changes_are_followed),
		cmocka_unit_test(test_rows_go_to_the_likeliest),
		cmocka_unit_test(test_statistics),
		cmocka_unit_test(test_failed_source_is_not_judged),
		cmocka_unit_test(test_interrupted_step_is_not_charged),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
