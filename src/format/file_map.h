/* SPDX-License-Identifier: MIT */
/*
 * Maps a whole regular file read-only. The mapping shares the page cache, so opening a 400 GB file
 * costs nothing until bytes are touched.
 *
 *      file_map_open(&map, path, &e);
 *      ... compute from map.data[map.size] ...
 *      file_map_check(&map, path, &e)                  before a result is passed on
 *      file_map_close(&map);
 *
 * A file may be damaged while it is mapped; file_map_check reports both kinds:
 * - Bytes get lost: another process makes the file shorter, or the drive fails. The kernel then
 *   raises SIGBUS in the thread that touches them. A handler, installed by the first open, replaces
 *   the mapping by zeros from that page to its end and notes the offset. The thread goes on, with
 *   worthless results. Any other SIGBUS does what it did before the first open.
 * - Bytes change: another process writes into the file. The descriptor stays open, and its size and
 *   time of modification are compared with those at open.
 *
 * A rename that puts another file under the same name does not affect the mapping.
 *
 * Threads: open and close belong to one thread per map; any thread reads and checks between them.
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

/* Asks the system to drop these bytes of the file from memory, so that the next access reads the
 * drive. Pages that another process has mapped stay. */
void file_map_drop_cached(const struct file_map *m, uint64_t offset, uint64_t bytes);

/* ERR_RUN with a sentence that names `path` once bytes of the mapping have been lost or the file
 * was changed; else 0. Cheap enough for the end of every step: a call stats the file unless the
 * latest stat ended less than 100 times its own duration ago (a file on a network may answer
 * slowly), or 20 ms if that is less. So a change may be reported that much later. */
int file_map_check(const struct file_map *m, const char *path, struct err *e);

/* Stats the file whatever the latest stat took: the next check knows of all changes until now. */
void file_map_look(const struct file_map *m);

/* ERR_RUN when `path` now names another file than the mapped one. For a caller that has opened the
 * file a second time, by its name. 0 also when no file has that name any more. */
int file_map_check_path(const struct file_map *m, const char *path, struct err *e);

#endif
