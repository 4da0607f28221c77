/* SPDX-License-Identifier: MIT */
/* One write per line, so that lines of several threads do not mix. */
#include "src/base/log.h"

#include "src/base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static enum log_level threshold = LOG_INFO; /* set once at start, then constant */

static const char *process_name = ""; /* set once at start, then constant */

void log_set_name(const char *name)
{
	process_name = name;
}

void log_set_level(enum log_level level)
{
	threshold = level;
}

enum log_level log_level(void)
{
	return threshold;
}

enum log_level log_lower(enum log_level level)
{
	const enum log_level before = threshold;
	threshold = level < before ? level : before;
	return before;
}

static void log_line(enum log_level level, const char *tag, const char *fmt, va_list ap)
{
	if (level > threshold)
		return;
	char line[2048];
	vsnprintf(line, sizeof line, fmt, ap);
	err_plain(line); /* one line per event, whatever names hold */
	fprintf(stderr, "%s%s%s\n", process_name, tag, line);
}

void log_warn(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	log_line(LOG_WARN, "warning: ", fmt, ap);
	va_end(ap);
}

void log_info(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	log_line(LOG_INFO, "", fmt, ap);
	va_end(ap);
}

void log_verbose(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	log_line(LOG_VERBOSE, "", fmt, ap);
	va_end(ap);
}

void bug_at(const char *file, int line, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	fprintf(stderr, "bug: %s:%d: ", file, line);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
	va_end(ap);
	abort();
}
