/* SPDX-License-Identifier: MIT */
/* Pages of memory: anonymous mappings, and what the page cache has of files. Any thread may call
 * these. */
#ifndef GLM_BASE_PAGES_H
#define GLM_BASE_PAGES_H

#include <stddef.h>
#include <stdint.h>

/* Zeroed, anonymous mapping with huge pages advised; NULL on failure. Page-aligned; from 2 MiB on
 * it consists of whole huge pages: a read into small pages is split into many more drive commands.
 * Memory that is never written costs nothing. Release with pages_unmap and the same size. */
void *pages_try_map(size_t bytes);
void pages_unmap(void *p, size_t bytes);
/* Populates the pages of such a mapping now instead of at the first write to each; contents stay.
 * A large mapping is populated by several threads, which have ended when the call returns. Nobody
 * else writes to the mapping meanwhile. */
void pages_populate(void *p, size_t bytes);

/* Asks the kernel to read mapped pages of a file soon; returns at once, refusal changes nothing. */
void pages_read_ahead(const void *p, size_t bytes);

/* Asks the kernel to drop bytes of a file from the page cache, so that they are read from the drive
 * next time; what lies around them within 2 MiB goes too. Mapped pages stay; refusal changes
 * nothing. */
void pages_drop_cached(int fd, uint64_t offset, uint64_t bytes);

#endif
