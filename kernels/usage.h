/* SPDX-License-Identifier: MIT */
/* What two readings of a backend's usage say about the time between them. */
#ifndef GLM_KERNELS_USAGE_H
#define GLM_KERNELS_USAGE_H

#include "kernels/backend.h"

/* The most of the time in which the device waited before stretches of `kind` that may be due to the
 * notes of the measurement, ns. event_gap_ns is what a note takes between empty stretches; between
 * others it takes less, so this is a bound, and never more than the wait itself. */
double usage_event_overhead_ns(
	const struct backend_usage *from, const struct backend_usage *to, enum usage_kind kind);

#endif
