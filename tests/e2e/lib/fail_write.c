/* SPDX-License-Identifier: MIT */
/*
 * fail_write NUMBER HOW PROGRAM ARGS...: runs a program and lets one system call that changes a
 * file or a folder fail. Its exit status is the program's, or 128 + signal; 77: tracing is not
 * possible here. HOW:
 *     ENOSPC, EIO, EINTR   call NUMBER fails with this error
 *     storm                EINTR, 20 calls in a row
 *     short                write NUMBER writes half of its bytes
 *     ENOLCK, ENOTSUP      lock NUMBER (flock) fails with this error
 *     KILL                 SIGKILL before call NUMBER
 *     torn                 half of the bytes of call NUMBER, SIGKILL before the next
 * Calls are counted from 1, over all threads, those alone that may fail so (table `calls`). A
 * NUMBER of the form k3 is the call that is the first of kind 3: kinds, one for each call and file,
 * are counted from 1 as they come. How many calls of one kind there are may depend on time. With
 * NUMBER 0 nothing fails, and standard error gets at the end "calls N" of all, and for each HOW up
 * to ENOTSUP "HOW N:" with the kinds that may fail so.
 *
 * A filter of seccomp stops the program at these calls only, and a tracer changes them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef __x86_64__
int main(void)
{
	return 77;
}
#else

#define STORM   20
/* Flags of an open that writes. */
#define CREATES (O_CREAT | O_TRUNC | (O_TMPFILE & ~O_DIRECTORY))

enum how {
	HOW_ENOSPC,
	HOW_EIO,
	HOW_EINTR,
	HOW_STORM,
	HOW_SHORT,
	HOW_ENOLCK,
	HOW_ENOTSUP,
	HOW_KILL,
	HOW_TORN,
	N_HOW
};
static const char *const how_names[N_HOW] = {
	"ENOSPC", "EIO", "EINTR", "storm", "short", "ENOLCK", "ENOTSUP", "KILL", "torn"};
static const int how_errors[N_HOW] = {[HOW_ENOSPC] = ENOSPC,
	[HOW_EIO] = EIO,
	[HOW_EINTR] = EINTR,
	[HOW_STORM] = EINTR,
	[HOW_ENOLCK] = ENOLCK,
	[HOW_ENOTSUP] = ENOTSUP};

#define FAILS       (1 << HOW_ENOSPC | 1 << HOW_EIO)
#define INTERRUPTED (1 << HOW_EINTR | 1 << HOW_STORM)
#define PARTLY      (1 << HOW_SHORT)
#define NO_LOCKS    (1 << HOW_ENOLCK | 1 << HOW_ENOTSUP)
#define ENDS        (1 << HOW_KILL | 1 << HOW_TORN)

/* What the manual pages of the calls name. */
static const struct {
	int number;
	unsigned how;
	int fd, path, flags; /* which argument it is, -1: none */
} calls[] = {
	{SYS_write, FAILS | INTERRUPTED | PARTLY, 0, -1, -1},
	{SYS_pwrite64, FAILS | INTERRUPTED | PARTLY, 0, -1, -1},
	{SYS_writev, FAILS | INTERRUPTED, 0, -1, -1},
	{SYS_pwritev, FAILS | INTERRUPTED, 0, -1, -1},
	{SYS_pwritev2, FAILS | INTERRUPTED, 0, -1, -1},
	{SYS_copy_file_range, FAILS, 2, -1, -1},
	{SYS_fsync, FAILS | INTERRUPTED, 0, -1, -1},
	{SYS_fdatasync, FAILS | INTERRUPTED, 0, -1, -1},
	{SYS_ftruncate, FAILS | INTERRUPTED, 0, -1, -1},
	{SYS_truncate, FAILS | INTERRUPTED, -1, 0, -1},
	{SYS_fallocate, FAILS | INTERRUPTED, 0, -1, -1},
	{SYS_open, FAILS | INTERRUPTED, -1, 0, 1},
	{SYS_openat, FAILS | INTERRUPTED, -1, 1, 2},
	{SYS_creat, FAILS | INTERRUPTED, -1, 0, -1},
	{SYS_mkdir, FAILS, -1, 0, -1},
	{SYS_mkdirat, FAILS, -1, 1, -1},
	{SYS_rename, FAILS, -1, 0, -1},
	{SYS_renameat, FAILS, -1, 1, -1},
	{SYS_renameat2, FAILS, -1, 1, -1},
	{SYS_link, FAILS, -1, 1, -1},
	{SYS_linkat, FAILS, -1, 3, -1},
	{SYS_symlink, FAILS, -1, 1, -1},
	{SYS_symlinkat, FAILS, -1, 2, -1},
	{SYS_unlink, 1 << HOW_EIO, -1, 0, -1},
	{SYS_unlinkat, 1 << HOW_EIO, -1, 1, -1},
	{SYS_rmdir, 1 << HOW_EIO, -1, 0, -1},
	{SYS_fchmod, FAILS | INTERRUPTED, 0, -1, -1},
	{SYS_utimensat, 1 << HOW_EIO, -1, 1, -1},
	{SYS_flock, INTERRUPTED | NO_LOCKS, 0, -1, -1},
};
enum { N_CALLS = sizeof calls / sizeof *calls };

