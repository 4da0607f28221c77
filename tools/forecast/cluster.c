/* SPDX-License-Identifier: MIT */
/* Micro-batches through stages. */
#include "tools/forecast/cluster.h"

#include "src/base/num.h"
#include "tools/forecast/forecast.h"

static double compute_ms(const struct stage_cost *s, uint32_t rows, double distinct)
{
	return s->fixed_ms + (rows - 1) * s->row_ms + distinct * s->expert_ms;
}

/* With so many micro-batches. */
static struct cluster_speed schedule_once(const struct stage_cost *stages, uint32_t n,
	uint32_t streams, uint32_t micro_batches, const double *distinct)
{
	struct cluster_speed v = {.streams = streams,
		.micro_batches = micro_batches,
		.rows = (streams + micro_batches - 1) / micro_batches};
	double path_ms = 0;
	v.distinct = distinct[v.rows - 1];
	for (uint32_t i = 0; i < n; i++) {
		const struct stage_cost *s = &stages[i];
		const double computing = compute_ms(s, v.rows, v.distinct);
		const double step =
			forecast_card_ms(computing, v.rows * s->drive_ms, v.rows * s->link_ms, s->lookahead);
		const double hop = s->hop_ms + v.rows * s->hop_row_ms;
		v.compute_ms += computing;
		v.waits_ms += step - computing;
		v.hops_ms += hop;
		path_ms += step + hop;
		if (step + hop > v.slowest_ms) {
			v.slowest_ms = step + hop;
			v.slowest = i;
		}
	}
	v.round_ms = MAX(path_ms, v.slowest_ms * micro_batches);
	v.tok_s = v.round_ms > 0 ? streams * 1e3 / v.round_ms : 0;
	v.serial_tok_s = path_ms > 0 ? streams * 1e3 / (path_ms * micro_batches) : 0;
	v.busy = v.round_ms > 0 ? path_ms * micro_batches / n / v.round_ms : 0;
	return v;
}

void cluster_schedule(const struct stage_cost *stages, uint32_t n, uint32_t streams,
	uint32_t max_rows, const double *distinct, struct cluster_speed *out)
{
	double serial = 0;
	*out = (struct cluster_speed){0};
	for (uint32_t m = (streams + max_rows - 1) / max_rows; m <= streams; m++) {
		const struct cluster_speed v = schedule_once(stages, n, streams, m, distinct);
		serial = MAX(serial, v.serial_tok_s);
		if (v.tok_s > out->tok_s)
			*out = v;
	}
	out->serial_tok_s = serial;
}
