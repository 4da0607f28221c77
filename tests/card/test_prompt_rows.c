/* SPDX-License-Identifier: MIT */
/*
 * Prompts of GLM-5.2's size on a card, products, experts and selections: the bits of a row do not
 * depend on the number of rows, from one above the decode limit to 8,192, nor on the rows beside
 * it; and they are the processor's product but for the roundings of one pass. These are the
 * products that cublasLt takes where it is installed (kernels/cuda/library/library_gemm.cu); the
 * last line says whether it was. Exits with 77 where no device answers.
 */
#include "kernels/library.h"
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

#define ROWS_MOST   8192
#define ROWS_CPU    3
#define SCORE_UNITS 16.0         /* of 2^-24, as test_backend_parity.c */
#define ERROR_LIMIT (1.0 / 1024) /* x and weights are rounded to 11 bits each */

static struct backend *card, *cpu;

struct card_product {
	const char *name;
	enum dtype type;
	int n_in, n_out;
	bool add;
};

static const struct card_product products[] = {
	{"q_b", DTYPE_Q8_0, 2048, 16384, false},
	{"o", DTYPE_Q8_0, 16384, 2056, true},
	{"least", DTYPE_Q4_K, 4096, 8192, false},
	{"halves", DTYPE_F16, 4104, 8184, true},
	{"BF16", DTYPE_BF16, 6144, 5464, false},
	{"minima", DTYPE_Q2_K, 8192, 4096, true},
	{"q_a, the least of the library", DTYPE_Q8_0, 6144, 2048, false},
	{"too small for the library", DTYPE_Q8_0, 6144, 1024, true},
};

/* One product's operands on a backend: rows of x, and y, which begins as `before` in each value. */
struct operands {
	struct backend *b;
	struct matmul m;
	float *x; /* device */
	size_t w_bytes, x_bytes, y_bytes;
	void *w, *y;
};

static void *put(struct backend *b, const void *from, size_t bytes)
{
	struct err e = {0};
	void *p;
	if (b->ops->alloc(b, MEM_DEVICE, bytes, &p, &e))
		fail_msg("%s", e.text);
	b->ops->upload(b, p, from, bytes);
	return p;
}

static void operands_make(struct operands *o, struct backend *b, const struct card_product *p,
	const uint8_t *w, size_t row_bytes, const float *x, int rows)
{
	float *before = NEW_ARRAY(float, (size_t)rows *(size_t)p->n_out);
	for (size_t i = 0; i < (size_t)rows * (size_t)p->n_out; i++)
		before[i] = 0.25f;
	*o = (struct operands){.b = b,
		.w_bytes = row_bytes * (size_t)p->n_out,
		.x_bytes = (size_t)rows * (size_t)p->n_in * sizeof *x,
		.y_bytes = (size_t)rows * (size_t)p->n_out * sizeof *x};
	o->w = put(b, w, o->w_bytes);
	o->x = put(b, x, o->x_bytes);
	o->y = put(b, before, o->y_bytes);
	o->m = (struct matmul){.w = {.data = o->w,
							   .type = p->type,
							   .n_in = p->n_in,
							   .n_out = p->n_out,
							   .n_stack = 1,
							   .row_bytes = row_bytes,
							   .stack_bytes = o->w_bytes},
		.y = o->y,
		.add = p->add};
	free(before);
}

static void operands_free(struct operands *o)
{
	o->b->ops->free(o->b, MEM_DEVICE, o->w, o->w_bytes);
	o->b->ops->free(o->b, MEM_DEVICE, o->x, o->x_bytes);
	o->b->ops->free(o->b, MEM_DEVICE, o->y, o->y_bytes);
}

/* y of rows [first, first + n), freed by the caller */
static float *multiply(struct operands *o, const struct card_product *p, int first, int n)
{
	struct err e = {0};
	size_t width = (size_t)p->n_out, values = (size_t)n * width;
	float *y = NEW_ARRAY(float, values);
	for (size_t i = 0; i < values; i++)
		y[i] = 0.25f;
	o->b->ops->upload(o->b, o->y, y, values * sizeof *y);
	o->b->ops->matmul(o->b, &o->m, 1, o->x + (size_t)first * (size_t)p->n_in, n);
	if (o->b->ops->download(o->b, y, o->y, values * sizeof *y, &e))
		fail_msg("%s: %s", p->name, e.text);
	return y;
}

