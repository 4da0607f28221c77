/* SPDX-License-Identifier: MIT */
/*
 * Replayed routing, for benchmarks. A wrapper around an expert source makes decode steps use the
 * experts that a trace names in place of the router's, and the trace's predictions in place of the
 * lookahead's. So a model with random weights requests experts as a real one does. The router still
 * runs and its weights are applied: times are those of the model. The logits mean nothing.
 *
 * Order of use:
 *   1. replayed_routing_new
 *   2. engine_options.wrap_source calls replayed_routing_wrap, once for each stage
 *   3. replayed_routing_confine and replayed_routing_keep between steps, as often as wanted
 *   4. the engine closes the sources
 *   5. replayed_routing_free
 *
 * Threads: sources of different stages may be used at the same time, by different threads. Calls of
 * 3 are made while no step computes.
 *
 * What is replayed:
 * - decode steps of trunk layers, rows by consecutive tokens of the trace. Prefill passes through;
 * - drafts: step j of a round (one row) uses, in the MTP layer, the experts of token j
 *   behind the step; of the trace's layers it takes the one that follows those of the trunk;
 * - traces of other shapes: if the model has more MoE layers than the trace, those of the trace are
 *   used again from the first; ids are taken modulo the number of experts;
 * - the first token of the trace follows its last one.
 */
#ifndef GLM_TOOLS_REPLAYED_ROUTING_H
#define GLM_TOOLS_REPLAYED_ROUTING_H

#include "src/base/err.h"
#include "stream/expert_source.h"

struct replayed_routing_options {
	const char *path;   /* a trace; NULL: the router's own ids (with confine) */
	uint32_t confine;   /* only the first so many experts of each layer are acquired; 0: all */
	uint32_t n_layers;  /* trunk layers of the model */
	uint32_t n_dense;   /* of which so many come first and have no experts */
	uint32_t n_experts; /* of a layer */
	uint32_t n_used;    /* by a token */
};

struct replayed_routing;

/* Reads the trace and logs what is replayed. ERR_INPUT: no trace, or one without steps of single
 * tokens; ERR_USAGE: `confine` below n_used or above n_experts; ERR_MEMORY. */
int replayed_routing_new(
	const struct replayed_routing_options *o, struct replayed_routing **out, struct err *e);

/* Wraps the source of one stage. All stages are wrapped before the first step. Closing the result
 * closes `inner`; r outlives it. */
struct expert_source *replayed_routing_wrap(
	struct replayed_routing *r, struct expert_source *inner);

void replayed_routing_free(struct replayed_routing *r); /* NULL is fine */

/* From the next step on only these experts of a layer are acquired, distinct ids [n], n >= n_used;
 * n 0: all. */
void replayed_routing_confine(
	struct replayed_routing *r, uint32_t layer, const int32_t *ids, uint32_t n);

/* Simulates rejected drafts: the next step keeps its first `kept` rows, and the step behind it
 * begins with the token after these. The rejected rows use the tokens that come next or, with
 * `far`, those half a trace further, so that experts which they load serve no later step. */
void replayed_routing_keep(struct replayed_routing *r, uint32_t kept, bool far);

#endif
