/* SPDX-License-Identifier: MIT */
/*
 * A token is drawn from all ids first. Only if the truncation does not keep it, another is drawn
 * from the ids kept. That is exact: the winner among all ids is the winner of every set that it is
 * in.
 */
#include "src/engine/sampler.h"

#include "src/base/mem.h"
#include "src/draw/truncate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GREEDY 1e-6f /* temperatures below: float32 has no room for their reciprocals */

void sampler_init(struct sampler *s, const struct sampler_options *options)
{
	*s = (struct sampler){.options = *options};
}

void sampler_fini(struct sampler *s)
{
	free(s->maxima);
	free(s->counts);
	free(s->seen);
	free(s->adjusted);
	*s = (struct sampler){0};
}

/* NaN counts as -infinity, so that it never wins. */
static float nan_to_minus_inf(float v)
{
	return isnan(v) ? -INFINITY : v;
}

/* SIMD of four logits: what every 64-bit processor has instructions for. */
#define LANES 4
typedef float lanes __attribute__((vector_size(16)));

static inline lanes lanes_load(const float *x)
{
	lanes v;
	memcpy(&v, x, sizeof v);
	return v;
}

static struct draw_truncation sampler_truncation(const struct sampler_options *o)
{
	return (struct draw_truncation){.top_k = o->top_k, .top_p = o->top_p, .min_p = o->min_p};
}

struct draw_request sampler_request(const struct sampler *s, uint32_t position)
{
	const struct sampler_options *o = &s->options;
	bool greedy = o->temperature < GREEDY;
	return (struct draw_request){.noise = {.seed = o->seed, .position = position},
		.inv_t = greedy ? 0 : 1.0 / (double)o->temperature,
		.sums = !greedy && (o->top_k > 0 || o->top_p < 1)};
}

bool sampler_accepts(
	const struct sampler *s, int32_t n_valid, uint32_t position, const struct draw_result *drawn)
{
	const struct draw_request q = sampler_request(s, position);
	const struct draw_truncation t = sampler_truncation(&s->options);
	return !sampler_adjusts(s) && draw_result_kept(drawn, n_valid, &q, &t);
}

static int32_t sampler_pick(
	struct sampler *s, const float *logits, int32_t n_valid, uint32_t position)
{
	const struct sampler_options *o = &s->options;
	struct draw_row row;
	if (s->n_maxima < draw_blocks(n_valid)) {
		if (!mem_grow_array(&s->maxima, draw_blocks(n_valid), sizeof *s->maxima))
			return 0;
		s->n_maxima = draw_blocks(n_valid);
	}
	draw_scan_row(logits, n_valid, s->maxima, &row);
	/* all -infinity (or one +infinity): nothing to draw from but the best */
	if (o->temperature < GREEDY || !isfinite(row.top))
		return row.best;
	const struct draw_request q = sampler_request(s, position);
	const struct draw_truncation t = sampler_truncation(o);
	struct draw_cut cut;
	int32_t id = draw_winner(logits, &row, &q.noise, q.inv_t, NULL);
	return draw_truncation_keeps(logits, &row, q.inv_t, &t, id, &cut)
			   ? id
			   : draw_winner(logits, &row, &q.noise, q.inv_t, &cut);
}

bool sampler_all_finite(const float *logits, int32_t n_valid)
{
	/* 0 * x is 0 for every finite x, else NaN */
	const lanes none = {0};
	lanes sum[4] = {none, none, none, none};
	size_t n = (size_t)n_valid, i = 0;
	for (; i + 4 * LANES <= n; i += 4 * LANES)
#pragma GCC unroll 4
		for (size_t k = 0; k < 4; k++)
			sum[k] += lanes_load(logits + i + k * LANES) * 0.0f;
	bool finite = true;
	for (; i < n; i++)
		finite &= isfinite(logits[i]) != 0;
	sum[0] += sum[1] + sum[2] + sum[3];
	for (int k = 0; k < LANES; k++)
		finite &= sum[0][k] == 0;
	return finite;
}

/* ---- penalties, biases, filters ---- */

#define IN_PROMPT 0x80000000u /* of counts */

