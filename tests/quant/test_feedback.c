/* SPDX-License-Identifier: MIT */
/*
 * feedback.h: the error that counts falls for every type it is for, matrices without correlation
 * get the bytes of plain quantising, and sums of moments do not depend on how rows come.
 */
#include "src/quant/feedback.h"

#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/quant/dequant.h"
#include "src/quant/quantize.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = FEEDBACK_COLUMNS, INPUTS = 600, FACTORS = 24, ROWS = 24 };

static double gauss(struct rng *r)
{
	return sqrt(-2 * log(1 - rng_unit(r))) * cos(2 * M_PI * rng_unit(r));
}

static struct {
	float inputs[INPUTS][N]; /* a few common factors, columns of several strengths, and noise */
	const float *rows[INPUTS];
	float moments[FEEDBACK_MOMENTS], importance[N], weights[ROWS][2 * N];
	struct quant_feedback feedback[2];
	double work[N * N];
} t;

static int make_case(void **state)
{
	(void)state;
	struct rng r = {11};
	static float load[FACTORS][N], strength[N];
	for (int c = 0; c < N; c++) {
		strength[c] = (float)exp(0.5 * gauss(&r));
		for (int k = 0; k < FACTORS; k++)
			load[k][c] = (float)gauss(&r);
	}
	for (int i = 0; i < INPUTS; i++) {
		double factor[FACTORS];
		for (int k = 0; k < FACTORS; k++)
			factor[k] = gauss(&r);
		for (int c = 0; c < N; c++) {
			double v = 2 * gauss(&r);
			for (int k = 0; k < FACTORS; k++)
				v += factor[k] * (double)load[k][c];
			t.inputs[i][c] = (float)(v * (double)strength[c]);
		}
		t.rows[i] = t.inputs[i];
	}
	memset(t.moments, 0, sizeof t.moments);
	quant_feedback_add_rows(t.moments, t.rows, INPUTS, 0);
	const float *m = t.moments;
	for (int c = 0; c < N; m += N - c++)
		t.importance[c] = m[0];
	for (int i = 0; i < ROWS; i++)
		for (int c = 0; c < 2 * N; c++)
			t.weights[i][c] = (float)(0.02 * gauss(&r));
	for (int b = 0; b < 2; b++)
		assert_true(quant_feedback_make(&t.feedback[b], t.moments, t.importance, 1, t.work));
	return 0;
}

/* Squares of what all rows get wrong on all inputs, both blocks of columns seeing the same. */
static double input_error(const float (*y)[2 * N])
{
	double sum = 0;
	for (int b = 0; b < 2; b++)
		for (int row = 0; row < ROWS; row++)
			for (int i = 0; i < INPUTS; i++) {
				double dot = 0;
				for (int c = 0; c < N; c++)
					dot += ((double)t.weights[row][N * b + c] - (double)y[row][N * b + c]) *
						   (double)t.inputs[i][c];
				sum += dot * dot;
			}
	return sum;
}

/* With `feedback` NULL plainly. */
static void pass(enum dtype type, const struct quant_feedback *feedback, uint8_t *packed,
	uint64_t row_bytes, float (*y)[2 * N])
{
	float importance[2 * N];
	for (int c = 0; c < 2 * N; c++)
		importance[c] = t.importance[c % N];
	for (int i = 0; i < ROWS; i++) {
		uint8_t *out = packed + (uint64_t)i * row_bytes;
		if (feedback)
			quantize_row_feedback(type, t.weights[i], out, 2 * N, importance, feedback);
		else
			quantize_row(type, t.weights[i], out, 2 * N, importance);
		dequant_row(type, out, y[i], 2 * N);
		for (int c = 0; c < 2 * N; c++)
			assert_true(isfinite(y[i][c]));
	}
}

