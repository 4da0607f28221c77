/* SPDX-License-Identifier: MIT */
/* A mapped file that becomes shorter, is written into or is replaced; a SIGBUS that has nothing to
 * do with it. */
#include "src/format/file_map.h"

#include "tests/support/temp_dir.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#define FILE_BYTES (1 << 20)

static const char *make_file(void)
{
	static const uint8_t ones[FILE_BYTES] = {[0 ... FILE_BYTES - 1] = 1};
	const char *path = temp_dir_path("mapped");
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	assert_int_equal(fwrite(ones, 1, sizeof ones, f), sizeof ones);
	assert_int_equal(fclose(f), 0);
	return path;
}

/* Runs f in a child in which SIGBUS has its default action before the first file_map_open. */
static int status_of_child(void (*f)(const char *path), const char *path)
{
	int status = 0;
	pid_t child = fork();
	assert_true(child >= 0);
	if (!child) {
		signal(SIGBUS, SIG_DFL);
		f(path);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return status;
}

static void shrink_and_read(const char *path)
{
	struct file_map m = {0};
	struct err e = {0};
	if (file_map_open(&m, path, &e) || file_map_check(&m, path, &e) || m.data[FILE_BYTES - 1] != 1)
		_exit(1);
	if (truncate(path, FILE_BYTES / 2) || m.data[FILE_BYTES - 1] != 0 || m.data[0] != 1)
		_exit(2);
	_exit(file_map_check(&m, path, &e) == ERR_RUN ? 0 : 3);
}

static void send_to_itself(const char *path)
{
	struct file_map m = {0};
	struct err e = {0};
	if (file_map_open(&m, path, &e))
		_exit(1);
	kill(getpid(), SIGBUS);
}

static void send_ignored(const char *path)
{
	signal(SIGBUS, SIG_IGN);
	send_to_itself(path);
}

static void test_lost_bytes(void **state)
{
	(void)state;
	int status = status_of_child(shrink_and_read, make_file());
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* What kill sends does what it did before. */
static void test_sent_signal(void **state)
{
	(void)state;
	int status = status_of_child(send_to_itself, make_file());
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGBUS);
	status = status_of_child(send_ignored, make_file());
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void write_into(const char *path, off_t at, const char *text)
{
	int fd = open(path, O_WRONLY);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, text, strlen(text), at), (ssize_t)strlen(text));
	assert_int_equal(close(fd), 0);
}

/* Makes the file look as if it was written long ago: times of modification may be as coarse as the
 * clock's tick. */
static void make_old(const char *path)
{
	const struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
	assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* The error of a check soon after, when the system is asked again. */
static int check_soon(const struct file_map *m, const char *path, struct err *e)
{
	usleep(20000);
	return file_map_check(m, path, e);
}

static void test_changed(void **state)
{
	(void)state;
	static const off_t at[] = {1000, FILE_BYTES}; /* in place, behind the end */
	for (size_t i = 0; i < 2; i++) {
		struct file_map m = {0};
		struct err e = {0};
		const char *path = make_file();
		make_old(path);
		assert_int_equal(file_map_open(&m, path, &e), 0);
		assert_int_equal(check_soon(&m, path, &e), 0);
		write_into(path, at[i], "two");
		assert_int_equal(check_soon(&m, path, &e), ERR_RUN);
		assert_non_null(strstr(e.text, "mapped: was changed while in use"));
		make_old(path);
		assert_int_equal(check_soon(&m, path, &e), ERR_RUN); /* what was seen stays */
		file_map_close(&m);
		assert_int_equal(file_map_open(&m, path, &e), 0); /* the watch is used again */
		assert_int_equal(check_soon(&m, path, &e), 0);
		file_map_close(&m);
	}
}

/* A change right behind a check is seen by the next one, if it looks at the file first. */
static void test_changed_just_now(void **state)
{
	(void)state;
	const char *path = make_file();
	struct file_map m = {0};
	struct err e = {0};
	make_old(path);
	assert_int_equal(file_map_open(&m, path, &e), 0);
	for (int i = 0; i < 50; i++) {
		file_map_look(&m);
		assert_int_equal(file_map_check(&m, path, &e), 0);
	}
	write_into(path, 0, "two");
	file_map_look(&m);
	assert_int_equal(file_map_check(&m, path, &e), ERR_RUN);
	file_map_close(&m);
}

/* Another file under its name, also when that is written into, changes nothing of the open one. */
static void test_replaced(void **state)
{
	(void)state;
	struct file_map m = {0};
	struct err e = {0};
	char other[512];
	const char *path = make_file();
	assert_int_equal(file_map_open(&m, path, &e), 0);
	assert_int_equal(file_map_check_path(&m, path, &e), 0);
	snprintf(other, sizeof other, "%s.new", path);
	assert_int_equal(rename(path, other), 0);
	make_file();
	write_into(path, 0, "two");
	assert_int_equal(check_soon(&m, path, &e), 0);
	assert_int_equal(m.data[0], 1);
	assert_int_equal(file_map_check_path(&m, path, &e), ERR_RUN);
	assert_non_null(strstr(e.text, "mapped: was replaced"));
	file_map_close(&m);
}

/* How many pages of the mapping are in memory. */
static size_t pages_in_memory(const struct file_map *m)
{
	static unsigned char in[FILE_BYTES / 4096];
	size_t n = 0;
	assert_int_equal(mincore((void *)(uintptr_t)m->data, FILE_BYTES, in), 0);
	for (size_t i = 0; i < sizeof in; i++)
		n += in[i] & 1;
	return n;
}

/* Bytes that were looked at leave memory, those around them stay, and all can be looked at again.
 */
static void test_drop_cached(void **state)
{
	(void)state;
	struct file_map m = {0};
	struct err e = {0};
	const char *path = make_file();
	int fd = open(path, O_RDONLY);
	assert_int_equal(fsync(fd), 0); /* what is not on the drive yet stays */
	close(fd);
	assert_int_equal(file_map_open(&m, path, &e), 0);
	unsigned sum = 0;
	for (size_t i = 0; i < FILE_BYTES; i++)
		sum += m.data[i];
	assert_int_equal(sum, FILE_BYTES);
	assert_int_equal(pages_in_memory(&m), FILE_BYTES / 4096);
	file_map_drop_cached(&m, 8192 + 5, 40960);
	const size_t left = pages_in_memory(&m);
	struct statfs fs;
	assert_int_equal(statfs(path, &fs), 0);
	if (fs.f_type == TMPFS_MAGIC)
		print_message("the file is in memory alone\n");
	else
		assert_true(left <= FILE_BYTES / 4096 - 11);
	for (size_t i = 0; i < FILE_BYTES; i++)
		sum -= m.data[i];
	assert_int_equal(sum, 0);
	file_map_close(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lost_bytes),
		cmocka_unit_test(test_sent_signal),
		cmocka_unit_test(test_changed),
		cmocka_unit_test(test_changed_just_now),
		cmocka_unit_test(test_replaced),
		cmocka_unit_test(test_drop_cached),
	};
	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_drop);
}
