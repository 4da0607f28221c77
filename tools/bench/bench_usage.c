/* SPDX-License-Identifier: MIT */
/* What a card did during a decode: busy and idle time, and what it was waiting for. */
#include "kernels/usage.h"
#include "tools/bench/bench.h"

void bench_usage(struct bench *b, const char *section, const struct backend_usage *from,
	const struct backend_usage *to, double n)
{
	static const char *const name[USAGE_KINDS] = {[USAGE_EXPERTS] = "experts",
		[USAGE_GRAPH] = "captured graph segments",
		[USAGE_OTHER] = "the rest and the end of a token"};
	double busy = 0, idle = 0;
	for (int i = 0; i < USAGE_KINDS; i++) {
		busy += (double)(to->busy_ns[i] - from->busy_ns[i]) * 1e-6 / n;
		idle += (double)(to->idle_ns[i] - from->idle_ns[i]) * 1e-6 / n;
	}
	bench_add_value(b, section, "ms/tok", busy, "the card is busy");
	bench_add_value(b, section, "ms/tok", idle, "it waits for the host (%.1f %% of the time)",
		100 * idle / (busy + idle));
	for (int i = 0; i < USAGE_KINDS; i++) {
		double times = (double)(to->n_intervals[i] - from->n_intervals[i]) / n;
		if (times <= 0)
			continue;
		bench_add_value(b, section, "ms/tok",
			(double)(to->busy_ns[i] - from->busy_ns[i]) * 1e-6 / n, "busy with %s, %.1f times",
			name[i], times);
		bench_add_value(b, section, "ms/tok",
			(double)(to->idle_ns[i] - from->idle_ns[i]) * 1e-6 / n,
			"waits before them, at most %.4f of which are the profile events",
			usage_event_overhead_ns(from, to, (enum usage_kind)i) * 1e-6 / n);
	}
	bench_add_value(b, section, "/tok", (double)(to->launches - from->launches) / n,
		"kernels and copies on the card");
	bench_add_value(b, section, "/tok", (double)(to->graph_launches - from->graph_launches) / n,
		"graphs launched");
	if (to->graphs_captured > from->graphs_captured)
		bench_add_value(b, section, "ms", (double)(to->capture_ns - from->capture_ns) * 1e-6,
			"to capture %llu graphs",
			(unsigned long long)(to->graphs_captured - from->graphs_captured));
}
