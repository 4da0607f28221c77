/* SPDX-License-Identifier: MIT */
/*
 * The device's part of the feed-forward networks (specification 2.7): dense network, router, shared
 * expert, and the sum with the routed experts. Its calls enqueue ops or answer; none waits. The
 * order of use is in moe.h, which has the host's part.
 */
#ifndef GLM_FORWARD_FFN_H
#define GLM_FORWARD_FFN_H

#include "kernels/backend.h"

struct model;

/* Dense layer: ws.x += network(ws.x). MoE layer: its router, whose normed input stays in ws.h, the
 * shared expert, and the deferred expert kernel where moe_deferred. Both: the predicting routers of
 * lookahead.h. Where there is a router, its fence is the last one enqueued. A backend that is not
 * async gets the shared expert later, in moe_experts_request, while the drive reads. */
void ffn_forward(struct model *m, uint32_t layer, const struct batch *rows);

/* ws.x += the routed experts and the shared expert of the current MoE layer, then a norm of ws.x
 * (NULL: none). */
void moe_combine(struct model *m, const struct batch *rows, const struct norm *next);

/* Whether the experts of an MoE layer are computed by a deferred kernel of this step's segments.
 * Ops behind them can then be enqueued before the experts are known. */
bool moe_deferred(const struct model *m, uint32_t layer, int rows);

/* The router of a layer, applied to ws.x as it is now; its outputs are left to the caller. */
struct route moe_route(const struct model *m, uint32_t layer);

/* The shape of the routed experts of an MoE layer, without data and slots. */
struct expert_job expert_job_shape(const struct model *m, uint32_t layer);

/* ws.shared_out = the shared expert of an MoE layer, of ws.h. For backends that are not async; on
 * others ffn_forward has done it. */
void shared_expert_run(struct model *m, uint32_t layer, const struct batch *rows);

#endif
