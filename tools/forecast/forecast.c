/* SPDX-License-Identifier: MIT */
/* Simulated counts and modelled times. */
#include "tools/forecast/forecast.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/engine.h"
#include "stream/extent.h"
#include "stream/miss_split.h"
#include "tools/bench/measure.h"
#include "tools/trace/trace_simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Most experts of a layer that are considered. */
#define FORECAST_MISSES 64
/* Time of an expert on the processor: any, since only ratios count, but large against fixed costs
 * of a copy. */
#define UNIT_NS 1e9

/* Fits a synthetic trace, which may have other layers than the model: each expert gets the mean
 * slot size of the model. Sets read_share and part. */
static int scale_layers(struct forecast *f, const char *path, const struct extent_table *t,
	uint32_t n_mtp, uint32_t n_used, struct err *e)
{
	struct trace *tr = &f->trace;
	double slots = 0, reads = 0, layers = 0, traced = 0;
	if (tr->model.n_experts != extent_n_experts(t) || tr->model.top_k != n_used)
		return err_set(e, ERR_INPUT,
			"%.400s: recorded with another model: top %u of %u experts (this one: top %u of %u)",
			path, tr->model.top_k, tr->model.n_experts, n_used, extent_n_experts(t));
	for (uint32_t l = 0; l + n_mtp < extent_n_layers(t); l++) {
		struct extent_plan p;
		if (!extent_has_layer(t, l) || extent_plan(t, l, 0, &p))
			continue;
		slots += (double)num_align_up(extent_slot_bytes(t, l), extent_slot_align(t));
		reads += (double)p.read_bytes;
		layers++;
	}
	for (uint32_t l = 0; l < tr->model.n_layers; l++) {
		traced += tr->expert_bytes[l] > 0;
		tr->expert_bytes[l] = tr->expert_bytes[l] ? (uint64_t)(slots / MAX(layers, 1.0)) : 0;
	}
	tr->bytes_known = true;
	f->read_share = slots > 0 ? reads / slots : 1;
	f->part = traced / MAX(layers, 1.0);
	return 0;
}

/* Checks that the trace is of this model, then replaces the sizes of experts by those of the live
 * cache's slots. Sets read_share. */
static int fit_sizes(struct forecast *f, const char *path, const struct gguf *file,
	const struct extent_table *t, uint32_t n_used, struct err *e)
{
	struct trace *tr = &f->trace;
	const uint32_t n_layers = extent_n_layers(t);
	uint64_t *bytes = NEW_ARRAY(uint64_t, n_layers);
	double slots = 0, reads = 0;
	for (uint32_t l = 0; l < n_layers; l++) {
		struct extent_plan p;
		if (extent_has_layer(t, l) && !extent_plan(t, l, 0, &p))
			bytes[l] = p.payload_bytes;
	}
	const struct trace_model m = {.fingerprint = engine_fingerprint_of(file),
		.n_layers = n_layers,
		.n_experts = extent_n_experts(t),
		.top_k = n_used,
		.name = tr->name,
		.expert_bytes = bytes};
	int rc = trace_check_model(tr, path, &m, e);
	for (uint32_t l = 0; l < tr->model.n_layers && !rc; l++) {
		struct extent_plan p;
		if (!tr->expert_bytes[l] || extent_plan(t, l, 0, &p))
			continue;
		tr->expert_bytes[l] = num_align_up(extent_slot_bytes(t, l), extent_slot_align(t));
		slots += (double)tr->expert_bytes[l];
		reads += (double)p.read_bytes;
	}
	tr->bytes_known = true;
	f->read_share = slots > 0 ? reads / slots : 1;
	free(bytes);
	return rc;
}

int forecast_plan(const struct loader_options *o, struct loader_plan *plan, struct err *e)
{
	struct loader_options lo = *o;
	int rc = 0;
	lo.tier_bytes[0] = MEASURE_EVERYTHING;
	/* twice: staging is a share of the budget, and part of what everything takes */
	for (int i = 0; i < 2 && !rc; i++) {
		rc = loader_plan(&lo, plan, e);
		lo.tier_bytes[0] = plan->everything_bytes;
	}
	return rc;
}

