/* SPDX-License-Identifier: MIT */
/* The simulator: events of a trace -> calls of the cache, bytes arriving at once. */
#include "cache/trace/sim.h"

#include "src/base/mem.h"
#include "src/base/num.h"

#include <stdlib.h>
#include <string.h>

struct sim {
	const struct trace *t;
	const struct sim_setup *setup;
	int n_pools;           /* 1, or one per layer */
	struct cache **pools;  /* [n_pools]; NULL for layers without experts */
	uint64_t *layer_bytes; /* [n_layers] as the cache sees them */
	uint64_t *next_at; /* [n_accesses] decode accesses: number of the next one to the same expert */
	uint64_t *next_use; /* [n_keys] the same by expert, for the policy */
	uint64_t n_done;    /* decode accesses so far */
	/* scratch of one layer */
	struct cache_ref *refs; /* [n_experts] */
	int32_t *ids;           /* [n_experts] */
	int32_t *filling;       /* [n_filling, at most n_slots] slots whose bytes are to arrive */
	int n_filling;
	uint64_t n_bypassed, n_full;
	bool counting;
};

static void pools_free(struct sim *s)
{
	for (int i = 0; s->pools && i < s->n_pools; i++) {
		cache_free(s->pools[i]);
		s->pools[i] = NULL;
	}
}

static int pools_new(struct sim *s, struct err *e)
{
	const struct sim_setup *u = s->setup;
	const struct trace_model *m = &s->t->model;
	uint64_t n_moe = 0;
	for (uint32_t l = 0; l < m->n_layers; l++)
		n_moe += s->layer_bytes[l] > 0;
	for (int i = 0; i < s->n_pools; i++) {
		uint32_t first = u->per_layer ? (uint32_t)i : 0;
		if (u->per_layer && !s->layer_bytes[i])
			continue;
		uint64_t per_token = m->top_k * (u->per_layer ? 1 : n_moe);
		struct cache_config cfg = {.n_layers = u->per_layer ? 1 : (int)m->n_layers,
			.n_experts = (int)m->n_experts,
			.expert_bytes = s->layer_bytes + first,
			.tier_bytes = {u->tier_bytes[0], u->tier_bytes[1]},
			.policy = u->policy,
			.token_accesses = per_token,
			.as_published = u->order == SIM_BY_RANK,
			.half_life = u->half_life * (double)per_token,
			.prefetch_cold = u->prefetch_cold,
			.next_use = s->next_use + (size_t)first * m->n_experts};
		if (u->n_slots) {
			cfg.tier_bytes[0] = u->n_slots;
			cfg.tier_bytes[1] = u->n_ram_slots;
		} else if (u->order == SIM_BY_LAYER) {
			cfg.n_prefill_slots = cache_choose_prefill_slots(&cfg, (int)m->top_k);
		}
		s->pools[i] = cache_new(&cfg, e);
		if (!s->pools[i])
			return e ? e->code : ERR_USAGE;
	}
	return 0;
}

/* For every decode access the number of the next access to the same expert, from the end backwards.
 */
static int find_future(struct sim *s, struct err *e)
{
	const struct trace *t = s->t;
	size_t n_keys = (size_t)t->model.n_layers * t->model.n_experts;
	s->next_use = mem_try_new(n_keys, sizeof *s->next_use);
	s->next_at = mem_try_new(t->n_accesses, sizeof *s->next_at);
	if (!s->next_use || !s->next_at)
		return err_set(e, ERR_MEMORY, "no memory to look ahead over %llu accesses",
			(unsigned long long)t->n_accesses);
	memset(s->next_use, 0xff, n_keys * sizeof *s->next_use);
	uint64_t i = t->n_accesses;
	for (size_t at = t->n_events; at-- > 0;) {
		const struct trace_event *ev = &t->events[at];
		if (ev->kind != TRACE_ACCESS || ev->use != CACHE_DECODE)
			continue;
		for (uint32_t x = ev->n; x-- > 0;) {
			size_t key = (size_t)ev->layer * t->model.n_experts + t->ids[ev->value + x];
			s->next_at[--i] = s->next_use[key];
			s->next_use[key] = i;
		}
	}
	return 0;
}

