/* SPDX-License-Identifier: MIT */
/*
 * One thread keeps the drive's queue full and hands what was read to a copy stream, through a ring
 * of staging buffers:
 *
 *     span     |----a----|----a----|----a----|     a: the file's alignment
 *              .    [ head | span's bytes ]  .
 *
 * Chunks begin at multiples of a and hold at most a slice. A chunk stays in its buffer until it is
 * copied and, if its span is compared, hashed. As many chunks are read at a time as the reader
 * finds useful (reader_useful_depth), so that few buffers are used again and again.
 *
 * The chunks of a span are hashed in order by one thread of a check pool. So that all threads of
 * the pool have work, as many spans are read at a time as there are threads, a chunk of each in
 * turn; without a pool one after the other.
 */
#include "stream/tensor_load.h"

#include "kernels/copier.h"
#include "src/base/host/clock.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "stream/check/check_pool.h"
#include "stream/pinned.h"

#include <sched.h>
#include <stdlib.h>

#define REAP_MAX      64
#define BUFFERS_MAX   (READER_REQUESTS_DEFAULT)
#define READING_MAX   4 /* spans that are read at a time: the threads of a check pool */
#define PROGRESS_STEP ((uint64_t)64 << 20)

/* Bytes that are read in order: a span of the caller's, or a range of one that was wrong. */
struct load_span {
	uint32_t file;
	uint64_t offset, bytes;
	uint8_t *dst;
	uint64_t first_range, n_ranges; /* of the check values; n_ranges 0: it is not compared */
};

/* The state of a span of which something is to be read, to be copied or to be hashed. */
struct span_progress {
	const struct load_span *span;
	uint64_t next_at;     /* its next chunk begins at this offset of the file */
	unsigned n_chunks;    /* submitted; the span is in `reading` until its last chunk is */
	unsigned chunks_left; /* in buffers */
	/* of a span that is compared */
	unsigned thread;             /* of the check pool */
	unsigned next_chunk;         /* number of the chunk to post next */
	struct checked_span *ranges; /* [n_ranges] */
	struct span_check run;
	struct span_progress *next_free;
};

/* A staging buffer and the chunk in it. */
struct chunk {
	struct check_task task; /* first: the pointers are exchanged */
	struct span_progress *load;
	uint8_t *dst;
	const uint8_t *data; /* in the buffer: the span's bytes, [bytes] */
	uint64_t bytes;
	uint64_t at;      /* begins here in its span */
	uint64_t fence;   /* of its copy */
	unsigned number;  /* in its span */
	unsigned holders; /* reference count: the copy and the check */
	bool waits;       /* was read, and is not posted to the check pool yet */
};

