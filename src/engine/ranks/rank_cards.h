/* SPDX-License-Identifier: MIT */
/*
 * Two ranks must not share a card by accident: each plans with all of the card's free memory. Ranks
 * that share a card on purpose name it, both, with --cards and numbers.
 *
 * Order of use (rank_open.c): rank_cards_describe, then rank_cards_check on every rank.
 */
#ifndef GLM_ENGINE_RANK_CARDS_H
#define GLM_ENGINE_RANK_CARDS_H

#include "kernels/backend.h"
#include "src/engine/engine.h"
#include "src/engine/stages/stage.h"
#include "src/ranks/ranks.h"

/* The cards of a rank, one for each of its stages. */
struct rank_cards {
	uint32_t n;
	uint32_t named; /* not 0: the user named each of them */
	struct {
		uint32_t number;                  /* on its host, as its process sees the cards */
		uint8_t uuid[BACKEND_UUID_BYTES]; /* zeros: no card */
	} card[STAGES_MAX];
};

/* The cards of stages whose backends are open. */
struct rank_cards rank_cards_describe(const struct stage *stages, uint32_t n, bool named);

/* Do two ranks have one card, and not both have named it? Then *i and *k are its places in a and b.
 */
bool rank_cards_collide(
	const struct rank_cards *a, const struct rank_cards *b, uint32_t *i, uint32_t *k);

/* Every rank calls this at the same point. ERR_USAGE on all ranks: two share a card by accident;
 * the sentence names both ranks and the card. ERR_RUN: a rank is lost. */
int rank_cards_check(struct ranks *r, const struct rank_cards *mine, struct err *e);

#endif
