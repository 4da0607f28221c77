/* SPDX-License-Identifier: MIT */
/*
 * Sampling. The candidates are narrowed step by step: temperature, top-k, top-p, min-p, each on what the one before left.
 * Only as many candidates are brought into order as the cuts need: a max-heap over the vocabulary gives them one by
 * one, so a nucleus of 20 of 154,880 costs one pass and 20 heap steps, not a sort.
 */
#include "src/engine/sampler.h"

#include "src/base/mem.h"

#include <math.h>
#include <stdlib.h>

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
	*s = (struct sampler){0};
}

/* NaN counts as -infinity, so that it never wins. */
static float clean(float v)
{
	return isnan(v) ? -INFINITY : v;
}

/* Higher logit first, then the lower id: a total order, so that a seed gives one result. */
static bool before(struct sampler_candidate a, struct sampler_candidate b)
{
	return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void sift_down(struct sampler_candidate *h, size_t n, size_t i)
{
	struct sampler_candidate v = h[i];
	for (;;) {
		size_t child = 2 * i + 1;
		if (child >= n)
			break;
		if (child + 1 < n && before(h[child + 1], h[child]))
			child++;
		if (!before(h[child], v))
			break;
		h[i] = h[child];
		i = child;
	}
	h[i] = v;
}

/* Moves the best of h[0..n) to h[n - 1]. */
static void heap_pop(struct sampler_candidate *h, size_t n)
{
	struct sampler_candidate top = h[0];
	h[0] = h[n - 1];
	h[n - 1] = top;
	sift_down(h, n - 1, 0);
}

static int32_t greedy(const float *logits, int32_t n)
{
	int32_t best = 0;
	float top = clean(logits[0]);
	for (int32_t i = 1; i < n; i++)
		if (clean(logits[i]) > top) {
			top = logits[i];
			best = i;
		}
	return best;
}

int32_t sampler_pick(struct sampler *s, const float *logits, int32_t n_valid, float *probability)
{
	const struct sampler_options *o = &s->options;
	size_t n = (size_t)n_valid;
	if (probability)
		*probability = 1;
	if (o->temperature <= 0 || n_valid == 1)
		return greedy(logits, n_valid);
	if (s->scratch_len < n) {
		s->scratch = mem_grow(s->scratch, n, sizeof *s->scratch);
		s->scratch_len = n;
	}
	struct sampler_candidate *h = s->scratch;
	for (size_t i = 0; i < n; i++)
		h[i] = (struct sampler_candidate){clean(logits[i]), (int32_t)i};
	for (size_t i = n / 2; i-- > 0;)
		sift_down(h, n, i);

	float top = h[0].logit;
	if (!isfinite(top)) /* all -infinity (or one +infinity): nothing to draw from but the best */
		return h[0].id;
	double inv_t = 1.0 / (double)o->temperature, all = 0;
	size_t limit = o->top_k > 0 && (size_t)o->top_k < n ? (size_t)o->top_k : n;
	bool whole = limit == n; /* the mass of all candidates is known without ordering them */
	for (size_t i = 0; whole && i < n; i++)
		all += exp((double)(h[i].logit - top) * inv_t);
	for (size_t i = 0; !whole && i < limit; i++)
		heap_pop(h, n - i);
	if (!whole) {
		for (size_t i = 0; i < limit; i++)
			all += exp((double)(h[n - 1 - i].logit - top) * inv_t);
	}
	/* best first: h[n - 1], h[n - 2], ...; popped as far as needed */
	double kept = 0;
	size_t taken = 0;
	while (taken < limit) {
		if (whole)
			heap_pop(h, n - taken);
		double p = exp((double)(h[n - 1 - taken].logit - top) * inv_t);
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
		sum += exp((double)(h[n - 1 - pick].logit - top) * inv_t);
		if (u < sum)
			break;
	}
	struct sampler_candidate c = h[n - 1 - pick];
	if (probability)
		*probability = (float)(exp((double)(c.logit - top) * inv_t) / kept);
	return c.id;
}

double sampler_logprob(const float *logits, int32_t n_valid, int32_t id)
{
	double top = -INFINITY, sum = 0;
	for (int32_t i = 0; i < n_valid; i++)
		top = fmax(top, (double)clean(logits[i]));
	for (int32_t i = 0; i < n_valid; i++)
		sum += exp((double)clean(logits[i]) - top);
	return (double)clean(logits[id]) - top - log(sum);
}
