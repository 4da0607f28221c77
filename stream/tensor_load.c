/* SPDX-License-Identifier: MIT */
/*
 * One thread keeps the drive's queue full and hands what was read to a copy stream, through a ring
 * of staging buffers:
 *
 *     span     |----a----|----a----|----a----|     a: the file's alignment
 *              .    [ head | span's bytes ]  .
 *
 * Chunks begin at multiples of a and hold at most a slice.
 */
#include "stream/tensor_load.h"

#include "kernels/copier.h"
#include "src/base/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "stream/pinned.h"

#include <sched.h>
#include <stdlib.h>

#define REAP_MAX      64
#define BUFFERS_MAX   (READER_REQUESTS_DEFAULT)
#define PROGRESS_STEP ((uint64_t)64 << 20)

/* A staging buffer and the chunk in it. */
struct chunk {
	uint8_t *dst;
	uint64_t skip, bytes; /* of the buffer: the span's bytes begin after skip */
	uint64_t fence;       /* of its copy */
};

struct tensor_loading {
	const struct tensor_load_options *o;
	struct reader *reader;
	struct copier *copier;
	struct pinned memory; /* the buffers */
	uint64_t buffer_bytes;
	struct chunk chunks[BUFFERS_MAX]; /* by buffer */
	int free_buffers[BUFFERS_MAX], n_free;
	int copying[BUFFERS_MAX], first_copying, n_copying; /* ring of buffers, in order */
	const struct tensor_span *spans;
	size_t n_spans, span;    /* the next chunk is of this span */
	uint64_t next_at;        /* and begins at this offset of the file; 0: at the span's begin */
	uint64_t loaded, total;  /* bytes */
	uint64_t progress_shown; /* of loaded */
	int code;                /* of the first failure; its sentence is in *e of the call */
};

bool tensor_load_serves(const struct backend *b)
{
	return b->ops->copier_open != NULL;
}

