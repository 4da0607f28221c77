/* SPDX-License-Identifier: MIT */
/*
 * A model that can compute: configuration and weights with everything a step needs besides a cache.
 * It may be a range of the layers (config.first_layer, end_layer).
 *
 * Order of use: model_init, then any number of steps (forward.h, mtp.h), then model_fini. One
 * thread computes with a model, one step at a time. Backend and expert source are borrowed and
 * outlive it.
 */
#ifndef GLM_FORWARD_MODEL_H
#define GLM_FORWARD_MODEL_H

#include "kernels/backend.h"
#include "src/forward/moe/host_experts.h"
#include "src/forward/moe/lookahead.h"
#include "src/forward/moe/moe.h"
#include "src/forward/step_counts.h"
#include "src/forward/workspace.h"
#include "src/model/config.h"
#include "src/model/kv_cache.h"
#include "src/model/weights.h"
#include "stream/expert_source.h"

struct model {
	struct model_config config;
	struct model_weights weights; /* owned */
	struct backend *backend;
	struct expert_source *source;
	bool has_mtp;              /* drafts are possible: mtp_sessions is not 0 */
	float *inv_freq;           /* [head_rope / 2] device */
	struct host_experts *host; /* borrowed, set after model_init; NULL: the card computes all */
	struct workspace ws;
	struct moe_plan plan;         /* experts of the current layer (moe.c) */
	struct prediction prediction; /* not passed on yet (lookahead.c) */
	/* segments (segment.c) */
	uint8_t *step_host;                    /* what step_begin uploads to ws.step */
	bool capture;                          /* the segments of this step are to be captured */
	struct step_counts counts;             /* of steps by their number of rows */
	const void *captured_kv;               /* arena of the cache that captured graphs use */
	struct model_observation *observation; /* observe.c; NULL: there is no observer */
};

/* Takes ownership of the weights, on success and on failure. max_rows: the largest step;
 * mtp_sessions (for a model without MTP layer: 0) and embed_row_bytes as in workspace_bytes.
 * ERR_MEMORY when the host or the backend lacks the memory; nothing is left behind then. */
int model_init(struct model *m, const struct model_config *c, struct model_weights *w,
	uint32_t mtp_sessions, struct backend *b, struct expert_source *source, size_t embed_row_bytes,
	uint32_t max_rows, struct err *e);
void model_fini(struct model *m); /* waits for the device; accepts a zeroed struct */

#endif
