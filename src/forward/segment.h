/* SPDX-License-Identifier: MIT */
/*
 * How a step reaches the device: graph segments, fences and the host's part in an MoE layer.
 *
 * In every MoE layer the host must act: the router's top-k expert ids decide which experts are
 * computed, and some of these may have to be read first. `route` enqueues a fence behind the ids.
 *
 *   device   attention  routers |fence| shared expert  experts...  combine | attention  routers ...
 *                                  |                    ^      ^
 *                                  | ids          ready |      | read late
 *   host     ............ wait ----+-- acquire ---------+------+-- prefetch predicted -- wait ...
 *
 * For each MoE layer the host (forward.c: serve_layer)
 *   1. waits for the expert ids behind the layer's fence;
 *   2. acquires the experts, which starts the reads of those that are missing;
 *   3. gives the ready ones to the device, which has the shared expert to compute meanwhile;
 *   4. passes predicted experts of the coming layers on to the source (lookahead.h);
 *   5. gives the missing ones to the device as their reads complete.
 * Experts stay pinned until a later fence shows that the device has passed them (moe.h).
 *
 * Steps are captured if they have few rows or a number of rows that comes often (step_counts.h);
 * not those with taps, of a long prompt, or while there is an observer. A *graph segment* is what
 * one graph launch covers.
 *   - One row, and experts that a deferred kernel can compute (moe_deferred): that kernel is part
 *     of the graph and waits for the host's messages. A segment goes on through up to
 *     SEGMENT_LAYERS layers (forward.c), and nothing is launched between them; the host serves one
 *     layer after the other. The first layer is a segment of its own: the device computes it while
 *     the host launches the rest.
 *   - Several rows, or experts without a deferred kernel: a segment ends behind the shared expert
 *     of an MoE layer. The host enqueues the experts as ops of their own, and the next segment
 *     begins with moe_combine.
 * Other steps are not captured: the same ops are enqueued one by one, layer after layer. A backend
 * without graphs does the same. The numbers are equal in all cases.
 */
#ifndef GLM_FORWARD_SEGMENT_H
#define GLM_FORWARD_SEGMENT_H

#include "src/forward/model.h"

/* Uploads tokens, positions and first cache rows (host, [n] each) to ws.tokens, ws.pos and ws.base,
 * with the rows of the token embedding that a card needs (ws.embed). 1 <= n <= ws.max_rows.
 * m->capture is set before: max_pos of the result is then rounded up, so that a captured segment
 * serves many positions. */
struct batch step_begin(
	struct model *m, int n, const int32_t *tokens, const int32_t *pos, const int32_t *base);

/* Begins a segment of a step; the result is that of segment_begin of the backend.
 * - first: its first layer; end_layer: the end of a step; n_layers + 1: a step of a draft round.
 * - variant, below 128: distinguishes segments that begin with the same layer. */
enum segment_mode segment_begin(struct model *m, struct kv_cache *kv, uint32_t first,
	const struct batch *rows, uint32_t variant);

#endif
