/* SPDX-License-Identifier: MIT */
/*
 * The strict framing of HTTP requests. Input: the bytes of a connection. Checked: read whole and a
 * byte at a time into a byte of output they give the same output and the same fault; a fault's
 * output ends a request; the output of requests without a fault is read again as it is.
 */
#include "src/base/buf.h"
#include "src/base/log.h"
#include "src/base/num.h"
#include "src/serve/http/framing.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The fault's status; 0: none. */
static unsigned read_all(const char *in, size_t n, size_t piece, size_t cap, struct buf *out)
{
	struct framing f = {0};
	char made[4096];
	size_t at = 0, there = 0, idle = 0;
	while (!framing_is_over(&f) && (there < n || at < n)) {
		there = MIN(n, there + piece);
		if (there == at)
			continue;
		size_t used = 0;
		size_t len = framing_feed(&f, in + at, there - at, &used, made, MIN(cap, sizeof made));
		if (!used && !len && ++idle > n + 8)
			bug("no progress at byte %zu", at);
		at += used;
		buf_append(out, made, len);
	}
	return framing_fault(&f).status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *in = (const char *)data;
	struct buf a = {0}, b = {0}, c = {0};
	unsigned status = read_all(in, size, size, 4096, &a);
	if (read_all(in, size, 1, 1, &b) != status || a.len != b.len ||
		(a.len && memcmp(a.data, b.data, a.len)))
		bug("another reading in pieces");
	if (status && (a.len < 4 || memcmp(a.data + a.len - 4, "\r\n\r\n", 4)))
		bug("the output of a fault is no whole request");
	if (!status && a.len) {
		if (read_all(a.data, a.len, a.len, 4096, &c) || c.len != a.len ||
			memcmp(c.data, a.data, c.len))
			bug("the output is read in another way");
	}
	buf_free(&a);
	buf_free(&b);
	buf_free(&c);
	return 0;
}
