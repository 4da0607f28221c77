/* SPDX-License-Identifier: MIT */
/* UTF-8 by the table of well-formed sequences (Unicode 15, table 3-7): the first byte fixes the
 * length and the range of the second byte, all later bytes are 80..bf. */
#include "src/text/utf8.h"

#include <stdint.h>
#include <string.h>

/* Length of the sequence that starts with byte b (0: none does) and the allowed range of its second
 * byte. */
static unsigned sequence_length(unsigned char b, unsigned char *lo, unsigned char *hi)
{
	*lo = 0x80;
	*hi = 0xbf;
	if (b < 0x80)
		return 1;
	if (b < 0xc2)
		return 0;
	if (b < 0xe0)
		return 2;
	if (b < 0xf0) {
		if (b == 0xe0)
			*lo = 0xa0;
		if (b == 0xed)
			*hi = 0x9f;
		return 3;
	}
	if (b > 0xf4)
		return 0;
	if (b == 0xf0)
		*lo = 0x90;
	if (b == 0xf4)
		*hi = 0x8f;
	return 4;
}

/* How many bytes at p (n > 0 of them) belong together: a whole character (*whole), or the longest
 * prefix of one, at least 1. *cut: the prefix ends where the bytes end, so that more bytes could
 * complete it. */
static size_t sequence_step(const char *p, size_t n, bool *whole, bool *cut)
{
	unsigned char lo, hi;
	unsigned len = sequence_length((unsigned char)*p, &lo, &hi);
	*whole = *cut = false;
	if (!len)
		return 1;
	for (unsigned i = 1; i < len; i++) {
		if (i == n) {
			*cut = true;
			return i;
		}
		unsigned char c = (unsigned char)p[i];
		if (c < lo || c > hi)
			return i;
		lo = 0x80;
		hi = 0xbf;
	}
	*whole = true;
	return len;
}

size_t utf8_valid_prefix(const char *p, size_t n)
{
	size_t i = 0;
	while (i < n) {
		uint64_t word;
		if (n - i >= sizeof word) { /* eight ASCII bytes at once */
			memcpy(&word, p + i, sizeof word);
			if (!(word & 0x8080808080808080u)) {
				i += sizeof word;
				continue;
			}
		}
		bool whole, cut;
		size_t len = sequence_step(p + i, n - i, &whole, &cut);
		if (!whole)
			return i;
		i += len;
	}
	return n;
}

unsigned utf8_decode(const char *p, size_t *len)
{
	const unsigned char *s = (const unsigned char *)p;
	if (s[0] < 0x80) {
		*len = 1;
		return s[0];
	}
	if (s[0] < 0xe0) {
		*len = 2;
		return (s[0] & 31u) << 6 | (s[1] & 63u);
	}
	if (s[0] < 0xf0) {
		*len = 3;
		return (s[0] & 15u) << 12 | (s[1] & 63u) << 6 | (s[2] & 63u);
	}
	*len = 4;
	return (s[0] & 7u) << 18 | (s[1] & 63u) << 12 | (s[2] & 63u) << 6 | (s[3] & 63u);
}

size_t utf8_from_code(char *out, unsigned c)
{
	if (c < 0x80) {
		out[0] = (char)c;
		return 1;
	}
	size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
	for (size_t i = n; --i; c >>= 6)
		out[i] = (char)(0x80 | (c & 63));
	out[0] = (char)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | c);
	return n;
}

void utf8_append(struct buf *b, unsigned c)
{
	char s[4];
	buf_append(b, s, utf8_from_code(s, c));
}

void utf8_stream_push(struct utf8_stream *s, const char *p, size_t n, struct buf *out)
{
	bool whole, cut;
	while (s->n_held && n) { /* extend the held prefix byte by byte until it is decided */
		s->held[s->n_held] = *p;
		size_t len = sequence_step(s->held, s->n_held + 1, &whole, &cut);
		if (whole) {
			buf_append(out, s->held, len);
			s->n_held = 0;
		} else if (cut) {
			s->n_held++;
		} else { /* broken: the held bytes are a maximal prefix; the new byte starts anew below */
			buf_puts(out, "\xef\xbf\xbd");
			s->n_held = 0;
			break;
		}
		p++;
		n--;
	}
	while (n) {
		size_t valid = utf8_valid_prefix(p, n);
		buf_append(out, p, valid);
		p += valid;
		n -= valid;
		if (!n)
			break;
		size_t len = sequence_step(p, n, &whole, &cut);
		if (cut) {
			memcpy(s->held, p, len);
			s->n_held = (unsigned)len;
			return;
		}
		buf_puts(out, "\xef\xbf\xbd");
		p += len;
		n -= len;
	}
}

void utf8_stream_flush(struct utf8_stream *s, struct buf *out)
{
	if (s->n_held)
		buf_puts(out, "\xef\xbf\xbd");
	s->n_held = 0;
}

void utf8_repair(const char *p, size_t n, struct buf *out)
{
	struct utf8_stream s = {0};
	utf8_stream_push(&s, p, n, out);
	utf8_stream_flush(&s, out);
}
