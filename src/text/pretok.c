/* SPDX-License-Identifier: MIT */
/*
 * The only file that knows PCRE2.
 *
 * Text is checked once by the caller, so matching runs without PCRE2's own UTF check (it would look
 * at the whole rest of the text for every piece). Compiled code is used when the machine allows it;
 * when its small stack is not enough for a foreign pattern, that piece is matched by the
 * interpreter, whose memory is bounded by the heap limit. Limits grow with the text because a run
 * of a million blanks legitimately takes a million steps.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "src/text/pretok.h"

#include "src/base/buf.h"
#include "src/base/mem.h"
#include "src/base/num.h"

#include <ctype.h>
#include <pcre2.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_BASE     10000000u
#define STEPS_PER_BYTE 16u
#define HEAP_LIMIT_KIB (512u * 1024)

const char PRETOK_GLM4[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
						   " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

struct pretok {
	pcre2_code *code;
	bool compiled;
};

/* White_Space of Unicode: the separators and the controls below; PCRE2's own \s adds U+180E. */
#define SPACE_ITEMS "\\t-\\r\\x{85}\\p{Z}"

/* Whether the group that starts at p ("(?...") means the same in both: (?: (?i: (?> and the four
 * assertions. */
static bool plain_group(const char *p)
{
	static const char *const known[] = {"(?:", "(?i:", "(?>", "(?=", "(?!", "(?<=", "(?<!"};
	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		if (!strncmp(p, known[i], strlen(known[i])))
			return true;
	return false;
}

/* Copies up to and with the next '}'; the place of that, or NULL. */
static const char *copy_braces(const char *p, struct buf *out)
{
	const char *end = strchr(p, '}');
	if (end)
		buf_append(out, p, (size_t)(end - p) + 1);
	return end;
}

/* Rewrites Oniguruma's \s and \S, copies what means the same in both, refuses the rest: "^", "$",
 * other inline flags, "{1,3}+" and "{3}?" (possessive or lazy only in PCRE2), sets of sets, most
 * escapes. */
static int translate(const char *pattern, struct buf *out, struct err *e)
{
	bool in_class = false;
	for (const char *p = pattern; *p; p++) {
		const char *from = p;
		bool ok = true;
		if (*p == '\\') {
			char c = *++p;
			if (c == 's') {
				buf_puts(out, in_class ? SPACE_ITEMS : "[" SPACE_ITEMS "]");
			} else if (c == 'S' && !in_class) {
				buf_puts(out, "[^" SPACE_ITEMS "]");
			} else if ((c == 'p' || c == 'P') && p[1] == '{') {
				buf_putc(out, '\\');
				p = copy_braces(p, out);
				ok = p != NULL;
			} else if ((c && strchr("rnt", c)) || ispunct((unsigned char)c)) {
				buf_printf(out, "\\%c", c);
			} else {
				ok = false;
			}
		} else if (in_class) {
			ok = *p != '[' && !(*p == '&' && p[1] == '&');
			in_class = *p != ']';
			buf_putc(out, *p);
		} else if (*p == '[') {
			in_class = true;
			buf_putc(out, *p);
			if (p[1] == '^')
				buf_putc(out, *++p);
			ok = p[1] != ']';
		} else if (*p == '{') {
			p = copy_braces(p, out);
			ok = p && p[1] != '+' && p[1] != '?';
		} else {
			ok = *p != '^' && *p != '$' && !(*p == '(' && p[1] == '?' && !plain_group(p));
			buf_putc(out, *p);
		}
		if (!ok)
			return err_set(e, ERR_INPUT, "split pattern: not supported%s: %.20s",
				in_class ? " inside brackets" : "", from);
	}
	return 0;
}

