/* SPDX-License-Identifier: MIT */
/* What a confined process can still do. Each case confines a child of its own. */
#include "src/base/host/numa.h"
#include "src/base/host/sandbox.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "tests/support/temp_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

/* Runs the case in a child; its result is 0, or the number of the expectation that was not met. */
static int in_child(int (*run)(void))
{
	pid_t pid = fork();
	if (!pid)
		_exit(run());
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

#define NO_LANDLOCK 200
#define EXPECT(condition)                                                                          \
	do {                                                                                           \
		if (!(condition))                                                                          \
			return __LINE__ % 199 + 1;                                                             \
	} while (0)

static bool can_open(const char *path, int flags)
{
	int fd = open(path, flags, 0600);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

static bool is_denied(const char *path, int flags)
{
	return !can_open(path, flags) && errno == EACCES;
}

static int files_case(void)
{
	char *readable = mem_strdup(temp_dir_path("readable")),
		 *writable = mem_strdup(temp_dir_path("writable")),
		 *other = mem_strdup(temp_dir_path("other")), *listed = mem_strdup(temp_dir_path("listed"));
	int ends[2]; /* a pipe by a name, as <(COMMAND) of a shell gives it */
	EXPECT(!pipe(ends));
	char *piped = mem_printf("/proc/self/fd/%d", ends[0]);
	const struct sandbox_path paths[] = {{piped, SANDBOX_READ}, {readable, SANDBOX_READ},
		{writable, SANDBOX_WRITE}, {"/no/such/place", SANDBOX_WRITE}, {listed, SANDBOX_LIST},
		{mem_printf("%s/g", listed), SANDBOX_READ}};
	int rc = sandbox_files(paths, ARRAY_LEN(paths), -1);
	if (rc == -ENOSYS || rc == -EOPNOTSUPP)
		return NO_LANDLOCK;
	EXPECT(rc > 0);
	EXPECT(can_open(piped, O_RDONLY));
	EXPECT(can_open(mem_printf("%s/f", readable), O_RDONLY));
	EXPECT(is_denied(mem_printf("%s/f", readable), O_WRONLY));
	EXPECT(is_denied(mem_printf("%s/new", readable), O_WRONLY | O_CREAT));
	EXPECT(can_open(mem_printf("%s/f", writable), O_RDWR));
	EXPECT(can_open(mem_printf("%s/new", writable), O_RDWR | O_CREAT));
	EXPECT(!rename(mem_printf("%s/new", writable), mem_printf("%s/newer", writable)));
	EXPECT(!unlink(mem_printf("%s/newer", writable)));
	EXPECT(is_denied(mem_printf("%s/f", other), O_RDONLY));
	EXPECT(is_denied("/etc/passwd", O_RDONLY));
	EXPECT(can_open(listed, O_RDONLY | O_DIRECTORY));
	EXPECT(is_denied(other, O_RDONLY | O_DIRECTORY));
	EXPECT(is_denied(mem_printf("%s/f", listed), O_RDONLY));
	EXPECT(can_open(mem_printf("%s/g", listed), O_RDONLY));
	EXPECT(is_denied(mem_printf("%s/g", listed), O_RDWR));
	return 0;
}

static void test_files(void **state)
{
	(void)state;
	static const char *const folders[] = {"readable", "writable", "other", "listed"};
	for (size_t i = 0; i < ARRAY_LEN(folders); i++) {
		char *file = mem_printf("%s/f", temp_dir_path(folders[i]));
		assert_int_equal(mkdir(temp_dir_path(folders[i]), 0700), 0);
		assert_true(can_open(file, O_WRONLY | O_CREAT));
		file[strlen(file) - 1] = 'g';
		assert_true(can_open(file, O_WRONLY | O_CREAT));
		free(file);
	}
	int rc = in_child(files_case);
	if (rc == NO_LANDLOCK)
		skip();
	assert_int_equal(rc, 0);
}

/* 0, or the errno of connecting to, or binding, this port of 127.0.0.1. */
static int tcp_error(int (*call)(int, const struct sockaddr *, socklen_t), unsigned port)
{
	struct sockaddr_in a = {
		.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(0x7f000001)}};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	int error = fd < 0 || call(fd, (struct sockaddr *)&a, sizeof a) ? errno : 0;
	close(fd);
	return error;
}

static unsigned listening; /* at this port */

static int net_case(void)
{
	int rc = sandbox_files(NULL, 0, 0);
	if (rc < 4)
		return NO_LANDLOCK;
	EXPECT(tcp_error(connect, listening) == EACCES);
	EXPECT(tcp_error(bind, 0) == 0);
	EXPECT(tcp_error(bind, 2) == EACCES);
	EXPECT(sandbox_files(NULL, 0, -1) == rc);
	EXPECT(tcp_error(bind, 0) == EACCES);
	return 0;
}

/* No system call filter has a part in this: a connection is refused by whatever way it is asked
 * for. */
static void test_connections(void **state)
{
	(void)state;
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(0x7f000001)}};
	socklen_t n = sizeof a;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(listen(fd, 8), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
	listening = ntohs(a.sin_port);
	assert_int_equal(tcp_error(connect, listening), 0);
	int rc = in_child(net_case);
	close(fd);
	if (rc == NO_LANDLOCK)
		skip();
	assert_int_equal(rc, 0);
}

static pthread_barrier_t confined;

/* A thread that was there before has the same filter. */
static void *old_thread(void *arg)
{
	pthread_barrier_wait(&confined);
	errno = 0;
	*(int *)arg = socket(AF_INET, SOCK_STREAM, 0) < 0 ? errno : 0;
	return NULL;
}

static void *new_thread(void *arg)
{
	*(int *)arg = 42;
	return NULL;
}

static int calls_case(void)
{
	pthread_t thread;
	int seen = 0, ran = 0, pair[2];
	char byte = 0;
	EXPECT(!pipe(pair));
	EXPECT(!pthread_barrier_init(&confined, NULL, 2));
	EXPECT(!pthread_create(&thread, NULL, old_thread, &seen));
	static _Alignas(4096) unsigned char memory[4096];
	const int placed = numa_prefer(memory, 4096, 0);
	EXPECT(!sandbox_calls());
	pthread_barrier_wait(&confined);
	EXPECT(!pthread_join(thread, NULL));
	EXPECT(seen == EPERM);
	EXPECT(socket(AF_UNIX, SOCK_STREAM, 0) < 0 && errno == EPERM);
	char *const argv[] = {(char[]){"true"}, NULL};
	EXPECT(execv("/bin/true", argv) < 0 && errno == EPERM);
#ifndef __SANITIZE_ADDRESS__
	EXPECT(fork() < 0 && errno == EPERM);
	EXPECT(ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0 && errno == EPERM);
#endif
	/* what is needed goes on */
	EXPECT(!pthread_create(&thread, NULL, new_thread, &ran) && !pthread_join(thread, NULL));
	EXPECT(ran == 42);
	EXPECT(write(pair[1], "x", 1) == 1 && read(pair[0], &byte, 1) == 1 && byte == 'x');
	EXPECT(can_open("/dev/null", O_RDWR));
	EXPECT(numa_prefer(memory, 4096, 0) == placed); /* while a second tier is being pinned */
	return 0;
}

static void test_calls(void **state)
{
	(void)state;
	assert_int_equal(in_child(calls_case), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_files),
		cmocka_unit_test(test_connections),
		cmocka_unit_test(test_calls),
	};
	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_drop);
}
