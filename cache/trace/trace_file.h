/* SPDX-License-Identifier: MIT */
/* Inside of trace files, shared by trace_write.c (recorder, frames) and trace_read.c (records). */
#ifndef GLM_CACHE_TRACE_FILE_H
#define GLM_CACHE_TRACE_FILE_H

#include "cache/trace/trace.h"

#define TRACE_MAGIC       "GLMTRACE"
#define TRACE_MAX_LAYERS  4096
#define TRACE_MAX_EXPERTS 65536
#define TRACE_CHUNK_MAX   (1u << 20) /* unpacked bytes of one frame */

struct trace_unpacker;

enum trace_frame {
	TRACE_FRAME_OK,
	TRACE_FRAME_CUT, /* the data ends inside the frame */
	TRACE_FRAME_BAD, /* *why says what is wrong; static storage */
};

struct trace_unpacker *trace_unpacker_new(void);
void trace_unpacker_free(struct trace_unpacker *u);

/* Unpacks the frame at the start of `data`: *used bytes of it, *raw [*raw_bytes] is valid until the
 * next call. */
enum trace_frame trace_unpack(struct trace_unpacker *u, const uint8_t *data, size_t bytes,
	size_t *used, const uint8_t **raw, size_t *raw_bytes, const char **why);

/* trace_parse of what lies inside the frames: u32 bytes of the header, the header, records. Mutated
 * frames fail at their checksum, so the fuzz target comes in here. */
int trace_parse_unpacked(
	const uint8_t *data, size_t bytes, const char *name, struct trace *t, struct err *e);

#endif
