/* SPDX-License-Identifier: MIT */
/* What a ring can do once it is restricted, and that those of a reader are. */
#include "stream/reader/uring_restrict.h"

#include "src/base/num.h"
#include "stream/reader/reader.h"
#include "tests/support/temp_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>

#if __has_include(<liburing.h>)
#include <liburing.h>

#define FILE_BYTES 65536

static const char *make_small_file(void)
{
	static char bytes[FILE_BYTES] = "a file";
	const char *path = temp_dir_path("file");
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	assert_int_equal(fwrite(bytes, 1, sizeof bytes, f), sizeof bytes);
	assert_int_equal(fclose(f), 0);
	return path;
}

static int ring_register(int fd, unsigned op, void *arg, unsigned n)
{
	return syscall(SYS_io_uring_register, fd, op, arg, n) < 0 ? -errno : 0;
}

/* Registering what a reader does not: a restricted ring refuses it with EACCES. */
static int register_probe(int fd)
{
	struct io_uring_probe *probe = calloc(1, sizeof *probe + 64 * sizeof probe->ops[0]);
	int rc = ring_register(fd, IORING_REGISTER_PROBE, probe, 64);
	free(probe);
	return rc;
}

/* The result of one op. */
static int run_op(struct io_uring *ring, int fd, unsigned op, char *buffer)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	struct io_uring_cqe *cqe;
	assert_non_null(sqe);
	io_uring_prep_rw((int)op, sqe, fd, buffer, op == IORING_OP_NOP ? 0 : 6, 0);
	assert_int_equal(io_uring_submit(ring), 1);
	assert_int_equal(io_uring_wait_cqe(ring, &cqe), 0);
	int res = cqe->res;
	io_uring_cqe_seen(ring, cqe);
	return res;
}

static void test_ring(void **state)
{
	(void)state;
	static const unsigned refused[] = {IORING_OP_NOP, IORING_OP_WRITE, IORING_OP_OPENAT,
		IORING_OP_CONNECT, IORING_OP_ACCEPT, IORING_OP_SENDMSG, IORING_OP_CLOSE, IORING_OP_UNLINKAT,
		IORING_OP_TIMEOUT};
	struct io_uring ring;
	char buffer[8] = "";
	int rc = io_uring_queue_init(4, &ring, IORING_SETUP_R_DISABLED);
	if (rc) {
		print_message("skipped: no io_uring here: %s\n", strerror(-rc));
		skip();
	}
	int fd = open(make_small_file(), O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(uring_restrict(ring.ring_fd), 0);
	assert_int_equal(ring_register(ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0), 0);
	for (size_t i = 0; i < ARRAY_LEN(refused); i++)
		assert_int_equal(run_op(&ring, fd, refused[i], buffer), -EACCES);
	assert_int_equal(run_op(&ring, fd, IORING_OP_READ, buffer), 6);
	assert_string_equal(buffer, "a file");
	assert_int_equal(register_probe(ring.ring_fd), -EACCES);
	struct iovec memory = {buffer, sizeof buffer};
	assert_int_equal(io_uring_register_buffers(&ring, &memory, 1), 0);
	assert_int_equal(io_uring_unregister_buffers(&ring), 0);
	io_uring_queue_exit(&ring);
	close(fd);
}

/* Calls f for every ring that this process has open; returns how many. */
static unsigned each_ring(void (*f)(int fd))
{
	unsigned n = 0;
	for (int fd = 0; fd < 256; fd++) {
		char link[64], name[64] = "";
		snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
		if (readlink(link, name, sizeof name - 1) > 0 && !strcmp(name, "anon_inode:[io_uring]")) {
			f(fd);
			n++;
		}
	}
	return n;
}

static void expect_restricted(int fd)
{
	assert_int_equal(register_probe(fd), -EACCES);
}

static void test_reader(void **state)
{
	(void)state;
	struct err e = {0};
	struct reader *r;
	const char *path = make_small_file();
	struct reader_file files[] = {{.path = path, .drive = 1}, {.path = path, .drive = 2}};
	const struct reader_options o = {.engine = READER_URING};
	if (reader_open(&r, files, 2, &o, &e)) {
		print_message("skipped: %s\n", e.text);
		skip();
	}
	char *dst = aligned_alloc(4096, FILE_BYTES);
	for (unsigned i = 0; i < 2; i++) {
		struct reader_request q = {.file = i, .bytes = FILE_BYTES, .dst = dst};
		struct reader_completion c;
		memset(dst, 1, FILE_BYTES);
		assert_int_equal(reader_submit(r, &q), 0);
		assert_int_equal(reader_reap(r, &c, 1, 1, -1), 1);
		assert_int_equal(c.code, 0);
		assert_string_equal(dst, "a file");
	}
	assert_int_equal(each_ring(expect_restricted), 2);
	reader_close(r);
	free(dst);
}

#else

static void test_ring(void **state)
{
	(void)state;
	skip();
}

#define test_reader test_ring

#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ring),
		cmocka_unit_test(test_reader),
	};
	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_drop);
}
