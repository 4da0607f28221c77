/* SPDX-License-Identifier: MIT */
/* Which processors the process may use, and in which order threads are pinned to them. "Logical
 * processor": what Linux numbers as a CPU; with SMT a core has two. Any thread may call these. */
#ifndef GLM_BASE_CORES_H
#define GLM_BASE_CORES_H

#include <stdbool.h>
#include <stddef.h>

/* How many logical processors the process may use (its affinity mask); 1 if the system does not
 * say. */
int cores_allowed(void);

/* The logical processors that the process may use, ascending: cpus[most]. Returns how many; 0 if
 * the system does not say or has more than CPU_SETSIZE (1,024). */
int cores_list(int *cpus, int most);

#define CORES_SYSTEM "/sys/devices/system" /* where the kernel describes processors */

/* Whether a list of the kernel, as "0-3,8,10-11", contains the number. The part behind a damaged
 * one is ignored. */
bool cores_list_names(const char *list, int number);

/* NUMA nodes have lower numbers than this: the kernel's limit. */
#define CORES_NODES_MAX 1024

/* The first line of the file `name` below `system`, cut to line[size] and without its line feed; ""
 * where there is none. Returns line. */
const char *cores_first_line(char *line, size_t size, const char *system, const char *name);

/* Sorts cpus[n] (in: ascending) into the order in which compute threads are pinned to them:
 * - logical processors of the NUMA node of `near` before those of other nodes;
 * - in a node, one of each core before the siblings that share the core (SMT).
 * near: a logical processor; -1: no node is preferred. system: CORES_SYSTEM, in tests a folder of
 * the same layout; a processor that is not described there counts as a core of its own, in one node
 * with the others. */
void cores_pin_order(const char *system, int near, int *cpus, int n);

#endif
