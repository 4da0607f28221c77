/* SPDX-License-Identifier: MIT */
/*
 * The next-token-prediction layer (MTP): drafts of the token after the next one.
 *
 * A pair (H_i, t_{i+1}) stands at position i: H_i is the hidden state of position i after the final
 * norm, t_{i+1} the token behind it. The caller keeps H of the last position of each step, because
 * the pair is complete only when the next token is known.
 *
 * Order of use: mtp_append after each model_forward of the session; mtp_draft as often as wanted
 * between steps.
 */
#ifndef GLM_FORWARD_MTP_H
#define GLM_FORWARD_MTP_H

#include "src/forward/forward.h"

/* After model_forward over rows of ONE sequence with first_hidden 0: enqueues the MTP cache rows of
 * all pairs that are complete now.
 * - (before, first token), unless the first row is position 0 or `before` is NULL (the pair stands
 *   in the cache). before: H of the position before the step, [n_embd] device memory of the caller.
 * - (H_r, token of row r + 1) for the rows inside the step.
 * Does not wait. */
void mtp_append(
	struct model *m, struct kv_cache *kv, const struct forward_rows *rows, const float *before);

/* Draft logits [n_vocab] (host) of the token after `next`, for the pair (before, next) at position
 * pos of the sequence that begins at cache row `base`. Writes that pair's cache row; ws.hidden row
 * 0 is the layer's output. Waits. Fails like model_forward. */
int mtp_draft(struct model *m, struct kv_cache *kv, const float *before, int32_t next, int32_t pos,
	int32_t base, float *out, struct err *e);

#endif
