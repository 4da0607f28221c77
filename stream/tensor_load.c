/* SPDX-License-Identifier: MIT */
/*
 * One thread keeps the drive's queue full and hands what was read to a copy stream, through a ring
 * of staging buffers:
 *
 *     span     |----a----|----a----|----a----|     a: the file's alignment
 *              .    [ head | span's bytes ]  .
 *
 * Chunks begin at multiples of a and hold at most a slice. They are hashed for their check values
 * in the order of the spans, by the same thread, when they have come and were handed on; a buffer
 * is free again when its chunk is copied and hashed.
 */
#include "stream/tensor_load.h"

#include "kernels/copier.h"
#include "src/base/clock.h"
#include "src/base/log.h"
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
	uint64_t number;      /* in the order of the spans */
	size_t span;          /* it is of this one, */
	uint64_t at;          /* ... and begins here in it */
	bool has_come, hashed;
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
	size_t n_spans, span; /* the next chunk is of this span */
	uint64_t next_at;     /* and begins at this offset of the file; 0: at the span's begin */
	uint64_t n_chunks;    /* submitted */
	struct chunk_check {
		uint64_t next;               /* number of the chunk that is hashed next */
		struct span_check run;       /* over its span */
		struct checked_span *ranges; /* of that span */
		struct tensor_span *wrong;   /* [n_wrong] spans that were wrong */
		size_t n_wrong;
		uint64_t last_wrong, last_found; /* of the last of these: its first wrong range */
		struct check_figures figures;
	} check;
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
		.number = l->n_chunks++,
		.span = l->span,
		.at = begin - s->offset,
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

/* ---- check values ---- */

/* The ranges of a span that is a whole tensor. */
static void begin_span_check(struct tensor_loading *l, const struct tensor_span *s)
{
	const struct check_values *v = l->o->check_values;
	const uint64_t *first = v->map.first + (s->tensor - v->map.file->tensors);
	const uint64_t n = first[1] - first[0], bytes = s->bytes / n;
	free(l->check.ranges);
	l->check.ranges = NEW_ARRAY(struct checked_span, n);
	for (uint64_t i = 0; i < n; i++)
		l->check.ranges[i] =
			(struct checked_span){i * bytes, (i + 1) * bytes, v->values[first[0] + i]};
	span_check_begin(&l->check.run, l->check.ranges, (unsigned)n);
	l->check.figures.checked += n;
}

static void end_span_check(struct tensor_loading *l, const struct tensor_span *s)
{
	if (!l->check.run.n_wrong)
		return;
	l->check.wrong = mem_grow(l->check.wrong, l->check.n_wrong + 1, sizeof *l->check.wrong);
	l->check.wrong[l->check.n_wrong++] = *s;
	l->check.last_wrong = l->check.run.first_wrong;
	l->check.last_found = l->check.run.found;
}

static void check_chunk(struct tensor_loading *l, int buffer)
{
	struct chunk *c = &l->chunks[buffer];
	const struct tensor_span *s = &l->spans[c->span];
	c->hashed = true;
	if (!s->tensor || !l->o->check_values)
		return;
	const uint64_t start = clock_ns();
	if (!c->at)
		begin_span_check(l, s);
	span_check_add(&l->check.run, c->at, buffer_memory(l, buffer) + c->skip, c->bytes);
	if (c->at + c->bytes == s->bytes)
		end_span_check(l, s);
	l->check.figures.ns += clock_ns() - start;
}

/* Hashes the chunks whose turn it is. */
static void check_chunks(struct tensor_loading *l)
{
	for (int i = 0; i < (int)BUFFERS_MAX; i++) {
		struct chunk *c = &l->chunks[i];
		if (!c->has_come || c->hashed || c->number != l->check.next)
			continue;
		check_chunk(l, i);
		l->check.next++;
		i = -1; /* the next one may be in any buffer */
	}
}

/* ---- reads and copies ---- */

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
		c->has_come = true;
		l->copying[(l->first_copying + l->n_copying++) % BUFFERS_MAX] = buffer;
	}
	check_chunks(l);
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
		if (!rc || (rc > 0 && !l->code && !l->chunks[buffer].hashed))
			break;
		any = true;
		if (rc < 0 && !l->code) {
			l->code = rc;
			if (e)
				*e = why;
		}
		l->loaded += l->chunks[buffer].bytes;
		l->chunks[buffer].has_come = false;
		l->first_copying = (l->first_copying + 1) % BUFFERS_MAX;
		l->n_copying--;
		buffer_release(l, buffer);
	}
	if (l->o->progress && l->loaded - l->progress_shown >= PROGRESS_STEP) {
		l->progress_shown = l->loaded;
		l->o->progress(l->o->user, MIN(l->loaded, l->total), l->total);
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
	if (!span_check_open(&l->check.run))
		return err_set(e, ERR_MEMORY, "no memory to compare what is loaded");
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
	span_check_close(&l->check.run);
	free(l->check.ranges);
	free(l->check.wrong);
	if (l->copier && !l->o->copier)
		l->copier->ops->close(l->copier);
	free(l);
}

/* Loads these spans. The code is l->code. */
static void load_spans(
	struct tensor_loading *l, const struct tensor_span *spans, size_t n, struct err *e)
{
	uint64_t progress_ns = clock_ns();
	l->spans = spans;
	l->n_spans = n;
	l->span = 0;
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
}

/* Loads what was wrong again, past the page cache. */
static void load_wrong_again(struct tensor_loading *l, struct err *e)
{
	struct tensor_span *again = l->check.wrong;
	const size_t n = l->check.n_wrong;
	const uint64_t checked = l->check.figures.checked;
	l->check.wrong = NULL;
	l->check.n_wrong = 0;
	for (size_t i = 0; i < n; i++) {
		reader_drop_cached(l->reader, again[i].file, again[i].offset, again[i].bytes);
		log_warn("%s: %s was read wrong; it is read again",
			ERR_PLAIN(l->o->file->files[again[i].file].path), again[i].tensor->name);
	}
	l->check.figures.reread = n;
	load_spans(l, again, n, e);
	l->check.figures.checked = checked;
	l->check.figures.wrong = l->check.n_wrong;
	if (!l->code && l->check.n_wrong) {
		const struct check_values *v = l->o->check_values;
		const struct tensor_span *s = &l->check.wrong[l->check.n_wrong - 1];
		const uint64_t first = v->map.first[s->tensor - v->map.file->tensors];
		check_values_err(v, first + l->check.last_wrong, l->check.last_found, e);
		if (e)
			e->code = ERR_INPUT;
		l->code = ERR_INPUT;
	}
	free(again);
}

int tensor_load(const struct tensor_load_options *o, struct tensor_span *spans, size_t n,
	struct tensor_load_result *result, struct err *e)
{
	*result = (struct tensor_load_result){0};
	qsort(spans, n, sizeof *spans, compare_spans);
	struct tensor_loading *l = NEW(struct tensor_loading);
	l->o = o;
	for (size_t i = 0; i < n; i++)
		l->total += spans[i].bytes;
	int rc = loading_open(l, e);
	if (rc) {
		loading_close(l);
		return rc;
	}
	uint64_t start = clock_ns();
	load_spans(l, spans, n, e);
	result->bytes = l->loaded;
	if (!l->code && l->check.n_wrong)
		load_wrong_again(l, e);
	result->seconds = (double)(clock_ns() - start) * 1e-9;
	result->checks = l->check.figures;
	rc = l->code;
	if (!rc && o->progress)
		o->progress(o->user, l->total, l->total);
	loading_close(l);
	return rc;
}
