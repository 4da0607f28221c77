/* SPDX-License-Identifier: MIT */
/*
 * The NUMA nodes of the host, and memory that is divided among them.
 *
 * Order of use:
 *   1. numa_read_host; with fewer than two nodes nothing below is of use
 *   2. numa_divide: which piece of a mapping goes to which node
 *   3. numa_place: tells the kernel, before the first write to the mapping
 *   4. numa_node_at: the node of a byte
 *   5. numa_division_free
 *
 * Nodes are numbered from 1 on in the order of struct numa_nodes; 0 says that no node is known.
 * Threads: any thread may call any function; numa_place and numa_division_free change the division,
 * so no other thread may use it then.
 */
#ifndef GLM_BASE_NUMA_H
#define GLM_BASE_NUMA_H

#include <sched.h>
#include <stddef.h>
#include <stdint.h>

#define NUMA_NODES_MAX 16

struct numa_node {
	int id;              /* the kernel's */
	cpu_set_t cpus;      /* logical processors that the process may use; not empty */
	uint64_t free_bytes; /* free memory and page cache */
};

/* Nodes that have both processors and memory that the process may use. */
struct numa_nodes {
	int n; /* 0: the kernel does not say */
	struct numa_node node[NUMA_NODES_MAX];
};

/* system: CORES_SYSTEM, or a folder of the same layout. cpus [n]: processors that the process may
 * use. mems: nodes whose memory it may use, as "0-1"; "": any. Nodes beyond NUMA_NODES_MAX are left
 * out, with a warning: no memory is placed on them, and their processors count as of no node. */
void numa_read(
	const char *system, const int *cpus, int n, const char *mems, struct numa_nodes *out);
/* Of this process. */
void numa_read_host(struct numa_nodes *out);

/* The number (from 1 on) of the node with processor `cpu`; 0: none. */
int numa_node_of_cpu(const struct numa_nodes *nodes, int cpu);

struct numa_division {
	uint64_t piece_bytes;
	int n;                      /* pieces; 0: nothing is divided */
	uint8_t *node;              /* [n] numbers; the last piece has what is left */
	int id[NUMA_NODES_MAX + 1]; /* the kernel's, by number */
};

/* Divides `bytes` into pieces of a multiple of `unit` bytes (the last has the rest) and gives them
 * to the nodes in proportion to their free memory.
 * - Any first k pieces are divided in the same proportion, with an error of less than one piece a
 *   node.
 * - There are at most 1,024 pieces, since the kernel may keep a mapping for each.
 * - Fewer than two nodes, or less than a unit: n is 0.
 * - Released with numa_division_free. */
struct numa_division numa_divide(const struct numa_nodes *nodes, uint64_t bytes, uint64_t unit);
void numa_division_free(struct numa_division *d); /* of a zeroed one too */

static inline int numa_node_at(const struct numa_division *d, uint64_t offset)
{
	if (!d->n)
		return 0;
	const uint64_t piece = offset / d->piece_bytes;
	return d->node[piece < (uint64_t)d->n ? piece : (uint64_t)d->n - 1];
}

/* Bytes of a mapping that lie on a node. bytes: all of the mapping, as given to numa_divide. */
uint64_t numa_bytes_on(const struct numa_division *d, uint64_t bytes, int number);

/* Tells the kernel to put pages of base[bytes] that have not been written yet on the nodes of the
 * division, and on others when a node is full.
 * - base: page-aligned. A page that two pieces share goes to the first of them.
 * - d: of n 0 changes nothing.
 * - If the kernel refuses, logs a warning, removes the placement and frees the division:
 *   numa_node_at then returns 0. */
void numa_place(struct numa_division *d, void *base, uint64_t bytes);
/* Removes the placement of base[bytes], page-aligned, all of whose pages have been written: they
 * stay on their nodes, and the kernel's mappings of different nodes become one again. A refusal
 * of the kernel is ignored. */
void numa_settle(void *base, uint64_t bytes);
/* Pages of base[bytes], page-aligned, that nobody has written yet will lie on the node with the
 * kernel's number `id`, if it has room. 0, or the errno with which the kernel refuses. */
int numa_prefer(void *base, uint64_t bytes, int id);

#endif
