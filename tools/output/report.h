/* SPDX-License-Identifier: MIT */
/* What the commands say to people about themselves: errors, help, and whether stdout took
 * everything. */
#ifndef GLM_TOOLS_REPORT_H
#define GLM_TOOLS_REPORT_H

#include "src/base/args.h"
#include "src/base/buf.h"
#include "src/base/err.h"

/* "glmstream: SENTENCE" and, if there is one, "hint: ..." on stderr. Nothing for an empty sentence.
 */
void report_error(const struct err *e);

/* Lines for people, on stderr; the buffer is empty then. Names of files in them move no cursor. */
void report_notes(struct buf *notes);

/* args_parse and file_args_check; on ARGS_HELP the help has been printed on stdout. Returns 0 (go
 * on), ARGS_HELP (done) or a code. */
int report_parse(const struct args *a, int argc, char **argv, struct err *e);

/* From now on --help hands the table to `sink` instead of printing it; NULL: prints again. */
void report_describe(void (*sink)(void *user, const struct args *a), void *user);

bool report_describing(void);

/* Flushes stdout. ERR_RUN when anything written to it so far was lost; without a sentence when the
 * reader of a pipe has gone. */
int report_stdout(struct err *e);

/* How the process ends: what was lost on stdout, the other ranks, the error. Returns the exit
 * status, or ends the process where ranks cannot end in order. */
int report_end(int rc, struct err *e);

/* Is stdout a pipe whose reader has closed it, as `| head` does? A lost write is then not reported.
 */
bool report_reader_gone(void);

#endif
