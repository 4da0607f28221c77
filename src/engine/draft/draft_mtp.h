/* SPDX-License-Identifier: MIT */
/* Drafts by the model's own draft layer (MTP), and a drafter that has it. */
#ifndef GLM_ENGINE_DRAFT_MTP_H
#define GLM_ENGINE_DRAFT_MTP_H

#include "src/engine/draft/draft.h"
#include "src/engine/engine.h"

/* --draft: how many drafts of a timeline a step verifies at most; 1 to DRAFT_MAX, or: */
#define DRAFT_AUTO (-1) /* as many as the gate (draft_gate.h) chooses */
#define DRAFT_OFF  0    /* none; no drafter is needed */

/* The MTP layer of an engine that has it, as a source. */
struct draft_source draft_mtp_source(struct engine *g);

/* The drafter of an engine; mode: DRAFT_AUTO, or 1 to DRAFT_MAX: as many as there are, up to that.
 * It uses prompt lookup, and the MTP layer if the engine has it. With DRAFT_AUTO not on the CPU
 * where no expert is waited for: a second row takes a third of a step there and a draft a fifth, so
 * drafts that are right half of the time cannot pay (pocket model). */
struct drafter *drafter_open(struct engine *g, int mode);

/* The drafts of a session. If the drafter uses the MTP layer, the session fills the layer's caches
 * from now on. d: of drafter_open; NULL: no drafts, returns NULL. Freed before the session. */
struct draft_timeline *draft_timeline_open(struct drafter *d, struct session *s);

#endif
