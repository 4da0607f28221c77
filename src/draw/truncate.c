/* SPDX-License-Identifier: MIT */
/*
 * The last id of a truncation is selected, not sorted for: first by a histogram over the distance
 * from the largest logit, then among the ids of one bucket by the digits of their keys.
 */
#include "src/draw/truncate.h"

#include "src/base/mem.h"
#include "src/draw/draw_loops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DIGIT_BITS   11
#define BOUND_MARGIN 1.0001 /* more than the rounding of units */

/* Whether the sums reach the limit: limit->count ids or limit->mass units, whichever comes first.
 */
static bool reaches(const struct draw_sum *sum, const struct draw_sum *limit)
{
	return sum->count >= limit->count || sum->mass >= limit->mass;
}

static void sum_add(struct draw_sum *sum, const struct draw_sum *more)
{
	sum->count += more->count;
	sum->mass += more->mass;
}

/* Sorts like the float; NaN and -infinity share a place, -0 and 0 too. */
static uint32_t order_key(float v)
{
	uint32_t u;
	v = v > -INFINITY ? v + 0.0f : -INFINITY;
	memcpy(&u, &v, sizeof u);
	return u & 0x80000000 ? ~u : u | 0x80000000;
}

/* Adds up n buckets of h, from bucket `from` on in steps of `step`, until the sums reach the limit.
 * Returns the bucket with which they do; if none does, the last that is not empty. *sum: in, the
 * sums before `from`; out, those before the bucket returned. */
static uint32_t bucket_find(const struct draw_sum *h, uint32_t from, int step, uint32_t n,
	const struct draw_sum *limit, struct draw_sum *sum)
{
	struct draw_sum before = *sum, all = *sum;
	uint32_t found = from;
	for (uint32_t i = 0, at = from; i < n; i++, at += (uint32_t)step) {
		if (!h[at].count)
			continue;
		before = all;
		found = at;
		sum_add(&all, &h[at]);
		if (reaches(&all, limit))
			break;
	}
	*sum = before;
	return found;
}

/* The id of ids [n] (ascending) with which the sums reach the limit. *before: in, the sums of all
 * ids that rank before ids [n]; out, of all that rank before the id found. */
static struct draw_cut cut_among(const float *logits, const struct draw_row *row, float scale,
	const int32_t *ids, size_t n, const struct draw_sum *limit, struct draw_sum *before)
{
	struct draw_sum h[1 << DIGIT_BITS], one = {1, 0};
	uint32_t prefix = 0;
	float last = NAN; /* the logit whose units are one.mass: equal logits come in runs */
	for (int known = 0; known < 32;) {
		int bits = 32 - known < DIGIT_BITS ? 32 - known : DIGIT_BITS, shift = 32 - known - bits;
		uint32_t n_digits = 1u << bits;
		memset(h, 0, n_digits * sizeof *h);
		for (size_t i = 0; i < n; i++) {
			uint32_t key = order_key(logits[ids[i]]);
			if (known && (key ^ prefix) >> (32 - known))
				continue;
			if (logits[ids[i]] != last)
				one.mass = draw_units(last = logits[ids[i]], row->top, scale);
			sum_add(&h[key >> shift & (n_digits - 1)], &one);
		}
		prefix |= bucket_find(h, n_digits - 1, -1, n_digits, limit, before) << shift;
		known += bits;
	}
	struct draw_cut cut = {-INFINITY, 0};
	struct draw_sum all = *before;
	for (size_t i = 0; i < n; i++) {
		float v = logits[ids[i]];
		if (order_key(v) != prefix)
			continue;
		*before = all;
		cut = (struct draw_cut){v > -INFINITY ? v : -INFINITY, ids[i]};
		one.mass = draw_units(v, row->top, scale);
		sum_add(&all, &one);
		if (reaches(&all, limit))
			break;
	}
	return cut;
}

/* The first id in rank with which the sums of the ids up to it reach the limit; the last in rank if
 * none does. floor: a logit that the caller knows not to exceed that of the id; blocks below it are
 * skipped. *mass: out, of the ids up to the id. */
