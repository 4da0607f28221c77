/* SPDX-License-Identifier: MIT */
/* Private to cache/trace: what trace_write.c and trace_read.c share. */
#ifndef GLM_CACHE_TRACE_FILE_H
#define GLM_CACHE_TRACE_FILE_H

#include "cache/trace/trace.h"

#define TRACE_MAGIC       "GLMTRACE"
#define TRACE_MAX_LAYERS  4096
#define TRACE_MAX_EXPERTS 65536

/* trace_parse of unpacked frames: u32 bytes of the header, the header, records. For the fuzz
 * target: a mutated frame would fail at its checksum. */
int trace_parse_unpacked(
	const uint8_t *data, size_t bytes, const char *name, struct trace *t, struct err *e);

#endif
