/* SPDX-License-Identifier: MIT */
/* What two readings of a backend's usage say about the time between them. */
#ifndef GLM_KERNELS_USAGE_H
#define GLM_KERNELS_USAGE_H

#include "kernels/backend.h"

/* How much of the idle time before intervals of `kind` may be the cost of the profile events, ns:
 * an upper bound, never more than that idle time. event_gap_ns was measured between empty
 * intervals; between others an event takes less. */
double usage_event_overhead_ns(
	const struct backend_usage *from, const struct backend_usage *to, enum usage_kind kind);

#endif