int pretok_new(const char *pattern, struct pretok **out, struct err *e)
{
	*out = NULL;
	struct buf b = {0};
	int rc = translate(pattern, &b, e);
	if (rc) {
		buf_free(&b);
		return rc;
	}
	int code_error;
	PCRE2_SIZE at;
	pcre2_code *code = pcre2_compile((PCRE2_SPTR)buf_str(&b), b.len,
		PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code_error, &at, NULL);
	if (!code) {
		PCRE2_UCHAR text[256] = "";
		pcre2_get_error_message(code_error, text, sizeof text);
		rc = err_set(e, code_error == PCRE2_ERROR_HEAP_FAILED ? ERR_MEMORY : ERR_INPUT,
			"split pattern: %s near \"%.20s\"", (const char *)text,
			at <= b.len ? buf_str(&b) + at : "");
		buf_free(&b);
		return rc;
	}
	buf_free(&b);
	uint32_t matches_empty = 0, captures = 0;
	pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
	pcre2_pattern_info(code, PCRE2_INFO_CAPTURECOUNT, &captures);
	if (matches_empty || captures) {
		pcre2_code_free(code);
		return err_set(e, ERR_INPUT, "split pattern: %s is not supported",
			matches_empty ? "a pattern that can match nothing" : "a capturing group");
	}
	struct pretok *t = NEW(struct pretok);
	t->code = code;
	t->compiled = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
	*out = t;
	return 0;
}

void pretok_free(struct pretok *t)
{
	if (!t)
		return;
	pcre2_code_free(t->code);
	free(t);
}

void pretok_scan_text(struct pretok_scan *s, const char *text, size_t len)
{
	s->text = text;
	s->len = len;
	s->at = s->match_start = s->match_end = 0;
	uint64_t steps = STEPS_BASE;
	if (!num_mul(len, STEPS_PER_BYTE, &steps) || !num_add(steps, STEPS_BASE, &steps) ||
		steps > UINT32_MAX)
		steps = UINT32_MAX;
	pcre2_set_match_limit(s->context, (uint32_t)steps);
	pcre2_set_depth_limit(s->context, STEPS_BASE);
	pcre2_set_heap_limit(s->context, HEAP_LIMIT_KIB);
}

int pretok_scan_init(
	struct pretok_scan *s, const struct pretok *t, const char *text, size_t len, struct err *e)
{
	*s = (struct pretok_scan){.pretok = t};
	s->match_data = pcre2_match_data_create(1, NULL);
	s->context = pcre2_match_context_create(NULL);
	if (!s->match_data || !s->context) {
		pretok_scan_fini(s);
		return err_set(e, ERR_MEMORY, "no memory for matching text");
	}
	pretok_scan_text(s, text, len);
	return 0;
}

/* Finds the next match at or after s->at; the end of the text counts as one without length. */
static int pretok_find(struct pretok_scan *s, struct err *e)
{
	const struct pretok *t = s->pretok;
	int n = PCRE2_ERROR_JIT_STACKLIMIT;
	if (t->compiled)
		n = pcre2_jit_match(t->code, (PCRE2_SPTR)s->text, s->len, s->at, PCRE2_NO_UTF_CHECK,
			s->match_data, s->context);
	if (n == PCRE2_ERROR_JIT_STACKLIMIT)
		n = pcre2_match(t->code, (PCRE2_SPTR)s->text, s->len, s->at,
			PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->match_data, s->context);
	if (n == PCRE2_ERROR_NOMATCH) {
		s->match_start = s->match_end = s->len;
		return 0;
	}
	if (n < 0) {
		PCRE2_UCHAR text[256] = "";
		pcre2_get_error_message(n, text, sizeof text);
		return err_set(e, n == PCRE2_ERROR_NOMEMORY ? ERR_MEMORY : ERR_INPUT,
			"split pattern fails at byte %zu: %s", s->at, (const char *)text);
	}
	const PCRE2_SIZE *at = pcre2_get_ovector_pointer(s->match_data);
	if (at[0] < s->at || at[1] <= at[0] || at[1] > s->len) /* \K and the like */
		return err_set(
			e, ERR_INPUT, "split pattern: a match at byte %zu has no proper extent", s->at);
	s->match_start = at[0];
	s->match_end = at[1];
	return 0;
}

int pretok_next(struct pretok_scan *s, size_t *start, size_t *end, struct err *e)
{
	if (s->at >= s->len)
		return 0;
	if (s->match_end <= s->at) {
		int rc = pretok_find(s, e);
		if (rc)
			return rc;
	}
	*start = s->at;
	*end = s->match_start > s->at ? s->match_start : s->match_end;
	s->at = *end;
	return 1;
}

void pretok_scan_fini(struct pretok_scan *s)
{
	pcre2_match_data_free(s->match_data);
	pcre2_match_context_free(s->context);
	*s = (struct pretok_scan){0};
}