static int sim_init(struct sim *s, struct err *e)
{
	const struct sim_setup *u = s->setup;
	const struct trace_model *m = &s->t->model;
	if (!u->n_slots && !u->tier_bytes[0])
		return err_set(e, ERR_USAGE, "a cache to simulate needs room for at least one expert");
	if (u->per_layer && (!u->n_slots || u->n_ram_slots))
		return err_set(e, ERR_USAGE, "pools per layer need a number of slots and have one tier");
	s->n_pools = u->per_layer ? (int)m->n_layers : 1;
	s->pools = NEW_ARRAY(struct cache *, (size_t)s->n_pools);
	s->layer_bytes = NEW_ARRAY(uint64_t, m->n_layers);
	for (uint32_t l = 0; l < m->n_layers; l++)
		if (m->expert_bytes[l])
			s->layer_bytes[l] = u->n_slots        ? 1
								: u->expert_bytes ? u->expert_bytes
												  : m->expert_bytes[l];
	s->refs = NEW_ARRAY(struct cache_ref, m->n_experts);
	s->ids = NEW_ARRAY(int32_t, m->n_experts);
	if (find_future(s, e))
		return ERR_MEMORY;
	if (pools_new(s, e))
		return e ? e->code : ERR_USAGE;
	int n_slots = 0;
	for (int i = 0; i < s->n_pools; i++)
		n_slots = MAX(n_slots, s->pools[i] ? cache_n_slots(s->pools[i]) : 0);
	s->filling = NEW_ARRAY(int32_t, (size_t)n_slots);
	return 0;
}

static void sim_fini(struct sim *s)
{
	pools_free(s);
	free(s->pools);
	free(s->layer_bytes);
	free(s->next_at);
	free(s->next_use);
	free(s->refs);
	free(s->ids);
	free(s->filling);
}

static struct cache *pool_of(struct sim *s, int *layer)
{
	struct cache *c = s->pools[s->setup->per_layer ? *layer : 0];
	if (s->setup->per_layer)
		*layer = 0;
	return c;
}

/* Remembers what a plan begins. */
static void collect_transfers(struct sim *s, const struct cache_plan *plan)
{
	for (int i = 0; i < plan->n; i++)
		s->filling[s->n_filling++] = plan->transfers[i].slot;
}

/* All bytes arrive. */
static void commit_all(struct sim *s, struct cache *c)
{
	for (int i = 0; i < s->n_filling; i++)
		cache_commit(c, s->filling[i]);
	s->n_filling = 0;
}

/* Acquires and releases n experts of a layer. */
static void use_experts(struct sim *s, struct cache *c, int layer, const uint16_t *ids, uint32_t n)
{
	struct cache_request q = {.layer = layer, .use = CACHE_DECODE, .refs = s->refs, .n = (int)n};
	struct cache_plan plan;
	uint64_t n_full = 0, n_without = 0;
	for (uint32_t i = 0; i < n; i++)
		s->refs[i].expert = ids[i];
	enum cache_result result = cache_acquire(c, &q, &plan);
	collect_transfers(s, &plan);
	while (result != CACHE_OK) { /* nothing is in flight that could make room */
		n_full++;
		q.next++;
		result = cache_acquire_resume(c, &q, &plan);
		collect_transfers(s, &plan);
	}
	cache_flush(c, &plan);
	collect_transfers(s, &plan);
	for (uint32_t i = 0; i < n; i++)
		n_without += s->refs[i].state == CACHE_REF_NONE;
	commit_all(s, c);
	cache_release(c, s->refs, (int)n, &plan);
	if (s->counting) {
		s->n_full += n_full;
		s->n_bypassed += n_without - n_full;
	}
}

static void decode_access(struct sim *s, const struct trace_event *ev)
{
	const uint16_t *ids = s->t->ids + ev->value;
	size_t key0 = (size_t)ev->layer * s->t->model.n_experts;
	int layer = ev->layer;
	struct cache *c = pool_of(s, &layer);
	uint32_t at_a_time = s->setup->order == SIM_BY_RANK ? 1 : ev->n;
	for (uint32_t i = 0; i < ev->n; i++)
		s->next_use[key0 + ids[i]] = s->next_at[s->n_done++];
	for (uint32_t i = 0; i < ev->n; i += at_a_time)
		use_experts(s, c, layer, ids + i, at_a_time);
}

static const int32_t *ids_of(struct sim *s, const struct trace_event *ev)
{
	for (uint32_t i = 0; i < ev->n; i++)
		s->ids[i] = s->t->ids[ev->value + i];
	return s->ids;
}

