/* SPDX-License-Identifier: MIT */
/*
 * One row, one thread. Most blocks of ids are skipped: the largest logit of a block and the least
 * of its exponentials (noise.h) bound all its scores.
 */
#include "src/draw/draw.h"

#include "src/draw/draw_loops.h"

#include <math.h>
#include <string.h>

/* Larger than the rounding of scores near each other. Affects only which ids are looked at, not the
 * result. */
#define SCORE_MARGIN 1e-4
#define NO_UNITS     (DRAW_UNIT_BITS + 2) /* halvings from which on draw_units is 0 */

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

#define FIRST_BLOCKS 32 /* blocks that are searched in the order of their bounds */

struct search {
	const float *logits;
	const struct draw_row *row;
	const struct draw_noise *noise;
	double inv_t;
	struct draw_cut cut;
	double best;  /* the largest score so far, of `id` */
	int32_t id;   /* -1: none yet */
	double reach; /* words of a unit: exp(top * inv_t - best) * 2^32 / 2^DRAW_UNIT_BITS */
};

/* A block and what bounds its scores. */
struct block_bound {
	float ratio; /* draw_units of its largest logit / word of its least exponential */
	uint32_t block;
	uint32_t w[2];  /* its words (draw_block_words) */
	uint64_t units; /* draw_units of its largest logit */
};

/* The largest word with which a logit of so many units can still win; larger words cannot.
 * - score = logit * inv_t - ln(E) exceeds `best` only if E < exp(logit * inv_t - best), which is
 *   units * exp(top * inv_t - best) / 2^DRAW_UNIT_BITS.
 * - The exponential -ln(1 - v) of a word v * 2^32 is at least v, so a word above that bound times
 *   2^32 gives an E that is too large.
 * - rate: 1 for an id's own word; DRAW_BLOCK for a block's word, of which E is 1 / DRAW_BLOCK.
 * - reach includes SCORE_MARGIN; + 1 rounds up. */
static double word_limit(const struct search *s, uint64_t units, double rate)
{
	return (double)(units + 1) * s->reach * rate + 1;
}

static void search_id(struct search *s, int32_t id, float e)
{
	float logit = s->logits[id];
	if (!(logit > -INFINITY) || !draw_keeps(&s->cut, logit, id))
		return;
	double score = draw_score(logit, s->inv_t, e);
	if (s->id >= 0 && (score < s->best || (score == s->best && id > s->id)))
		return;
	s->best = score;
	s->id = id;
	s->reach = exp((double)s->row->top * s->inv_t - score + SCORE_MARGIN) * 0x1p32 /
			   (double)(1ull << DRAW_UNIT_BITS);
}

static void search_block(struct search *s, const struct block_bound *b)
{
	uint32_t first = b->block * DRAW_BLOCK, at = draw_block_at(b->w[1]);
	uint32_t n = (uint32_t)draw_block_size(s->row, first);
	if ((double)b->w[0] > word_limit(s, b->units, DRAW_BLOCK))
		return;
	float least = draw_block_least(b->w[0]);
	if (at < n)
		search_id(s, (int32_t)(first + at), least);
	uint32_t words[DRAW_BLOCK];
	draw_loops_available(0)->id_words(s->noise, first, words);
	double limit = word_limit(s, b->units, 1);
	for (uint32_t i = 0; i < n; i++)
		if ((double)words[i] <= limit && i != at) {
			search_id(s, (int32_t)(first + i), least + draw_exponential(words[i]));
			limit = word_limit(s, b->units, 1);
		}
}

/* Keeps the FIRST_BLOCKS of the largest ratios, in falling order. */
static size_t bound_insert(struct block_bound *first, size_t n, const struct block_bound *b)
{
	if (n == FIRST_BLOCKS && b->ratio <= first[n - 1].ratio)
		return n;
	size_t i = n < FIRST_BLOCKS ? n++ : n - 1;
	for (; i && first[i - 1].ratio < b->ratio; i--)
		first[i] = first[i - 1];
	first[i] = *b;
	return n;
}

/* Computes the bounds of all blocks. first not NULL: [FIRST_BLOCKS] out, keeps the best of them and
 * returns how many. first NULL: searches each block. */
