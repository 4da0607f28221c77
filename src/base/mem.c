/* SPDX-License-Identifier: MIT */
/* Allocation; the one place that ends the program on exhaustion. */
#include "src/base/mem.h"

#include "src/base/host/cores.h"
#include "src/base/err.h"
#include "src/base/num.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void *mem_try_new(size_t n, size_t size)
{
	return calloc(n ? n : 1, size ? size : 1);
}

static _Thread_local struct mem_scope *scope; /* the innermost */

void mem_scope_begin(struct mem_scope *s)
{
	*s = (struct mem_scope){.outer = scope};
	scope = s;
}

bool mem_scope_end(struct mem_scope *s)
{
	scope = s->outer;
	return s->failed;
}

bool mem_scope_failed(void)
{
	return scope && scope->failed;
}

void mem_scope_fail(void)
{
	if (scope)
		scope->failed = true;
}

void mem_scope_clear(void)
{
	if (scope)
		scope->failed = false;
}

/* Returns in a scope only. Does not flush or remove files on the way out: an output has a temporary
 * name until it is complete (out_file.h). */
static void *exhausted(size_t n, size_t size)
{
	if (scope) {
		scope->failed = true;
		return NULL;
	}
	fprintf(stderr, "glmstream: out of memory: %zu x %zu bytes\n", n, size);
	_exit(err_exit_status(ERR_MEMORY));
}

void *mem_new(size_t n, size_t size)
{
	void *p = mem_try_new(n, size);
	return p ? p : exhausted(n, size);
}

void *mem_alloc(size_t bytes)
{
	void *p = malloc(bytes);
	if (!p)
		mem_scope_fail();
	return p;
}

void *mem_grow(void *p, size_t n, size_t size)
{
	size_t bytes;
	if (__builtin_mul_overflow(n, size, &bytes))
		return exhausted(n, size);
	p = realloc(p, bytes ? bytes : 1);
	return p ? p : exhausted(n, size);
}

bool mem_grow_array(void *array, size_t n, size_t size)
{
	void *old;
	memcpy(&old, array, sizeof old); /* whatever it points to */
	void *p = mem_grow(old, n, size);
	if (p)
		memcpy(array, &p, sizeof p);
	return p;
}

char *mem_strndup(const char *s, size_t n)
{
	char *p = mem_new(n + 1, 1);
	if (p)
		memcpy(p, s, n);
	return p;
}

char *mem_strdup(const char *s)
{
	return mem_strndup(s, strlen(s));
}

char *mem_printf(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	char *p = NULL;
	int n = vasprintf(&p, fmt, ap);
	va_end(ap);
	return n < 0 ? exhausted(1, strlen(fmt)) : p;
}

#define HUGE_PAGE ((size_t)2 << 20)

/* What is mapped for so many bytes: whole huge pages, from one huge page on. 0: more than there can
 * be. */
static size_t map_length(size_t bytes)
{
	if (bytes < HUGE_PAGE)
		return bytes ? bytes : 1;
	return bytes > SIZE_MAX - 2 * HUGE_PAGE ? 0 : num_align_up(bytes, HUGE_PAGE);
}

void *mem_try_map(size_t bytes)
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

void mem_unmap(void *p, size_t bytes)
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

void mem_populate(void *p, size_t bytes)
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

void mem_read_ahead(const void *p, size_t bytes)
{
	size_t before = (uintptr_t)p & ((size_t)sysconf(_SC_PAGESIZE) - 1);
	posix_madvise((unsigned char *)(uintptr_t)p - before, bytes + before, POSIX_MADV_WILLNEED);
}

void mem_drop_cached(int fd, uint64_t offset, uint64_t bytes)
{
	/* the page cache holds runs of pages as one, and drops whole ones only */
	const uint64_t run = (uint64_t)2 << 20, from = offset & ~(run - 1);
	posix_fadvise(fd, (off_t)from, (off_t)((offset + bytes - from + run - 1) & ~(run - 1)),
		POSIX_FADV_DONTNEED);
}

/* The number in a one-number file ("max" or unreadable: SIZE_MAX). */
static size_t read_limit(const char *path)
{
	FILE *f = fopen(path, "re");
	if (!f)
		return SIZE_MAX;
	unsigned long long v = 0;
	int got = fscanf(f, "%llu", &v);
	fclose(f);
	return got == 1 ? (size_t)v : SIZE_MAX;
}

/* What one control group leaves: its limit less its use, page cache that can be dropped counted as
 * free. */
static size_t cgroup_left(const char *dir, const char *limit_name, const char *use_name)
{
	char path[1100];
	snprintf(path, sizeof path, "%s/%s", dir, limit_name);
	size_t limit = read_limit(path);
	snprintf(path, sizeof path, "%s/%s", dir, use_name);
	size_t use = read_limit(path);
	if (limit == SIZE_MAX || use == SIZE_MAX || limit > (size_t)1 << 60)
		return SIZE_MAX;
	snprintf(path, sizeof path, "%s/memory.stat", dir);
	FILE *f = fopen(path, "re");
	size_t file = 0;
	if (f) {
		char key[128];
		unsigned long long v;
		while (fscanf(f, "%127s %llu", key, &v) == 2)
			if (!strcmp(key, "inactive_file") || !strcmp(key, "total_inactive_file"))
				file = (size_t)v;
		fclose(f);
	}
	use = use > file ? use - file : 0;
	return limit > use ? limit - use : 0;
}

/* The least that the group `path` below `root` and its ancestors leave: the limit of each binds. In
 * a container `path` may be the host's, which does not exist here; `root` then is the own group. */
static size_t cgroup_path_left(
	const char *root, const char *path, const char *limit_name, const char *use_name)
{
	char dir[1024];
	snprintf(dir, sizeof dir, "%.500s%.500s", root, path);
	for (size_t best = SIZE_MAX;;) {
		best = MIN(best, cgroup_left(dir, limit_name, use_name));
		char *slash = strlen(dir) > strlen(root) ? strrchr(dir, '/') : NULL;
		if (!slash)
			return best;
		*slash = 0;
	}
}

size_t mem_cgroup_left(const char *list, const char *mount)
{
	size_t best = SIZE_MAX, left;
	char line[512], v1[600];
	FILE *f = fopen(list, "re");
	if (!f)
		return best;
	snprintf(v1, sizeof v1, "%.500s/memory", mount);
	while (fgets(line, sizeof line, f)) {
		line[strcspn(line, "\n")] = 0;
		const char *path = strstr(line, ":memory:");
		if (!strncmp(line, "0::", 3))
			left = cgroup_path_left(mount, line + 3, "memory.max", "memory.current");
		else if (path)
			left = cgroup_path_left(
				v1, path + strlen(":memory:"), "memory.limit_in_bytes", "memory.usage_in_bytes");
		else
			continue;
		best = MIN(best, left);
	}
	fclose(f);
	return best;
}

size_t mem_available_bytes(void)
{
	size_t best = SIZE_MAX;
	char line[512];
	FILE *f = fopen("/proc/meminfo", "re");
	if (f) {
		unsigned long long kb;
		while (fgets(line, sizeof line, f))
			if (sscanf(line, "MemAvailable: %llu kB", &kb) == 1)
				best = (size_t)kb * 1024;
		fclose(f);
	}
	best = MIN(best, mem_cgroup_left("/proc/self/cgroup", "/sys/fs/cgroup"));
	return best == SIZE_MAX ? 0 : best;
}
