/* SPDX-License-Identifier: MIT */
/*
 * io_uring engine: one ring per drive, all owned by one thread. That thread always sleeps in ring
 * 0:
 *
 *     ring 0   reads of drive 0, and a poll on the eventfd `wake_fd`
 *     ring 1.. reads of the other drives; their completions are signalled through `wake_fd`
 *
 * reader_wake writes to the same eventfd. Rings are created disabled and enabled by the first
 * thread that starts a read, because with IORING_SETUP_SINGLE_ISSUER the kernel ties a ring to the
 * thread that enables it; so a reader may be opened, and memory registered, by one thread and used
 * by another.
 *
 * The ring's own descriptor is not registered with the kernel: that registration belongs to a
 * thread, and what it saves (a descriptor look-up per system call) is nothing beside a read of 1
 * MiB.
 *
 * Before a ring is enabled it gives up all but what this file uses (uring_restrict.h): a ring can
 * open files and make connections without a system call that a seccomp filter sees.
 */
#include "stream/reader/reader_engine.h"
#include "stream/reader/uring_restrict.h"

#ifndef HAVE_URING
#if __has_include(<liburing.h>)
#define HAVE_URING 1
#else
#define HAVE_URING 0
#endif
#endif

#include <stdio.h>

#if HAVE_URING

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* user_data that are no ops */
#define DATA_WAKE   1u
#define DATA_CANCEL 2u

/* Reads through the page cache of this size and more are given to the kernel's own threads at once.
 * Otherwise the owner would start the disk and copy out of the cache itself, one read after
 * another. */
#define ASYNC_FROM (64u << 10)

#define REGISTERED_BYTES_MAX (1u << 30) /* the kernel's limit for one registered buffer */
#define REGISTERED_MAX       16384u     /* and for their number */

struct ring {
	struct io_uring ring;
	bool made;
	unsigned in_flight;
};

struct uring {
	void *owner;
	unsigned n;
	struct ring *rings;
	int wake_fd;
	bool enabled; /* by the owner, at its first call */
	bool wake_armed;
	bool files_registered;
	bool memory_on_rings; /* something is registered */
	bool restricted;
	unsigned setup_flags;
	struct iovec *registered; /* registered memory, sorted; index = buffer index on every ring */
	unsigned n_registered;
};

/* Why the kernel has refused a ring, as a clause for the user. */
static const char *why_refused(int code)
{
	switch (-code) {
	case ENOSYS:
		return "this kernel has none";
	case EPERM:
	case EACCES:
		return "forbidden here (seccomp filter, container, or sysctl kernel.io_uring_disabled)";
	case ENOMEM:
		return "no memory for the ring (RLIMIT_MEMLOCK)";
	case EMFILE:
	case ENFILE:
		return "too many open files";
	default:
		return err_name(code);
	}
}

/* Creates a ring with the newest set of flags that the kernel knows. */
static int ring_init(struct uring *u, struct ring *g, unsigned entries)
{
	static const unsigned sets[] = {
#if defined(IORING_SETUP_DEFER_TASKRUN) && defined(IORING_SETUP_SINGLE_ISSUER)
		IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
			IORING_SETUP_TASKRUN_FLAG, /* 6.1 */
#endif
#ifdef IORING_SETUP_COOP_TASKRUN
		IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, /* 5.19 */
#endif
		0
	};
	int code = -EINVAL;
	for (unsigned i = 0; i < ARRAY_LEN(sets) && code == -EINVAL; i++) {
		struct io_uring_params p = {
			.flags = sets[i] | IORING_SETUP_R_DISABLED | IORING_SETUP_CLAMP};
		code = io_uring_queue_init_params(entries, &g->ring, &p);
		if (code == 0) {
			g->made = true;
			u->setup_flags = sets[i];
			/* EXT_ARG: a wait with a time limit that needs no request of its own; NODROP: no lost
			 * completions */
			if (!(p.features & IORING_FEAT_EXT_ARG) || !(p.features & IORING_FEAT_NODROP))
				return -EOPNOTSUPP;
		}
	}
	return code;
}

