/* SPDX-License-Identifier: MIT */
/* The page as it is sent: whole, with nothing from elsewhere, and with a policy that fits this copy
 * and no other. */
#include "src/serve/page.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void test_page(void **state)
{
	(void)state;
	struct buf a = {0}, b = {0};
	struct err e = {0};
	char policy[PAGE_POLICY_MAX], other[PAGE_POLICY_MAX], open[64];
	assert_int_equal(page_write(&a, policy, &e), 0);
	assert_int_equal(page_write(&b, other, &e), 0);
	assert_string_not_equal(policy, other);
	assert_int_equal(a.len, b.len);
	assert_int_equal(strlen(buf_str(&a)), a.len);
	assert_int_equal(strncmp(buf_str(&a), "<!DOCTYPE html>", 15), 0);
	assert_string_equal(buf_str(&a) + a.len - 8, "</html>\n");
	assert_null(strstr(buf_str(&a), "@STYLE@"));
	assert_null(strstr(buf_str(&a), "@SCRIPT@"));

	char nonce[33] = "";
	const char *at = strstr(policy, "script-src 'nonce-");
	assert_non_null(at);
	assert_int_equal(sscanf(at, "script-src 'nonce-%32[0-9a-f]'", nonce), 1);
	assert_int_equal(strlen(nonce), 32);
	snprintf(open, sizeof open, "<script nonce=\"%s\">", nonce);
	at = strstr(buf_str(&a), open);
	assert_non_null(at);
	assert_null(strstr(at + 1, "<script"));
	snprintf(open, sizeof open, "<style nonce=\"%s\">", nonce);
	assert_non_null(strstr(buf_str(&a), open));
	assert_null(strstr(policy, "unsafe"));
	assert_non_null(strstr(policy, "default-src 'none'"));

	/* what a model writes must never become markup or code */
	static const char *const forbidden[] = {"innerHTML", "outerHTML", "insertAdjacentHTML",
		"document.write", "eval(", "new Function", "DOMParser", " src=", "@import", "url(",
		"<link rel=\"stylesheet\""};
	for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++)
		if (strstr(buf_str(&a), forbidden[i]))
			fail_msg("the page contains %s", forbidden[i]);
	buf_free(&a);
	buf_free(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_page)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
