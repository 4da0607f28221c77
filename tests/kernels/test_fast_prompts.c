/* SPDX-License-Identifier: MIT */
/*
 * backend_options.fast_prompts: products of steps above CPU_DECODE_ROWS rows. They equal those of
 * plain C bit by bit on every instruction set, do not depend on the other rows of a step or on
 * threads, and are near the formula. Smaller steps and types that limbs do not cover have the bits
 * of floats.
 */
#include "kernels/cpu/cpu_internal.h"
#include "kernels/cpu/limbs/limb_matmul.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "tests/kernels/op_cases.h"
#include "tests/support/slow_build.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Normalised error of a case. x is rounded to 2^-16 of the largest of 256 values, which is often 30
 * times a usual one (op_random). */
#define ERROR  1e-3
#define FEWEST (CPU_DECODE_ROWS + 1)
#define MIB    ((size_t)1 << 20)

#define TYPE_CASES(t)                                                                              \
	{.name = "fewest " #t,                                                                         \
		.op = OP_MATMUL,                                                                           \
		.type = DTYPE_##t,                                                                         \
		.rows = FEWEST,                                                                            \
		.n_in = 512,                                                                               \
		.n_out = 37},                                                                              \
		{.name = "wide " #t,                                                                       \
			.op = OP_MATMUL,                                                                       \
			.type = DTYPE_##t,                                                                     \
			.rows = 79,                                                                            \
			.n_in = 6144,                                                                          \
			.n_out = 18},                                                                          \
		{.name = "many " #t,                                                                       \
			.op = OP_MATMUL,                                                                       \
			.type = DTYPE_##t,                                                                     \
			.rows = 300,                                                                           \
			.n_in = 256,                                                                           \
			.n_out = 131},                                                                         \
		{.name = "experts " #t,                                                                    \
			.op = OP_EXPERT_FFN,                                                                   \
			.type = DTYPE_##t,                                                                     \
			.rows = 67,                                                                            \
			.n_in = 512,                                                                           \
			.n_out = 256,                                                                          \
			.heads = 3,                                                                            \
			.n_used = 2},                                                                          \
		{.name = "stack " #t,                                                                      \
			.op = OP_STACKED_MATMUL,                                                               \
			.type = DTYPE_##t,                                                                     \
			.rows = 83,                                                                            \
			.n_in = 256,                                                                           \
			.n_out = 21,                                                                           \
			.heads = 3},                                                                           \
		{.name = "ffn " #t,                                                                        \
			.op = OP_FFN,                                                                          \
			.type = DTYPE_##t,                                                                     \
			.rows = 67,                                                                            \
			.n_in = 256,                                                                           \
			.n_out = 512},

static const struct op_case cases[] = {
	TYPE_CASES(IQ2_XXS) TYPE_CASES(IQ2_XS) TYPE_CASES(Q2_K) TYPE_CASES(Q3_K) TYPE_CASES(Q4_K)
		TYPE_CASES(Q6_K) TYPE_CASES(Q8_0){.name = "odd Q8_0",
			.op = OP_MATMUL,
			.type = DTYPE_Q8_0,
			.rows = 101,
			.n_in = 1376,
			.n_out = 5},
	{.name = "short Q8_0",
		.op = OP_STACKED_MATMUL,
		.type = DTYPE_Q8_0,
		.rows = 101,
		.n_in = 192,
		.n_out = 40,
		.heads = 4},
	{.name = "experts Q4_K, Q8_0",
		.op = OP_EXPERT_FFN,
		.type = DTYPE_Q4_K,
		.up_type = DTYPE_Q8_0,
		.rows = 70,
		.n_in = 256,
		.n_out = 256,
		.heads = 4,
		.n_used = 2},
};

/* Fast prompts with the limbs of a level of limb_isa_available; NULL: there is none. */
static struct backend *fast_backend(int level, int threads)
{
	struct backend *b;
	struct err e = {0};
	const struct backend_options options = {.name = "cpu", .threads = threads};
	if (!limb_isa_available(level))
		return NULL;
	assert_int_equal(backend_open(&options, &b, &e), 0);
	cpu_of(b)->limbs = limb_isa_available(level);
	cpu_set_fast_prompts(cpu_of(b));
	return b;
}

static struct backend *float_backend(void)
{
	struct backend *b;
	struct err e = {0};
	assert_int_equal(backend_open(&(struct backend_options){.name = "cpu"}, &b, &e), 0);
	return b;
}

static size_t case_values(const struct op_case *c)
{
	return (size_t)c->rows * (size_t)op_case_width(c);
}

static void test_levels(void **state)
{
	(void)state;
	struct backend *b = fast_backend(0, 1), *other;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const struct op_case *c = &cases[i];
		float *want = op_case_run(b, c, 0, c->rows);
		for (int level = 0; (other = fast_backend(level, 3)); level++) {
			float *got = op_case_run(other, c, 0, c->rows);
			op_case_same_bits(c, cpu_of(other)->limbs->name, want, got, case_values(c));
			free(got);
			other->ops->close(other);
		}
		free(want);
	}
	b->ops->close(b);
}

