// SPDX-License-Identifier: MIT
/* See reader_help.h. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/reader/reader_help.h"

#include "src/base/host/pages.h"
#include "src/base/num.h"
#include "src/base/rng.h"

char help_dir[256];
char help_a[300], help_b[300], help_copy[300], help_small[N_SMALL][300];
unsigned char *arena;

void write_formula(const char *path, uint32_t file, uint64_t bytes)
{
	unsigned char *p = malloc(bytes ? bytes : 1);
	assert_non_null(p);
	reader_null_fill(file, 0, p, bytes);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, p, bytes), (ssize_t)bytes);
	assert_int_equal(fsync(fd), 0);
	close(fd);
	free(p);
}

bool formula_at(uint32_t file, uint64_t offset, const unsigned char *p, uint64_t n)
{
	unsigned char *expected = malloc(n + 1);
	reader_null_fill(file, offset, expected, n);
	bool same = !memcmp(p, expected, n);
	free(expected);
	return same;
}

bool all_bytes(const unsigned char *p, uint64_t n, unsigned char b)
{
	for (uint64_t i = 0; i < n; i++) {
		if (p[i] != b)
			return false;
	}
	return true;
}

struct reader *open_variant(
	const struct variant *v, const struct reader_file *files, unsigned n, struct reader_options o)
{
	struct reader *r;
	struct err e = {0};
	o.engine = v->engine;
	o.custom = v->custom;
	o.buffered = v->buffered;
	if (reader_open(&r, files, n, &o, &e)) {
		if (!v->custom && v->engine == READER_URING) {
			print_message("skipped: %s\n", e.text);
			skip();
		}
		fail_msg("%s", e.text);
	}
	return r;
}

struct reader *open_ab(const struct variant *v, struct reader_options o)
{
	struct reader_file f[] = {{.path = help_a}, {.path = help_b}};
	return open_variant(v, f, 2, o);
}

struct reader_completion read_one(struct reader *r, struct reader_request q)
{
	struct reader_completion c;
	assert_int_equal(reader_submit(r, &q), 0);
	assert_int_equal(reader_reap(r, &c, 1, 1, -1), 1);
	assert_true(
		c.tag == q.tag && c.file == q.file && c.offset == q.offset && c.requested == q.bytes);
	return c;
}

void check_random_reads(struct reader *r, uint64_t seed, unsigned total)
{
	enum { PLACES = 32, PLACE = ARENA_BYTES / PLACES };
	struct rng g = {seed};
	struct reader_request at[PLACES];
	bool used[PLACES] = {0};
	unsigned sent = 0, got = 0;
	memset(arena, GUARD, ARENA_BYTES);
	while (got < total) {
		unsigned k = rng_below(&g, PLACES);
		if (sent < total && !used[k]) {
			struct reader_request q = {
				.file = rng_below(&g, 2), .tag = k, .urgent = !rng_below(&g, 4)};
			uint64_t size = q.file ? FILE_B : FILE_A;
			q.offset = rng_below(&g, (uint32_t)size);
			q.bytes = 1 + rng_below(&g, PLACE - 8192);
			unsigned shift = rng_below(&g, 4096);
			if (rng_below(&g, 2)) {
				q.offset &= ~4095ull;
				q.bytes = num_align_up(q.bytes, 4096);
				shift = 4096;
			}
			if (q.offset + q.bytes > size)
				q.bytes = size - q.offset;
			q.dst = arena + k * PLACE + shift;
			assert_int_equal(reader_submit(r, &q), 0);
			at[k] = q;
			used[k] = true;
			sent++;
			continue;
		}
		struct reader_completion c[8];
		int n = reader_reap(r, c, sent == total ? 1 : rng_below(&g, 3), 8, -1);
		assert_in_range(n, 0, 8);
		for (int i = 0; i < n; i++) {
			k = (unsigned)c[i].tag;
			assert_true(k < PLACES && used[k]);
			struct reader_request *q = &at[k];
			if (c[i].code || c[i].bytes != q->bytes)
				fail_msg("file %u offset %llu bytes %llu: code %d, %llu bytes", q->file,
					(unsigned long long)q->offset, (unsigned long long)q->bytes, c[i].code,
					(unsigned long long)c[i].bytes);
			unsigned char *d = q->dst, *place = arena + k * PLACE;
			if (!formula_at(q->file, q->offset, d, q->bytes))
				fail_msg("seed %llu: wrong bytes: file %u offset %llu bytes %llu",
					(unsigned long long)seed, q->file, (unsigned long long)q->offset,
					(unsigned long long)q->bytes);
			assert_true(all_bytes(place, (uint64_t)(d - place), GUARD));
			assert_true(all_bytes(d + q->bytes, (uint64_t)(place + PLACE - d) - q->bytes, GUARD));
			memset(place, GUARD, PLACE);
			used[k] = false;
			got++;
		}
	}
	assert_int_equal(reader_pending(r), 0);
}

void help_setup(void)
{
	arena = pages_try_map(ARENA_BYTES);
	if (!arena) {
		perror("arena");
		exit(1);
	}
	const char *base = getenv("TMPDIR");
	snprintf(help_dir, sizeof help_dir, "%s/glm-reader-XXXXXX", base && *base ? base : "/var/tmp");
	if (!mkdtemp(help_dir) && !mkdtemp(strcpy(help_dir, "/tmp/glm-reader-XXXXXX"))) {
		perror(help_dir);
		exit(1);
	}
	chmod(help_dir, 0755); /* a child reads as another user */
	snprintf(help_a, sizeof help_a, "%s/a", help_dir);
	snprintf(help_b, sizeof help_b, "%s/b", help_dir);
	snprintf(help_copy, sizeof help_copy, "%s/copy", help_dir);
	write_formula(help_a, 0, FILE_A);
	write_formula(help_b, 1, FILE_B);
	write_formula(help_copy, 0, FILE_A);
	for (unsigned i = 0; i < N_SMALL; i++) {
		snprintf(help_small[i], sizeof help_small[i], "%s/small%u", help_dir, i);
		write_formula(help_small[i], i, 5000 + i);
	}
}

void help_remove(void)
{
	unlink(help_a);
	unlink(help_b);
	unlink(help_copy);
	for (unsigned i = 0; i < N_SMALL; i++)
		unlink(help_small[i]);
	rmdir(help_dir);
	pages_unmap(arena, ARENA_BYTES);
}
