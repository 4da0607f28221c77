/* SPDX-License-Identifier: MIT */
#include "src/base/host/memory_left.h"

#include "src/base/num.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* The number in a one-number file ("max" or unreadable: SIZE_MAX). */
static size_t read_limit(const char *path)
{
	FILE *f = fopen(path, "re");
	if (!f)
		return SIZE_MAX;
	unsigned long long v = 0;
	int got = fscanf(f, "%llu", &v);
	fclose(f);
	return got == 1 ? (size_t)v : SIZE_MAX;
}

/* What one control group leaves: its limit less its use, page cache that can be dropped counted as
 * free. */
static size_t cgroup_left(const char *dir, const char *limit_name, const char *use_name)
{
	char path[1100];
	snprintf(path, sizeof path, "%s/%s", dir, limit_name);
	size_t limit = read_limit(path);
	snprintf(path, sizeof path, "%s/%s", dir, use_name);
	size_t use = read_limit(path);
	if (limit == SIZE_MAX || use == SIZE_MAX || limit > (size_t)1 << 60)
		return SIZE_MAX;
	snprintf(path, sizeof path, "%s/memory.stat", dir);
	FILE *f = fopen(path, "re");
	size_t file = 0;
	if (f) {
		char key[128];
		unsigned long long v;
		while (fscanf(f, "%127s %llu", key, &v) == 2)
			if (!strcmp(key, "inactive_file") || !strcmp(key, "total_inactive_file"))
				file = (size_t)v;
		fclose(f);
	}
	use = use > file ? use - file : 0;
	return limit > use ? limit - use : 0;
}

/* The least that the group `path` below `root` and its ancestors leave: the limit of each binds. In
 * a container `path` may be the host's, which does not exist here; `root` then is the own group. */
static size_t cgroup_path_left(
	const char *root, const char *path, const char *limit_name, const char *use_name)
{
	char dir[1024];
	snprintf(dir, sizeof dir, "%.500s%.500s", root, path);
	for (size_t best = SIZE_MAX;;) {
		best = MIN(best, cgroup_left(dir, limit_name, use_name));
		char *slash = strlen(dir) > strlen(root) ? strrchr(dir, '/') : NULL;
		if (!slash)
			return best;
		*slash = 0;
	}
}

size_t memory_left_by_groups(const char *list, const char *mount)
{
	size_t best = SIZE_MAX, left;
	char line[512], v1[600];
	FILE *f = fopen(list, "re");
	if (!f)
		return best;
	snprintf(v1, sizeof v1, "%.500s/memory", mount);
	while (fgets(line, sizeof line, f)) {
		line[strcspn(line, "\n")] = 0;
		const char *path = strstr(line, ":memory:");
		if (!strncmp(line, "0::", 3))
			left = cgroup_path_left(mount, line + 3, "memory.max", "memory.current");
		else if (path)
			left = cgroup_path_left(
				v1, path + strlen(":memory:"), "memory.limit_in_bytes", "memory.usage_in_bytes");
		else
			continue;
		best = MIN(best, left);
	}
	fclose(f);
	return best;
}

size_t memory_left(void)
{
	size_t best = SIZE_MAX;
	char line[512];
	FILE *f = fopen("/proc/meminfo", "re");
	if (f) {
		unsigned long long kb;
		while (fgets(line, sizeof line, f))
			if (sscanf(line, "MemAvailable: %llu kB", &kb) == 1)
				best = (size_t)kb * 1024;
		fclose(f);
	}
	best = MIN(best, memory_left_by_groups("/proc/self/cgroup", "/sys/fs/cgroup"));
	return best == SIZE_MAX ? 0 : best;
}
