/* SPDX-License-Identifier: MIT */
/* Balances the layers of a model over stages. Pure arithmetic. */
#ifndef GLM_ENGINE_STAGE_CUTS_H
#define GLM_ENGINE_STAGE_CUTS_H

#include <stdbool.h>
#include <stdint.h>

/* A layer, in bytes. The last one has the head and the MTP layer added. */
struct layer_cost {
	uint64_t held; /* all its weights, experts included: what a cache or a card has to hold */
	uint64_t read; /* what a token reads of them: the time that it takes */
	bool shares; /* takes the selection of a layer before it: a cut in front hands that over too */
};

/* What a stage has. */
struct stage_means {
	uint64_t room;    /* bytes for its weights */
	uint64_t bytes_s; /* how fast it reads them */
};

/* first[0 .. n) = the first layer of each of n stages, 1 <= n <= n_layers; each gets one layer at
 * least. The largest load of a stage is as small as possible. Its load: half its part of the bytes
 * held, in relation to its part of the room, and half its part of the bytes read, in relation to
 * its part of the speed. Room or speed of which any is 0 (unknown) count as equal. Of the cuts that
 * give this load those are taken of which the fewest are in front of layers that share a selection.
 */
void stage_cuts_balance(const struct layer_cost *layers, uint32_t n_layers,
	const struct stage_means *stages, uint32_t n, uint32_t *first);

#endif
