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
 * buffers free. A load is complete when the fence of its last copy is: its bytes are on the card.
 *
 * Demotions. The slot that a demotion leaves is needed at once, so its bytes are first copied to a
 * device staging slot, which takes microseconds. The card orders later copies behind that copy
 * (copier_ops.stream_wait). The copy to the host may be late: a demotion delays a demand only if
 * all staging slots are taken.
 *
 * Both directions share the link: 55 GB/s alone, 48 to 50 each together (PCIe 5.0). The compute
 * thread waits for copies to the card, but hardly ever for copies from it. So staged demotions are
 * copied in gaps, one chunk at a time while nothing is copied to the card. A staged demotion does
 * not wait for a gap
 *   - when many are staged: a cache that turns over fast must not wait for a staging slot;
 *   - under pressure (transfer.under_pressure): a prompt runs, or the compute thread waits for a
 *     slot;
 *   - when its expert is needed again (boost): it must arrive in tier 1 before it can be promoted.
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
