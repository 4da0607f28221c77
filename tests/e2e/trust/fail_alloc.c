/* SPDX-License-Identifier: MIT */
/*
 * A library for LD_PRELOAD: lets allocation number FAIL_ALLOC of the program fail, once. With
 * FAIL_COUNT in the environment it says "allocations N" on standard error at the end. Those of the
 * dynamic loader, before its constructor runs, do not count.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);

static atomic_long calls;
static long failing; /* 0: none */
static atomic_int running;

static int fails(void)
{
	if (!atomic_load(&running) || atomic_fetch_add(&calls, 1) + 1 != failing)
		return 0;
	errno = ENOMEM;
	return 1;
}

void *malloc(size_t n)
{
	return fails() ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
	return fails() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
	return fails() ? NULL : __libc_realloc(p, n);
}

__attribute__((constructor)) static void begin(void)
{
	const char *text = getenv("FAIL_ALLOC");
	failing = text ? atol(text) : 0;
	atomic_store(&running, 1);
}

__attribute__((destructor)) static void end(void)
{
	atomic_store(&running, 0);
	if (getenv("FAIL_COUNT"))
		fprintf(stderr, "allocations %ld\n", atomic_load(&calls));
}
