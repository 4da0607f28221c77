/* SPDX-License-Identifier: MIT */
/* Fills the cache of a session with random rows: long contexts for benchmarks, without a prefill.
 */
#ifndef GLM_ENGINE_SESSION_FILL_H
#define GLM_ENGINE_SESSION_FILL_H

#include "src/engine/session/session.h"

/* Replaces the timeline by tokens[0 .. n), n >= 1, with random cache rows of mean 0 and variance 1,
 * which is what norms leave. The rows are the same in every run. Latents repeat after some thousand
 * positions; index keys do not, so scores are as distinct as those of a text. A step behind such
 * rows takes the time that it takes behind a text; its logits mean nothing.
 * - session_can_draft is false until a token has been computed.
 * - Errors: ERR_INPUT as session_sync, and the timeline is unchanged; ERR_MEMORY; ERR_INTERRUPTED
 *   when *cancel (may be NULL) becomes true; a failure of the backend. The timeline may be empty
 *   after these. */
int session_fill_random(
	struct session *s, const int32_t *tokens, uint32_t n, atomic_bool *cancel, struct err *e);

#endif
