/* SPDX-License-Identifier: MIT */
/* The recorder and the framing of trace files; the only file that knows lz4. Records are parsed in
 * trace_read.c. Without lz4 nothing is recorded and of recorded files only GLTR1 is read. */
#include "cache/trace/trace_file.h"

#if HAVE_LZ4

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <errno.h>
#include <fcntl.h>
#include <lz4frame.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK_BYTES (64 * 1024)

struct trace_writer {
	int fd;
	char *path;
	uint32_t n_layers, n_experts;
	uint8_t *raw; /* [raw_cap] records of the frame being collected */
	size_t raw_len, raw_cap;
	uint8_t *packed; /* [packed_cap] */
	size_t packed_cap;
	LZ4F_cctx *lz4;
	uint64_t n_records;
	struct err failed; /* code 0: fine so far */
};

static LZ4F_preferences_t frame_prefs(size_t content)
{
	LZ4F_preferences_t p = LZ4F_INIT_PREFERENCES;
	p.frameInfo.contentChecksumFlag = LZ4F_contentChecksumEnabled;
	p.frameInfo.contentSize = content;
	p.frameInfo.blockSizeID = LZ4F_max64KB;
	return p;
}

static void write_all(struct trace_writer *w, const void *data, size_t n)
{
	const uint8_t *p = data;
	while (n && !w->failed.code) {
		ssize_t got = write(w->fd, p, n);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0) {
			err_errno(&w->failed, got < 0 ? errno : EIO, "%.400s: cannot write the trace", w->path);
			return;
		}
		p += got;
		n -= (size_t)got;
	}
}

/* The collected bytes become one frame. The context is reused, so nothing is allocated after the
 * first frame. */
static void write_frame(struct trace_writer *w)
{
	if (!w->raw_len || w->failed.code)
		return;
	LZ4F_preferences_t prefs = frame_prefs(w->raw_len);
	size_t at = LZ4F_compressBegin(w->lz4, w->packed, w->packed_cap, &prefs), got = at;
	if (!LZ4F_isError(got)) {
		got = LZ4F_compressUpdate(
			w->lz4, w->packed + at, w->packed_cap - at, w->raw, w->raw_len, NULL);
		at += LZ4F_isError(got) ? 0 : got;
	}
	if (!LZ4F_isError(got)) {
		got = LZ4F_compressEnd(w->lz4, w->packed + at, w->packed_cap - at, NULL);
		at += LZ4F_isError(got) ? 0 : got;
	}
	if (LZ4F_isError(got)) {
		err_set(&w->failed, ERR_RUN, "%.400s: cannot compress the trace: %s", w->path,
			LZ4F_getErrorName(got));
		return;
	}
	write_all(w, w->packed, at);
	w->raw_len = 0;
}

/* Room for a record; its first 8 bytes are filled. */
static uint8_t *record_begin(
	struct trace_writer *w, int kind, uint8_t a, uint16_t b, uint32_t c, size_t bytes)
{
	if (w->raw_len + bytes > w->raw_cap || w->raw_len >= CHUNK_BYTES)
		write_frame(w);
	if (w->failed.code)
		w->raw_len = 0;
	uint8_t *p = w->raw + w->raw_len;
	w->raw_len += bytes;
	w->n_records++;
	p[0] = (uint8_t)kind;
	p[1] = a;
	store_u16(p + 2, b);
	store_u32(p + 4, c);
	return p;
}

static void write_ids(
	const struct trace_writer *w, uint8_t *p, int layer, const int32_t *ids, int n)
{
	if (layer < 0 || (uint32_t)layer >= w->n_layers)
		bug("trace record for layer %d of %u", layer, w->n_layers);
	for (int i = 0; i < n; i++) {
		if (ids[i] < 0 || (uint32_t)ids[i] >= w->n_experts)
			bug("trace record with expert %d of %u", ids[i], w->n_experts);
		store_u16(p + 2 * i, (uint16_t)ids[i]);
	}
}

void trace_write_step(struct trace_writer *w, enum cache_use use, int rows, int position)
{
	record_begin(w, TRACE_STEP, (uint8_t)use, (uint16_t)MAX(1, MIN(rows, 65535)),
		(uint32_t)MAX(position, 0), 8);
}

void trace_write_access(struct trace_writer *w, enum cache_use use, int layer, const int32_t *ids,
	const uint8_t *tiers, int n)
{
	if (n < 1 || (uint32_t)n > w->n_experts)
		bug("trace record with %d experts of %u", n, w->n_experts);
	uint8_t *p = record_begin(
		w, TRACE_ACCESS, (uint8_t)use, (uint16_t)layer, (uint32_t)n, 8 + (size_t)n * 3);
	write_ids(w, p + 8, layer, ids, n);
	if (tiers)
		memcpy(p + 8 + 2 * n, tiers, (size_t)n);
	else
		memset(p + 8 + 2 * n, TRACE_UNKNOWN, (size_t)n);
}

void trace_write_prediction(
	struct trace_writer *w, int layer, int distance, const int32_t *ids, int n)
{
	if (n < 1 || (uint32_t)n > w->n_experts || distance < 1 || distance > 255)
		bug("trace prediction with %d experts at distance %d", n, distance);
	uint8_t *p = record_begin(
		w, TRACE_PREDICTION, (uint8_t)distance, (uint16_t)layer, (uint32_t)n, 8 + (size_t)n * 2);
	write_ids(w, p + 8, layer, ids, n);
}

