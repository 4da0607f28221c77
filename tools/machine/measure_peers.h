/* SPDX-License-Identifier: MIT */
/* `bench copy --cards 0,1`: transfers between two cards. */
#ifndef GLM_TOOLS_MEASURE_PEERS_H
#define GLM_TOOLS_MEASURE_PEERS_H

#include "src/base/err.h"
#include "tools/bench/bench.h"

/* Adds figures of the cards `first` and `second`, which may be the same: rates of the links to the
 * host, peer access, rates of copies each way, and the time that handing over a row of 24 KB takes
 * in each way of peer.h. Takes about 0.8 GB of each card. A way that cannot be measured is left
 * out; log_info gives the reason. ERR_RUN: no card answers; ERR_USAGE: there is no such card;
 * ERR_MEMORY, ERR_INTERRUPTED. */
int bench_peers(struct bench *b, uint32_t first, uint32_t second, struct err *e);

#endif
