/* SPDX-License-Identifier: MIT */
/* Private to host_experts.c, which computes, and host_times.c, which knows how long that takes. */
#ifndef GLM_FORWARD_HOST_EXPERTS_INTERNAL_H
#define GLM_FORWARD_HOST_EXPERTS_INTERNAL_H

#include "src/base/host/numa.h"
#include "src/forward/moe/host_experts.h"

#include <stdatomic.h>

#define SLOTS_TIMED 8  /* times of experts with 1 .. SLOTS_TIMED slots are kept apart */
#define KINDS_MAX   16 /* of a model's experts: layers have few types */

/* Experts whose matrices have the same types. */
struct host_kind {
	enum dtype gate, up, down;
	bool slow; /* host_experts_too_slow: the card computes them all */
	/* Moving means, for a byte of weights: [NUMA node that these lie on; 0: all threads compute
	 * them] [slots - 1]. */
	double ns_per_byte[NUMA_NODES_MAX + 1][SLOTS_TIMED];
};

struct host_experts {
	struct backend *card, *processor;
	const struct host_progress *progress; /* of the call of host_experts_compute; NULL: none */
	uint32_t max_rows, n_embd, n_used;
	/* one allocation of the card's backend, MEM_SHARED */
	uint64_t *words; /* [max_rows][n_embd] */
	float *results;  /* [max_rows * n_used][n_embd] */
	size_t shared_bytes;
	float *x;                                          /* [max_rows][n_embd] h of the layer */
	uint64_t fence;                                    /* of the layer whose h is in x */
	struct numa_nodes nodes;                           /* n 0: not divided */
	uint32_t node_ns[SLOTS_TIMED][NUMA_NODES_MAX + 1]; /* as host_experts_node_ns returned it */
	struct host_kind kinds[KINDS_MAX];
	int n_kinds;
	uint64_t n_experts, words_ns; /* in all: computed, waited for words */
	_Atomic uint64_t bytes, ns;   /* of n_experts: weights, time */
};

/* The jobs, all of one layer, were computed in `ns`. Counts them, and moves the means of the node
 * that should end last by the means so far. */
void host_experts_measured(
	struct host_experts *h, const struct expert_job *jobs, int n_jobs, uint64_t ns);

#endif