void trace_write_wait(struct trace_writer *w, int layer, uint64_t ns)
{
	store_u64(record_begin(w, TRACE_WAIT, 0, (uint16_t)layer, 0, 16) + 8, ns);
}

static void writer_free(struct trace_writer *w)
{
	LZ4F_freeCompressionContext(w->lz4);
	free(w->raw);
	free(w->packed);
	free(w->path);
	free(w);
}

static void write_header(struct trace_writer *w, const struct trace_model *m)
{
	size_t name = m->name ? MIN(strlen(m->name), (size_t)255) : 0;
	uint8_t start[16] = TRACE_MAGIC, *p = w->raw;
	store_u32(start + 8, TRACE_VERSION);
	write_all(w, start, sizeof start);
	store_u64(p, m->fingerprint);
	store_u32(p + 8, m->n_layers);
	store_u32(p + 12, m->n_experts);
	store_u32(p + 16, m->top_k);
	store_u32(p + 20, (uint32_t)name);
	if (name)
		memcpy(p + 24, m->name, name);
	for (uint32_t l = 0; l < m->n_layers; l++)
		store_u64(p + 24 + name + 8 * l, m->expert_bytes[l]);
	w->raw_len = 24 + name + 8 * (size_t)m->n_layers;
	write_frame(w);
}

/* An older trace is written over; any other file, as the model given by mistake, is not. */
static int open_file(struct trace_writer *w, struct err *e)
{
	struct stat st;
	char magic[8];
	w->fd = open(w->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (w->fd < 0)
		return err_errno(e, errno, "%.400s: cannot create the trace", w->path);
	if (fstat(w->fd, &st) || !S_ISREG(st.st_mode) || !st.st_size)
		return 0;
	int rc = 0;
	if (pread(w->fd, magic, sizeof magic, 0) != sizeof magic ||
		memcmp(magic, TRACE_MAGIC, sizeof magic))
		rc = err_set(
			e, ERR_INPUT, "%.400s: is there and is no trace: it is not written over", w->path);
	else if (ftruncate(w->fd, 0))
		rc = err_errno(e, errno, "%.400s: the old trace cannot be emptied", w->path);
	if (rc)
		close(w->fd);
	return rc;
}

struct trace_writer *trace_writer_open(const char *path, const struct trace_model *m, struct err *e)
{
	if (!m->n_layers || m->n_layers > TRACE_MAX_LAYERS || !m->n_experts ||
		m->n_experts > TRACE_MAX_EXPERTS) {
		err_set(e, ERR_INPUT, "%.400s: a trace cannot describe %u layers of %u experts", path,
			m->n_layers, m->n_experts);
		return NULL;
	}
	struct trace_writer *w = NEW(struct trace_writer);
	w->path = mem_strdup(path);
	w->n_layers = m->n_layers;
	w->n_experts = m->n_experts;
	w->raw_cap =
		CHUNK_BYTES + 3 * (size_t)m->n_experts + 64; /* a full chunk and the longest record */
	w->raw = mem_new(w->raw_cap, 1);
	LZ4F_preferences_t prefs = frame_prefs(w->raw_cap);
	w->packed_cap = LZ4F_HEADER_SIZE_MAX + LZ4F_compressBound(w->raw_cap, &prefs) +
					LZ4F_compressBound(0, &prefs);
	w->packed = mem_new(w->packed_cap, 1);
	if (LZ4F_isError(LZ4F_createCompressionContext(&w->lz4, LZ4F_VERSION)))
		bug("out of memory: lz4 context");
	if (open_file(w, e)) {
		writer_free(w);
		return NULL;
	}
	write_header(w, m);
	if (w->failed.code) {
		if (e)
			*e = w->failed;
		close(w->fd);
		writer_free(w);
		return NULL;
	}
	return w;
}

int trace_writer_close(struct trace_writer *w, struct err *e)
{
	if (!w)
		return 0;
	write_frame(w);
	uint64_t n = w->n_records;
	store_u64(record_begin(w, TRACE_END, 0, 0, 0, 16) + 8, n);
	write_frame(w);
	if (close(w->fd) && !w->failed.code)
		err_errno(&w->failed, errno, "%.400s: cannot close the trace", w->path);
	int code = w->failed.code;
	if (code && e)
		*e = w->failed;
	writer_free(w);
	return code;
}

/* ---- frames of a file being read ---- */

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

struct trace_writer *trace_writer_open(const char *path, const struct trace_model *m, struct err *e)
{
	(void)m;
	err_set(
		e, ERR_USAGE, "%.400s: this program was built without lz4 and cannot record traces", path);
	return NULL;
}

void trace_write_step(struct trace_writer *w, enum cache_use use, int rows, int position)
{
	(void)w, (void)use, (void)rows, (void)position;
}

void trace_write_access(struct trace_writer *w, enum cache_use use, int layer, const int32_t *ids,
	const uint8_t *tiers, int n)
{
	(void)w, (void)use, (void)layer, (void)ids, (void)tiers, (void)n;
}

void trace_write_prediction(
	struct trace_writer *w, int layer, int distance, const int32_t *ids, int n)
{
	(void)w, (void)layer, (void)distance, (void)ids, (void)n;
}

void trace_write_wait(struct trace_writer *w, int layer, uint64_t ns)
{
	(void)w, (void)layer, (void)ns;
}

int trace_writer_close(struct trace_writer *w, struct err *e)
{
	(void)w, (void)e;
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
