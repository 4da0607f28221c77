/* SPDX-License-Identifier: MIT */
/* Timelines that nothing has computed, for measurements of long contexts. */
#ifndef GLM_ENGINE_SESSION_FILL_H
#define GLM_ENGINE_SESSION_FILL_H

#include "src/engine/session/session.h"

/* Makes the timeline tokens[0..n) with random cache rows: latents with the values of a normed
 * vector, index keys as a layer norm leaves them, the same for every run. Latents repeat after some
 * thousand positions, index keys do not, so scores are as distinct as those of a text. What is
 * computed behind such rows costs what it costs behind a text, and says nothing.
 * - session_can_draft is false until a token has been computed.
 * - Errors: ERR_INPUT as session_sync; ERR_INTERRUPTED when *cancel (may be NULL) becomes true; a
 *   failure of the backend. The timeline is empty after an error, but for ERR_INPUT. */
int session_fill_random(
	struct session *s, const int32_t *tokens, uint32_t n, atomic_bool *cancel, struct err *e);

#endif
