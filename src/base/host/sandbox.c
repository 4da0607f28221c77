/* SPDX-License-Identifier: MIT */
/* System calls without wrappers, and a filter of few instructions: no library is needed. The list
 * denies rather than allows: a graphics driver calls what it likes, and says nowhere what. */
#include "src/base/host/sandbox.h"

#include "src/base/num.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- files ---- */

/* Rights by landlock's version; older headers lack the newer names. */
#define RIGHTS_1  ((1ull << 13) - 1)
#define REFER     (1ull << 13) /* from version 2 on: rename between folders */
#define TRUNCATE  (1ull << 14) /* from version 3 on */
#define READ_ONLY (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define OF_FILES  (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | TRUNCATE)
#define READ_WRITE                                                                                 \
	(READ_ONLY | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_FILE |                  \
		LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |                              \
		LANDLOCK_ACCESS_FS_MAKE_DIR | REFER | TRUNCATE)

/* Of TCP, from version 4 on. */
#define BIND     1ull
#define CONNECT  2ull
#define NET_PORT 2 /* the type of a rule */

/* As the kernel's header has it from version 4 on. */
struct handled_access {
	uint64_t fs, net;
};
struct port_rule {
	uint64_t allowed, port;
};

static int add_rule(int rules, const struct sandbox_path *p, uint64_t handled)
{
	struct stat st;
	int fd = open(p->path, O_PATH | O_CLOEXEC), rc = 0;
	if (fd < 0)
		return errno == ENOENT || errno == ENOTDIR || errno == EACCES ? 0 : -errno;
	static const uint64_t of[] = {[SANDBOX_READ] = READ_ONLY,
		[SANDBOX_WRITE] = READ_WRITE,
		[SANDBOX_LIST] = LANDLOCK_ACCESS_FS_READ_DIR};
	uint64_t rights = handled & of[p->right];
	if (!fstat(fd, &st) && !S_ISDIR(st.st_mode))
		rights &= OF_FILES;
	const struct landlock_path_beneath_attr a = {.allowed_access = rights, .parent_fd = fd};
	if (syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &a, 0))
		rc = errno == EBADFD ? 0 : -errno; /* a pipe without a name: no rule, and none needed */
	close(fd);
	return rc;
}

int sandbox_files(const struct sandbox_path *paths, size_t n, int port)
{
	long version = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
	if (version < 0)
		return -errno;
	const bool net = version >= 4;
	const struct handled_access a = {
		.fs = RIGHTS_1 | (version >= 2 ? REFER : 0) | (version >= 3 ? TRUNCATE : 0),
		.net = BIND | CONNECT};
	int rules = (int)syscall(SYS_landlock_create_ruleset, &a, net ? sizeof a : sizeof a.fs, 0);
	if (rules < 0)
		return -errno;
	int rc = 0;
	for (size_t i = 0; i < n && !rc; i++)
		rc = add_rule(rules, &paths[i], a.fs);
	const struct port_rule own = {BIND, (uint64_t)port};
	if (!rc && net && port >= 0 && syscall(SYS_landlock_add_rule, rules, NET_PORT, &own, 0))
		rc = -errno;
	if (!rc &&
		(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_landlock_restrict_self, rules, 0)))
		rc = -errno;
	close(rules);
	return rc ? rc : (int)version;
}

/* ---- calls ---- */

#if defined __x86_64__
#define OWN_ARCH AUDIT_ARCH_X86_64
#elif defined __aarch64__
#define OWN_ARCH AUDIT_ARCH_AARCH64
#endif

#ifdef OWN_ARCH

static const int denied[] = {
	/* other programs and processes */
	SYS_execve,
	SYS_execveat,
#ifdef SYS_fork
	SYS_fork,
	SYS_vfork,
#endif
#ifndef __SANITIZE_ADDRESS__ /* whose search for leaks traces the process */
	SYS_ptrace,
#endif
	SYS_process_vm_readv,
	SYS_process_vm_writev,
	SYS_pidfd_open,
	SYS_pidfd_getfd,
	/* new connections */
	SYS_socket,
	SYS_socketpair,
	SYS_connect,
	SYS_bind,
	SYS_listen,
	/* what the kernel could be attacked with, and nothing here needs */
	SYS_io_uring_setup,
	SYS_bpf,
	SYS_perf_event_open,
	SYS_userfaultfd,
	SYS_add_key,
	SYS_request_key,
	SYS_keyctl,
	SYS_open_by_handle_at,
	SYS_setns,
	SYS_unshare,
	SYS_mount,
	SYS_umount2,
	SYS_pivot_root,
	SYS_chroot,
	SYS_personality,
	SYS_acct,
	SYS_quotactl,
	SYS_swapon,
	SYS_swapoff,
	SYS_reboot,
	SYS_init_module,
	SYS_finit_module,
	SYS_delete_module,
	SYS_kexec_load,
};

int sandbox_calls(void)
{
	struct sock_filter code[2 * ARRAY_LEN(denied) + 16];
	unsigned short n = 0;
	const struct sock_filter refuse =
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (EPERM & SECCOMP_RET_DATA));
	const struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
#define ADD(...)            (code[n++] = (struct sock_filter)__VA_ARGS__)
#define UNLESS_EQUAL(value) ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1))
	ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)));
	ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OWN_ARCH, 1, 0));
	code[n++] = refuse; /* 32-bit calls have other numbers */
	ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)));
#ifdef __x86_64__
	ADD(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1)); /* those of x32 too */
	code[n++] = refuse;
#endif
	for (size_t i = 0; i < ARRAY_LEN(denied); i++) {
		UNLESS_EQUAL((uint32_t)denied[i]);
		code[n++] = refuse;
	}
#ifndef __SANITIZE_ADDRESS__
	/* threads, but no processes; the flags of clone3 cannot be seen, and libc then uses clone */
	UNLESS_EQUAL(SYS_clone3);
	ADD(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (ENOSYS & SECCOMP_RET_DATA)));
	ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3));
	ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])));
	ADD(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0));
	code[n++] = refuse;
#endif
	code[n++] = allow;
#undef UNLESS_EQUAL
#undef ADD
	const struct sock_fprog program = {.len = n, .filter = code};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return -errno;
	long rc = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
	return rc < 0 ? -errno : rc > 0 ? -EBUSY : 0; /* > 0: a thread that has other filters */
}

#else

int sandbox_calls(void)
{
	return -ENOSYS;
}

#endif
