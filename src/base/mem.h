/* SPDX-License-Identifier: MIT */
/*
 * Memory. Small allocations abort when memory is exhausted (there is nothing sensible left to do);
 * allocations whose size comes from a file, a user or a budget go through mem_try_* and report.
 */
#ifndef GLM_BASE_MEM_H
#define GLM_BASE_MEM_H

#include <stddef.h>

/* Never NULL; n * size is checked. Zeroed memory. free() releases all of these. */
void *mem_new(size_t n, size_t size);
void *mem_grow(void *p, size_t n, size_t size); /* realloc; new bytes are not zeroed */
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n);
char *mem_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* NULL when it does not fit or memory is exhausted. Zeroed. */
void *mem_try_new(size_t n, size_t size);

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

/* Bytes this process may still use: the least of MemAvailable and what its cgroup limits leave
 * (cgroup v1 and v2); 0 when unknown. */
size_t mem_available_bytes(void);

#endif
