/* SPDX-License-Identifier: MIT */
/*
 * Confines the process, so that a fault in a parser of foreign bytes reaches less. Two halves, each
 * for the rest of the process's life:
 *
 *   1. sandbox_files (landlock): files can be opened only below the given paths; from Linux 6.7 on
 *      TCP makes no connections and listens at one port. It binds the calling thread and the
 *      threads that it starts later: call it before there are others.
 *   2. sandbox_calls (seccomp): no programs are started, no sockets made or connected (those that
 *      listen go on accepting), no other process is traced. It binds all threads: call it when
 *      everything is open.
 *
 * What is open stays usable: file descriptors, rings of io_uring, the card's device files. seccomp
 * does not see what is asked of a ring: the reader's rings are restricted to reading
 * (stream/reader/uring_restrict.h), and no new ones are made.
 */
#ifndef GLM_BASE_SANDBOX_H
#define GLM_BASE_SANDBOX_H

#include <stdbool.h>
#include <stddef.h>

/* What may be done below a folder, or with a file. */
enum sandbox_right {
	SANDBOX_READ,
	SANDBOX_WRITE, /* making and removing files too */
	SANDBOX_LIST,  /* names, no contents */
};

struct sandbox_path {
	const char *path; /* one that does not exist, or a pipe without a name, is left out */
	enum sandbox_right right;
};

/* port: that TCP may be bound to, 0 for any that the system chooses, -1 for none. Returns
 * landlock's version (> 0), or a negative errno: this kernel does not have it, or refuses; nothing
 * is confined then. */
int sandbox_files(const struct sandbox_path *paths, size_t n, int port);

/* 0, or a negative errno: nothing is confined then. Denied calls fail with EPERM. */
int sandbox_calls(void);

#endif
