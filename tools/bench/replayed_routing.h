/* SPDX-License-Identifier: MIT */
/*
 * Replayed routing: an instrument for measuring. It wraps an expert source; decode steps then use
 * the experts that a trace names in place of the router's, and the trace's predictions in place of
 * the lookahead's. A model with random weights so asks for experts as a real one does. The router
 * still runs and its weights are applied: times are those of the model. Logits are of no use.
 *
 * Order of use:
 *   1. replayed_routing_new
 *   2. engine_options.wrap_source calls replayed_routing_wrap, once for each stage
 *   3. replayed_routing_confine and replayed_routing_keep between steps, as often as wanted
 *   4. the engine closes the sources
 *   5. replayed_routing_free
 *
 * Threads: sources of different stages may be used at the same time; 3 while no step computes.
 *
 * What is replayed:
 * - decode steps of trunk layers, rows by consecutive tokens of the trace. Prefill passes through;
 * - drafts: step j of a round, one row, asks the MTP layer for the experts of token j behind the
 *   step, those of the layer in which the trace would go on;
 * - traces of other shapes are folded: MoE layers are taken in order and from the first again when
 *   the model has more; ids modulo the number of experts;
 * - after the last token of the trace its first one comes again.
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

/* The source of one stage; all of them are wrapped before the first step. Its close closes `inner`.
 */
struct expert_source *replayed_routing_wrap(
	struct replayed_routing *r, struct expert_source *inner);

void replayed_routing_free(struct replayed_routing *r); /* NULL is fine */

/* From the next step on only these experts of a layer are acquired, distinct ids [n], n >= n_used;
 * n 0: all. */
void replayed_routing_confine(
	struct replayed_routing *r, uint32_t layer, const int32_t *ids, uint32_t n);

/* Drafts: of the step that is coming only the first `kept` rows will count, and the step behind it
 * begins with the token after these. The rows behind them use the tokens that come next; with `far`
 * those half a trace further, so that what they load serves no later step. */
void replayed_routing_keep(struct replayed_routing *r, uint32_t kept, bool far);

#endif