static struct draw_cut cut_find(const float *logits, const struct draw_row *row, float scale,
	float floor, const struct draw_sum *limit, uint64_t *mass)
{
	const struct draw_loops *loops = draw_loops_available(0);
	struct draw_sum *h = NEW_ARRAY(struct draw_sum, DRAW_BUCKETS), before = {0};
	const struct draw_cut best = {row->top, row->best};
	*mass = 0;
	if (!h)
		return best;
	uint64_t units[DRAW_BLOCK];
	int32_t bucket[DRAW_BLOCK];
	for (size_t i = 0; i < (size_t)row->n; i += DRAW_BLOCK) {
		if (row->maxima[i / DRAW_BLOCK] < floor)
			continue;
		size_t n = draw_block_size(row, i);
		loops->units(logits + i, n, row->top, scale, units);
		loops->buckets(logits + i, n, row->top, scale, bucket);
		for (size_t k = 0; k < n; k++) {
			h[bucket[k]].count++;
			h[bucket[k]].mass += units[k];
		}
	}
	int32_t found = (int32_t)bucket_find(h, 0, 1, DRAW_BUCKETS, limit, &before);
	int32_t *ids = NEW_ARRAY(int32_t, h[found].count + 1);
	if (!ids) {
		free(h);
		return best;
	}
	size_t n_ids = 0;
	for (size_t i = 0; i < (size_t)row->n; i += DRAW_BLOCK) {
		if (row->maxima[i / DRAW_BLOCK] < floor)
			continue;
		size_t n = draw_block_size(row, i);
		loops->buckets(logits + i, n, row->top, scale, bucket);
		for (size_t k = 0; k < n; k++) {
			ids[n_ids] = (int32_t)(i + k); /* one place more than there are */
			n_ids += bucket[k] == found;
		}
	}
	struct draw_cut cut = cut_among(logits, row, scale, ids, n_ids, limit, &before);
	*mass = before.mass + draw_units(cut.logit, row->top, scale);
	free(ids);
	free(h);
	return cut;
}

/* The k-th largest of the blocks' maxima: at least k ids are not below it. */
static float top_k_floor(const struct draw_row *row, size_t k)
{
	size_t n = draw_blocks(row->n);
	if (k > n)
		return -INFINITY;
	uint32_t prefix = 0;
	for (int bit = 31; bit >= 0; bit--) { /* the largest key that k of them reach */
		uint32_t more = prefix | 1u << bit;
		size_t count = 0;
		for (size_t i = 0; i < n; i++)
			count += order_key(row->maxima[i]) >= more;
		if (count >= k)
			prefix = more;
	}
	for (size_t i = 0; i < n; i++)
		if (order_key(row->maxima[i]) == prefix)
			return row->maxima[i];
	return -INFINITY;
}

/* The mass with which top_p is reached. */
static uint64_t top_p_mass(float top_p, uint64_t all)
{
	double mass = ceil((double)top_p * (double)all);
	return mass > 1 ? (uint64_t)mass : 1;
}

static struct draw_cut min_p_cut(float top, double inv_t, float min_p)
{
	float least = (float)((double)top + log((double)min_p) / inv_t);
	return (struct draw_cut){least, INT32_MAX};
}

static struct draw_cut cut_earlier(struct draw_cut a, struct draw_cut b)
{
	return draw_keeps(&a, b.logit, b.id) ? b : a;
}

static bool top_k_is_on(int32_t n, const struct draw_truncation *t)
{
	return t->top_k > 0 && t->top_k < n;
}

/* draw_truncate. floor: a logit that the caller knows not to exceed that of top-p's last id. */
static struct draw_cut truncate_above(const float *logits, const struct draw_row *row, double inv_t,
	const struct draw_truncation *t, float floor)
{
	float scale = draw_unit_scale(inv_t);
	struct draw_cut cut = {-INFINITY, INT32_MAX};
	uint64_t mass = 0;
	if (top_k_is_on(row->n, t)) {
		size_t k = (size_t)t->top_k;
		struct draw_sum limit = {k, UINT64_MAX};
		cut = cut_find(logits, row, scale, top_k_floor(row, k), &limit, &mass);
	}
	if (t->top_p < 1) {
		struct draw_sum before, all;
		if (!mass) {
			draw_before(logits, row, scale, row->best, &before, &all);
			mass = all.mass;
		}
		struct draw_sum limit = {UINT64_MAX, top_p_mass(t->top_p, mass)};
		struct draw_cut p = cut_find(logits, row, scale, fmaxf(floor, cut.logit), &limit, &mass);
		cut = cut_earlier(cut, p);
	}
	return t->min_p > 0 ? cut_earlier(cut, min_p_cut(row->top, inv_t, t->min_p)) : cut;
}

