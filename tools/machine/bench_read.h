/* SPDX-License-Identifier: MIT */
/*
 * How fast this machine reads a file: our readers beside fio, on the same blocks of the same file,
 * in the same run. A run reads `bytes` in blocks of `slice_bytes` in random order, each block at
 * most once. O_DIRECT runs go past the page cache; before a buffered run the file is dropped from
 * it.
 */
#ifndef GLM_TOOLS_BENCH_READ_H
#define GLM_TOOLS_BENCH_READ_H

#include "tools/bench/bench.h"

struct bench_read_options {
	const char *path; /* file to read; NULL: random bytes are written in `dir`, gone afterwards */
	const char *dir;  /* NULL: "." */
	uint64_t bytes; /* per run; capped to the size of `path`, which must hold one slice at least */
	size_t slice_bytes; /* a multiple of 4096, at most READER_SLICE_MAX */
	unsigned depth;     /* reads in flight; 0: 1, 4, 16, 32, 64, one after the other */
	bool no_fio;        /* leave fio out */
};

/* Adds a figure for every source after each (mode, depth). What was left out and why goes to
 * log_info. */
int bench_read(struct bench *b, const struct bench_read_options *o, struct err *e);

#endif