/* Rows whose magnitudes differ; row 1 is zero. */
static float *some_rows(int n_in)
{
	float *x = NEW_ARRAY(float, (size_t)ROWS_MOST *(size_t)n_in);
	op_random(5, n_in, x, (size_t)ROWS_MOST * (size_t)n_in);
	for (int r = 0; r < ROWS_MOST; r++)
		for (int i = 0; i < n_in; i++) {
			float *v = x + (size_t)r * (size_t)n_in + i;
			*v = r == 1 ? 0 : ldexpf(*v, r % 37 - 18);
		}
	return x;
}

static void check_near_cpu(const struct card_product *p, const float *got, const float *want)
{
	for (int r = 0; r < ROWS_CPU; r++) {
		double diff = 0, norm = 0;
		for (int i = 0; i < p->n_out; i++) {
			double w = (double)want[r * p->n_out + i], d = (double)got[r * p->n_out + i] - w;
			w -= p->add ? 0.25 : 0;
			diff += d * d;
			norm += w * w;
		}
		double error = norm > 0 ? sqrt(diff / norm) : sqrt(diff);
		/* sums of 0.25 and small values round to 2^-26 */
		if (!(error <= ERROR_LIMIT + (p->add ? 0x1p-26 * sqrt(p->n_out / MAX(norm, 1e-20)) : 0)))
			fail_msg("%s, row %d: normalised error %.3e", p->name, r, error);
	}
}

static void check_product(const struct card_product *p)
{
	static const int counts[] = {65, 129, 200, 512, 1000, 2048, 2049, 4097, 8191};
	uint64_t row_bytes;
	assert_true(dtype_row_bytes(p->type, (uint64_t)p->n_in, &row_bytes));
	uint8_t *w = NEW_ARRAY(uint8_t, row_bytes * (uint64_t)p->n_out);
	if (p->type == DTYPE_F16 || p->type == DTYPE_BF16) /* finite ones, of moderate size */
		for (size_t i = 0; i < row_bytes * (uint64_t)p->n_out; i += 2) {
			w[i] = (uint8_t)(i * 2654435761u >> 7);
			w[i + 1] = (uint8_t)((i * 40503u >> 3 & 0x80) | (0x2c + (i * 2246822519u >> 9) % 8));
		}
	else
		op_random_blocks(9, p->n_out, p->type, w, row_bytes * (uint64_t)p->n_out);
	float *x = some_rows(p->n_in);
	struct operands on_card, on_cpu;
	operands_make(&on_card, card, p, w, row_bytes, x, ROWS_MOST);
	operands_make(&on_cpu, cpu, p, w, row_bytes, x, ROWS_CPU);
	float *all = multiply(&on_card, p, 0, ROWS_MOST), *want = multiply(&on_cpu, p, 0, ROWS_CPU);
	check_near_cpu(p, all, want);
	for (size_t i = 0; i < ARRAY_LEN(counts); i++) /* from the first row, and up to the last */
		for (int end = 0; end < 2; end++) {
			int n = counts[i], first = end ? ROWS_MOST - n : 0;
			float *some = multiply(&on_card, p, first, n);
			const float *same = all + (size_t)first * (size_t)p->n_out;
			if (memcmp(some, same, (size_t)n * (size_t)p->n_out * sizeof *some))
				fail_msg(
					"%s: rows %d to %d differ when they come alone", p->name, first, first + n - 1);
			free(some);
		}
	operands_free(&on_card);
	operands_free(&on_cpu);
	free(all);
	free(want);
	free(x);
	free(w);
}

static void test_products(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(products); i++)
		check_product(&products[i]);
	print_message("cublasLt: %u\n", backend_library_version(card));
}

