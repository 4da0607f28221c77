// SPDX-License-Identifier: MIT
/*
 * One suite for all readers: the tests of the first table run on io_uring, threads and null, through O_DIRECT and through
 * the page cache. Files hold the bytes of reader_null_fill, so every byte that arrives can be checked. The second
 * table injects faults into the null engine; the third looks at the decision between engines. An engine that this
 * machine refuses is skipped with the reason.
 */
#include "stream/reader.h"

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/base/rng.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define KIB         1024u
#define MIB         (1024u * KIB)
#define FILE_A      (3 * MIB)           /* aligned size */
#define FILE_B      (1 * MIB + 777)     /* ends inside a sector */
#define N_SMALL     64                  /* small files */
#define ARENA_BYTES (8 * MIB)
#define GUARD       0xa5

struct variant {
	enum reader_engine engine;
	bool buffered;
};

static char dir[256];
static char path_a[300], path_b[300], path_copy[300], path_small[N_SMALL][300];
static unsigned char *arena; /* page-aligned */

/* --- helpers --- */

static void write_formula(const char *path, uint32_t file, uint64_t bytes)
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

static bool formula_at(uint32_t file, uint64_t offset, const unsigned char *p, uint64_t n)
{
	unsigned char *want = malloc(n + 1);
	reader_null_fill(file, offset, want, n);
	bool same = !memcmp(p, want, n);
	free(want);
	return same;
}

static bool all_bytes(const unsigned char *p, uint64_t n, unsigned char b)
{
	for (uint64_t i = 0; i < n; i++) {
		if (p[i] != b)
			return false;
	}
	return true;
}

/* Opens a reader of the variant on these files; skips the test when the machine refuses the engine. */
static struct reader *open_variant(const struct variant *v, const struct reader_file *files, unsigned n,
	struct reader_options o)
{
	struct reader *r;
	struct err e = {0};
	o.engine = v->engine;
	o.buffered = v->buffered;
	if (reader_open(&r, files, n, &o, &e)) {
		if (v->engine == READER_URING) {
			print_message("skipped: %s\n", e.text);
			skip();
		}
		fail_msg("%s", e.text);
	}
	return r;
}

static struct reader *open_ab(const struct variant *v, struct reader_options o)
{
	struct reader_file f[] = {{.path = path_a}, {.path = path_b}};
	return open_variant(v, f, 2, o);
}

static struct reader_completion read_one(struct reader *r, struct reader_request q)
{
	struct reader_completion c;
	assert_int_equal(reader_submit(r, &q), 0);
	assert_int_equal(reader_reap(r, &c, 1, 1, -1), 1);
	assert_true(c.tag == q.tag && c.file == q.file && c.offset == q.offset && c.want == q.bytes);
	return c;
}

/* --- every engine --- */

/* Random runs of both files, many at once, into places with guard bytes around; half of them aligned. */
static void check_random_reads(struct reader *r, uint64_t seed, unsigned total)
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
			struct reader_request q = {.file = rng_below(&g, 2), .tag = k, .urgent = !rng_below(&g, 4)};
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
				fail_msg("seed %llu: wrong bytes: file %u offset %llu bytes %llu", (unsigned long long)seed, q->file,
					(unsigned long long)q->offset, (unsigned long long)q->bytes);
			assert_true(all_bytes(place, (uint64_t)(d - place), GUARD));
			assert_true(all_bytes(d + q->bytes, (uint64_t)(place + PLACE - d) - q->bytes, GUARD));
			memset(place, GUARD, PLACE);
			used[k] = false;
			got++;
		}
	}
	assert_int_equal(reader_pending(r), 0);
}

static void test_random_reads(void **state)
{
	static const unsigned depths[] = {1, 3, 16}, slices[] = {4 * KIB, 60 * KIB, 1 * MIB};
	for (unsigned i = 0; i < 3; i++) {
		struct reader *r = open_ab(*state, (struct reader_options){.depth = depths[i], .slice_bytes = slices[i]});
		check_random_reads(r, 100 + i, 150);
		struct reader_stats s = reader_stats(r);
		assert_true(s.requests == 150 && s.completed == 150 && !s.failed && !s.cancelled && !s.in_flight);
		assert_true(s.in_flight_max >= 1 && s.in_flight_max <= depths[i]);
		reader_close(r);
	}
}

