/* SPDX-License-Identifier: MIT */
/* A checkpoint's configuration as an untrusted file: what is no regular file is refused without
 * waiting for it, and numbers that memory depends on have limits. */
#include "src/checkpoint/convert_config.h"
#include "src/text/vocab.h"
#include "tests/support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void refused(const char *says)
{
	struct convert_config c;
	struct err e = {0};
	assert_int_equal(convert_config_read(&c, temp_dir(), &e), ERR_INPUT);
	if (!strstr(e.text, says))
		fail_msg("\"%s\" does not say \"%s\"", e.text, says);
}

static void test_pipe(void **state)
{
	(void)state;
	const char *path = temp_dir_path("config.json");
	assert_int_equal(mkfifo(path, 0600), 0);
	refused("config.json: is not a regular file");
	assert_int_equal(unlink(path), 0);
}

static void test_vocabulary(void **state)
{
	(void)state;
	FILE *f = fopen(temp_dir_path("config.json"), "w");
	assert_non_null(f);
	fprintf(f,
		"{\"model_type\": \"glm_moe_dsa\", \"hidden_act\": \"silu\", \"num_hidden_layers\": 2,"
		" \"hidden_size\": 1, \"vocab_size\": %u}",
		VOCAB_TOKENS_MAX + 1);
	assert_int_equal(fclose(f), 0);
	refused("vocab_size");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pipe),
		cmocka_unit_test(test_vocabulary),
	};
	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_drop);
}
