/* SPDX-License-Identifier: MIT */
/* One state for each place in the grammar; one byte at a time, since heads are short. */
#include "src/serve/http/framing.h"

#include "src/base/num.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define METHOD_MAX   32u
#define TARGET_MAX   8192u
#define DIGITS_MAX   15u          /* of a chunk's size, leading zeros included */
#define OVERHEAD_MAX (16u << 10)  /* bytes of extensions and trailers of one request */
#define LENGTH_MAX   (1ull << 60) /* of a body */

enum state {
	START,
	START_LF,
	METHOD,
	TARGET_FIRST,
	SCHEME,
	AUTHORITY,
	TARGET,
	TARGET_STAR,
	VERSION,
	VERSION_LF,
	FIELD_START,
	NAME,
	VALUE,
	VALUE_LF,
	HEAD_LF,
	BODY,
	CHUNK_SIZE,
	CHUNK_EXTENSION,
	CHUNK_SIZE_LF,
	CHUNK_DATA,
	CHUNK_DATA_CR,
	CHUNK_DATA_LF,
	TRAILER_START,
	TRAILER_NAME,
	TRAILER_VALUE,
	TRAILER_LF,
	END_LF,
	DONE,
};

static const char version_text[] = "HTTP/1.1";

/* ---- characters ---- */

