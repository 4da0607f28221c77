/* SPDX-License-Identifier: MIT */
/* Inside of trace files, shared by trace_write.c (recorder) and trace_read.c (reader). */
#ifndef GLM_CACHE_TRACE_FILE_H
#define GLM_CACHE_TRACE_FILE_H

#include "cache/trace/trace.h"

#define TRACE_MAGIC       "GLMTRACE"
#define TRACE_MAX_LAYERS  4096
#define TRACE_MAX_EXPERTS 65536

/* trace_parse of what lies inside the frames: u32 bytes of the header, the header, records. Mutated
 * frames fail at their checksum, so the fuzz target comes in here. */
int trace_parse_unpacked(
	const uint8_t *data, size_t bytes, const char *name, struct trace *t, struct err *e);

#endif
