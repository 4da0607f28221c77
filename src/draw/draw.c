/* SPDX-License-Identifier: MIT */
/* One row, one thread: blocks are judged by their largest logit and their least exponential. */
#include "src/draw/draw.h"

#include "src/draw/draw_loops.h"

#include <math.h>
#include <string.h>

/* More than the rounding of scores near each other; it only decides what is looked at. */
#define SCORE_MARGIN 1e-4

const struct draw_loops *draw_loops_available(int level)
{
	const struct draw_loops *found[3];
	int n = 0;
#if defined(__x86_64__)
	__builtin_cpu_init();
	if (draw_loops_avx512 && __builtin_cpu_supports("avx512f") &&
		__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
		__builtin_cpu_supports("avx512dq"))
		found[n++] = draw_loops_avx512;
	if (draw_loops_avx2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		found[n++] = draw_loops_avx2;
#endif
	found[n++] = draw_loops_c;
	return level >= 0 && level < n ? found[level] : NULL;
}

void draw_scan_row(const float *logits, int32_t n, float *maxima, struct draw_row *row)
{
	*row = (struct draw_row){.maxima = maxima, .n = n, .top = -INFINITY};
	row->finite = draw_loops_available(0)->maxima(logits, (size_t)n, maxima);
	size_t where = 0;
	for (size_t b = 0; b < draw_blocks(n); b++)
		if (maxima[b] > row->top) {
			row->top = maxima[b];
			where = b;
		}
	for (size_t i = where * DRAW_BLOCK; row->top > -INFINITY && i < (size_t)n; i++)
		if (logits[i] == row->top) {
			row->best = (int32_t)i;
			break;
		}
}

/* ---- the winner ---- */

struct search {
	const float *logits;
	const struct draw_noise *noise;
	double inv_t;
	struct draw_cut cut;
	double best; /* score of `id` */
	int32_t id;  /* -1: none yet */
};

/* The words up to this are of exponentials that may make `logit` the winner: those below
 * exp(logit * inv_t - best) =: e, and 1 - exp(-e) <= e. rate: e is that times the exponential. */
static uint64_t word_limit(const struct search *s, float logit, double rate)
{
	double e = s->id < 0 ? INFINITY
						 : rate * exp((double)logit * s->inv_t - s->best + SCORE_MARGIN) * 0x1p32;
	return e < 0x1p32 ? (uint64_t)e + 1 : UINT32_MAX;
}

static bool search_id(struct search *s, int32_t id, float e)
{
	float logit = s->logits[id];
	if (!(logit > -INFINITY) || !draw_keeps(&s->cut, logit, id))
		return false;
	double score = draw_score(logit, s->inv_t, e);
	if (s->id >= 0 && (score < s->best || (score == s->best && id > s->id)))
		return false;
	s->best = score;
	s->id = id;
	return true;
}

static void search_block(struct search *s, size_t block, size_t n, float largest, const uint32_t *w)
{
	float least = draw_block_least(w[0]);
	uint32_t first = (uint32_t)(block * DRAW_BLOCK), at = draw_block_at(w[1]);
	if (at < n)
		search_id(s, (int32_t)(first + at), least);
	uint64_t limit = word_limit(s, largest, 1);
	for (uint32_t i = 0; i < n; i += 4) {
		struct draw_words ids = draw_id_words(s->noise, (first + i) / 4);
		for (uint32_t k = 0; k < 4 && i + k < n; k++)
			if (ids.w[k] <= limit && i + k != at &&
				search_id(s, (int32_t)(first + i + k), least + draw_exponential(ids.w[k])))
				limit = word_limit(s, largest, 1);
	}
}

int32_t draw_winner(const float *logits, const struct draw_row *row, const struct draw_noise *noise,
	double inv_t, const struct draw_cut *cut)
{
	struct search s = {.logits = logits,
		.noise = noise,
		.inv_t = inv_t,
		.cut = cut ? *cut : (struct draw_cut){-INFINITY, INT32_MAX},
		.id = -1};
	size_t n_blocks = draw_blocks(row->n);
	for (size_t b = 0; b < n_blocks; b += 2) {
		struct draw_words words = {0};
		bool have = false;
		for (size_t k = 0; k < 2 && b + k < n_blocks; k++) {
			float largest = row->maxima[b + k];
			if (largest < s.cut.logit || largest == -INFINITY)
				continue;
			if (!have)
				words = draw_block_words(noise, (uint32_t)(b / 2));
			have = true;
			if (words.w[2 * k] <= word_limit(&s, largest, DRAW_BLOCK))
				search_block(&s, b + k, draw_block_size(row, (b + k) * DRAW_BLOCK), largest,
					words.w + 2 * k);
		}
	}
	return s.id < 0 ? row->best : s.id;
}

/* ---- ranks and masses ---- */

void draw_before(const float *logits, const struct draw_row *row, float scale, int32_t id,
	struct draw_sum *before, struct draw_sum *all)
{
	const struct draw_loops *loops = draw_loops_available(0);
	float top = row->top, logit = logits[id], above = nextafterf(logit, INFINITY);
	*before = *all = (struct draw_sum){0};
	for (size_t i = 0; i < (size_t)row->n; i += DRAW_BLOCK) {
		float largest = row->maxima[i / DRAW_BLOCK];
		size_t n = draw_block_size(row, i), mine = (size_t)id - i;
		if (largest < logit && draw_units(largest, top, scale) == 0)
			continue; /* none of them counts */
		if ((size_t)id < i || (size_t)id >= i + n) {
			loops->sum(logits + i, n, i < (size_t)id ? logit : above, top, scale, before, all);
			continue;
		}
		loops->sum(logits + i, mine, logit, top, scale, before, all);
		loops->sum(logits + i + mine, n - mine, above, top, scale, before, all);
	}
	all->count = (uint64_t)row->n;
}

void draw_row(const float *logits, int32_t n, const struct draw_request *request, float *maxima,
	struct draw_result *result)
{
	struct draw_row row;
	draw_scan_row(logits, n, maxima, &row);
	int32_t id = row.best;
	if (request->inv_t > 0 && isfinite(row.top))
		id = draw_winner(logits, &row, &request->noise, request->inv_t, NULL);
	*result = (struct draw_result){
		.id = id, .best = row.best, .logit = logits[id], .top = row.top, .finite = row.finite};
	if (!request->sums || id == row.best)
		return;
	struct draw_sum before, all;
	draw_before(logits, &row, draw_unit_scale(request->inv_t), id, &before, &all);
	result->n_before = (uint32_t)before.count;
	result->mass_before = before.mass;
	result->mass = all.mass;
}
