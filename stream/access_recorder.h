/* SPDX-License-Identifier: MIT */
/*
 * An expert source around another one that records what the model asks for: the use of every expert
 * in a profile, and steps, accesses, predictions and waits in a trace. All calls are passed on
 * unchanged. Compute thread only.
 */
#ifndef GLM_STREAM_ACCESS_RECORDER_H
#define GLM_STREAM_ACCESS_RECORDER_H

#include "cache/trace/expert_profile.h"
#include "cache/trace/trace.h"
#include "stream/expert_source.h"

/* Takes `inner`, which is closed with the result. profile and trace are borrowed; either may be
 * NULL. n_experts: of a layer, and so the most of an access. lookahead: layers to predict even if
 * `inner` uses fewer; predictions that it does not use are recorded only. So a run without
 * streaming can record what a lookahead would have named. with_steps: whether steps are recorded
 * too; of several recorders with one trace, each with its own layers, only the one of the first
 * layers does that. */
struct expert_source *access_recorder_open(struct expert_source *inner, struct profile *profile,
	struct trace_writer *trace, uint32_t n_experts, int lookahead, bool with_steps);

#endif
