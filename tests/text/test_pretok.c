/* SPDX-License-Identifier: MIT */
/*
 * The splitter: GLM's pattern against the same rules written out by hand, on random strings over
 * characters of every kind the pattern distinguishes; long runs; the translation of patterns and
 * what it refuses.
 */
#include "src/text/pretok.h"
#include "src/base/buf.h"
#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/text/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum kind { LETTER, NUMBER, BLANK, NEWLINE, OTHER };

/* Characters with their kinds; BLANK and NEWLINE together are white space. */
static const struct {
	unsigned c;
	enum kind kind;
} alphabet[] = {
	{'a', LETTER},
	{'s', LETTER},
	{'T', LETTER},
	{'r', LETTER},
	{'e', LETTER},
	{'V', LETTER},
	{'m', LETTER},
	{'l', LETTER},
	{'L', LETTER},
	{'d', LETTER},
	{0x17f, LETTER},
	{0xe9, LETTER},
	{0x4f60, LETTER},
	{0x5d0, LETTER},
	{0x1d518, LETTER},
	{0xaa, LETTER},
	{'1', NUMBER},
	{'0', NUMBER},
	{0x664, NUMBER},
	{0x2460, NUMBER},
	{0x2167, NUMBER},
	{0xbd, NUMBER},
	{' ', BLANK},
	{'\t', BLANK},
	{0xb, BLANK},
	{0xc, BLANK},
	{0x85, BLANK},
	{0xa0, BLANK},
	{0x1680, BLANK},
	{0x2000, BLANK},
	{0x2028, BLANK},
	{0x3000, BLANK},
	{'\n', NEWLINE},
	{'\r', NEWLINE},
	{'\'', OTHER},
	{'\'', OTHER},
	{'.', OTHER},
	{'-', OTHER},
	{0x301, OTHER},
	{0x200b, OTHER},
	{0x180e, OTHER},
	{0xfeff, OTHER},
	{0x1f600, OTHER},
	{0, OTHER},
	{0x1c, OTHER},
	{0x1f, OTHER},
	{0x2019, OTHER},
};

static bool space(enum kind k)
{
	return k == BLANK || k == NEWLINE;
}

/* Length of 's 't 're 've 'm 'll 'd at p, without regard to case; 0: none. */
static size_t contraction(const unsigned *p, size_t n)
{
	static const char *const ends[] = {"s", "t", "re", "ve", "m", "ll", "d"};
	if (!n || *p != '\'')
		return 0;
	for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
		size_t len = strlen(ends[i]), k = 0;
		for (; k < len && k + 1 < n; k++) {
			unsigned c = p[1 + k];
			c = c == 0x17f ? 's' : c < 128 ? c | 32 : c;
			if (c != (unsigned char)ends[i][k])
				break;
		}
		if (k == len)
			return 1 + len;
	}
	return 0;
}

/* Length of the piece at the start of n > 0 characters: the first alternative that matches. */
static size_t piece(const unsigned *p, const enum kind *kind, size_t n)
{
	size_t i = contraction(p, n), k = 0;
	if (i)
		return i;
	if (kind[0] != LETTER && kind[0] != NUMBER && kind[0] != NEWLINE)
		k = 1;
	if (k < n && kind[k] == LETTER) {
		while (k < n && kind[k] == LETTER)
			k++;
		return k;
	}
	if (kind[0] == NUMBER) {
		for (i = 1; i < n && i < 3 && kind[i] == NUMBER; i++)
			;
		return i;
	}
	i = p[0] == ' ';
	if (i < n && kind[i] == OTHER) {
		while (i < n && kind[i] == OTHER)
			i++;
		while (i < n && kind[i] == NEWLINE)
			i++;
		return i;
	}
	size_t run = 0, newline = 0;
	while (run < n && space(kind[run])) {
		run++;
		if (kind[run - 1] == NEWLINE)
			newline = run;
	}
	if (newline)
		return newline;
	return run == n || run == 1 ? run : run - 1;
}

static void test_against_rules(void **state)
{
	(void)state;
	struct pretok *t;
	struct rng r = {99};
	assert_int_equal(pretok_new(PRETOK_GLM4, &t, NULL), 0);
	for (int round = 0; round < 60000; round++) {
		unsigned c[40];
		enum kind kind[40];
		size_t n = rng_below(&r, 40), focus = rng_below(&r, 3), at = 0, bytes = 0, end, start;
		struct buf b = {0};
		for (size_t i = 0; i < n; i++) {
			/* all kinds, or mostly white space, or mostly contractions */
			uint32_t pick = rng_below(&r, (uint32_t)ARRAY_LEN(alphabet));
			if (focus == 1 && rng_below(&r, 4))
				pick = 22 + rng_below(&r, 12);
			if (focus == 2 && rng_below(&r, 4))
				pick = rng_below(&r, 2) ? rng_below(&r, 11) : 34;
			c[i] = alphabet[pick].c;
			kind[i] = alphabet[pick].kind;
			utf8_append(&b, c[i]);
		}
		struct pretok_scan s;
		struct err e = {0};
		assert_int_equal(pretok_scan_init(&s, t, buf_str(&b), b.len, &e), 0);
		while (at < n) {
			struct buf want = {0};
			size_t len = piece(c + at, kind + at, n - at);
			for (size_t i = 0; i < len; i++)
				utf8_append(&want, c[at + i]);
			assert_int_equal(pretok_next(&s, &start, &end, &e), 1);
			if (start != bytes || end != bytes + want.len)
				fail_msg("round %d: \"%s\": piece %zu..%zu, expected %zu..%zu", round, buf_str(&b),
					start, end, bytes, bytes + want.len);
			bytes = end;
			at += len;
			buf_free(&want);
		}
		assert_int_equal(pretok_next(&s, &start, &end, &e), 0);
		pretok_scan_fini(&s);
		buf_free(&b);
	}
	pretok_free(t);
}

