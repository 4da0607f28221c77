/* SPDX-License-Identifier: MIT */
#include "tests/support/check_threads.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* False: the thread does not compare, or has ended. *sleeps: how often it has gone to sleep; -1: it
 * is awake. */
static bool read_status(const char *task, long *sleeps)
{
	char path[300], line[200];
	bool compares = false, is_awake = false;
	snprintf(path, sizeof path, "/proc/self/task/%s/status", task);
	FILE *f = fopen(path, "r");
	if (!f)
		return false;
	while (fgets(line, sizeof line, f)) {
		compares |= !strcmp(line, "Name:\tcheck-values\n");
		is_awake |= !strncmp(line, "State:\t", 7) && line[7] != 'S';
		sscanf(line, "voluntary_ctxt_switches: %ld", sleeps);
	}
	fclose(f);
	if (is_awake)
		*sleeps = -1;
	return compares;
}

int check_threads_wait_for(int n)
{
	int found = check_threads_of_process(NULL);
	for (int tries = 0; tries < 6000 && found != n; tries++) {
		usleep(10000);
		found = check_threads_of_process(NULL);
	}
	return found;
}

int check_threads_of_process(long *sleeps)
{
	int n = 0;
	DIR *d = opendir("/proc/self/task");
	for (struct dirent *x; d && n < CHECK_THREADS_MAX && (x = readdir(d));) {
		long times = 0;
		if (!read_status(x->d_name, &times))
			continue;
		if (sleeps)
			sleeps[n] = times;
		n++;
	}
	if (d)
		closedir(d);
	return n;
}

bool check_threads_all_sleep(int n, long *sleeps)
{
	long before[CHECK_THREADS_MAX];
	int n_before = check_threads_of_process(sleeps);
	for (int tries = 0; tries < 3000; tries++) {
		memcpy(before, sleeps, sizeof before);
		usleep(20000);
		const int now = check_threads_of_process(sleeps);
		bool all =
			now == n && now == n_before && !memcmp(before, sleeps, (size_t)n * sizeof *before);
		for (int i = 0; all && i < n; i++)
			all = sleeps[i] >= 0;
		if (all)
			return true;
		n_before = now;
	}
	return false;
}
