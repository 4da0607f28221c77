/* SPDX-License-Identifier: MIT */
/*
 * What memory a run takes, decided and printed before any is taken. On a card two budgets count:
 * the card's memory (weights, caches, workspace, first tier, parking) and the host's (pinned:
 * second tier, bounce buffers).
 */
#ifndef GLM_ENGINE_PLAN_H
#define GLM_ENGINE_PLAN_H

#include "kernels/backend.h"
#include "src/engine/engine.h"
#include "src/model/weights.h"
#include "stream/loader/loader.h"

struct plan {
	uint32_t context, chunk, sessions;
	enum dtype kv_type;
	bool mtp;
	bool on_card;     /* the backend cannot reach the mapped file */
	bool streaming;   /* experts come through a cache; else all of them are copied to the card, or
						 used where they are mapped */
	size_t available; /* to the backend; 0: unknown */
	size_t host_available; /* on a card: to be pinned; 0: unknown */
	size_t resident, kv, workspace;
	size_t ram_copies; /* of the second tier of --ram-gb auto: for copies of experts that stand in
						  the first */
	size_t scratch;    /* on a card: what ops take for themselves */
	size_t experts;    /* bytes of all experts when they are copied to the card, else 0 */
	struct loader_options
		loader;               /* budgets as they will be used; borrows from the engine's options */
	struct loader_plan tiers; /* zeros without streaming */
};

/* Decides and prints. Refuses with ERR_MEMORY, and a hint what would fit, what the machine has not;
 * with ERR_USAGE a context longer than the model's. `w`: bound, of `resident` bytes. */
int plan_make(const struct model_config *c, const struct engine_options *o, const struct gguf *file,
	const struct model_weights *w, size_t resident, struct backend *b, struct plan *p,
	struct err *e);

/* Bytes of all experts of the first n_layers layers, as a card holds them. */
size_t plan_expert_bytes(const struct model_weights *w, uint32_t n_layers);

#endif
