/* SPDX-License-Identifier: MIT */
/*
 * Strict framing of HTTP/1.x requests. libmicrohttpd forgives: a bare LF ends a line, a folded
 * header is joined, a NUL ends a value, an unknown transfer coding means a body without an end. A
 * proxy in front forgives other things, and where the two differ one client's bytes become another
 * client's request. So every byte passes here before the library sees it:
 *
 *	struct framing f = {0};
 *	made = framing_feed(&f, in, n, &used, out, cap);
 *
 * - Accepted (RFC 9110, 9112): lines that end with CRLF; one Host (none in HTTP/1.0); at most one
 *of Content-Length (digits) and Transfer-Encoding (chunked); names of token characters; values
 *   without control characters; targets of visible ASCII, as a path, as http://HOST/path with the
 *   Host of the request, or as * for OPTIONS; HTTP/1.0 and 1.1. One empty line may come first.
 * - Anything else is a fault. The output is then completed to a whole request, so that the library
 *   asks what to answer, and framing_fault tells.
 * - The output is what came, but for chunks: extensions and trailers are checked and left out,
 *sizes are written anew. An absolute target becomes its path.
 *
 * No locks: one connection, one thread at a time. No allocations.
 */
#ifndef GLM_SERVE_FRAMING_H
#define GLM_SERVE_FRAMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct framing_fault {
	unsigned status;     /* of the response: 400, 414, 501 or 505; 0: no fault */
	const char *message; /* a sentence; static */
};

/* Of one connection; zeroes are the start of one. Private to framing.c. */
struct framing {
	unsigned state;
	struct framing_fault fault;
	char pending[48]; /* output that the input does not hold */
	unsigned pending_len, pending_at;
	bool announced; /* the pending output belongs to the next byte, which is not used yet */
	/* of the request line */
	bool skipped_line, is_options, is_http10;
	unsigned line_at; /* bytes of the method, the target, the version */
	char authority[256];
	unsigned authority_len; /* of an absolute target */
	/* of the header in hand */
	char name[24], value[256];
	unsigned name_len, value_len;
	/* of the head */
	bool has_head;
	unsigned hosts, lengths, codings;
	char host[256];
	uint64_t left; /* bytes of the body or chunk */
	/* of chunks */
	bool later_chunk, quoted, escaped;
	char before; /* the last character of an extension */
	unsigned digits, overhead;
};

/* Reads from in[n], at most to the end of one request, and writes to out[cap]. Returns how much was
 * written; *used: how much of the input is done with. With n and cap above 0 it makes progress
 * unless there is a fault: then the byte at fault is never used. While output is pending at least
 * one byte of the input is left unused: a socket whose unused input stays in it remains readable.
 */
size_t framing_feed(
	struct framing *f, const char *in, size_t n, size_t *used, char *out, size_t cap);

/* Body bytes that come next and need no look: who passes n of them by says so. 0: use framing_feed.
 */
uint64_t framing_plain_bytes(const struct framing *f);
void framing_pass(struct framing *f, uint64_t n);

/* Whether the head of the request in hand is complete and right. */
bool framing_has_head(const struct framing *f);
/* The fault of the request in hand; status 0: none. After one the connection must end. */
struct framing_fault framing_fault(const struct framing *f);
/* The output of a fault is complete. */
bool framing_is_over(const struct framing *f);

#endif
