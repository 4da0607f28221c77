/* SPDX-License-Identifier: MIT */
#ifndef GLM_TESTS_NUMA_PAIR_H
#define GLM_TESTS_NUMA_PAIR_H

#include "src/base/host/cores.h"
#include "src/base/host/numa.h"

/* Two nodes with a processor each, if there are so many. The kernel knows both by the number of its
 * first one, the second by `second`. */
static inline bool numa_pair_of(struct numa_nodes *nodes, int second)
{
	int cpus[2];
	if (cores_list(cpus, 2) < 2)
		return false;
	*nodes = (struct numa_nodes){.n = 2};
	for (int k = 0; k < 2; k++) {
		nodes->node[k] = (struct numa_node){.id = k * second, .free_bytes = 2 - (uint64_t)k};
		CPU_SET(cpus[k], &nodes->node[k].cpus);
	}
	return true;
}

#endif
