/* SPDX-License-Identifier: MIT */
/*
 * The transfer to and from a card, see transfer.h for the contract. The host cannot read into the
 * card's memory, so bytes pass through pinned memory in chunks:
 *
 *     file --read--> staging buffer --copy--> slot of tier 0                load from a file
 *     slot of tier 1 (pinned) -------copy---> slot of tier 0                load from tier 1
 *     slot of tier 0 --copy--> device staging slot --copy--> slot of tier 1 demotion
 *
 * Loads. Demands go first and may take every staging buffer; other loads leave a third of the
 * buffers free.
 * A load is done when the fence of its last copy is, that is when its bytes stand on the card.
 *
 * Demotions. The slot that a demotion leaves is wanted at once, so its bytes first go to the device
 * staging buffer, which takes microseconds. Copies into the card and out of it are ordered behind
 * that by the card itself. The way to the host takes its time: a demotion delays no demand unless
 * all staging slots are taken, or its part of tier 1 is not pinned yet.
 *
 * Both directions share the link: 55 GB/s alone, 48 to 50 each together (PCIe 5.0). Somebody waits
 * for what comes in; for what leaves hardly anybody does. So staged demotions leave in gaps, one
 * small chunk at a time while nothing comes in. They wait for no gap
 *   - when many are staged: a cache that turns over fast must not wait for a staging slot;
 *   - under pressure (transfer.under_pressure): a prompt runs, or the compute thread waits
 *     for a slot;
 *   - when this very expert is wanted again (boost): it has to arrive before it can come back.
 */
#ifndef GLM_STREAM_CARD_TRANSFER_H
#define GLM_STREAM_CARD_TRANSFER_H

#include "stream/loader/card_memory.h"
#include "stream/loader/transfer.h"

/* `memory` is lent and outlives the transfer. demotion_chunk_bytes: of a demotion that waits for a
 * gap; 0: 2.5 MiB. NULL: no memory for the tables. */
struct transfer *card_transfer_open(
	const struct transfer_config *config, struct card_memory *memory, size_t demotion_chunk_bytes);

#endif
