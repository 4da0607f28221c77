/* SPDX-License-Identifier: MIT */
/* What error sentences and printed names leave of foreign text. */
#include "src/base/err.h"
#include "src/base/num.h"

#include <stdarg.h>
#include <errno.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static void test_plain(void **state)
{
	(void)state;
	static const struct {
		const char *text, *plain;
	} cases[] = {
		{"", ""},
		{"plain ~", "plain ~"},
		{"h\xc3\xa4user \xe6\xb1\x9f \xf0\x9f\x8f\xa0",
			"h\xc3\xa4user \xe6\xb1\x9f \xf0\x9f\x8f\xa0"},
		{"a\nb\tc\x7f", "a?b?c?"},
		{"\x1b[31mred", "?[31mred"},
		{"\xc2\x9b"
		 "31m\xc2\x9d"
		 "0;x",
			"?31m?0;x"},                                       /* CSI and OSC of the second range */
		{"\xc2\xa0", "\xc2\xa0"},                              /* the first behind it */
		{"x\xe2\x80\xaey\xe2\x81\xa6z\xe2\x80\x8f", "x?y?z?"}, /* override, isolate, mark */
		{"\xd8\x9c!", "?!"},                                   /* Arabic letter mark */
		{"a\xe2\x80\xa8"
		 "b",
			"a?b"}, /* line separator */
		{"\x9b"
		 "31m",
			"?31m"}, /* CSI of an eight-bit terminal */
		{"\xe0\x80\x9b"
		 "31m",
			"?31m"}, /* overlong ESC */
		{"cut \xe2\x80", "cut ??"},
		{"\xff\xfe", "??"},
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		char text[64];
		strcpy(text, cases[i].text);
		err_plain(text);
		assert_string_equal(text, cases[i].plain);
		assert_string_equal(ERR_PLAIN(cases[i].text), cases[i].plain);
		struct err e = {0};
		err_set(&e, ERR_INPUT, "%s", cases[i].text);
		assert_string_equal(e.text, cases[i].plain);
	}
	assert_string_equal(err_plain_copy("abcdef", (char[4]){0}, 4), "abc");
}

/* Every text becomes one that stays as it is, and no longer. */
static void test_plain_twice(void **state)
{
	(void)state;
	uint32_t x = 1;
	for (int round = 0; round < 20000; round++) {
		char once[16], twice[16];
		for (size_t i = 0; i + 1 < sizeof once; i++) {
			x = x * 1664525 + 1013904223;
			static const unsigned char likely[] = {0xc2, 0x9b, 0xe2, 0x80, 0xae, 0xf0, 27, 'a'};
			once[i] = (char)(x >> 31 ? likely[x >> 8 & 7] : x >> 16 | 1);
		}
		once[sizeof once - 1] = 0;
		size_t before = strlen(once);
		err_plain(once);
		assert_true(strlen(once) <= before);
		strcpy(twice, once);
		err_plain(twice);
		assert_string_equal(once, twice);
	}
}

/* What a caller without a struct err returns is an error all the same. */
static void test_nobody_listens(void **state)
{
	(void)state;
	assert_int_equal(err_set(NULL, ERR_INPUT, "x"), ERR_INPUT);
	assert_int_equal(err_errno(NULL, ENOENT, "x"), ERR_INPUT);
	assert_int_equal(err_prefix(NULL, "x"), ERR_RUN);
	assert_int_equal(err_hint(NULL, "x"), ERR_RUN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_plain),
		cmocka_unit_test(test_plain_twice),
		cmocka_unit_test(test_nobody_listens),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
