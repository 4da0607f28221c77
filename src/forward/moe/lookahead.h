/* SPDX-License-Identifier: MIT */
/*
 * Router lookahead: predicts the experts of the coming layers, so that they are read ahead of
 * demand.
 *
 * The residual stream changes slowly from layer to layer. The router of layer L + d, applied to the
 * stream of layer L, names most of the experts that layer L + d will want: on the pocket model the
 * best four for L + 1, L + 2, L + 3 hold 73, 57 and 47 % of the true four. The routers run in the
 * same op as that of L and under the same fence, so they cost no launch. The real router always
 * decides; a prediction only moves bytes.
 *
 * Where: decode steps, in every MoE layer but the last of the model (config.h: end_layer), and in
 * the last dense layer, so that the first experts of a token are predicted too. The MTP layer is
 * never predicted.
 *
 * Order of use for one layer (forward.c):
 *   1. lookahead_routes adds the routers of the coming layers to the layer's own;
 *   2. lookahead_enqueued states the fence behind them;
 *   3. lookahead_prefetch waits for the ids and hands them to the source. It is called after the
 *      layer's own experts were acquired, which must be read first; for a dense layer on a device
 *      that runs asynchronously it is left to the next layer, so that the host is not held up.
 */
#ifndef GLM_FORWARD_LOOKAHEAD_H
#define GLM_FORWARD_LOOKAHEAD_H

#include "kernels/backend.h"

struct model;

#define LOOKAHEAD_MAX (ROUTES_MAX - 1) /* layers ahead at most */

/* A prediction that has been enqueued and not been passed on to the source yet. */
struct prediction {
	uint64_t fence; /* behind its routers; 0: none */
	uint32_t layer; /* in which it was made */
	int rows;
};

/* The most rows of a step that predicts, where the largest step has max_rows. Larger steps of
 * answers are decode steps too, and predict nothing. */
uint32_t lookahead_max_rows(uint32_t max_rows);

/* For how many layers after `layer` a step of so many rows predicts; 0: none. */
uint32_t lookahead_reach(const struct model *m, uint32_t layer, int rows);

/* Appends the predicting routers of `layer` to routes, room for LOOKAHEAD_MAX. Returns how many. */
int lookahead_routes(const struct model *m, uint32_t layer, int rows, struct route *routes);

/* States that the routers of `layer` have been enqueued, with this fence behind them. No effect if
 * the layer predicts nothing. Precondition: the prediction before was passed on. */
void lookahead_enqueued(struct model *m, uint32_t layer, uint64_t fence, int rows);

/* Waits for the prediction that is enqueued, if there is one, and passes it on. Fails like
 * wait_expert_ids of the backend. */
int lookahead_prefetch(struct model *m, struct err *e);

#endif
