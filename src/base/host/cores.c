/* SPDX-License-Identifier: MIT */
#include "src/base/host/cores.h"

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

const char *cores_first_line(char *line, size_t size, const char *system, const char *name)
{
	char path[512];
	*line = 0;
	if (snprintf(path, sizeof path, "%s/%s", system, name) >= (int)sizeof path)
		return line;
	FILE *f = fopen(path, "re");
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
	char line[1024], name[64];
	snprintf(name, sizeof name, "cpu/cpu%d/topology/thread_siblings_list", cpu);
	cores_first_line(line, sizeof line, system, name);
	for (int i = 0; i < n; i++)
		if (cores_list_names(line, others[i]))
			return true;
	return false;
}

/* The list of the processors of the NUMA node that `cpu` is in; "": unknown. */
static const char *node_cpulist(char *line, size_t size, const char *system, int cpu)
{
	char online[4096], name[64];
	cores_first_line(online, sizeof online, system, "node/online");
	for (int node = 0; cpu >= 0 && node < CORES_NODES_MAX; node++) {
		if (!cores_list_names(online, node))
			continue;
		snprintf(name, sizeof name, "node/node%d/cpulist", node);
		if (cores_list_names(cores_first_line(line, size, system, name), cpu))
			return line;
	}
	*line = 0;
	return line;
}

void cores_pin_order(const char *system, int near, int *cpus, int n)
{
	char line[4096];
	const char *node = node_cpulist(line, sizeof line, system, near);
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
