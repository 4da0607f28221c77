/* SPDX-License-Identifier: MIT */
/*
 * Memory. When it is exhausted, small allocations end the program (exit status 4, as ERR_MEMORY).
 * Allocations whose size comes from a file, a user or a budget use mem_try_*: these return NULL,
 * and the caller reports an error.
 *
 * Scopes. A server must not end because one request found no memory. So the work for a request runs
 * in a scope, in which no allocation ends the program:
 *
 *     struct mem_scope scope;
 *     mem_scope_begin(&scope);
 *     ... make the response ...
 *     if (mem_scope_end(&scope))
 *         ... free what was made, and answer with an error ...
 *
 * - A function that fails to allocate returns NULL or false, an append to a buf (buf.h) has no
 *   effect, and the scope is marked as failed.
 * - Code that runs in a scope tests each new pointer before it uses it, and stays safe when a part
 *   is missing. It need not report that: the mark does.
 * - The result of a failed scope is incomplete: whoever opened the scope discards it.
 */
#ifndef GLM_BASE_MEM_H
#define GLM_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All of these return NULL in a scope only. An overflow of n * size counts as exhausted memory.
 * free() releases what they return. */
void *mem_new(size_t n, size_t size); /* n items of `size` bytes each, zeroed */
/* realloc; new bytes are not zeroed. After NULL p is still valid. */
void *mem_grow(void *p, size_t n, size_t size);
/* Reallocates the array whose pointer is stored at `array` to n items. False in a scope only: the
 * array is unchanged. */
bool mem_grow_array(void *array, size_t n, size_t size);
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n);
char *mem_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* n items of `size` bytes each, zeroed. NULL: n * size overflows or memory is exhausted. Does not
 * mark a scope as failed. */
void *mem_try_new(size_t n, size_t size);

/* A scope belongs to the calling thread, and lies on its stack from begin to end. Scopes nest, and
 * end in the reverse order. A failure marks the innermost scope only. */
struct mem_scope {
	struct mem_scope *outer;
	bool failed;
};
void mem_scope_begin(struct mem_scope *s);
bool mem_scope_end(struct mem_scope *s); /* true: it is marked as failed */
/* These three act on the innermost scope. Outside a scope the first returns false, the others have
 * no effect. */
bool mem_scope_failed(void); /* is it marked as failed? */
void mem_scope_fail(void); /* marks it: an allocation by other means, such as a library's, failed */
void mem_scope_clear(void); /* removes the mark, once the incomplete result was discarded */
/* malloc, for libraries that are given an allocator: a failure marks the scope, if there is one,
 * returns NULL and never ends the program. */
void *mem_alloc(size_t bytes);

/* What a block of so many bytes takes of the allocator, its header and alignment included; at least
 * as much as glibc takes. For counting what lives long. */
static inline size_t mem_block_bytes(size_t bytes)
{
	return bytes < 24 ? 32 : (bytes + 8 + 15) & ~(size_t)15;
}

#define NEW(type)          ((type *)mem_new(1, sizeof(type)))
#define NEW_ARRAY(type, n) ((type *)mem_new((n), sizeof(type)))

#endif
