/* SPDX-License-Identifier: MIT */
/*
 * A library for LD_PRELOAD: lets allocation number FAIL_ALLOC of the program fail, once. With
 * FAIL_COUNT in the environment it says "allocations N" on standard error at the end, and "paths"
 * with the numbers of those that were the first to come by their path: the innermost callers. Those
 * before main do not count: the constructors of libraries (the CUDA runtime's) end the process
 * their way.
 *
 * FAIL_CONTROL names a file of five longs that is mapped, for programs that go on: those who write
 * there set the number of the next allocation (it counts up), and which ones fail: from number
 * `first` on, `count` of them. The last two are the bytes and blocks that are allocated now, those
 * before main included.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t alignment, size_t n);
extern void __libc_free(void *p);

struct control {
	atomic_long calls;
	volatile long first, count; /* count 0: none fails */
	atomic_long bytes, blocks;  /* that are allocated */
};

static struct control own, *control = &own;
static atomic_int running;

#define CALLERS 6
#define PATHS   65536 /* a hash table, never full: later paths are left out */

static struct {
	atomic_ulong hash; /* 0: free */
	long number;
} paths[PATHS];
static atomic_long n_paths;
static int counting;

static void path_note(long number)
{
	static _Thread_local int inside; /* backtrace may allocate */
	void *callers[CALLERS + 2];
	if (inside || atomic_load(&n_paths) > PATHS / 2)
		return;
	inside = 1;
	int n = backtrace(callers, CALLERS + 2);
	inside = 0;
	unsigned long hash = 1469598103934665603ul;
	for (int i = 2; i < n; i++) /* without these functions */
		hash = (hash ^ (unsigned long)callers[i]) * 1099511628211ul;
	hash |= 1;
	for (unsigned long at = hash >> 20;; at++) {
		unsigned long seen = 0;
		if (atomic_compare_exchange_strong(&paths[at % PATHS].hash, &seen, hash)) {
			paths[at % PATHS].number = number;
			atomic_fetch_add(&n_paths, 1);
			return;
		}
		if (seen == hash)
			return;
	}
}

static int fails(void)
{
	if (!atomic_load(&running))
		return 0;
	long n = atomic_fetch_add(&control->calls, 1) + 1;
	if (counting)
		path_note(n);
	if (n < control->first || n - control->first >= control->count)
		return 0;
	errno = ENOMEM;
	return 1;
}

static void *counted(void *p)
{
	if (p) {
		atomic_fetch_add(&control->bytes, (long)malloc_usable_size(p));
		atomic_fetch_add(&control->blocks, 1);
	}
	return p;
}

static void uncount(size_t usable)
{
	atomic_fetch_sub(&control->bytes, (long)usable);
	atomic_fetch_sub(&control->blocks, 1);
}

void *malloc(size_t n)
{
	return fails() ? NULL : counted(__libc_malloc(n));
}

void *calloc(size_t n, size_t size)
{
	return fails() ? NULL : counted(__libc_calloc(n, size));
}

void *realloc(void *p, size_t n)
{
	if (fails())
		return NULL;
	size_t before = p ? malloc_usable_size(p) : 0;
	void *q = __libc_realloc(p, n);
	if (p && (q || !n))
		uncount(before);
	return counted(q);
}

void *memalign(size_t alignment, size_t n)
{
	return counted(__libc_memalign(alignment, n));
}

void *aligned_alloc(size_t alignment, size_t n)
{
	return memalign(alignment, n);
}

int posix_memalign(void **out, size_t alignment, size_t n)
{
	void *p = memalign(alignment, n);
	if (!p)
		return ENOMEM;
	*out = p;
	return 0;
}

void free(void *p)
{
	if (p)
		uncount(malloc_usable_size(p));
	__libc_free(p);
}

__attribute__((constructor)) static void begin(void)
{
	const char *text = getenv("FAIL_ALLOC"), *path = getenv("FAIL_CONTROL");
	own.first = text ? atol(text) : 0;
	own.count = text != NULL;
	counting = getenv("FAIL_COUNT") != NULL;
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	if (fd >= 0) {
		void *p = mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		close(fd);
		if (p != MAP_FAILED) {
			struct control *mapped = p;
			atomic_fetch_add(&mapped->bytes, atomic_load(&own.bytes));
			atomic_fetch_add(&mapped->blocks, atomic_load(&own.blocks));
			control = mapped;
		}
	}
}

typedef int main_fn(int argc, char **argv, char **env);
static main_fn *program_main;

static int counted_main(int argc, char **argv, char **env)
{
	atomic_store(&running, 1);
	return program_main(argc, argv, env);
}

int __libc_start_main(main_fn *main, int argc, char **argv, void (*init)(void), void (*fini)(void),
	void (*rtld_fini)(void), void *stack_end)
{
	int (*real)(main_fn *, int, char **, void (*)(void), void (*)(void), void (*)(void), void *) =
		dlsym(RTLD_NEXT, "__libc_start_main");
	program_main = main;
	return real(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}

__attribute__((destructor)) static void end(void)
{
	atomic_store(&running, 0);
	if (!counting)
		return;
	fprintf(stderr, "allocations %ld\npaths", atomic_load(&control->calls));
	for (long i = 0; i < PATHS; i++)
		if (atomic_load(&paths[i].hash))
			fprintf(stderr, " %ld", paths[i].number);
	fprintf(stderr, "\n");
}