static void test_end_of_file(void **state)
{
	struct reader *r = open_ab(*state, (struct reader_options){.slice_bytes = 256 * KIB});
	static const struct {
		uint64_t offset, bytes, need;
		int code;
		uint64_t got;
	} cases[] = {
		{FILE_B - 100, 100, 0, 0, 100},
		{FILE_B - 100, 101, 0, READER_EOF, 100},
		{FILE_B, 1, 0, READER_EOF, 0},
		{FILE_B + 5000, 4096, 0, READER_EOF, 0},
		{1 * MIB, 4096, 777, 0, 777},          /* the O_DIRECT tail: only 777 bytes are there and wanted */
		{1 * MIB, 4096, 778, READER_EOF, 777},
		{0, 2 * MIB, 0, READER_EOF, FILE_B},   /* several slices, some of them wholly behind the end */
		{0, 2 * MIB, FILE_B, 0, FILE_B},
		{512 * KIB, 1 * MIB, 100, 0, FILE_B - 512 * KIB},
		{(1ull << 40), 4096, 0, READER_EOF, 0},
	};
	for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
		memset(arena, GUARD, 2 * MIB + 4096);
		struct reader_completion c = read_one(r, (struct reader_request){.file = 1,
			.offset = cases[i].offset, .bytes = cases[i].bytes, .need = cases[i].need, .dst = arena, .tag = i});
		if (c.code != cases[i].code || c.bytes != cases[i].got)
			fail_msg("case %u: code %d, %llu bytes", i, c.code, (unsigned long long)c.bytes);
		assert_true(formula_at(1, cases[i].offset, arena, c.bytes));
		assert_true(all_bytes(arena + cases[i].bytes, 4096, GUARD));
		if (c.code) {
			struct err e = {0};
			char part[64];
			assert_int_equal(reader_completion_err(r, &c, &e), ERR_INPUT);
			snprintf(part, sizeof part, "ends %llu bytes into a read of %llu bytes at offset %llu",
				(unsigned long long)c.bytes, (unsigned long long)c.want, (unsigned long long)c.offset);
			assert_non_null(strstr(e.text, path_b));
			assert_non_null(strstr(e.text, part));
		}
	}
	reader_close(r);
}

