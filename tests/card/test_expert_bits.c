/* SPDX-License-Identifier: MIT */
/*
 * Experts on the card against experts on the processor (kernels/expert_arithmetic.h): equal bits,
 * every type of expert_arithmetic_covers, steps of 1 to 8, of 16, 33 and 64 rows. Down of Q4_K is
 * Q6_K. Exits with 77 where no card answers.
 *
 * The shapes reach each kernel of the card: experts_kernel (IQ2_XXS, Q2_K of a few MB), and
 * gemv_mma_kernel with one, two and more rows of x to an expert, with 1 to 8 parts of a row.
 */
#include "src/base/mem.h"
#include "src/base/num.h"
#include "tests/kernels/limb_backend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static struct backend *card, *processor;

static const enum dtype types[] = {
	DTYPE_IQ2_XXS, DTYPE_IQ2_XS, DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_Q8_0};

static void check_types(
	enum dtype type, enum dtype up, int rows, int n_embd, int n_ff, int n_experts)
{
	char name[64];
	snprintf(name, sizeof name, "%s %s %d>%d", dtype_name(type), dtype_name(up), n_embd, n_ff);
	const struct op_case c = {.name = name,
		.op = OP_EXPERT_FFN,
		.type = type,
		.up_type = up,
		.rows = rows,
		.n_in = n_embd,
		.n_out = n_ff,
		.heads = n_experts,
		.n_used = 3};
	assert_true(limb_backend_covers(&c));
	float *want = op_case_run(card, &c, 0, rows), *got = op_case_run(processor, &c, 0, rows);
	op_case_same_bits(&c, "on the processor", want, got, (size_t)rows * (size_t)op_case_width(&c));
	free(want);
	free(got);
}

static void check_shape(enum dtype type, int rows, int n_embd, int n_ff, int n_experts)
{
	check_types(type, type, rows, n_embd, n_ff, n_experts);
}

/* Gate and up of different types: the card multiplies them apart and then takes cuda_swiglu. */
static void test_gate_and_up(void **state)
{
	(void)state;
	for (size_t t = 0; t < ARRAY_LEN(types); t++)
		for (int rows = 1; rows <= 16; rows = 2 * rows + 1) {
			enum dtype up = types[(t + 1) % ARRAY_LEN(types)];
			check_types(types[t], up, rows, 2304, 768, 6);
			check_types(up, types[t], rows, 256, 256, 3);
		}
}

static void test_small(void **state)
{
	(void)state;
	for (size_t t = 0; t < ARRAY_LEN(types); t++)
		for (int rows = 1; rows <= 8; rows++) {
			check_shape(types[t], rows, 256, 256, 5);
			check_shape(types[t], rows, 2304, 768, 6);
		}
}

/* Rows of many parts; experts of one slot and of more than eight. */
static void test_large(void **state)
{
	(void)state;
	static const int rows[] = {1, 2, 3, 5, 8, 16};
	for (size_t t = 0; t < ARRAY_LEN(types); t++)
		for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
			check_shape(types[t], rows[i], 6144, 512, 4);
			check_shape(types[t], rows[i], 2048, 2048, 9);
		}
	check_shape(DTYPE_IQ2_XXS, 1, 6144, 2048, 8);
	check_shape(DTYPE_Q2_K, 2, 6144, 2048, 8);
	check_shape(DTYPE_Q8_0, 4, 6144, 2048, 8);
	check_shape(DTYPE_IQ2_XXS, 2, 8192, 256, 3);
}

/* Up to the most rows of a decode step: experts of many tasks, and tasks of every size. */
static void test_many_rows(void **state)
{
	(void)state;
	for (size_t t = 0; t < ARRAY_LEN(types); t++)
		for (int rows = 33; rows <= 64; rows += 31) {
			check_shape(types[t], rows, 2304, 768, 6);
			check_shape(types[t], rows, 2304, 256, 30);
		}
}

int main(void)
{
	struct err e = {0};
	struct backend_options options = {.name = "cuda"};
	if (backend_open(&options, &card, &e)) {
		printf("skipped: %s\n", e.text);
		return 77;
	}
	processor = limb_backend_open(0, 0);
	if (!processor)
		return 1;
	print_message("%s against %s\n", backend_describe(card), backend_describe(processor));
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_small),
		cmocka_unit_test(test_large),
		cmocka_unit_test(test_many_rows),
		cmocka_unit_test(test_gate_and_up),
	};
	int rc = cmocka_run_group_tests(tests, NULL, NULL);
	card->ops->close(card);
	processor->ops->close(processor);
	return rc;
}
