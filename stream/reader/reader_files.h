/* SPDX-License-Identifier: MIT */
/*
 * The open files of a reader: descriptors with and without O_DIRECT, what alignment O_DIRECT needs,
 * which drive each file is on, and which files are copies of each other.
 */
#ifndef GLM_STREAM_READER_FILES_H
#define GLM_STREAM_READER_FILES_H

#include "stream/reader/reader.h"

struct reader_handle {
	char *path;
	int fd;        /* through the page cache */
	int fd_direct; /* -1: none */
	bool refused;  /* a direct read was answered with EINVAL: fd_direct is not used any more */
	/* of a file with copies: a read of it has failed; until rests_until_ns they are read in its
	 * place */
	bool failed, warned; /* warned: once a warning has named it */
	uint64_t rests_until_ns;
	uint64_t size;
	uint32_t drive;
	uint32_t offset_align; /* 1 without O_DIRECT */
	uint32_t memory_align;
	uint32_t next_replica; /* ring of the files with equal content; itself when alone */
};

struct reader_files {
	struct reader_handle *h;
	unsigned n, n_drives;
	unsigned n_direct;
	char why_buffered[256]; /* why the first file without O_DIRECT has none; empty: all have it or
							   none was asked for */
};

/* Opens files[0..n); direct: also with O_DIRECT where that works. 0; ERR_USAGE, ERR_INPUT or -errno
 * with a sentence: *t is closed. */
int reader_files_open(struct reader_files *t, const struct reader_file *files, unsigned n,
	bool direct, struct err *e);
void reader_files_close(struct reader_files *t);

#endif
