/* SPDX-License-Identifier: MIT */
#include "tools/verify/verify_file.h"

#include "src/base/host/clock.h"
#include "src/base/host/pages.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/xxh3/xxh3.h"
#include "stream/reader/reader.h"
#include "tools/output/workers.h"

#include <pthread.h>
#include <stdlib.h>

#define PART_BYTES ((uint64_t)4 << 20) /* read at once; a multiple of every alignment */

struct verify_state {
	const struct verify_job *job;
	atomic_uint_fast64_t next;
	struct workers_bytes bytes;
	/* [n_tensors] the first tensor that stands where it does: itself, unless shared */
	size_t *twin;
	pthread_mutex_t lock; /* guards the result */
	struct verify_result *result;
};

/* What a thread owns. */
struct verify_thread {
	struct verify_state *s;
	struct reader *reader;
	uint8_t *buffers; /* two of PART_BYTES */
	struct xxh3 *hash;
};

/* A part of a range as it is read: whole units of the file's alignment around its bytes. */
struct range_part {
	uint64_t from, bytes, need; /* as in a reader_request */
	uint64_t skip, used;        /* of the buffer: the range's own bytes */
};

static struct range_part part_at(
	const struct verify_thread *t, const struct check_range *r, uint64_t at)
{
	const uint64_t align = reader_file_align(t->reader, r->run.file),
				   end = r->run.offset + r->run.bytes;
	struct range_part p = {.from = num_align_down(at, align)};
	p.bytes = MIN(PART_BYTES, num_align_up(end, align) - p.from);
	p.need = MIN(p.bytes, end - p.from);
	p.skip = at - p.from;
	p.used = p.need - p.skip;
	return p;
}

static int submit_part(
	struct verify_thread *t, const struct check_range *r, const struct range_part *p, int buffer)
{
	const struct reader_request q = {.file = r->run.file,
		.offset = p->from,
		.bytes = p->bytes,
		.need = p->need,
		.dst = t->buffers + (uint64_t)buffer * PART_BYTES};
	int rc = reader_submit(t->reader, &q);
	if (rc)
		bug("the reader refused %llu bytes: code %d", (unsigned long long)p->bytes, rc);
	reader_flush(t->reader);
	return 0;
}

/* The value of the bytes on the drive. One part is being read while another one is hashed. */
static int hash_range(
	struct verify_thread *t, const struct check_range *r, uint64_t *value, struct err *e)
{
	struct range_part part = part_at(t, r, r->run.offset), next = {0};
	int buffer = 0;
	xxh3_begin(t->hash);
	submit_part(t, r, &part, buffer);
	const uint64_t end = r->run.offset + r->run.bytes;
	for (uint64_t at = r->run.offset; at < end; part = next, buffer = !buffer) {
		struct reader_completion done;
		reader_reap(t->reader, &done, 1, 1, -1);
		if (done.code)
			return reader_completion_err(t->reader, &done, e);
		at += part.used;
		if (at < end) {
			next = part_at(t, r, at);
			submit_part(t, r, &next, !buffer);
		}
		xxh3_add(t->hash, t->buffers + (uint64_t)buffer * PART_BYTES + part.skip, part.used);
		atomic_fetch_add(&t->s->bytes.done, part.used);
	}
	*value = xxh3_value(t->hash);
	return 0;
}

/* Notes a range that differs: wrong for good, or when it was read first only. */
static void count_difference(struct verify_state *s, uint64_t i, bool wrong)
{
	char text[CHECK_RANGE_TEXT];
	const struct check_map *map = s->job->map;
	pthread_mutex_lock(&s->lock);
	struct verify_result *r = s->result;
	if (wrong && (!r->wrong || i < r->first_wrong))
		r->first_wrong = i;
	*(wrong ? &r->wrong : &r->reread) += 1;
	if (!wrong)
		log_warn("%s: %s: was read wrong, and right when it was read again",
			ERR_PLAIN(map->file->files[check_map_range(map, i).run.file].path),
			check_range_text(map, i, text));
	pthread_mutex_unlock(&s->lock);
}

static int verify_range(struct verify_thread *t, uint64_t i, struct err *e)
{
	const struct verify_job *job = t->s->job;
	const struct check_range r = check_map_range(job->map, i);
	const size_t tensor = (size_t)(r.tensor - job->map->file->tensors);
	if (t->s->twin[tensor] != tensor)
		return 0; /* copy_shared */
	int rc = hash_range(t, &r, &job->values[i], e);
	if (rc || !job->expected || job->values[i] == job->expected[i])
		return rc;
	atomic_fetch_sub(&t->s->bytes.done, r.run.bytes);
	reader_drop_cached(t->reader, r.run.file, r.run.offset, r.run.bytes);
	if (!(rc = hash_range(t, &r, &job->values[i], e)))
		count_difference(t->s, i, job->values[i] != job->expected[i]);
	return rc;
}