static void uring_close(void *state)
{
	struct uring *u = state;
	if (!u)
		return;
	for (unsigned i = 0; i < u->n; i++) {
		if (u->rings[i].made)
			io_uring_queue_exit(&u->rings[i].ring);
	}
	if (u->wake_fd >= 0)
		close(u->wake_fd);
	free(u->rings);
	free(u->registered);
	free(u);
}

static int uring_open(const struct reader_setup *s, void **state, char *why, size_t why_bytes)
{
	struct uring *u = NEW(struct uring);
	u->owner = s->owner;
	u->n = s->n_drives;
	u->rings = NEW_ARRAY(struct ring, u->n);
	u->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int code = u->wake_fd < 0 ? -errno : 0;
	if (code)
		snprintf(why, why_bytes, "eventfd: %s", err_name(code));
	/* room for every read, a cancel for each, and the poll on wake_fd */
	for (unsigned i = 0; i < u->n && !code; i++) {
		code = ring_init(u, &u->rings[i], 2 * s->depth + 2);
		if (code == -EOPNOTSUPP)
			snprintf(why, why_bytes, "this kernel is older than 5.11");
		else if (code)
			snprintf(why, why_bytes, "%s", why_refused(code));
	}
	u->files_registered = true;
	for (unsigned i = 0; i < u->n && !code; i++) {
		struct io_uring *ring = &u->rings[i].ring;
		if (u->files_registered && io_uring_register_files(ring, s->fds, s->n_fds))
			u->files_registered = false; /* older rings keep theirs: they are not used then */
		if (i)
			code = io_uring_register_eventfd(ring, u->wake_fd);
		if (code)
			snprintf(why, why_bytes, "eventfd of a ring: %s", err_name(code));
	}
	u->restricted = true;
	for (unsigned i = 0; i < u->n && !code; i++)
		if (uring_restrict(u->rings[i].ring.ring_fd))
			u->restricted = false; /* what else the process is denied stays */
	if (code) {
		uring_close(u);
		return code;
	}
	*state = u;
	return 0;
}

static void uring_describe(void *state, char *text, size_t bytes)
{
	struct uring *u = state;
	const char *mode = "";
#ifdef IORING_SETUP_DEFER_TASKRUN
	if (u->setup_flags & IORING_SETUP_DEFER_TASKRUN)
		mode = ", deferred task work";
#endif
	snprintf(text, bytes, "io_uring%s%s%s", mode,
		u->files_registered ? ", registered files" : ", plain files",
		u->restricted ? ", reads only" : "");
}

/* First call of the owner. By system call: the shared library of liburing 2.3 does not export
 * io_uring_enable_rings. */
static void enable_rings(struct uring *u)
{
	for (unsigned i = 0; i < u->n; i++) {
		if (syscall(SYS_io_uring_register, u->rings[i].ring.ring_fd, IORING_REGISTER_ENABLE_RINGS,
				NULL, 0) < 0)
			bug("io_uring: a new ring cannot be enabled: %s", err_name(-errno));
	}
	u->enabled = true;
}

/* Takes the result of a system call on a ring. A lack of memory or of completion slots ends when
 * completions are taken, so the call is repeated later. Other errors are faults of this file or of
 * its caller. */
static void check_enter(int code)
{
	if (code >= 0 || code == -EINTR || code == -EAGAIN || code == -EBUSY || code == -ETIME ||
		code == -ENOMEM)
		return;
	bug("io_uring_enter: %s%s", err_name(code),
		code == -EEXIST ? " (a second thread uses the reader)" : "");
}

static struct io_uring_sqe *get_sqe(struct ring *g)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&g->ring);
	for (unsigned tries = 0; !sqe; tries++) {
		if (tries > 1000)
			bug("io_uring: the submission queue stays full");
		check_enter(io_uring_submit(&g->ring));
		sqe = io_uring_get_sqe(&g->ring);
	}
	return sqe;
}