int forecast_open(struct forecast *f, const char *trace, const struct gguf *file,
	const struct loader_options *o, uint32_t n_mtp, struct err *e)
{
	struct loader_options lo = *o;
	struct reader *r = NULL;
	struct extent_table *t = NULL;
	int rc = trace_load(trace, &f->trace, e);
	lo.file = file;
	f->part = 1;
	/* opening a reader logs how it reads: only a run's matter */
	const enum log_level before = log_lower(LOG_WARN);
	if (!rc && !f->trace.n_accesses)
		rc = err_set(e, ERR_INPUT, "%.400s: holds no decode step", trace);
	if (rc || (rc = loader_open_reader(&lo, &r, e)) ||
		(rc = extent_table_from_gguf(&t, file, r, e)))
		goto out;
	rc = f->trace.synthetic ? scale_layers(f, trace, t, n_mtp, (uint32_t)o->n_used, e)
							: fit_sizes(f, trace, file, t, (uint32_t)o->n_used, e);
	if (rc)
		goto out;
	rc = forecast_plan(&lo, &f->plan, e);
	f->top_k = f->trace.model.top_k;
	f->moe_layers =
		(double)f->trace.n_accesses / (double)MAX(f->trace.n_tokens, 1u) / MAX(f->top_k, 1.0);
	f->moe_layers /= f->part;
out:
	log_set_level(before);
	extent_table_free(t);
	reader_close(r);
	return rc;
}

void forecast_fini(struct forecast *f)
{
	trace_fini(&f->trace);
}

/* ---- several streams ---- */

/* Where each step begins, from the first decode step on; NULL without one. */
static size_t *find_steps(const struct trace *t, size_t *n)
{
	size_t *at = NEW_ARRAY(size_t, t->n_events + 1);
	*n = 0;
	for (size_t i = 0; i < t->n_events; i++)
		if (t->events[i].kind == TRACE_STEP && (*n || t->events[i].use == CACHE_DECODE))
			at[(*n)++] = i;
	at[*n] = t->n_events;
	return at;
}

int forecast_streams(
	const struct forecast *f, uint32_t streams, struct forecast *out, struct err *e)
{
	const struct trace *t = &f->trace;
	size_t n, *at = find_steps(t, &n);
	const size_t each = n / streams;
	*out = *f;
	out->trace.events = NULL;
	if (each < 2) {
		free(at);
		return err_set(e, ERR_INPUT,
			"the trace has %zu decode steps, and %u streams need twice as many as they are", n,
			streams);
	}
	struct trace_event *to = out->trace.events = NEW_ARRAY(struct trace_event, t->n_events);
	memcpy(to, t->events, at[0] * sizeof *to);
	to += at[0];
	for (size_t i = 0; i < n; i++) {
		const size_t step = i < each * streams ? i % streams * each + i / streams : i;
		const size_t n_events = at[step + 1] - at[step];
		memcpy(to, &t->events[at[step]], n_events * sizeof *to);
		to += n_events;
	}
	free(at);
	return 0;
}

void forecast_free_streams(struct forecast *out)
{
	free(out->trace.events);
	out->trace.events = NULL;
}

double forecast_distinct(const struct forecast *f, uint32_t rows)
{
	const struct trace *t = &f->trace;
	const uint32_t n_experts = t->model.n_experts;
	/* [n_layers][n_experts]: the last group that used the expert; [n_layers]: ... the layer */
	uint32_t *last = NEW_ARRAY(uint32_t, (size_t)t->model.n_layers * n_experts);
	uint32_t *last_layer = NEW_ARRAY(uint32_t, t->model.n_layers);
	const uint64_t groups = t->n_tokens / rows;
	uint64_t token = 0, distinct = 0, layers = 0;
	for (size_t i = 0; i < t->n_events; i++) {
		const struct trace_event *v = &t->events[i];
		if (v->kind == TRACE_STEP && v->use == CACHE_DECODE)
			token += v->n;
		if (v->kind != TRACE_ACCESS || v->use != CACHE_DECODE || !token)
			continue;
		const uint64_t group = (token - 1) / rows + 1;
		if (group > groups)
			break;
		layers += last_layer[v->layer] != (uint32_t)group;
		last_layer[v->layer] = (uint32_t)group;
		for (uint32_t k = 0; k < v->n; k++) {
			uint32_t *used = &last[(size_t)v->layer * n_experts + t->ids[v->value + k]];
			distinct += *used != (uint32_t)group;
			*used = (uint32_t)group;
		}
	}
	free(last);
	free(last_layer);
	return (double)distinct / (double)MAX(layers, 1u);
}

