/* SPDX-License-Identifier: MIT */
/*
 * The next-token-prediction layer (MTP): drafts of the tokens after the next one.
 *
 * A pair (H_i, t_{i+1}) stands at position i: H_i is the hidden state of position i after the final
 * norm, t_{i+1} the token behind it. The caller keeps H of the last position of a sequence
 * (mtp_keep_states), because the pair is complete only when the next token is known.
 *
 * A round of drafts is a recursion. Step 0 computes the pair (H_p, next) at position p and chooses
 * the first draft. Step j takes the output of step j - 1, after shared_head.norm, in place of H,
 * and the draft chosen there; it stands at position p + j.
 *
 * Cache rows of the layer
 * - mtp_append writes the rows of pairs with hidden states of the trunk. These rows are final.
 * - Step 0 of a round writes the row of its pair. mtp_append writes it again when `next` is
 *   computed.
 * - Steps 1 and later write scratch rows, of pairs with the layer's own output. No computation
 *   reads a row at a higher position than the one it has just written, so a scratch row is read in
 *   its own round only.
 *
 * What a step attends to: step 0 makes the layer's own selection S among the positions 0 .. p
 * (below index_topk all of them). Step j attends to S and to p + 1 .. p + j, the round's own rows.
 *
 * Order of use: mtp_append and mtp_keep_states after each model_forward; mtp_draft as often as
 * wanted between steps.
 */
#ifndef GLM_FORWARD_MTP_H
#define GLM_FORWARD_MTP_H

#include "src/draw/draw.h"
#include "src/forward/forward.h"

#define MTP_NO_PAIR (-1)

/* After model_forward: enqueues the MTP cache rows of the pairs that the step completes. Does not
 * wait. A failure of its ops is kept in the backend; the rows are undefined then, and so are the
 * states of mtp_keep_states.
 * - rows: those of the step.
 * - states [n]: for row r of the step, the row of ws.hidden with the hidden state of position
 *   rows->pos[r] - 1, where the pair stands. That is r - 1 inside a sequence; a kept state
 *   (workspace_state_row) for the first row of a sequence; MTP_NO_PAIR: no row is written.
 * - Precondition: model_forward was called with a first_hidden of at most the least r - 1 named.
 * - No op whose blocks wait for each other is enqueued (backend.h: Threads): the first stage may
 *   begin the next step meanwhile, on the same card. */
void mtp_append(
	struct model *m, struct kv_cache *kv, const struct forward_rows *rows, const int32_t *states);

/* The MTP cache rows of rows->n <= ws.max_rows pairs whose hidden states are lost, from the tokens
 * alone: H is zero. They are nearly as good (session_can_draft). Enqueued. Uses the buffers of a
 * step, so it may not come between model_forward and mtp_append.
 * - rows: the second tokens of the pairs, at positions of at least 1. */
void mtp_append_tokens(struct model *m, struct kv_cache *kv, const struct forward_rows *rows);

/* Copies the hidden states of rows [first, first + n) of the step, n <= VERIFY_ROWS, to the states
 * 0 .. n - 1 of sequence `session` < ws.mtp_sessions (workspace_state_row). Enqueued; after
 * mtp_append, which may read the older states. */
void mtp_keep_states(struct model *m, uint32_t first, uint32_t n, uint32_t session);

/* Chooses draft `step` (from 0) of a round. drawn: what the device drew for it (draws[step]).
 * - The first call has logits NULL. It returns an id below n_vocab, or MTP_WANTS_LOGITS.
 * - After MTP_WANTS_LOGITS a second call has the logits [n_vocab], host memory that is valid during
 *   the call, and returns an id. */
#define MTP_WANTS_LOGITS (-1)
typedef int32_t mtp_choose_fn(
	void *user, const struct draw_result *drawn, const float *logits, uint32_t step);

/* A sequence that drafts. */
struct mtp_sequence {
	uint32_t state;    /* row of ws.hidden with H of the last position */
	int32_t next;      /* the token behind it */
	int32_t pos;       /* the last position */
	int32_t base;      /* first cache row of the sequence; rows up to pos + n_drafts - 1 */
	uint32_t n_drafts; /* 1 to DRAFTS_MAX */
	/* [n_drafts] how the device draws each draft; NULL: the likeliest id */
	const struct draw_request *draws;
	mtp_choose_fn *choose; /* NULL: the drawn id is the draft */
	void *user;
	int32_t *ids;  /* out [n_drafts] */
	float *logits; /* out [n_drafts][n_vocab], host; NULL: not wanted */
};

/* One round for n different sequences, 1 <= n <= ws.draft_rows; their n_drafts may differ. Draws
 * are from the first n_valid ids.
 * - Overwrites ws.logits, ws.drawn and the first n rows of ws.hidden, which are the step's.
 * - Waits for the device once a step of the round, and once more for each row whose logits are
 *   downloaded. The device is idle and no expert is pinned on return.
 * - Errors: a failed op, a failed expert read. The ids are undefined then. */
int mtp_draft(struct model *m, struct kv_cache *kv, const struct mtp_sequence *sequences,
	uint32_t n, int32_t n_valid, struct err *e);

#endif
