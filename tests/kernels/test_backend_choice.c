/* SPDX-License-Identifier: MIT */
/* Why no card is used, in words that say what is the matter. */
#include "kernels/backend_kinds.h"

#include "tests/support/temp_dir.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <setjmp.h>
#include <cmocka.h>

static void test_no_card(void **state)
{
	(void)state;
	static const char too_old[] = "backend cuda: no device answers: CUDA driver version is "
								  "insufficient for CUDA runtime version";
	struct err e = {0};
	err_set(&e, ERR_RUN, "%s", too_old);
	assert_false(backend_explain_no_card(temp_dir(), ERR_RUN, &e));
	assert_int_equal(e.code, ERR_RUN);
	assert_string_equal(e.text, "backend cuda: no graphics card found");
	/* with a card the driver may well be too old */
	FILE *f = fopen(temp_dir_path("nvidia0"), "w");
	assert_non_null(f);
	fclose(f);
	err_set(&e, ERR_RUN, "%s", too_old);
	assert_true(backend_explain_no_card(temp_dir(), ERR_RUN, &e));
	assert_string_equal(e.text, too_old);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_card)};
	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_drop);
}
