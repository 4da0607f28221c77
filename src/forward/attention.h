/* SPDX-License-Identifier: MIT */
/*
 * Multi-head latent attention with the DSA indexer. All calls enqueue ops and return; none waits.
 * Layers are called in ascending order: a full layer renews the selection ws.sel, the shared layers
 * above it read it.
 */
#ifndef GLM_FORWARD_ATTENTION_H
#define GLM_FORWARD_ATTENTION_H

#include "kernels/backend.h"
#include "src/model/kv_cache.h"

struct model;

/* The norm of ws.x that the attention of a layer begins with; its output is ws.h. */
struct norm attention_input_norm(const struct model *m, uint32_t layer);

/* ws.x += attention(ws.x) of one layer, and the layer's cache rows. normed: ws.h holds
 * attention_input_norm already. draft_sel: a full layer attends to ws.draft_sel, and selects
 * nothing itself. */
void attention_forward(struct model *m, struct kv_cache *kv, uint32_t layer,
	const struct batch *rows, bool normed, bool draft_sel);

/* Only the layer's cache rows (latent and, on full layers, index key) from ws.x: no query, no
 * attention. For the MTP layer and tokens that are already known. */
void attention_append(
	struct model *m, struct kv_cache *kv, uint32_t layer, const struct batch *rows);

#endif
