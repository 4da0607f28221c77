/* SPDX-License-Identifier: MIT */
/*
 * What the tests of the readers share: a folder of files with known bytes (reader_null_fill), a
 * page-aligned arena to read into, and the random-reads check. Include after <cmocka.h> and what it
 * needs.
 */
#ifndef GLM_TESTS_READER_HELP_H
#define GLM_TESTS_READER_HELP_H

#include "stream/reader/reader_core.h" /* tests look at drives and files */
#include "tests/support/reader_null.h"

#include <stdbool.h>
#include <stdint.h>

#define KIB         1024u
#define MIB         (1024u * KIB)
#define FILE_A      (3 * MIB)       /* aligned size */
#define FILE_B      (1 * MIB + 777) /* ends inside a sector */
#define N_SMALL     64              /* small files */
#define ARENA_BYTES (8 * MIB)
#define GUARD       0xa5

struct variant {
	const char *name;
	enum reader_engine engine; /* without `custom` */
	const struct reader_engine_ops *custom;
	bool buffered;
};

extern char help_dir[256];
extern char help_a[300], help_b[300],
	help_copy[300]; /* FILE_A bytes of file 0, FILE_B of file 1, a copy of the first */
extern char help_small[N_SMALL][300]; /* 5000 + i bytes of file i */
extern unsigned char *arena;          /* ARENA_BYTES */

/* Makes folder, files and arena, ends the program when that fails; and removes them. */
void help_setup(void);
void help_remove(void);

void write_formula(const char *path, uint32_t file, uint64_t bytes);
bool formula_at(uint32_t file, uint64_t offset, const unsigned char *p, uint64_t n);
bool all_bytes(const unsigned char *p, uint64_t n, unsigned char b);

/* Opens a reader of the variant on these files; skips the test when the machine refuses the engine.
 */
struct reader *open_variant(
	const struct variant *v, const struct reader_file *files, unsigned n, struct reader_options o);
struct reader *open_ab(const struct variant *v, struct reader_options o); /* on help_a and help_b */

struct reader_completion read_one(struct reader *r, struct reader_request q);

/* Random runs of both files, many at once, into places with guard bytes around; half of them
 * aligned. */
void check_random_reads(struct reader *r, uint64_t seed, unsigned total);

#endif
