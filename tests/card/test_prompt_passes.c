/* SPDX-License-Identifier: MIT */
/*
 * Products and attention of prompts on a card in one pass and in two
 * (backend_options.exact_prompts), against the CPU backend and the formulas. Exits with 77 where no
 * device answers.
 *
 * One pass rounds each activation to 11 bits, and on cards with wgmma the weights whose blocks of
 * 32 have a float factor: each is off by at most 2^-11 of itself. So a product is off by at most
 * 2^-10 of the sum of |weight * activation|, which op_case_reference reports, beside the roundings
 * of float32 sums that two passes have as well (test_backend_parity.c). In a feed-forward network x
 * and the hidden row are rounded one after the other, and the gate's error is multiplied by up and
 * the other way round.
 *
 * Attention in one pass (cards with wgmma; others take two) rounds queries and attention weights to
 * 11 bits. A score is then off by at most 2^-11 of the sum of |query * key|, for which the reported
 * scale has a factor; a weight by 2^-11 of itself, in the sum of values and in that of weights.
 */
#include "kernels/backend.h"
#include "src/base/half.h"
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

#define FLOAT_UNITS    64.0         /* of 2^-24: TOLERANCE_PACKED of test_backend_parity.c */
#define ROUNDING_UNITS 16384.0      /* of 2^-24: 2^-10 */
#define FFN_ROUNDINGS  6.0          /* twice gate, up and down each */
#define ERROR_PRODUCT  (0.5 / 1024) /* 2^-11 of the norm, were all roundings alike */
#define ERROR_PACKED   (1.0 / 1024) /* rows of a packed type: its weights are rounded to halves */
#define ERROR_FFN      (1.5 / 1024)
#define ATTEND_UNITS   24576.0      /* of 2^-24: three times 2^-11 */
#define ERROR_ATTEND   (2.0 / 1024) /* outliers make scores of some heads large */
#define ERROR_EXACT    1e-5

static struct backend *cpu, *one, *two;

static bool is_product(const struct op_case *c)
{
	return c->op == OP_MATMUL || c->op == OP_STACKED_MATMUL || c->op == OP_FFN ||
		   c->op == OP_EXPERT_FFN;
}

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

