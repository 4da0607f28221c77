/* SPDX-License-Identifier: MIT */
/*
 * Replays the routing of a trace against a cache of any size, through the code of the live cache.
 * Every load completes at once. Accesses of prefill are counted and reserve nothing, but prefill
 * steps borrow their prefill slots, as in a run.
 *
 * Two orders of the accesses of one layer:
 *
 *   SIM_BY_LAYER  one cache_acquire for all k, as a run does it. Hits and misses are then those of
 *                 a run with the same trace, policy and budget, without lookahead, whose second
 *                 tier does not evict.
 *   SIM_BY_RANK   one cache_acquire after the other, as policies are published: a miss of rank 1
 *                 may evict the expert of rank 3, and no recency window protects what the present
 *                 token has used.
 */
#ifndef GLM_CACHE_SIM_H
#define GLM_CACHE_SIM_H

#include "cache/cache.h"
#include "cache/trace/trace.h"

enum sim_order { SIM_BY_RANK, SIM_BY_LAYER };

struct sim_setup {
	const struct policy_ops *policy;
	enum sim_order order;
	/* Capacity: either n_slots experts of any size (tier 1: n_ram_slots), or with n_slots 0
	 * tier_bytes. SIM_BY_LAYER then has as many prefill slots in tier 0 as a run. */
	uint64_t n_slots, n_ram_slots;
	uint64_t tier_bytes[CACHE_TIERS];
	uint64_t expert_bytes; /* of every expert; 0: as the trace says */
	bool per_layer; /* one pool per layer, each of this capacity; only with n_slots and one tier */
	uint64_t skip_tokens;   /* the first tokens: replayed but not counted */
	uint64_t window_tokens; /* > 0: the cache is emptied after every window_tokens tokens */
	int lookahead; /* replay recorded predictions up to this distance as prefetches; 0: none */
	uint64_t prefetch_cold; /* accesses; 0: those of two tokens */
	double half_life;       /* lfu, in tokens; 0: the cache's default */
};

struct sim_result {
	struct cache_stats stats; /* of the counted tokens */
	uint64_t n_tokens;        /* counted */
	/* of tier 0 and tier 1: the capacity if the setup gives n_slots, else the experts that were
	 * resident at the end (with window_tokens: of a window, the most) */
	uint64_t n_slots, n_ram_slots;
	/* misses that were not cached: the policy bypassed them; every slot was pinned */
	uint64_t n_bypassed, n_full;
};

/* 0; ERR_USAGE or ERR_MEMORY with a sentence when the setup is impossible. */
int sim_run(
	const struct trace *t, const struct sim_setup *setup, struct sim_result *r, struct err *e);

#endif