struct draw_cut draw_truncate(
	const float *logits, const struct draw_row *row, double inv_t, const struct draw_truncation *t)
{
	return truncate_above(logits, row, inv_t, t, -INFINITY);
}

/* Whether the mass before `id` is below top_p_mass of all. Blocks are summed up until the rest,
 * which their largest logits bound, cannot change the answer. */
static bool top_p_keeps(
	const float *logits, const struct draw_row *row, float scale, float top_p, int32_t id)
{
	double rest = 0; /* mass of the blocks not summed up, at most */
	uint64_t units[DRAW_BLOCK];
	size_t n_blocks = draw_blocks(row->n);
	struct draw_sum before = {0}, all = {0};
	for (size_t b = 0; b < n_blocks; b++) {
		size_t k = b % DRAW_BLOCK, n = draw_block_size(row, b * DRAW_BLOCK);
		if (!k)
			draw_loops_available(0)->units(row->maxima + b,
				n_blocks - b < DRAW_BLOCK ? n_blocks - b : DRAW_BLOCK, row->top, scale, units);
		rest += BOUND_MARGIN * (double)(units[k] + 1) * (double)n;
	}
	for (size_t b = 0; b < n_blocks; b++) {
		size_t k = b % DRAW_BLOCK, n = draw_block_size(row, b * DRAW_BLOCK);
		if (!k)
			draw_loops_available(0)->units(row->maxima + b,
				n_blocks - b < DRAW_BLOCK ? n_blocks - b : DRAW_BLOCK, row->top, scale, units);
		rest -= BOUND_MARGIN * (double)(units[k] + 1) * (double)n;
		draw_mass_in_block(logits, row, scale, id, b, &before, &all);
		if (b % 16)
			continue;
		/* the rest ranks before; the rest ranks after */
		double least = (double)before.mass, sum = (double)all.mass, spare = rest > 0 ? rest : 0;
		spare += 1e-9 * (sum + spare);
		if (least + spare < (double)top_p * (sum + spare))
			return true;
		if (least > (double)top_p * (sum + spare))
			return false;
	}
	return before.mass < top_p_mass(top_p, all.mass);
}

bool draw_truncation_keeps(const float *logits, const struct draw_row *row, double inv_t,
	const struct draw_truncation *t, int32_t id, struct draw_cut *cut)
{
	if (id == row->best)
		return true;
	if (top_k_is_on(row->n, t)) {
		*cut = truncate_above(logits, row, inv_t, t, -INFINITY);
		return draw_keeps(cut, logits[id], id);
	}
	if (t->top_p < 1 && !top_p_keeps(logits, row, draw_unit_scale(inv_t), t->top_p, id)) {
		*cut = truncate_above(logits, row, inv_t, t, logits[id]);
		return false;
	}
	if (t->min_p > 0) {
		struct draw_cut least = min_p_cut(row->top, inv_t, t->min_p);
		if (!draw_keeps(&least, logits[id], id)) {
			*cut = truncate_above(logits, row, inv_t, t, -INFINITY);
			return false;
		}
	}
	return true;
}

bool draw_result_kept(const struct draw_result *r, int32_t n, const struct draw_request *q,
	const struct draw_truncation *t)
{
	if (r->id == r->best)
		return true;
	bool top_k = top_k_is_on(n, t), top_p = t->top_p < 1;
	if ((top_k || top_p) && (!q->sums || (top_k && top_p)))
		return false;
	if (top_k && r->n_before >= (uint32_t)t->top_k)
		return false;
	if (top_p && r->mass_before >= top_p_mass(t->top_p, r->mass))
		return false;
	struct draw_cut least = {-INFINITY, INT32_MAX};
	if (t->min_p > 0)
		least = min_p_cut(r->top, q->inv_t, t->min_p);
	return draw_keeps(&least, r->logit, r->id);
}
