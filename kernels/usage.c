/* SPDX-License-Identifier: MIT */
#include "kernels/usage.h"

#include "src/base/num.h"

double usage_event_overhead_ns(
	const struct backend_usage *from, const struct backend_usage *to, enum usage_kind kind)
{
	double events = (double)(to->n_intervals[kind] - from->n_intervals[kind]) * to->event_gap_ns;
	double wait = (double)(to->idle_ns[kind] - from->idle_ns[kind]);
	return MIN(events, wait);
}
