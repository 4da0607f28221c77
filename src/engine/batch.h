/* SPDX-License-Identifier: MIT */
/*
 * One step for several sessions of one engine. Rows of all of them go through the model together,
 * so an expert read for one serves all. A row's numbers do not depend on what its neighbours are,
 * but on CUDA on whether the step has more than 16 rows (kernels/backend.h: Numbers).
 */
#ifndef GLM_ENGINE_BATCH_H
#define GLM_ENGINE_BATCH_H

#include "src/engine/session.h"

/* Tokens to append to one session. */
struct batch_part {
	struct session *session;
	const int32_t *tokens; /* [n], borrowed for the call */
	uint32_t n;            /* >= 1 */
	bool logits; /* compute the logits of the last token; else session_logits is NULL afterwards */
};

/* Most rows of one step: those of all parts together. */
uint32_t batch_max_rows(const struct engine *g);

/* Appends and computes all parts.
 * - The sessions are distinct, of one engine, and without MTP; at most batch_max_rows tokens.
 * - cancel (may be NULL) is read before each layer.
 * - A part whose logits are not finite loses its timeline (length 0, no logits): weights or caches
 *   are damaged. The other parts are computed.
 * - ERR_INPUT when an id is out of range or a part does not fit its session's context: nothing has
 *   changed. After any other error no timeline has grown, and the logits of all parts are gone. */
int batch_step(
	const struct batch_part *parts, uint32_t n_parts, atomic_bool *cancel, struct err *e);

/* Makes the timeline of `to` the first n tokens of `from`, n <= its length, by copying cache rows.
 * Different sessions of one engine, without MTP. `to` has no logits afterwards. */
int batch_copy_prefix(struct session *to, const struct session *from, uint32_t n, struct err *e);

#endif