static bool is_token(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
		   (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool is_visible(char c)
{
	return c > ' ' && c < 0x7f;
}

/* Of a header's value: no control character but the tab. */
static bool is_text(char c)
{
	return (unsigned char)c >= ' ' ? c != 0x7f : c == '\t';
}

/* Of a host and its port. */
static bool is_host(char c)
{
	return is_token(c) ? c != '#' && c != '^' && c != '`' && c != '|'
					   : c && strchr("()[],;=:", c) != NULL;
}

static int hex_digit(char c)
{
	return c >= '0' && c <= '9'                 ? c - '0'
		   : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
												: -1;
}

/* ---- output that the input does not hold ---- */

static void set_pending(struct framing *f, const char *a, const char *b)
{
	f->pending_len = (unsigned)snprintf(f->pending, sizeof f->pending, "%s%s", a, b);
	f->pending_at = 0;
}

/* True when the output that belongs to this byte has been written, and the byte can be used. */
static bool announce(struct framing *f, const char *a, const char *b)
{
	if (!f->announced)
		set_pending(f, a, b);
	f->announced = !f->announced;
	return !f->announced;
}

static bool is_held_name(const struct framing *f)
{
	return !strcmp(f->name, "content-length") || !strcmp(f->name, "transfer-encoding");
}

/* What makes a whole request of the output so far. */
static void complete_output(struct framing *f)
{
	static const char fields[] = "\r\n\r\n";
	switch (f->state) {
	case START:
	case START_LF:
		set_pending(f, "GET / HTTP/1.1", fields);
		break;
	case METHOD:
		set_pending(f, " / HTTP/1.1", fields);
		break;
	case TARGET_FIRST:
	case SCHEME:
	case AUTHORITY:
		set_pending(f, "/ HTTP/1.1", fields);
		break;
	case TARGET:
	case TARGET_STAR:
		set_pending(f, " HTTP/1.1", fields);
		break;
	case VERSION:
		set_pending(f, version_text + f->line_at, fields);
		break;
	case VERSION_LF:
	case VALUE_LF:
		set_pending(f, "", fields + 1);
		break;
	case FIELD_START:
		set_pending(f, "", fields + 2);
		break;
	case NAME:
		set_pending(f, is_held_name(f) ? ":0" : ":", fields);
		break;
	case VALUE:
		set_pending(f, is_held_name(f) ? "0" : "", fields);
		break;
	case HEAD_LF:
		set_pending(f, "", "\n");
		break;
	default: /* among chunks */
		set_pending(f, f->later_chunk ? "\r\n" : "", "0\r\n\r\n");
	}
	f->announced = false;
}

static bool fail(struct framing *f, unsigned status, const char *message)
{
	f->fault = (struct framing_fault){status, message};
	complete_output(f);
	return false;
}

static bool fail_line(struct framing *f, char c)
{
	return fail(f, 400,
		c == '\n' ? "a line of the request ends with LF alone, without CR"
				  : "a line of the request has a CR that no LF follows");
}

/* ---- the request line ---- */

static bool start_byte(struct framing *f, char c, bool *keep)
{
	if (c == '\r' && !f->skipped_line) {
		f->state = START_LF;
		*keep = false;
		return true;
	}
	if (!is_token(c))
		return fail(f, 400, "the request does not begin with the name of a method");
	f->state = METHOD;
	f->line_at = 1;
	f->is_options = c == 'O';
	return true;
}

static bool method_byte(struct framing *f, char c)
{
	static const char options[] = "OPTIONS";
	if (c == ' ') {
		f->is_options = f->is_options && f->line_at == sizeof options - 1;
		f->state = TARGET_FIRST;
		f->line_at = 0;
		return true;
	}
	if (!is_token(c) || f->line_at == METHOD_MAX)
		return fail(f, 400, "the request line is not a method, a target and a version");
	f->is_options = f->is_options && f->line_at < sizeof options - 1 && c == options[f->line_at];
	f->line_at++;
	return true;
}

static bool target_first_byte(struct framing *f, char c, bool *keep)
{
	f->line_at = 1;
	if (c == '/')
		f->state = TARGET;
	else if (c == '*' && f->is_options)
		f->state = TARGET_STAR;
	else if (c == 'h' || c == 'H') {
		f->state = SCHEME;
		*keep = false;
	} else
		return fail(f, 400, "the target of the request is not a path");
	return true;
}

static bool authority_byte(struct framing *f, char c, bool *keep)
{
	*keep = false;
	if (c == '/' || c == '?' || c == ' ') {
		if (!f->authority_len)
			return fail(f, 400, "the target of the request names no host");
		if (!announce(f, "/", c == '/' ? "" : c == '?' ? "?" : " "))
			return true;
		f->authority[f->authority_len] = 0;
		f->line_at = c == ' ' ? 0 : 1;
		f->state = c == ' ' ? VERSION : TARGET;
		return true;
	}
	if (!is_host(c) || f->authority_len == sizeof f->authority - 1)
		return fail(f, 400, "the target of the request names no host");
	f->authority[f->authority_len++] = c;
	return true;
}

static bool target_byte(struct framing *f, char c)
{
	if (c == ' ') {
		f->state = VERSION;
		f->line_at = 0;
		return true;
	}
	if (f->state == TARGET_STAR)
		return fail(f, 400, "the target of the request is not a path");
	if (!is_visible(c) || c == '#')
		return fail(f, 400,
			c == '\r' || c == '\n'
				? "the request line has no version"
				: "the target of the request has a character that no target has");
	if (f->line_at++ == TARGET_MAX)
		return fail(f, 414, "the target of the request is too long");
	return true;
}

static bool version_byte(struct framing *f, char c)
{
	const unsigned at = f->line_at, minor = sizeof version_text - 2;
	if (at > minor) {
		if (c != '\r')
			return c == '\n' ? fail_line(f, c)
							 : fail(f, 400, "the request line does not end after its version");
		f->state = VERSION_LF;
		return true;
	}
	if (c == version_text[at] || (at == minor && c == '0')) {
		f->is_http10 = at == minor && c == '0';
		f->line_at++;
		return true;
	}
	if (at >= 5 && c >= '0' && c <= '9')
		return fail(f, 505, "this server speaks HTTP/1.1 and HTTP/1.0");
	return fail(f, 400, "the version of the request is not HTTP/1.1 or HTTP/1.0");
}

/* ---- headers ---- */

static bool field_start_byte(struct framing *f, char c)
{
	bool trailer = f->state == TRAILER_START;
	if (c == '\r') {
		f->state = trailer ? END_LF : HEAD_LF;
		return true;
	}
	if (!is_token(c))
		return c == ' ' || c == '\t' ? fail(f, 400, "a header goes on in a second line")
			   : c == '\n'           ? fail_line(f, c)
									 : fail(f, 400, "a header has no name");
	f->state = trailer ? TRAILER_NAME : NAME;
	f->name_len = f->value_len = 0;
	memset(f->name, 0, sizeof f->name);
	return true;
}

static void keep_name_byte(struct framing *f, char c)
{
	/* a name that is too long for the buffer is none that matters */
	if (f->name_len < sizeof f->name - 1)
		f->name[f->name_len++] = (char)(c >= 'A' && c <= 'Z' ? c | 32 : c);
	else
		f->name[0] = '-';
}

static bool name_byte(struct framing *f, char c)
{
	if (c == ':') {
		f->state = f->state == TRAILER_NAME ? TRAILER_VALUE : VALUE;
		return true;
	}
	if (is_token(c)) {
		keep_name_byte(f, c);
		return true;
	}
	return fail(f, 400,
		c == ' ' || c == '\t'    ? "a header has a blank in its name"
		: c == '\r' || c == '\n' ? "a header has no colon"
								 : "a header has a character in its name that no name has");
}

/* The value without the blanks around it. */
static char *trimmed_value(struct framing *f)
{
	unsigned len = f->value_len, from = 0;
	while (len && (f->value[len - 1] == ' ' || f->value[len - 1] == '\t'))
		len--;
	while (from < len && (f->value[from] == ' ' || f->value[from] == '\t'))
		from++;
	f->value[len] = 0;
	return f->value + from;
}

static bool length_field(struct framing *f, const char *value)
{
	if (f->lengths++)
		return fail(f, 400, "the request has more than one Content-Length");
	uint64_t n = 0;
	for (const char *p = value; *p; p++) {
		if (*p < '0' || *p > '9')
			return fail(f, 400, "the Content-Length is not a number");
		n = n * 10 + (unsigned)(*p - '0');
		if (n > LENGTH_MAX)
			return fail(f, 413, "the body of the request is too large");
	}
	if (!*value)
		return fail(f, 400, "the Content-Length is not a number");
	f->left = n;
	return true;
}

static bool coding_field(struct framing *f, const char *value)
{
	if (f->codings++)
		return fail(f, 400, "the request has more than one Transfer-Encoding");
	if (strcasecmp(value, "chunked"))
		return fail(f, 501, "the only Transfer-Encoding is chunked");
	return true;
}

static bool host_field(struct framing *f, const char *value)
{
	if (f->hosts++)
		return fail(f, 400, "the request has more than one Host");
	for (const char *p = value; *p; p++)
		if (!is_host(*p))
			return fail(f, 400, "the Host of the request is no name and no address");
	snprintf(f->host, sizeof f->host, "%s", value);
	return true;
}

/* At the CR of a header. The values that say how long the body is are written as they were
 * understood. */
static bool end_value(struct framing *f, bool *keep)
{
	bool is_length = !strcmp(f->name, "content-length"),
		 is_coding = !strcmp(f->name, "transfer-encoding"),
		 is_host_field = !strcmp(f->name, "host");
	if (f->state == TRAILER_VALUE) {
		if (is_length || is_coding || is_host_field)
			return fail(f, 400, "a header of the message comes after its chunks");
		f->state = TRAILER_LF;
		return true;
	}
	if (!f->announced) {
		char *value = trimmed_value(f);
		if (is_length   ? !length_field(f, value)
			: is_coding ? !coding_field(f, value)
						: is_host_field && !host_field(f, value))
			return false;
	}
	if (is_length || is_coding) {
		char digits[24];
		snprintf(digits, sizeof digits, "%llu", (unsigned long long)f->left);
		*keep = false;
		if (!announce(f, is_length ? digits : "chunked", "\r"))
			return true;
	}
	f->state = VALUE_LF;
	return true;
}

static bool value_byte(struct framing *f, char c, bool *keep)
{
	if (c == '\r')
		return end_value(f, keep);
	if (c == '\n')
		return fail_line(f, c);
	if (!is_text(c))
		return fail(f, 400, "a header has a control character in its value");
	if (f->state == VALUE && is_held_name(f))
		*keep = false;
	if (f->value_len < sizeof f->value - 1)
		f->value[f->value_len++] = c;
	else if (is_held_name(f) || !strcmp(f->name, "host"))
		return fail(f, 400, "a header of the request is too long");
	return true;
}

/* Before the LF that ends the head. */
static bool check_head(struct framing *f)
{
	if (!f->hosts && !f->is_http10)
		return fail(f, 400, "the request has no Host");
	if (f->authority_len && strcasecmp(f->authority, f->host))
		return fail(f, 400, "the target of the request and its Host name different hosts");
	if (f->lengths && f->codings)
		return fail(f, 400, "the request has both Content-Length and Transfer-Encoding");
	if (f->codings && f->is_http10)
		return fail(f, 400, "the request has a Transfer-Encoding in HTTP/1.0");
	f->has_head = true;
	f->state = f->codings ? CHUNK_SIZE : f->left ? BODY : DONE;
	return true;
}

/* ---- chunks ---- */

static bool chunk_size_byte(struct framing *f, char c)
{
	int digit = hex_digit(c);
	if (digit >= 0) {
		if (f->digits++ == DIGITS_MAX)
			return fail(f, 400, "the size of a chunk is too large");
		f->left = f->left << 4 | (unsigned)digit;
		return true;
	}
	if (f->digits && c == '\r') {
		f->state = CHUNK_SIZE_LF;
		return true;
	}
	if (f->digits && c == ';') {
		f->state = CHUNK_EXTENSION;
		f->before = ';';
		f->quoted = f->escaped = false;
		return true;
	}
	return c == '\n' ? fail_line(f, c) : fail(f, 400, "the size of a chunk is not a number");
}

static bool extension_byte(struct framing *f, char c)
{
	char before = f->before;
	f->before = c;
	if (f->quoted) {
		f->quoted = f->escaped || c != '"';
		f->escaped = !f->escaped && c == '\\';
		return is_text(c) ? true : fail(f, 400, "an extension of a chunk is malformed");
	}
	if (is_token(c) && before != '"')
		return true;
	bool after_word = is_token(before) || before == '"';
	if (c == '\r' && after_word) {
		f->state = CHUNK_SIZE_LF;
		return true;
	}
	f->quoted = c == '"' && before == '=';
	if (f->quoted || (c == ';' && after_word) || (c == '=' && is_token(before)))
		return true;
	return c == '\n' ? fail_line(f, c) : fail(f, 400, "an extension of a chunk is malformed");
}

static bool chunk_size_end(struct framing *f)
{
	char size[24];
	if (f->left) {
		snprintf(size, sizeof size, "%llx\r\n", (unsigned long long)f->left);
		if (!announce(f, f->later_chunk ? "\r\n" : "", size))
			return true;
	}
	f->later_chunk = f->later_chunk || f->left;
	f->state = f->left ? CHUNK_DATA : TRAILER_START;
	f->digits = 0;
	return true;
}

static bool expect(struct framing *f, char c, char wanted, enum state next)
{
	if (c != wanted)
		return wanted == '\n' || c == '\n'
				   ? fail_line(f, c)
				   : fail(f, 400, "the bytes of a chunk do not end where its size says");
	f->state = next;
	return true;
}

static bool is_overhead(unsigned state)
{
	return state == CHUNK_EXTENSION || (state >= TRAILER_START && state <= TRAILER_LF);
}

/* False: a fault. *keep: the byte is part of the output. */
static bool take_byte(struct framing *f, char c, bool *keep)
{
	*keep = f->state > START_LF && f->state < BODY && f->state != SCHEME;
	if (is_overhead(f->state) && f->overhead++ == OVERHEAD_MAX)
		return fail(f, 400, "the request has too many extensions or trailers");
	switch (f->state) {
	case START:
		*keep = true;
		return start_byte(f, c, keep);
	case START_LF:
		f->skipped_line = true;
		return expect(f, c, '\n', START);
	case METHOD:
		return method_byte(f, c);
	case TARGET_FIRST:
		return target_first_byte(f, c, keep);
	case SCHEME: {
		static const char scheme[] = "http://";
		if (c != scheme[f->line_at] && (c < 'A' || c > 'Z' || (c | 32) != scheme[f->line_at]))
			return fail(f, 400, "the target of the request is not a path");
		f->state = scheme[++f->line_at] ? SCHEME : AUTHORITY;
		return true;
	}
	case AUTHORITY:
		return authority_byte(f, c, keep);
	case TARGET:
	case TARGET_STAR:
		return target_byte(f, c);
	case VERSION:
		return version_byte(f, c);
	case VERSION_LF:
	case VALUE_LF:
		return expect(f, c, '\n', FIELD_START);
	case FIELD_START:
	case TRAILER_START:
		if (!field_start_byte(f, c))
			return false;
		if (f->state == NAME || f->state == TRAILER_NAME)
			keep_name_byte(f, c);
		return true;
	case NAME:
	case TRAILER_NAME:
		return name_byte(f, c);
	case VALUE:
	case TRAILER_VALUE:
		return value_byte(f, c, keep);
	case HEAD_LF:
		return c == '\n' ? check_head(f) : fail_line(f, c);
	case CHUNK_SIZE:
		return chunk_size_byte(f, c);
	case CHUNK_EXTENSION:
		return extension_byte(f, c);
	case CHUNK_SIZE_LF:
		return c == '\n' ? chunk_size_end(f) : fail_line(f, c);
	case CHUNK_DATA_CR:
		return expect(f, c, '\r', CHUNK_DATA_LF);
	case CHUNK_DATA_LF:
		return expect(f, c, '\n', CHUNK_SIZE);
	case TRAILER_LF:
		return expect(f, c, '\n', TRAILER_START);
	default: /* END_LF */
		if (c != '\n')
			return fail_line(f, c);
		if (announce(f, f->later_chunk ? "\r\n" : "", "0\r\n\r\n"))
			f->state = DONE;
		return true;
	}
}

/* ---- the interface ---- */

uint64_t framing_plain_bytes(const struct framing *f)
{
	bool plain = f->state == BODY || f->state == CHUNK_DATA;
	return plain && f->pending_at == f->pending_len && !f->fault.status ? f->left : 0;
}

void framing_pass(struct framing *f, uint64_t n)
{
	f->left -= n;
	if (!f->left)
		f->state = f->state == BODY ? DONE : CHUNK_DATA_CR;
}

static size_t flush_pending(struct framing *f, char *out, size_t cap)
{
	size_t n = MIN((size_t)(f->pending_len - f->pending_at), cap);
	memcpy(out, f->pending + f->pending_at, n);
	f->pending_at += (unsigned)n;
	return n;
}

size_t framing_feed(
	struct framing *f, const char *in, size_t n, size_t *used, char *out, size_t cap)
{
	size_t at = 0, made = 0;
	if (f->state == DONE && !f->fault.status)
		*f = (struct framing){0};
	while (n) {
		made += flush_pending(f, out + made, cap - made);
		if (f->pending_at < f->pending_len || f->fault.status || f->state == DONE || at == n ||
			made == cap)
			break;
		size_t plain = (size_t)MIN(framing_plain_bytes(f), (uint64_t)MIN(n - at, cap - made));
		if (plain) {
			memcpy(out + made, in + at, plain);
			framing_pass(f, plain);
			at += plain;
			made += plain;
			continue;
		}
		bool keep;
		if (!take_byte(f, in[at], &keep) || f->announced)
			continue;
		if (keep)
			out[made++] = in[at];
		at++;
	}
	*used = at;
	return made;
}

bool framing_has_head(const struct framing *f)
{
	return f->has_head;
}

struct framing_fault framing_fault(const struct framing *f)
{
	return f->fault;
}

bool framing_is_over(const struct framing *f)
{
	return f->fault.status && f->pending_at == f->pending_len;
}
