/* SPDX-License-Identifier: MIT */
/*
 * Null engine: reads that go wrong on demand, for tests. Without threads: a started read is given a
 * time at which it is due. Its bytes are read only when that time has come, so a destination that
 * is read too early shows what was there before, or poison.
 *
 * What happens to the n-th read is a function of the seed and n, not of the clock; with no_sleep
 * the clock is virtual and the order of completions is a function of the seed alone.
 */
#include "tests/support/reader_null.h"

#include "src/base/host/clock.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define HANG_FOREVER UINT64_MAX

enum fate { FATE_READ, FATE_SHORT, FATE_AGAIN, FATE_INTR, FATE_FAIL, FATE_CANCELLED };

struct pending_read {
	struct reader_op *op;
	uint64_t due_ns;
	uint64_t rank; /* random: order among equal times */
	enum fate fate;
	uint32_t part; /* FATE_SHORT: bytes that come */
	bool hung;
};

struct null {
	void *owner;
	struct reader_faults faults;
	struct rng rng;
	int *fds;
	unsigned n_files;
	uint64_t n_reads, n_range_failures, n_flips[2];
	unsigned n_gone;     /* reads of files that are gone */
	uint64_t virtual_ns; /* the clock with no_sleep */
	struct pending_read *pending;
	unsigned n, cap;
	int wake_fd;
};

/* --- known content --- */

static uint64_t word_at(uint32_t file, uint64_t index)
{
	struct rng g = {index ^ (uint64_t)file << 56};
	return rng_u64(&g);
}

void reader_null_fill(uint32_t file, uint64_t offset, void *dst, size_t n)
{
	unsigned char *d = dst;
	while (n) {
		uint64_t w = word_at(file, offset / 8);
		size_t skip = offset % 8, take = MIN(8 - skip, n);
		memcpy(d, (unsigned char *)&w + skip, take);
		d += take;
		offset += take;
		n -= take;
	}
}

/* --- opening --- */

static void null_close(void *state)
{
	struct null *z = state;
	if (z->wake_fd >= 0)
		close(z->wake_fd);
	free(z->fds);
	free(z->pending);
	free(z);
}

static int null_open(const struct reader_setup *s, void **state, char *why, size_t why_bytes)
{
	struct null *z = NEW(struct null);
	z->owner = s->owner;
	if (s->custom_options)
		z->faults = *(const struct reader_faults *)s->custom_options;
	if (z->faults.latency_min_us > z->faults.latency_max_us)
		bug("latencies from %u to %u us", z->faults.latency_min_us, z->faults.latency_max_us);
	z->rng.state = z->faults.seed;
	z->n_files = s->n_fds / 2;
	z->fds = NEW_ARRAY(int, z->n_files);
	for (unsigned i = 0; i < z->n_files; i++)
		z->fds[i] = s->fds[2 * i];
	z->cap = s->n_drives * s->depth;
	z->pending = NEW_ARRAY(struct pending_read, z->cap);
	z->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (z->wake_fd < 0) {
		int code = -errno;
		snprintf(why, why_bytes, "eventfd: %s", err_name(code));
		null_close(z);
		return code;
	}
	*state = z;
	return 0;
}

static void null_describe(void *state, char *text, size_t bytes)
{
	struct null *z = state;
	snprintf(text, bytes, "null engine, seed %llu", (unsigned long long)z->faults.seed);
}

/* --- one read --- */

static uint64_t now_ns(const struct null *z)
{
	return z->faults.no_sleep ? z->virtual_ns : clock_ns();
}

static bool strikes_range(struct null *z, const struct reader_op *op)
{
	const struct reader_faults *f = &z->faults;
	if (!f->fail_range || op->file != f->fail_file || f->fail_offset < op->offset ||
		f->fail_offset - op->offset >= op->bytes ||
		(f->fail_times && z->n_range_failures >= f->fail_times))
		return false;
	z->n_range_failures++;
	return true;
}

/* A copy is known by its descriptor: op->file is the file that the request names. */
static bool strikes_copy(struct null *z, const struct reader_op *op)
{
	const unsigned handle = (unsigned)op->fd_index / 2;
	return handle < 64 && z->faults.gone >> handle & 1 && z->n_gone++ >= z->faults.gone_after;
}

static void null_start(void *state, struct reader_op *op)
{
	struct null *z = state;
	const struct reader_faults *f = &z->faults;
	struct pending_read *t = &z->pending[z->n++];
	*t = (struct pending_read){.op = op, .rank = rng_u64(&z->rng)};
	uint64_t span = f->latency_max_us - f->latency_min_us, dice = rng_u64(&z->rng);
	uint64_t us = f->latency_min_us + (span ? dice % (span + 1) : 0);
	if ((dice >> 40) % 64 == 0)
		us *= 8;
	t->due_ns = now_ns(z) + us * 1000;
	/* always drawn, so that one kind of fault does not shift the dice of the others */
	unsigned d_again = rng_below(&z->rng, 1024), d_short = rng_below(&z->rng, 1024);
	uint32_t part = 1 + rng_below(&z->rng, op->bytes);
	z->n_reads++;
	if (f->hang_read && z->n_reads == f->hang_read) {
		t->hung = true;
		t->due_ns = f->hang_ms ? clock_ns() + f->hang_ms * 1000000ull : HANG_FOREVER;
	}
	if ((f->fail_read && z->n_reads == f->fail_read) || strikes_range(z, op) || strikes_copy(z, op))
		t->fate = FATE_FAIL;
	else if (d_again < f->eagain_per_1024)
		t->fate = d_again & 1 ? FATE_INTR : FATE_AGAIN;
	else if (d_short < f->short_per_1024 && part < op->bytes) {
		t->fate = FATE_SHORT;
		t->part = part;
	}
	if (f->poison)
		memset(op->dst, READER_POISON, op->bytes);
}

