/* SPDX-License-Identifier: MIT */
#include "stream/miss_split.h"

#include "src/base/host/numa.h"
#include "src/base/num.h"

/* Time of a copy without the transfer of its bytes, about: the I/O thread starts it and notices its
 * end, and the card computes the expert. */
#define COPY_START_NS 20000.0

/* Precondition: the misses of each node are in order. Sorts all by the time at which the node of a
 * miss has computed it and those of the node before it. */
static void merge_nodes(struct miss *misses, int n)
{
	double busy[NUMA_NODES_MAX + 1] = {0};
	for (int i = 0; i < n; i++) {
		bool seen[NUMA_NODES_MAX + 1] = {false};
		int first = i;
		double least = 0;
		for (int k = i; k < n; k++) {
			const double end = busy[misses[k].node] + misses[k].host_ns;
			if (seen[misses[k].node])
				continue;
			seen[misses[k].node] = true;
			if (k == i || end < least) {
				first = k;
				least = end;
			}
		}
		const struct miss m = misses[first];
		for (; first > i; first--)
			misses[first] = misses[first - 1];
		misses[i] = m;
		busy[m.node] = least;
	}
}

void miss_split(struct miss *misses, int n, double busy_ns)
{
	double link = busy_ns + COPY_START_NS, host = 0, stay = 0, busy[NUMA_NODES_MAX + 1] = {0};
	const int node = n ? misses[0].node : 0;
	bool nodes = false;
	for (int i = 0; i < n; i++) {
		const struct miss m = misses[i];
		int at = i;
		for (; at && misses[at - 1].host_ns * m.link_ns > m.host_ns * misses[at - 1].link_ns; at--)
			misses[at] = misses[at - 1];
		misses[at] = m;
		link += m.link_ns;
		nodes |= m.node != node;
	}
	if (nodes)
		merge_nodes(misses, n);
	int best = 0;
	double best_ns = n ? link : 0; /* the cost */
	for (int on_host = 1; on_host <= n; on_host++) {
		const struct miss *m = &misses[on_host - 1];
		busy[m->node] += m->host_ns;
		host = MAX(host, busy[m->node]);
		link -= m->link_ns;
		stay += MISS_STAY_COPIES * m->link_ns;
		const double cost = stay + (on_host < n ? MAX(link, host) : host);
		if (cost <= best_ns) {
			best = on_host;
			best_ns = cost;
		}
	}
	for (int i = 0; i < n; i++)
		misses[i].on_host = i < best;
}
