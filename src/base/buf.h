/* SPDX-License-Identifier: MIT */
/* A growable run of bytes that is also always a C string: data[len] is 0 (data is never NULL after
 * the first append; use buf_str for an always valid string). Zero-initialise; buf_free releases.
 * When memory is exhausted in a scope (mem.h), an append has no effect, and data may be NULL: a
 * caller that uses data or len reads them anew after each append. */
#ifndef GLM_BASE_BUF_H
#define GLM_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
	char *data;
	size_t len;
	size_t cap;
};

/* Room for `extra` more bytes and the final 0; false in a scope only. */
bool buf_reserve(struct buf *b, size_t extra);
void buf_append(struct buf *b, const void *p, size_t n);
void buf_puts(struct buf *b, const char *s);
void buf_putc(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_clear(struct buf *b); /* keeps the memory */
void buf_free(struct buf *b);
const char *buf_str(const struct buf *b); /* "" when empty */
/* Hands the string to the caller, who frees it; b is empty then. NULL in a scope only. */
char *buf_take(struct buf *b);

#endif
