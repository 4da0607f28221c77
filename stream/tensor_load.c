/* SPDX-License-Identifier: MIT */
/*
 * One thread keeps the drive's queue full and hands what lands to a copy lane:
 *
 *     span     |----a----|----a----|----a----|     a: the file's alignment
 *              .    [ head | wanted bytes ]  .     pieces begin at multiples of a and hold at most
 * a slice
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
#define PIECES_MAX    (READER_REQUESTS_DEFAULT)
#define PROGRESS_STEP ((uint64_t)64 << 20)

struct piece {
	uint8_t *dst;
	uint64_t skip, bytes; /* of the buffer: wanted bytes begin after skip */
	uint64_t fence;       /* 0: being read */
};

struct load {
	const struct tensor_load_options *o;
	struct reader *reader;
	struct copier *copier;
	struct pinned memory;
	uint64_t piece_bytes;
	int n_pieces;
	struct piece pieces[PIECES_MAX];
	int free_pieces[PIECES_MAX], n_free;
	int sent[PIECES_MAX], first_sent,
		n_sent; /* ring: pieces whose copies are under way, in order */
	const struct tensor_span *spans;
	size_t n_spans, span; /* the next piece is of this span */
	uint64_t at;          /* and begins at this offset of the file; 0: at the span's begin */
	uint64_t done, told, total;
	int code; /* of the first failure */
};

bool tensor_load_serves(const struct backend *b)
{
	return b->ops->copier_open != NULL;
}

static int by_place(const void *a, const void *b)
{
	const struct tensor_span *x = a, *y = b;
	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Submits the next piece. False: nothing left, or no buffer. */
static bool read_piece(struct load *l)
{
	while (l->span < l->n_spans && !l->spans[l->span].bytes)
		l->span++;
	if (l->span == l->n_spans || !l->n_free || l->code)
		return false;
	const struct tensor_span *s = &l->spans[l->span];
	uint64_t align = reader_file_align(l->reader, s->file), end = s->offset + s->bytes;
	uint64_t from = l->at ? l->at : num_align_down(s->offset, align);
	uint64_t to = MIN(from + l->piece_bytes, num_align_up(end, align));
	int i = l->free_pieces[l->n_free - 1];
	uint8_t *buffer = l->memory.base + (uint64_t)i * l->piece_bytes;
	struct reader_request q = {
		.file = s->file,
		.offset = from,
		.bytes = to - from,
		.need = MIN(end, to) - from,
		.dst = buffer,
		.tag = (uint64_t)i,
	};
	if (reader_submit(l->reader, &q) == READER_BUSY)
		return false;
	l->n_free--;
	uint64_t begin = MAX(from, s->offset);
	l->pieces[i] = (struct piece){
		.dst = (uint8_t *)s->dst + (begin - s->offset),
		.skip = begin - from,
		.bytes = MIN(end, to) - begin,
	};
	l->at = to;
	if (to >= end) {
		l->at = 0;
		l->span++;
	}
	return true;
}

static void give_back(struct load *l, int i)
{
	l->free_pieces[l->n_free++] = i;
}

/* Hands landed pieces to the lane. */
static int land(struct load *l, unsigned min, struct err *e)
{
	struct reader_completion done[REAP_MAX];
	int n = reader_reap(l->reader, done, min, REAP_MAX, min ? -1 : 0);
	for (int k = 0; k < n; k++) {
		int i = (int)done[k].tag;
		struct piece *p = &l->pieces[i];
		if (done[k].code && !l->code)
			l->code = reader_completion_err(l->reader, &done[k], e);
		if (l->code) {
			give_back(l, i);
			continue;
		}
		const uint8_t *buffer = l->memory.base + (uint64_t)i * l->piece_bytes;
		l->copier->ops->copy(l->copier, COPY_IN, p->dst, buffer + p->skip, p->bytes);
		p->fence = l->copier->ops->fence(l->copier, COPY_IN);
		l->sent[(l->first_sent + l->n_sent++) % PIECES_MAX] = i;
	}
	return n;
}

/* Takes back the buffers of copies that are done. */
static bool look(struct load *l, struct err *e)
{
	bool any = false;
	while (l->n_sent) {
		struct err why = {0};
		int i = l->sent[l->first_sent],
			rc = l->copier->ops->fence_status(l->copier, l->pieces[i].fence, &why);
		if (!rc)
			break;
		any = true;
		if (rc < 0 && !l->code) {
			l->code = rc;
			if (e)
				*e = why;
		}
		l->done += l->pieces[i].bytes;
		l->first_sent = (l->first_sent + 1) % PIECES_MAX;
		l->n_sent--;
		give_back(l, i);
	}
	if (l->o->progress && l->done - l->told >= PROGRESS_STEP) {
		l->told = l->done;
		l->o->progress(l->o->user, l->done, l->total);
	}
	return any;
}

static int open_load(struct load *l, struct err *e)
{
	const struct gguf *g = l->o->file;
	struct reader_file *files = NEW_ARRAY(struct reader_file, g->n_files);
	for (unsigned i = 0; i < g->n_files; i++)
		files[i].path = g->files[i].path;
	struct reader_options ro = l->o->reader;
	ro.requests = 0; /* the default, which is PIECES_MAX */
	int rc = reader_open(&l->reader, files, g->n_files, &ro, e);
	free(files);
	if (rc)
		return rc;
	l->copier = l->o->copier;
	if (!l->copier && (rc = l->o->backend->ops->copier_open(l->o->backend, &l->copier, e)))
		return rc;
	/* a piece that is one slice is one read */
	l->piece_bytes = num_align_up(reader_slice(l->reader), READER_SLICE_MIN);
	l->n_pieces = (int)MIN(reader_staging_buffers(l->reader), PIECES_MAX);
	if ((rc = pinned_start(
			 &l->memory, l->copier, (size_t)l->n_pieces * l->piece_bytes, 0, NULL, NULL, e)) ||
		(rc = pinned_wait(&l->memory, e)))
		return rc;
	reader_register(l->reader, l->memory.base, l->memory.bytes);
	for (int i = l->n_pieces; i-- > 0;)
		give_back(l, i);
	l->copier->ops->attach(l->copier);
	return 0;
}

static void close_load(struct load *l)
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
	qsort(spans, n, sizeof *spans, by_place);
	struct load *l = NEW(struct load);
	l->o = o;
	l->spans = spans;
	l->n_spans = n;
	for (size_t i = 0; i < n; i++)
		l->total += spans[i].bytes;
	int rc = open_load(l, e);
	if (rc) {
		close_load(l);
		return rc;
	}
	uint64_t start = clock_ns(), news = start;
	do {
		while (read_piece(l))
			;
		/* with a copy under way its end matters as much as the next read's */
		bool sleep = !l->n_sent && reader_pending(l->reader) && clock_ns() - news > READER_POLL_NS;
		bool any = land(l, sleep, e) > 0;
		any |= look(l, e);
		if (any)
			news = clock_ns();
		else
			sched_yield();
	} while (reader_pending(l->reader) || l->n_sent || (!l->code && l->span < l->n_spans));
	result->seconds = (double)(clock_ns() - start) * 1e-9;
	result->bytes = l->done;
	rc = l->code;
	if (!rc && o->progress)
		o->progress(o->user, l->total, l->total);
	close_load(l);
	return rc;
}
