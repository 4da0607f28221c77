/* SPDX-License-Identifier: MIT */
/*
 * quantize.h: error bounds per type on rows of many shapes, importance, determinism, exact cases,
 * scaling by powers of two.
 *
 * The bounds on the Gaussian and the heavy-tailed row are relative root mean square errors, one to
 * two per cent above what the search reaches on these very rows: a search that got worse fails.
 * Constants suffer where d is a subnormal half (Q5_K, Q6_K), and in IQ2_XXS, whose codebook lacks
 * most rows of equal magnitudes.
 */
#include "src/quant/quantize.h"

#include "src/base/num.h"
#include "src/base/rng.h"
#include "src/quant/dequant.h"
#include "src/quant/feedback.h"
#include "src/quant/search/quantize_rows.h"
#include "tests/quant/quant_inputs.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N 4096

static const struct {
	enum dtype type;
	double gauss, heavy; /* bounds of the relative error */
	double constant;     /* bound of the relative error of a constant row */
} types[] = {
	{DTYPE_F32, 0, 0, 0},
	{DTYPE_F16, 2.5e-4, 2.5e-4, 5e-4},
	{DTYPE_BF16, 2e-3, 2e-3, 4e-3},
	{DTYPE_Q8_0, 0.0049, 0.0068, 0.002},
	{DTYPE_Q6_K, 0.0173, 0.0217, 0.006},
	{DTYPE_Q5_K, 0.0352, 0.0427, 0.006},
	{DTYPE_Q4_K, 0.0715, 0.0860, 0.002},
	{DTYPE_Q4_0, 0.0837, 0.1120, 0.002},
	{DTYPE_Q3_K, 0.1470, 0.1790, 0.002},
	{DTYPE_Q2_K, 0.2760, 0.3100, 0.002},
	{DTYPE_IQ2_XXS, 0.3410, 0.3770, 0.5},
};

static double gauss(struct rng *r)
{
	return sqrt(-2 * log(1 - rng_unit(r))) * cos(2 * M_PI * rng_unit(r));
}

/* Student's t with four degrees of freedom. */
static double heavy(struct rng *r)
{
	double sum = 0, g = gauss(r);
	for (int i = 0; i < 4; i++) {
		double v = gauss(r);
		sum += v * v;
	}
	return g / sqrt(sum / 4);
}

static void pass(enum dtype type, const float *x, float *y, size_t n, const float *importance)
{
	uint64_t bytes;
	assert_true(dtype_row_bytes(type, n, &bytes));
	uint8_t *row = malloc(bytes + 1), *again = malloc(bytes);
	memset(row, 0xa5, bytes + 1);
	memset(again, 0x5a, bytes);
	quantize_row(type, x, row, n, importance);
	quantize_row(type, x, again, n, importance);
	assert_memory_equal(row, again, bytes); /* every bit is written, and always the same */
	assert_int_equal(row[bytes], 0xa5);
	dequant_row(type, row, y, n);
	for (size_t i = 0; i < n; i++)
		if (!isfinite(y[i]))
			fail_msg(
				"%s: weight %zu, %g, becomes %g", dtype_name(type), i, (double)x[i], (double)y[i]);
	free(row);
	free(again);
}

/* sqrt(sum w (x - y)^2 / sum w x^2) */
static double error(const float *x, const float *y, const float *w, size_t n)
{
	double e = 0, s = 0;
	for (size_t i = 0; i < n; i++) {
		double d = (double)x[i] - (double)y[i], wi = w ? (double)w[i] : 1;
		e += wi * d * d;
		s += wi * (double)x[i] * (double)x[i];
	}
	return s > 0 ? sqrt(e / s) : sqrt(e);
}

static void test_supported(void **state)
{
	(void)state;
	int n = 0;
	for (uint32_t t = 0; t < DTYPE_LIMIT; t++)
		n += quantize_supported((enum dtype)t);
	assert_int_equal(n, ARRAY_LEN(types));
	for (size_t t = 0; t < ARRAY_LEN(types); t++)
		assert_true(quantize_supported(types[t].type));
	assert_false(quantize_supported(DTYPE_IQ1_M));
	assert_false(quantize_supported((enum dtype)999));
}

