/* SPDX-License-Identifier: MIT */
/*
 * Reads all weights of a model past the page cache, where the file system allows it, and computes
 * the check value of each range. Several threads each read a range at a time and hash one part of
 * it while the next one is being read.
 */
#ifndef GLM_TOOLS_VERIFY_FILE_H
#define GLM_TOOLS_VERIFY_FILE_H

#include "src/base/err.h"
#include "src/format/check_values.h"

#include <stdatomic.h>

struct verify_job {
	const struct check_map *map;
	const uint64_t *expected; /* [check_map_n] or NULL: values are computed only */
	uint64_t *values;         /* [check_map_n] out: what was found */
	uint32_t n_threads;
	bool buffered;             /* through the page cache */
	bool progress;             /* say how far it is on stderr */
	const atomic_bool *cancel; /* NULL: never */
};

struct verify_result {
	uint64_t ranges, bytes; /* read */
	uint64_t reread;        /* ranges that were wrong at first, and then right */
	uint64_t wrong;         /* ranges whose value is not the expected one, read twice */
	uint64_t first_wrong;   /* the lowest number of these */
	double seconds;
	bool direct; /* nothing came through the page cache */
};

/* All ranges are read, also behind a wrong one. 0, ERR_INTERRUPTED, or what a failed read says. */
int verify_file(const struct verify_job *job, struct verify_result *r, struct err *e);

#endif
