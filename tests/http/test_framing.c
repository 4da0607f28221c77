/* SPDX-License-Identifier: MIT */
/* Requests that one parser reads in one way and another in another: what is refused, what is let
 * through and how it is then written. Every case is fed whole and in pieces of each size up to 3.
 */
#include "src/serve/http/framing.h"

#include "src/base/num.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HOST "Host: a\r\n"
#define GET  "GET / HTTP/1.1\r\n" HOST
#define POST "POST /x HTTP/1.1\r\n" HOST
#define TE   "Transfer-Encoding: chunked\r\n"
/* "\0" cannot be in a string literal whose length is asked with strlen */
#define NUL "\x80NUL"

struct framing_run {
	char out[16384];
	size_t len, used;
	struct framing f;
};

/* The bytes come `piece` at a time into a socket; what is not used stays there. */
static void run_pieces(struct framing_run *r, const char *in, size_t n, size_t piece, size_t cap)
{
	size_t there = 0;
	memset(r, 0, sizeof *r);
	while (!framing_is_over(&r->f)) {
		if (there < n)
			there += MIN(piece, n - there);
		else if (r->used == n)
			break;
		size_t used = 0, room = MIN(cap, sizeof r->out - r->len), made = 0;
		if (there > r->used)
			made = framing_feed(&r->f, in + r->used, there - r->used, &used, r->out + r->len, room);
		r->used += used;
		r->len += made;
		assert_true(r->used <= there);
	}
}

static size_t expand(const char *text, char *out)
{
	size_t n = 0;
	for (const char *p = text; *p;) {
		if (!strncmp(p, NUL, 4)) {
			out[n++] = 0;
			p += 4;
		} else {
			out[n++] = *p++;
		}
	}
	out[n] = 0;
	return n;
}

static void run_all(struct framing_run *whole, const char *text)
{
	char in[12000];
	size_t n = expand(text, in);
	run_pieces(whole, in, n, n, sizeof whole->out);
	for (size_t piece = 1; piece <= 3; piece++)
		for (size_t cap = 1; cap <= 3; cap++) {
			struct framing_run *r = malloc(sizeof *r);
			assert_non_null(r);
			run_pieces(r, in, n, piece, cap);
			assert_int_equal(r->f.fault.status, whole->f.fault.status);
			assert_int_equal(r->len, whole->len);
			assert_memory_equal(r->out, whole->out, r->len);
			assert_int_equal(r->used, whole->used);
			free(r);
		}
}

static void expect_fault(const char *text, unsigned status, const char *word)
{
	struct framing_run r;
	run_all(&r, text);
	if (r.f.fault.status != status || !strstr(r.f.fault.message, word))
		fail_msg("%s: %u %s", text, r.f.fault.status, r.f.fault.message ? r.f.fault.message : "");
	assert_true(framing_is_over(&r.f));
	/* the library gets a request that ends */
	assert_true(r.len >= 4 && !memcmp(r.out + r.len - 4, "\r\n\r\n", 4));
}

static void expect_output(const char *text, const char *output)
{
	struct framing_run r;
	run_all(&r, text);
	if (r.f.fault.status)
		fail_msg("%s: %s", text, r.f.fault.message);
	assert_true(framing_has_head(&r.f));
	assert_int_equal(r.len, strlen(output));
	assert_memory_equal(r.out, output, r.len);
}

