/* SPDX-License-Identifier: MIT */
/* Why no card is used, in words that say what is the matter: the registry with a CUDA backend that
 * fails as the real one does on a machine without card and driver. */
#undef HAVE_CUDA
#define HAVE_CUDA         1
#define cuda_backend_open failing_backend_open
#include "kernels/backend.c"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

int failing_backend_open(const struct backend_options *options, struct backend **out, struct err *e)
{
	(void)options;
	*out = NULL;
	return err_set(e, ERR_RUN,
		"backend cuda: no device answers: CUDA driver version is insufficient for CUDA runtime "
		"version");
}

static void test_no_card(void **state)
{
	(void)state;
	if (card_is_there())
		skip();
	struct err e = {0};
	struct backend *b;
	assert_int_equal(backend_open(&(struct backend_options){.name = "cuda"}, &b, &e), ERR_RUN);
	assert_string_equal(e.text, "backend cuda: no graphics card found");
	e = (struct err){0};
	assert_int_equal(backend_open(&(struct backend_options){.threads = 1}, &b, &e), 0);
	assert_string_equal(b->ops->name, "cpu");
	b->ops->close(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_card)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
