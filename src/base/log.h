/* SPDX-License-Identifier: MIT */
/*
 * Messages to people, always on stderr, one line per event. Library code may say what it decided
 * (log_info) and warn; it never prints errors: those travel as struct err to tools/.
 */
#ifndef GLM_BASE_LOG_H
#define GLM_BASE_LOG_H

enum log_level { LOG_QUIET, LOG_WARN, LOG_INFO, LOG_VERBOSE };

/* Process-wide threshold, LOG_INFO at start. Set from the command line before threads exist, and
 * lowered for a while by the thread that opens engines and runs commands. */
void log_set_level(enum log_level level);
enum log_level log_level(void);

/* Lowers the threshold to `level`, or leaves it if it is lower. Returns the one before, which
 * log_set_level brings back. For work whose lines would repeat others. */
enum log_level log_lower(enum log_level level);

/* Stands before every line from now on; lent. At the start "". Before threads exist. */
void log_set_name(const char *name);

void log_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_verbose(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* A broken invariant: prints place and text, aborts, in every build. Never for bad input. */
#define bug(...) bug_at(__FILE__, __LINE__, __VA_ARGS__)
void bug_at(const char *file, int line, const char *fmt, ...)
	__attribute__((noreturn, format(printf, 3, 4)));

#endif
