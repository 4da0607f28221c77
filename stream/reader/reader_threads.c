/* SPDX-License-Identifier: MIT */
/*
 * Thread engine: a few threads per drive, each doing one pread at a time. A thread takes the oldest
 * op of its drive, reads without the lock, and puts the op on the done list.
 *
 * One lock guards everything that owner and threads share: the to-do lists, the done list, `woken`
 * and `stop`. An op belongs to the engine while it is on a to-do list, to the thread that took it
 * while that reads, and to the owner once it has left the done list.
 */
#include "stream/reader/reader_engine.h"

#include "src/base/host/clock.h"
#include "src/base/host/cond.h"
#include "src/base/log.h"
#include "src/base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>

#define STACK_BYTES (256u << 10)

struct op_list {
	struct reader_op *head, *tail;
};

struct pool_drive {
	struct pool *pool;   /* constant */
	struct op_list todo; /* guarded by pool->lock */
	pthread_cond_t work; /* todo got an op, or stop */
};

struct pool {
	void *owner;                                     /* constant */
	unsigned n_drives, threads_per_drive, n_threads; /* constant once open returned */
	pthread_t *threads;
	struct pool_drive *drives;
	pthread_mutex_t lock;
	pthread_cond_t changed; /* done got an op, or woken */
	struct op_list done;    /* guarded by lock */
	bool woken;             /* guarded by lock */
	bool stop;              /* guarded by lock */
};

static void op_list_push(struct op_list *l, struct reader_op *op)
{
	op->link = NULL;
	if (l->tail)
		l->tail->link = op;
	else
		l->head = op;
	l->tail = op;
}

static struct reader_op *op_list_pop(struct op_list *l)
{
	struct reader_op *op = l->head;
	if (op) {
		l->head = op->link;
		if (!l->head)
			l->tail = NULL;
	}
	return op;
}

/* engine_word carries the result from the thread to the owner. */
static void *pool_thread_main(void *arg)
{
	struct pool_drive *drive = arg;
	struct pool *p = drive->pool;
	pthread_mutex_lock(&p->lock);
	for (;;) {
		struct reader_op *op = op_list_pop(&drive->todo);
		if (op) {
			pthread_mutex_unlock(&p->lock);
			struct iovec v = {op->dst, op->bytes};
			ssize_t n = preadv(op->fd, &v, 1, (off_t)op->offset);
			int res = n < 0 ? -errno : (int)n;
			op->engine_word = (uint64_t)(int64_t)res;
			pthread_mutex_lock(&p->lock);
			op_list_push(&p->done, op);
			pthread_cond_signal(&p->changed);
		} else if (p->stop)
			break;
		else
			pthread_cond_wait(&drive->work, &p->lock);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

static void threads_close(void *state)
{
	struct pool *p = state;
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	for (unsigned i = 0; i < p->n_drives; i++)
		pthread_cond_broadcast(&p->drives[i].work);
	pthread_mutex_unlock(&p->lock);
	for (unsigned i = 0; i < p->n_threads; i++)
		pthread_join(p->threads[i], NULL);
	for (unsigned i = 0; i < p->n_drives; i++)
		pthread_cond_destroy(&p->drives[i].work);
	pthread_cond_destroy(&p->changed);
	pthread_mutex_destroy(&p->lock);
	free(p->threads);
	free(p->drives);
	free(p);
}

static int threads_open(const struct reader_setup *s, void **state, char *why, size_t why_bytes)
{
	struct pool *p = NEW(struct pool);
	p->owner = s->owner;
	p->n_drives = s->n_drives;
	p->threads_per_drive = s->threads;
	p->drives = NEW_ARRAY(struct pool_drive, p->n_drives);
	p->threads = NEW_ARRAY(pthread_t, (size_t)p->n_drives * p->threads_per_drive);
	pthread_mutex_init(&p->lock, NULL);
	cond_init(&p->changed);
	for (unsigned i = 0; i < p->n_drives; i++) {
		p->drives[i].pool = p;
		pthread_cond_init(&p->drives[i].work, NULL);
	}
	pthread_attr_t small;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, STACK_BYTES);
	int code = 0;
	for (unsigned i = 0; i < p->n_drives * p->threads_per_drive && !code; i++) {
		code = pthread_create(
			&p->threads[i], &small, pool_thread_main, &p->drives[i / p->threads_per_drive]);
		if (!code)
			p->n_threads++;
	}
	pthread_attr_destroy(&small);
	if (code) {
		snprintf(why, why_bytes, "thread %u of %u: %s", p->n_threads + 1,
			p->n_drives * p->threads_per_drive, err_name(-code));
		threads_close(p);
		return -code;
	}
	*state = p;
	return 0;
}

static void threads_describe(void *state, char *text, size_t bytes)
{
	struct pool *p = state;
	snprintf(text, bytes, "%u thread%s per drive", p->threads_per_drive,
		p->threads_per_drive > 1 ? "s" : "");
}

static void threads_start(void *state, struct reader_op *op)
{
	struct pool *p = state;
	struct pool_drive *drive = &p->drives[op->drive];
	pthread_mutex_lock(&p->lock);
	op_list_push(&drive->todo, op);
	pthread_cond_signal(&drive->work);
	pthread_mutex_unlock(&p->lock);
}

static void threads_flush(void *state)
{
	(void)state; /* started ops are queued already */
}

/* Completes the op if no thread has taken it yet; else it completes when its pread returns. */
static void threads_cancel(void *state, struct reader_op *op)
{
	struct pool *p = state;
	struct op_list *todo = &p->drives[op->drive].todo, kept = {0};
	pthread_mutex_lock(&p->lock);
	for (struct reader_op *o; (o = op_list_pop(todo));) {
		if (o == op) {
			o->engine_word = (uint64_t)(int64_t)-ECANCELED;
			op_list_push(&p->done, o);
		} else
			op_list_push(&kept, o);
	}
	*todo = kept;
	pthread_mutex_unlock(&p->lock);
}

static void threads_poll(void *state, int64_t wait_ns)
{
	struct pool *p = state;
	uint64_t until = wait_ns > 0 ? clock_ns() + (uint64_t)wait_ns : 0;
	struct timespec ts = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
	pthread_mutex_lock(&p->lock);
	while (wait_ns && !p->done.head && !p->woken) {
		if (wait_ns < 0)
			pthread_cond_wait(&p->changed, &p->lock);
		else if (pthread_cond_timedwait(&p->changed, &p->lock, &ts) == ETIMEDOUT)
			break;
	}
	if (wait_ns)
		p->woken = false;
	struct op_list done = p->done;
	p->done = (struct op_list){0};
	pthread_mutex_unlock(&p->lock);
	for (struct reader_op *op; (op = op_list_pop(&done));)
		reader_op_done(p->owner, op, (int)(int64_t)op->engine_word);
}

static void threads_wake(void *state)
{
	struct pool *p = state;
	pthread_mutex_lock(&p->lock);
	p->woken = true;
	pthread_cond_signal(&p->changed);
	pthread_mutex_unlock(&p->lock);
}

const struct reader_engine_ops reader_threads_engine = {
	.name = "threads",
	.open = threads_open,
	.start = threads_start,
	.flush = threads_flush,
	.poll = threads_poll,
	.cancel = threads_cancel,
	.wake = threads_wake,
	.describe = threads_describe,
	.close = threads_close,
};
