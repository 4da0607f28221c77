/* SPDX-License-Identifier: MIT */
/* The noise against its definition, the winner and the cuts against the slow obvious way. */
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/draw/draw_loops.h"
#include "src/draw/truncate.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_MOST 5000

/* Known answers of Random123's distribution. */
static void test_philox(void **state)
{
	(void)state;
	static const struct {
		uint32_t c[4], k[2], out[4];
	} known[] = {
		{{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff},
			{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0},
			{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	};
	for (size_t i = 0; i < ARRAY_LEN(known); i++) {
		struct draw_words c;
		memcpy(c.w, known[i].c, sizeof c.w);
		c = draw_philox(c, known[i].k[0] | (uint64_t)known[i].k[1] << 32);
		assert_memory_equal(c.w, known[i].out, sizeof c.w);
	}
}

static void test_errors_of_ln_and_exp(void **state)
{
	(void)state;
	struct rng r = {1};
	for (int i = 0; i < 1000000; i++) {
		uint32_t w = (uint32_t)rng_u64(&r) >> rng_below(&r, 32);
		double v = ((double)w + 0.5) * 0x1p-32, e = -log1p(-v);
		assert_true(fabs((double)draw_exponential(w) - e) < 2e-7 * e);
		float x = draw_exponential(w);
		double ln = log((double)x);
		assert_true(fabs((double)draw_ln(x) - ln) < 1e-7 * (fabs(ln) + 2));
		float logit = (float)(rng_unit(&r) * -26);
		double units = exp((double)logit) * 0x1p40;
		assert_true(
			fabs((double)draw_units(logit, 0, draw_unit_scale(1)) - units) < units * 3e-6 + 1);
	}
	assert_int_equal(draw_units(3, 3, draw_unit_scale(1)), 1ull << DRAW_UNIT_BITS);
	assert_int_equal(draw_units(NAN, 3, draw_unit_scale(1)), 0);
	assert_int_equal(draw_units(-NAN, 3, draw_unit_scale(1)), 0);
	assert_int_equal(draw_units(-INFINITY, 3, draw_unit_scale(1)), 0);
	assert_int_equal(draw_units(-3e38f, 3e38f, draw_unit_scale(1e6)), 0);
}

/* Of each id alone: E is exponential with mean 1. Kolmogorov and Smirnov, for an id that is the
 * least of its block and one that is not, as they come. */
static int compare_floats(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;
	return (x > y) - (x < y);
}

/* E of an id, as noise.h defines it. */
static float exponential_of(const struct draw_noise *noise, uint32_t id)
{
	uint32_t block = id / DRAW_BLOCK;
	struct draw_words b = draw_block_words(noise, block / 2), w = draw_id_words(noise, id / 4);
	const uint32_t *mine = b.w + 2 * (block % 2);
	float least = draw_block_least(mine[0]);
	return id % DRAW_BLOCK == draw_block_at(mine[1]) ? least
													 : least + draw_exponential(w.w[id % 4]);
}

#define SAMPLES 200000

static void check_exponential(float *e, double most)
{
	qsort(e, SAMPLES, sizeof *e, compare_floats);
	double d = 0;
	for (int i = 0; i < SAMPLES; i++)
		d = fmax(d, fabs(1 - exp(-(double)e[i]) - (i + 0.5) / SAMPLES));
	assert_true(d * sqrt(SAMPLES) < most); /* 1.95: one chance in a thousand */
}

static void test_exponentials(void **state)
{
	(void)state;
	float *e = NEW_ARRAY(float, SAMPLES);
	static const uint32_t ids[] = {0, 1, 127, 128, 154855};
	for (size_t k = 0; k < ARRAY_LEN(ids); k++) { /* over positions */
		for (uint32_t i = 0; i < SAMPLES; i++)
			e[i] = exponential_of(&(struct draw_noise){.seed = 1, .position = i}, ids[k]);
		check_exponential(e, 1.95);
	}
	for (uint64_t seed = 0; seed < 5; seed++) { /* over ids */
		for (uint32_t i = 0; i < SAMPLES; i++)
			e[i] = exponential_of(&(struct draw_noise){.seed = seed, .position = 7}, i);
		check_exponential(e, 1.95);
	}
	for (uint32_t i = 0; i < SAMPLES; i++) /* over seeds that are near each other */
		e[i] = exponential_of(&(struct draw_noise){.seed = i, .position = 7}, 5);
	check_exponential(e, 1.95);
	/* two ids of one block are independent: the smaller of both, twice, is exponential too */
	for (uint32_t i = 0; i < SAMPLES; i++) {
		const struct draw_noise noise = {.seed = 3, .position = i};
		e[i] = 2 * fminf(exponential_of(&noise, 6), exponential_of(&noise, 7));
	}
	check_exponential(e, 1.95);
	/* so are ids of neighbouring positions */
	for (uint32_t i = 0; i < SAMPLES; i++) {
		const struct draw_noise a = {.seed = 3, .position = i}, b = {.seed = 3, .position = i + 1};
		e[i] = 2 * fminf(exponential_of(&a, 6), exponential_of(&b, 7));
	}
	check_exponential(e, 1.95);
	free(e);
}

/* ---- the winner and the cuts ---- */

enum shape { FLAT, NORMAL, WIDE, PEAKED, FEW_VALUES, HOLES, SHAPES };

static void fill(float *x, int32_t n, enum shape shape, struct rng *r)
{
	for (int32_t i = 0; i < n; i++) {
		double u = rng_unit(r), normal = sqrt(-2 * log(1 - u)) * cos(6.283185307 * rng_unit(r));
		x[i] = shape == FLAT     ? 1.5f
			   : shape == NORMAL ? (float)normal
			   : shape == WIDE   ? (float)(30 * normal)
			   : shape == PEAKED ? (float)normal - 12
								 : (float)rng_below(r, 5) - 3;
		if (shape == HOLES && rng_below(r, 2))
			x[i] = rng_below(r, 2) ? NAN : -INFINITY;
	}
	if (shape == PEAKED)
		for (int k = 0; k < 3; k++)
			x[rng_below(r, (uint32_t)n)] = (float)k;
	x[rng_below(r, (uint32_t)n)] = 2;
}

static bool ranks_before(const float *x, int32_t a, int32_t b)
{
	float u = x[a] > -INFINITY ? x[a] : -INFINITY, v = x[b] > -INFINITY ? x[b] : -INFINITY;
	return u > v || (u == v && a < b);
}

/* Without skipping anything. kept: [n]; NULL: all. */
static int32_t winner_slowly(
	const float *x, int32_t n, const struct draw_noise *noise, double inv_t, const bool *kept)
{
	int32_t id = -1;
	double best = 0;
	for (int32_t i = 0; i < n; i++) {
		if ((kept && !kept[i]) || !(x[i] > -INFINITY))
			continue;
		double score = draw_score(x[i], inv_t, exponential_of(noise, (uint32_t)i));
		if (id < 0 || score > best) {
			id = i;
			best = score;
		}
	}
	return id;
}

static const float *sort_by;

static int by_rank(const void *a, const void *b)
{
	int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
	return ranks_before(sort_by, x, y) ? -1 : 1;
}

/* kept [n] by sorting; masses in units. Returns how many. */
static int32_t truncate_slowly(
	const float *x, int32_t n, float top, double inv_t, const struct draw_truncation *t, bool *kept)
{
	int32_t *order = NEW_ARRAY(int32_t, (size_t)n), count = 0;
	float scale = draw_unit_scale(inv_t);
	for (int32_t i = 0; i < n; i++)
		order[i] = i;
	sort_by = x;
	qsort(order, (size_t)n, sizeof *order, by_rank);
	int32_t limit = t->top_k > 0 && t->top_k < n ? t->top_k : n;
	uint64_t all = 0, before = 0;
	for (int32_t i = 0; i < limit; i++)
		all += draw_units(x[order[i]], top, scale);
	for (int32_t i = 0; i < n; i++)
		kept[i] = false;
	for (int32_t i = 0; i < limit; i++) {
		float v = x[order[i]];
		if (i && t->top_p < 1 && (double)before >= (double)t->top_p * (double)all)
			break;
		if (i && t->min_p > 0 && !((double)(v - top) * inv_t >= log((double)t->min_p)))
			break;
		before += draw_units(v, top, scale);
		kept[order[i]] = true;
		count++;
	}
	free(order);
	return count;
}

static void check_row(const float *x, int32_t n, struct rng *r, int *n_dropped)
{
	static const struct draw_truncation cuts[] = {{0, 1, 0}, {1, 1, 0}, {7, 1, 0}, {300, 1, 0},
		{0, 0.95f, 0}, {0, 0.5f, 0}, {0, 0.01f, 0}, {0, 0.9999f, 0}, {0, 1, 0.05f}, {0, 1, 0.9f},
		{40, 0.9f, 0}, {3000, 0.97f, 0.01f}, {20, 0.8f, 0.2f}};
	static const double temperatures[] = {1, 0.7, 2, 0.01, 1e-6, 30};
	float *maxima = NEW_ARRAY(float, draw_blocks(n));
	bool *kept = NEW_ARRAY(bool, (size_t)n);
	struct draw_row row;
	draw_scan_row(x, n, maxima, &row);
	double inv_t = 1 / temperatures[rng_below(r, ARRAY_LEN(temperatures))];
	for (size_t c = 0; c < ARRAY_LEN(cuts); c++) {
		int32_t n_kept = truncate_slowly(x, n, row.top, inv_t, &cuts[c], kept), count = 0;
		struct draw_cut cut = draw_truncate(x, &row, inv_t, &cuts[c]), maybe;
		for (int32_t i = 0; i < n; i++) {
			bool keeps = draw_keeps(&cut, x[i], i);
			count += keeps;
			if (x[i] > -INFINITY)
				assert_int_equal(keeps, kept[i]);
		}
		assert_true(count <= n_kept); /* those of no probability may be missing */
		for (int k = 0; k < 4; k++) {
			const struct draw_noise noise = {rng_u64(r), (uint32_t)rng_u64(r)};
			int32_t any = draw_winner(x, &row, &noise, inv_t, NULL);
			assert_int_equal(any, winner_slowly(x, n, &noise, inv_t, NULL));
			/* draw first, then look = restrict first, then draw */
			bool keeps = draw_truncation_keeps(x, &row, inv_t, &cuts[c], any, &maybe);
			assert_int_equal(keeps, kept[any]);
			int32_t restricted = draw_winner(x, &row, &noise, inv_t, &cut);
			assert_int_equal(restricted, winner_slowly(x, n, &noise, inv_t, kept));
			if (keeps)
				assert_int_equal(any, restricted);
			else
				assert_int_equal(draw_winner(x, &row, &noise, inv_t, &maybe), restricted);
			*n_dropped += !keeps;
		}
	}
	free(kept);
	free(maxima);
}

static void test_winner_and_cuts(void **state)
{
	(void)state;
	static const int32_t lengths[] = {1, 2, 3, 127, 128, 129, 255, 256, 257, 1000, N_MOST};
	struct rng r = {5};
	float *x = NEW_ARRAY(float, N_MOST);
	int n_dropped = 0;
	for (int shape = 0; shape < SHAPES; shape++)
		for (size_t k = 0; k < ARRAY_LEN(lengths); k++)
			for (int round = 0; round < (lengths[k] < N_MOST ? 8 : 4); round++) {
				fill(x, lengths[k], (enum shape)shape, &r);
				check_row(x, lengths[k], &r, &n_dropped);
			}
	assert_true(n_dropped > 1000);
	free(x);
}

/* Every instruction set, every alignment: the same. */
static void test_levels_agree(void **state)
{
	(void)state;
	struct rng r = {6};
	float *x = NEW_ARRAY(float, N_MOST), maxima[2][N_MOST / DRAW_BLOCK + 1];
	uint64_t units[2][DRAW_BLOCK];
	int32_t buckets[2][DRAW_BLOCK];
	const struct draw_loops *first = draw_loops_available(0), *other;
	for (int level = 1; (other = draw_loops_available(level)); level++)
		for (int shape = 0; shape < SHAPES; shape++)
			for (int round = 0; round < 40; round++) {
				fill(x, N_MOST, (enum shape)shape, &r);
				if (round == 1)
					x[rng_below(&r, N_MOST)] = INFINITY;
				size_t at = rng_below(&r, 300), n = 1 + rng_below(&r, N_MOST - 300);
				size_t blocks = draw_blocks((int32_t)n), few = MIN(n, DRAW_BLOCK);
				assert_int_equal(
					first->maxima(x + at, n, maxima[0]), other->maxima(x + at, n, maxima[1]));
				assert_memory_equal(maxima[0], maxima[1], blocks * sizeof(float));
				float top = 3, scale = draw_unit_scale(1 / (0.1 + rng_unit(&r)));
				struct draw_sum sums[2][2] = {0};
				first->sum(x + at, n, 0.3f, top, scale, &sums[0][0], &sums[0][1]);
				other->sum(x + at, n, 0.3f, top, scale, &sums[1][0], &sums[1][1]);
				assert_memory_equal(sums[0], sums[1], sizeof sums[0]);
				assert_int_equal(first->count(x + at, n, 0.3f), other->count(x + at, n, 0.3f));
				first->units(x + at, few, top, scale, units[0]);
				other->units(x + at, few, top, scale, units[1]);
				assert_memory_equal(units[0], units[1], few * sizeof units[0][0]);
				first->buckets(x + at, few, top, scale, buckets[0]);
				other->buckets(x + at, few, top, scale, buckets[1]);
				assert_memory_equal(buckets[0], buckets[1], few * sizeof buckets[0][0]);
			}
	free(x);
}

static void test_words_side_by_side(void **state)
{
	(void)state;
	struct rng r = {8};
	const struct draw_loops *loops;
	for (int level = 0; (loops = draw_loops_available(level)); level++)
		for (int round = 0; round < 100; round++) {
			const struct draw_noise noise = {rng_u64(&r), (uint32_t)rng_u64(&r)};
			uint32_t out[DRAW_BLOCK], first = rng_below(&r, 2000) * DRAW_BLOCK;
			loops->id_words(&noise, first, out);
			for (uint32_t i = 0; i < DRAW_BLOCK; i++)
				assert_int_equal(out[i], draw_id_words(&noise, (first + i) / 4).w[(first + i) % 4]);
		}
}

static void test_before(void **state)
{
	(void)state;
	struct rng r = {7};
	float *x = NEW_ARRAY(float, N_MOST), maxima[N_MOST / DRAW_BLOCK + 1];
	for (int shape = 0; shape < SHAPES; shape++)
		for (int round = 0; round < 30; round++) {
			int32_t n = 1 + (int32_t)rng_below(&r, N_MOST), id;
			fill(x, n, (enum shape)shape, &r);
			struct draw_row row;
			draw_scan_row(x, n, maxima, &row);
			do
				id = (int32_t)rng_below(&r, (uint32_t)n);
			while (!(x[id] > -INFINITY));
			float scale = draw_unit_scale(1.3);
			struct draw_sum before, all, slow = {0}, every = {0};
			for (int32_t i = 0; i < n; i++) {
				uint64_t u = draw_units(x[i], row.top, scale);
				every.mass += u;
				slow.mass += ranks_before(x, i, id) ? u : 0;
				slow.count += ranks_before(x, i, id);
			}
			draw_before(x, &row, scale, id, &before, &all);
			assert_int_equal(before.count, slow.count);
			assert_int_equal(before.mass, slow.mass);
			assert_int_equal(all.mass, every.mass);
			assert_int_equal(all.count, n);
		}
	free(x);
}

/* The probability of what was drawn, against a softmax in double. */
static void test_probability(void **state)
{
	(void)state;
	static const double reciprocals[] = {0, 1, 1.7, 0.6};
	struct rng r = {8};
	float *x = NEW_ARRAY(float, N_MOST), maxima[N_MOST / DRAW_BLOCK + 1];
	for (int shape = 0; shape < SHAPES; shape++)
		for (int round = 0; round < 32; round++) {
			int32_t n = 1 + (int32_t)rng_below(&r, N_MOST);
			struct draw_request q = {.noise = {rng_u64(&r), 1},
				.inv_t = reciprocals[round % 4],
				.sums = round % 4 && round & 8,
				.mass = true};
			struct draw_result d, plain;
			fill(x, n, (enum shape)shape, &r);
			draw_row(x, n, &q, maxima, &d);
			q.mass = false;
			draw_row(x, n, &q, maxima, &plain);
			assert_int_equal(d.id, plain.id);
			assert_int_equal(d.n_before, plain.n_before);
			assert_int_equal(d.mass_before, plain.mass_before);
			double inv_t = q.inv_t > 0 ? q.inv_t : 1, sum = 0;
			for (int32_t i = 0; i < n; i++)
				sum += isnan(x[i]) ? 0 : exp(((double)x[i] - (double)d.top) * inv_t);
			double p = exp(((double)d.logit - (double)d.top) * inv_t) / sum,
				   got = (double)draw_result_probability(&d, &q);
			if (isfinite(d.top) ? fabs(got - p) > 1e-5 * p + 1e-9 : got != 0)
				fail_msg("shape %d, 1 / T %g: %g, expected %g", shape, q.inv_t, got, p);
		}
	free(x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_philox),
		cmocka_unit_test(test_errors_of_ln_and_exp),
		cmocka_unit_test(test_exponentials),
		cmocka_unit_test(test_winner_and_cuts),
		cmocka_unit_test(test_levels_agree),
		cmocka_unit_test(test_words_side_by_side),
		cmocka_unit_test(test_before),
		cmocka_unit_test(test_probability),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
