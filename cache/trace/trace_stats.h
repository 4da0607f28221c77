/* SPDX-License-Identifier: MIT */
/* What a trace says about its run and its model's routing, for people. */
#ifndef GLM_CACHE_TRACE_STATS_H
#define GLM_CACHE_TRACE_STATS_H

#include "cache/trace/trace.h"

#define TRACE_STATS_DISTANCES 8
#define TRACE_STATS_TOPS      6

struct trace_stats {
	uint64_t n_moe_layers, n_experts; /* layers with experts; experts of all these layers */
	uint64_t n_used_layers; /* layers that decode used at least once; an MTP layer only drafts */
	uint64_t n_distinct;    /* experts that decode used at least once */
	uint64_t prefill_steps, prefill_rows, prefill_accesses;
	uint64_t tiers[TRACE_N_TIERS]; /* decode accesses by where the expert was found */
	uint64_t wait_ns;              /* of decode steps */
	/* Steps of one row only: */
	double repeated; /* part of the routed experts that the layer had for the token before */
	/* By distance of the prediction. */
	uint64_t predictions[TRACE_STATS_DISTANCES + 1]; /* followed by an access to their layer */
	double recall[TRACE_STATS_DISTANCES + 1];        /* part of the routed that were predicted */
	double precision[TRACE_STATS_DISTANCES + 1];     /* part of the predicted that were routed */
	/* Part of the routing that goes to a layer's most used n experts, mean of the layers. */
	int top_n[TRACE_STATS_TOPS];
	double top_part[TRACE_STATS_TOPS];
};

/* 0 or ERR_MEMORY. */
int trace_stats_collect(const struct trace *t, struct trace_stats *s, struct err *e);

#endif
