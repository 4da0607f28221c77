/* SPDX-License-Identifier: MIT */
/*
 * Every thread takes the next chunk, makes it in its own buffer and writes it: with n threads up to
 * n writes are under way, which keeps a drive busy that takes 8 MiB at a time, and no thread waits
 * for another.
 *
 * A chunk begins at a multiple of the page and of the block, so that O_DIRECT takes it and no block
 * is cut. `next` is the number of the next chunk over all pieces; the rest of the shared state is
 * guarded by `lock`.
 */
#include "tools/synth/synth_write.h"

#include "src/base/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PAGE        4096u
#define CHUNK_BYTES (8u << 20)

struct state {
	const struct synth_job *job;
	int fd;
	uint64_t *first; /* [n_pieces + 1] number of each piece's first chunk */
	atomic_uint_fast64_t next, bytes_done;
	atomic_bool stop;
	pthread_mutex_t lock;
	pthread_cond_t event;
	uint32_t running;                   /* guarded by lock, as all below */
	double fill_seconds, write_seconds; /* sums */
	int code;                           /* the first error */
	struct err err;
};

/* Bytes of a chunk: whole pages and whole blocks. */
static uint64_t chunk_bytes(const struct synth_piece *p)
{
	uint64_t unit = dtype_info(p->fill.type)->block_bytes, odd = unit;
	while (!(odd & 1))
		odd >>= 1;
	/* lcm(unit, page): no block has more factors of two than the page */
	uint64_t both = odd * PAGE;
	return CHUNK_BYTES / both * both;
}

static uint64_t n_chunks(const struct synth_piece *p)
{
	uint64_t step = chunk_bytes(p);
	return (p->bytes + step - 1) / step;
}