/* Index of the registered buffer that holds all of the op's destination, or -1. */
static int registered_index(const struct uring *u, const struct reader_op *op)
{
	unsigned lo = 0, hi = u->memory_on_rings ? u->n_registered : 0;
	while (lo < hi) { /* first buffer that starts above dst */
		unsigned mid = (lo + hi) / 2;
		if ((unsigned char *)u->registered[mid].iov_base > op->dst)
			hi = mid;
		else
			lo = mid + 1;
	}
	if (!lo)
		return -1;
	const struct iovec *p = &u->registered[lo - 1];
	size_t skip = (size_t)(op->dst - (unsigned char *)p->iov_base);
	return skip <= p->iov_len && op->bytes <= p->iov_len - skip ? (int)(lo - 1) : -1;
}

static void uring_start(void *state, struct reader_op *op)
{
	struct uring *u = state;
	if (!u->enabled)
		enable_rings(u);
	struct ring *g = &u->rings[op->drive];
	struct io_uring_sqe *sqe = get_sqe(g);
	int index = registered_index(u, op);
	int fd = u->files_registered ? op->fd_index : op->fd;
	op->fixed = index >= 0;
	if (op->fixed)
		io_uring_prep_read_fixed(sqe, fd, op->dst, op->bytes, op->offset, index);
	else
		io_uring_prep_read(sqe, fd, op->dst, op->bytes, op->offset);
	if (u->files_registered)
		sqe->flags |= IOSQE_FIXED_FILE;
	if (!op->direct && op->bytes >= ASYNC_FROM)
		sqe->flags |= IOSQE_ASYNC;
	sqe->user_data = (uintptr_t)op;
	g->in_flight++;
}

static void uring_cancel(void *state, struct reader_op *op)
{
	struct uring *u = state;
	struct io_uring_sqe *sqe = get_sqe(&u->rings[op->drive]);
	io_uring_prep_cancel(sqe, op, 0);
	sqe->user_data = DATA_CANCEL;
}

static void uring_flush(void *state)
{
	struct uring *u = state;
	for (unsigned i = 0; i < u->n; i++) {
		if (io_uring_sq_ready(&u->rings[i].ring))
			check_enter(io_uring_submit(&u->rings[i].ring));
	}
}

/* Reports the completions of a ring. Returns their number, wakes included. reader_op_done may start
 * further reads but never submits them, so the queue does not change during the loop. */
static unsigned reap_ring(struct uring *u, struct ring *g)
{
	unsigned n = 0;
	struct io_uring_cqe *cqe;
	while (io_uring_peek_cqe(&g->ring, &cqe) == 0 && cqe) {
		uint64_t data = cqe->user_data;
		int res = cqe->res;
		io_uring_cqe_seen(&g->ring, cqe);
		if (data == DATA_WAKE) {
			uint64_t count;
			u->wake_armed = false;
			if (read(u->wake_fd, &count, sizeof count) < 0 && errno != EAGAIN && errno != EINTR)
				bug("io_uring: eventfd: %s", err_name(-errno));
			n++; /* a wake ends the wait */
		} else if (data != DATA_CANCEL) {
			g->in_flight--;
			reader_op_done(u->owner, (struct reader_op *)(uintptr_t)data, res);
			n++;
		}
	}
	return n;
}

/* Submits to a ring and runs its deferred completions, without waiting. */
static void submit_ring(struct ring *g)
{
	if (io_uring_sq_ready(&g->ring) && !g->in_flight)
		check_enter(io_uring_submit(&g->ring));
	else if (io_uring_sq_ready(&g->ring) || (g->in_flight && !io_uring_cq_ready(&g->ring)))
		check_enter(io_uring_submit_and_get_events(&g->ring));
}