static void check_passes(const struct op_case *c)
{
	bool ffn = c->op == OP_FFN || c->op == OP_EXPERT_FFN, attend = c->op == OP_ATTEND;
	double units = attend ? ATTEND_UNITS : ROUNDING_UNITS * (ffn ? FFN_ROUNDINGS : 1);
	double limit = attend ? ERROR_ATTEND : ffn ? ERROR_FFN : ERROR_PRODUCT;
	size_t width = (size_t)op_case_width(c), n = (size_t)c->rows * width;
	float *want = op_case_run(cpu, c, 0, c->rows), *got = op_case_run(one, c, 0, c->rows),
		  *exact = op_case_run(two, c, 0, c->rows);
	double *value = NEW_ARRAY(double, n), *scale = NEW_ARRAY(double, n), worst = 0;
	op_case_reference(c, value, scale);
	for (size_t i = 0; i < n; i++) {
		double off = fabs((double)got[i] - value[i]), unit = 0x1p-24 * scale[i];
		if (!(off <= (FLOAT_UNITS + units) * unit))
			fail_msg("%s, %s: value %zu is %.9g in one pass, the formula gives %.9g (%.3g units)",
				op_names[c->op], c->name, i, (double)got[i], value[i], off / unit);
		worst = off > worst * unit ? off / unit : worst;
	}
	double error = error_of(got, want, n), of_two = error_of(exact, want, n);
	print_message("%-16s %-22s one pass %.2e, two %.2e, worst value %.0f units of 2^-24\n",
		op_names[c->op], c->name, error, of_two, worst);
	if (!(error <= limit))
		fail_msg("%s, %s: normalised error %.3e in one pass", op_names[c->op], c->name, error);
	if (!(of_two <= ERROR_EXACT))
		fail_msg("%s, %s: normalised error %.3e in two passes", op_names[c->op], c->name, of_two);
	if (!attend && !(error > 4 * of_two)) /* else the option has no effect */
		fail_msg("%s, %s: one pass is as exact as two", op_names[c->op], c->name);

	/* a row's bits do not depend on its batch */
	int some = (c->rows - (int)one->ops->decode_rows) / 2;
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

static void test_products(void **state)
{
	(void)state;
	int n = 0;
	for (int i = 0; i < op_cases_n; i++)
		if (is_product(&op_cases[i]) && op_cases[i].rows > 16) { /* the others are large */
			struct op_case c = op_cases[i];
			c.rows = MAX(c.rows, (int)one->ops->decode_rows + 9);
			check_passes(&c);
			n++;
		}
	assert_true(n > 20);
}

#define ATTEND_CASE(n_heads, list, last, turned)                                                   \
	{                                                                                              \
		.name = #list " of " #last, .op = OP_ATTEND, .type = DTYPE_F16, .heads = n_heads,          \
		.dim = 64, .n_value = 512, .top_k = list, .far = last, .rotate = turned                    \
	}

/* Lists of fewer than a block of 48 positions and of parts of one; heads that do not fill a block
 * of 64, and more. */
static void test_attention(void **state)
{
	(void)state;
	static const struct op_case cases[] = {
		ATTEND_CASE(16, 2048, 8191, false),
		ATTEND_CASE(64, 300, 299, true),
		ATTEND_CASE(64, 47, 60, false),
		ATTEND_CASE(64, 48, 60, false),
		ATTEND_CASE(64, 49, 60, false),
		ATTEND_CASE(8, 144, 200, true),
		ATTEND_CASE(16, 97, 5000, false),
		ATTEND_CASE(65, 145, 200, true),
		ATTEND_CASE(4, 512, 700, false),
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct op_case c = cases[i];
		c.rows = (int)one->ops->decode_rows + 9;
		check_passes(&c);
	}
}

/* ---- rows of every magnitude ---- */

enum { N_IN = 512, N_OUT = 160, ROWS = 72 };

/* y [ROWS][N_OUT] = weights of a type times x, on one backend. */
static void multiply(struct backend *b, enum dtype type, const float *x, float *y)
{
	struct err e = {0};
	uint64_t row = 0;
	assert_true(dtype_row_bytes(type, N_IN, &row));
	size_t bytes = (size_t)row * N_OUT, x_bytes = ROWS * N_IN * sizeof *x,
		   y_bytes = ROWS * N_OUT * sizeof *y;
	uint8_t *blocks = NEW_ARRAY(uint8_t, bytes);
	op_random_blocks(7, (int)type, type, blocks, bytes);
	void *w, *from, *to;
	assert_int_equal(b->ops->alloc(b, MEM_DEVICE, bytes, &w, &e), 0);
	assert_int_equal(b->ops->alloc(b, MEM_DEVICE, x_bytes, &from, &e), 0);
	assert_int_equal(b->ops->alloc(b, MEM_DEVICE, y_bytes, &to, &e), 0);
	b->ops->upload(b, w, blocks, bytes);
	b->ops->upload(b, from, x, x_bytes);
	struct matmul m = {.w = {.data = w,
						   .type = type,
						   .n_in = N_IN,
						   .n_out = N_OUT,
						   .n_stack = 1,
						   .row_bytes = (size_t)row,
						   .stack_bytes = bytes},
		.y = to};
	b->ops->matmul(b, &m, 1, from, ROWS);
	if (b->ops->download(b, y, to, y_bytes, &e))
		fail_msg("%s", e.text);
	b->ops->free(b, MEM_DEVICE, w, bytes);
	b->ops->free(b, MEM_DEVICE, from, x_bytes);
	b->ops->free(b, MEM_DEVICE, to, y_bytes);
	free(blocks);
}

/* Values of row r are around 10 to the power of this: from denormals to 1e30. */
static double row_exponent(int r)
{
	return -42 + 72.0 * r / (ROWS - 1);
}

/* Row 3 is zero; rows 25 and 26 have one value that dwarfs the others. */
static void ranges(float *x)
{
	op_random(11, 1, x, ROWS * N_IN);
	for (int r = 0; r < ROWS; r++) {
		float *row = x + r * N_IN, by = (float)pow(10, row_exponent(r));
		for (int i = 0; i < N_IN; i++)
			row[i] = r == 3 ? 0 : row[i] * by;
		if (r == 25 || r == 26)
			row[77] = r == 25 ? 1e20f : -1e-2f;
	}
}

static void test_ranges(void **state)
{
	(void)state;
	static const enum dtype types[] = {
		DTYPE_Q8_0, DTYPE_IQ2_XXS, DTYPE_Q2_K, DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_BF16, DTYPE_F32};
	float *x = NEW_ARRAY(float, ROWS *N_IN), *want = NEW_ARRAY(float, ROWS *N_OUT),
		  *got = NEW_ARRAY(float, ROWS *N_OUT);
	ranges(x);
	for (size_t t = 0; t < ARRAY_LEN(types); t++) {
		multiply(cpu, types[t], x, want);
		for (int passes = 1; passes <= 2; passes++) {
			multiply(passes == 1 ? one : two, types[t], x, got);
			for (int r = 0; r < ROWS; r++) {
				const float *a = got + r * N_OUT, *b = want + r * N_OUT;
				/* near the smallest floats both lose bits: only no large values come out */
				bool tiny = row_exponent(r) < -33;
				double error = error_of(a, b, N_OUT),
					   limit = passes == 1 ? ERROR_PACKED : ERROR_EXACT;
				for (int i = 0; i < N_OUT; i++) {
					if (!isfinite(a[i]))
						fail_msg("%s, %d pass, row %d: value %d is %g", dtype_name(types[t]),
							passes, r, i, (double)a[i]);
					if (r == 3 && a[i] != 0)
						fail_msg("%s: zeros give %g", dtype_name(types[t]), (double)a[i]);
					if (tiny && fabsf(a[i]) > 1e-28f)
						fail_msg(
							"%s, row %d: value %d is %g", dtype_name(types[t]), r, i, (double)a[i]);
				}
				if (!tiny && !(error <= limit))
					fail_msg("%s, %d pass, row %d: normalised error %.3e", dtype_name(types[t]),
						passes, r, error);
			}
		}
		/* what is not finite stays so, in its row alone */
		float *broken = NEW_ARRAY(float, ROWS *N_IN), *other = NEW_ARRAY(float, ROWS *N_OUT);
		memcpy(broken, x, ROWS * N_IN * sizeof *x);
		broken[9 * N_IN + 300] = INFINITY;
		broken[12 * N_IN + 5] = NAN;
		multiply(one, types[t], x, got);
		multiply(one, types[t], broken, other);
		for (int r = 0; r < ROWS; r++)
			for (int i = 0; i < N_OUT; i++) {
				float v = other[r * N_OUT + i];
				if (r == 9 || r == 12)
					continue;
				if (f32_bits(v) != f32_bits(got[r * N_OUT + i]))
					fail_msg("%s: row %d is not its own", dtype_name(types[t]), r);
			}
		for (int i = 0; i < N_OUT; i++)
			if (isfinite(other[9 * N_OUT + i]) || isfinite(other[12 * N_OUT + i]))
				fail_msg("%s: value %d is finite, its row is not", dtype_name(types[t]), i);
		free(broken);
		free(other);
	}
	free(x);
	free(want);
	free(got);
}

int main(int argc, char **argv)
{
	struct err e = {0};
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
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
		cmocka_unit_test(test_products),
		cmocka_unit_test(test_ranges),
		cmocka_unit_test(test_attention),
	};
	int rc = cmocka_run_group_tests(tests, NULL, NULL);
	one->ops->close(one);
	two->ops->close(two);
	cpu->ops->close(cpu);
	return rc;
}