static void stop_at_calls(void)
{
	struct sock_filter code[6 * N_CALLS + 2];
	unsigned short n = 0;
	const struct sock_filter load_number =
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	const struct sock_filter stop = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
	const struct sock_filter go_on = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	code[n++] = load_number;
	for (int i = 0; i < N_CALLS; i++) {
		const int flags = calls[i].flags;
		const struct sock_filter is_call =
			BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i].number, 0, flags < 0 ? 1 : 4);
		code[n++] = is_call;
		if (flags >= 0) {
			const unsigned at = (unsigned)(offsetof(struct seccomp_data, args) + 8 * (size_t)flags);
			const struct sock_filter load = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at);
			const struct sock_filter creates = BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CREATES, 1, 0);
			code[n++] = load;
			code[n++] = creates;
			code[n++] = go_on;
		}
		code[n++] = stop;
	}
	code[n++] = go_on;
	const struct sock_fprog program = {n, code};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		_exit(126);
}

static unsigned long long argument(const struct user_regs_struct *r, int i)
{
	const unsigned long long all[] = {r->rdi, r->rsi, r->rdx, r->r10, r->r8, r->r9};
	return all[i];
}

/* The call that a thread is about to make becomes another, or none. */
static void change_call(pid_t thread, struct user_regs_struct *r, enum how how)
{
	if (how == HOW_SHORT || how == HOW_TORN) {
		if ((r->orig_rax == SYS_write || r->orig_rax == SYS_pwrite64) && r->rdx > 1)
			r->rdx /= 2;
	} else {
		r->orig_rax = (unsigned long long)-1; /* no call: rax is the result */
		r->rax = (unsigned long long)-(long long)how_errors[how];
	}
	ptrace(PTRACE_SETREGS, thread, NULL, r);
}

/* The index of the call that a thread is about to make, or -1 if it changes no file: wake-ups of
 * threads and standard streams are left alone. `file` gets what it changes. */
static int call_of_file(
	pid_t thread, const struct user_regs_struct *r, char *file, size_t file_bytes)
{
	struct stat st;
	char link[64];
	ssize_t length = 0;
	int i = 0;
	while (i < N_CALLS && (unsigned long long)calls[i].number != r->orig_rax)
		i++;
	if (i == N_CALLS)
		return -1;
	if (calls[i].fd >= 0) {
		int fd = (int)argument(r, calls[i].fd);
		snprintf(link, sizeof link, "/proc/%d/fd/%d", (int)thread, fd);
		if (fd <= 2 || stat(link, &st) || (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)))
			return -1;
		length = readlink(link, file, file_bytes - 1);
	} else {
		struct iovec here = {file, file_bytes - 1},
					 there = {(void *)(uintptr_t)argument(r, calls[i].path), file_bytes - 1};
		/* not beyond the page: the next one may not be there */
		const size_t page = 4096 - (uintptr_t)there.iov_base % 4096;
		if (page < there.iov_len)
			there.iov_len = page;
		length = process_vm_readv(thread, &here, 1, &there, 1, 0);
	}
	file[length > 0 ? length : 0] = 0;
	return i;
}

