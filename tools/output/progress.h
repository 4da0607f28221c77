/* SPDX-License-Identifier: MIT */
/*
 * One line on stderr that says how far a long piece of work has come, how fast it goes and how long
 * it will take. On a terminal that takes escape sequences it is rewritten in place, and gone when
 * the work is done. Elsewhere nothing is shown, or a line for every twentieth. Rate and remaining
 * time are measured.
 */
#ifndef GLM_TOOLS_PROGRESS_H
#define GLM_TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#define PROGRESS_DETAIL 80

struct progress {
	const char *what; /* "reading the prompt" */
	const char *unit; /* "tok"; NULL: done and total are bytes */
	bool terminal;    /* stderr is one that takes escape sequences */
	bool lines;       /* elsewhere a line for every twentieth */
	bool patient;     /* the line waits until the work turns out to be long */
	bool shown;       /* the line is on the screen */
	uint64_t start_ns, shown_ns;
	uint64_t start_done;          /* was done before, and says nothing about the speed */
	int step;                     /* twentieths of the last line */
	char detail[PROGRESS_DETAIL]; /* progress_detail */
};

/* Work of `total` units begins; the line appears at once. It is shown on a terminal
 * only. */
void progress_begin(struct progress *p, const char *what, const char *unit, uint64_t total);
/* The same for work that a log should show too, of which `done` was done before. */
void progress_begin_lines(
	struct progress *p, const char *what, const char *unit, uint64_t done, uint64_t total);
/* The same for work that may be short: the line appears once it is clear that the work takes longer
 * than two seconds. It is shown on a terminal only. */
void progress_begin_patient(struct progress *p, const char *what, const char *unit);
/* The next lines end with this text, which is cut to PROGRESS_DETAIL - 1 bytes. */
void progress_detail(struct progress *p, const char *text);
/* So much is done. At most ten times a second the line is drawn again. */
void progress_update(struct progress *p, uint64_t done, uint64_t total);
/* Takes the line away. Harmless when there is none. */
void progress_end(struct progress *p);

/* "2 h 05 min", "3 min 20 s", "12 s"; returns out. */
char *progress_time_text(double seconds, char out[32]);

#endif