/* The first tokens of the shipped trace's 1,536: they fill both tiers. */
#define STEADY_SKIP 1024

uint64_t forecast_steady_skip(const struct forecast *f)
{
	return MIN((uint64_t)STEADY_SKIP, f->trace.n_tokens / 3 * 2);
}

/* ---- times ---- */

int forecast_measure(const struct common_opts *c, const struct gguf *file, uint32_t top_k,
	double seconds, int repeats, struct forecast_machine *m, struct err *e)
{
	struct measure_disk d = {0};
	int rc = measure_disk(c, file, 1, seconds, repeats, &d, e);
	m->one_bytes_s = d.bytes_s.median;
	if (!rc)
		rc = measure_disk(c, file, MAX(top_k, 2u), seconds, repeats, &d, e);
	m->layer_bytes_s = MAX(d.bytes_s.median, m->one_bytes_s);
	if (!rc)
		rc = measure_disk(c, file, 0, seconds, repeats, &d, e);
	m->full_bytes_s = MAX(d.bytes_s.median, m->layer_bytes_s);
	m->direct = d.direct;
	return rc;
}

/* Bytes a second at so many misses in a layer: linear between the rates of one expert and of top_k
 * at a time. */
static double demand_rate(
	const struct forecast *f, const struct forecast_machine *m, double misses_per_layer)
{
	double most = MAX(f->top_k, 2.0), at = MIN(MAX(misses_per_layer, 1.0), most);
	return m->one_bytes_s + (m->layer_bytes_s - m->one_bytes_s) * (at - 1) / (most - 1);
}

static int replay(const struct forecast *f, const struct forecast_point *p, int lookahead,
	struct sim_result *r, struct err *e)
{
	const struct sim_setup u = {.policy = policy_find(p->policy),
		.order = SIM_BY_LAYER,
		.tier_bytes = {(uint64_t)((double)p->cache_bytes * f->part),
			(uint64_t)((double)p->ram_bytes * f->part)},
		.skip_tokens = p->skip,
		.window_tokens = p->window,
		.lookahead = lookahead};
	return sim_run(&f->trace, &u, r, e);
}

double forecast_card_ms(double compute_ms, double drive_ms, double link_ms, bool lookahead)
{
	const double sum = compute_ms + drive_ms + link_ms;
	const double longest = MAX(compute_ms, MAX(drive_ms, link_ms));
	return lookahead ? longest + FORECAST_EXPOSED * (sum - longest) : sum;
}

double forecast_host_part(int n, double chance, double link_bytes_s, double host_bytes_s)
{
	const double p = MIN(chance, 1 - 1e-9), link_ns = UNIT_NS * host_bytes_s / link_bytes_s;
	n = MIN(n, FORECAST_MISSES);
	double alone = 0, split = 0, likely = pow(1 - p, n); /* likely: that k of n are */
	for (int k = 0; k <= n; k++) {
		struct miss m[FORECAST_MISSES];
		double link = 0, host = 0;
		for (int i = 0; i < k; i++)
			m[i] = (struct miss){.host_ns = UNIT_NS, .link_ns = link_ns};
		miss_split(m, k, 0);
		for (int i = 0; i < k; i++)
			if (m[i].on_host)
				host += UNIT_NS;
			else
				link += link_ns;
		alone += likely * k * link_ns;
		split += likely * MAX(host, link);
		likely *= (double)(n - k) / (k + 1) * p / (1 - p);
	}
	return alone > 0 ? split / alone : 1;
}