static void test_bad_requests(void **state)
{
	struct reader *r = open_ab(*state, (struct reader_options){0});
	const struct reader_request bad[] = {
		{.dst = arena, .bytes = 0},
		{.dst = NULL, .bytes = 1},
		{.dst = arena, .bytes = 1, .file = 2},
		{.dst = arena, .bytes = 1, .file = UINT32_MAX},
		{.dst = arena, .bytes = 1, .offset = UINT64_MAX},
		{.dst = arena, .bytes = 2, .offset = INT64_MAX - 1},
		{.dst = arena, .bytes = UINT64_MAX},
		{.dst = arena, .bytes = 4096, .need = 4097},
	};
	for (unsigned i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(reader_submit(r, &bad[i]), -EINVAL);
	assert_int_equal(reader_pending(r), 0);
	struct reader_completion c;
	assert_int_equal(reader_reap(r, &c, 1, 1, -1), 0); /* nothing to wait for */
	assert_int_equal(reader_reap(r, &c, 1, 0, -1), 0);
	reader_close(r);
	reader_close(NULL);
}

static void test_busy(void **state)
{
	struct reader *r = open_ab(*state, (struct reader_options){.requests = 5, .depth = 2});
	struct reader_request q = {.bytes = 4096, .dst = arena};
	for (q.tag = 0; q.tag < 5; q.tag++, q.dst = (char *)q.dst + 4096)
		assert_int_equal(reader_submit(r, &q), 0);
	assert_int_equal(reader_submit(r, &q), READER_BUSY);
	assert_int_equal(reader_pending(r), 5);
	struct reader_completion c[8];
	assert_int_equal(reader_reap(r, c, 1, 1, -1), 1);
	assert_int_equal(reader_submit(r, &q), 0);
	assert_int_equal(reader_submit(r, &q), READER_BUSY);
	assert_int_equal(reader_reap(r, c, 8, 8, -1), 5); /* all there are */
	assert_true(reader_stats(r).busy == 2);
	reader_close(r);
}

/* Every request gets exactly one completion, cancelled or not, and the memory of a completed one stays quiet. */
static void test_cancel(void **state)
{
	struct reader *r = open_ab(*state, (struct reader_options){.depth = 2, .slice_bytes = 64 * KIB});
	for (unsigned round = 0; round < 60; round++) {
		unsigned seen[16] = {0}, n_cancelled = 0;
		memset(arena, GUARD, 16 * 256 * KIB);
		for (unsigned i = 0; i < 16; i++) {
			struct reader_request q = {.offset = i * 4096, .bytes = 256 * KIB, .dst = arena + i * 256 * KIB, .tag = i};
			assert_int_equal(reader_submit(r, &q), 0);
		}
		if (round % 3)
			reader_flush(r);
		unsigned hit = reader_cancel(r, 7);
		if (round % 3 != 2)
			assert_int_equal(hit, 1); /* far behind the two in flight */
		assert_int_equal(reader_cancel(r, 99), 0);
		assert_int_equal(reader_cancel(r, 7), 0);
		if (round % 2)
			hit += reader_cancel_all(r);
		struct reader_completion c[16];
		for (unsigned got = 0; got < 16;) {
			int n = reader_reap(r, c, 1, 16, -1);
			assert_true(n > 0);
			got += (unsigned)n;
			for (int i = 0; i < n; i++) {
				assert_true(c[i].tag < 16 && !seen[c[i].tag]++);
				unsigned char *d = arena + c[i].tag * 256 * KIB;
				if (c[i].code == -ECANCELED) {
					n_cancelled++;
					memset(d, GUARD, 256 * KIB);
				} else {
					assert_int_equal(c[i].code, 0);
					assert_true(formula_at(0, c[i].tag * 4096, d, 256 * KIB));
				}
			}
		}
		assert_int_equal(n_cancelled, hit);
		for (unsigned i = 0; i < 16; i++) {
			if (i == 7 || round % 2)
				assert_true(arena[i * 256 * KIB] == GUARD || formula_at(0, i * 4096, arena + i * 256 * KIB, 8));
		}
	}
	reader_close(r);
}

/* A thousand readers closed in the middle of things: nothing is written after close returned. */
static void test_close_in_flight(void **state)
{
	struct rng g = {7};
	enum { BYTES = 512 * KIB };
	memset(arena, GUARD, BYTES);
	for (unsigned i = 0; i < 1000; i++) {
		struct reader *r = open_ab(*state,
			(struct reader_options){.depth = 1 + rng_below(&g, 8), .slice_bytes = 16 * KIB, .threads = 3});
		unsigned n = 1 + rng_below(&g, 8);
		for (unsigned k = 0; k < n; k++) {
			struct reader_request q = {.offset = rng_below(&g, FILE_A - 64 * KIB), .bytes = 64 * KIB};
			q.dst = arena + k * 64 * KIB;
			if (rng_below(&g, 2))
				q.offset &= ~4095ull;
			assert_int_equal(reader_submit(r, &q), 0);
		}
		struct reader_completion c[8];
		if (rng_below(&g, 4))
			reader_flush(r);
		if (rng_below(&g, 2))
			assert_true(reader_reap(r, c, rng_below(&g, n), 8, -1) >= 0);
		reader_close(r);
		memset(arena, GUARD, BYTES);
		if (i % 10 == 0) {
			usleep(300);
			assert_true(all_bytes(arena, BYTES, GUARD));
		}
	}
	usleep(20000);
	assert_true(all_bytes(arena, BYTES, GUARD));
}

static void test_many_files(void **state)
{
	struct reader_file f[N_SMALL];
	for (unsigned i = 0; i < N_SMALL; i++)
		f[i] = (struct reader_file){.path = path_small[i], .drive = 1 + i % 5};
	struct reader *r = open_variant(*state, f, N_SMALL, (struct reader_options){.depth = 4, .threads = 2});
	assert_int_equal(reader_n_drives(r), 5);
	struct reader_completion c[N_SMALL];
	for (unsigned i = 0; i < N_SMALL; i++) {
		assert_int_equal(reader_file_drive(r, i), i % 5);
		assert_true(reader_file_size(r, i) == 5000 + i);
		assert_string_equal(reader_file_path(r, i), path_small[i]);
		struct reader_request q = {.file = i, .bytes = 8192, .need = 5000 + i, .dst = arena + i * 8192, .tag = i};
		assert_int_equal(reader_submit(r, &q), 0);
	}
	for (unsigned got = 0; got < N_SMALL;) {
		int n = reader_reap(r, c, N_SMALL - got, N_SMALL, -1);
		assert_int_equal(n, N_SMALL - got);
		got += (unsigned)n;
	}
	uint64_t sum = 0;
	for (unsigned i = 0; i < N_SMALL; i++) {
		assert_true(c[i].code == 0 && c[i].bytes == 5000 + c[i].tag);
		assert_true(formula_at((uint32_t)c[i].tag, 0, arena + c[i].tag * 8192, c[i].bytes));
		sum += c[i].bytes;
	}
	for (unsigned d = 0; d < 5; d++) {
		assert_true(reader_drive_bytes(r, d) > 0);
		sum -= reader_drive_bytes(r, d);
	}
	assert_true(sum == 0 && reader_drive_bytes(r, 5) == 0);
	reader_close(r);
}

/* Two copies on two drives: one request is read from both. */
static void test_replicas(void **state)
{
	struct reader_file f[] = {{.path = path_a, .drive = 1}, {.path = path_b, .drive = 1},
		{.path = path_copy, .drive = 2, .replica_of = 1}};
	struct reader *r = open_variant(*state, f, 3, (struct reader_options){.depth = 4, .slice_bytes = 64 * KIB});
	assert_int_equal(reader_n_drives(r), 2);
	for (unsigned i = 0; i < 20; i++) {
		memset(arena, GUARD, FILE_A);
		struct reader_completion c = read_one(r, (struct reader_request){.bytes = FILE_A, .dst = arena});
		assert_int_equal(c.code, 0);
		assert_true(formula_at(0, 0, arena, FILE_A));
	}
	uint64_t one = reader_drive_bytes(r, 0), two = reader_drive_bytes(r, 1);
	assert_true(one + two == 20ull * FILE_A);
	assert_true(one > FILE_A && two > FILE_A);
	check_random_reads(r, 5, 100);
	reader_close(r);

	struct err e = {0};
	struct reader_file unequal[] = {{.path = path_a}, {.path = path_b, .replica_of = 1}};
	assert_int_equal(reader_open(&r, unequal, 2, NULL, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, path_b));
	assert_null(r);
	struct reader_file self[] = {{.path = path_a, .replica_of = 1}};
	assert_int_equal(reader_open(&r, self, 1, NULL, &e), ERR_USAGE);
}

static void *waker(void *r)
{
	usleep(30000);
	reader_wake(r);
	return NULL;
}

static void test_wake(void **state)
{
	struct reader *r = open_ab(*state, (struct reader_options){0});
	for (unsigned i = 0; i < 3; i++) {
		pthread_t t;
		uint64_t start = clock_ns();
		assert_int_equal(pthread_create(&t, NULL, waker, r), 0);
		assert_int_equal(reader_wait(r, 20000), 0);
		uint64_t took = clock_ns() - start;
		assert_true(took > 20000000 && took < 10000000000u);
		pthread_join(t, NULL);
	}
	reader_wake(r); /* before the wait: ends the next one */
	reader_wake(r);
	assert_int_equal(reader_wait(r, 20000), 0);
	uint64_t start = clock_ns();
	assert_int_equal(reader_wait(r, 30), 0);
	assert_true(clock_ns() - start > 25000000);
	struct reader_request q = {.bytes = FILE_A, .dst = arena};
	assert_int_equal(reader_submit(r, &q), 0);
	assert_int_equal(reader_wait(r, -1), 1);
	struct reader_completion c;
	assert_int_equal(reader_reap(r, &c, 0, 1, 0), 1);
	assert_int_equal(c.code, 0);
	reader_close(r);
}

static void *use_elsewhere(void *r)
{
	check_random_reads(r, 77, 50);
	return NULL;
}

/* Opened here, used by another thread, closed here. */
static void test_handed_over(void **state)
{
	struct reader_file f[] = {{.path = path_a, .drive = 1}, {.path = path_b, .drive = 2}};
	struct reader *r = open_variant(*state, f, 2, (struct reader_options){.slice_bytes = 64 * KIB});
	assert_in_range(reader_register(r, arena, ARENA_BYTES), 0, 1);
	pthread_t t;
	assert_int_equal(pthread_create(&t, NULL, use_elsewhere, r), 0);
	pthread_join(t, NULL);
	reader_close(r);
}

static void test_registered(void **state)
{
	const struct variant *v = *state;
	struct reader *r = open_ab(v, (struct reader_options){.slice_bytes = 64 * KIB});
	int first = reader_register(r, arena, MIB);
	assert_int_equal(reader_register(r, arena + MIB - 1, 10), -EINVAL);
	assert_int_equal(reader_register(r, arena + 10, 10), -EINVAL);
	assert_int_equal(reader_register(r, NULL, 10), -EINVAL);
	assert_int_equal(reader_register(r, arena, 0), -EINVAL);
	int second = reader_register(r, arena + 2 * MIB, 4 * MIB);
	if (v->engine != READER_URING)
		assert_true(first == 1 && second == 1);
	struct reader_request q = {.bytes = 64 * KIB, .dst = arena + 1000};
	assert_int_equal(reader_submit(r, &q), 0);
	reader_flush(r);
	assert_int_equal(reader_register(r, arena + 7 * MIB, MIB), -EBUSY);
	struct reader_completion c;
	assert_int_equal(reader_reap(r, &c, 1, 1, -1), 1);
	check_random_reads(r, 9, 150); /* in, between and across the ranges */
	struct reader_stats s = reader_stats(r);
	if (first == 0 && second == 0)
		assert_true(s.fixed > 0 && s.fixed < s.reads);
	else
		assert_true(s.fixed == 0);
	reader_close(r);
}

static void test_truncated_while_running(void **state)
{
	char path[400];
	snprintf(path, sizeof path, "%s/shrinks", dir);
	write_formula(path, 0, MIB);
	struct reader_file f = {.path = path};
	struct reader *r = open_variant(*state, &f, 1, (struct reader_options){.slice_bytes = 64 * KIB});
	struct reader_request q = {.bytes = MIB, .dst = arena};
	assert_int_equal(read_one(r, q).code, 0);
	assert_int_equal(truncate(path, 300 * KIB + 5), 0);
	struct reader_completion c = read_one(r, q);
	assert_int_equal(c.code, READER_EOF);
	assert_true(c.bytes == 300 * KIB + 5);
	assert_true(formula_at(0, 0, arena, c.bytes));
	assert_int_equal(unlink(path), 0); /* a file that vanishes stays readable */
	assert_int_equal(read_one(r, (struct reader_request){.bytes = 300 * KIB, .dst = arena}).code, 0);
	reader_close(r);
}

/* /proc/self/mem is a regular file whose page 0 cannot be read: the system's own EIO. */
static void test_eio(void **state)
{
	struct reader_file f[] = {{.path = "/proc/self/mem"}, {.path = path_b}};
	struct reader *r = open_variant(*state, f, 2, (struct reader_options){.slice_bytes = 64 * KIB});
	struct reader_completion c =
		read_one(r, (struct reader_request){.bytes = 3000, .dst = arena, .tag = 5});
	assert_int_equal(c.code, -EIO);
	assert_true(c.bytes == 0);
	struct err e = {0};
	assert_int_equal(reader_completion_err(r, &c, &e), -EIO);
	assert_non_null(strstr(e.text, "/proc/self/mem"));
	assert_non_null(strstr(e.text, "offset 0"));
	assert_int_equal(read_one(r, (struct reader_request){.file = 1, .bytes = FILE_B, .dst = arena}).code, 0);
	assert_true(formula_at(1, 0, arena, FILE_B));
	assert_true(reader_stats(r).failed == 1);
	reader_close(r);
}

static void on_alarm(int sig)
{
	(void)sig;
}

/* Signals without SA_RESTART every 200 us: waits go on, reads are whole. */
static void test_signals(void **state)
{
	struct reader *r = open_ab(*state, (struct reader_options){.depth = 4, .slice_bytes = 64 * KIB});
	struct sigaction sa = {.sa_handler = on_alarm}, old;
	sigaction(SIGALRM, &sa, &old);
	struct itimerval every = {{0, 200}, {0, 200}}, off = {{0, 0}, {0, 0}};
	setitimer(ITIMER_REAL, &every, NULL);
	check_random_reads(r, 55, 200);
	uint64_t start = clock_ns();
	assert_int_equal(reader_wait(r, 30), 0);
	setitimer(ITIMER_REAL, &off, NULL);
	assert_true(clock_ns() - start > 25000000);
	sigaction(SIGALRM, &old, NULL);
	reader_close(r);
}

/* tmpfs: refuses O_DIRECT before kernel 6.6, takes it since; either way the bytes come. */
static void test_tmpfs(void **state)
{
	char path[64];
	snprintf(path, sizeof path, "/dev/shm/glm-reader-%d", (int)getpid());
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (fd < 0) {
		print_message("skipped: no /dev/shm here\n");
		skip();
	}
	close(fd);
	write_formula(path, 1, FILE_B);
	struct reader_file f[] = {{.path = path_a}, {.path = path}};
	struct reader *r = open_variant(*state, f, 2, (struct reader_options){0});
	check_random_reads(r, 3, 100);
	if (reader_file_align(r, 1) == 1)
		assert_non_null(strstr(reader_summary(r), "page cache"));
	reader_close(r);
	unlink(path);
}

/* --- faults, null engine --- */

static struct reader *open_faults(struct reader_faults f, struct reader_options o)
{
	struct variant v = {READER_NULL, false};
	o.faults = &f;
	return open_ab(&v, o);
}

static void test_short_and_again(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 40; seed++) {
		struct reader *r = open_faults((struct reader_faults){.seed = seed, .latency_max_us = 50,
			.short_per_1024 = 512, .eagain_per_1024 = 256, .poison = true, .no_sleep = true},
			(struct reader_options){.depth = 1 + (unsigned)seed % 9, .slice_bytes = 32 * KIB});
		check_random_reads(r, seed, 100);
		struct reader_stats s = reader_stats(r);
		assert_true(s.short_reads > 0 && s.retries > 0 && s.reads > s.short_reads + s.retries);
		reader_close(r);
	}
	/* never anything but EAGAIN: ends, with that error */
	struct reader *r = open_faults((struct reader_faults){.eagain_per_1024 = 1024}, (struct reader_options){0});
	struct reader_completion c = read_one(r, (struct reader_request){.bytes = 10, .dst = arena});
	assert_true(c.code == -EAGAIN || c.code == -EINTR);
	reader_close(r);
}

