/* SPDX-License-Identifier: MIT */
/* Counting over the events of a trace. */
#include "cache/trace/trace_stats.h"

#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>

struct counter {
	const struct trace *t;
	uint32_t *uses; /* [n_keys] */
	uint32_t *mark; /* [n_experts] stamp of the last set that had the expert, see count_common */
	uint32_t stamp;
	/* [n_layers] event of the layer's last access in a step of one row, + 1; 0: none */
	size_t *last_access;
	/* [n_layers][TRACE_STATS_DISTANCES + 1] event of a prediction that no access has followed yet,
	 * + 1; 0: none */
	size_t *last_prediction;
	uint64_t routed_before, repeats;
	uint64_t predicted[TRACE_STATS_DISTANCES + 1], routed[TRACE_STATS_DISTANCES + 1];
	uint64_t found[TRACE_STATS_DISTANCES + 1];
};

/* How many ids of b are in a. */
static uint32_t count_common(
	struct counter *c, const struct trace_event *a, const struct trace_event *b)
{
	uint32_t n = 0;
	c->stamp++;
	for (uint32_t i = 0; i < a->n; i++)
		c->mark[c->t->ids[a->value + i]] = c->stamp;
	for (uint32_t i = 0; i < b->n; i++)
		n += c->mark[c->t->ids[b->value + i]] == c->stamp;
	return n;
}

static void single_row_access(struct counter *c, struct trace_stats *s, size_t at)
{
	const struct trace_event *ev = &c->t->events[at];
	if (c->last_access[ev->layer]) {
		const struct trace_event *before = &c->t->events[c->last_access[ev->layer] - 1];
		c->repeats += count_common(c, before, ev);
		c->routed_before += ev->n;
	}
	c->last_access[ev->layer] = at + 1;
	size_t *open_predictions = c->last_prediction + (size_t)ev->layer * (TRACE_STATS_DISTANCES + 1);
	for (int d = 1; d <= TRACE_STATS_DISTANCES; d++) {
		if (!open_predictions[d])
			continue;
		const struct trace_event *prediction = &c->t->events[open_predictions[d] - 1];
		c->found[d] += count_common(c, prediction, ev);
		c->predicted[d] += prediction->n;
		c->routed[d] += ev->n;
		s->predictions[d]++;
		open_predictions[d] = 0;
	}
}

static void count_events(struct counter *c, struct trace_stats *s)
{
	const struct trace *t = c->t;
	bool decode = false, single = false;
	for (size_t i = 0; i < t->n_events; i++) {
		const struct trace_event *ev = &t->events[i];
		switch (ev->kind) {
		case TRACE_STEP:
			decode = ev->use == CACHE_DECODE;
			single = decode && ev->n == 1;
			s->prefill_steps += !decode;
			s->prefill_rows += decode ? 0 : ev->n;
			break;
		case TRACE_ACCESS:
			if (ev->use != CACHE_DECODE) {
				s->prefill_accesses += ev->n;
				break;
			}
			for (uint32_t x = 0; x < ev->n; x++) {
				c->uses[(size_t)ev->layer * t->model.n_experts + t->ids[ev->value + x]]++;
				s->tiers[t->tiers[ev->value + x]]++;
			}
			if (single)
				single_row_access(c, s, i);
			break;
		case TRACE_PREDICTION:
			if (single && ev->distance <= TRACE_STATS_DISTANCES)
				c->last_prediction[(size_t)ev->layer * (TRACE_STATS_DISTANCES + 1) + ev->distance] =
					i + 1;
			break;
		case TRACE_WAIT:
			s->wait_ns += decode ? ev->value : 0;
			break;
		}
	}
}

static int compare_uses_falling(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return x < y ? 1 : x > y ? -1 : 0;
}

/* Sorts the uses of every layer. */
static void count_popular(struct counter *c, struct trace_stats *s)
{
	const int parts[TRACE_STATS_TOPS] = {
		32, 8, 4, 2, 0, 0}; /* of 256: top 8, 32, 64, 128; then 168 and 192 */
	uint32_t n = c->t->model.n_experts, n_layers = 0;
	for (int i = 0; i < TRACE_STATS_TOPS; i++)
		s->top_n[i] = parts[i] ? (int)MAX(1u, n / (uint32_t)parts[i])
							   : (int)(i == 4 ? n * 21 / 32 : n * 3 / 4);
	for (uint32_t l = 0; l < c->t->model.n_layers; l++) {
		uint32_t *u = c->uses + (size_t)l * n;
		uint64_t sum = 0, so_far = 0;
		for (uint32_t i = 0; i < n; i++) {
			sum += u[i];
			s->n_distinct += u[i] > 0;
		}
		if (!sum)
			continue;
		qsort(u, n, sizeof *u, compare_uses_falling);
		n_layers++;
		s->n_used_layers++;
		for (uint32_t i = 0, k = 0; i < n; i++) {
			so_far += u[i];
			for (; k < TRACE_STATS_TOPS && s->top_n[k] == (int)i + 1; k++)
				s->top_part[k] += (double)so_far / (double)sum;
		}
	}
	for (int k = 0; k < TRACE_STATS_TOPS && n_layers; k++)
		s->top_part[k] /= n_layers;
}

static double ratio(uint64_t a, uint64_t b)
{
	return b ? (double)a / (double)b : 0;
}

int trace_stats_collect(const struct trace *t, struct trace_stats *s, struct err *e)
{
	const struct trace_model *m = &t->model;
	struct counter c = {.t = t};
	int code = 0;
	*s = (struct trace_stats){0};
	c.uses = mem_try_new((size_t)m->n_layers * m->n_experts, sizeof *c.uses);
	c.mark = mem_try_new(m->n_experts, sizeof *c.mark);
	c.last_access = mem_try_new(m->n_layers, sizeof *c.last_access);
	c.last_prediction =
		mem_try_new((size_t)m->n_layers * (TRACE_STATS_DISTANCES + 1), sizeof *c.last_prediction);
	if (!c.uses || !c.mark || !c.last_access || !c.last_prediction) {
		code =
			err_set(e, ERR_MEMORY, "no memory to count over a trace of %u layers with %u experts",
				m->n_layers, m->n_experts);
		goto out;
	}
	for (uint32_t l = 0; l < m->n_layers; l++)
		s->n_moe_layers += m->expert_bytes[l] > 0;
	s->n_experts = s->n_moe_layers * m->n_experts;
	count_events(&c, s);
	count_popular(&c, s);
	s->repeated = ratio(c.repeats, c.routed_before);
	for (int d = 1; d <= TRACE_STATS_DISTANCES; d++) {
		s->recall[d] = ratio(c.found[d], c.routed[d]);
		s->precision[d] = ratio(c.found[d], c.predicted[d]);
	}
out:
	free(c.uses);
	free(c.mark);
	free(c.last_access);
	free(c.last_prediction);
	return code;
}
