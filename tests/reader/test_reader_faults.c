// SPDX-License-Identifier: MIT
/*
 * The readers when things go wrong: faults that the null engine injects, and what reader_open
 * decides when the system refuses a ring, locked memory or a file.
 */
#include "stream/reader/reader.h"

#include "src/base/host/clock.h"
#include "src/base/log.h"
#include "src/base/num.h"
#include "src/base/rng.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/reader/reader_help.h"
#include "tests/support/said.h"

/* --- faults, null engine --- */

static struct reader *open_faults(struct reader_faults f, struct reader_options o)
{
	static const struct variant v = {"null", .custom = &reader_null_engine};
	o.custom_options = &f;
	return open_ab(&v, o);
}

static void test_short_and_again(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 40; seed++) {
		struct reader *r = open_faults((struct reader_faults){.seed = seed,
										   .latency_max_us = 50,
										   .short_per_1024 = 512,
										   .eagain_per_1024 = 256,
										   .poison = true,
										   .no_sleep = true},
			(struct reader_options){.depth = 1 + (unsigned)seed % 9, .slice_bytes = 32 * KIB});
		check_random_reads(r, seed, 100);
		struct reader_stats s = reader_stats(r);
		assert_true(s.short_reads > 0 && s.retries > 0 && s.reads > s.short_reads + s.retries);
		reader_close(r);
	}
	/* never anything but EAGAIN: ends, with that error */
	struct reader *r =
		open_faults((struct reader_faults){.eagain_per_1024 = 1024}, (struct reader_options){0});
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
	assert_true(reader_stats(r).reads == 3); /* the other five are not tried */
	assert_int_equal(read_one(r, q).code, 0);
	reader_close(r);

	/* a bad sector; the lowest fault counts and the bytes before it are there, in whatever order
	 * slices come */
	for (uint64_t seed = 0; seed < 50; seed++) {
		r = open_faults((struct reader_faults){.seed = seed,
							.latency_max_us = 100,
							.short_per_1024 = 300,
							.fail_range = true,
							.fail_file = 1,
							.fail_offset = 300000,
							.fail_code = -ENOMEDIUM,
							.poison = true,
							.no_sleep = true},
			(struct reader_options){.depth = 8, .slice_bytes = 64 * KIB});
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

	/* a filesystem that takes O_DIRECT at first and answers EINVAL later: read on through the page
	 * cache */
	log_set_level(LOG_QUIET);
	r = open_faults(
		(struct reader_faults){.fail_read = 2, .fail_code = -EINVAL}, (struct reader_options){0});
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

/* Files 0 and 2 are copies on two drives; rest_ms: reader_options.copy_rest_ms. */
static struct reader *open_copies_rest(struct reader_faults f, unsigned depth, unsigned rest_ms)
{
	const struct reader_file files[] = {{.path = help_a, .drive = 1}, {.path = help_b, .drive = 1},
		{.path = help_copy, .drive = 2, .replica_of = 1}};
	static const struct variant v = {"null", .custom = &reader_null_engine};
	struct reader_options o = {
		.depth = depth, .slice_bytes = 64 * KIB, .copy_rest_ms = rest_ms, .custom_options = &f};
	return open_variant(&v, files, 3, o);
}

static struct reader *open_copies(struct reader_faults f, unsigned depth)
{
	return open_copies_rest(f, depth, 0);
}

/* Where a copy of a file cannot be read, the other one is, also by reads that have begun. One
 * warning names it. A request fails when no copy of it can be read. */
static void test_copy_gone(void **state)
{
	(void)state;
	int n_warned = 0;
	for (uint64_t seed = 1; seed <= 40; seed++) {
		const bool first = seed % 2;
		struct reader *r = open_copies((struct reader_faults){.seed = seed,
										   .latency_max_us = 50,
										   .short_per_1024 = 200,
										   .eagain_per_1024 = seed % 3 ? 100 : 0,
										   .gone = first ? 1 : 4,
										   .gone_after = (unsigned)seed % 5,
										   .fail_code = seed % 4 ? 0 : -ENODEV,
										   .poison = true,
										   .no_sleep = true},
			1 + (unsigned)seed % 9);
		said_begin(LOG_WARN);
		check_random_reads(r, seed, 100);
		struct reader_stats s = reader_stats(r);
		reader_close(r);
		const char *said = said_end();
		assert_true(s.failed == 0 && s.completed == 100);
		/* none: the drive of that copy was slow for a while, and the other one got all reads */
		const int warned = said_count(said, "warning: ");
		assert_in_range(warned, 0, 1);
		assert_int_equal(said_count(said, first ? help_a : help_copy), warned);
		n_warned += warned;
	}
	assert_in_range(n_warned, 20, 40);
	/* the copy that failed is not tried again and again */
	struct reader *r = open_copies((struct reader_faults){.gone = 1}, 2);
	struct reader_request q = {.bytes = FILE_A, .dst = arena};
	for (int i = 0; i < 4; i++) {
		memset(arena, GUARD, FILE_A);
		assert_int_equal(read_one(r, q).code, 0);
		assert_true(formula_at(0, 0, arena, FILE_A));
	}
	assert_in_range(reader_stats(r).reads, 4 * FILE_A / (64 * KIB), 4 * FILE_A / (64 * KIB) + 2);
	reader_close(r);
	/* when it has rested it is tried once more */
	const uint64_t slices = FILE_A / (64 * KIB) + (FILE_A % (64 * KIB) != 0);
	r = open_copies_rest(
		(struct reader_faults){.gone = 1}, 1, 1000); /* a stall of the test must not outlast it */
	for (int i = 0; i < 3; i++) {
		if (i)
			usleep(1050000);
		assert_int_equal(read_one(r, q).code, 0);
		assert_int_equal(reader_stats(r).reads, (uint64_t)(i + 1) * (slices + 1));
	}
	reader_close(r);
	/* both are gone: each slice is tried on both */
	said_begin(LOG_WARN);
	r = open_copies((struct reader_faults){.gone = 5}, 1);
	q.bytes = 64 * KIB;
	const int code = read_one(r, q).code, again = read_one(r, q).code;
	const uint64_t reads = reader_stats(r).reads;
	reader_close(r);
	const char *said = said_end();
	assert_int_equal(code, -EIO);
	assert_int_equal(again, -EIO);
	assert_int_equal(reads, 4);
	assert_int_equal(said_count(said, "warning: "), 2);
}

/* A copy becomes shorter while it is used. */
static void test_copy_cut(void **state)
{
	(void)state;
	struct reader *r = open_copies((struct reader_faults){.no_sleep = true}, 2);
	assert_int_equal(truncate(help_copy, FILE_A / 2 + 1000), 0);
	for (int i = 0; i < 4; i++) {
		memset(arena, GUARD, FILE_A);
		const struct reader_completion c =
			read_one(r, (struct reader_request){.bytes = FILE_A, .dst = arena});
		assert_int_equal(c.code, 0);
		assert_int_equal(c.bytes, FILE_A);
		assert_true(formula_at(0, 0, arena, FILE_A));
	}
	reader_close(r);
	write_formula(help_copy, 0, FILE_A);
}

static void test_hung_read(void **state)
{
	(void)state;
	struct reader_completion c[4];
	struct reader_request q = {.bytes = 4096, .dst = arena, .tag = 1}, p = q;
	p.tag = 2;
	p.dst = arena + 4096;
	/* for good: others pass it, a cancel ends it */
	struct reader *r = open_faults(
		(struct reader_faults){.hang_read = 1, .poison = true}, (struct reader_options){0});
	assert_int_equal(reader_submit(r, &q), 0);
	assert_int_equal(reader_submit(r, &p), 0);
	assert_int_equal(reader_reap(r, c, 2, 4, 30), 1);
	assert_true(c[0].tag == 2 && c[0].code == 0 && all_bytes(arena, 4096, READER_POISON));
	assert_int_equal(reader_cancel_all(r), 1);
	assert_int_equal(reader_reap(r, c, 1, 4, 5000), 1);
	assert_true(c[0].tag == 1 && c[0].code == -ECANCELED);
	reader_close(r);

	/* for a while: the answer comes late and is right */
	r = open_faults(
		(struct reader_faults){.hang_read = 1, .hang_ms = 60}, (struct reader_options){0});
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
		struct reader *r = open_faults(
			(struct reader_faults){.seed = k / 2, .latency_max_us = 1000, .no_sleep = true},
			(struct reader_options){.depth = 8});
		for (unsigned i = 0; i < 40; i++) {
			struct reader_request q = {
				.bytes = 100, .dst = arena + i * 100, .tag = i, .urgent = i == 30};
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

	struct reader *r = open_faults(
		(struct reader_faults){.latency_min_us = 1, .latency_max_us = 1, .no_sleep = true},
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

/* --- opening --- */

static void test_open_refuses(void **state)
{
	(void)state;
	struct reader *r;
	struct reader_file ok = {.path = help_a}, none = {.path = "/nonexistent/model.gguf"},
					   folder = {.path = "/"};
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

static void check_child(int (*fn)(void), const char *skipped_because)
{
	int status = in_child(fn);
	if (status == 77) {
		print_message("skipped: %s\n", skipped_because);
		skip();
	}
	assert_int_equal(status, 0);
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
	struct reader_file f = {.path = help_a};
	struct reader_options o = {.engine = READER_URING};
	if (reader_open(&r, &f, 1, &o, &e) == 0 || !e.text[0] || !e.hint[0])
		return 10;
	o.engine = READER_AUTO;
	if (reader_open(&r, &f, 1, &o, &e))
		return 11;
	if (strcmp(reader_engine_name(r), "threads") || !strstr(r->summary, "no io_uring"))
		return 12;
	int status = child_reads(r);
	reader_close(r);
	return status;
}

static void test_ring_forbidden(void **state)
{
	(void)state;
	check_child(child_without_uring, "no seccomp filters here");
}

/* Room for the rings (newer kernels charge them), not for the arena. */
static int child_memlock(void)
{
	struct rlimit small = {MIB, MIB};
	if (setrlimit(RLIMIT_MEMLOCK, &small) || (geteuid() == 0 && setuid(65534)))
		return 77;
	struct reader *r;
	struct err e = {0};
	struct reader_file f = {.path = help_a};
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
	struct reader_file f = {.path = help_a};
	if (reader_open(&r, &f, 1, NULL, &e))
		return 10;
	if (!strcmp(reader_engine_name(r), "threads") && !strstr(r->summary, "no io_uring"))
		return 11;
	int status = child_reads(r);
	reader_close(r);
	return status;
}

static void test_memlock_none(void **state)
{
	(void)state;
	check_child(child_no_memlock, "no way to lower the limit");
}

static void test_memlock_too_small(void **state)
{
	(void)state;
	check_child(child_memlock, "no ring, or no way to lower the limit");
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_short_and_again),
		cmocka_unit_test(test_failing_reads),
		cmocka_unit_test(test_copy_gone),
		cmocka_unit_test(test_copy_cut),
		cmocka_unit_test(test_hung_read),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_open_refuses),
		cmocka_unit_test(test_ring_forbidden),
		cmocka_unit_test(test_memlock_none),
		cmocka_unit_test(test_memlock_too_small),
		cmocka_unit_test(test_slice_step),
	};
	log_set_level(LOG_QUIET);
	help_setup();
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	help_remove();
	return failed;
}
