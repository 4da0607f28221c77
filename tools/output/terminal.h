/* SPDX-License-Identifier: MIT */
/* What is known of the terminal behind a file descriptor. */
#ifndef GLM_TOOLS_TERMINAL_H
#define GLM_TOOLS_TERMINAL_H

#include <stdbool.h>

/* A terminal that understands escape sequences: TERM is set and not "dumb". */
bool terminal_has_escapes(int fd);

/* Its width in columns; 80 where that is not known. */
int terminal_columns(int fd);

#endif
