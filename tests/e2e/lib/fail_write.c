/* SPDX-License-Identifier: MIT */
/*
 * fail_write NUMBER HOW PROGRAM ARGS...: runs a program and lets its writing system call NUMBER
 * to a file (counted from 1, over all threads) fail: HOW is ENOSPC, EIO, EINTR, storm (EINTR,
 * 20 calls in a row), or short (half of the bytes are written); or KILL: the program gets SIGKILL
 * before the call; or torn: half of the bytes are written, and SIGKILL comes before the next call.
 * NUMBER 0: nothing fails. Says "calls N" on standard error at the end; its exit status is the
 * program's, or 128 + signal.
 *
 * A filter of seccomp stops the program at these calls only, and a tracer changes them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef __x86_64__
int main(void)
{
	return 77;
}
#else

#define STORM 20

static const int writing[] = {SYS_write, SYS_pwrite64, SYS_writev, SYS_pwritev, SYS_fsync,
	SYS_fdatasync, SYS_ftruncate, SYS_fallocate, SYS_rename, SYS_renameat, SYS_renameat2,
	SYS_linkat};
enum { N_WRITING = sizeof writing / sizeof *writing };

static void stop_at_writes(void)
{
	struct sock_filter code[2 * N_WRITING + 2];
	unsigned short n = 0;
	code[n++] =
		(struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (int i = 0; i < N_WRITING; i++) {
		code[n++] =
			(struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)writing[i], 0, 1);
		code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
	}
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	const struct sock_fprog program = {n, code};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		_exit(126);
}

/* The call that a thread is about to make becomes another, or none. */
static void change_call(pid_t thread, const char *how)
{
	struct user_regs_struct r;
	if (ptrace(PTRACE_GETREGS, thread, NULL, &r))
		return;
	int is_write = r.orig_rax == SYS_write || r.orig_rax == SYS_pwrite64;
	if (!strcmp(how, "short") || !strcmp(how, "torn")) {
		if (is_write && r.rdx > 1)
			r.rdx /= 2;
	} else {
		int error = !strcmp(how, "EIO") ? EIO : !strcmp(how, "ENOSPC") ? ENOSPC : EINTR;
		r.orig_rax = (unsigned long long)-1; /* no call: rax is the result */
		r.rax = (unsigned long long)-(long long)error;
	}
	ptrace(PTRACE_SETREGS, thread, NULL, &r);
}

/* Does the call change a regular file or a folder? Wake-ups of threads and standard streams are
 * left alone. */
static int is_of_file(pid_t thread)
{
	struct user_regs_struct r;
	struct stat st;
	char path[64];
	if (ptrace(PTRACE_GETREGS, thread, NULL, &r))
		return 0;
	if (r.orig_rax == SYS_rename || r.orig_rax == SYS_renameat || r.orig_rax == SYS_renameat2 ||
		r.orig_rax == SYS_linkat)
		return 1;
	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)thread, (int)r.rdi);
	return r.rdi > 2 && !stat(path, &st) && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode));
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 125;
	long failing = atol(argv[1]), n = 0;
	pid_t child = fork();
	if (!child) {
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		raise(SIGSTOP);
		stop_at_writes();
		execv(argv[3], argv + 3);
		_exit(127);
	}
	int status, result = 0;
	if (child < 0 || waitpid(child, &status, 0) != child)
		return 125;
	if (ptrace(PTRACE_SETOPTIONS, child, NULL,
			PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL | PTRACE_O_TRACEEXEC))
		return 77; /* tracing is not allowed here */
	ptrace(PTRACE_CONT, child, NULL, NULL);
	for (pid_t thread; (thread = waitpid(-1, &status, __WALL)) > 0;) {
		long deliver = 0;
		if (WIFEXITED(status) || WIFSIGNALED(status)) {
			if (thread == child)
				result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
			continue;
		}
		if (status >> 8 == (SIGTRAP | PTRACE_EVENT_SECCOMP << 8)) {
			int is_counted = is_of_file(thread);
			n += is_counted;
			int kills =
				is_counted && ((n == failing && !strcmp(argv[2], "KILL")) ||
								  (failing && n == failing + 1 && !strcmp(argv[2], "torn")));
			if (kills)
				kill(child, SIGKILL);
			else if (is_counted &&
					 (n == failing || (failing && n > failing && n < failing + STORM &&
										  !strcmp(argv[2], "storm"))))
				change_call(thread, argv[2]);
		} else if (!(status >> 16) && WSTOPSIG(status) != SIGTRAP && WSTOPSIG(status) != SIGSTOP) {
			deliver = WSTOPSIG(status);
		}
		ptrace(PTRACE_CONT, thread, NULL, deliver);
	}
	fprintf(stderr, "calls %ld\n", n);
	return result;
}
#endif
