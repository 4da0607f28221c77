/* SPDX-License-Identifier: MIT */
/* Balances the layers of a model over stages. Pure arithmetic. */
#ifndef GLM_ENGINE_STAGE_CUTS_H
#define GLM_ENGINE_STAGE_CUTS_H

#include <stdbool.h>
#include <stdint.h>

/* A layer, in bytes. The caller adds the head and the MTP layer to the last one. */
struct layer_cost {
	uint64_t held; /* all its weights, experts included, whether a card or a cache holds them */
	uint64_t read; /* those that one token reads; its time is proportional to them */
	bool shares; /* reuses the selection of an earlier layer: a cut in front hands that over too */
};

/* What a stage's card offers. */
struct stage_capacity {
	uint64_t room;    /* bytes for weights; 0: unknown */
	uint64_t bytes_s; /* bandwidth of its memory; 0: unknown */
};

/*
 * first[0 .. n) = the first layer of each of n stages, 1 <= n <= n_layers. Each stage gets at least
 * one layer. The cuts minimise the largest load of a stage:
 *
 *     load = held / room + read / bytes_s
 *
 * Each of the four is the stage's part of the sum over all stages. If any room is 0, all count as
 * equal; bytes_s likewise. Among cuts with the same largest load those win of which the fewest are
 * in front of a layer that shares a selection.
 */
void stage_cuts_balance(const struct layer_cost *layers, uint32_t n_layers,
	const struct stage_capacity *stages, uint32_t n, uint32_t *first);

#endif
