/* SPDX-License-Identifier: MIT */
/*
 * One line on stderr that says how far a long piece of work has come, how fast it goes and how long
 * it will take. It is rewritten in place, shown only on a terminal, and gone when the work is done.
 * Rate and remaining time are measured.
 */
#ifndef GLM_TOOLS_PROGRESS_H
#define GLM_TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
	const char *what; /* "reading the prompt" */
	const char *unit; /* "tok"; NULL: done and total are bytes */
	bool wanted;      /* false: nothing is ever shown */
	bool shown;       /* the line is on the screen */
	uint64_t start_ns, shown_ns;
};

/* Work of `total` units begins; the line appears at once. Nothing is shown when stderr is no
 * terminal. */
void progress_begin(struct progress *p, const char *what, const char *unit, uint64_t total);
/* So much is done since begin. At most ten times a second the line is drawn again. */
void progress_update(struct progress *p, uint64_t done, uint64_t total);
/* Takes the line away. Harmless when there is none. */
void progress_end(struct progress *p);

#endif
