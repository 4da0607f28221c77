/* SPDX-License-Identifier: MIT */
/* mbind is called without libnuma, which would be one more library for one call. */
#include "src/base/host/numa.h"

#include "src/base/host/cores.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PIECES_MAX 1024

/* ---- which nodes there are ---- */

/* Memory of a node that is free or page cache; 0: it has none. */
static uint64_t node_free_bytes(const char *system, int id)
{
	char path[512], line[256], key[64];
	unsigned long long kb;
	uint64_t sum = 0;
	if (snprintf(path, sizeof path, "%s/node/node%d/meminfo", system, id) >= (int)sizeof path)
		return 0;
	FILE *f = fopen(path, "re");
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "Node %*d %63[^:]: %llu kB", key, &kb) == 2 &&
			(!strcmp(key, "MemFree") || !strcmp(key, "Active(file)") ||
				!strcmp(key, "Inactive(file)")))
			sum += (uint64_t)kb << 10;
	if (f)
		fclose(f);
	return sum;
}

/* Whether processors and memory of this node may be used: fills *node. */
static bool read_node(const char *system, int id, const int *cpus, int n, struct numa_node *node)
{
	char line[4096], name[64];
	*node = (struct numa_node){.id = id, .free_bytes = node_free_bytes(system, id)};
	snprintf(name, sizeof name, "node/node%d/cpulist", id);
	cores_first_line(line, sizeof line, system, name);
	for (int i = 0; i < n; i++)
		if (cores_list_names(line, cpus[i]))
			CPU_SET(cpus[i], &node->cpus);
	return node->free_bytes && CPU_COUNT(&node->cpus);
}

void numa_read(const char *system, const int *cpus, int n, const char *mems, struct numa_nodes *out)
{
	char online[4096];
	*out = (struct numa_nodes){0};
	cores_first_line(online, sizeof online, system, "node/online");
	for (int id = 0; id < CORES_NODES_MAX; id++) {
		struct numa_node node;
		if (!cores_list_names(online, id) || (*mems && !cores_list_names(mems, id)) ||
			!read_node(system, id, cpus, n, &node))
			continue;
		if (out->n == NUMA_NODES_MAX) {
			log_warn("NUMA: node %d and later ones are left out: %d nodes are used at most", id,
				NUMA_NODES_MAX);
			return;
		}
		out->node[out->n++] = node;
	}
}

void numa_read_host(struct numa_nodes *out)
{
	int cpus[CPU_SETSIZE];
	const int n = cores_list(cpus, CPU_SETSIZE);
	char line[4096], mems[4096] = "";
	FILE *f = fopen("/proc/self/status", "re");
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "Mems_allowed_list: %4095s", mems) == 1)
			break;
	if (f)
		fclose(f);
	numa_read(CORES_SYSTEM, cpus, n, mems, out);
}

int numa_node_of_cpu(const struct numa_nodes *nodes, int cpu)
{
	for (int i = 0; i < nodes->n && cpu >= 0 && cpu < CPU_SETSIZE; i++)
		if (CPU_ISSET(cpu, &nodes->node[i].cpus))
			return i + 1;
	return 0;
}

/* ---- memory ---- */

struct numa_division numa_divide(const struct numa_nodes *nodes, uint64_t bytes, uint64_t unit)
{
	const uint64_t units = bytes / MAX(unit, 1);
	struct numa_division d = {0};
	if (nodes->n < 2 || !units)
		return d;
	const uint64_t in_piece = (units + PIECES_MAX - 1) / PIECES_MAX;
	d.piece_bytes = in_piece * unit;
	d.n = (int)((units + in_piece - 1) / in_piece);
	d.node = NEW_ARRAY(uint8_t, (size_t)d.n);
	double all = 0, given[NUMA_NODES_MAX] = {0};
	for (int k = 0; k < nodes->n; k++) {
		all += (double)nodes->node[k].free_bytes;
		d.id[k + 1] = nodes->node[k].id;
	}
	for (int i = 0; i < d.n; i++) {
		int most = 0; /* the node that lacks most of its share of the pieces up to this one */
		double lacks = -1;
		for (int k = 0; k < nodes->n; k++) {
			const double now = (i + 1) * (double)nodes->node[k].free_bytes / all - given[k];
			if (now > lacks) {
				lacks = now;
				most = k;
			}
		}
		given[most]++;
		d.node[i] = (uint8_t)(most + 1);
	}
	return d;
}

void numa_division_free(struct numa_division *d)
{
	free(d->node);
	*d = (struct numa_division){0};
}

uint64_t numa_bytes_on(const struct numa_division *d, uint64_t bytes, int number)
{
	uint64_t sum = 0;
	for (int i = 0; i < d->n; i++)
		if (d->node[i] == number)
			sum += (i + 1 < d->n ? d->piece_bytes : bytes - (uint64_t)i * d->piece_bytes);
	return sum;
}

/* id -1: the policy of the process again. */
static int bind_pages(uint8_t *from, const uint8_t *to, int id)
{
	unsigned long mask[CORES_NODES_MAX / (8 * sizeof(unsigned long))] = {0};
	const size_t bits = 8 * sizeof mask[0];
	if (to <= from)
		return 0;
	if (id >= 0)
		mask[(size_t)id / bits] |= 1ul << (size_t)id % bits;
	/* the kernel reads one bit less than this number says */
	const long rc = id < 0 ? syscall(SYS_mbind, from, to - from, MPOL_DEFAULT, NULL, 0ul, 0u)
						   : syscall(SYS_mbind, from, to - from, MPOL_PREFERRED, mask,
								 (unsigned long)CORES_NODES_MAX + 1, 0u);
	return rc ? errno : 0;
}

void numa_settle(void *base, uint64_t bytes)
{
	bind_pages(base, (uint8_t *)base + bytes, -1);
}

int numa_prefer(void *base, uint64_t bytes, int id)
{
	return bind_pages(base, (uint8_t *)base + bytes, id);
}

void numa_place(struct numa_division *d, void *base, uint64_t bytes)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint8_t *const first = base, *const end = first + num_align_up(bytes, page);
	int refused = 0;
	for (int i = 0, next; i < d->n && !refused; i = next) {
		for (next = i + 1; next < d->n && d->node[next] == d->node[i];)
			next++;
		uint8_t *from = first + num_align_up((uint64_t)i * d->piece_bytes, page),
				*to =
					next < d->n ? first + num_align_up((uint64_t)next * d->piece_bytes, page) : end;
		const int id = d->id[d->node[i]];
		refused = bind_pages(from, to, id);
		if (refused)
			log_warn("memory is not placed on NUMA nodes, the kernel refuses node %d: %s", id,
				strerror(refused));
	}
	if (!refused)
		return;
	bind_pages(first, end, -1);
	numa_division_free(d);
}
