/* SPDX-License-Identifier: MIT */
/* How much memory the process may still use. Any thread may call these. */
#ifndef GLM_BASE_MEMORY_LEFT_H
#define GLM_BASE_MEMORY_LEFT_H

#include <stddef.h>

/* Bytes this process may still use: the least of MemAvailable and what its cgroup limits leave
 * (cgroup v1 and v2); 0 when unknown. */
size_t memory_left(void);

/* The least that limits of control groups leave. list: /proc/self/cgroup, or a file of the same
 * layout; mount: /sys/fs/cgroup, or a folder of the same layout. SIZE_MAX: nothing is limited. */
size_t memory_left_by_groups(const char *list, const char *mount);

#endif
