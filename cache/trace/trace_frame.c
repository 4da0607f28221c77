/* SPDX-License-Identifier: MIT */
/* Frames of trace files; the only file of cache/ that knows lz4. */
#include "cache/trace/trace_frame.h"

#if HAVE_LZ4

#include "src/base/log.h"
#include "src/base/mem.h"

#include <lz4frame.h>
#include <stdlib.h>

struct trace_packer {
	LZ4F_cctx *lz4;
	uint8_t *packed; /* [cap] */
	size_t cap;
};

static LZ4F_preferences_t frame_prefs(size_t content)
{
	LZ4F_preferences_t p = LZ4F_INIT_PREFERENCES;
	p.frameInfo.contentChecksumFlag = LZ4F_contentChecksumEnabled;
	p.frameInfo.contentSize = content;
	p.frameInfo.blockSizeID = LZ4F_max64KB;
	return p;
}

struct trace_packer *trace_packer_new(size_t most)
{
	struct trace_packer *p = NEW(struct trace_packer);
	LZ4F_preferences_t prefs = frame_prefs(most);
	p->cap =
		LZ4F_HEADER_SIZE_MAX + LZ4F_compressBound(most, &prefs) + LZ4F_compressBound(0, &prefs);
	p->packed = mem_new(p->cap, 1);
	if (LZ4F_isError(LZ4F_createCompressionContext(&p->lz4, LZ4F_VERSION)))
		bug("out of memory: lz4 context");
	return p;
}

void trace_packer_free(struct trace_packer *p)
{
	if (!p)
		return;
	LZ4F_freeCompressionContext(p->lz4);
	free(p->packed);
	free(p);
}

size_t trace_pack(struct trace_packer *p, const uint8_t *raw, size_t bytes, const uint8_t **frame,
	const char **why)
{
	LZ4F_preferences_t prefs = frame_prefs(bytes);
	size_t at = LZ4F_compressBegin(p->lz4, p->packed, p->cap, &prefs), got = at;
	if (!LZ4F_isError(got)) {
		got = LZ4F_compressUpdate(p->lz4, p->packed + at, p->cap - at, raw, bytes, NULL);
		at += LZ4F_isError(got) ? 0 : got;
	}
	if (!LZ4F_isError(got)) {
		got = LZ4F_compressEnd(p->lz4, p->packed + at, p->cap - at, NULL);
		at += LZ4F_isError(got) ? 0 : got;
	}
	*frame = p->packed;
	if (!LZ4F_isError(got))
		return at;
	*why = LZ4F_getErrorName(got);
	return 0;
}

struct trace_unpacker {
	LZ4F_dctx *lz4;
	uint8_t *raw; /* [TRACE_CHUNK_MAX] */
};

struct trace_unpacker *trace_unpacker_new(void)
{
	struct trace_unpacker *u = NEW(struct trace_unpacker);
	u->raw = mem_new(TRACE_CHUNK_MAX, 1);
	if (LZ4F_isError(LZ4F_createDecompressionContext(&u->lz4, LZ4F_VERSION)))
		bug("out of memory: lz4 context");
	return u;
}

void trace_unpacker_free(struct trace_unpacker *u)
{
	if (!u)
		return;
	LZ4F_freeDecompressionContext(u->lz4);
	free(u->raw);
	free(u);
}

enum trace_frame trace_unpack(struct trace_unpacker *u, const uint8_t *data, size_t bytes,
	size_t *used, const uint8_t **raw, size_t *raw_bytes, const char **why)
{
	LZ4F_resetDecompressionContext(u->lz4);
	*used = *raw_bytes = 0;
	*raw = u->raw;
	*why = "";
	if (bytes < LZ4F_HEADER_SIZE_MIN)
		return TRACE_FRAME_CUT;
	size_t header = LZ4F_headerSize(data, bytes);
	if (LZ4F_isError(header)) {
		*why = "no lz4 frame begins here";
		return TRACE_FRAME_BAD;
	}
	if (bytes < header)
		return TRACE_FRAME_CUT;
	LZ4F_frameInfo_t info;
	size_t at = bytes, need = LZ4F_getFrameInfo(u->lz4, &info, data, &at);
	if (LZ4F_isError(need) || info.frameType != LZ4F_frame) {
		*why = "the header of the lz4 frame is wrong";
		return TRACE_FRAME_BAD;
	}
	if (info.contentChecksumFlag != LZ4F_contentChecksumEnabled || !info.contentSize ||
		info.contentSize > TRACE_CHUNK_MAX) {
		*why = "the lz4 frame has no checksum or an impossible size";
		return TRACE_FRAME_BAD;
	}
	size_t out = 0;
	while (need) {
		size_t in_n = bytes - at, out_n = (size_t)info.contentSize - out;
		need = LZ4F_decompress(u->lz4, u->raw + out, &out_n, data + at, &in_n, NULL);
		if (LZ4F_isError(need)) {
			*why = LZ4F_getErrorName(need);
			return TRACE_FRAME_BAD;
		}
		at += in_n;
		out += out_n;
		if (need && !in_n &&
			!out_n) { /* no progress: no more input, or more output than the frame says */
			if (at == bytes)
				return TRACE_FRAME_CUT;
			*why = "the lz4 frame holds more than it says";
			return TRACE_FRAME_BAD;
		}
	}
	if (out != info.contentSize) {
		*why = "the lz4 frame holds less than it says";
		return TRACE_FRAME_BAD;
	}
	*used = at;
	*raw_bytes = out;
	return TRACE_FRAME_OK;
}

#else /* without lz4 */

struct trace_packer *trace_packer_new(size_t most)
{
	(void)most;
	return NULL;
}

void trace_packer_free(struct trace_packer *p)
{
	(void)p;
}

size_t trace_pack(struct trace_packer *p, const uint8_t *raw, size_t bytes, const uint8_t **frame,
	const char **why)
{
	(void)p, (void)raw, (void)bytes, (void)frame;
	*why = "this program was built without lz4";
	return 0;
}

struct trace_unpacker *trace_unpacker_new(void)
{
	return NULL;
}

void trace_unpacker_free(struct trace_unpacker *u)
{
	(void)u;
}

enum trace_frame trace_unpack(struct trace_unpacker *u, const uint8_t *data, size_t bytes,
	size_t *used, const uint8_t **raw, size_t *raw_bytes, const char **why)
{
	(void)u, (void)data, (void)bytes;
	*used = *raw_bytes = 0;
	*raw = NULL;
	*why = "this program was built without lz4";
	return TRACE_FRAME_BAD;
}

#endif
