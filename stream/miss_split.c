/* SPDX-License-Identifier: MIT */
#include "stream/miss_split.h"

#include "src/base/num.h"

/* What a copy takes beside the transfer of its bytes, about: the thread that reads begins it and
 * sees its end, and the card computes the expert. */
#define COPY_START_NS 20000.0

void miss_split(struct miss *misses, int n, double busy_ns)
{
	double link = busy_ns + COPY_START_NS, host = 0;
	for (int i = 0; i < n; i++) {
		const struct miss m = misses[i];
		int at = i;
		for (; at && misses[at - 1].host_ns * m.link_ns > m.host_ns * misses[at - 1].link_ns; at--)
			misses[at] = misses[at - 1];
		misses[at] = m;
		link += m.link_ns;
	}
	int best = 0;
	double best_ns = n ? link : 0;
	for (int on_host = 1; on_host <= n; on_host++) {
		host += misses[on_host - 1].host_ns;
		link -= misses[on_host - 1].link_ns;
		double end = on_host < n ? MAX(link, host) : host;
		if (end <= best_ns) {
			best = on_host;
			best_ns = end;
		}
	}
	for (int i = 0; i < n; i++)
		misses[i].on_host = i < best;
}