static int thread_open(struct verify_thread *t, struct err *e)
{
	const struct gguf *g = t->s->job->map->file;
	struct reader_file *files = NEW_ARRAY(struct reader_file, g->n_files);
	for (uint32_t i = 0; i < g->n_files; i++)
		files[i].path = g->files[i].path;
	const struct reader_options o = {.buffered = t->s->job->buffered, .requests = 2, .depth = 8};
	int rc = reader_open(&t->reader, files, g->n_files, &o, e);
	free(files);
	for (uint32_t i = 0; i < g->n_files && !rc; i++)
		if (reader_file_size(t->reader, i) != g->files[i].size)
			rc = err_set(e, ERR_INPUT, "%s: its size has changed", g->files[i].path);
	if (rc)
		return rc;
	t->buffers = pages_try_map(2 * PART_BYTES);
	t->hash = xxh3_new();
	return t->buffers && t->hash ? 0 : err_set(e, ERR_MEMORY, "no memory for buffers");
}

static void thread_close(struct verify_thread *t)
{
	struct verify_state *s = t->s;
	if (t->reader) {
		pthread_mutex_lock(&s->lock);
		s->result->direct &= !reader_stats(t->reader).page_cache;
		pthread_mutex_unlock(&s->lock);
	}
	reader_close(t->reader); /* its reads first */
	if (t->buffers)
		pages_unmap(t->buffers, 2 * PART_BYTES);
	xxh3_free(t->hash);
}

static int verify_worker(void *user, struct err *e)
{
	struct verify_state *s = user;
	struct verify_thread t = {.s = s};
	const uint64_t n = check_map_n(s->job->map);
	int rc = thread_open(&t, e);
	for (uint64_t i;
		 !rc && !atomic_load(&s->bytes.stop) && (i = atomic_fetch_add(&s->next, 1)) < n;)
		rc = verify_range(&t, i, e);
	thread_close(&t);
	return rc;
}

/* By place and division into ranges. */
static int compare_places(
	const struct check_map *m, const struct gguf_tensor *a, const struct gguf_tensor *b)
{
	const uint64_t *x = m->first + (a - m->file->tensors), *y = m->first + (b - m->file->tensors);
	const uint64_t of_a[] = {a->file, a->offset, a->bytes, x[1] - x[0]},
				   of_b[] = {b->file, b->offset, b->bytes, y[1] - y[0]};
	for (size_t i = 0; i < ARRAY_LEN(of_a); i++)
		if (of_a[i] != of_b[i])
			return of_a[i] < of_b[i] ? -1 : 1;
	return 0;
}

/* Tensors of one place are in the order of the table. */
static int compare_tensors(const void *a, const void *b, void *map)
{
	const struct gguf_tensor *x = *(const struct gguf_tensor *const *)a,
							 *y = *(const struct gguf_tensor *const *)b;
	const int order = compare_places(map, x, y);
	return order ? order : (x > y) - (x < y);
}

/* Files of `synth --alias` have tensors at the same place. */
static void find_shared(struct verify_state *s)
{
	const struct check_map *m = s->job->map;
	const struct gguf *g = m->file;
	const struct gguf_tensor **order = NEW_ARRAY(const struct gguf_tensor *, g->n_tensors);
	for (size_t i = 0; i < g->n_tensors; i++)
		order[i] = &g->tensors[i];
	qsort_r(order, g->n_tensors, sizeof *order, compare_tensors, (void *)(uintptr_t)m);
	s->twin = NEW_ARRAY(size_t, g->n_tensors);
	const struct gguf_tensor *twin = NULL;
	for (size_t i = 0; i < g->n_tensors; i++) {
		if (!twin || compare_places(m, twin, order[i])) {
			twin = order[i];
			s->bytes.total += twin->bytes;
		}
		s->twin[order[i] - g->tensors] = (size_t)(twin - g->tensors);
	}
	free(order);
}

/* Their bytes were read once. */
static void copy_shared(struct verify_state *s)
{
	const struct verify_job *job = s->job;
	const uint64_t *first = job->map->first;
	for (size_t i = 0; i < job->map->file->n_tensors; i++)
		for (uint64_t k = 0; s->twin[i] != i && k < first[i + 1] - first[i]; k++) {
			job->values[first[i] + k] = job->values[first[s->twin[i]] + k];
			if (job->expected && job->values[first[i] + k] != job->expected[first[i] + k])
				count_difference(s, first[i] + k, true);
		}
}

int verify_file(const struct verify_job *job, struct verify_result *r, struct err *e)
{
	*r = (struct verify_result){.direct = true, .ranges = check_map_n(job->map)};
	struct verify_state s = {.job = job,
		.bytes = {.what = job->progress ? "reading" : NULL, .cancel = job->cancel},
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.result = r};
	const uint64_t start = clock_ns();
	find_shared(&s);
	const enum log_level before = log_lower(LOG_WARN); /* each reader says how it reads */
	int rc = workers_run_bytes(&s.bytes, verify_worker, &s, job->n_threads, e);
	log_set_level(before);
	if (!rc)
		copy_shared(&s);
	free(s.twin);
	r->bytes = atomic_load(&s.bytes.done);
	r->seconds = (double)(clock_ns() - start) * 1e-9;
	return rc;
}
