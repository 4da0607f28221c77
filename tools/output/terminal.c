/* SPDX-License-Identifier: MIT */
#include "tools/output/terminal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

bool terminal_has_escapes(int fd)
{
	const char *term = getenv("TERM");
	return isatty(fd) && term && *term && strcmp(term, "dumb") != 0;
}

int terminal_columns(int fd)
{
	struct winsize w;
	return !ioctl(fd, TIOCGWINSZ, &w) && w.ws_col ? w.ws_col : 80;
}
