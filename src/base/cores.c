/* SPDX-License-Identifier: MIT */
#include "src/base/cores.h"

#include "src/base/num.h"

#include <errno.h>
#include <sched.h>
#include <stddef.h>

#define CORES_MAX ((size_t)1 << 20)

/* The kernel refuses a set that is smaller than its own (EINVAL): the size grows until it fits. */
int cores_allowed(void)
{
	for (size_t n = CPU_SETSIZE; n <= CORES_MAX; n *= 2) {
		const size_t bytes = CPU_ALLOC_SIZE(n);
		cpu_set_t *set = CPU_ALLOC(n);
		if (!set)
			return 1;
		const int failed = sched_getaffinity(0, bytes, set) ? errno : 0,
				  count = failed ? 1 : CPU_COUNT_S(bytes, set);
		CPU_FREE(set);
		if (failed != EINVAL)
			return MAX(count, 1);
	}
	return 1;
}
