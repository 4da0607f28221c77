/* SPDX-License-Identifier: MIT */
#include "src/base/cores.h"

#include "src/base/mem.h"
#include "src/base/num.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CORES_MAX ((size_t)1 << 20)
#define NODES_MAX 64

/* The kernel refuses a set that is smaller than its own (EINVAL): the size grows until it fits. */
int cores_allowed(void)
{
	for (size_t n = CPU_SETSIZE; n <= CORES_MAX; n *= 2) {
		const size_t bytes = CPU_ALLOC_SIZE(n);
		cpu_set_t *set = CPU_ALLOC(n);
		if (!set)
			return 1;
		const int failed = sched_getaffinity(0, bytes, set) ? errno : 0,
				  count = failed ? 1 : CPU_COUNT_S(bytes, set);
		CPU_FREE(set);
		if (failed != EINVAL)
			return MAX(count, 1);
	}
	return 1;
}

/* ---- which ones ---- */

int cores_list(int *cpus, int most)
{
	cpu_set_t allowed;
	int n = 0;
	if (sched_getaffinity(0, sizeof allowed, &allowed))
		return 0;
	for (int cpu = 0; cpu < CPU_SETSIZE && n < most; cpu++)
		if (CPU_ISSET(cpu, &allowed))
			cpus[n++] = cpu;
	return n;
}

bool cores_list_names(const char *list, int number)
{
	while (*list) {
		char *end;
		const long first = strtol(list, &end, 10);
		long last = first;
		if (end == list)
			return false;
		if (*end == '-')
			last = strtol(end + 1, &end, 10);
		if (number >= first && number <= last)
			return true;
		list = *end ? end + 1 : end;
	}
	return false;
}

/* The first line of a file below `system`; "" where there is none. */
static const char *read_line(char *line, size_t size, const char *system, const char *name, int n)
{
	char path[512];
	*line = 0;
	if (snprintf(path, sizeof path, name, system, n) >= (int)sizeof path)
		return line;
	FILE *f = fopen(path, "r");
	if (!f)
		return line;
	if (!fgets(line, (int)size, f))
		*line = 0;
	fclose(f);
	line[strcspn(line, "\n")] = 0;
	return line;
}

/* Whether one of `others`, which have lower numbers, shares the core of `cpu`. */
static bool is_sibling(const char *system, int cpu, const int *others, int n)
{
	char line[1024];
	read_line(line, sizeof line, system, "%s/cpu/cpu%d/topology/thread_siblings_list", cpu);
	for (int i = 0; i < n; i++)
		if (cores_list_names(line, others[i]))
			return true;
	return false;
}

/* The processors of the NUMA node of `cpu`; "": unknown. */
static const char *node_of(char *line, size_t size, const char *system, int cpu)
{
	for (int node = 0; cpu >= 0 && node < NODES_MAX; node++)
		if (cores_list_names(read_line(line, size, system, "%s/node/node%d/cpulist", node), cpu))
			return line;
	*line = 0;
	return line;
}

void cores_pin_order(const char *system, int near, int *cpus, int n)
{
	char line[4096];
	const char *node = node_of(line, sizeof line, system, near);
	int *order = NEW_ARRAY(int, n), *rank = NEW_ARRAY(int, n), done = 0;
	for (int i = 0; i < n; i++)
		rank[i] =
			2 * (*node && !cores_list_names(node, cpus[i])) + is_sibling(system, cpus[i], cpus, i);
	for (int turn = 0; turn < 4; turn++)
		for (int i = 0; i < n; i++)
			if (rank[i] == turn)
				order[done++] = cpus[i];
	for (int i = 0; i < n; i++)
		cpus[i] = order[i];
	free(order);
	free(rank);
}
