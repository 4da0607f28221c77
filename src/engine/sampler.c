/* SPDX-License-Identifier: MIT */
/*
 * Temperature, top-k, top-p, min-p, each on what the one before left. The device is idle while a
 * token is drawn, so a vocabulary of 154,880 is only read in simple vector passes: for the largest
 * logit, for the sum of all, for the candidates near the largest. Only these are ordered, by a
 * max-heap, as far as the cuts need. When they do not suffice, the passes are repeated for more.
 */
#include "src/engine/sampler.h"

#include "src/base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK      1024  /* logits that are summed up together */
#define GREEDY     1e-6f /* temperatures below: float32 has no room for their reciprocals */
#define FIRST_NEAR 5.0   /* the first candidates are those above exp(-5) of the best */

struct sampler_candidate {
	float logit;
	int32_t id;
};

void sampler_init(struct sampler *s, const struct sampler_options *options)
{
	*s = (struct sampler){.options = *options, .rng = {.state = options->seed}};
}

void sampler_fini(struct sampler *s)
{
	free(s->scratch);
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

/* Higher logit first, then the lower id: a total order, so that a seed gives one result. */
static bool ranks_before(struct sampler_candidate a, struct sampler_candidate b)
{
	return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void candidate_sift_down(struct sampler_candidate *h, size_t n, size_t i)
{
	struct sampler_candidate v = h[i];
	for (;;) {
		size_t child = 2 * i + 1;
		if (child >= n)
			break;
		if (child + 1 < n && ranks_before(h[child + 1], h[child]))
			child++;
		if (!ranks_before(h[child], v))
			break;
		h[i] = h[child];
		i = child;
	}
	h[i] = v;
}

/* Moves the best of h[0..n) to h[n - 1]. */
static void candidate_pop(struct sampler_candidate *h, size_t n)
{
	struct sampler_candidate top = h[0];
	h[0] = h[n - 1];
	h[n - 1] = top;
	candidate_sift_down(h, n - 1, 0);
}

/* SIMD of four logits: what every 64-bit processor has instructions for. */
#define LANES 4
typedef float lanes __attribute__((vector_size(16)));
typedef int32_t ints __attribute__((vector_size(16)));

/* x[0 .. LANES), -infinity from `left` on */
static inline lanes lanes_load(const float *x, size_t left)
{
	lanes v;
	if (left >= LANES) {
		memcpy(&v, x, sizeof v);
		return v;
	}
	v = (lanes){} - INFINITY;
	for (size_t i = 0; i < left; i++)
		v[i] = x[i];
	return v;
}

/* The greater of each lane; NaN in v loses. */
static inline lanes lanes_max(lanes top, lanes v)
{
	ints more = v > top;
	return (lanes)((more & (ints)v) | (~more & (ints)top));
}

/* The largest of x[0..n), at least -infinity. */
static inline float max_logit(const float *x, size_t n)
{
	const lanes none = {0};
	lanes top[4] = {none - INFINITY, none - INFINITY, none - INFINITY, none - INFINITY};
	size_t i = 0;
	for (; i + 4 * LANES <= n; i += 4 * LANES)
#pragma GCC unroll 4
		for (size_t k = 0; k < 4; k++)
			top[k] = lanes_max(top[k], lanes_load(x + i + k * LANES, LANES));
	for (; i < n; i += LANES)
		top[0] = lanes_max(top[0], lanes_load(x + i, n - i));
	top[0] = lanes_max(lanes_max(top[0], top[1]), lanes_max(top[2], top[3]));
	float best = top[0][0];
	for (int k = 1; k < LANES; k++)
		best = top[0][k] > best ? top[0][k] : best;
	return best;
}

/* The largest, of equal ones the first; 0 when all are NaN. Only the block that has it is read
 * again. */
static int32_t argmax(const float *logits, int32_t n)
{
	size_t count = (size_t)n, where = 0;
	float best = -INFINITY;
	for (size_t i = 0; i < count; i += BLOCK) {
		float v = max_logit(logits + i, count - i < BLOCK ? count - i : BLOCK);
		if (v > best) {
			best = v;
			where = i;
		}
	}
	for (size_t i = where; i < count; i++)
		if (logits[i] == best)
			return (int32_t)i;
	return 0;
}

/* exp(x) of x <= 0 (NaN: next to 0), to 2e-7 of it; below exp(-86) about that. */
static inline lanes exp_below(lanes x)
{
	lanes t = x * 1.44269504f, least = (lanes){} - 125.0f;
	ints small = ~(t > least);
	t = (lanes)((small & (ints)least) | (~small & (ints)t));
	ints whole = __builtin_convertvector(t - 0.5f, ints);
	lanes f = t - __builtin_convertvector(whole, lanes), p = 1.54035304e-4f * f + 1.33335581e-3f;
	p = p * f + 9.61812911e-3f;
	p = p * f + 5.55041087e-2f;
	p = p * f + 2.40226507e-1f;
	p = p * f + 6.93147181e-1f;
	p = p * f + 1.0f;
	return p * (lanes)((whole + 127) << 23);
}

/* Sum of exp((logit - top) * inv_t). */
static double softmax_mass(const float *logits, size_t n, float top, float inv_t)
{
	lanes sum = {0};
	for (size_t i = 0; i < n; i += LANES)
		sum += exp_below((lanes_load(logits + i, n - i) - top) * inv_t);
	double all = 0;
	for (int k = 0; k < LANES; k++)
		all += (double)sum[k];
	return all;
}

/* Nothing is cut: draws from all. all: the sum of their probabilities, unscaled. */
static int32_t draw_any(const float *logits, size_t n, float top, float inv_t, double all, double u)
{
	double left = u * all;
	size_t i = 0;
	int32_t last = 0;
	for (; i + BLOCK < n; i += BLOCK) {
		double block = softmax_mass(logits + i, BLOCK, top, inv_t);
		if (left < block)
			break;
		left -= block;
	}
	for (; i < n; i++) {
		if (nan_to_minus_inf(logits[i]) == -INFINITY)
			continue;
		last = (int32_t)i;
		left -= exp((double)((logits[i] - top) * inv_t));
		if (left < 0)
			break;
	}
	return last;
}

/* Those not below `least`, as a heap. Returns how many. */
static size_t gather_near(struct sampler_candidate *h, const float *logits, size_t n, double least)
{
	size_t k = 0;
	float cut = least < -3e38 ? -INFINITY : (float)least;
	for (size_t i = 0; i < n; i += LANES) {
		ints far = lanes_load(logits + i, n - i) < cut;
		uint64_t none[2];
		memcpy(none, &far, sizeof none);
		if ((none[0] & none[1]) == UINT64_MAX)
			continue;
		for (size_t c = i; c < n && c < i + LANES; c++) {
			float v = nan_to_minus_inf(logits[c]);
			h[k] = (struct sampler_candidate){v, (int32_t)c};
			k += v >= cut;
		}
	}
	for (size_t i = k / 2; i-- > 0;)
		candidate_sift_down(h, k, i);
	return k;
}

/* Draws from what the cuts leave of h[0 .. n_near), the candidates near the largest logit. all: the
 * unscaled sum of all; 0 when top-k is on, which makes its own. Returns -1 when the cuts need more
 * candidates than these. */
static int32_t draw_near(struct sampler *s, struct sampler_candidate *h, size_t n_near, size_t n,
	double all, float *probability)
{
	const struct sampler_options *o = &s->options;
	double inv_t = 1.0 / (double)o->temperature, kept = 0;
	float top = h[0].logit;
	size_t limit = o->top_k > 0 && (size_t)o->top_k < n ? (size_t)o->top_k : n, popped = 0,
		   taken = 0;
	if (limit < n) {
		if (n_near < limit)
			return -1;
		for (all = 0; popped < limit; popped++) {
			candidate_pop(h, n_near - popped);
			all += exp((double)(h[n_near - 1 - popped].logit - top) * inv_t);
		}
	}
	/* best first: h[n_near - 1], h[n_near - 2], ...; popped as far as needed */
	while (taken < limit) {
		if (taken == n_near)
			return -1;
		if (popped == taken)
			candidate_pop(h, n_near - popped++);
		double p = exp((double)(h[n_near - 1 - taken].logit - top) * inv_t);
		if (taken && p < (double)o->min_p) /* relative to the best, whose p is 1 */
			break;
		kept += p;
		taken++;
		if (kept >= (double)o->top_p * all)
			break;
	}
	double u = rng_unit(&s->rng) * kept, sum = 0;
	size_t pick = 0;
	for (; pick + 1 < taken; pick++) {
		sum += exp((double)(h[n_near - 1 - pick].logit - top) * inv_t);
		if (u < sum)
			break;
	}
	struct sampler_candidate c = h[n_near - 1 - pick];
	if (probability)
		*probability = (float)(exp((double)(c.logit - top) * inv_t) / kept);
	return c.id;
}

int32_t sampler_pick(struct sampler *s, const float *logits, int32_t n_valid, float *probability)
{
	const struct sampler_options *o = &s->options;
	size_t n = (size_t)n_valid;
	if (probability)
		*probability = 1;
	int32_t best = argmax(logits, n_valid);
	float top = nan_to_minus_inf(logits[best]), inv_t = 1.0f / o->temperature;
	/* all -infinity (or one +infinity): nothing to draw from but the best */
	if (o->temperature < GREEDY || n_valid == 1 || !isfinite(top))
		return best;
	bool whole = o->top_k <= 0 || (size_t)o->top_k >= n;
	double all = 0;
	for (size_t i = 0; whole && i < n; i += BLOCK)
		all += softmax_mass(logits + i, n - i < BLOCK ? n - i : BLOCK, top, inv_t);
	if (whole && o->top_p >= 1 && o->min_p <= 0) {
		int32_t id = draw_any(logits, n, top, inv_t, all, rng_unit(&s->rng));
		if (probability)
			*probability = (float)(exp((double)(logits[id] - top) * (double)inv_t) / all);
		return id;
	}
	if (s->scratch_len < n) {
		s->scratch = mem_grow(s->scratch, n, sizeof *s->scratch);
		s->scratch_len = n;
	}
	double near = FIRST_NEAR * (double)o->temperature, most = 64 * near;
	for (;; near = near < most ? 2 * near : INFINITY) {
		size_t n_near = gather_near(s->scratch, logits, n, (double)top - near);
		int32_t id = draw_near(s, s->scratch, n_near, n, all, probability);
		if (id >= 0)
			return id;
	}
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
			sum[k] += lanes_load(logits + i + k * LANES, LANES) * 0.0f;
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
		s->counts = mem_grow(s->counts, n, sizeof *s->counts);
		memset(s->counts + s->n_counts, 0, (n - s->n_counts) * sizeof *s->counts);
		s->n_counts = n;
	}
	if (!s->counts[id]) {
		if (s->n_seen == s->seen_cap) {
			s->seen_cap = s->seen_cap ? 2 * s->seen_cap : 256;
			s->seen = mem_grow(s->seen, s->seen_cap, sizeof *s->seen);
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

int32_t sampler_draw(
	struct sampler *s, const float *logits, int32_t n_valid, const struct sampler_filter *filter)
{
	size_t bytes = (size_t)n_valid * sizeof *logits;
	bool adjusts = sampler_adjusts(s), copied = adjusts || (filter && filter->n_banned);
	if (!s->adjusted && (copied || (filter && filter->allows)))
		s->adjusted = NEW_ARRAY(float, (size_t)n_valid);
	if (copied) {
		memcpy(s->adjusted, logits, bytes);
		logits_adjust(s, s->adjusted, n_valid);
		for (size_t i = 0; filter && i < filter->n_banned; i++)
			if (filter->banned[i] >= 0 && filter->banned[i] < n_valid)
				s->adjusted[filter->banned[i]] = -INFINITY;
	}
	int32_t id = sampler_pick(s, copied ? s->adjusted : logits, n_valid, NULL);
	if (!filter || !filter->allows || filter->allows(filter->user, id))
		return id;
	if (!copied)
		memcpy(s->adjusted, logits, bytes);
	filter->mask(filter->user, s->adjusted, n_valid);
	if (copied && max_logit(s->adjusted, (size_t)n_valid) == -INFINITY) {
		memcpy(s->adjusted, logits, bytes);
		filter->mask(filter->user, s->adjusted, n_valid);
	}
	return sampler_pick(s, s->adjusted, n_valid, NULL);
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
