/* SPDX-License-Identifier: MIT */
/*
 * Errors. Three kinds, never mixed:
 *   1. Low layers and hot paths return 0 or a negative code: -errno or one of enum err_code.
 *   2. What opens or parses takes a trailing `struct err *`. The function that finds the fault
 *      writes one sentence: file, object, what was found, what was expected. Callers may put a
 *      prefix before it.
 *   3. Broken invariants call bug() (log.h).
 * Only tools/ prints errors or exits. The code decides the exit status of the program.
 */
#ifndef GLM_BASE_ERR_H
#define GLM_BASE_ERR_H

#include <stdbool.h>
#include <stddef.h>

/* The project's own codes lie below every -errno. X(name, value, exit status, meaning) */
#define ERR_LIST(X)                                                                                \
	X(ERR_RUN, -4001, 1, "failed while running")                                                   \
	X(ERR_USAGE, -4002, 2, "bad usage")                                                            \
	X(ERR_INPUT, -4003, 3, "bad input")                                                            \
	X(ERR_MEMORY, -4004, 4, "out of memory or budget")                                             \
	X(ERR_INTERRUPTED, -4005, 130, "interrupted")

enum err_code {
#define X(name, value, exit_status, text) name = value,
	ERR_LIST(X)
#undef X
};

#define ERR_TEXT_MAX 1024
#define ERR_HINT_MAX 512

/* Zero-initialise with `struct err e = {0}`; owned by the caller, no heap behind it. */
struct err {
	int code; /* 0: no error so far; else -errno or enum err_code */
	char text[ERR_TEXT_MAX];
	char hint[ERR_HINT_MAX]; /* empty: no hint */
};

/* Writes the sentence and returns `code`, so that `return err_set(e, ERR_INPUT, ...)` works. `e`
 * may be NULL. The text carries no trailing full stop or line feed. Text beyond ERR_TEXT_MAX is
 * cut. Here and below control characters that a file or its name brought along become '?': what is
 * said stays on its line and moves no cursor. */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* err_set with ": " and the text of errno number `errnum` added; the code is -errnum (ERR_INPUT for
 * ENOENT, EACCES, EISDIR, ENOTDIR and ELOOP, ERR_MEMORY for ENOMEM). */
int err_errno(struct err *e, int errnum, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Puts "<text>: " before the sentence. Returns e->code; ERR_RUN if `e` is NULL. */
int err_prefix(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Sets the second line. Returns e->code; `e` as in err_prefix. */
int err_hint(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Makes foreign text, such as a file's name or a string in it, safe to print on a terminal. Control
 * characters (U+0000 to 001F, 007F to 009F), line separators, bidirectional controls and bytes that
 * are not UTF-8 become '?', in place. err_set and log.h call it; whoever prints such text in
 * another way calls it or ERR_PLAIN. */
void err_plain(char *text);

/* The same of a copy in out[0..n), which is returned; what does not fit is cut. ERR_PLAIN's copy is
 * valid to the end of the block that it stands in. */
const char *err_plain_copy(const char *text, char *out, size_t n);
#define ERR_PLAIN(text) err_plain_copy(text, (char[ERR_TEXT_MAX]){0}, ERR_TEXT_MAX)

/* Exit status of the program for a code: 0 -> 0, project codes as listed, any -errno -> 1. */
int err_exit_status(int code);

/* Short name of a code ("bad input", or strerror of an errno); static storage or thread-local. */
const char *err_name(int code);

#endif
