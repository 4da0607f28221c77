/* SPDX-License-Identifier: MIT */
#include "src/base/host/pages.h"

#include "src/base/host/cores.h"
#include "src/base/num.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE ((size_t)2 << 20)

/* What is mapped for so many bytes: whole huge pages, from one huge page on. 0: more than there can
 * be. */
static size_t map_length(size_t bytes)
{
	if (bytes < HUGE_PAGE)
		return bytes ? bytes : 1;
	return bytes > SIZE_MAX - 2 * HUGE_PAGE ? 0 : num_align_up(bytes, HUGE_PAGE);
}

void *pages_try_map(size_t bytes)
{
	size_t length = map_length(bytes), spare = length >= HUGE_PAGE ? HUGE_PAGE : 0;
	if (!length)
		return NULL;
	unsigned char *p = mmap(NULL, length + spare, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	if (spare) { /* the kernel aligns some mappings, not all */
		size_t before = -(uintptr_t)p & (HUGE_PAGE - 1);
		if (before)
			munmap(p, before);
		p += before;
		munmap(p + length, spare - before);
	}
	madvise(p, length, MADV_HUGEPAGE); /* only a wish; refusal changes nothing */
	return p;
}

void pages_unmap(void *p, size_t bytes)
{
	if (p)
		munmap(p, map_length(bytes));
}

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define POPULATE_THREADS 4 /* more are no faster */
#define POPULATE_PART    ((size_t)64 << 20)

static void populate_part(void *p, size_t bytes)
{
	if (!bytes || !madvise(p, bytes, MADV_POPULATE_WRITE))
		return;
	/* an older kernel: a write that changes nothing to each page */
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	volatile unsigned char *at = p;
	for (size_t i = 0; i < bytes; i += page) {
		const unsigned char same = at[i];
		at[i] = same;
	}
}

struct populate {
	unsigned char *base;
	size_t bytes, part;
	atomic_size_t next;
};

static void *populate_main(void *arg)
{
	struct populate *w = arg;
	for (size_t at; (at = atomic_fetch_add(&w->next, w->part)) < w->bytes;)
		populate_part(w->base + at, MIN(w->part, w->bytes - at));
	return NULL;
}

void pages_populate(void *p, size_t bytes)
{
	struct populate w = {.base = p, .bytes = bytes, .part = POPULATE_PART};
	pthread_t threads[POPULATE_THREADS];
	int n = 0;
	const int most = MIN(POPULATE_THREADS, (int)MIN(bytes / POPULATE_PART, 64));
	while (
		n + 1 < MIN(most, cores_allowed()) && !pthread_create(&threads[n], NULL, populate_main, &w))
		n++;
	populate_main(&w);
	while (n)
		pthread_join(threads[--n], NULL);
}

void pages_read_ahead(const void *p, size_t bytes)
{
	size_t before = (uintptr_t)p & ((size_t)sysconf(_SC_PAGESIZE) - 1);
	posix_madvise((unsigned char *)(uintptr_t)p - before, bytes + before, POSIX_MADV_WILLNEED);
}

void pages_drop_cached(int fd, uint64_t offset, uint64_t bytes)
{
	/* the page cache holds runs of pages as one, and drops whole ones only */
	const uint64_t run = (uint64_t)2 << 20, from = offset & ~(run - 1);
	posix_fadvise(fd, (off_t)from, (off_t)((offset + bytes - from + run - 1) & ~(run - 1)),
		POSIX_FADV_DONTNEED);
}
