/* SPDX-License-Identifier: MIT */
/*
 * Output files that appear whole or not at all: bytes go to a file without a name (or, where the
 * file system has none, to a temporary name beside the target), which takes the place of the target
 * in out_file_commit. Interrupted programs leave the old file as it was. "-" is stdout; devices and
 * pipes are written directly.
 */
#ifndef GLM_BASE_OUT_FILE_H
#define GLM_BASE_OUT_FILE_H

#include "src/base/err.h"

#include <stdio.h>

/* Zero-initialise. Write to `f` with stdio; errors may be left to commit. */
struct out_file {
	FILE *f;
	char *path;    /* the target, links resolved; for people: what the caller named */
	char *temp;    /* temporary name; NULL: a file without a name, or written directly */
	int directory; /* open directory of the target, -1 when written directly */
	int direct;    /* stdout, a device or a pipe */
	int no_sync;   /* may be set after opening: commit waits for no disk, a power cut may leave a
					  broken file */
};

/* A file that exists keeps its permissions, a new one gets what the umask leaves. */
int out_file_open(struct out_file *o, const char *path, struct err *e);

/* The same for what only its owner may read; a target that is no regular file, "-" included, is
 * refused (ERR_INPUT). Does not touch the umask: any thread may call it. */
int out_file_open_private(struct out_file *o, const char *path, struct err *e);

/* Flushes to the disk (the folder too), checks every write, puts the file in its place and closes
 * it. On failure the target is untouched and everything is released. */
int out_file_commit(struct out_file *o, struct err *e);

/* Releases without touching the target. Safe on a zeroed or committed one. */
void out_file_abort(struct out_file *o);

#endif
