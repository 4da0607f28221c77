/* SPDX-License-Identifier: MIT */
/* A page is touched by an atomic addition of zero to its first byte. The caller may write to the
 * memory meanwhile, and this changes no byte. */
#include "stream/pinned.h"

#include "src/base/host/clock.h"
#include "src/base/host/cond.h"
#include "src/base/host/cores.h"
#include "src/base/host/pages.h"
#include "src/base/num.h"

#define TOUCHERS_MAX 4                  /* more are no faster */
#define TOUCH_STEP   ((size_t)16 << 20) /* taken by a thread at a time */
#define PAGE         4096
/* The pause before a step that was not requested, in times of the step before. Pinning then takes
 * an eighth of the time, and a second tier of 120 GB is pinned after a minute or two. */
#define PAUSE_FACTOR 7

struct touch {
	struct pinned *p;
	atomic_size_t next;
	size_t end;
};

static void *touch_main(void *arg)
{
	struct touch *t = arg;
	for (;;) {
		size_t at = atomic_fetch_add(&t->next, TOUCH_STEP);
		if (at >= t->end || atomic_load(&t->p->stop))
			return NULL;
		size_t end = MIN(at + TOUCH_STEP, t->end);
		for (; at < end; at += PAGE)
			__atomic_fetch_add(t->p->base + at, 0, __ATOMIC_RELAXED);
	}
}

static int n_touchers(size_t bytes)
{
	const int cores = cores_allowed(), n = MIN(MAX(cores / 2, 1), TOUCHERS_MAX);
	return (int)MIN((size_t)n, bytes / TOUCH_STEP + 1);
}

static void touch(struct pinned *p, size_t from, size_t end)
{
	struct touch t = {.p = p, .next = from, .end = end};
	pthread_t threads[TOUCHERS_MAX];
	int n = 0;
	while (n + 1 < n_touchers(end - from) && !pthread_create(&threads[n], NULL, touch_main, &t))
		n++;
	touch_main(&t);
	while (n)
		pthread_join(threads[--n], NULL);
}

/* Waits until the step that begins at `ready` is requested, or its pause is over. False: stop. */
static bool wait_for_step(struct pinned *p, size_t ready, uint64_t pause_ns)
{
	struct timespec until = cond_deadline(pause_ns);
	bool pause_over = false;
	pthread_mutex_lock(&p->lock);
	while (!atomic_load(&p->stop) && p->requested <= ready && !(p->in_background && pause_over)) {
		if (p->in_background)
			pause_over = pthread_cond_timedwait(&p->changed, &p->lock, &until) != 0;
		else
			pthread_cond_wait(&p->changed, &p->lock);
	}
	pthread_mutex_unlock(&p->lock);
	return !atomic_load(&p->stop);
}

static void *pinned_main(void *arg)
{
	struct pinned *p = arg;
	size_t ready = 0;
	uint64_t took = 0, all = 0;
	int rc = 0;
	while (!rc && ready < p->bytes && wait_for_step(p, ready, PAUSE_FACTOR * took)) {
		uint64_t start = clock_ns();
		size_t n = MIN(p->step, p->bytes - ready);
		touch(p, ready, ready + n);
		if (atomic_load(&p->stop))
			break;
		if (p->placed)
			numa_settle(p->base + ready, n); /* the driver sees one mapping */
		rc = p->copier->ops->pin(p->copier, p->base + ready, n, &p->why);
		all += took = clock_ns() - start;
		if (rc)
			break;
		atomic_store(&p->ready, ready += n);
		if (p->notify && ready < p->bytes)
			p->notify(p->arg);
	}
	if (rc && ready)
		err_prefix(&p->why, "beyond %.3f GB", (double)ready / 1e9);
	p->seconds = (double)all * 1e-9;
	atomic_store(&p->state, rc ? PINNED_REFUSED : ready < p->bytes ? PINNED_STOPPED : PINNED_READY);
	if (p->notify)
		p->notify(p->arg);
	return NULL;
}

int pinned_start(struct pinned *p, struct copier *c, size_t bytes, size_t step,
	struct numa_division *division, void (*notify)(void *arg), void *arg, struct err *e)
{
	*p = (struct pinned){
		.copier = c, .bytes = bytes, .step = step ? step : bytes, .notify = notify, .arg = arg};
	p->requested = 1;
	if (!(p->base = pages_try_map(bytes)))
		return err_set(e, ERR_MEMORY, "no memory for %.3f GB to be pinned", (double)bytes / 1e9);
	if (division) {
		numa_place(division, p->base, bytes);
		p->placed = division->n > 0;
	}
	pthread_mutex_init(&p->lock, NULL);
	cond_init(&p->changed);
	int rc = pthread_create(&p->thread, NULL, pinned_main, p);
	if (rc)
		return err_errno(e, rc, "the thread that pins memory does not start");
	p->thread_started = true;
	return 0;
}

void pinned_continue(struct pinned *p)
{
	if (!p->base)
		return;
	pthread_mutex_lock(&p->lock);
	p->in_background = true;
	pthread_cond_signal(&p->changed);
	pthread_mutex_unlock(&p->lock);
}

void pinned_request(struct pinned *p, size_t bytes)
{
	bytes = MIN(bytes, p->bytes);
	if (!p->base || bytes <= atomic_load(&p->ready))
		return;
	pthread_mutex_lock(&p->lock);
	p->requested = MAX(p->requested, bytes);
	pthread_cond_signal(&p->changed);
	pthread_mutex_unlock(&p->lock);
}

static void join_thread(struct pinned *p)
{
	if (p->thread_started)
		pthread_join(p->thread, NULL);
	p->thread_started = false;
}

int pinned_wait(struct pinned *p, struct err *e)
{
	pinned_request(p, p->bytes);
	join_thread(p);
	switch (atomic_load(&p->state)) {
	case PINNED_REFUSED:
		if (e)
			*e = p->why;
		return p->why.code;
	case PINNED_STOPPED:
		return err_set(e, ERR_INTERRUPTED, "pinning memory was stopped");
	default:
		return 0;
	}
}

void pinned_stop(struct pinned *p)
{
	if (!p->base)
		return;
	pthread_mutex_lock(&p->lock);
	atomic_store(&p->stop, true);
	pthread_cond_signal(&p->changed);
	pthread_mutex_unlock(&p->lock);
	join_thread(p);
}

size_t pinned_contiguous_bytes(const struct pinned *p, const void *at, size_t bytes)
{
	uintptr_t base = (uintptr_t)p->base, here = (uintptr_t)at;
	if (!base || here < base || here - base >= p->bytes)
		return bytes;
	return MIN(bytes, p->step - (here - base) % p->step);
}

void pinned_free(struct pinned *p)
{
	if (!p->base)
		return;
	pinned_stop(p);
	size_t ready = atomic_load(&p->ready);
	for (size_t at = 0; at < ready; at += p->step)
		p->copier->ops->unpin(p->copier, p->base + at, MIN(p->step, p->bytes - at));
	pages_unmap(p->base, p->bytes);
	pthread_cond_destroy(&p->changed);
	pthread_mutex_destroy(&p->lock);
	*p = (struct pinned){0};
}
