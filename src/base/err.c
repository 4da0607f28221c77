/* SPDX-License-Identifier: MIT */
/* Error sentences; see err.h for who writes them. */
#include "src/base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Both ranges: below the blank, and the second one as UTF-8 writes it. */
void err_plain(char *text)
{
	for (unsigned char *p = (unsigned char *)text; *p; p++)
		if (*p < ' ' || *p == 0x7f)
			*p = '?';
		else if (*p == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0)
			p[0] = p[1] = '?';
}

int err_set(struct err *e, int code, const char *fmt, ...)
{
	if (!e)
		return code;
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(e->text, sizeof e->text, fmt, ap);
	va_end(ap);
	err_plain(e->text);
	e->code = code;
	e->hint[0] = 0;
	return code;
}

int err_errno(struct err *e, int errnum, const char *fmt, ...)
{
	int code = -errnum;
	if (errnum == ENOENT || errnum == EACCES || errnum == EISDIR || errnum == ENOTDIR ||
		errnum == ELOOP)
		code = ERR_INPUT;
	else if (errnum == ENOMEM)
		code = ERR_MEMORY;
	if (!e)
		return code;
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(e->text, sizeof e->text, fmt, ap);
	va_end(ap);
	if (n >= 0 && (size_t)n < sizeof e->text)
		snprintf(e->text + n, sizeof e->text - (size_t)n, ": %s", strerror(errnum));
	err_plain(e->text);
	e->code = code;
	e->hint[0] = 0;
	return code;
}

int err_prefix(struct err *e, const char *fmt, ...)
{
	if (!e)
		return 0;
	char old[ERR_TEXT_MAX];
	memcpy(old, e->text, sizeof old);
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(e->text, sizeof e->text, fmt, ap);
	va_end(ap);
	if (n >= 0 && (size_t)n < sizeof e->text)
		snprintf(e->text + n, sizeof e->text - (size_t)n, ": %s", old);
	err_plain(e->text);
	return e->code;
}

int err_hint(struct err *e, const char *fmt, ...)
{
	if (!e)
		return 0;
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(e->hint, sizeof e->hint, fmt, ap);
	va_end(ap);
	err_plain(e->hint);
	return e->code;
}

int err_exit_status(int code)
{
	switch (code) {
	case 0:
		return 0;
#define X(name, value, exit_status, text)                                                          \
	case name:                                                                                     \
		return exit_status;
		ERR_LIST(X)
#undef X
	default:
		return 1;
	}
}

const char *err_name(int code)
{
	switch (code) {
	case 0:
		return "no error";
#define X(name, value, exit_status, text)                                                          \
	case name:                                                                                     \
		return text;
		ERR_LIST(X)
#undef X
	default:
		return strerror(code < 0 ? -code : code);
	}
}