static void test_failing_reads(void **state)
{
	(void)state;
	/* the third slice fails: two slices of good bytes */
	struct reader *r = open_faults((struct reader_faults){.fail_read = 3},
		(struct reader_options){.depth = 1, .slice_bytes = 64 * KIB});
	struct reader_request q = {.bytes = 512 * KIB, .dst = arena, .tag = 1};
	struct reader_completion c = read_one(r, q);
	assert_int_equal(c.code, -EIO);
	assert_true(c.bytes == 128 * KIB && formula_at(0, 0, arena, c.bytes));
	assert_int_equal(read_one(r, q).code, 0);
	reader_close(r);

	/* a bad sector; the lowest fault counts and the bytes before it are there, in whatever order slices come */
	for (uint64_t seed = 0; seed < 50; seed++) {
		r = open_faults((struct reader_faults){.seed = seed, .latency_max_us = 100, .short_per_1024 = 300,
			.fail_range = true, .fail_file = 1, .fail_offset = 300000, .fail_code = -ENOMEDIUM, .poison = true,
			.no_sleep = true}, (struct reader_options){.depth = 8, .slice_bytes = 64 * KIB});
		q = (struct reader_request){.file = 1, .bytes = FILE_B + 10, .dst = arena, .tag = 1};
		memset(arena, 0, FILE_B + 10);
		c = read_one(r, q);
		assert_int_equal(c.code, -ENOMEDIUM);
		assert_true(c.bytes <= 300000 && c.bytes + 98304 > 300000);
		assert_true(formula_at(1, 0, arena, c.bytes));
		q = (struct reader_request){.file = 1, .offset = 300001, .bytes = 1000, .dst = arena};
		assert_int_equal(read_one(r, q).code, 0);
		q.file = 0;
		q.offset = 299999;
		assert_int_equal(read_one(r, q).code, 0);
		reader_close(r);
	}

	/* strikes twice, then the sector is well again */
	r = open_faults((struct reader_faults){.fail_range = true, .fail_offset = 5, .fail_times = 2},
		(struct reader_options){0});
	q = (struct reader_request){.bytes = 10, .dst = arena};
	assert_int_equal(read_one(r, q).code, -EIO);
	assert_int_equal(read_one(r, q).code, -EIO);
	assert_int_equal(read_one(r, q).code, 0);
	reader_close(r);

	/* a filesystem that takes O_DIRECT at first and answers EINVAL later: read on through the page cache */
	log_set_level(LOG_QUIET);
	r = open_faults((struct reader_faults){.fail_read = 2, .fail_code = -EINVAL}, (struct reader_options){0});
	bool direct = reader_file_align(r, 0) > 1;
	q = (struct reader_request){.bytes = 4096, .dst = arena};
	assert_int_equal(read_one(r, q).code, 0);
	assert_int_equal(read_one(r, q).code, direct ? 0 : -EINVAL);
	assert_true(formula_at(0, 0, arena, 4096));
	assert_true(reader_stats(r).page_cache == (direct ? 1 : 2));
	assert_int_equal(read_one(r, q).code, 0);
	assert_true(reader_stats(r).page_cache == (direct ? 2 : 3));
	reader_close(r);
}

