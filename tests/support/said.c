/* SPDX-License-Identifier: MIT */
#include "tests/support/said.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static FILE *kept;
static int own_stderr;
static enum log_level level_before;

void said_begin(enum log_level level)
{
	kept = tmpfile();
	own_stderr = dup(STDERR_FILENO);
	if (!kept || own_stderr < 0 || dup2(fileno(kept), STDERR_FILENO) < 0)
		bug("stderr cannot be kept");
	level_before = log_level();
	log_set_level(level);
}

const char *said_end(void)
{
	static char text[8192];
	log_set_level(level_before);
	dup2(own_stderr, STDERR_FILENO);
	close(own_stderr);
	rewind(kept);
	text[fread(text, 1, sizeof text - 1, kept)] = 0;
	fclose(kept);
	return text;
}

int said_count(const char *text, const char *part)
{
	int n = 0;
	for (; (text = strstr(text, part)); text += strlen(part))
		n++;
	return n;
}
