/* SPDX-License-Identifier: MIT */
/*
 * A wrapper around any expert source that exchanges experts: where the router picked its i-th
 * expert, the i-th that a recorded trace names is acquired instead, and the trace's guesses take
 * the place of the lookahead's. For measuring: a model with random weights then asks for experts as
 * a real one does. The router still runs, its weights are applied, and nothing else of the step
 * changes, so that times are those of the model. Logits are of no use.
 *
 * Only decode steps are exchanged; prefill (which wants nearly every expert) and the MTP layer go
 * through as they are. Traces of other shapes are folded: MoE layers are taken in order, again from
 * the first when the model has more, and ids modulo the number of experts. After the last token of
 * the trace its first one comes again.
 */
#ifndef GLM_STREAM_SOURCE_ROUTED_H
#define GLM_STREAM_SOURCE_ROUTED_H

#include "cache/trace/trace.h"
#include "src/base/err.h"
#include "stream/expert_source.h"

struct routed_options {
	const char *path;   /* a trace; NULL: the router's own picks (with confine) */
	uint32_t confine;   /* only the first so many experts of each layer are acquired; 0: all */
	uint32_t n_layers;  /* trunk layers of the model */
	uint32_t n_dense;   /* of which so many come first and have no experts */
	uint32_t n_experts; /* of a layer */
	uint32_t n_used;    /* by a token */
};

/* Takes `inner` on success only (closed with the wrapper) and says in a line what is replayed.
 * ERR_INPUT: no trace, or one without steps of single tokens; ERR_USAGE: `confine` below n_used;
 * ERR_MEMORY. */
int source_routed_open(struct expert_source *inner, const struct routed_options *o,
	struct expert_source **out, struct err *e);

/* From the next step on only these experts of a layer are acquired, ids [n], in their order; n 0:
 * all. n is at least n_used else, and the ids are distinct. */
void source_routed_allow(struct expert_source *s, uint32_t layer, const int32_t *ids, uint32_t n);

#endif