/* Fetches up to `bytes`: count, 0 at the end of the file, or -errno. */
static int fetch(struct null *z, const struct reader_op *op, uint32_t bytes)
{
	const struct reader_faults *f = &z->faults;
	unsigned handle = (unsigned)op->fd_index / 2;
	ssize_t n = pread(z->fds[handle], op->dst, bytes, (off_t)op->offset);
	const uint64_t flips[] = {f->flip_offset, f->flip_also};
	for (size_t i = 0; i < (f->flip_also ? 2 : 1); i++)
		if (f->flip && op->file == f->flip_file && flips[i] >= op->offset && n > 0 &&
			flips[i] - op->offset < (uint64_t)n &&
			(!f->flip_times || z->n_flips[i] < f->flip_times)) {
			op->dst[flips[i] - op->offset] ^= 1;
			z->n_flips[i]++;
		}
	return n < 0 ? -errno : (int)n;
}

static void complete(struct null *z, unsigned i)
{
	struct pending_read t = z->pending[i];
	z->pending[i] = z->pending[--z->n];
	int res = 0;
	switch (t.fate) {
	case FATE_READ:
		res = fetch(z, t.op, t.op->bytes);
		break;
	case FATE_SHORT:
		res = fetch(z, t.op, t.part);
		break;
	case FATE_AGAIN:
		res = -EAGAIN;
		break;
	case FATE_INTR:
		res = -EINTR;
		break;
	case FATE_FAIL:
		res = z->faults.fail_code ? z->faults.fail_code : -EIO;
		break;
	case FATE_CANCELLED:
		res = -ECANCELED;
		break;
	}
	reader_op_done(z->owner, t.op, res);
}

/* Hung reads run on the real clock, the others on the engine's. */
static bool is_due(const struct null *z, const struct pending_read *t)
{
	return t->due_ns <= (t->hung ? clock_ns() : now_ns(z));
}

/* Index of the read that is due first; false: none is pending but hung ones that never end. */
static bool first_pending(const struct null *z, bool hung, unsigned *first)
{
	bool found = false;
	for (unsigned i = 0; i < z->n; i++) {
		const struct pending_read *t = &z->pending[i];
		if (t->hung != hung || t->due_ns == HANG_FOREVER)
			continue;
		const struct pending_read *b = &z->pending[*first];
		if (!found || t->due_ns < b->due_ns || (t->due_ns == b->due_ns && t->rank < b->rank))
			*first = i;
		found = true;
	}
	return found;
}

static unsigned complete_due(struct null *z)
{
	unsigned n = 0, i = 0;
	for (unsigned hung = 0; hung < 2; hung++) {
		while (first_pending(z, hung, &i) && is_due(z, &z->pending[i])) {
			complete(z, i);
			n++;
		}
	}
	return n;
}

/* Sleeps until the next read is due, a wake, or wait_ns (negative: no limit). */
static void null_sleep(struct null *z, int64_t wait_ns)
{
	for (unsigned hung = 0, i = 0; hung < 2; hung++) {
		if (!first_pending(z, hung, &i))
			continue;
		uint64_t now = hung ? clock_ns() : now_ns(z), due = z->pending[i].due_ns;
		int64_t left = due > now ? (int64_t)(due - now) : 0;
		wait_ns = wait_ns < 0 ? left : MIN(wait_ns, left);
	}
	struct timespec ts = {wait_ns / 1000000000, wait_ns % 1000000000};
	struct pollfd pf = {.fd = z->wake_fd, .events = POLLIN};
	if (ppoll(&pf, 1, wait_ns < 0 ? NULL : &ts, NULL) > 0) {
		uint64_t count;
		ssize_t n = read(z->wake_fd, &count, sizeof count);
		(void)n;
	}
}

static void null_poll(void *state, int64_t wait_ns)
{
	struct null *z = state;
	unsigned i = 0;
	if (z->faults.no_sleep) {
		/* Time jumps to the next read when somebody waits, and creeps when somebody only looks. */
		if (wait_ns && first_pending(z, false, &i))
			z->virtual_ns = MAX(z->virtual_ns, z->pending[i].due_ns);
		else
			z->virtual_ns += 1000 * rng_below(&z->rng, z->faults.latency_max_us + 1);
	}
	if (complete_due(z) || !wait_ns)
		return;
	null_sleep(z, wait_ns);
	complete_due(z);
}

static void null_flush(void *state)
{
	(void)state;
}

static void null_cancel(void *state, struct reader_op *op)
{
	struct null *z = state;
	for (unsigned i = 0; i < z->n; i++) {
		struct pending_read *t = &z->pending[i];
		/* Like a drive: a hung read ends, of the others every second one can still be stopped. */
		if (t->op == op && (t->hung || (t->rank & 1))) {
			t->fate = FATE_CANCELLED;
			t->hung = false;
			t->due_ns = now_ns(z);
		}
	}
}

static void null_wake(void *state)
{
	struct null *z = state;
	uint64_t one = 1;
	ssize_t n = write(z->wake_fd, &one, sizeof one);
	(void)n;
}

const struct reader_engine_ops reader_null_engine = {
	.name = "null",
	.open = null_open,
	.start = null_start,
	.flush = null_flush,
	.poll = null_poll,
	.cancel = null_cancel,
	.wake = null_wake,
	.describe = null_describe,
	.close = null_close,
};
