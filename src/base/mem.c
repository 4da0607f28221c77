/* SPDX-License-Identifier: MIT */
/* Allocation; the one place that ends the program on exhaustion. */
#include "src/base/mem.h"

#include "src/base/err.h"
#include "src/base/num.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
