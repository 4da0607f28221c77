/* SPDX-License-Identifier: MIT */
/*
 * The emulated card. Its memory is a file in memory, mapped twice: once where the rest of the
 * program believes it to be, without the right to write, and once for the copying thread.
 *
 * The thread takes the front of a stream chosen at random, as long as it waits for no fence value,
 * and copies one piece of it. So copies of different streams mix, and whoever forgot an order
 * between them finds wrong bytes. The lock guards streams and memory tables; bytes are moved
 * without it.
 */
#include "tests/support/copier_null.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PIECE    (16u << 10)
#define RANGES   64
#define FAILURES 64

struct null_job {
	enum { JOB_COPY, JOB_FENCE, JOB_WAIT } kind;
	uint8_t *dst;
	const uint8_t *src;
	size_t bytes, at;
	uint64_t number; /* COPY: how many were given before, from 1; FENCE and WAIT: the fence value */
};

struct null_queue {
	struct null_job *jobs; /* ring */
	size_t cap, first, n;
	uint64_t drawn, seen; /* numbers of fence values */
	bool failed;          /* a copy since the last fence has */
};

struct range {
	uint8_t *at, *host; /* host: where the copying thread reaches it */
	size_t bytes;
};

struct null_copier {
	struct copier base; /* first: the pointers are exchanged */
	struct copier_faults faults;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t given, moved; /* something to do; something was done */
	/* guarded by lock */
	struct null_queue queue[COPY_STREAMS];
	struct range device[RANGES], pinned[RANGES];
	uint64_t device_bytes;
	uint64_t failures[FAILURES], n_failures; /* fence values that failed, the latest */
	uint64_t n_copies, n_pins;
	bool gone; /* fail_all has struck */
	bool hung; /* hang_copy stands at the front of a stream */
	bool busy; /* a piece is being copied */
	bool stop; /* drop what is queued */
	bool quit;
	struct rng rng; /* the thread's */
};

static struct null_copier *of(struct copier *c)
{
	return (struct null_copier *)c;
}

/* ---- memory ---- */

static struct range *range_of(struct range *r, const void *p, size_t bytes)
{
	uintptr_t at = (uintptr_t)p;
	for (int i = 0; i < RANGES; i++) {
		uintptr_t begin = (uintptr_t)r[i].at;
		if (r[i].at && at >= begin && at - begin <= r[i].bytes &&
			bytes <= r[i].bytes - (at - begin))
			return &r[i];
	}
	return NULL;
}

static struct range *free_range(struct range *r)
{
	for (int i = 0; i < RANGES; i++)
		if (!r[i].at)
			return &r[i];
	bug("the emulated card has no more than %d pieces of memory", RANGES);
}

