/* SPDX-License-Identifier: MIT */
/* Engines and sessions for tests: what cannot be opened fails the running one. */
#ifndef GLM_TESTS_ENGINE_HELP_H
#define GLM_TESTS_ENGINE_HELP_H

#include "src/engine/engine.h"
#include "src/engine/session/session.h"

struct engine *engine_of(const struct engine_options *o);
struct session *session_of(struct engine *g, bool mtp);

/* The cards of `n` stages (STAGES_MAX at most): those that GLM_CARDS of the environment lists
 * ("0,1"), again and again; without it card 0. The array is the same for every call. */
const uint32_t *stage_cards(uint32_t n);

/* Skips the running test where n stages on these cards do not compute at the same time: two of them
 * share a graphics card (pipeline_depth). */
void skip_unless_stages_overlap(uint32_t n);

/* generate_hash of the logits that the session has. */
uint64_t logits_hash(const struct session *s);

/* The logits [vocab] of the draft behind `next`. */
void draft_of(struct session *s, int32_t next, float *logits);

/* n tokens one by one, the draft behind each first: `hash` goes on over the logits of drafts and
 * session. */
uint64_t drafts_hash(struct session *s, const int32_t *ids, int n, uint64_t hash);

#endif