static void test_random_rows(void **state)
{
	(void)state;
	static float x[N], y[N];
	for (size_t t = 0; t < ARRAY_LEN(types); t++) {
		struct rng r = {1};
		for (int i = 0; i < N; i++)
			x[i] = (float)(0.02 * gauss(&r));
		pass(types[t].type, x, y, N, NULL);
		double e = error(x, y, NULL, N);
		print_message("%-8s gauss %.5f", dtype_name(types[t].type), e);
		if (e > types[t].gauss)
			fail_msg("%s: error %.5f on a Gaussian row, bound %.5f", dtype_name(types[t].type), e,
				types[t].gauss);
		for (int i = 0; i < N; i++)
			x[i] = (float)(0.02 * heavy(&r));
		pass(types[t].type, x, y, N, NULL);
		e = error(x, y, NULL, N);
		print_message("  heavy tails %.5f\n", e);
		if (e > types[t].heavy)
			fail_msg("%s: error %.5f on a heavy-tailed row, bound %.5f", dtype_name(types[t].type),
				e, types[t].heavy);
	}
}

/* <x, y> / <x, x>: least squares alone leaves 0.978 (Q3_K), 0.93 (Q2_K) and 0.89 (IQ2_XXS), which
 * adds up over columns and experts; the search has to give most of it back, and not more. */
static void test_shrinkage(void **state)
{
	(void)state;
	static const struct {
		enum dtype type;
		double low, high;
	} limits[] = {{DTYPE_Q3_K, 0.988, 1}, {DTYPE_Q2_K, 0.96, 1}, {DTYPE_IQ2_XXS, 0.95, 1}};
	static float x[N], y[N], w[N];
	for (size_t t = 0; t < ARRAY_LEN(limits); t++)
		for (int weighted = 0; weighted < 2; weighted++) {
			struct rng r = {9};
			for (int i = 0; i < N; i++) {
				x[i] = (float)(0.02 * gauss(&r));
				w[i] = weighted ? (float)exp(0.5 * gauss(&r)) : 1;
			}
			pass(limits[t].type, x, y, N, weighted ? w : NULL);
			double xx = 0, xy = 0;
			for (int i = 0; i < N; i++) {
				xx += (double)w[i] * (double)x[i] * (double)x[i];
				xy += (double)w[i] * (double)x[i] * (double)y[i];
			}
			print_message("%-8s <x, y> / <x, x> = %.4f\n", dtype_name(limits[t].type), xy / xx);
			assert_true(xy / xx > limits[t].low && xy / xx < limits[t].high);
		}
}

static void test_special_rows(void **state)
{
	(void)state;
	float x[512], y[512];
	static const float constants[] = {1, -1, 0.013f, -0.013f, 700, -700};
	for (size_t t = 0; t < ARRAY_LEN(types); t++) {
		enum dtype type = types[t].type;
		for (size_t c = 0; c < ARRAY_LEN(constants); c++) {
			for (int i = 0; i < 512; i++)
				x[i] = constants[c];
			pass(type, x, y, 512, NULL);
			if (error(x, y, NULL, 512) > types[t].constant)
				fail_msg(
					"%s: constant %g becomes %g", dtype_name(type), (double)x[0], (double)y[0]);
		}
		memset(x, 0, sizeof x);
		pass(type, x, y, 512, NULL);
		for (int i = 0; i < 512; i++)
			assert_true(y[i] == 0);
		/* a single weight among zeros: stays, and the zeros near zero; in a block of zeros exactly
		 * so */
		for (int at = 0; at < 256; at += 37)
			for (int sign = -1; sign <= 1; sign += 2) {
				memset(x, 0, sizeof x);
				x[at] = 0.3f * (float)sign;
				pass(type, x, y, 512, NULL);
				/* IQ2_XXS has no zeros: at best 43 and 31 times 8, error sqrt(31 * 8^2 / (43^2 + 31
				 * * 8^2)) = 0.7195, and d grows by 1.08 */
				double bound = type == DTYPE_IQ2_XXS ? 0.725 : 0.01;
				if (error(x, y, NULL, 512) > bound)
					fail_msg("%s: %g at %d becomes %g, error %g", dtype_name(type), (double)x[at],
						at, (double)y[at], error(x, y, NULL, 512));
				for (int i = 256; i < 512; i++)
					assert_true(y[i] == 0);
			}
	}
}

