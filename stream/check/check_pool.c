/* SPDX-License-Identifier: MIT */
/*
 * Each queue has a lock. Completed tasks are on a lock-free list: threads push, the owner exchanges
 * the whole list for an empty one. The owner polls often and mostly finds it empty.
 */
#include "stream/check/check_pool.h"

#include "src/base/host/clock.h"
#include "src/base/host/cores.h"
#include "src/base/host/signals.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/prctl.h>

#define THREADS_MAX 4

struct check_thread {
	struct check_pool *pool; /* constant */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t posted;           /* a task, or stop */
	struct check_task *first, *last; /* guarded by lock */
	bool stop;                       /* guarded by lock */
};

struct check_pool {
	struct check_thread threads[THREADS_MAX];
	unsigned n_threads;
	void (*wake)(void *arg);
	void *arg;
	_Atomic(struct check_task *) done; /* the latest first */
	/* the owner's */
	unsigned next_thread;
	struct check_task *taken;
};

unsigned check_pool_threads(void)
{
	const int n = cores_allowed() / 4;
	return (unsigned)MIN(n, THREADS_MAX);
}

unsigned check_pool_threads_for(int option)
{
	return option < 0 ? 0 : option ? (unsigned)option : check_pool_threads();
}

static void task_do(struct check_pool *p, struct check_task *t)
{
	const uint64_t start = clock_ns();
	t->hash(t);
	t->ns = clock_ns() - start;
	t->next = atomic_load(&p->done);
	while (!atomic_compare_exchange_weak(&p->done, &t->next, t))
		;
	if (p->wake)
		p->wake(p->arg);
}

static void *check_thread_main(void *arg)
{
	struct check_thread *c = arg;
	prctl(PR_SET_NAME, "check-values");
	pthread_mutex_lock(&c->lock);
	while (!c->stop) {
		struct check_task *t = c->first;
		if (!t) {
			pthread_cond_wait(&c->posted, &c->lock);
			continue;
		}
		c->first = t->next;
		pthread_mutex_unlock(&c->lock);
		task_do(c->pool, t);
		pthread_mutex_lock(&c->lock);
	}
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

int check_pool_open(
	struct check_pool **out, unsigned n_threads, void (*wake)(void *arg), void *arg, struct err *e)
{
	struct check_pool *p = *out = NEW(struct check_pool);
	p->wake = wake;
	p->arg = arg;
	sigset_t before;
	signals_block(&before);
	int code = 0;
	for (unsigned i = 0; i < MIN(n_threads, THREADS_MAX); i++) {
		struct check_thread *c = &p->threads[i];
		c->pool = p;
		pthread_mutex_init(&c->lock, NULL);
		pthread_cond_init(&c->posted, NULL);
		if ((code = pthread_create(&c->thread, NULL, check_thread_main, c))) {
			pthread_cond_destroy(&c->posted);
			pthread_mutex_destroy(&c->lock);
			break;
		}
		p->n_threads++;
	}
	signals_restore(&before);
	if (!code)
		return 0;
	check_pool_close(p);
	*out = NULL;
	return err_errno(e, code, "a thread that compares check values does not start");
}

void check_pool_close(struct check_pool *p)
{
	if (!p)
		return;
	for (unsigned i = 0; i < p->n_threads; i++) {
		struct check_thread *c = &p->threads[i];
		pthread_mutex_lock(&c->lock);
		c->stop = true;
		pthread_cond_signal(&c->posted);
		pthread_mutex_unlock(&c->lock);
	}
	for (unsigned i = 0; i < p->n_threads; i++) {
		struct check_thread *c = &p->threads[i];
		pthread_join(c->thread, NULL);
		pthread_cond_destroy(&c->posted);
		pthread_mutex_destroy(&c->lock);
	}
	free(p);
}

unsigned check_pool_next_thread(struct check_pool *p)
{
	return p->n_threads ? p->next_thread++ % p->n_threads : 0;
}

void check_pool_post(struct check_pool *p, unsigned thread, struct check_task *t)
{
	if (!p->n_threads) {
		task_do(p, t);
		return;
	}
	struct check_thread *c = &p->threads[thread];
	t->next = NULL;
	pthread_mutex_lock(&c->lock);
	if (c->first)
		c->last->next = t;
	else
		c->first = t;
	c->last = t;
	pthread_mutex_unlock(&c->lock);
	pthread_cond_signal(&c->posted);
}

struct check_task *check_pool_take(struct check_pool *p)
{
	if (!p->taken && atomic_load(&p->done))
		p->taken = atomic_exchange(&p->done, NULL);
	struct check_task *t = p->taken;
	if (t)
		p->taken = t->next;
	return t;
}
