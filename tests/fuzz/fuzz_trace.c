/* SPDX-License-Identifier: MIT */
/* Any bytes as a trace file (or, after the letter R, as the header and records inside its frames):
 * they are refused with a sentence, or give a trace whose every event is within the bounds that
 * trace.h promises, that can be counted over, and that can be replayed through a small cache
 * without breaking it. */
#include "cache/trace/sim.h"
#include "cache/trace/trace_file.h"
#include "cache/trace/trace_stats.h"
#include "src/base/log.h"
#include "src/base/num.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_trace_check(const struct trace *t)
{
	const struct trace_model *m = &t->model;
	uint64_t accesses = 0;
	if (!m->n_layers || m->n_layers > 4096 || !m->n_experts || m->n_experts > 65536 ||
		m->top_k > m->n_experts)
		bug("accepted a trace of %u layers of %u experts", m->n_layers, m->n_experts);
	if (strlen(m->name) > 255 || (t->ends_early && !t->note[0]))
		bug("name or note is wrong");
	for (size_t i = 0; i < t->n_events; i++) {
		const struct trace_event *ev = &t->events[i];
		switch (ev->kind) {
		case TRACE_ACCESS:
			accesses += ev->use == CACHE_DECODE ? ev->n : 0;
			/* fall through */
		case TRACE_PREDICTION:
			if (!ev->n || ev->n > m->n_experts || ev->layer >= m->n_layers ||
				!m->expert_bytes[ev->layer] || ev->value + ev->n > t->n_ids)
				bug("event %zu is out of bounds", i);
			for (uint32_t x = 0; x < ev->n; x++)
				if (t->ids[ev->value + x] >= m->n_experts ||
					t->tiers[ev->value + x] >= TRACE_N_TIERS)
					bug("event %zu names an expert or tier that does not exist", i);
			break;
		case TRACE_STEP:
			if (!ev->n || ev->use > CACHE_PREFILL)
				bug("event %zu is no step", i);
			break;
		case TRACE_WAIT:
			break;
		default:
			bug("event %zu has kind %u", i, ev->kind);
		}
	}
	if (accesses != t->n_accesses)
		bug("%llu accesses, said to be %llu", (unsigned long long)accesses,
			(unsigned long long)t->n_accesses);
}

/* Of the first tier: room for a few of the largest experts. It stays small for a trace that ends
 * early, as most prefixes of a seed do: an arena for sizes far apart has millions of slots. */
static uint64_t tier_bytes(const struct trace *t)
{
	uint64_t largest = 0;
	for (uint32_t l = 0; l < t->model.n_layers && !t->ends_early; l++)
		largest = MAX(largest, t->model.expert_bytes[l]);
	return MAX(3 * largest, (uint64_t)1 << 12);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct trace t = {0};
	struct err e = {0};
	bool raw = size && data[0] == 'R';
	if (raw ? trace_parse_unpacked(data + 1, size - 1, "fuzz", &t, &e)
			: trace_parse(data, size, "fuzz", &t, &e)) {
		if (e.code >= 0 || !e.text[0] || t.events)
			bug("refused without a sentence, or left something behind");
		return 0;
	}
	fuzz_trace_check(&t);
	/* Shapes with many keys cost only time here. */
	if ((uint64_t)t.model.n_layers * t.model.n_experts <= 1 << 16 && t.n_accesses < 1 << 16) {
		struct trace_stats s;
		if (trace_stats_collect(&t, &s, &e))
			bug("%s", e.text);
		struct sim_setup u = {.policy = size % 3 ? &policy_lfu : &policy_sieve,
			.order = size % 2 ? SIM_BY_RANK : SIM_BY_LAYER,
			.tier_bytes = {tier_bytes(&t), size % 5 << 10},
			.lookahead = (int)(size % 4)};
		struct sim_result r;
		if (!sim_run(&t, &u, &r, &e) && r.stats.accesses != t.n_accesses)
			bug("replayed %llu of %llu accesses", (unsigned long long)r.stats.accesses,
				(unsigned long long)t.n_accesses);
	}
	trace_fini(&t);
	return 0;
}