static void card_times(
	const struct forecast *f, const struct forecast_machine *m, struct forecast_point *p)
{
	p->drive_ms =
		p->alone.missed * 1e3 / demand_rate(f, m, p->alone.misses / MAX(f->moe_layers, 1.0));
	const double part =
		m->host_bytes_s > 0 && m->copy_bytes_s > 0
			? forecast_host_part((int)f->top_k, p->hits[1], m->copy_bytes_s, m->host_bytes_s)
			: 1;
	p->link_ms =
		m->copy_bytes_s > 0 ? (p->alone.missed + p->promoted * part) / m->copy_bytes_s * 1e3 : 0;
	p->ms = forecast_card_ms(m->compute_ms, p->drive_ms, p->link_ms, p->lookahead);
}

static void cpu_times(
	const struct forecast *f, const struct forecast_machine *m, struct forecast_point *p)
{
	double rate = demand_rate(f, m, p->misses / MAX(f->moe_layers, 1.0));
	double copies = m->copy_bytes_s > 0 ? p->promoted / m->copy_bytes_s : 0;
	double ahead = p->prefetched / m->full_bytes_s * 1e3;
	p->ms = m->compute_ms + (p->missed / rate + copies) * 1e3 + MAX(ahead - m->compute_ms, 0.0);
}

int forecast_replay(const struct forecast *f, bool card, struct forecast_point *p, struct err *e)
{
	struct sim_result r;
	int rc = replay(f, p, p->lookahead, &r, e);
	if (rc)
		return rc;
	const struct cache_stats *s = &r.stats;
	const double tokens = (double)MAX(r.n_tokens, 1u) * f->part;
	p->hits[0] = trace_ratio(s->hits[0], s->accesses);
	p->hits[1] = trace_ratio(s->hits[1], s->accesses);
	p->missed = (double)s->bytes_missed * f->read_share / tokens;
	p->prefetched = (double)s->prefetch_bytes * f->read_share / tokens;
	p->useful = trace_ratio(s->prefetch_used, s->prefetch_inserted);
	p->wasted = trace_ratio(s->prefetch_wasted, s->prefetch_inserted);
	p->misses = (double)s->misses / tokens;
	p->promoted = (double)s->bytes_promoted / tokens;
	if (card && p->lookahead && (rc = replay(f, p, 0, &r, e)))
		return rc;
	p->alone.missed = (double)s->bytes_missed * f->read_share / tokens;
	p->alone.misses = (double)s->misses / tokens;
	return 0;
}

void forecast_times(
	const struct forecast *f, const struct forecast_machine *m, struct forecast_point *p)
{
	if (m->one_bytes_s <= 0)
		return;
	if (m->card)
		card_times(f, m, p);
	else
		cpu_times(f, m, p);
	p->tok_s = p->ms > 0 ? 1e3 / p->ms : 0;
}

int forecast_run(const struct forecast *f, const struct forecast_machine *m,
	struct forecast_point *p, struct err *e)
{
	int rc = forecast_replay(f, m->card, p, e);
	if (!rc)
		forecast_times(f, m, p);
	return rc;
}

struct forecast_bounds forecast_bounds_of(
	const struct sim_result *r, const struct forecast_machine *m)
{
	struct forecast_bounds v = {0};
	if (!r->n_tokens)
		return v;
	const struct cache_stats *s = &r->stats;
	const double drive = (double)(s->bytes_missed + s->prefetch_bytes) / (double)r->n_tokens;
	const double link = drive + (double)s->bytes_promoted / (double)r->n_tokens;
	v.drive_ms = m->full_bytes_s > 0 ? drive / m->full_bytes_s * 1e3 : 0;
	v.link_ms = m->copy_bytes_s > 0 ? link / m->copy_bytes_s * 1e3 : 0;
	const double longest = MAX(m->compute_ms, MAX(v.drive_ms, v.link_ms));
	const double sum = m->compute_ms + v.drive_ms + v.link_ms;
	v.overlap_tok_s = longest > 0 ? 1e3 / longest : 0;
	v.serial_tok_s = sum > 0 ? 1e3 / sum : 0;
	return v;
}
