/* SPDX-License-Identifier: MIT */
#include "tests/support/temp_dir.h"

#include <stdio.h>
#include <stdlib.h>

static char dir[256];

int temp_dir_make(void **state)
{
	(void)state;
	const char *base = getenv("TMPDIR");
	snprintf(dir, sizeof dir, "%s/glmstream_test.XXXXXX", base && *base ? base : "/tmp");
	return mkdtemp(dir) ? 0 : -1;
}

int temp_dir_drop(void **state)
{
	(void)state;
	char cmd[sizeof dir + 16];
	snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
	return system(cmd);
}

const char *temp_dir(void)
{
	return dir;
}

char *temp_dir_path(const char *name)
{
	static char path[4][sizeof dir + 128];
	static int turn;
	turn = (turn + 1) % 4;
	snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
	return path[turn];
}