struct tensor_loading {
	const struct tensor_load_options *o;
	struct reader *reader;
	struct copier *copier;
	struct pinned memory; /* the buffers */
	uint64_t buffer_bytes;
	struct chunk chunks[BUFFERS_MAX]; /* by buffer */
	int free_buffers[BUFFERS_MAX], n_free, n_buffers;
	int copying[BUFFERS_MAX], first_copying, n_copying; /* ring of buffers, in order */
	const struct load_span *spans;
	size_t n_spans, next_span; /* the next one to be begun */
	struct span_progress *reading[READING_MAX];
	unsigned n_reading, turn; /* reading[turn] is next to submit a chunk */
	struct span_progress loads[BUFFERS_MAX + READING_MAX], *free_loads; /* one for each chunk */
	struct load_check_state {
		struct check_pool *pool; /* NULL: nothing is compared */
		unsigned n_hashing;      /* chunks posted */
		bool again;              /* what was wrong is read again */
		struct load_span *wrong; /* [n_wrong] ranges that were wrong */
		size_t n_wrong;
		uint64_t wrong_range, wrong_value; /* lowest range number among them, and its value */
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

/* ---- spans ---- */

/* Begins the next span; NULL: there is none. */
static struct span_progress *span_begin(struct tensor_loading *l)
{
	while (l->next_span < l->n_spans && !l->spans[l->next_span].bytes)
		l->next_span++;
	if (l->next_span == l->n_spans)
		return NULL;
	const struct load_span *s = &l->spans[l->next_span++];
	struct span_progress *x = l->free_loads;
	l->free_loads = x->next_free;
	*x = (struct span_progress){.span = s,
		.next_at = num_align_down(s->offset, reader_file_align(l->reader, s->file)),
		.run = x->run};
	if (!s->n_ranges)
		return x;
	const uint64_t *expected = l->o->check_values->values + s->first_range,
				   bytes = s->bytes / s->n_ranges;
	x->thread = check_pool_next_thread(l->check.pool);
	x->ranges = NEW_ARRAY(struct checked_span, s->n_ranges);
	for (uint64_t i = 0; i < s->n_ranges; i++)
		x->ranges[i] = (struct checked_span){i * bytes, (i + 1) * bytes, expected[i], 0};
	span_check_begin(&x->run, x->ranges, (unsigned)s->n_ranges);
	l->check.figures.checked += l->check.again ? 0 : s->n_ranges;
	return x;
}

/* Range i of this span is wrong. */
static void range_is_wrong(struct tensor_loading *l, const struct span_progress *x, unsigned i)
{
	struct load_check_state *k = &l->check;
	const struct load_span *s = x->span;
	const struct checked_span *r = &x->ranges[i];
	if (!k->n_wrong || s->first_range + i < k->wrong_range) {
		k->wrong_range = s->first_range + i;
		k->wrong_value = r->found;
	}
	k->wrong = mem_grow(k->wrong, k->n_wrong + 1, sizeof *k->wrong);
	k->wrong[k->n_wrong++] = (struct load_span){.file = s->file,
		.offset = s->offset + r->begin,
		.bytes = r->end - r->begin,
		.dst = s->dst + r->begin,
		.first_range = s->first_range + i,
		.n_ranges = 1};
}

/* All bytes of a span were copied and hashed, or the load has failed. */
static void span_end(struct tensor_loading *l, struct span_progress *x)
{
	const struct checked_span *r;
	for (unsigned i = 0; x->ranges && !l->code && (r = span_check_next_wrong(&x->run, i)); i++) {
		i = (unsigned)(r - x->ranges);
		range_is_wrong(l, x, i);
	}
	free(x->ranges);
	x->ranges = NULL;
	x->next_free = l->free_loads;
	l->free_loads = x;
}

static bool is_submitted(const struct span_progress *x)
{
	return x->next_at >= x->span->offset + x->span->bytes;
}

/* ---- chunks ---- */

static void buffer_release(struct tensor_loading *l, int buffer)
{
	struct span_progress *x = l->chunks[buffer].load;
	l->free_buffers[l->n_free++] = buffer;
	if (!--x->chunks_left && is_submitted(x))
		span_end(l, x);
}

/* Drops one reference: the copy or the check of the chunk has ended. */
static void buffer_unref(struct tensor_loading *l, int buffer)
{
	if (!--l->chunks[buffer].holders)
		buffer_release(l, buffer);
}

/* Submits the read of the span's next chunk. False: no room, or a failure. */
static bool submit_chunk(struct tensor_loading *l, struct span_progress *x, struct err *e)
{
	const struct load_span *s = x->span;
	uint64_t align = reader_file_align(l->reader, s->file), end = s->offset + s->bytes;
	uint64_t from = x->next_at, to = MIN(from + l->buffer_bytes, num_align_up(end, align));
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
		.load = x,
		.dst = s->dst + (begin - s->offset),
		.data = buffer_memory(l, buffer) + (begin - from),
		.bytes = MIN(end, to) - begin,
		.at = begin - s->offset,
		.number = x->n_chunks++,
	};
	x->chunks_left++;
	x->next_at = to;
	return true;
}

/* Submits one chunk of the span whose turn it is. False: nothing left, no room, or a failure. */
static bool submit_next(struct tensor_loading *l, struct err *e)
{
	if (l->code || !l->n_free || reader_pending(l->reader) >= reader_useful_depth(l->reader))
		return false;
	for (unsigned i = 0; i < l->n_reading; i++) {
		struct span_progress **x = &l->reading[(l->turn + i) % l->n_reading];
		if (!*x && !(*x = span_begin(l)))
			continue;
		if (!submit_chunk(l, *x, e))
			return false;
		if (is_submitted(*x))
			*x = NULL;
		l->turn = (l->turn + i + 1) % l->n_reading;
		return true;
	}
	return false;
}

static bool any_to_submit(const struct tensor_loading *l)
{
	bool any = l->next_span < l->n_spans;
	for (unsigned i = 0; i < l->n_reading; i++)
		any |= l->reading[i] != NULL;
	return any && !l->code;
}

/* ---- check values ---- */

/* In a thread of the pool. */
static void hash_chunk(struct check_task *task)
{
	const struct chunk *c = (struct chunk *)task;
	span_check_add(&c->load->run, c->at, c->data, c->bytes);
}

/* Posts the chunks of a span to the check pool, in order, up to the first that has not come. */
static void post_chunks_to_check(struct tensor_loading *l, struct span_progress *x)
{
	for (int i = 0; i < l->n_buffers; i++) {
		struct chunk *c = &l->chunks[i];
		if (!c->waits || c->load != x || c->number != x->next_chunk)
			continue;
		c->waits = false;
		c->task.hash = hash_chunk;
		check_pool_post(l->check.pool, x->thread, &c->task);
		l->check.n_hashing++;
		x->next_chunk++;
		i = -1; /* the next one may be in any buffer */
	}
}

static bool poll_checks(struct tensor_loading *l)
{
	bool any = false;
	if (!l->check.pool)
		return false;
	for (struct check_task *k; (k = check_pool_take(l->check.pool)); any = true) {
		l->check.figures.ns += k->ns;
		l->check.n_hashing--;
		buffer_unref(l, (int)((struct chunk *)k - l->chunks));
	}
	return any;
}

/* The load has failed. Chunks that wait to be hashed never will be, since an earlier one is
 * missing. */
static void drop_waiting_chunks(struct tensor_loading *l)
{
	for (int i = 0; i < l->n_buffers; i++) {
		if (!l->chunks[i].waits)
			continue;
		l->chunks[i].waits = false;
		buffer_unref(l, i);
	}
}

/* ---- reads and copies ---- */

/* Hands chunks that were read to the copy stream and to the check pool. Returns how many reads
 * completed. */
static int take_read_chunks(struct tensor_loading *l, unsigned min, struct err *e)
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
		l->copier->ops->copy(l->copier, COPY_IN, c->dst, c->data, c->bytes);
		c->fence = l->copier->ops->fence(l->copier, COPY_IN);
		c->waits = c->load->span->n_ranges > 0;
		c->holders = 1 + c->waits;
		l->copying[(l->first_copying + l->n_copying++) % BUFFERS_MAX] = buffer;
		if (c->waits)
			post_chunks_to_check(l, c->load);
	}
	return n;
}