static void test_hung_read(void **state)
{
	(void)state;
	struct reader_completion c[4];
	struct reader_request q = {.bytes = 4096, .dst = arena, .tag = 1}, p = q;
	p.tag = 2;
	p.dst = arena + 4096;
	/* for good: others pass it, a cancel ends it */
	struct reader *r = open_faults((struct reader_faults){.hang_read = 1, .poison = true}, (struct reader_options){0});
	assert_int_equal(reader_submit(r, &q), 0);
	assert_int_equal(reader_submit(r, &p), 0);
	assert_int_equal(reader_reap(r, c, 2, 4, 30), 1);
	assert_true(c[0].tag == 2 && c[0].code == 0 && all_bytes(arena, 4096, READER_POISON));
	assert_int_equal(reader_cancel(r, 1), 1);
	assert_int_equal(reader_reap(r, c, 1, 4, 5000), 1);
	assert_true(c[0].tag == 1 && c[0].code == -ECANCELED);
	reader_close(r);

	/* for a while: the answer comes late and is right */
	r = open_faults((struct reader_faults){.hang_read = 1, .hang_ms = 60}, (struct reader_options){0});
	uint64_t start = clock_ns();
	assert_int_equal(read_one(r, q).code, 0);
	assert_true(clock_ns() - start > 55000000 && formula_at(0, 0, arena, 4096));
	reader_close(r);

	/* closing does not wait for it */
	r = open_faults((struct reader_faults){.hang_read = 1}, (struct reader_options){0});
	assert_int_equal(reader_submit(r, &q), 0);
	reader_flush(r);
	reader_close(r);
}

