// SPDX-License-Identifier: MIT
/*
 * One suite for all readers: each test runs on io_uring, threads and null, through O_DIRECT and
 * through the page cache. An engine that this machine refuses is skipped with the reason. Faults on
 * demand are in test_reader_faults.c.
 */
#include "stream/reader/reader.h"

#include "src/base/host/clock.h"
#include "src/base/log.h"
#include "src/base/num.h"
#include "src/base/rng.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/reader/reader_help.h"
#include "tests/support/slow_build.h"

static void test_random_reads(void **state)
{
	static const unsigned depths[] = {1, 3, 16}, slices[] = {4 * KIB, 60 * KIB, 1 * MIB};
	for (unsigned i = 0; i < 3; i++) {
		struct reader *r =
			open_ab(*state, (struct reader_options){.depth = depths[i], .slice_bytes = slices[i]});
		check_random_reads(r, 100 + i, 150);
		struct reader_stats s = reader_stats(r);
		assert_true(
			s.requests == 150 && s.completed == 150 && !s.failed && !s.cancelled && !s.in_flight);
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
		{1 * MIB, 4096, 777, 0, 777}, /* the O_DIRECT tail: only 777 bytes are there and wanted */
		{1 * MIB, 4096, 778, READER_EOF, 777},
		{0, 2 * MIB, 0, READER_EOF,
			FILE_B}, /* several slices, some of them wholly behind the end */
		{0, 2 * MIB, FILE_B, 0, FILE_B},
		{512 * KIB, 1 * MIB, 100, 0, FILE_B - 512 * KIB},
		{(1ull << 40), 4096, 0, READER_EOF, 0},
	};
	for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
		memset(arena, GUARD, 2 * MIB + 4096);
		struct reader_completion c = read_one(r, (struct reader_request){.file = 1,
													 .offset = cases[i].offset,
													 .bytes = cases[i].bytes,
													 .need = cases[i].need,
													 .dst = arena,
													 .tag = i});
		if (c.code != cases[i].code || c.bytes != cases[i].got)
			fail_msg("case %u: code %d, %llu bytes", i, c.code, (unsigned long long)c.bytes);
		assert_true(formula_at(1, cases[i].offset, arena, c.bytes));
		assert_true(all_bytes(arena + cases[i].bytes, 4096, GUARD));
		if (c.code) {
			struct err e = {0};
			char part[64];
			assert_int_equal(reader_completion_err(r, &c, &e), ERR_INPUT);
			snprintf(part, sizeof part, "ends %llu bytes into a read of %llu bytes at offset %llu",
				(unsigned long long)c.bytes, (unsigned long long)c.requested,
				(unsigned long long)c.offset);
			assert_non_null(strstr(e.text, help_b));
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

/* Every request gets exactly one completion, cancelled or not, and the memory of a completed one
 * stays quiet. */
static void test_cancel(void **state)
{
	struct reader *r =
		open_ab(*state, (struct reader_options){.depth = 2, .slice_bytes = 64 * KIB});
	for (unsigned round = 0; round < IF_SANITIZER(24, 60); round++) {
		unsigned seen[16] = {0}, n_cancelled = 0;
		memset(arena, GUARD, 16 * 256 * KIB);
		for (unsigned i = 0; i < 16; i++) {
			struct reader_request q = {
				.offset = i * 4096, .bytes = 256 * KIB, .dst = arena + i * 256 * KIB, .tag = i};
			assert_int_equal(reader_submit(r, &q), 0);
		}
		if (round % 3)
			reader_flush(r);
		unsigned hit = round % 2 ? reader_cancel_all(r) : 0;
		if (round % 2) {
			assert_true(hit >= 8); /* most are far behind the two in flight */
			assert_int_equal(reader_cancel_all(r), 0);
		}
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
			if (round % 2)
				assert_true(arena[i * 256 * KIB] == GUARD ||
							formula_at(0, i * 4096, arena + i * 256 * KIB, 8));
		}
	}
	reader_close(r);
}

/* Many readers closed in the middle of things: nothing is written after close returned. */
static void test_close_in_flight(void **state)
{
	struct rng g = {7};
	enum { BYTES = 512 * KIB };
	memset(arena, GUARD, BYTES);
	for (unsigned i = 0; i < IF_SANITIZER(250, 1000); i++) {
		struct reader *r = open_ab(
			*state, (struct reader_options){
						.depth = 1 + rng_below(&g, 8), .slice_bytes = 16 * KIB, .threads = 3});
		unsigned n = 1 + rng_below(&g, 8);
		for (unsigned k = 0; k < n; k++) {
			struct reader_request q = {
				.offset = rng_below(&g, FILE_A - 64 * KIB), .bytes = 64 * KIB};
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
		f[i] = (struct reader_file){.path = help_small[i], .drive = 1 + i % 5};
	struct reader *r =
		open_variant(*state, f, N_SMALL, (struct reader_options){.depth = 4, .threads = 2});
	assert_int_equal(reader_n_drives(r), 5);
	struct reader_completion c[N_SMALL];
	for (unsigned i = 0; i < N_SMALL; i++) {
		assert_int_equal(r->files.h[i].drive, i % 5);
		assert_true(reader_file_size(r, i) == 5000 + i);
		assert_string_equal(r->files.h[i].path, help_small[i]);
		struct reader_request q = {
			.file = i, .bytes = 8192, .need = 5000 + i, .dst = arena + i * 8192, .tag = i};
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
		assert_true(r->drives[d].bytes > 0);
		sum -= r->drives[d].bytes;
	}
	assert_true(sum == 0);
	reader_close(r);
}

/* Two copies on two drives: one request is read from both. */
static void test_replicas(void **state)
{
	struct reader_file f[] = {{.path = help_a, .drive = 1}, {.path = help_b, .drive = 1},
		{.path = help_copy, .drive = 2, .replica_of = 1}};
	struct reader *r =
		open_variant(*state, f, 3, (struct reader_options){.depth = 3, .slice_bytes = 64 * KIB});
	assert_int_equal(reader_n_drives(r), 2);
	assert_int_equal(reader_useful_depth(r), 6); /* the depth is below READER_USEFUL_DEPTH */
	uint64_t one = 0, two = 0;
	unsigned n = 0;
	/* more than 20 requests only where other programs held one drive's threads up */
	for (; n < 20 || (n < 2000 && MIN(one, two) <= FILE_A); n++) {
		memset(arena, GUARD, FILE_A);
		struct reader_completion c =
			read_one(r, (struct reader_request){.bytes = FILE_A, .dst = arena});
		assert_int_equal(c.code, 0);
		assert_true(formula_at(0, 0, arena, FILE_A));
		one = r->drives[0].bytes;
		two = r->drives[1].bytes;
	}
	assert_true(one + two == (uint64_t)n * FILE_A);
	assert_true(one > FILE_A && two > FILE_A);
	check_random_reads(r, 5, 100);
	reader_close(r);

	/* with nothing in flight both drives are equal, whatever they did before, and the named file
	 * goes first; one drive never gets the other's share of the depth */
	r = open_variant(*state, f, 3, (struct reader_options){.depth = 2, .slice_bytes = 64 * KIB});
	assert_int_equal(
		read_one(r, (struct reader_request){.file = 1, .bytes = FILE_B, .dst = arena}).code, 0);
	assert_true(reader_stats(r).in_flight_max == 2);
	assert_int_equal(read_one(r, (struct reader_request){.bytes = 4096, .dst = arena}).code, 0);
	assert_true(r->drives[0].bytes == FILE_B + 4096 && r->drives[1].bytes == 0);
	reader_close(r);

	struct err e = {0};
	struct reader_file unequal[] = {{.path = help_a}, {.path = help_b, .replica_of = 1}};
	assert_int_equal(reader_open(&r, unequal, 2, NULL, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, help_b));
	assert_null(r);
	struct reader_file self[] = {{.path = help_a, .replica_of = 1}};
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
	for (unsigned i = 0; i < 20; i++) {
		struct reader_request q = {
			.bytes = 256 * KIB, .offset = i * 4096, .dst = arena + i * 256 * KIB};
		assert_int_equal(reader_submit(r, &q), 0);
	}
	reader_flush(r);
	reader_drain(r);
	assert_int_equal(reader_pending(r), 0);
	memset(arena, GUARD, ARENA_BYTES);
	return NULL;
}

/* Opened here, used by another thread, closed here. */
static void test_handed_over(void **state)
{
	struct reader_file f[] = {{.path = help_a, .drive = 1}, {.path = help_b, .drive = 2}};
	struct reader *r = open_variant(*state, f, 2, (struct reader_options){.slice_bytes = 64 * KIB});
	assert_in_range(reader_register(r, arena, ARENA_BYTES), 0, 1);
	pthread_t t;
	assert_int_equal(pthread_create(&t, NULL, use_elsewhere, r), 0);
	pthread_join(t, NULL);
	reader_close(r);
	assert_true(all_bytes(arena, ARENA_BYTES, GUARD));
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
	if (v->custom || v->engine != READER_URING)
		assert_true(first == 1 && second == 1);
	struct reader_request q = {.bytes = 64 * KIB, .dst = arena + 1000};
	assert_int_equal(reader_submit(r, &q), 0);
	reader_flush(r);
	assert_int_equal(reader_register(r, arena + 7 * MIB, MIB), -EBUSY);
	struct reader_completion c;
	assert_int_equal(reader_reap(r, &c, 1, 1, -1), 1);
	assert_int_equal(reader_register(r, (void *)(uintptr_t)4096, 4096),
		1);                        /* no memory there: refused, the others stay */
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
	snprintf(path, sizeof path, "%s/shrinks", help_dir);
	write_formula(path, 0, MIB);
	struct reader_file f = {.path = path};
	struct reader *r =
		open_variant(*state, &f, 1, (struct reader_options){.slice_bytes = 64 * KIB});
	struct reader_request q = {.bytes = MIB, .dst = arena};
	assert_int_equal(read_one(r, q).code, 0);
	assert_int_equal(truncate(path, 300 * KIB + 5), 0);
	struct reader_completion c = read_one(r, q);
	assert_int_equal(c.code, READER_EOF);
	assert_true(c.bytes == 300 * KIB + 5);
	assert_true(formula_at(0, 0, arena, c.bytes));
	assert_int_equal(unlink(path), 0); /* a file that vanishes stays readable */
	assert_int_equal(
		read_one(r, (struct reader_request){.bytes = 300 * KIB, .dst = arena}).code, 0);
	reader_close(r);
}

/* /proc/self/mem is a regular file whose page 0 cannot be read: the system's own EIO. */
static void test_eio(void **state)
{
	struct reader_file f[] = {{.path = "/proc/self/mem"}, {.path = help_b}};
	struct reader *r = open_variant(*state, f, 2, (struct reader_options){.slice_bytes = 64 * KIB});
	struct reader_completion c =
		read_one(r, (struct reader_request){.bytes = 3000, .dst = arena, .tag = 5});
	assert_int_equal(c.code, -EIO);
	assert_true(c.bytes == 0);
	struct err e = {0};
	assert_int_equal(reader_completion_err(r, &c, &e), -EIO);
	assert_non_null(strstr(e.text, "/proc/self/mem"));
	assert_non_null(strstr(e.text, "offset 0"));
	assert_int_equal(
		read_one(r, (struct reader_request){.file = 1, .bytes = FILE_B, .dst = arena}).code, 0);
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
	struct reader *r =
		open_ab(*state, (struct reader_options){.depth = 4, .slice_bytes = 64 * KIB});
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
	struct reader_file f[] = {{.path = help_a}, {.path = path}};
	struct reader *r = open_variant(*state, f, 2, (struct reader_options){0});
	check_random_reads(r, 3, 100);
	bool direct = reader_file_align(r, 0) > 1 && reader_file_align(r, 1) > 1;
	assert_int_equal(reader_useful_depth(r),
		(direct ? READER_USEFUL_DEPTH : READER_CACHED_DEPTH) * reader_n_drives(r));
	if (reader_file_align(r, 1) == 1)
		assert_non_null(strstr(r->summary, "page cache"));
	reader_close(r);
	unlink(path);
}

int main(void)
{
	static struct variant variants[] = {
		{"uring direct", .engine = READER_URING},
		{"uring buffered", .engine = READER_URING, .buffered = true},
		{"threads direct", .engine = READER_THREADS},
		{"threads buffered", .engine = READER_THREADS, .buffered = true},
		{"null direct", .custom = &reader_null_engine},
	};
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
	log_set_level(LOG_QUIET);
	help_setup();
	int failed = 0;
	for (unsigned v = 0; v < ARRAY_LEN(variants); v++) {
		struct CMUnitTest suite[ARRAY_LEN(table)];
		char names[ARRAY_LEN(table)][64];
		for (unsigned i = 0; i < ARRAY_LEN(table); i++) {
			snprintf(names[i], sizeof names[i], "%s %s", table[i].name, variants[v].name);
			suite[i] = (struct CMUnitTest){
				.name = names[i], .test_func = table[i].fn, .initial_state = &variants[v]};
		}
		failed += cmocka_run_group_tests(suite, NULL, NULL);
	}
	help_remove();
	return failed != 0;
}