/* Two parts that share x, the second one by other kernels. */
static void test_shared_x(void **state)
{
	(void)state;
	enum { N_IN = 2048, WIDE = 16384, NARROW = 576, ROWS = 300 };
	uint64_t row_bytes;
	assert_true(dtype_row_bytes(DTYPE_Q8_0, N_IN, &row_bytes));
	uint8_t *w = NEW_ARRAY(uint8_t, row_bytes * WIDE);
	op_random_blocks(3, 1, DTYPE_Q8_0, w, row_bytes * WIDE);
	float *x = some_rows(N_IN);
	static const struct card_product one = {"first", DTYPE_Q8_0, N_IN, WIDE, false},
									 two = {"second", DTYPE_Q8_0, N_IN, NARROW, false};
	struct operands a, b, c;
	operands_make(&a, card, &one, w, row_bytes, x, ROWS);
	operands_make(&b, card, &two, w, row_bytes, x, ROWS);
	operands_make(&c, card, &one, w, row_bytes, x, ROWS);
	float *want = multiply(&a, &one, 0, ROWS), *want_two = multiply(&b, &two, 0, ROWS),
		  *got = NEW_ARRAY(float, (size_t)ROWS *WIDE);
	const struct matmul parts[] = {a.m, b.m, c.m};
	struct err e = {0};
	card->ops->matmul(card, parts, 3, a.x, ROWS);
	assert_int_equal(card->ops->download(card, got, a.y, a.y_bytes, &e), 0);
	assert_memory_equal(got, want, a.y_bytes);
	assert_int_equal(card->ops->download(card, got, b.y, b.y_bytes, &e), 0);
	assert_memory_equal(got, want_two, b.y_bytes);
	assert_int_equal(card->ops->download(card, got, c.y, c.y_bytes, &e), 0);
	assert_memory_equal(got, want, c.y_bytes);
	operands_free(&a);
	operands_free(&b);
	operands_free(&c);
	free(got);
	free(want);
	free(want_two);
	free(x);
	free(w);
}

#define EXPERTS(t)                                                                                 \
	{                                                                                              \
		.name = "experts " #t, .op = OP_EXPERT_FFN, .type = DTYPE_##t, .rows = 1500, .n_in = 1024, \
		.n_out = 512, .heads = 6, .n_used = 3                                                      \
	}

/* Experts with some 750 rows each, which fill several tiles, and with a few: the same bits. */
static void test_experts(void **state)
{
	(void)state;
	static const struct op_case cases[] = {EXPERTS(IQ2_XXS), EXPERTS(Q2_K), EXPERTS(Q4_K)};
	static const int counts[] = {65, 129, 400, 1024, 1499};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const struct op_case *c = &cases[i];
		size_t width = (size_t)op_case_width(c);
		float *all = op_case_run(card, c, 0, c->rows);
		for (size_t k = 0; k < ARRAY_LEN(counts); k++) {
			int n = counts[k], first = k % 2 ? c->rows - n : 0;
			float *some = op_case_run(card, c, first, n);
			op_case_same_bits(
				c, "in another batch", all + (size_t)first * width, some, (size_t)n * width);
			free(some);
		}
		free(all);
	}
}

/* Selections of GLM-5.2's indexer behind 131,072 positions: the processor's but for scores that
 * rounding may move past each other. Whole numbers make many of them equal but for rounding. */
static void test_selections(void **state)
{
	(void)state;
	static const struct op_case cases[] = {
		{.name = "ties behind 131072",
			.op = OP_INDEX_SELECT,
			.type = DTYPE_F16,
			.rows = 77,
			.heads = 32,
			.dim = 128,
			.top_k = 2048,
			.far = 131071,
			.whole = true},
		{.name = "behind 131072",
			.op = OP_INDEX_SELECT,
			.type = DTYPE_F16,
			.rows = 79,
			.heads = 32,
			.dim = 128,
			.top_k = 2048,
			.far = 131071},
		{.name = "ties, few heads",
			.op = OP_INDEX_SELECT,
			.type = DTYPE_F16,
			.rows = 150,
			.heads = 9,
			.dim = 128,
			.top_k = 100,
			.far = 2500,
			.whole = true},
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const struct op_case *c = &cases[i];
		size_t width = (size_t)op_case_width(c);
		int n = c->rows - 6;
		float *all = op_case_run(card, c, 0, c->rows), *some = op_case_run(card, c, 6, n);
		op_case_same_bits(c, "in another batch", all + 6 * width, some, (size_t)n * width);
		float *want = op_case_run(cpu, c, 0, c->rows);
		op_case_check_selection(c, want, all, SCORE_UNITS);
		free(want);
		free(all);
		free(some);
	}
}

int main(int argc, char **argv)
{
	struct err e = {0};
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	if (backend_open(&(struct backend_options){.name = "cuda"}, &card, &e)) {
		printf("skipped: %s\n", e.text);
		return 77;
	}
	if (backend_open(&(struct backend_options){.name = "cpu"}, &cpu, &e)) {
		fprintf(stderr, "%s\n", e.text);
		return 1;
	}
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_products),
		cmocka_unit_test(test_shared_x),
		cmocka_unit_test(test_experts),
		cmocka_unit_test(test_selections),
	};
	int rc = cmocka_run_group_tests(tests, NULL, NULL);
	card->ops->close(card);
	cpu->ops->close(cpu);
	return rc;
}
