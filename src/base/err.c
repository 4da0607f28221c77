/* SPDX-License-Identifier: MIT */
/* Error sentences; see err.h for who writes them. */
#include "src/base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Bytes of the UTF-8 character at p and its code point; 0: not the beginning of one. The
 * terminating 0 ends a sequence that was cut off. */
static unsigned character_at(const unsigned char *p, uint32_t *c)
{
	unsigned n = *p < 0x80 ? 1 : *p < 0xc2 ? 0 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : *p < 0xf5 ? 4 : 0;
	*c = n == 1 ? *p : *p & (0x7fu >> n);
	for (unsigned i = 1; i < n; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0;
		*c = *c << 6 | (p[i] & 0x3f);
	}
	return n;
}

/* Whether a terminal acts on the character or orders text by it: the control characters of both
 * ranges, line and paragraph separators, and bidirectional marks, embeddings, overrides, isolates.
 */
static bool acts_on_terminal(uint32_t c)
{
	return c < ' ' || (c >= 0x7f && c < 0xa0) || c == 0x61c || c == 0x200e || c == 0x200f ||
		   (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

void err_plain(char *text)
{
	unsigned char *to = (unsigned char *)text;
	for (const unsigned char *p = to; *p;) {
		uint32_t c;
		unsigned n = character_at(p, &c);
		if (!n || acts_on_terminal(c)) {
			*to++ = '?';
			p += n ? n : 1;
		} else {
			while (n--)
				*to++ = *p++;
		}
	}
	*to = 0;
}

const char *err_plain_copy(const char *text, char *out, size_t n)
{
	snprintf(out, n, "%s", text);
	err_plain(out);
	return out;
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
		return ERR_RUN;
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
		return ERR_RUN;
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