/* Same seed, same order; another seed, another one. Urgent requests pass those that wait. */
static void test_order(void **state)
{
	(void)state;
	uint64_t order[3][40];
	for (unsigned k = 0; k < 3; k++) {
		struct reader *r = open_faults((struct reader_faults){.seed = k / 2, .latency_max_us = 1000, .no_sleep = true},
			(struct reader_options){.depth = 8});
		for (unsigned i = 0; i < 40; i++) {
			struct reader_request q = {.bytes = 100, .dst = arena + i * 100, .tag = i, .urgent = i == 30};
			assert_int_equal(reader_submit(r, &q), 0);
		}
		struct reader_completion c;
		for (unsigned i = 0; i < 40; i++) {
			assert_int_equal(reader_reap(r, &c, 1, 1, -1), 1);
			order[k][i] = c.tag;
		}
		reader_close(r);
	}
	assert_memory_equal(order[0], order[1], sizeof order[0]);
	assert_memory_not_equal(order[0], order[2], sizeof order[0]);

	struct reader *r = open_faults((struct reader_faults){.latency_min_us = 1, .latency_max_us = 1, .no_sleep = true},
		(struct reader_options){.depth = 1});
	struct reader_completion c[3];
	for (unsigned i = 0; i < 3; i++) {
		struct reader_request q = {.bytes = 100, .dst = arena + i * 100, .tag = i, .urgent = i > 0};
		assert_int_equal(reader_submit(r, &q), 0);
	}
	assert_int_equal(reader_reap(r, c, 3, 3, -1), 3);
	assert_true(c[0].tag == 1 && c[1].tag == 2 && c[2].tag == 0);
	reader_close(r);
}

