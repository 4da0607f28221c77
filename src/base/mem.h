/* SPDX-License-Identifier: MIT */
/*
 * Memory. When it is exhausted, small allocations end the program (exit status 4, as ERR_MEMORY);
 * allocations whose size comes from a file, a user or a budget go through mem_try_* and report.
 *
 * Work for others, such as a server's requests, runs in a scope: there nothing ends the program.
 * An allocation that fails gives NULL, a buf (buf.h) loses what was to be appended, and the scope
 * remembers it. Whoever opened the scope asks at its end: when an allocation failed, what was made
 * in it is incomplete, and is thrown away with an error. Code that runs in a scope looks at each
 * pointer before it uses it, stays safe when something is missing, and need not say why.
 */
#ifndef GLM_BASE_MEM_H
#define GLM_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* NULL in a scope only; n * size is checked. Zeroed memory. free() releases all of these. */
void *mem_new(size_t n, size_t size);
void *mem_grow(void *p, size_t n, size_t size); /* realloc; new bytes are not zeroed */
/* The array whose pointer is at `array` gets room for n items. False in a scope only: it is as it
 * was. */
bool mem_grow_array(void *array, size_t n, size_t size);
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n);
char *mem_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* NULL when it does not fit or memory is exhausted, which a scope does not remember. Zeroed. */
void *mem_try_new(size_t n, size_t size);

/* A scope of the calling thread, from begin to end, on its stack. Scopes nest: what fails in the
 * inner one is not remembered by the outer. */
struct mem_scope {
	struct mem_scope *outer;
	bool failed;
};
void mem_scope_begin(struct mem_scope *s);
bool mem_scope_end(struct mem_scope *s); /* whether an allocation failed in it */
/* Of the innermost scope. Without one, false and nothing. */
bool mem_scope_failed(void);
void mem_scope_fail(void);  /* an allocation that others made has failed */
void mem_scope_clear(void); /* what failed was given up; what comes now counts anew */
/* malloc, for libraries: never ends the program, and a scope remembers its failure. */
void *mem_alloc(size_t bytes);

/* Zeroed, anonymous mapping with huge pages advised; NULL on failure. Page-aligned; from 2 MiB on
 * it consists of whole huge pages, so no part of it is left to small ones: reads into those reach a
 * drive in many more parts. Memory that is never written costs nothing. Release with mem_unmap and
 * the same size. */
void *mem_try_map(size_t bytes);
void mem_unmap(void *p, size_t bytes);

#define NEW(type)          ((type *)mem_new(1, sizeof(type)))
#define NEW_ARRAY(type, n) ((type *)mem_new((n), sizeof(type)))

/* Asks the kernel to read mapped pages of a file soon; returns at once, refusal changes nothing. */
void mem_read_ahead(const void *p, size_t bytes);

/* Asks the kernel to drop bytes of a file from the page cache, so that they are read from the drive
 * next time; what lies around them within 2 MiB goes too. Mapped pages stay; refusal changes
 * nothing. */
void mem_drop_cached(int fd, uint64_t offset, uint64_t bytes);

/* Bytes this process may still use: the least of MemAvailable and what its cgroup limits leave
 * (cgroup v1 and v2); 0 when unknown. */
size_t mem_available_bytes(void);

#endif