/* Of each HOW: how many calls; and the kinds. */
#define KINDS       256
static long n_calls[N_HOW];
static struct {
	uint64_t kind[KINDS];
	unsigned how[KINDS]; /* as in `calls` */
	int n;
} seen;

/* Whether this is the first call of a kind; it is then kind seen.n. */
static int note_kind(int call, const char *file)
{
	uint64_t kind = 1469598103934665603ull ^ (unsigned)call;
	for (const char *p = file; *p; p++)
		if (*p < '0' || *p > '9') /* process numbers and inodes are another's every time */
			kind = (kind ^ (unsigned char)*p) * 1099511628211ull;
	for (int i = 0; i < seen.n; i++)
		if (seen.kind[i] == kind)
			return 0;
	if (seen.n == KINDS)
		return 0;
	seen.how[seen.n] = calls[call].how;
	seen.kind[seen.n++] = kind;
	return 1;
}

static void say_counts(void)
{
	fprintf(stderr, "calls %ld\n", n_calls[HOW_KILL]);
	for (int how = 0; how < HOW_KILL; how++) {
		fprintf(stderr, "%s %ld:", how_names[how], n_calls[how]);
		for (int i = 0; i < seen.n; i++)
			if (seen.how[i] & 1u << how)
				fprintf(stderr, " k%d", i + 1);
		fprintf(stderr, "\n");
	}
}

/* What is to fail. */
struct fault {
	enum how how;
	long number; /* 0: not known yet, or nothing */
	int kind;    /* 0: none */
};

/* A thread stands before a call that is traced. */
static void meet_call(pid_t child, pid_t thread, struct fault *f)
{
	struct user_regs_struct r;
	char file[512];
	int call =
		ptrace(PTRACE_GETREGS, thread, NULL, &r) ? -1 : call_of_file(thread, &r, file, sizeof file);
	if (call < 0)
		return;
	const unsigned possible = calls[call].how | ENDS;
	for (int i = 0; i < N_HOW; i++)
		n_calls[i] += possible >> i & 1;
	if (note_kind(call, file) && f->kind && seen.n == f->kind)
		f->number = n_calls[f->how];
	const long n = n_calls[f->how];
	if (!f->number || !(possible >> f->how & 1))
		return;
	if ((f->how == HOW_KILL && n == f->number) || (f->how == HOW_TORN && n == f->number + 1))
		kill(child, SIGKILL);
	else if (f->how != HOW_KILL &&
			 (n == f->number || (f->how == HOW_STORM && n > f->number && n < f->number + STORM)))
		change_call(thread, &r, f->how);
}

/*
 * The leak checker of a sanitizer build is a tracer too, and a process has one only: with this one
 * it would end a run that went well with an error.
 */
static void leave_out_leaks(void)
{
	const char *given = getenv("ASAN_OPTIONS");
	char options[1024];
	int n = snprintf(options, sizeof options, "%s:detect_leaks=0", given ? given : "");
	if (n < (int)sizeof options)
		setenv("ASAN_OPTIONS", options, 1);
}

int main(int argc, char **argv)
{
	struct fault f = {0};
	while (argc > 2 && f.how < N_HOW && strcmp(argv[2], how_names[f.how]) != 0)
		f.how++;
	if (argc < 4 || f.how == N_HOW)
		return 125;
	if (*argv[1] == 'k')
		f.kind = atoi(argv[1] + 1);
	else
		f.number = atol(argv[1]);
	const int fails = f.kind || f.number;
	pid_t child = fork();
	if (!child) {
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		raise(SIGSTOP);
		stop_at_calls();
		leave_out_leaks();
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
		if (status >> 8 == (SIGTRAP | PTRACE_EVENT_SECCOMP << 8))
			meet_call(child, thread, &f);
		else if (!(status >> 16) && WSTOPSIG(status) != SIGTRAP && WSTOPSIG(status) != SIGSTOP)
			deliver = WSTOPSIG(status);
		ptrace(PTRACE_CONT, thread, NULL, deliver);
	}
	if (!fails)
		say_counts();
	return result;
}
#endif