/* The piece that chunk `c` belongs to. */
static size_t piece_of(const struct state *s, uint64_t c)
{
	size_t lo = 0, hi = s->job->n_pieces;
	while (hi - lo > 1) {
		size_t mid = lo + (hi - lo) / 2;
		if (s->first[mid] <= c)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

static int write_out(
	const struct state *s, uint64_t offset, const uint8_t *data, size_t bytes, struct err *e)
{
	while (bytes) {
		ssize_t n = pwrite(s->fd, data, bytes, (off_t)offset);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return err_errno(e, n ? errno : ENOSPC, "%s: cannot write %zu bytes at offset %" PRIu64,
				s->job->path, bytes, offset);
		data += n, offset += (uint64_t)n, bytes -= (size_t)n;
	}
	return 0;
}

static void fail(struct state *s, int code, const struct err *e)
{
	pthread_mutex_lock(&s->lock);
	if (!s->code) {
		s->code = code;
		s->err = *e;
	}
	pthread_mutex_unlock(&s->lock);
	atomic_store(&s->stop, true);
}

static bool cancelled(const struct state *s)
{
	return atomic_load(&s->stop) || (s->job->cancel && atomic_load(s->job->cancel));
}

static void *worker(void *user)
{
	struct state *s = user;
	const struct synth_job *job = s->job;
	const size_t room = CHUNK_BYTES + 2 * PAGE; /* the end of a tensor is rounded up */
	uint8_t *buffer = mem_try_map(room);
	uint64_t fill_ns = 0, write_ns = 0, c;
	struct err e = {0};
	int code = buffer ? 0 : err_set(&e, ERR_MEMORY, "no memory for a buffer of %zu bytes", room);
	while (
		!code && !cancelled(s) && (c = atomic_fetch_add(&s->next, 1)) < s->first[job->n_pieces]) {
		size_t i = piece_of(s, c);
		const struct synth_piece *p = &job->pieces[i];
		uint64_t step = chunk_bytes(p), at = (c - s->first[i]) * step, n = MIN(step, p->bytes - at);
		uint64_t padded = num_align_up(n, PAGE), t0 = clock_ns();
		synth_fill_bytes(&p->fill, at, buffer, n);
		memset(buffer + n, 0, padded - n);
		uint64_t t1 = clock_ns();
		code = write_out(s, p->offset + at, buffer, padded, &e);
		fill_ns += t1 - t0;
		write_ns += clock_ns() - t1;
		atomic_fetch_add(&s->bytes_done, n);
	}
	if (code)
		fail(s, code, &e);
	if (buffer)
		mem_unmap(buffer, room);
	pthread_mutex_lock(&s->lock);
	s->fill_seconds += (double)fill_ns * 1e-9;
	s->write_seconds += (double)write_ns * 1e-9;
	s->running--;
	pthread_cond_signal(&s->event);
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

static void show(const struct state *s, uint64_t total, uint64_t start_ns, bool terminal, bool last)
{
	double done = (double)atomic_load(&s->bytes_done),
		   seconds = (double)(clock_ns() - start_ns) * 1e-9;
	fprintf(stderr, "%s%5.1f %%  %.2f of %.2f GB, %.2f GB/s%s", terminal ? "\r" : "",
		100 * done / (double)MAX(total, 1), done * 1e-9, (double)total * 1e-9,
		done * 1e-9 / seconds, terminal && !last ? "  " : "\n");
	fflush(stderr);
}

/* The caller's part: waits for the workers and says how far they are, on a terminal four times a
 * second, else every 5 s. */
static void attend(struct state *s, uint64_t total, uint64_t start_ns)
{
	const bool terminal = isatty(2);
	uint64_t said = start_ns;
	bool over = false, spoke = false;
	while (!over) {
		struct timespec until;
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += 250000000;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		pthread_mutex_lock(&s->lock);
		while (s->running && pthread_cond_timedwait(&s->event, &s->lock, &until) == 0)
			;
		over = s->running == 0;
		pthread_mutex_unlock(&s->lock);
		if (!s->job->progress || (!over && !terminal && clock_ns() - said < 5000000000u))
			continue;
		if (!over || spoke || terminal)
			show(s, total, start_ns, terminal, over);
		spoke = true;
		said = clock_ns();
	}
}

static int run_threads(struct state *s, uint64_t total, uint64_t start_ns, struct err *e)
{
	pthread_t *threads = NEW_ARRAY(pthread_t, s->job->n_threads);
	uint32_t n = 0;
	pthread_mutex_lock(&s->lock);
	for (; n < s->job->n_threads; n++) {
		int why = pthread_create(&threads[n], NULL, worker, s);
		if (why && !n)
			s->code = err_errno(&s->err, why, "cannot start a thread");
		if (why)
			break; /* fewer are enough */
		s->running++;
	}
	pthread_mutex_unlock(&s->lock);
	attend(s, total, start_ns);
	for (uint32_t i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	free(threads);
	if (s->code && e)
		*e = s->err;
	return s->code;
}

int synth_write(const struct synth_job *job, struct synth_result *r, struct err *e)
{
	struct state s = {
		.job = job, .lock = PTHREAD_MUTEX_INITIALIZER, .event = PTHREAD_COND_INITIALIZER};
	*r = (struct synth_result){.direct = true};
	s.fd = open(job->path, O_WRONLY | O_DIRECT | O_CLOEXEC);
	if (s.fd < 0 && errno == EINVAL) {
		r->direct = false;
		s.fd = open(job->path, O_WRONLY | O_CLOEXEC);
	}
	if (s.fd < 0)
		return err_errno(e, errno, "%s", job->path);
	s.first = NEW_ARRAY(uint64_t, job->n_pieces + 1);
	for (size_t i = 0; i < job->n_pieces; i++) {
		s.first[i + 1] = s.first[i] + n_chunks(&job->pieces[i]);
		r->bytes += job->pieces[i].bytes;
	}
	uint64_t start = clock_ns();
	int code = run_threads(&s, r->bytes, start, e);
	if (!code && job->cancel && atomic_load(job->cancel))
		code = err_set(e, ERR_INTERRUPTED, "interrupted");
	if (!code && fdatasync(s.fd))
		code = err_errno(e, errno, "%s: cannot flush to disk", job->path);
	r->seconds = (double)(clock_ns() - start) * 1e-9;
	r->fill_seconds = s.fill_seconds;
	r->write_seconds = s.write_seconds;
	close(s.fd);
	free(s.first);
	return code;
}
