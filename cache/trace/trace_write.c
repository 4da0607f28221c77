/* SPDX-License-Identifier: MIT */
/* The recorder of traces. Records are collected and become a frame when 64 KiB are there. */
#include "cache/trace/trace_file.h"
#include "cache/trace/trace_frame.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK_BYTES (64 * 1024)

struct trace_writer {
	int fd;
	char *path;    /* what a link leads to */
	char *partial; /* where it is written; NULL: at path itself */
	bool force;
	uint32_t n_layers, n_experts;
	uint8_t *raw; /* [raw_cap] records of the frame being collected */
	size_t raw_len, raw_cap;
	struct trace_packer *packer;
	uint64_t n_records;
	struct err failed; /* code 0: fine so far */
};

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

/* The collected bytes become one frame. */
static void write_frame(struct trace_writer *w)
{
	const uint8_t *frame;
	const char *why;
	if (!w->raw_len || w->failed.code)
		return;
	size_t bytes = trace_pack(w->packer, w->raw, w->raw_len, &frame, &why);
	if (!bytes) {
		err_set(&w->failed, ERR_RUN, "%.400s: cannot compress the trace: %s", w->path, why);
		return;
	}
	write_all(w, frame, bytes);
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
	trace_packer_free(w->packer);
	free(w->raw);
	free(w->path);
	free(w->partial);
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

/* Opens w->partial, or a device or pipe at w->path itself. */
static int open_file(struct trace_writer *w, struct err *e)
{
	struct stat st;
	bool direct = !stat(w->path, &st) && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
	if (!direct) {
		int rc = out_file_check(w->path, &out_trace, w->force, e);
		if (rc || (rc = out_file_target(w->path, NULL, &w->partial, e)))
			return rc;
		w->fd = out_file_open_partial(w->partial, &out_trace, w->force, false, e);
		return MIN(w->fd, 0);
	}
	w->fd = open(w->path, O_WRONLY | O_CLOEXEC);
	if (w->fd < 0 && errno == EINTR) /* a signal, while no reader came */
		return err_set(e, ERR_INTERRUPTED, "interrupted");
	return w->fd < 0 ? err_errno(e, errno, "%.400s: cannot create the trace", w->path) : 0;
}

struct trace_writer *trace_writer_open(
	const char *path, bool force, const struct trace_model *m, struct err *e)
{
	if (!m->n_layers || m->n_layers > TRACE_MAX_LAYERS || !m->n_experts ||
		m->n_experts > TRACE_MAX_EXPERTS) {
		err_set(e, ERR_INPUT, "%.400s: a trace cannot describe %u layers of %u experts", path,
			m->n_layers, m->n_experts);
		return NULL;
	}
	char *target;
	if (out_file_target(path, &target, NULL, e))
		return NULL;
	struct trace_writer *w = NEW(struct trace_writer);
	w->path = target;
	w->force = force;
	w->n_layers = m->n_layers;
	w->n_experts = m->n_experts;
	w->raw_cap =
		CHUNK_BYTES + 3 * (size_t)m->n_experts + 64; /* a full chunk and the longest record */
	w->raw = mem_new(w->raw_cap, 1);
	w->packer = trace_packer_new(w->raw_cap);
	if (!w->packer)
		err_set(e, ERR_USAGE, "%.400s: this program was built without lz4 and cannot record traces",
			path);
	if (!w->packer || open_file(w, e)) {
		writer_free(w);
		return NULL;
	}
	write_header(w, m);
	if (w->failed.code) {
		if (e)
			*e = w->failed;
		trace_writer_abort(w);
		return NULL;
	}
	return w;
}

void trace_writer_abort(struct trace_writer *w)
{
	if (!w)
		return;
	if (w->partial)
		unlink(w->partial);
	close(w->fd); /* the lock ends with it */
	writer_free(w);
}

int trace_writer_close(struct trace_writer *w, struct err *e)
{
	if (!w)
		return 0;
	write_frame(w);
	uint64_t n = w->n_records;
	store_u64(record_begin(w, TRACE_END, 0, 0, 0, 16) + 8, n);
	write_frame(w);
	int copy = dup(w->fd); /* its close says what the file system has not said yet */
	if ((copy < 0 || close(copy)) && !w->failed.code)
		err_errno(&w->failed, errno, "%.400s: cannot close the trace", w->path);
	if (!w->failed.code && w->partial) {
		out_file_keep_mode(w->fd, w->path);
		/* another file may have appeared there since open; the trace is whole all the same */
		if (out_file_may_replace(w->path, &out_trace, w->force, &w->failed))
			err_hint(&w->failed, "the trace is complete in %.400s", w->partial);
		else if (rename(w->partial, w->path))
			err_errno(
				&w->failed, errno, "%.400s: cannot be renamed to %.400s", w->partial, w->path);
	}
	close(w->fd); /* behind the rename: the lock ends with it */
	int code = w->failed.code;
	if (code && e)
		*e = w->failed;
	writer_free(w);
	return code;
}
