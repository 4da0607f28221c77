/* SPDX-License-Identifier: MIT */
/*
 * How fast the processor computes experts that lie in host memory (src/forward/host_experts.h)
 * while the link is busy: what a second tier gives when both work on it.
 */
#ifndef GLM_TOOLS_MEASURE_HOST_H
#define GLM_TOOLS_MEASURE_HOST_H

#include "kernels/copier.h"
#include "src/format/gguf.h"
#include "tools/bench/bench.h"

struct measure_host {
	bool there; /* false: the processor computes none of the model's experts */
	struct bench_spread alone_bytes_s; /* weights of experts, the link at rest */
	/* at the same time: zero without a copier */
	struct bench_spread host_bytes_s; /* weights of experts */
	struct bench_spread link_bytes_s; /* pinned host memory to the card */
	struct bench_spread both_bytes_s; /* the two together */
};

/* Computes experts of the model's shapes and types with random weights, one row and as many experts
 * at a time as a token uses. They are more than the last-level cache holds.
 * - copier: of the card, to keep the link busy; by the thread that this starts. NULL: no card.
 * - threads: of the processor; 0: as host_experts_open chooses.
 * - seconds: of a sample.
 * Errors: ERR_INPUT for a file that is no model, ERR_MEMORY, a failed copy, ERR_INTERRUPTED. */
int measure_host(struct copier *copier, const struct gguf *file, int threads, double seconds,
	int repeats, struct measure_host *out, struct err *e);

#endif
