/* SPDX-License-Identifier: MIT */
#ifndef GLM_BASE_CORES_H
#define GLM_BASE_CORES_H

/* How many cores the process may use (its affinity), at least 1; 1 if the system does not say. */
int cores_allowed(void);

/* The logical processors that the process may use, ascending, at most so many; their number. */
int cores_list(int *cpus, int most);

#define CORES_SYSTEM "/sys/devices/system" /* where the kernel describes processors */

/* Puts logical processors [n], ascending, in the order in which threads that compute should be
 * pinned to them:
 * - those of the NUMA node of `near` before those of others,
 * - in a node, one of each core before the siblings that share it (SMT).
 * near: a logical processor, -1: any. system: CORES_SYSTEM, in tests a folder like it; where it
 * says nothing, each is a core of one node. */
void cores_pin_order(const char *system, int near, int *cpus, int n);

#endif