static int compare_spans(const void *a, const void *b)
{
	const struct tensor_span *x = a, *y = b;
	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static uint8_t *buffer_memory(const struct tensor_loading *l, int buffer)
{
	return l->memory.base + (uint64_t)buffer * l->buffer_bytes;
}

/* Submits the read of the next chunk. False: nothing left, no room, or a failure. */
static bool submit_chunk(struct tensor_loading *l, struct err *e)
{
	while (l->span < l->n_spans && !l->spans[l->span].bytes)
		l->span++;
	if (l->span == l->n_spans || !l->n_free || l->code)
		return false;
	const struct tensor_span *s = &l->spans[l->span];
	uint64_t align = reader_file_align(l->reader, s->file), end = s->offset + s->bytes;
	uint64_t from = l->next_at ? l->next_at : num_align_down(s->offset, align);
	uint64_t to = MIN(from + l->buffer_bytes, num_align_up(end, align));
	int buffer = l->free_buffers[l->n_free - 1];
	struct reader_request q = {
		.file = s->file,
		.offset = from,
		.bytes = to - from,
		.need = MIN(end, to) - from,
		.dst = buffer_memory(l, buffer),
		.tag = (uint64_t)buffer,
	};
	int rc = reader_submit(l->reader, &q);
	if (rc < 0)
		l->code = err_set(e, rc, "%s: %llu bytes at offset %llu cannot be read: %s",
			l->o->file->files[s->file].path, (unsigned long long)q.bytes,
			(unsigned long long)q.offset, err_name(rc));
	if (rc)
		return false;
	l->n_free--;
	uint64_t begin = MAX(from, s->offset);
	l->chunks[buffer] = (struct chunk){
		.dst = (uint8_t *)s->dst + (begin - s->offset),
		.skip = begin - from,
		.bytes = MIN(end, to) - begin,
	};
	l->next_at = to;
	if (to >= end) {
		l->next_at = 0;
		l->span++;
	}
	return true;
}

static void buffer_release(struct tensor_loading *l, int buffer)
{
	l->free_buffers[l->n_free++] = buffer;
}

/* Hands chunks that were read to the copy stream. Returns how many reads completed. */
static int copy_read_chunks(struct tensor_loading *l, unsigned min, struct err *e)
{
	struct reader_completion done[REAP_MAX];
	int n = reader_reap(l->reader, done, min, REAP_MAX, min ? -1 : 0);
	for (int k = 0; k < n; k++) {
		int buffer = (int)done[k].tag;
		struct chunk *c = &l->chunks[buffer];
		if (done[k].code && !l->code)
			l->code = reader_completion_err(l->reader, &done[k], e);
		if (l->code) {
			buffer_release(l, buffer);
			continue;
		}
		l->copier->ops->copy(
			l->copier, COPY_IN, c->dst, buffer_memory(l, buffer) + c->skip, c->bytes);
		c->fence = l->copier->ops->fence(l->copier, COPY_IN);
		l->copying[(l->first_copying + l->n_copying++) % BUFFERS_MAX] = buffer;
	}
	return n;
}

/* Takes back the buffers of copies that are done. */
static bool poll_copies(struct tensor_loading *l, struct err *e)
{
	bool any = false;
	while (l->n_copying) {
		struct err why = {0};
		int buffer = l->copying[l->first_copying];
		int rc = l->copier->ops->fence_status(l->copier, l->chunks[buffer].fence, &why);
		if (!rc)
			break;
		any = true;
		if (rc < 0 && !l->code) {
			l->code = rc;
			if (e)
				*e = why;
		}
		l->loaded += l->chunks[buffer].bytes;
		l->first_copying = (l->first_copying + 1) % BUFFERS_MAX;
		l->n_copying--;
		buffer_release(l, buffer);
	}
	if (l->o->progress && l->loaded - l->progress_shown >= PROGRESS_STEP) {
		l->progress_shown = l->loaded;
		l->o->progress(l->o->user, l->loaded, l->total);
	}
	return any;
}

static int loading_open(struct tensor_loading *l, struct err *e)
{
	const struct gguf *g = l->o->file;
	struct reader_file *files = NEW_ARRAY(struct reader_file, g->n_files);
	for (unsigned i = 0; i < g->n_files; i++)
		files[i].path = g->files[i].path;
	struct reader_options ro = l->o->reader;
	ro.requests = 0; /* the default, which is BUFFERS_MAX */
	int rc = reader_open(&l->reader, files, g->n_files, &ro, e);
	free(files);
	if (rc)
		return rc;
	l->copier = l->o->copier;
	if (!l->copier && (rc = l->o->backend->ops->copier_open(l->o->backend, &l->copier, e)))
		return rc;
	/* a chunk that is one slice is one read */
	l->buffer_bytes = num_align_up(reader_slice(l->reader), READER_SLICE_MIN);
	int n_buffers = (int)MIN(reader_staging_buffers(l->reader), BUFFERS_MAX);
	if ((rc = pinned_start(
			 &l->memory, l->copier, (size_t)n_buffers * l->buffer_bytes, 0, NULL, NULL, e)) ||
		(rc = pinned_wait(&l->memory, e)))
		return rc;
	reader_register(l->reader, l->memory.base, l->memory.bytes);
	for (int i = n_buffers; i-- > 0;)
		buffer_release(l, i);
	l->copier->ops->attach(l->copier);
	return 0;
}

static void loading_close(struct tensor_loading *l)
{
	reader_close(l->reader);
	if (l->copier)
		l->copier->ops->drain(l->copier);
	pinned_free(&l->memory);
	if (l->copier && !l->o->copier)
		l->copier->ops->close(l->copier);
	free(l);
}

int tensor_load(const struct tensor_load_options *o, struct tensor_span *spans, size_t n,
	struct tensor_load_result *result, struct err *e)
{
	*result = (struct tensor_load_result){0};
	qsort(spans, n, sizeof *spans, compare_spans);
	struct tensor_loading *l = NEW(struct tensor_loading);
	l->o = o;
	l->spans = spans;
	l->n_spans = n;
	for (size_t i = 0; i < n; i++)
		l->total += spans[i].bytes;
	int rc = loading_open(l, e);
	if (rc) {
		loading_close(l);
		return rc;
	}
	uint64_t start = clock_ns(), progress_ns = start;
	do {
		while (submit_chunk(l, e))
			;
		/* with a copy in flight its end matters as much as the next read's */
		bool sleep =
			!l->n_copying && reader_pending(l->reader) && clock_ns() - progress_ns > READER_POLL_NS;
		bool any = copy_read_chunks(l, sleep, e) > 0;
		any |= poll_copies(l, e);
		if (any)
			progress_ns = clock_ns();
		else
			sched_yield();
	} while (reader_pending(l->reader) || l->n_copying || (!l->code && l->span < l->n_spans));
	result->seconds = (double)(clock_ns() - start) * 1e-9;
	result->bytes = l->loaded;
	rc = l->code;
	if (!rc && o->progress)
		o->progress(o->user, l->total, l->total);
	loading_close(l);
	return rc;
}
