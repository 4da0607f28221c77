/* SPDX-License-Identifier: MIT */
/* Measures the copy bandwidth of a graphics card: from pinned host memory, back, and on the card.
 */
#ifndef GLM_TOOLS_MEASURE_CARD_H
#define GLM_TOOLS_MEASURE_CARD_H

#include "src/base/err.h"
#include "tools/bench/bench.h"

struct measure_card {
	bool there; /* false: no copier, the host reaches all memory of the backend */
	struct bench_spread in_bytes_s;   /* pinned host memory to the card */
	struct bench_spread out_bytes_s;  /* and back */
	struct bench_spread copy_bytes_s; /* on the card: bytes read and bytes written */
};

/* card: its number, from 0. Opens the backend ("cuda"; any other name: nothing is there) and takes
 * about 0.8 GB of the card and 0.3 GB of pinned memory meanwhile. */
int measure_card(
	const char *backend, uint32_t card, int repeats, struct measure_card *out, struct err *e);

#endif