static int null_alloc(struct copier *base, size_t bytes, void **out, struct err *e)
{
	struct null_copier *c = of(base);
	struct range r = {.bytes = num_align_up(bytes + 256, 4096)};
	*out = NULL;
	int fd = -1, rc = 0;
	pthread_mutex_lock(&c->lock);
	uint64_t limit = c->faults.device_bytes,
			 left = limit > c->device_bytes ? limit - c->device_bytes : 0;
	if (limit && bytes > left) {
		rc = err_set(e, ERR_MEMORY, "%.3f GB of the card's memory asked for, %.3f GB free",
			(double)bytes / 1e9, (double)left / 1e9);
		goto unlock;
	}
	int protection = c->faults.readable ? PROT_READ : PROT_NONE;
	if ((fd = memfd_create("card", MFD_CLOEXEC)) < 0 || ftruncate(fd, (off_t)r.bytes) ||
		(r.at = mmap(NULL, r.bytes, protection, MAP_SHARED, fd, 0)) == MAP_FAILED) {
		rc = err_errno(e, errno, "memory of the emulated card");
		goto unlock;
	}
	if ((r.host = mmap(NULL, r.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED) {
		rc = err_errno(e, errno, "memory of the emulated card");
		munmap(r.at, r.bytes);
		goto unlock;
	}
	*free_range(c->device) = r;
	c->device_bytes += r.bytes;
	*out = r.at;
unlock:
	pthread_mutex_unlock(&c->lock);
	if (fd >= 0)
		close(fd);
	return rc;
}

static void null_free(struct copier *base, void *p, size_t bytes)
{
	struct null_copier *c = of(base);
	(void)bytes;
	if (!p)
		return;
	pthread_mutex_lock(&c->lock);
	struct range *r = range_of(c->device, p, 1);
	if (!r || r->at != p)
		bug("%p is no memory of the emulated card", p);
	munmap(r->at, r->bytes);
	munmap(r->host, r->bytes);
	c->device_bytes -= r->bytes;
	*r = (struct range){0};
	pthread_mutex_unlock(&c->lock);
}

static int null_pin(struct copier *base, void *p, size_t bytes, struct err *e)
{
	struct null_copier *c = of(base);
	int rc = 0;
	pthread_mutex_lock(&c->lock);
	if (++c->n_pins == c->faults.refuse_pin)
		rc = err_set(e, ERR_MEMORY, "%.3f GB of host memory cannot be pinned: refused on purpose",
			(double)bytes / 1e9);
	else
		*free_range(c->pinned) = (struct range){.at = p, .host = p, .bytes = bytes};
	pthread_mutex_unlock(&c->lock);
	return rc;
}

static void null_unpin(struct copier *base, void *p, size_t bytes)
{
	struct null_copier *c = of(base);
	(void)bytes;
	pthread_mutex_lock(&c->lock);
	struct range *r = range_of(c->pinned, p, 1);
	if (!r || r->at != p)
		bug("%p is not pinned", p);
	*r = (struct range){0};
	pthread_mutex_unlock(&c->lock);
}

const void *copier_null_peek(struct copier *base, const void *p)
{
	struct null_copier *c = of(base);
	pthread_mutex_lock(&c->lock);
	const struct range *r = range_of(c->device, p, 1);
	const void *host = r ? r->host + ((const uint8_t *)p - r->at) : NULL;
	pthread_mutex_unlock(&c->lock);
	return host;
}

uint64_t copier_null_pins(struct copier *base)
{
	struct null_copier *c = of(base);
	pthread_mutex_lock(&c->lock);
	uint64_t n = c->n_pins;
	pthread_mutex_unlock(&c->lock);
	return n;
}

/* ---- streams ---- */

static void push(struct null_copier *c, enum copy_stream stream, struct null_job job)
{
	struct null_queue *l = &c->queue[stream];
	if (l->n == l->cap) {
		struct null_job *more = NEW_ARRAY(struct null_job, 2 * l->cap + 64);
		for (size_t i = 0; i < l->n; i++)
			more[i] = l->jobs[(l->first + i) % l->cap];
		free(l->jobs);
		l->jobs = more;
		l->first = 0;
		l->cap = 2 * l->cap + 64;
	}
	l->jobs[(l->first + l->n++) % l->cap] = job;
	pthread_cond_signal(&c->given);
}

static void null_attach(struct copier *c)
{
	(void)c;
}

/* The host's side of an address that a copy of this stream may touch. */
static uint8_t *side(struct null_copier *c, bool on_card, const void *p, size_t bytes)
{
	struct range *r = range_of(on_card ? c->device : c->pinned, p, bytes);
	if (!r)
		bug("a copy of %zu bytes at %p, which is not %s", bytes, p,
			on_card ? "the card's" : "pinned");
	return r->host + ((const uint8_t *)p - r->at);
}

static void null_copy(
	struct copier *base, enum copy_stream stream, void *dst, const void *src, size_t bytes)
{
	struct null_copier *c = of(base);
	pthread_mutex_lock(&c->lock);
	push(c, stream,
		(struct null_job){.kind = JOB_COPY,
			.dst = side(c, stream != COPY_OUT, dst, bytes),
			.src = side(c, stream == COPY_OUT || stream == COPY_WITHIN, src, bytes),
			.bytes = bytes,
			.number = ++c->n_copies});
	pthread_mutex_unlock(&c->lock);
}

static uint64_t null_fence(struct copier *base, enum copy_stream stream)
{
	struct null_copier *c = of(base);
	pthread_mutex_lock(&c->lock);
	uint64_t fence = ++c->queue[stream].drawn * COPY_STREAMS + stream;
	push(c, stream, (struct null_job){.kind = JOB_FENCE, .number = fence});
	pthread_mutex_unlock(&c->lock);
	return fence;
}

static void null_stream_wait(struct copier *base, enum copy_stream stream, uint64_t fence)
{
	struct null_copier *c = of(base);
	pthread_mutex_lock(&c->lock);
	push(c, stream, (struct null_job){.kind = JOB_WAIT, .number = fence});
	pthread_mutex_unlock(&c->lock);
}

static bool seen(const struct null_copier *c, uint64_t fence)
{
	return c->queue[fence % COPY_STREAMS].seen >= fence / COPY_STREAMS;
}

static int null_fence_status(struct copier *base, uint64_t fence, struct err *e)
{
	struct null_copier *c = of(base);
	pthread_mutex_lock(&c->lock);
	int rc = seen(c, fence);
	for (int i = 0; rc > 0 && i < FAILURES; i++)
		if (c->failures[i] == fence)
			rc = err_set(e, ERR_RUN, "the emulated card failed on purpose");
	pthread_mutex_unlock(&c->lock);
	return rc < 0 ? ERR_RUN : rc;
}

static void null_drain(struct copier *base)
{
	struct null_copier *c = of(base);
	pthread_mutex_lock(&c->lock);
	for (;;) {
		bool left = c->busy;
		for (int i = 0; i < COPY_STREAMS; i++)
			left |= c->queue[i].n > 0;
		if (!left)
			break;
		c->stop |= c->hung; /* what never ends is cut off */
		if (c->stop)
			pthread_cond_signal(&c->given);
		pthread_cond_wait(&c->moved, &c->lock);
	}
	c->stop = c->hung = false;
	pthread_mutex_unlock(&c->lock);
}

/* ---- the thread ---- */

static void pause_before(struct null_copier *c)
{
	unsigned most = c->faults.latency_max_us;
	if (!most)
		return;
	unsigned us = (unsigned)rng_below(&c->rng, most + 1);
	usleep(rng_below(&c->rng, 64) ? us : 8 * us);
}

static void pop(struct null_queue *l)
{
	l->first = (l->first + 1) % l->cap;
	l->n--;
}

/* Does a bit of the front of a stream. Holds the lock, gives it away while bytes move. */
static void run_front(struct null_copier *c, struct null_queue *l)
{
	struct null_job *j = &l->jobs[l->first];
	if (j->kind == JOB_WAIT) {
		pop(l);
		return;
	}
	if (j->kind == JOB_FENCE) {
		if (l->failed)
			c->failures[c->n_failures++ % FAILURES] = j->number;
		l->failed = false;
		l->seen = j->number / COPY_STREAMS;
		pop(l);
		return;
	}
	c->gone |= c->faults.fail_all && c->faults.fail_copy && j->number >= c->faults.fail_copy;
	if (c->gone || j->number == c->faults.fail_copy) {
		l->failed = true;
		pop(l);
		return;
	}
	size_t n = MIN(j->bytes - j->at, PIECE);
	uint8_t *dst = j->dst + j->at;
	const uint8_t *src = j->src + j->at;
	j->at += n;
	bool last = j->at == j->bytes;
	c->busy = true;
	pthread_mutex_unlock(&c->lock); /* only this thread pops; the ring may move meanwhile */
	pause_before(c);
	memcpy(dst, src, n);
	pthread_mutex_lock(&c->lock);
	c->busy = false;
	if (last)
		pop(l);
}

/* May the front of the stream be run now? */
static bool ready(struct null_copier *c, const struct null_queue *l)
{
	if (!l->n)
		return false;
	const struct null_job *j = &l->jobs[l->first];
	if (j->kind == JOB_COPY && j->number == c->faults.hang_copy) {
		c->hung = true;
		pthread_cond_broadcast(&c->moved); /* for drain */
		return false;
	}
	return j->kind != JOB_WAIT || seen(c, j->number);
}

static void *null_main(void *arg)
{
	struct null_copier *c = arg;
	pthread_mutex_lock(&c->lock);
	for (;;) {
		if (c->stop)
			for (int i = 0; i < COPY_STREAMS; i++)
				c->queue[i].n = 0;
		int at[COPY_STREAMS], n = 0;
		for (int i = 0; i < COPY_STREAMS; i++)
			if (ready(c, &c->queue[i]))
				at[n++] = i;
		if (n)
			run_front(c, &c->queue[at[rng_below(&c->rng, (uint32_t)n)]]);
		pthread_cond_broadcast(&c->moved);
		if (n)
			continue;
		if (c->quit)
			break;
		pthread_cond_wait(&c->given, &c->lock);
	}
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

static void null_close(struct copier *base)
{
	struct null_copier *c = of(base);
	null_drain(base);
	pthread_mutex_lock(&c->lock);
	c->quit = true;
	pthread_cond_signal(&c->given);
	pthread_mutex_unlock(&c->lock);
	pthread_join(c->thread, NULL);
	for (int i = 0; i < RANGES; i++)
		if (c->device[i].at || c->pinned[i].at)
			bug("the emulated card is closed before its memory was given back");
	for (int i = 0; i < COPY_STREAMS; i++)
		free(c->queue[i].jobs);
	pthread_cond_destroy(&c->given);
	pthread_cond_destroy(&c->moved);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

static const struct copier_ops null_ops = {
	.name = "null",
	.close = null_close,
	.alloc = null_alloc,
	.free = null_free,
	.pin = null_pin,
	.unpin = null_unpin,
	.attach = null_attach,
	.copy = null_copy,
	.fence = null_fence,
	.stream_wait = null_stream_wait,
	.fence_status = null_fence_status,
	.drain = null_drain,
};

int copier_null_open(const struct copier_faults *f, struct copier **out, struct err *e)
{
	struct null_copier *c = NEW(struct null_copier);
	*out = NULL;
	c->base.ops = &null_ops;
	if (f)
		c->faults = *f;
	c->rng = (struct rng){c->faults.seed};
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->given, NULL);
	pthread_cond_init(&c->moved, NULL);
	int rc = pthread_create(&c->thread, NULL, null_main, c);
	if (rc) {
		free(c);
		return err_errno(e, rc, "the emulated card's thread does not start");
	}
	*out = &c->base;
	return 0;
}
