/* SPDX-License-Identifier: MIT */
/*
 * Cutting text into the pieces inside which tokens are merged, by a regular expression as
 * tokenizer.json gives it.
 *
 * The expression is written for Oniguruma; it is translated to PCRE2 first, because the two
 * disagree about \s: here \s is exactly Unicode's White_Space. Escapes whose meaning differs (\w,
 * \b, ...) are refused. Letters and numbers are those of the PCRE2 library's Unicode version.
 *
 * A struct pretok is constant after pretok_new: any thread may scan with it, each with its own
 * struct pretok_scan.
 */
#ifndef GLM_TEXT_PRETOK_H
#define GLM_TEXT_PRETOK_H

#include "src/base/err.h"

#include <stddef.h>

struct pretok;

/* The pattern of GLM-4 and later (section 6.1 of the specification). */
extern const char PRETOK_GLM4[];

/* Compiles a pattern (C string). ERR_INPUT when it is not valid, not supported, matches the empty
 * text, or has a capturing group. */
int pretok_new(const char *pattern, struct pretok **out, struct err *e);
void pretok_free(struct pretok *t); /* NULL is fine */

/* One pass over one text. The text must be valid UTF-8 and outlive the scan. */
struct pretok_scan {
	const struct pretok *pretok;
	const char *text;
	size_t len, at;
	size_t match_start, match_end; /* the latest match; bytes before it form a piece of their own */
	void *match_data, *context;
};

int pretok_scan_init(
	struct pretok_scan *s, const struct pretok *t, const char *text, size_t len, struct err *e);

/* 1: the next piece is text[*start .. *end), never empty; the pieces in order make up the whole
 * text. 0: end of the text. Negative: an error; ERR_INPUT for a foreign pattern that backtracks too
 * much. */
int pretok_next(struct pretok_scan *s, size_t *start, size_t *end, struct err *e);

/* Goes on with another text, keeping the scan's memory. */
void pretok_scan_text(struct pretok_scan *s, const char *text, size_t len);

void pretok_scan_fini(struct pretok_scan *s);

#endif
