/* SPDX-License-Identifier: MIT */
/*
 * A whole regular file, mapped read-only. The mapping shares the page cache, so opening a 400 GB
 * file costs nothing until bytes are touched.
 *
 * Bytes may get lost afterwards: another process makes the file shorter, or the drive fails. The
 * kernel then raises SIGBUS in whichever thread touches them. A handler, installed by the first
 * open, replaces the mapping by zeros from that page to its end and notes the offset. The thread
 * goes on, with worthless results: code that computes from a mapping calls file_map_check before it
 * passes results on. Any other SIGBUS does what it did before the first open.
 *
 * Bytes may also change: another process writes into the file. So the open file is kept, and
 * file_map_check compares its size and time of modification with those at open. A file that takes
 * its place under its name changes nothing here.
 */
#ifndef GLM_FORMAT_FILE_MAP_H
#define GLM_FORMAT_FILE_MAP_H

#include "src/base/err.h"

#include <stdint.h>

/* Zero-initialise. Constant after open. */
struct file_map {
	const uint8_t *data;          /* NULL when closed */
	uint64_t size;                /* bytes, > 0 when open */
	struct file_map_watch *watch; /* private */
};

/* Maps `path`. Refused with one sentence: missing, unreadable, a directory, not a regular file,
 * empty. Returns 0 or a code. */
int file_map_open(struct file_map *m, const char *path, struct err *e);

/* Safe on a zeroed or closed map. */
void file_map_close(struct file_map *m);

/* Asks the system to drop these bytes of the file from memory, so that the next look at them reads
 * the drive. Pages that another process has mapped stay. */
void file_map_drop_cached(const struct file_map *m, uint64_t offset, uint64_t bytes);

/* ERR_RUN with a sentence that names `path` when bytes of the mapping have been lost, or the file
 * was changed, and from then on; else 0. Any thread may call it, and a step can end with it: the
 * system is asked for the file's state in each call where that is quick, and for a hundredth of
 * the time in any case (a file on a network may take long to answer). */
int file_map_check(const struct file_map *m, const char *path, struct err *e);

/* ERR_RUN when `path` names another file by now. For who has opened it once more by its name. */
int file_map_check_path(const struct file_map *m, const char *path, struct err *e);

#endif
