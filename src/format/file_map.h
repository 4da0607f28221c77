/* SPDX-License-Identifier: MIT */
/*
 * A whole regular file, mapped read-only. The mapping shares the page cache, so opening a 400 GB
 * file costs nothing until bytes are touched. If another process truncates the file meanwhile,
 * touching the lost part raises SIGBUS: model files are not to be written while in use.
 */
#ifndef GLM_FORMAT_FILE_MAP_H
#define GLM_FORMAT_FILE_MAP_H

#include "src/base/err.h"

#include <stdint.h>

/* Zero-initialise. Constant after open. */
struct file_map {
	const uint8_t *data; /* NULL when closed */
	uint64_t size;       /* bytes, > 0 when open */
};

/* Maps `path`. Refused with one sentence: missing, unreadable, a directory, not a regular file,
 * empty. Returns 0 or a code. */
int file_map_open(struct file_map *m, const char *path, struct err *e);

/* Safe on a zeroed or closed map. */
void file_map_close(struct file_map *m);

#endif