static void test_synthetic(void **state)
{
	(void)state;
	struct reader_faults z = {.synthetic_bytes = FILE_A, .short_per_1024 = 100, .latency_max_us = 10};
	struct reader_file f[] = {{.path = "none"}, {.path = NULL}};
	struct reader_options o = {.engine = READER_NULL, .faults = &z};
	struct reader *r;
	struct err e = {0};
	assert_int_equal(reader_open(&r, f, 2, &o, &e), 0);
	assert_true(reader_file_size(r, 1) == FILE_A);
	struct reader_completion c =
		read_one(r, (struct reader_request){.file = 1, .offset = 12345, .bytes = MIB, .dst = arena});
	assert_int_equal(c.code, 0);
	assert_true(formula_at(1, 12345, arena, MIB));
	assert_false(formula_at(0, 12345, arena, 64));
	c = read_one(r, (struct reader_request){.offset = FILE_A - 10, .bytes = 20, .dst = arena});
	assert_true(c.code == READER_EOF && c.bytes == 10);
	reader_close(r);
}

/* --- opening --- */

static void test_open_refuses(void **state)
{
	(void)state;
	struct reader *r;
	struct reader_file ok = {.path = path_a}, none = {.path = "/nonexistent/model.gguf"}, folder = {.path = "/"};
	struct err e = {0};
	assert_int_equal(reader_open(&r, &none, 1, NULL, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "/nonexistent/model.gguf"));
	assert_int_equal(reader_open(&r, &folder, 1, NULL, &e), ERR_INPUT);
	assert_int_equal(reader_open(&r, &ok, 0, NULL, &e), ERR_USAGE);
	const struct reader_options bad[] = {{.depth = READER_DEPTH_MAX + 1}, {.slice_bytes = 100},
		{.slice_bytes = (size_t)READER_SLICE_MAX + 1}, {.requests = READER_REQUESTS_MAX + 1},
		{.threads = 100000}, {.engine = (enum reader_engine)9}};
	for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
		e = (struct err){0};
		assert_int_equal(reader_open(&r, &ok, 1, &bad[i], &e), ERR_USAGE);
		assert_true(e.text[0] && !r);
	}
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(reader_engine_by_name(reader_engine_name((enum reader_engine)i)), i);
	assert_int_equal(reader_engine_by_name("fast"), (enum reader_engine)-1);
}

/* Runs fn in a child, which can give up rights that a test program needs back. Its exit status. */
static int in_child(int (*fn)(void))
{
	fflush(NULL);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(fn());
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (!WIFEXITED(status))
		fail_msg("child died of signal %d", WTERMSIG(status));
	return WEXITSTATUS(status);
}

/* Reads without cmocka's macros: 0 when the bytes are right. */
static int child_reads(struct reader *r)
{
	struct reader_request q = {.bytes = FILE_A, .dst = arena};
	struct reader_completion c;
	memset(arena, 0, FILE_A);
	if (reader_submit(r, &q) || reader_reap(r, &c, 1, 1, -1) != 1 || c.code)
		return 20;
	return formula_at(0, 0, arena, FILE_A) ? 0 : 21;
}

static int child_without_uring(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {ARRAY_LEN(code), code};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog))
		return 77;
	struct reader *r;
	struct err e = {0};
	struct reader_file f = {.path = path_a};
	struct reader_options o = {.engine = READER_URING};
	if (reader_open(&r, &f, 1, &o, &e) == 0 || !e.text[0] || !e.hint[0])
		return 10;
	o.engine = READER_AUTO;
	if (reader_open(&r, &f, 1, &o, &e))
		return 11;
	if (reader_engine_id(r) != READER_THREADS || !strstr(reader_summary(r), "no io_uring"))
		return 12;
	int status = child_reads(r);
	reader_close(r);
	return status;
}

static void test_ring_forbidden(void **state)
{
	(void)state;
	int status = in_child(child_without_uring);
	if (status == 77) {
		print_message("skipped: no seccomp filters here\n");
		skip();
	}
	assert_int_equal(status, 0);
}

/* Room for the rings (newer kernels charge them), not for the arena. */
static int child_memlock(void)
{
	struct rlimit small = {MIB, MIB};
	if (setrlimit(RLIMIT_MEMLOCK, &small) || (geteuid() == 0 && setuid(65534)))
		return 77;
	struct reader *r;
	struct err e = {0};
	struct reader_file f = {.path = path_a};
	struct reader_options o = {.engine = READER_URING};
	if (reader_open(&r, &f, 1, &o, &e))
		return 77; /* no ring at all here */
	if (reader_register(r, arena, ARENA_BYTES) != 1)
		return 10;
	int status = child_reads(r);
	if (!status && reader_stats(r).fixed)
		status = 11;
	reader_close(r);
	return status;
}

/* Nothing may be locked: some kernels then refuse the ring; auto reads all the same. */
static int child_no_memlock(void)
{
	struct rlimit none = {0, 0};
	if (setrlimit(RLIMIT_MEMLOCK, &none) || (geteuid() == 0 && setuid(65534)))
		return 77;
	struct reader *r;
	struct err e = {0};
	struct reader_file f = {.path = path_a};
	if (reader_open(&r, &f, 1, NULL, &e))
		return 10;
	if (reader_engine_id(r) == READER_THREADS && !strstr(reader_summary(r), "no io_uring"))
		return 11;
	int status = child_reads(r);
	reader_close(r);
	return status;
}

