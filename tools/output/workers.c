/* SPDX-License-Identifier: MIT */
/* `lock` guards all of struct workers; neither work nor tick is called with it. */
#include "tools/output/workers.h"

#include "src/base/mem.h"
#include "src/base/num.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define TICK_NS 100000000

struct workers {
	const struct workers_job *job;
	pthread_mutex_t lock;
	pthread_cond_t ended; /* a thread has */
	uint32_t running;
	int code; /* the first failure */
	struct err err;
};

uint32_t workers_cores(void)
{
	long n = sysconf(_SC_NPROCESSORS_ONLN);
	return n < 1 ? 1 : (uint32_t)MIN(n, WORKERS_MAX);
}

static void keep_failure(struct workers *w, int code, const struct err *e)
{
	if (!code)
		return;
	pthread_mutex_lock(&w->lock);
	if (!w->code) {
		w->code = code;
		w->err = *e;
	}
	pthread_mutex_unlock(&w->lock);
	w->job->stop(w->job->user);
}

static void *run_worker(void *arg)
{
	struct workers *w = arg;
	struct err e = {0};
	int code = w->job->work(w->job->user, &e);
	keep_failure(w, code, &e);
	pthread_mutex_lock(&w->lock);
	w->running--;
	pthread_cond_signal(&w->ended);
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

/* Sleeps for a tick; true when all threads have ended. */
static bool wait_tick(struct workers *w)
{
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += TICK_NS;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_mutex_lock(&w->lock);
	while (w->running && !pthread_cond_timedwait(&w->ended, &w->lock, &until))
		;
	bool over = !w->running;
	pthread_mutex_unlock(&w->lock);
	return over;
}

int workers_run(const struct workers_job *job, struct err *e)
{
	struct workers w = {
		.job = job, .lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};
	pthread_t *threads = NEW_ARRAY(pthread_t, job->n_threads);
	uint32_t n = 0;
	pthread_mutex_lock(&w.lock);
	for (; n < job->n_threads; n++) {
		int why = pthread_create(&threads[n], NULL, run_worker, &w);
		if (why && !n)
			w.code = err_errno(&w.err, why, "cannot start a thread");
		if (why)
			break;
		w.running++;
	}
	pthread_mutex_unlock(&w.lock);
	for (bool over = false; !over;) {
		over = wait_tick(&w);
		struct err late = {0};
		keep_failure(&w, job->tick(job->user, over, &late), &late);
	}
	for (uint32_t i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	free(threads);
	if (w.code && e)
		*e = w.err;
	return w.code;
}

struct bytes_job {
	struct workers_bytes *bytes;
	int (*work)(void *user, struct err *e);
	void *user;
};

static int bytes_work(void *user, struct err *e)
{
	const struct bytes_job *j = user;
	return j->work(j->user, e);
}

static int bytes_tick(void *user, bool over, struct err *e)
{
	struct workers_bytes *b = ((const struct bytes_job *)user)->bytes;
	if (b->what)
		progress_update(&b->progress, atomic_load(&b->done), b->total);
	if (!over && b->cancel && atomic_load(b->cancel))
		return err_set(e, ERR_INTERRUPTED, "interrupted");
	return 0;
}

static void bytes_stop(void *user)
{
	atomic_store(&((const struct bytes_job *)user)->bytes->stop, true);
}

int workers_run_bytes(struct workers_bytes *b, int (*work)(void *user, struct err *e), void *user,
	uint32_t n_threads, struct err *e)
{
	struct bytes_job j = {b, work, user};
	const struct workers_job job = {bytes_work, bytes_tick, bytes_stop, &j, n_threads};
	if (b->what)
		progress_begin_lines(&b->progress, b->what, NULL, 0, b->total);
	int rc = workers_run(&job, e);
	progress_end(&b->progress);
	return rc;
}