/* One weight 100 times the others' size must not be cut off, and must not raise the error above the
 * error of zero. */
static void test_outlier(void **state)
{
	(void)state;
	static float x[N], y[N];
	for (size_t t = 0; t < ARRAY_LEN(types); t++) {
		struct rng r = {3};
		for (int i = 0; i < N; i++)
			x[i] = (float)(0.02 * gauss(&r));
		x[1000] = 2;
		pass(types[t].type, x, y, N, NULL);
		double bound = types[t].type == DTYPE_IQ2_XXS ? 0.7 : 0.35;
		if (error(x, y, NULL, N) > bound || fabs((double)y[1000] - 2) > 2 * bound)
			fail_msg("%s: error %g, outlier 2 becomes %g", dtype_name(types[t].type),
				error(x, y, NULL, N), (double)y[1000]);
	}
}

/* Rows at the edges of the formats: scales that are subnormal halves, vanish, or exceed the largest
 * half. */
static void test_extreme_sizes(void **state)
{
	(void)state;
	static float x[N], y[N], unit[N];
	struct rng r = {4};
	for (int i = 0; i < N; i++)
		unit[i] = (float)fmax(-4, fmin(4, gauss(&r)));
	static const float sizes[] = {
		FLT_TRUE_MIN, 1e-42f, 1e-38f, 1e-30f, 1e-12f, 1e-6f, 1e-3f, 1e4f, 1e6f, 1e20f, FLT_MAX / 4};
	for (size_t t = 0; t < ARRAY_LEN(types); t++)
		for (size_t s = 0; s < ARRAY_LEN(sizes); s++) {
			for (int i = 0; i < N; i++)
				x[i] = unit[i] * sizes[s];
			pass(types[t].type, x, y, N, NULL); /* finite */
			for (int i = 0; i < N; i++)
				if (fabsf(y[i]) > 1.2f * 4 * sizes[s] + FLT_TRUE_MIN)
					fail_msg(
						"%s: %g becomes %g", dtype_name(types[t].type), (double)x[i], (double)y[i]);
			if (sizes[s] >= 1e-3f && sizes[s] <= 1e4f &&
				error(x, y, NULL, N) > types[t].gauss * 1.03)
				fail_msg("%s: error %g at size %g", dtype_name(types[t].type), error(x, y, NULL, N),
					(double)sizes[s]);
			if (sizes[s] == 1e6f &&
				types[t].type != DTYPE_F16) /* d near its largest value: cut, but not wild */
				assert_true(error(x, y, NULL, N) < 1);
		}
}

/* Weights of the columns shift the error to where it costs least. */
static void test_importance(void **state)
{
	(void)state;
	static float x[N], y[N], z[N], w[N], ones[N], zeros[N];
	struct rng r = {5};
	for (int i = 0; i < N; i++) {
		x[i] = (float)gauss(&r);
		w[i] = (float)exp(1.5 * gauss(&r));
		ones[i] = 3;
	}
	for (size_t t = 0; t < ARRAY_LEN(types); t++) {
		pass(types[t].type, x, y, N, NULL);
		pass(types[t].type, x, z, N, w);
		double without = error(x, y, w, N), with = error(x, z, w, N);
		print_message("%-8s weighted error %.5f, %.5f with importance\n", dtype_name(types[t].type),
			without, with);
		if (dtype_info(types[t].type)->block_values == 1)
			assert_memory_equal(y, z, sizeof y);
		else if (!(with < 0.97 * without))
			fail_msg("%s: importance gains too little", dtype_name(types[t].type));
		/* equal weights of any size minimise the plain error: no default may be better at that;
		 * most are the same */
		pass(types[t].type, x, z, N, ones);
		double even = error(x, z, NULL, N), by_default = error(x, y, NULL, N);
		bool other_default = types[t].type == DTYPE_Q8_0 || types[t].type == DTYPE_Q2_K;
		assert_true(even <= 1.002 * by_default);
		assert_true(other_default || by_default <= 1.002 * even);
		pass(types[t].type, x, z, N, zeros); /* nothing but zeros says nothing */
		assert_memory_equal(y, z, sizeof y);
		for (int i = 0; i < N; i++) /* a half of the columns may have no weight at all */
			z[i] = i & 1 ? w[i] * 1e20f : 0;
		pass(types[t].type, x, y, N, z);
	}
}