static void test_request_lines(void **state)
{
	(void)state;
	expect_output(GET "\r\n", GET "\r\n");
	expect_output("\r\n" GET "\r\n", GET "\r\n");
	expect_output("GET /a?b=%20 HTTP/1.1\r\n" HOST "\r\n", "GET /a?b=%20 HTTP/1.1\r\n" HOST "\r\n");
	expect_output("GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.0\r\n\r\n");
	expect_output("OPTIONS * HTTP/1.1\r\n" HOST "\r\n", "OPTIONS * HTTP/1.1\r\n" HOST "\r\n");
	expect_output("GET http://A/b?c HTTP/1.1\r\n" HOST "\r\n", "GET /b?c HTTP/1.1\r\n" HOST "\r\n");
	expect_output("GET HTTP://a?c HTTP/1.1\r\n" HOST "\r\n", "GET /?c HTTP/1.1\r\n" HOST "\r\n");
	expect_output("GET http://a HTTP/1.1\r\n" HOST "\r\n", "GET / HTTP/1.1\r\n" HOST "\r\n");
	expect_fault("GET http://b/ HTTP/1.1\r\n" HOST "\r\n", 400, "different hosts");
	expect_fault("GET http:// HTTP/1.1\r\n" HOST "\r\n", 400, "names no host");
	expect_fault("GET http://u@a/ HTTP/1.1\r\n" HOST "\r\n", 400, "names no host");
	expect_fault("GET https://a/ HTTP/1.1\r\n" HOST "\r\n", 400, "not a path");
	expect_fault("GET http\x1a//a/ HTTP/1.1\r\n" HOST "\r\n", 400, "not a path");
	expect_fault("CONNECT a:80 HTTP/1.1\r\n" HOST "\r\n", 400, "not a path");
	expect_fault("GET * HTTP/1.1\r\n" HOST "\r\n", 400, "not a path");
	expect_fault("OPTIONSX * HTTP/1.1\r\n" HOST "\r\n", 400, "not a path");
	expect_fault("OPTIONS *x HTTP/1.1\r\n" HOST "\r\n", 400, "not a path");
	expect_fault("GET a HTTP/1.1\r\n" HOST "\r\n", 400, "not a path");
	expect_fault("GET  / HTTP/1.1\r\n" HOST "\r\n", 400, "not a path");
	expect_fault("GET /  HTTP/1.1\r\n" HOST "\r\n", 400, "version");
	expect_fault("GET / x HTTP/1.1\r\n" HOST "\r\n", 400, "version");
	expect_fault("GET /\tHTTP/1.1\r\n" HOST "\r\n", 400, "character");
	expect_fault("GET /#a HTTP/1.1\r\n" HOST "\r\n", 400, "character");
	expect_fault("GET /\xc3\xa4 HTTP/1.1\r\n" HOST "\r\n", 400, "character");
	expect_fault("GET /" NUL " HTTP/1.1\r\n" HOST "\r\n", 400, "character");
	expect_fault("GET /\r\n" HOST "\r\n", 400, "no version");
	expect_fault("GET /\nHost: a\r\n\r\n", 400, "no version");
	expect_fault("GET\r\n\r\n", 400, "request line");
	expect_fault("G\x01T / HTTP/1.1\r\n" HOST "\r\n", 400, "request line");
	expect_fault(" GET / HTTP/1.1\r\n" HOST "\r\n", 400, "method");
	expect_fault("\r\n\r\n" GET "\r\n", 400, "method");
	expect_fault("\n" GET "\r\n", 400, "method");
	expect_fault("\rGET / HTTP/1.1\r\n" HOST "\r\n", 400, "CR");
	expect_fault("\x16\x03\x01\x02", 400, "method");
	expect_fault("GET / HTTP/1.1 \r\n" HOST "\r\n", 400, "after its version");
	expect_fault("GET / HTTP/1.1\n" HOST "\r\n", 400, "LF alone");
	expect_fault("GET / HTTP/1.1\rX\n" HOST "\r\n", 400, "no LF follows");
	expect_fault("GET / http/1.1\r\n" HOST "\r\n", 400, "version");
	expect_fault("GET / HTTP/1.\r\n" HOST "\r\n", 400, "version");
	expect_fault("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "path");
	expect_fault("GET / HTTP/2.0\r\n" HOST "\r\n", 505, "HTTP/1.1");
	expect_fault("GET / HTTP/1.2\r\n" HOST "\r\n", 505, "HTTP/1.1");
	expect_fault("GET / HTTP/1.10\r\n" HOST "\r\n", 400, "after its version");
	char longer[9000] = "GET /";
	memset(longer + 5, 'a', 8500);
	expect_fault(longer, 414, "too long");
}

static void test_headers(void **state)
{
	(void)state;
	expect_output(GET "X:\ta b\xc3\xa4 \r\nY:\r\n\r\n", GET "X:\ta b\xc3\xa4 \r\nY:\r\n\r\n");
	expect_fault("GET / HTTP/1.1\r\n\r\n", 400, "no Host");
	expect_fault(GET HOST "\r\n", 400, "more than one Host");
	expect_fault(GET "HOST:b\r\n\r\n", 400, "more than one Host");
	expect_fault("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400, "no name");
	expect_fault("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400, "no name");
	expect_fault("GET / HTTP/1.1\r\nHost: u@b\r\n\r\n", 400, "no name");
	expect_fault("GET / HTTP/1.1\r\n" HOST "X : a\r\n\r\n", 400, "blank in its name");
	expect_fault("GET / HTTP/1.1\r\n" HOST "X\t: a\r\n\r\n", 400, "blank in its name");
	expect_fault(GET "X\x0b: a\r\n\r\n", 400, "character in its name");
	expect_fault(GET "X\xa0: a\r\n\r\n", 400, "character in its name");
	expect_fault(GET "X" NUL "Y: a\r\n\r\n", 400, "character in its name");
	expect_fault(GET "X\r\n\r\n", 400, "no colon");
	expect_fault(GET ": a\r\n\r\n", 400, "no name");
	expect_fault(GET "X: a" NUL "b\r\n\r\n", 400, "control character");
	expect_fault(GET "X: a\x7f\r\n\r\n", 400, "control character");
	expect_fault(GET "X: a\x0b\r\n\r\n", 400, "control character");
	expect_fault(GET "X: a\rY: b\r\n\r\n", 400, "no LF follows");
	expect_fault(GET "X: a\r\r\n\r\n", 400, "no LF follows");
	expect_fault(GET "X: a\nY: b\r\n\r\n", 400, "LF alone");
	expect_fault(GET "X: a\r\n\n", 400, "LF alone");
	expect_fault(GET "X: a\r\n\rY: b\r\n\r\n", 400, "no LF follows");
	expect_fault(GET "X: a\r\n b\r\n\r\n", 400, "second line");
	expect_fault(GET "X: a\r\n\tb\r\n\r\n", 400, "second line");
	expect_fault("GET / HTTP/1.1\r\n X: a\r\n" HOST "\r\n", 400, "second line");
}

static void test_lengths(void **state)
{
	(void)state;
	struct framing_run r;
	expect_output(POST "Content-Length: 3\r\n\r\nabc", POST "Content-Length:3\r\n\r\nabc");
	expect_output(POST "content-LENGTH:\t003 \r\n\r\na\nc", POST "content-LENGTH:3\r\n\r\na\nc");
	expect_output(POST "Content-Length: 0\r\n\r\n", POST "Content-Length:0\r\n\r\n");
	static const char *const bad[] = {
		"", " ", "+3", "-3", "0x3", "3,3", "3 3", "3;", "1_0", "3.0", "\"3\"", "three", "3\x80"};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		char text[200];
		snprintf(text, sizeof text, POST "Content-Length: %s\r\n\r\nabc", bad[i]);
		expect_fault(text, 400, "not a number");
	}
	expect_fault(POST "Content-Length: 18446744073709551619\r\n\r\n", 413, "too large");
	expect_fault(
		POST "Content-Length: 3\r\nContent-Length: 3\r\n\r\n", 400, "more than one Content");
	expect_fault(POST "Content-Length: 3\r\n" TE "\r\n", 400, "both");
	expect_fault(POST TE "Content-Length: 3\r\n\r\n", 400, "both");
	expect_fault("POST / HTTP/1.0\r\n" TE "\r\n", 400, "HTTP/1.0");
	expect_fault(POST TE TE "\r\n", 400, "more than one Transfer");
	static const char *const codings[] = {"", "chunk", "xchunked", "chunkedx", "chunked, chunked",
		"identity", "gzip, chunked", "chunked;q=1", "\"chunked\"",
		"\x80"
		"chunked",
		"chunked\xa0"};
	for (size_t i = 0; i < ARRAY_LEN(codings); i++) {
		char text[200];
		snprintf(text, sizeof text, POST "Transfer-Encoding: %s\r\n\r\n0\r\n\r\n", codings[i]);
		expect_fault(text, 501, "chunked");
	}
	/* at most one request at a time, and the next is whole */
	static const char two[] = POST "Content-Length: 1\r\n\r\nxGET /2 HTTP/1.1\r\n" HOST "\r\n";
	size_t used;
	memset(&r, 0, sizeof r);
	r.len = framing_feed(&r.f, two, sizeof two - 1, &used, r.out, sizeof r.out);
	assert_int_equal(used, strstr(two, "GET") - two);
	r.len = framing_feed(&r.f, two + used, sizeof two - 1 - used, &used, r.out, sizeof r.out);
	assert_memory_equal(r.out, "GET /2", 6);
	assert_true(framing_has_head(&r.f));
}

static void test_chunks(void **state)
{
	(void)state;
	const char *head = POST "Transfer-Encoding:chunked\r\n\r\n";
	static const struct {
		const char *chunks, *output;
	} good[] = {{"0\r\n\r\n", "0\r\n\r\n"}, {"3\r\nabc\r\n0\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n"},
		{"00A\r\n0123456789\r\n00\r\n\r\n", "a\r\n0123456789\r\n0\r\n\r\n"},
		{"1;a\r\nx\r\n1;a=b;c=\"d;\\\"\"\r\ny\r\n0;e\r\nT: 1\r\n\r\n",
			"1\r\nx\r\n1\r\ny\r\n0\r\n\r\n"}};
	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		char text[300], output[300];
		snprintf(text, sizeof text, POST "transfer-encoding: Chunked \r\n\r\n%s", good[i].chunks);
		snprintf(output, sizeof output, POST "transfer-encoding:chunked\r\n\r\n%s", good[i].output);
		expect_output(text, output);
	}
	static const struct {
		const char *chunks, *word;
	} bad[] = {{"\r\n", "not a number"}, {"0x3\r\nabc\r\n0\r\n\r\n", "not a number"},
		{"+3\r\nabc\r\n0\r\n\r\n", "not a number"}, {"-1\r\n", "not a number"},
		{" 3\r\nabc\r\n0\r\n\r\n", "not a number"}, {"3 \r\nabc\r\n0\r\n\r\n", "not a number"},
		{"3\t\r\nabc\r\n0\r\n\r\n", "not a number"}, {"1_0\r\n", "not a number"},
		{"g\r\n", "not a number"}, {";a\r\n", "not a number"},
		{"ffffffffffffffff\r\n", "too large"}, {"0000000000000003\r\nabc\r\n", "too large"},
		{"3\nabc\r\n0\r\n\r\n", "LF alone"}, {"3\rabc\r\n0\r\n\r\n", "no LF follows"},
		{"3\r\nabc\n0\r\n\r\n", "LF alone"}, {"3\r\nabc0\r\n\r\n", "do not end"},
		{"3\r\nabcd\r\n0\r\n\r\n", "do not end"}, {"3\r\nabc\rX0\r\n\r\n", "no LF follows"},
		{"3;\r\nabc\r\n0\r\n\r\n", "malformed"}, {"3;;a\r\nabc\r\n0\r\n\r\n", "malformed"},
		{"3; a\r\nabc\r\n0\r\n\r\n", "malformed"}, {"3;a\nabc\r\n0\r\n\r\n", "LF alone"},
		{"3;a=\r\nabc\r\n0\r\n\r\n", "malformed"}, {"3;a\x01\r\nabc\r\n0\r\n\r\n", "malformed"},
		{"3;a=\"\n\"\r\nabc\r\n0\r\n\r\n", "malformed"},
		{"3;a=\"b\"c\r\nabc\r\n0\r\n\r\n", "malformed"},
		{"3;a\rb\r\nabc\r\n0\r\n\r\n", "no LF follows"}, {"0\r\n\n", "LF alone"},
		{"0\r\n\rX", "no LF follows"}, {"0\r\nT\r\n\r\n", "no colon"},
		{"0\r\nT : 1\r\n\r\n", "blank in its name"}, {"0\r\nT: 1\n\r\n", "LF alone"},
		{"0\r\nT: 1\r\n a\r\n\r\n", "second line"}, {"0\r\nHost: b\r\n\r\n", "after its chunks"},
		{"0\r\nContent-Length: 3\r\n\r\n", "after its chunks"},
		{"0\r\nTransfer-Encoding: chunked\r\n\r\n", "after its chunks"}};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		char text[300];
		snprintf(text, sizeof text, "%s%s", head, bad[i].chunks);
		expect_fault(text, 400, bad[i].word);
	}
}

/* Extensions and trailers are read and dropped: not without end. */
static void test_overhead(void **state)
{
	(void)state;
	static const char head[] = POST TE "\r\n";
	struct framing f = {0};
	char out[64];
	size_t used, total = 0;
	framing_feed(&f, head, 20, &used, out, sizeof out);
	for (size_t at = used; at < sizeof head - 1; at += used)
		framing_feed(&f, head + at, sizeof head - 1 - at, &used, out, sizeof out);
	assert_true(framing_has_head(&f));
	while (!framing_fault(&f).status && total < 1u << 20) {
		static const char chunk[] = "1;abcdefgh\r\nx\r\n";
		for (size_t at = 0; at < sizeof chunk - 1 && !framing_fault(&f).status; at += used)
			framing_feed(&f, chunk + at, sizeof chunk - 1 - at, &used, out, sizeof out);
		total += 9;
	}
	assert_string_equal(
		framing_fault(&f).message, "the request has too many extensions or trailers");
	assert_in_range(total, 16000, 17000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_request_lines),
		cmocka_unit_test(test_headers), cmocka_unit_test(test_lengths),
		cmocka_unit_test(test_chunks), cmocka_unit_test(test_overhead)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
