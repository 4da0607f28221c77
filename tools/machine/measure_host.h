/* SPDX-License-Identifier: MIT */
/*
 * How fast the processor computes experts that lie in host memory (src/forward/moe/host_experts.h)
 * while the link is busy: what a second tier gives when both work on it.
 */
#ifndef GLM_TOOLS_MEASURE_HOST_H
#define GLM_TOOLS_MEASURE_HOST_H

#include "kernels/copier.h"
#include "src/format/gguf.h"
#include "tools/bench/bench.h"

#define MEASURE_SHAPES 7 /* of experts: layers of a model have few */

/* Experts of one shape, alone and the link idle. */
struct measure_shape {
	enum dtype gate, up, down;
	int layers;     /* of the model that have it */
	double bytes_s; /* weights that the processor computes: the median sample */
};

struct measure_host {
	bool there; /* false: the processor can compute none of the model's experts; the rest is 0 */
	struct bench_spread alone_bytes_s; /* weights that the processor computes, the link idle */
	/* while both work; 0 without a copier */
	struct bench_spread host_bytes_s; /* weights that the processor computes */
	struct bench_spread link_bytes_s; /* copied from pinned host memory to the card */
	struct bench_spread both_bytes_s; /* sum of the two */
	struct measure_shape shapes[MEASURE_SHAPES];
	int n_shapes;
};

/* "IQ2_XXS 30.5 GB/s; IQ2_XXS / Q2_K 34.1 GB/s": the rate of each shape, the commonest first. A
 * shape has the types of gate and up, and after the stroke down's where it is another one. */
#define MEASURE_SHAPES_TEXT 512
const char *measure_shapes_text(const struct measure_host *m, char text[MEASURE_SHAPES_TEXT]);

/* Computes experts of the model's shapes and types with random weights: one row, and as many
 * experts at a time as a token uses. The weights are more than the last-level cache holds.
 * - copier: of the card, lent; a thread that this starts keeps the link busy. NULL: no card.
 * - threads: of the processor; 0: as host_experts_backend chooses.
 * - seconds: length of a sample; repeats: samples, at most BENCH_MAX_REPEATS.
 * Errors: ERR_INPUT for a file that is no model, ERR_MEMORY, a failed copy, ERR_INTERRUPTED. */
int measure_host(struct copier *copier, const struct gguf *file, int threads, double seconds,
	int repeats, struct measure_host *out, struct err *e);

#endif
