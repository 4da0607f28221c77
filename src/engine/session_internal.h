/* SPDX-License-Identifier: MIT */
/* The inside of a session, for the files of this folder that work on timelines. */
#ifndef GLM_ENGINE_SESSION_INTERNAL_H
#define GLM_ENGINE_SESSION_INTERNAL_H

#include "src/engine/engine_internal.h"
#include "src/engine/session.h"

struct session {
	struct engine *g;
	uint32_t slot;   /* index into g->taken */
	int32_t base;    /* first cache row */
	int32_t *tokens; /* [context] */
	uint32_t length; /* tokens whose cache rows are valid */
	float *logits;   /* [n_vocab] of position length - 1; shared memory, so the device writes it */
	bool has_logits;
	bool mtp;
	float *hidden; /* [n_embd] device: hidden state of position length - 1, for MTP */
	bool has_hidden;
	int32_t *pos, *bases; /* [chunk] scratch of a step */
	struct session_taps *taps;
	uint32_t tap_rows; /* tokens computed since the taps were set */
};

/* ERR_INPUT when one of the n tokens is no id of the model, or when `length` is beyond the context.
 */
int session_check(
	const struct session *s, const int32_t *tokens, uint32_t n, uint64_t length, struct err *e);

/* What is done about logits that are not finite: the timeline is forgotten. ERR_RUN. */
int session_not_finite(struct session *s, struct err *e);

#endif