static void test_error_falls(void **state)
{
	(void)state;
	static const struct {
		enum dtype type;
		double most; /* of the plain error; a few per cent above what is reached here */
	} types[] = {{DTYPE_IQ2_XXS, 0.28}, {DTYPE_Q2_K, 0.28}, {DTYPE_Q3_K, 0.28}, {DTYPE_Q4_K, 0.28},
		{DTYPE_Q5_K, 0.28}, {DTYPE_Q6_K, 0.28}};
	static float y[ROWS][2 * N];
	int n = 0;
	for (uint32_t k = 0; k < DTYPE_LIMIT; k++)
		n += quantize_feedback_supported((enum dtype)k);
	assert_int_equal(n, ARRAY_LEN(types));
	for (size_t k = 0; k < ARRAY_LEN(types); k++) {
		uint64_t bytes;
		assert_true(quantize_feedback_supported(types[k].type));
		assert_true(dtype_row_bytes(types[k].type, 2 * N, &bytes));
		uint8_t *packed = malloc(ROWS * bytes), *again = malloc(ROWS * bytes);
		pass(types[k].type, NULL, packed, bytes, y);
		double plain = input_error((const float(*)[2 * N]) y);
		pass(types[k].type, t.feedback, packed, bytes, y);
		double with = input_error((const float(*)[2 * N]) y);
		print_message("%-8s error on the inputs: %.3f of the plain one\n",
			dtype_name(types[k].type), with / plain);
		if (!(with < types[k].most * plain))
			fail_msg("%s: error feedback gains too little", dtype_name(types[k].type));
		pass(types[k].type, t.feedback, again, bytes, y);
		assert_memory_equal(packed, again, ROWS * bytes);
		free(packed);
		free(again);
	}
}

/* Without correlations, with no trust in them, and where they contradict each other. */
static void test_plain(void **state)
{
	(void)state;
	static const enum dtype types[] = {DTYPE_IQ2_XXS, DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_Q6_K};
	static float y[ROWS][2 * N], moments[FEEDBACK_MOMENTS];
	static struct quant_feedback none[2];
	float *m = moments;
	for (int c = 0; c < N; m += N - c++)
		m[0] = t.importance[c];
	for (int way = 0; way < 3; way++) {
		if (way == 2) /* every pair of columns is opposite to each other */
			for (int k = 0; k < FEEDBACK_MOMENTS; k++)
				moments[k] = -1e3f;
		for (m = moments; way == 2 && m < moments + FEEDBACK_MOMENTS;)
			for (int c = 0; c < N; m += N - c++)
				m[0] = 1e3f;
		for (int b = 0; b < 2; b++) {
			bool definite = quant_feedback_make(
				&none[b], way == 1 ? t.moments : moments, t.importance, way != 1, t.work);
			assert_int_equal(definite, way != 2);
			assert_false(none[b].correlated);
		}
		for (size_t k = 0; k < ARRAY_LEN(types); k++) {
			uint64_t bytes;
			assert_true(dtype_row_bytes(types[k], 2 * N, &bytes));
			uint8_t *packed = malloc(ROWS * bytes), *plain = malloc(ROWS * bytes);
			pass(types[k], NULL, plain, bytes, y);
			pass(types[k], none, packed, bytes, y);
			assert_memory_equal(plain, packed, ROWS * bytes);
			free(packed);
			free(plain);
		}
	}
}

/* U D U' is H: the sum over columns that feedback.h promises is e' H e. */
static void test_factors(void **state)
{
	(void)state;
	struct rng r = {5};
	const struct quant_feedback *f = &t.feedback[0];
	double e[N], v[N], mean = 0, direct = 0, factored = 0;
	for (int c = 0; c < N; c++) {
		e[c] = gauss(&r);
		mean += (double)t.importance[c] / N;
	}
	const float *m = t.moments;
	for (int i = 0; i < N; m += N - i++)
		for (int j = i; j < N; j++)
			direct += e[i] * e[j] * (double)m[j - i] / mean * (i == j ? 1.01 : 2);
	for (int c = 0; c < N; c++) {
		v[c] = e[c];
		for (int j = 0; j < c / 8 * 8; j++)
			v[c] += e[j] * (double)f->between[j / 8][c / 8][j % 8][c % 8];
	}
	for (int c = 0; c < N; c++) {
		double w = v[c];
		for (int j = c / 8 * 8; j < c; j++)
			w += v[j] * (double)f->within[j][c % 8];
		factored += w * w * (double)f->weight[c];
	}
	assert_true(fabs(factored / direct - 1) < 1e-3);
}

static void test_rows_in_parts(void **state)
{
	(void)state;
	static float sums[FEEDBACK_MOMENTS];
	static const int parts[] = {1, 4, 3, 64, 2, 101, 400, 25};
	int at = 0;
	for (size_t k = 0; k < ARRAY_LEN(parts); at += parts[k++])
		quant_feedback_add_rows(sums, t.rows + at, (size_t)parts[k], 0);
	assert_int_equal(at, INPUTS);
	assert_memory_equal(sums, t.moments, sizeof sums);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_error_falls),
		cmocka_unit_test(test_plain),
		cmocka_unit_test(test_factors),
		cmocka_unit_test(test_rows_in_parts),
	};
	return cmocka_run_group_tests(tests, make_case, NULL);
}
