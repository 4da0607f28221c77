/* SPDX-License-Identifier: MIT */
/*
 * The forward pass: rows of tokens -> hidden states -> logits (specification section 2).
 *
 *   embed -> for each layer: attention (attention.h), feed-forward network (moe.h) -> final norm
 *
 * Order of use, for each step: model_forward, then model_logits for the rows that need logits, and
 * mtp_append (mtp.h) where drafts are wanted. How a step reaches the device: segment.h.
 */
#ifndef GLM_FORWARD_FORWARD_H
#define GLM_FORWARD_FORWARD_H

#include "src/forward/model.h"

#include <stdatomic.h>

/* Intermediate results of a step, for parity tests. Host memory; NULL: not wanted. */
struct forward_taps {
	float *resid_last;     /* [n_layers][n_embd] residual stream of the last row */
	uint16_t *router;      /* [n rows of the step][n_moe][n_used] top-k expert ids, ascending */
	int32_t *index_last;   /* [n_layers][index_top_k] selection of the last row */
	int32_t *n_index_last; /* [n_layers] */
};

/* One step of n <= max_rows rows; host memory, lent for the call. Rows of several sequences may be
 * mixed; those of one sequence are neighbours and their positions ascend by one. */
struct forward_rows {
	uint32_t n;
	const int32_t *tokens; /* [n] */
	const int32_t *pos;    /* [n] position in the row's own sequence */
	const int32_t *base;   /* [n] first cache row of that sequence */
	/* [n] rows that may be dropped afterwards: their experts are requested last (expert_source.h:
	 * keep_rows); NULL: none */
	const bool *draft;
	bool long_prompt; /* rows of a prompt of LONG_PROMPT tokens or more (moe.h) */
	bool answers;     /* all rows are of answers, and at most ANSWER_ROWS (moe.h) */
	/* Another stage goes on with the rows (stage_link.h), so the last ops may still run on return.
	 * The caller hands the rows over, then calls moe_drain (moe.h), also when handing over failed.
	 */
	bool hands_over;
	struct forward_taps *taps; /* NULL: none. Taps slow a step down: the host waits per layer */
	/* Stops the step: read before each layer, between groups of experts, and inside ops where the
	 * backend can (backend.h: set_cancel). NULL: never */
	atomic_bool *cancel;
	/* Called when the host has served so many of the layers; NULL: nothing. */
	void (*on_layer)(void *user, uint32_t done, uint32_t n_layers);
	/* Called once, when the device has work and the host would only wait; NULL: nothing. */
	void (*on_device_busy)(void *user);
	void *user;
};

/*
 * Computes all rows through the layers of the model. Writes their cache rows, and to ws.hidden the
 * hidden states, after the final norm, of rows first_hidden .. n - 1: row r at r * n_embd.
 *
 * A model with a part of the layers:
 * - Without layer 0: before the call ws.x holds the residual stream of the rows. If its first layer
 *   shares a selection, ws.sel and ws.n_sel hold that of the latest full layer.
 * - Without the last layer: on return ws.x, ws.sel and ws.n_sel hold these for the model with the
 *   next layers. first_hidden is n.
 *
 * On return
 * - first_hidden < n: the last ops may still run. model_logits and model_draw wait for them and
 *   return their failure.
 * - first_hidden >= n: no hidden state is wanted; the device is idle, unless rows->hands_over.
 * - An error (a failed op, a failed expert read, ERR_INTERRUPTED): the device is idle, no expert is
 *   pinned, and the cache rows of this step are undefined.
 */
int model_forward(struct model *m, struct kv_cache *kv, const struct forward_rows *rows,
	uint32_t first_hidden, struct err *e);

/* Logits of n hidden rows [n][n_embd] (device) of the last step -> out [n][n_vocab] (host). Waits
 * for the device, returns its failure, and leaves no expert pinned. */
int model_logits(struct model *m, const float *hidden, uint32_t n, float *out, struct err *e);

/* Logits of n <= ws.logit_rows hidden rows [n][n_embd] (device) -> ws.logits, then op `draw` on the
 * first n_valid ids of each row: ws.drawn[r] is the result of requests[r]. copy: MEM_SHARED
 * [n][n_vocab], gets the logits too; NULL: they stay on the device. Waits and returns as
 * model_logits. */
struct draw_request;
int model_draw(struct model *m, const float *hidden, uint32_t n,
	const struct draw_request *requests, int32_t n_valid, float *copy, struct err *e);

#endif
