/* SPDX-License-Identifier: MIT */
/*
 * Attention of prompts on a card, in one pass and in two (backend_options.exact_prompts), against
 * the CPU backend and the formula. Exits with 77 where no device answers.
 *
 * One pass (cards with wgmma) rounds queries and attention weights to 11 bits. A score is then off
 * by at most 2^-11 of the sum of |query * key|, for which the scale that op_case_reference reports
 * has a factor; a weight by 2^-11 of itself, in the sum of values and in the sum of weights.
 */
#include "kernels/backend.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "tests/kernels/op_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FLOAT_UNITS    16.0    /* of 2^-24: TOLERANCE of test_backend_parity.c */
#define ROUNDING_UNITS 24576.0 /* of 2^-24: three times 2^-11 */
#define ERROR_ONE      2e-3
#define ERROR_TWO      1e-5

static struct backend *cpu, *one, *two;

#define CASE(n_heads, list, last, turned)                                                          \
	{                                                                                              \
		.name = #n_heads " heads, " #list " of " #last, .op = OP_ATTEND, .type = DTYPE_F16,        \
		.rows = 20, .heads = n_heads, .dim = 64, .n_value = 512, .top_k = list, .far = last,       \
		.rotate = turned                                                                           \
	}
static const struct op_case cases[] = {
	CASE(64, 2048, 8191, false),
	CASE(64, 300, 299, true),
	CASE(64, 47, 60, false),
	CASE(64, 48, 60, false),
	CASE(64, 49, 60, false),
	CASE(8, 144, 200, true),
	CASE(16, 97, 5000, false),
	CASE(65, 145, 200, true),
	CASE(4, 512, 700, false),
};

static double error_of(const float *got, const float *want, size_t n)
{
	double diff = 0, norm = 0;
	for (size_t i = 0; i < n; i++) {
		double d = (double)got[i] - (double)want[i];
		diff += d * d;
		norm += (double)want[i] * (double)want[i];
	}
	return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}

static void check_case(const struct op_case *c)
{
	size_t width = (size_t)op_case_width(c), n = (size_t)c->rows * width;
	float *want = op_case_run(cpu, c, 0, c->rows), *got = op_case_run(one, c, 0, c->rows),
		  *exact = op_case_run(two, c, 0, c->rows);
	double *value = NEW_ARRAY(double, n), *scale = NEW_ARRAY(double, n), worst = 0;
	op_case_reference(c, value, scale);
	for (size_t i = 0; i < n; i++) {
		double off = fabs((double)got[i] - value[i]), unit = 0x1p-24 * scale[i];
		worst = off > worst * unit ? off / unit : worst;
	}
	double error = error_of(got, want, n), of_two = error_of(exact, want, n);
	print_message("%-26s one pass %.2e, two %.2e, worst value %.0f units of 2^-24\n", c->name,
		error, of_two, worst);
	if (!(worst <= FLOAT_UNITS + ROUNDING_UNITS))
		fail_msg("%s: a value is %.3g units off in one pass", c->name, worst);
	if (!(error <= ERROR_ONE))
		fail_msg("%s: normalised error %.3e in one pass", c->name, error);
	if (!(of_two <= ERROR_TWO))
		fail_msg("%s: normalised error %.3e in two passes", c->name, of_two);

	/* a row's bits do not depend on its batch */
	int some = MIN(c->rows / 3, c->rows - 17);
	float *rest = op_case_run(one, c, some, c->rows - some);
	op_case_same_bits(
		c, "in another batch", got + (size_t)some * width, rest, (size_t)(c->rows - some) * width);
	free(rest);
	free(value);
	free(scale);
	free(want);
	free(got);
	free(exact);
}

static void test_cases(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		check_case(&cases[i]);
}

int main(void)
{
	struct err e = {0};
	if (backend_open(&(struct backend_options){.name = "cuda"}, &one, &e)) {
		printf("skipped: %s\n", e.text);
		return 77;
	}
	if (backend_open(&(struct backend_options){.name = "cuda", .exact_prompts = true}, &two, &e) ||
		backend_open(&(struct backend_options){.name = "cpu"}, &cpu, &e)) {
		fprintf(stderr, "%s\n", e.text);
		return 1;
	}
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cases),
	};
	int rc = cmocka_run_group_tests(tests, NULL, NULL);
	one->ops->close(one);
	two->ops->close(two);
	cpu->ops->close(cpu);
	return rc;
}
