/* SPDX-License-Identifier: MIT */
/* A wrapper around any expert source that sees what the model asks for: counts the use of every
 * expert (for profiles) and, when given a writer, records a trace. */
#ifndef GLM_STREAM_SOURCE_RECORD_H
#define GLM_STREAM_SOURCE_RECORD_H

#include "cache/trace/profile.h"
#include "cache/trace/trace.h"
#include "stream/expert_source.h"

/* Takes `inner` (closed with the wrapper). profile and trace are lent, either may be NULL.
 * lookahead > 0 asks the model for hints even if `inner` does not want them, so that a run without
 * streaming can record what a lookahead would have named; hints for more layers than `inner` wants
 * are recorded only. */
struct expert_source *source_record_open(struct expert_source *inner, struct profile *profile,
	struct trace_writer *trace, int lookahead);

/* The wrapped source. */
struct expert_source *source_record_inner(struct expert_source *s);

#endif