static size_t search_blocks(struct search *s, struct block_bound *first)
{
	const struct draw_loops *loops = draw_loops_available(0);
	const float *maxima = s->row->maxima;
	size_t n_blocks = draw_blocks(s->row->n), n_first = 0;
	float scale = draw_unit_scale(s->inv_t);
	uint64_t units[DRAW_BLOCK];
	struct draw_words words = {0};
	for (size_t b = 0; b < n_blocks; b++) {
		size_t k = b % DRAW_BLOCK;
		if (!k)
			loops->units(maxima + b, n_blocks - b < DRAW_BLOCK ? n_blocks - b : DRAW_BLOCK,
				s->row->top, scale, units);
		if (b % 2 == 0)
			words = draw_block_words(s->noise, (uint32_t)(b / 2));
		if (maxima[b] < s->cut.logit || maxima[b] == -INFINITY)
			continue;
		const uint32_t *w = words.w + b % 2 * 2;
		struct block_bound bound = {.block = (uint32_t)b, .w = {w[0], w[1]}, .units = units[k]};
		bound.ratio = (float)(units[k] + 1) / ((float)w[0] + 0.5f);
		if (first)
			n_first = bound_insert(first, n_first, &bound);
		else
			search_block(s, &bound);
	}
	return n_first;
}

int32_t draw_winner(const float *logits, const struct draw_row *row, const struct draw_noise *noise,
	double inv_t, const struct draw_cut *cut)
{
	struct block_bound first[FIRST_BLOCKS];
	struct search s = {.logits = logits,
		.row = row,
		.noise = noise,
		.inv_t = inv_t,
		.cut = cut ? *cut : (struct draw_cut){-INFINITY, INT32_MAX},
		.id = -1,
		.reach = INFINITY};
	size_t n = search_blocks(&s, first), i = 0;
	/* ratios fall: behind the first block that cannot win no block can; 0.999 for rounding */
	for (; i < n && (double)first[i].ratio * s.reach * DRAW_BLOCK >= 0.999; i++)
		search_block(&s, &first[i]);
	if (i == FIRST_BLOCKS)
		search_blocks(&s, NULL);
	return s.id < 0 ? row->best : s.id;
}

/* ---- ranks and masses ---- */

void draw_mass_in_block(const float *logits, const struct draw_row *row, float scale, int32_t id,
	size_t block, struct draw_sum *before, struct draw_sum *all)
{
	const struct draw_loops *loops = draw_loops_available(0);
	float top = row->top, logit = logits[id], above = nextafterf(logit, INFINITY);
	size_t i = block * DRAW_BLOCK, n = draw_block_size(row, i), mine = (size_t)id - i;
	if (draw_halvings(row->maxima[block], top, scale) >= NO_UNITS)
		return;
	if ((size_t)id < i || (size_t)id >= i + n) {
		loops->sum(logits + i, n, i < (size_t)id ? logit : above, top, scale, before, all);
		return;
	}
	loops->sum(logits + i, mine, logit, top, scale, before, all);
	loops->sum(logits + i + mine, n - mine, above, top, scale, before, all);
}

void draw_before(const float *logits, const struct draw_row *row, float scale, int32_t id,
	struct draw_sum *before, struct draw_sum *all)
{
	const struct draw_loops *loops = draw_loops_available(0);
	float logit = logits[id], above = nextafterf(logit, INFINITY);
	*before = *all = (struct draw_sum){0};
	before->count = loops->count(logits, (size_t)id, logit) +
					loops->count(logits + id, (size_t)(row->n - id), above);
	all->count = (uint64_t)row->n;
	for (size_t b = 0; b < draw_blocks(row->n); b++)
		draw_mass_in_block(logits, row, scale, id, b, before, all);
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
	const bool sums = request->sums && id != row.best;
	if (!sums && !(request->mass && isfinite(row.top)))
		return;
	struct draw_sum before, all;
	draw_before(logits, &row, draw_unit_scale(draw_mass_inv_t(request)), id, &before, &all);
	result->mass = all.mass;
	if (!sums)
		return;
	result->n_before = (uint32_t)before.count;
	result->mass_before = before.mass;
}

float draw_result_probability(const struct draw_result *r, const struct draw_request *q)
{
	const float inv_t = (float)draw_mass_inv_t(q);
	return isfinite(r->top)
			   ? expf((r->logit - r->top) * inv_t) / ldexpf((float)r->mass, -DRAW_UNIT_BITS)
			   : 0;
}
