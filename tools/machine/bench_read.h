/* SPDX-License-Identifier: MIT */
/*
 * How fast this machine reads a file: our readers beside fio, on the same blocks of the same file,
 * in the same run. A run reads `bytes` in blocks of `slice_bytes` in random order, each block at
 * most once. The page cache is out of the game: O_DIRECT runs go past it, and before buffered runs
 * the file is dropped from it (what stayed is counted).
 */
#ifndef GLM_TOOLS_BENCH_READ_H
#define GLM_TOOLS_BENCH_READ_H

#include "src/base/err.h"
#include "stream/reader/reader.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BENCH_READ_DEPTHS_MAX  16
#define BENCH_READ_REPEATS_MAX 99

struct bench_read_options {
	const char *path; /* file to read; NULL: a file of random bytes is made in `dir` and is gone
						 afterwards */
	const char *dir;  /* NULL: "." */
	uint64_t bytes; /* per run; 0: 4 GB. Capped to the size of `path`, which must hold one slice at
					   least */
	size_t slice_bytes; /* 0: 1 MiB; a multiple of 4096 */
	unsigned depths[BENCH_READ_DEPTHS_MAX];
	unsigned n_depths; /* 0: 1, 4, 16, 32, 64 */
	unsigned
		repeats; /* 0: 3. The sources take turns, so that a noisy neighbour meets all of them */
	bool no_direct, no_buffered; /* leave out one half */
	bool no_threads, no_fio;     /* leave out a source */
	bool small_pages; /* readers and fio read into 4 KiB pages; default is huge pages where the
					   * system gives them: a read of 1 MiB is then one run of memory for the drive,
					   * not 256 */
	const atomic_bool
		*stop; /* looked at while reading; NULL: never stops. ERR_INTERRUPTED when it became true */
};

struct bench_read_figure {
	const char *source; /* "uring", "threads", "fio"; static text */
	bool direct;        /* what was used, not what was asked for */
	bool fixed;         /* into registered buffers */
	unsigned depth;
	size_t slice_bytes;
	uint64_t bytes; /* of one run */
	double gb_s, gb_s_low,
		gb_s_high;       /* 10^9 bytes per second: median and extremes of the repeats */
	double cpu_s_per_gb; /* user and system time of the whole process, median */
	double share_of_fio; /* gb_s / fio's at the same depth and mode; 0: fio did not run */
	double cached; /* largest share of the blocks' file that was in memory before a buffered run */
};

/* Calls report(user, figure) for every source after each (mode, depth). What was left out and why
 * goes to log_info. */
int bench_read(const struct bench_read_options *o,
	void (*report)(void *user, const struct bench_read_figure *f), void *user, struct err *e);

/* The figure as one line without line feed, e.g. "uring O_DIRECT depth 32: 5.21 GB/s ..."; returns
 * text. */
#define BENCH_READ_LINE_MAX 256
char *bench_read_line(const struct bench_read_figure *f, char *text);

/* Parses what fio prints with --output-format=json for one read job. ERR_INPUT when it is something
 * else. */
int bench_read_parse_fio(
	const char *json, size_t bytes, double *gb_s, double *cpu_s_per_gb, struct err *e);

#endif
