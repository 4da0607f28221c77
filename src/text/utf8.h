/* SPDX-License-Identifier: MIT */
/*
 * UTF-8: checking, repairing, and cutting a byte stream where characters end. Strict: no
 * surrogates, nothing above U+10FFFF, no overlong forms. Broken bytes become U+FFFD the way the
 * Unicode standard recommends (one per maximal prefix of a valid sequence), which is what Hugging
 * Face's decoder does as well.
 */
#ifndef GLM_TEXT_UTF8_H
#define GLM_TEXT_UTF8_H

#include "src/base/buf.h"

#include <stdbool.h>
#include <stddef.h>

/* Offset of the first byte that is not part of a valid sequence; n when all is valid. */
size_t utf8_valid_prefix(const char *p, size_t n);

/* Decodes one character of valid UTF-8 at p; *len its bytes. */
unsigned utf8_decode(const char *p, size_t *len);

/* Writes the UTF-8 form of a code point to out[4]; returns how many bytes it has. */
size_t utf8_from_code(char *out, unsigned c);

/* Appends the UTF-8 form of a code point. */
void utf8_append(struct buf *b, unsigned c);

/* Appends p[0..n) with every broken part replaced by U+FFFD. */
void utf8_repair(const char *p, size_t n, struct buf *out);

/* A stream that comes in pieces, cut anywhere. Zero-initialise. Holds back at most three bytes: the
 * valid beginning of a character. */
struct utf8_stream {
	char held[4];
	unsigned n_held;
};

/* Appends to `out` what is certain after these bytes: whole characters, and U+FFFD for what is
 * already broken. */
void utf8_stream_push(struct utf8_stream *s, const char *p, size_t n, struct buf *out);

/* The end: an unfinished character becomes one U+FFFD. The stream can be used anew. */
void utf8_stream_flush(struct utf8_stream *s, struct buf *out);

#endif
