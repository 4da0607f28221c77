/* SPDX-License-Identifier: MIT */
/*
 * An expert source around another one that records what the model requests: the use of every expert
 * in a profile, and steps, accesses, predictions and waits in a trace. All calls are passed on
 * unchanged, but for predictions of layers beyond the lookahead of the other source. Compute thread
 * only.
 */
#ifndef GLM_STREAM_ACCESS_RECORDER_H
#define GLM_STREAM_ACCESS_RECORDER_H

#include "cache/trace/expert_profile.h"
#include "cache/trace/trace.h"
#include "stream/expert_source.h"

/* - inner: owned from now on; closed with the result.
 * - profile, trace: lent; either may be NULL.
 * - n_experts: of a layer, and so the most of an access.
 * - lookahead: for how many layers ahead predictions are recorded, even if `inner` uses fewer. So a
 *   run without streaming records what a lookahead would predict.
 * - with_steps: steps are recorded. Of several recorders with one trace, each with its own layers,
 *   only that of the first layers records them. */
struct expert_source *access_recorder_open(struct expert_source *inner, struct profile *profile,
	struct trace_writer *trace, uint32_t n_experts, int lookahead, bool with_steps);

#endif