/* What the type can store exactly comes back. */
static void test_exact(void **state)
{
	(void)state;
	float x[256], y[256];
	struct rng r = {6};
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < 256; i++)
			x[i] = 0.25f * (float)((int)rng_below(&r, 16) - 8);
		x[round] = -2;
		static const enum dtype exact[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
		for (size_t t = 0; t < ARRAY_LEN(exact); t++) {
			pass(exact[t], x, y, 256, NULL);
			assert_memory_equal(x, y, sizeof x);
		}
		for (int i = 0; i < 256; i += 32) /* d = 1/64 */
			x[i] = -2;
		pass(DTYPE_Q8_0, x, y, 256, NULL);
		assert_memory_equal(x, y, sizeof x);
		pass(DTYPE_Q4_0, x, y, 256, NULL); /* d = 1/4 */
		assert_memory_equal(x, y, sizeof x);
	}
	static const float big[] = {65504, 65519, 65520, 1e6f, -1e30f, FLT_MAX, -FLT_MAX};
	for (size_t i = 0; i < ARRAY_LEN(big); i++) {
		pass(DTYPE_F16, &big[i], y, 1, NULL);
		assert_true(fabsf(y[0]) == 65504);
		pass(DTYPE_BF16, &big[i], y, 1, NULL);
		assert_true(fabsf(y[0] / big[i] - 1) < 0.004f);
	}
}

/* The search works in units of the block: twice the weights, the same codes and twice the result
 * (scales that are normal halves). */
static void test_scaling(void **state)
{
	(void)state;
	static float x[N], y[N], z[N];
	struct rng r = {8};
	for (int i = 0; i < N; i++)
		x[i] = (float)(10 * gauss(&r));
	for (size_t t = 0; t < ARRAY_LEN(types); t++) {
		pass(types[t].type, x, y, N, NULL);
		for (int i = 0; i < N; i++)
			z[i] = x[i] * 8;
		pass(types[t].type, z, z, N, NULL);
		for (int i = 0; i < N; i++)
			assert_true(z[i] == y[i] * 8);
	}
}

/* Every instruction set that this machine has gives the bytes of plain C. */
static void test_instruction_sets(void **state)
{
	(void)state;
	enum { ROWS = 8, COLS = 1024 };
	static float row[COLS], used[COLS];
	const struct quantize_rows *fast;
	for (int level = 0; (fast = quantize_rows_available(level)) != quantize_rows_c; level++)
		for (int input = 0; input < QUANT_INPUTS; input++) {
			struct quant_matrix q;
			quant_matrix_init(&q, DTYPE_F32, ROWS, COLS, (enum quant_input)input, 11);
			struct quant_feedback *f = quant_inputs_feedback(COLS, q.importance, used);
			for (int i = 0; i < ROWS * QUANT_CARD_TYPES * 3; i++) {
				const enum dtype type = quant_card_types[i / 3 % QUANT_CARD_TYPES];
				const bool fed = i % 3 == 2 && quantize_feedback_supported(type);
				const float *w = fed ? used : i % 3 ? q.importance : NULL;
				const uint64_t r = (uint64_t)i / (3 * QUANT_CARD_TYPES);
				uint8_t want[8 * COLS] = {0}, got[8 * COLS] = {0};
				raw_matrix_rows(&q.m, r, r + 1, row);
				quantize_rows_c->fn[type](row, want, COLS, w, fed ? f : NULL);
				fast->fn[type](row, got, COLS, w, fed ? f : NULL);
				if (memcmp(want, got, sizeof want))
					fail_msg("level %d, %s, input %s, row %d, case %d: other bytes", level,
						dtype_name(type), quant_input_name((enum quant_input)input), (int)r, i % 3);
			}
			free(f);
			quant_matrix_fini(&q);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_supported),
		cmocka_unit_test(test_random_rows),
		cmocka_unit_test(test_shrinkage),
		cmocka_unit_test(test_special_rows),
		cmocka_unit_test(test_outlier),
		cmocka_unit_test(test_extreme_sizes),
		cmocka_unit_test(test_importance),
		cmocka_unit_test(test_exact),
		cmocka_unit_test(test_scaling),
		cmocka_unit_test(test_instruction_sets),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