static size_t count(const struct pretok *t, const char *text, size_t len)
{
	struct pretok_scan s;
	struct err e = {0};
	size_t n = 0, at = 0, start, end;
	int more;
	assert_int_equal(pretok_scan_init(&s, t, text, len, &e), 0);
	while ((more = pretok_next(&s, &start, &end, &e)) > 0) {
		assert_int_equal(start, at);
		assert_true(end > start && end <= len);
		at = end;
		n++;
	}
	if (more)
		fail_msg("%s", e.text);
	assert_int_equal(at, len);
	pretok_scan_fini(&s);
	return n;
}

/* Five million of one kind: no limit is hit, no stack is used up, the time is linear. */
static void test_long_runs(void **state)
{
	(void)state;
	static const struct {
		const char *unit, *end;
		size_t pieces; /* 0: whatever */
	} cases[] = {{"a", "", 1}, {" ", "", 1}, {" ", "x", 2}, {"\n", "", 1}, {"\n", "x", 2},
		{" \n", "x", 2}, {"\n ", "x", 2}, {"-", "", 1}, {"\xc2\xa0", "!", 3}, {"\xcc\x81", "", 1},
		{"12", "", 0}, {"\r\n", "1", 2}, {"'", "s", 2}};
	struct pretok *t;
	assert_int_equal(pretok_new(PRETOK_GLM4, &t, NULL), 0);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct buf b = {0};
		while (b.len < 5000000)
			buf_puts(&b, cases[i].unit);
		buf_puts(&b, cases[i].end);
		size_t n = count(t, buf_str(&b), b.len);
		if (cases[i].pieces && n != cases[i].pieces)
			fail_msg("run %zu: %zu pieces, expected %zu", i, n, cases[i].pieces);
		buf_free(&b);
	}
	pretok_free(t);
}

/* Bytes that no match covers are pieces of their own. */
static void test_gaps(void **state)
{
	(void)state;
	struct pretok *t;
	assert_int_equal(pretok_new("\\p{N}+", &t, NULL), 0);
	assert_int_equal(count(t, "ab12cd34", 8), 4);
	assert_int_equal(count(t, "12", 2), 1);
	assert_int_equal(count(t, "xyz", 3), 1);
	assert_int_equal(count(t, "", 0), 0);
	pretok_free(t);
}

static void test_patterns(void **state)
{
	(void)state;
	static const char *const refused[] = {"(", "a*", "(a)b", "\\w+", "\\bx", "\\d", "a\\",
		"[a-z&&[aeiou]]", "[[:alpha:]]", "[\\S]", "[]a]", "\\x41", "\\h", "(?=a)", "\\p{Nonsense}",
		"", "^a", "a$", "(?m:a)", "(?x)a", "a{1,3}+", "a{2}?", "\\p{L", "a{1"};
	for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
		struct pretok *t;
		struct err e = {0};
		if (pretok_new(refused[i], &t, &e) != ERR_INPUT)
			fail_msg("\"%s\" was accepted", refused[i]);
		assert_null(t);
		assert_int_equal(strncmp(e.text, "split pattern", 13), 0);
	}
	static const char *const accepted[] = {"\\s+|\\S+", "[^\\s\\p{L}]+|\\p{Lu}", "\\.\\-\\[\\]",
		"[\\]\\[]", "a{2,3}|\\r\\n\\t", "(?>a+)(?<!b)|(?<=c)d(?!e)", "\\p{N}++|\\p{L}+?",
		"[^$.|(]"};
	for (size_t i = 0; i < ARRAY_LEN(accepted); i++) {
		struct pretok *t;
		struct err e = {0};
		if (pretok_new(accepted[i], &t, &e))
			fail_msg("\"%s\": %s", accepted[i], e.text);
		count(t, "a .-[] \xe1\xa0\x8e x aaa\r\n\t", strlen("a .-[] \xe1\xa0\x8e x aaa\r\n\t"));
		pretok_free(t);
	}
}

/* A pattern that backtracks without end on this text is stopped with a sentence. */
static void test_limits(void **state)
{
	(void)state;
	struct pretok *t;
	struct pretok_scan s;
	struct err e = {0};
	struct buf b = {0};
	size_t start, end;
	assert_int_equal(pretok_new("(?:a|aa)+[bd]", &t, NULL), 0);
	for (int i = 0; i < 40; i++)
		buf_putc(&b, 'a');
	buf_putc(&b, 'c');
	assert_int_equal(pretok_scan_init(&s, t, buf_str(&b), b.len, &e), 0);
	assert_int_equal(pretok_next(&s, &start, &end, &e), ERR_INPUT);
	assert_non_null(strstr(e.text, "match limit"));
	pretok_scan_fini(&s);
	buf_free(&b);
	pretok_free(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_against_rules),
		cmocka_unit_test(test_long_runs),
		cmocka_unit_test(test_gaps),
		cmocka_unit_test(test_patterns),
		cmocka_unit_test(test_limits),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