static void uring_poll(void *state, int64_t wait_ns)
{
	struct uring *u = state;
	if (!u->enabled)
		enable_rings(u);
	unsigned got = 0;
	for (unsigned i = 1; i < u->n; i++) {
		submit_ring(&u->rings[i]);
		got += reap_ring(u, &u->rings[i]);
	}
	struct ring *g = &u->rings[0];
	if (wait_ns == 0 || got || io_uring_cq_ready(&g->ring)) {
		submit_ring(g);
		reap_ring(u, g);
		return;
	}
	if (!u->wake_armed) {
		struct io_uring_sqe *sqe = get_sqe(g);
		io_uring_prep_poll_add(sqe, u->wake_fd, POLLIN);
		sqe->user_data = DATA_WAKE;
		u->wake_armed = true;
	}
	struct __kernel_timespec ts = {wait_ns / 1000000000, wait_ns % 1000000000};
	struct io_uring_cqe *cqe = NULL;
	check_enter(
		io_uring_submit_and_wait_timeout(&g->ring, &cqe, 1, wait_ns < 0 ? NULL : &ts, NULL));
	reap_ring(u, g);
	for (unsigned i = 1; i < u->n; i++) {
		submit_ring(&u->rings[i]);
		reap_ring(u, &u->rings[i]);
	}
}

static void uring_wake(void *state)
{
	struct uring *u = state;
	uint64_t one = 1;
	ssize_t n = write(u->wake_fd, &one,
		sizeof one); /* EAGAIN: the counter is full, so the owner is awake anyway */
	(void)n;
}

/* Cuts the ranges into buffers of at most REGISTERED_BYTES_MAX and registers them on every ring. */
static int uring_memory(
	void *state, const struct reader_memory *m, unsigned n, char *why, size_t why_bytes)
{
	struct uring *u = state;
	if (u->memory_on_rings) {
		for (unsigned i = 0; i < u->n; i++)
			io_uring_unregister_buffers(&u->rings[i].ring);
		u->memory_on_rings = false;
	}
	uint64_t n_registered = 0;
	for (unsigned i = 0; i < n; i++)
		n_registered +=
			m[i].bytes / REGISTERED_BYTES_MAX + (m[i].bytes % REGISTERED_BYTES_MAX != 0);
	if (n_registered > REGISTERED_MAX) {
		snprintf(why, why_bytes, "more than %u buffers of 1 GiB", REGISTERED_MAX);
		return -E2BIG;
	}
	u->registered = mem_grow(u->registered, n_registered, sizeof *u->registered);
	u->n_registered = 0;
	for (unsigned i = 0; i < n; i++) {
		for (size_t at = 0; at < m[i].bytes; at += REGISTERED_BYTES_MAX)
			u->registered[u->n_registered++] =
				(struct iovec){m[i].base + at, MIN(m[i].bytes - at, (size_t)REGISTERED_BYTES_MAX)};
	}
	for (unsigned i = 0; i < u->n; i++) {
		int code = io_uring_register_buffers(&u->rings[i].ring, u->registered, u->n_registered);
		if (!code)
			continue;
		while (i-- > 0)
			io_uring_unregister_buffers(&u->rings[i].ring);
		struct rlimit lim = {0};
		getrlimit(RLIMIT_MEMLOCK, &lim);
		if (code == -ENOMEM && lim.rlim_cur != RLIM_INFINITY)
			snprintf(why, why_bytes, "%s; RLIMIT_MEMLOCK is %llu KiB", err_name(code),
				(unsigned long long)lim.rlim_cur >> 10);
		else
			snprintf(why, why_bytes, "%s", err_name(code));
		return code;
	}
	u->memory_on_rings = true;
	return 0;
}

const struct reader_engine_ops reader_uring_engine = {
	.name = "uring",
	.open = uring_open,
	.start = uring_start,
	.flush = uring_flush,
	.poll = uring_poll,
	.cancel = uring_cancel,
	.memory = uring_memory,
	.wake = uring_wake,
	.describe = uring_describe,
	.close = uring_close,
};

#else

static int uring_open(const struct reader_setup *s, void **state, char *why, size_t why_bytes)
{
	(void)s;
	(void)state;
	snprintf(why, why_bytes, "built without liburing");
	return ERR_USAGE;
}

const struct reader_engine_ops reader_uring_engine = {.name = "uring", .open = uring_open};

#endif