static void prefill_access(struct sim *s, const struct trace_event *ev)
{
	int layer = ev->layer;
	struct cache *c = pool_of(s, &layer);
	cache_count_prefill(c, layer, ids_of(s, ev), (int)ev->n);
}

/* Pools of one layer have no prefill slots. */
static void begin_step(struct sim *s, enum cache_use use)
{
	struct cache_plan plan;
	if (s->setup->per_layer)
		return;
	cache_begin_step(s->pools[0], use, &plan);
	collect_transfers(s, &plan);
	commit_all(s, s->pools[0]);
}

static void predict_experts(struct sim *s, const struct trace_event *ev)
{
	int layer = ev->layer;
	struct cache *c = pool_of(s, &layer);
	const int32_t *ids = ids_of(s, ev);
	struct cache_plan plan;
	cache_note_predicted(c, layer, ids, (int)ev->n);
	cache_flush(c, &plan);
	for (uint32_t i = 0; i < ev->n; i++) {
		cache_prefetch(c, layer, ids[i], &plan);
		collect_transfers(s, &plan);
		commit_all(s, c);
	}
}

#define STAT_FIELDS (sizeof(struct cache_stats) / sizeof(uint64_t))

/* All counters are uint64_t. */
static void stats_add(struct cache_stats *sum, const struct cache_stats *s)
{
	uint64_t a[STAT_FIELDS], b[STAT_FIELDS];
	memcpy(a, sum, sizeof a);
	memcpy(b, s, sizeof b);
	for (size_t i = 0; i < STAT_FIELDS; i++)
		a[i] += b[i];
	memcpy(sum, a, sizeof a);
}

static void sim_collect(struct sim *s, struct sim_result *r)
{
	r->n_slots = s->setup->n_slots;
	r->n_ram_slots = s->setup->n_ram_slots;
	uint64_t resident[CACHE_TIERS] = {0};
	for (int i = 0; i < s->n_pools; i++) {
		if (!s->pools[i])
			continue;
		if (s->counting)
			stats_add(&r->stats, cache_stats(s->pools[i]));
		for (int l = 0; l < (s->setup->per_layer ? 1 : (int)s->t->model.n_layers); l++) {
			int n[CACHE_TIERS];
			cache_layer_resident(s->pools[i], l, n);
			resident[0] += (uint64_t)n[0];
			resident[1] += (uint64_t)n[1];
		}
		cache_reset_stats(s->pools[i]);
	}
	if (!s->setup->n_slots) {
		r->n_slots = MAX(r->n_slots, resident[0]);
		r->n_ram_slots = MAX(r->n_ram_slots, resident[1]);
	}
}

static int sim_replay(struct sim *s, struct sim_result *r, struct err *e)
{
	const struct trace *t = s->t;
	const struct sim_setup *u = s->setup;
	uint64_t n_tokens = 0, window_end = u->window_tokens;
	s->counting = !u->skip_tokens;
	for (size_t i = 0; i < t->n_events; i++) {
		const struct trace_event *ev = &t->events[i];
		switch (ev->kind) {
		case TRACE_STEP:
			begin_step(s, ev->use);
			if (ev->use != CACHE_DECODE)
				break;
			if (!s->counting && n_tokens >= u->skip_tokens) {
				sim_collect(s, r);
				s->counting = true;
			}
			if (u->window_tokens && n_tokens >= window_end) {
				sim_collect(s, r);
				window_end += u->window_tokens;
				pools_free(s);
				if (pools_new(s, e))
					return e ? e->code : ERR_MEMORY;
			}
			n_tokens += ev->n;
			r->n_tokens += s->counting ? ev->n : 0;
			break;
		case TRACE_ACCESS:
			if (ev->use == CACHE_DECODE)
				decode_access(s, ev);
			else
				prefill_access(s, ev);
			break;
		case TRACE_PREDICTION:
			if (ev->distance <= u->lookahead)
				predict_experts(s, ev);
			break;
		}
	}
	sim_collect(s, r);
	r->n_bypassed = s->n_bypassed;
	r->n_full = s->n_full;
	return 0;
}

int sim_run(
	const struct trace *t, const struct sim_setup *setup, struct sim_result *r, struct err *e)
{
	struct sim s = {.t = t, .setup = setup};
	struct err local = {0};
	*r = (struct sim_result){0};
	int code = sim_init(&s, e ? e : &local);
	if (!code)
		code = sim_replay(&s, r, e ? e : &local);
	sim_fini(&s);
	return code;
}
