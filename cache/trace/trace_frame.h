/* SPDX-License-Identifier: MIT */
/*
 * The lz4 frames that a trace file is made of. A frame has its content size and checksum. Without
 * lz4 trace_packer_new returns NULL, and trace_unpack answers TRACE_FRAME_BAD.
 */
#ifndef GLM_CACHE_TRACE_FRAME_H
#define GLM_CACHE_TRACE_FRAME_H

#include <stddef.h>
#include <stdint.h>

#define TRACE_CHUNK_MAX (1u << 20) /* unpacked bytes of one frame */

struct trace_packer;

/* For frames of at most `most` unpacked bytes. Exhausted memory ends the program. free accepts
 * NULL.
 */
struct trace_packer *trace_packer_new(size_t most);
void trace_packer_free(struct trace_packer *p);

/* Packs `bytes` into one frame, *frame, valid until the next call. Returns its size, or 0 with the
 * reason in *why (static storage). The first call may allocate, the others do not. */
size_t trace_pack(struct trace_packer *p, const uint8_t *raw, size_t bytes, const uint8_t **frame,
	const char **why);

enum trace_frame {
	TRACE_FRAME_OK,
	TRACE_FRAME_CUT, /* the data ends inside the frame */
	TRACE_FRAME_BAD, /* *why says what is wrong; static storage */
};

struct trace_unpacker;

/* NULL without lz4; trace_unpack and free accept NULL. Exhausted memory ends the program. */
struct trace_unpacker *trace_unpacker_new(void);
void trace_unpacker_free(struct trace_unpacker *u);

/* Unpacks the frame at the start of data[bytes]. With TRACE_FRAME_OK the frame has *used bytes, and
 * *raw, with *raw_bytes bytes, is valid until the next call. */
enum trace_frame trace_unpack(struct trace_unpacker *u, const uint8_t *data, size_t bytes,
	size_t *used, const uint8_t **raw, size_t *raw_bytes, const char **why);

#endif