/* Takes back the buffers of copies that are done. */
static bool poll_copies(struct tensor_loading *l, struct err *e)
{
	bool any = false;
	for (; l->n_copying; any = true) {
		struct err why = {0};
		int buffer = l->copying[l->first_copying];
		int rc = l->copier->ops->fence_status(l->copier, l->chunks[buffer].fence, &why);
		if (!rc)
			break;
		if (rc < 0 && !l->code) {
			l->code = rc;
			if (e)
				*e = why;
		}
		l->loaded += l->chunks[buffer].bytes;
		l->first_copying = (l->first_copying + 1) % BUFFERS_MAX;
		l->n_copying--;
		buffer_unref(l, buffer);
	}
	if (l->o->progress && l->loaded - l->progress_shown >= PROGRESS_STEP) {
		l->progress_shown = l->loaded;
		l->o->progress(l->o->user, MIN(l->loaded, l->total), l->total);
	}
	return any;
}

/* ---- life ---- */

static int open_checks(struct tensor_loading *l, struct err *e)
{
	const unsigned n = check_pool_threads_for(l->o->check_threads);
	for (size_t i = 0; i < ARRAY_LEN(l->loads); i++)
		if (!span_check_open(&l->loads[i].run))
			return err_set(e, ERR_MEMORY, "no memory to compare what is loaded");
	l->n_reading = MIN(MAX(n, 1), READING_MAX);
	return check_pool_open(&l->check.pool, n, NULL, NULL, e);
}

static int loading_open(struct tensor_loading *l, struct err *e)
{
	const struct gguf *g = l->o->file;
	struct reader_file *files = NEW_ARRAY(struct reader_file, g->n_files);
	for (unsigned i = 0; i < g->n_files; i++)
		files[i].path = g->files[i].path;
	struct reader_options ro = l->o->reader;
	ro.requests = 0; /* the default, which is BUFFERS_MAX */
	ro.staged = true;
	int rc = reader_open(&l->reader, files, g->n_files, &ro, e);
	free(files);
	if (rc)
		return rc;
	l->n_reading = 1;
	if (l->o->check_values && (rc = open_checks(l, e)))
		return rc;
	for (size_t i = 0; i < ARRAY_LEN(l->loads); i++) {
		l->loads[i].next_free = l->free_loads;
		l->free_loads = &l->loads[i];
	}
	l->copier = l->o->copier;
	if (!l->copier && (rc = l->o->backend->ops->copier_open(l->o->backend, &l->copier, e)))
		return rc;
	l->buffer_bytes = num_align_up(reader_staging_bytes(l->reader), READER_SLICE_MIN);
	l->n_buffers = (int)MIN(reader_staging_buffers(l->reader), BUFFERS_MAX);
	if ((rc = pinned_start(&l->memory, l->copier, (size_t)l->n_buffers * l->buffer_bytes, 0, NULL,
			 NULL, NULL, e)) ||
		(rc = pinned_wait(&l->memory, e)))
		return rc;
	reader_register(l->reader, l->memory.base, l->memory.bytes);
	while (l->n_free < l->n_buffers) {
		l->free_buffers[l->n_free] = l->n_buffers - 1 - l->n_free;
		l->n_free++;
	}
	l->copier->ops->attach(l->copier);
	return 0;
}

