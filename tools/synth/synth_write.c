/* SPDX-License-Identifier: MIT */
/*
 * Every thread takes the next chunk, makes it in its own buffer and writes it: with n threads up to
 * n writes are under way, which keeps a drive busy that takes 8 MiB at a time, and no thread waits
 * for another.
 *
 * A chunk begins at a multiple of the page and of the block, so that O_DIRECT takes it and no block
 * is cut. `next` is the number of the next chunk over all pieces.
 */
#include "tools/synth/synth_write.h"

#include "src/base/host/clock.h"
#include "src/base/host/pages.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "tools/output/workers.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE        4096u
#define CHUNK_BYTES (8u << 20)

struct write_state {
	const struct synth_job *job;
	int fd;
	uint64_t *first; /* [n_pieces + 1] number of each piece's first chunk */
	atomic_uint_fast64_t next, fill_ns, write_ns;
	struct workers_bytes bytes;
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

static int write_out(
	const struct write_state *s, uint64_t offset, const uint8_t *data, size_t bytes, struct err *e)
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

static int write_worker(void *user, struct err *e)
{
	struct write_state *s = user;
	const struct synth_job *job = s->job;
	const size_t room = CHUNK_BYTES + 2 * PAGE; /* the end of a tensor is rounded up */
	uint8_t *buffer = pages_try_map(room);
	uint64_t c;
	int code = buffer ? 0 : err_set(e, ERR_MEMORY, "no memory for a buffer of %zu bytes", room);
	while (!code && !atomic_load(&s->bytes.stop) &&
		   (c = atomic_fetch_add(&s->next, 1)) < s->first[job->n_pieces]) {
		size_t i = num_interval_of(s->first, job->n_pieces, c);
		const struct synth_piece *p = &job->pieces[i];
		uint64_t step = chunk_bytes(p), at = (c - s->first[i]) * step, n = MIN(step, p->bytes - at);
		uint64_t padded = num_align_up(n, PAGE), t0 = clock_ns();
		synth_fill_bytes(&p->fill, at, buffer, n);
		memset(buffer + n, 0, padded - n);
		uint64_t t1 = clock_ns();
		code = write_out(s, p->offset + at, buffer, padded, e);
		atomic_fetch_add(&s->fill_ns, t1 - t0);
		atomic_fetch_add(&s->write_ns, clock_ns() - t1);
		atomic_fetch_add(&s->bytes.done, n);
	}
	if (buffer)
		pages_unmap(buffer, room);
	return code;
}

int synth_write(const struct synth_job *job, struct synth_result *r, struct err *e)
{
	struct write_state s = {
		.job = job, .bytes = {.what = job->progress ? "writing" : NULL, .cancel = job->cancel}};
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
		s.bytes.total += job->pieces[i].bytes;
	}
	uint64_t start = clock_ns();
	int code = workers_run_bytes(&s.bytes, write_worker, &s, job->n_threads, e);
	if (!code && TEMP_FAILURE_RETRY(fdatasync(s.fd)))
		code = err_errno(e, errno, "%s: cannot flush to disk", job->path);
	r->bytes = s.bytes.total;
	r->seconds = (double)(clock_ns() - start) * 1e-9;
	r->fill_seconds = (double)atomic_load(&s.fill_ns) * 1e-9;
	r->write_seconds = (double)atomic_load(&s.write_ns) * 1e-9;
	close(s.fd);
	free(s.first);
	return code;
}
