/* SPDX-License-Identifier: MIT */
#include "kernels/usage.h"

#include "src/base/num.h"

double usage_notes_ns(
	const struct backend_usage *from, const struct backend_usage *to, enum usage_kind kind)
{
	double notes = (double)(to->n_stretches[kind] - from->n_stretches[kind]) * to->gap_ns;
	double wait = (double)(to->idle_ns[kind] - from->idle_ns[kind]);
	return MIN(notes, wait);
}
