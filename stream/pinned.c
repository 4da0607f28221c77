/* SPDX-License-Identifier: MIT */
/* A page is touched by writing a zero into it: the caller may be writing too, elsewhere, so untouched pages only are written, by
 * an atomic addition of nothing, which changes no byte whoever else is at it. */
#include "stream/pinned.h"

#include "src/base/clock.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <sched.h>

#define TOUCHERS_MAX 16
#define TOUCH_STEP   ((size_t)64 << 20) /* taken by a thread at a time */
#define PAGE         4096

struct touch {
	struct pinned *p;
	atomic_size_t next;
};

static void *touch_main(void *arg)
{
	struct touch *t = arg;
	for (;;) {
		size_t at = atomic_fetch_add(&t->next, TOUCH_STEP);
		if (at >= t->p->bytes || atomic_load(&t->p->stop))
			return NULL;
		size_t end = MIN(at + TOUCH_STEP, t->p->bytes);
		for (; at < end; at += PAGE)
			__atomic_fetch_add(t->p->base + at, 0, __ATOMIC_RELAXED);
	}
}

static int n_touchers(size_t bytes)
{
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
	return (int)MIN((size_t)MIN(n, TOUCHERS_MAX), bytes / TOUCH_STEP + 1);
}

static void *pinned_main(void *arg)
{
	struct pinned *p = arg;
	struct touch t = {.p = p};
	pthread_t threads[TOUCHERS_MAX];
	uint64_t start = clock_ns();
	int n = 0, rc = 0;
	while (n + 1 < n_touchers(p->bytes) && !pthread_create(&threads[n], NULL, touch_main, &t))
		n++;
	touch_main(&t);
	while (n)
		pthread_join(threads[--n], NULL);
	if (!atomic_load(&p->stop))
		rc = p->copier->ops->pin(p->copier, p->base, p->bytes, &p->why);
	p->seconds = (double)(clock_ns() - start) * 1e-9;
	atomic_store(&p->state, rc || atomic_load(&p->stop) ? PINNED_REFUSED : PINNED_READY);
	if (p->tell)
		p->tell(p->arg);
	return NULL;
}

int pinned_start(
	struct pinned *p, struct copier *c, size_t bytes, void (*tell)(void *arg), void *arg, struct err *e)
{
	*p = (struct pinned){.copier = c, .bytes = bytes, .tell = tell, .arg = arg};
	if (!(p->base = mem_try_map(bytes)))
		return err_set(e, ERR_MEMORY, "no memory for %.3f GB to be pinned", (double)bytes / 1e9);
	int rc = pthread_create(&p->thread, NULL, pinned_main, p);
	if (rc)
		return err_errno(e, rc, "the thread that pins memory does not start");
	p->thread_started = true;
	return 0;
}

int pinned_wait(struct pinned *p, struct err *e)
{
	if (p->thread_started)
		pthread_join(p->thread, NULL);
	p->thread_started = false;
	if (atomic_load(&p->state) != PINNED_REFUSED)
		return 0;
	if (e)
		*e = p->why;
	return p->why.code ? p->why.code : ERR_MEMORY;
}

void pinned_free(struct pinned *p)
{
	if (!p->base)
		return;
	atomic_store(&p->stop, true);
	pinned_wait(p, NULL);
	if (atomic_load(&p->state) == PINNED_READY)
		p->copier->ops->unpin(p->copier, p->base, p->bytes);
	mem_unmap(p->base, p->bytes);
	*p = (struct pinned){0};
}