static void loading_close(struct tensor_loading *l)
{
	check_pool_close(l->check.pool);
	reader_close(l->reader);
	if (l->copier)
		l->copier->ops->drain(l->copier);
	pinned_free(&l->memory);
	for (size_t i = 0; i < ARRAY_LEN(l->loads); i++) {
		span_check_close(&l->loads[i].run);
		free(l->loads[i].ranges); /* of a load that has failed */
	}
	free(l->check.wrong);
	if (l->copier && !l->o->copier)
		l->copier->ops->close(l->copier);
	free(l);
}

/* Loads these spans. The code is l->code. */
static void load_spans(
	struct tensor_loading *l, const struct load_span *spans, size_t n, struct err *e)
{
	uint64_t progress_ns = clock_ns();
	l->spans = spans;
	l->n_spans = n;
	l->next_span = 0;
	do {
		while (submit_next(l, e))
			;
		/* with a copy or a check in flight its end matters as much as the next read's */
		bool sleep = !l->n_copying && !l->check.n_hashing && reader_pending(l->reader) &&
					 clock_ns() - progress_ns > READER_POLL_NS;
		bool any = take_read_chunks(l, sleep, e) > 0;
		any |= poll_copies(l, e);
		any |= poll_checks(l);
		if (l->code)
			drop_waiting_chunks(l);
		if (any)
			progress_ns = clock_ns();
		else
			sched_yield();
	} while (l->n_free < l->n_buffers || any_to_submit(l));
}

/* Loads what was wrong again, past the page cache. */
static void load_wrong_again(struct tensor_loading *l, struct err *e)
{
	const struct check_values *v = l->o->check_values;
	struct load_span *again = l->check.wrong;
	const size_t n = l->check.n_wrong;
	char text[CHECK_RANGE_TEXT];
	l->check.wrong = NULL;
	l->check.n_wrong = 0;
	l->check.again = true;
	for (size_t i = 0; i < n; i++) {
		reader_drop_cached(l->reader, again[i].file, again[i].offset, again[i].bytes);
		log_warn("%s: %s was read wrong; it is read again",
			ERR_PLAIN(l->o->file->files[again[i].file].path),
			check_range_text(&v->map, again[i].first_range, text));
		if (l->o->reread)
			l->o->reread(l->o->reread_user, again[i].first_range);
	}
	l->check.figures.reread = n;
	load_spans(l, again, n, e);
	l->check.figures.wrong = l->check.n_wrong;
	if (!l->code && l->check.n_wrong) {
		check_values_err(v, l->check.wrong_range, l->check.wrong_value, e);
		if (e)
			e->code = ERR_INPUT;
		l->code = ERR_INPUT;
	}
	free(again);
}

/* The caller's spans, with the ranges that they are compared in. */
static struct load_span *spans_to_load(
	const struct tensor_load_options *o, const struct tensor_span *spans, size_t n)
{
	const struct check_values *v = o->check_values;
	struct load_span *to = NEW_ARRAY(struct load_span, n);
	for (size_t i = 0; i < n; i++) {
		const struct tensor_span *s = &spans[i];
		to[i] = (struct load_span){s->file, s->offset, s->bytes, s->dst, 0, 0};
		if (!v || !s->tensor)
			continue;
		const uint64_t *first = v->map.first + (s->tensor - v->map.file->tensors);
		to[i].first_range = first[0] + s->range;
		to[i].n_ranges = s->tensor->runs ? 1 : first[1] - first[0];
	}
	return to;
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
	struct load_span *all = spans_to_load(o, spans, n);
	load_spans(l, all, n, e);
	result->bytes = l->loaded;
	if (!l->code && l->check.n_wrong)
		load_wrong_again(l, e);
	result->seconds = (double)(clock_ns() - start) * 1e-9;
	result->checks = l->check.figures;
	rc = l->code;
	if (!rc && o->progress)
		o->progress(o->user, l->total, l->total);
	loading_close(l);
	free(all);
	return rc;
}