static void test_memlock_too_small(void **state)
{
	(void)state;
	int status = in_child(child_no_memlock);
	assert_true(status == 0 || status == 77);
	status = in_child(child_memlock);
	if (status == 77) {
		print_message("skipped: no ring, or no way to lower the limit\n");
		skip();
	}
	assert_int_equal(status, 0);
}

static void test_slice_step(void **state)
{
	(void)state;
	struct rng g = {1};
	for (unsigned i = 0; i < 20000; i++) {
		uint64_t bytes = 1 + (rng_u64(&g) >> (24 + rng_below(&g, 40)));
		uint64_t slice = num_align_down(READER_SLICE_MIN + rng_below(&g, 4 * MIB), 4096);
		uint64_t step = reader_slice_step(bytes, slice);
		if (step == bytes) {
			assert_true(bytes <= slice + slice / 2);
			continue;
		}
		assert_true(step % 4096 == 0 && step > 0);
		assert_true(step <= slice + slice / 2 + 4096 && step * 3 >= slice * 2);
		uint64_t n = (bytes + step - 1) / step;
		assert_true(n >= 2 && n <= bytes / slice + 1);
	}
	assert_true(reader_slice_step(3200 * KIB, MIB) == 1068 * KIB);
}

/* --- the program --- */

static void make_files(void)
{
	const char *base = getenv("TMPDIR");
	snprintf(dir, sizeof dir, "%s/glm-reader-XXXXXX", base && *base ? base : "/var/tmp");
	if (!mkdtemp(dir)) {
		perror(dir);
		exit(1);
	}
	chmod(dir, 0755); /* a child reads as another user */
	snprintf(path_a, sizeof path_a, "%s/a", dir);
	snprintf(path_b, sizeof path_b, "%s/b", dir);
	snprintf(path_copy, sizeof path_copy, "%s/copy", dir);
	write_formula(path_a, 0, FILE_A);
	write_formula(path_b, 1, FILE_B);
	write_formula(path_copy, 0, FILE_A);
	for (unsigned i = 0; i < N_SMALL; i++) {
		snprintf(path_small[i], sizeof path_small[i], "%s/small%u", dir, i);
		write_formula(path_small[i], i, 5000 + i);
	}
}

static void remove_files(void)
{
	unlink(path_a);
	unlink(path_b);
	unlink(path_copy);
	for (unsigned i = 0; i < N_SMALL; i++)
		unlink(path_small[i]);
	rmdir(dir);
}

int main(void)
{
	static struct variant variants[] = {{READER_URING, false}, {READER_URING, true}, {READER_THREADS, false},
		{READER_THREADS, true}, {READER_NULL, false}};
	static const struct {
		const char *name;
		CMUnitTestFunction fn;
	} table[] = {
		{"random_reads", test_random_reads},
		{"end_of_file", test_end_of_file},
		{"bad_requests", test_bad_requests},
		{"busy", test_busy},
		{"cancel", test_cancel},
		{"close_in_flight", test_close_in_flight},
		{"many_files", test_many_files},
		{"replicas", test_replicas},
		{"wake", test_wake},
		{"handed_over", test_handed_over},
		{"registered", test_registered},
		{"truncated_while_running", test_truncated_while_running},
		{"eio", test_eio},
		{"signals", test_signals},
		{"tmpfs", test_tmpfs},
	};
	const struct CMUnitTest faults[] = {
		cmocka_unit_test(test_short_and_again),
		cmocka_unit_test(test_failing_reads),
		cmocka_unit_test(test_hung_read),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_synthetic),
		cmocka_unit_test(test_open_refuses),
		cmocka_unit_test(test_ring_forbidden),
		cmocka_unit_test(test_memlock_too_small),
		cmocka_unit_test(test_slice_step),
	};
	log_set_level(LOG_QUIET);
	arena = mem_try_map(ARENA_BYTES);
	if (!arena)
		return 1;
	make_files();
	int failed = 0;
	for (unsigned v = 0; v < ARRAY_LEN(variants); v++) {
		struct CMUnitTest suite[ARRAY_LEN(table)];
		char names[ARRAY_LEN(table)][64];
		for (unsigned i = 0; i < ARRAY_LEN(table); i++) {
			snprintf(names[i], sizeof names[i], "%s %s %s", table[i].name, reader_engine_name(variants[v].engine),
				variants[v].buffered ? "buffered" : "direct");
			suite[i] = (struct CMUnitTest){.name = names[i], .test_func = table[i].fn, .initial_state = &variants[v]};
		}
		failed += cmocka_run_group_tests(suite, NULL, NULL);
	}
	failed += cmocka_run_group_tests(faults, NULL, NULL);
	remove_files();
	mem_unmap(arena, ARENA_BYTES);
	return failed != 0;
}
