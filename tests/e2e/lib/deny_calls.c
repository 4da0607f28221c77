/* SPDX-License-Identifier: MIT */
/*
 * deny_calls NAME... -- PROGRAM ARGUMENTS: runs the program where the kernel seems to lack these
 * system calls: landlock, seccomp, io_uring. Exit status 77: no filters can be set here.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
	const char *name;
	unsigned call;
} calls[] = {{"landlock", SYS_landlock_create_ruleset}, {"seccomp", SYS_seccomp},
	{"io_uring", SYS_io_uring_setup}};

int main(int argc, char **argv)
{
	struct sock_filter code[32] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
	unsigned short n = 1;
	int at = 1;
	for (; at < argc && strcmp(argv[at], "--") != 0; at++)
		for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
			if (!strcmp(argv[at], calls[i].name)) {
				code[n++] =
					(struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i].call, 0, 1);
				code[n++] =
					(struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS);
			}
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	const struct sock_fprog program = {.len = n, .filter = code};
	if (at + 1 >= argc)
		return 2;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		return 77;
	execv(argv[at + 1], argv + at + 1);
	perror(argv[at + 1]);
	return 127;
}