bool sampler_adjusts(const struct sampler *s)
{
	const struct sampler_options *o = &s->options;
	return (o->repetition > 0 && o->repetition != 1) || o->presence != 0 || o->frequency != 0 ||
		   o->n_bias;
}

void sampler_note(struct sampler *s, int32_t id, bool in_prompt)
{
	if (id < 0)
		return;
	if ((size_t)id >= s->n_counts) {
		size_t n = (size_t)id + 1 > 2 * s->n_counts ? (size_t)id + 1 : 2 * s->n_counts;
		if (!mem_grow_array(&s->counts, n, sizeof *s->counts))
			return;
		memset(s->counts + s->n_counts, 0, (n - s->n_counts) * sizeof *s->counts);
		s->n_counts = n;
	}
	if (!s->counts[id]) {
		if (s->n_seen == s->seen_cap) {
			size_t cap = s->seen_cap ? 2 * s->seen_cap : 256;
			if (!mem_grow_array(&s->seen, cap, sizeof *s->seen))
				return;
			s->seen_cap = cap;
		}
		s->seen[s->n_seen++] = id;
	}
	if (in_prompt)
		s->counts[id] |= IN_PROMPT;
	else
		s->counts[id]++;
}

/* Penalties, then biases. */
static void logits_adjust(const struct sampler *s, float *logits, int32_t n_valid)
{
	const struct sampler_options *o = &s->options;
	float repetition = o->repetition > 0 ? o->repetition : 1;
	for (size_t i = 0; i < s->n_seen; i++) {
		int32_t id = s->seen[i];
		if (id >= n_valid)
			continue;
		uint32_t n = s->counts[id] & ~IN_PROMPT;
		logits[id] = logits[id] > 0 ? logits[id] / repetition : logits[id] * repetition;
		if (n)
			logits[id] -= o->presence + (float)n * o->frequency;
	}
	for (uint32_t i = 0; i < o->n_bias; i++)
		if (o->bias[i].id >= 0 && o->bias[i].id < n_valid)
			logits[o->bias[i].id] += o->bias[i].add;
}

static bool all_minus_infinity(const float *logits, int32_t n_valid)
{
	for (int32_t i = 0; i < n_valid; i++)
		if (logits[i] > -INFINITY)
			return false;
	return true;
}

int32_t sampler_draw(struct sampler *s, const float *logits, int32_t n_valid,
	const struct sampler_filter *filter, uint32_t position)
{
	size_t bytes = (size_t)n_valid * sizeof *logits;
	bool adjusts = sampler_adjusts(s), copied = adjusts || (filter && filter->n_banned);
	if (!s->adjusted && (copied || (filter && filter->allows)))
		s->adjusted = NEW_ARRAY(float, (size_t)n_valid);
	if (!s->adjusted && (copied || (filter && filter->allows)))
		return sampler_pick(s, logits, n_valid, position);
	if (copied) {
		memcpy(s->adjusted, logits, bytes);
		logits_adjust(s, s->adjusted, n_valid);
		for (size_t i = 0; filter && i < filter->n_banned; i++)
			if (filter->banned[i] >= 0 && filter->banned[i] < n_valid)
				s->adjusted[filter->banned[i]] = -INFINITY;
	}
	int32_t id = sampler_pick(s, copied ? s->adjusted : logits, n_valid, position);
	if (!filter || !filter->allows || filter->allows(filter->user, id))
		return id;
	if (!copied)
		memcpy(s->adjusted, logits, bytes);
	filter->mask(filter->user, s->adjusted, n_valid);
	if (copied && all_minus_infinity(s->adjusted, n_valid)) {
		memcpy(s->adjusted, logits, bytes);
		filter->mask(filter->user, s->adjusted, n_valid);
	}
	return sampler_pick(s, s->adjusted, n_valid, position);
}

double sampler_logprob(const float *logits, int32_t n_valid, int32_t id)
{
	double top = -INFINITY, sum = 0;
	for (int32_t i = 0; i < n_valid; i++)
		top = fmax(top, (double)nan_to_minus_inf(logits[i]));
	for (int32_t i = 0; i < n_valid; i++)
		sum += exp((double)nan_to_minus_inf(logits[i]) - top);
	return (double)nan_to_minus_inf(logits[id]) - top - log(sum);
}