static void test_formula(void **state)
{
	(void)state;
	struct backend *b = fast_backend(0, 2), *floats = float_backend();
	double worst = 0;
	for (size_t i = 0; i < ARRAY_LEN(cases); i += IF_SLOW_BUILD(5, 1)) {
		const struct op_case *c = &cases[i];
		const size_t n = case_values(c);
		float *got = op_case_run(b, c, 0, c->rows), *other = op_case_run(floats, c, 0, c->rows);
		double *value = NEW_ARRAY(double, n), *scale = NEW_ARRAY(double, n);
		double diff = 0, norm = 0;
		op_case_reference(c, value, scale);
		for (size_t k = 0; k < n; k++) {
			assert_true(isfinite(got[k]));
			diff += ((double)got[k] - value[k]) * ((double)got[k] - value[k]);
			norm += value[k] * value[k];
		}
		worst = fmax(worst, sqrt(diff / norm));
		if (!(diff <= ERROR * ERROR * norm))
			fail_msg("%s, %s: normalised error %.3e", op_names[c->op], c->name, sqrt(diff / norm));
		assert_int_not_equal(memcmp(got, other, n * sizeof *got), 0); /* it was not floats */
		free(got);
		free(other);
		free(value);
		free(scale);
	}
	print_message("worst normalised error %.1e of %.0e\n", worst, ERROR);
	b->ops->close(b);
	floats->ops->close(floats);
}

/* However a prompt is cut into steps of more than CPU_DECODE_ROWS rows, a row has the same bits. */
static void test_steps(void **state)
{
	(void)state;
	struct backend *b = fast_backend(0, 2);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const struct op_case *c = &cases[i];
		const size_t width = (size_t)op_case_width(c);
		float *whole = op_case_run(b, c, 0, c->rows);
		for (int n = FEWEST; n < c->rows; n += IF_SLOW_BUILD(124, 31))
			for (int first = 0; first + n <= c->rows; first += n) {
				float *part = op_case_run(b, c, first, n);
				op_case_same_bits(
					c, "a part", whole + (size_t)first * width, part, (size_t)n * width);
				free(part);
			}
		free(whole);
	}
	b->ops->close(b);
}

static void test_floats_remain(void **state)
{
	(void)state;
	struct backend *b = fast_backend(0, 2), *floats = float_backend();
	assert_int_equal(b->ops->decode_rows, CPU_DECODE_ROWS);
	for (size_t i = 0; i < ARRAY_LEN(cases); i += IF_SLOW_BUILD(5, 1)) {
		struct op_case c = cases[i];
		for (int other_type = 0; other_type < 2; other_type++) {
			const int n = other_type ? c.rows : CPU_DECODE_ROWS;
			if (other_type && (c.up_type || c.n_in % 256))
				continue;
			if (other_type)
				c.type = DTYPE_Q5_K;
			float *want = op_case_run(floats, &c, 0, n), *got = op_case_run(b, &c, 0, n);
			op_case_same_bits(&c, "floats", want, got, (size_t)n * (size_t)op_case_width(&c));
			free(want);
			free(got);
		}
	}
	b->ops->close(b);
	floats->ops->close(floats);
}

/* The memory plan counts what a case takes, to the MiB that cpu_scratch rounds up to. A small case
 * takes fewer threads, and a little less memory, than planned. */
static void test_planned_scratch(void **state)
{
	(void)state;
	struct backend *b;
	for (int level = 0; limb_isa_available(level); level++)
		/* every fifth case, from another one on for each instruction set */
		for (size_t i = (size_t)level % 5; i < ARRAY_LEN(cases); i += 5) {
			const struct op_case *c = &cases[i];
			struct weight w = {.type = c->type,
				.n_in = c->n_in,
				.n_out = c->n_out,
				.n_stack = c->op == OP_STACKED_MATMUL ? c->heads : 1};
			struct expert_job shape = {.gate = w, .up = w, .down = w};
			size_t planned = 0;
			b = fast_backend(level, 3);
			if (c->up_type)
				shape.up.type = c->up_type;
			shape.down.n_in = c->n_out;
			shape.down.n_out = c->n_in;
			if (c->op == OP_EXPERT_FFN)
				planned = b->ops->expert_scratch(b, &shape, c->rows, c->n_used);
			else
				planned = MAX(b->ops->matmul_scratch(b, &w, c->rows),
					c->op == OP_FFN ? b->ops->matmul_scratch(b, &shape.down, c->rows) : 0);
			free(op_case_run(b, c, 0, c->rows));
			const size_t taken = cpu_of(b)->scratch_bytes;
			if (taken > num_align_up(planned, MIB) || planned > taken + MIB)
				fail_msg("%s, %s: %zu bytes planned, %zu taken", op_names[c->op], c->name, planned,
					taken);
			assert_int_equal(b->ops->matmul_scratch(b, &w, CPU_DECODE_ROWS), 0);
			assert_int_equal(b->ops->expert_scratch(b, &shape, CPU_DECODE_ROWS, 8), 0);
			b->ops->close(b);
		}
	b = float_backend();
	const struct weight w = {.type = DTYPE_Q4_K, .n_in = 256, .n_out = 256, .n_stack = 1};
	assert_int_equal(b->ops->matmul_scratch(b, &w, 512), 0);
	b->ops->close(b);
}

/* The option takes effect where there are tiles. */
static void test_option(void **state)
{
	(void)state;
	struct backend *b;
	struct err e = {0};
	const struct backend_options options = {.name = "cpu", .fast_prompts = true};
	assert_int_equal(backend_open(&options, &b, &e), 0);
	const bool tiles = limb_isa_amx && limb_isa_available(0) == limb_isa_amx;
	assert_int_equal(b->ops->decode_rows, tiles ? CPU_DECODE_ROWS : INT32_MAX);
	b->ops->close(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_levels),
		cmocka_unit_test(test_formula),
		cmocka_unit_test(test_steps),
		cmocka_unit_test(test_floats_remain),
		cmocka_unit_test(test_planned_scratch),
		cmocka_unit_test(test_option),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
