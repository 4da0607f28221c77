/* SPDX-License-Identifier: MIT */
/* Two cards and what lies between them, measured: `bench copy --cards 0,1`. */
#ifndef GLM_TOOLS_MEASURE_PEERS_H
#define GLM_TOOLS_MEASURE_PEERS_H

#include "src/base/err.h"
#include "tools/bench/bench.h"

/* Adds the figures of the cards `first` and `second`, which may be the same: links to the host,
 * access, copies each way, and the time in which a row of 24 KB is handed over. Takes about 0.8 GB
 * of each card. What cannot be measured is left out with a line that says why (log_info). ERR_RUN:
 * no card answers; ERR_USAGE: one does not exist. */
int bench_peers(struct bench *b, uint32_t first, uint32_t second, struct err *e);

#endif
