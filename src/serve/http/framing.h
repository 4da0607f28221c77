/* SPDX-License-Identifier: MIT */
/*
 * Strict framing of HTTP/1.x requests. libmicrohttpd is lenient: a bare LF ends a line, a folded
 * header is joined, a NUL ends a value, an unknown transfer coding means a body without an end. A
 * proxy in front is lenient in other ways. Where the two disagree about the end of a request, one
 * client's bytes become another client's request (request smuggling). So every byte is checked here
 * before the library sees it:
 *
 *	struct framing f = {0};                             one for each connection
 *	made = framing_feed(&f, in, n, &used, out, cap);    out[made] is for the library; in[used..n)
 *	                                                    is passed in again by the next call
 *	if (framing_is_over(&f)) ...                        close the connection
 *
 * - Accepted (RFC 9110, 9112): lines that end with CRLF; one Host, which HTTP/1.0 may omit; at
 *   most one of Content-Length (digits) and Transfer-Encoding (chunked); names of token characters;
 *   values without control characters; HTTP/1.0 and 1.1. Targets of visible ASCII: a path,
 *   http://HOST/path with the Host of the request, or * for OPTIONS. One empty line in front.
 * - Anything else is a fault. The output is then completed to a well-formed request, so that the
 *   library calls the request handler, which answers with framing_fault.
 * - The output equals the input, with these exceptions. Chunk extensions, trailers and the empty
 *   line in front are checked and removed. Chunk sizes and the values of Content-Length and
 *   Transfer-Encoding are written in one form. An absolute target becomes its path.
 *
 * No locks: one connection, one thread at a time. No allocations.
 */
#ifndef GLM_SERVE_FRAMING_H
#define GLM_SERVE_FRAMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct framing_fault {
	unsigned status;     /* of the response: 400, 413, 414, 501 or 505; 0: no fault */
	const char *message; /* a sentence; static */
};

/* The state of one connection. Zero-initialise. The members are private to framing.c. */
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
	/* of the header that is being read */
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

/* Reads bytes from in[n], at most to the end of one request, and writes to out[cap]. Returns the
 * number of bytes written; *used: the number of bytes read.
 * - If n and cap are above 0, at least one of the two numbers is, until a fault has been completed.
 * - The byte at fault and those behind it are never used.
 * - While output is pending, at least one byte of the input is not used: a caller that leaves
 * unused bytes in the socket (MSG_PEEK) will see the socket readable, and call again. */
size_t framing_feed(
	struct framing *f, const char *in, size_t n, size_t *used, char *out, size_t cap);

/* The number of body bytes that come next and need no check, so that they can be read straight into
 * the library's buffer: then report n of them, at most as many, with framing_pass. 0: the next
 * bytes must go through framing_feed. */
uint64_t framing_plain_bytes(const struct framing *f);
void framing_pass(struct framing *f, uint64_t n);

/* The current request is the one that framing_feed read from last.
 * Whether its head (request line and headers) is complete and was accepted. */
bool framing_has_head(const struct framing *f);
/* Its fault; status 0: none. After a fault the connection must be closed. */
struct framing_fault framing_fault(const struct framing *f);
/* Whether there was a fault and all output that completes its request was written. */
bool framing_is_over(const struct framing *f);

#endif
